"""`crtlib run`: its exit code is that of the answer, and what was edited is made anew."""

import json

import pytest

from confide.commands import training
from crtlib.text import customersim, jsonl
from tests import trainings
from tests.texts import write_simulated_text
from tests.trainings import CRT


def write_project(folder, **steps):
    """A folder of ``crtlib run`` whose corpus and model are there already."""
    lines = []
    for step, settings in steps.items():
        lines += [f"[{step}]", *(f"{name} = {json.dumps(v)}" for name, v in settings.items())]
    (folder / "crtlib.toml").write_text("\n".join(lines) + "\n")


def test_a_project_whose_answer_is_no_ends_with_4(tmp_path, run):
    """``crtlib run`` ended with 0 where its certificate does not meet the limits, or is void."""
    trainings.train(write_simulated_text(tmp_path / "c.jsonl"), out=tmp_path / "model", **CRT)
    write_project(tmp_path, certify={"require": ["public <= 0%"]})
    assert run("run", tmp_path)[0] == 4


def test_a_project_is_not_up_to_date_after_its_policy_was_edited(tmp_path, run):
    """ "train: up to date", of a model that the list of before had screened."""
    made = customersim.simulate_corpus(40, 3, "paper")
    (tmp_path / "p").mkdir()
    jsonl.write_jsonl(made, tmp_path / "p" / "t.jsonl")
    (tmp_path / "p" / "list.txt").write_text("Ada Lovelace\n")
    write_project(
        tmp_path / "p", ingest={"source": ["t.jsonl"], "yes": True},
        train={"policy": "list:list.txt", "conservative": "everything", "epochs": 1, "width": 4},
    )  # fmt: skip
    code, _, error = run("run", tmp_path / "p")
    assert code == 0, error
    (tmp_path / "p" / "list.txt").write_text("Ada Lovelace\nKurt Goedel\n")
    _, said, _ = run("run", tmp_path / "p")
    assert "train: up to date" not in said


def test_a_training_that_was_killed_before_its_stamp_is_not_asked_for_again(
    tmp_path, run, monkeypatch
):
    """Its model was finished, and the next run refused the folder."""
    jsonl.write_jsonl(customersim.simulate_corpus(20, 3, "paper"), tmp_path / "t.jsonl")
    settings = {"source": ["t.jsonl"], "yes": True}
    train = {"method": "dpsgd", "epochs": 1, "width": 4}
    write_project(tmp_path, ingest=settings, train=train)
    real = training._write_stamps

    def killed(stamps):
        if "train" in stamps:
            raise KeyboardInterrupt
        real(stamps)

    with monkeypatch.context() as patch:
        patch.setattr(training, "_write_stamps", killed)
        assert run("run", tmp_path)[0] != 0
    model = (tmp_path / "model" / "model.safetensors").read_bytes()
    assert [run("run", tmp_path)[0] for _ in range(2)] == [0, 0]
    assert "train: up to date" in run("run", tmp_path)[1]
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == model
    write_project(tmp_path, ingest=settings, train=train | {"epochs": 2})
    for _ in range(2):  # nor is it taken for the model of other settings
        code, _, error = run("run", tmp_path)
        assert code == 2 and "model is a finished model" in error


@pytest.mark.parametrize(("table", "keys"), [
    ("body,content\nhi,you\n", "it is a key of [ingest]: text"),
    ("customer,city\nann,Rome\n", "it is a key of [ingest]: text"),
    ("remarks,city\nhi,Rome\n", "these are keys of [ingest]: text and user and no_users"),
    ("user,text,\nann,hi,you\n", "it is a key of [ingest]: rename"),
    ("user,text\nann,hi\nbob\n", "it is a key of [ingest]: skip_bad"),
])  # fmt: skip
def test_an_option_that_would_help_a_step_is_named_as_a_key_of_its_table(
    tmp_path, run, table, keys
):
    (tmp_path / "mails.csv").write_text(table)
    write_project(tmp_path, ingest={"source": ["mails.csv"]})
    code, _, error = run("run", tmp_path)
    assert code == 2 and f"; in crtlib.toml {keys}\n" in error


def test_a_refusal_that_no_option_resolves_names_no_key(tmp_path, run):
    (tmp_path / "mails.csv").write_text("")
    write_project(tmp_path, ingest={"source": ["mails.csv"]})
    code, _, error = run("run", tmp_path)
    assert code == 2 and "in crtlib.toml" not in error
