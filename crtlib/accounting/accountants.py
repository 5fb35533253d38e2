"""The accountants: what composed, Poisson-sampled Gaussians cost.

A profile maps delta in (0, 1) to the least epsilon that its accountant can prove: never below the
truth. If an accountant has no answer, the lesser of two looser bounds is returned with its name:
"rdp", or "gaussian", which counts every point in every batch. Other libraries are imported when
they are first used.

>>> steps = ((0.1, 2.24772, 100),)  # (q, sigma, steps), ...
>>> curve = cached_profile(steps, "pld", neighbouring_relation="add_or_remove")
>>> round(curve(1e-5), 4), curve(1e-3) < curve(1e-5)
(2.0, True)
>>> curve.answer(1e-300).accountant  # beyond what a transform resolves: a looser, proven bound
'rdp'
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy import special
from scipy.optimize import brentq

from crtlib.accounting.pld_composition import MAX_FINE_PARTS, Composition
from crtlib.accounting.privacy_loss import Array, GaussianMixturePair
from crtlib.accounting.renyi import RenyiCurve

ACCOUNTANTS = ("pld", "rdp", "prv", "autodp")
NEIGHBOURING_RELATIONS = ("add_or_remove", "replace")
RELATION_DIRECTIONS = {"add_or_remove": ("forward", "backward"), "replace": ("replace",)}
PRV_EPS_ERROR = 0.01  # Opacus' default: the slack that its epsilon (of removal only) contains
MIN_NOISE_MULTIPLIER = 0.01  # no less noise is accounted step by step, or advised
MAX_AUTODP_NOISE_MULTIPLIER = 30  # beyond it one of its bounds may take seconds, a search hours
MAX_TRANSFORM_STEPS = 10**9  # beyond it the rounding of a transform would be all there is

EpsilonCurve = Callable[[float], float]  # delta -> epsilon
GaussianSteps = tuple[float, float, int]  # sampling probability, noise multiplier, steps
HashableGroupSizes = int | tuple[int, ...]
"""How many points differ: the same number in all events, or one for each."""


class _GroupSteps(NamedTuple):
    """Steps of one kind, and the number of points that differ in them."""

    sampling_probability: float
    noise_multiplier: float
    steps: int
    group: int

    def merged(self) -> _GroupSteps:
        """The same mechanism as one step where nothing is sampled: Gaussians compose into one
        Gaussian, without any numerical error."""
        if self.sampling_probability < 1:
            return self
        return _GroupSteps(1.0, self.noise_multiplier / math.sqrt(self.steps), 1, self.group)


@dataclass(frozen=True)
class AccountantBound:
    """An epsilon (or delta), and the accountant whose bound it is: the requested one or, if that
    has no answer or a larger one, "rdp" or "gaussian"."""

    value: float
    accountant: str


@lru_cache(maxsize=8)
def cached_profile(
    events: tuple[GaussianSteps, ...],
    accountant: str,
    *,
    neighbouring_relation: str,
    group: HashableGroupSizes = 1,
    coarse: bool = False,
) -> PrivacyProfile:
    """The privacy profile of the composed events, for a ``group`` of points (or one size per event,
    if runs have data points of different kinds).

    ``coarse`` is for searches: quicker, but looser or without the checks of the answer.
    """
    if accountant in ("pld", "rdp"):
        return PrivacyProfile(events, accountant, neighbouring_relation, group, coarse)
    if group != 1:
        raise ValueError(f"accountant={accountant!r}: must be pld or rdp for a group of {group}")
    return _ExternalProfile(events, accountant, neighbouring_relation, group, coarse)


class PrivacyProfile:
    """The map from delta to epsilon by this library's own accountants, "pld" and "rdp"; see
    :func:`cached_profile`."""

    def __init__(
        self,
        events: tuple[GaussianSteps, ...],
        accountant: str,
        neighbouring_relation: str,
        group: HashableGroupSizes,
        coarse: bool,
    ) -> None:
        self.accountant, self._coarse = accountant, coarse
        self.neighbouring_relation = neighbouring_relation
        self._events = events
        sizes = (group,) * len(events) if isinstance(group, int) else group
        self._group_steps = [_GroupSteps(*e, size) for e, size in zip(events, sizes, strict=True)]
        self._cached_answer = lru_cache(maxsize=4096)(self._answer)
        self._cached_delta = lru_cache(maxsize=4096)(self._delta)

    def __call__(self, delta: float) -> float:
        return self.answer(delta).value

    def answer(self, delta: float) -> AccountantBound:
        """The least epsilon at ``delta``, and whose bound it is."""
        return self._cached_answer(delta)

    def charged(self, delta: float) -> float:
        """The part of ``delta`` that the answer there charges for numerical errors: 0 for the
        closed forms, and for the accountants of other libraries, whose errors are unknown."""
        if self.answer(delta).accountant != "pld" or not self._has_sampling:
            return 0.0
        return max(composition.charged(delta)[1] for composition in self._compositions)

    def delta(self, epsilon: float) -> float:
        """The least delta at ``epsilon`` >= 0."""
        return self._cached_delta(epsilon)

    def _delta(self, epsilon: float) -> float:
        if not self._events:
            return 0.0
        if self._total_mean_shift == math.inf:
            return 1.0
        looser_bound = self._loose_delta(epsilon)
        if not (self._is_for_pld and self._has_sampling):
            return looser_bound
        return min(
            looser_bound, max(composition.delta(epsilon) for composition in self._compositions)
        )

    def _loose_delta(self, epsilon: float) -> float:
        gaussian = gaussian_delta(self._total_mean_shift, epsilon)
        return min(gaussian, self.renyi.delta(epsilon))

    def deltas(self, epsilons: Array) -> Array:
        """:meth:`delta` at many epsilons at once; quicker."""
        if not self._events or self._total_mean_shift == math.inf:
            return np.full_like(epsilons, bool(self._events))
        looser_bounds = np.array([self._loose_delta(epsilon) for epsilon in epsilons.tolist()])
        if not (self._is_for_pld and self._has_sampling):
            return looser_bounds
        deltas_by_direction = [composition.deltas(epsilons) for composition in self._compositions]
        return np.asarray(np.minimum(looser_bounds, np.max(deltas_by_direction, 0)))

    def _answer(self, delta: float) -> AccountantBound:
        if not self._events:
            return AccountantBound(0.0, self.accountant)
        gaussian = gaussian_epsilon(self._total_mean_shift, delta)
        is_exact = self.accountant == "pld" and not self._has_sampling
        if is_exact or gaussian in (0.0, math.inf):
            return AccountantBound(gaussian, self.accountant)
        bounds = [
            AccountantBound(self.renyi.epsilon(delta), "rdp"),
            AccountantBound(gaussian, "gaussian"),
        ]
        if self._is_for_pld:
            pld = max(composition.epsilon(delta) for composition in self._compositions)
            bounds.insert(0, AccountantBound(pld, "pld"))  # the first of equal bounds is named
        return min(bounds, key=lambda bound: bound.value)

    @property
    def _least_noise_multiplier(self) -> float:
        return min(s.noise_multiplier for s in self._group_steps)

    @cached_property
    def _total_mean_shift(self) -> float:
        """The number of standard deviations by which all steps together would move one Gaussian, if
        every point were in every batch; sampling can only hide more (joint convexity)."""
        if not self._least_noise_multiplier > 0:
            return math.inf
        sensitivity = 2 if self.neighbouring_relation == "replace" else 1
        return sensitivity * math.sqrt(
            sum(s.steps * (s.group / s.noise_multiplier) ** 2 for s in self._group_steps)
        )

    @property
    def _is_for_pld(self) -> bool:
        """Whether "pld" was requested, and the events are within its reach."""
        return (
            self.accountant == "pld"
            and self._least_noise_multiplier >= MIN_NOISE_MULTIPLIER
            and sum(s.steps for s in self._group_steps) <= MAX_TRANSFORM_STEPS
        )

    @property
    def _has_sampling(self) -> bool:
        return any(s.sampling_probability < 1 for s in self._group_steps)

    def _pairs_with_steps(self, direction: str) -> list[tuple[GaussianMixturePair, int]]:
        return [
            (
                GaussianMixturePair.of(
                    s.sampling_probability,
                    group=s.group,
                    sigma=s.noise_multiplier,
                    direction=direction,
                ),
                s.steps,
            )
            for s in (steps.merged() for steps in self._group_steps)
        ]

    @cached_property
    def _compositions(self) -> list[Composition]:
        return [
            Composition(self._pairs_with_steps(direction), coarse=self._coarse)
            for direction in RELATION_DIRECTIONS[self.neighbouring_relation]
        ]

    @cached_property
    def renyi(self) -> RenyiCurve:
        order_stride = 8 if self._is_for_pld and len(self._events) > MAX_FINE_PARTS else 1
        directions = RELATION_DIRECTIONS[self.neighbouring_relation]
        with _silence_warnings():
            return RenyiCurve(*map(self._pairs_with_steps, directions), order_stride=order_stride)


class _ExternalProfile(PrivacyProfile):
    """The accountants of other libraries, whose errors are unknown.

    If an answer is below that of "pld", which is never below the truth, it is replaced by pld's, so
    that wrong numerics cannot promise too much. "pld" also covers the direction that "prv" leaves
    out. Replacement is accounted as a removal and an addition, by the generic bound.
    """

    @cached_property
    def _pld_lower_limit(self) -> PrivacyProfile | None:
        if self._coarse:
            return None
        return cached_profile(self._events, "pld", neighbouring_relation="add_or_remove")

    @cached_property
    def _external_curve(self) -> EpsilonCurve | None:
        """The other library's answers for an added or removed point; None beyond its reach."""
        make_curve = {"prv": _prv_curve, "autodp": _autodp_curve}[self.accountant]
        most_noise = max(s.noise_multiplier for s in self._group_steps)
        if self._least_noise_multiplier < MIN_NOISE_MULTIPLIER:
            return None
        if self.accountant == "autodp" and most_noise > MAX_AUTODP_NOISE_MULTIPLIER:
            import_accountant("autodp.mechanism_zoo")
            return None
        with _silence_warnings():
            return make_curve(self._events)

    def _delta(self, epsilon: float) -> float:
        return invert_curve(self, epsilon)

    def _answer(self, delta: float) -> AccountantBound:
        if not self._events:
            return AccountantBound(0.0, self.accountant)
        if self.neighbouring_relation == "add_or_remove":
            value = self._add_or_remove_epsilon(delta)
        else:
            value = replacement_epsilon(self._add_or_remove_epsilon, delta)
        if value < math.inf or self._pld_lower_limit is None:
            return AccountantBound(value, self.accountant)
        return cached_profile(
            self._events, "rdp", neighbouring_relation=self.neighbouring_relation
        ).answer(delta)

    def _add_or_remove_epsilon(self, delta: float) -> float:
        curve = self._external_curve  # refuses a package that is not there
        try:
            with _silence_warnings():
                value = float(curve(delta)) if curve else math.inf
        except (ArithmeticError, RuntimeError, ValueError):  # numerics gave up: claim nothing
            return math.inf
        if math.isnan(value):
            return math.inf
        return max(0.0, value, self._pld_lower_limit(delta) if self._pld_lower_limit else 0.0)


