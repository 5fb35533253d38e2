"""A finished training, kept in a folder: the model, and what was done to private points.

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
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crtlib import files
from crtlib.accounting.events import SampledGaussian, WeightedGaussian
from crtlib.models import folder as model_folder
from crtlib.models.spec import ModelSpec
from crtlib.text.tokenizer import Bpe
from crtlib.training.loop import Run

EVENTS = {kind.__name__: kind for kind in (SampledGaussian, WeightedGaussian)}


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
    folder: str | os.PathLike[str],
    *,
    record: str | os.PathLike[str] | None = None,
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
        "events": [{"type": type(event).__name__, **asdict(event)} for event in run.events],
        "history": run.history,
        "updates": dict(run.updates),
        "seconds": run.seconds,
        "sha256": {name: _digest(folder / name) for name in names},
    }
    with files.replacing(record, mode=0o600) as part:
        part.write_text(json.dumps(summary) + "\n", encoding="utf-8")


def restore(
    folder: str | os.PathLike[str], record: str | os.PathLike[str] | None = None
) -> Kept | None:
    """What :func:`save` wrote to ``folder``; None where it is not there, not whole or damaged."""
    folder = Path(folder)
    try:
        summary = json.loads(Path(record or folder / "run.json").read_text(encoding="utf-8"))
        if any(_digest(folder / name) != sha for name, sha in summary["sha256"].items()):
            return None
        model, tokenizer, spec = model_folder.ours(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    events = [EVENTS[event.pop("type")](**event) for event in summary["events"]]
    run = Run(model, events, summary["history"], summary["seconds"], Counter(summary["updates"]))
    return Kept(run, tokenizer, spec)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
