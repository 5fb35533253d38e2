"""A unit of several texts is drawn and clipped as one, whatever part its method draws from."""

from dataclasses import replace

import pytest

from confide.training.train_on_corpus import Session
from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.text import jsonl
from crtlib.text.records import Dialogue, Turn
from crtlib.training import methods
from crtlib.training.loop import Training
from crtlib.training.phases import PrivatePhase


def noise_on_all(method, name):
    """A method of another package: that of ours, which draws from public points as well."""

    def phases(constants):
        mine = [p for p in method.phases(constants) if isinstance(p, PrivatePhase)]
        return [replace(p, part="all") for p in mine]

    return replace(method, name=name, phases=phases)


def corpus(path):
    said = [("ann", f"my red box {k} is late") for k in range(30)]
    said += [(f"u{k}", f"hello this is {k}" + " and so on" * (k % 7)) for k in range(30)]
    jsonl.write_jsonl(
        [Dialogue(f"d{k}", who, (Turn("USR", text),)) for k, (who, text) in enumerate(said)], path
    )
    return path


@pytest.mark.parametrize("method", [methods.USER_DPSGD, replace(methods.CRT, by_user=True)])
def test_all_that_a_person_says_is_one_unit_of_both_parts(tmp_path, monkeypatch, method):
    """Of a method with noise on "all" each message of a person was drawn and clipped by itself: of
    31 messages the sum moved by 31 clip norms, "any one person right at most 68.6 of 100"."""
    monkeypatch.setitem(methods.METHODS, "on_all", noise_on_all(method, "on_all"))
    screened = {"policy": "regex:multiwoz", "conservative": "cautious"}
    policy = {} if method.reads_raw else screened
    options = {"width": 4, "epochs": 1, "batch_size": 8, "unit": "turn", "out": tmp_path / "m"}
    with Session(corpus(tmp_path / "c.jsonl"), method="on_all", **policy, **options) as session:
        points, units = (
            session._result_in_progress.data.prepared.all,
            session.training._units["all"],
        )
        people = [{points[k].user for k in unit} for unit in units]
        assert [len(some) for some in people] == [1] * len({p.user for p in points})
        assert sorted(k for unit in units for k in unit) == [*range(len(points))]


def test_the_pieces_of_a_long_message_are_one_unit_of_both_parts(tmp_path, monkeypatch):
    monkeypatch.setitem(methods.METHODS, "on_all", noise_on_all(methods.DPSGD, "on_all"))
    options = {"model": "gpt2", "context": 24, "width": 8, "epochs": 1, "batch_size": 8}
    with Session(corpus(tmp_path / "c.jsonl"), method="on_all", **options) as session:
        units = session.training._units["all"]
        assert len(units) == len(session._result_in_progress.data.prepared.all)
        assert max(map(len, units)) > 1


def test_a_phase_over_parts_needs_to_know_whose_all_points_are():
    phase = PrivatePhase(1, 0.5, 2, 1.0, 1.0, 1.0, 0.1, "all")
    model = build_model(ModelSpec("lstm", 9, embedding=4, hidden=4), seed=0)
    parts = {"public": [[1, 2]], "private": [[1, 2], [3, 4]]}
    with pytest.raises(ValueError, match="owners: has the part 'private', must have 'all'"):
        Training(model, [phase], parts, seed=0, owners={"private": [0, 0]})
