"""What a training may be told, declared once: a method is a recipe with the fields that it reads.

The command line, ``crtlib.train``, the settings of ``crtlib.toml`` and the book's table of options
are made of these classes; pydantic makes the JSON schema of each.

>>> make({"corpus": "c.jsonl", "epsilon": "2"}).epsilon
2.0
>>> make({"corpus": "c.jsonl", "plan": "p"}).method
'plan'
>>> make({"corpus": "c.jsonl", "plan": "p", "clip_norm": 77})
Traceback (most recent call last):
...
crtlib.options.Refused: clip_norm: is no option of method plan
>>> make({"corpus": "c.jsonl", "copies": 3})
Traceback (most recent call last):
...
crtlib.options.Refused: copies=3: is read only with canaries
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, create_model, model_validator

from crtlib import options as declared
from crtlib.options import Part, Refused, opt

TEXT, POLICIES, GUARANTEE = "Text", "Policies", "Guarantee"
MODEL, TRAINING = "Model", "Optimisation"

# ------------------------------------------------------------------------------- fields of several
METHOD = opt(
    "Method: crt, sgd, dpsgd, user_dpsgd, selective, jft, plan, or one of another package; each "
    "has its own options: train --method NAME --help. [crt; plan with --plan]",
    group=TEXT, metavar="name",
)  # fmt: skip
Width = Annotated[int, opt("Hidden units.", group=MODEL, needs="init=random", ge=1, le=2**14)]
Kind = Annotated[
    Literal["lstm", "gru", "gpt2"], opt("Kind of model.", group=MODEL, needs="init=random")
]


# ------------------------------------------------------------------------------------- recipes
class Recipe(Part):
    """What every training reads."""

    model_config = ConfigDict(allow_inf_nan=False)

    method: Annotated[str, METHOD]
    corpus: Annotated[Path, opt("Corpus folder, JSONL, or a screened folder.", argument="CORPUS")]
    out: Annotated[
        Path | None, opt("Folder for the model; OUT.work gets what is private.", "place")
    ] = None
    init: Annotated[
        str,
        opt("Where the weights start: random, smollm2 (needs crtlib[pretrained]), or any causal "
            "model of transformers by hub id or folder.", group=MODEL),
    ] = "random"  # fmt: skip
    seed: Annotated[
        int,
        opt(
            "Seed of order, initialisation and canaries.",
            group=TRAINING,
            metavar="int from 0",
            ge=0,
            lt=2**63,
        ),
    ] = 0
    device: Annotated[str, opt("Device: auto, cpu or cuda.", "speed")] = "auto"
    workers: Annotated[int | None, opt("CPU threads. [the cores]", "speed", ge=1, le=1024)] = None
    memory: Annotated[
        float | None, opt("GiB of one pass. [a quarter of what is free]", "speed", gt=0)
    ] = None
    odometer: Annotated[
        Path | None, opt("Folder where spent runs are entered. [beside the corpus]", "place")
    ] = None

    @model_validator(mode="after")
    def _reads(self) -> Self:
        """Refuse what is given and not read, as the other options stand."""
        for name in self.model_fields_set:
            extra: Any = type(self).model_fields[name].json_schema_extra
            if (needs := extra.get("needs", "")) and not any(map(self._is, needs.split(" or "))):
                raise Refused(name, f"is read only with {needs}", str(getattr(self, name)))
        return self

    def _is(self, rule: str) -> bool:
        name, unequal, value = rule.partition("!=")
        if unequal:
            return bool(getattr(self, name) != value)
        name, equal, value = rule.partition("=")
        return bool(getattr(self, name) == value if equal else getattr(self, name))


class Language(Recipe):
    """What a training on points reads, whatever protects them."""

    model: Kind = "lstm"
    unit: Annotated[
        Literal["turn", "dialogue", "user"] | None,
        opt("Data point. [as screened, else turn]", group=TEXT),
    ] = None
    template: Annotated[
        str | None,
        opt("How turns become text: speaker, plain, chat (the model's own) or FILE.j2. [chat where "
            "--init has one, else speaker]", group=TEXT),
    ] = None  # fmt: skip
    context: Annotated[
        int | None,
        opt("Tokens read at once, of a transformer. [256; of --init the model's, up to 1024]",
            group=TEXT, needs="model=gpt2 or init!=random", ge=1),
    ] = None  # fmt: skip
    long: Annotated[
        Literal["split", "cut"],
        opt("Longer points: split (pieces clipped together) or cut.", group=TEXT,
            needs="model=gpt2 or init!=random"),
    ] = "split"  # fmt: skip
    canaries: Annotated[
        Annotated[int, Field(ge=0)] | Literal["auto"],
        opt("Canaries to plant and attack; auto: for an audit, as many as its power needs.",
            group=TEXT, metavar="int from 0, or auto"),
    ] = 0  # fmt: skip
    copies: Annotated[
        int,
        opt("Copies of each canary; 1: for crtlib audit, and passed over by the policy.",
            group=TEXT, needs="canaries", ge=0),
    ] = 20  # fmt: skip
    power: Annotated[
        float,
        opt("How often an audit is to notice half of the noise, by a strong attacker.",
            group=TEXT, needs="canaries=auto", gt=0, lt=1),
    ] = 0.9  # fmt: skip
    layers: Annotated[int, opt("Layers.", group=MODEL, needs="init=random", ge=1)] = 1
    width: Width = 64
    lora: Annotated[
        int,
        opt("Rank of adapters, which alone are trained; 0: all weights are.", group=MODEL,
            needs="init!=random", ge=0),
    ] = 0  # fmt: skip
    lora_alpha: Annotated[
        float | None,
        opt("Scale of adapters. [twice the rank]", group=MODEL, needs="lora", ge=0),
    ] = None
    lora_targets: Annotated[
        str,
        opt("Layers with adapters: all-linear, or names joined by commas.", group=MODEL,
            needs="lora"),
    ] = "all-linear"  # fmt: skip
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        opt("Data type of activations (auto: bfloat16 on a GPU); weights, norms and sums stay "
            "float32.", group=MODEL),
    ] = "auto"  # fmt: skip
    epochs: Annotated[
        int | None, opt("Passes over the points. [by model size]", group=TRAINING, ge=1)
    ] = None
    core_hours: Annotated[
        float | None,
        opt("Hours of a core (or GPU) that training may take; they choose the model: SmolLM2 with "
            "adapters where crtlib[pretrained] is installed and they suffice, else the widest LSTM "
            "that is done in them. [1 on a GPU; on a CPU the LSTM of --width]",
            group=MODEL, gt=0),
    ] = None  # fmt: skip
    batch_size: Annotated[
        int | None,
        opt("Points of a batch (private: expected). [by model size, at most a tenth of the points]",
            group=TRAINING, ge=1, le=10**9),
    ] = None  # fmt: skip
    gradient_checkpointing: Annotated[
        bool,
        opt("Less memory for a third more time.", "speed", needs="model=gpt2 or init!=random"),
    ] = False


class Noised(Recipe):
    """What a training with noise reads."""

    repeatable_noise: Annotated[
        bool, opt("Noise from the seed: for experiments, never for a release.", group=GUARANTEE)
    ] = False
    trials: Annotated[
        int, opt("Trainings that saw this text before this one.", group=GUARANTEE, ge=1)
    ] = 1


class Clipped(Noised):
    """What a training that clips each point's gradient reads."""

    clip_norm: Annotated[
        float | None, opt("Largest norm of a point's gradient. [1]", group=GUARANTEE, ge=1e-20)
    ] = None
    delta: Annotated[
        float | None,
        opt("Target delta. [largest power of ten up to 0.1 / private points]", group=GUARANTEE,
            gt=0, lt=1),
    ] = None  # fmt: skip
    private_learning_rate: Annotated[
        float | None,
        opt("Learning rate of private steps. [5e-3, 1e-3, 1e-4; LoRA 5e-4]", group=TRAINING, gt=0),
    ] = None


