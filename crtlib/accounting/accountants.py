"""The accountants behind the ledger: privacy profiles of composed, Poisson-sampled Gaussians.

>>> curve = profile(((0.1, 2.24772, 100),), "pld", "add_or_remove")  # (q, sigma, steps), ...
>>> round(curve(1e-5), 4), curve(1e-3) < curve(1e-5)
(2.0, True)

A profile maps delta in (0, 1) to the least epsilon that the accountant can show: an upper bound,
for "prv" of the removal direction only. The libraries are imported when they are first used.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from functools import lru_cache

import numpy as np

ACCOUNTANTS = ("pld", "rdp", "prv", "autodp")
RELATIONS = ("add_or_remove", "replace")
PRV_EPS_ERROR = 0.01  # Opacus' default: the slack that its epsilon (of removal only) contains
FFT_SLACK = 1e-13  # allowance for the rounding of composition by Fourier transform, in delta
RDP_ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(12, 64), 80, 96, 128, 192, 256, 384, 512)

Profile = Callable[[float], float]  # delta -> epsilon
Step = tuple[float, float, int]  # sampling probability, noise multiplier, steps


@lru_cache(maxsize=8)  # a composed loss distribution can hold millions of numbers
def profile(
    events: tuple[Step, ...], accountant: str, relation: str, coarse: bool = False
) -> Profile:
    """The privacy profile delta -> epsilon >= 0 of the composed events."""
    if not events:
        return lambda delta: 0.0
    if any(sigma < 1e-3 for _, sigma, _ in events):
        return lambda delta: math.inf  # no noise, or so little that the numerics would give up
    if accountant == "pld":
        return _PLDProfile(events, relation, coarse)
    build = {"rdp": _rdp_profile, "prv": _prv_profile, "autodp": _autodp_profile}[accountant]
    with _quiet():
        raw = build(events)

    @lru_cache(maxsize=4096)
    def profile(delta: float) -> float:
        try:
            with _quiet():
                value = float(raw(delta))
        except (ArithmeticError, RuntimeError, ValueError):  # numerics gave up: claim nothing
            return math.inf
        return math.inf if math.isnan(value) else max(0.0, value)

    return profile if relation == "add_or_remove" else lambda delta: group_of_two(profile, delta)


@contextmanager
def _quiet():
    """Silence the accountants' numerical warnings here only; their results are checked."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


class _PLDProfile:
    """The composed privacy loss distribution of dp-accounting, rounded upwards."""

    def __init__(self, events: tuple[Step, ...], relation: str, coarse: bool) -> None:
        from dp_accounting.pld import privacy_loss_distribution as pld

        rel = pld.NeighborRel[
            {"add_or_remove": "ADD_OR_REMOVE_ONE", "replace": "REPLACE_ONE"}[relation]
        ]
        width = _discretisation(events, relation) * (10 if coarse else 1)
        self._loss = None
        for q, sigma, steps in map(_simplified, events):
            with _quiet():
                one = pld.from_gaussian_mechanism(
                    sigma,
                    value_discretization_interval=width,
                    sampling_prob=q,
                    neighboring_relation=rel,
                ).self_compose(steps)
                self._loss = one if self._loss is None else self._loss.compose(one)

    def __call__(self, delta: float) -> float:
        with _quiet():
            return float(self._loss.get_epsilon_for_delta(max(delta - FFT_SLACK, 0.0)))

    def delta(self, epsilon: float) -> float:
        with _quiet():
            return min(1.0, float(self._loss.get_delta_for_epsilon(epsilon)) + FFT_SLACK)


def _simplified(event: Step) -> Step:
    """Unsampled Gaussians compose into one Gaussian, without any numerical error."""
    q, sigma, steps = event
    return (q, sigma / math.sqrt(steps), 1) if q == 1 else event


def _discretisation(events: tuple[Step, ...], relation: str) -> float:
    """The grid width for privacy losses: at most 1e-4 and a fiftieth of one step's spread.

    Wider where the grid would otherwise exceed two million points; rounding is upwards, so width
    costs tightness and never soundness.
    """
    spread, span = math.inf, 0.0
    for q, sigma, steps in map(_simplified, events):
        x = np.linspace(-10 * sigma, 1 + 10 * sigma, 4001)
        gain = (2 * x - 1) / (2 * sigma**2)
        loss = np.logaddexp(np.log1p(-q), np.log(q) + gain) if q < 1 else gain
        base = np.exp(-(x**2) / (2 * sigma**2))
        base /= base.sum()
        moved = np.exp(-((x - 1) ** 2) / (2 * sigma**2))
        mixed = (1 - q) * base + q * moved / moved.sum()
        spread = min(spread, float(np.sqrt(base @ (loss - base @ loss) ** 2)))
        deviation = float(np.sqrt(mixed @ (loss - mixed @ loss) ** 2))
        span += steps * float(mixed @ loss) + 10 * math.sqrt(steps) * deviation + np.ptp(loss)
    span *= 4 if relation == "replace" else 2
    return max(min(1e-4, spread / 50), span / 2e6, 1e-12)


