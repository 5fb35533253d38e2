"""Runs that were struck, and texts that were forgotten: what later certificates say of them."""

import contextlib
import json

import pytest

from confide import odometer, odometer_lines, spending, text_registry
from confide.commands import training as project
from confide.labels import drawing, label_tasks, registry
from crtlib.accounting.events import SampledGaussian
from crtlib.text import corpora, identity, jsonl
from crtlib.text.records import Dialogue, Turn
from tests import trainings
from tests.texts import bring_known_labels, write_simulated_text
from tests.trainings import CRT, make_certificate


def test_a_struck_run_is_named(tmp_path):
    """A word made the page say that no earlier run is known."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    first = trainings.train(text, out=tmp_path / "one", **CRT)
    assert first is not None
    home = odometer.find_odometer(text, corpora.hash_corpus(text))
    line = odometer.read_entries(home)[0].entry
    known = text_registry.Registry(text_registry.registry_folder())
    odometer.strike_run(home, line, because="nobody saw it", registry=known)
    trainings.train(text, out=tmp_path / "two", **CRT)
    made = make_certificate(tmp_path / "two", tmp_path / "two.html")
    page = (tmp_path / "two.html").read_text()
    assert made["spent_before"]["struck"] == 1 and made["spent_before"]["runs"] == 0
    assert "No earlier run" not in page and "1 earlier model on it, or on" in page


def test_what_is_forgotten_is_assumed_in_every_later_certificate(tmp_path, run):
    """A registry holds hashes of people, who may ask to be forgotten; their budgets are not."""
    january, february = (
        write_simulated_text(tmp_path / f"{n}.jsonl", seed, "ada")
        for n, seed in (("january", 3), ("february", 4))
    )
    user = CRT | {"unit": "user"}
    trainings.train(january, out=tmp_path / "one", **user)
    home = odometer.find_odometer(january, corpora.hash_corpus(january))
    assert run("account", "--forget")[0] == 2
    code, said, _ = run("account", "--odometer", home, "--forget")
    assert code == 0 and "forgotten: a certificate of a later run" in said
    trainings.train(february, out=tmp_path / "two", **user)
    made = make_certificate(tmp_path / "two", tmp_path / "two.html")
    page = (tmp_path / "two.html").read_text()
    assert (made["spent_before"]["runs"], made["spent_before"]["forgotten"]) == (0, 1)
    assert "No earlier run" not in page and "nobody of this text is in 1 earlier text" in page
    trainings.train(january, out=tmp_path / "three", **user)  # its own runs still count
    made = make_certificate(tmp_path / "three", tmp_path / "three.html")
    assert (made["spent_before"]["runs"], made["spent_before"]["forgotten"]) == (2, 0)


def test_a_text_of_which_no_training_began_is_forgotten_as_well(tmp_path, registry, run):
    """Of an odometer without lines it said "forgotten", and the registry knew the text."""
    text = write_simulated_text(tmp_path / "c.jsonl", people="ann")
    sha, home = text_registry.register_text(text), tmp_path / "c.jsonl.odometer"
    odometer.prepare_odometer(home, sha)
    known = text_registry.Registry(text_registry.registry_folder())
    assert known.knows_person("ann1")
    assert "forgotten: " in run("account", "--odometer", home, "--forget")[1]
    assert not known.knows_person("ann1")


def test_who_forgets_a_text_forgets_its_drawn_turns(tmp_path, run):
    """The registry still told each drawn message, and each name, from any other."""
    said = [Turn("USR", f"order {k} came late to us") for k in range(40)]
    talks = [Dialogue(f"d{k}", f"Ann {k}", (turn,)) for k, turn in enumerate(said)]
    jsonl.write_jsonl(talks, text := tmp_path / "talk.jsonl")
    one, two = tmp_path / "one", tmp_path / "two"
    about = drawing.draw_label_tasks(text, one, turns=10, seed=1, sealed=["list"])
    bring_known_labels(text, one, lambda task: ())
    trainings.train(text, out=tmp_path / "m", method="dpsgd", width=2, epochs=1, delta=1e-4)
    names = {registry.hash_asked_people(about["corpus"], f"Ann {k}", "")[0] for k in range(40)}
    names |= {identity.hash_turn_text(turn.text) for turn in said}
    place = text_registry.registry_folder() / "labels.sqlite"

    def known():
        content = place.read_bytes()
        return sum(name.encode() in content for name in names)

    assert known() == 20
    assert run("account", "--odometer", f"{text}.odometer", "--forget")[0] == 0
    assert known() == 0
    with pytest.raises(ValueError, match="were drawn and forgotten"):
        drawing.draw_label_tasks(text, two, turns=10, seed=2, sealed=["list of what was read"])
    tasks = {t.task for t in label_tasks.read_tasks(one)}  # what was read before, nobody knows
    assert registry.read_before_seal(one, ["list"]).tasks == tasks
    assert registry.count_other_sets("another set", about["corpus"]) == 1


def test_a_struck_run_is_certified_no_more(tmp_path, run):
    """Two released models, neither counted for the other, and both certificates verified."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "m", **CRT)
    page = tmp_path / "m.html"
    assert make_certificate(tmp_path / "m", page)["verdict"] == "holds"
    home = f"{text}.odometer"
    words = ["--strike", odometer.read_entries(home)[-1].entry, "--because", "nobody saw it"]
    assert run("account", "--odometer", home, *words)[0] == 0
    assert run("certify", tmp_path / "m", "--out", page, "--verify")[0] == 4
    made = make_certificate(tmp_path / "m", page)
    assert made["verdict"] == "void" and "struck" in made["void_because"][0]


