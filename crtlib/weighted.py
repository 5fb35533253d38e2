"""Weighted DP-SGD (Hush!, Algorithm 2): Poisson sampling with a probability for each point.

>>> phase = WeightedPhase(
...     epoch=1, sampling_probabilities=(0.0, 0.5, 1.0), steps=3, noise_multiplier=3.8,
...     clip_norm=0.1, normaliser=1.5, learning_rate=1e-3,
... )
>>> [b.tolist() for b in phase.batches(torch.ones(3), torch.Generator().manual_seed(0))]
[[2], [2], [1, 2]]
>>> held = sparse.csr_array([[1, 1, 0], [0, 0, 1]])  # two secrets, and who holds them
>>> guarantees(phase.event(), held, prior=0.01)[0].round(3).tolist()
[0.04, 0.082]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from crtlib import protect
from crtlib.ledger import check
from crtlib.posteriors import posterior
from crtlib.train import Part, PrivatePhase, Random, check_positive, uniform


@dataclass(frozen=True, slots=True)
class WeightedGaussian:
    """A phase of weighted DP-SGD: ``steps`` Gaussian mechanisms, each on a fresh sample that holds
    point ``i`` with probability ``sampling_probabilities[i]``, independently."""

    sampling_probabilities: tuple[float, ...]
    noise_multiplier: float
    steps: int

    def __post_init__(self) -> None:
        p = np.asarray(self.sampling_probabilities, dtype=float)
        for end in (p.min(initial=1), p.max(initial=0)):
            check("sampling_probabilities", float(end), 0 <= end <= 1, "in [0, 1]")
        sigma, steps = self.noise_multiplier, self.steps
        check("noise_multiplier", sigma, 0 <= sigma < math.inf, "finite and at least 0")
        check("steps", steps, steps >= 0 and steps == int(steps), "a whole number, at least 0")


@dataclass(frozen=True)
class WeightedPhase:
    """DP-SGD whose points come each with their own probability; else a `PrivatePhase`.

    The probabilities follow from which points hold which secret, and that is public here: unlike
    elsewhere in this library, the number of points is public as well.
    """

    epoch: int
    sampling_probabilities: tuple[float, ...]
    steps: int
    noise_multiplier: float
    clip_norm: float
    normaliser: float
    learning_rate: float
    part: Part = "private"

    order, reads_flags = "poisson", False
    step, rates, updates = PrivatePhase.step, PrivatePhase.rates, PrivatePhase.updates

    def __post_init__(self) -> None:
        each = tuple(map(float, self.sampling_probabilities))
        object.__setattr__(self, "sampling_probabilities", each)
        self.event()  # refuses what is out of range
        check_positive(
            steps=self.steps,
            clip_norm=self.clip_norm,
            normaliser=self.normaliser,
            learning_rate=self.learning_rate,
        )

    def batches(self, lengths: Tensor, generator: Random) -> Iterator[Tensor]:
        """``steps`` Poisson samples of the points, of which there must be one a probability."""
        p = torch.tensor(self.sampling_probabilities, dtype=torch.float64)
        if len(lengths) != len(p):
            raise ValueError(
                f"sampling_probabilities: {len(p)} for {len(lengths)} points: must be one each"
            )
        for _ in range(self.steps):
            yield (uniform(len(p), generator) < p).nonzero().flatten()

    def event(self) -> WeightedGaussian:
        """What an accountant has to know of this phase."""
        return WeightedGaussian(self.sampling_probabilities, self.noise_multiplier, self.steps)


def phases(
    made: protect.Plan, *, epochs: int, clip_norm: float, learning_rate: float
) -> list[WeightedPhase]:
    """The rounds of a plan in ``epochs`` phases, as equal as can be, divided by its batch size."""
    check("epochs", epochs, 1 <= epochs <= made.steps, f"in 1 to {made.steps}, the plan's steps")
    ends = np.linspace(0, made.steps, epochs + 1).round().astype(int)
    return [
        WeightedPhase(
            epoch=k + 1,
            sampling_probabilities=tuple(made.probabilities.tolist()),
            steps=int(steps),
            noise_multiplier=made.noise_multiplier,
            clip_norm=clip_norm,
            normaliser=made.batch_size,
            learning_rate=learning_rate,
        )
        for k, steps in enumerate(np.diff(ends))
    ]


def guarantees(
    events: WeightedGaussian | Iterable[WeightedGaussian],
    incidence: sparse.csr_array,
    *,
    prior,
    mode: str = "reference",
) -> tuple[np.ndarray, np.ndarray]:
    """From what was done: for every secret the bound on a guess by KL, and the KL divergence
    itself in nats, each ``(secrets,)``. ``incidence (secrets, points)`` is 1 where the point
    holds the secret. Divergences of phases add up; without noise a bound is 1."""
    spent = np.zeros(incidence.shape[0])
    for event in (events,) if isinstance(events, WeightedGaussian) else events:
        p = np.asarray(event.sampling_probabilities)
        if len(p) != incidence.shape[1]:
            raise ValueError(f"incidence: has {incidence.shape[1]} points, the phase {len(p)}")
        if event.noise_multiplier == 0:
            spent[incidence @ p > 0] += math.inf
        else:
            spent += event.steps * protect.kl(incidence, p, event.noise_multiplier, mode=mode)
    return posterior(spent, prior), spent
