"""A group of sampled points against its absence: N(how many were drawn, sigma^2) and N(0, sigma^2).

One round of DP-SGD takes each point ``i`` with its own probability ``p_i``. A round reveals no more
about the points that hold a secret than this pair of laws: a Gaussian mixture whose weights are a
Poisson-binomial law, against the Gaussian without these points (in units of the clip norm).

>>> group = group_count_laws([0.02] * 5, [0, 5])
>>> round(float(mixture_kl(group, sigma=1.0)[0]), 12)
0.007861524282

``mixture_kl`` is exact and takes 100,000 secrets at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from crtlib.accounting.privacy_loss import Array
from crtlib.checks import check_allowed, check_choice

DivergenceDirection = Literal["forward", "backward", "replace"]
DIVERGENCE_DIRECTIONS = ("forward", "backward", "replace")
GROUPS_PER_BLOCK = 2048  # secrets in one block: their table stays in the cache
MIN_LOG_PROBABILITY = -75.0  # counts whose probability is below e^-75 are left out, and charged
MIXTURE_REACH_SIGMAS, MIXTURE_STEP_SIGMAS = 9.5, 0.5  # of the integration grid, in sigma


@dataclass(frozen=True)
class GroupCountLaws:
    """Poisson-binomial laws of many groups, in blocks of similar length.

    A block is ``(rows, pmf, tail)``: the indices of its groups; ``pmf[i, k]``, the probability that
    k points are drawn, (len(rows), K + 1); and ``tail``, a bound on the probability of more than K.
    """

    blocks: tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...]
    sizes: np.ndarray  # the number of points in each group

    def __len__(self) -> int:
        return len(self.sizes)


def group_count_laws(probabilities: ArrayLike, indptr: ArrayLike) -> GroupCountLaws:
    """The laws of the groups ``probabilities[indptr[j]:indptr[j + 1]]`` (as in a CSR matrix).

    Counts k whose Chernoff bound e^(k - load) (load / k)^k is below e^(-75 - load) are left out.
    Raises ValueError for a probability outside [0, 1].
    """
    p = np.asarray(probabilities, dtype=float)
    starts = np.asarray(indptr, dtype=np.int64)
    for worst in (p.min(), p.max()) if p.size else ():
        if not 0 <= worst <= 1:
            raise ValueError(f"probabilities: one is {worst}: must be in [0, 1]")
    sizes = np.diff(starts)
    loads = np.diff(np.concatenate([[0.0], np.cumsum(p)])[starts])
    longest = _largest_counts(loads, sizes)
    blocks = []
    order = np.lexsort((-sizes, longest))
    for rows in (
        np.split(order, range(GROUPS_PER_BLOCK, len(order), GROUPS_PER_BLOCK)) if len(order) else ()
    ):
        rows = rows[np.argsort(-sizes[rows], kind="stable")]
        top = int(longest[rows].max())
        pmf = np.zeros((len(rows), top + 1))
        pmf[:, 0] = 1.0
        active = len(rows) - np.searchsorted(sizes[rows][::-1], np.arange(sizes[rows[0]]), "right")
        for d, n in enumerate(active):  # the d-th point of each of the n groups that have one
            q = p[starts[rows[:n]] + d, None]
            drawn_mass = pmf[:n, :-1] * q
            pmf[:n] *= 1 - q
            pmf[:n, 1:] += drawn_mass
        tail = np.asarray(np.exp(_log_chernoff_bound(top + 1, loads[rows])))
        blocks.append((rows, pmf, np.where(sizes[rows] <= top, 0.0, tail)))
    return GroupCountLaws(tuple(blocks), sizes)


def poisson_binomial(probabilities: Sequence[float] | Array) -> Array:
    """The law of how many of one group's points are drawn, ``(K + 1,)``;
    :func:`group_count_laws` gives it for many groups.

    >>> poisson_binomial([0.5, 0.5]).tolist()
    [0.25, 0.5, 0.25]
    """
    law: Array = group_count_laws(probabilities, [0, len(probabilities)]).blocks[0][1][0]
    return law


def _log_chernoff_bound(k: ArrayLike, load: ArrayLike) -> Array:
    """The log of a bound on P[count >= k], for k > load."""
    k, load = np.asarray(k, dtype=float), np.asarray(load, dtype=float)
    with np.errstate(divide="ignore"):
        return np.where(k > load, k - load + k * np.log(load / k), 0.0)


def _largest_counts(loads: Array, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each group, the largest count that is kept, by bisection on the Chernoff bound."""
    low, high = np.floor(loads), np.maximum(sizes, 1).astype(float)
    while (high - low > 1).any():
        k = np.ceil((low + high) / 2)
        is_enough = _log_chernoff_bound(k + 1, loads) <= MIN_LOG_PROBABILITY - loads
        low, high = np.where(is_enough, low, np.minimum(k, high)), np.where(is_enough, k, high)
    return high.astype(np.int64)


