"""Counts of words alone: a code, so no text is shorter than its probability allows."""

import itertools
import math

import pytest

from crtlib.models.word_counts import word_count_bits


def test_all_texts_together_are_no_more_probable_than_one():
    """The probabilities of all texts of up to three words of two letters, with what is spelled."""
    train = ["ab b", "b"]
    words = ["".join(w) for n in (1, 2, 3) for w in itertools.product("ab", repeat=n)]
    total = sum(2 ** (-len(w) * word_count_bits(train, {w: 1})) for w in words)
    assert 0.3 < total <= 1


def test_a_word_that_was_read_is_shorter_than_one_that_was_not():
    train = ["my order is late"] * 3
    known, new = (word_count_bits(train, {text: 2}) for text in ("my order", "my ordeal"))
    assert known < new < math.inf
    assert word_count_bits(train, {"my order": 1, "my ordeal": 1}) == pytest.approx(
        (8 * known + 9 * new) / 17
    )
    assert math.isfinite(word_count_bits([], {"Ünïcode": 1}))
