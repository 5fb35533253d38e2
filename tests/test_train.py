"""One training path: a plan is a method like another."""

import pytest

from confide.training import secret_plans, study_of_text, train_on_corpus
from crtlib import options
from crtlib.models import smollm2
from crtlib.text import customersim, jsonl
from tests import trainings
from tests.texts import write_simulated_text
from tests.trainings import CRT


@pytest.fixture
def planned(tmp_path):
    corpus = tmp_path / "c.jsonl"
    jsonl.write_jsonl(customersim.simulate_corpus(20, 0), corpus)
    secret_plans.make_secret_plan(
        corpus,
        tmp_path / "plan",
        policy="regex:customersim",
        by="user",
        posterior=0.1,
        scales=(5.0,),
        steps=20,
        batch_size=8,
        neighbouring_relation="reference",
    )
    return corpus, tmp_path / "plan"


def test_a_plan_keeps_what_it_promised(planned, tmp_path):
    corpus, plan = planned
    trained = train_on_corpus.train(corpus, plan=plan, out=tmp_path / "m", epochs=1, width=8)
    assert trained.holds and (trained.secrets.posterior <= trained.secrets.promised).all()
    assert trained.promise in (tmp_path / "m" / "guarantee.txt").read_text()
    open_ = train_on_corpus.train(corpus, plan=plan, epochs=1, width=8, repeatable_noise=True)
    assert open_.keeps_promises and not open_.holds


def test_an_option_that_a_plan_does_not_read_spends_nothing(planned, tmp_path, run):
    corpus, plan = planned
    before = sorted(tmp_path.iterdir())
    for name, value in (("clip-norm", 77), ("epsilon", 0.001), ("policy", "nosuch"), ("delta", 5)):
        words = ["train", corpus, "--plan", plan, f"--{name}", value, "--out", tmp_path / "m"]
        says = f"crtlib: error: --{name}: is not an option of method plan\n"
        assert run(*words) == (2, "", says)
        names = {"plan": plan, name.replace("-", "_"): value}
        with pytest.raises(options.InvalidOption, match="is not an option of method plan"):
            train_on_corpus.train(corpus, out=tmp_path / "m", **names)
    assert sorted(tmp_path.iterdir()) == before  # no odometer either


def test_hours_choose_the_model(tmp_path, monkeypatch):
    corpus = tmp_path / "c.jsonl"
    jsonl.write_jsonl(customersim.simulate_corpus(20, 0), corpus)
    monkeypatch.setattr(smollm2, "missing_smollm2_packages", lambda: "no package")
    wide = train_on_corpus.train(corpus, method="sgd", epochs=1, core_hours=0.0003)
    assert wide.settings["hidden"] == 256 and "core_hours" not in wide.settings
    assert train_on_corpus.train(corpus, method="sgd", epochs=1).settings["hidden"] == 64
    with pytest.raises(
        options.InvalidOption, match=r"core_hours=1\.0: chooses the model, and width is"
    ):
        train_on_corpus.train(corpus, method="sgd", core_hours=1, width=64)


def test_hours_that_suffice_start_from_a_model_that_has_read(monkeypatch):
    monkeypatch.setattr(smollm2, "missing_smollm2_packages", lambda: None)
    pretrained_model = {"init": "smollm2", "lora": 8}
    assert (
        study_of_text.model_for_budget(1, 1000, "cpu")
        == pretrained_model
        != study_of_text.model_for_budget(1, 10_000, "cpu")
    )
    assert (
        study_of_text.model_for_budget(1, 5000, "cpu", epochs=1)
        == study_of_text.model_for_budget(1, 500_000, "cuda:0")
        == pretrained_model
    )
    for turns, device in ((1, "cpu"), (999, "cpu"), (41_442, "cpu"), (10**6, "cuda:0")):
        hours = study_of_text.hours_of_smollm2(turns, device)
        assert study_of_text.model_for_budget(hours, turns, device) == pretrained_model
        assert study_of_text.model_for_budget(0.9 * hours, turns, device) != pretrained_model


def test_a_corpus_is_no_start_of_a_training_on_ones_own(tmp_path):
    """It may be the very text, read without noise before the first step that is counted."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    with pytest.raises(ValueError, match="init='customersim': must be random or a model"):
        trainings.train(text, **CRT | {"init": "customersim"})


def test_a_study_cannot_name_another_corpus(tmp_path):
    """One text was trained on, and another watched."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    with pytest.raises(ValueError, match="study='corpus': is an option of the training"):
        train_on_corpus.train(text, method="sgd", study={"corpus": str(text)})
