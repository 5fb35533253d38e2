"""When two names count as one person, and two texts as one text."""

from __future__ import annotations

import hashlib
import re
import unicodedata

from crtlib.text.unseen_marks import UNSEEN_MARK

_UNSEEN_MARKS = re.compile(UNSEEN_MARK)
_WHOLE_NUMBER = re.compile(r"([+-]?\d+)\.0+")
QUOTATION_MARKS = "\"'`" + "".join(
    map(chr, (*range(0x2018, 0x2020), 0x2039, 0x203A, 0xAB, 0xBB, *range(0x300C, 0x3010)))
)
"""The marks that an export puts around a line or a name."""


def without_unseen_marks(text: str) -> str:
    """The text without marks that nobody sees: controls, joiners, directions, variants, fillers.

    >>> without_unseen_marks("a\\u200bb\\ufe0f\\u00adc\\x07")
    'abc'
    """
    if text.isascii() and text.isprintable():
        return text
    bare = _UNSEEN_MARKS.sub("", text)
    return bare if bare.isascii() else "".join(c for c in bare if unicodedata.category(c) != "Cf")


def normalise_unit_name(name: str | float) -> str:
    """The name of a person or conversation, the same from every file format: one person, one unit.

    >>> {normalise_unit_name(name) for name in (7, 7.0, " 7", "7.00", '"7"', "\uff17")}
    {'7'}
    >>> [normalise_unit_name(name) for name in ("Ann@Example.com", "aB3", "1.50")]
    ['ann@example.com', 'aB3', '1.50']
    """
    text = unicodedata.normalize("NFKC", without_unseen_marks(str(name)))
    text = text.strip().strip(QUOTATION_MARKS).strip()
    whole = _WHOLE_NUMBER.fullmatch(text) if text.endswith("0") else None
    text = whole[1] if whole else text
    return text.casefold() if "@" in text else text


def normalise_text(text: str) -> str:
    """A text in the form in which it is recognised, however it is written and spaced.

    >>> normalise_text(" so\\u00a0be  it\\n") == normalise_text("so be it")
    True
    """
    return " ".join(normalise_unit_name(text).split())


def hash_text(text: str) -> str:
    """The SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def hash_turn_text(text: str) -> str:
    """The hash that is kept of a turn. It depends on the text alone, so a turn that was read is
    recognised under any id and from anybody."""
    return hash_text(normalise_text(text))
