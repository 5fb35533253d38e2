"""One run has one entry of the odometer and one model, whether stopped, copied or begun anew."""

import shutil
import subprocess
import sys

import pytest

from confide import odometer, spending
from confide.training import odometer_run, train_on_corpus
from crtlib.studies import study_run
from tests import trainings
from tests.texts import write_simulated_text
from tests.trainings import CRT, TINY, make_certificate


def test_two_trainings_at_once_have_one_odometer(tmp_path):
    """Each found a folder of its own, and each certificate said "earlier 0"."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    words = ["--unit", "turn", "--epochs", "1", "--width", "4", "--quiet"]
    command = [sys.executable, "-m", "crtlib", "train", text, *words, "--out"]
    running = [subprocess.Popen([*command, tmp_path / name]) for name in "ab"]
    assert [p.wait(timeout=300) for p in running] == [0, 0]
    (home,) = tmp_path.glob("*.odometer")
    assert len({e.run for e in odometer.read_entries(home)}) == 2
    made = [make_certificate(tmp_path / n, tmp_path / f"{n}.html") for n in "ab"]
    assert sorted(c["spent_before"]["runs"] for c in made) == [0, 1]


def stop_after_one_epoch(monkeypatch, text, out, then=None, **options):
    """A training that is stopped after its first epoch, when it has done what ``then`` is."""
    whole, calls = study_run.measure_utility, []

    def stop(*args, **named):
        calls.append(args)
        if len(calls) < 2:
            return whole(*args, **named)
        if then:
            then()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(study_run, "measure_utility", stop)
        trainings.train(text, out=out, **(TWO_EPOCHS | options))


TWO_EPOCHS = CRT | {"epochs": 2}


def test_a_run_that_was_killed_after_its_last_step_is_finished(tmp_path, monkeypatch):
    """It had no step left before which it could enter itself, and ended with a traceback."""
    text = write_simulated_text(tmp_path / "c.jsonl")

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(odometer_run.OdometerRun, "finish", stop)
        trainings.train(text, out=tmp_path / "m", **CRT)
    trainings.train(text, out=tmp_path / "m", **CRT)
    (home,) = tmp_path.glob("*.odometer")
    entries = odometer.read_entries(home)
    assert len({e.run for e in entries}) == 1 and entries[-1].state == "finished"
    assert (tmp_path / "m" / "model.safetensors").is_file()


def test_a_run_that_begins_anew_counts_what_was_trained_in_between(tmp_path, monkeypatch):
    """It had the name of the one that was killed, so its base was no earlier run."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    stop_after_one_epoch(monkeypatch, text, tmp_path / "m")
    (tmp_path / "m.work" / "unfinished.pt").unlink()  # or killed before its first checkpoint
    trainings.train(text, out=tmp_path / "m0", method="sgd", model="gpt2", **TINY)
    trainings.train(text, out=tmp_path / "m", init=str(tmp_path / "m0"), **CRT)
    made = make_certificate(tmp_path / "m", tmp_path / "m.html")
    assert made["verdict"] == "void" and "without protection" in made["void_because"][0]
    before = made["spent_before"]
    assert (before["runs"], before["unprotected"]) == (1, 1)


