"""Certificates of several runs together that held and were false: each inherited the numbers of the
runs before it, and not what these stand on."""

import json
import random
from dataclasses import replace

import pytest

from confide import odometer, odometer_lines, spending, text_registry
from confide.release import assumptions, certificate_parts, certify, verify
from confide.reports import model_card, screening_page, sentences
from confide.screening.corpus_screening import ScreeningOptions
from crtlib.text import corpora, jsonl
from crtlib.text.records import Dialogue, Secret, Turn
from tests import trainings
from tests.texts import write_simulated_text

TINY = {"epochs": 1, "sampling_probability": 1.0, "width": 4, "epsilon": 3.0, "delta": 1e-4}
DPSGD = TINY | {"method": "dpsgd"}
GPT2 = DPSGD | {"model": "gpt2", "heads": 1, "context": 64}
CRT = TINY | {"method": "crt", "policy": "regex:wikitext2"}  # which marks all digits
WORDS = ["order", "box", "late", "blue", "name", "card", "door", "bill", "post", "lost"]


def messages(seed, number):
    """Short messages of one person each, with a number that is said once."""
    coin = random.Random(seed)
    talks = []
    for k in range(number):
        pin = f"{coin.randrange(10**6):06d}"
        text = f"my {coin.choice(WORDS)} {coin.choice(WORDS)} pin is {pin}"
        secret = Secret("pin", text.index(pin), len(text))
        talks.append(Dialogue(f"{seed}-{k}", f"{seed}{k}@x", (Turn("USR", text, (secret,)),)))
    return talks


def write(path, talks):
    path.parent.mkdir(exist_ok=True)
    jsonl.write_jsonl(talks, path)
    return path


def certified(run):
    """The certificate of a training, its sentences, and guarantee.txt."""
    page = run.with_name(f"{run.name}.html")
    value = certify.write_certificate(run, page, secrets_per_person=(), force=True)
    assert certify.compare_certificate_with_run(run, page)[0] is None
    if value["verdict"] == "holds":
        assert verify.find_certificate_fault(run, value) is None
    said = " ".join(" ".join(p) for p in sentences.select_sentences(value).values())
    return value, said, (run / "guarantee.txt").read_text()


def without_reading(assumed):
    """Without what is assumed of how a model from elsewhere reads a batch."""
    return [said for said in assumed if not said.endswith("as was tried on random texts")]


def go_on(text, base, out, **more):
    """Train from the weights of another model, with noise for each point."""
    named = {name: value for name, value in DPSGD.items() if name != "width"}
    trainings.train(text, out=out, **named | {"init": str(base)} | more)


def a_base_that_nobody_knows(text, out, monkeypatch):
    """A model of this very text, made where this registry does not see it."""
    with monkeypatch.context() as patch:
        patch.setenv("CRTLIB_REGISTRY", str(text.parent / "elsewhere"))
        copy = write(text.parent / "copied" / "c.jsonl", corpora.read_dialogues(text))
        trainings.train(copy, out=text.parent / "b", **GPT2 | {"method": "sgd"})
    go_on(text, text.parent / "b", out)


def screened_by_likeness(text, out, monkeypatch):
    how = ScreeningOptions("regex:wikitext2", "everything", dedup_by="near")
    screening_page.screen_into_folder(text, text.parent / "s", how)
    trainings.train(text.parent / "s", out=out, **TINY)


def the_labels_themselves(text, out, monkeypatch):
    trainings.train(text, out=out, **CRT | {"policy": "oracle"})


VOID = {
    a_base_that_nobody_knows: "It is not known what b, from which it started, has read.",
    screened_by_likeness: "What is a duplicate was decided by likeness",
    the_labels_themselves: "A policy read the labels themselves",
}


@pytest.mark.parametrize("way", VOID)
def test_a_void_run_counts_as_one_without_protection(tmp_path, monkeypatch, run, way):
    """Its certificate is void, and the next one on the same text covers it no more."""
    text = write(tmp_path / "c.jsonl", messages("a", 60))
    way(text, tmp_path / "m1", monkeypatch)
    first, _, _ = certified(tmp_path / "m1")
    assert first["verdict"] == "void" and VOID[way] in " ".join(first["void_because"])
    trainings.train(text, out=tmp_path / "m2", **DPSGD)
    second, said, words = certified(tmp_path / "m2")
    before = second["spent_before"]
    assert (before["runs"], before["unprotected"]) == (0, 1)
    assert second["guarantee"]["secret"] == before["alone"]
    assert "1 model was trained on it" in said and "whoever has one of them may need no" in said
    assert "not counted: 1 trained on this text" in words and "earlier one" not in said
    place = odometer.find_odometer(text, corpora.hash_corpus(text))
    code, told, error = run("account", "--odometer", place, "--json")
    assert code == 0, error
    bill = json.loads(told)
    assert bill["together"]["epsilon"] == "inf" and bill["together"]["gamma"] == 1.0
    assert bill["runs"][0]["epsilon"] is None and VOID[way] in bill["runs"][0]["void_because"][0]


