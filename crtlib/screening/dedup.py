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
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal

from crtlib.text.records import Point

Method = Literal["exact", "bloom", "near"]
RECENT = 2**15  # texts whose substrings are remembered: dialogues are many variants of a few
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

    "bloom" needs the package rbloom and "near" datasketch: ``pip install 'crtlib[dedup]'``.
    """
    for name, value, allowed, rule in (
        ("error_rate", error_rate, 0 < error_rate < 1, "in (0, 1)"),
        ("threshold", threshold, 0.1 <= threshold <= 1, "in [0.1, 1]"),
    ):
        if not allowed:
            raise ValueError(f"{name}={value}: must be {rule}")
    texts = [p.text for p in points]
    if method == "near":
        return _near(texts, threshold)
    return Seen(method, len(texts), error_rate=error_rate)(texts)


class Seen:
    """Says of each text whether it was met before, a batch after another: ``exact`` or ``bloom``,
    which needs to know about how many there will be."""

    def __init__(self, method: Method, size: int, *, error_rate: float = 1e-6) -> None:
        if method not in ("exact", "bloom"):
            raise ValueError(f"method={method!r}: must be one of exact, bloom, near")
        # It is given the hashes: Python's own hash of a string would differ from run to run.
        bloom = method == "bloom"
        self.met: Any = _needed("rbloom").Bloom(max(size, 1), error_rate, int) if bloom else set()

    def __call__(self, texts: Sequence[str]) -> list[bool]:
        repeated = []
        for text in texts:
            digest = hashlib.sha1(text.encode()).digest()
            key = int.from_bytes(digest[:16], "big", signed=True)
            repeated.append(key in self.met)
            self.met.add(key)
        return repeated


def _near(texts: list[str], threshold: float) -> list[bool]:
    datasketch = _needed("datasketch")

    @lru_cache(maxsize=RECENT)
    def shingles(text: str) -> set[bytes]:
        last = max(len(text) - SHINGLE, 0)
        return {text[i : i + SHINGLE].encode() for i in range(last + 1)}

    def near(a: set[bytes], b: set[bytes]) -> bool:
        small, large = sorted((len(a), len(b)))
        if small / large < threshold:  # the most that they can share
            return False
        both = len(a & b)
        return both / (small + large - both) >= threshold

    # Candidates share a band of ``rows`` minima: long bands, so that few are false, but such that
    # the probability (1 - t^rows)^bands of overlooking a pair at the threshold stays below LOST.
    bands = {rows: PERMUTATIONS // rows for rows in range(1, PERMUTATIONS // 2 + 1)}
    rows = max(rows for rows, n in bands.items() if (1 - threshold**rows) ** n <= LOST)
    index = datasketch.MinHashLSH(num_perm=PERMUTATIONS, params=(bands[rows], rows))
    empty = datasketch.MinHash(PERMUTATIONS, 0, hashfunc=zlib.crc32, scheme="affine32")
    repeated = Seen("exact", 0)(texts)
    for i, text in enumerate(texts):
        if repeated[i]:
            continue
        parts = shingles(text)
        sketch = empty.copy()
        sketch.update_batch(parts)
        repeated[i] = any(near(parts, shingles(texts[j])) for j in index.query(sketch))
        if not repeated[i]:
            index.insert(i, sketch, check_duplication=False)
    return repeated


def _needed(package: str) -> Any:
    try:
        return import_module(package)
    except ModuleNotFoundError:
        raise ValueError(f"method: needs {package}, pip install 'crtlib[dedup]'") from None
