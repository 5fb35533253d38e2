"""When two names are one person, and when two texts are one text."""

from __future__ import annotations

import hashlib
import re
import unicodedata


def normalise_unit_name(name: str | float) -> str:
    """A person or a thread as every form of file calls it: one person is one unit.

    >>> {normalise_unit_name(name) for name in (7, 7.0, " 7", "7.00", '"7"', "\uff17")}
    {'7'}
    >>> [normalise_unit_name(name) for name in ("Ann@Example.com", "aB3", "1.50")]
    ['ann@example.com', 'aB3', '1.50']
    """
    text = str(name)
    if not text.isascii():
        seen = (c for c in text if unicodedata.category(c) != "Cf")  # marks that nobody sees
        text = unicodedata.normalize("NFKC", "".join(seen))
    text = text.strip().strip("\"'").strip()
    whole = re.fullmatch(r"([+-]?\d+)\.0+", text)
    text = whole[1] if whole else text
    return text.casefold() if "@" in text else text


def normalise_text(text: str) -> str:
    """A text as who has read it knows it again, however it is written and spaced.

    >>> normalise_text(" so\\u00a0be  it\\n") == normalise_text("so be it")
    True
    """
    return " ".join(normalise_unit_name(text).split())


def hash_text(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def hash_turn_text(text: str) -> str:
    """What is kept of a turn, by its text alone: who has read it knows it under any id, of
    anybody."""
    return hash_text(normalise_text(text))
