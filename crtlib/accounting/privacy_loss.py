"""The privacy loss of one step, put on a lattice so that it can only grow.

A step of DP-SGD reveals no more about a group than a pair of mixtures on the line, whose weights
are the law of how many points of the group are drawn (in units of the clip norm):

    forward   sum_k p_k N(k, sigma^2)   against   N(0, sigma^2)
    backward  N(0, sigma^2)             against   sum_k p_k N(-k, sigma^2)
    replace   sum_k p_k N(k, sigma^2)   against   sum_k p_k N(-k, sigma^2)

The first two are a group against its absence. The third is the worst replacement of every point
of a group, the antipodal pair: the book's chapter on amplification has the theorem and its proof.
In all three the loss log(dP/dQ) increases with x, so a set of large loss is a half-line.

>>> atoms = discretise_loss(
...     GaussianMixturePair.of(0.1, group=1, sigma=2.0, direction="forward"), width=2.0**-12
... )
>>> bool(1 <= atoms.mass.sum() < 1 + 1e-9)  # rounding is charged: never less than one
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import special
from scipy.optimize import elementwise

ULP = 2.0**-53
LATTICE_REACH_SIGMAS = (
    10.0  # sigma below the means of P; what lies lower only has its loss rounded up
)
MIN_COUNT_PROBABILITY = 1e-40  # counts that are less likely are left out, and their mass is charged

Array = NDArray[np.float64]


@dataclass(frozen=True)
class GaussianMixturePair:
    """Two Gaussian mixtures: ``pmf[k]`` is the weight of the mean k or 0 in P, and 0 or -k in Q.

    ``omitted_mass`` is the mass of larger counts, which ``pmf`` leaves out.
    """

    pmf: tuple[float, ...]
    sigma: float
    direction: str
    omitted_mass: float = 0.0

    @classmethod
    def of(cls, q: float, *, group: int, sigma: float, direction: str) -> GaussianMixturePair:
        """The pair for a group of ``group`` points, each drawn independently with probability
        ``q``."""
        law = scipy.stats.binom.pmf(np.arange(min(group, 4096) + 1), group, q)
        top = int(np.flatnonzero(law > MIN_COUNT_PROBABILITY)[-1])
        omitted_mass = float(scipy.stats.binom.sf(top, group, q))
        return cls(tuple(law[: top + 1].tolist()), sigma, direction, omitted_mass)

    @property
    def top(self) -> int:
        """The largest count."""
        return len(self.pmf) - 1

    def means(self, k: int) -> tuple[int, int]:
        """The means of P and of Q if ``k`` points are drawn."""
        return (0 if self.direction == "backward" else k), (
            0 if self.direction == "forward" else -k
        )

    def loss(self, x: Array) -> Array:
        """log(dP/dQ) at ``x``, nats; as accurate near 0 as elsewhere."""
        log_ratio = 0.0 if self.direction == "backward" else self._log_ratio(x)
        mirrored_log_ratio = 0.0 if self.direction == "forward" else self._log_ratio(-x)
        return np.asarray(log_ratio - mirrored_log_ratio)

    def _log_ratio(self, x: Array) -> Array:
        """The log of the mixture of N(k) over N(0)."""
        u = np.zeros_like(x)
        logs = np.full_like(x, math.log(self.pmf[0]) if self.pmf[0] else -np.inf)
        for k, weight in enumerate(self.pmf[1:], 1):
            if weight:
                exponent = (k * x - k * k / 2) / self.sigma**2
                u += weight * np.expm1(np.minimum(exponent, 700))
                logs = np.logaddexp(logs, math.log(weight) + exponent)
        return np.where(np.abs(u) < 0.5, np.log1p(np.maximum(u, -0.5)), logs)


@dataclass(frozen=True, eq=False)
class DiscreteLoss:
    """P-mass ``mass[i]`` at the loss ``index[i] * width``, and ``infinity`` where Q may be 0."""

    index: NDArray[np.int64]
    mass: Array
    infinity: float
    width: float

    @property
    def losses(self) -> Array:
        """The losses, exact because ``width`` has 24 bits and an index at most 29."""
        return np.asarray(self.index * self.width)


def discretise_loss(
    pair: GaussianMixturePair, width: float, *, beyond: float = 1e-30, per_octave: int = 2048
) -> DiscreteLoss:
    """Return a discrete loss that is at least as revealing as that of ``pair``, errors charged.

    The line is cut where the loss crosses multiples of ``width``: all of them near 0, and
    ``per_octave`` between l and 2 l further out. A bin's P-mass goes to its two ends so that P and
    Q keep their masses ("connect the dots", Doroshenko et al. 2022). An edge slightly off its
    multiple matters only in second order, because the split uses masses and not densities. What
    rounding may do to a mass is added to it, and to the share that goes to the upper end. A share
    ``beyond`` of P lies above the last bin and counts as an infinite loss.
    """
    width = float(np.float32(width))
    low, high = -LATTICE_REACH_SIGMAS * pair.sigma, pair.top - special.ndtri(beyond) * pair.sigma
    end_losses = pair.loss(np.array([low, high]))
    nodes = _lattice_nodes(float(end_losses[0]) / width, float(end_losses[1]) / width, per_octave)
    edges = np.concatenate(
        [[low], loss_crossings(pair, np.multiply(nodes[1:-1], width), low, high), [high]]
    )
    p, p_error, excess, excess_error, mass_outside = _bin_masses(
        pair, edges, np.multiply(nodes[:-1], width)
    )
    gaps = -np.expm1(-np.diff(nodes) * width)
    p = p + p_error
    upper = np.minimum(p, np.maximum(excess + excess_error, 0.0) / gaps)
    mass = np.zeros(len(nodes))
    mass[1:] += upper
    mass[:-1] += p - upper
    mass[1] += mass_outside[0]  # the loss there is below that of the first edge
    return DiscreteLoss(nodes, mass, min(1.0, mass_outside[1] + pair.omitted_mass), width)


def tail_masses(mass: Array) -> Array:
    """The sum of each entry and all after it."""
    return np.cumsum(mass[::-1])[::-1]


def discounted_tail_masses(mass: Array, spacing: float) -> Array:
    """``sum_{j >= i} mass[j] e^(-(j - i) spacing)`` for each i, without large factors."""
    return np.asarray(scipy.signal.lfilter([1.0], [1.0, -math.exp(-spacing)], mass[::-1])[::-1])


def power_by_squaring(z: NDArray[np.complex128], n: int) -> NDArray[np.complex128]:
    """``z ** n`` by squaring, whose rounding is known (n products)."""
    power = z if n & 1 else np.ones_like(z)
    while n := n >> 1:
        z = z * z
        if n & 1:
            power = power * z
    return power


def _lattice_nodes(low: float, high: float, per_octave: int) -> NDArray[np.int64]:
    """Whole numbers that span [low, high]: all of them near 0, and sparser further out."""
    first, last = math.floor(low), math.ceil(high)
    last = max(last, first + 1)
    steps, top = [np.arange(per_octave)], per_octave
    while top <= max(-first, last):
        steps.append(np.arange(top, 2 * top, top // per_octave))
        top *= 2
    nonnegative = np.concatenate(steps)
    candidates = np.concatenate([-nonnegative[:0:-1], nonnegative])
    inner_nodes = candidates[(candidates > max(first, low)) & (candidates < min(last, high))]
    return np.concatenate([[first], inner_nodes, [last]]).astype(np.int64)


def loss_crossings(pair: GaussianMixturePair, losses: Array, low: float, high: float) -> Array:
    """The points at which the increasing loss crosses ``losses``; all lie within [low, high]."""
    if not len(losses):
        return losses
    x = np.linspace(low, high, 8193)
    table = np.maximum.accumulate(pair.loss(x))
    right_index = np.clip(np.searchsorted(table, losses), 1, len(x) - 1)

    def gap(point: Array, target: Array) -> Array:
        return pair.loss(point) - target

    root = elementwise.find_root(
        gap,
        (x[right_index - 1], x[right_index]),
        args=(losses,),
        tolerances={"xatol": 1e-13 * pair.sigma, "xrtol": 1e-14},
        maxiter=60,
    )
    crossings = np.where(np.isfinite(root.x), root.x, x[right_index])
    return np.maximum.accumulate(np.clip(crossings, low, high))


def _bin_masses(
    pair: GaussianMixturePair, edges: Array, losses: Array
) -> tuple[Array, Array, Array, Array, tuple[float, float]]:
    """For the bins between ``edges``: the mass of P and its error, P - e^loss Q and its error; and
    the mass of P outside."""
    bins: dict[int, tuple[Array, Array, float, float]] = {}
    for mean in {m for k in range(len(pair.pmf)) for m in pair.means(k)}:
        bins[mean] = _gaussian_bin_masses(edges, mean, pair.sigma)
    zero = np.zeros(len(edges) - 1)
    p = p_error = q = q_error = gap = gap_error = zero
    mass_below = mass_above = 0.0
    for k, weight in enumerate(pair.pmf):
        p_bins, q_bins = (bins[m] for m in pair.means(k))
        p, p_error = p + weight * p_bins[0], p_error + weight * p_bins[1]
        q, q_error = q + weight * q_bins[0], q_error + weight * q_bins[1]
        mass_below, mass_above = mass_below + weight * p_bins[2], mass_above + weight * p_bins[3]
        if k:  # with none drawn P and Q are the same
            gap = gap + weight * (p_bins[0] - q_bins[0])
            gap_error = gap_error + weight * (p_bins[1] + q_bins[1])
    p_error = p_error + 4 * (len(pair.pmf) + 2) * ULP * p
    expm1_losses = np.expm1(np.minimum(losses, 700.0))
    excess = np.where(losses < 700, gap - q * expm1_losses, p)
    size = np.abs(gap) + q * np.abs(expm1_losses)
    excess_error = gap_error + np.abs(expm1_losses) * q_error + 4 * (len(pair.pmf) + 2) * ULP * size
    return p, p_error, excess, excess_error, (mass_below * (1 + 1e-9), mass_above * (1 + 1e-9))


def _gaussian_bin_masses(
    edges: Array, mean: int, sigma: float
) -> tuple[Array, Array, float, float]:
    """For N(mean, sigma^2): the masses of the bins, bounds on their errors, the masses outside.

    The error of a tail comes from the rounded argument, 2 z^2 ulp, and from the function.
    """
    z = (edges - mean) / sigma
    cdf, survival = special.ndtr(z), special.ndtr(-z)
    is_right_of_mean = z[1:] > 0
    mass = np.where(is_right_of_mean, survival[:-1] - survival[1:], cdf[1:] - cdf[:-1])
    tail = np.minimum(cdf, survival) * (16 + 4 * z**2)
    error = ULP * (tail[1:] + tail[:-1])
    return np.maximum(mass, 0.0), error, float(cdf[0]), float(survival[-1])
