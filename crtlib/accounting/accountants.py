"""The accountants behind the ledger, and the bound of Renyi divergences that they fall back on.

Renyi divergences of one step, and what they say of many: a loose bound that never gives up.

>>> pair = Pair.of(0.01, group=1, sigma=1.27053328, direction="forward")
>>> curve = RenyiCurve([(pair, 1000)])
>>> round(curve.epsilon(8e-5), 3)  # the tight value is 1.0
1.129

Composition adds the curves, so the cost does not depend on the number of steps.

The accountants behind the ledger: what composed, Poisson-sampled Gaussians cost.

>>> curve = profile(((0.1, 2.24772, 100),), "pld", "add_or_remove")  # (q, sigma, steps), ...
>>> round(curve(1e-5), 4), curve(1e-3) < curve(1e-5)
(2.0, True)
>>> curve.answer(1e-300).accountant  # beyond what a transform resolves: a looser, proven bound
'rdp'

A profile maps delta in (0, 1) to the least epsilon that its accountant can show: never below the
truth. Where an accountant has no answer, the least of the looser bounds in :data:`FALLBACKS` is
given, with its name. The libraries are imported when they are first used.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from scipy import special

from crtlib.accounting.composition import MANY, Array, Composition, Pair

ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(12, 64), 80, 96, 128, 192, 256, 384, 512)
POINTS = 2**15  # of the largest integration grid
EXCESS = 1e-9  # relative, added to every integral: what the quadrature may be off


class RenyiCurve:
    """order -> Renyi divergence of the composition, at :data:`ORDERS`; an upper bound.

    ``values`` is the larger one where several directions (``others``) have to hold. One order of
    ``every`` is taken: fewer orders are as sound, and say more.
    """

    def __init__(
        self,
        parts: Sequence[tuple[Pair, int]],
        *others: Sequence[tuple[Pair, int]],
        every: int = 1,
    ):
        orders = ORDERS[::every]
        self.orders: Array = np.array(orders, dtype=float)
        each = [
            sum((n * divergences(pair, orders) for pair, n in way), np.zeros(len(orders)))
            for way in (parts, *others)
        ]
        self.values: Array = np.max(each, axis=0)

    def epsilon(self, delta: float) -> float:
        """The least epsilon >= 0 at ``delta`` (Balle et al. 2020, Theorem 21)."""
        return to_epsilon(self.orders, self.values, delta)

    def delta(self, epsilon: float) -> float:
        """The least delta at ``epsilon``, by the same theorem."""
        orders, values = self.orders, self.values
        exponents = (orders - 1) * (values - epsilon + np.log1p(-1 / orders)) - np.log(orders)
        finite = exponents[np.isfinite(values)]
        least = float(finite.min(initial=math.inf))
        return min(1.0, math.exp(min(0.0, least)) * (1 + 1e-9))


def to_epsilon(orders: Array, values: Array, delta: float) -> float:
    """(epsilon, delta) from Renyi divergences ``values`` at ``orders``; at least 0."""
    shares = np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    found = np.where(np.isfinite(values), values, np.inf) + shares
    return max(0.0, float(found.min()) * (1 + 1e-12))


def divergences(pair: Pair, orders: Sequence[float]) -> Array:
    """Renyi divergences of P from Q in nats, one an order; infinite where the grid would not do.

    E_Q[R^a - 1 - a (R - 1)] with R = dP/dQ has a positive integrand and no cancellation, and it is
    E_Q[R^a] - 1. The trapezoidal rule converges like e^(-40) at this spacing, as log R is analytic
    to pi sigma^2 off the real line.
    """
    sigma = pair.sigma
    spacing = 0.5 * sigma * min(1.0, sigma)
    low = -pair.top - REACH * sigma
    by, less = {"forward": (1, 0), "backward": (0, 0), "replace": (2, 1)}[pair.direction]
    tops = [(by * a - less) * pair.top + REACH * sigma for a in orders]
    counts = [math.ceil((top - low) / spacing) for top in tops]
    # Each grid is the beginning of the longest one, where the density and its ratio are computed.
    longest = max((n for n in counts if n <= POINTS), default=0)
    line = _Line.of(pair, low + spacing * np.arange(longest + 1, dtype=float))
    return np.array(
        [
            math.inf if n > POINTS else line.log_moment(n + 1, a) / (a - 1)
            for a, n in zip(orders, counts, strict=True)
        ]
    )


REACH = 12.0


@dataclass(frozen=True, eq=False)
class _Line:
    """On a grid: log R = log(dP/dQ), R - 1, the same of R up to e^600, and the log mass of Q."""

    loss: Array
    excess: Array
    bounded: Array
    log_mass: Array

    @classmethod
    def of(cls, pair: Pair, x: Array) -> _Line:
        """At the points ``x``, equally spaced."""
        spacing = (x[1] - x[0]) / (pair.sigma * math.sqrt(2 * math.pi)) if len(x) > 1 else 1.0
        loss = pair.loss(x)
        logs = [
            math.log(w) - ((x - pair.means(k)[1]) / pair.sigma) ** 2 / 2
            for k, w in enumerate(pair.pmf)
            if w
        ]
        log_mass = np.logaddexp.reduce(logs, axis=0) + math.log(spacing)
        excess, bounded = (np.expm1(np.minimum(loss, most)) for most in (700, 600))
        return cls(loss, excess, bounded, log_mass)

    def log_moment(self, points: int, order: float) -> float:
        """log E_Q[R^order], from its integrand at the first ``points``."""
        loss, u = self.loss[:points], self.excess[:points]
        near = np.abs(order * u) < 1e-3
        terms = np.empty_like(loss)
        s = u[near]
        series = 1 + (order - 2) / 3 * s * (1 + (order - 3) / 4 * s * (1 + (order - 4) / 5 * s))
        terms[near] = np.log(order * (order - 1) / 2 * np.maximum(s * s * series, 1e-300))
        far = ~near
        grown = order * loss[far]
        # log(R^a - 1 - a (R - 1)): directly where it is small, by its largest term where it is not
        plain = np.expm1(np.minimum(grown, 600)) - order * self.bounded[:points][far]
        terms[far] = np.where(grown > 500, grown, np.log(np.maximum(plain, 1e-300)))
        exponents = terms + self.log_mass[:points]
        top = float(exponents.max())
        log_excess = top + math.log(float(np.exp(exponents - top).sum())) + EXCESS
        return float(np.logaddexp(0.0, log_excess)) if log_excess > -30 else math.exp(log_excess)


ACCOUNTANTS = ("pld", "rdp", "prv", "autodp")
FALLBACKS = ("rdp", "gaussian")
RELATIONS = ("add_or_remove", "replace")
DIRECTIONS = {"add_or_remove": ("forward", "backward"), "replace": ("replace",)}
PRV_EPS_ERROR = 0.01  # Opacus' default: the slack that its epsilon (of removal only) contains
LEAST_SIGMA = 0.01  # no less noise is accounted step by step, or advised
MOST_STEPS = 10**9  # beyond it the rounding of a transform would be all there is

Curve = Callable[[float], float]  # delta -> epsilon
Step = tuple[float, float, int]  # sampling probability, noise multiplier, steps
Groups = int | tuple[int, ...]  # of points that differ: for all events alike, or for each


@dataclass(frozen=True)
class Answer:
    """An epsilon (or delta), and the accountant whose bound it is: the one that was asked, or one
    of :data:`FALLBACKS` where that one has no answer or a larger one."""

    value: float
    accountant: str


@lru_cache(maxsize=8)
def profile(
    events: tuple[Step, ...],
    accountant: str,
    relation: str,
    group: Groups = 1,
    coarse: bool = False,
) -> Profile:
    """The privacy profile of the composed events, for a ``group`` of points (one size each event,
    where runs have data points of different kinds).

    ``coarse`` is for searches: quicker, and looser or without the checks of the answer.
    """
    if accountant in ("pld", "rdp"):
        return Profile(events, accountant, relation, group, coarse)
    if group != 1:
        raise ValueError(f"accountant={accountant!r}: must be pld or rdp for a group of {group}")
    return _Borrowed(events, accountant, relation, group, coarse)


class Profile:
    """delta -> epsilon by our own accountants, "pld" and "rdp"; see :func:`profile`."""

    def __init__(
        self, events: tuple[Step, ...], accountant: str, relation: str, group: Groups, coarse: bool
    ) -> None:
        self.accountant, self.relation, self._coarse = accountant, relation, coarse
        self._steps = events
        sizes = (group,) * len(events) if isinstance(group, int) else group
        self._events = tuple((*e, size) for e, size in zip(events, sizes, strict=True))
        self._answers = lru_cache(maxsize=4096)(self._answer)
        self._deltas = lru_cache(maxsize=4096)(self._delta)

    def __call__(self, delta: float) -> float:
        return self.answer(delta).value

    def answer(self, delta: float) -> Answer:
        """The least epsilon at ``delta``, and whose bound it is."""
        return self._answers(delta)

    def charged(self, delta: float) -> float:
        """The part of ``delta`` by which the answer there allows for numerical errors: 0 for the
        closed forms; of the borrowed accountants no error is known."""
        if self.answer(delta).accountant != "pld" or not self._sampled:
            return 0.0
        return max(way.charged(delta)[1] for way in self._compositions)

    def delta(self, epsilon: float) -> float:
        """The least delta at ``epsilon`` >= 0."""
        return self._deltas(epsilon)

    def _delta(self, epsilon: float) -> float:
        if not self._events:
            return 0.0
        if self._shift == math.inf:
            return 1.0
        loose = min(gaussian_delta(self._shift, epsilon), self.renyi.delta(epsilon))
        if not (self._transformed and self._sampled):
            return loose
        return min(loose, max(way.delta(epsilon) for way in self._compositions))

    def deltas(self, epsilons: Array) -> Array:
        """:meth:`delta` at many epsilons at once; quicker."""
        if not self._events or self._shift == math.inf:
            return np.full_like(epsilons, bool(self._events))
        loose = np.array([
            min(gaussian_delta(self._shift, e), self.renyi.delta(e)) for e in epsilons.tolist()
        ])  # fmt: skip
        if not (self._transformed and self._sampled):
            return loose
        each = [way.deltas(epsilons) for way in self._compositions]
        return np.asarray(np.minimum(loose, np.max(each, 0)))

    def _answer(self, delta: float) -> Answer:
        if not self._events:
            return Answer(0.0, self.accountant)
        exact = gaussian_epsilon(self._shift, delta)
        if (self.accountant == "pld" and not self._sampled) or exact in (0.0, math.inf):
            return Answer(exact, self.accountant)
        found = [Answer(self.renyi.epsilon(delta), "rdp"), Answer(exact, "gaussian")]
        if self._transformed:
            found.insert(0, Answer(max(w.epsilon(delta) for w in self._compositions), "pld"))
        return min(found, key=lambda answer: answer.value)

    @property
    def _least_sigma(self) -> float:
        return min(sigma for _, sigma, _, _ in self._events)

    @cached_property
    def _shift(self) -> float:
        """Were every point in every batch, all steps together would be one Gaussian, moved by this
        many standard deviations; sampling only hides (joint convexity)."""
        if not self._least_sigma > 0:
            return math.inf
        far = 2 if self.relation == "replace" else 1
        return far * math.sqrt(sum(n * (k / sigma) ** 2 for _, sigma, n, k in self._events))

    @property
    def _transformed(self) -> bool:
        """Whether "pld" was asked, and the events are within its reach."""
        steps = sum(n for _, _, n, _ in self._events)
        near = self._least_sigma >= LEAST_SIGMA and steps <= MOST_STEPS
        return self.accountant == "pld" and near

    @property
    def _sampled(self) -> bool:
        return any(q < 1 for q, _, _, _ in self._events)

    def _parts(self, direction: str) -> list[tuple[Pair, int]]:
        return [
            (Pair.of(q, group=k, sigma=sigma, direction=direction), n)
            for q, sigma, n, k in map(_merged, self._events)
        ]

    @cached_property
    def _compositions(self) -> list[Composition]:
        ways = DIRECTIONS[self.relation]
        return [Composition(self._parts(way), coarse=self._coarse) for way in ways]

    @cached_property
    def renyi(self) -> RenyiCurve:
        with _quiet():
            every = 8 if self._transformed and len(self._events) > MANY else 1
            ways = (self._parts(way) for way in DIRECTIONS[self.relation])
            return RenyiCurve(*ways, every=every)


def _merged(event: tuple[float, float, int, int]) -> tuple[float, float, int, int]:
    """Unsampled Gaussians compose into one Gaussian, without any numerical error."""
    q, sigma, steps, group = event
    return (q, sigma / math.sqrt(steps), 1, group) if q == 1 else event


class _Borrowed(Profile):
    """The accountants of other libraries, of which no error is known to us.

    An answer below that of "pld", which is no less than the truth, is replaced by that: so wrong
    numerics cannot promise too much. In the direction that "prv" leaves out, "pld" stands in for
    it. Replacement is a removal and an addition, by the generic bound.
    """

    @cached_property
    def _floor(self) -> Profile | None:
        return None if self._coarse else profile(self._steps, "pld", "add_or_remove")

    @cached_property
    def _raw(self) -> Curve | None:
        build = {"prv": _prv_curve, "autodp": _autodp_curve}[self.accountant]
        with _quiet():
            return build(self._steps) if self._least_sigma >= LEAST_SIGMA else None

    def _delta(self, epsilon: float) -> float:
        return invert(self, epsilon)

    def _answer(self, delta: float) -> Answer:
        if not self._events:
            return Answer(0.0, self.accountant)
        alone = self.relation == "add_or_remove"
        value = self._one(delta) if alone else group_of_two(self._one, delta)
        if value < math.inf or self._floor is None:
            return Answer(value, self.accountant)
        return profile(self._steps, "rdp", self.relation).answer(delta)

    def _one(self, delta: float) -> float:
        raw = self._raw  # refuses a package that is not there
        try:
            with _quiet():
                value = float(raw(delta)) if raw else math.inf
        except (ArithmeticError, RuntimeError, ValueError):  # numerics gave up: claim nothing
            return math.inf
        if math.isnan(value):
            return math.inf
        return max(0.0, value, self._floor(delta) if self._floor else 0.0)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the accountants' numerical warnings here only; their results are checked."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def borrowed(name: str) -> Any:
    """A module of another library's accountants.

    Raises ValueError, which names the extra, where it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        raise ValueError(
            f"accountant: this one is {package}'s, which is not installed; "
            "pip install 'crtlib[accountants]', or choose pld or rdp"
        ) from error


