"""Confidentiality (CRT, Section 3.3): what is learned about a secret that a policy may redact.

:func:`crtlib.accounting.privacy_cost.epsilon` gives the differential privacy of the steps.
:func:`confidentiality_epsilon` bounds what an adversary learns about a secret drawn at random, if
the redaction policy leaves a trace of it with probability gamma (0.1 in the example; CRT,
Proposition 6). The paper accounts for a data point that is added or removed. Confidentiality is
about a secret that is replaced by ``<MASK>``: that is the relation "replace", which costs more. How
often a guess is right, also about a person with several points, is in
:mod:`crtlib.accounting.guess_bounds`.

>>> phase = SampledGaussian(sampling_probability=0.1, noise_multiplier=2.2477115, steps=100)
>>> paper = "add_or_remove"
>>> round(privacy_cost.epsilon(phase, delta=1e-5, neighbouring_relation=paper), 4)
2.0
>>> bound = confidentiality_epsilon(phase, gamma=0.1, total_delta=1e-5, neighbouring_relation=paper)
>>> round(bound, 4)
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
    """Return (log(1 + gamma (e^epsilon - 1)), gamma delta) for a miss rate gamma (Proposition 6).

    For D against D' the proposition is an equality of two privacy profiles, so only a better
    profile can improve it; the reverse direction is no worse.
    """
    check_allowed("epsilon", epsilon, epsilon >= 0, "at least 0")
    check_probabilities(gamma=gamma)
    return _amplify_epsilon(epsilon, gamma), gamma * delta


def amplified_epsilon(curve: PrivacyProfile, *, delta: float, gamma: float) -> float:
    """The epsilon of Proposition 6 if its result is to hold at ``delta``: the profile is read at
    delta / gamma. Zero if that is 1 or more, or if gamma is 0."""
    return 0.0 if gamma <= delta else _amplify_epsilon(curve(delta / gamma), gamma)


def confidentiality_epsilon(
    events: SampledGaussians,
    *,
    gamma: float,
    total_delta: float,
    neighbouring_relation: str,
    delta2: float = 0.0,
    accountant: str = "pld",
) -> float:
    """The Bayesian confidentiality epsilon at a total delta (CRT, Figure 6; Theorem 8.3).

    Proposition 6 turns delta' into gamma delta', to which delta2 is added, so the profile is read
    at delta' = (total delta - delta2) / gamma.

    Args:
        events: What was done to private points.
        gamma: An upper bound on the rate at which a secret leaves a trace, in [0, 1].
        total_delta: The delta of the noise and ``delta2`` together, in (0, 1).
        neighbouring_relation: As in :func:`crtlib.accounting.privacy_cost.epsilon`.
        delta2: An upper bound on the rate at which a secret is trained on without noise; a part of
            ``total_delta``.
        accountant: As in :func:`crtlib.accounting.privacy_cost.epsilon`.

    Returns:
        Infinite if delta2 alone spends the total delta; otherwise zero if gamma is 0 or delta' is 1
        or more.

    Raises:
        ValueError: For arguments outside their range.

    Guarantee:
        An upper bound for one secret drawn at random, if ``gamma`` and ``delta2`` are upper bounds
        on its rates. Tests: ``tests/accounting/test_confidentiality.py::
        test_definition_4_and_theorem_8_on_a_finite_mechanism``,
        ``tests/accounting/test_confidentiality.py::test_edges_of_gamma``.
    """
    check_delta(total_delta, name="total_delta")
    check_probabilities(gamma=gamma, delta2=delta2)
    curve = privacy_profile(events, accountant, neighbouring_relation=neighbouring_relation)
    if delta2 and delta2 >= total_delta:
        return math.inf
    return amplified_epsilon(curve, delta=total_delta - delta2, gamma=gamma)


def crt_guarantee(
    events: SampledGaussians,
    *,
    gamma: BoundedRate,
    delta2: BoundedRate,
    noise_delta: float,
    unit: str,
    neighbouring_relation: str,
    accountant: str = "pld",
    public: str = "",
) -> Guarantee:
    """What CRT promises about one random secret: Theorem 8.3, with delta2 added in full.

    Args:
        events: What was done to private points.
        gamma: The trace rate; its :attr:`BoundedRate.bound` is used.
        delta2: The public rate; its bound is used. What both policies miss is learned without
            noise.
        noise_delta: The delta of the noise alone; the printed delta is this plus ``delta2``.
        unit: The data point: "turn", "dialogue" or "user".
        neighbouring_relation: As in :func:`crtlib.accounting.privacy_cost.epsilon`.
        accountant: As in :func:`crtlib.accounting.privacy_cost.epsilon`.
        public: What is treated as known, in words.

    Returns:
        Epsilon and delta with everything that a printed guarantee has to name.

    Raises:
        ValueError: For arguments outside their range.

    Guarantee:
        It rests on the bounds of both rates, never on the rates that were counted, and names unit,
        relation, accountant and what is public. Test: ``tests/accounting/test_confidentiality.py::
        test_a_guarantee_stands_on_the_bounds_and_says_all_that_it_was_given``.
    """
    options: dict[str, Any] = {
        "accountant": accountant,
        "neighbouring_relation": neighbouring_relation,
    }
    rate = gamma.bound
    secret_epsilon = confidentiality_epsilon(events, gamma=rate, total_delta=noise_delta, **options)
    accountant_bound = privacy_cost.epsilon_and_accountant(
        events, delta=min(noise_delta / rate, 0.5) if rate else noise_delta, **options
    )
    return Guarantee(
        secret_epsilon,
        delta=min(1.0, noise_delta + delta2.bound),
        unit=f"one secret in one {unit}",
        neighbouring_relation=neighbouring_relation,
        # Whose bound it is: that of a looser accountant if the requested one has none.
        accountant=accountant_bound.accountant,
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
    noise_delta: float,
    batch_size: float,
    points: int,
    epochs: float,
    neighbouring_relation: str,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    gamma: float = 1.0,
    delta2: float = 0.0,
    accountant: str = "pld",
) -> dict[str, float | int | str]:
    """Account one run of DP-SGD after redaction, as a flat record of plain values.

    Give either the target ``epsilon`` or the ``noise_multiplier``. An epoch is as many steps as
    cover ``points`` in expectation (CRT, footnote 3).

    Args:
        noise_delta: The delta of the noise alone, in (0, 1).
        batch_size: The expected number of private points in a batch.
        points: The number of private points.
        epochs: Passes over the private points; the steps are rounded up.
        neighbouring_relation: As in :func:`crtlib.accounting.privacy_cost.epsilon`.
        epsilon: The target, for one data point: the least noise that keeps it is taken.
        noise_multiplier: The noise, instead of a target: its standard deviation divided by the clip
            norm.
        gamma: An upper bound on the rate at which a secret leaves a trace, in [0, 1].
        delta2: An upper bound on the rate at which a secret is trained on without noise.
        accountant: As in :func:`crtlib.accounting.privacy_cost.epsilon`.

    Returns:
        A record whose "epsilon" is for one data point and whose "confidentiality_epsilon" is for
        one random secret, each with its delta. "accountant" names the one whose bound "epsilon" is:
        a looser one if the requested one has no answer
        (:func:`crtlib.accounting.privacy_cost.epsilon_and_accountant`).

    Raises:
        ValueError: For arguments outside their range, for both a target and noise or neither, and
            for noise so small that no epsilon is proved.

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
    check_delta(noise_delta, name="noise_delta")
    check_allowed("delta2", delta2, 0 <= delta2 < 1, "in [0, 1)")
    options: dict[str, Any] = {
        "accountant": accountant,
        "neighbouring_relation": neighbouring_relation,
    }
    q, steps = batch_size / points, math.ceil(epochs * points / batch_size - 1e-9)
    if epsilon is not None and noise_multiplier is None:
        sigma = privacy_cost.noise_multiplier(
            epsilon=epsilon, delta=noise_delta, sampling_probability=q, steps=steps, **options
        )
    elif noise_multiplier is not None and epsilon is None:
        sigma = noise_multiplier
    else:
        how_many = "neither" if epsilon is None else "both"
        raise ValueError(f"epsilon, noise_multiplier: give exactly one of the two, not {how_many}")
    check_allowed("noise_multiplier", sigma, 0 < sigma <= 1e100, "positive and at most 1e100")
    event = SampledGaussian(q, sigma, steps)
    accountant_bound = privacy_cost.epsilon_and_accountant(event, delta=noise_delta, **options)
    check_allowed(
        "noise_multiplier",
        sigma,
        accountant_bound.value < math.inf,
        "larger, as this noise gives no finite epsilon",
    )
    return {
        "noise_multiplier": sigma,
        "epsilon": accountant_bound.value,
        "delta": noise_delta,
        "gamma": gamma,
        "delta2": delta2,
        "confidentiality_epsilon": confidentiality_epsilon(
            event, gamma=gamma, total_delta=noise_delta, **options
        ),
        "confidentiality_delta": min(1.0, noise_delta + delta2),
        "neighbouring_relation": neighbouring_relation,
        "neighbours": describe_relation(neighbouring_relation, accountant_bound.accountant),
        "accountant": accountant_bound.accountant,
        "sampling_probability": q,
        "steps": steps,
    }
