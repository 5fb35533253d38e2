"""Confidentiality (CRT, Section 3.3): what is learned of a secret that a policy may redact.

>>> phase = SampledGaussian(sampling_probability=0.1, noise_multiplier=2.2477115, steps=100)
>>> round(ledger.epsilon(phase, delta=1e-5), 4)
2.0
>>> round(bayes_at_fixed_delta(phase, gamma=0.1, delta=1e-5), 4)
0.3619

The first number is differential privacy; the second is what an adversary learns about a secret
that the redaction policy misses one time in ten (CRT, Proposition 6). Both hold for adding or
removing a data point. Replacing a secret by ``<MASK>``, which is what confidentiality is about,
costs more: pass ``neighbouring_relation="replace"``. What a person with several points, or one
who weighs guesses, wants to know is in :mod:`crtlib.accounting.statements`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from crtlib.accounting import ledger, mixtures
from crtlib.accounting.accountants import RELATIONS
from crtlib.accounting.events import Events, SampledGaussian
from crtlib.accounting.guarantees import Guarantee, MissRate
from crtlib.accounting.ledger import describe_relation, profile
from crtlib.checks import check, check_choice, check_delta, check_whole


def hockey_stick(p: Sequence[float], q: Sequence[float], *, epsilon: float) -> float:
    """sup_S P[S] - e^epsilon Q[S] of two finite laws: the least delta of Definition 1, one way.

    ``p`` and ``q`` hold the probabilities of the same outcomes. The law of a random secret
    (Definition 4) is the mixture over its values, so it needs no function of its own.
    """
    one, two = np.asarray(p, dtype=float), np.asarray(q, dtype=float)
    if one.shape != two.shape:
        raise ValueError(
            f"q: has shape {two.shape}, p has {one.shape}: must list the same outcomes"
        )
    for name, law in (("p", one), ("q", two)):
        total = float(law.sum())
        sums = bool((law >= 0).all()) and abs(total - 1) < 1e-9
        check(f"sum of {name}", total, sums, "1, of probabilities that are at least 0")
    here = two > 0
    gain = np.maximum(one[here] - _exp(epsilon) * two[here], 0).sum()
    return float(gain + one[~here].sum())


def indistinguishability(p: Sequence[float], q: Sequence[float], *, epsilon: float) -> float:
    """The least delta at which two finite laws are (epsilon, delta)-indistinguishable.

    Definition 1 compares "a pair": this is the larger of both directions, which Definitions 2
    to 4 mean. D and D' are told apart as well as D' and D.

    >>> round(indistinguishability([0.5, 0.5], [0.2, 0.8], epsilon=0.5), 4)
    0.1703
    """
    return max(hockey_stick(p, q, epsilon=epsilon), hockey_stick(q, p, epsilon=epsilon))


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
    check("epsilons", float(eps[0]), eps[0] >= 0, "at least 0")
    total = float(eps.sum())
    if tight:
        log_factor = float(np.logaddexp.reduce(np.concatenate([[0.0], np.cumsum(eps[:-1])])))
    else:
        log_factor = math.log(eps.size) + total
    return total, _exp(log_factor + math.log(delta)) if delta > 0 else 0.0


def group_delta(
    event: SampledGaussian,
    *,
    group: int,
    epsilon: float,
    neighbouring_relation: str = "add_or_remove",
) -> tuple[float, float]:
    """A lower and an upper bound of delta at ``epsilon`` for a group of data points (Definition 3).

    ``group`` counts the distinct points whose secret the policy misses. A step draws
    Binomial(group, q) of them, so it shows at most N(count, sigma^2) against N(0, sigma^2), or for
    "replace" against N(-count, sigma^2), which is composed for all steps
    (:mod:`crtlib.accounting.mixtures`): far less than :func:`group_naive`. Both are tight: the
    lower bound is that of an actual test. Several events: :func:`crtlib.accounting.ledger.delta`
    with its ``group``.
    """
    check("epsilon", epsilon, epsilon >= 0, "at least 0")
    return _group_bracket(event, group, neighbouring_relation, "delta", epsilon)


def group_epsilon(
    event: SampledGaussian,
    *,
    group: int,
    delta: float,
    neighbouring_relation: str = "add_or_remove",
) -> tuple[float, float]:
    """A lower and an upper bound of epsilon at a FIXED ``delta``; otherwise as `group_delta`.

    >>> phase = SampledGaussian(0.01, noise_multiplier=1.27053328, steps=1000)  # epsilon 1
    >>> low, high = group_epsilon(phase, group=2, delta=8e-5)
    >>> f"{low:.3f} to {high:.3f}"  # not 2: that has a larger delta
    '2.204 to 2.204'
    """
    check_delta(delta)
    return _group_bracket(event, group, neighbouring_relation, "epsilon", delta)


def _group_bracket(
    event: SampledGaussian, group: int, relation: str, what: str, at: float
) -> tuple[float, float]:
    check_whole("group", group, 0)
    check_choice("neighbouring_relation", relation, RELATIONS)
    check("noise_multiplier", event.noise_multiplier, event.noise_multiplier > 0, "positive")
    if not group or not event.steps or not event.sampling_probability:
        return 0.0, 0.0
    brackets = [getattr(way, what)(at) for way in _group(event, int(group), relation)]
    curve = profile(event, "pld", relation, int(group))
    proved = curve.delta(at) if what == "delta" else curve(at)
    return max(low for low, _ in brackets), min(proved, max(high for _, high in brackets))


@lru_cache(maxsize=2)  # each holds some ten million numbers
def _group(event: SampledGaussian, group: int, relation: str) -> tuple[mixtures.Composed, ...]:
    """The group against its absence and back, or against its worst replacement."""
    law = mixtures.poisson_binomial([event.sampling_probability] * group)
    sigma, steps = event.noise_multiplier, int(event.steps)
    directions: tuple[mixtures.Direction, ...] = ("replace",)
    if relation == "add_or_remove":
        directions = "forward", "backward"
    return tuple(mixtures.compose(law, sigma, steps, direction=d) for d in directions)


def bayes_amplify(epsilon: float, *, delta: float, gamma: float) -> tuple[float, float]:
    """Proposition 6: (log(1 + gamma (e^epsilon - 1)), gamma delta), for a miss rate gamma.

    For D against D' this is an equality of the two privacy profiles, so only a better profile
    can improve it; the reverse direction is no worse.
    """
    check("epsilon", epsilon, epsilon >= 0, "at least 0")
    check("gamma", gamma, 0 <= gamma <= 1, "in [0, 1]")
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
    check_delta(delta)
    check("gamma", gamma, 0 <= gamma <= 1, "in [0, 1]")
    check("delta2", delta2, 0 <= delta2 <= 1, "in [0, 1]")
    curve = profile(events, accountant, neighbouring_relation)
    if delta2 and delta2 >= delta:
        return math.inf
    if gamma == 0 or delta - delta2 >= gamma:
        return 0.0
    return _amplified(curve((delta - delta2) / gamma), gamma)


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
    check_whole("missed", missed, 0)
    return group_naive([epsilon] * int(missed), delta=delta, tight=tight)


def crt_bayesian(
    epsilon: float, *, delta: float, gamma: float, delta2: float, one_directional: bool = False
) -> tuple[float, float]:
    """Theorem 8.3: (log(1 + gamma (e^epsilon - 1)), gamma delta + delta2), in both directions.

    ``delta2`` is the probability that both policies miss, so it is at most gamma.
    ``one_directional`` gives the tighter pair that holds for D against D' only.
    """
    check("delta2", delta2, 0 <= delta2 <= 1, "in [0, 1]")
    amplified, spent = bayes_amplify(epsilon, delta=delta, gamma=gamma)
    if not one_directional:
        return amplified, spent + delta2
    check("delta2", delta2, delta2 <= gamma, f"at most gamma={gamma}")
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
    check("gamma", gamma, 0 <= gamma <= 1, "in [0, 1]")
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