@contextmanager
def _silence_warnings() -> Iterator[None]:
    """Silence the accountants' numerical warnings here only; their results are checked."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def import_accountant(name: str) -> Any:
    """Import a module with another library's accountants.

    Raises ValueError, which names the extra to install, if it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        raise ValueError(
            f"accountant: this one needs {package}, which is not installed; "
            "pip install 'crtlib[accountants]', or choose pld or rdp"
        ) from error


def _prv_curve(events: Sequence[GaussianSteps]) -> EpsilonCurve:
    accountant = import_accountant("opacus.accountants").PRVAccountant()
    accountant.history = [(sigma, q, steps) for q, sigma, steps in events]
    total = sum(steps for _, _, steps in events)
    bound = cached_profile(tuple(events), "rdp", neighbouring_relation="add_or_remove")

    def curve(delta: float) -> float:
        # The grid's size, as Opacus will choose it; far too little noise would exhaust memory.
        mesh = PRV_EPS_ERROR / math.sqrt(total * math.log(12_000 / delta) / 2)
        if not 2 * bound(delta / 4000) / mesh < 4e6:
            return math.inf
        return float(accountant.get_epsilon(delta, eps_error=PRV_EPS_ERROR))

    return curve


def _autodp_curve(events: Sequence[GaussianSteps]) -> EpsilonCurve:
    zoo, transformers = (
        import_accountant("autodp.mechanism_zoo"),
        import_accountant("autodp.transformer_zoo"),
    )
    mechanisms = []
    for q, sigma, _ in events:
        mechanism = zoo.GaussianMechanism(sigma=sigma)
        if q < 1:
            sample = transformers.AmplificationBySampling(PoissonSampling=True)
            mechanism = sample(mechanism, q, improved_bound_flag=True)
        mechanisms.append(mechanism)
    curve: EpsilonCurve = transformers.Composition()(
        mechanisms, [steps for _, _, steps in events]
    ).get_approxDP
    return curve


