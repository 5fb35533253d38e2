"""What DP-SGD spends on each point by itself (Yu et al. 2023, individual privacy accounting).

A point whose gradient is shorter than the clipping norm is hidden by more noise than is promised to
all. How much more depends on its content and on the run, so it is known only afterwards, it is
private itself, and it can be no promise: it tells who was lucky.

>>> full, half = epsilons([[1.0, 0.5]], sampling_probability=0.1, noise_multiplier=1.0, steps=20,
...                       delta=1e-5)
>>> bool(0 < half < full)
True

Which datasets must not be told apart: the predicates of secret protection (Hush!, Section 3).

For each secret a predicate says when two examples are the same but for that secret. Any such
equivalence is a *view*: what of an example stays as it is. What a release computes from the views
alone is equal for adjacent datasets, so it costs none of any promise:

>>> def masked(text: str) -> str:
...     return text.replace("Ada", "<MASK>").replace("Bob", "<MASK>")
>>> adjacent(["ask Ada", "hi"], ["ask Bob", "hi"], holders={0}, view=masked)
True
>>> adjacent(["ask Ada", "hi"], ["tell Bob", "hi"], holders={0}, view=masked)
False
>>> adjacent(["ask Ada", "hi"], ["tell Bob", "hi"], holders={0})  # the predicate that is always 1
True
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from crtlib.accounting import accountants
from crtlib.accounting.composition import Array, Pair
from crtlib.checks import check

LEVELS = 20
"""Norms are rounded up to multiples of a twentieth of the clipping norm: a curve for each."""


def epsilons(
    norms: ArrayLike,
    *,
    sampling_probability: float,
    noise_multiplier: float,
    steps: int,
    delta: float,
) -> Array:
    """Epsilon of each point at ``delta``, for one added or removed, ``(points,)``, by Renyi's
    accounting. ``norms (times, points)``: the lengths of the points' gradients in units of the
    clipping norm, what is longer is cut; each row stands for ``steps`` steps. That is exact where
    every step has its row, and an estimate where norms are looked at less often."""
    check("noise_multiplier", noise_multiplier, noise_multiplier > 0, "positive")
    shares = np.atleast_2d(np.asarray(norms, dtype=float))
    bad = ~(shares >= 0)
    check("norms", float(shares[bad][0]) if bad.any() else 0.0, not bad.any(), "at least 0")
    levels = np.ceil(np.minimum(shares, 1.0) * LEVELS - 1e-9).astype(int)
    spent = np.zeros((LEVELS + 1, len(accountants.ORDERS)))
    for level in set(levels.ravel().tolist()) - {0}:  # a gradient of zero spends nothing
        sigma = noise_multiplier * LEVELS / level
        ways = [
            Pair.of(sampling_probability, group=1, sigma=sigma, direction=d)
            for d in ("forward", "backward")
        ]
        spent[level] = accountants.RenyiCurve([(ways[0], steps)], [(ways[1], steps)]).values
    orders = np.array(accountants.ORDERS, dtype=float)
    each = spent[levels].sum(axis=0)  # (points, orders)
    return np.array([accountants.to_epsilon(orders, values, delta) for values in each])


Example = TypeVar("Example")


def anything(example: object) -> Hashable:
    """The view of the predicate that is always 1: of an example that holds the secret nothing
    stays. The promises of :mod:`crtlib.accounting.secrets` hold for it, and so for every other."""
    return None


def adjacent(
    one: Sequence[Example],
    other: Sequence[Example],
    *,
    holders: Collection[int],
    view: Callable[[Example], Hashable] = anything,
) -> bool:
    """Whether two datasets may differ in one secret: they have as many examples, those that do not
    hold it (``holders``: the numbers of those that do) are equal, and the others look the same."""
    return len(one) == len(other) and all(
        a == b or (i in holders and view(a) == view(b))
        for i, (a, b) in enumerate(zip(one, other, strict=True))
    )
