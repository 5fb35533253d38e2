"""Phases, and the loop that runs them.

A phase holds public constants only, and is the one object that makes both the batches and the
ledger entry: the sampler that ran is the one that is accounted.

>>> import torch
>>> phase = PrivatePhase(
...     epoch=1, sampling_probability=0.5, steps=3, noise_multiplier=1.0, clip_norm=0.1,
...     normaliser=2.0, learning_rate=1e-3,
... )
>>> generator = torch.Generator().manual_seed(0)
>>> [len(batch) for batch in phase.batches(torch.ones(3), generator)]  # an empty one counts
[1, 0, 2]
>>> phase.event()
SampledGaussian(sampling_probability=0.5, noise_multiplier=1.0, steps=3)
"""

from __future__ import annotations

import hashlib
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from crtlib import clipping, models, storage
from crtlib.ledger import SampledGaussian

Part = Literal["public", "private", "all"]
Kind = Literal["public", "private"]
TOKENS_AT_ONCE = 4096
"""Padded tokens of one forward pass: larger logical batches are cut, which changes no result."""


Random = torch.Generator | Literal["secure"]


def uniform(n: int, generator: Random) -> Tensor:
    """``n`` float64 uniforms of [0, 1), 53 bits each; "secure" asks the operating system."""
    if generator != clipping.SECURE:
        return torch.rand(n, generator=generator, dtype=torch.float64)
    bits = np.frombuffer(os.urandom(8 * n), dtype=np.uint64) >> np.uint64(11)
    return torch.from_numpy(bits.astype(np.float64) * 2.0**-53)


