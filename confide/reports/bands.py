"""Bands in which a redacted report states counts of private text, none of them below five.

>>> count_band(3), count_band(57), count_band(2306)
((0, 4), (55, 59), (2300, 2399))
>>> band_in_words(count_band(3)), band_in_words(count_band(2306))
('fewer than 5', '2,300 to 2,399')
>>> list_band_names()[:2], len(list_band_names())
(('fewer than 5', '5 to 9'), 920)
"""

from __future__ import annotations

from functools import cache

LEAST_REPORTED_COUNT = 5
"""In a redacted report, a smaller count, or one from fewer users, cannot be told from zero."""
MAX_PASSAGES = 10**12
"""More passages than any text has."""


def count_band(count: int) -> tuple[int, int]:
    """The smallest and the largest count that share this count's band in a redacted report."""
    if count < LEAST_REPORTED_COUNT:
        return 0, LEAST_REPORTED_COUNT - 1
    width = LEAST_REPORTED_COUNT if count < 100 else 10 ** (len(str(count)) - 2)
    low = count - count % width
    return low, low + width - 1


def band_in_words(band: tuple[int, int]) -> str:
    """A band in words, or a number if it has only one."""
    low, high = (f"{end:,}" for end in band)
    if low == high:
        return low
    return f"fewer than {band[1] + 1:,}" if low == "0" else f"{low} to {high}"


def least_of(band: str) -> int:
    """The smallest count in a band, given in words.

    >>> least_of("fewer than 5"), least_of("2,300 to 2,399")
    (0, 2300)
    """
    return 0 if band.startswith("fewer") else int(band.split(" ")[0].replace(",", ""))


@cache
def list_band_names() -> tuple[str, ...]:
    """All bands of counts below :data:`MAX_PASSAGES`, in words; they do not depend on any text."""
    names, low = list[str](), 0
    while low < MAX_PASSAGES:
        band = count_band(low)
        names.append(band_in_words(band))
        low = band[1] + 1
    return tuple(names)
