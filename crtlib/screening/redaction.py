"""Spans become masks, repeated points leave, and a corpus is split: Algorithm 1 of CRT.

Spans become ``<MASK>``. What is asked of sorted, disjoint spans takes about as many steps as
there are spans, and never a product of them.

>>> a, b = [Secret("a", 0, 4), Secret("a", 6, 9)], [Secret("b", 3, 7)]
>>> [(s.start, t.start) for s, t in overlaps(a, b)]
[(0, 3), (6, 3)]
>>> merged([a, b])
(Secret(kind='a', start=0, end=9),)
>>> around("see <MASK> now", [Secret("x", 0, 14)])
(Secret(kind='x', start=0, end=4), Secret(kind='x', start=10, end=14))

>>> from crtlib.text.records import Point, Secret
>>> point = Point("0", "ann", "my ID is 12", (Secret("id", 9, 11),))
>>> redact(point, [Secret("x", 9, 11)]).text
'my ID is <MASK>'
>>> missed(point, [Secret("x", 9, 10)])
(Secret(kind='id', start=9, end=11),)

Which points repeat an earlier one: exactly, by a Bloom filter, or nearly (CRT, Section 3.2).

>>> from crtlib.text.records import Point
>>> texts = ["good bye", "my id is 7", "good bye", "Good bye!"]
>>> repeats([Point(str(i), "u", text) for i, text in enumerate(texts)])
[False, False, True, False]

The pattern goes to :func:`crtlib.screening.redaction.prepare`, whose ``dedup`` says on which points
it acts and whose ``duplicates`` says what becomes of them. It is computed on the raw points, so it
follows from the text: a secret whose message stands twice may leave a trace by it, and is counted
as one (:class:`TextCounts`, :mod:`crtlib.screening.rates`).

Algorithm 1 of CRT, lines 1 to 4: deduplicate, redact, split into public and private points.

>>> from crtlib.text.records import Point, Secret
>>> texts = ["my id is 7", "hello", "hello", "my id is 9"]
>>> points = [Point(str(i), "u", t) for i, t in enumerate(texts)]
>>> digits = [
...     tuple(Secret("id", i, i + 1) for i, c in enumerate(p.text) if c.isdigit()) for p in points
... ]
>>> prepared = prepare(points, digits, digits, dedup="all", duplicates="mask")
>>> [p.text for p in prepared.public], [p.text for p in prepared.private]
(['hello'], ['my id is <MASK>', '<MASK>', 'my id is <MASK>'])
"""

from __future__ import annotations

import hashlib
import re
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from operator import attrgetter, itemgetter
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from crtlib.checks import check, check_choice
from crtlib.text.records import MASK, Point, Secret, check_spans

Spans = tuple[Secret, ...]
"""Those of one point, sorted and disjoint."""
Labels = list[Spans]
"""The flagged spans of each point."""

_START, _END = attrgetter("start"), attrgetter("end")


def check_labels(points: Sequence[Point], labels: Sequence[Iterable[Secret]], who: str) -> Labels:
    """``labels`` as tuples, or ``ValueError`` in one line that begins with ``who`` and numbers the
    point from 1: its id may be a person."""
    if len(labels) != len(points):
        raise ValueError(f"{who}: {len(labels)} labels for {len(points)} points")
    made = [tuple(spans) for spans in labels]
    for k, (p, spans) in enumerate(zip(points, made, strict=True), 1):
        try:
            check_spans(p.text, spans)
        except (ValueError, AttributeError, TypeError) as error:
            why = str(error) if isinstance(error, ValueError) else "its spans are no Secrets"
            raise ValueError(f"{who}: point {k}: {why}") from None
    return made


@dataclass(frozen=True, slots=True)
class Clear:
    """A piece of the text between masks, and by how much the masks before it move it."""

    start: int
    end: int
    shift: int


Piece = TypeVar("Piece", Secret, Clear)