def _rdp_profile(events: tuple[Step, ...]) -> Profile:
    """Opacus' Renyi curve, converted with the same theorem (Balle et al. 2020) as Opacus does."""
    from opacus.accountants.analysis.rdp import compute_rdp

    orders = np.array(RDP_ORDERS, dtype=float)
    rdp = np.zeros_like(orders)
    for q, sigma, steps in events:
        for i, order in enumerate(orders.tolist()):
            try:
                rdp[i] += compute_rdp(q=q, noise_multiplier=sigma, steps=steps, orders=order)
            except (ValueError, OverflowError):  # cancellation at this order: do without it
                rdp[i] = np.inf

    def profile(delta: float) -> float:
        eps = rdp + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
        return np.inf if np.isnan(eps).all() else np.nanmin(eps)

    return profile


def _prv_profile(events: tuple[Step, ...]) -> Profile:
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(sigma, q, steps) for q, sigma, steps in events]
    renyi, total = _rdp_profile(events), sum(steps for _, _, steps in events)

    def profile(delta: float) -> float:
        # The grid's size, as Opacus will choose it; far too little noise would exhaust memory.
        mesh = PRV_EPS_ERROR / math.sqrt(total * math.log(12_000 / delta) / 2)
        if not 2 * renyi(delta / 4000) / mesh < 4e6:
            return math.inf
        return accountant.get_epsilon(delta, eps_error=PRV_EPS_ERROR)

    return profile


def _autodp_profile(events: tuple[Step, ...]) -> Profile:
    from autodp.mechanism_zoo import GaussianMechanism
    from autodp.transformer_zoo import AmplificationBySampling, Composition

    mechanisms = []
    for q, sigma, _ in events:
        mechanism = GaussianMechanism(sigma=sigma)
        if q < 1:
            sample = AmplificationBySampling(PoissonSampling=True)
            mechanism = sample(mechanism, q, improved_bound_flag=True)
        mechanisms.append(mechanism)
    return Composition()(mechanisms, [steps for _, _, steps in events]).get_approxDP


def group_of_two(profile: Profile, delta: float) -> float:
    """Replacement as a removal and an addition: (2 eps(d), (1 + e^eps(d)) d) for any d."""
    from scipy.optimize import brentq

    def spent(log_d: float) -> float:  # log of the delta that d turns into
        return log_d + float(np.logaddexp(0.0, profile(math.exp(log_d))))

    target, low, high = math.log(delta), math.log(delta) - 1.0, math.log(delta)
    while spent(low) > target:
        low -= high - low
        if low < -700 or spent(low) == math.inf:
            return math.inf
    root = brentq(lambda log_d: spent(log_d) - target, low, high, xtol=1e-10)
    while spent(root) > target:
        root -= 1e-10
    return 2 * profile(math.exp(root))


def invert(profile: Profile, epsilon: float) -> float:
    """The smallest delta (to 1e-9, on the safe side) at which the profile is at most epsilon."""
    low, high = math.log(1e-12), 0.0
    if profile(math.exp(low)) <= epsilon:
        return math.exp(low)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if profile(math.exp(middle)) <= epsilon else (middle, high)
        if high - low < 1e-9:
            break
    return math.exp(high)


@lru_cache(maxsize=1024)
def calibrate(
    target: float, delta: float, q: float, steps: int, accountant: str, relation: str
) -> float:
    """The least noise multiplier, to 1e-8 and on the safe side, with epsilon(delta) <= target."""
    from scipy.optimize import brentq, newton

    def excess(log_sigma: float, coarse: bool) -> float:
        step = (q, math.exp(log_sigma), steps)
        name = "rdp" if coarse and accountant == "prv" else accountant  # prv is slow far away
        value = profile((step,), name, relation, coarse and name == "pld")(delta)
        return math.log(min(max(value, 1e-300), 1e300) / target)

    def bracket(centre: float, width: float, coarse: bool) -> tuple[float, float]:
        low = high = centre
        while excess(low, coarse) <= 0:
            low, width = low - width, 2 * width
        while excess(high, coarse) > 0:
            high, width = high + width, 2 * width
            if high > 30:
                raise ValueError(
                    f"epsilon={target}: out of reach of {accountant!r} at delta={delta}"
                )
        return low, high

    # A coarse root costs little and lands so near that the secant needs few fine evaluations.
    start = brentq(excess, *bracket(0.0, 1.0, True), args=(True,), xtol=1e-6)
    near = start - (0.05 if accountant == "prv" else 1e-4)
    try:
        root = newton(excess, start, x1=near, args=(False,), tol=1e-7) + 1e-9
    except RuntimeError:
        root = math.nan
    if not abs(excess(root, False) if root == root else 1.0) < 1e-7:  # a curve with corners
        root = brentq(excess, *bracket(start, 0.01, False), args=(False,), xtol=1e-10)
    step = 1e-10
    while excess(root, False) > 0:  # end on the side where the promise holds
        root, step = root + step, 2 * step
    return math.exp(root)
