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

from crtlib.text.unseen_marks import UNSEEN_MARK

_WRITTEN_OTHERWISE = re.compile("[^\t\n\x20-\x7e]")
"""A character of a text that may not stay as it is."""
_LINE_END = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85]")
"""Control characters that end a line, in the text of one program or another."""
_JOINER, _SELECTOR = "\u200c\u200d", "\ufe0e\ufe0f"
_NEVER_NEEDED = re.compile(f"(?![{_JOINER}{_SELECTOR}]){UNSEEN_MARK}")
_JOINERS = re.compile(f"[{_JOINER}]+")
"""Characters that keep letters apart or together: words of Persian and of Indian scripts, and some
emoji, need them."""
_SELECTORS = re.compile(f"[{_SELECTOR}]+")
"""Characters that choose whether the sign before them is drawn in colour."""
_NEEDS_NO_JOINER = ("LATIN", "CYRILLIC", "GREEK", "DIGIT", "FULLWIDTH", "ARMENIAN")
"""The beginnings of the names of characters beside which a joiner means nothing."""


def unify_writing(text: str) -> str:
    """A text in normal form C, with lines that end in ``\\n``, and without characters that nobody
    sees (:data:`crtlib.text.unseen_marks.UNSEEN_MARK`).

    Of these, only what a reader would miss stays: joiners where a script or an emoji needs them,
    and after an emoji or another sign, never after a letter or a digit, what chooses how it is
    drawn. Other selectors, such as those of a form of a Chinese character, choose among forms of
    one character. This is done once, when text comes in, so that all policies, labels, models and
    reports see one text.

    Guarantee:
        A text that is ingested again stays the same. Compared by its words, as with earlier runs,
        it is the same text as before. Test: ``tests/text/test_writing.py``.
    """
    if not _WRITTEN_OTHERWISE.search(text):
        return text
    text = _LINE_END.sub("\n", text).replace("\x1f", " ")
    before = None
    while text != before:  # composing may leave a joiner beside a letter that needs none
        before = text
        text = _JOINERS.sub(_joiner_that_is_needed, _NEVER_NEEDED.sub("", text))
        text = _SELECTORS.sub(_selector_that_is_needed, text)
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


def _selector_that_is_needed(found: re.Match[str]) -> str:
    """The selector that was found; empty if no sign of its own is before it."""
    sign = found.string[max(0, found.start() - 1) : found.start()]
    is_sign = sign and not sign.isascii() and unicodedata.category(sign) in ("So", "Sk", "Sm", "Po")
    return found[0][0] if is_sign else ""


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
