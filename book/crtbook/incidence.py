"""Which example holds which secret, as a matrix, with what is promised of each secret.

>>> table = pd.DataFrame({"example": ["a", "b", "b"], "secret": ["x", "x", "y"], "r": 0.2})
>>> held = of_pairs(table, prior=0.01)
>>> held.secrets.tolist(), held.examples.tolist(), held.matrix.toarray().tolist()
(['x', 'y'], ['a', 'b'], [[1.0, 1.0], [0.0, 1.0]])
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import sparse

from crtlib.accounting.secrets import promised


@dataclass(frozen=True, eq=False)
class Incidence:
    """``matrix (secrets, examples)`` of 0 and 1, the names of both in the order of their first
    rows, and ``prior``, ``posterior (secrets,)``."""

    matrix: sparse.csr_array
    secrets: np.ndarray
    examples: np.ndarray
    prior: np.ndarray
    posterior: np.ndarray


def of_pairs(table: pd.DataFrame, *, prior: float) -> Incidence:
    """The incidence of different pairs ``example``, ``secret``, with the posterior ``r`` that the
    secret of the first of its rows is promised. Raises ValueError unless 0 < prior < r < 1."""
    secret, secrets = pd.factorize(table["secret"])
    example, examples = pd.factorize(table["example"])
    p, r = promised(prior, table["r"].to_numpy(float)[np.unique(secret, return_index=True)[1]])
    shape = len(secrets), len(examples)
    matrix = sparse.csr_array((np.ones(len(table)), (secret, example)), shape=shape)
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
