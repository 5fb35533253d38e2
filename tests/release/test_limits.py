"""Limits are part of the verdict: each name, on each side, and what no limit is."""

import json
import re

import pytest

from confide.release import certify, limits, verify
from confide.reports import model_card, sentences
from crtlib.text import customersim, jsonl
from tests import trainings
from tests.texts import write_simulated_text
from tests.trainings import CRT

CERTIFICATE = {
    "verdict": "holds",
    "rates": {"miss": {"upper": 0.0377}, "trace": {"upper": 0.02}, "public": {"upper": 0.01}},
    "right_guess": [
        {"who": "random", "at_most": 0.524}, {"who": "random", "at_most": 0.53},
        {"who": "missed", "at_most": 0.625},
    ],
    "value_guess": [{"at_most": 0.000121}, {"at_most": 0.0202}],
    "guarantee": {
        "secret": {"epsilon": 0.197, "delta": 0.0378}, "missed": {"epsilon": 3.0, "delta": 1e-4}
    },
}  # fmt: skip
TINY = {
    "unit": "turn", "epochs": 1, "sampling_probability": 1.0, "embedding": 4, "hidden": 4,
    "delta": 1e-4, "epsilon": 3.0,
}  # fmt: skip
EDGES = {
    "guess": ("53", "52.999"), "missed": ("62.5%", "62.49"), "value": ("2.02", "2.01"),
    "epsilon": ("0.197", "0.1969"), "delta": (".0378", "3.7e-2"), "epsilon_missed": ("3", "2.999"),
    "miss": ("3.77%", "0.0376"), "trace": ("0.02", "1.99%"), "public": ("1%", "0.0099"),
}  # fmt: skip


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    """A model that CRT trained."""
    home = tmp_path_factory.mktemp("limits")
    jsonl.write_jsonl(customersim.simulate_corpus(40, 3, "paper"), home / "c.jsonl")
    trainings.train(
        home / "c.jsonl", out=home / "m", method="crt", policy="regex:customersim",
        card=model_card.render_model_card, **TINY,
    )  # fmt: skip
    return home / "m"


@pytest.mark.parametrize("name", limits.LIMIT_NAMES)
def test_a_limit_is_met_up_to_the_bound_that_is_certified(name):
    at, below = EDGES[name]
    rows = limits.judge_limits(CERTIFICATE, [f"{name} <= {at}", f"{name}<={below}"])
    assert [row["met"] for row in rows] == [True, False]
    assert rows[0]["certified"] == rows[1]["certified"]
    for lacking in ({"verdict": "void"}, {"verdict": "none"}):
        (row,) = limits.judge_limits(CERTIFICATE | lacking, [f"{name} <= {at}"])
        assert row == {"limit": f"{name} <= {at}", "certified": None, "met": False}


def test_what_no_certificate_has_is_met_by_none():
    bare = CERTIFICATE | {"rates": {}, "right_guess": [], "value_guess": []}
    bare |= {"guarantee": {"secret": {"epsilon": "inf", "delta": "inf"}}}
    names = [name for name in limits.LIMIT_NAMES if name != "epsilon_missed"]
    rows = limits.judge_limits(bare, [f"{name} <= 1000000" for name in names])
    assert {row["met"] for row in rows} == {False}
    assert {row["certified"] for row in rows} == {None}


def test_what_holds_of_any_message_holds_of_a_secret_drawn_at_random():
    """ "Does not meet the limits: guess <= 80 (nothing is certified)" stood above "any one message:
    right at most 61.8 times in 100", and a gate let no model of DP-SGD pass."""
    any_one = CERTIFICATE | {"right_guess": [{"who": "missed", "at_most": 0.618}]}
    for kind, found in (("dp", 61.8), ("bayesian_confidentiality", None)):
        promise = {"guarantee": CERTIFICATE["guarantee"] | {"kind": kind}}
        asked = ["guess <= 80", "guess <= 61", "missed <= 80"]
        rows = limits.judge_limits(any_one | promise, asked)
        assert [row["certified"] for row in rows] == [found, found, 61.8]
        assert [row["met"] for row in rows] == [kind == "dp", False, True]


@pytest.mark.parametrize("text", [
    "", "public", "public < 1%", "public <= -1", "public <= x", "nosuch <= 3", "public <= 1% or 2",
    "epsilon <= 3%", "delta <= 1%", "public >= 1%", "public <= nan", "public <= 1e9999",
])  # fmt: skip
def test_what_is_no_limit_is_refused_in_one_line(text):
    with pytest.raises(ValueError, match="must be NAME <= NUMBER") as error:
        limits.judge_limits(CERTIFICATE, [text])
    assert "\n" not in str(error.value) and str(error.value).startswith("require: ")


