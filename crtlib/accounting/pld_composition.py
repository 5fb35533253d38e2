"""Many steps of DP-SGD: the delta of their composition, never below the truth.

The losses of the steps add up, so their laws are convolved, by Fourier transforms. The rounding of
a transform is as large everywhere as at the law's peak, and the tail that a small delta needs lies
far below the peak. So each law is *tilted* first: weighted by e^(theta loss) and normalised, with
the theta that moves the peak to where delta is decided. The rounding that remains is bounded
(Higham 2002, Theorem 24.2, with Cauchy and Schwarz) and charged; it is now relative to delta.

>>> steps = Composition(
...     [(GaussianMixturePair.of(0.1, group=1, sigma=2.24772, direction="forward"), 100)]
... )
>>> round(steps.epsilon(1e-5), 4)
2.0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import fft, optimize, special

from crtlib.accounting.privacy_loss import (
    ULP,
    Array,
    DiscreteLoss,
    GaussianMixturePair,
    discounted_tail_masses,
    discretise_loss,
    power_by_squaring,
    tail_masses,
)

MAX_MASS_BEYOND_LATTICE = 1e-30
"""The most mass above the lattices that may be left out, over all steps together."""
MIN_DELTA = 1e-26
"""Below this delta, what is left out would matter."""
MAX_FINE_PARTS = 64
"""With more parts than this, the lattices are coarser, but each is as sound as a finer one."""
MAX_TRANSFORM_POINTS = 2**21
LOG_MASS_OUTSIDE_WINDOW = -28.0
"""The log of the share of a tilted law that may leave the window."""
LOG_TILT_RANGE = (-7.0, 9.0)
"""The range of log theta."""
TILT_SHARES = (1.0, 0.8, 0.6, 0.4, 0.2, 0.05)
"""Shares of the best theta that are tried."""
CHERNOFF_WIDTHS = np.array([0.05, 0.2, 0.7, 2.0, 4.0, 7.0, 10.0, 20.0])
"""The widths at which Chernoff's bound is taken, in units of 1 / spread."""
TILT_ERROR_SHARE = 1e-5
"""If numerical errors take no larger share of delta, no other tilt is tried."""
LATTICE_ERROR_SHARE = 1e-2
"""If numerical errors take no larger share of delta, no other lattice is tried."""


class Composition:
    """Independent steps of several pairs; ``parts`` are pairs, and how often each is composed.

    ``coarse`` takes a tenth of the time and is a little looser; neither is below the truth. With
    more than ``MAX_FINE_PARTS`` parts, epsilon is at most about 0.2 % above that of the finest
    lattice.
    """

    def __init__(
        self, parts: Sequence[tuple[GaussianMixturePair, int]], *, coarse: bool = False
    ) -> None:
        self._parts = list(parts)
        self._steps = sum(n for _, n in parts)
        self._extent = _estimate_loss_extent(parts)
        points = 2**18 if self._steps <= 20_000 else 2**20 if self._steps <= 200_000 else 2**19
        points >>= 3 if len(parts) > MAX_FINE_PARTS else 0
        self._sizes = [2**14] if coarse else [points, 2**16, 2**13]
        self._level = lru_cache(maxsize=len(self._sizes))(self._on_lattice)

    def _on_lattice(self, points: int) -> _LatticeComposition:
        per_octave = 128 if len(self._parts) > MAX_FINE_PARTS else 256 if points <= 2**14 else 2048
        return _LatticeComposition(self._parts, self._extent / points, per_octave)

    def delta(self, epsilon: float) -> float:
        """An upper bound on the hockey-stick divergence of P from Q at e^epsilon >= 1."""
        least_delta = 1.0
        for points in self._sizes:  # fewer points have smaller errors, but are looser
            value, error_share = self._level(points).delta(epsilon)
            least_delta = min(least_delta, value)
            if error_share <= LATTICE_ERROR_SHARE:
                break
        return least_delta

    def deltas(self, epsilons: Array) -> Array:
        """:meth:`delta` at many epsilons >= 0 at once, by few transforms on a coarser lattice."""
        level = self._level(min(self._sizes[0], 2**16))
        return np.minimum(1.0, level.deltas(np.asarray(epsilons, dtype=float)))

    def epsilon(self, delta: float) -> float:
        """The least epsilon >= 0 that is proved at ``delta``; infinite if none is."""
        return self.charged(delta)[0]

    def charged(self, delta: float) -> tuple[float, float]:
        """Return :meth:`epsilon`, and the part of ``delta`` charged for numerical errors."""
        if not MIN_DELTA < delta < 1:
            return (0.0 if delta >= 1 else math.inf), 0.0
        least_answer = math.inf, 0.0
        for points in self._sizes:
            value, error_share = self._level(points).epsilon(delta)
            least_answer = min(least_answer, (value, error_share * delta))
            if error_share <= LATTICE_ERROR_SHARE:
                break
        return least_answer


