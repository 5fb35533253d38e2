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
from confide import recipes
from confide.reports.screening_page import screen_into_folder
from confide.screening.corpus_screening import ScreeningOptions
from confide.training import secret_plans, train_on_corpus, training_with_plan
from crtbook import __main__ as companion
from crtlib import options
from crtlib.studies import crt_study, study_run
from crtlib.text import customersim, jsonl
from crtlib.training import methods

COMMANDS = cli.CRTLIB_PROGRAM.all_commands() | companion.app.all_commands()
BASE = {"seed": 0, "device": "cpu", "epochs": 2, "width": 8}
KINDS = [*((name, "lstm") for name in recipes.RECIPES), ("crt", "gpt2"), ("crt", "pretrained"),
         ("crt", "screened"), ("sgd", "screened"), ("crt", "private"), ("crt", "drawn"),
         ("dpsgd", "drawn")]  # fmt: skip
OF_A_KIND = {
    "gpt2": {"model": "gpt2"}, "private": {"conservative": "everything"},
    "drawn": {"sampling_probability": 0.2},
}  # fmt: skip
THE_SAME_THERE = {"private": {"dedup", "duplicates", "vocab_size"}}
"""What says the same in other words where all is private: all is flagged, each copy is one of a
private point, and no word is public, of which there are at most so many."""
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
    for name, conservative in (("screened", "cautious"), ("all-private", "everything")):
        how = ScreeningOptions("regex:customersim", conservative)
        screen_into_folder(home / "0.jsonl", home / name, how)
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

    monkeypatch.setattr(training_with_plan, "Training", stop)
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
    known = options.options_of(recipes.recipe_for_method(method))
    names = {o.name for o in known}
    base = {n: v for n, v in BASE.items() if n in names}
    base |= {"method": method, "corpus": home / "0.jsonl"}
    base |= {"plan": home / "plan"} if method == "plan" else {}
    base |= {"accountant": "rdp"} if "accountant" in names else {}
    base |= {"repeatable_noise": True} if "repeatable_noise" in names else {}
    base |= OF_A_KIND.get(kind, {})
    if kind == "screened":
        base |= {"corpus": home / "screened"}
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
        needed = {} if kind == "screened" else WITH.get(name, {})  # which reads no canaries
        start = base | {n: v for n, v in needed.items() if n in names}
        try:
            recipes.make_recipe(start)
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
    assert untouched <= THE_SAME_THERE.get(kind, set())


