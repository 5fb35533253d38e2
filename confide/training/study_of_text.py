"""Make a study from a recipe and a corpus.

Settings that the recipe leaves open follow from the corpus (policy, who is held out) or from the
sizes of the model and the text (batch size, epochs, learning rates).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from confide import recipes
from confide.recipes import Recipe
from confide.release import file_sources
from confide.screening.corpus_screening import default_policy, describe_idle_gamma
from confide.training import training_facts
from confide.training.training_facts import TrainingFacts
from crtlib.arguments import argument, arguments
from crtlib.attacks import run_audit
from crtlib.files import StrPath
from crtlib.intervals import round_up_to_figures
from crtlib.models import pretrained, smollm2
from crtlib.models.construction import build_model
from crtlib.options import InvalidOption
from crtlib.studies import crt_study, study_data
from crtlib.studies.crt_study import CrtStudy
from crtlib.studies.study_data import PreparedData
from crtlib.text import corpora, screened_folder, templates
from crtlib.training import methods

MIN_DIALOGUES = 12
"""The least number of dialogues in a corpus, so that some can be held out."""

MAX_CONTEXT_TOKENS = 1024
"""The most tokens that a pre-trained model reads at once, unless the recipe sets a number."""

OPERATIONS_PER_SECOND = {"cpu": 4e10, "cuda": 2e13}
"""Operations per second for estimating the hours of a training: for one core, as measured with
SmolLM2 and with LSTMs of 64 and 512 units; for a GPU, a cautious guess."""

MODEL_OPTIONS = {"init", "model", "width", "layers", "vocab_size", "lora"}
"""Options that determine which model is trained."""
WHY_FLOAT32 = "in bfloat16 one text moves what the others add, which no noise covers"


def build_study(corpus: StrPath, **settings: Any) -> CrtStudy:
    """Build the study that trains on one's own corpus. For each person a coin decides whether that
    person's text is for validation (a tenth), for testing (a tenth) or for training; nobody is held
    out if ``heldout`` is 0.

    ``settings`` are fields of :class:`CrtStudy`; None counts as not given. The default ``policy``
    is the corpus's own, and the default ``conservative`` policy is the same. A screened folder is
    read as it was screened. Raises ``ValueError`` for a corpus that is too small, and if no policy
    is known to fit.
    """
    settings = _settings_from_corpus(corpus, {k: v for k, v in settings.items() if v is not None})
    _refuse_promise_of_one_person(corpus, settings)
    size = len(corpora.load_corpus(corpus))
    heldout = settings.pop("heldout", max(1, size // 10))
    if size < MIN_DIALOGUES and heldout:
        raise ValueError(
            f"{corpus}: must have at least {MIN_DIALOGUES} {_name_of_rows(corpus)}, so that some "
            f"can be held out, but has {size}"
        )
    defaults: dict[str, Any] = {"method": "crt", "model": "lstm", "gamma": 0.0, "seed": 0}
    defaults |= {"canaries": 0, "neighbouring_relation": "replace"}
    defaults |= {"duplicates": "mask_private", "coin": "text", "split": "coin"}
    init = settings.get("init", "random")
    if init != "random":
        if crt_study.is_corpus(init):  # perhaps the one that is trained on
            raise ValueError(f"init={init!r}: must be random or a model, but is a corpus")
        has_chat_template = says_who_spoke(corpus) and templates.read_chat_template(
            pretrained.resolve_model_path(init)
        )
        template = "chat" if has_chat_template else "speaker"
        defaults |= {"context": MAX_CONTEXT_TOKENS, "template": template}
        settings["model"] = "pretrained"
    return CrtStudy(
        corpus=str(Path(corpus).resolve()),
        dialogues=size,
        heldout=heldout,
        **defaults | settings,
    )


def _name_of_rows(corpus: StrPath) -> str:
    """What the rows of a text on disk are called; in a screened folder each is a point."""
    if not screened_folder.is_screened_folder(corpus):
        return "conversations"
    names = {"turn": "messages", "dialogue": "conversations", "user": "people"}
    return names[screened_folder.read_screening_summary(corpus)["unit"]]


def _refuse_promise_of_one_person(corpus: StrPath, settings: Mapping[str, Any]) -> None:
    """Refuse a promise to each person if a single person wrote all of the text."""
    method = methods.method_by_name(settings.get("method", "crt"))
    if not method.noise or not (method.by_user or settings.get("unit") == "user"):
        return
    if len({d.user or d.id for d in corpora.load_corpus(corpus).dialogues}) != 1:
        return
    smaller: dict[str, Any] = {"unit": ("turn", "dialogue")}
    how = arguments(**smaller)
    if screened_folder.is_screened_folder(corpus):
        how = f"screen it with {how}"
    elif method.by_user:
        how = arguments(method="dpsgd", **smaller)
    raise ValueError(
        f"{corpus}: one person wrote all of it, and without that person nothing is left to compare "
        f"with; promise messages or conversations ({how}), or add what others wrote"
    )


def says_who_spoke(corpus: StrPath) -> bool:
    """Whether a corpus records who wrote each message. A folder that an earlier version screened
    holds text without speakers."""
    return not screened_folder.is_screened_folder(corpus) or screened_folder.holds_roles(corpus)


def default_hyperparameters(parameters: int, *, adapters: bool) -> dict[str, Any]:
    """Default hyperparameters: the learning rates (Adam) of public and private steps, the epochs,
    and the points in a batch. They follow from the number of parameters and from whether only
    adapters are trained: a model that has read the internet needs another learning rate than one
    that has read nothing.

    >>> [default_hyperparameters(n, adapters=False)["learning_rate"] for n in (50_000, 135_000_000)]
    [0.01, 2e-05]
    """
    names = ("learning_rate", "private_learning_rate", "epochs", "batch_size")
    if adapters:
        values = (2e-4, 5e-4, 4, 512)
    elif parameters < 5_000_000:
        values = (1e-2, 5e-3, 8, 64)
    else:
        values = (1e-3, 1e-3, 4, 256) if parameters < 50_000_000 else (2e-5, 1e-4, 4, 512)
    return dict(zip(names, values, strict=True))


def model_for_budget(
    hours: float, turns: int, device: str, epochs: int | None = None
) -> dict[str, Any]:
    """The model that can be trained on ``turns`` turns (30 tokens each) in ``hours``: SmolLM2 with
    adapters if it can be loaded here and the hours suffice, else the widest LSTM for which they do,
    with at least 64 units. No clock is read, so a training can resume on another machine. Only the
    rounded number of turns is used, because the choice leaves with the model.

    >>> [model_for_budget(hours, 10**6, "cpu")["width"] for hours in (0.01, 5, 50)]
    [64, 128, 1024]
    """
    max_parameter_passes = hours / _hours_per_parameter(turns, device)

    def fits(parameters: int, *, adapters: bool = False) -> bool:
        passes = epochs or default_hyperparameters(parameters, adapters=adapters)["epochs"]
        return bool(parameters * passes <= max_parameter_passes)

    if not smollm2.missing_smollm2_packages() and fits(smollm2.SMOLLM2_PARAMETERS, adapters=True):
        return {"init": smollm2.SMOLLM2_NAME, "lora": 8}
    widths = [width for width in (128, 256, 512, 1024) if fits(8 * width * (width + 128))]
    return {"width": max(widths, default=64)}


def hours_of_smollm2(turns: int, device: str, epochs: int | None = None) -> float:
    """The least number of hours for which :func:`model_for_budget` chooses SmolLM2 with adapters
    for this many turns, if it can be loaded; rounded up to two figures.

    >>> hours_of_smollm2(10_000, "cpu"), hours_of_smollm2(10_000, "cuda")
    (5.6, 0.012)
    """
    passes = epochs or default_hyperparameters(smollm2.SMOLLM2_PARAMETERS, adapters=True)["epochs"]
    hours = smollm2.SMOLLM2_PARAMETERS * passes * _hours_per_parameter(turns, device)
    return float(round_up_to_figures(hours, 2))


def _hours_per_parameter(turns: int, device: str) -> float:
    """Hours per parameter for one pass over this many turns of 30 tokens, at six operations per
    token and parameter."""
    seconds = 6 * 30 * file_sources.round_down_points(turns)
    return seconds / OPERATIONS_PER_SECOND[device.partition(":")[0]] / 3600


def choose_hyperparameters_by_size(
    study: CrtStudy, prepared: PreparedData, given: TrainingFacts
) -> CrtStudy:
    """The study, with the hyperparameters that are not ``given`` chosen by the sizes of its model
    and its text. A batch has at most a tenth of the points, and delta is the largest power of ten
    that is at most 0.1 / n, where n is the rounded number of private points and a quarter more, an
    upper bound of the exact one.

    Private batches are Poisson samples of ``batch_size`` points in expectation, or up to a quarter
    more, or of the share ``sampling_probability``; public batches have ``batch_size`` points.
    Everything that is chosen leaves with the model, so it may depend on the number of private
    points only through its rounded value.
    """
    if study.brings_vocabulary:
        parameters = pretrained.count_pretrained_parameters(
            pretrained.resolve_model_path(study.init)
        )
    else:
        model = build_model(study.shape(), 0)
        parameters = sum(p.numel() for p in model.parameters())
    defaults = default_hyperparameters(parameters, adapters=study.lora > 0)
    max_batch_size = defaults.pop("batch_size")
    exact = training_facts.count_private_points(study, prepared)
    count = file_sources.round_down_points(exact)
    points = count if exact else len(prepared.prepared.all)
    size = given.get("batch_size") or max(1, min(max_batch_size, points // 10))
    probability = given.get("sampling_probability") or min(1.0, size / count)
    bound = max(1, 5 * count // 4)  # the exact number is not larger
    defaults |= {
        "delta": float(f"1e-{math.ceil(math.log10(10 * bound))}"),
        "clip_norm": 1.0,
        "pub_passes": max(1, min(10, count // max(1, len(prepared.prepared.public)))),
    }
    chosen = defaults | {k: v for k, v in given.items() if k in defaults}
    return replace(
        study,
        **chosen,
        batch_size=size,
        sampling_probability=probability,
        normaliser=max(1.0, probability * count),
    )


def refuse_idle_options(recipe: Recipe, study: CrtStudy, prepared: PreparedData) -> None:
    """Refuse options that were set but have no effect on this study, as can be seen only once the
    text is prepared.

    Args:
        recipe: The recipe in which the options were set.
        study: Its study, ready to be trained.
        prepared: What the study reads.

    Raises:
        InvalidOption: For the learning rate of steps that do not occur, for a batch size where
            another option sets it, and for a batch with more points than there are.

    Guarantee:
        No option of a training is accepted and ignored. Test: ``tests/test_options.py::
        test_every_option_of_a_method_changes_what_it_says_or_is_refused``.
    """
    chosen = {name: getattr(recipe, name) for name in recipe.model_fields_set}
    phases = crt_study.schedule_phases(study, has_public=bool(prepared.prepared.public))
    parts_read = {p.part for p in phases if "public" in p.learning_rates()}
    if "learning_rate" in chosen and not parts_read:
        raise InvalidOption(
            "learning_rate",
            "is for steps without noise, but no point is public; use private_learning_rate",
            str(chosen["learning_rate"]),
        )
    if "batch_size" not in chosen:
        return
    size = chosen["batch_size"]
    sizes = []
    if "public" in parts_read:
        sizes.append(len(prepared.prepared.public))
    if parts_read - {"public"}:
        sizes.append(len(prepared.prepared.all))
    if study.training_method.private and "sampling_probability" not in chosen:
        exact = training_facts.count_private_points(study, prepared)
        sizes.append(file_sources.round_down_points(exact))
    if not sizes:
        raise InvalidOption(
            "batch_size", "is read only without sampling_probability, as no point is public",
            str(size),
        )  # fmt: skip
    if size > max(sizes):
        raise InvalidOption(
            "batch_size", f"must be at most {max(sizes)}, the number of points", str(size)
        )


def _settings_from_corpus(corpus: StrPath, settings: dict[str, Any]) -> dict[str, Any]:
    """``settings`` with what the corpus decides added: its policy, or how it was screened."""
    method = methods.method_by_name(settings.get("method", "crt"))
    if not screened_folder.is_screened_folder(corpus):
        settings.setdefault("unit", "turn")
        # Such a method treats all of the text as private, also where the vocabulary is learned.
        if method.reads_raw and "policy" not in method.reads:
            settings |= {"conservative": "everything"}
        if "policy" not in settings and "policy" in method.reads:
            settings["policy"] = default_policy(corpus, "none" if method.name == "sgd" else "")
        if settings.get("gamma") and settings.get("policy") == "none":
            raise ValueError(f"gamma={settings['gamma']!r}: {describe_idle_gamma()}")
        return {"conservative": settings.get("policy", "everything")} | settings
    if method.reads_raw or method.flags_tokens:
        asked = argument("method", method.name)
        raise ValueError(f"{asked}: reads raw text; give the unscreened corpus")
    screening = screened_folder.read_screening_summary(corpus)
    screened_settings: dict[str, Any] = {
        "policy": "none",
        "conservative": f"screened:{Path(corpus).resolve()}",
        "unit": screening["unit"],
        "dedup": "none",
        "gamma": 0.0,
        "duplicates": "mask_private",
    }
    if settings.get("canaries") and not settings.get("audited"):
        raise ValueError(
            f"canaries={settings['canaries']!r}: must be those of an audit (auto, or "
            f"{argument('copies', 1)}) on {corpus}, which is screened already: policies find "
            "copies of a canary, or miss them, in raw text only"
        )
    for name in screened_settings.keys() & settings.keys():
        if name != "unit" or settings["unit"] != screening["unit"]:
            value = settings[name]
            raise ValueError(f"{name}={value!r}: {corpus} is screened already; screen it again")
    return settings | screened_settings


def resolve_model(recipe: Recipe, device: str, *, holds_people_out: bool = True) -> Recipe:
    """The recipe (for a method that trains on points), completed by the model that its hours allow
    if it names none.

    Guarantee:
        The choice leaves with the model. It depends only on the messages that are trained on, whose
        number a certificate treats as known. Test: ``tests/test_held_out.py::
        test_hours_choose_by_what_is_trained_on``.
    """
    given = recipe.model_dump(exclude_unset=True)
    hours = given.pop("core_hours", None)
    if model_options := sorted(MODEL_OPTIONS & given.keys()):
        if hours is not None:
            raise InvalidOption(
                "core_hours", f"chooses the model, and {model_options[0]} is given", str(hours)
            )
        return recipe
    if hours is None and (device == "cpu" or smollm2.missing_smollm2_packages()):
        return recipe
    sizes = 1, int(holds_people_out), recipe.seed, 0
    read = study_data.split_corpus(str(recipe.corpus.resolve()), "paper", *sizes, "coin").train
    turns = sum(len(d.turns) for d in read.dialogues)
    chosen = model_for_budget(hours or 1.0, turns, device, given.get("epochs"))
    return recipes.make_recipe({"method": recipe.method} | given | chosen)


def study_fields(recipe: Recipe, device: str) -> dict[str, Any]:
    """The fields of a :class:`CrtStudy` that a recipe sets, without the corpus.

    Args:
        recipe: A recipe for a method that trains on points. Fields that it leaves as None are left
            out; :func:`build_study` and :func:`choose_hyperparameters_by_size` choose them.
        device: Where it runs; the data type ``auto`` is bfloat16 on a GPU if no noise is added.

    Returns:
        Values by the study's field names. A recipe has no field that its method does not read.
    """
    options: Any = recipe  # for points, so it has the fields of a LanguageRecipe
    read = dict(recipe).get
    chosen = {name: getattr(options, name) for name in options.model_fields_set}.get
    canaries = options.canaries
    if canaries == "auto" and chosen("copies", 1) != 1:
        raise InvalidOption(
            "copies",
            "must be 1 with canaries=auto, which an audit alone reads",
            str(options.copies),
        )
    is_audited = canaries == "auto" or (canaries > 0 and options.copies == 1)
    if is_audited and canaries != "auto" and canaries < run_audit.MIN_AUDIT_CANARIES:
        raise InvalidOption(
            "canaries",
            f"must be auto, or at least {run_audit.MIN_AUDIT_CANARIES} of one copy, which an audit "
            "alone reads",
            str(canaries),
        )
    adds_noise = bool(methods.method_by_name(options.method).noise)
    if adds_noise and options.dtype == "bfloat16":
        raise InvalidOption(
            "dtype", f"must be auto or float32 where noise is added: {WHY_FLOAT32}", options.dtype
        )
    dtype_of_device = "float32" if device == "cpu" or adds_noise else "bfloat16"
    values = {
        "method": options.method,
        "seed": options.seed,
        # text
        "unit": options.unit,
        "template": options.template,
        "context": options.context,
        "long": options.long,
        "vocab_size": read("vocab_size"),
        "canaries": run_audit.MIN_AUDIT_CANARIES if canaries == "auto" else canaries,
        "copies": 1 if is_audited else options.copies,
        "audited": True if is_audited else None,
        # policies; for a screened folder none of these may be chosen
        "policy": chosen("policy"),
        "conservative": chosen("conservative"),
        "gamma": chosen("gamma"),
        "dedup": chosen("dedup"),
        "duplicates": chosen("duplicates"),
        # model
        "model": options.model,
        "embedding": options.width,
        "hidden": options.width,
        "layers": options.layers,
        "init": options.init,
        "lora": options.lora,
        "lora_alpha": options.lora_alpha,
        "lora_targets": options.lora_targets,
        "precision": dtype_of_device if options.dtype == "auto" else options.dtype,
        # optimisation
        "epochs": options.epochs,
        "batch_size": options.batch_size,
        "sampling_probability": read("sampling_probability"),
        "learning_rate": read("learning_rate"),
        "private_learning_rate": read("private_learning_rate"),
        # guarantee
        "clip_norm": read("clip_norm"),
        "epsilon": read("epsilon"),
        "delta": read("delta"),
        "neighbouring_relation": read("neighbouring"),
        "accountant": read("accountant"),
    }
    return {name: value for name, value in values.items() if value is not None}
