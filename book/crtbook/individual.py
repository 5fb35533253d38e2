"""What DP-SGD spends on each single point (Yu et al. 2023, individual privacy accounting).

A point whose gradient is shorter than the clipping norm is hidden by more noise than is promised to
all. How much more depends on its content and on the run. So it is known only afterwards, it is
itself private, and it cannot be a promise: it tells who was lucky.

>>> full, half = epsilons([[1.0, 0.5]], sampling_probability=0.1, noise_multiplier=1.0, steps=20,
...                       delta=1e-5)
>>> bool(0 < half < full)
True
"""

import numpy as np
from numpy.typing import ArrayLike

from crtlib.accounting import renyi
from crtlib.accounting.privacy_loss import Array, GaussianMixturePair
from crtlib.checks import check_allowed

LEVELS = 20
"""Norms are rounded up to multiples of a twentieth of the clipping norm, each with its curve."""


def epsilons(
    norms: ArrayLike,
    *,
    sampling_probability: float,
    noise_multiplier: float,
    steps: int,
    delta: float,
) -> Array:
    """Epsilon of each point at ``delta``, when this point is added or removed, ``(points,)``, by
    Renyi accounting. ``norms (times, points)`` are the lengths of the points' gradients in units of
    the clipping norm; longer ones are clipped. Each row counts for ``steps`` steps. The result is
    exact where every step has its own row, and an estimate where norms are measured less often."""
    check_allowed("noise_multiplier", noise_multiplier, noise_multiplier > 0, "positive")
    shares = np.atleast_2d(np.asarray(norms, dtype=float))
    bad = ~(shares >= 0)
    check_allowed("norms", float(shares[bad][0]) if bad.any() else 0.0, not bad.any(), "at least 0")
    levels = np.ceil(np.minimum(shares, 1.0) * LEVELS - 1e-9).astype(int)
    curves = np.zeros((LEVELS + 1, len(renyi.RENYI_ORDERS)))
    for level in set(levels.ravel().tolist()) - {0}:  # a gradient of zero spends nothing
        sigma = noise_multiplier * LEVELS / level
        pairs = [
            GaussianMixturePair.of(sampling_probability, group=1, sigma=sigma, direction=d)
            for d in ("forward", "backward")
        ]
        curves[level] = renyi.RenyiCurve([(pairs[0], steps)], [(pairs[1], steps)]).values
    orders = np.array(renyi.RENYI_ORDERS, dtype=float)
    curve_sums = curves[levels].sum(axis=0)  # (points, orders)
    return np.array([renyi.epsilon_from_renyi(orders, values, delta) for values in curve_sums])
