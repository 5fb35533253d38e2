"""Which points repeat an earlier one: exactly, by a Bloom filter, or nearly (CRT, Section 3.2).

>>> from crtlib.text.records import Point
>>> texts = ["good bye", "my id is 7", "good bye", "Good bye!"]
>>> pattern([Point(str(i), "u", text) for i, text in enumerate(texts)])
[False, False, True, False]

The pattern goes to :func:`crtlib.screening.prepare.prepare`, whose ``dedup`` says on which points
it acts. It is computed once, on the raw points, and treated as public there.
"""

from __future__ import annotations

import hashlib
import zlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Literal

import numpy as np

from crtlib.checks import check, check_choice
from crtlib.text.records import Point

Method = Literal["exact", "bloom", "near"]
RECENT = 2**15  # texts up to which every candidate is compared
MOST = 2**11  # candidates of each text that are compared where there are more texts
SHINGLE, PERMUTATIONS = 5, 128  # characters of a substring; minima of a MinHash
LOST = 0.01  # the share of near pairs, right at the threshold, that may be overlooked


def pattern(
    points: Sequence[Point],
    method: Method = "exact",
    *,
    error_rate: float = 1e-6,
    threshold: float = 0.8,
) -> list[bool]:
    """True from the second occurrence of a text onwards; the first occurrence is always False.

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
    return seen(method, len(texts), error_rate=error_rate)(texts)


def seen(
    method: Method, size: int, *, error_rate: float = 1e-6
) -> Callable[[Sequence[str]], list[bool]]:
    """What says of each text whether it was met before, a batch after another: ``exact`` or
    ``bloom``, which needs to know about how many there will be."""
    # It is given the hashes: Python's own hash of a string would differ from run to run.
    bloom = method == "bloom"
    met: Any = _needed("rbloom").Bloom(max(size, 1), error_rate, int) if bloom else set()

    def again(texts: Sequence[str]) -> list[bool]:
        repeated = []
        for text in texts:
            digest = hashlib.sha1(text.encode()).digest()
            key = int.from_bytes(digest[:16], "big", signed=True)
            repeated.append(key in met)
            met.add(key)
        return repeated

    return again


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
    repeated = seen("exact", 0)(texts)
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
