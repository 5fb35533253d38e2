"""Which points repeat an earlier one: exactly, by a Bloom filter, or nearly (CRT, Section 3.2).

This pattern goes to :func:`crtlib.screening.preparation.prepare_points`, whose ``dedup`` decides
which points it acts on, and whose ``duplicates`` decides what happens to them. The pattern is
computed from the raw points. So a secret whose message occurs twice may leave a trace in the
pattern, and is counted as leaving one (:class:`TextCounts`, :mod:`crtlib.screening.rates`).

>>> from crtlib.text.records import Point
>>> texts = ["good bye", "my id is 7", "good bye", "Good bye!"]
>>> mark_repeats([Point(str(i), "u", text) for i, text in enumerate(texts)])
[False, False, True, False]
"""

from __future__ import annotations

import hashlib
import zlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Literal

import numpy as np

from crtlib.arguments import argument
from crtlib.checks import check_allowed, check_choice
from crtlib.text.records import Point

DuplicateMethod = Literal["exact", "bloom", "near"]
MAX_FULLY_COMPARED_TEXTS = 2**15
"""Up to this number of texts, every candidate is compared."""
MAX_CANDIDATES_PER_TEXT = 2**11
"""Where there are more texts, at most this number of candidates is compared for each."""
SHINGLE_CHARACTERS = 5
"""The length of the substrings by which texts are compared."""
MINHASH_PERMUTATIONS = 128
"""The number of minima in the MinHash sketch of a text."""
MAX_OVERLOOKED_SHARE = 0.01
"""The largest share of near pairs, right at the threshold, that may be overlooked."""


def mark_repeats(
    points: Sequence[Point],
    method: DuplicateMethod = "exact",
    *,
    error_rate: float = 1e-6,
    threshold: float = 0.8,
) -> list[bool]:
    """Return for each point whether it repeats an earlier one; a first occurrence is always False.

    Two points are equal if their texts are equal and their turns' own words are in the same places;
    if either differs, a policy may answer differently. ``"near"`` takes candidates from MinHash and
    checks them exactly. Texts from one template are near to each other, and what only one of them
    says is lost when that one is marked.

    With more than ``MAX_FULLY_COMPARED_TEXTS`` different texts, each is compared with at most
    ``MAX_CANDIDATES_PER_TEXT`` candidates, those from its rarest bands, so that time grows in
    proportion to the number of texts. That overlooks more where one template has thousands of
    variants, as in CustomerSim: it overlooked none of 318 near texts among 115,000 turns, and 46 of
    2,334 (2 %) among 345,000.

    Args:
        points: In the order in which they are read.
        method: ``"exact"`` compares texts. ``"bloom"`` is the one-pass filter of CRT.
            ``"near"`` also marks a text that is near to an earlier one which is not marked itself.
        error_rate: For "bloom": the largest probability with which a unique text is taken for a
            repeat. Such a text is replaced by ``<MASK>``, which costs utility but no guarantee.
        threshold: For "near": the fraction of ``SHINGLE_CHARACTERS``-character substrings that two
            texts must share (Jaccard similarity), in [0.1, 1].

    Returns:
        One answer for each point.

    Raises:
        ValueError: For arguments outside their range, and where the package of a method is not
            installed: "bloom" needs rbloom and "near" datasketch (``pip install
            'crtlib[dedup]'``).

    Guarantee:
        "exact" and "bloom" overlook no repeat. "near" marks nothing below the threshold; where all
        candidates are compared, it overlooks a pair above the threshold with a probability below
        1 %. Tests:
        ``tests/screening/test_deduplication.py::
        test_exact_and_an_almost_exact_filter_equal_brute_force``,
        ``tests/screening/test_deduplication.py::
        test_near_finds_edited_copies_and_nothing_below_the_threshold``.
    """
    check_allowed("error_rate", error_rate, 0 < error_rate < 1, "in (0, 1)")
    check_allowed("threshold", threshold, 0.1 <= threshold <= 1, "in [0.1, 1]")
    check_choice("method", method, ("exact", "bloom", "near"))
    texts = [p.text for p in points]
    if method == "near":
        return _mark_near_repeats(texts, threshold)
    return make_duplicate_filter(method, len(texts), error_rate=error_rate)(points)


