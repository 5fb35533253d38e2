"""The loop that runs phases.

A phase holds public constants only, and is the one object that makes both the batches and the
ledger entry: the sampler that ran is the one that is accounted.

>>> import torch
>>> from crtlib.models.networks import build
>>> from crtlib.models.networks import ModelSpec
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

What a run is between two phases, in memory and as a checkpoint.

>>> model = nn.Linear(2, 2)
>>> state = State.begin(model, seed=0, secure=False, optimizer="sgd")
>>> sorted(state.generators), sorted(state.optimizers)
(['noise', 'poisson', 'public order'], ['private', 'public'])
>>> len({g.initial_seed() for g in state.generators.values()})  # streams of their own
3

How many tokens a model reads at once, so that a pass fits into memory.

>>> from crtlib.models.networks import build
>>> from crtlib.models.networks import ModelSpec
>>> tokens_at_once(build(ModelSpec("lstm", vocab_size=9, embedding=4, hidden=5), seed=0), memory=1)
4096
"""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from crtlib import files
from crtlib.accounting.ledger import SampledGaussian, WeightedGaussian
from crtlib.checks import check
from crtlib.files import Named
from crtlib.models import networks
from crtlib.models.networks import device_of
from crtlib.training.bookkeeping import ghost_until, trainable
from crtlib.training.devices import fast, near
from crtlib.training.noise import SECURE, Random
from crtlib.training.parallel import crew
from crtlib.training.phases import (
    TOKENS_AT_ONCE,
    Event,
    Flags,
    Kind,
    Order,
    Phase,
    Points,
    PrivatePhase,
    PublicPhase,
    Unit,
    collate,
)
from crtlib.training.probe import refuse_mixing

Rows = TypeVar("Rows", Points, Flags)
Stream = Order | Literal["noise"]
STREAMS: tuple[Stream, ...] = ("public order", "poisson", "noise")
EVENTS = {kind.__name__: kind for kind in (SampledGaussian, WeightedGaussian)}
OPTIMIZERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


@dataclass
class Run:
    """What training leaves: the model, what was done to private points (``events``), what
    ``on_epoch`` measured (``history``), the seconds of training, the ``updates`` by kind.

    ``non_finite`` counts the gradients of private examples whose norm was no finite number, and
    which therefore moved nothing. It is a number about private points, which no guarantee covers:
    for who runs the training, not for publication. ``processes`` have trained together.
    """

    model: nn.Module
    events: list[Event] = field(default_factory=list)
    history: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    updates: Counter[Kind] = field(default_factory=Counter)
    non_finite: int = 0
    processes: int = 1

    def facts(self) -> dict[str, Any]:
        """What a checkpoint says of it, as JSON values."""
        return {
            "events": [{"type": type(event).__name__, **asdict(event)} for event in self.events],
            "history": self.history,
            "updates": dict(self.updates),
            "seconds": self.seconds,
        }


@dataclass
class State:
    """All that the next phase depends on: the run so far, optimizers and generators."""

    run: Run
    optimizers: dict[Kind, torch.optim.Optimizer]
    generators: dict[Stream, Random]

    @classmethod
    def begin(
        cls, model: nn.Module, *, seed: int, secure: bool, optimizer: Literal["adam", "sgd"]
    ) -> State:
        """Before the first phase; the options are those of :func:`crtlib.training.loop.train`."""
        learning = list(trainable(model).values())
        kinds: tuple[Kind, ...] = ("public", "private")
        # One kernel for all parameters: of a small transformer a third of the time, or less.
        optimizers: dict[Kind, torch.optim.Optimizer] = {
            kind: OPTIMIZERS[optimizer](learning, lr=1.0, fused=True) for kind in kinds
        }
        run = Run(model, processes=crew().size)
        return cls(run, optimizers, streams(seed, device_of(model), secure=secure))


