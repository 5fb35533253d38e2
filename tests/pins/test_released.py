"""A training of each method releases the folder that it released: what lies there, and what in it.

The noise follows from the seed, so the weights can be compared: of each tensor its norm and its
largest entry, within 2e-3 (a CPU of another kind adds in another order; see ``test_studies``). Of
JSON files the pin has the names and the types of what stands in them, of the settings and of the
promise all of it, of the other texts all but their digits, of the tokenizer and the configuration
a hash. The private folder beside it is pinned likewise. One for the night.
"""

import functools
import hashlib
import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from confide.reports import model_card
from confide.training import secret_plans, train_on_corpus
from crtlib.text import customersim, jsonl
from tests import pins, trainings

TINY = {
    "unit": "turn", "epochs": 1, "embedding": 8, "hidden": 8, "vocab_size": 300, "delta": 8e-5,
    "sampling_probability": 0.1, "batch_size": 16, "seed": 0, "device": "cpu",
}  # fmt: skip
RUNS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("sgd", "dedup", "dpsgd", "user_dpsgd", "jft", "selective", "crt")},
    "crt_sigma0": {},
    "crt gpt2": {"model": "gpt2", "heads": 2, "unit": "dialogue"},
    "dpsgd gru": {"model": "gru", "unit": "user", "canaries": 2, "copies": 3},
    "plan": {},
}
WHOLE = {"experiment.json", "guarantee.txt"}
"""Files whose text is pinned."""
HASHED = {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}
"""Files that hold what is not trained and is the same in every release."""


def corpus_in(home: Path, name: str = "talk") -> Path:
    """A corpus of 40 dialogues."""
    path = home / f"{name}.jsonl"
    jsonl.write_jsonl(customersim.simulate_corpus(40, 3, "paper"), path)
    return path


def plan_of(corpus: Path, out: Path) -> Path:
    """A plan that protects each person's values."""
    secret_plans.make_secret_plan(
        corpus,
        out,
        policy="regex:customersim",
        by="user",
        posterior=0.1,
        scales=(5.0,),
        steps=20,
        batch_size=8,
        neighbouring_relation="reference",
    )
    return out


def train(method: str, corpus: Path, out: Path, **more: Any) -> None:
    """Train by a method, or by a plan, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if method == "plan":
            plan = plan_of(corpus, out.with_name(f"{out.name}.plan"))
            shape = {"epochs": 1, "width": 8, "device": "cpu"}
            train_on_corpus.train_for_command(corpus, plan=plan, out=out, **shape, **more)
        else:
            how = TINY | more
            if method in ("dpsgd", "user_dpsgd") or more.get("unit") == "dialogue":
                # All is private, so the sampling probability alone draws batches.
                del how["batch_size"]
            trainings.train(
                corpus, out=out, method=method, card=model_card.render_model_card, **how
            )
    finally:
        torch.set_num_threads(threads)


def shape_of(value: Any) -> Any:
    """The names and types in a JSON value; of a list its first entry, as the others are like it."""
    if isinstance(value, dict):
        return {key: shape_of(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [shape_of(entry) for entry in value[:1]]
    return "number" if type(value) in (int, float) else type(value).__name__


def summary(file: Path) -> Any:
    """What the pin says of a file."""
    content = file.read_bytes()
    if file.name in HASHED:
        return hashlib.sha256(content).hexdigest()[:24]
    if file.suffix == ".safetensors":
        tensors = load_file(file)
        return {
            name: [[*x.shape], float(x.float().norm()), float(x.float().abs().max())]
            for name, x in sorted(tensors.items())
        }
    if file.suffix in (".json", ".txt", ".md", ".jinja", ".jsonl"):
        text = content.decode()
        if file.name in WHOLE:
            return json.loads(text) if file.suffix == ".json" else text
        return shape_of(json.loads(text)) if file.suffix == ".json" else re.sub(r"\d", "#", text)
    return file.suffix


def folder(place: Path) -> dict[str, Any]:
    """Every file of a folder, with its mode."""
    files = sorted(path for path in place.rglob("*") if path.is_file())
    return {
        f"{path.relative_to(place)} {path.stat().st_mode & 0o777:o}": summary(path)
        for path in files
    }


@functools.cache
def released(name: str) -> dict[str, Any]:
    """The folder and the private folder of a run."""
    with TemporaryDirectory() as home, pytest.MonkeyPatch.context() as patch:
        patch.setenv("CRTLIB_REGISTRY", f"{home}/registry")  # which knows no earlier run
        out = Path(home, "model")
        corpus = corpus_in(Path(home))
        train(name.partition(" ")[0], corpus, out, repeatable_noise=True, **RUNS[name])
        both = {"released": folder(out), "private": folder(Path(home, "model.work"))}
        return json.loads(json.dumps(both).replace(home, "HOME"))


def make() -> dict[str, Any]:
    return {name: released(name) for name in RUNS}


@pytest.mark.parametrize("name", RUNS)
def test_a_method_releases_what_it_released(name):
    assert not (
        lines := [*pins.differences(pins.read("released")[name], released(name), rtol=2e-3)]
    ), "\n".join(lines[: pins.SHOWN])