def check_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name}={value}: must be positive")


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
        clipping.add_noise(parameters, std=self.noise_multiplier * self.clip_norm, generator=noise)
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
    :class:`crtlib.selective.SelectivePhase`."""

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


@dataclass
class Run:
    """What training leaves: the model, what was done to private points (``events``), what
    ``on_epoch`` measured (``history``), the seconds of training, the ``updates`` by kind."""

    model: nn.Module
    events: list[SampledGaussian] = field(default_factory=list)
    history: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    updates: Counter[Kind] = field(default_factory=Counter)


def train(
    model: nn.Module,
    phases: Sequence[Phase],
    parts: Mapping[str, Sequence[Sequence[int]]],
    *,
    seed: int,
    flags: Mapping[str, Sequence[Sequence[bool]]] | None = None,
    secure: bool = False,
    optimizer: Literal["adam", "sgd"] = "adam",
    on_epoch: Callable[[int, nn.Module], dict[str, float]] | None = None,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = False,
) -> Run:
    """Run ``phases`` in order on ``model`` (changed in place).

    ``parts`` maps "public" and "private" to token sequences; "all" is both. ``flags``, in the same
    shape, marks the private tokens for phases that read them. Public and private updates have an
    optimizer each, so that Adam's moments of one never scale the other's steps.

    Poisson draws and noise have generators of their own. By default they follow from ``seed``, so
    a run can be repeated: right for experiments, WRONG for a release, because who knows the seed
    knows the batches and can subtract the noise. ``secure=True`` takes both from the operating
    system's cryptographic generator. A phase that was cut short is then run again with fresh draws,
    and as somebody may have seen what the first ones led to, with a ``checkpoint`` its event is
    counted each time that it begins: ``Run.events`` can hold more than the schedule.

    ``on_epoch(epoch, model)`` is called after the last phase of each epoch and returns what it
    measured, on data of its own: the loss on private points is itself private and is not kept.

    ``checkpoint`` names a file that is replaced atomically after every phase, with model,
    optimizers, generators and events; when it exists, training goes on from there and the result
    is bit-identical to an uninterrupted run. A checkpoint of another run is refused.
    ``progress`` shows a bar over phases, with the time left and nothing about the data.

    Raises ``ValueError`` for a phase whose part is missing or empty.
    """
    parts, flags = (
        {**rows, "all": [*rows.get("public", ()), *rows.get("private", ())]}
        for rows in (parts, flags or {})
    )
    for phase in phases:
        if not parts.get(phase.part):
            raise ValueError(f"part={phase.part!r}: {type(phase).__name__} has no points to read")
        if phase.reads_flags:
            phase.check(model, parts[phase.part], flags.get(phase.part, ()))
    longest, limit = max(len(s) for p in phases for s in parts[p.part]), models.context(model)
    if limit is not None and longest - 1 > limit:
        raise ValueError(
            f"context={limit}: the longest point has {longest} tokens; use shorter points "
            "(unit=turn) or a model that reads further"
        )
    device = next(model.parameters()).device
    generators: dict[str, Random] = {
        name: torch.Generator(where).manual_seed(_seed(seed, k))
        for k, (name, where) in enumerate(
            (("public order", "cpu"), ("poisson", "cpu"), ("noise", device))
        )
    }
    if secure:
        generators |= {"poisson": clipping.SECURE, "noise": clipping.SECURE}
    make = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer]
    optimizers = {kind: make(_trainable(model), lr=1.0) for kind in ("public", "private")}
    run = Run(model)
    identity = _identity(model, phases, parts, flags, seed, secure, optimizer)
    done = _restore(checkpoint, identity, phases, run, optimizers, generators)

    model.train()
    bar = tqdm(total=len(phases), desc="phases", unit="phase", initial=done, disable=not progress)
    for k, phase in enumerate(phases[done:], start=done):
        started = time.perf_counter()
        for kind, rate in phase.rates().items():
            for group in optimizers[kind].param_groups:
                group["lr"] = rate
        event = phase.event()
        if event is not None:
            run.events.append(event)
            if secure and checkpoint:  # charged before it runs: see above
                _save(checkpoint, identity, k, run, optimizers, generators)
        sequences = parts[phase.part]
        lengths = torch.tensor([len(s) for s in sequences])
        for indices in phase.batches(lengths, generators[phase.order]):
            picked = indices.tolist()
            batch = collate(sequences, picked, device)
            if phase.reads_flags:  # of the same lengths, so cut and sorted in the same way
                marks = collate(flags[phase.part], picked, device)
                batch = [(*rows, marked) for rows, (marked, _) in zip(batch, marks, strict=True)]
            for p in _trainable(model):
                p.grad = torch.zeros_like(p)
            for kind in phase.updates(model, batch, generators["noise"]):
                optimizers[kind].step()
                run.updates[kind] += 1
        run.seconds += time.perf_counter() - started
        if on_epoch and (k + 1 == len(phases) or phases[k + 1].epoch != phase.epoch):
            run.history.append({"epoch": phase.epoch, **on_epoch(phase.epoch, model)})
            model.train()
        if checkpoint:
            _save(checkpoint, identity, k + 1, run, optimizers, generators)
        bar.update()
    bar.close()
    for p in _trainable(model):
        p.grad = None
    return run


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


def _seed(seed: int, stream: int) -> int:
    """Independent streams from one seed (also from other uses of the same seed)."""
    return int(np.random.SeedSequence([seed, 7, stream]).generate_state(1, np.uint64)[0] >> 1)


def _identity(model, phases, parts, flags, seed, secure, optimizer) -> str:
    told = [[type(p).__name__, asdict(p)] for p in phases]
    shape = getattr(model, "config", model)  # a transformer's heads show in its config alone
    digest = hashlib.sha256(repr([str(shape), told, seed, secure, optimizer]).encode())
    for name, tensor in model.state_dict().items():  # as it was before training
        digest.update(name.encode() + tensor.detach().cpu().numpy().tobytes())
    for name, rows in [*parts.items(), *flags.items()]:
        digest.update(f"{name} {len(rows)}".encode())
        for row in rows:
            digest.update(np.asarray(row, dtype=np.int64).tobytes() + b".")
    return digest.hexdigest()


def _save(path, identity, done, run, optimizers, generators) -> None:
    state = {
        "identity": identity,
        "done": done,
        "model": run.model.state_dict(),
        "optimizers": [o.state_dict() for o in optimizers.values()],
        "generators": [
            None if g == clipping.SECURE else g.get_state() for g in generators.values()
        ],
        "events": [{"type": type(e).__name__, **asdict(e)} for e in run.events],
        "history": run.history,
        "updates": dict(run.updates),
        "seconds": run.seconds,
    }
    with storage.replacing(path) as part:
        torch.save(state, part)


def _restore(path, identity, phases, run, optimizers, generators) -> int:
    """Load a checkpoint of this run, if there is one; the number of phases already done."""
    if not path or not Path(path).exists():
        return 0
    try:
        state = torch.load(path, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError):
        raise ValueError(f"checkpoint={str(path)!r}: is damaged; remove it to start anew") from None
    if state["identity"] != identity:
        raise ValueError(
            f"checkpoint={str(path)!r}: belongs to another run (phases, data or seed differ)"
        )
    run.model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers.values(), state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    for generator, saved in zip(generators.values(), state["generators"], strict=True):
        if saved is not None:
            generator.set_state(saved)
    kinds = {type(e).__name__: type(e) for e in (p.event() for p in phases) if e is not None}
    run.events = [kinds[e.pop("type")](**e) for e in state["events"]]
    run.history, run.seconds = state["history"], state["seconds"]
    run.updates = Counter(state["updates"])
    return state["done"]