class Calibrated(Clipped):
    """What a training with a target epsilon reads."""

    epsilon: Annotated[
        float, opt("Target epsilon of DP-SGD.", group=GUARANTEE, gt=0, le=10_000)
    ] = 3.0
    neighbouring: Annotated[
        Literal["add_or_remove", "replace"],
        opt("Neighbouring relation.", group=GUARANTEE),
    ] = "replace"
    accountant: Annotated[
        Literal["pld", "rdp", "prv", "autodp"], opt("Accountant.", group=GUARANTEE)
    ] = "pld"
    sampling_probability: Annotated[
        float | None,
        opt("Share of the private points in a batch, instead of the batch size.", group=TRAINING,
            gt=0, le=1),
    ] = None  # fmt: skip


class Screened(Language):
    """What a training on screened text reads."""

    vocab_size: Annotated[
        int, opt("Tokens of the vocabulary.", group=MODEL, needs="init=random", ge=1)
    ] = 512
    learning_rate: Annotated[
        float | None,
        opt("Learning rate of public steps (Adam). [1e-2 below 5 M parameters, 1e-3 below 50 M, "
            "else 2e-5; LoRA 2e-4]", group=TRAINING, gt=0),
    ] = None  # fmt: skip
    policy: Annotated[
        str | None,
        opt("Redaction policy pi; several, joined by +. [the corpus' own, if any]",
            group=POLICIES),
    ] = None  # fmt: skip
    conservative: Annotated[
        str | None, opt("Conservative policy pi_c. [as the policy]", group=POLICIES)
    ] = None
    gamma: Annotated[
        float, opt("Share of what pi flags to miss on purpose.", group=POLICIES, ge=0, le=1)
    ] = 0.0


class Judged(Screened):
    """What a training reads whose policies can be judged by labels."""

    labels: Annotated[
        Path | None,
        opt("Folder of crtlib label, by which the certificate judges the policies.",
            group=POLICIES),
    ] = None  # fmt: skip


