"""Which example holds which secret: a table of pairs, with what is promised of each secret.

>>> table = pd.DataFrame({"example": ["a", "b", "b"], "secret": ["x", "x", "y"]})
>>> held = from_table(table, prior=0.01, posterior=0.2)
>>> held.secrets.tolist(), held.examples.tolist(), held.matrix.toarray().tolist()
(['x', 'y'], ['a', 'b'], [[1.0, 1.0], [0.0, 1.0]])
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import sparse

from crtlib.accounting import posteriors

PAIR, PROMISE = ["example", "secret"], ["p", "r"]


@dataclass(frozen=True, eq=False)
class Incidence:
    """``matrix (secrets, examples)`` of 0 and 1, the names of both in the order of their first
    rows, and ``prior``, ``posterior (secrets,)``."""

    matrix: sparse.csr_array
    secrets: np.ndarray
    examples: np.ndarray
    prior: np.ndarray
    posterior: np.ndarray


def from_table(table: pd.DataFrame, *, prior: float | None, posterior: float | None) -> Incidence:
    """The incidence of a table with the columns example, secret and perhaps p and r, the prior and
    the posterior of the row's secret; without them ``prior`` and ``posterior`` hold for all.

    Raises ValueError, which never shows a secret, for other columns, no rows, an empty cell, a
    secret with two promises, a promise that is missing or not 0 < p < r < 1.
    """
    columns = list(table.columns)
    lost = [c for c in PAIR if c not in columns]
    other = [c for c in columns if c not in PAIR + PROMISE]
    if lost or other or len(set(columns)) < len(columns):
        words = all(re.fullmatch(r"[A-Za-z_]+", str(c)) for c in columns)
        shown = ",".join(map(str, columns)) if words else "(no header)"  # else it may be a secret
        raise ValueError(f"columns={shown}: must be example,secret[,p][,r]")
    if not len(table):
        raise ValueError("rows=0: must be at least 1")
    for name in PAIR:
        empty = np.flatnonzero(table[name].isna() | (table[name].astype(str) == ""))
        if len(empty):
            raise ValueError(f"{name}: row {empty[0] + 1} is empty: each secret is in an example")
    secret, secrets = pd.factorize(table["secret"].astype(str))
    example, examples = pd.factorize(table["example"].astype(str))
    promises = []
    for name, option, given in (("p", "prior", prior), ("r", "posterior", posterior)):
        if name not in columns:
            if given is None:
                raise ValueError(f"{option}: must be given, there is no column {name}")
            promises.append(np.full(len(secrets), float(given)))
            continue
        values = pd.to_numeric(table[name], errors="coerce").to_numpy(float)
        outside = np.flatnonzero(~((values > 0) & (values < 1)))
        if len(outside):
            raise ValueError(f"{name}: row {outside[0] + 1} has no number in (0, 1)")
        first = values[np.unique(secret, return_index=True)[1]]
        if (first[secret] != values).any():
            row = np.flatnonzero(first[secret] != values)[0]
            raise ValueError(f"{name}: row {row + 1} differs from an earlier row of its secret")
        promises.append(first)
    below = np.flatnonzero(promises[1] <= promises[0])
    if len(below) and len(columns) > len(PAIR):
        row = np.flatnonzero(secret == below[0])[0]
        raise ValueError(f"r: row {row + 1} has none above its p")
    p, r = posteriors.promised(*promises)
    shape = (len(secrets), len(examples))
    matrix = sparse.csr_array((np.ones(len(table)), (secret, example)), shape=shape)
    matrix.data[:] = 1.0  # pairs given twice count once
    return Incidence(matrix, np.asarray(secrets), np.asarray(examples), p, r)


def of_values(values: Sequence[Collection[str]]) -> sparse.csr_array:
    """``(secrets, examples)`` of 0 and 1: each value that an example holds is a secret, in the
    order in which they are first met, those of one example by name.

    >>> of_values([{"x"}, {"y", "x"}, set()]).toarray().tolist()
    [[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
    """
    pairs = [(value, i) for i, each in enumerate(values) for value in sorted(each)]
    rows, _ = pd.factorize(np.array([value for value, _ in pairs], dtype=object))
    where = (rows, [i for _, i in pairs])
    shape = (int(rows.max(initial=-1)) + 1, len(values))
    return sparse.csr_array((np.ones(len(pairs)), where), shape=shape)