class _LatticeComposition:
    """The composition of ``parts`` on a lattice of one width."""

    def __init__(
        self, parts: Sequence[tuple[GaussianMixturePair, int]], width: float, per_octave: int
    ) -> None:
        self._steps = sum(n for _, n in parts)
        mass_beyond = MAX_MASS_BEYOND_LATTICE / self._steps
        atoms = []
        for pair, _ in parts:
            atoms.append(discretise_loss(pair, width, beyond=mass_beyond, per_octave=per_octave))
        times = [n for _, n in parts]
        self._width = atoms[0].width
        self._laws = [_RepeatedLoss.of(a, n) for a, n in zip(atoms, times, strict=True)]
        self._sketch = [law.sketch() for law in self._laws]
        log_finite_masses = (
            n * math.log1p(-min(a.infinity, 0.5)) for a, n in zip(atoms, times, strict=True)
        )
        self._infinity = -math.expm1(sum(log_finite_masses))
        self._at = lru_cache(maxsize=3)(self._tilted)

    def delta(self, epsilon: float) -> tuple[float, float]:
        """Return delta at ``epsilon``, and the share of it that is charged for numerical errors."""

        def exponent(log_theta: float) -> float:  # of the integrand, at its saddle point
            theta = math.exp(log_theta)
            return (
                _sum_log_moments(self._sketch, theta)
                - theta * epsilon
                - log_theta
                - math.log1p(theta)
            )

        def delta_and_error_share(tilt: TiltedComposition) -> tuple[float, float]:
            value = min(1.0, tilt.delta(epsilon) + self._infinity)
            return value, tilt.charged_delta(epsilon) / max(value, 1e-300)

        return self._best(_minimise_over_tilts(exponent), delta_and_error_share, 1.0)

    def epsilon(self, delta: float) -> tuple[float, float]:
        """Return epsilon at ``delta``, and the share of delta charged for numerical errors."""
        decade = 10 ** (math.floor(math.log10(delta)) + 0.5)  # one transform serves a decade

        def epsilon_and_error_share(tilt: TiltedComposition) -> tuple[float, float]:
            value = tilt.epsilon(delta - self._infinity)
            return value, tilt.charged_delta(value) / delta if value < math.inf else 1.0

        return self._best(self._theta(decade), epsilon_and_error_share, math.inf)

    def deltas(self, epsilons: Array) -> Array:
        """The least delta that a few tilts prove at each of ``epsilons``."""
        thetas = [
            self._theta(d) * share for d in (0.3, 1e-2, 1e-5, 1e-9, 1e-14) for share in (0.6, 1)
        ]
        tilts = (self._tilted(theta) for theta in thetas)
        least_deltas: Array = np.min([tilt.deltas(epsilons) for tilt in tilts], axis=0)
        return least_deltas + self._infinity

    def _theta(self, delta: float) -> float:
        """The tilt near which ``delta`` is decided: that of its Renyi bound."""

        def bound(log_theta: float) -> float:
            theta = math.exp(log_theta)
            return (
                _sum_log_moments(self._sketch, theta) + log_chernoff_share(theta) - math.log(delta)
            ) / theta

        return _minimise_over_tilts(bound)

    def _best(
        self,
        theta: float,
        value_and_error_share: Callable[[TiltedComposition], tuple[float, float]],
        vacuous_value: float,
    ) -> tuple[float, float]:
        """Return the least value that the composed law gives under this tilt or weaker ones, all of
        which are sound, with the share of delta charged for numerical errors. If a single step may
        decide (rare draws, little noise), the best tilt has no small window. ``vacuous_value`` is
        what holds without any tilt."""
        best = vacuous_value, 1.0
        for tilt_share in TILT_SHARES:
            tilt = self._at(float(np.float32(theta * tilt_share)))
            value, error_share = value_and_error_share(tilt)
            if best[0] < vacuous_value and error_share > best[1]:
                break
            best = min(best, (value, error_share))
            if error_share <= TILT_ERROR_SHARE:
                break
        return best

    def _tilted(self, theta: float) -> TiltedComposition:
        total = _sum_log_moments(self._laws, theta)
        low, high = self._window(theta)
        start = math.floor(low / self._width)
        size = max(math.ceil(high / self._width) - start + 2, 16)
        if not size <= MAX_TRANSFORM_POINTS:
            return TiltedComposition.without_window()
        n = 1 << (size - 1).bit_length()
        convolved, error = _convolve_laws(
            [(law.tilted(theta, n), law.steps) for law in self._laws], n
        )
        index = start + np.arange(n)
        # What the window loses above: Chernoff's bound, and the rounding of the moments.
        end, spread = (start + n) * self._width, self._spread(theta)
        top = min(
            _sum_log_moments(self._laws, u) - u * end for u in theta + CHERNOFF_WIDTHS / spread
        )
        top = math.exp(min(0.0, top + 1e-6 + 64 * ULP * self._steps))
        return TiltedComposition.of(
            np.multiply(index, self._width),
            np.maximum(convolved[index % n], 0),
            error,
            theta,
            total,
            top,
        )

    def _spread(self, theta: float) -> float:
        """The standard deviation of the tilted sum."""
        return math.sqrt(sum(law.steps * law.moments(theta)[1] for law in self._sketch)) + 1e-300

    def _window(self, theta: float) -> tuple[float, float]:
        """The ends between which the tilted sum lies, by Chernoff's bound.

        What leaves the window below comes back above, where it counts with a larger loss; what
        leaves it above is charged.
        """
        total, spread = _sum_log_moments(self._sketch, theta), self._spread(theta)
        upper_ends, lower_ends = [], []
        for u in CHERNOFF_WIDTHS / spread:
            lower_ends.append(
                (total - _sum_log_moments(self._sketch, theta - u) + LOG_MASS_OUTSIDE_WINDOW) / u
            )
            upper_ends.append(
                (_sum_log_moments(self._sketch, theta + u) - total - LOG_MASS_OUTSIDE_WINDOW) / u
            )
        return float(max(lower_ends)), float(min(upper_ends))


