"""Phases: each makes both its batches and its ledger entry, from public constants only.

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

The two kinds of update: an ordinary gradient, and "clip, noise, divide" (Abadi et al. 2016).

Every phase takes its steps here, so there is one place where private points turn into a released
gradient, whatever a phase does to its batches before.

>>> import torch
>>> from crtlib.models.networks import build
>>> from crtlib.models.networks import ModelSpec
>>> model = build(ModelSpec("lstm", vocab_size=9, embedding=4, hidden=5), seed=0)
>>> batch = [(torch.tensor([[1, 2, 3]]), torch.tensor([3]))]
>>> options = {"clip_norm": 0.1, "noise_multiplier": 0.0, "normaliser": 1.0}
>>> int(private_step(model, batch, **options, noise=torch.Generator()))  # gradients overflowed
0
>>> norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
>>> bool(abs(norm - 0.1) < 1e-6)
True

S-DP (Shi et al. 2022), the baseline of CRT, puts noise on the private tokens only. Text is read
raw. A policy says which tokens are private; each sequence is cut where that changes, public
segments get ordinary steps, private ones clipped and noised steps, and the LSTM's state that leaves
a private segment is clipped and noised as well.

>>> text, private = "abcdefgh", [False, True, True, False, False, False, True, False]
>>> [(text[i:j], text[i + 1 : j + 1]) for i, j in segments(private)]  # inputs, targets
[('', ''), ('abc', 'bcd'), ('de', 'ef'), ('fg', 'gh')]

What the policy misses lies in a public segment and is learned like any other word:

>>> from crtlib.accounting.guarantees import MissRate
>>> from crtlib.accounting.guarantees import guarantee
>>> event = SampledGaussian(sampling_probability=1.0, noise_multiplier=20.0, steps=24)
>>> for rate in (0.0, 0.05):
...     missed = MissRate(rate)
...     print(guarantee(event, gamma=missed, delta=8e-5, unit="turn").epsilon)  # doctest: +ELLIPSIS
1.6...
inf
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from crtlib.accounting.ledger import SampledGaussian, WeightedGaussian
from crtlib.checks import check, check_clip_norm, check_positive
from crtlib.models import networks
from crtlib.models.networks import Lstm
from crtlib.training import clipping
from crtlib.training.bookkeeping import clip_factors, gradient, trainable
from crtlib.training.devices import is_host, sent
from crtlib.training.noise import Random, add_noise, normals, uniform
from crtlib.training.parallel import crew

Part = Literal["public", "private", "all"]
Order = Literal["public order", "poisson"]
Event = SampledGaussian | WeightedGaussian
Points = Sequence[Sequence[int]]
Flags = Sequence[Sequence[bool]]
PASS = 1024
"""Tokens of padding that take a CPU about as long as another pass of a small model does."""
TOKENS_AT_ONCE = 4096
"""Padded tokens of one forward pass: larger logical batches are cut, which changes no result."""


class Phase(Protocol):
    """What :func:`crtlib.training.loop.train` asks of a phase, and what those are like that say
    nothing else; here public and private ones, and :class:`SelectivePhase`."""

    epoch: int
    """The epoch that it belongs to, from 1."""
    part: Part
    """The points that it reads."""
    order: ClassVar[Order] = "public order"
    """The generator of its batches: "public order", or "poisson" where they are secret."""
    reads_flags: ClassVar[bool] = False
    """Whether its points come with a flag for each token."""
    draws: ClassVar[bool] = False
    """Whether it draws numbers in each pass: then how a batch is cut decides what they are."""

    def check(self, model: nn.Module, points: Points, flags: Flags) -> None:
        """Refuse, before the first step, a model, points or flags that it cannot work with."""
        return None

    def batches(self, lengths: Tensor, generator: Random) -> Iterator[Tensor]:
        """Indices of the points of each batch."""

    def event(self) -> Event | None:
        """What an accountant has to know: nothing where every point is public, or unprotected."""

    def rates(self) -> dict[Kind, float]:
        """The learning rate of each kind of update; each kind has an optimizer of its own."""

    def updates(self, model: nn.Module, batch: Batch, noise: Random) -> Iterator[Update]:
        """Set ``.grad`` and yield, once for each update that ``batch`` gives."""


@dataclass(frozen=True)
class PublicPhase(Phase):
    """Ordinary training: shuffled batches, no noise, no guarantee for what it reads.

    ``passes`` counts runs over the part; the gradient is that of the mean loss per token.
    """

    epoch: int
    part: Part
    passes: int
    batch_size: int
    learning_rate: float

    def __post_init__(self) -> None:
        check_positive(
            passes=self.passes, batch_size=self.batch_size, learning_rate=self.learning_rate
        )

    def batches(self, lengths: Tensor, generator: Random) -> Iterator[Tensor]:
        """Index tensors that cover the points once a pass, shuffled.

        Four batches at a time are cut from one draw sorted by ``lengths``, and come in random
        order: padding, which most of the time would go into, shrinks to a third.
        """
        assert isinstance(generator, torch.Generator)  # the order of public points is no secret
        for _ in range(self.passes):
            shuffled = torch.randperm(len(lengths), generator=generator)
            for block in shuffled.split(4 * self.batch_size):
                batches = block[lengths[block].argsort(stable=True)].split(self.batch_size)
                for k in torch.randperm(len(batches), generator=generator).tolist():
                    yield batches[k]

    def event(self) -> None:
        """Nothing: every point is public."""
        return None

    def rates(self) -> dict[Kind, float]:
        """The learning rate of each kind of update."""
        return {"public": self.learning_rate}

    def updates(self, model: nn.Module, batch: Batch, noise: Random) -> Iterator[Update]:
        """One :func:`public_step`."""
        yield Update("public", loss=public_step(model, batch))


@dataclass(frozen=True)
class PrivatePhase(Phase):
    """DP-SGD with Poisson sampling (Abadi et al. 2016): every field is a public constant.

    ``sampling_probability`` is one number, in (0, 1], or one for each point, in [0, 1] (weighted
    DP-SGD: Hush!, Algorithm 2). The probabilities of points follow from which of them hold which
    secret, and that is public there: unlike elsewhere, their number is public as well.

    ``normaliser`` divides the noisy sum (the expected batch size, fixed in advance): dividing by
    the size of the batch that was drawn, or by ``int(n * q)``, would spend budget that is not
    accounted. An empty batch still adds noise and counts as a step.
    """

    epoch: int
    sampling_probability: float | tuple[float, ...]
    steps: int
    noise_multiplier: float
    clip_norm: float
    normaliser: float
    learning_rate: float
    part: Part = "private"

    order: ClassVar[Order] = "poisson"

    def __post_init__(self) -> None:
        p, name = self.sampling_probability, "sampling_probability"
        if isinstance(p, Sequence | np.ndarray):
            each = tuple(float(x) for x in p)
            object.__setattr__(self, name, each)
            for x in each:
                check(name, x, 0 <= x <= 1, "in [0, 1]")
        else:
            check(name, p, 0 < p <= 1, "in (0, 1]")
        check_positive(
            steps=self.steps,
            normaliser=self.normaliser,
            learning_rate=self.learning_rate,
        )
        check_clip_norm(self.clip_norm)
        self.event()  # refuses what else is out of range

    def check(self, model: nn.Module, points: Points, flags: Flags) -> None:
        """Refuse another number of points than of probabilities."""
        self._probabilities(len(points))

    def _probabilities(self, points: int) -> Tensor | float:
        p = self.sampling_probability
        if not isinstance(p, tuple):
            return p
        if len(p) != points:
            raise ValueError(
                f"sampling_probability: {len(p)} for {points} points: must be one each"
            )
        return torch.tensor(p, dtype=torch.float64)

    def batches(self, lengths: Tensor, generator: Random) -> Iterator[Tensor]:
        """``steps`` Poisson samples of the points: each index is in each batch with probability
        ``sampling_probability``, independently. Nothing else of ``lengths`` is read but their
        number."""
        p = self._probabilities(len(lengths))
        for _ in range(self.steps):
            yield (uniform(len(lengths), generator) < p).nonzero().flatten()

    def event(self) -> Event:
        """What an accountant has to know of this phase."""
        p = self.sampling_probability
        if isinstance(p, tuple):
            return WeightedGaussian(p, self.noise_multiplier, self.steps)
        return SampledGaussian(p, self.noise_multiplier, self.steps)

    def examples(self, batch: Batch, noise: Random) -> Iterator[tuple[Tensor, ...]]:
        """What the model reads of a batch: ``(tokens, lengths)`` and perhaps targets. Here all of
        it, to predict each next token."""
        yield from batch

    def step(self, model: nn.Module, batch: Batch, noise: Random) -> Tensor | int:
        """Set ``.grad`` to (sum of clipped gradients + noise) / normaliser:
        :func:`crtlib.training.phases.private_step`."""
        return private_step(
            model,
            self.examples(batch, noise),
            clip_norm=self.clip_norm,
            noise_multiplier=self.noise_multiplier,
            normaliser=self.normaliser,
            noise=noise,
        )

    def rates(self) -> dict[Kind, float]:
        """The learning rate of each kind of update."""
        return {"private": self.learning_rate}

    def updates(self, model: nn.Module, batch: Batch, noise: Random) -> Iterator[Update]:
        """One :meth:`step`."""
        yield Update("private", self.step(model, batch, noise))


def collate(
    points: Points | Flags,
    indices: Sequence[int],
    device: torch.device,
    at_once: int = TOKENS_AT_ONCE,
    *,
    whole: bool = True,
) -> Batch:
    """Micro-batches of similar length, of at most ``at_once`` padded targets each: the tokens on
    ``device``, the lengths on the host, where they are read. They are as few as possible where
    ``whole``; else one of the CPU has at most ``PASS`` tokens of padding."""
    most = PASS if is_host(device) and not whole else math.inf
    rows = sorted((points[i] for i in indices), key=len)
    batch: Batch = []
    start = 0
    while start < len(rows):
        end = start + 1
        padding = 0  # of the block with the next row
        while end < len(rows) and (end + 1 - start) * (len(rows[end]) - 1) <= at_once:
            padding += (end - start) * (len(rows[end]) - len(rows[end - 1]))
            if padding > most:
                break
            end += 1
        block = rows[start:end]
        tokens = np.zeros((len(block), len(block[-1])), dtype=np.int64)
        for i, row in enumerate(block):  # an eighth of the time that it takes in torch
            tokens[i, : len(row)] = row
        lengths = torch.tensor([len(row) for row in block])
        batch.append((sent(torch.from_numpy(tokens), device), lengths))
        start = end
    return batch


Kind = Literal["public", "private"]


class Unit(NamedTuple):
    """One unit of several texts that are clipped together, as micro-batches of its own."""

    pieces: list[tuple[Tensor, Tensor]]


Batch = list[tuple[Tensor, ...]]
"""Micro-batches ``(tokens (B, L), lengths (B,))`` of one logical batch; empty for no points. For a
phase that reads flags, ``(tokens, lengths, flags (B, L))``. Where points have owners, a
:class:`Unit` stands for each owner of several points."""


class Update(NamedTuple):
    """One update that waits in ``.grad``: its kind, how many examples were left out of it because
    the norm of their gradient was no finite number, and of a public one the loss. Both numbers stay
    on the device: to read one is to wait for it."""

    kind: Kind
    non_finite: Tensor | int = 0
    loss: Tensor | None = None


def public_step(model: nn.Module, batch: Iterable[tuple[Tensor, ...]]) -> Tensor | None:
    """Set ``.grad`` to the gradient of the mean token loss of ``batch``; that loss.

    ``batch`` gives micro-batches ``(tokens (B, L), lengths (B,))``, of several processes the share
    of this one, of which is then the loss. Without a target the gradient is zero, ``None`` where
    there is no micro-batch, and so is the loss.
    """
    parameters = _cleared(model)
    own, losses = 0, []
    for tokens, lengths in batch:
        losses.append(clipping.plain_sum(model, tokens, lengths, reduction="sum").sum())
        own += int((lengths - 1).sum())
    crew().add_up(parameters)
    count = crew().total(own)
    if count <= 0:
        return None
    _divide(parameters, count)
    return torch.stack(losses).sum() / own if own else None


def private_step(
    model: nn.Module,
    batch: Iterable[tuple[Tensor, ...]],
    *,
    clip_norm: float,
    noise_multiplier: float,
    normaliser: float,
    noise: Random,
) -> Tensor | int:
    """Set ``.grad`` to (sum of clipped gradients + noise) / ``normaliser``.

    ``batch`` gives micro-batches, ``(tokens (B, L), lengths (B,))`` or with targets (B, L) as a
    third (:func:`crtlib.training.clipping.clipped_sum`), or units. It may be a generator: each is
    clipped before the next is asked for, and the noise is drawn after the last. It may be empty:
    then ``.grad`` is noise alone. Every number of every trainable parameter gets noise.

    Of several processes each is given its share of the batch. The first adds the noise, once, to
    its own sum, before all sums are added up.

    Returns how many examples of ``batch`` had a gradient without a finite norm; they count as zero.
    """
    parameters = _cleared(model)
    non_finite: Tensor | int = 0
    for rows in batch:
        if isinstance(rows, Unit):
            norm = clipping.unit_sum(model, rows.pieces, clip_norm=clip_norm).norms
            non_finite = non_finite + (~norm.isfinite()).long()
            continue
        tokens, lengths, *targets = rows
        norms = clipping.clipped_sum(
            model, tokens, lengths, clip_norm=clip_norm, targets=targets[0] if targets else None
        ).norms
        non_finite = non_finite + (~norms.isfinite()).sum()
    if crew().leads:
        add_noise(parameters, std=noise_multiplier * clip_norm, generator=noise)
    crew().add_up(parameters)
    _divide(parameters, normaliser)
    return non_finite


def _cleared(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that learn, without what an earlier step left in ``.grad``."""
    parameters = list(trainable(model).values())
    for p in parameters:
        p.grad = None
    return parameters


