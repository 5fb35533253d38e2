"""Spans become ``<MASK>``.

>>> from crtlib.text.records import Point, Secret
>>> redact(Point("0", "ann", "my ID is 12", (Secret("id", 9, 11),)), [Secret("x", 9, 11)]).text
'my ID is <MASK>'
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from crtlib.screening.spans import overlaps
from crtlib.text.records import MASK, Point, Secret


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
