"""Spans become ``<MASK>``. What is asked of sorted, disjoint spans is one walk along two lists, and
never a product of them.

>>> a, b = [Secret("a", 0, 4), Secret("a", 6, 9)], [Secret("b", 3, 7)]
>>> [(s.start, t.start) for s, t in overlaps(a, b)]
[(0, 3), (6, 3)]
>>> merged([a, b])
(Secret(kind='a', start=0, end=9),)
>>> around("see <MASK> now", [Secret("x", 0, 14)])
(Secret(kind='x', start=0, end=4), Secret(kind='x', start=10, end=14))

>>> from crtlib.text.records import Point, Secret
>>> redact(Point("0", "ann", "my ID is 12", (Secret("id", 9, 11),)), [Secret("x", 9, 11)]).text
'my ID is <MASK>'
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from crtlib.text.records import MASK, Point, Secret


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


# --------------------------------------------------------------------------- masks
@dataclass(frozen=True, slots=True)
class Clear:
    """A piece of the text between masks, and by how much the masks before it move it."""

    start: int
    end: int
    shift: int


def clear(point: Point, flags: Sequence[Secret]) -> list[Clear]:
    """What the masks leave of the text, in order.

    Spans that touch or overlap become one mask, so a piece is empty at most at either end.
    """
    pieces: list[Clear] = []
    at = shift = 0
    for s in sorted(flags, key=lambda s: s.start):
        if pieces and s.start <= at:  # touches or overlaps the mask before it
            shift -= max(s.end - at, 0)
        else:
            pieces.append(Clear(at, s.start, shift))
            shift += len(MASK) - (s.end - s.start)
        at = max(at, s.end)
    return [*pieces, Clear(at, len(point.text), shift)]


def redact(point: Point, flags: Sequence[Secret]) -> Point:
    """Replace each flagged span by one ``<MASK>``; what remains of its labels moves along.

    Spans that touch or overlap become one mask. Of a label that masks cover only in part, each
    piece still in clear keeps the label: half a telephone number is a leak.
    """
    if not flags:
        return point
    pieces = clear(point, flags)
    left = tuple(
        Secret(s.kind, max(s.start, c.start) + c.shift, min(s.end, c.end) + c.shift)
        for s, c in overlaps(point.secrets, pieces)
        if c.start < c.end
    )
    text = MASK.join(point.text[c.start : c.end] for c in pieces)
    return replace(point, text=text, secrets=left, spoken=_moved(point.spoken, pieces))


def _moved(spoken: Sequence[tuple[int, int]], pieces: list[Clear]) -> tuple[tuple[int, int], ...]:
    """Where the turns' own words stand among the masks: a mask belongs to what it touches."""
    starts = [c.start for c in pieces]

    def place(at: int, *, end: bool) -> int:
        k = max(bisect_right(starts, at - end) - 1, 0)
        c = pieces[k]
        if at <= c.end:
            return at + c.shift
        return c.end + c.shift + len(MASK) * end  # inside the mask after this piece

    return tuple((place(a, end=False), place(b, end=True)) for a, b in spoken)
