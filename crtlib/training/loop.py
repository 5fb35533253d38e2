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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import nn
from tqdm.auto import tqdm

from crtlib import files
from crtlib.accounting.events import SampledGaussian
from crtlib.models import interface
from crtlib.training import noise
from crtlib.training.noise import Random
from crtlib.training.phases import Kind, Phase, _trainable, collate


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
    longest, limit = max(len(s) for p in phases for s in parts[p.part]), interface.context(model)
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
        generators |= {"poisson": noise.SECURE, "noise": noise.SECURE}
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
        "generators": [None if g == noise.SECURE else g.get_state() for g in generators.values()],
        "events": [{"type": type(e).__name__, **asdict(e)} for e in run.events],
        "history": run.history,
        "updates": dict(run.updates),
        "seconds": run.seconds,
    }
    with files.replacing(path) as part:
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
