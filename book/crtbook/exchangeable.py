"""What labels give without a confidence level, when the mechanism itself draws whom people read.

n units (people, conversations) are drawn at random and read. The policy leaves a trace of the
secret of K of them, and T is 1 if it leaves a trace of one more unit, drawn from the others. As all
units are exchangeable, E[T / (K + 1)] <= 1 / (n + 1) (conformal e-prediction: Vovk 2020; Gauthier,
Bach and Jordan 2025). Two things follow. Both are averages over the draw, for units that nobody
read.

- *Right guesses.* Let noise that depends on K have total variation distance D, such that D times
  :func:`crtlib.intervals.exchangeable_rate` is at most a limit t set before the labels were
  counted. Then E[T D] <= t, for every attacker. It also holds with the rate of public failures
  added on both sides, and where nothing is released above t. It is false for noise that was chosen
  after the count and without such a limit. It is also false where the best of several policies was
  taken and their charge exceeds 1, where :func:`~crtlib.intervals.exchangeable_rate` is cut off:
  nothing is promised there (tests/book/test_exchangeable.py has both).
- *(epsilon, delta)* is not linear in the rate, so (K + 1) / (n + 1) is not enough:
  :func:`rate_factor` computes the factor by which it must grow. Like Proposition 6, this holds
  against attackers who do not know whether the policy missed the secret.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy import special, stats

from crtlib.accounting.privacy_loss import Array
from crtlib.checks import check_allowed, check_delta, check_whole_number

SHARES = np.geomspace(1e-6, 1, 800)[:, None]
"""Rates at which the worst case is searched in an infinite population."""
LARGEST = 80.0  # from this sensitivity over sigma on, a secret counts as learned without noise


def delta_at(mu: Array, rates: Array, epsilon: float) -> Array:
    """The delta at ``epsilon`` for a secret that is in clear with probability ``rates``, under
    Gaussian noise of sensitivity over sigma ``mu`` (Proposition 6); 0 where rate or mu is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = 1 + math.expm1(epsilon) / rates
        middle = np.log(ratio) / mu
        tails = special.ndtr(mu / 2 - middle) - ratio * special.ndtr(-mu / 2 - middle)
    delta_in_clear = np.where(mu >= LARGEST, 1.0, np.clip(tails, 0, 1))
    return np.where((rates > 0) & (mu > 0), rates * delta_in_clear, 0.0)


def largest_sensitivity(rates: Sequence[float] | Array, *, epsilon: float, delta: float) -> Array:
    """For each rate, the largest sensitivity over sigma at which a secret with this miss rate has
    (``epsilon``, ``delta``), at most :data:`LARGEST`."""
    check_allowed("epsilon", epsilon, 0 < epsilon < math.inf, "positive")
    check_delta(delta)
    gamma = np.asarray(rates, dtype=float)
    low, high = np.zeros(len(gamma)), np.full(len(gamma), LARGEST)
    for _ in range(60):
        middle = (low + high) / 2
        is_enough = delta_at(middle, gamma, epsilon) <= delta
        low, high = np.where(is_enough, middle, low), np.where(is_enough, high, middle)
    return np.where(gamma <= delta, LARGEST, low)


@lru_cache(maxsize=8)
def _laws_of_draws(drawn: int, population: int | None) -> tuple[Array, Array]:
    """``(worlds, of + 1)``: the chance of k traces among those read, and the others' rate."""
    k = np.arange(drawn + 1)
    if population is None:
        chances = np.asarray(stats.binom.pmf(k, drawn, SHARES))
        return chances, np.broadcast_to(SHARES, (len(SHARES), drawn + 1))
    traces = np.arange(population + 1)[:, None]
    other_rates = np.clip((traces - k) / (population - drawn), 0, 1)
    return np.asarray(stats.hypergeom.pmf(k, population, traces, drawn)), other_rates


def spent_deltas(
    rates: Sequence[float] | Array, *, epsilon: float, delta: float, population: int | None = None
) -> float:
    """How many times ``delta`` a procedure spends at ``epsilon`` in the worst case. The procedure
    reads n = len(rates) - 1 units and, at k traces, takes the least Gaussian noise with which a
    secret missed with probability ``rates[k]`` has (``epsilon``, ``delta``). The worst case is over
    all numbers of traces in a ``population`` of so many units, or over :data:`SHARES` in an
    infinite one. A result above 1 means that the procedure has no such promise.
    """
    drawn = len(rates) - 1
    if population is not None:
        check_whole_number("population", population, drawn + 1)
    mu = largest_sensitivity(rates, epsilon=epsilon, delta=delta)
    chance, other_rates = _laws_of_draws(drawn, population)
    return float((chance * delta_at(mu, other_rates, epsilon)).sum(axis=1).max()) / delta


def rate_factor(of: int, *, epsilon: float, delta: float, population: int | None = None) -> float:
    """The factor by which (k + 1) / (of + 1) must grow so that a procedure as in
    :func:`spent_deltas` keeps (``epsilon``, ``delta``): the least one, rounded up to 0.01.

    >>> rate_factor(30, epsilon=1.0, delta=1e-5)
    1.59
    >>> rate_factor(30, epsilon=1.0, delta=1e-5, population=40)
    3.88
    """
    check_whole_number("of", of, 1)
    low, high = 99, 100 * (of + 1)  # the upper end makes every rate 1
    while high - low > 1:
        middle = (low + high) // 2
        gamma = np.minimum(1.0, middle / 100 * np.arange(1, of + 2) / (of + 1))
        is_kept = (
            spent_deltas(gamma, epsilon=epsilon, delta=delta, population=population) <= 1 + 1e-9
        )
        low, high = (low, middle) if is_kept else (middle, high)
    return high / 100
