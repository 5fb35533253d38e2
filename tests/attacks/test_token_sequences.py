"""Counting token sequences: exact against the definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crtlib.attacks import token_sequences


def plainly(pieces, documents, users):
    """The definition, letter by letter."""
    total, owners = np.zeros(len(pieces), int), [set() for _ in pieces]
    for document, user in zip(documents, users, strict=True):
        for k, piece in enumerate(pieces):
            n = len(piece)
            found = sum(tuple(document[i : i + n]) == piece for i in range(len(document) - n + 1))
            total[k] += found
            owners[k] |= {user} if found else set()
    return total.tolist(), [len(o) for o in owners]


token = st.integers(0, 3)  # few tokens, so that sequences repeat and overlap themselves


@settings(max_examples=150, deadline=None)
@given(
    pieces=st.lists(st.lists(token, min_size=1, max_size=5).map(tuple), unique=True, max_size=20),
    corpus=st.lists(st.tuples(st.lists(token, max_size=12), st.sampled_from("abc")), max_size=10),
)
def test_counts_are_those_of_the_definition(pieces, corpus):
    documents, users = [d for d, _ in corpus], [u for _, u in corpus]
    found = token_sequences.count_sequences(pieces, iter(documents), iter(users))
    assert (found.total.tolist(), found.users.tolist()) == plainly(pieces, documents, users)


def test_is_is_not_in_this_nor_across_documents():
    words = {"th": 0, "is": 1, "this": 2}
    documents = [[words["this"], words["is"]], [words["th"]], [words["is"]]]
    found = token_sequences.count_sequences(
        [[words["is"]], [words["th"], words["is"]]], documents, "aab"
    )
    assert found.total.tolist() == [2, 0]
    assert found.users.tolist() == [2, 0]


def test_long_sequences_of_large_tokens():
    rng = np.random.default_rng(0)
    documents = [rng.integers(50_000, 50_030, size=n) for n in rng.integers(0, 99, size=200)]
    pieces = {tuple(d[a : a + n].tolist()) for d in documents[:50]
              for a, n in [(int(rng.integers(50)), int(rng.integers(1, 90)))]} - {()}  # fmt: skip
    plain = [tuple(d.tolist()) for d in documents]
    found = token_sequences.count_sequences(sorted(pieces), documents, range(200))
    assert (found.total.tolist(), found.users.tolist()) == plainly(
        sorted(pieces), plain, range(200)
    )


@pytest.mark.parametrize(
    ("pieces", "documents", "users", "message"),
    [
        ([[]], [[1]], ["u"], "one is empty"),
        ([[1], [1]], [[1]], ["u"], "given twice"),
        ([[1]], [[1], [2]], ["u"], "users: must be one for each document"),
    ],
)
def test_bad_arguments_are_named(pieces, documents, users, message):
    with pytest.raises(ValueError, match=message):
        token_sequences.count_sequences(pieces, documents, users)


def test_nothing_to_count():
    assert token_sequences.count_sequences([], [[1]], ["u"]).total.shape == (0,)
    assert token_sequences.count_sequences([[1]], [], []).users.tolist() == [0]
