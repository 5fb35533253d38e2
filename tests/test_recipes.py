"""One declaration: every form in which people meet the options of a training says the same."""

import importlib
import sys
from dataclasses import fields
from pathlib import Path

import jsonschema
import pydantic
import pytest

from confide import __main__ as cli
from confide import recipes
from confide.training import study_of_text
from crtlib.options import options_of
from crtlib.studies.crt_study import CrtStudy

GIVEN = {
    "crt": {"epsilon": 2.0, "gamma": 0.1, "policy": "a\"b+\x7f", "dedup": "none", "canaries": 3,
            "copies": 5, "delta": 1e-6},
    "sgd": {"learning_rate": 0.5, "model": "gpt2", "context": 64},
    "dpsgd": {"clip_norm": 0.5, "repeatable_noise": True, "sampling_probability": 0.2},
    "user_dpsgd": {"accountant": "rdp", "trials": 3},
    "selective": {"delta": 1e-5, "conservative": "everything"},
    "jft": {"init": "some/model", "lora": 8, "lora_targets": "a,b", "dtype": "float32"},
    "plan": {"plan": "p", "epochs": 3},
}  # fmt: skip
HERE = Path(__file__).parents[1]
sys.path.insert(0, str(HERE / "book"))
computed = importlib.import_module("computed")


@pytest.mark.parametrize("method", recipes.RECIPES)
def test_every_form_says_the_same(method):
    given = GIVEN[method]
    want = recipes.make_recipe({"corpus": "c", "method": method, **given})
    assert want == recipes.RECIPES[method](corpus=Path("c"), **given)
    words = {f"--{name.replace('_', '-')}": value for name, value in given.items()}
    line = [x for k, v in words.items() for x in ([k] if v is True else [k, str(v)])]
    command = cli.CRTLIB_PROGRAM.all_commands()["train"]
    typed = command.make_context("train", ["c", "--method", method, *line])
    arguments = command.bind(typed).keywords
    assert arguments["recipe"] == want
    plain = want.model_dump(mode="json", exclude_none=True)
    jsonschema.validate(plain, recipes.RECIPES[method].model_json_schema())
    for name in given:
        option = next(o for o in options_of(recipes.recipe_for_method(method)) if o.name == name)
        assert f"| `{option.flag}` |" in computed.render_options()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("c --plan p --clip-norm 77", "--clip-norm: is not an option of method plan"),
        ("c --method plan", "--plan: is missing"),
        ("c --plan p --method crt", "--plan: is not an option of method crt"),
        ("c --epsilon -1", "--epsilon -1: must be greater than 0"),
        ("c --epsilon nan", "--epsilon nan: must be a finite number"),
        ("c --epsilon inf", "--epsilon inf: must be a finite number"),
        ("c --epochs 2.5", "--epochs 2.5: must be a valid integer"),
        ("c --unit word", "--unit word: must be 'turn', 'dialogue' or 'user'"),
        ("c --copies 3", "--copies 3: is read only with canaries"),
        ("c --context 3", "--context 3: is read only with model=gpt2 or init!=random"),
        ("c --lora 3", "--lora 3: is read only with init!=random"),
        (
            "c --method crt_sigma0",
            "--method crt_sigma0: must be one of crt, sgd, dpsgd, user_dpsgd, selective, jft, plan",
        ),
        ("c --epsilon 1 --epsilon 2", "--epsilon: is given twice"),
        ("c --clip-nrom 1", "--clip-nrom: no such option; did you mean --clip-norm?"),
    ],
)
def test_a_mistake_is_one_line(words, says, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = ["train", *words.split(), "--out", "m"]
    assert run(*line) == (2, "", f"crtlib: error: {says}\n")
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_is_frozen_and_its_methods_options_alone_are_shown(run):
    made = recipes.make_recipe({"corpus": "c"})
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        made.seed = 2
    for method, kind in recipes.RECIPES.items():
        words = set(run("train", "--method", method, "--help")[1].split())
        for name in {n for r in recipes.RECIPES.values() for n in r.model_fields} - {"corpus"}:
            assert (f"--{name.replace('_', '-')}" in words) == (name in kind.model_fields), name


def test_the_page_of_options_is_in_step():
    assert (HERE / "book" / "options.md").read_text(encoding="utf-8") == computed.render_options()


@pytest.mark.parametrize("method", [name for name in recipes.RECIPES if name != "plan"])
def test_a_study_has_every_field_that_a_recipe_calls_the_same(method):
    kind = recipes.recipe_for_method(method)
    shared = kind.model_fields.keys() & {f.name for f in fields(CrtStudy)} - {"corpus"}
    values = dict.fromkeys(shared, 2) | {"width": 2, "dtype": "float32", "method": method}
    made = kind.model_construct(**{"corpus": "c", "seed": 2} | values)
    named = study_of_text.study_fields(made, "cpu")
    assert {name for name in shared if named.get(name) != 2} <= {"method"}
