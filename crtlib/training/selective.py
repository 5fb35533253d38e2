"""S-DP (Shi et al. 2022), a baseline of CRT, which puts noise on the private tokens only.

Text is read raw, and a policy decides which tokens are private. Each sequence is cut where that
changes: public segments get ordinary steps and private ones clipped and noised steps, and the LSTM
state that leaves a private segment is clipped and noised as well.

>>> text, private = "abcdefgh", [False, True, True, False, False, False, True, False]
>>> [(text[i:j], text[i + 1 : j + 1]) for i, j in split_into_segments(private)]  # inputs, targets
[('', ''), ('abc', 'bcd'), ('de', 'ef'), ('fg', 'gh')]

What the policy misses lies in a public segment and is learned like any other word:

>>> from crtlib.accounting.guarantees import BoundedRate
>>> from crtlib.accounting.selective_privacy import selective_guarantee
>>> event = SampledGaussian(sampling_probability=1.0, noise_multiplier=20.0, steps=24)
>>> for rate in (0.0, 0.05):
...     missed = BoundedRate(rate)
...     promise = selective_guarantee(
...         event, gamma=missed, delta=8e-5, unit="turn", neighbouring_relation="replace"
...     )
...     print(f"{promise.epsilon:.2f}")
1.69
inf
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from crtlib.accounting.events import SampledGaussian
from crtlib.checks import check_allowed, check_clip_norm, check_positive
from crtlib.models import recurrent_lm
from crtlib.models.recurrent import Lstm
from crtlib.training.devices import send_to_device
from crtlib.training.gradient_entries import clip_factors
from crtlib.training.noise import RandomSource, draw_normals
from crtlib.training.phases import PartName, Phase, TokenFlags, TokenSequences
from crtlib.training.steps import (
    LogicalBatch,
    PendingUpdate,
    UpdateKind,
    set_private_gradient,
    set_public_gradient,
)


# --------------------------------------------------------------------------- S-DP
def split_into_segments(private: Sequence[bool]) -> list[tuple[int, int]]:
    """The inputs ``[i, j)`` of each segment, with targets one further on; even ones are public.

    A position is private if its token or its target is. So a private segment starts at the public
    token before it, and includes a single public token between two private ones. The last token has
    no target and no position. If the first position is private, an empty public segment comes
    first.
    """
    marks = [a or b for a, b in itertools.pairwise(private)]
    segments = [(0, 0)] if marks and marks[0] else []
    start = 0
    for _, run in itertools.groupby(map(bool, marks)):
        end = start + sum(1 for _ in run)
        segments.append((start, end))
        start = end
    return segments


def max_private_segments(flags: Iterable[Sequence[bool]]) -> int:
    """The most private segments that a point has: the smallest ``private_segments`` possible."""
    return max((len(split_into_segments(row)) // 2 for row in flags), default=0)


@dataclass(frozen=True, kw_only=True)
class SelectivePhase(Phase):
    """One epoch of S-DP: a pass over shuffled batches, each point in one of them.

    For the t-th segment of all sequences of a batch there is one update. If the segment is public,
    it is the gradient of the mean loss per token; if it is private, (sum of gradients clipped to
    ``clip_norm`` + noise) / ``batch_size``. After a private segment, output and cell of the LSTM
    are each clipped to ``hidden_clip``, noised with the same ``noise_multiplier``, and passed to
    the next segment (``None``: zeros are passed, which costs nothing). No gradient crosses a
    boundary.

    ``private_segments`` is the most that a point may have, a public constant; a point with more is
    refused. Unlike in the reference code, the noise of an update does not grow when few sequences
    have a t-th segment, public gradients are not clipped, and the learning rate is constant.
    """

    epoch: int
    batch_size: int
    private_segments: int
    noise_multiplier: float
    clip_norm: float
    hidden_clip: float | None
    public_learning_rate: float
    private_learning_rate: float
    part: PartName = "all"

    reads_flags: ClassVar[bool] = True
    draws_numbers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("private_segments", "noise_multiplier"):
            value = getattr(self, name)
            check_allowed(name, value, 0 <= value < math.inf, "finite and at least 0")
        for name in ("batch_size", "public_learning_rate", "private_learning_rate"):
            value = getattr(self, name)
            check_allowed(name, value, 0 < value < math.inf, "finite and positive")
        check_clip_norm(self.clip_norm)
        if self.hidden_clip is not None:
            check_positive(hidden_clip=self.hidden_clip)

    def check(self, model: nn.Module, points: TokenSequences, flags: TokenFlags) -> None:
        """Refuse, before the first step, a model or flags that this phase cannot work with."""
        _single_lstm_layer(model)
        if [len(row) for row in points] != [len(row) for row in flags]:
            raise ValueError(
                f"private_tokens: must have a flag for each token of the {len(points)} points"
            )
        max_segments = max_private_segments(flags)
        if max_segments > self.private_segments:
            raise ValueError(
                f"private_segments={self.private_segments}: a point has {max_segments}; "
                "allow as many"
            )

    def batches(self, lengths: Tensor, generator: RandomSource) -> Iterator[Tensor]:
        """Yield each point once, shuffled. Only the number of ``lengths`` is read: if points were
        sorted by length, the length of a private name would move other points to other batches."""
        assert isinstance(generator, torch.Generator)  # the order promises nothing
        yield from torch.randperm(len(lengths), generator=generator).split(self.batch_size)

    def count_batches(self, points: int) -> int:
        """The number of batches in one pass over the points."""
        return math.ceil(points / self.batch_size)

    def event(self) -> SampledGaussian:
        """The most Gaussian mechanisms in this epoch that a point takes part in.

        Each private segment is one update and, with ``hidden_clip``, two releases (output and
        cell). None is amplified by sampling: the public segments of a point are learned without
        noise in the same batch, which reveals that the point is in it.
        """
        mechanisms = 1 if self.hidden_clip is None else 3  # per segment
        return SampledGaussian(1.0, self.noise_multiplier, mechanisms * self.private_segments)

    def learning_rates(self) -> dict[UpdateKind, float]:
        """The learning rate of each kind of update."""
        return {"public": self.public_learning_rate, "private": self.private_learning_rate}

    def updates(
        self, model: nn.Module, batch: LogicalBatch, noise: RandomSource
    ) -> Iterator[PendingUpdate]:
        """Set ``.grad`` and yield the update, segment by segment."""
        layer = _single_lstm_layer(model)
        zeros = layer.bias.detach().new_zeros(1, layer.size)
        segmented_batches = [
            _SegmentedBatch.make(tokens, lengths, flags, zeros) for tokens, lengths, flags in batch
        ]
        segment_counts = [len(cuts) for segmented in segmented_batches for cuts in segmented.cuts]
        for t in range(max(segment_counts, default=0)):
            if t % 2 == 0:
                public_segments = self._segment(layer, segmented_batches, t, noise)
                # There is no target if every sequence begins with a private segment.
                if set_public_gradient(model, public_segments) is not None:
                    yield PendingUpdate("public")
                continue
            non_finite = set_private_gradient(
                model,
                self._segment(layer, segmented_batches, t, noise),
                clip_norm=self.clip_norm,
                noise_multiplier=self.noise_multiplier,
                normaliser=self.batch_size,
                noise=noise,
            )
            yield PendingUpdate("private", non_finite)

    def _segment(
        self, layer: Lstm, segmented_batches: list[_SegmentedBatch], t: int, noise: RandomSource
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield segment ``t`` as ``(tokens, lengths)``, one micro-batch after the other. The step
        reads each from the state that its rows have reached; then their state is moved on."""
        for segmented in segmented_batches:
            rows, tokens, sizes = segmented.segment(t)
            if not len(rows):
                continue
            with layer.carrying(tuple(x[rows] for x in segmented.state)):
                yield tokens, sizes + 1  # the step takes its gradient before it requests more
                states = layer.state_after(sizes)
            for state_rows, x in zip(segmented.state, states, strict=True):
                state_rows[rows] = self.released(x, noise) if t % 2 else x

    def released(self, x: Tensor, noise: RandomSource) -> Tensor:
        """Clip rows (batch, hidden) to ``hidden_clip``, and add noise of ``noise_multiplier``."""
        if self.hidden_clip is None:
            return torch.zeros_like(x)
        factors = clip_factors(torch.linalg.vector_norm(x, dim=1, keepdim=True), self.hidden_clip)
        clipped = (x * factors).masked_fill(factors == 0, 0)  # a row that is not finite
        if self.noise_multiplier == 0:
            return clipped
        return clipped + self.noise_multiplier * self.hidden_clip * draw_normals(x, noise)


