"""Which points repeat an earlier one: exactly, by a Bloom filter, or nearly (CRT, Section 3.2).

The pattern goes to :func:`crtlib.screening.preparation.prepare_points`, whose ``dedup`` says on
which points it acts and whose ``duplicates`` says what becomes of them. It is computed on the raw
points, so it
follows from the text: a secret whose message stands twice may leave a trace by it, and is counted
as one (:class:`TextCounts`, :mod:`crtlib.screening.rates`).

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

from crtlib.checks import check_allowed, check_choice
from crtlib.text.records import Point

DuplicateMethod = Literal["exact", "bloom", "near"]
MAX_FULLY_COMPARED_TEXTS = 2**15  # texts up to which every candidate is compared
MAX_CANDIDATES_PER_TEXT = (
    2**11
)  # candidates of each text that are compared where there are more texts
SHINGLE_CHARACTERS, MINHASH_PERMUTATIONS = 5, 128  # characters of a substring; minima of a MinHash
MAX_OVERLOOKED_SHARE = (
    0.01  # the share of near pairs, right at the threshold, that may be overlooked
)


def mark_repeats(
    points: Sequence[Point],
    method: DuplicateMethod = "exact",
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
    ``SHINGLE_CHARACTERS``-character substrings (Jaccard similarity) with an earlier text that is
    not marked itself. Candidates come from MinHash and are checked exactly: nothing below the
    threshold is marked, and a pair above it is overlooked with a probability below 1 %. Texts from
    one template
    are near to each other: what only one of them says is lost with it.
    Of more than ``MAX_FULLY_COMPARED_TEXTS`` different texts each is compared with
    ``MAX_CANDIDATES_PER_TEXT`` candidates at most, those of its rarest bands, so that time grows as
    the number of texts does. That overlooks more where
    one template has thousands of variants: of the near texts of CustomerSim's turns, which are so,
    none of 318 among 115,000 turns, and 46 of 2,334 (2 %) among 345,000.

    "bloom" needs the package rbloom and "near" datasketch: ``pip install 'crtlib[dedup]'``.
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
    """What says of each point whether its text was met before, a batch after another: ``exact`` or
    ``bloom``, which needs to know about how many there will be."""
    # It is given the hashes: Python's own hash of a string would differ from run to run.
    bloom = method == "bloom"
    met: Any = (
        _import_dedup_package("rbloom").Bloom(max(size, 1), error_rate, int) if bloom else set()
    )

    def again(points: Sequence[Point]) -> list[bool]:
        repeated = []
        for point in points:
            digest = hashlib.sha1(_policy_input_bytes(point)).digest()
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
    >>> [counts.stands_elsewhere(hash_point_text(Point("", "", said)), here=True) for said in "ab"]
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
        """Whether the text with this :func:`hash_point_text` is that of another point; ``here``:
        the point that is asked about is one of the corpus itself."""
        return hashed in (self._more if here else self._once)


def hash_point_text(point: Point) -> int:
    """64 bits that equal texts share (:func:`mark_repeats`); two others share them with a chance of
    5e-20, and are then taken for equal."""
    return int.from_bytes(
        hashlib.blake2b(_policy_input_bytes(point), digest_size=8).digest(), "big"
    )


def _policy_input_bytes(point: Point) -> bytes:
    """All that a policy is shown of a point: its text, and where the turns' own words stand."""
    own = point.spoken or ((0, len(point.text)),)
    return f"{point.text}\x1f{own}".encode("utf-8", "surrogatepass")


def _mark_near_repeats(texts: list[str], threshold: float) -> list[bool]:
    datasketch = _import_dedup_package("datasketch")

    def shingles(text: str) -> set[bytes]:
        last = max(len(text) - SHINGLE_CHARACTERS, 0)
        return {text[i : i + SHINGLE_CHARACTERS].encode() for i in range(last + 1)}

    # Candidates share a band of ``rows`` minima: long bands, so that few are false, but such that
    # the probability (1 - t^rows)^bands of overlooking a pair at the threshold stays below LOST.
    bands = {rows: MINHASH_PERMUTATIONS // rows for rows in range(1, MINHASH_PERMUTATIONS // 2 + 1)}
    rows = max(
        rows for rows, n in bands.items() if (1 - threshold**rows) ** n <= MAX_OVERLOOKED_SHARE
    )
    numbers = np.arange(bands[rows], dtype=np.uint32)[:, None]
    empty = datasketch.MinHash(MINHASH_PERMUTATIONS, 0, hashfunc=int, scheme="affine32")
    buckets: defaultdict[bytes, array[int]] = defaultdict(partial(array, "q"))
    # A bit is the parity of how many substrings fall on it: two texts differ in no more bits than
    # substrings, so most candidates are refused without a look at them.
    bits = 64 * int(np.clip(sum(map(len, texts)) / (16 * len(texts) + 1), 16, 64))
    parities = np.zeros((len(texts), bits // 64), dtype=np.uint64)
    sizes = np.zeros(len(texts), dtype=np.int64)
    ones = np.ones(bits // 64, dtype=np.uint16)
    repeated = make_duplicate_filter("exact", 0)([Point("", "", text) for text in texts])
    most = (
        MAX_CANDIDATES_PER_TEXT if repeated.count(False) > MAX_FULLY_COMPARED_TEXTS else len(texts)
    )
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


def _import_dedup_package(package: str) -> Any:
    try:
        return import_module(package)
    except ModuleNotFoundError:
        raise ValueError(f"method: needs {package}, pip install 'crtlib[dedup]'") from None