def gaussian_delta(shift: float, epsilon: float) -> float:
    """The delta of N(shift, 1) against N(0, 1) (Balle and Wang 2018, Theorem 8), rounding added."""
    if shift in (0.0, math.inf):
        return float(shift > 0)
    log_p_mass = float(special.log_ndtr(shift / 2 - epsilon / shift))
    log_q_mass = epsilon + float(special.log_ndtr(-shift / 2 - epsilon / shift))
    rounding = 1e-15 * (8 + abs(log_p_mass) + abs(log_q_mass) + 2 * epsilon)
    relative_excess = -math.expm1(min(0.0, log_q_mass - log_p_mass))
    return min(1.0, math.exp(log_p_mass) * (relative_excess + rounding))


def gaussian_epsilon(shift: float, delta: float) -> float:
    """The least epsilon >= 0 of one Gaussian at ``delta``, to 1e-12, on the safe side."""
    if shift in (0.0, math.inf):
        return shift
    low, high = 0.0, 1.0
    if gaussian_delta(shift, low) <= delta:
        return 0.0
    while high < math.inf and gaussian_delta(shift, high) > delta:
        low, high = high, 2 * high
    while high - low > 1e-12 * (1 + high):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(shift, middle) > delta else (low, middle)
    return high


def replacement_epsilon(curve: EpsilonCurve, delta: float) -> float:
    """Replacement as a removal and an addition: (2 eps(d), (1 + e^eps(d)) d) for any d."""

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