@dataclass(frozen=True, eq=False)
class _RepeatedLoss:
    """The atoms of one pair, with their logs, composed ``steps`` times."""

    index: NDArray[np.int64]
    losses: Array
    log_mass: Array
    steps: int

    @classmethod
    def of(cls, atoms: DiscreteLoss, steps: int) -> _RepeatedLoss:
        is_positive = atoms.mass > 0
        return cls(
            atoms.index[is_positive],
            atoms.losses[is_positive],
            np.log(atoms.mass[is_positive]),
            steps,
        )

    def sketch(self) -> _RepeatedLoss:
        """Fewer atoms, for searches: away from 0, neighbours are joined at their mean loss."""
        position = np.arange(len(self.index))
        starts = position[(np.abs(self.index) <= 2048) | (position % 16 == 0)]
        mass = np.exp(self.log_mass)
        joint = np.add.reduceat(mass, starts)
        losses = np.add.reduceat(mass * self.losses, starts) / joint
        return _RepeatedLoss(self.index[starts], losses, np.log(joint), self.steps)

    def log_moment(self, theta: float) -> float:
        exponents = self.log_mass + theta * self.losses
        top = float(exponents.max())
        return top + math.log(float(np.exp(exponents - top).sum()))

    def moments(self, theta: float) -> tuple[float, float]:
        """Mean and variance of the tilted loss."""
        weights = np.exp(self.log_mass + theta * self.losses - self.log_moment(theta))
        mean = float(weights @ self.losses)
        return mean, float(weights @ (self.losses - mean) ** 2)

    def tilted(self, theta: float, n: int) -> Array:
        """The tilted masses on a circle of ``n`` points, with the rounding of each one added."""
        log_moment = self.log_moment(theta)
        bend = theta * self.losses
        size = np.abs(self.log_mass) + np.abs(bend) + abs(log_moment)
        masses = np.exp(self.log_mass + bend - log_moment) * (1 + ULP * (8 + 4 * size))
        return np.asarray(np.bincount(self.index % n, masses, n), dtype=float)