def test_what_started_from_a_void_run_is_void(tmp_path, monkeypatch):
    """Its weights hold what the void one had learned: the pins of the unlabelled ranked first."""
    text = write(tmp_path / "c.jsonl", messages("a", 60))
    trainings.train(
        text, out=tmp_path / "m1", **GPT2 | {"method": "crt", "policy": "oracle",
                                             "conservative": "everything"}
    )  # fmt: skip
    go_on(text, tmp_path / "m1", tmp_path / "m2")
    assert certified(tmp_path / "m1")[0]["verdict"] == "void"
    second, _, _ = certified(tmp_path / "m2")
    assert second["verdict"] == "void"
    assert "or with a promise that is void" in " ".join(second["void_because"])
    trainings.train(text, out=tmp_path / "m3", **DPSGD)
    assert certified(tmp_path / "m3")[0]["spent_before"]["unprotected"] == 2


def test_a_line_that_does_not_say_whether_it_is_void_counts_as_void(tmp_path, run):
    text = write(tmp_path / "c.jsonl", messages("a", 60))
    trainings.train(text, out=tmp_path / "m1", **DPSGD)
    place = odometer.find_odometer(text, corpora.hash_corpus(text))
    lines = odometer.read_entries(place)
    assert [line.void for line in lines] == [(), ()]
    older = [replace(line, void=None) for line in lines]
    spent = spending.sum_spending(older)
    assert (
        spent.protected_run_count,
        spent.unprotected_run_count,
        len(spent.runs_without_verdict),
    ) == (0, 1, 1)
    registry = text_registry.Registry(text_registry.registry_folder())
    odometer.add_later_entry(place, lines[-1], registry=registry, void=None)
    code, told, _ = run("account", "--odometer", place)
    assert code == 0 and "did not record whether the promise was void" in " ".join(told.split())
    trainings.train(text, out=tmp_path / "m2", **DPSGD)
    assert certified(tmp_path / "m2")[0]["spent_before"]["unprotected"] == 1


def test_a_run_that_was_only_started_says_what_voids_it(tmp_path, monkeypatch):
    """It was killed: what it promises is that of one that was finished."""
    text = write(tmp_path / "c.jsonl", messages("a", 60))
    the_labels_themselves(text, tmp_path / "m1", monkeypatch)
    place = odometer.find_odometer(text, corpora.hash_corpus(text))
    started, finished = odometer.read_entries(place)
    assert started.void == finished.void and started.void and not started.protects
    assert started.treated_as_public == finished.treated_as_public
    assert isinstance(started, odometer_lines.OdometerEntry)


# --------------------------------------------------------------------------- conditions
def from_outside(home, monkeypatch, text):
    """A model of this very text in a folder that no marker of crtlib gives away."""
    with monkeypatch.context() as patch:
        patch.setenv("CRTLIB_REGISTRY", str(home / "elsewhere"))
        copy = write(home / "copied" / "c.jsonl", corpora.read_dialogues(text))
        trainings.train(copy, out=home / "made", **GPT2 | {"method": "sgd"})
    (home / "gpt").mkdir()
    for name in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
                 "tokenizer_config.json"):  # fmt: skip
        (home / "gpt" / name).write_bytes((home / "made" / name).read_bytes())
    return home / "gpt"


