"""How well counts of words alone predict a text: the least that a model has to beat."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping

WORD = re.compile(r"\s*\S+|\s+")
"""A word with the white space before it."""
END = "\0"
UNKNOWN_LETTER_BITS = math.log2(0x110000)
"""The cost of spelling a letter that is in no word: it may be any character of Unicode."""


def word_count_bits(train: Iterable[str], test: Mapping[str, int]) -> float:
    """Bits per character of the texts in ``test`` by counts of the words in ``train``.

    ``test`` states how often each text occurs. With n words, t of them different, a word has the
    probability (count + t q) / (n + t), where q is the probability of spelling it by counts of
    letters (Witten and Bell, method C).

    >>> round(word_count_bits(["to be or not to be"], {"to be": 1}), 2)
    1.18
    >>> word_count_bits(["to be"], {}) is word_count_bits([], {"": 1}) is math.nan
    True
    """
    words = Counter(word for text in train for word in WORD.findall(text))
    letters = Counter[str]()
    for word, count in words.items():
        for letter in word + END:
            letters[letter] += count
    n, kinds, total = sum(words.values()), len(words), sum(letters.values()) + len(letters) + 1

    def bits_of(word: str) -> float:
        spelled = sum(
            math.log2(total / (letters[c] + 1)) + (0 if c in letters else UNKNOWN_LETTER_BITS)
            for c in word + END
        )
        if not n:
            return spelled
        bits_if_new = math.log2((n + kinds) / kinds) + spelled
        if not (count := words[word]):
            return bits_if_new
        return -math.log2(count / (n + kinds) + 2**-bits_if_new)

    size = sum(len(text) * times for text, times in test.items())
    bits = sum(bits_of(word) * times for text, times in test.items() for word in WORD.findall(text))
    return bits / size if size else math.nan
