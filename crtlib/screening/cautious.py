"""The policy ``cautious`` flags every word that is not on a list of plain words.

Text that no policy flags trains without noise, so this is a middle way between a learned policy and
``everything``.

>>> text = "Please call Ada at 555 1234 about the zyzzyva."
>>> [text[s.start : s.end] for s in cautious_policy()([Point("0", "u", text)])[0]]
['Ada', '555 1234', 'zyzzyva']
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from functools import lru_cache, partial
from importlib import resources

from crtlib import files
from crtlib.checks import check_allowed, raise_machine_fault
from crtlib.screening.letter_folding import letters_for_marks
from crtlib.screening.policy import Policy
from crtlib.text.package_data import read_package_file
from crtlib.text.records import MASK, Point, Secret

COMMON_WORD_RANKS = 5_000
"""A word beyond this rank of the list is rare."""

_TOKEN_PATTERN = re.compile(
    rf"(?P<mask>{re.escape(MASK)})"
    r"|(?P<address>(?:https?://|www\.)[^\s<>]+"  # a URL, an e-mail address, a @name, a domain
    r"|[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){0,8}|@\w+"
    r"|\w[\w-]{0,62}(?:\.\w[\w-]{0,62}){0,8}\.(?:com|org|net|edu|gov|io|info|co|uk|de|eu|us)\b)"
    r"|(?P<word>\w+(?:['’]\w+|(?<=\d)[.,:/-]\d\w*)*)"
    r"|(?P<stop>[.!?:\n])"
)
_APOSTROPHE_ENDINGS = frozenset(("s", "t", "d", "m", "ll", "re", "ve", "em", "n"))
"""What may follow the apostrophe in a plain word."""


@lru_cache(maxsize=4)
def common_words(file: str = "") -> frozenset[str]:
    """The first 5,000 words of ``file``, one a line, or of the list that comes with the library.

    Lines that begin with ``#`` are comments. The library's ``words.txt`` is the ranking of wordfreq
    without the words that WikiText-2 writes with a capital, so it was not made from the text of
    anybody whom a corpus is about. Raises ``ValueError`` where there is no file or no word in it.
    """
    try:
        shipped = resources.files(__package__ or "")
        text = files.read_text(file) if file else read_package_file("words.txt", shipped)
    except (OSError, ValueError) as error:
        raise_machine_fault(error)
        raise ValueError(f"policy='cautious:{file}': is not a readable file of words") from None
    lines = [line.strip().lower().replace("’", "'") for line in text.splitlines()]
    words = [w for w in lines if w and not w.startswith("#")]
    check_allowed(f"policy='cautious:{file}', words", len(words), bool(words), "at least 1")
    return frozenset(words[:COMMON_WORD_RANKS])


def _suspicious_kind(token: str, starts_sentence: bool, common: frozenset[str]) -> str:
    """The kind of a word that may not be plain; "" for a plain word."""
    if not token.isalpha() and any(c.isdecimal() for c in token):
        return "number"
    token = unicodedata.normalize("NFC", token)
    lower = token.lower().replace("’", "'")
    stem = lower.split("'")
    if stem[0] == "i":  # I, I'm
        return ""
    if not starts_sentence and token != lower and any(c.isupper() for c in token):
        return "capital"
    if lower in common or (stem[0] in common and all(e in _APOSTROPHE_ENDINGS for e in stem[1:])):
        return ""
    return "rare"


def _flag_not_plain(common: frozenset[str], p: Point) -> list[Secret]:
    """The flagged tokens; those with nothing but spaces between them are one span."""
    spans: list[Secret] = []
    starts_sentence = True
    for m in _TOKEN_PATTERN.finditer(letters_for_marks(p.text)):
        group = m.lastgroup
        token = p.text[m.start() : m.end()]
        kind = _suspicious_kind(token, starts_sentence, common) if group == "word" else group
        starts_sentence = group == "stop"
        if kind not in ("address", "number", "capital", "rare"):
            continue
        if spans and not p.text[spans[-1].end : m.start()].strip(" "):
            spans[-1] = replace(spans[-1], end=m.end())
        else:
            spans.append(Secret(kind, *m.span()))
    return spans


def cautious_policy(words: str = "") -> Policy:
    """A policy that flags each token with a digit, each with a capital that does not start a
    sentence, each e-mail address, URL or @name, and each word beyond the first 5,000 of ``words``.

    A sentence starts at the beginning of the turn and after ``.``, ``!``, ``?``, ``:`` or a line
    break; "I" does not count as a capital. The policy reads one turn and nothing else, so masking
    one secret changes no label elsewhere except those of words right beside it.

    ``words`` is a file of your own, frequent words first. It must not be made from the text that is
    screened: a word's frequency there depends on each message that says it, so one message would
    decide what is flagged in others.
    """
    name = f"cautious:{words}" if words else "cautious"
    flag = partial(_flag_not_plain, common_words(words))
    return Policy(name, partial(map, flag), own_words=True)