def streams(seed: int, device: torch.device, *, secure: bool = False) -> dict[Stream, Random]:
    """Independent generators from one seed (also from other uses of the same seed): of the order
    of public batches, of Poisson samples, of noise. ``secure``: the last two from the operating
    system. Batches are drawn on the CPU, so they are the same wherever the model is."""
    made: dict[Stream, Random] = {}
    for k, name in enumerate(STREAMS):
        if secure and name != "public order":
            made[name] = SECURE
            continue
        own = int(np.random.SeedSequence([seed, 7, k]).generate_state(1, np.uint64)[0] >> 1)
        made[name] = torch.Generator(device if name == "noise" else "cpu").manual_seed(own)
    return made


def identity(
    model: nn.Module,
    phases: Sequence[Phase],
    parts: Mapping[str, Points],
    flags: Mapping[str, Flags],
    options: Mapping[str, Any],
) -> str:
    """A hash of all that decides a run: phases, data, options, the model before training."""
    constants = [[type(p).__name__, asdict(p)] for p in phases]  # type: ignore[call-overload]
    shape = getattr(model, "config", model)  # a transformer's heads show in its config alone
    where = device_of(model).type
    digest = hashlib.sha256(repr([str(shape), constants, dict(options), where]).encode())
    for name, tensor in model.state_dict().items():
        # As bytes, because NumPy has no bfloat16.
        flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        digest.update(name.encode() + flat.numpy().tobytes())
    for name, rows in [*parts.items(), *flags.items()]:
        digest.update(f"{name} {len(rows)}".encode())
        for row in rows:
            digest.update(np.asarray(row, dtype=np.int64).tobytes() + b".")
    return digest.hexdigest()


@dataclass(frozen=True)
class Checkpoint:
    """A file, for the owner alone, that lets the run of ``identity`` go on bit for bit; without a
    ``path`` it keeps nothing."""

    path: Named | None
    identity: str

    def save(self, state: State, done: int) -> None:
        """Replace the file, atomically: ``done`` phases are over. One process does it for all."""
        if not self.path or not crew().leads:
            return
        with files.replacing(Path(self.path), mode=0o600) as part:
            torch.save(self._content(state, done), part)

    def _content(self, state: State, done: int) -> dict[str, Any]:
        run = state.run
        return {
            "identity": self.identity,
            "done": done,
            "model": run.model.state_dict(),
            "optimizers": [o.state_dict() for o in state.optimizers.values()],
            "generators": [
                g.get_state() if isinstance(g, torch.Generator) else None
                for g in state.generators.values()
            ],
            "non_finite": run.non_finite,
            **run.facts(),
        }

    def restore(self, state: State) -> int:
        """Load the file into ``state``, if there is one; the number of phases that are over.

        Raises ValueError for a damaged file, one that is no checkpoint, or that of another run.
        """
        if not self.path or not Path(self.path).exists():
            return 0
        saved = self._read(self.path, self._content(state, 0))
        run = state.run
        run.model.load_state_dict(saved["model"])
        for optimizer, content in zip(state.optimizers.values(), saved["optimizers"], strict=True):
            optimizer.load_state_dict(content)
        for generator, content in zip(state.generators.values(), saved["generators"], strict=True):
            if isinstance(generator, torch.Generator):
                generator.set_state(content)
        run.events = [EVENTS[e.pop("type")](**e) for e in saved["events"]]
        run.history, run.seconds = saved["history"], saved["seconds"]
        run.updates, run.non_finite = Counter(saved["updates"]), saved["non_finite"]
        return int(saved["done"])

    def _read(self, path: Named, like: Mapping[str, Any]) -> dict[str, Any]:
        name = f"checkpoint={os.fspath(path)!r}"
        try:
            saved = torch.load(path, weights_only=True, map_location="cpu")
        except (pickle.UnpicklingError, RuntimeError, EOFError, OSError):
            raise ValueError(f"{name}: is damaged; remove it to start anew") from None
        if not isinstance(saved, dict) or saved.keys() != like.keys():
            raise ValueError(
                f"{name}: is no checkpoint of this version of crtlib; name another file"
            )
        if saved["identity"] != self.identity:
            raise ValueError(
                f"{name}: belongs to another run (phases, data, seed or device differ)"
            )
        return saved


