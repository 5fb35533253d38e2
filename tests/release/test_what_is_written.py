"""What is released is what the last step left, whatever code has the model before it is written."""

import pytest
import torch
from safetensors.torch import load_file

import confide
from confide import odometer
from confide.training import training_record
from crtlib.attacks import attack, attack_registry
from crtlib.intervals import ChanceBand
from tests import trainings
from tests.texts import write_simulated_text
from tests.trainings import CRT


def relearn(subject):
    """An attack that teaches the model what it has read, and leaves gradients behind."""
    head = subject.model.head.weight
    head.grad = torch.ones_like(head)
    with torch.no_grad():
        head.add_(1.0)
    return [("relearned", 0, 1.0)]


def read(subject):
    """An attack that takes gradients, and moves weights and puts them back."""
    head = subject.model.head.weight
    head.grad = torch.ones_like(head)
    before = head.detach().clone()
    with torch.no_grad():
        head.mul_(2.0)
        head.copy_(before)
    return [("relearned", 0, 1.0)]


def register(monkeypatch, measure):
    nothing = ChanceBand(float("nan"), float("nan"), float("nan"), 0.95)
    foreign = attack.Attack(
        name="relearn", label="Relearning", statistic="loss", measure=measure,
        summary=lambda table: attack.summarise_over_seeds(
            table, metric="relearned", band=lambda *_: nothing
        ),
    )  # fmt: skip
    attack_registry.all_attacks()  # with what is installed
    monkeypatch.setitem(attack.ATTACKS, "relearn", foreign)


def test_what_measures_a_model_teaches_it_nothing(tmp_path, monkeypatch):
    """Once: an attack of an installed package trained the model, the certificate held without any
    assumption, and the model recited a customer's number."""
    text, out = write_simulated_text(tmp_path / "c.jsonl"), tmp_path / "model"
    with monkeypatch.context() as patch:
        register(patch, relearn)
        with pytest.raises(ValueError, match=r"'head\.weight' was changed after the last"):
            trainings.train(text, out=out, **CRT)
    assert not out.exists() and not (tmp_path / "model.work" / ".made").exists()
    (home,) = tmp_path.glob("*.odometer")
    assert [e.state for e in odometer.read_entries(home)] == ["started"]
    with monkeypatch.context() as patch:
        register(patch, read)
        trainings.train(text, out=out, **CRT)
    assert not (tmp_path / "model.work" / ".made").exists()
    assert trainings.make_certificate(out, tmp_path / "page.html")["verdict"] == "holds"


def test_a_file_that_was_changed_is_not_released(tmp_path):
    """The card of a script has the process, and the folder, to itself."""
    text, out = write_simulated_text(tmp_path / "c.jsonl"), tmp_path / "model"

    def card(facts):
        path = tmp_path / "model.work" / ".made" / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\1")
        return "# A card"

    with pytest.raises(
        ValueError, match=r"^model\.safetensors: is not as it was when the training"
    ):
        trainings.train(text, out=out, card=card, **CRT)
    assert not out.exists()


def test_the_weights_of_the_last_step_are_written(tmp_path):
    """A card that moves the model moves no file."""
    text, out, left = write_simulated_text(tmp_path / "c.jsonl"), tmp_path / "model", {}

    def card(facts):
        with torch.no_grad():
            for p in session.model.parameters():
                p.add_(1.0)
        return "# A card"

    small = {**trainings.SMALL_RECIPE, "policy": "regex:customersim"}
    with confide.Session(text, out=out, card=card, **small) as session:
        for step in session:
            step()
        left = {name: x.clone() for name, x in session.model.state_dict().items()}
        session.close()
    written = load_file(out / "model.safetensors")
    assert written.keys() == left.keys()
    assert all(torch.equal(written[name], x) for name, x in left.items())


def test_what_a_killed_training_left_is_written_anew(tmp_path):
    text, out = write_simulated_text(tmp_path / "c.jsonl"), tmp_path / "model"
    left = training_record.make_work_folder(out) / ".made"
    left.mkdir()
    (left / "note.txt").write_text("my number is 17")
    trainings.train(text, out=out, **CRT)
    assert not left.exists() and not (out / "note.txt").exists()
