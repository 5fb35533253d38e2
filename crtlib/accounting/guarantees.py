"""Guarantees: of confidentiality, of S-DP, of right guesses, with all that they stand on.

A guarantee with all its parts, and the miss rate that it stands on.

>>> MissRate.measured(0, 200).bound < 0.015
True

What S-DP promises (Shi et al. 2022).

>>> from crtlib.accounting.ledger import SampledGaussian
>>> from crtlib.accounting.guarantees import MissRate
>>> event = SampledGaussian(sampling_probability=1.0, noise_multiplier=20.0, steps=24)
>>> guarantee(event, gamma=MissRate(0.05), delta=8e-5, unit="turn").epsilon
inf

What a person asks of a guarantee: how often somebody guesses right who has the model.

>>> phase = SampledGaussian(1 / 90, noise_multiplier=1.063, steps=360)
>>> round(100 * right_guess(advantage(phase, copies=1, trace_rate=0.055, public_rate=0.0092)), 1)
50.9

An adversary who must say whether a secret stood in its message or was blacked out tosses a coin
without the model and is right in 50 cases of 100; :func:`right_guess` is how often at most with
it. (epsilon, delta) bounds such guesses on average. It does not bound what somebody believes after
one look at the model, so no function here returns a belief.

Confidentiality (CRT, Section 3.3): what is learned of a secret that a policy may redact.

>>> phase = SampledGaussian(sampling_probability=0.1, noise_multiplier=2.2477115, steps=100)
>>> round(ledger.epsilon(phase, delta=1e-5), 4)
2.0
>>> round(bayes_at_fixed_delta(phase, gamma=0.1, delta=1e-5), 4)
0.3619

The first number is differential privacy; the second is what an adversary learns about a secret
that the redaction policy misses one time in ten (CRT, Proposition 6). Both hold for adding or
removing a data point. Replacing a secret by ``<MASK>``, which is what confidentiality is about,
costs more: pass ``neighbouring_relation="replace"``. What a person with several points, or one
who weighs guesses, wants to know is in :mod:`crtlib.accounting.guarantees`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from crtlib.accounting import accountants, ledger
from crtlib.accounting.accountants import Profile
from crtlib.accounting.composition import Array
from crtlib.accounting.ledger import Events, Group, SampledGaussian, describe_relation, profile
from crtlib.checks import check, check_choice, check_delta, check_shares, check_whole
from crtlib.intervals import at_most, clopper_pearson_upper, upwards

ORIGINS = {"policy": "certain from the policy", "unknown": "unknown: no labels"}
"""What a rate stands on that nobody measured, where it is not assumed."""


@dataclass(frozen=True)
class MissRate:
    """The rate at which a screening policy misses secrets, with the bound that a guarantee counts
    on: ``upper_bound``, or where that is None the ``rate``, which is then certain or assumed.

    Of a rate that was measured on labels: ``misses`` of ``labelled`` secrets, the ``confidence`` of
    the bound, and where two people read, ``again``: of the secrets that the second one found, how
    many the first had overlooked and the policy misses, and how many they are. No bound is computed
    from these counts here, but by :meth:`measured`, for one reader: what was counted by
    :mod:`crtlib.screening.rates` has its bound, and :meth:`counted` takes it. ``origin`` says what
    a rate stands on that was not measured.

    >>> print(MissRate.measured(0, 200))
    0 (measured: 0 of 200, 95 % upper bound 0.01487)
    >>> print(MissRate(0.05), MissRate(0.0, origin="certain from the policy"), sep=", ")
    0.05 (assumed), 0 (certain from the policy)
    """

    rate: float
    upper_bound: float | None = None
    misses: int | None = None
    labelled: int | None = None
    confidence: float = 0.95
    again: tuple[int, int] | None = None
    origin: str = "assumed"

    def __post_init__(self) -> None:
        check_shares(rate=self.rate)
        if self.upper_bound is not None:
            check_shares(upper_bound=self.upper_bound)

    @classmethod
    def measured(cls, misses: int, labelled: int, *, confidence: float = 0.95) -> MissRate:
        """The rate observed on ``labelled`` secrets that one reader found, of which a policy missed
        ``misses``, with the one-sided bound of Clopper and Pearson."""
        check("labelled", labelled, labelled >= 1, "at least 1")
        upper = clopper_pearson_upper(misses, labelled, confidence=confidence)
        return cls(misses / labelled, upper, misses, labelled, confidence)

    @classmethod
    def counted(cls, row: Mapping[str, Any], *, alpha: float) -> MissRate:
        """A rate as ``summary.json``, ``record.json`` and a certificate have it
        (:meth:`crtlib.screening.rates.Rate.to_json`), with its own bound, which fails with a
        chance of ``alpha``.

        Guarantee:
            The bound is the row's own, whoever read the labels, and is not computed again:
            ``tests/release/test_one_number.py``.
        """
        if row["how"] != "one_per_cluster":
            return cls(row["upper"], origin=ORIGINS.get(row["how"], "assumed"))
        pair = row.get("again")
        return cls(
            row["rate"] or 0.0,
            upper_bound=row["upper"],
            misses=row["count"],
            labelled=row["of"],
            confidence=1 - alpha,
            again=pair and (pair[0], pair[1]),
        )

    @property
    def bound(self) -> float:
        """What a guarantee may count on: the upper bound, or the rate where it is assumed."""
        return self.rate if self.upper_bound is None else self.upper_bound

    def __str__(self) -> str:
        if self.upper_bound is None:
            return f"{at_most(self.rate)} ({self.origin})"
        held = float(-upwards(-100 * self.confidence))  # downwards: it is what one can rely on
        twice = ""
        if self.again:
            overlooked, found = self.again
            twice = f"; of {found} of a second reader {overlooked} were overlooked and missed"
        return (
            f"{self.rate:.4g} (measured: {self.misses} of {self.labelled}{twice}, "
            f"{held:g} % upper bound {at_most(self.upper_bound)})"
        )


@dataclass(frozen=True)
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

    @property
    def _paper(self) -> str:
        """What confidentiality under add/remove is, and what it is not."""
        if self.neighbours != "add_or_remove" or "confidentiality" not in self.kind:
            return ""
        return (
            " (the paper's accounting: it covers leaving the point out, "
            "and not exchanging its secret for a mask, which costs more)"
        )

    def __str__(self) -> str:
        said = [
            f"({at_most(self.epsilon)}, {at_most(self.delta)}) {self.kind}",
            f"unit: {self.unit}",
            f"neighbours: {describe_relation(self.neighbours, self.accountant)}{self._paper}",
            f"accountant: {self.accountant}",
        ]
        rates = (
            ("trace rate: the redacted points differ", "gamma", self.gamma, "redaction"),
            ("public rate: learned without noise", "delta2", self.delta2, "conservative"),
        )
        for name, symbol, rate, policy in rates:
            used = f"{name}, {symbol} = {rate}"
            said.append(used if rate is not None else f"{policy} policy: not used")
        counted = any(rate and rate.labelled for rate in (self.gamma, self.delta2))
        if known := [self.public] * bool(self.public) + ["the counts of labels"] * counted:
            said.append(f"treated as public: {', and '.join(known)}")
        return "; ".join(said)


RELATIONS = {
    "replace": "the private tokens of one {} replaced by others (exact)",
    "add_or_remove": "the private segments of one {} left out of every sum, their states zero",
}


def guarantee(
    events: Events,
    *,
    gamma: MissRate,
    delta: float,
    unit: str,
    accountant: str = "pld",
    neighbouring_relation: str = "replace",
) -> Guarantee:
    """What S-DP promises at ``delta``: something for a perfect policy, and else nothing.

    ``gamma`` is the policy's miss rate. If it may be positive (measured: if its upper bound is),
    epsilon is infinite: a missed secret is read by steps without noise, so that with no private
    segment after it the model is a deterministic function of it, and the noise of later segments is
    not calibrated to it. A perfect policy could redact, at epsilon = 0 (CRT, Section 2).

    ``events`` are those of the phases: see :meth:`SelectivePhase.event`. The ``unit`` is a point;
    a secret that stands in k points has k times as many events.
    """
    check_choice("neighbouring_relation", neighbouring_relation, tuple(RELATIONS))
    spent = ledger.epsilon(
        events, delta=delta, accountant=accountant, neighbouring_relation=neighbouring_relation
    )
    return Guarantee(
        spent if gamma.bound == 0 else math.inf,
        delta=delta,
        unit=f"the private tokens of one {unit}",
        neighbours=RELATIONS[neighbouring_relation].format(unit),
        accountant=accountant,
        kind="selective differential privacy",
        gamma=gamma,
        public="every token that is not flagged, between which of them flagged ones stand, and "
        "the batches",
    )


POINTS, FARTHEST = 600, 30.0  # epsilons at which a trade-off curve reads the profile, and the last
EXACT = 6  # groups up to this size are accounted finely, larger ones quickly


def advantage(
    events: Events,
    *,
    copies: int,
    trace_rate: float,
    public_rate: float = 0.0,
    neighbouring_relation: str = "replace",
    group: Group = 1,
) -> float:
    """What a guess may gain over a coin, for a value said in ``copies`` points, or a person with
    so many secrets, if each leaves a trace with probability ``trace_rate`` at most and is public
    with ``public_rate``: min(1, A(copies trace_rate) + copies public_rate).

    With j of them in clear the total variation distance is at most T_j. However the misses depend
    on each other, their number J has a mean of copies trace_rate at most, and E[T_J] is at most
    A(E[J]) for the least concave A above T_0, ..., T_copies (Jensen). The distance of a mixture
    from a fixed law is at most the mean of the distances. ``group``: how many points one value
    stands for in all events or in each, as in :func:`crtlib.accounting.ledger.epsilon`.
    """
    check_whole("copies", copies, 0)
    check_shares(trace_rate=trace_rate, public_rate=public_rate)
    every = (events,) if isinstance(events, SampledGaussian) else tuple(events)
    sizes = (group,) * len(every) if isinstance(group, int) else tuple(group)
    far = [
        _distance(every, tuple(j * size for size in sizes), neighbouring_relation)
        for j in range(1, copies + 1)
    ]
    distances = np.maximum.accumulate([0.0, *far])
    bound = concave_majorant(distances.tolist(), copies * trace_rate)
    return min(1.0, bound + copies * public_rate)


@lru_cache(maxsize=4096)
def _distance(events: tuple[SampledGaussian, ...], group: tuple[int, ...], relation: str) -> float:
    """A bound on the total variation distance of a group in clear; of a large one, to 1e-3."""
    curve = ledger.profile(events, "pld", relation, group, coarse=max(group, default=0) > EXACT)
    return curve.delta(0.0)


def concave_majorant(values: Sequence[float], at: float) -> float:
    """The least concave function above ``values`` at 0, 1, ...: its value at ``at``.

    >>> concave_majorant([0, 0, 1], 0.5)
    0.25
    """
    points = np.array(values, dtype=float)
    index = np.arange(len(points))
    i, j = index[index <= at, None], index[index > at]
    chords = points[i] + (points[j] - points[i]) * (at - i) / (j - i)  # each that is over ``at``
    point = points[int(at)] if at == int(at) else -math.inf
    return float(chords.max(initial=point))


def right_guess(advantage: float) -> float:
    """How often who must tell two worlds apart is right, a coin choosing the world: half of what
    the total variation distance leaves. Times 100 it is "of 100 guesses".

    >>> right_guess(0.2)
    0.6
    """
    check_shares(advantage=advantage)
    return (1 + advantage) / 2


def value_guess(epsilon: float, *, delta: float, prior: float) -> float:
    """How often the value of a passed-over secret is guessed that has ``prior`` without the model,
    among the values that the policies would treat as they treated it.

    e^epsilon prior + delta, with the epsilon of a *missed* secret: which values a policy misses
    depends on the value, so redaction at random may not be counted here. For the same reason the
    prior is that among the values that ``pi`` would pass over in this place and, where something is
    learned without noise, that ``pi_c`` would flag there: the model may show that a value was
    learned with noise, which tells a rare name from all common ones. One of 1,000 names of which
    990 are common words has a prior of 1/10 then, not of 1/1,000.

    >>> round(value_guess(1.0, delta=1e-6, prior=0.01), 6)
    0.027184
    """
    check("epsilon", epsilon, epsilon >= 0, "at least 0")
    check("prior", prior, 0 < prior <= 1, "in (0, 1]")
    return min(1.0, math.exp(min(epsilon + math.log(prior), 0.0)) + delta)


def tradeoff(
    events: Events,
    type_i: Sequence[float] | Array,
    *,
    neighbouring_relation: str = "replace",
    group: Group = 1,
    trace_rate: float = 1.0,
    public_rate: float = 0.0,
) -> Array:
    """The trade-off curve of composed events (f-DP; Dong, Roth and Su 2022): no test between two
    worlds has a smaller type II error (to miss it where it was) at the type I errors ``type_i`` (to
    say "it was in the text" where it was not), each in [0, 1]. A coin has 1 - type I.

    It is max over epsilon of 1 - delta - e^epsilon type_i and e^-epsilon (1 - delta - type_i)
    (Wasserman and Zhou 2010), delta(epsilon) from the accountant "pld": always on the safe side.
    For adding or removing, it holds for both directions. With a ``trace_rate`` below 1 or a
    ``public_rate`` it is the curve of a secret that may have been redacted: each (epsilon, delta)
    becomes that of Theorem 8.3.

    >>> phase = SampledGaussian(0.01, noise_multiplier=1.27053328, steps=1000)
    >>> tradeoff(phase, [0.01, 0.1, 0.5]).round(3).tolist()
    [0.965, 0.78, 0.305]
    """
    at = np.asarray(type_i, dtype=float)
    for worst in (at.min(), at.max()) if at.size else ():
        check_shares(type_i=float(worst))
    check_shares(trace_rate=trace_rate, public_rate=public_rate)
    curve = ledger.profile(events, "pld", neighbouring_relation, group)
    epsilons, deltas = _sampled(curve)
    deltas = trace_rate * deltas[:, None] + public_rate
    grown = 1 + trace_rate * np.expm1(epsilons)[:, None]
    lines = np.maximum(1 - deltas - grown * at, (1 - deltas - at) / grown)
    return np.asarray(np.maximum(0.0, lines.max(axis=0)))


@lru_cache(maxsize=8)
def _sampled(curve: accountants.Profile) -> tuple[Array, Array]:
    """Epsilons of a profile, and its deltas there, each (POINTS,)."""
    epsilons = np.linspace(0, min(curve.answer(1e-9).value, FARTHEST) + 1e-3, POINTS)
    return epsilons, curve.deltas(epsilons)


def bayes_amplify(epsilon: float, *, delta: float, gamma: float) -> tuple[float, float]:
    """Proposition 6: (log(1 + gamma (e^epsilon - 1)), gamma delta), for a miss rate gamma.

    For D against D' this is an equality of the two privacy profiles, so only a better profile
    can improve it; the reverse direction is no worse.
    """
    check("epsilon", epsilon, epsilon >= 0, "at least 0")
    check_shares(gamma=gamma)
    return _amplified(epsilon, gamma), gamma * delta


def amplified_at(curve: Profile, *, delta: float, gamma: float) -> float:
    """Proposition 6 at a ``delta`` that it keeps: the profile is read at delta / gamma. Zero where
    that is 1 or more, or gamma is 0."""
    return 0.0 if gamma <= delta else _amplified(curve(delta / gamma), gamma)


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
    check_delta(delta)
    check_shares(gamma=gamma, delta2=delta2)
    curve = profile(events, accountant, neighbouring_relation)
    if delta2 and delta2 >= delta:
        return math.inf
    return amplified_at(curve, delta=delta - delta2, gamma=gamma)


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
    options: dict[str, Any] = {
        "accountant": accountant,
        "neighbouring_relation": neighbouring_relation,
    }
    rate = gamma.bound
    spent = bayes_at_fixed_delta(events, gamma=rate, delta=delta, **options)
    read = ledger.answer(events, delta=min(delta / rate, 0.5) if rate else delta, **options)
    return Guarantee(
        spent,
        delta=min(1.0, delta + delta2.bound),
        unit=f"one secret in one {unit}",
        neighbours=neighbouring_relation,
        accountant=read.accountant,  # whose bound it is: a looser one where the asked has none
        kind="Bayesian confidentiality",
        gamma=gamma,
        delta2=delta2,
        public=public,
    )


def _amplified(epsilon: float, gamma: float) -> float:
    """log(1 + gamma (e^epsilon - 1)) without overflow or cancellation."""
    if gamma in (0.0, 1.0) or epsilon == math.inf:
        return epsilon if gamma else 0.0
    if epsilon < 700:
        return math.log1p(gamma * math.expm1(epsilon))
    return epsilon + math.log(gamma)


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
    neighbouring_relation: str = "replace",
) -> dict[str, float | int | str]:
    """Everything about one run of DP-SGD after redaction, as a flat record of plain values.

    Give the target ``epsilon`` or the ``noise_multiplier``. An epoch is as many steps as cover
    ``points`` in expectation (CRT, footnote 3). ``delta2`` is added to delta for the random secret
    (``confidentiality_delta``). "accountant" is the one whose bound "epsilon" is: a looser one
    than asked for where that has no answer (:func:`crtlib.accounting.ledger.answer`).
    """
    check("points", points, points >= 1, "at least 1")
    check("batch_size", batch_size, 0 < batch_size <= points, f"above 0, at most {points} points")
    check("epochs", epochs, 0 < epochs < math.inf, "positive")
    check_shares(gamma=gamma)
    check_delta(delta)
    check("delta2", delta2, 0 <= delta2 < 1, "in [0, 1)")
    options: dict[str, Any] = {
        "accountant": accountant,
        "neighbouring_relation": neighbouring_relation,
    }
    q, steps = batch_size / points, math.ceil(epochs * points / batch_size - 1e-9)
    sigma = noise_multiplier
    if sigma is None:
        if epsilon is None:
            raise ValueError("epsilon, noise_multiplier: give one of the two")
        sigma = ledger.noise_multiplier(
            epsilon=epsilon, delta=delta, sampling_probability=q, steps=steps, **options
        )
    check("noise_multiplier", sigma, 0 < sigma <= 1e100, "positive and at most 1e100")
    event = SampledGaussian(q, sigma, steps)
    spent = ledger.answer(event, delta=delta, **options)
    check("noise_multiplier", sigma, spent.value < math.inf, "larger: nothing is shown")
    return {
        "noise_multiplier": sigma,
        "epsilon": spent.value,
        "delta": delta,
        "gamma": gamma,
        "delta2": delta2,
        "confidentiality_epsilon": bayes_at_fixed_delta(event, gamma=gamma, delta=delta, **options),
        "confidentiality_delta": min(1.0, delta + delta2),
        "neighbouring_relation": neighbouring_relation,
        "neighbours": describe_relation(neighbouring_relation, spent.accountant),
        "accountant": spent.accountant,
        "sampling_probability": q,
        "steps": steps,
    }