def test_the_conditions_of_earlier_runs_are_conditions_of_all(tmp_path, monkeypatch):
    """What the first model assumes, treats as known and declares stands in the second certificate,
    which covers it: that its base had not read this text, how many points it had, its perplexity.
    """
    text = write(tmp_path / "c.jsonl", messages("a", 60))
    go_on(text, from_outside(tmp_path, monkeypatch, text), tmp_path / "m1",
          card=model_card.render_model_card, trials=2)  # fmt: skip
    trainings.train(text, out=tmp_path / "m2", **CRT | {"conservative": "everything"})
    (first, _, _), (second, said, words) = (certified(tmp_path / name) for name in ("m1", "m2"))
    assert first["verdict"] == second["verdict"] == "holds"
    assert second["spent_before"]["runs"] == 1
    assumed = "gpt, from which an earlier model started, had not read this text"
    assert (
        without_reading(first["assumed"]) == ["gpt had not read this text"]
        and assumed in second["assumed"]
    )
    assert f"**It is assumed that {assumed}**" in said and assumed in words
    own = {(d["of"], d["value"], d["bits"]) for d in first["declared"]}
    earlier = {(d["of"].removesuffix(certificate_parts.OF_AN_EARLIER_MODEL), d["value"], d["bits"])
               for d in second["declared"] if "earlier" in d["of"]}  # fmt: skip
    assert own == earlier and len(own) == 3
    assert all(f"{name}, of an earlier model, {value}" in said for name, value, _ in own)
    assert certificate_parts.EXACT_COUNTS_NOTE in second["treated_as_public"]


def test_what_an_earlier_model_treats_as_known_is_known_to_all(tmp_path, monkeypatch):
    """A policy that was taught by this text: who knows the rest of it may decide by one message how
    dozens of others were read, and the second certificate did not say so."""
    text = write(tmp_path / "c.jsonl", messages("a", 60))
    from confide.training import training_record as record

    taught = "the text that taught the policies"
    with monkeypatch.context() as patch:
        patch.setattr(record, "describe_public_knowledge", lambda study: taught)
        trainings.train(text, out=tmp_path / "m1", **CRT | {"conservative": "everything"})
    place = odometer.find_odometer(text, corpora.hash_corpus(text))
    started, finished = odometer.read_entries(place)
    assert started.treated_as_public == finished.treated_as_public == (taught,)
    trainings.train(text, out=tmp_path / "m2", **DPSGD)
    second, said, words = certified(tmp_path / "m2")
    assert second["verdict"] == "holds" and second["spent_before"]["runs"] == 1
    fact = f"of an earlier model: {taught}"
    assert fact in second["treated_as_public"] and fact in said and fact in words


def test_a_condition_of_another_text_says_so(tmp_path):
    line = dict(
        entry="e" * 64, previous=None, time="", corpus="d" * 64, run="r", state="finished",
        unit="turn", method="dpsgd", relation="replace", events=(), screening="", gamma=1.0,
        delta2=0.0, holds={}, void=(), treated_as_public=("the vocabulary",),
        assumed=("gpt had not read this text", "list:a was not made from this text"),
    )  # fmt: skip
    same = {"corpus": "c" * 64, "run": "s"}
    spent = spending.SpentBudget(
        (odometer_lines.OdometerEntry(**line), odometer_lines.OdometerEntry(**line | same))
    )
    assumed = assumptions.assume_of_earlier_models(spent, "c" * 64)
    assert assumptions.state_assumptions(assumed) == [
        "gpt, from which an earlier model started, had not read its text",
        "list:a was not made from the text of an earlier model that it screened",
        "gpt, from which an earlier model started, had not read this text",
        "list:a was not made from this text, which it screened for an earlier model",
    ]
    known = certificate_parts.list_known_of_earlier_models(spent, ["the vocabulary"], "c" * 64)
    reports = f"of an earlier model: {certificate_parts.EARLIER_REPORTS_NOTE}"
    assert known == ["of an earlier model: the vocabulary", reports]


