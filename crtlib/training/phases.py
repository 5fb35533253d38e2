"""Phases: each makes both its batches and the event that is accounted, from public constants only.

>>> phase = PrivatePhase(
...     epoch=1, sampling_probability=(0.0, 0.5, 1.0), steps=3, noise_multiplier=3.8,
...     clip_norm=0.1, normaliser=1.5, learning_rate=1e-3,
... )
>>> [b.tolist() for b in phase.batches(torch.ones(3), torch.Generator().manual_seed(0))]
[[2], [2], [1, 2]]
>>> phase.event()
WeightedGaussian(sampling_probabilities=(0.0, 0.5, 1.0), noise_multiplier=3.8, steps=3)
>>> PublicPhase(1, "public", 1, 2, 1e-2).event() is None
True
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from crtlib.accounting.events import SampledGaussian, WeightedGaussian
from crtlib.checks import check_allowed, check_clip_norm, check_positive
from crtlib.training.devices import is_host, send_to_device
from crtlib.training.noise import RandomSource, draw_uniforms
from crtlib.training.own_losses import Losses
from crtlib.training.steps import (
    LogicalBatch,
    PendingUpdate,
    UpdateKind,
    set_private_gradient,
    set_public_gradient,
)

PartName = Literal["public", "private", "all"]
BatchOrder = Literal["public order", "poisson"]
PrivacyEvent = SampledGaussian | WeightedGaussian
TokenSequences = Sequence[Sequence[int]]
TokenFlags = Sequence[Sequence[bool]]
MAX_PADDING_TOKENS = 1024
"""The tokens of padding that cost a CPU about as much time as another pass of a small model."""
TOKENS_AT_ONCE = 4096
"""The most padded tokens in one forward pass. Larger logical batches are cut, which changes results
only by rounding."""


class Phase(Protocol):
    """The interface of a phase for :func:`crtlib.training.loop.train_model`, with defaults.
    Implementations are :class:`PublicPhase`, :class:`PrivatePhase` and
    :class:`crtlib.training.selective.SelectivePhase`."""

    epoch: int
    """The epoch that it belongs to, counted from 1."""
    part: PartName
    """The points that it reads."""
    order: ClassVar[BatchOrder] = "public order"
    """The generator of its batches: "public order", or "poisson" if they are secret."""
    reads_flags: ClassVar[bool] = False
    """Whether its points come with a flag for each token that tells if the token is private."""
    draws_numbers: ClassVar[bool] = False
    """Whether it draws random numbers in each pass, which then depend on how a batch is cut."""

    @property
    def adds_noise(self) -> bool:
        """Whether some of its updates use private points and get noise."""
        return "private" in self.learning_rates()

    def check(self, model: nn.Module, points: TokenSequences, flags: TokenFlags) -> None:
        """Refuse, before the first step, a model, points or flags that it cannot work with."""
        return None

    def batches(self, lengths: Tensor, generator: RandomSource) -> Iterator[Tensor]:
        """Yield the indices of the points of each batch."""

    def count_batches(self, points: int) -> int:
        """The number of batches that :meth:`batches` yields for this number of points."""

    def event(self) -> PrivacyEvent | None:
        """What an accountant has to know; None if every point is public or unprotected."""

    def learning_rates(self) -> dict[UpdateKind, float]:
        """The learning rate of each kind of update; each kind has an optimizer of its own."""

    def updates(
        self, model: nn.Module, batch: LogicalBatch, noise: RandomSource
    ) -> Iterator[PendingUpdate]:
        """Set ``.grad`` and yield, once for each update that ``batch`` leads to."""


@dataclass(frozen=True)
class PublicPhase(Phase):
    """Ordinary training: shuffled batches, no noise, no guarantee for what it reads.

    ``passes`` is the number of passes over the part; the gradient is that of the mean loss per
    token.
    """

    epoch: int
    part: PartName
    passes: int
    batch_size: int
    learning_rate: float

    def __post_init__(self) -> None:
        check_positive(
            passes=self.passes, batch_size=self.batch_size, learning_rate=self.learning_rate
        )

    def batches(self, lengths: Tensor, generator: RandomSource) -> Iterator[Tensor]:
        """Yield index tensors that cover all points once per pass, shuffled.

        Four batches at a time are cut from one random block sorted by ``lengths``, and come in
        random order. This cuts padding, which would take most of the time, to a third.
        """
        assert isinstance(generator, torch.Generator)  # the order of public points is no secret
        for _ in range(self.passes):
            shuffled = torch.randperm(len(lengths), generator=generator)
            for block in shuffled.split(4 * self.batch_size):
                batches = block[lengths[block].argsort(stable=True)].split(self.batch_size)
                for k in torch.randperm(len(batches), generator=generator).tolist():
                    yield batches[k]

    def count_batches(self, points: int) -> int:
        """The number of batches in all passes."""
        return self.passes * math.ceil(points / self.batch_size)

    def event(self) -> None:
        """None, because every point is public."""
        return None

    def learning_rates(self) -> dict[UpdateKind, float]:
        """The learning rate of each kind of update."""
        return {"public": self.learning_rate}

    def updates(
        self,
        model: nn.Module,
        batch: LogicalBatch,
        noise: RandomSource,
        losses: Losses | None = None,
    ) -> Iterator[PendingUpdate]:
        """Yield one update, by :func:`set_public_gradient`."""
        yield PendingUpdate("public", loss=set_public_gradient(model, batch, losses))


@dataclass(frozen=True)
class PrivatePhase(Phase):
    """DP-SGD with Poisson sampling (Abadi et al. 2016): every field is a public constant.

    ``sampling_probability`` is one number, in (0, 1], or one for each point, in [0, 1] (weighted
    DP-SGD: Hush!, Algorithm 2). There, the probabilities follow from which points hold which
    secret, and that is public; so, unlike elsewhere, the number of points is public too.

    ``normaliser`` divides the noisy sum; it is the expected batch size, fixed in advance. Dividing
    by the size of the drawn batch, or by ``int(n * q)``, would spend budget that is not accounted.
    An empty batch still adds noise and counts as a step.
    """

    epoch: int
    sampling_probability: float | tuple[float, ...]
    steps: int
    noise_multiplier: float
    clip_norm: float
    normaliser: float
    learning_rate: float
    part: PartName = "private"

    order: ClassVar[BatchOrder] = "poisson"

    def __post_init__(self) -> None:
        p, name = self.sampling_probability, "sampling_probability"
        if isinstance(p, Sequence | np.ndarray):
            probabilities = tuple(float(x) for x in p)
            object.__setattr__(self, name, probabilities)
            for x in probabilities:
                check_allowed(name, x, 0 <= x <= 1, "in [0, 1]")
        else:
            check_allowed(name, p, 0 < p <= 1, "in (0, 1]")
        check_positive(
            steps=self.steps,
            normaliser=self.normaliser,
            learning_rate=self.learning_rate,
        )
        check_clip_norm(self.clip_norm)
        self.event()  # refuses other values that are out of range

    def check(self, model: nn.Module, points: TokenSequences, flags: TokenFlags) -> None:
        """Refuse points whose number differs from the number of probabilities."""
        self._probabilities(len(points))

    def _probabilities(self, points: int) -> Tensor | float:
        p = self.sampling_probability
        if not isinstance(p, tuple):
            return p
        if len(p) != points:
            raise ValueError(
                f"sampling_probability: {len(p)} values for {points} points: must be one per point"
            )
        return torch.tensor(p, dtype=torch.float64)

    def batches(self, lengths: Tensor, generator: RandomSource) -> Iterator[Tensor]:
        """Yield ``steps`` Poisson samples of the points.

        Args:
            lengths: ``(points,)``; only their number is read.
            generator: Used for these samples only; "secure" draws from the operating system.

        Returns:
            Indices of the points of each batch, in order; a batch may be empty.

        Raises:
            ValueError: If the number of points differs from the number of probabilities.

        Guarantee:
            Each index is in each batch with probability ``sampling_probability``, independently:
            this is the sampler that :meth:`event` accounts for. Tests:
            ``tests/training/test_phases.py::test_each_point_is_sampled_with_its_own_probability``,
            ``tests/training/test_loop.py::
            test_the_sampler_is_poisson_with_the_probability_of_the_event``.
        """
        p = self._probabilities(len(lengths))
        for _ in range(self.steps):
            yield (draw_uniforms(len(lengths), generator) < p).nonzero().flatten()

    def count_batches(self, points: int) -> int:
        """As many as ``steps``, however many points there are."""
        return self.steps

    def event(self) -> PrivacyEvent:
        """What an accountant has to know of this phase.

        Returns:
            The steps of the phase as one event: a :class:`WeightedGaussian` if each point has a
            probability of its own.

        Guarantee:
            Sampling probability, noise and steps are those of :meth:`batches` and :meth:`updates`:
            one object makes the batches and the event that is accounted. Tests:
            ``tests/training/test_phases.py::test_the_count_of_a_group_has_the_accounted_law``,
            ``tests/training/test_loop.py::
            test_the_sampler_is_poisson_with_the_probability_of_the_event``,
            ``tests/training/test_loop.py::test_an_empty_batch_still_adds_noise_and_counts``.
        """
        p = self.sampling_probability
        if isinstance(p, tuple):
            return WeightedGaussian(p, self.noise_multiplier, self.steps)
        return SampledGaussian(p, self.noise_multiplier, self.steps)

    def examples(self, batch: LogicalBatch, noise: RandomSource) -> Iterator[tuple[Tensor, ...]]:
        """Yield the micro-batches of a batch as the model reads them: ``(tokens, lengths)``, or
        with targets as a third item. Here the batch is unchanged, so that each next token is
        predicted; a subclass may yield other tokens and targets."""
        yield from batch

    def learning_rates(self) -> dict[UpdateKind, float]:
        """The learning rate of each kind of update."""
        return {"private": self.learning_rate}

    def updates(
        self,
        model: nn.Module,
        batch: LogicalBatch,
        noise: RandomSource,
        losses: Losses | None = None,
    ) -> Iterator[PendingUpdate]:
        """Yield one update: :func:`crtlib.training.steps.set_private_gradient` of
        :meth:`examples`."""
        non_finite = set_private_gradient(
            model,
            self.examples(batch, noise),
            clip_norm=self.clip_norm,
            noise_multiplier=self.noise_multiplier,
            normaliser=self.normaliser,
            noise=noise,
            losses=losses,
        )
        yield PendingUpdate("private", non_finite)


def is_plain_phase(phase: Phase) -> bool:
    """Whether a phase is exactly a :class:`PublicPhase` or a :class:`PrivatePhase`: a subclass may
    do something else with its batches. Only these two take custom losses and loss masks, and run in
    several processes."""
    return type(phase) in (PublicPhase, PrivatePhase)


def collate_micro_batches(
    points: TokenSequences | TokenFlags,
    indices: Sequence[int],
    device: torch.device,
    at_once: int = TOKENS_AT_ONCE,
    *,
    as_few_as_possible: bool = True,
) -> LogicalBatch:
    """Return micro-batches of points of similar length, with at most ``at_once`` padded targets
    each. The tokens are on ``device``, the lengths on the host, where they are read. On a CPU,
    unless ``as_few_as_possible``, each has at most ``MAX_PADDING_TOKENS`` tokens of padding."""
    cuts_padding = is_host(device) and not as_few_as_possible
    max_padding = MAX_PADDING_TOKENS if cuts_padding else math.inf
    rows = sorted((points[i] for i in indices), key=len)
    batch: LogicalBatch = []
    start = 0
    while start < len(rows):
        end = start + 1
        padding = 0  # tokens of padding in the block with the next row
        while end < len(rows) and (end + 1 - start) * (len(rows[end]) - 1) <= at_once:
            padding += (end - start) * (len(rows[end]) - len(rows[end - 1]))
            if padding > max_padding:
                break
            end += 1
        block = rows[start:end]
        tokens = np.zeros((len(block), len(block[-1])), dtype=np.int64)
        for i, row in enumerate(block):  # in an eighth of the time that torch takes
            tokens[i, : len(row)] = row
        lengths = torch.tensor([len(row) for row in block])
        batch.append((send_to_device(torch.from_numpy(tokens), device), lengths))
        start = end
    return batch
