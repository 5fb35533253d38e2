"""What S-DP promises (Shi et al. 2022).

>>> from crtlib.accounting.events import SampledGaussian
>>> from crtlib.accounting.guarantees import BoundedRate
>>> event = SampledGaussian(sampling_probability=1.0, noise_multiplier=20.0, steps=24)
>>> terms = {"delta": 8e-5, "unit": "turn", "neighbouring_relation": "replace"}
>>> selective_guarantee(event, gamma=BoundedRate(0.05), **terms).epsilon
inf
"""

from __future__ import annotations

import math

from crtlib.accounting import privacy_cost
from crtlib.accounting.events import SampledGaussians
from crtlib.accounting.guarantees import BoundedRate, Guarantee
from crtlib.checks import check_choice

RELATION_DESCRIPTIONS = {
    "replace": "the private tokens of one {} replaced by others (exact)",
    "add_or_remove": "the private segments of one {} left out of every sum, their states zero",
}


def selective_guarantee(
    events: SampledGaussians,
    *,
    gamma: BoundedRate,
    delta: float,
    unit: str,
    neighbouring_relation: str,
    accountant: str = "pld",
) -> Guarantee:
    """What S-DP promises at ``delta``: a finite epsilon for a perfect policy, otherwise nothing.

    A missed secret is read by steps without noise. If no private segment follows it, the model is a
    deterministic function of it; and the noise of later segments is not calibrated to it. A perfect
    policy could redact instead, at epsilon = 0 (CRT, Section 2).

    Args:
        events: The events of the phases
            (:meth:`crtlib.training.selective.SelectivePhase.event`). For a secret that occurs in k
            points, give k times as many.
        gamma: The policy's miss rate; its bound decides.
        delta: The total delta, in (0, 1).
        unit: The data point: "turn", "dialogue" or "user".
        neighbouring_relation: As in :func:`crtlib.accounting.privacy_cost.epsilon`.
        accountant: As in :func:`crtlib.accounting.privacy_cost.epsilon`.

    Returns:
        The guarantee for the private tokens of one ``unit``.

    Raises:
        ValueError: For arguments outside their range.

    Guarantee:
        Epsilon is infinite whenever a miss is possible: if the *bound* on the miss rate is above 0,
        even if no miss was counted. Test:
        ``tests/training/test_selective.py::test_a_guarantee_needs_a_perfect_policy``.
    """
    check_choice("neighbouring_relation", neighbouring_relation, tuple(RELATION_DESCRIPTIONS))
    accountant_bound = privacy_cost.epsilon_and_accountant(
        events, delta=delta, accountant=accountant, neighbouring_relation=neighbouring_relation
    )
    return Guarantee(
        accountant_bound.value if gamma.bound == 0 else math.inf,
        delta=delta,
        unit=f"the private tokens of one {unit}",
        neighbouring_relation=RELATION_DESCRIPTIONS[neighbouring_relation].format(unit),
        accountant=accountant_bound.accountant,
        kind="selective differential privacy",
        gamma=gamma,
        public="every token that is not flagged, where flagged tokens occur between them, and "
        "the batches",
    )