def make_duplicate_filter(
    method: DuplicateMethod, size: int, *, error_rate: float = 1e-6
) -> Callable[[Sequence[Point]], list[bool]]:
    """Return a function that marks, batch by batch, the points whose text was met before.

    ``size`` is about how many points there will be; only ``bloom`` needs it."""
    # The filter is given hashes: Python's own hash of a string would differ from run to run.
    uses_bloom = method == "bloom"
    seen_hashes: Any = set()
    if uses_bloom:
        seen_hashes = _import_dedup_package("rbloom").Bloom(max(size, 1), error_rate, int)

    def mark_batch(points: Sequence[Point]) -> list[bool]:
        repeated = []
        for point in points:
            digest = hashlib.sha1(_policy_input_bytes(point)).digest()
            key = int.from_bytes(digest[:16], "big", signed=True)
            repeated.append(key in seen_hashes)
            seen_hashes.add(key)
        return repeated

    return mark_batch


class TextCounts:
    """Which texts occur once in a corpus and which more often, by a hash of each. Points must be in
    the form in which they are trained on, since their copies are found in that form.

    >>> from crtlib.text.records import Point
    >>> counts = TextCounts(Point(str(i), "u", text) for i, text in enumerate(("a", "b", "a")))
    >>> [counts.stands_elsewhere(hash_point_text(Point("", "", text)), here=True) for text in "ab"]
    [True, False]
    >>> counts.stands_elsewhere(hash_point_text(Point("", "", "b")), here=False)
    True
    """

    def __init__(self, points: Iterable[Point] = ()) -> None:
        self._once, self._more = set[int](), set[int]()
        self.add(points)

    def add(self, points: Iterable[Point]) -> None:
        """Count further points of the corpus."""
        for hashed in map(hash_point_text, points):
            (self._more if hashed in self._once else self._once).add(hashed)

    def stands_elsewhere(self, hashed: int, *, here: bool) -> bool:
        """Whether another point has this text as well.

        Args:
            hashed: The text's :func:`hash_point_text`.
            here: Whether the point in question is itself among those that were counted.

        Returns:
            False only where no other point has the text. Two different texts with the same hash
            both give True, which counts a trace too many.

        Guarantee:
            A secret whose message occurs twice is counted as a trace, whichever copy holds it.
            Test: ``tests/screening/test_repeats.py::
            test_a_secret_in_a_repeated_message_is_a_trace_whichever_half_repeats``.
        """
        return hashed in (self._more if here else self._once)


def hash_point_text(point: Point) -> int:
    """A hash of 64 bits that equal points share (equal as in :func:`mark_repeats`). Two different
    ones share it with a probability of 5e-20, and are then taken to be equal."""
    return int.from_bytes(
        hashlib.blake2b(_policy_input_bytes(point), digest_size=8).digest(), "big"
    )


def _policy_input_bytes(point: Point) -> bytes:
    """All that a policy is shown of a point: its text, and the places of the turns' own words."""
    spoken = point.spoken_spans or ((0, len(point.text)),)
    return f"{point.text}\x1f{spoken}".encode("utf-8", "surrogatepass")


def _mark_near_repeats(texts: list[str], threshold: float) -> list[bool]:
    repeated = make_duplicate_filter("exact", 0)([Point("", "", text) for text in texts])
    compared_fully = repeated.count(False) <= MAX_FULLY_COMPARED_TEXTS
    max_candidates = len(texts) if compared_fully else MAX_CANDIDATES_PER_TEXT
    index = _NearTextIndex(texts, threshold, max_candidates)
    for i in range(len(texts)):
        if not repeated[i]:
            repeated[i] = index.is_near_an_earlier_one(i)
    return repeated


def _shingles(text: str) -> set[bytes]:
    """The substrings by which texts are compared."""
    last = max(len(text) - SHINGLE_CHARACTERS, 0)
    return {text[i : i + SHINGLE_CHARACTERS].encode() for i in range(last + 1)}