def test_the_command_ends_with_four_where_a_limit_is_not_met(certified, tmp_path, run):
    """And its page, its one line and its JSON say so; verification judges the limits again."""
    page = tmp_path / "c.html"
    words = ["certify", certified, "--out", page, "--force"]
    code, said, _ = run(*words, "--require", "epsilon_missed <= 3.0")
    value = json.loads(page.with_suffix(".json").read_text())
    assert (
        code == 0
        and said
        == f"{page}: meets your limits; {certify.summarise_certificate(value | {'limits': []})}\n"
    )
    assert "meets your limits" in page.read_text() and "the promise holds" not in page.read_text()
    code, said, _ = run(*words, "--require", "guess <= 100", "--require", "public <= 0.001%")
    assert code == 4 and "does not meet your limits: public <= 0.001%;" in said
    assert "does not meet your limits" in page.read_text()
    assert "does not meet the limits that were set" in page.read_text()
    assert run(*words[:-1], "--verify")[0] == 4  # what it says is so, and it is not enough
    code, said, _ = run(*words, "--require", "guess <= 100", "--json")
    assert code == 0 and json.loads(said)["limits"][0]["met"] is True
    assert run(*words[:-1], "--verify")[0] == 0
    code, _, error = run(*words, "--require", "guess below 3")
    assert code == 2 and len(error.splitlines()) == 1
    assert json.loads(page.with_suffix(".json").read_text())["limits"][0]["limit"] == "guess <= 100"


def test_a_limit_of_a_share_counts_what_earlier_searches_passed_over(tmp_path):
    """The limit "public <= 0.1 %" was met, and a sentence said that 11 of 100 were learned."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "one", **CRT)
    second = CRT | {"policy": "regex:multiwoz", "conservative": "everything"}
    trainings.train(text, out=tmp_path / "two", **second)
    value = certify.write_certificate(tmp_path / "two", tmp_path / "c.html", secrets_per_person=(),
                          require=["public <= 0.1%", "trace <= 100%"])  # fmt: skip
    assert value["verdict"] == "holds" and value["rates"]["public"]["upper"] == 0
    share = value["spent_before"]["delta2"]
    assert share > 0.01 and [row["met"] for row in value["limits"]] == [False, True]
    assert value["limits"][0]["certified"] == share
    assert verify.find_certificate_fault(tmp_path / "two", value) is None


def say_limit(row):
    """How the page of a certificate says what is certified of a limit."""
    _, text = sentences.load_sentences()["limits"]
    return " ".join(text.render({"limits": [row]}).split())


def test_a_limit_in_times_of_100_is_not_printed_as_a_share():
    row = {"limit": "value <= 1%", "certified": 0.28, "met": True}  # of 100
    assert "28" not in say_limit(row).replace("0.28", "")


def test_what_is_certified_of_a_limit_is_rounded_up():
    row = {"limit": "trace <= 0.2", "certified": 0.1121884, "met": True}
    said = re.search(r"\((\S+) is certified", say_limit(row))[1]
    assert float(said) >= 0.1121884


def test_a_limit_is_not_ignored_where_a_certificate_is_verified(tmp_path, run):
    trainings.train(write_simulated_text(tmp_path / "c.jsonl"), out=tmp_path / "m", **CRT)
    words = ["certify", tmp_path / "m", "--out", tmp_path / "m.html"]
    assert run(*words)[0] == 0
    assert run(*words, "--verify", "--require", "public <= 0%")[0] != 0


@pytest.mark.parametrize(("verdict", "code"), [("holds", 0), ("none", 4), ("void", 4)])
def test_a_gate_without_limits_stops_what_promises_nothing(
    run, tmp_path, monkeypatch, verdict, code
):
    made = {"verdict": verdict, "id": "x", "limits": []}
    monkeypatch.setattr("confide.release.certify.write_certificate", lambda *_, **__: made)
    monkeypatch.setattr("confide.release.certify.summarise_certificate", lambda _: "said")
    assert run("certify", tmp_path, "--out", tmp_path / "c.html")[0] == code


@pytest.mark.parametrize("noise", [0.35, 2.0])
def test_what_lets_every_guess_be_right_promises_nothing(tmp_path, run, noise):
    """ "Holds; any one (66.0, 0.001)", exit code 0 and "the promise holds", with "right at most 100
    times in 100" for everybody: an epsilon of any size is a promise only where some guess fails."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    few = TINY | {"method": "dpsgd", "epsilon": None, "noise_multiplier": noise}
    made = trainings.train(text, out=tmp_path / "m", **few)
    page = tmp_path / "m.html"
    code, said, _ = run("certify", tmp_path / "m", "--out", page, "--require", "epsilon <= 1e6")
    value = json.loads(page.with_suffix(".json").read_text())
    nothing = noise == 0.35
    assert code == (4 if nothing else 0) and value["verdict"] == ("none" if nothing else "holds")
    assert (sentences.NOTHING_PROMISED in said) == nothing == (not value["limits"][0]["met"])
    assert (sentences.NOTHING_PROMISED in made.promise) == nothing == (not made.holds)
    assert (sentences.NOTHING_PROMISED in page.read_text()) == nothing
    assert ("This model carries no promise" in page.read_text()) == nothing
    assert all(row["at_most"] >= 0.995 for row in value["right_guess"]) == nothing
    assert run("certify", tmp_path / "m", "--out", page, "--verify")[0] == code


def test_a_rate_whose_labels_are_not_named_meets_no_limit():
    """A second month, of whose secrets each counts as passed over, said "meets your limits: miss
    <= 50% (47.2 % is certified)", and no page said on which labels, or with what confidence."""
    row = {"upper": 0.472, "how": "one_per_cluster"}
    parts = {"verdict": "holds", "rates": {"miss": row, "public": {"upper": 0.0, "how": "policy"}}}
    asked = ["miss <= 50%", "public <= 1%"]
    for kind, met in (("dp", False), ("bayesian_confidentiality", True)):
        rows = limits.judge_limits(parts | {"guarantee": {"kind": kind}}, asked)
        assert [r["met"] for r in rows] == [met, True]