def overlaps(first: Sequence[Secret], second: Sequence[Piece]) -> Iterator[tuple[Secret, Piece]]:
    """The pairs that share a character, in order; both lists sorted and disjoint."""
    for a in first:
        begin = bisect_right(second, a.start, key=_END)
        for b in second[begin : bisect_left(second, a.end, key=_START)]:
            yield a, b


def inside(spans: Sequence[Secret], pieces: Sequence[Clear]) -> Spans:
    """What of the spans lies in the pieces, moved as these are; of a span that they cut, each
    part."""
    return tuple(
        Secret(s.kind, max(s.start, c.start) + c.shift, min(s.end, c.end) + c.shift)
        for s, c in overlaps(spans, pieces)
    )


def merged(parts: Sequence[Sequence[Secret]]) -> Spans:
    """One list of several: spans that touch or overlap become one.

    It has the kind of the first part, in the order given, that has a share in it.
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


def masks(text: str) -> Spans:
    """Where a ``<MASK>`` stands in a text already."""
    return tuple(Secret("mask", *m.span()) for m in re.finditer(re.escape(MASK), text))


def around(text: str, spans: Sequence[Secret]) -> Spans:
    """``spans`` cut around each ``<MASK>`` that stands in the text already."""
    return inside(spans, [replace(c, shift=0) for c in clear(text, masks(text))])


# --------------------------------------------------------------------------- masks
def clear(text: str, flags: Sequence[Secret]) -> list[Clear]:
    """What the masks leave of a text, in order.

    Spans that touch or overlap become one mask, so a piece is empty at most at either end.
    """
    pieces: list[Clear] = []
    at = shift = 0
    for s in merged([flags]):
        pieces.append(Clear(at, s.start, shift))
        shift += len(MASK) - (s.end - s.start)
        at = s.end
    return [*pieces, Clear(at, len(text), shift)]


def missed(point: Point, spans: Sequence[Secret]) -> Spans:
    """The labelled secrets of which ``spans`` leave any character in clear."""
    return tuple(dict.fromkeys(s for s, c in overlaps(point.secrets, clear(point.text, spans))))


def redact(point: Point, flags: Sequence[Secret]) -> Point:
    """Replace each flagged span by one ``<MASK>``; what remains of its labels moves along.

    Spans that touch or overlap become one mask. Of a label that masks cover only in part, each
    piece still in clear keeps the label: half a telephone number is a leak.
    """
    if not flags:
        return point
    pieces = clear(point.text, flags)

    def place(at: int, *, end: bool) -> int:
        """Where a place in the text is now; one inside of a mask is at that edge of it."""
        c = pieces[max(bisect_right(pieces, at - end, key=_START) - 1, 0)]
        return (at if at <= c.end else c.end + len(MASK) * end) + c.shift

    return replace(
        point,
        text=MASK.join(point.text[c.start : c.end] for c in pieces),
        secrets=inside(point.secrets, pieces),
        spoken=tuple((place(a, end=False), place(b, end=True)) for a, b in point.spoken),
    )


Method = Literal["exact", "bloom", "near"]
RECENT = 2**15  # texts up to which every candidate is compared
MOST = 2**11  # candidates of each text that are compared where there are more texts
SHINGLE, PERMUTATIONS = 5, 128  # characters of a substring; minima of a MinHash
LOST = 0.01  # the share of near pairs, right at the threshold, that may be overlooked


def repeats(
    points: Sequence[Point],
    method: Method = "exact",
    *,
    error_rate: float = 1e-6,
    threshold: float = 0.8,
) -> list[bool]:
    """True from the second occurrence of a text onwards; the first occurrence is always False.
    Points are equal where their texts are and their turns' own words stand at the same places: a
    policy may answer two that differ in either in two ways.

    ``"exact"`` compares texts. ``"bloom"`` is the paper's one-pass filter: it never overlooks a
    repetition, and takes each unique text for one with a probability of at most ``error_rate``.
    Such a text is replaced by ``<MASK>``, which costs utility and leaves the guarantee alone.
    ``"near"`` also marks a text which shares at least the fraction ``threshold`` of its
    ``SHINGLE``-character substrings (Jaccard similarity) with an earlier text that is not marked
    itself. Candidates come from MinHash and are checked exactly: nothing below the threshold is
    marked, and a pair above it is overlooked with a probability below 1 %. Texts from one template
    are near to each other: what only one of them says is lost with it.
    Of more than ``RECENT`` different texts each is compared with ``MOST`` candidates at most, those
    of its rarest bands, so that time grows as the number of texts does. That overlooks more where
    one template has thousands of variants: of the near texts of CustomerSim's turns, which are so,
    none of 318 among 115,000 turns, and 46 of 2,334 (2 %) among 345,000.

    "bloom" needs the package rbloom and "near" datasketch: ``pip install 'crtlib[dedup]'``.
    """
    check("error_rate", error_rate, 0 < error_rate < 1, "in (0, 1)")
    check("threshold", threshold, 0.1 <= threshold <= 1, "in [0.1, 1]")
    check_choice("method", method, ("exact", "bloom", "near"))
    texts = [p.text for p in points]
    if method == "near":
        return _near(texts, threshold)
    return seen(method, len(texts), error_rate=error_rate)(points)


def seen(
    method: Method, size: int, *, error_rate: float = 1e-6
) -> Callable[[Sequence[Point]], list[bool]]:
    """What says of each point whether its text was met before, a batch after another: ``exact`` or
    ``bloom``, which needs to know about how many there will be."""
    # It is given the hashes: Python's own hash of a string would differ from run to run.
    bloom = method == "bloom"
    met: Any = _needed("rbloom").Bloom(max(size, 1), error_rate, int) if bloom else set()

    def again(points: Sequence[Point]) -> list[bool]:
        repeated = []
        for point in points:
            digest = hashlib.sha1(_shown(point)).digest()
            key = int.from_bytes(digest[:16], "big", signed=True)
            repeated.append(key in met)
            met.add(key)
        return repeated

    return again


class TextCounts:
    """Which texts stand in a corpus once, and which more often, by a hash of each. Points are in
    the form in which they are trained on, as it is there that their copies are found.

    >>> from crtlib.text.records import Point
    >>> counts = TextCounts(Point(str(i), "u", said) for i, said in enumerate(("a", "b", "a")))
    >>> [counts.stands_elsewhere(text_hash(Point("", "", said)), here=True) for said in "ab"]
    [True, False]
    >>> counts.stands_elsewhere(text_hash(Point("", "", "b")), here=False)
    True
    """

    def __init__(self, points: Iterable[Point] = ()) -> None:
        self._once, self._more = set[int](), set[int]()
        self.add(points)

    def add(self, points: Iterable[Point]) -> None:
        """Count further points of the corpus."""
        for hashed in map(text_hash, points):
            (self._more if hashed in self._once else self._once).add(hashed)

    def stands_elsewhere(self, hashed: int, *, here: bool) -> bool:
        """Whether the text with this :func:`text_hash` is that of another point; ``here``: the
        point that is asked about is one of the corpus itself."""
        return hashed in (self._more if here else self._once)


def text_hash(point: Point) -> int:
    """64 bits that equal texts share (:func:`repeats`); two others share them with a chance of
    5e-20, and are then taken for equal."""
    return int.from_bytes(hashlib.blake2b(_shown(point), digest_size=8).digest(), "big")


def _shown(point: Point) -> bytes:
    """All that a policy is shown of a point: its text, and where the turns' own words stand."""
    own = point.spoken or ((0, len(point.text)),)
    return f"{point.text}\x1f{own}".encode("utf-8", "surrogatepass")


