"""Tiny trainings: fields of a recipe, and of the study that an experiment fixes beside it."""

import json
import shutil

from confide import recipes
from confide.release import certify
from confide.training import train_on_corpus

TINY = {
    "unit": "turn", "epochs": 1, "sampling_probability": 1.0, "embedding": 4, "hidden": 4,
    "delta": 1e-4, "epsilon": 3.0,
}  # fmt: skip
CRT = TINY | {"method": "crt", "policy": "regex:customersim", "hidden": 4}
SGD_GPT2 = TINY | {"method": "sgd", "model": "gpt2"}
SMALL_RECIPE = {
    "method": "crt", "width": 2, "epochs": 1, "sampling_probability": 1.0, "epsilon": 3.0,
    "delta": 1e-4,
}  # fmt: skip
"""Options of ``confide.train``, of which each point is in the one batch of an epoch."""


def train(corpus, *, card=None, **names):
    """As the command trains; a name that no recipe of the method has is one of the study."""
    method = names.get("method", "crt")
    if method in ("dedup", "crt_sigma0"):  # ablations, of which there is no recipe
        names["method"], fixed = {"dedup": "sgd", "crt_sigma0": "crt"}[method], {"method": method}
    else:
        fixed = {}
    known = recipes.recipe_for_method(names.get("method", "crt")).model_fields
    if "repeatable_noise" not in known:  # there is none
        names.pop("repeatable_noise", None)
    if "init" in names:  # brings its vocabulary
        names.pop("vocab_size", None)
    for name in {*names} - {*known, "policy", "conservative", "labels"}:
        fixed[name] = names.pop(name)
    for name in ("policy", "conservative"):  # that of what reads raw text
        if name not in known and names.get(name) == "everything":
            del names[name]
    return train_on_corpus.train_for_command(corpus, card=card, study=fixed, **names)


def make_certificate(run, page):
    return certify.write_certificate(
        run, page, audience="officer", secrets_per_person=(), force=True
    )


def copy_folder(source, folder):
    """All of it elsewhere, as it is; the record still names the odometer that it was made with."""
    for path in source.iterdir():
        copy = shutil.copytree if path.is_dir() else shutil.copy
        copy(path, folder / path.name)
    return folder


def edit_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
