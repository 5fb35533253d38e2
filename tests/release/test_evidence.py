"""A report or an audit is evidence of the model that it names, on the text that it read."""

import json
import math
import re
from unittest import mock

import pytest

from confide import attack_ledger
from confide.release import evidence
from confide.reports import sentences
from crtlib import outputs
from crtlib.models.tensor_files import hash_tensors
from crtlib.text import customersim, jsonl
from crtlib.training import steps
from tests import trainings
from tests.texts import write_simulated_text
from tests.trainings import CRT, TINY, edit_json


def test_evidence_names_its_model(certified_model, tmp_path, run):
    """An audit that somebody wrote, or of another model, stood in the certificate."""
    said = {"epsilon_lower": 0.1, "proved": 3.0, "confidence": 0.95, "canaries": 300,
            "guessed": 100, "right": 60, "strongest_attacker_power": 0.2,
            "says_nothing": None}  # fmt: skip
    sha = outputs.hash_file(certified_model / "m" / "model.safetensors")
    page = ["certify", certified_model / "m", "--out", tmp_path / "c.html"]
    words = [*page, "--for", "officer"]
    audit = tmp_path / "audit" / "audit.json"

    def audited(names):
        out = {"command": "audit", "options": {}, "inputs": {}, "public": ("*",), "force": True}
        with outputs.staged_folder(tmp_path / "audit", **out) as part:
            (part / "audit.json").write_text(json.dumps(said | names))

    for names in ({}, {"model": "0" * 64}):
        audited(names)
        code, _, error = run(*words, "--audit", audit)
        assert code == 2 and "audit.json is of another model, or names none" in error
        assert not (tmp_path / "c.json").exists()
    audited({"model": sha})
    edit_json(audit, lambda c: c.update(proved=0.01))
    code, _, error = run(*words, "--audit", audit)
    assert code == 3 and "audit.json: does not match its SHA-256" in error
    audited({"model": sha})
    report = [
        "report",
        certified_model / "m",
        "--corpus",
        certified_model / "c.jsonl",
        "--out",
        tmp_path / "report",
    ]
    assert run(*report)[0] == 0
    assert run(*words, "--audit", audit, "--report", tmp_path / "report")[0] == 0
    made = json.loads((tmp_path / "c.json").read_text())["evidence"]
    assert made["audit"]["lower"] == 0.1 and "completed" in made["report"]
    assert run(*page, "--verify")[0] == 0
    assert run(*report[:-1], tmp_path / "clear", "--reveal")[0] == 0
    code, _, error = run(*words, "--force", "--report", tmp_path / "clear")
    assert code == 2 and "clear shows text in clear; attach a redacted report" in error
    other = write_simulated_text(tmp_path / "other.jsonl", 5, "eve")
    assert (
        run("report", certified_model / "m", "--corpus", other, "--out", tmp_path / "elsewhere")[0]
        == 0
    )
    code, _, error = run(*words, "--force", "--report", tmp_path / "elsewhere")
    assert code == 2 and "elsewhere is not on the text of the certificate" in error
    edit_json(tmp_path / "report" / "report.json", lambda c: c["summary"].update(runs=0))
    code, _, error = run(*words, "--force", "--report", tmp_path / "report")
    assert code == 3 and "report.json: does not match its SHA-256" in error
    edit_json(tmp_path / "report" / "crtlib.json", lambda c: c["inputs"].update(model="0" * 64))
    edit_json(tmp_path / "report" / "crtlib.json", lambda c: c["files"].clear())
    code, _, error = run(*words, "--force", "--report", tmp_path / "report")
    assert code == 2 and "report: has no intact crtlib.json" in error


