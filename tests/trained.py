"""Trained models that stay on disk while the library is the same, for tests of what reads them."""

import hashlib
import json
import os
import shutil
import uuid
from functools import lru_cache
from pathlib import Path

import torch

import crtlib
from crtlib.training.loop import train_model


@lru_cache
def source() -> str:
    """A hash of the library's source, of torch, and of the instructions that torch uses."""
    root = Path(crtlib.__file__).parent
    machine = f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()}"
    digest = hashlib.sha256(machine.encode())
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def learned(folder, model, phases, parts, *, seed):
    """``model`` after ``train_model(model, phases, parts, seed=seed)``: from ``folder`` where the
    same library has trained the same before. Models of another source are removed from there."""
    digest = hashlib.sha256((repr(phases) + json.dumps([parts, seed])).encode())
    for name, value in model.state_dict().items():
        digest.update(name.encode() + value.numpy().tobytes())
    mine = folder / source()
    if not mine.exists():
        for other in set(folder.iterdir()) - {mine}:
            shutil.rmtree(other, ignore_errors=True)
        mine.mkdir(exist_ok=True)
    path = mine / f"{digest.hexdigest()}.pt"
    if path.exists():
        model.load_state_dict(torch.load(path))
        return model.train()
    train_model(model, phases, parts, seed=seed)
    part = path.with_suffix(f".{uuid.uuid4().hex}")  # other processes may be as far
    torch.save(model.state_dict(), part)
    os.replace(part, path)
    return model
