"""A text or a policy that changes while it is read is refused, or read anew."""

import pytest

from confide import odometer
from confide.screening import corpus_screening
from confide.training import odometer_run, training_of_study
from crtlib.checks import MachineError
from crtlib.studies import study_run
from tests import trainings
from tests.texts import write_messages, write_simulated_text
from tests.trainings import CRT, TINY


@pytest.mark.parametrize("when", ["prepare_study_training", "open_odometer", "measure_study"])
def test_a_text_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch, when):
    """The text that trained and the one that was entered and sealed were two."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    where = {
        "prepare_study_training": training_of_study,
        "open_odometer": odometer_run,
        "measure_study": study_run,
    }[when]
    honest = getattr(where, when)

    def edited(*args, **named):
        made = honest(*args, **named)
        with text.open("a") as file:
            file.write(write_simulated_text(tmp_path / "more.jsonl", 4).read_text())
        return made

    monkeypatch.setattr(where, when, edited)
    with pytest.raises(ValueError, match=r"c\.jsonl: was changed while it was read"):
        trainings.train(text, out=tmp_path / "m", **CRT)
    spent = [len(odometer.read_entries(home)) for home in tmp_path.glob("*.odometer")]
    assert sum(spent) == (when == "measure_study") and not (tmp_path / "m").exists()


def test_a_file_with_other_text_is_read_anew(tmp_path):
    """In one process the second training read what the file had held before, under the name of
    what it held by then."""
    text = write_messages(tmp_path / "c.jsonl", [f"p{k}" for k in range(14)])
    how = TINY | {"method": "crt", "policy": "none", "conservative": "everything"}
    first = trainings.train(text, out=tmp_path / "one", **how)
    write_messages(text, [f"q{k}" for k in range(14)], month="June")
    second = trainings.train(text, out=tmp_path / "two", **how)
    texts = [{p.text for p in t.fitted.data.points} for t in (first, second)]
    assert not texts[0] & texts[1] and "In June" in min(texts[1])


def test_a_screening_of_a_text_that_changes_is_refused(tmp_path, monkeypatch, run):
    text, honest = write_simulated_text(tmp_path / "c.jsonl"), corpus_screening._screening_summary

    def edited(*args):
        made = honest(*args)
        text.write_text(write_simulated_text(tmp_path / "more.jsonl", 4).read_text())
        return made

    monkeypatch.setattr(corpus_screening, "_screening_summary", edited)
    words = ["screen", text, "--policy", "regex:customersim", "--out", tmp_path / "s"]
    code, _, error = run(*words)
    assert code == 2 and "c.jsonl: was changed while it was read" in error
    assert not (tmp_path / "s").exists()


def test_a_policy_that_changes_while_a_text_is_read_is_refused(tmp_path, monkeypatch):
    """The text is compared at the end, and so is a policy of screen; that of train is not."""
    text, toml = write_simulated_text(tmp_path / "c.jsonl"), tmp_path / "p.toml"
    toml.write_text("[any]\npattern = 'Ada'\n")
    honest, policy_name = training_of_study.attach_label_rates, f"regex:{toml}"

    def edited(*given):
        toml.write_text("[any]\npattern = '\\w+'\n")
        return honest(*given)

    monkeypatch.setattr(training_of_study, "attach_label_rates", edited)
    settings = CRT | {"policy": policy_name, "conservative": "everything"}
    with pytest.raises(MachineError, match="policy"):
        trainings.train(text, out=tmp_path / "m", **settings)
