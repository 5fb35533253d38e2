"""The loop that runs phases.

A phase holds public constants only, and is the one object that makes both the batches and the
ledger entry: the sampler that ran is the one that is accounted.

>>> import torch
>>> from crtlib.models.build import build
>>> from crtlib.models.spec import ModelSpec
>>> from crtlib.training.phases import PrivatePhase
>>> phase = PrivatePhase(
...     epoch=1, sampling_probability=0.5, steps=3, noise_multiplier=1.0, clip_norm=0.1,
...     normaliser=2.0, learning_rate=1e-3,
... )
>>> generator = torch.Generator().manual_seed(0)
>>> [len(batch) for batch in phase.batches(torch.ones(3), generator)]  # an empty one counts
[1, 0, 2]
>>> model = build(ModelSpec("lstm", vocab_size=9, embedding=4, hidden=5), seed=0)
>>> train(model, [phase], {"private": [[1, 2], [3, 4, 5], [6]]}, seed=0).events
[SampledGaussian(sampling_probability=0.5, noise_multiplier=1.0, steps=3)]
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import torch
from torch import nn
from tqdm.auto import tqdm

from crtlib.models import interface
from crtlib.training.bookkeeping import trainable
from crtlib.training.phases import Event, Flags, Phase, Points, collate
from crtlib.training.state import Checkpoint, Run, State, device_of, identity

__all__ = ["Run", "train"]
Rows = TypeVar("Rows", Points, Flags)


def train(
    model: nn.Module,
    phases: Sequence[Phase],
    parts: Mapping[str, Points],
    *,
    seed: int,
    flags: Mapping[str, Flags] | None = None,
    secure: bool = False,
    optimizer: Literal["adam", "sgd"] = "adam",
    on_epoch: Callable[[int, nn.Module], dict[str, float]] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    on_start: Callable[[list[Event], bool], None] | None = None,
    progress: bool = False,
) -> Run:
    """Run ``phases`` in order on ``model`` (changed in place, on the device where it is).

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
    optimizers, generators and events, readable by its owner alone; when it exists, training goes
    on from there and the result is bit-identical to an uninterrupted run. A checkpoint of another
    run is refused. ``on_start(events, resumed)`` is called before the first step, when nothing can
    be refused any more: with all events that the run will have, and whether a checkpoint was found.
    ``progress`` shows a bar over phases, with the time left and nothing about the
    data.

    Raises ``ValueError`` for a phase whose part is missing or empty, or that cannot work with the
    model, and for points beyond the model's context.
    """
    parts, flags = _with_all(parts), _with_all(flags or {})
    _check(model, phases, parts, flags)
    state = State.begin(model, seed=seed, secure=secure, optimizer=optimizer)
    run, file, done = state.run, None, 0
    if checkpoint:
        options = {"seed": seed, "secure": secure, "optimizer": optimizer}
        file = Checkpoint(Path(checkpoint), identity(model, phases, parts, flags, options))
        done = file.restore(state, phases)
    if on_start:
        ahead = [event for phase in phases[done:] if (event := phase.event()) is not None]
        on_start([*run.events, *ahead], bool(done or run.events))
    model.train()
    bar = tqdm(total=len(phases), desc="phases", unit="phase", initial=done, disable=not progress)
    for k, phase in enumerate(phases[done:], start=done):
        if (event := phase.event()) is not None:
            run.events.append(event)
            if secure and file:  # charged before it runs: see above
                file.save(state, k)
        started = time.perf_counter()
        _run_phase(phase, state, parts[phase.part], flags.get(phase.part, ()))
        run.seconds += time.perf_counter() - started
        if on_epoch and (k + 1 == len(phases) or phases[k + 1].epoch != phase.epoch):
            run.history.append({"epoch": phase.epoch, **on_epoch(phase.epoch, model)})
            model.train()
        if file:
            file.save(state, k + 1)
        bar.update()
    bar.close()
    for p in trainable(model).values():
        p.grad = None
    return run


def _with_all(parts: Mapping[str, Rows]) -> dict[str, Rows]:
    return {**parts, "all": [*parts.get("public", ()), *parts.get("private", ())]}


def _check(
    model: nn.Module,
    phases: Sequence[Phase],
    parts: Mapping[str, Points],
    flags: Mapping[str, Flags],
) -> None:
    """Refuse, before the first step, what cannot be trained."""
    for phase in phases:
        points = parts.get(phase.part, ())
        if not points:
            raise ValueError(f"part={phase.part!r}: {type(phase).__name__} has no points to read")
        phase.check(model, points, flags.get(phase.part, ()))
    longest, limit = max(len(s) for p in phases for s in parts[p.part]), interface.context(model)
    if limit is not None and longest - 1 > limit:
        raise ValueError(
            f"context={limit}: the longest point has {longest} tokens; use shorter points "
            "(unit=turn) or a model that reads further"
        )


def _run_phase(phase: Phase, state: State, points: Points, flags: Flags) -> None:
    """All batches of a phase, each with its updates."""
    run, device = state.run, device_of(state.run.model)
    state.set_rates(phase.rates())
    lengths = torch.tensor([len(s) for s in points])
    for indices in phase.batches(lengths, state.generators[phase.order]):
        picked = indices.tolist()
        batch = collate(points, picked, device)
        if phase.reads_flags:  # of the same lengths, so cut and sorted in the same way
            marks = collate(flags, picked, device)
            batch = [(*rows, marked) for rows, (marked, _) in zip(batch, marks, strict=True)]
        for update in phase.updates(run.model, batch, state.generators["noise"]):
            state.optimizers[update.kind].step()
            run.updates[update.kind] += 1
            run.non_finite += update.non_finite
