"""What was done to the secrets (events), what it costs (accountants), how it is printed.

>>> phase = SampledGaussian(sampling_probability=0.1, noise_multiplier=2.2477115, steps=100)
>>> round(epsilon(phase, delta=1e-5), 4)
2.0
>>> print(Guarantee(2.0, 1e-5, "turn", "add_or_remove", "pld"))  # doctest: +ELLIPSIS
(2, 1e-05) differential privacy; unit: turn; neighbours: one data point added or removed; ...

What this differential privacy makes of a secret that a policy may redact is
:mod:`crtlib.confidentiality`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from crtlib import accountants, screen
from crtlib.accountants import ACCOUNTANTS, RELATIONS, Profile


def check(name: str, value: float, allowed: bool, rule: str) -> None:
    """Refuse a value that is not ``allowed``, in one line that says what is."""
    if not allowed:  # also reached for nan, because every comparison with nan is false
        raise ValueError(f"{name}={value}: must be {rule}")


def check_delta(delta: float) -> None:
    check("delta", delta, 0 < delta < 1, "in (0, 1)")


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
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
        check("sampling_probability", q, 0 <= q <= 1, "in [0, 1]")
        check("noise_multiplier", sigma, 0 <= sigma < math.inf, "finite and at least 0")
        check("steps", steps, steps >= 0 and steps == int(steps), "a whole number, at least 0")


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
        check("rate", self.rate, 0 <= self.rate <= 1, "in [0, 1]")

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
    check_delta(delta)
    return profile(events, accountant, neighbouring_relation)(delta)


def delta(
    events: Events,
    *,
    epsilon: float,
    accountant: str = "pld",
    neighbouring_relation: str = "add_or_remove",
) -> float:
    """The smallest delta the accountant shows for ``epsilon`` >= 0: ``epsilon()`` inverted."""
    check("epsilon", epsilon, epsilon >= 0, "at least 0")
    curve = profile(events, accountant, neighbouring_relation)
    if hasattr(curve, "delta"):
        return curve.delta(epsilon)
    return accountants.invert(curve, epsilon)


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
    check("epsilon", epsilon, 0 < epsilon <= 10_000, "positive, at most 10000")
    check_delta(delta)
    SampledGaussian(sampling_probability, 1.0, steps)  # refuses what is out of range
    if sampling_probability == 0 or steps == 0:
        return 0.0
    check_choice("accountant", accountant, ACCOUNTANTS)
    check_choice("neighbouring_relation", neighbouring_relation, RELATIONS)
    return accountants.calibrate(
        epsilon, delta, sampling_probability, int(steps), accountant, neighbouring_relation
    )


def profile(events: Events, accountant: str, relation: str) -> Profile:
    """The accountant's curve; equal events are merged, so that equal histories are cached once."""
    check_choice("accountant", accountant, ACCOUNTANTS)
    check_choice("neighbouring_relation", relation, RELATIONS)
    total: dict[tuple[float, float], int] = {}
    for e in (events,) if isinstance(events, SampledGaussian) else events:
        if e.steps and e.sampling_probability:
            key = (float(e.sampling_probability), float(e.noise_multiplier))
            total[key] = total.get(key, 0) + int(e.steps)
    merged = tuple((*key, steps) for key, steps in sorted(total.items()))
    return accountants.profile(merged, accountant, relation)


# --- Recall ---------------------------------------------------------------------------------------


def miss_rate_upper_bound(misses: int, n: int, confidence: float = 0.95) -> float:
    """One-sided Clopper-Pearson upper bound on a miss rate after ``misses`` in ``n`` labels.

    >>> round(miss_rate_upper_bound(0, 200), 5)
    0.01487
    """
    check("n", n, n >= 1, "at least 1")
    return screen.miss_rate_upper(misses, n, confidence=confidence)


def labels_needed(rate: float, confidence: float = 0.95) -> int:
    """How many labelled secrets, none of them missed, certify a miss rate of at most ``rate``.

    >>> labels_needed(8e-5)
    37446
    """
    check("rate", rate, 0 < rate < 1, "in (0, 1)")
    check("confidence", confidence, 0 < confidence < 1, "in (0, 1)")
    return math.ceil(math.log1p(-confidence) / math.log1p(-rate))
