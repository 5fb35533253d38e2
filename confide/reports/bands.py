"""Counts of private text as a redacted report tells them: in bands, none below five.

>>> band(3), band(57), band(2306)
((0, 4), (55, 59), (2300, 2399))
>>> in_words(band(3)), in_words(band(2306))
('fewer than 5', '2,300 to 2,399')
>>> names()[:2], len(names())
(('fewer than 5', '5 to 9'), 920)
"""

from __future__ import annotations

from functools import cache

FEW = 5
"""Counts below it are not told from none in a redacted report, nor those of fewer users."""
MOST = 10**12
"""No text has so many passages."""


def band(count: int) -> tuple[int, int]:
    """The least and the largest count that a redacted report does not tell from this one."""
    if count < FEW:
        return 0, FEW - 1
    width = FEW if count < 100 else 10 ** (len(str(count)) - 2)
    low = count - count % width
    return low, low + width - 1


def in_words(ends: tuple[int, int]) -> str:
    """A band as people read it, or one number."""
    low, high = (f"{end:,}" for end in ends)
    return (
        low if low == high else f"fewer than {ends[1] + 1:,}" if low == "0" else f"{low} to {high}"
    )


@cache
def names() -> tuple[str, ...]:
    """All bands of counts below :data:`MOST`, in words: which there are depends on no text."""
    found, low = list[str](), 0
    while low < MOST:
        ends = band(low)
        found.append(in_words(ends))
        low = ends[1] + 1
    return tuple(found)
