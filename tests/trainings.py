"""Tiny trainings: fields of a recipe, and of the study that an experiment fixes beside it."""

from confide import recipe
from confide.training import train_on_corpus


def train(corpus, *, card=None, **names):
    """``own.train``, where a name that the method's recipe does not have is one of the study."""
    method = names.get("method", "crt")
    if method in ("dedup", "crt_sigma0"):  # ablations, of which there is no recipe
        names["method"], fixed = {"dedup": "sgd", "crt_sigma0": "crt"}[method], {"method": method}
    else:
        fixed = {}
    known = recipe.recipe_for_method(names.get("method", "crt")).model_fields
    if "repeatable_noise" not in known:  # there is none
        names.pop("repeatable_noise", None)
    if "init" in names:  # brings its vocabulary
        names.pop("vocab_size", None)
    for name in {*names} - {*known, "policy", "conservative", "labels"}:
        fixed[name] = names.pop(name)
    for name in ("policy", "conservative"):  # that of what reads raw text
        if name not in known and names.get(name) == "everything":
            del names[name]
    return train_on_corpus.train(corpus, card=card, study=fixed, **names)
