"""Privacy cost: the epsilon of what was done to private points, and the noise an epsilon needs.

What this promises about a secret that a policy may redact is computed by
:mod:`crtlib.accounting.confidentiality`, and how often the secret can be guessed by
:mod:`crtlib.accounting.guess_bounds`.

>>> phase = SampledGaussian(sampling_probability=0.1, noise_multiplier=2.2477115, steps=100)
>>> round(epsilon(phase, delta=1e-5, neighbouring_relation="add_or_remove"), 4)
2.0
"""

from __future__ import annotations

from crtlib.accounting import accountants
from crtlib.accounting.accountants import (
    ACCOUNTANTS,
    NEIGHBOURING_RELATIONS,
    AccountantBound,
    PrivacyProfile,
)
from crtlib.accounting.events import GroupSizes, SampledGaussian, SampledGaussians
from crtlib.checks import check_allowed, check_choice, check_delta, check_whole_number


def describe_relation(neighbouring_relation: str, accountant: str) -> str:
    """Describe which pairs of datasets a guarantee compares and how that was accounted."""
    if neighbouring_relation == "add_or_remove":
        return "one data point added or removed"
    if neighbouring_relation != "replace":
        return neighbouring_relation
    is_own_accountant = accountant not in ("prv", "autodp")
    if is_own_accountant:
        return "one data point replaced (antipodal pair, proved the worst)"
    return "one data point replaced (as a removal and an addition)"


def epsilon(
    events: SampledGaussians,
    *,
    delta: float,
    accountant: str = "pld",
    neighbouring_relation: str,
    group: GroupSizes = 1,
) -> float:
    """The epsilon of one event, or of several composed, at a ``delta`` in (0, 1).

    Args:
        events: What was done to private points; one event, or several in any order.
        delta: The total delta.
        accountant: "pld" (the privacy loss, composed by tilted Fourier transforms: tight, both
            directions), "rdp" (Renyi divergences), "prv" (Opacus: tight plus 0.01) or "autodp" (the
            CRT authors' choice; Renyi as well).
        neighbouring_relation: "add_or_remove", or "replace" for the exchange of data points.
            Confidentiality needs "replace": the masked point is still a point. For "replace", pld
            and rdp use the antipodal pair, gradients u and -u, which is the worst case (the theorem
            is in the book's chapter on amplification); the other two use 2 epsilon(delta') with
            (1 + e^epsilon(delta')) delta' = delta.
        group: How many points differ (CRT, Definition 3: a person with several points), or how many
            differ in each event, if an earlier run on the same people had smaller data points; pld
            and rdp only.

    Returns:
        An upper bound; infinite if there is no noise. If the accountant has no answer, a looser
        accountant's bound: :func:`epsilon_and_accountant` names it.

    Raises:
        ValueError: For arguments outside their range.

    Guarantee:
        Never below the truth, for these events, this unit (a data point) and this relation: pld and
        rdp charge their numerical errors, and if an answer of the other two lies below that of pld,
        pld's is returned instead. Tests:
        ``tests/accounting/test_privacy_cost.py::test_each_event_may_have_a_group_of_its_own``,
        ``tests/accounting/test_accountants.py::test_never_below_a_test_that_exists``,
        ``tests/accounting/test_accountants.py::test_a_borrowed_accountant_that_errs_is_corrected``.
    """
    check_delta(delta)
    return privacy_profile(
        events, accountant, neighbouring_relation=neighbouring_relation, group=group
    )(delta)


def epsilon_and_accountant(
    events: SampledGaussians,
    *,
    delta: float,
    accountant: str = "pld",
    neighbouring_relation: str,
    group: GroupSizes = 1,
) -> AccountantBound:
    """Return :func:`epsilon` with the name of the accountant whose bound it is.

    >>> terms = {"delta": 1e-5, "neighbouring_relation": "add_or_remove"}
    >>> epsilon_and_accountant(SampledGaussian(0.01, 1.0, 1000), **terms).accountant
    'pld'
    >>> epsilon_and_accountant(SampledGaussian(1e-8, 0.55, 10**12), **terms).accountant
    'rdp'
    """
    check_delta(delta)
    return privacy_profile(
        events, accountant, neighbouring_relation=neighbouring_relation, group=group
    ).answer(delta)


