"""Every option changes what it says that it changes, and nothing else, or is refused."""

import ast
import hashlib
import inspect
import pickle
import textwrap
import uuid

import pytest
import torch

from confide import __main__ as cli
from confide import recipe
from confide.training import secret_plans, train_on_corpus
from crtbook import __main__ as companion
from crtlib import options
from crtlib.studies import crt_study, study_run
from crtlib.text import customersim, jsonl
from crtlib.training import methods

COMMANDS = cli.CRTLIB_PROGRAM.all_commands() | companion.app.all_commands()
BASE = {"seed": 0, "device": "cpu", "epochs": 2, "width": 8}
KINDS = [*((name, "lstm") for name in recipe.RECIPES), ("crt", "gpt2"), ("crt", "pretrained")]
WITH = {  # what an option needs to be read
    "copies": {"canaries": 2, "dedup": "none", "gamma": 0.5}, "long": {"context": 16},
    "lora_alpha": {"lora": 2},
    "lora_targets": {"lora": 2}, "context": {"context": 64},
}  # fmt: skip
OTHER = {  # another value, where its type does not say one
    "init": "nowhere", "template": "plain", "policy": "cautious", "conservative": "cautious",
    "vocab_size": 270, "width": 16, "context": 16, "lora_targets": "c_attn", "labels": "nowhere",
    "learning_rate": 0.1, "private_learning_rate": 0.1, "delta": 0.02, "clip_norm": 0.5,
    "dtype": "bfloat16", "batch_size": 5,
    "sampling_probability": 0.3, "memory": 1.0, "unit": "dialogue", "plan": "nowhere",
}  # fmt: skip
IN_THE_RECORD = {"trials"}
"""Read after the training: a certificate has it."""


class Begins(Exception):
    """What a training begins with."""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    for seed in (0, 1):
        jsonl.write_jsonl(customersim.simulate_corpus(30, seed), home / f"{seed}.jsonl")
    secret_plans.make_secret_plan(
        home / "0.jsonl",
        home / "plan",
        policy="regex:customersim",
        by="user",
        posterior=0.1,
        scales=(5.0,),
        steps=20,
        batch_size=8,
        neighbouring_relation="reference",
    )
    train_on_corpus.train(
        home / "1.jsonl", method="sgd", model="gpt2", width=8, epochs=1, out=home / "gpt2"
    )
    return home


@pytest.fixture
def begins(monkeypatch, registry):
    """What a training begins with, as a hash: weights, phases, texts, and what its odometer is
    told. Nothing is trained."""

    def stop(
        model, phases, parts, *, on_start, checkpoint, progress, memory_gib, on_epoch=None, **how
    ):
        facts = {k: v for k, v in on_start.__self__.facts.items() if k != "base"}
        state = {name: weight.numpy().tobytes() for name, weight in model.state_dict().items()}
        grad = [name for name, p in model.named_parameters() if p.requires_grad]
        scales = [repr(getattr(m, "scaling", None)) for m in model.modules()]
        raise Begins(pickle.dumps((state, grad, scales, phases, parts, how, facts)))

    monkeypatch.setattr(train_on_corpus, "Training", stop)
    monkeypatch.setattr(study_run, "Training", stop)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # nobody waits for a hub
    threads, promised = torch.get_num_threads(), []
    ready = crt_study.CrtStudy.ready
    monkeypatch.setattr(
        crt_study.CrtStudy, "ready", lambda self: promised.append(s := ready(self)) or s
    )

    def call(names):
        promised.clear()
        monkeypatch.setenv("CRTLIB_REGISTRY", str(registry / uuid.uuid4().hex))  # knows no other
        with pytest.raises(Begins) as begun:
            train_on_corpus.train(names.pop("corpus"), **names)
        torch.set_num_threads(threads)
        deltas = {study.delta for study in promised}  # what a promise is made for
        return hashlib.sha256(begun.value.args[0] + repr(deltas).encode()).hexdigest()

    return call


def other(option):
    """Another value of an option."""
    if option.name in OTHER:
        return OTHER[option.name]
    if "enum" in option.node:
        return next(one for one in option.node["enum"] if one != option.default)
    if option.kind == "boolean":
        return not option.default
    if option.kind == "number":
        return (option.default or 0) / 2 or 0.5
    return (option.default or 1) + 1


@pytest.mark.parametrize(("method", "kind"), KINDS)
def test_every_option_of_a_method_changes_what_it_says_or_is_refused(
    home, begins, tmp_path, method, kind
):
    known = options.options_of(recipe.recipe_for_method(method))
    names = {o.name for o in known}
    base = {n: v for n, v in BASE.items() if n in names}
    base |= {"method": method, "corpus": home / "0.jsonl"}
    base |= {"plan": home / "plan"} if method == "plan" else {}
    base |= {"accountant": "rdp"} if "accountant" in names else {}
    base |= {"repeatable_noise": True} if "repeatable_noise" in names else {}
    if kind == "gpt2":
        base |= {"model": "gpt2"}
    if kind == "pretrained":
        base = {n: v for n, v in base.items() if n != "width"} | {"init": str(home / "gpt2")}
    starts = {}
    untouched = set()
    for option in known:
        name = option.name
        if name in IN_THE_RECORD | {"method", "device"}:
            continue
        if name in ("out", "odometer"):
            changed = {name: tmp_path / f"{kind}-{name}"}
        elif name == "corpus":
            changed = {name: home / "1.jsonl"}
        else:
            changed = {name: other(option) if name not in base or name in OTHER else None}
            if changed[name] is None:
                changed = {name: {"seed": 1, "epochs": 3, "accountant": "pld", "model": "lstm",
                                  "repeatable_noise": False}[name]}  # fmt: skip
        start = base | {n: v for n, v in WITH.get(name, {}).items() if n in names}
        try:
            recipe.make_recipe(start)
        except options.InvalidOption:
            start = base
        key = tuple(sorted(map(str, start.items())))
        if key not in starts:
            starts[key] = begins(dict(start))
        try:
            now = begins(start | changed)
        except ValueError as error:
            assert "\n" not in str(error) and option.group != "Files", name
            continue
        same = now == starts[key]
        if same is (option.group not in ("Files", "Speed and memory")):
            untouched.add(name)
    assert not untouched


def test_ours_have_the_options_that_their_methods_read():
    for name, ours in recipe.RECIPES.items():
        if name != "plan":
            derived = recipe.derive_recipe(methods.method_by_name(name))
            assert set(derived.model_fields) == set(ours.model_fields), name


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "train"])
def test_every_option_of_a_command_is_read(name):
    function = COMMANDS[name].function
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    for option in options.options_of(options.option_model_of(function)):
        assert option.name in read, option.name
        assert option.text and option.group
