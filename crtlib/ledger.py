"""What was done to the secrets (events) and what it costs (accountants, confidentiality).

>>> phase = SampledGaussian(sampling_probability=0.1, noise_multiplier=2.2477115, steps=100)
>>> round(epsilon(phase, delta=1e-5), 4)
2.0
>>> round(bayes_at_fixed_delta(phase, gamma=0.1, delta=1e-5), 4)
0.3619

The first number is differential privacy; the second is what an adversary learns about a secret
that the redaction policy misses one time in ten (CRT, Proposition 6). Both hold for adding or
removing a data point. Replacing a secret by ``<MASK>``, which is what confidentiality is about,
costs more: pass ``neighbouring_relation="replace"``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from crtlib import accountants, screen
from crtlib.accountants import ACCOUNTANTS, RELATIONS, Profile


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


Events = SampledGaussian | Iterable[SampledGaussian]  # one phase, or several composed


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
    def bound(self) -> float:
        """What a guarantee may count on: the upper bound, or the rate where it is assumed."""
        return self.rate if self.upper_bound is None else self.upper_bound

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
    policy; None where the guarantee does not use that policy. ``public`` names what else the
    guarantee treats as known to everybody.
    """

    epsilon: float
    delta: float
    unit: str
    neighbours: str
    accountant: str
    kind: str = "differential privacy"
    gamma: MissRate | None = None
    delta2: MissRate | None = None
    public: str = ""

    def __str__(self) -> str:
        said = [
            f"({self.epsilon:.4g}, {self.delta:.4g}) {self.kind}",
            f"unit: {self.unit}",
            f"neighbours: {describe_relation(self.neighbours, self.accountant)}",
            f"accountant: {self.accountant}",
        ]
        policies = ("redaction", "gamma", self.gamma), ("conservative", "delta2", self.delta2)
        for name, symbol, rate in policies:
            used = f"miss rate of the {name} policy, {symbol} = {rate}"
            said.append(used if rate is not None else f"{name} policy: not used")
        if self.public:
            said.append(f"treated as public: {self.public}")
        return "; ".join(said)


def describe_relation(neighbouring_relation: str, accountant: str) -> str:
    """In words, which pairs of datasets a guarantee compares and how that was accounted."""
    if neighbouring_relation == "add_or_remove":
        return "one data point added or removed"
    if neighbouring_relation != "replace":
        return neighbouring_relation
    pair = "antipodal pair, the worst in every check and not proved to be"
    how = pair if accountant == "pld" else "generic bound for groups of two"
    return f"one data point replaced ({how})"


# --- Accountants ----------------------------------------------------------------------------------


def epsilon(
    events: Events,
    *,
    delta: float,
    accountant: str = "pld",
    neighbouring_relation: str = "add_or_remove",
) -> float:
    """The epsilon of one event, or of several composed, at a ``delta`` in (0, 1).

    ``accountant``: "pld" (dp-accounting: tight, an upper bound up to floating point, both
    directions), "prv" (Opacus: tight plus 0.01, the direction of removal only), "rdp" (Opacus'
    Renyi curve) or "autodp" (the CRT authors' choice; Renyi as well).
    ``neighbouring_relation``: "add_or_remove", or "replace" for the exchange of a data point,
    which is what confidentiality needs: the masked point is still a point. For "replace" pld
    uses the pair with clipped gradients u and -u; it is the worst in every case tried, which is
    evidence and not a proof. The other accountants use the proven 2 epsilon(delta') with
    (1 + e^epsilon(delta')) delta' = delta.

    Infinite where there is no noise, and where the accountant's numerics give up. Raises
    ValueError for arguments outside their range.
    """
    _check_delta(delta)
    return _profile(events, accountant, neighbouring_relation)(delta)


def delta(
    events: Events,
    *,
    epsilon: float,
    accountant: str = "pld",
    neighbouring_relation: str = "add_or_remove",
) -> float:
    """The smallest delta the accountant shows for ``epsilon`` >= 0: ``epsilon()`` inverted."""
    _check("epsilon", epsilon, epsilon >= 0, "at least 0")
    profile = _profile(events, accountant, neighbouring_relation)
    if hasattr(profile, "delta"):
        return profile.delta(epsilon)
    return accountants.invert(profile, epsilon)


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
    _check("epsilon", epsilon, 0 < epsilon <= 10_000, "positive, at most 10000")
    _check_delta(delta)
    SampledGaussian(sampling_probability, 1.0, steps)  # refuses what is out of range
    if sampling_probability == 0 or steps == 0:
        return 0.0
    _check_choice("accountant", accountant, ACCOUNTANTS)
    _check_choice("neighbouring_relation", neighbouring_relation, RELATIONS)
    return accountants.calibrate(
        epsilon, delta, sampling_probability, int(steps), accountant, neighbouring_relation
    )


_noise_multiplier = noise_multiplier  # for functions with a parameter of that name


