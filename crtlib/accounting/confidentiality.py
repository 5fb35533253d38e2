"""Confidentiality (CRT, Section 3.3): what is learned of a secret that a policy may redact.

An epsilon of the steps is differential privacy; :func:`confidentiality_epsilon` is what an
adversary learns about a secret that the redaction policy misses one time in ten below (CRT,
Proposition 6). Both hold for adding or
removing a data point. Replacing a secret by ``<MASK>``, which is what confidentiality is about,
costs more: pass ``neighbouring_relation="replace"``. What a person with several points, or one
who weighs guesses, wants to know is in :mod:`crtlib.accounting.guarantees`.

>>> phase = SampledGaussian(sampling_probability=0.1, noise_multiplier=2.2477115, steps=100)
>>> round(privacy_cost.epsilon(phase, delta=1e-5), 4)
2.0
>>> round(confidentiality_epsilon(phase, gamma=0.1, delta=1e-5), 4)
0.3619
"""

from __future__ import annotations

import math
from typing import Any

from crtlib.accounting import privacy_cost
from crtlib.accounting.accountants import PrivacyProfile
from crtlib.accounting.events import SampledGaussian, SampledGaussians
from crtlib.accounting.guarantees import BoundedRate, Guarantee
from crtlib.accounting.privacy_cost import describe_relation, privacy_profile
from crtlib.checks import check_allowed, check_delta, check_probabilities


def amplify_by_miss_rate(epsilon: float, *, delta: float, gamma: float) -> tuple[float, float]:
    """Proposition 6: (log(1 + gamma (e^epsilon - 1)), gamma delta), for a miss rate gamma.

    For D against D' this is an equality of the two privacy profiles, so only a better profile
    can improve it; the reverse direction is no worse.
    """
    check_allowed("epsilon", epsilon, epsilon >= 0, "at least 0")
    check_probabilities(gamma=gamma)
    return _amplify_epsilon(epsilon, gamma), gamma * delta


def amplified_epsilon(curve: PrivacyProfile, *, delta: float, gamma: float) -> float:
    """Proposition 6 at a ``delta`` that it keeps: the profile is read at delta / gamma. Zero where
    that is 1 or more, or gamma is 0."""
    return 0.0 if gamma <= delta else _amplify_epsilon(curve(delta / gamma), gamma)


def confidentiality_epsilon(
    events: SampledGaussians,
    *,
    gamma: float,
    delta: float,
    delta2: float = 0.0,
    accountant: str = "pld",
    neighbouring_relation: str = "add_or_remove",
) -> float:
    """The Bayesian confidentiality epsilon at a total ``delta`` (CRT, Figure 6; Theorem 8.3).

    Proposition 6 turns delta' into gamma delta' (+ delta2, the miss rate of the conservative
    policy), so the profile is read at delta' = (delta - delta2) / gamma.

    Args:
        events: What was done to private points.
        gamma: An upper bound of the rate at which a secret leaves a trace, in [0, 1].
        delta: The total delta, in (0, 1); ``delta2`` is a part of it.
        delta2: An upper bound of the rate at which a secret is trained on without noise.
        accountant: As of :func:`crtlib.accounting.privacy_cost.epsilon`.
        neighbouring_relation: As of :func:`crtlib.accounting.privacy_cost.epsilon`.

    Returns:
        Zero where gamma is 0 or where delta' is 1 or more; infinite where delta2 alone spends
        delta.

    Raises:
        ValueError: For arguments outside their range.

    Guarantee:
        An upper bound for one secret drawn at random, if ``gamma`` and ``delta2`` are bounds of its
        rates. Tests: ``tests/accounting/test_confidentiality.py::
        test_definition_4_and_theorem_8_on_a_finite_mechanism``,
        ``tests/accounting/test_confidentiality.py::test_edges_of_gamma``.
    """
    check_delta(delta)
    check_probabilities(gamma=gamma, delta2=delta2)
    curve = privacy_profile(events, accountant, neighbouring_relation)
    if delta2 and delta2 >= delta:
        return math.inf
    return amplified_epsilon(curve, delta=delta - delta2, gamma=gamma)


