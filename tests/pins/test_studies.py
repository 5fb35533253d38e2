"""A tiny study of each kind and each method gives the rows that it gave.

Counts are compared exactly. Trained numbers are compared within 2e-3: on one machine they come out
the same to 1e-6, but a CPU of another kind, or another number of threads, adds in another order,
and a few steps of training carry the last bit of single precision that far and no further; a change
of what is computed (a batch, a draw of noise, a clipped sum) moves them by more. Numbers that rest
on the order of scores (ranks, accuracies, thresholds) jump where two of them change places: they
are compared within a tenth. ``python -m tests.pins studies`` compares all of them exactly: what a
commit that only moves code does not change, on the machine that wrote the pin. One for the night.
"""

import functools
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from crtbook.study import Desk
from crtlib.text import corpora
from tests import pins
from tests.models.test_pretrained import tiny
from tests.pins.test_keys import kinds

RANKS = re.compile(
    r"exposure|mia_|group_|pii_|canaries_|(^|_)acc[_ ]|audited|unique|"
    r"longest|memorised|generalised|^kept |success|_leakage"
)
"""Metrics that rest on the order of trained scores."""
METHODS = ("sgd", "dedup", "dpsgd", "user_dpsgd", "jft", "selective", "crt", "crt_sigma0")
CRT = {
    "model": "lstm", "gamma": 0.25, "dialogues": 16, "heldout": 8, "epochs": 1, "canaries": 2,
    "copies": 3, "vocab_size": 300, "embedding": 8, "hidden": 8, "pub_passes": 2, "seed": 0,
    "normaliser": 16.0, "sampling_probability": 0.2,
}  # fmt: skip
LEAKAGE = {
    "seed": 0, "unit": "turn", "dialogues": 8, "heldout": 4, "public": 12, "public_epochs": 1,
    "epochs": 2, "snapshots": [1, 2], "embedding": 8, "hidden": 8, "canaries": 2, "copies": 3,
    "bots": 1, "sampling_probability": 0.3, "vocab_size": 300,
}  # fmt: skip
MASKED = {
    "seed": 0, "targets": "sqrt", "scale": 2.0, "noisy": True, "dialogues": 40, "first": 60,
    "secrets": 20, "vocab_size": 280, "hidden": 8, "layers": 1, "context": 16, "steps": 2,
    "batch_size": 8,
}  # fmt: skip
EXTRACTION = {
    "seed": 0,
    "noise_multiplier": 0.5,
    "hidden": 8,
    "probes": 6,
    "others": 10,
    "epochs": 2,
}
GAME = {"seed": 3, "candidates": 4, "others": 8, "steps": 2, "batch_size": 6.0}
TAGGED = {"policy": "tagger", "conservative": "tagger_conservative", "labelled": 12}

STUDIES: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"crt {method}": ("crt", CRT | {"method": method}) for method in METHODS},
    "crt gpt2": ("crt", CRT | {"method": "crt", "model": "gpt2", "heads": 2, "unit": "dialogue"}),
    "crt gru": ("crt", CRT | {"method": "dpsgd", "model": "gru", "unit": "user"}),
    "crt started": ("crt", CRT | {"method": "crt", "init": "schema_guided", "init_epochs": 1}),
    "crt masked": ("crt", CRT | {"method": "crt", "duplicates": "mask", "optimizer": "sgd"}),
    "crt taught": (
        "crt",
        CRT | TAGGED | {"conservative": "everything", "method": "sgd", "per": "value"},
    ),
    "crt adapted": (
        "crt",
        CRT
        | {"method": "crt", "model": "pretrained", "init": "HOME/gpt2", "lora": 2, "context": 48},
    ),
    **{
        f"axis {method}": ("axis", CRT | {"method": method, "dialogues": 24, "heldout": 10})
        for method in ("crt", "lp_weighted", "greedy")
    },
    **{
        f"leakage {method}": ("leakage", LEAKAGE | {"method": method} | more)
        for method, more in {
            "sgd": {"left_out": True, "epochs": 30, "snapshots": [5, 30], "learning_rate": 0.03},
            "dpsgd": {"unit": "user", "init": "public"},
            "crt": {"policy": "regex", "dedup": True},
            "lp_weighted": {},
            "public": {"init": "public"},
        }.items()
    },
    "leakage rare": ("leakage", LEAKAGE | {"method": "sgd", "policy": "rare", "detail": True}),
    "masked": ("masked", MASKED),
    "masked words": ("masked", MASKED | {"predicate": "word", "targets": "linear"}),
    "extraction": ("extraction", EXTRACTION | {"model": "lstm"}),
    "extraction gemma2": ("extraction", EXTRACTION),
    "game": ("game", GAME),
    "game lstm": ("game", GAME | {"learns": "lstm", "noise": 0.5}),
    "screening": ("screening", {"seed": 0, "policy": "cautious", "heldout": 20}),
    "screening taught": ("screening", TAGGED | {"seed": 0, "heldout": 20}),
    "carrier": ("carrier", {"seed": 0, "init": "HOME/gpt2", "carrier": "USR: ", "random": 2}),
}


@functools.cache
def _started() -> TemporaryDirectory[str]:
    """A folder with a tiny model as a hub would deliver it."""
    home = TemporaryDirectory()
    (Path(home.name) / "gpt2").mkdir()
    tiny("gpt2", Path(home.name) / "gpt2")
    return home


def rows(name: str) -> dict[str, float]:
    """The rows of a study: metric, epoch and item, and the value."""
    kind, given = STUDIES[name]
    given = {k: tuple(v) if type(v) is list else v for k, v in given.items()}
    if str(given.get("init")).startswith("HOME/"):
        given["init"] = given["init"].replace("HOME", _started().name)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run = kinds()[kind](**given).run(Desk())
    finally:
        torch.set_num_threads(threads)
    return {f"{metric} {epoch} {item}": float(value) for metric, epoch, item, value in run}


def make() -> dict[str, dict[str, float]]:
    return {name: rows(name) for name in STUDIES}


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_gives_the_rows_that_it_gave(name):
    if (
        not corpora.is_corpus_available("schema_guided")
        and STUDIES[name][1].get("init") == "schema_guided"
    ):
        pytest.skip("schema_guided is not on this machine")
    pinned, now = pins.read("studies")[name], rows(name)
    assert list(pinned) == sorted(now)
    ranked = {key for key in pinned if RANKS.search(key)}
    for keys, rtol in ((ranked, 0.1), (pinned.keys() - ranked, 2e-3)):
        old, new = ({k: x[k] for k in keys} for x in (pinned, now))
        lines = [*pins.differences(old, new, rtol=rtol)] if rtol < 0.1 else _jumps(old, new)
        assert not lines, "\n".join([f"{name}: {len(lines)} of {len(keys)}", *lines[: pins.SHOWN]])


def _jumps(old: dict[str, float], new: dict[str, float]) -> list[str]:
    """Where numbers that rest on ranks differ by more than a tenth of what they were, or of one."""
    far = (k for k in old if not abs(old[k] - new[k]) <= 0.1 * max(1.0, abs(old[k])))
    return [f"{k}: was {old[k]}, is {new[k]}" for k in far]