def _profile(events: Events, accountant: str, relation: str) -> Profile:
    """The accountant's curve; equal events are merged, so that equal histories are cached once."""
    _check_choice("accountant", accountant, ACCOUNTANTS)
    _check_choice("neighbouring_relation", relation, RELATIONS)
    total: dict[tuple[float, float], int] = {}
    for e in (events,) if isinstance(events, SampledGaussian) else events:
        if e.steps and e.sampling_probability:
            key = (float(e.sampling_probability), float(e.noise_multiplier))
            total[key] = total.get(key, 0) + int(e.steps)
    merged = tuple((*key, steps) for key, steps in sorted(total.items()))
    return accountants.profile(merged, accountant, relation)


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
    profile = _profile(events, accountant, neighbouring_relation)
    if delta2 and delta2 >= delta:
        return math.inf
    if gamma == 0 or delta - delta2 >= gamma:
        return 0.0
    return _amplified(profile((delta - delta2) / gamma), gamma)


def crt_guarantee(
    events: Events,
    *,
    gamma: MissRate,
    delta2: MissRate,
    delta: float,
    unit: str,
    accountant: str = "pld",
    neighbouring_relation: str = "replace",
    public: str = "",
) -> Guarantee:
    """What CRT promises of one random secret: Theorem 8.3 at ``delta``, with delta2 added in full.

    Both rates enter as their :attr:`MissRate.bound`. What both policies miss is learned without
    noise, so the printed delta is ``delta`` plus that of delta2. ``unit`` is the data point.
    """
    spent = bayes_at_fixed_delta(
        events,
        gamma=gamma.bound,
        delta=delta,
        accountant=accountant,
        neighbouring_relation=neighbouring_relation,
    )
    return Guarantee(
        spent,
        delta=min(1.0, delta + delta2.bound),
        unit=f"one secret in one {unit}",
        neighbours=neighbouring_relation,
        accountant=accountant,
        kind="Bayesian confidentiality",
        gamma=gamma,
        delta2=delta2,
        public=public,
    )


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


def account(
    *,
    delta: float,
    batch_size: float,
    points: int,
    epochs: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    gamma: float = 1.0,
    delta2: float = 0.0,
    accountant: str = "pld",
    neighbouring_relation: str = "add_or_remove",
) -> dict[str, float | int | str]:
    """Everything about one run of DP-SGD after redaction, as a flat record of plain values.

    Give the target ``epsilon`` or the ``noise_multiplier``. An epoch is as many steps as cover
    ``points`` in expectation (CRT, footnote 3).
    """
    _check("points", points, points >= 1, "at least 1")
    _check("batch_size", batch_size, 0 < batch_size <= points, f"above 0, at most {points} points")
    _check("epochs", epochs, 0 < epochs < math.inf, "positive")
    _check("gamma", gamma, 0 <= gamma <= 1, "in [0, 1]")
    _check_delta(delta)
    _check("delta2", delta2, 0 <= delta2 < delta, f"at least 0 and below delta={delta}")
    options = {"accountant": accountant, "neighbouring_relation": neighbouring_relation}
    q, steps = batch_size / points, math.ceil(epochs * points / batch_size - 1e-9)
    sigma = noise_multiplier
    if sigma is None:
        run = {"sampling_probability": q, "steps": steps}
        sigma = _noise_multiplier(epsilon=epsilon, delta=delta, **run, **options)
    _check("noise_multiplier", sigma, 0 < sigma < math.inf, "positive and finite")
    event = SampledGaussian(q, sigma, steps)
    spent = _profile(event, accountant, neighbouring_relation)(delta)
    _check("noise_multiplier", sigma, spent < math.inf, f"larger: {accountant} finds no epsilon")
    return {
        "noise_multiplier": sigma,
        "epsilon": spent,
        "delta": delta,
        "gamma": gamma,
        "delta2": delta2,
        "confidentiality_epsilon": bayes_at_fixed_delta(
            event, gamma=gamma, delta=delta, delta2=delta2, **options
        ),
        "neighbouring_relation": neighbouring_relation,
        "neighbours": describe_relation(neighbouring_relation, accountant),
        "accountant": accountant,
        "sampling_probability": q,
        "steps": steps,
    }


# --- Recall ---------------------------------------------------------------------------------------


def miss_rate_upper_bound(misses: int, n: int, confidence: float = 0.95) -> float:
    """One-sided Clopper-Pearson upper bound on a miss rate after ``misses`` in ``n`` labels.

    >>> round(miss_rate_upper_bound(0, 200), 5)
    0.01487
    """
    _check("n", n, n >= 1, "at least 1")
    return screen.miss_rate_upper(misses, n, confidence=confidence)


def labels_needed(rate: float, confidence: float = 0.95) -> int:
    """How many labelled secrets, none of them missed, certify a miss rate of at most ``rate``.

    >>> labels_needed(8e-5)
    37446
    """
    _check("rate", rate, 0 < rate < 1, "in (0, 1)")
    _check("confidence", confidence, 0 < confidence < 1, "in (0, 1)")
    return math.ceil(math.log1p(-confidence) / math.log1p(-rate))
