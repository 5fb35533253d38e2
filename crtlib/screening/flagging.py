"""Policies on many points, here or on an executor: what travels is JSON, spans without text.

>>> from concurrent.futures import ThreadPoolExecutor
>>> from crtlib.text.records import Point
>>> with ThreadPoolExecutor(2) as executor:
...     spread("cautious", executor)([Point("0", "u", "I am Ada.")])
[(Secret(kind='capital', start=5, end=8),)]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from crtlib.checks import MachineError
from crtlib.screening.by_name import digest, plain, policy_by_name
from crtlib.screening.policy import Labels, Policy
from crtlib.text.records import Point, Secret
from crtlib.text.shards import in_order

LOT = 2_000
"""Points that a worker flags at a time."""


def packed(labels: Iterable[Iterable[Secret]]) -> list[list[tuple[str, int, int]]]:
    """Labels as a JSON value."""
    return [[(s.kind, int(s.start), int(s.end)) for s in spans] for spans in labels]


def unpacked(value: Iterable[Iterable[Sequence[Any]]]) -> Labels:
    """Labels of a JSON value."""
    return [tuple(Secret(*span) for span in spans) for spans in value]


def check_same(name: str, sha: str) -> None:
    """Raise :class:`MachineError` where a policy's files are not those whose hash was taken: all
    workers must flag alike."""
    if digest(name) != sha:
        raise MachineError(
            f"policy={plain(name)!r}: is another one now, or where a worker reads it; what was "
            "finished is kept: give all workers the same files"
        )


@lru_cache(maxsize=4)
def known(name: str, sha: str) -> Policy:
    """The policy of this name, made once by each worker."""
    check_same(name, sha)
    return policy_by_name(name)


def spread(name: str, executor: Executor | None) -> Policy:
    """The policy of this name, its points flagged by an executor, whose workers make it there; by
    this process without one."""
    policy = policy_by_name(name)
    if executor is None:
        return policy
    return replace(policy, flag=partial(_spread, executor, partial(_by_name, name, digest(name))))


def lent(policy: Policy, executor: Executor | None) -> Policy:
    """A policy that can be pickled, its points flagged by an executor."""
    if executor is None:
        return policy
    return replace(policy, flag=partial(_spread, executor, partial(_by_value, policy)))


def _by_name(name: str, sha: str, points: Sequence[Point]) -> list[Any]:
    return packed(known(name, sha).flag(points))


def _by_value(policy: Policy, points: Sequence[Point]) -> list[Any]:
    return packed(policy.flag(points))


def _spread(
    executor: Executor, call: Callable[[Sequence[Point]], list[Any]], points: Sequence[Point]
) -> Labels:
    lots = (points[k : k + LOT] for k in range(0, len(points), LOT))
    found = in_order(call, lots, executor)
    return list(itertools.chain.from_iterable(unpacked(value) for _, value in found))