def _sum_log_moments(laws: Sequence[_RepeatedLoss], theta: float) -> float:
    """log E_P[e^(theta loss)] of all steps."""
    return sum(law.steps * law.log_moment(theta) for law in laws)


def _minimise_over_tilts(cost: Callable[[float], float]) -> float:
    """The theta with the least ``cost(log theta)``, to few digits: any theta is sound."""
    optimum = optimize.minimize_scalar(
        cost, bounds=LOG_TILT_RANGE, method="bounded", options={"xatol": 1e-3}
    )
    return float(np.float32(math.exp(optimum.x)))


def log_chernoff_share(theta: float) -> float:
    """log max_t (1 - e^-t) e^(-theta t): the share of a Chernoff bound a hockey stick can use.

    With order theta + 1 it is the constant of Balle et al. (2020), Theorem 21.
    """
    return -math.log1p(theta) - theta * math.log1p(1 / theta)


def _estimate_loss_extent(parts: Sequence[tuple[GaussianMixturePair, int]]) -> float:
    """An estimate of how far the summed loss reaches, in nats: 20 spreads, plus twice epsilon at
    1e-12."""
    has_many_parts = len(parts) > MAX_FINE_PARTS
    theta = np.logspace(-1.5, 3, 20 if has_many_parts else 40)
    cgf, variance = np.zeros_like(theta), 0.0
    for pair, steps in parts:
        mean_of_p = [pair.means(k)[0] for k in range(len(pair.pmf))]
        low, high = -9 * pair.sigma, pair.top + 12 * pair.sigma
        x = np.linspace(low, high, 601 if has_many_parts else 6001)
        with np.errstate(under="ignore"):
            bells = np.exp(-(((x - np.array(mean_of_p)[:, None]) / pair.sigma) ** 2) / 2)
            density: Array = np.array(pair.pmf) @ bells
        density, loss = density / density.sum(), pair.loss(x)
        mean = float(density @ loss)
        variance += steps * float(density @ (loss - mean) ** 2)
        with np.errstate(divide="ignore", over="ignore"):
            cgf += steps * special.logsumexp(np.outer(theta, loss) + np.log(density), axis=1)
    share = np.array([log_chernoff_share(t) for t in theta])
    return 20 * math.sqrt(variance) + 2 * float(np.min((cgf + share + 28) / theta)) + 1e-12