def _prv_curve(events: Sequence[Step]) -> Curve:
    accountant = borrowed("opacus.accountants").PRVAccountant()
    accountant.history = [(sigma, q, steps) for q, sigma, steps in events]
    total = sum(steps for _, _, steps in events)
    bound = profile(tuple(events), "rdp", "add_or_remove")

    def curve(delta: float) -> float:
        # The grid's size, as Opacus will choose it; far too little noise would exhaust memory.
        mesh = PRV_EPS_ERROR / math.sqrt(total * math.log(12_000 / delta) / 2)
        if not 2 * bound(delta / 4000) / mesh < 4e6:
            return math.inf
        return float(accountant.get_epsilon(delta, eps_error=PRV_EPS_ERROR))

    return curve


def _autodp_curve(events: Sequence[Step]) -> Curve:
    zoo, transformers = borrowed("autodp.mechanism_zoo"), borrowed("autodp.transformer_zoo")
    mechanisms = []
    for q, sigma, _ in events:
        mechanism = zoo.GaussianMechanism(sigma=sigma)
        if q < 1:
            sample = transformers.AmplificationBySampling(PoissonSampling=True)
            mechanism = sample(mechanism, q, improved_bound_flag=True)
        mechanisms.append(mechanism)
    curve: Curve = transformers.Composition()(
        mechanisms, [steps for _, _, steps in events]
    ).get_approxDP
    return curve