def test_who_forgets_a_text_is_told_of_the_reports_on_it(tmp_path, run):
    """Two reports of one model, on a text and on the same with a message more: the second one
    needed --force, and after --forget it was the only one."""
    text, more = write_simulated_text(tmp_path / "c.jsonl"), tmp_path / "more.jsonl"
    trainings.train(text, out=tmp_path / "m", **CRT)
    row = {"id": "x", "user": "x", "turns": [{"speaker": "USR", "text": "hello"}]}
    more.write_text(text.read_text() + json.dumps(row) + "\n")
    report = ["report", tmp_path / "m", "--corpus"]
    assert run(*report, text, "--out", tmp_path / "r1")[0] == 0
    assert run(*report, more, "--out", tmp_path / "r2")[0] == 2
    assert run("account", "--odometer", f"{text}.odometer", "--forget")[0] == 0
    code, _, error = run(*report, more, "--out", tmp_path / "r2")
    said = code == 0 and "Report 2 of this model" in (tmp_path / "r2" / "report.html").read_text()
    assert code == 2 or said or "forg" in error


def test_what_was_spent_says_what_was_forgotten(tmp_path, run):
    """The sum of February was that of two months, and then of one, without a word."""
    for name, seed in (("january", 3), ("february", 4)):
        text = write_simulated_text(tmp_path / f"{name}.jsonl", seed, "ada")
        trainings.train(text, out=tmp_path / name, **CRT | {"unit": "user"})
    account = ["account", "--odometer"]
    both = json.loads(run(*account, f"{tmp_path}/february.jsonl.odometer", "--json")[1])
    assert len(both["runs"]) == 2
    assert run(*account, f"{tmp_path}/january.jsonl.odometer", "--forget")[0] == 0
    _, said, _ = run(*account, f"{tmp_path}/february.jsonl.odometer")
    assert "forg" in said


def test_a_certificate_of_a_struck_run_is_not_up_to_date(tmp_path, monkeypatch):
    """crtlib run: "certify: up to date", of one that holds; the run was struck since, or judged by
    more labels."""
    monkeypatch.chdir(tmp_path)
    text = write_simulated_text(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "model", **CRT)
    assert (
        list(project._run_step("certify", {"certify": {}}, {"ok": True}))[-1]
        != "certify: up to date"
    )
    home = odometer.find_odometer(text, corpora.hash_corpus(text))
    registry = text_registry.Registry(text_registry.registry_folder())
    odometer.strike_run(
        home, odometer.read_entries(home)[0].entry, because="unseen", registry=registry
    )
    said = []
    with contextlib.suppress(ValueError):
        said += project._run_step("certify", {"certify": {}}, {"ok": True})
    assert said != ["certify: up to date"]


def test_a_struck_run_lives_on_in_a_model_of_another_text(tmp_path):
    """ "Nobody ever saw what was made": a model that learned other text started from it, and the
    registry knows."""
    step = SampledGaussian(0.01, 1.0, 100)
    spend = {"unit": "turn", "method": "dpsgd", "relation": "replace", "screening": "5" * 64,
             "gamma": 1.0, "delta2": 0.0, "holds": {}, "events": (step,), "void": ()}  # fmt: skip
    for text, run, more in (("a", "first", {}), ("c", "heir", {"base": "1" * 64})):
        spend |= more
        home, model = tmp_path / text, {"a": "1", "c": "2"}[text] * 64
        line = odometer.add_entry(home, corpus=text * 64, run=run, state="started", **spend)
        odometer.add_later_entry(home, line, state="finished", model=model)
    first = odometer.read_entries(tmp_path / "a")[0].entry
    odometer.strike_run(tmp_path / "a", first, because="nobody saw it")
    before = spending.sum_spending(
        odometer.read_entries(tmp_path / "a"), others=odometer.read_entries(tmp_path / "c")
    )
    assert before.protected_run_count == 1


def test_a_run_that_was_struck_stays_struck_when_its_ledger_is_restored(tmp_path):
    """ "Nobody ever saw it": the next model did not count it; then a backup of the ledger came
    back, and both certificates hold, though the registry knows that it was struck."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "m", **CRT)
    home = odometer.find_odometer(text, corpora.hash_corpus(text))
    backup = (home / odometer_lines.LEDGER_FILE).read_bytes()
    registry = text_registry.Registry(text_registry.registry_folder())
    odometer.strike_run(
        home, odometer.read_entries(home)[0].entry, because="unseen", registry=registry
    )
    assert make_certificate(tmp_path / "m", tmp_path / "m.html")["verdict"] == "void"
    (home / odometer_lines.LEDGER_FILE).write_bytes(backup)
    assert make_certificate(tmp_path / "m", tmp_path / "m.html")["verdict"] == "void"