class Crt(Judged, Calibrated):
    """Confidentially redacted training: deduplicate, redact, and add noise where a secret may be
    left (Zhao et al. 2022)."""

    method: Annotated[Literal["crt"], METHOD] = "crt"  # type: ignore[assignment]
    dedup: Annotated[
        Literal["all", "flagged", "none"],
        opt("Deduplicate: all points, flagged ones, or none.", group=POLICIES),
    ] = "all"


class Sgd(Judged):
    """Ordinary training on redacted text; no promise."""

    method: Annotated[Literal["sgd"], METHOD] = "sgd"  # type: ignore[assignment]


class DpSgd(Language, Calibrated):
    """Noise on every step, of raw text: one point is protected (Abadi et al. 2016)."""

    method: Annotated[Literal["dpsgd"], METHOD] = "dpsgd"  # type: ignore[assignment]


class UserDpSgd(Language, Calibrated):
    """Noise on every step: one user is protected, with all his points."""

    method: Annotated[Literal["user_dpsgd"], METHOD] = "user_dpsgd"  # type: ignore[assignment]


class Selective(Screened, Clipped):
    """Noise on private tokens only (S-DP; Shi et al. 2022)."""

    method: Annotated[Literal["selective"], METHOD] = "selective"  # type: ignore[assignment]


class Jft(Screened, Calibrated):
    """Redacted text first, then raw text with noise (Just Fine-tune Twice; Shi et al. 2022)."""

    method: Annotated[Literal["jft"], METHOD] = "jft"  # type: ignore[assignment]


class SecretPlan(Noised):
    """Weights and noise by secret, from a plan of crtlib protect (Hush!; Ganesh et al. 2025)."""

    method: Annotated[Literal["plan"], METHOD] = "plan"  # type: ignore[assignment]
    plan: Annotated[
        Path, opt("Folder of crtlib protect: weights and noise by secret.", group=GUARANTEE)
    ]
    model: Kind = "lstm"
    width: Width = 64
    context: Annotated[
        int, opt("Tokens read at once, of a transformer.", group=TEXT, needs="model=gpt2", ge=1)
    ] = 256
    epochs: Annotated[int, opt("Passes over the points.", group=TRAINING, ge=1)] = 8
    private_learning_rate: Annotated[
        float, opt("Learning rate of the steps.", group=TRAINING, gt=0)
    ] = 5e-3


RECIPES: dict[str, type[Recipe]] = {
    kind.model_fields["method"].default: kind
    for kind in (Crt, Sgd, DpSgd, UserDpSgd, Selective, Jft, SecretPlan)
}
"""The methods of this library by name; the first is the default."""


# ---------------------------------------------------------------------------------------- forms
def recipe_of(method: str) -> type[Recipe]:
    """The recipe of a method; that of another package's is made of what the method reads."""
    if method in RECIPES:
        return RECIPES[method]
    from crtlib.training import methods

    known = {name: m for name, m in methods.known().items() if m.trains and not m.weighs}
    names = [*RECIPES, *(n for n, m in known.items() if m.baseline and n not in RECIPES)]
    if method not in names:
        raise Refused("method", f"must be one of {', '.join(names)}", method)
    return derived(known[method])


def derived(method: Any) -> type[Recipe]:
    """A recipe of what a :class:`crtlib.training.methods.Method` reads."""
    named = {"neighbouring_relation": "neighbouring"}
    names = {named.get(name, name) for name in method.reads} | set(Language.model_fields)
    if "policy" in method.reads:
        names |= {"conservative", "vocab_size", *["labels"] * (not method.reads_raw)}
    if not method.deduplicates:
        names -= {"dedup"}
    if method.private:
        names |= set(Noised.model_fields)
    fields: dict[str, Any] = {
        n: (f.annotation, f) for n, f in Crt.model_fields.items() if n in names
    }
    fields["method"] = (Annotated[Literal[method.name], METHOD], method.name)
    made: type[Recipe] = create_model(f"Recipe_{method.name}", __base__=Recipe, **fields)
    return made


def choose(given: Mapping[str, Any] | None) -> tuple[list[type[Part]], str]:
    """The recipe of the method that is named, and "method NAME"; None: all of this library."""
    if given is None:
        return [*RECIPES.values()], ""
    default = "plan" if given.get("plan") else next(iter(RECIPES))
    method = str(given.get("method") or default)
    return [recipe_of(method)], f"method {method}"


def make(given: Mapping[str, Any]) -> Recipe:
    """A recipe of names and values, of which None is as if not given. Raises
    :class:`crtlib.options.Refused`, one line."""
    values = {name: value for name, value in given.items() if value is not None}
    (kind, *_), whose = choose(values)
    every = {name for recipe in RECIPES.values() for name in recipe.model_fields}
    recipe = declared.make(kind, values, whose, every)
    assert isinstance(recipe, Recipe)
    return recipe
