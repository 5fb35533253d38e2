"""What was done to private points, in the form that an accountant needs.

>>> SampledGaussian(sampling_probability=0.1, noise_multiplier=1.0, steps=20).steps
20
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from crtlib.checks import check_allowed, check_probabilities, check_whole_number

NOISE_END = 11.41
"""The largest number of :func:`crtlib.training.noise.box_muller`, in standard deviations, rounded
down: true Gaussian noise has no end."""
CHARGED_LOSS_MARGIN = 10.0
"""How far a privacy loss must exceed epsilon in one step for an accountant to have charged it,
whatever the other steps show."""
GroupSizes = int | Sequence[int]  # how many points differ, in all events or in each


def _check_noise_and_steps(noise_multiplier: float, steps: int) -> None:
    allowed = 0 <= noise_multiplier < math.inf
    check_allowed("noise_multiplier", noise_multiplier, allowed, "finite and at least 0")
    check_whole_number("steps", steps, 0)


@dataclass(frozen=True)
class SampledGaussian:
    """A phase of DP-SGD: ``steps`` Gaussian mechanisms, each on a fresh Poisson sample.

    ``noise_multiplier`` is the standard deviation of the noise divided by the clip norm. The
    guarantee holds for a sampler that takes each point independently with
    ``sampling_probability``; shuffled batches of a fixed size are a different mechanism.
    """

    sampling_probability: float
    noise_multiplier: float
    steps: int

    def __post_init__(self) -> None:
        check_probabilities(sampling_probability=self.sampling_probability)
        _check_noise_and_steps(self.noise_multiplier, self.steps)


SampledGaussians = SampledGaussian | Iterable[SampledGaussian]  # one phase, or several composed


def count_private_steps(events: Iterable[object]) -> dict[tuple[float, float], int]:
    """Count the steps by noise multiplier and sampling probability, over all sampled Gaussians in
    ``events``.

    >>> count_private_steps([SampledGaussian(0.1, 1.0, 20), SampledGaussian(0.1, 1.0, 5)])
    {(1.0, 0.1): 25}
    """
    steps = Counter[tuple[float, float]]()
    for event in events:
        if isinstance(event, SampledGaussian):
            steps[event.noise_multiplier, event.sampling_probability] += event.steps
    return dict(steps)


def delta_of_noise_end(
    events: Iterable[SampledGaussian],
    groups: Sequence[int],
    neighbouring_relation: str,
    epsilon: float,
) -> float:
    """The part of delta at ``epsilon`` that no accountant charges, because they assume Gaussian
    noise and ours ends at ``NOISE_END``.

    In each step some of the points that differ may be drawn, and may move one coordinate by s
    standard deviations, to where the noise of the other data set cannot be. Such outcomes count
    here unless their privacy loss as an accountant sees it, ``s (NOISE_END - s / 2)`` plus the
    logarithm of the chance of that draw, exceeds epsilon by ``CHARGED_LOSS_MARGIN``: then they are
    in the accountant's delta. ``groups``: how many points differ, for each event.

    >>> step = SampledGaussian(sampling_probability=1.0, noise_multiplier=0.25, steps=1)
    >>> [f"{delta_of_noise_end([step], [1], 'replace', epsilon):.0e}" for epsilon in (66.0, 3.0)]
    ['3e-04', '0e+00']
    """
    total = 0.0
    for event, group in zip(events, groups, strict=True):
        drawn_counts = np.arange(1, group + 1)
        chance = stats.binom.pmf(drawn_counts, group, event.sampling_probability)
        # Where a point may not be drawn, the other data set's noise is around a sum without it too.
        is_exchanged = neighbouring_relation == "replace" and event.sampling_probability == 1
        shift = drawn_counts * (2 if is_exchanged else 1) / max(event.noise_multiplier, 1e-9)
        capped_shift = np.minimum(shift, NOISE_END)
        with np.errstate(divide="ignore"):
            loss = capped_shift * (NOISE_END - capped_shift / 2) + np.log(chance)
        uncharged = loss <= epsilon + CHARGED_LOSS_MARGIN
        total += event.steps * float((chance * special.ndtr(shift - NOISE_END))[uncharged].sum())
    return min(1.0, total)


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
            check_probabilities(sampling_probabilities=float(end))
        _check_noise_and_steps(self.noise_multiplier, self.steps)