def mixture_kl(
    groups: GroupCountLaws, sigma: float, *, direction: DivergenceDirection = "forward"
) -> Array:
    """The KL divergence of one round for every group, in nats, ``(groups,)``.

    "forward" compares with against without the group, "backward" without against with, "replace"
    the mixture against its mirror image (each gradient u replaced by -u, the worst replacement).
    ``sigma`` is the noise multiplier. The relative rounding error is below 1e-12, unless it is a
    "replace" of what is hardly ever drawn (3e-7 of 2e-22 nats at a probability of 2e-9); a bound on
    what the laws leave out is added.
    """
    check_allowed("sigma", sigma, 0 < sigma < math.inf, "positive and finite")
    check_choice("direction", direction, DIVERGENCE_DIRECTIONS)
    divergences = np.zeros(len(groups))
    for rows, pmf, tail in groups.blocks:
        top = pmf.shape[1] - 1
        if top:
            # log L is analytic to pi sigma^2 off the real line: sums converge as e^(-40) here.
            step = MIXTURE_STEP_SIGMAS * sigma * min(1.0, sigma)
            x_min = -MIXTURE_REACH_SIGMAS * sigma
            if direction == "replace":
                x_min = 0.0  # an even integrand, 0 at 0
            x = np.arange(x_min, top + MIXTURE_REACH_SIGMAS * sigma, step)
            divergences[rows] = _kl_block(pmf, x, sigma, direction) * step
        # t: convexity, the entropy of "in the tail or not", and log(q / p) <= -log pmf_0
        n = (2 if direction == "replace" else 1) * groups.sizes[rows]
        entropy = special.entr(tail) + special.entr(1 - tail)
        bound: Array | float = 0.0
        if direction != "backward":
            bound = tail * n**2 / (2 * sigma**2) + entropy
        if direction != "forward":
            bound = bound + np.divide(tail, pmf[:, 0], out=np.zeros_like(tail), where=tail > 0)
        divergences[rows] += bound
    return divergences


def _kl_block(pmf: Array, x: Array, sigma: float, direction: str) -> Array:
    log_q = -((x / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi))
    u, loss, p = _mixture_ratio(pmf, x, sigma, log_q)
    if direction == "replace":
        _, mirrored, p_mirrored = _mixture_ratio(pmf, -x, sigma, log_q)
        return np.asarray(((p - p_mirrored) * (loss - mirrored)).sum(axis=1))
    q = np.exp(log_q)
    is_near_zero = np.abs(u) < 1e-3  # where the differences below would cancel
    s = u[is_near_zero]
    if direction == "forward":
        terms = p * loss - p + q
        series = s * s * (1 / 2 - s * (1 / 6 - s * (1 / 12 - s * (1 / 20 - s / 30))))
    else:
        terms = p - q - q * loss
        series = s * s * (1 / 2 - s * (1 / 3 - s * (1 / 4 - s * (1 / 5 - s / 6))))
    terms[is_near_zero] = series * np.broadcast_to(q, u.shape)[is_near_zero]
    return np.asarray(terms.sum(axis=1))


def _mixture_ratio(pmf: Array, x: Array, sigma: float, log_q: Array) -> tuple[Array, Array, Array]:
    """``p / q - 1``, its ``log1p`` and ``p`` at ``x``, each (groups, len(x)), p the mixture."""
    k = np.arange(pmf.shape[1])[:, None]
    exponent = (k * x - k**2 / 2) / sigma**2  # (K + 1, x)
    u = pmf[:, 1:] @ np.expm1(np.minimum(exponent[1:], 600))
    hard = (exponent.max(axis=0) > 600) | (u.min(axis=0) < -0.99)  # e^600, or 1 + u cancels
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.log1p(u)
    p = np.exp(log_q) * (1 + u)
    if hard.any():
        log_p = np.full((len(pmf), int(hard.sum())), -np.inf)
        with np.errstate(divide="ignore"):
            log_pmf = np.log(pmf)
        for i in range(len(k)):
            log_p = np.logaddexp(log_p, log_pmf[:, i, None] + exponent[i, hard])
        loss[:, hard] = log_p
        p[:, hard] = np.exp(log_p + log_q[hard])
    return u, loss, p