def _single_lstm_layer(model: nn.Module) -> Lstm:
    layers = list(model.layers) if isinstance(model, recurrent_lm.RecurrentLM) else []
    if len(layers) != 1 or not isinstance(layers[0], Lstm):
        raise ValueError("model: must be an lstm of one layer, whose state S-DP protects")
    return layers[0]


@dataclass(frozen=True)
class _SegmentedBatch:
    """A micro-batch that is read segment by segment, with the state that each row has reached."""

    tokens: Tensor = field(repr=False)  # (batch, time)
    cuts: list[list[tuple[int, int]]]
    state: tuple[Tensor, Tensor]  # output and cell, (batch, hidden)

    @staticmethod
    def make(tokens: Tensor, lengths: Tensor, flags: Tensor, zeros: Tensor) -> _SegmentedBatch:
        marks = zip(flags.tolist(), lengths.tolist(), strict=True)
        cuts = [split_into_segments(row[:n]) for row, n in marks]
        return _SegmentedBatch(
            tokens, cuts, (zeros.repeat(len(cuts), 1), zeros.repeat(len(cuts), 1))
        )

    def segment(self, t: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the rows that have a segment ``t``, the longest first, as the engine runs them;
        their tokens (rows, time + 1), with the last target; and, on the host, the number of
        positions of each."""
        device = self.tokens.device
        rows = [i for i, cuts in enumerate(self.cuts) if t < len(cuts) and cuts[t][1] > cuts[t][0]]
        rows.sort(key=lambda i: self.cuts[i][t][0] - self.cuts[i][t][1])
        bounds = torch.tensor([self.cuts[i][t] for i in rows])
        row_numbers = send_to_device(torch.tensor(rows, dtype=torch.long), device)
        if not rows:
            return row_numbers, self.tokens[:0], bounds
        sizes = bounds[:, 1] - bounds[:, 0]
        positions = bounds[:, :1] + torch.arange(int(sizes[0]) + 1)
        positions = send_to_device(positions.clamp_max(self.tokens.shape[1] - 1), device)
        return row_numbers, self.tokens[row_numbers].gather(1, positions), sizes