@pytest.mark.parametrize(
    ("options", "confidence", "said"),
    [
        ({}, 0.01, "tests at confidence 0.01, must be 0.95; audit without confidence"),
        ({}, 0.9999, "tests at confidence 0.9999, must be 0.95"),
        ({"guesses": 2}, 0.95, "guesses on a chosen number of canaries; audit without guesses"),
        ({"seed": 3}, 0.95, "drew coins by a chosen seed; audit without seed"),
    ],
)
def test_no_option_of_an_audit_makes_it_another(
    options, confidence, said, certified_model, tmp_path
):
    """ "An audit showed at least 3.46", at a confidence of 1 %; and "its attacker did no better
    than a coin", who guessed twice."""
    model = outputs.hash_file(certified_model / "m" / "model.safetensors")
    found = {"epsilon_lower": 0.1, "proved": 3.0, "confidence": confidence, "canaries": 300,
             "guessed": 100, "right": 60, "strongest_attacker_power": 0.2,
             "says_nothing": None, "model": model}  # fmt: skip
    with outputs.staged_folder(tmp_path / "a", command="audit", options=options, inputs={}) as part:
        (part / "audit.json").write_text(json.dumps(found))
    audit = tmp_path / "a" / "audit.json"
    with pytest.raises(ValueError, match=re.escape(said)):
        evidence.read_evidence(certified_model / "m", {"corpus": {"sha256": ""}}, audit, None)


def write_audit(home, model, bound, name):
    """What ``crtlib audit`` leaves, with this lower bound."""
    found = {"epsilon_lower": bound, "proved": 3.0, "confidence": 0.95, "canaries": 300,
             "guessed": 100, "right": 60, "strongest_attacker_power": 0.2, "says_nothing": None,
             "name": name, "model": outputs.hash_file(model / "model.safetensors")}  # fmt: skip
    with outputs.staged_folder(home, command="audit", options={}, inputs={}) as part:
        (part / "audit.json").write_text(json.dumps(found))
    return home / "audit.json"


def test_the_largest_of_all_audits_is_said(certified_model, tmp_path, monkeypatch):
    """Who audited again and again, and attached the audit with the smallest bound, had it alone on
    the sheet."""
    monkeypatch.setenv("CRTLIB_REGISTRY", str(tmp_path / "registry"))
    model, record = certified_model / "m", {"corpus": {"sha256": ""}}
    small = write_audit(tmp_path / "small", model, 0.1234, "small")
    alone = evidence.read_evidence(model, record, small, None)["audit"]
    assert (alone["lower"], alone["made"], alone["stopped"]) == (0.123, 1, 0)
    ledgers, tensors = attack_ledger.find_ledgers(record), str(hash_tensors(model))
    for name, bound in (("small", 0.1234), ("large", 2.5), ("stopped", None)):
        attack_ledger.enter_attack(ledgers, "audit", tensors, name, bound)
    attack_ledger.enter_attack(ledgers, "audit", "0" * 64, "of another model", 9.0)
    made = evidence.read_evidence(model, record, small, None)["audit"]
    assert (made["lower"], made["made"], made["stopped"]) == (2.5, 3, 1)
    certificate = json.loads((certified_model / "m.json").read_text()) | {
        "evidence": {"audit": made}
    }
    (said,) = sentences.select_sentences(certificate)["attacks"]
    assert "the largest of the 3 audits that are known here showed at least 2.5" in said
    assert "95 % confidence for each by itself" in said and "1 audit of these had no result" in said
    beside = tmp_path / "odometer" / "ledger.sqlite"  # of another registry this one knows
    attack_ledger.enter_attack([beside], "audit", tensors, "elsewhere", 2.75)
    monkeypatch.setenv("CRTLIB_REGISTRY", str(tmp_path / "another"))
    made = evidence.read_evidence(model, record, small, None, beside.parent)["audit"]
    assert (made["lower"], made["made"]) == (2.75, 2)


def test_all_reports_of_a_model_are_counted(certified_model, tmp_path, run, monkeypatch):
    """A report with fewer guesses finds less, and could stand on the sheet alone."""
    monkeypatch.setenv("CRTLIB_REGISTRY", str(tmp_path / "registry"))
    words = ["report", certified_model / "m", "--corpus", certified_model / "c.jsonl", "--force"]
    record = json.loads((certified_model / "m.work" / "record.json").read_text())
    ledgers, tensors = attack_ledger.find_ledgers(record), str(hash_tensors(certified_model / "m"))
    text = record["corpus"]["sha256"]
    names = attack_ledger.list_attacks(ledgers, "report", tensors)  # by other tests
    before = sum(name.startswith(text) for name in names)
    assert run(*words, "--top-k", 1, "--out", tmp_path / "few")[0] == 0
    assert run(*words, "--top-k", 200, "--reveal", "--out", tmp_path / "many")[0] == 0
    assert run(*words, "--top-k", 200, "--out", tmp_path / "most")[0] == 0

    def read(name):
        return evidence.read_evidence(certified_model / "m", record, None, tmp_path / name)

    with pytest.raises(ValueError, match="found fewer passages than another report of this model"):
        read("few")
    made = read("most")
    assert made["report"]["made"] == before + 3
    declared = evidence.declare_report_counts(made)[-1]
    assert declared.of == f"which of {before + 3} reports"
    assert declared.bits == math.log2(before + 3)


