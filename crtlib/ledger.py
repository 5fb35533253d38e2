"""What was done to the secrets (events) and what it costs (accountants, confidentiality).

>>> phase = SampledGaussian(sampling_probability=0.1, noise_multiplier=2.4263, steps=100)
>>> round(epsilon(phase, delta=1e-5, accountant="rdp"), 2)
2.0
>>> round(bayes_at_fixed_delta(phase, gamma=0.1, delta=1e-5, accountant="rdp"), 2)
0.37

The first number is differential privacy; the second is what an adversary learns about a secret
that the redaction policy misses one time in ten (CRT, Proposition 6). Both hold for adding or
removing a data point. Replacing a secret by ``<MASK>``, which is what confidentiality is about,
costs more: pass ``neighbouring_relation="replace"``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

ACCOUNTANTS = ("pld", "rdp", "prv", "autodp")
RELATIONS = ("add_or_remove", "replace")
PRV_EPS_ERROR = 0.01  # Opacus' default; its epsilon is an upper bound that contains this much slack
RDP_ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(12, 64), 80, 96, 128, 192, 256, 384, 512)


def _check(name: str, value: float, allowed: bool, rule: str) -> None:
    if not allowed:  # also reached for nan, because every comparison with nan is false
        raise ValueError(f"{name}={value}: must be {rule}")


def _check_delta(delta: float) -> None:
    _check("delta", delta, 0 < delta < 1, "in (0, 1)")


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r}: must be one of {', '.join(choices)}")


# --- Events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SampledGaussian:
    """A phase of DP-SGD: ``steps`` Gaussian mechanisms, each on a fresh Poisson sample.

    ``noise_multiplier`` is the noise's standard deviation over the clipping norm. The guarantee
    is that of a sampler which takes each point independently with ``sampling_probability``;
    shuffled batches of a fixed size are another mechanism.
    """

    sampling_probability: float
    noise_multiplier: float
    steps: int

    def __post_init__(self) -> None:
        q, sigma, steps = self.sampling_probability, self.noise_multiplier, self.steps
        _check("sampling_probability", q, 0 <= q <= 1, "in [0, 1]")
        _check("noise_multiplier", sigma, 0 <= sigma < math.inf, "finite and at least 0")
        _check("steps", steps, steps >= 0 and steps == int(steps), "a whole number, at least 0")


@dataclass(frozen=True, slots=True)
class MissRate:
    """The rate at which a screening policy misses secrets: assumed, or measured on labels.

    >>> print(MissRate.measured(0, 200))
    0 (measured: 0 of 200 missed, 95 % upper bound 0.01487)
    """

    rate: float
    misses: int | None = None
    labelled: int | None = None
    confidence: float = 0.95

    def __post_init__(self) -> None:
        _check("rate", self.rate, 0 <= self.rate <= 1, "in [0, 1]")

    @classmethod
    def measured(cls, misses: int, labelled: int, *, confidence: float = 0.95) -> MissRate:
        """The rate observed on ``labelled`` secrets, of which a policy missed ``misses``."""
        miss_rate_upper_bound(misses, labelled, confidence)  # refuses impossible counts
        return cls(misses / labelled, misses, labelled, confidence)

    @property
    def upper_bound(self) -> float | None:
        """The one-sided Clopper-Pearson bound, or None where the rate is only assumed."""
        if self.misses is None or self.labelled is None:
            return None
        return miss_rate_upper_bound(self.misses, self.labelled, self.confidence)

    def __str__(self) -> str:
        if self.upper_bound is None:
            return f"{self.rate:.4g} (assumed)"
        return (
            f"{self.rate:.4g} (measured: {self.misses} of {self.labelled} missed, "
            f"{100 * self.confidence:.4g} % upper bound {self.upper_bound:.4g})"
        )


@dataclass(frozen=True, slots=True)
class Guarantee:
    """A guarantee that can be printed: epsilon and delta say nothing without the other fields.

    ``gamma`` and ``delta2`` are the miss rates of the redaction policy and of the conservative
    policy; None where the guarantee does not use that policy.
    """

    epsilon: float
    delta: float
    unit: str
    neighbours: str
    accountant: str
    kind: str = "differential privacy"
    gamma: MissRate | None = None
    delta2: MissRate | None = None

    def __str__(self) -> str:
        policies = [
            f"miss rate of the {name} policy, {symbol} = {rate}"
            if rate is not None
            else f"{name} policy: not used"
            for name, symbol, rate in (
                ("redaction", "gamma", self.gamma),
                ("conservative", "delta2", self.delta2),
            )
        ]
        return "; ".join(
            [
                f"({self.epsilon:.4g}, {self.delta:.4g}) {self.kind}",
                f"unit: {self.unit}",
                f"neighbours: {describe_relation(self.neighbours, self.accountant)}",
                f"accountant: {self.accountant}",
                *policies,
            ]
        )


def describe_relation(neighbouring_relation: str, accountant: str) -> str:
    """In words, which pairs of datasets a guarantee compares and how that was accounted."""
    if neighbouring_relation == "add_or_remove":
        return "one data point added or removed"
    if neighbouring_relation != "replace":
        return neighbouring_relation
    how = "antipodal pair" if accountant == "pld" else "generic bound for groups of two"
    return f"one data point replaced ({how})"


# --- Accountants ----------------------------------------------------------------------------------

Profile = Callable[[float], float]  # delta -> epsilon
Events = SampledGaussian | Iterable[SampledGaussian]


def epsilon(
    events: Events,
    *,
    delta: float,
    accountant: str = "pld",
    neighbouring_relation: str = "add_or_remove",
) -> float:
    """The epsilon of one event, or of several composed, at a ``delta`` in (0, 1).

    ``accountant``: "pld" (dp-accounting: tight, an upper bound up to floating point), "prv"
    (Opacus: tight plus 0.01), "rdp" (Opacus' Renyi curve) or "autodp" (the CRT authors' choice).
    ``neighbouring_relation``: "add_or_remove", or "replace" for the exchange of a data point,
    which is what confidentiality needs: the masked point is still a point. For "replace" pld
    uses the pair with clipped gradients u and -u; it is the worst in every case tried, which is
    evidence and not a proof. The other accountants use the proven 2 epsilon(delta') with
    (1 + e^epsilon(delta')) delta' = delta.

    Infinite where there is no noise, and where the accountant's numerics give up. Raises
    ValueError for arguments outside their range.
    """
    _check_delta(delta)
    return _profile(_merged(events), accountant, neighbouring_relation)(delta)


def delta(
    events: Events,
    *,
    epsilon: float,
    accountant: str = "pld",
    neighbouring_relation: str = "add_or_remove",
) -> float:
    """The smallest delta the accountant shows for ``epsilon`` >= 0: ``epsilon()`` inverted."""
    _check("epsilon", epsilon, epsilon >= 0, "at least 0")
    profile = _profile(_merged(events), accountant, neighbouring_relation)
    if hasattr(profile, "delta"):
        return profile.delta(epsilon)
    return _invert(profile, epsilon)


def noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    sampling_probability: float,
    steps: int,
    accountant: str = "pld",
    neighbouring_relation: str = "add_or_remove",
) -> float:
    """The least noise multiplier (to 1e-8, on the safe side) that gives at most ``epsilon``.

    Zero where nothing is released (no steps, or nothing is ever sampled).
    """
    _check("epsilon", epsilon, 0 < epsilon < math.inf, "positive and finite")
    _check_delta(delta)
    SampledGaussian(sampling_probability, 1.0, steps)  # refuses what is out of range
    if sampling_probability == 0 or steps == 0:
        return 0.0
    return _calibrate(
        epsilon, delta, sampling_probability, int(steps), accountant, neighbouring_relation
    )


@lru_cache(maxsize=1024)
def _calibrate(target, delta, q, steps, accountant, relation) -> float:
    from scipy.optimize import brentq, newton

    def excess(log_sigma: float, coarse: bool) -> float:
        event = SampledGaussian(q, math.exp(log_sigma), steps)
        name = "rdp" if coarse and accountant == "prv" else accountant  # prv is slow far away
        value = _profile((event,), name, relation, coarse and name == "pld")(delta)
        return math.log(min(max(value, 1e-300), 1e300) / target)

    def bracket(centre: float, width: float, coarse: bool) -> tuple[float, float]:
        low = high = centre
        while excess(low, coarse) <= 0:
            low, width = low - width, 2 * width
        while excess(high, coarse) > 0:
            high, width = high + width, 2 * width
            if high > 30:
                raise ValueError(f"epsilon={target}: out of reach of the accountant {accountant!r}")
        return low, high

    # A coarse root costs little and lands so near that the secant needs few fine evaluations.
    start = brentq(excess, *bracket(0.0, 1.0, True), args=(True,), xtol=1e-6)
    near = start - (0.05 if accountant == "prv" else 1e-4)
    try:
        root = newton(excess, start, x1=near, args=(False,), tol=1e-10)
    except RuntimeError:
        root = math.nan
    if not abs(excess(root, False) if root == root else 1.0) < 1e-7:  # a curve with corners
        root = brentq(excess, *bracket(start, 0.01, False), args=(False,), xtol=1e-10)
    step = 1e-10
    while excess(root, False) > 0:  # end on the side where the promise holds
        root, step = root + step, 2 * step
    return math.exp(root)


def _merged(events: Events) -> tuple[SampledGaussian, ...]:
    """Distinct events with their steps added up, so that equal histories share a cache entry."""
    total: dict[tuple[float, float], int] = {}
    for e in (events,) if isinstance(events, SampledGaussian) else events:
        if e.steps and e.sampling_probability:
            key = (float(e.sampling_probability), float(e.noise_multiplier))
            total[key] = total.get(key, 0) + int(e.steps)
    return tuple(SampledGaussian(*key, steps) for key, steps in sorted(total.items()))


@lru_cache(maxsize=8)  # a composed loss distribution can hold millions of numbers
def _profile(
    events: tuple[SampledGaussian, ...], accountant: str, relation: str, coarse: bool = False
) -> Profile:
    """The privacy profile delta -> epsilon >= 0 of the composed events."""
    _check_choice("accountant", accountant, ACCOUNTANTS)
    _check_choice("neighbouring_relation", relation, RELATIONS)
    if not events:
        return lambda delta: 0.0
    if any(e.noise_multiplier == 0 for e in events):
        return lambda delta: math.inf
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

    return profile if relation == "add_or_remove" else lambda delta: _group_of_two(profile, delta)


@contextmanager
def _quiet():
    """Silence the accountants' numerical warnings here only; their results are checked."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


class _PLDProfile:
    """The composed privacy loss distribution of dp-accounting, rounded upwards."""

    def __init__(self, events: Sequence[SampledGaussian], relation: str, coarse: bool) -> None:
        from dp_accounting.pld import privacy_loss_distribution as pld

        rel = pld.NeighborRel[
            {"add_or_remove": "ADD_OR_REMOVE_ONE", "replace": "REPLACE_ONE"}[relation]
        ]
        width = _discretisation(events, relation) * (10 if coarse else 1)
        self._loss = None
        for e in events:
            # Unsampled Gaussians compose into one Gaussian, without any numerical error.
            sigma, steps = e.noise_multiplier, e.steps
            if e.sampling_probability == 1:
                sigma, steps = sigma / math.sqrt(steps), 1
            with _quiet():
                one = pld.from_gaussian_mechanism(
                    sigma,
                    value_discretization_interval=width,
                    sampling_prob=e.sampling_probability,
                    neighboring_relation=rel,
                ).self_compose(steps)
                self._loss = one if self._loss is None else self._loss.compose(one)

    def __call__(self, delta: float) -> float:
        with _quiet():
            return float(self._loss.get_epsilon_for_delta(delta))

    def delta(self, epsilon: float) -> float:
        with _quiet():
            return float(self._loss.get_delta_for_epsilon(epsilon))


def _discretisation(events: Sequence[SampledGaussian], relation: str) -> float:
    """The grid width for privacy losses: at most 1e-4 and a fiftieth of one step's spread.

    Wider where the grid would otherwise exceed two million points; rounding is upwards, so width
    costs tightness and never soundness.
    """
    spread, span = math.inf, 0.0
    for e in events:
        q, sigma, steps = e.sampling_probability, e.noise_multiplier, e.steps
        if q == 1:
            sigma, steps = sigma / math.sqrt(steps), 1
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


def _rdp_profile(events: Sequence[SampledGaussian]) -> Profile:
    """Opacus' Renyi curve, converted with the same theorem (Balle et al. 2020) as Opacus does."""
    from opacus.accountants.analysis.rdp import compute_rdp

    orders = np.array(RDP_ORDERS, dtype=float)
    rdp = np.zeros_like(orders)
    for e in events:
        for i, order in enumerate(RDP_ORDERS):
            try:
                rdp[i] += compute_rdp(
                    q=e.sampling_probability,
                    noise_multiplier=e.noise_multiplier,
                    steps=e.steps,
                    orders=float(order),
                )
            except (ValueError, OverflowError):  # cancellation at this order: do without it
                rdp[i] = np.inf

    def profile(delta: float) -> float:
        eps = rdp + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
        return np.inf if np.isnan(eps).all() else np.nanmin(eps)

    return profile


def _prv_profile(events: Sequence[SampledGaussian]) -> Profile:
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(e.noise_multiplier, e.sampling_probability, e.steps) for e in events]
    renyi, steps = _rdp_profile(events), sum(e.steps for e in events)

    def profile(delta: float) -> float:
        # The grid's size, as Opacus will choose it; far too little noise would exhaust memory.
        mesh = PRV_EPS_ERROR / math.sqrt(steps * math.log(12_000 / delta) / 2)
        if not 2 * renyi(delta / 4000) / mesh < 4e6:
            return math.inf
        return accountant.get_epsilon(delta, eps_error=PRV_EPS_ERROR)

    return profile


def _autodp_profile(events: Sequence[SampledGaussian]) -> Profile:
    from autodp.mechanism_zoo import GaussianMechanism
    from autodp.transformer_zoo import AmplificationBySampling, Composition

    mechanisms = []
    for e in events:
        mechanism = GaussianMechanism(sigma=e.noise_multiplier)
        if e.sampling_probability < 1:
            sample = AmplificationBySampling(PoissonSampling=True)
            mechanism = sample(mechanism, e.sampling_probability, improved_bound_flag=True)
        mechanisms.append(mechanism)
    return Composition()(mechanisms, [e.steps for e in events]).get_approxDP


def _group_of_two(profile: Profile, delta: float) -> float:
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


def _invert(profile: Profile, epsilon: float) -> float:
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


# --- Confidentiality (CRT, Section 3.3) -----------------------------------------------------------


def confidentiality_redacted(
    epsilon: float, *, delta: float, detected: bool
) -> tuple[float, float]:
    """Proposition 5, one secret: epsilon becomes 0 where the policy detects it; delta stays."""
    return (0.0 if detected else float(epsilon)), delta


def group_naive(
    epsilons: Sequence[float], *, delta: float, tight: bool = True
) -> tuple[float, float]:
    """Proposition 5, a group: the sum of the epsilons of the k points whose secret was MISSED.

    ``tight`` gives the delta which the paper's proof arrives at before its last line,
    delta * sum_{j<k} e^(eps_1 + ... + eps_j), in the best order; otherwise the paper's
    k e^(eps_1 + ... + eps_k) delta. A delta of 1 or more (or inf) promises nothing.
    """
    eps = np.sort(np.asarray(epsilons, dtype=float))
    if not eps.size:
        return 0.0, 0.0
    _check("epsilons", float(eps[0]), eps[0] >= 0, "at least 0")
    total = float(eps.sum())
    if tight:
        log_factor = float(np.logaddexp.reduce(np.concatenate([[0.0], np.cumsum(eps[:-1])])))
    else:
        log_factor = math.log(eps.size) + total
    return total, _exp(log_factor + math.log(delta)) if delta > 0 else 0.0


def bayes_amplify(epsilon: float, *, delta: float, gamma: float) -> tuple[float, float]:
    """Proposition 6: (log(1 + gamma (e^epsilon - 1)), gamma delta), for a miss rate gamma.

    For D against D' this is an equality of the two privacy profiles, so only a better profile
    can improve it; the reverse direction is no worse.
    """
    _check("epsilon", epsilon, epsilon >= 0, "at least 0")
    _check("gamma", gamma, 0 <= gamma <= 1, "in [0, 1]")
    return _amplified(epsilon, gamma), gamma * delta


def bayes_at_fixed_delta(
    events: Events,
    *,
    gamma: float,
    delta: float,
    delta2: float = 0.0,
    accountant: str = "pld",
    neighbouring_relation: str = "add_or_remove",
) -> float:
    """The Bayesian confidentiality epsilon at a total ``delta`` (CRT, Figure 6; Theorem 8.3).

    Proposition 6 turns delta' into gamma delta' (+ delta2, the miss rate of the conservative
    policy), so the profile is read at delta' = (delta - delta2) / gamma. Zero where gamma is 0
    or where delta' is 1 or more; infinite where delta2 alone spends delta.
    """
    _check_delta(delta)
    _check("gamma", gamma, 0 <= gamma <= 1, "in [0, 1]")
    _check("delta2", delta2, 0 <= delta2 <= 1, "in [0, 1]")
    profile = _profile(_merged(events), accountant, neighbouring_relation)
    if delta2 and delta2 >= delta:
        return math.inf
    if gamma == 0 or delta - delta2 >= gamma:
        return 0.0
    return _amplified(profile((delta - delta2) / gamma), gamma)


def crt_confidentiality(
    epsilon: float, *, delta: float, detected: bool, caught: bool
) -> tuple[float, float]:
    """Theorem 8.1: a secret that is redacted, or missed but ``caught`` by the conservative policy.

    Missed by both, it is trained on without noise: (inf, delta).
    """
    return (0.0 if detected else epsilon if caught else math.inf), delta


def crt_group(
    epsilon: float, *, delta: float, missed: int, tight: bool = True
) -> tuple[float, float]:
    """Theorem 8.2 for ``missed``, the number of distinct data points whose secret pi MISSES.

    (The paper writes "detects"; Proposition 5, which it applies, counts the missed ones.) The
    conservative policy must catch the whole group, and neighbours are taken after deduplication.
    """
    _check("missed", missed, missed >= 0 and missed == int(missed), "a whole number, at least 0")
    return group_naive([epsilon] * int(missed), delta=delta, tight=tight)


def crt_bayesian(
    epsilon: float, *, delta: float, gamma: float, delta2: float, one_directional: bool = False
) -> tuple[float, float]:
    """Theorem 8.3: (log(1 + gamma (e^epsilon - 1)), gamma delta + delta2), in both directions.

    ``delta2`` is the probability that both policies miss, so it is at most gamma.
    ``one_directional`` gives the tighter pair that holds for D against D' only.
    """
    _check("delta2", delta2, 0 <= delta2 <= 1, "in [0, 1]")
    amplified, spent = bayes_amplify(epsilon, delta=delta, gamma=gamma)
    if not one_directional:
        return amplified, spent + delta2
    _check("delta2", delta2, delta2 <= gamma, f"at most gamma={gamma}")
    weight = gamma - delta2  # 1 - gamma + weight e^eps = 1 - delta2 + weight (e^eps - 1)
    if epsilon < 700:
        value = math.log1p(weight * math.expm1(epsilon) - delta2) if delta2 < 1 else 0.0
    else:
        value = epsilon + math.log(weight) if weight else 0.0
    return max(0.0, value), weight * delta + delta2


def _amplified(epsilon: float, gamma: float) -> float:
    """log(1 + gamma (e^epsilon - 1)) without overflow or cancellation."""
    if gamma in (0.0, 1.0) or epsilon == math.inf:
        return epsilon if gamma else 0.0
    if epsilon < 700:
        return math.log1p(gamma * math.expm1(epsilon))
    return epsilon + math.log(gamma)


def _exp(x: float) -> float:
    return math.exp(x) if x < 709 else math.inf


# --- Recall ---------------------------------------------------------------------------------------


def miss_rate_upper_bound(misses: int, n: int, confidence: float = 0.95) -> float:
    """One-sided Clopper-Pearson upper bound on a miss rate after ``misses`` in ``n`` labels.

    >>> round(miss_rate_upper_bound(0, 200), 5)
    0.01487
    """
    from scipy.stats import beta

    _check("n", n, n >= 1, "at least 1")
    _check("misses", misses, 0 <= misses <= n, f"in [0, {n}]")
    _check("confidence", confidence, 0 < confidence < 1, "in (0, 1)")
    return 1.0 if misses == n else float(beta.ppf(confidence, misses + 1, n - misses))


def labels_needed(rate: float, confidence: float = 0.95) -> int:
    """How many labelled secrets, none of them missed, certify a miss rate of at most ``rate``.

    >>> labels_needed(8e-5)
    37446
    """
    _check("rate", rate, 0 < rate < 1, "in (0, 1)")
    _check("confidence", confidence, 0 < confidence < 1, "in (0, 1)")
    return math.ceil(math.log1p(-confidence) / math.log1p(-rate))
