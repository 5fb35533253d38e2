"""The form in which letters are compared: without case, accents, or another script's spelling.

Lists of names, lists of values and the rates compare by this one form.

>>> [fold_text(word) for word in ("Łukasz", "Straße", "SØREN", "Đặng", "José’s")]
['lukasz', 'strasse', 'soren', 'dang', "jose's"]
>>> fold_text("\\u06cc\\u06a9") == fold_text("\\u064a\\u0643")  # Persian and Arabic yeh and kaf
True
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

import regex as regular

from crtlib.text.identity import without_unseen_marks

_EQUIVALENT_CHARACTERS = {
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
    **dict.fromkeys("\u2018\u2019\u201b\u02bc`\u00b4", "'"),
    "\u0131": "i",
    "\u0640": "",  # lengthens an Arabic word
    # Letters of which Unicode does not say that they are others with a stroke, or two of them.
    **{"ł": "l", "ø": "o", "đ": "d", "ð": "d", "ħ": "h", "ŧ": "t"},
    **{"æ": "ae", "œ": "oe", "þ": "th"},
    # Persian and Urdu letters, and the forms of yeh and heh that stand for each other in Arabic.
    **dict.fromkeys("\u06cc\u0649", "\u064a"),
    "\u06a9": "\u0643",
    **dict.fromkeys("\u06c1\u06d5\u0629", "\u0647"),
}


_MARK_OF_A_WORD = regular.compile(r"(?<=[\w\p{M}\u200c\u200d])[\p{M}\u200c\u200d]")
"""An accent, a vowel sign or a joiner after a letter: no expression takes these for letters."""


@lru_cache(maxsize=2**14)
def fold_character(char: str) -> str:
    """One character as it is compared; empty if it is dropped, " " for white space."""
    if char in _EQUIVALENT_CHARACTERS:
        return _EQUIVALENT_CHARACTERS[char]
    if char.isspace():
        return " "
    if not without_unseen_marks(char):
        return ""
    base_characters = (c for c in unicodedata.normalize("NFKD", char) if not _is_accent(c))
    folded = unicodedata.normalize("NFKD", "".join(base_characters).casefold())
    return "".join(
        str(unicodedata.decimal(c, "")) or _EQUIVALENT_CHARACTERS.get(c, c) for c in folded
    )


def _is_accent(char: str) -> bool:
    """Whether a character is an accent, or encloses the one before it as a keycap does."""
    return bool(unicodedata.combining(char)) or unicodedata.category(char) == "Me"


FOLDED_ASCII = {code: fold_character(chr(code)) for code in range(128)}
"""How each ASCII character is compared; an empty text leaves it out."""


def fold_text(text: str) -> str:
    """A text as it is compared, character by character."""
    return text.translate(FOLDED_ASCII) if text.isascii() else "".join(map(fold_character, text))


def letters_for_marks(text: str) -> str:
    """The text with a letter in place of each accent, vowel sign or joiner of a word, so that an
    expression such as ``\\w+`` finds words as a whole; all places stay.

    >>> letters_for_marks("\\u0928\\u0930\\u0947 Jose\\u0301 \\u2764\\ufe0f")
    '\u0928\u0930a Josea \u2764\ufe0f'
    """
    return text if text.isascii() else _MARK_OF_A_WORD.sub("a", text)
