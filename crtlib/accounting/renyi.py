"""Renyi divergences of one step and of many composed: a loose bound that always has an answer.

Composition adds the curves, so the cost does not depend on the number of steps.

>>> pair = GaussianMixturePair.of(0.01, group=1, sigma=1.27053328, direction="forward")
>>> curve = RenyiCurve([(pair, 1000)])
>>> round(curve.epsilon(8e-5), 3)  # the tight value is 1.0
1.129
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crtlib.accounting.privacy_loss import Array, GaussianMixturePair

RENYI_ORDERS = (
    *(1 + x / 10 for x in range(1, 100)),
    *range(12, 64),
    80,
    96,
    128,
    192,
    256,
    384,
    512,
)
MAX_GRID_POINTS = 2**15  # of the largest integration grid
QUADRATURE_ERROR = 1e-9  # relative, added to every integral for the error of the quadrature

RENYI_REACH_SIGMAS = 12.0


class RenyiCurve:
    """An upper bound on the Renyi divergence of the composition, at :data:`RENYI_ORDERS`.

    ``values`` is the largest one if several directions (``others``) have to hold. Only each
    ``every``-th order is taken: fewer orders are as sound, but looser.
    """

    def __init__(
        self,
        first_direction: Sequence[tuple[GaussianMixturePair, int]],
        *other_directions: Sequence[tuple[GaussianMixturePair, int]],
        order_stride: int = 1,
    ):
        orders = RENYI_ORDERS[::order_stride]
        self.orders: Array = np.array(orders, dtype=float)
        values_by_direction = [
            sum(
                (n * renyi_divergences(pair, orders) for pair, n in pairs_with_steps),
                np.zeros(len(orders)),
            )
            for pairs_with_steps in (first_direction, *other_directions)
        ]
        self.values: Array = np.max(values_by_direction, axis=0)

    def epsilon(self, delta: float) -> float:
        """The least epsilon >= 0 at ``delta`` (Balle et al. 2020, Theorem 21)."""
        return epsilon_from_renyi(self.orders, self.values, delta)

    def delta(self, epsilon: float) -> float:
        """The least delta at ``epsilon``, by the same theorem."""
        orders, values = self.orders, self.values
        exponents = (orders - 1) * (values - epsilon + np.log1p(-1 / orders)) - np.log(orders)
        finite = exponents[np.isfinite(values)]
        least_exponent = float(finite.min(initial=math.inf))
        return min(1.0, math.exp(min(0.0, least_exponent)) * (1 + 1e-9))


def epsilon_from_renyi(orders: Array, values: Array, delta: float) -> float:
    """The epsilon at ``delta`` from Renyi divergences ``values`` at ``orders``; at least 0."""
    shares = np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    epsilons = np.where(np.isfinite(values), values, np.inf) + shares
    return max(0.0, float(epsilons.min()) * (1 + 1e-12))


def renyi_divergences(pair: GaussianMixturePair, orders: Sequence[float]) -> Array:
    """The Renyi divergences of P from Q in nats, one per order; infinite if the grid is too large.

    E_Q[R^a - 1 - a (R - 1)] with R = dP/dQ has a positive integrand and no cancellation, and equals
    E_Q[R^a] - 1. The trapezoidal rule converges like e^(-40) at this spacing, because log R is
    analytic to pi sigma^2 off the real line.
    """
    sigma = pair.sigma
    spacing = 0.5 * sigma * min(1.0, sigma)
    low = -pair.top - RENYI_REACH_SIGMAS * sigma
    slope, intercept = {"forward": (1, 0), "backward": (0, 0), "replace": (2, 1)}[pair.direction]
    tops = [(slope * a - intercept) * pair.top + RENYI_REACH_SIGMAS * sigma for a in orders]
    counts = [math.ceil((top - low) / spacing) for top in tops]
    # Each grid is the beginning of the longest one, where the density and its ratio are computed.
    longest = max((n for n in counts if n <= MAX_GRID_POINTS), default=0)
    line = _LossGrid.of(pair, low + spacing * np.arange(longest + 1, dtype=float))
    return np.array(
        [
            math.inf if n > MAX_GRID_POINTS else line.log_moment(n + 1, a) / (a - 1)
            for a, n in zip(orders, counts, strict=True)
        ]
    )


@dataclass(frozen=True, eq=False)
class _LossGrid:
    """Values on a grid: log R = log(dP/dQ), R - 1, R - 1 with R at most e^600, log mass of Q."""

    loss: Array
    excess: Array
    bounded: Array
    log_mass: Array

    @classmethod
    def of(cls, pair: GaussianMixturePair, x: Array) -> _LossGrid:
        """The values at the points ``x``, which are equally spaced."""
        spacing = (x[1] - x[0]) / (pair.sigma * math.sqrt(2 * math.pi)) if len(x) > 1 else 1.0
        loss = pair.loss(x)
        logs = [
            math.log(w) - ((x - pair.means(k)[1]) / pair.sigma) ** 2 / 2
            for k, w in enumerate(pair.pmf)
            if w
        ]
        log_mass = np.logaddexp.reduce(logs, axis=0) + math.log(spacing)
        excess, bounded = (np.expm1(np.minimum(loss, cap)) for cap in (700, 600))
        return cls(loss, excess, bounded, log_mass)

    def log_moment(self, points: int, order: float) -> float:
        """log E_Q[R^order], from its integrand at the first ``points``."""
        loss, u = self.loss[:points], self.excess[:points]
        is_near_zero = np.abs(order * u) < 1e-3
        terms = np.empty_like(loss)
        s = u[is_near_zero]
        series = 1 + (order - 2) / 3 * s * (1 + (order - 3) / 4 * s * (1 + (order - 4) / 5 * s))
        terms[is_near_zero] = np.log(order * (order - 1) / 2 * np.maximum(s * s * series, 1e-300))
        is_far = ~is_near_zero
        log_power = order * loss[is_far]
        # log(R^a - 1 - a (R - 1)): directly where it is small, by its largest term where it is not
        direct_excess = np.expm1(np.minimum(log_power, 600)) - order * self.bounded[:points][is_far]
        terms[is_far] = np.where(
            log_power > 500, log_power, np.log(np.maximum(direct_excess, 1e-300))
        )
        exponents = terms + self.log_mass[:points]
        top = float(exponents.max())
        log_excess = top + math.log(float(np.exp(exponents - top).sum())) + QUADRATURE_ERROR
        return float(np.logaddexp(0.0, log_excess)) if log_excess > -30 else math.exp(log_excess)
