"""Replace spans by ``<MASK>``, and compare, merge and cut sorted, disjoint spans.

Each operation takes about as many steps as there are spans, never a product of their numbers.

>>> a, b = [Secret("a", 0, 4), Secret("a", 6, 9)], [Secret("b", 3, 7)]
>>> [(s.start, t.start) for s, t in overlapping_pairs(a, b)]
[(0, 3), (6, 3)]
>>> merge_spans([a, b])
(Secret(kind='a', start=0, end=9),)
>>> cut_around_masks("see <MASK> now", [Secret("x", 0, 14)])
(Secret(kind='x', start=0, end=4), Secret(kind='x', start=10, end=14))

>>> from crtlib.text.records import Point, Secret
>>> point = Point("0", "ann", "my ID is 12", (Secret("id", 9, 11),))
>>> redact(point, [Secret("x", 9, 11)]).text
'my ID is <MASK>'
>>> find_missed_secrets(point, [Secret("x", 9, 10)])
(Secret(kind='id', start=9, end=11),)
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from typing import TypeVar

from crtlib.text.records import MASK, Point, Secret, check_spans

Spans = tuple[Secret, ...]
"""The spans of one point, sorted and disjoint. No span is empty, except that an empty text as a
whole can be flagged: its one span is [0, 0)."""
FlaggedSpans = list[Spans]
"""The flagged spans of each point."""

_SPAN_START, _SPAN_END = attrgetter("start"), attrgetter("end")


def check_flagged_spans(
    points: Sequence[Point], answers: Sequence[Iterable[Secret]], label: str
) -> FlaggedSpans:
    """Return ``answers`` as tuples, or raise ``ValueError`` where they do not fit the points, in
    one line that begins with ``label``. It numbers the point from 1, since its id may name a
    person."""
    if len(answers) != len(points):
        raise ValueError(f"{label}: {len(answers)} answers for {len(points)} points")
    flags = [tuple(spans) for spans in answers]
    for k, (p, spans) in enumerate(zip(points, flags, strict=True), 1):
        try:
            if not (p.text == "" and len(spans) == 1 and spans[0].start == spans[0].end == 0):
                check_spans(p.text, spans)
        except (ValueError, AttributeError, TypeError) as error:
            reason = str(error) if isinstance(error, ValueError) else "its spans are not Secrets"
            raise ValueError(f"{label}: point {k}: {reason}") from None
    return flags


@dataclass(frozen=True, slots=True)
class UnmaskedPiece:
    """A piece of the text between masks, and how far the masks before it move it."""

    start: int
    end: int
    shift: int


Piece = TypeVar("Piece", Secret, UnmaskedPiece)


def overlapping_pairs(
    first: Sequence[Secret], second: Sequence[Piece]
) -> Iterator[tuple[Secret, Piece]]:
    """The pairs that share a character, in order; both lists must be sorted and disjoint."""
    for a in first:
        first_index = bisect_right(second, a.start, key=_SPAN_END)
        for b in second[first_index : bisect_left(second, a.end, key=_SPAN_START)]:
            yield a, b


def clip_to_pieces(spans: Sequence[Secret], pieces: Sequence[UnmaskedPiece]) -> Spans:
    """The parts of the spans that lie in the pieces, moved as the pieces are. A span that lies in
    several pieces gives one part for each."""
    return tuple(
        Secret(s.kind, max(s.start, c.start) + c.shift, min(s.end, c.end) + c.shift)
        for s, c in overlapping_pairs(spans, pieces)
    )


def merge_spans(parts: Sequence[Sequence[Secret]]) -> Spans:
    """Merge several lists of spans into one: spans that touch or overlap become one.

    A merged span has the kind of the first list, in the order given, that contributes to it.
    """
    joined: list[tuple[int, int, int, str]] = []
    for span in sorted(
        (s.start, s.end, rank, s.kind) for rank, spans in enumerate(parts) for s in spans
    ):
        if joined and span[0] <= joined[-1][1]:
            last = joined.pop()
            _, _, rank, kind = min(last, span, key=itemgetter(2))
            span = (last[0], max(last[1], span[1]), rank, kind)
        joined.append(span)
    return tuple(Secret(kind, start, end) for start, end, _, kind in joined)


def find_masks(text: str) -> Spans:
    """The places where a text already has a ``<MASK>``."""
    return tuple(Secret("mask", *m.span()) for m in re.finditer(re.escape(MASK), text))


def cut_around_masks(text: str, spans: Sequence[Secret]) -> Spans:
    """``spans``, cut around each ``<MASK>`` that is already in the text."""
    return clip_to_pieces(
        spans, [replace(c, shift=0) for c in unmasked_pieces(text, find_masks(text))]
    )


# --------------------------------------------------------------------------- masks
def unmasked_pieces(text: str, flags: Sequence[Secret]) -> list[UnmaskedPiece]:
    """The pieces of a text that masks leave in clear, in order.

    Spans that touch or overlap become one mask, so only the first and the last piece can be empty.
    """
    pieces: list[UnmaskedPiece] = []
    position = shift = 0
    for s in merge_spans([flags]) if len(flags) > 1 else flags:
        pieces.append(UnmaskedPiece(position, s.start, shift))
        shift += len(MASK) - (s.end - s.start)
        position = s.end
    return [*pieces, UnmaskedPiece(position, len(text), shift)]


def find_missed_secrets(point: Point, spans: Sequence[Secret]) -> Spans:
    """The labelled secrets of which ``spans`` leave any character in clear.

    Args:
        point: With the labels of its secrets.
        spans: What is masked in ``point.text``.

    Returns:
        Its labels, each once, in order.

    Guarantee:
        A secret that is covered only in part is missed. Test:
        ``tests/screening/test_redaction.py::test_missed_are_those_with_a_character_in_clear``.
    """
    if not point.secrets:
        return ()
    return tuple(
        dict.fromkeys(
            s for s, c in overlapping_pairs(point.secrets, unmasked_pieces(point.text, spans))
        )
    )


def redact(point: Point, flags: Sequence[Secret]) -> Point:
    """Replace each flagged span by one ``<MASK>``; what remains of the point's labels moves along.

    Args:
        point: With the labels that are known for it.
        flags: Spans in ``point.text``; those that touch or overlap become one mask.

    Returns:
        The point with its new text. Where masks cover a label only in part, each piece still in
        clear keeps the label: half a telephone number is a leak. An empty text that is flagged
        reads like any other text that is flagged as a whole.

    Guarantee:
        No flagged character is in the new text. Test: ``tests/screening/test_redaction.py::
        test_a_span_inside_of_another_uncovers_nothing``.
    """
    if not flags:
        return point
    if not point.text:
        point = replace(point, text=" ", spoken_spans=((0, 1),) if point.spoken_spans else ())
        flags = [Secret("text", 0, 1)]
    pieces = unmasked_pieces(point.text, flags)

    def place(position: int, *, end: bool) -> int:
        """The new position of a position in the text; one inside a mask moves to its start, or with
        ``end`` to its end."""
        piece = pieces[max(bisect_right(pieces, position - end, key=_SPAN_START) - 1, 0)]
        return (position if position <= piece.end else piece.end + len(MASK) * end) + piece.shift

    return Point(
        point.id,
        point.user,
        MASK.join(point.text[piece.start : piece.end] for piece in pieces),
        clip_to_pieces(point.secrets, pieces),
        tuple((place(a, end=False), place(b, end=True)) for a, b in point.spoken_spans),
        point.dialogue_id,
    )