def _convolve_laws(laws: Sequence[tuple[Array, int]], n: int) -> tuple[Array, float]:
    """The convolution of the laws, each as often as given, and a bound on any entry's error.

    A transform errs by ``bound`` in the 2-norm; its T-th power by T |z|^(T-1) times that.
    """
    unit = 8 * ULP * math.log2(n)
    product: NDArray[np.complex128] = np.ones(n // 2 + 1, dtype=complex)
    log_sizes, factors = np.zeros(n // 2 + 1), []
    for law, steps in laws:
        transform: NDArray[np.complex128] = fft.rfft(law)
        bound = unit * math.sqrt(n) * float(np.linalg.norm(law))
        product = product * power_by_squaring(transform, steps)
        size = np.log(np.abs(transform) + bound)  # at least the exact size
        log_sizes += steps * size
        factors.append((steps * bound, size))
    # Each frequency but the first and the last stands for two.
    frequency_weights = np.full(n // 2 + 1, 2.0)
    frequency_weights[[0, -1]] = 1.0
    error = 0.0
    for scale, size in factors:
        with np.errstate(over="ignore", under="ignore"):
            other_sizes = np.exp(np.minimum(log_sizes - size, 300))
        error += scale * math.sqrt(float(frequency_weights @ other_sizes**2)) / n
    with np.errstate(over="ignore", under="ignore"):
        total_sizes = np.exp(np.minimum(log_sizes, 300))
    steps = sum(times for _, times in laws)
    error += 8 * ULP * (steps + 4) * float(frequency_weights @ total_sizes) / n
    error += unit * math.sqrt(float(frequency_weights @ total_sizes**2) / n)
    return fft.irfft(product, n), error


@dataclass(frozen=True, eq=False)
class TiltedComposition:
    """A composed law without its tilt: ``mass[i]`` at the loss ``grid[i]``, errors added.

    ``top`` bounds the mass above the grid; ``tail_masses`` and ``discounted_tail_masses`` are the
    sums of the mass from each point on, plain and weighted by e^(grid[i] - grid[j]). Nothing is
    known about an epsilon below ``least``, where the window begins. Under the tilt ``theta``,
    normalised by e^cgf, a mass is off by at most ``error``.
    """

    grid: Array
    mass: Array
    tail_masses: Array
    discounted_tail_masses: Array
    top: float
    least: float = 0.0
    error: float = 0.0
    theta: float = 0.0
    cgf: float = 0.0

    @classmethod
    def without_window(cls) -> TiltedComposition:
        empty = np.zeros(0)
        return cls(empty, empty, empty, empty, top=1.0)

    @classmethod
    def of(
        cls, grid: Array, tilted: Array, error: float, theta: float, cgf: float, top: float
    ) -> TiltedComposition:
        first, edge = int(np.searchsorted(grid, 0.0)), float(grid[0])
        grid, tilted = grid[first:], tilted[first:]
        if len(grid) < 2:
            return cls.without_window()
        mass = np.exp(np.minimum(cgf - theta * grid, 650)) * (tilted + error) * (1 + 1e-9)
        higher = tail_masses(mass)
        discounted = discounted_tail_masses(mass, grid[1] - grid[0])
        # Above a mass of 4 no delta is decided, below 1e-40 none: what is left off is charged.
        start, end = np.searchsorted(-higher, [-4.0, -1e-40])
        top += float(higher[end]) if end < len(higher) else 0.0
        grid, mass, higher, discounted = (
            x[start:end].copy() for x in (grid, mass, higher, discounted)
        )
        if not len(grid):
            return cls.without_window()
        least_epsilon = float(grid[0]) if start else max(0.0, edge)
        return cls(grid, mass, higher, discounted, top, least_epsilon, error, theta, cgf)

    def delta(self, epsilon: float) -> float:
        """sum of P (1 - e^(epsilon - loss))+, term by term: nothing cancels."""
        if epsilon < self.least or not len(self.grid):
            return 1.0
        first = int(np.searchsorted(self.grid, epsilon, "right"))
        gain = -np.expm1(epsilon - self.grid[first:])
        return float(gain @ self.mass[first:]) + self.top

    def deltas(self, epsilons: Array) -> Array:
        """:meth:`delta` at many epsilons, from the stored sums, with their rounding added."""
        if not len(self.grid):
            return np.ones_like(epsilons)
        j = np.searchsorted(self.grid, epsilons, "right")
        clipped_index = np.minimum(j, len(self.grid) - 1)
        discounts = np.exp(np.minimum(0.0, epsilons - self.grid[clipped_index]))
        sums = (
            self.tail_masses[clipped_index] * (1 + 1e-9)
            - discounts * self.discounted_tail_masses[clipped_index]
        )
        deltas = np.where(j < len(self.grid), np.maximum(sums, 0.0), 0.0) + self.top
        return np.where(epsilons < self.least, 1.0, deltas)

    def charged_delta(self, epsilon: float) -> float:
        """The part of :meth:`delta` that is charged for numerical errors."""
        grid = self.grid[int(np.searchsorted(self.grid, epsilon, "right")) :]
        weights = np.exp(np.minimum(self.cgf - self.theta * grid, 650))
        return self.error * float(weights @ -np.expm1(epsilon - grid)) + self.top

    def epsilon(self, delta: float) -> float:
        """The least epsilon >= 0 whose :meth:`delta` is at most ``delta``."""
        if not self.top < delta or not len(self.grid):
            return math.inf
        remaining_delta = delta - self.top
        exceeding = np.flatnonzero(self.tail_masses - self.discounted_tail_masses > remaining_delta)
        j = int(exceeding[-1]) + 1 if len(exceeding) else 0
        if j == len(self.grid):
            return math.inf
        epsilon = self.least
        if j:  # in the last gap, delta is linear in e^epsilon
            epsilon = float(self.grid[j])
            if self.tail_masses[j] > remaining_delta:
                epsilon += math.log(
                    (self.tail_masses[j] - remaining_delta) / self.discounted_tail_masses[j]
                )
        epsilon = max(epsilon, self.least)
        step = 1e-13 * (1 + abs(epsilon))
        while self.delta(epsilon) > delta:  # rounding of the two sums
            epsilon, step = epsilon + step, 2 * step
        return epsilon