WITHOUT_EFFECT = [
    ("train screened --dedup all", "dedup='all': screened is screened already; screen it again"),
    ("train screened --dedup none", "dedup='none': screened is screened already; screen it again"),
    ("train screened --gamma 0", "gamma=0.0: screened is screened already; screen it again"),
    ("train screened --policy none",
     "policy='none': screened is screened already; screen it again"),
    ("train screened --unit dialogue",
     "unit='dialogue': screened is screened already; screen it again"),
    ("train screened --duplicates mask_private",
     "duplicates='mask_private': screened is screened already; screen it again"),
    ("train screened --labels labels",
     "--labels: the corpus is screened already; give them to 'crtlib screen'"),
    ("train all-private --learning-rate 0.5",
     "--learning-rate 0.5: is for steps without noise, but no point is public; use "
     "private_learning_rate"),
    ("train all-private --sampling-probability 0.2 --batch-size 5",
     "--batch-size 5: is read only without sampling_probability, as no point is public"),
    ("train 0.jsonl --method dpsgd --sampling-probability 0.2 --batch-size 5",
     "--batch-size 5: is read only without sampling_probability, as no point is public"),
    ("train 0.jsonl --method dpsgd --batch-size 5000",
     "--batch-size 5000: must be at most 192, the number of points"),
    ("train 0.jsonl --method user_dpsgd --batch-size 100",
     "--batch-size 100: must be at most 24, the number of points"),
    ("train 0.jsonl --method sgd --batch-size 5000",
     "--batch-size 5000: must be at most 219, the number of points"),
    ("train 0.jsonl --dedup none --duplicates mask",
     "--duplicates mask: is read only with dedup!=none"),
    ("train 0.jsonl --policy none --gamma 0.2",
     "gamma=0.2: is the share missed of what --policy flags, and --policy is none"),
    ("train 0.jsonl --canaries auto --copies 5",
     "--copies 5: must be 1 with canaries=auto, which an audit alone reads"),
    ("train 0.jsonl --core-hours 1 --width 8",
     "--core-hours 1.0: chooses the model, and width is given"),
    ("train 0.jsonl --plan plan --epochs 21", "epochs=21: must be in 1 to 20, the plan's steps"),
    ("screen 0.jsonl --seed 7", "--seed 7: is read only with gamma"),
    ("screen 0.jsonl --gamma 0 --seed 7", "--seed 7: is read only with gamma"),
    ("screen 0.jsonl --dedup none --dedup-by exact",
     "--dedup-by exact: is read only with dedup!=none"),
    ("screen 0.jsonl --dedup none --duplicates mask",
     "--duplicates mask: is read only with dedup!=none"),
    ("screen 0.jsonl --policy none --gamma 0.2",
     "gamma=0.2: is the share missed of what --policy flags, and --policy is none"),
    *((f"certify gpt2 --verify {words}", f"{' '.join(words.split()[:2])}: is read only without "
       "verify") for words in ("--name m", "--for both", "--audit a", "--report r",
                               "--secrets-per-person 5,20")),
    ("certify gpt2 --verify --force", "--force True: is read only without verify"),
    *((f"account --odometer o {words}", f"{words}: is read only without odometer")
      for words in ("--points 5", "--gamma 0.5", "--unit turn", "--before b")),
    ("account --delta 0.1 --strike e", "--strike e: is read only with odometer"),
    ("account --odometer o --because b", "--because b: is read only with strike"),
    ("account --forget", "--forget True: is read only with odometer"),
    ("tagger 0.jsonl --labels l --heldout 0.5", "--heldout 0.5: is read only without labels"),
    ("label sample 0.jsonl --turns 5 --secrets 9", "--secrets 9: is read only without turns"),
    ("label sample 0.jsonl --turns 5 --rate 0.5", "--rate 0.5: is read only without turns"),
    ("ingest 0.jsonl --max-bad 0.5", "--max-bad 0.5: is read only with skip_bad"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "says"), WITHOUT_EFFECT)
def test_an_option_without_effect_is_refused(home, run, tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(home)
    before = sorted(home.iterdir())
    line = (
        words.split() if words.startswith("account") else [*words.split(), "--out", tmp_path / "m"]
    )
    assert run(*line) == (2, "", f"crtlib: error: {says}\n")
    assert sorted(home.iterdir()) == before and not list(tmp_path.iterdir())


def test_a_folder_may_be_trained_on_by_the_unit_that_it_has(home, begins):
    how = {"corpus": home / "screened", "device": "cpu", "width": 8}
    assert begins(how | {"unit": "turn", "batch_size": 5}) == begins(how | {"batch_size": 5})


def test_hours_choose_the_model_of_every_method(home):
    """Those of another package's method, and those beside a study, were accepted and ignored."""
    with pytest.raises(options.InvalidOption, match="core_hours: chooses the model, and study is"):
        train_on_corpus.train(home / "0.jsonl", core_hours=1.0, study={"pub_passes": 2})
    given = {"corpus": home / "0.jsonl", "method": "dedup", "core_hours": 1.0, "width": 8}
    theirs = recipes.derive_recipe(methods.method_by_name("dedup"))
    with pytest.raises(options.InvalidOption, match="chooses the model, and width is given"):
        train_on_corpus.train(theirs(**given))


def test_ours_have_the_options_that_their_methods_read():
    for name, ours in recipes.RECIPES.items():
        if name != "plan":
            derived = recipes.derive_recipe(methods.method_by_name(name))
            assert set(derived.model_fields) == set(ours.model_fields), name


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "train"])
def test_every_option_of_a_command_is_read(name):
    function = COMMANDS[name].function
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    for option in options.options_of(options.option_model_of(function)):
        assert option.name in read, option.name
        assert option.text and option.group


def test_a_refused_option_comes_back_from_a_worker_process_as_it_was():
    refused = options.InvalidOption("batch_size", "must be at most 40", "5000")
    assert str(pickle.loads(pickle.dumps(refused))) == str(refused)
