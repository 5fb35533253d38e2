"""Spans become ``<MASK>``.

>>> from crtlib.text.records import Point, Secret
>>> redact(Point("0", "ann", "my ID is 12"), (Secret("id", 9, 11),)).text
'my ID is <MASK>'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from crtlib.text.records import MASK, Point, Secret


def _clear(point: Point, flagged: Sequence[Secret]) -> list[tuple[int, int, int]]:
    """What the masks leave of the text: ``(start, end, by how much it moves)``, in order.

    Spans that touch or overlap become one mask, so a piece is empty at most at either end.
    """
    kept, at, shift = [], 0, 0
    for s in sorted(flagged, key=lambda s: s.start):
        if kept and s.start <= at:  # touches or overlaps the mask before it
            shift -= max(s.end - at, 0)
        else:
            kept.append((at, s.start, shift))
            shift += len(MASK) - (s.end - s.start)
        at = max(at, s.end)
    return [*kept, (at, len(point.text), shift)]


def redact(point: Point, flagged: Sequence[Secret]) -> Point:
    """Replace each flagged span by one ``<MASK>``; what remains of its labels moves along.

    Spans that touch or overlap become one mask. Of a label that masks cover only in part, each
    piece still in clear keeps the label: half a telephone number is a leak.
    """
    if not flagged:
        return point
    kept = _clear(point, flagged)
    left = tuple(
        Secret(s.kind, max(s.start, start) + shift, min(s.end, end) + shift)
        for s in point.secrets
        for start, end, shift in kept
        if max(s.start, start) < min(s.end, end)
    )
    text = MASK.join(point.text[start:end] for start, end, _ in kept)
    return replace(point, text=text, secrets=left)