# --------------------------------------------------------------------------- training


def train(
    model: nn.Module,
    phases: Sequence[Phase],
    parts: Mapping[str, Points],
    *,
    seed: int,
    flags: Mapping[str, Flags] | None = None,
    owners: Mapping[str, Sequence[int]] | None = None,
    secure: bool = False,
    optimizer: Literal["adam", "sgd"] = "adam",
    precision: Literal["float32", "bfloat16"] = "float32",
    memory: float | None = None,
    longest: int | None = None,
    on_epoch: Callable[[int, nn.Module], dict[str, float]] | None = None,
    checkpoint: Named | None = None,
    on_start: Callable[[list[Event], bool], None] | None = None,
    progress: bool = False,
) -> Run:
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
    a ``checkpoint`` its event is counted each time that it begins: ``Run.events`` can hold more
    than the schedule.

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
    parts, flags = _with_all(parts), _with_all(flags or {})
    units = {part: _units(part, parts, ids) for part, ids in (owners or {}).items()}
    _check(model, phases, parts, flags)
    if any("private" in phase.rates() for phase in phases):
        refuse_mixing(model, longest=longest)
    state = State.begin(model, seed=seed, secure=secure, optimizer=optimizer)
    run, file, done = state.run, None, 0
    if checkpoint or crew().size > 1:
        options: dict[str, Any] = {"seed": seed, "secure": secure, "optimizer": optimizer}
        options |= {"owners": units} if units else {}
        options |= {"precision": precision} if precision != "float32" else {}
        options |= {"processes": crew().size} if crew().size > 1 else {}
        file = Checkpoint(checkpoint, identity(model, phases, parts, flags, options))
        done = file.restore(state)
        crew().agree(f"{file.identity}{done:08x}")
    if on_start and crew().leads:
        ahead = [event for phase in phases[done:] if (event := phase.event()) is not None]
        on_start([*run.events, *ahead], bool(done or run.events))
    model.train()
    most = max((len(s) for p in phases for s in parts[p.part]), default=0)
    at_once, where = tokens_at_once(model, memory, most), device_of(model)
    steps = [_steps(p, len(parts[p.part])) for p in phases]
    bar = tqdm(
        total=sum(steps), initial=sum(steps[:done]), desc="training", unit="step",
        disable=None if progress and crew().leads else True,  # on a terminal only
    )  # fmt: skip
    for k, phase in enumerate(phases[done:], start=done):
        if (event := phase.event()) is not None:
            run.events.append(event)
            if secure and file:  # charged before it runs: see above
                file.save(state, k)
        started = time.perf_counter()
        owned = units.get(phase.part) if phase.order == "poisson" else None
        read = parts[phase.part], flags.get(phase.part, ()), owned
        with fast(where), torch.autocast(where.type, torch.bfloat16, precision == "bfloat16"):
            _run_phase(phase, state, *read, at_once, bar)
        run.seconds += time.perf_counter() - started
        if on_epoch and (k + 1 == len(phases) or phases[k + 1].epoch != phase.epoch):
            run.history.append({"epoch": phase.epoch, **on_epoch(phase.epoch, model)})
            model.train()
        if file:
            file.save(state, k + 1)
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
        if crew().size > 1 and type(phase) not in (PublicPhase, PrivatePhase):
            raise ValueError(f"processes={crew().size}: must be 1 for a {type(phase).__name__}")
        phase.check(model, points, flags.get(phase.part, ()))
    longest, limit = max(len(s) for p in phases for s in parts[p.part]), networks.context(model)
    if limit is not None and longest - 1 > limit:
        raise ValueError(
            f"context={limit}: the longest point has {longest} tokens; use shorter points "
            "(unit=turn) or a model that reads further"
        )


