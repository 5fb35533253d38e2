"""Schedules: lists of phases that are made from public constants; nothing here sees data.

>>> schedule = crt_phases(
...     epochs=2, pub_passes=1, public_batch_size=16, public_learning_rate=1e-2,
...     private=DpSgdConstants(sampling_probability=0.1, noise_multiplier=1.0, clip_norm=0.1,
...                     normaliser=256, learning_rate=5e-3),
... )
>>> [(type(p).__name__, p.part, p.epoch) for p in schedule]
... # doctest: +NORMALIZE_WHITESPACE
[('PublicPhase', 'public', 1), ('PrivatePhase', 'private', 1),
 ('PublicPhase', 'public', 2), ('PrivatePhase', 'private', 2)]
>>> combine_phase_events(schedule)
SampledGaussian(sampling_probability=0.1, noise_multiplier=1.0, steps=20)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from crtlib.accounting.events import SampledGaussian
from crtlib.checks import check_allowed
from crtlib.training.phases import Phase, PrivatePhase, PublicPhase

if TYPE_CHECKING:  # it solves linear programs, which few trainings need
    from crtlib.accounting.secret_protection import ProtectionPlan


@dataclass(frozen=True, kw_only=True)
class DpSgdConstants:
    """The constants of DP-SGD that every epoch shares."""

    sampling_probability: float
    noise_multiplier: float
    clip_norm: float
    normaliser: float
    learning_rate: float

    @property
    def steps(self) -> int:
        """Steps in one epoch: as many as visit each point once in expectation (CRT, note 3)."""
        return max(1, round(1 / self.sampling_probability))

    def phase(self, epoch: int) -> PrivatePhase:
        """One epoch of DP-SGD."""
        return PrivatePhase(epoch=epoch, steps=self.steps, **vars(self))


def sgd_phases(*, epochs: int, batch_size: int, learning_rate: float) -> list[Phase]:
    """Ordinary training on all points: the "non-private with mask" baseline when redacted."""
    return [PublicPhase(e, "all", 1, batch_size, learning_rate) for e in epoch_numbers(epochs)]


def dpsgd_phases(*, epochs: int, private: DpSgdConstants) -> list[Phase]:
    """DP-SGD on every point (all of them in the part "private")."""
    return [private.phase(e) for e in epoch_numbers(epochs)]


def crt_phases(
    *,
    epochs: int,
    pub_passes: int,
    public_batch_size: int,
    public_learning_rate: float,
    private: DpSgdConstants,
    has_public: bool = True,
) -> list[Phase]:
    """Algorithm 1, lines 5 to 8: an epoch of SGD on D_pub, then one of DP-SGD on D_pri.

    ``pub_passes`` is the number of passes over D_pub in each epoch (literal Algorithm 1: 1).
    Deduplication leaves few public points (61 sentences on CustomerSim), so one pass is a handful
    of steps; more passes cost no confidentiality. Use ``has_public=False`` if D_pub is empty: CRT
    is then DP-SGD on redacted text, as the paper says about ``pi_c = 1``.
    """
    public = PublicPhase(1, "public", pub_passes, public_batch_size, public_learning_rate)
    phases: list[Phase] = []
    for e in epoch_numbers(epochs):
        phases += [replace(public, epoch=e)] if has_public else []
        phases.append(private.phase(e))
    return phases


def jft_phases(*, epochs: int, public: PublicPhase, private: DpSgdConstants) -> list[Phase]:
    """Just Fine-tune Twice (Shi et al., EMNLP 2022): ``epochs`` of ordinary training on redacted
    text (the part "public"), then as many of DP-SGD on the same points unredacted."""
    first: list[Phase] = [replace(public, epoch=e) for e in epoch_numbers(epochs)]
    return first + [private.phase(epochs + e) for e in epoch_numbers(epochs)]


def weighted_phases(
    plan: ProtectionPlan, *, epochs: int, clip_norm: float, learning_rate: float
) -> list[Phase]:
    """The steps of a plan of :mod:`crtlib.accounting.secret_protection` (Hush!), in ``epochs``
    phases of nearly equal length. The normaliser is the plan's batch size.

    Raises ValueError for fewer than one epoch, or more than the plan has steps.
    """
    check_allowed(
        "epochs", epochs, 1 <= epochs <= plan.steps, f"in 1 to {plan.steps}, the plan's steps"
    )
    step_bounds = np.linspace(0, plan.steps, epochs + 1).round().astype(int)
    return [
        PrivatePhase(
            epoch=k + 1,
            sampling_probability=tuple(plan.probabilities.tolist()),
            steps=int(steps),
            noise_multiplier=plan.noise_multiplier,
            clip_norm=clip_norm,
            normaliser=plan.batch_size,
            learning_rate=learning_rate,
        )
        for k, steps in enumerate(np.diff(step_bounds))
    ]


def combine_phase_events(phases: Sequence[Phase]) -> SampledGaussian | None:
    """Combine the events of private phases that share their constants into one; None if there are
    none."""
    events = [event for event in (p.event() for p in phases) if event is not None]
    if not events:
        return None
    if len({(e.sampling_probability, e.noise_multiplier) for e in events}) > 1:  # type: ignore[union-attr]
        raise ValueError("phases: private phases differ in sampling probability or noise")
    return replace(events[0], steps=sum(e.steps for e in events))  # type: ignore[return-value]


def epoch_numbers(epochs: int) -> range:
    """The numbers of the epochs, from 1; raises ValueError if there is none."""
    if epochs < 1:
        raise ValueError(f"epochs={epochs}: must be at least 1")
    return range(1, epochs + 1)
