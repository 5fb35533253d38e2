"""What a policy is: points in, spans out; and a policy that is checked.

>>> words("my ID: 12")
[(0, 2), (3, 5), (5, 6), (7, 9)]
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from crtlib.text.records import MASK, Point, Secret, check_spans

Labels = list[tuple[Secret, ...]]
"""The flagged spans of each point."""


class Policy(Protocol):
    """A screening policy (CRT, section 3.2: the labelling function pi, or pi_c)."""

    @property
    def name(self) -> str:
        """How a table or a guarantee calls it."""
        ...

    def __call__(self, points: Sequence[Point]) -> Labels:
        """The flagged spans of each point, sorted and disjoint."""
        ...


@dataclass(frozen=True)
class Checked:
    """``policy``, whose mistakes become one line that names it. See ``checked``."""

    policy: Policy

    @property
    def name(self) -> str:
        return getattr(self.policy, "name", None) or type(self.policy).__name__

    def __call__(self, points: Sequence[Point]) -> Labels:
        try:
            labels = [tuple(spans) for spans in self.policy(points)]
        except Exception as error:  # its message may quote the text
            raise ValueError(f"policy={self.name!r}: failed with {type(error).__name__}") from None
        if len(labels) != len(points):
            raise ValueError(
                f"policy={self.name!r}: gave {len(labels)} labels for {len(points)} points"
            )
        for p, spans in zip(points, labels, strict=True):
            try:
                check_spans(p.text, spans)
            except (ValueError, AttributeError, TypeError) as error:
                why = str(error) if isinstance(error, ValueError) else "its spans are no Secrets"
                raise ValueError(f"policy={self.name!r}: point {p.id!r}: {why}") from None
        return labels


def checked(policy: Policy) -> Checked:
    """``policy``, refused with a ``ValueError`` where it raises, or returns labels for another
    number of points or spans that are unsorted, overlap or lie outside their text.

    No text is shown, and the exception that a policy raised is not chained, as it may quote one.
    """
    return Checked(policy)


_WORDS = re.compile(rf"{re.escape(MASK)}|\w+(?:['’/@&+-]+\w+|(?<=\d)[.,:]\d\w*)*|[^\w\s]")


def words(text: str) -> list[tuple[int, int]]:
    """Where the words of a text stand: ``<MASK>``, runs of letters and digits, single signs."""
    return [m.span() for m in _WORDS.finditer(text)]


def runs(
    text: str, flagged: np.ndarray, begins: np.ndarray, goes_on: np.ndarray, kinds: Sequence[str]
) -> tuple[Secret, ...]:
    """Spans from the ``flagged`` words of a text: those next to each other are one secret, unless
    the second rather begins one than goes on. ``begins``, ``goes_on``: (words, kinds) scores."""
    at = words(text)
    new = begins.sum(1) > goes_on.sum(1)
    found: list[list[int]] = []
    for i in np.flatnonzero(flagged).tolist():
        if text[slice(*at[i])] == MASK:
            continue
        if found and found[-1][-1] == i - 1 and not new[i]:
            found[-1].append(i)
        else:
            found.append([i])
    return tuple(
        Secret(kinds[int((begins[f] + goes_on[f]).sum(0).argmax())], at[f[0]][0], at[f[-1]][1])
        for f in found
    )