def gaussian_delta(shift: float, epsilon: float) -> float:
    """delta of N(shift, 1) against N(0, 1) (Balle and Wang 2018, Theorem 8), rounding added."""
    if shift in (0.0, math.inf):
        return float(shift > 0)
    one = float(special.log_ndtr(shift / 2 - epsilon / shift))
    two = epsilon + float(special.log_ndtr(-shift / 2 - epsilon / shift))
    rounding = 1e-15 * (8 + abs(one) + abs(two) + 2 * epsilon)
    return min(1.0, math.exp(one) * (-math.expm1(min(0.0, two - one)) + rounding))


def gaussian_epsilon(shift: float, delta: float) -> float:
    """The least epsilon >= 0 of one Gaussian at ``delta``, to 1e-12, on the safe side."""
    if shift in (0.0, math.inf):
        return shift
    low, high = 0.0, 1.0
    if gaussian_delta(shift, low) <= delta:
        return 0.0
    while gaussian_delta(shift, high) > delta:
        low, high = high, 2 * high
    while high - low > 1e-12 * (1 + high):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(shift, middle) > delta else (low, middle)
    return high


def group_of_two(curve: Curve, delta: float) -> float:
    """Replacement as a removal and an addition: (2 eps(d), (1 + e^eps(d)) d) for any d."""
    from scipy.optimize import brentq

    def spent(log_d: float) -> float:  # log of the delta that d turns into
        return log_d + float(np.logaddexp(0.0, curve(math.exp(log_d))))

    target, low, high = math.log(delta), math.log(delta) - 1.0, math.log(delta)
    while spent(low) > target:
        low -= high - low
        if low < -700 or spent(low) == math.inf:
            return math.inf
    root = brentq(lambda log_d: spent(log_d) - target, low, high, xtol=1e-10)
    while spent(root) > target:
        root -= 1e-10
    return 2 * curve(math.exp(root))