def crt_guarantee(
    events: SampledGaussians,
    *,
    gamma: BoundedRate,
    delta2: BoundedRate,
    delta: float,
    unit: str,
    accountant: str = "pld",
    neighbouring_relation: str = "replace",
    public: str = "",
) -> Guarantee:
    """What CRT promises of one random secret: Theorem 8.3 at ``delta``, with delta2 added in full.

    Args:
        events: What was done to private points.
        gamma: The trace rate; its :attr:`BoundedRate.bound` enters.
        delta2: The public rate; its bound enters. What both policies miss is learned without noise.
        delta: Of the noise alone; the printed delta is this plus ``delta2``.
        unit: The data point: "turn", "dialogue", "user".
        accountant: As of :func:`crtlib.accounting.privacy_cost.epsilon`.
        neighbouring_relation: As of :func:`crtlib.accounting.privacy_cost.epsilon`.
        public: What is treated as known, in words.

    Returns:
        Epsilon and delta with all that a printed guarantee has to name.

    Raises:
        ValueError: For arguments outside their range.

    Guarantee:
        It stands on the bounds of both rates, never on the rates that were counted, and names unit,
        relation, accountant and what is public. Test: ``tests/accounting/test_confidentiality.py::
        test_a_guarantee_stands_on_the_bounds_and_says_all_that_it_was_given``.
    """
    options: dict[str, Any] = {
        "accountant": accountant,
        "neighbouring_relation": neighbouring_relation,
    }
    rate = gamma.bound
    spent = confidentiality_epsilon(events, gamma=rate, delta=delta, **options)
    read = privacy_cost.epsilon_and_accountant(
        events, delta=min(delta / rate, 0.5) if rate else delta, **options
    )
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


def _amplify_epsilon(epsilon: float, gamma: float) -> float:
    """log(1 + gamma (e^epsilon - 1)) without overflow or cancellation."""
    if gamma in (0.0, 1.0) or epsilon == math.inf:
        return epsilon if gamma else 0.0
    if epsilon < 700:
        return math.log1p(gamma * math.expm1(epsilon))
    return epsilon + math.log(gamma)


def account_training(
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
    ``points`` in expectation (CRT, footnote 3).

    Args:
        delta: Of the noise alone, in (0, 1).
        batch_size: Private points of a batch, in expectation.
        points: Private points.
        epochs: Passes over the private points; the steps are rounded up.
        epsilon: The target, for one data point: the least noise that keeps it is taken.
        noise_multiplier: The noise, instead of a target: its deviation over the clip norm.
        gamma: An upper bound of the rate at which a secret leaves a trace, in [0, 1].
        delta2: An upper bound of the rate at which a secret is trained on without noise.
        accountant: As of :func:`crtlib.accounting.privacy_cost.epsilon`.
        neighbouring_relation: As of :func:`crtlib.accounting.privacy_cost.epsilon`.

    Returns:
        "epsilon" is of one data point, "confidentiality_epsilon" of one random secret, each with
        its delta; "accountant" is the one whose bound "epsilon" is: a looser one than asked for
        where that has no answer (:func:`crtlib.accounting.privacy_cost.epsilon_and_accountant`).

    Raises:
        ValueError: For arguments outside their range, for neither a target nor noise, and where
            the noise is so small that nothing is shown.

    Guarantee:
        Both epsilons are upper bounds, and ``delta2`` is added in full to the delta of the random
        secret. Tests: ``tests/accounting/test_confidentiality.py::
        test_the_public_rate_is_added_to_delta``, ``tests/accounting/test_confidentiality.py::
        test_the_record_of_a_run_says_what_was_asked_and_what_is_left_open``.
    """
    check_allowed("points", points, points >= 1, "at least 1")
    check_allowed(
        "batch_size", batch_size, 0 < batch_size <= points, f"above 0, at most {points} points"
    )
    check_allowed("epochs", epochs, 0 < epochs < math.inf, "positive")
    check_probabilities(gamma=gamma)
    check_delta(delta)
    check_allowed("delta2", delta2, 0 <= delta2 < 1, "in [0, 1)")
    options: dict[str, Any] = {
        "accountant": accountant,
        "neighbouring_relation": neighbouring_relation,
    }
    q, steps = batch_size / points, math.ceil(epochs * points / batch_size - 1e-9)
    sigma = noise_multiplier
    if sigma is None:
        if epsilon is None:
            raise ValueError("epsilon, noise_multiplier: give one of the two")
        sigma = privacy_cost.noise_multiplier(
            epsilon=epsilon, delta=delta, sampling_probability=q, steps=steps, **options
        )
    check_allowed("noise_multiplier", sigma, 0 < sigma <= 1e100, "positive and at most 1e100")
    event = SampledGaussian(q, sigma, steps)
    spent = privacy_cost.epsilon_and_accountant(event, delta=delta, **options)
    check_allowed("noise_multiplier", sigma, spent.value < math.inf, "larger: nothing is shown")
    return {
        "noise_multiplier": sigma,
        "epsilon": spent.value,
        "delta": delta,
        "gamma": gamma,
        "delta2": delta2,
        "confidentiality_epsilon": confidentiality_epsilon(
            event, gamma=gamma, delta=delta, **options
        ),
        "confidentiality_delta": min(1.0, delta + delta2),
        "neighbouring_relation": neighbouring_relation,
        "neighbours": describe_relation(neighbouring_relation, spent.accountant),
        "accountant": spent.accountant,
        "sampling_probability": q,
        "steps": steps,
    }
