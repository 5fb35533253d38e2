"""Sorted, disjoint spans: each question is one walk along two lists, never a product of them.

>>> a, b = [Secret("a", 0, 4), Secret("a", 6, 9)], [Secret("b", 3, 7)]
>>> [(s.start, t.start) for s, t in overlaps(a, b)]
[(0, 3), (6, 3)]
>>> merged([a, b])
(Secret(kind='a', start=0, end=9),)
>>> around("see <MASK> now", [Secret("x", 0, 14)])
(Secret(kind='x', start=0, end=4), Secret(kind='x', start=10, end=14))
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from crtlib.text.records import MASK, Secret


class Span(Protocol):
    """Anything with a half-open interval of characters."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


A = TypeVar("A", bound=Span)
B = TypeVar("B", bound=Span)


def overlaps(first: Sequence[A], second: Sequence[B]) -> Iterator[tuple[A, B]]:
    """The pairs that share a character, in order; both lists sorted and disjoint.

    Takes as many steps as the lists are long together.
    """
    k = 0
    for a in first:
        while k < len(second) and second[k].end <= a.start:
            k += 1
        j = k
        while j < len(second) and second[j].start < a.end:
            yield a, second[j]
            j += 1


def uncovered(secrets: Sequence[A], spans: Sequence[Span]) -> list[A]:
    """The secrets of which ``spans`` leave any character in clear; both sorted and disjoint."""
    left, k = [], 0
    for s in secrets:
        while k < len(spans) and spans[k].end <= s.start:
            k += 1
        at, j = s.start, k
        while j < len(spans) and spans[j].start <= at < s.end:
            at, j = spans[j].end, j + 1
        if at < s.end:
            left.append(s)
    return left


def merged(parts: Sequence[Sequence[Secret]]) -> tuple[Secret, ...]:
    """One list of several: spans that touch or overlap become one.

    It has the kind of the first part, in the order given, that has a share in it.
    """
    order = [(s.start, s.end, rank, s.kind) for rank, spans in enumerate(parts) for s in spans]
    joined: list[list[int]] = []  # start, end, rank
    kinds: list[str] = []
    for start, end, rank, kind in sorted(order):
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
            if rank < joined[-1][2]:
                joined[-1][2], kinds[-1] = rank, kind
        else:
            joined.append([start, end, rank])
            kinds.append(kind)
    return tuple(Secret(k, a, b) for k, (a, b, _) in zip(kinds, joined, strict=True))


_MASK = re.compile(re.escape(MASK))


def around(text: str, spans: Sequence[Secret]) -> tuple[Secret, ...]:
    """``spans`` cut around each ``<MASK>`` that stands in the text already."""
    if MASK not in text:
        return tuple(spans)
    masks = [Secret("mask", *m.span()) for m in _MASK.finditer(text)]
    pieces, k = [], 0
    for s in spans:
        at = s.start
        while k < len(masks) and masks[k].end <= at:
            k += 1
        j = k
        while j < len(masks) and masks[j].start < s.end:
            if at < masks[j].start:
                pieces.append(Secret(s.kind, at, masks[j].start))
            at, j = max(at, masks[j].end), j + 1
        if at < s.end:
            pieces.append(Secret(s.kind, at, s.end))
    return tuple(pieces)