def invert(curve: Curve, epsilon: float) -> float:
    """The smallest delta (to 1e-9, on the safe side) at which the curve is at most epsilon."""
    low, high = math.log(1e-12), 0.0
    if curve(math.exp(low)) <= epsilon:
        return math.exp(low)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if curve(math.exp(middle)) <= epsilon else (middle, high)
        if high - low < 1e-9:
            break
    return math.exp(high)


@lru_cache(maxsize=1024)
def calibrate(
    target: float, delta: float, q: float, steps: int, accountant: str, relation: str
) -> float:
    """The least noise multiplier, with epsilon(delta) <= target.

    To 1e-8 (beyond 200,000 steps: to 1e-3), on the safe side; at least :data:`LEAST_SIGMA`.
    """
    from scipy.optimize import brentq

    def excess(log_sigma: float, coarse: bool) -> float:
        name = "rdp" if coarse and accountant == "prv" else accountant  # prv is slow far away
        value = profile(((q, math.exp(log_sigma), steps),), name, relation, 1, coarse)(delta)
        return math.log(min(max(value, 1e-300), 1e300) / target)

    least = math.log(LEAST_SIGMA)

    def bracket(centre: float, width: float, coarse: bool) -> tuple[float, float]:
        low = high = centre
        while low > least and excess(low, coarse) <= 0:
            low, width = max(least, low - width), 2 * width
        while excess(high, coarse) > 0:
            high, width = high + width, 2 * width
            if high > 30:
                raise ValueError(
                    f"epsilon={target}: out of reach of {accountant!r} at delta={delta}"
                )
        return low, high

    low, high = bracket(0.0, 1.0, True)
    if low == least and excess(low, False) <= 0:
        return LEAST_SIGMA
    # A coarse root costs little and lands so near that the secant needs few fine evaluations.
    start = brentq(excess, low, high, args=(True,), xtol=1e-6) if excess(low, True) > 0 else low
    near = 2e-9 if steps <= 200_000 else 1e-4  # the cost of an evaluation grows with the steps
    root = _secant(lambda x: excess(x, False), start, near)
    if root is None:  # a curve with corners
        root = brentq(excess, *bracket(start, 0.01, False), args=(False,), xtol=near)
    step = near / 20
    while excess(root, False) > 0:  # end on the side where the promise holds
        root, step = root + step, 2 * step
    return math.exp(root)


def _secant(f: Curve, x: float, near: float) -> float | None:
    """A root of a smooth, falling ``f``, or ``near`` above it; None where it does not come soon."""
    value, slope = f(x), -1.0
    for _ in range(7):
        if abs(value) < near:
            return x + near
        if not (abs(value) < 50 and slope < 0):
            return None
        following = x - min(max(value / slope, -0.3), 0.3)
        new = f(following)
        if following == x:
            return None
        slope = (new - value) / (following - x)
        x, value = following, new
    return None
