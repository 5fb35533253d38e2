"""Certificates that a seventh reader made lie, each of which is true now or refused."""

import json

import pytest

from confide.release import certify, verify
from crtlib.screening import policy
from crtlib.text.records import Point, Secret
from tests import trainings
from tests.release import test_false_certificates as earlier

CRT, TINY, corpus, certificate = earlier.CRT, earlier.TINY, earlier.corpus, earlier.certificate


def test_a_model_without_labels_counts_what_those_of_earlier_ones_judged(tmp_path, run):
    """M. DP-SGD after CRT printed the bounds of the earlier search as if its labels had judged one
    pair, and as if they were certain: no sentence said a confidence."""
    text = corpus(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "crt", **CRT)
    trainings.train(text, out=tmp_path / "dpsgd", method="dpsgd", **TINY)
    page = tmp_path / "d.html"
    before = certificate(tmp_path / "dpsgd", page)["spent_before"]["delta2"]
    assert "each was measured on labels, with a confidence of its own" in page.read_text()
    earlier.screened(text, tmp_path / "s", "regex:multiwoz")
    made = certificate(tmp_path / "dpsgd", page)
    assert made["verdict"] == "holds" and made["spent_before"]["delta2"] > before
    other = certificate(tmp_path / "crt", tmp_path / "c.html")
    public = other["rates"]["public"]["upper"]
    assert made["spent_before"]["delta2"] == public
    assert certify.verify_certificate(tmp_path / "dpsgd", page)[0] is None
    assert verify.find_certificate_fault(tmp_path / "dpsgd", made) is None
    bill = ["--odometer", f"{text}.odometer"]
    more = ["--before", f"{text}.odometer", "--unit", "turn", "--epsilon", 3, "--delta", 1e-4,
            "--points", 100, "--batch-size", 10, "--epochs", 1]  # fmt: skip
    for words in (bill, more):  # account had the bounds of when it was trained
        code, said, error = run("account", *words, "--json")
        assert code == 0, error
        assert json.loads(said)["together"]["delta2"] == pytest.approx(public, rel=1e-12)


def test_what_does_not_fit_is_told_without_its_kind():
    """L. The kind of a span of a policy of another package, any text, stood in the message."""
    point = Point("d", "u", "Ada Lovelace")
    for spans in ([Secret("Ada", 5, 99)], [Secret("Ada", 0, 3), Secret("Lovelace", 2, 5)]):
        with pytest.raises(ValueError) as error:
            policy.Policy("company", lambda _, spans=spans: [spans])([point])
        assert "Ada" not in str(error.value) and "Lovelace" not in str(error.value)