def test_a_copied_checkpoint_makes_another_run(tmp_path, monkeypatch):
    """OUT.work was copied, and two models of one run had certificates without each other."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    stop_after_one_epoch(monkeypatch, text, tmp_path / "one")
    shutil.copytree(tmp_path / "one.work", tmp_path / "two.work")
    for name in ("two", "one"):
        trainings.train(text, out=tmp_path / name, **TWO_EPOCHS)
    (home,) = tmp_path.glob("*.odometer")
    events = {e.run: e.events for e in odometer.read_entries(home)}
    assert len(events) == 2 and len(set(events.values())) == 1  # in full, each
    for name in ("two", "one"):
        made = make_certificate(tmp_path / name, tmp_path / f"{name}.html")
        assert (made["verdict"], made["spent_before"]["runs"]) == ("holds", 1)


def test_a_checkpoint_of_a_backup_takes_back_no_step(tmp_path, monkeypatch):
    """Once: a training that had begun its first epochs several times went on from a backup, and its
    ledger and certificate had the steps of one start alone."""
    text, out = write_simulated_text(tmp_path / "c.jsonl"), tmp_path / "one"
    work = tmp_path / "one.work"

    def entered():
        (home,) = tmp_path.glob("*.odometer")
        return [sum(x.steps for x in e.events) for e in odometer.read_entries(home)]

    three = TWO_EPOCHS | {"epochs": 3}
    stop_after_one_epoch(monkeypatch, text, out, **three)
    shutil.copytree(work, tmp_path / "backup")
    stop_after_one_epoch(monkeypatch, text, out, **three)
    stop_after_one_epoch(monkeypatch, text, out, **three)
    steps = entered()
    shutil.rmtree(work)
    shutil.copytree(tmp_path / "backup", work)
    trained = trainings.train(text, out=out, **three)
    later = entered()
    in_all = steps[-1] + 2 * steps[0] // 3  # of an epoch that ended, two were left
    assert later == [*steps, in_all, in_all] and later == sorted(later)
    assert sum(e.steps for e in trained.run.events) == in_all
    made = make_certificate(out, tmp_path / "one.html")
    assert made["verdict"] == "holds"
    private = [p for p in made["mechanism"]["phases"] if p["kind"] == "private"]
    assert sum(p["steps"] for p in private) == in_all


def test_a_folder_is_used_by_one_training(tmp_path, monkeypatch, run):
    """The same command twice made two models of one run, when the first one was renamed."""
    text, said = write_simulated_text(tmp_path / "c.jsonl"), []
    words = ["--unit", "turn", "--epochs", "1", "--width", "4", "--out", tmp_path / "r"]
    stop_after_one_epoch(
        monkeypatch, text, tmp_path / "r", lambda: said.append(run("train", text, *words))
    )
    ((code, _, error),) = said
    assert code == 2 and f"--out: {tmp_path / 'r.work'} is in use by another training" in error
    (home,) = tmp_path.glob("*.odometer")
    assert len(odometer.read_entries(home)) == 1


def test_two_models_of_one_run_are_void_and_count_twice(tmp_path, monkeypatch):
    """A copy of OUT.work that is put back makes a second model under the name of the first."""
    text, one = write_simulated_text(tmp_path / "c.jsonl"), tmp_path / "one"
    stop_after_one_epoch(monkeypatch, text, one)
    shutil.copytree(tmp_path / "one.work", tmp_path / "copy")
    trainings.train(text, out=one, **TWO_EPOCHS)
    assert make_certificate(one, tmp_path / "one.html")["verdict"] == "holds"
    for end in ("", ".work"):
        shutil.move(tmp_path / f"one{end}", tmp_path / f"first{end}")
    shutil.move(tmp_path / "copy", tmp_path / "one.work")
    trainings.train(text, out=one, **TWO_EPOCHS)
    (home,) = tmp_path.glob("*.odometer")
    assert len({e.run for e in odometer.read_entries(home)}) == 1
    for name in ("first", "one"):
        made = make_certificate(tmp_path / name, tmp_path / f"{name}.html")
        assert made["verdict"] == "void" and "about the model" in made["void_because"][0]
    assert spending.sum_spending(odometer.read_entries(home)).protected_run_count == 2


def test_a_training_that_is_refused_leaves_no_odometer(tmp_path):
    """One whose checkpoint was of another text left a second, empty one."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    with pytest.raises(ZeroDivisionError), pytest.MonkeyPatch.context() as patch:
        patch.setattr(study_run, "measure_study", lambda *_: 1 / 0)
        trainings.train(text, out=tmp_path / "m", **CRT)
    write_simulated_text(text, seed=9)
    with pytest.raises(ValueError, match="belongs to another run"):
        trainings.train(text, out=tmp_path / "m", **CRT)
    assert len([*tmp_path.glob("*.odometer")]) == 1


def test_an_odometer_lies_outside_of_the_release(tmp_path):
    """Refused when all was done, with its key in the folder."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    for place, out in ((tmp_path / "m" / "spent", tmp_path / "m"), (tmp_path, tmp_path / "m")):
        with pytest.raises(ValueError, match=r"^odometer: .* must lie outside of out"):
            train_on_corpus.train(text, method="dpsgd", out=out, odometer=place, epochs=1)
    assert not (tmp_path / "m").exists()