def _divide(parameters: list[nn.Parameter], divisor: float) -> None:
    torch._foreach_div_([gradient(p) for p in parameters], divisor)


# --------------------------------------------------------------------------- S-DP
def segments(private: Sequence[bool]) -> list[tuple[int, int]]:
    """``[i, j)`` of each segment's inputs, whose targets are one further; even ones are public.

    A position is private if its token or its target is: so a private segment starts at the public
    token before it, and one public token between two private ones is inside. The last token has no
    target and no position. Where the first position is private, an empty public segment leads.
    """
    marks = [a or b for a, b in itertools.pairwise(private)]
    cuts = [(0, 0)] if marks and marks[0] else []
    start = 0
    for _, run in itertools.groupby(map(bool, marks)):
        end = start + sum(1 for _ in run)
        cuts.append((start, end))
        start = end
    return cuts


def most_private(flags: Iterable[Sequence[bool]]) -> int:
    """Private segments of the point that has most of them: the least ``private_segments``."""
    return max((len(segments(row)) // 2 for row in flags), default=0)


@dataclass(frozen=True, kw_only=True)
class SelectivePhase(Phase):
    """One epoch of S-DP: a pass over shuffled batches, each point in one of them.

    For the t-th segment of all sequences of a batch there is one update: the gradient of the mean
    loss per token where it is public; (sum of gradients clipped to ``clip_norm`` + noise) /
    ``batch_size`` where it is private. Then output and cell of the LSTM, each clipped to
    ``hidden_clip`` and noised with the same ``noise_multiplier``, go on to the next segment
    (``None``: zeros go on, which costs nothing). No gradient crosses a boundary.

    ``private_segments`` is the most that a point may have, a public constant; a point with more is
    refused. Unlike the reference code, the noise of an update does not grow where few sequences
    have a t-th segment, public gradients are not clipped, and the learning rate stays.
    """

    epoch: int
    batch_size: int
    private_segments: int
    noise_multiplier: float
    clip_norm: float
    hidden_clip: float | None
    public_learning_rate: float
    private_learning_rate: float
    part: Part = "all"

    reads_flags: ClassVar[bool] = True
    draws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("private_segments", "noise_multiplier"):
            value = getattr(self, name)
            check(name, value, 0 <= value < math.inf, "finite and at least 0")
        for name in ("batch_size", "public_learning_rate", "private_learning_rate"):
            value = getattr(self, name)
            check(name, value, 0 < value < math.inf, "finite and positive")
        check_clip_norm(self.clip_norm)
        if self.hidden_clip is not None:
            check_positive(hidden_clip=self.hidden_clip)

    def check(self, model: nn.Module, points: Points, flags: Flags) -> None:
        """Refuse, before the first step, a model or flags that this phase cannot work with."""
        _lstm(model)
        if [len(row) for row in points] != [len(row) for row in flags]:
            raise ValueError(f"flags: must have one for each token of the {len(points)} points")
        most = most_private(flags)
        if most > self.private_segments:
            raise ValueError(
                f"private_segments={self.private_segments}: a point has {most}; allow as many"
            )

    def batches(self, lengths: Tensor, generator: Random) -> Iterator[Tensor]:
        """Each point once, shuffled. Nothing else of ``lengths`` is read but their number: sorted
        by length, a private name's length would move other points to other batches."""
        assert isinstance(generator, torch.Generator)  # the order promises nothing
        yield from torch.randperm(len(lengths), generator=generator).split(self.batch_size)

    def event(self) -> SampledGaussian:
        """The Gaussian mechanisms of this epoch that a point takes part in, at most.

        Each private segment is one update and, with ``hidden_clip``, two releases (output and
        cell). None is amplified by sampling: the public segments of a point are learned without
        noise in the same batch, which gives away that the point is in it.
        """
        each = 1 if self.hidden_clip is None else 3
        return SampledGaussian(1.0, self.noise_multiplier, each * self.private_segments)

    def rates(self) -> dict[Kind, float]:
        """The learning rate of each kind of update."""
        return {"public": self.public_learning_rate, "private": self.private_learning_rate}

    def updates(self, model: nn.Module, batch: Batch, noise: Random) -> Iterator[Update]:
        """Set ``.grad`` and yield the kind of update, segment after segment."""
        layer = _lstm(model)
        zeros = layer.bias.detach().new_zeros(1, layer.size)
        parts = [_Part.make(tokens, lengths, flags, zeros) for tokens, lengths, flags in batch]
        for t in range(max((len(c) for part in parts for c in part.cuts), default=0)):
            if t % 2 == 0:
                # No target where every sequence begins with a private segment.
                if public_step(model, self._segment(layer, parts, t, noise)) is not None:
                    yield Update("public")
                continue
            non_finite = private_step(
                model,
                self._segment(layer, parts, t, noise),
                clip_norm=self.clip_norm,
                noise_multiplier=self.noise_multiplier,
                normaliser=self.batch_size,
                noise=noise,
            )
            yield Update("private", non_finite)

    def _segment(
        self, layer: Lstm, parts: list[_Part], t: int, noise: Random
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Segment ``t`` as ``(tokens, lengths)``, micro-batch after micro-batch, each read by the
        step from the state that its rows have reached; then they have reached the next one."""
        for part in parts:
            rows, tokens, sizes = part.segment(t)
            if not len(rows):
                continue
            with layer.carrying(tuple(x[rows] for x in part.state)):
                yield tokens, sizes + 1  # the step takes its gradient before it asks for more
                left = layer.state_after(sizes)
            for whole, x in zip(part.state, left, strict=True):
                whole[rows] = self.released(x, noise) if t % 2 else x

    def released(self, x: Tensor, noise: Random) -> Tensor:
        """Rows (batch, hidden) clipped to ``hidden_clip``, with noise of ``noise_multiplier``."""
        if self.hidden_clip is None:
            return torch.zeros_like(x)
        factors = clip_factors(torch.linalg.vector_norm(x, dim=1, keepdim=True), self.hidden_clip)
        clipped = (x * factors).masked_fill(factors == 0, 0)  # where x is not finite
        if self.noise_multiplier == 0:
            return clipped
        return clipped + self.noise_multiplier * self.hidden_clip * normals(x, noise)


def _lstm(model: nn.Module) -> Lstm:
    layers = list(model.layers) if isinstance(model, networks.RecurrentLM) else []
    if len(layers) != 1 or not isinstance(layers[0], Lstm):
        raise ValueError("model: must be an lstm of one layer, whose state S-DP protects")
    return layers[0]


@dataclass(frozen=True)
class _Part:
    """A micro-batch on its way through its segments, with the state that each row has reached."""

    tokens: Tensor  # (batch, time)
    cuts: list[list[tuple[int, int]]]
    state: tuple[Tensor, Tensor]  # output and cell, (batch, hidden)

    @staticmethod
    def make(tokens: Tensor, lengths: Tensor, flags: Tensor, zeros: Tensor) -> _Part:
        marks = zip(flags.tolist(), lengths.tolist(), strict=True)
        cuts = [segments(row[:n]) for row, n in marks]
        return _Part(tokens, cuts, (zeros.repeat(len(cuts), 1), zeros.repeat(len(cuts), 1)))

    def segment(self, t: int) -> tuple[Tensor, Tensor, Tensor]:
        """The rows that have a segment ``t``, the longest first, as the engine runs them; their
        tokens (rows, time + 1), with the last target; and, on the host, how many positions each
        has."""
        device = self.tokens.device
        rows = [i for i, cuts in enumerate(self.cuts) if t < len(cuts) and cuts[t][1] > cuts[t][0]]
        rows.sort(key=lambda i: self.cuts[i][t][0] - self.cuts[i][t][1])
        cuts = torch.tensor([self.cuts[i][t] for i in rows])
        these = sent(torch.tensor(rows, dtype=torch.long), device)
        if not rows:
            return these, self.tokens[:0], cuts
        sizes = cuts[:, 1] - cuts[:, 0]
        at = cuts[:, :1] + torch.arange(int(sizes[0]) + 1)
        at = sent(at.clamp_max(self.tokens.shape[1] - 1), device)
        return these, self.tokens[these].gather(1, at), sizes
