"""Write a text in one way: accents as one character, and no marks that nobody sees.

>>> unify_writing("Jose\\u0301 said\\u200b: 4\\u200e1")
'José said: 41'
>>> move_spans("Jose\\u0301 Lee", [(0, 5), (6, 9)])
[(0, 4), (5, 8)]
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

_UNSEEN = re.compile(
    "[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\U000e0001-\U000e007f]"
)
"""Marks of no width and of direction, soft hyphens and tags: no script needs them to be read."""
_JOINERS = re.compile("[\u200c\u200d]+")
"""Characters that keep letters apart or together: words of Persian and of Indian scripts, and some
emoji, need them."""
_NEEDS_NO_JOINER = ("LATIN", "CYRILLIC", "GREEK", "DIGIT", "FULLWIDTH", "ARMENIAN")
"""The beginnings of the names of characters beside which a joiner means nothing."""


def unify_writing(text: str) -> str:
    """A text in normal form C, without soft hyphens, marks of no width and marks of direction.

    Joiners stay where a script or an emoji needs them. This is done once, when text comes in, so
    that all policies, labels, models and reports see one text.

    Guarantee:
        A text that is ingested again stays the same. Compared by its words, as with earlier runs,
        it is the same text as before. Test: ``tests/text/test_writing.py``.
    """
    if text.isascii():
        return text
    before = None
    while text != before:  # composing may leave a joiner beside a letter that needs none
        before = text
        text = _JOINERS.sub(_joiner_that_is_needed, _UNSEEN.sub("", text))
        text = unicodedata.normalize("NFC", text)
    return text


def _joiner_that_is_needed(found: re.Match[str]) -> str:
    """The joiner that was found; empty if a letter that needs none, or an edge, is beside it."""
    text, (start, end) = found.string, found.span()
    beside = [text[start - 1 : start], text[end : end + 1]]
    plain = (not c or c.isspace() or c.isascii() for c in beside)
    names = (unicodedata.name(c, "") if c else "" for c in beside)
    if any(plain) or any(name.startswith(_NEEDS_NO_JOINER) for name in names):
        return ""
    return found[0][0]


def move_spans(text: str, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The places of a text's spans, in their order, after the text is written in one way.

    If a span held part of a character, it holds that character afterwards. A span of which nothing
    is left, or that is inside the one before it, becomes empty.
    """
    whole = unify_writing(text)
    moved, last = [], 0
    for start, end in spans:
        before, through = unify_writing(text[:start]), unify_writing(text[:end])
        first = len(before) if whole.startswith(before) else len(before) - 1
        first = max(first, last)
        last = max(first, len(through))
        moved.append((first, last))
    return moved
