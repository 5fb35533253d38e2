"""What readers of earlier versions made certificates say: the whole way, as they did it, where no
other test goes it."""

import json
from unittest import mock

import pytest

from crtlib.text import customersim, jsonl
from crtlib.training import steps
from tests.release.test_false_certificates import corpus


def test_a_value_of_three_spellings_has_one_promise(tmp_path, run):
    """F5: two spellings were flagged, of 15 points each, and the third, of 30, was passed over: two
    promises of .1, where the value could be guessed with .99997."""
    path = corpus(tmp_path / "c.jsonl", dialogues=20)
    said = ["555-1234"] * 15 + ["555 1234"] * 15 + ["5551234"] * 30
    with path.open("a") as file:
        for k, number in enumerate(said):
            turns = [{"speaker": "USR", "text": f"please call {number} , it is the {k}th time"}]
            file.write(json.dumps({"id": f"x{k}", "user": f"x{k}", "turns": turns}) + "\n")
    (tmp_path / "ph.toml").write_text("[phone]\npattern = '555[- ]1234'\n")
    words = ["--from-policy", f"regex:{tmp_path}/ph.toml", "--posterior", 0.1, "--steps", 10]
    assert run("protect", path, *words, "--out", tmp_path / "plan")[0] == 0
    plan = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert (plan["secrets"], plan["held"], plan["promises"]) == (1, 60, [[0.001, 0.1]])
    words = ["--plan", tmp_path / "plan", "--epochs", 1, "--width", 4, "--out", tmp_path / "m"]
    assert run("train", path, *words)[0] == 0
    assert run("certify", tmp_path / "m", "--out", tmp_path / "m.html")[0] == 0
    (guess,) = json.loads((tmp_path / "m.json").read_text())["value_guess"]
    assert guess["at_most"] <= 0.1
    assert "search found" in (tmp_path / "m.html").read_text()


@pytest.mark.parametrize("targets", ["sqrt", "linear"])
@pytest.mark.parametrize("relation", ["reference", "add_or_remove", "replace"])
def test_every_plan_that_can_be_made_can_be_certified(tmp_path, run, targets, relation):
    """F10: of a plan with the accounting "tight" no certificate ever held."""
    path = corpus(tmp_path / "c.jsonl", dialogues=20)
    words = ["--from-policy", "regex:customersim", "--posterior", 0.1, "--steps", 10]
    words += ["--targets", targets, "--neighbouring", relation]
    assert run("protect", path, *words, "--out", tmp_path / "plan")[0] == 0
    words = ["--plan", tmp_path / "plan", "--epochs", 1, "--width", 4, "--out", tmp_path / "m"]
    assert run("train", path, *words)[0] == 0
    code, said, error = run("certify", tmp_path / "m", "--out", tmp_path / "m.html")
    assert code == 0 and ": holds;" in said, error


def test_an_audit_of_a_training_without_noise_is_never_a_good_word(tmp_path, run):
    """F12: "proved 3.00, audited at least 0.00, consistent" of a training whose noise was gone."""
    path = tmp_path / "c.jsonl"
    jsonl.write_jsonl(customersim.simulate_corpus(20, 0), path)
    words = ["--method", "dpsgd", "--epsilon", 3, "--epochs", 2, "--canaries", 250, "--copies", 1,
             "--unit", "turn", "--width", 4]  # fmt: skip
    with mock.patch.object(steps, "add_noise", lambda *given, **named: None):
        code, _, error = run("train", path, *words, "--out", tmp_path / "m")
    assert code == 0, error
    code, said, error = run("audit", tmp_path / "m", "--corpus", path, "--out", tmp_path / "a")
    assert "consistent" not in said and ("says nothing" in said or "MORE THAN PROVED" in said), said