def _near(texts: list[str], threshold: float) -> list[bool]:
    datasketch = _needed("datasketch")

    def shingles(text: str) -> set[bytes]:
        last = max(len(text) - SHINGLE, 0)
        return {text[i : i + SHINGLE].encode() for i in range(last + 1)}

    # Candidates share a band of ``rows`` minima: long bands, so that few are false, but such that
    # the probability (1 - t^rows)^bands of overlooking a pair at the threshold stays below LOST.
    bands = {rows: PERMUTATIONS // rows for rows in range(1, PERMUTATIONS // 2 + 1)}
    rows = max(rows for rows, n in bands.items() if (1 - threshold**rows) ** n <= LOST)
    numbers = np.arange(bands[rows], dtype=np.uint32)[:, None]
    empty = datasketch.MinHash(PERMUTATIONS, 0, hashfunc=int, scheme="affine32")
    buckets: defaultdict[bytes, array[int]] = defaultdict(partial(array, "q"))
    # A bit is the parity of how many substrings fall on it: two texts differ in no more bits than
    # substrings, so most candidates are refused without a look at them.
    bits = 64 * int(np.clip(sum(map(len, texts)) / (16 * len(texts) + 1), 16, 64))
    parities = np.zeros((len(texts), bits // 64), dtype=np.uint64)
    sizes = np.zeros(len(texts), dtype=np.int64)
    ones = np.ones(bits // 64, dtype=np.uint16)
    repeated = seen("exact", 0)([Point("", "", text) for text in texts])
    most = MOST if repeated.count(False) > RECENT else len(texts)
    for i, text in enumerate(texts):
        if repeated[i]:
            continue
        parts = shingles(text)
        hashes = [zlib.crc32(part) for part in parts]
        parity = np.bincount(np.array(hashes) % bits, minlength=bits) % 2 == 1
        parities[i], sizes[i] = np.packbits(parity).view(np.uint64), len(parts)
        sketch = empty.copy()
        sketch.update_batch(hashes)
        minima = sketch.hashvalues[: len(numbers) * rows].reshape(-1, rows)
        shared = [buckets[key.tobytes()] for key in np.hstack([numbers, minima])]
        found, left = [], most
        for bucket in sorted(filter(None, shared), key=len):
            found.append(bucket[-left:])
            left -= len(bucket)
            if left <= 0:
                break
        if found:
            earlier = np.concatenate(found)
            apart = np.bitwise_count(parities.take(earlier, 0) ^ parities[i]) @ ones
            least = (1 - threshold) * (sizes[earlier] + sizes[i]) + 1e-6
            close = earlier[apart * (1 + threshold) <= least]
            others = (shingles(texts[j]) for j in sorted(set(close.tolist())))
            repeated[i] = any(len(parts & o) / len(parts | o) >= threshold for o in others)
        if not repeated[i]:
            for bucket in shared:
                bucket.append(i)
    return repeated


def _needed(package: str) -> Any:
    try:
        return import_module(package)
    except ModuleNotFoundError:
        raise ValueError(f"method: needs {package}, pip install 'crtlib[dedup]'") from None


Dedup = Literal["all", "flagged", "none"]
Duplicates = Literal["mask_private", "mask", "drop"]
"""What becomes of a second occurrence: see :func:`prepare`."""
CERTIFIABLE: tuple[Duplicates, ...] = ("mask_private", "mask")
"""The forms in which one message decides about no other (:func:`prepare`, Guarantee)."""


@dataclass(frozen=True)
class Prepared:
    """The two parts that training sees, and what was done to make them.

    ``secrets`` of a prepared point are the labelled characters that are STILL in its text, with
    their spans in the new text: whole secrets that the policy missed, and what its masks left of
    others. ``missed_secrets`` counts the secrets of which anything is left, as
    :func:`crtlib.screening.rates.recall` does, in the points that were not dropped or masked as
    duplicates.
    """

    public: tuple[Point, ...]
    private: tuple[Point, ...]
    points: int
    duplicates: int
    redacted_spans: int
    redacted_points: int
    missed_secrets: int

    @property
    def all(self) -> tuple[Point, ...]:
        """Public then private points: what a method without a private phase trains on."""
        return self.public + self.private


def prepare(
    points: Sequence[Point],
    flags: Sequence[Sequence[Secret]] | None,
    cautious_flags: Sequence[Sequence[Secret]] | None,
    *,
    dedup: Dedup = "all",
    duplicates: Duplicates = "mask",
    pattern: Sequence[bool] | None = None,
) -> Prepared:
    """Algorithm 1, lines 1 to 4.

    ``flags`` are the spans of ``pi`` in each raw point: what is redacted. ``cautious_flags`` are
    those of ``pi_c`` (the conservative policy): what else is private. None is the policy that flags
    nothing, for the baselines. A point is private where either policy speaks or where its text
    holds ``<MASK>`` (A.6.5); every other point is public.

    ``dedup`` is the scope of deduplication: ``"all"`` is the paper's; ``"flagged"`` (ours) leaves
    alone the points on which both policies are silent, so that harmless templates keep their
    frequencies, which is enough for Proposition 7 where ``pi_c`` has full recall; ``"none"``.

    ``duplicates`` says what becomes of a second occurrence. ``"mask_private"`` (ours, for text of
    one's own): of a private point it becomes a private point that is ``<MASK>`` and nothing else,
    of a public point it is left out. ``"mask"``: it becomes such a mask in both cases (Algorithm
    1). ``"drop"`` leaves it out in both (Section 4, "remove identical sequences"); for studies.
    The ``pattern`` of duplicates is that of the raw points
    (:func:`crtlib.screening.redaction.repeats`); None is the exact one.

    The policies read the raw points, after splitting and before anything is replaced (A.6.2), so
    labels cannot depend on what deduplication did elsewhere.

    Guarantee:
        Let one private point ``x`` be exchanged for a private ``y``, let the policies know a point
        by its text alone, and let the pattern be exact. With ``"mask_private"`` and ``"mask"`` the
        public part stays as it is, and there are as many private points as before, of which, in
        whatever order, at most one differs. Nothing differs at all where ``x`` and ``y`` read the
        same when redacted and neither is the text of another point.
        With ``"drop"``, or a pattern by likeness, none of this is so: one private point may come
        or go with a copy of it, and one message may decide whether any number of others is read.
        Test: ``tests/screening/test_repeats.py::test_one_message_decides_about_no_other``.

    Raises:
        ValueError: For no points, and for spans that are not those of these points.
    """
    check_choice("dedup", dedup, ("all", "flagged", "none"))
    check_choice("duplicates", duplicates, get_args(Duplicates))
    points = tuple(points)
    if not points:
        raise ValueError("points: the corpus is empty, at least one point is needed")
    silent: Labels = [()] * len(points)
    pi = check_labels(points, silent if flags is None else flags, "flags")
    cautious = silent if cautious_flags is None else cautious_flags
    pi_c = check_labels(points, cautious, "cautious_flags")
    private = [
        bool(a or b) or MASK in p.text for p, a, b in zip(points, pi, pi_c, strict=True)
    ]  # a mask counts as flagged: on the neighbouring dataset a policy speaks where it stands
    if dedup == "none":
        pattern = [False] * len(points)
    elif pattern is None:
        pattern = repeats(points)
    if len(pattern) != len(points):
        raise ValueError(f"pattern: has {len(pattern)} entries for {len(points)} points")
    repeated = [
        again and (apart or dedup != "flagged")
        for again, apart in zip(pattern, private, strict=True)
    ]
    parts: tuple[list[Point], list[Point]] = [], []
    spans = touched = left = 0
    for p, marks, apart, again in zip(points, pi, private, repeated, strict=True):
        if again and (duplicates == "drop" or (duplicates == "mask_private" and not apart)):
            continue
        if again:
            parts[1].append(replace(p, text=MASK, secrets=(), spoken=()))
            continue
        spans += len(marks)
        touched += bool(marks)
        left += len(missed(p, marks))
        parts[apart].append(redact(p, marks))
    counts = {"redacted_spans": spans, "redacted_points": touched, "missed_secrets": left}
    public, masked = (tuple(part) for part in parts)
    return Prepared(public, masked, len(points), sum(repeated), **counts)
