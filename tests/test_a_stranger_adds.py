"""A method, an attack, a policy and a corpus, each in one file outside the package
(``tests/strangers``), appear wherever those of the library do."""

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from confide import recipes
from confide.reports import leakage as leakage_report
from crtbook import runner
from crtbook.figures import crt as figures
from crtbook.figures import theme
from crtbook.runs import CrtStudy
from crtbook.study import Store
from crtlib.attacks import attack as attack_values
from crtlib.attacks import attack_registry
from crtlib.screening import policy_names, policy_registry
from crtlib.text import corpora, jsonl, sources
from crtlib.training import methods
from tests import trainings

STRANGERS = Path(__file__).parent / "strangers"
REGISTERS = (
    methods.METHODS,
    attack_values.ATTACKS,
    policy_registry.REGISTERED_MAKERS,
    sources.REGISTERED_SOURCES,
)
STUDY = {
    "method": "toy_method",
    "policy": "toy_policy",
    "conservative": "toy_policy",
    "model": "lstm",
    "gamma": 0.5,
    "seed": 0,
    "epochs": 1,
    "canaries": 2,
    "copies": 2,
    "embedding": 8,
    "hidden": 8,
}


@pytest.fixture(scope="module", autouse=True)
def strangers():
    """Import the four files; afterwards the library knows them no more."""
    before = [dict(register) for register in REGISTERS]
    for path in sorted(STRANGERS.glob("toy_*.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    yield
    for register, entries in zip(REGISTERS, before, strict=True):
        register.clear()
        register.update(entries)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    base = CrtStudy(**STUDY, corpus="toy_corpus", dialogues=20, heldout=10)
    studies = [base, CrtStudy(**STUDY | {"method": "crt"}, dialogues=20, heldout=10)]
    with ThreadPoolExecutor(1) as executor:
        store = Store(tmp_path_factory.mktemp("store"))
        return runner.sweep(studies, store, executor=executor, progress=False)


def test_the_library_knows_all_four_by_name():
    assert methods.method_by_name("toy_method").label == "Toy method"
    assert (
        "toy_attack" in attack_registry.all_attacks()
        and "toy_policy" in policy_names.available_policies()
    )
    assert len(corpora.load_corpus("toy_corpus", limit=3)) == 3


def test_they_are_in_the_table_of_a_sweep(table):
    row = table[table.method == "toy_method"].iloc[0]
    assert (row.corpus, row.policy, row.conservative) == ("toy_corpus", "toy_policy", "toy_policy")
    assert table[table.metric == "toy_likelihood"].groupby("method").size().to_dict() == {
        "crt": 1,
        "toy_method": 1,
    }


def test_what_the_toy_policy_flags_is_what_a_run_counts(table):
    """It finds every number, and a coin spares half of them (gamma)."""
    toy = table[table.method == "toy_method"].set_index("metric").value
    assert toy["pi_labelled"] == 20 and 0 < toy["pi_misses"] < 20
    assert toy["pi_c_misses"] == 0


def test_their_names_and_numbers_are_in_a_figure(table):
    toy = attack_registry.all_attacks()["toy_attack"]
    summary = toy.summary(table)
    labels = {name: method.label for name, method in methods.METHODS.items()}
    summary["method_label"] = summary.method.map(labels)
    fig = figures.plot_attack(summary, ylabel=toy.statistic, title=toy.label)
    assert "Toy method" in theme.alt_text(fig) and "likelihood" in theme.alt_text(fig)
    shown = f"{summary[summary.method == 'toy_method']['mean'].item():.2f}"
    assert shown.replace("-", "−") in theme.alt_text(fig).replace("-", "−")


def test_a_run_without_the_attack_is_not_taken_for_one_with_it(monkeypatch):
    study = CrtStudy(**STUDY)
    key = study.key
    monkeypatch.delitem(attack_values.ATTACKS, "toy_attack")
    assert study.key != key


def test_a_model_of_theirs_is_in_a_report(tmp_path):
    jsonl.write_jsonl(corpora.load_corpus("toy_corpus", limit=30), tmp_path / "toy.jsonl")
    trained = trainings.train(tmp_path / "toy.jsonl", out=tmp_path / "run", device="cpu", **STUDY)
    assert trained.study.method == "toy_method" and trained.promise.startswith("no guarantee")
    assert "toy_likelihood" in {row[0] for row in trained.rows}
    page, summary = leakage_report.make_leakage_report(
        tmp_path / "run", tmp_path / "toy.jsonl", tmp_path / "out"
    )
    assert summary["documents"] and "toy.jsonl" in page.read_text(encoding="utf-8")
    assert "toy_method" in (tmp_path / "run" / "experiment.json").read_text(encoding="utf-8")


def test_a_method_of_theirs_has_the_options_that_it_reads(run, tmp_path):
    shown = run("train", "--method", "toy_method", "--help")[1]
    assert "--gamma" in shown and "--policy" in shown and "--epsilon" not in shown
    words = ["train", "c.jsonl", "--method", "toy_method", "--out", tmp_path / "m"]
    says = "crtlib: error: --epsilon: is not an option of method toy_method\n"
    assert run(*words, "--epsilon", 3) == (2, "", says)
    code, _, error = run("train", "c", "--method", "x", "--out", tmp_path / "m")
    assert code == 2 and "must be one of crt, sgd" in error and "toy_method" in error
    assert recipes.make_recipe({"corpus": "c", "method": "toy_method", "gamma": 0.5}).gamma == 0.5


@pytest.mark.parametrize("path", sorted(STRANGERS.glob("toy_*.py")), ids=lambda path: path.stem)
def test_the_recipes_are_these_files(path):
    recipes = (STRANGERS.parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    text = path.read_text(encoding="utf-8")
    assert f"```python\n# tests/strangers/{path.name}\n{text}```" in recipes