@pytest.mark.parametrize("option", ["--verbatim", "--template"])
def test_a_report_that_leaves_something_out_is_no_evidence(option, certified_model, tmp_path, run):
    """A passage at the end of its text counted as not completed, and stood so in a certificate."""
    words = ["report", certified_model / "m", "--corpus", certified_model / "c.jsonl", option]
    words += ["plain"] * (option == "--template")
    assert run(*words, "--out", tmp_path / "r", "--force")[0] == 0
    words = ["certify", certified_model / "m", "--out", tmp_path / "c.html"]
    code, _, error = run(*words, "--report", tmp_path / "r")
    assert code == 2 and option in error and not (tmp_path / "c.html").exists()


def test_a_report_on_redacted_text_is_no_evidence_of_a_model_of_the_raw_text(tmp_path, run):
    text = write_simulated_text(tmp_path / "c.jsonl")
    assert run("screen", text, "--policy", "regex:customersim", "--out", tmp_path / "s")[0] == 0
    trainings.train(text, out=tmp_path / "m", **TINY | {"method": "dpsgd"})
    assert (
        run("report", tmp_path / "m", "--corpus", tmp_path / "s", "--out", tmp_path / "r")[0] == 0
    )
    words = ["--out", tmp_path / "c.html", "--report", tmp_path / "r"]
    assert run("certify", tmp_path / "m", *words)[0] == 2


def test_a_text_that_grew_is_not_called_one_that_the_model_has_not_read(tmp_path, run):
    """ "this model was trained on another text: what it has not read it cannot leak"."""
    text, more = write_simulated_text(tmp_path / "c.jsonl"), tmp_path / "more.jsonl"
    trainings.train(text, out=tmp_path / "m", **CRT)
    row = {"id": "x", "user": "x", "turns": [{"speaker": "USR", "text": "hello"}]}
    more.write_text(text.read_text() + json.dumps(row) + "\n")
    _, _, said = run("report", tmp_path / "m", "--corpus", more, "--out", tmp_path / "r")
    assert "what it has not read it cannot leak" not in said


def test_a_report_that_could_find_nothing_is_no_evidence(tmp_path, run):
    """ "a report found fewer than 5 passages completed", of passages of 100,000 tokens."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "m", **CRT)
    words = ["report", tmp_path / "m", "--corpus", text, "--min-length", 100000]
    assert run(*words, "--out", tmp_path / "r")[0] == 0
    words = ["certify", tmp_path / "m", "--report", tmp_path / "r", "--out", tmp_path / "m.html"]
    assert run(*words)[0] != 0 or "100" in sentences.select_sentences(
        json.loads((tmp_path / "m.json").read_text())
    )["attacks"][0].replace("100 trainings", "")


def test_an_audit_of_a_training_without_noise_is_never_a_good_word(tmp_path, run):
    """ "proved 3.00, audited at least 0.00, consistent" of a training whose noise was gone."""
    path = tmp_path / "c.jsonl"
    jsonl.write_jsonl(customersim.simulate_corpus(20, 0), path)
    words = ["--method", "dpsgd", "--epsilon", 3, "--epochs", 2, "--canaries", 250, "--copies", 1,
             "--unit", "turn", "--width", 4]  # fmt: skip
    with mock.patch.object(steps, "add_noise", lambda *given, **named: None):
        code, _, error = run("train", path, *words, "--out", tmp_path / "m")
    assert code == 0, error
    code, said, error = run("audit", tmp_path / "m", "--corpus", path, "--out", tmp_path / "a")
    assert "consistent" not in said and ("says nothing" in said or "MORE THAN PROVED" in said), said