def test_the_reports_on_earlier_models_are_treated_as_known(tmp_path):
    """The first certificate declared what a report had counted, of 19 bits; the second, of both
    models together, said that all that was declared had 21."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    pages = []
    for name in ("one", "two"):
        trainings.train(text, out=tmp_path / name, method="dpsgd", width=4, epochs=1, delta=1e-4)
        made = trainings.make_certificate(tmp_path / name, tmp_path / f"{name}.html")
        pages.append((tmp_path / f"{name}.html").read_text())
        said = f"of an earlier model: {certificate_parts.EARLIER_REPORTS_NOTE}"
        assert (said in made["treated_as_public"]) == (name == "two")
        told = (tmp_path / name / "guarantee.txt").read_text()
        assert (said in pages[-1]) == (said in told) == (name == "two")


# --------------------------------------------------------------------------- what it started from
def test_a_base_that_is_not_counted_carries_an_assumption(tmp_path):
    """Ten of the second text's messages were in the first, which a model learned without noise: too
    few to show. The certificate of what was made of it held, and assumed nothing."""
    first = messages("a", 120)
    both = write(tmp_path / "jan.jsonl", first), write(tmp_path / "feb.jsonl", messages("b", 60))
    jsonl.write_jsonl([*messages("b", 200), *(replace(d, id=f"x{d.id}", user="") for d in
                      first[:10])], both[1])  # fmt: skip
    jsonl.write_jsonl([replace(d, user="") for d in first], both[0])
    trainings.train(both[0], out=tmp_path / "m1", **GPT2 | {"method": "sgd"})
    go_on(both[1], tmp_path / "m1", tmp_path / "m2")
    value, said, words = certified(tmp_path / "m2")
    assert value["verdict"] == "holds" and without_reading(value["assumed"]) == [
        "m1 had not read this text"
    ]
    assert "**It is assumed that m1 had not read this text.**" in said
    assert "nothing is said about other text that m1 had read" in said
    assert "assumed: m1 had not read this text" in words
    go_on(both[1], tmp_path / "m2", tmp_path / "m3")  # of this text it is counted; m1 is not
    third, _, _ = certified(tmp_path / "m3")
    assert third["assumed"][0] == "m1 had not read this text" and third["spent_before"]["runs"] == 1


def test_a_base_of_other_text_that_stands_on_a_counted_one_says_so(tmp_path):
    text = write(tmp_path / "c.jsonl", messages("a", 60))
    other = write(tmp_path / "d.jsonl", messages("b", 60))
    trainings.train(text, out=tmp_path / "m1", **GPT2)
    go_on(other, tmp_path / "m1", tmp_path / "m2")
    go_on(text, tmp_path / "m2", tmp_path / "m3")
    value, _, _ = certified(tmp_path / "m3")
    apart = "apart from the earlier models that are counted, m2 had not read this text"
    assert without_reading(value["assumed"]) == [apart] and value["spent_before"]["runs"] == 1


def test_what_stood_before_a_base_is_judged_for_this_text(tmp_path):
    """That the first model is counted for the text of the second says nothing of a third text."""
    text = write(tmp_path / "c.jsonl", messages("a", 60))
    other = write(tmp_path / "d.jsonl", messages("b", 60))
    trainings.train(text, out=tmp_path / "m1", **GPT2)
    go_on(text, tmp_path / "m1", tmp_path / "m2")
    assert certified(tmp_path / "m2")[0]["assumed"] == []
    go_on(other, tmp_path / "m2", tmp_path / "m3")
    value, _, _ = certified(tmp_path / "m3")
    assert {*without_reading(value["assumed"])} == {
        "m2 had not read this text",
        "m1 had not read this text",
    }


def test_a_model_alone_holds_what_it_started_from(tmp_path):
    """It printed "of this model alone: (0.5, 1e-4)" of the weights of a model with epsilon 10."""
    text = write(tmp_path / "c.jsonl", messages("a", 60))
    trainings.train(text, out=tmp_path / "m1", **GPT2 | {"epsilon": 8.0})
    trainings.train(text, out=tmp_path / "aside", **DPSGD | {"epsilon": 2.0})
    go_on(text, tmp_path / "m1", tmp_path / "m2", epsilon=0.5)
    first, second = certified(tmp_path / "m1")[0], certified(tmp_path / "m2")
    value, _, words = second
    alone, whole = value["spent_before"]["alone"]["epsilon"], value["guarantee"]["secret"]
    assert first["guarantee"]["secret"]["epsilon"] < alone < whole["epsilon"]
    assert f"of this model alone: ({alone}, " in words
    trainings.train(text, out=tmp_path / "m3", **DPSGD | {"epsilon": 0.5})
    assert certified(tmp_path / "m3")[0]["spent_before"]["alone"]["epsilon"] <= 0.5


def test_shares_of_earlier_searches_are_told_where_they_are_named(tmp_path):
    """A certificate of differential privacy names no share, and said where these come from."""
    text = write(tmp_path / "c.jsonl", messages("a", 60))
    for name, more in (("m1", DPSGD), ("m2", CRT | {"conservative": "everything"}), ("m3", DPSGD)):
        trainings.train(text, out=tmp_path / name, **more)
        value, said, _ = certified(tmp_path / name)
        assert value["verdict"] == "holds" and value["guarantee"]["kind"] == "dp"
        assert "These shares are those of earlier models' searches" not in said