def _units(part: str, parts: Mapping[str, Points], owners: Sequence[int]) -> list[list[int]]:
    """The points of each owner."""
    if len(owners) != len(parts.get(part, ())) or sorted(set(owners)) != [*range(len(set(owners)))]:
        raise ValueError(f"owners: must say 0, 1, ... of each point of the part {part!r}")
    units: list[list[int]] = [[] for _ in set(owners)]
    for k, owner in enumerate(owners):
        units[owner].append(k)
    return units


def _steps(phase: Phase, points: int) -> int:
    """Batches of a phase."""
    if isinstance(phase, PublicPhase):
        return phase.passes * math.ceil(points / phase.batch_size)
    steps = getattr(phase, "steps", None)
    return int(steps or math.ceil(points / getattr(phase, "batch_size", points)))


def _run_phase(
    phase: Phase,
    state: State,
    points: Points,
    flags: Flags,
    units: list[list[int]] | None,
    at_once: int,
    bar: tqdm[Any],
) -> None:
    """All batches of a phase, each with its updates; ``units``: who owns which points."""
    run, device = state.run, device_of(state.run.model)
    # Flags lie on the host and are cut as their tokens are.
    cut = partial(collate, at_once=at_once, whole=phase.draws or phase.reads_flags)
    for kind, rate in phase.rates().items():
        for group in state.optimizers[kind].param_groups:
            group["lr"] = rate
    lengths = torch.tensor([len(s) for s in (points if units is None else units)])
    non_finite: Tensor | int = 0
    for indices in crew().same(phase.batches(lengths, state.generators[phase.order])):
        picked = crew().share(indices.tolist(), key=lambda k: int(lengths[k]))
        several: list[Any] = []  # a Unit stands where a micro-batch does
        if units is not None:
            groups = [units[k] for k in picked]
            picked = [group[0] for group in groups if len(group) == 1]
            pieces = [cut(points, g, device) for g in groups if len(g) > 1]
            several = [Unit(cast(Any, rows)) for rows in pieces]  # without flags: pairs
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
    run.non_finite += crew().total(int(non_finite))


LEAST = 64
TOKENS_AT_ONCE_OF_A_GPU = 2**18
"""As :data:`crtlib.training.phases.TOKENS_AT_ONCE`, with which a GPU would wait for its host."""
SHARE = 0.25
"""Of the free memory, where nobody names a bound."""


def tokens_at_once(model: nn.Module, memory: float | None = None, longest: int = 0) -> int:
    """At most ``TOKENS_AT_ONCE``, on a GPU more, and fewer where the activations that one pass
    keeps would take more than ``memory`` GiB (default: a quarter of what is free on its device).

    An estimate: each weight matrix keeps its input and the gradient of its output, the head two
    rows of the vocabulary if it learns, else a part of one; half as much again for what autograd
    keeps between them. A matrix whose gradient of each example is formed, of texts up to
    ``longest``, takes most where that begins to pay: there it is shared by the fewest tokens.
    """
    if memory is not None:
        check("memory", memory, memory > 0, "positive")
    device = device_of(model)
    if memory is not None:
        free = memory * 2**30
    elif device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0] * SHARE
    else:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * SHARE
    head = networks.head(model).weight
    widths = sum(sum(p.shape) for p in model.parameters() if p.ndim == 2 and p is not head)
    vocabulary = len(head) * (2 if head.requires_grad else 0.5)
    learns = [(p, ghost_until(p, p)) for p in trainable(model).values() if p.ndim == 2]
    direct = sum(p.numel() / turn for p, turn in learns if longest > turn)
    each = 4 * (1.5 * widths + vocabulary + direct)
    most = TOKENS_AT_ONCE if near(head) else TOKENS_AT_ONCE_OF_A_GPU
    return int(max(LEAST, min(most, free / each)))
