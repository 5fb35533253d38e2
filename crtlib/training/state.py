"""What a run is between two phases, in memory and as a checkpoint.

>>> model = nn.Linear(2, 2)
>>> state = State.begin(model, seed=0, secure=False, optimizer="sgd")
>>> sorted(state.generators), sorted(state.optimizers)
(['noise', 'poisson', 'public order'], ['private', 'public'])
>>> len({g.initial_seed() for g in state.generators.values()})  # streams of their own
3

A finished training, kept in a folder: the model, and what was done to private points.

>>> import tempfile
>>> from crtlib.models.build import build
>>> from crtlib.text.tokenizer import train_bpe
>>> bpe = train_bpe(["hello"], vocab_size=270)
>>> spec = ModelSpec("lstm", bpe.vocab_size, embedding=4, hidden=4)
>>> folder = tempfile.mkdtemp()
>>> save(Run(build(spec, 0), [SampledGaussian(0.1, 1.0, 20)]), bpe, spec, folder)
>>> restore(folder).run.events
[SampledGaussian(sampling_probability=0.1, noise_multiplier=1.0, steps=20)]
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from crtlib import files, outputs
from crtlib.accounting.events import SampledGaussian, WeightedGaussian
from crtlib.files import Named
from crtlib.models import folder as model_folder
from crtlib.models.interface import device_of
from crtlib.models.spec import ModelSpec
from crtlib.text.tokenizer import Bpe
from crtlib.training.bookkeeping import trainable
from crtlib.training.noise import SECURE, Random
from crtlib.training.parallel import crew
from crtlib.training.phases import Event, Flags, Kind, Order, Phase, Points

Stream = Order | Literal["noise"]
CONTENT = (
    "identity", "done", "model", "optimizers", "generators", "events", "history", "updates",
    "seconds", "non_finite",
)  # fmt: skip
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
        """What a checkpoint and ``run.json`` say of it, as JSON values."""
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

    def set_rates(self, rates: Mapping[Kind, float]) -> None:
        """The learning rate of each kind of update."""
        for kind, rate in rates.items():
            for group in self.optimizers[kind].param_groups:
                group["lr"] = rate


def streams(seed: int, device: torch.device, *, secure: bool = False) -> dict[Stream, Random]:
    """Independent generators from one seed (also from other uses of the same seed): of the order
    of public batches, of Poisson samples, of noise. ``secure``: the last two from the operating
    system. Batches are drawn on the CPU, so they are the same wherever the model is."""
    made: dict[Stream, Random] = {}
    for k, name in enumerate(STREAMS):
        where = device if name == "noise" else torch.device("cpu")
        if secure and name != "public order":
            made[name] = SECURE
        else:
            made[name] = torch.Generator(where).manual_seed(_seed(seed, k))
    return made


def _seed(seed: int, stream: int) -> int:
    return int(np.random.SeedSequence([seed, 7, stream]).generate_state(1, np.uint64)[0] >> 1)


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
        run = state.run
        content = {
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
        with files.replacing(Path(self.path), mode=0o600) as part:
            torch.save(content, part)

    def restore(self, state: State) -> int:
        """Load the file into ``state``, if there is one; the number of phases that are over.

        Raises ValueError for a damaged file, one that is no checkpoint, or that of another run.
        """
        if not self.path or not Path(self.path).exists():
            return 0
        saved = self._read(self.path)
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

    def _read(self, path: Named) -> dict[str, Any]:
        name = f"checkpoint={os.fspath(path)!r}"
        try:
            saved = torch.load(path, weights_only=True, map_location="cpu")
        except (pickle.UnpicklingError, RuntimeError, EOFError, OSError):
            raise ValueError(f"{name}: is damaged; remove it to start anew") from None
        if not isinstance(saved, dict) or saved.keys() != set(CONTENT):
            raise ValueError(
                f"{name}: is no checkpoint of this version of crtlib; name another file"
            )
        if saved["identity"] != self.identity:
            raise ValueError(
                f"{name}: belongs to another run (phases, data, seed or device differ)"
            )
        return saved


@dataclass(frozen=True)
class Kept:
    """What :func:`restore` finds: the run, its tokenizer and its model's shape."""

    run: Run
    tokenizer: Bpe
    spec: ModelSpec | None


def save(
    run: Run,
    tokenizer: Bpe,
    spec: ModelSpec | None,
    folder: Named,
    *,
    record: Named | None = None,
    **options: Any,
) -> None:
    """Write model, shape, tokenizer and what was done, each atomically; ``run.json`` comes last and
    holds the SHA-256 of the others, so where it stands and agrees the folder is whole. ``record``
    names another file for it. Without a ``spec`` the folder is one of ``transformers``; ``options``
    as of :func:`crtlib.models.folder.save`."""
    folder = Path(folder)
    record = Path(record or folder / "run.json")
    record.unlink(missing_ok=True)  # of an earlier model: not whole any more
    names = model_folder.save(run.model, tokenizer, spec, folder, **options)
    summary = {
        **run.facts(),
        "sha256": {name: outputs.sha256(folder / name) for name in names},
    }
    with files.replacing(record, mode=0o600) as part:
        part.write_text(json.dumps(summary) + "\n", encoding="utf-8")


def restore(folder: Named, record: Named | None = None) -> Kept | None:
    """What :func:`save` wrote to ``folder``; None where it is not there, not whole or damaged."""
    folder = Path(folder)
    try:
        summary = json.loads(Path(record or folder / "run.json").read_text(encoding="utf-8"))
        if any(outputs.sha256(folder / name) != sha for name, sha in summary["sha256"].items()):
            return None
        model, tokenizer, spec = model_folder.ours(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    events = [EVENTS[event.pop("type")](**event) for event in summary["events"]]
    run = Run(model, events, summary["history"], summary["seconds"], Counter(summary["updates"]))
    return Kept(run, tokenizer, spec)
