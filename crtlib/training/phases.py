"""Phases: each makes both its batches and its ledger entry, from public constants only.

>>> PublicPhase(1, "public", 1, 2, 1e-2).event() is None
True
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from crtlib.accounting.events import SampledGaussian
from crtlib.checks import check_positive
from crtlib.training import clipping
from crtlib.training.noise import Random, add_noise, uniform

Part = Literal["public", "private", "all"]
Kind = Literal["public", "private"]
TOKENS_AT_ONCE = 4096
"""Padded tokens of one forward pass: larger logical batches are cut, which changes no result."""


@dataclass(frozen=True)
class PublicPhase:
    """Ordinary training: shuffled batches, no noise, no guarantee for what it reads.

    ``passes`` counts runs over the part; the gradient is that of the mean loss per token.
    """

    epoch: int
    part: Part
    passes: int
    batch_size: int
    learning_rate: float

    order, reads_flags = "public order", False

    def __post_init__(self) -> None:
        check_positive(
            passes=self.passes, batch_size=self.batch_size, learning_rate=self.learning_rate
        )

    def batches(self, lengths: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        """Index tensors that cover the points once a pass, shuffled.

        Four batches at a time are cut from one draw sorted by ``lengths``, and come in random
        order: padding, which most of the time would go into, shrinks to a third.
        """
        for _ in range(self.passes):
            shuffled = torch.randperm(len(lengths), generator=generator)
            for block in shuffled.split(4 * self.batch_size):
                batches = block[lengths[block].argsort(stable=True)].split(self.batch_size)
                for k in torch.randperm(len(batches), generator=generator).tolist():
                    yield batches[k]

    def event(self) -> None:
        """Nothing to account: every point that this phase reads is public, or unprotected."""
        return None

    def step(self, model: nn.Module, batch: Batch, noise: Random) -> None:
        """Set ``.grad`` to the gradient of the mean token loss of ``batch``."""
        for tokens, lengths in batch:
            clipping.plain_sum(model, tokens, lengths, reduction="sum")
        count = sum(int((lengths - 1).sum()) for _, lengths in batch)
        for p in _trainable(model):
            p.grad.div_(max(count, 1))

    def rates(self) -> dict[Kind, float]:
        """The learning rate of each kind of update."""
        return {"public": self.learning_rate}

    def updates(self, model: nn.Module, batch: Batch, noise: Random) -> Iterator[Kind]:
        """One :meth:`step`."""
        self.step(model, batch, noise)
        yield "public"


@dataclass(frozen=True)
class PrivatePhase:
    """DP-SGD with Poisson sampling (Abadi et al. 2016): every field is a public constant.

    ``normaliser`` divides the noisy sum (the expected batch size, fixed in advance): dividing by
    the size of the batch that was drawn, or by ``int(n * q)``, would spend budget that is not
    accounted. An empty batch still adds noise and counts as a step.
    """

    epoch: int
    sampling_probability: float
    steps: int
    noise_multiplier: float
    clip_norm: float
    normaliser: float
    learning_rate: float
    part: Part = "private"

    order, reads_flags = "poisson", False

    def __post_init__(self) -> None:
        if not 0 < self.sampling_probability <= 1:
            raise ValueError(f"sampling_probability={self.sampling_probability}: must be in (0, 1]")
        if self.noise_multiplier < 0:
            raise ValueError(f"noise_multiplier={self.noise_multiplier}: must not be negative")
        check_positive(
            steps=self.steps,
            clip_norm=self.clip_norm,
            normaliser=self.normaliser,
            learning_rate=self.learning_rate,
        )

    def batches(self, lengths: Tensor, generator: Random) -> Iterator[Tensor]:
        """``steps`` Poisson samples of the points: each index is in each batch with probability
        ``sampling_probability``, independently. Nothing else of ``lengths`` is read but their
        number."""
        for _ in range(self.steps):
            drawn = uniform(len(lengths), generator)
            yield (drawn < self.sampling_probability).nonzero().flatten()

    def event(self) -> SampledGaussian:
        """What an accountant has to know of this phase."""
        return SampledGaussian(self.sampling_probability, self.noise_multiplier, self.steps)

    def step(self, model: nn.Module, batch: Batch, noise: Random) -> None:
        """Set ``.grad`` to (sum of clipped gradients + noise) / normaliser."""
        for tokens, lengths in batch:
            clipping.clipped_sum(model, tokens, lengths, clip_norm=self.clip_norm)
        parameters = _trainable(model)
        add_noise(parameters, std=self.noise_multiplier * self.clip_norm, generator=noise)
        for p in parameters:
            p.grad.div_(self.normaliser)

    def rates(self) -> dict[Kind, float]:
        """The learning rate of each kind of update."""
        return {"private": self.learning_rate}

    def updates(self, model: nn.Module, batch: Batch, noise: Random) -> Iterator[Kind]:
        """One :meth:`step`."""
        self.step(model, batch, noise)
        yield "private"


Batch = list[tuple[Tensor, ...]]
"""Micro-batches ``(tokens (B, L), lengths (B,))`` of one logical batch; empty for no points. For a
phase that reads flags, ``(tokens, lengths, flags (B, L))``."""


class Phase(Protocol):
    """What :func:`train` asks of a phase; here public and private ones, and
    :class:`crtlib.training.selective.SelectivePhase`."""

    epoch: int
    part: Part
    order: str
    """The generator of its batches: "public order", or "poisson" where they are secret."""
    reads_flags: bool
    """Whether its points come with a flag for each token; it then has ``check`` as well."""

    def batches(self, lengths: Tensor, generator: Random) -> Iterator[Tensor]:
        """Indices of the points of each batch."""

    def event(self) -> SampledGaussian | None:
        """What an accountant has to know."""

    def rates(self) -> dict[Kind, float]:
        """The learning rate of each kind of update; each kind has an optimizer of its own."""

    def updates(self, model: nn.Module, batch: Batch, noise: Random) -> Iterator[Kind]:
        """Set ``.grad`` and yield the kind, once for each update that ``batch`` gives."""


def collate(
    sequences: Sequence[Sequence[int]], indices: Sequence[int], device: torch.device
) -> Batch:
    """Micro-batches of similar length, of at most ``TOKENS_AT_ONCE`` padded tokens each."""
    rows = sorted((sequences[i] for i in indices), key=len)
    batch, start = [], 0
    while start < len(rows):
        end = start + 1
        while end < len(rows) and (end + 1 - start) * len(rows[end]) <= TOKENS_AT_ONCE:
            end += 1
        block = rows[start:end]
        tokens = torch.zeros(len(block), len(block[-1]), dtype=torch.long)
        for i, row in enumerate(block):
            tokens[i, : len(row)] = torch.as_tensor(row)
        lengths = torch.tensor([len(row) for row in block])
        batch.append((tokens.to(device), lengths.to(device)))
        start = end
    return batch


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]
