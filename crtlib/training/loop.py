"""The loop that runs phases.

A phase holds public constants only, and is the one object that makes both the batches and the
ledger entry: the sampler that ran is the one that is accounted.

>>> import torch
>>> from crtlib.models.construction import build_model
>>> from crtlib.models.specs import ModelSpec
>>> from crtlib.training.phases import PrivatePhase
>>> phase = PrivatePhase(
...     epoch=1, sampling_probability=0.5, steps=3, noise_multiplier=1.0, clip_norm=0.1,
...     normaliser=2.0, learning_rate=1e-3,
... )
>>> generator = torch.Generator().manual_seed(0)
>>> [len(batch) for batch in phase.batches(torch.ones(3), generator)]  # an empty one counts
[1, 0, 2]
>>> model = build_model(ModelSpec("lstm", vocab_size=9, embedding=4, hidden=5), seed=0)
>>> train(model, [phase], {"private": [[1, 2], [3, 4, 5], [6]]}, seed=0).events
[SampledGaussian(sampling_probability=0.5, noise_multiplier=1.0, steps=3)]
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from crtlib.files import StrPath
from crtlib.models import interface
from crtlib.models.interface import device_of
from crtlib.training.checkpoints import Checkpoint, hash_run_inputs
from crtlib.training.gradient_entries import trainable_parameters
from crtlib.training.matmul_precision import tf32_matmul
from crtlib.training.memory import tokens_at_once
from crtlib.training.parallel import process_group
from crtlib.training.phases import (
    Phase,
    PrivacyEvent,
    PrivatePhase,
    PublicPhase,
    TokenFlags,
    TokenSequences,
    collate_micro_batches,
)
from crtlib.training.probe import refuse_mixing
from crtlib.training.run_state import PointsOrFlags, TrainingRun, TrainingState
from crtlib.training.steps import MultiTextUnit

# --------------------------------------------------------------------------- training


def train(
    model: nn.Module,
    phases: Sequence[Phase],
    parts: Mapping[str, TokenSequences],
    *,
    seed: int,
    flags: Mapping[str, TokenFlags] | None = None,
    owners: Mapping[str, Sequence[int]] | None = None,
    secure: bool = False,
    optimizer: Literal["adam", "sgd"] = "adam",
    precision: Literal["float32", "bfloat16"] = "float32",
    memory: float | None = None,
    longest: int | None = None,
    on_epoch: Callable[[int, nn.Module], dict[str, float]] | None = None,
    checkpoint: StrPath | None = None,
    on_start: Callable[[list[PrivacyEvent], bool], None] | None = None,
    progress: bool = False,
) -> TrainingRun:
    """Run ``phases`` in order on ``model`` (changed in place, on the device where it is).

    ``parts`` maps "public" and "private" to token sequences; "all" is both. ``flags``, in the same
    shape, marks the private tokens for phases that read them. ``owners`` says of each point of a
    part to which unit it belongs (0, 1, ...): Poisson phases then draw units and clip what each
    owns as one gradient, so that their guarantee is one of units.

    Public and private updates have an optimizer each, so that Adam's moments of one never scale
    the other's steps.

    Poisson draws and noise have generators of their own. By default they follow from ``seed``, so
    a run can be repeated: right for experiments, WRONG for a release, because who knows the seed
    knows the batches and can subtract the noise. ``secure=True`` takes both from the operating
    system's cryptographic generator, of noise a key for each step. A phase that was cut short is
    then run again with fresh draws, and as somebody may have seen what the first ones led to, with
    a ``checkpoint`` its event is counted each time that it begins: ``TrainingRun.events`` can hold
    more than the schedule.

    ``on_epoch(epoch, model)`` is called after the last phase of each epoch and returns what it
    measured, on data of its own: the loss on private points is itself private and is not kept.

    ``checkpoint`` names a file that is replaced atomically after every phase, with model,
    optimizers, generators and events, readable by its owner alone; when it exists, training goes
    on from there and the result is bit-identical to an uninterrupted run. A checkpoint of another
    run is refused. ``on_start(events, resumed)`` is called before the first step, when nothing can
    be refused any more: with all events that the run will have, and whether a checkpoint was found.
    ``progress`` shows a bar on a terminal: steps, the time left, and the loss of public steps (that
    of private points is itself private).

    ``precision`` "bfloat16" is that of products; weights, norms, sums and noise stay in float32. On
    a GPU a model's float32 products are of TF32 (:mod:`crtlib.training.devices`).
    ``longest``: tokens that a text may have, a public constant, up to which the model is tried
    before a private phase (:func:`crtlib.training.probe.refuse_mixing`).
    ``memory`` (GiB) bounds what one pass may take, by default a quarter of what is free: larger
    batches are read in parts, which changes no result but for rounding.

    Of several processes (:mod:`crtlib.training.parallel`) all call it with the same arguments; the
    first one alone calls ``on_start``, writes the checkpoint, which all must see, and shows a bar.

    Raises ``ValueError`` for a phase whose part is missing or empty, or that cannot work with the
    model or in several processes, and for points beyond the model's context.
    """
    parts, flags = _join_parts_as_all(parts), _join_parts_as_all(flags or {})
    units = {part: _group_points_by_owner(part, parts, ids) for part, ids in (owners or {}).items()}
    _check_phases(model, phases, parts, flags)
    if any("private" in phase.rates() for phase in phases):
        refuse_mixing(model, longest=longest)
    state = TrainingState.begin(model, seed=seed, secure=secure, optimizer=optimizer)
    run, file, done = state.run, None, 0
    if checkpoint or process_group().size > 1:
        options: dict[str, Any] = {"seed": seed, "secure": secure, "optimizer": optimizer}
        options |= {"owners": units} if units else {}
        options |= {"precision": precision} if precision != "float32" else {}
        options |= {"processes": process_group().size} if process_group().size > 1 else {}
        file = Checkpoint(checkpoint, hash_run_inputs(model, phases, parts, flags, options))
        done = file.restore(state)
        process_group().agree(f"{file.identity}{done:08x}")
    if on_start and process_group().leads:
        ahead = [event for phase in phases[done:] if (event := phase.event()) is not None]
        on_start([*run.events, *ahead], bool(done or run.events))
    model.train()
    most = max((len(s) for p in phases for s in parts[p.part]), default=0)
    at_once, where = tokens_at_once(model, memory, most), device_of(model)
    steps = [_count_batches(p, len(parts[p.part])) for p in phases]
    bar = tqdm(
        total=sum(steps), initial=sum(steps[:done]), desc="training", unit="step",
        disable=None if progress and process_group().leads else True,  # on a terminal only
    )  # fmt: skip
    for k, phase in enumerate(phases[done:], start=done):
        if (event := phase.event()) is not None:
            run.events.append(event)
            if secure and file:  # charged before it runs: see above
                file.save(state, k)
        started = time.perf_counter()
        owned = units.get(phase.part) if phase.order == "poisson" else None
        read = parts[phase.part], flags.get(phase.part, ()), owned
        with (
            tf32_matmul(where),
            torch.autocast(where.type, torch.bfloat16, precision == "bfloat16"),
        ):
            _run_phase(phase, state, *read, at_once, bar)
        run.seconds += time.perf_counter() - started
        if on_epoch and (k + 1 == len(phases) or phases[k + 1].epoch != phase.epoch):
            run.history.append({"epoch": phase.epoch, **on_epoch(phase.epoch, model)})
            model.train()
        if file:
            file.save(state, k + 1)
    bar.close()
    for p in trainable_parameters(model).values():
        p.grad = None
    return run


def _join_parts_as_all(parts: Mapping[str, PointsOrFlags]) -> dict[str, PointsOrFlags]:
    return {**parts, "all": [*parts.get("public", ()), *parts.get("private", ())]}


def _check_phases(
    model: nn.Module,
    phases: Sequence[Phase],
    parts: Mapping[str, TokenSequences],
    flags: Mapping[str, TokenFlags],
) -> None:
    """Refuse, before the first step, what cannot be trained."""
    for phase in phases:
        points = parts.get(phase.part, ())
        if not points:
            raise ValueError(f"part={phase.part!r}: {type(phase).__name__} has no points to read")
        if process_group().size > 1 and type(phase) not in (PublicPhase, PrivatePhase):
            raise ValueError(
                f"processes={process_group().size}: must be 1 for a {type(phase).__name__}"
            )
        phase.check(model, points, flags.get(phase.part, ()))
    longest, limit = (
        max(len(s) for p in phases for s in parts[p.part]),
        interface.context_length(model),
    )
    if limit is not None and longest - 1 > limit:
        raise ValueError(
            f"context={limit}: the longest point has {longest} tokens; use shorter points "
            "(unit=turn) or a model that reads further"
        )


def _group_points_by_owner(
    part: str, parts: Mapping[str, TokenSequences], owners: Sequence[int]
) -> list[list[int]]:
    """The points of each owner."""
    if len(owners) != len(parts.get(part, ())) or sorted(set(owners)) != [*range(len(set(owners)))]:
        raise ValueError(f"owners: must say 0, 1, ... of each point of the part {part!r}")
    units: list[list[int]] = [[] for _ in set(owners)]
    for k, owner in enumerate(owners):
        units[owner].append(k)
    return units


def _count_batches(phase: Phase, points: int) -> int:
    """Batches of a phase."""
    if isinstance(phase, PublicPhase):
        return phase.passes * math.ceil(points / phase.batch_size)
    steps = getattr(phase, "steps", None)
    return int(steps or math.ceil(points / getattr(phase, "batch_size", points)))


def _run_phase(
    phase: Phase,
    state: TrainingState,
    points: TokenSequences,
    flags: TokenFlags,
    units: list[list[int]] | None,
    at_once: int,
    bar: tqdm[Any],
) -> None:
    """All batches of a phase, each with its updates; ``units``: who owns which points."""
    run, device = state.run, device_of(state.run.model)
    # Flags lie on the host and are cut as their tokens are.
    cut = partial(collate_micro_batches, at_once=at_once, whole=phase.draws or phase.reads_flags)
    for kind, rate in phase.rates().items():
        for group in state.optimizers[kind].param_groups:
            group["lr"] = rate
    lengths = torch.tensor([len(s) for s in (points if units is None else units)])
    non_finite: Tensor | int = 0
    for indices in process_group().same(phase.batches(lengths, state.generators[phase.order])):
        picked = process_group().share(indices.tolist(), key=lambda k: int(lengths[k]))
        several: list[Any] = []  # a Unit stands where a micro-batch does
        if units is not None:
            groups = [units[k] for k in picked]
            picked = [group[0] for group in groups if len(group) == 1]
            pieces = [cut(points, g, device) for g in groups if len(g) > 1]
            several = [MultiTextUnit(cast(Any, rows)) for rows in pieces]  # without flags: pairs
        batch = [*cut(points, picked, device), *several]
        if phase.reads_flags:
            marks = cut(flags, picked, torch.device("cpu"))
            batch = [(*rows, marked) for rows, (marked, _) in zip(batch, marks, strict=True)]
        for update in phase.updates(run.model, batch, state.generators["noise"]):
            state.optimizers[update.kind].step()
            run.updates[update.kind] += 1
            non_finite = non_finite + update.non_finite
            if update.loss is not None and not bar.disable:
                bar.set_postfix_str(f"loss {float(update.loss):.2f}", refresh=False)
        bar.update()
    run.non_finite += process_group().total(int(non_finite))
