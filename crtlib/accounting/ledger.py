"""The ledger: what was done to private points, and what it costs.

What was done to private points, as an accountant has to know it.

>>> SampledGaussian(sampling_probability=0.1, noise_multiplier=1.0, steps=20).steps
20

The ledger: from what was done to private points to what it costs.

>>> phase = SampledGaussian(sampling_probability=0.1, noise_multiplier=2.2477115, steps=100)
>>> round(epsilon(phase, delta=1e-5), 4)
2.0

What this differential privacy makes of a secret that a policy may redact is
:mod:`crtlib.accounting.guarantees`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from crtlib.accounting import accountants
from crtlib.accounting.accountants import ACCOUNTANTS, RELATIONS, Answer, Profile
from crtlib.checks import check, check_choice, check_delta, check_shares, check_whole


def _check(noise_multiplier: float, steps: int) -> None:
    allowed = 0 <= noise_multiplier < math.inf
    check("noise_multiplier", noise_multiplier, allowed, "finite and at least 0")
    check_whole("steps", steps, 0)


@dataclass(frozen=True)
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
        check_shares(sampling_probability=self.sampling_probability)
        _check(self.noise_multiplier, self.steps)


Events = SampledGaussian | Iterable[SampledGaussian]  # one phase, or several composed


@dataclass(frozen=True)
class WeightedGaussian:
    """A phase of weighted DP-SGD: ``steps`` Gaussian mechanisms, each on a fresh sample that holds
    point ``i`` with probability ``sampling_probabilities[i]``, independently."""

    sampling_probabilities: tuple[float, ...]
    noise_multiplier: float
    steps: int

    def __post_init__(self) -> None:
        p = np.asarray(self.sampling_probabilities, dtype=float)
        for end in (p.min(initial=1), p.max(initial=0)):
            check_shares(sampling_probabilities=float(end))
        _check(self.noise_multiplier, self.steps)


Group = int | Sequence[int]  # how many points differ, in all events or in each


def describe_relation(neighbouring_relation: str, accountant: str) -> str:
    """In words, which pairs of datasets a guarantee compares and how that was accounted."""
    if neighbouring_relation == "add_or_remove":
        return "one data point added or removed"
    if neighbouring_relation != "replace":
        return neighbouring_relation
    ours = accountant not in ("prv", "autodp")
    how = "antipodal pair, proved the worst" if ours else "as a removal and an addition"
    return f"one data point replaced ({how})"


def epsilon(
    events: Events,
    *,
    delta: float,
    accountant: str = "pld",
    neighbouring_relation: str = "add_or_remove",
    group: Group = 1,
) -> float:
    """The epsilon of one event, or of several composed, at a ``delta`` in (0, 1).

    ``accountant``: "pld" (the privacy loss, composed by tilted Fourier transforms: tight, both
    directions), "rdp" (Renyi divergences), "prv" (Opacus: tight plus 0.01) or "autodp" (the CRT
    authors' choice; Renyi as well). None is ever below the truth: pld and rdp charge their
    numerical errors, and an answer of the other two that lies below pld's is replaced by it.
    ``neighbouring_relation``: "add_or_remove", or "replace" for the exchange of data points,
    which is what confidentiality needs: the masked point is still a point. For "replace" pld and
    rdp use the antipodal pair, gradients u and -u, which is the worst (the theorem stands in the
    book's chapter on amplification); the other two use 2 epsilon(delta') with
    (1 + e^epsilon(delta')) delta' = delta. ``group``: how many points differ (Definition 3, a
    person with several points), or how many in each event, where an earlier run had smaller data
    points (an odometer composes such runs); pld and rdp only.

    Where the accountant has no answer, that of a looser bound is given: :func:`answer` names it.
    Infinite where there is no noise. Raises ValueError for arguments outside their range.
    """
    check_delta(delta)
    return profile(events, accountant, neighbouring_relation, group)(delta)


def answer(
    events: Events,
    *,
    delta: float,
    accountant: str = "pld",
    neighbouring_relation: str = "add_or_remove",
    group: Group = 1,
) -> Answer:
    """:func:`epsilon`, with the name of the accountant whose bound it is.

    >>> answer(SampledGaussian(0.01, 1.0, 1000), delta=1e-5).accountant
    'pld'
    >>> answer(SampledGaussian(1e-8, 0.55, 10**12), delta=1e-5).accountant
    'rdp'
    """
    check_delta(delta)
    return profile(events, accountant, neighbouring_relation, group).answer(delta)


def delta(
    events: Events,
    *,
    epsilon: float,
    accountant: str = "pld",
    neighbouring_relation: str = "add_or_remove",
    group: Group = 1,
) -> float:
    """The smallest delta the accountant shows for ``epsilon`` >= 0: ``epsilon()`` inverted."""
    check("epsilon", epsilon, epsilon >= 0, "at least 0")
    return profile(events, accountant, neighbouring_relation, group).delta(epsilon)


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

    Zero where nothing is released (no steps, or nothing is ever sampled); else at least
    ``accountants.LEAST_SIGMA``. Answers within seconds for any delta and up to 10^12 steps
    (beyond 200,000 steps to 1e-3); :func:`answer` tells whose bound it rests on.
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


def profile(
    events: Events, accountant: str, relation: str, group: Group = 1, *, coarse: bool = False
) -> Profile:
    """The accountant's curve; equal events are merged, so that equal histories are cached once.

    ``coarse`` is quicker and a little looser.
    """
    check_choice("accountant", accountant, ACCOUNTANTS)
    check_choice("neighbouring_relation", relation, RELATIONS)
    every = [events] if isinstance(events, SampledGaussian) else list(events)
    sizes = [group] * len(every) if isinstance(group, (int, float)) else list(group)
    for size in sizes:
        check_whole("group", size, 0)
    check("groups", len(sizes), len(sizes) == len(every), f"as many as events, {len(every)}")
    total: dict[tuple[float, float, int], int] = {}
    for e, size in zip(every, sizes, strict=True):
        if e.steps and e.sampling_probability and size:
            key = (float(e.sampling_probability), float(e.noise_multiplier), int(size))
            total[key] = total.get(key, 0) + int(e.steps)
    keys = sorted(total)
    merged = tuple((q, sigma, total[q, sigma, size]) for q, sigma, size in keys)
    alike = {size for _, _, size in keys}
    groups = tuple(size for _, _, size in keys) if len(alike) > 1 else min(alike, default=1)
    return accountants.profile(merged, accountant, relation, groups, coarse)
