"""How often token sequences occur in a corpus, and among how many people: exact, in one pass.

Tokens are compared, never letters, so "is" is not found in "this". Occurrences may overlap, and
never run from one document into the next.

>>> this, is_, it = 5, 6, 7
>>> documents, users = [[this, is_, it], [it, is_, it, is_, it], [this]], ["ann", "bob", "ann"]
>>> found = count_sequences([[is_], [it, is_, it], [it, this]], documents, users)
>>> found.total.tolist(), found.users.tolist()
([3, 2, 0], [2, 1, 0])
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import ahocorasick
import numpy as np


class SequenceCounts(NamedTuple):
    """For each sequence, ``(n,)`` int64: its occurrences, and the distinct users who have one."""

    total: np.ndarray
    users: np.ndarray


def count_sequences(
    sequences: Sequence[Sequence[int]],
    documents: Iterable[Sequence[int]],
    users: Iterable[Hashable],
) -> SequenceCounts:
    """Count each of the ``sequences`` of token ids in ``documents``, the k-th of which belongs to
    the k-th of ``users``. Both may be iterators over a corpus that does not fit into memory.

    All are searched for at once (Aho and Corasick 1975), each token as the character with its
    number. Memory grows with the distinct pairs of a sequence and a user who has it. Raises
    ``ValueError`` for an empty sequence, one given twice, or documents without users.
    """
    automaton = ahocorasick.Automaton()
    for k, sequence in enumerate(sequences):
        if not len(sequence):
            raise ValueError("sequences: one is empty, each needs at least one token")
        if not automaton.add_word("".join(map(chr, sequence)), k):
            raise ValueError("sequences: one is given twice, each must be distinct")
    automaton.make_automaton()
    total, owners = np.zeros((2, len(sequences)), dtype=np.int64)
    owned: set[tuple[int, Hashable]] = set()
    try:
        for tokens, user in zip(documents, users, strict=True):
            found_sequences = (
                [k for _, k in automaton.iter("".join(map(chr, tokens)))] if sequences else []
            )
            np.add.at(total, found_sequences, 1)
            owned.update((k, user) for k in found_sequences)
    except ValueError:
        raise ValueError("users: must be one for each document") from None
    np.add.at(owners, [k for k, _ in owned], 1)
    return SequenceCounts(total, owners)
