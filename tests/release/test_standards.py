"""What a certificate shows of a standard: met only while every condition is true of it."""

import copy
import json
import re

import pytest

from confide.assumption_sentences import Assumption
from confide.release import certify
from confide.reports import standards

AUDIT = {"lower": 0.5, "epsilon": 3.0, "confidence": 0.95, "canaries": 300, "guessed": 100,
         "right": 70, "strongest_attacker_power": 0.6, "says_nothing": None}  # fmt: skip
LIMITS = ("miss <= 99%", "public <= 1%", "guess <= 99", "value <= 100", "epsilon <= 9",
          "epsilon_missed <= 9")  # fmt: skip


def test_a_guess_about_a_random_secret_is_whether_it_was_blacked_out():
    """It was "between two values", one of which a search may pass over each time."""
    shown = [what for row in standards.load_standard("aisvs")["requirement"]
             for what, value, _ in row.get("shows", ()) if "'random'" in value]  # fmt: skip
    assert shown and all("blacked out" in what and "two values" not in what for what in shown)


def void(c):
    c["verdict"] = "void"


def without_limits(*names):
    def edit(c):
        c["limits"] = [x for x in c["limits"] if x["limit"].split()[0] not in names]

    return edit


def beyond(name):
    def edit(c):
        next(x for x in c["limits"] if x["limit"].startswith(name + " "))["met"] = False

    return edit


def field(*path, value):
    def edit(c):
        for name in path[:-1]:
            c = c[name]
        c[path[-1]] = value

    return edit


def without_audit(c):
    c["evidence"] = {}


def trained_partly_without_noise(*more):
    def edit(c):
        c["mechanism"]["phases"].insert(0, {"kind": "public", "steps": 3})
        for change in more:
            change(c)

    return edit


# Of each requirement what makes it not met, one for each of its conditions, in their order.
EDITS = {
    "12.1.1": [
        void,
        field("policies", "pi", "name", value="none"),
        field("rates", "miss", "how", value="unknown"),
        without_limits("miss"),
        beyond("miss"),
    ],
    "12.1.4": [
        void,
        field("guarantee", "proved", value=False),
        field("spent_before", "unprotected", value=1),
        field("assumed", value=[Assumption("people_taught", people=3).sentence()]),
        field("unit", value="turn"),
        without_limits("guess", "value"),
        beyond("guess"),
    ],
    "12.3.1": [
        void,
        field("guarantee", "kind", value="secret_protection"),
        field("spent_before", "unprotected", value=1),
        without_limits("epsilon", "epsilon_missed"),
        beyond("epsilon_missed"),
    ],
    "12.3.2": [
        without_audit,
        field("evidence", "audit", "strongest_attacker_power", value=0.1),
        field("evidence", "audit", "lower", value=0.0),
        field("evidence", "audit", "lower", value=3.001),
        void,
    ],
    "11.2.4": [
        void,
        field("guarantee", "kind", value="none"),
        field("mechanism", "phases", value=[]),
        trained_partly_without_noise(without_limits("public")),
        trained_partly_without_noise(beyond("public")),
    ],
    "11.2.5": [
        without_audit,
        field("evidence", "audit", "strongest_attacker_power", value=None),
        field("evidence", "audit", "lower", value=0.5),
    ],
}  # fmt: skip
CASES = [(name, at) for name, edits in EDITS.items() for at in range(len(edits))]


@pytest.fixture(scope="module")
def certificate(certified_model):
    """One that has evidence for all: limits that are met, and an audit."""
    value = json.loads((certified_model / "m.json").read_text())
    limits = [{"limit": text, "certified": 0.0, "met": True} for text in LIMITS]
    return value | {"limits": limits, "evidence": {"audit": AUDIT}}


def rows_of(value):
    return {row["id"]: row for row in standards.assemble_evidence(value, "aisvs")["requirements"]}


def prepared(certificate, name):
    """The certificate where a requirement is met: attackers who are right no more often than a
    coin give no estimate, so one audit shows one of two; and the bound is of a person."""
    value = copy.deepcopy(certificate)
    if name == "11.2.5":
        value["evidence"]["audit"]["lower"] = 0
    if name == "12.1.4":
        value["unit"] = "user"
    return value