def invert_curve(curve: EpsilonCurve, epsilon: float) -> float:
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
def calibrate_noise(
    target: float,
    delta: float,
    q: float,
    steps: int,
    accountant: str,
    *,
    neighbouring_relation: str,
) -> float:
    """The least noise multiplier with epsilon(delta) <= target.

    It is precise to 1e-8 (beyond 200,000 steps, to 1e-3), on the safe side, and at least
    :data:`MIN_NOISE_MULTIPLIER`.
    """

    def excess(log_sigma: float, coarse: bool) -> float:
        name = "rdp" if coarse and accountant == "prv" else accountant  # prv is slow far away
        curve = cached_profile(
            ((q, math.exp(log_sigma), steps),), name,
            neighbouring_relation=neighbouring_relation, group=1, coarse=coarse,
        )  # fmt: skip
        value = curve(delta)
        return math.log(min(max(value, 1e-300), 1e300) / target)

    min_log_sigma = math.log(MIN_NOISE_MULTIPLIER)

    def bracket(centre: float, width: float, coarse: bool) -> tuple[float, float]:
        low = high = centre
        while low > min_log_sigma and excess(low, coarse) <= 0:
            low, width = max(min_log_sigma, low - width), 2 * width
        while excess(high, coarse) > 0:
            high, width = high + width, 2 * width
            if high > 30:
                raise ValueError(
                    f"epsilon={target}: out of reach of {accountant!r} at delta={delta}"
                )
        return low, high

    low, high = bracket(0.0, 1.0, True)
    if low == min_log_sigma and excess(low, False) <= 0:
        return MIN_NOISE_MULTIPLIER
    # A coarse root costs little and lands so near that the secant needs few fine evaluations.
    start = brentq(excess, low, high, args=(True,), xtol=1e-6) if excess(low, True) > 0 else low
    tolerance = 2e-9 if steps <= 200_000 else 1e-4  # the cost of an evaluation grows with the steps
    root = _find_root_by_secant(lambda x: excess(x, False), start, tolerance)
    if root is None:  # a curve with corners
        root = brentq(excess, *bracket(start, 0.01, False), args=(False,), xtol=tolerance)
    step = tolerance / 20
    while excess(root, False) > 0:  # end on the side where the promise holds
        root, step = root + step, 2 * step
    return math.exp(root)


def _find_root_by_secant(f: EpsilonCurve, x: float, tolerance: float) -> float | None:
    """A root of a smooth, falling ``f``, or ``tolerance`` above it; None if not found soon."""
    value, slope = f(x), -1.0
    for _ in range(7):
        if abs(value) < tolerance:
            return x + tolerance
        if not (abs(value) < 50 and slope < 0):
            return None
        following = x - min(max(value / slope, -0.3), 0.3)
        following_value = f(following)
        if following == x:
            return None
        slope = (following_value - value) / (following - x)
        x, value = following, following_value
    return None