def _rows_and_bands(threshold: float) -> tuple[int, int]:
    """The number of minima in a band, and the number of bands. Bands are as long as possible, so
    that few candidates are false, while the probability ``(1 - t^rows)^bands`` of overlooking a
    pair at the threshold stays at most ``MAX_OVERLOOKED_SHARE``."""
    bands = {rows: MINHASH_PERMUTATIONS // rows for rows in range(1, MINHASH_PERMUTATIONS // 2 + 1)}
    rows = max(
        rows for rows, n in bands.items() if (1 - threshold**rows) ** n <= MAX_OVERLOOKED_SHARE
    )
    return rows, bands[rows]


class _NearTextIndex:
    """An index of the texts that were met, by bands of the minima of their shingles' hashes. Texts
    that share a band are candidates for being near.

    Each text also has a row of bits, each the parity of how many of its shingles fall on that bit.
    Two texts differ in no more bits than shingles, so most candidates are rejected unread.

    Args:
        texts: All texts that will be asked about, by their numbers.
        threshold: The share of common shingles from which two texts are near.
        max_candidates: The most texts that one is compared with, those from its rarest bands.
    """

    def __init__(self, texts: Sequence[str], threshold: float, max_candidates: int) -> None:
        datasketch = _import_dedup_package("datasketch")
        self._texts, self._threshold, self._max_candidates = texts, threshold, max_candidates
        self._rows, bands = _rows_and_bands(threshold)
        self._band_numbers = np.arange(bands, dtype=np.uint32)[:, None]
        self._empty_sketch = datasketch.MinHash(
            MINHASH_PERMUTATIONS, 0, hashfunc=int, scheme="affine32"
        )
        self._buckets: defaultdict[bytes, array[int]] = defaultdict(partial(array, "q"))
        characters = sum(map(len, texts))
        self._bits = 64 * int(np.clip(characters / (16 * len(texts) + 1), 16, 64))
        self._parities = np.zeros((len(texts), self._bits // 64), dtype=np.uint64)
        self._shingle_counts = np.zeros(len(texts), dtype=np.int64)

    def is_near_an_earlier_one(self, i: int) -> bool:
        """Whether text ``i`` is near to one that was asked about before and was near to none."""
        shingles = _shingles(self._texts[i])
        hashes = [zlib.crc32(shingle) for shingle in shingles]
        self._shingle_counts[i] = len(shingles)
        self._parities[i] = self._pack_parity(hashes)
        buckets = self._buckets_of_bands(hashes)
        candidates = self._pick_candidates(buckets)
        for j in self._close_by_parity(i, candidates):
            other_shingles = _shingles(self._texts[j])
            if len(shingles & other_shingles) / len(shingles | other_shingles) >= self._threshold:
                return True
        for bucket in buckets:
            bucket.append(i)
        return False

    def _pack_parity(self, hashes: list[int]) -> np.ndarray:
        counts = np.bincount(np.array(hashes) % self._bits, minlength=self._bits)
        return np.packbits(counts % 2 == 1).view(np.uint64)

    def _buckets_of_bands(self, hashes: list[int]) -> list[array[int]]:
        """For each band of a text with these hashes, the earlier texts that share it."""
        sketch = self._empty_sketch.copy()
        sketch.update_batch(hashes)
        minima = sketch.hashvalues[: len(self._band_numbers) * self._rows]
        keys = np.hstack([self._band_numbers, minima.reshape(-1, self._rows)])
        return [self._buckets[key.tobytes()] for key in keys]

    def _pick_candidates(self, buckets: list[array[int]]) -> list[array[int]]:
        """The latest texts from the rarest bands, until there are enough."""
        picked, remaining = [], self._max_candidates
        for bucket in sorted(filter(None, buckets), key=len):
            picked.append(bucket[-remaining:])
            remaining -= len(bucket)
            if remaining <= 0:
                break
        return picked

    def _close_by_parity(self, i: int, candidates: list[array[int]]) -> list[int]:
        """Those candidates that may be near, because few of their bits differ."""
        if not candidates:
            return []
        earlier_texts = np.concatenate(candidates)
        ones = np.ones(self._bits // 64, dtype=np.uint16)
        differing = self._parities.take(earlier_texts, 0) ^ self._parities[i]
        differing_bits = np.bitwise_count(differing) @ ones
        shingles_of_both = self._shingle_counts[earlier_texts] + self._shingle_counts[i]
        max_difference = (1 - self._threshold) * shingles_of_both + 1e-6
        may_be_near = differing_bits * (1 + self._threshold) <= max_difference
        return sorted(set(earlier_texts[may_be_near].tolist()))


def _import_dedup_package(package: str) -> Any:
    try:
        return import_module(package)
    except ModuleNotFoundError:
        raise ValueError(
            f"method ({argument('dedup_by')}): needs {package}, pip install 'crtlib[dedup]'"
        ) from None
