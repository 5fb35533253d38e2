"""The state of a run on disk between two phases, from which the run can resume."""

from __future__ import annotations

import hashlib
import itertools
import os
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from crtlib import files
from crtlib.checks import raise_machine_fault
from crtlib.files import StrPath
from crtlib.models.interface import device_of
from crtlib.ragged_array import RaggedArray
from crtlib.training.parallel import process_group
from crtlib.training.phases import Phase
from crtlib.training.run_state import EVENT_CLASSES, TrainingState


def hash_run_inputs(
    model: nn.Module,
    phases: Sequence[Phase],
    parts: Mapping[str, RaggedArray],
    private_tokens: Mapping[str, RaggedArray],
    loss_masks: Mapping[str, RaggedArray],
    options: Mapping[str, Any],
) -> str:
    """A hash of all that decides a run: phases, data, options, the model before training."""
    constants = [[type(p).__name__, asdict(p)] for p in phases]  # type: ignore[call-overload]
    shape = getattr(model, "config", model)  # a transformer's heads show only in its config
    device_type = device_of(model).type
    digest = hashlib.sha256(repr([str(shape), constants, dict(options), device_type]).encode())
    for name, tensor in model.state_dict().items():
        # As bytes, because NumPy has no bfloat16.
        flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        digest.update(name.encode() + flat.numpy().tobytes())
    every_table = [("", parts), ("", private_tokens)]
    if loss_masks:
        every_table.append(("counted ", loss_masks))  # as in the hashes of earlier checkpoints
    for kind, tables in every_table:
        tables_by_part = {part: [rows] for part, rows in tables.items() if part != "all"}
        tables_by_part["all"] = [tables[part] for part in ("public", "private") if part in tables]
        for part, part_tables in tables_by_part.items():
            digest.update(f"{kind}{part} {sum(map(len, part_tables))}".encode())
            for row in itertools.chain(*part_tables):
                digest.update(row.astype(np.int64).tobytes() + b".")
    return digest.hexdigest()


class OtherRunError(ValueError):
    """A checkpoint belongs to a run with other phases, data, seed or device."""


@dataclass(frozen=True)
class Checkpoint:
    """A file, readable only by its owner, from which the run with this ``hash_run_inputs`` resumes
    bit for bit; without a ``path`` nothing is stored."""

    path: StrPath | None
    identity: str

    def save(self, state: TrainingState, phases_done: int) -> None:
        """Replace the file atomically, after ``phases_done`` phases; one process does it."""
        if not self.path or not process_group().is_leader:
            return
        with files.replace_atomically(Path(self.path), mode=0o600) as temporary_file:
            torch.save(self._content(state, phases_done), temporary_file)

    def _content(self, state: TrainingState, phases_done: int) -> dict[str, Any]:
        run = state.run
        return {
            "identity": self.identity,
            "done": phases_done,
            "model": run.model.state_dict(),
            "optimizers": [o.state_dict() for o in state.optimizers.values()],
            "generators": [
                g.get_state() if isinstance(g, torch.Generator) else None
                for g in state.generators.values()
            ],
            "non_finite": run.non_finite,
            "receipt": run.receipt,
            **run.facts(),
        }

    def restore(self, state: TrainingState) -> int:
        """Load the file into ``state``, if there is one, and return the number of finished phases.

        Raises ValueError for a damaged file or one that is no checkpoint, and
        :class:`OtherRunError` for the checkpoint of another run.
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
        run.events = [EVENT_CLASSES[e.pop("type")](**e) for e in saved["events"]]
        run.history, run.seconds = saved["history"], saved["seconds"]
        run.updates, run.non_finite = Counter(saved["updates"]), saved["non_finite"]
        run.receipt = saved["receipt"]
        return int(saved["done"])

    def _read(self, path: StrPath, expected: Mapping[str, Any]) -> dict[str, Any]:
        name = f"checkpoint={os.fspath(path)!r}"
        try:
            saved = torch.load(
                files.check_regular_file(path), weights_only=True, map_location="cpu"
            )
        except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
            raise_machine_fault(error)
            raise ValueError(f"{name}: is damaged; remove it to start again") from None
        if isinstance(saved, dict):
            saved.setdefault("receipt", "")  # checkpoints of crtlib 0.4 have none
        if not isinstance(saved, dict) or saved.keys() != expected.keys():
            raise ValueError(
                f"{name}: is not a checkpoint of this version of crtlib; name another file"
            )
        if saved["identity"] != self.identity:
            raise OtherRunError(
                f"{name}: belongs to another run (phases, data, seed or device differ)"
            )
        return saved