def test_there_is_an_edit_for_each_condition():
    needs = {
        row["id"]: len(row["needs"])
        for row in standards.load_standard("aisvs")["requirement"]
        if "needs" in row
    }
    assert needs == {name: len(edits) for name, edits in EDITS.items()}


@pytest.mark.parametrize(("name", "at"), CASES, ids=[f"{n}-{at}" for n, at in CASES])
def test_each_condition_alone_makes_a_requirement_not_met(certificate, name, at):
    value = prepared(certificate, name)
    row = rows_of(value)[name]
    assert row["status"] == "met" and row["evidence"] and not row["because"]
    EDITS[name][at](value)
    row = rows_of(value)[name]
    standard = standards.load_standard("aisvs")["requirement"]
    needs = next(r["needs"] for r in standard if r["id"] == name)
    assert row["status"] == "not met" and needs[at][1] in row["because"]


def test_a_plan_is_of_somebody_where_its_promises_are_of_people(certificate):
    """ "The risk of identifying somebody": met by a plan of values, of which somebody has 5."""
    value = copy.deepcopy(certificate) | {"unit": "turn", "assumed": []}
    value["guarantee"]["kind"] = "secret_protection"
    for assumed, status in ((), "not met"), ([Assumption("one_name").sentence()], "met"):
        row = rows_of(value | {"assumed": list(assumed)})["12.1.4"]
        assert row["status"] == status


def test_a_policy_that_masks_nothing_is_no_evidence_of_masking(certificate):
    """ "Policy that masks: names" of a plan; "nothing was masked" of a second month of CRT."""
    for kind, masks in ("dp", True), ("secret_protection", False):
        value = copy.deepcopy(certificate)
        value["guarantee"]["kind"] = kind
        row = rows_of(value)["12.1.1"]
        shown = {x["what"] for x in row["evidence"]}
        assert ("policy that masks" in shown) == masks
        assert any("nothing was masked" in why for why in row["because"]) == (not masks)


def test_a_training_that_was_struck_is_in_no_sum(certificate):
    """Both were met, and "earlier trainings in the odometer: 0", once a model that was trained
    without noise had been struck."""
    value = copy.deepcopy(certificate) | {"unit": "user"}
    value["spent_before"]["struck"] = 1
    rows = rows_of(value)
    assert rows["12.1.4"]["status"] == rows["12.3.1"]["status"] == "not met"
    told = {x["what"]: x["value"] for x in rows["12.3.1"]["evidence"]}
    assert told["earlier trainings without protection, or struck, that it does not"] == 1


def test_its_page_and_json_say_only_what_the_certificate_and_the_standard_do(certificate):
    """No text of the training can stand there: each string is of the certificate or of the file."""
    made = standards.assemble_evidence(certificate, "aisvs")
    known = json.dumps(standards.load_standard("aisvs")) + json.dumps(certificate)
    said = {x["value"] for row in made["requirements"] for x in row["evidence"]}
    said |= {x["hash"] for row in made["requirements"] for x in row["evidence"] if x["hash"]}
    said |= {text for row in made["requirements"] for text in row["because"]}
    for value in said:
        assert json.dumps(value).strip('"') in known, value
    page = standards.render_evidence_page(made, "crtlib certify m")
    assert len(re.findall('class="(panel )?requirement"', page)) == len(made["requirements"])
    assert sum(made["counts"].values()) == len(made["requirements"])


def test_it_is_written_beside_the_certificate_and_verified_with_it(certified_model, tmp_path, run):
    words = ["certify", certified_model / "m", "--out", tmp_path / "c.html"]
    code, _, error = run(*words, "--evidence", "iso")
    assert code == 2 and "evidence='iso': must be one of aisvs" in error
    assert not list(tmp_path.iterdir())
    code, out, _ = run(*words, "--evidence", "aisvs")
    assert code == 0 and "c.aisvs.html: 0 met, 6 not met, 19 not ours" in out
    assert run(*words, "--evidence", "aisvs", "--verify")[0] == 0
    page, plain = certify.name_evidence_files(tmp_path / "c.html", "aisvs")
    made = json.loads(plain.read_text())
    assert made["certificate"]["id"] == json.loads((tmp_path / "c.json").read_text())["id"]
    page.write_text(page.read_text().replace("not met", "met"))
    code, out, _ = run(*words, "--evidence", "aisvs", "--verify")
    assert code == 4 and "c.aisvs.html: differs from what the certificate shows" in out