def delta(
    events: SampledGaussians,
    *,
    epsilon: float,
    accountant: str = "pld",
    neighbouring_relation: str,
    group: GroupSizes = 1,
) -> float:
    """The smallest delta that the accountant proves for ``epsilon`` >= 0, which inverts
    ``epsilon()``."""
    check_allowed("epsilon", epsilon, epsilon >= 0, "at least 0")
    return privacy_profile(
        events, accountant, neighbouring_relation=neighbouring_relation, group=group
    ).delta(epsilon)


def noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    sampling_probability: float,
    steps: int,
    accountant: str = "pld",
    neighbouring_relation: str,
) -> float:
    """The least noise multiplier (to 1e-8, on the safe side) that gives at most ``epsilon``.

    Args:
        epsilon: The target, at ``delta``.
        delta: The total delta, in (0, 1).
        sampling_probability: The probability of each private point in each step.
        steps: The number of noisy steps: up to 10^12 within seconds; beyond 200,000 the result is
            precise to 1e-3 only.
        accountant: As in :func:`epsilon`; :func:`epsilon_and_accountant` tells whose bound it rests
            on.
        neighbouring_relation: As in :func:`epsilon`.

    Returns:
        Zero if nothing is released (no steps, or nothing is ever sampled); else at least
        ``accountants.MIN_NOISE_MULTIPLIER``.

    Raises:
        ValueError: For arguments outside their range.

    Guarantee:
        Steps with this noise, or more, cost at most ``epsilon``. Test:
        ``tests/accounting/test_privacy_cost.py::test_calibrate_then_account``.
    """
    check_allowed("epsilon", epsilon, 0 < epsilon <= 10_000, "positive, at most 10000")
    check_delta(delta)
    SampledGaussian(sampling_probability, 1.0, steps)  # refuses what is out of range
    if sampling_probability == 0 or steps == 0:
        return 0.0
    check_choice("accountant", accountant, ACCOUNTANTS)
    check_choice("neighbouring_relation", neighbouring_relation, NEIGHBOURING_RELATIONS)
    return accountants.calibrate_noise(
        epsilon, delta, sampling_probability, int(steps), accountant,
        neighbouring_relation=neighbouring_relation,
    )  # fmt: skip


def privacy_profile(
    events: SampledGaussians,
    accountant: str,
    *,
    neighbouring_relation: str,
    group: GroupSizes = 1,
    coarse: bool = False,
) -> PrivacyProfile:
    """The accountant's privacy profile of these events. Equal events are merged, so that equal
    histories are cached once.

    ``coarse`` is quicker and a little looser.
    """
    check_choice("accountant", accountant, ACCOUNTANTS)
    check_choice("neighbouring_relation", neighbouring_relation, NEIGHBOURING_RELATIONS)
    event_list = [events] if isinstance(events, SampledGaussian) else list(events)
    sizes = [group] * len(event_list) if isinstance(group, (int, float)) else list(group)
    for size in sizes:
        check_whole_number("group", size, 0)
    check_allowed(
        "groups", len(sizes), len(sizes) == len(event_list), f"as many as events, {len(event_list)}"
    )
    steps_by_kind: dict[tuple[float, float, int], int] = {}
    for event, size in zip(event_list, sizes, strict=True):
        if event.steps and event.sampling_probability and size:
            kind = (float(event.sampling_probability), float(event.noise_multiplier), int(size))
            steps_by_kind[kind] = steps_by_kind.get(kind, 0) + int(event.steps)
    kinds = sorted(steps_by_kind)
    merged = tuple((q, sigma, steps_by_kind[q, sigma, size]) for q, sigma, size in kinds)
    distinct_sizes = {size for _, _, size in kinds}
    groups = (
        tuple(size for _, _, size in kinds)
        if len(distinct_sizes) > 1
        else min(distinct_sizes, default=1)
    )
    return accountants.cached_profile(
        merged, accountant, neighbouring_relation=neighbouring_relation, group=groups, coarse=coarse
    )
