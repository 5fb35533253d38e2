"""What was done to the secrets (events), what it costs (accountants), how it is printed.

>>> phase = SampledGaussian(sampling_probability=0.1, noise_multiplier=2.2477115, steps=100)
>>> round(epsilon(phase, delta=1e-5), 4)
2.0
>>> print(Guarantee(2.0, 1e-5, "turn", "add_or_remove", "pld"))  # doctest: +ELLIPSIS
(2, 1e-05) differential privacy; unit: turn; neighbours: one data point added or removed; ...

What this differential privacy makes of a secret that a policy may redact is
:mod:`crtlib.accounting.confidentiality`.
"""

from __future__ import annotations

from crtlib.accounting import accountants
from crtlib.accounting.accountants import ACCOUNTANTS, RELATIONS, Profile
from crtlib.accounting.events import Events, SampledGaussian
from crtlib.checks import check, check_choice, check_delta


def describe_relation(neighbouring_relation: str, accountant: str) -> str:
    """In words, which pairs of datasets a guarantee compares and how that was accounted."""
    if neighbouring_relation == "add_or_remove":
        return "one data point added or removed"
    if neighbouring_relation != "replace":
        return neighbouring_relation
    pair = "antipodal pair, the worst in every check and not proved to be"
    how = pair if accountant == "pld" else "generic bound for groups of two"
    return f"one data point replaced ({how})"


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
