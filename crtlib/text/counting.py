"""How often token sequences occur in a corpus, and among how many people: exact, and in one pass.

Tokens are compared, never letters, so "is" is not found in "this"; a sequence may overlap itself,
and never runs from one document into the next.

>>> this, is_, it = 5, 6, 7
>>> documents, users = [[this, is_, it], [it, is_, it, is_, it], [this]], ["ann", "bob", "ann"]
>>> found = count([[is_], [it, is_, it], [it, this]], documents, users)
>>> found.total.tolist(), found.users.tolist()
([3, 2, 0], [2, 1, 0])
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

BLOCK_TOKENS = 2**20
"""Tokens that are searched together: 8 MB an array, so that memory does not grow with the corpus
(only with the distinct pairs of a sequence and a user that has it)."""
FILTER_BITS = 20
"""Most windows are dismissed by one look at a table of 2**20 flags, which fits a core's cache."""


class Counts(NamedTuple):
    """For each sequence, ``(n,)`` int64: its occurrences, and the distinct users who have one."""

    total: np.ndarray
    users: np.ndarray


def count(
    sequences: Sequence[Sequence[int]],
    documents: Iterable[Sequence[int]],
    users: Iterable[Hashable],
) -> Counts:
    """Count each of the ``sequences`` of token ids in ``documents``, the k-th of which belongs to
    the k-th of ``users``. Both may be iterators over a corpus that memory would not hold.

    The hash of every window of each length comes from one cumulative sum (a polynomial modulo
    2**64, divided by the power at which the window starts). What hashes like a sequence is then
    compared with it token by token, so a count is exact and not just likely.

    Raises ``ValueError`` for an empty sequence, one given twice, or documents without users.
    """
    if any(len(s) == 0 for s in sequences):
        raise ValueError("sequences: one is empty, each needs at least one token")
    wanted = _Wanted(sequences)
    total = np.zeros(len(sequences), dtype=np.int64)
    pairs, pending, settled = [np.empty(0, dtype=np.int64)], 0, 0
    for tokens, document, user in _blocks(documents, users):
        for which, at in wanted.find(tokens, document):
            total += np.bincount(which, minlength=len(total))
            pairs.append(_distinct(which << 32 | user[document[at]]))
            pending += len(pairs[-1])
        if pending > settled + BLOCK_TOKENS:  # merged when it has doubled: each pair a few times
            pairs = [_distinct(np.concatenate(pairs))]
            pending, settled = 0, len(pairs[0])
    owned = _distinct(np.concatenate(pairs)) >> 32
    return Counts(total, np.bincount(owned, minlength=len(total)).astype(np.int64))


def _distinct(keys: np.ndarray) -> np.ndarray:
    """Sorted and without repetitions (``np.unique`` hashes large arrays, which is slower here)."""
    keys = np.sort(keys)
    return keys[np.flatnonzero(np.diff(keys, prepend=-1))]


def _blocks(documents, users) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Whole documents end to end: tokens (n,), the document of each token (n,), and the number of
    each document's user."""
    codes: dict[Hashable, int] = {}
    block, owners, size = [], [], 0
    missing = object()
    for tokens, user in itertools.zip_longest(documents, users, fillvalue=missing):
        if tokens is missing or user is missing:
            raise ValueError("users: must be one for each document")
        block.append(np.asarray(tokens, dtype=np.int64))
        owners.append(codes.setdefault(user, len(codes)))
        size += len(block[-1])
        if size >= BLOCK_TOKENS:
            yield _joined(block, owners)
            block, owners, size = [], [], 0
    if size:
        yield _joined(block, owners)


def _joined(block, owners):
    document = np.repeat(np.arange(len(block)), [len(tokens) for tokens in block])
    return np.concatenate(block), document, np.array(owners)


def _mixed(tokens: np.ndarray) -> np.ndarray:
    """A scrambled 64-bit number for each token id (the finaliser of splitmix64): plain ids are
    so small that sums of them would collide."""
    x = (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def _powers(base: int, n: int) -> np.ndarray:
    """``base ** [0 .. n - 1]`` modulo 2**64."""
    factors = np.full(n, base, dtype=np.uint64)
    factors[:1] = 1
    return np.multiply.accumulate(factors)


class _Wanted:
    """The sequences, by length, with their hashes sorted."""

    BASE = 0xD6E8FEB86659FD93  # odd, so that it can be divided by modulo 2**64

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self.tokens: dict[int, np.ndarray] = {}  # length -> (m, length), in the order of the hashes
        self.index: dict[int, np.ndarray] = {}  # length -> (m,): which sequence each row is
        self.hashes: dict[int, np.ndarray] = {}
        self.flags: dict[int, np.ndarray] = {}
        lengths = np.array([len(s) for s in sequences], dtype=np.int64)
        for n in np.unique(lengths).tolist():
            index = np.flatnonzero(lengths == n)
            rows = np.array([sequences[i] for i in index.tolist()], dtype=np.int64)
            hashes = (_mixed(rows) * _powers(self.BASE, n)).sum(1, dtype=np.uint64)
            order = np.argsort(hashes, kind="stable")
            index, rows, hashes = index[order], rows[order], hashes[order]
            same = np.flatnonzero(hashes[1:] == hashes[:-1])
            if (rows[same] == rows[same + 1]).all(1).any():
                raise ValueError("sequences: one is given twice, each must be distinct")
            if len(same):  # one pair in 2**64: as unlikely as it is, it must not miscount
                raise ArithmeticError("two sequences have one hash")
            flags = np.zeros(2**FILTER_BITS, dtype=bool)
            flags[hashes >> np.uint64(64 - FILTER_BITS)] = True
            self.tokens[n], self.index[n] = rows, index
            self.hashes[n], self.flags[n] = hashes, flags
        self.inverse = np.empty(0, dtype=np.uint64)
        self.forward = np.empty(0, dtype=np.uint64)

    def find(self, tokens: np.ndarray, document: np.ndarray) -> Iterator[tuple]:
        """For each length, which sequence occurs ``(hits,)`` and where it starts ``(hits,)``."""
        if len(tokens) > len(self.forward):
            self.forward = _powers(self.BASE, len(tokens))
            self.inverse = _powers(pow(self.BASE, -1, 2**64), len(tokens))
        before = np.zeros(len(tokens) + 1, dtype=np.uint64)
        np.cumsum(_mixed(tokens) * self.forward[: len(tokens)], out=before[1:])
        for n, hashes in self.hashes.items():
            windows = len(tokens) - n + 1
            if windows < 1:
                continue
            here = before[n:] - before[:windows]
            here *= self.inverse[:windows]
            at = np.flatnonzero(self.flags[n][here >> np.uint64(64 - FILTER_BITS)])
            at = at[document[at] == document[at + n - 1]]
            row = np.searchsorted(hashes, here[at])
            row[row == len(hashes)] = 0
            right = hashes[row] == here[at]
            at, row = at[right], row[right]
            for j in range(n):  # token by token: memory stays that of the hits
                right = tokens[at + j] == self.tokens[n][row, j]
                if not right.all():
                    at, row = at[right], row[right]
            yield self.index[n][row], at
