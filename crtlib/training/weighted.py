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

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from crtlib.accounting import secrets
from crtlib.accounting.events import WeightedGaussian
from crtlib.checks import check, check_positive
from crtlib.training.noise import Random, uniform
from crtlib.training.phases import Part, PrivatePhase


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
    made: secrets.Plan, *, epochs: int, clip_norm: float, learning_rate: float
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
