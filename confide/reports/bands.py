"""Counts of private text as a redacted report tells them: in bands, none below five.

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
"""Counts below it are not told from none in a redacted report, nor those of fewer users."""
MAX_PASSAGES = 10**12
"""No text has so many passages."""


def count_band(count: int) -> tuple[int, int]:
    """The least and the largest count that a redacted report does not tell from this one."""
    if count < LEAST_REPORTED_COUNT:
        return 0, LEAST_REPORTED_COUNT - 1
    width = LEAST_REPORTED_COUNT if count < 100 else 10 ** (len(str(count)) - 2)
    low = count - count % width
    return low, low + width - 1


def band_in_words(ends: tuple[int, int]) -> str:
    """A band as people read it, or one number."""
    low, high = (f"{end:,}" for end in ends)
    return (
        low if low == high else f"fewer than {ends[1] + 1:,}" if low == "0" else f"{low} to {high}"
    )


def least_of(band: str) -> int:
    """The least count of a band in words.

    >>> least_of("fewer than 5"), least_of("2,300 to 2,399")
    (0, 2300)
    """
    return 0 if band.startswith("fewer") else int(band.split(" ")[0].replace(",", ""))


@cache
def list_band_names() -> tuple[str, ...]:
    """All bands of counts below :data:`MAX_PASSAGES`, in words: which there are depends on no
    text."""
    found, low = list[str](), 0
    while low < MAX_PASSAGES:
        ends = count_band(low)
        found.append(band_in_words(ends))
        low = ends[1] + 1
    return tuple(found)
