"""Certificates that once held and were false: each is made again, and must not hold."""

import contextlib
import fcntl
import functools
import json
import random
import re
import shutil
import sqlite3
import struct
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, replace

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide import odometer, spending, text_registry
from confide.labels import drawing, imports, judged_turns, label_tasks, registry
from confide.release import (
    certifiable_run,
    certificate_parts,
    certify,
    composed_promise,
    gate,
    seal,
    verify,
)
from confide.reports import certificate_pages, model_card
from confide.screening import corpus as screening
from confide.training import (
    odometer_run,
    record_sources,
    train_on_corpus,
    training_facts,
    training_record,
)
from crtlib import outputs
from crtlib.accounting.guarantees import Guarantee, MissRate
from crtlib.attacks import run_audit
from crtlib.screening import policies, rates, regex_policies
from crtlib.screening.policy import REGISTERED_MAKERS, Policy, PolicyMaker
from crtlib.studies import study_data, study_run
from crtlib.text import corpora, customersim, data_points, jsonl, records, templates
from crtlib.text.records import Point, Secret, Turn
from crtlib.training import methods, schedules
from crtlib.training.phases import PrivatePhase, PublicPhase
from tests import modes, trainings

WORD = "pheochromocytoma"
TINY = {"unit": "turn", "epochs": 1, "embedding": 4, "hidden": 4, "delta": 1e-4, "epsilon": 3.0}


def neighbours(folder):
    """A corpus with a rare word that one person says in one message, and its masked neighbour."""
    path = folder / "d.jsonl"
    jsonl.write_jsonl(customersim.simulate_corpus(40, 0), path)
    whole = path.read_text()
    row = {"id": "x", "user": "x", "turns": [{"speaker": "USR", "text": " ".join([WORD] * 40)}]}
    masked = json.loads(json.dumps(row))
    masked["turns"][0]["text"] = "<MASK>"
    for name, extra in (("d", row), ("prime", masked)):
        (folder / f"{name}.jsonl").write_text(whole + json.dumps(extra) + "\n")
    return path, folder / "prime.jsonl"


@pytest.mark.parametrize("method", ["dpsgd", "user_dpsgd"])
def test_what_reads_raw_text_learns_no_vocabulary_from_it(tmp_path, method):
    """F1: the word became a token of the public tokenizer, and "any one message" was printed."""
    one, other = neighbours(tmp_path)
    for name in ("policy", "conservative"):
        with pytest.raises(ValueError, match=f"{name}: is no option of method {method}"):
            trainings.train(one, method=method, **TINY, **{name: "regex:customersim"})
    for path in (one, other):
        trainings.train(path, out=tmp_path / path.stem, method=method, **TINY)
    words = [(tmp_path / p.stem / "tokenizer.json").read_text() for p in (one, other)]
    assert words[0] == words[1] and WORD not in words[0]


def test_a_plan_learns_no_vocabulary_from_what_its_policy_missed(tmp_path, run):
    """F5b: a name flagged once and missed thirty times was a token of the tokenizer."""
    path, name = tmp_path / "d.jsonl", "Wolframina"
    jsonl.write_jsonl(customersim.simulate_corpus(20, 0), path)
    said = [f"my name is {name}", *[" ".join([f"regards , {name}"] * 20)] * 30]
    rows = [
        {"id": f"x{k}", "user": "x", "turns": [{"speaker": "USR", "text": text}]}
        for k, text in enumerate(said)
    ]
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "nm.toml").write_text("[name]\npattern = '(?<=my name is )[A-Z][a-z]{1,30}'\n")
    words = ["--from-policy", f"regex:{tmp_path}/nm.toml", "--posterior", 0.1, "--steps", 10]
    code, _, error = run("protect", path, *words, "--out", tmp_path / "plan")
    assert code == 0, error
    assert (
        run("train", path, "--plan", tmp_path / "plan", "--epochs", 1, "--out", tmp_path / "m")[0]
        == 0
    )
    assert name not in (tmp_path / "m" / "tokenizer.json").read_text()


CRT = TINY | {"method": "crt", "policy": "regex:customersim", "hidden": 4}


def certificate(run, page):
    return certify.write_certificate(run, page, audience="officer", copies=(), force=True)


def corpus(path, seed=3, people="", dialogues=40):
    """Simulated conversations of people who are called ``people`` and a number, if anything."""
    made = customersim.simulate_corpus(dialogues, seed, "paper")
    if people:
        made = replace(made, dialogues=tuple(
            replace(d, id=f"{path.stem}-{k}", user=f"{people}{k % 8}")
            for k, d in enumerate(made.dialogues)
        ))  # fmt: skip
    jsonl.write_jsonl(made, path)
    return path


def test_a_screened_folder_elsewhere_is_of_the_same_text(tmp_path, run):
    """F7: with --out in another folder the earlier runs were forgotten."""
    text = corpus(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "one", **CRT)
    (tmp_path / "far").mkdir()
    screened = tmp_path / "far" / "screened"
    assert run("screen", text, "--policy", "regex:customersim", "--out", screened)[0] == 0
    settings = {n: v for n, v in CRT.items() if n not in ("policy", "unit")}
    trainings.train(screened, out=tmp_path / "two", **settings)
    assert certificate(tmp_path / "two", tmp_path / "two.html")["spent_before"]["runs"] == 1


def test_what_was_screened_first_and_moved_is_of_the_same_text(tmp_path, run):
    text = corpus(tmp_path / "c.jsonl")
    screened = tmp_path / "screened"
    assert run("screen", text, "--policy", "regex:customersim", "--out", screened)[0] == 0
    settings = {n: v for n, v in CRT.items() if n not in ("policy", "unit")}
    trainings.train(screened, out=tmp_path / "one", **settings)
    with text.open("a") as file:  # and grew
        file.write(corpus(tmp_path / "more.jsonl", 4).read_text())
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.move(text, tmp_path / "elsewhere" / "c.jsonl")
    trainings.train(moved, out=tmp_path / "two", **CRT)
    assert certificate(tmp_path / "two", tmp_path / "two.html")["spent_before"]["runs"] == 1


def test_two_months_of_the_same_people_compose_and_strangers_do_not(tmp_path):
    """January and February share no message; a budget a month was spent on the same people."""
    for name, seed, people in (("january", 3, "ada"), ("february", 4, "ada"), ("other", 5, "eve")):
        text = corpus(tmp_path / f"{name}.jsonl", seed, people)
        settings = TINY | {"method": "user_dpsgd", "unit": "turn", "epsilon": 2.0}
        trainings.train(text, out=tmp_path / name, **settings)
    made = {n: certificate(tmp_path / n, tmp_path / f"{n}.html") for n in ("january", "february")}
    both = made["february"]["guarantee"]["missed"]["epsilon"]
    assert made["january"]["spent_before"]["runs"] == 0
    assert made["february"]["spent_before"]["runs"] == 1
    assert both > 1.2 * made["january"]["guarantee"]["missed"]["epsilon"]
    assert certificate(tmp_path / "other", tmp_path / "o.html")["spent_before"]["runs"] == 0


def talk(path, people, month="May", cut=3, turns=6):
    """Messages of these people, each its own, in conversations of ``cut`` of them."""
    said = [
        (who, f"In {month} the {k}th thing that {who} wanted to say was about order {n} {k}, "
              "which came late and was broken, as the others had been.")
        for n, who in enumerate(people) for k in range(turns)
    ]  # fmt: skip
    path.write_text("".join(
        json.dumps({"id": f"{path.stem}-{k}", "user": some[0][0], "turns": [
            {"speaker": "USR", "text": text} for _, text in some]}) + "\n"
        for k in range(0, len(said), cut) if (some := said[k : k + cut])
    ))  # fmt: skip
    return path


def related(*paths):
    """Which of these texts the registry knows as one with the first."""
    registry, names = (
        text_registry.Registry(text_registry.registry_home()),
        [corpora.hash_corpus(p) for p in paths],
    )
    for path in paths:
        text_registry.register_text(path)
    return [name in registry.related(names[0]) for name in names[1:]]


def test_a_person_is_one_unit_in_every_form_of_file(tmp_path, run):
    """January's CSV said "7.0" and "Ann@Example.com", February's Parquet 7 and "ann@example.com":
    nobody had an earlier run, and one person was two users."""
    rows = "".join(f"{who},{k},hello {k}\n" for k, who in enumerate(["7.0", " 7", "Ann@X.org"]))
    (tmp_path / "january.csv").write_text(f"customer,ticket,body\n{rows}")
    table = {"customer": [7.0, None], "ticket": ["a", "b"], "body": ["moin", "servus"]}
    pd.DataFrame(table).to_parquet(tmp_path / "numbers.parquet")
    pd.DataFrame(table | {"customer": ["\uff17", "ann@x.org"]}).to_parquet(
        tmp_path / "wide.parquet"
    )
    for name in ("january.csv", "numbers.parquet", "wide.parquet"):
        words = ["ingest", tmp_path / name, "--yes", "--skip-bad", "--max-bad", 0.5]
        assert run(*words, "--out", tmp_path / name.partition(".")[0])[0] == 0
    people = {d.user for d in corpora.read_dialogues(tmp_path / "january")}
    assert people == {"7", "ann@x.org"}
    assert related(*(tmp_path / n for n in ("numbers", "january", "wide"))) == [True, True]


def test_a_text_that_was_cut_in_another_way_is_known_by_people_and_by_messages(tmp_path):
    """Conversations by another column, or another gap, had another hash each."""
    people = [f"p{k}" for k in range(9)]
    one = talk(tmp_path / "one.jsonl", people)
    named = talk(tmp_path / "named.jsonl", people[:1], month="June")
    other = talk(tmp_path / "other.jsonl", people, cut=1)
    nobody = tmp_path / "nobody.jsonl"
    nobody.write_text(re.sub(r'"user": "\w+"', '"user": ""', other.read_text()))
    strangers = talk(tmp_path / "strangers.jsonl", [f"q{k}" for k in range(9)])
    assert related(one, named, other, nobody, strangers) == [True, True, True, False]
    assert related(nobody, other, named) == [True, False]


@pytest.mark.parametrize("long", [True, False])
def test_a_person_of_many_messages_is_as_many_points_where_the_text_was_cut_by_message(
    tmp_path, long
):
    """A ticket each, and before it the same messages without a name: the earlier run counted with
    a group of one where it took twelve, and not at all where the messages are short."""
    whole = talk(tmp_path / "whole.jsonl", [f"p{k}" for k in range(14)], cut=12, turns=12)
    if not long:
        whole.write_text(whole.read_text().replace(
            ", which came late and was broken, as the others had been.", "."
        ))  # fmt: skip
    flat = tmp_path / "flat.jsonl"
    said = [t for row in map(json.loads, whole.read_text().splitlines()) for t in row["turns"]]
    flat.write_text("".join(
        json.dumps({"id": f"{k}", "user": f"{k}", "turns": [t]}) + "\n" for k, t in enumerate(said)
    ))  # fmt: skip
    own = TINY | {"epsilon": 3.0}
    trainings.train(flat, out=tmp_path / "one", method="dpsgd", **own)
    trainings.train(whole, out=tmp_path / "two", method="user_dpsgd", **own)
    page = certificate(tmp_path / "two", tmp_path / "two.html")
    assert page["spent_before"]["runs"] == 1
    assert page["right_guess"][0]["at_most"] > 0.99  # twelve times epsilon 3


def test_one_conversation_in_common_is_no_same_cut(tmp_path):
    """A ticket of one mail is the same conversation in both texts; the others were twelve."""
    people = [f"p{k}" for k in range(14)]
    whole = talk(tmp_path / "whole.jsonl", people, cut=12, turns=12)
    flat = talk(tmp_path / "flat.jsonl", people, cut=1, turns=12)
    extra = talk(tmp_path / "extra.jsonl", ["solo"], cut=1, turns=1).read_text()
    for path in (whole, flat):
        path.write_text(path.read_text() + extra)
    shared = text_registry.Registry(text_registry.registry_home())
    own = TINY | {"epsilon": 3.0, "unit": "dialogue"}
    trainings.train(flat, out=tmp_path / "one", method="dpsgd", **own)
    trainings.train(whole, out=tmp_path / "two", method="dpsgd", **own)
    assert shared.related(corpora.hash_corpus(whole))[corpora.hash_corpus(flat)]["dialogue"] == 1
    page = certificate(tmp_path / "two", tmp_path / "two.html")
    assert page["spent_before"]["runs"] == 1 and page["right_guess"][0]["at_most"] > 0.99


def test_a_word_that_two_people_own_in_two_texts_makes_them_others(tmp_path):
    """One conversation with its owner in common silenced five hundred messages of other owners."""
    people = [f"p{k}" for k in range(14)]
    whole = talk(tmp_path / "whole.jsonl", people, cut=12, turns=12)
    flat = talk(tmp_path / "flat.jsonl", people, cut=1, turns=12)
    rows = [json.loads(line) for line in flat.read_text().splitlines()]
    flat.write_text("".join(json.dumps(r | {"user": r["user"] + "@x"}) + "\n" for r in rows))
    extra = talk(tmp_path / "extra.jsonl", ["solo"], cut=1, turns=1).read_text()
    for path in (whole, flat):
        text = path.read_text().replace(
            ", which came late and was broken, as the others had been", ""
        )
        path.write_text(text + extra)
    related(whole, flat)
    names = [corpora.hash_corpus(path) for path in (whole, flat)]
    shared = text_registry.Registry(text_registry.registry_home()).related(names[0])[names[1]]
    assert shared["owners"] == shared["dialogue"] == 1 and shared["compared"]
    assert not spending._has_same_people(shared)


def test_a_screened_folder_that_is_taken_in_again_is_of_the_same_text(tmp_path, run):
    text = talk(tmp_path / "c.jsonl", [f"p{k}" for k in range(14)])
    words = ["--policy", "regex:customersim", "--out", tmp_path / "s"]
    assert run("screen", text, *words)[0] == 0
    rows = [*(tmp_path / "s").glob("*/data/*.parquet")]
    words = ["--user", "user", "--thread", "id", "--text", "text", "--yes"]
    assert run("ingest", *rows, *words, "--out", tmp_path / "again")[0] == 0
    assert related(tmp_path / "s", tmp_path / "again") == [True]


def test_a_certificate_elsewhere_knows_what_was_known_when_it_trained(tmp_path, monkeypatch):
    """In another home the run forgot the earlier one, which the registry alone had known."""
    people = [f"p{k}" for k in range(14)]
    for name in ("may", "june"):
        text = talk(tmp_path / f"{name}.jsonl", people, month=name)
        trainings.train(text, out=tmp_path / name, **TINY | {"method": "user_dpsgd"})
    assert certificate(tmp_path / "june", tmp_path / "a.html")["spent_before"]["runs"] == 1
    monkeypatch.setenv("CRTLIB_REGISTRY", str(tmp_path / "another"))
    page = certificate(tmp_path / "june", tmp_path / "b.html")
    assert page["verdict"] == "void" and "not known here" in " ".join(page["void_because"])
    monkeypatch.setenv("CRTLIB_REGISTRY", "relative")
    with pytest.raises(ValueError, match="CRTLIB_REGISTRY='relative': must be an absolute path"):
        text_registry.registry_home()


def test_what_is_void_is_so_in_every_file(tmp_path):
    text = corpus(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "m", **CRT | {"neighbouring": "add_or_remove"})
    assert "; void: The exact numbers of messages" in (tmp_path / "m" / "guarantee.txt").read_text()


def test_a_certificate_replaces_no_other_file(tmp_path):
    """Its JSON beside the page was model.json, the shape of the model."""
    trainings.train(corpus(tmp_path / "c.jsonl"), out=tmp_path / "m", **CRT)
    before = (tmp_path / "m" / "experiment.json").read_bytes()
    with pytest.raises(ValueError, match=r"experiment\.json is there and no certificate"):
        certificate(tmp_path / "m", tmp_path / "m" / "experiment.html")
    assert (tmp_path / "m" / "experiment.json").read_bytes() == before


def test_a_choice_among_trainings_is_declared(tmp_path):
    """By held-out text, which no noise protects: one message there chose the model."""
    trainings.train(corpus(tmp_path / "c.jsonl"), out=tmp_path / "m", **CRT | {"trials": 4})
    page = certificate(tmp_path / "m", tmp_path / "m.html")
    assert [d["bits"] for d in page["declared"] if "compared" in d["of"]] == [2.0]


def test_people_who_have_no_name_in_an_earlier_text_are_as_many_points_as_messages(tmp_path):
    """Chats without people, and some of them again with the number of a customer: a person was
    one conversation of the earlier text."""
    people = [f"p{k}" for k in range(14)]
    named = talk(tmp_path / "named.jsonl", people, cut=2, turns=8)
    bare = tmp_path / "bare.jsonl"
    rows = [json.loads(line) for line in named.read_text().splitlines()]
    bare.write_text("".join(json.dumps(row | {"user": row["id"]}) + "\n" for row in rows))
    same = talk(tmp_path / "same.jsonl", people, cut=2, turns=10)
    names = [corpora.hash_corpus(p) for p in (named, bare, same)]
    related(named, bare, same)
    shared = text_registry.Registry(text_registry.registry_home()).related(names[0])
    assert [spending._has_same_people(shared[name]) for name in names[1:]] == [False, True]


def test_a_message_decides_nothing_about_the_speakers_after_it():
    said = [Turn(name, "x") for name in ("Ada", "Bob", "Ada", "Bob")]
    whole, less = (
        data_points.with_role_speakers(records.Dialogue("d", "u", tuple(t)))
        for t in (said, said[1:])
    )
    assert [t.speaker for t in whole.turns][1:] == [t.speaker for t in less.turns]


def test_what_a_plan_promises_is_of_one_training(tmp_path, run):
    """The page said that all are charged, and none was; and a prior was rounded up."""
    text = corpus(tmp_path / "c.jsonl")
    words = ["--from-policy", "regex:customersim", "--prior", 0.1001, "--posterior", 0.2]
    assert run("protect", text, *words, "--steps", 10, "--out", tmp_path / "plan")[0] == 0
    for name, trials in (("one", 1), ("many", 50)):
        words = ["--plan", tmp_path / "plan", "--epochs", 1, "--width", 8, "--trials", trials]
        assert run("train", text, *words, "--out", tmp_path / name)[0] == 0
    made = [certificate(tmp_path / n, tmp_path / f"{n}.html") for n in ("one", "many")]
    assert [c["verdict"] for c in made] == ["holds", "void"]
    assert "chance of 0.1 without" in (tmp_path / "one.html").read_text()


def test_a_certificate_is_of_one_point_replaced(tmp_path):
    text = corpus(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "m", **CRT | {"neighbouring": "add_or_remove"})
    page = certificate(tmp_path / "m", tmp_path / "m.html")
    assert page["verdict"] == "void" and "treated as known" in " ".join(page["void_because"])


def test_a_struck_run_is_named(tmp_path):
    """A word made the page say that no earlier run is known."""
    text = corpus(tmp_path / "c.jsonl")
    first = trainings.train(text, out=tmp_path / "one", **CRT)
    assert first is not None
    home = odometer.find_odometer(text, corpora.hash_corpus(text))
    line = odometer.read_entries(home)[0].entry
    known = text_registry.Registry(text_registry.registry_home())
    odometer.strike_run(home, line, because="nobody saw it", registry=known)
    trainings.train(text, out=tmp_path / "two", **CRT)
    made = certificate(tmp_path / "two", tmp_path / "two.html")
    page = (tmp_path / "two.html").read_text()
    assert made["spent_before"]["struck"] == 1 and made["spent_before"]["runs"] == 0
    assert "No earlier run" not in page and "1 earlier model on it is not counted" in page


def test_what_is_forgotten_is_assumed_in_every_later_certificate(tmp_path, run):
    """A registry holds hashes of people, who may ask to be forgotten; their budgets are not."""
    january, february = (
        corpus(tmp_path / f"{n}.jsonl", seed, "ada")
        for n, seed in (("january", 3), ("february", 4))
    )
    user = CRT | {"unit": "user"}
    trainings.train(january, out=tmp_path / "one", **user)
    home = odometer.find_odometer(january, corpora.hash_corpus(january))
    assert run("account", "--forget")[0] == 2
    code, said, _ = run("account", "--odometer", home, "--forget")
    assert code == 0 and "forgotten: a certificate of a later run" in said
    trainings.train(february, out=tmp_path / "two", **user)
    made = certificate(tmp_path / "two", tmp_path / "two.html")
    page = (tmp_path / "two.html").read_text()
    assert (made["spent_before"]["runs"], made["spent_before"]["forgotten"]) == (0, 1)
    assert "No earlier run" not in page and "nobody of this text is in 1 earlier text" in page
    trainings.train(january, out=tmp_path / "three", **user)  # its own runs still count
    made = certificate(tmp_path / "three", tmp_path / "three.html")
    assert (made["spent_before"]["runs"], made["spent_before"]["forgotten"]) == (2, 0)


def test_a_corpus_is_no_start_of_a_training_on_ones_own(tmp_path):
    """It may be the very text, read without noise before the first step that is counted."""
    text = corpus(tmp_path / "c.jsonl")
    with pytest.raises(ValueError, match="init='customersim': must be random or a model"):
        trainings.train(text, **CRT | {"init": "customersim"})


def test_an_earlier_plan_is_no_silence(tmp_path, run):
    """The page said that no earlier run is known, and that one was without protection."""
    text = corpus(tmp_path / "c.jsonl")
    words = ["--from-policy", "regex:customersim", "--posterior", 0.1, "--steps", 10]
    assert run("protect", text, *words, "--out", tmp_path / "plan")[0] == 0
    for name in ("one", "two"):
        words = ["--plan", tmp_path / "plan", "--epochs", 1, "--width", 8]
        assert run("train", text, *words, "--out", tmp_path / name)[0] == 0
    certificate(tmp_path / "two", tmp_path / "two.html")
    page = (tmp_path / "two.html").read_text()
    assert "No earlier run" not in page and "with one that this promise does not count" in page


def test_what_ran_is_charged_whatever_a_method_says_of_itself(tmp_path, monkeypatch):
    """A method of a package took ordinary steps on the private part before those of CRT, and a
    phase of its own class could do anything."""

    class Quiet(PublicPhase):
        pass

    warm = schedules.sgd_phases(epochs=1, batch_size=8, learning_rate=0.1)
    quiet = [Quiet(1, "public", 1, 8, 0.1)]
    seen = {}
    for name, before in (("warm", warm), ("quiet", quiet), ("plain", [])):
        phases = functools.partial(lambda b, c: [*b, *methods.CRT.phases(c)], before)
        monkeypatch.setitem(methods.METHODS, name, replace(methods.CRT, name=name, phases=phases))
        path = corpus(tmp_path / f"{name}.jsonl")
        trainings.train(path, out=tmp_path / name, **CRT | {"method": name})
        seen[name] = certificate(tmp_path / name, tmp_path / f"{name}.html")
    assert [seen[n]["verdict"] for n in ("warm", "quiet", "plain")] == ["holds", "void", "holds"]
    texts = [(tmp_path / n / "release.json").read_text() for n in ("warm", "plain")]
    assert ["redacted text" in text for text in texts] == [True, False]
    assert seen["warm"]["mechanism"]["phases"][0]["points"] > 0


def test_points_with_a_probability_each_are_accounted_by_a_plan_alone():
    """A method of a package had a second phase of such steps: the noise of its first was all that
    its certificate composed."""
    weighted = PrivatePhase(2, (1.0, 0.5), 20, 0.5, 1.0, 1.0, 0.1)
    plain = replace(weighted, sampling_probability=0.5)
    said = [
        [source.kind for source in record_sources._sources_of_phase(phase, None, None)]
        for phase in (weighted, plain)
    ]
    assert said == [["raw"], []]


def test_a_policy_is_asked_for_one_point_at_a_time():
    """It flagged what is said once in the text, so one secret decided about thirty messages."""

    def flag(points):
        said = Counter(word for p in points for word in p.text.split())
        return [
            [Secret("word", *m.span()) for m in re.finditer(r"\w+", p.text) if said[m[0]] == 1]
            for p in points
        ]

    points = [Point(str(k), "u", text) for k, text in enumerate(["a b", "b c"])]
    alone, together = Policy("rare", flag), Policy("rare", flag, batched=True)
    assert [len(spans) for spans in alone(points)] == [2, 2]
    assert [len(spans) for spans in together(points)] == [1, 1]
    with pytest.raises(ValueError, match="policy='two': 2 labels for 1 points"):
        Policy("two", lambda points: [(), ()])(points)


def test_real_people_behind_a_simulated_conversation_are_known(tmp_path):
    """One simulated conversation before them, and nobody in the text was a person."""
    mixed, alone = tmp_path / "mixed.jsonl", talk(tmp_path / "alone.jsonl", ["p1"], month="June")
    jsonl.write_jsonl(customersim.simulate_corpus(2, 7).dialogues, mixed)
    mixed.write_text(mixed.read_text() + talk(tmp_path / "x.jsonl", ["p1"]).read_text())
    other = tmp_path / "other.jsonl"
    jsonl.write_jsonl(customersim.simulate_corpus(2, 8).dialogues, other)
    assert related(mixed, alone, other) == [True, False]


def test_runs_of_another_unit_are_found_and_so_are_people_behind_a_screening(tmp_path, run):
    """A screened folder that came from elsewhere had no units: the same people's next month began
    at nothing; so did it for a run of another unit."""
    people = [f"p{k}" for k in range(14)]
    for name in ("may", "june"):
        talk(tmp_path / f"{name}.jsonl", people, month=name)
    words = ["screen", tmp_path / "may.jsonl", "--policy", "regex:customersim"]
    assert run(*words, "--conservative", "cautious", "--out", tmp_path / "s")[0] == 0
    for file in text_registry.registry_home().glob("*"):
        file.unlink()  # another machine's
    settings = {n: v for n, v in CRT.items() if n not in ("policy", "unit")}
    trainings.train(tmp_path / "s", out=tmp_path / "one", **settings)
    january, own = (tmp_path / "june.jsonl", TINY | {"epsilon": 3.0})
    trainings.train(january, out=tmp_path / "two", method="user_dpsgd", **own)
    trainings.train(january, out=tmp_path / "three", method="dpsgd", **own)
    made = [certificate(tmp_path / n, tmp_path / f"{n}.html") for n in ("two", "three")]
    seen = [(c["unit"], c["spent_before"]["runs"] + c["spent_before"]["unprotected"]) for c in made]
    assert seen == [("user", 1), ("turn", 2)]


@pytest.mark.parametrize("when", ["_prepare_study", "open_odometer", "measure_study"])
def test_a_text_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch, when):
    """The text that trained and the one that was entered and sealed were two."""
    text = corpus(tmp_path / "c.jsonl")
    where = {
        "_prepare_study": train_on_corpus,
        "open_odometer": odometer_run,
        "measure_study": study_run,
    }[when]
    honest = getattr(where, when)

    def edited(*args, **named):
        made = honest(*args, **named)
        with text.open("a") as file:
            file.write(corpus(tmp_path / "more.jsonl", 4).read_text())
        return made

    monkeypatch.setattr(where, when, edited)
    with pytest.raises(ValueError, match=r"c\.jsonl: was changed while it was read"):
        trainings.train(text, out=tmp_path / "m", **CRT)
    spent = [len(odometer.read_entries(home)) for home in tmp_path.glob("*.odometer")]
    assert sum(spent) == (when == "measure_study") and not (tmp_path / "m").exists()


def test_a_file_with_other_text_is_read_anew(tmp_path):
    """In one process the second training read what the file had held before, under the name of
    what it held by then."""
    text = talk(tmp_path / "c.jsonl", [f"p{k}" for k in range(14)])
    how = TINY | {"method": "crt", "policy": "none", "conservative": "everything"}
    first = trainings.train(text, out=tmp_path / "one", **how)
    talk(text, [f"q{k}" for k in range(14)], month="June")
    second = trainings.train(text, out=tmp_path / "two", **how)
    texts = [{p.text for p in t.fitted.data.points} for t in (first, second)]
    assert not texts[0] & texts[1] and "In June" in min(texts[1])


def test_a_screening_of_a_text_that_changes_is_refused(tmp_path, monkeypatch, run):
    text, honest = corpus(tmp_path / "c.jsonl"), screening._screening_summary

    def edited(*args):
        made = honest(*args)
        text.write_text(corpus(tmp_path / "more.jsonl", 4).read_text())
        return made

    monkeypatch.setattr(screening, "_screening_summary", edited)
    words = ["screen", text, "--policy", "regex:customersim", "--out", tmp_path / "s"]
    code, _, error = run(*words)
    assert code == 2 and "c.jsonl: was changed while it was read" in error
    assert not (tmp_path / "s").exists()


def test_a_speakers_name_is_in_no_point_and_no_vocabulary(tmp_path):
    """What stands in the column of speakers no policy read as text: "Wolframina: hello" was public,
    and Wolframina a token."""
    text = corpus(tmp_path / "c.jsonl")
    text.write_text(text.read_text().replace('"USR"', '"Wolframina"'))
    made = trainings.train(text, out=tmp_path / "m", **CRT, vocab_size=2000)
    assert "olframina" not in (tmp_path / "m" / "tokenizer.json").read_text()
    points = made.fitted.data.points
    assert {p.text.partition(":")[0] for p in points} == {"S1", "SYS"}
    own = "{% for m in messages %}{{ m.speaker }} {{ m.content }}{% endfor %}"
    cut = templates.render_points(
        corpora.read_corpus_at(text), "dialogue", templates.Template("own", own)
    )
    assert not any("Wolframina" in p.text for p in (*points, *cut))


def test_no_text_and_no_person_is_in_what_a_traceback_shows():
    turn = records.Turn("Wolframina", "call Wolframina", (records.Secret("name", 5, 15),))
    dialogue = records.Dialogue("d", "Wolframina", (turn,))
    shown = [
        turn,
        dialogue,
        records.Corpus("c", (dialogue,)),
        *data_points.make_points(records.Corpus("c", (dialogue,)), "turn"),
    ]
    shown += [label_tasks.LabelTask("judge-1", "d", "Wolframina", 0, "judge", *["Wolframina"] * 3)]
    shown += [imports.ExportedSpan(kind="name", start=0, end=10, value="Wolframina")]
    assert "Wolframina" not in repr(shown)


def test_the_next_model_composes_with_every_trial_of_the_last(tmp_path):
    """--trials was charged to the model of which it was said, and to no later one."""
    text = corpus(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "one", trials=5, **CRT)
    trainings.train(text, out=tmp_path / "two", **CRT)
    one, two = (certificate(tmp_path / n, tmp_path / f"{n}.html") for n in ("one", "two"))
    assert (one["verdict"], one["searched"]["trials"]) == ("holds", 5)
    assert two["guarantee"]["missed"]["epsilon"] > one["guarantee"]["missed"]["epsilon"]
    key = seal.ensure_signing_key(next(tmp_path.glob("*.odometer")))
    record = json.loads((tmp_path / "one.work" / "record.json").read_text())
    record["searched"]["trials"] = 1
    (tmp_path / "one.work" / "record.json").write_text(json.dumps(seal.sign_value(record, key)))
    void = certificate(tmp_path / "one", tmp_path / "one.html")["void_because"]
    assert "The odometer has other trials of this run." in void


def test_a_certificate_has_no_hash_by_which_candidates_of_the_text_can_be_tried(tmp_path):
    """A line's own hash is of the text's, its time and what the release says of the run."""
    text = corpus(tmp_path / "c.jsonl")
    for name in ("one", "two"):
        trainings.train(text, out=tmp_path / name, **CRT)
    made = certificate(tmp_path / "two", tmp_path / "two.html")
    (home,) = tmp_path.glob("*.odometer")
    assert len(made["spent_before"]["entries"]) == 1
    assert not {e.entry for e in odometer.read_entries(home)} & set(made["spent_before"]["entries"])


def test_two_trainings_at_once_have_one_odometer(tmp_path):
    """F0: each found a folder of its own, and each certificate said "earlier 0"."""
    text = corpus(tmp_path / "c.jsonl")
    words = ["--unit", "turn", "--epochs", "1", "--width", "4", "--quiet"]
    command = [sys.executable, "-m", "crtlib", "train", text, *words, "--out"]
    running = [subprocess.Popen([*command, tmp_path / name]) for name in "ab"]
    assert [p.wait(timeout=300) for p in running] == [0, 0]
    (home,) = tmp_path.glob("*.odometer")
    assert len({e.run for e in odometer.read_entries(home)}) == 2
    made = [certificate(tmp_path / n, tmp_path / f"{n}.html") for n in "ab"]
    assert sorted(c["spent_before"]["runs"] for c in made) == [0, 1]


def test_a_model_that_was_saved_again_is_known(tmp_path):
    """F3 and F11: another metadata entry turned "void" into "holds"; its heirs counted as
    protected."""
    text = corpus(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "m0", method="sgd", model="gpt2", **TINY)
    shutil.copytree(tmp_path / "m0", tmp_path / "copy")
    weights = tmp_path / "copy" / "model.safetensors"
    raw = weights.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    header["__metadata__"] = {"saved": "again"}
    again = json.dumps(header).encode()
    weights.write_bytes(struct.pack("<Q", len(again)) + again + raw[8 + size :])
    for name, init in (("heir", tmp_path / "m0"), ("copied", tmp_path / "copy")):
        trainings.train(text, out=tmp_path / name, init=str(init), **CRT)
        made = certificate(tmp_path / name, tmp_path / f"{name}.html")
        assert made["verdict"] == "void" and "without protection" in made["void_because"][0]
    trainings.train(text, out=tmp_path / "fresh", **CRT)
    before = certificate(tmp_path / "fresh", tmp_path / "fresh.html")["spent_before"]
    assert (before["runs"], before["unprotected"]) == (0, 3)


def test_a_struck_run_is_certified_no_more(tmp_path, run):
    """F13: two released models, neither counted for the other, and both certificates verified."""
    text = corpus(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "m", **CRT)
    page = tmp_path / "m.html"
    assert certificate(tmp_path / "m", page)["verdict"] == "holds"
    home = f"{text}.odometer"
    words = ["--strike", odometer.read_entries(home)[-1].entry, "--because", "nobody saw it"]
    assert run("account", "--odometer", home, *words)[0] == 0
    assert run("certify", tmp_path / "m", "--out", page, "--verify")[0] == 4
    made = certificate(tmp_path / "m", page)
    assert made["verdict"] == "void" and "struck" in made["void_because"][0]


def interrupted(monkeypatch, text, out, then=None):
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
        trainings.train(text, out=out, **TWICE)


TWICE = CRT | {"epochs": 2}


def test_a_run_that_begins_anew_counts_what_was_trained_in_between(tmp_path, monkeypatch):
    """R1: it had the name of the one that was killed, so its base was no earlier run."""
    text = corpus(tmp_path / "c.jsonl")
    interrupted(monkeypatch, text, tmp_path / "m")
    (tmp_path / "m.work" / "unfinished.pt").unlink()  # or killed before its first checkpoint
    trainings.train(text, out=tmp_path / "m0", method="sgd", model="gpt2", **TINY)
    trainings.train(text, out=tmp_path / "m", init=str(tmp_path / "m0"), **CRT)
    made = certificate(tmp_path / "m", tmp_path / "m.html")
    assert made["verdict"] == "void" and "without protection" in made["void_because"][0]
    before = made["spent_before"]
    assert (before["runs"], before["unprotected"]) == (1, 1)


def test_a_copied_checkpoint_makes_another_run(tmp_path, monkeypatch):
    """R2: OUT.work was copied, and two models of one run had certificates without each other."""
    text = corpus(tmp_path / "c.jsonl")
    interrupted(monkeypatch, text, tmp_path / "one")
    shutil.copytree(tmp_path / "one.work", tmp_path / "two.work")
    for name in ("two", "one"):
        trainings.train(text, out=tmp_path / name, **TWICE)
    (home,) = tmp_path.glob("*.odometer")
    events = {e.run: e.events for e in odometer.read_entries(home)}
    assert len(events) == 2 and len(set(events.values())) == 1  # in full, each
    for name in ("two", "one"):
        made = certificate(tmp_path / name, tmp_path / f"{name}.html")
        assert (made["verdict"], made["spent_before"]["runs"]) == ("holds", 1)


def test_a_folder_is_used_by_one_training(tmp_path, monkeypatch, run):
    """R2: the same command twice made two models of one run, when the first one was renamed."""
    text, said = corpus(tmp_path / "c.jsonl"), []
    words = ["--unit", "turn", "--epochs", "1", "--width", "4", "--out", tmp_path / "r"]
    interrupted(monkeypatch, text, tmp_path / "r", lambda: said.append(run("train", text, *words)))
    ((code, _, error),) = said
    assert code == 2 and f"--out: {tmp_path / 'r.work'} is in use by another training" in error
    (home,) = tmp_path.glob("*.odometer")
    assert len(odometer.read_entries(home)) == 1


def test_two_models_of_one_run_are_void_and_count_twice(tmp_path, monkeypatch):
    """R2: a copy of OUT.work that is put back makes a second model under the name of the first."""
    text, one = corpus(tmp_path / "c.jsonl"), tmp_path / "one"
    interrupted(monkeypatch, text, one)
    shutil.copytree(tmp_path / "one.work", tmp_path / "copy")
    trainings.train(text, out=one, **TWICE)
    assert certificate(one, tmp_path / "one.html")["verdict"] == "holds"
    for end in ("", ".work"):
        shutil.move(tmp_path / f"one{end}", tmp_path / f"first{end}")
    shutil.move(tmp_path / "copy", tmp_path / "one.work")
    trainings.train(text, out=one, **TWICE)
    (home,) = tmp_path.glob("*.odometer")
    assert len({e.run for e in odometer.read_entries(home)}) == 1
    for name in ("first", "one"):
        made = certificate(tmp_path / name, tmp_path / f"{name}.html")
        assert made["verdict"] == "void" and "other model" in made["void_because"][0]
    assert spending.sum_spending(odometer.read_entries(home)).runs == 2


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A CRT run with its certificate, to be tampered with."""
    home = tmp_path_factory.mktemp("model")
    trainings.train(
        corpus(home / "c.jsonl"), out=home / "m", card=model_card.render_model_card, **CRT
    )
    certificate(home / "m", home / "m.html")
    return home


def copied(model, folder):
    """All of it elsewhere, as it is; the record still names the odometer that it was made with."""
    for path in model.iterdir():
        copy = shutil.copytree if path.is_dir() else shutil.copy
        copy(path, folder / path.name)
    return folder


def edited(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def noised(content):
    return next(s for s in content["sources"] if s["kind"] == "noised")


MUTATIONS = [
    *[("m/release.json", change) for change in (
        lambda c: noised(c)["events"][0].update(noise_multiplier=10.0),
        lambda c: noised(c).update(events=[]),
        lambda c: noised(c).update(relation="add_or_remove"),
        lambda c: noised(c)["screening"].update(trace=0.001),
        lambda c: noised(c).update(unit="user"),
        lambda c: noised(c).update(unit=["x"]),
        lambda c: c["sources"].clear(),
        lambda c: c.update(sources=7),
        lambda c: c["files"].pop("README.md"),
        lambda c: c["files"].clear(),
        lambda c: c.update(files=None),
        lambda c: c.update(run="other"),
        lambda c: c.update(signature="00" * 64),
        lambda c: c.update(signature=None),
        lambda c: c.pop("signature"),
        lambda c: c.update(public_key="00" * 32),
        lambda c: c.update(public_key=7),
        lambda c: c.clear(),
    )],
    *[("m.work/record.json", change) for change in (
        lambda c: c["rates"]["trace"].update(upper=0.001),
        lambda c: c["rates"]["public"].update(how="policy", upper=0.0),
        lambda c: c["rates"].clear(),
        lambda c: c.pop("labels"),
        lambda c: c.pop("canaries"),
        lambda c: c.update(canaries=None),
        lambda c: c.update(randomness="operating_system", x=1),
        lambda c: c.update(protects_all=1),
        lambda c: c.update(delta=1e-12),
        lambda c: c.update(delta="1e-5"),
        lambda c: c.update(unit="user"),
        lambda c: c.update(software={}),
        lambda c: c.update(phases=[]),
        lambda c: c["odometer"].update(folder="/nowhere"),
        lambda c: c["odometer"].update(run="x"),
        lambda c: c["model"].update(sha256="0" * 64),
        lambda c: c["searched"].update(trials=-1),
        lambda c: c.update(key="zz"),
        lambda c: c.update(schema="crtlib/run/9"),
        lambda c: c.pop("public_key"),
        lambda c: c.clear(),
    )],
    *[("m.json", change) for change in (
        lambda c: c["guarantee"]["missed"].update(epsilon=0.1),
        lambda c: c.update(verdict="none"),
        lambda c: c.pop("id"),
        lambda c: c.update(right_guess=[]),
        lambda c: c.update(signature="00" * 64),
        lambda c: c.update(rates=None),
        lambda c: c.clear(),
    )],
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MUTATIONS)))
def test_who_edits_what_is_signed_is_told_in_one_line(model, tmp_path, run, number):
    """Noise times ten, no events, another relation: "holds, verified"; or a traceback."""
    name, change = MUTATIONS[number]
    home = copied(model, tmp_path)
    edited(home / name, change)
    code, said, error = run("certify", home / "m", "--out", home / "m.html", "--verify")
    assert code in (2, 4) and "verified" not in said and "Traceback" not in error
    assert len((said + error).strip().splitlines()) == 1
    if name != "m.json":
        code, said, error = run("certify", home / "m", "--out", home / "new.html")
        assert code in (2, 4) and "holds" not in said and "Traceback" not in error
        assert len((said + error).strip().splitlines()) == 1


def rows(statement):
    """Edit a ledger as who can open it would."""

    def change(path):
        with contextlib.closing(sqlite3.connect(path)) as base, base:
            base.execute(statement)

    return change


FOLDERS = {
    "screened": ("crtlib.json", "private/summary.json", "private/units.parquet", "public/data/*"),
    "plan": ("crtlib.json", "plan.json", "weights.parquet", "holders.parquet", "key"),
    "labels": ("crtlib.json", "labels.json", "tasks.parquet", "labels.parquet"),
}
"""What training and screening read of the folders that are made before: each file is harmed."""
READS = {
    "screened": ["train", "screened", "--epochs", 1, "--width", 4, "--out", "out"],
    "plan": ["train", "talk.jsonl", "--plan", "plan", "--epochs", 1, "--width", 4, "--out", "out"],
    "labels": ["screen", "corpus", "--policy", "cautious", "--labels", "labels", "--out", "out"],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A screened folder, a plan and labels, and the corpora of which they were made."""
    home = tmp_path_factory.mktemp("folders")
    modes.measure(home, 0o022, only=(
        "simulate", "ingest", "label sample", "label import", "screen", "protect",
    ))  # fmt: skip
    return home


def leaves(value, path=()):
    """Each place in a JSON value, by the names that lead there."""
    yield path
    if isinstance(value, dict | list):
        each = value.items() if isinstance(value, dict) else enumerate(value[:1])
        for name, one in each:
            yield from leaves(one, (*path, name))


def harms(path, rng):
    """Ways to harm a file: of JSON six places have another value, of others bytes are lost."""
    raw = path.read_bytes()
    if path.suffix != ".json":
        return [b"", raw[:-1], raw[: len(raw) // 2]]
    content, out = json.loads(raw), [b"{}", b"[]", raw[:-3]]
    for place in rng.sample([p for p in leaves(content) if p], 6):
        changed = json.loads(raw)
        *above, last = place
        inside = functools.reduce(lambda value, name: value[name], above, changed)
        kinds = [v for v in (None, 7, -1.0, "x", [], {}, 1e300) if v != inside[last]]
        inside[last] = rng.choice(kinds)
        out.append(json.dumps(changed).encode())
    return out


@pytest.mark.parametrize("kind", FOLDERS)
def test_who_edits_what_is_read_before_training_is_told_in_one_line(
    folders, tmp_path, run, monkeypatch, kind
):
    """An entry of the marker that was edited, or taken out, let an edited file through."""
    monkeypatch.chdir(tmp_path)
    rng = random.Random(kind)
    shutil.copytree(folders, tmp_path, dirs_exist_ok=True)
    cases = 0
    for name in FOLDERS[kind]:
        (path,) = (folders / kind).glob(name)
        for content in harms(path, rng):
            for how in ("as it is",) if name == "crtlib.json" else ("as it is", "out", "anew"):
                mine = tmp_path / kind
                shutil.rmtree(mine)
                shutil.copytree(folders / kind, mine)
                harmed = mine / path.relative_to(folders / kind)
                harmed.write_bytes(content)
                marker = json.loads((folders / kind / "crtlib.json").read_bytes())
                named = str(harmed.relative_to(mine))
                if how == "out":
                    marker["files"].pop(named)
                if how == "anew":
                    marker["files"][named] = outputs.hash_file(harmed)
                if name != "crtlib.json":
                    (mine / "crtlib.json").write_text(json.dumps(marker))
                code, said, error = run(*READS[kind])
                assert code in (2, 3), (named, content[:300], how, said, error)
                assert len((said + error).strip().splitlines()) == 1 and "Traceback" not in error
                assert not (tmp_path / "out").exists()
                cases += 1
    assert cases >= 40


LEDGERS = [
    lambda p: p.write_bytes(p.read_bytes()[:1000]),
    lambda p: p.write_bytes(b""),
    lambda p: p.write_bytes(b"SQLite format 3\0" + bytes(4000)),
    lambda p: p.write_text("{}"),
    lambda p: p.unlink(),
    lambda p: (p.unlink(), p.mkdir()),
    rows("DELETE FROM lines"),
    rows("DELETE FROM lines WHERE n = 1"),
    rows("DROP TABLE lines"),
    rows("DROP TABLE head"),
    rows("UPDATE lines SET content = '{}'"),
    rows("UPDATE lines SET content = 'x'"),
    rows("UPDATE lines SET content = replace(content, 'turn', 'user')"),
    rows("UPDATE head SET corpus = '0'"),
]


@pytest.mark.parametrize("number", range(len(LEDGERS)))
def test_who_harms_a_ledger_is_told_in_one_line(model, tmp_path, run, number):
    home = copied(model, tmp_path)
    ledger = home / "c.jsonl.odometer"
    LEDGERS[number](ledger / "ledger.sqlite")
    code, said, error = run("certify", home / "m", "--odometer", ledger, "--out", home / "n.html")
    assert code in (2, 3, 4) and ": holds;" not in said and "Traceback" not in error
    assert len((said + error).strip().splitlines()) == 1


@pytest.mark.parametrize("name, harm", [
    ("model.safetensors", lambda p: p.write_bytes(p.read_bytes()[:-1] + b"x")),
    ("tokenizer.json", lambda p: p.write_text(p.read_text() + " ")),
    ("README.md", lambda p: p.unlink()),
    ("crtlib.json", lambda p: p.write_text(p.read_text().replace('"train"', '"crain"'))),
    ("names.txt", lambda p: p.write_text("Ada Lovelace")),
    ("more/names.txt", lambda p: (p.parent.mkdir(), p.write_text("Ada Lovelace"))),
    ("link", lambda p: p.symlink_to("model.safetensors")),
    ("more", lambda p: p.symlink_to("/")),
    ("Ada Lovelace", lambda p: p.mkdir()),
])  # fmt: skip
def test_a_file_that_is_not_what_was_released_is_named(model, tmp_path, name, harm):
    """Weights changed, or a file added: the certificate held."""
    home = copied(model, tmp_path)
    harm(home / "m" / name)
    made = certificate(home / "m", home / "new.html")
    assert made["verdict"] == "void"
    assert f"{name} is not what was released." in made["void_because"]


def test_a_record_that_another_key_signed_is_void(model, tmp_path):
    """Who has no key can sign anew with his own, and is seen: it is not that of the odometer."""
    home = copied(model, tmp_path)
    other = seal.ensure_signing_key(tmp_path / "m.work")
    for name in ("m.work/record.json", "m/release.json"):
        content = seal.sign_value(json.loads((home / name).read_text()), other)
        (home / name).write_text(json.dumps(content))
    made = certificate(home / "m", home / "new.html")
    assert made["verdict"] == "void" and "not signed by the key" in " ".join(made["void_because"])


def test_who_has_the_key_cannot_say_other_than_the_odometer(model, tmp_path):
    home = copied(model, tmp_path)
    key = seal.ensure_signing_key(model / "c.jsonl.odometer")
    content = json.loads((home / "m/release.json").read_text())
    noised(content)["events"][0]["noise_multiplier"] = 10.0
    (home / "m/release.json").write_text(json.dumps(seal.sign_value(content, key)))
    made = certificate(home / "m", home / "new.html")
    assert "The odometer has other events of this run." in made["void_because"]


def test_a_certificate_may_lie_in_its_release(model, tmp_path):
    home = copied(model, tmp_path)
    for _ in range(2):
        made = certificate(home / "m", home / "m" / "certificate.html")
        assert made["verdict"] == "holds", made["void_because"]
    assert certify.verify_certificate(home / "m", home / "m" / "certificate.html")[0] is None


def test_the_public_page_has_no_row_of_what_was_found_and_declares_its_perplexity(model):
    """F6: "found: at most 0.5", where every secret that was found left a trace. The card had four
    digits of the perplexity on held-out messages, which is 3.7 bits about one of them."""
    made = json.loads((model / "m.json").read_text())
    assert {row["who"] for row in made["right_guess"]} <= {"random", "missed", "public", "user"}
    _, declared = sorted(made["declared"], key=lambda d: d["of"], reverse=True)
    low, high = declared["value"].split(" to ")
    assert float(high) == 2 * float(low) and 3 < declared["bits"] < 4
    card = (model / "m" / "README.md").read_text()
    exact = {n: v for n, _, _, v in json.loads((model / "m.work/results.json").read_text())["rows"]}
    assert declared["value"] in card and f"{exact['test_ppl']:.4g}"[:4] not in card
    assert "Declared public" in (model / "m.html").read_text()
    assert (
        certificate_parts.EXACT_COUNTS_NOTE in made["treated_as_public"]
        and certificate_parts.EXACT_COUNTS_NOTE in (model / "m.html").read_text()
    )


def test_what_leaves_depends_on_the_number_of_private_points_only_as_it_is_declared(tmp_path):
    """R8: q = B / n, delta and the divisor stood in release.json and on the card with all their
    digits, and where duplicates are dropped n tells of one message."""
    study = train_on_corpus.build_study(
        corpus(tmp_path / "c.jsonl"), policy="regex:customersim", unit="turn"
    )
    data = study_data.prepare_data(study, public_words=True)
    private = data.prepared.private * 40

    def sized(count, **named):
        some = replace(data, prepared=replace(data.prepared, private=private[:count]))
        return train_on_corpus.fill_defaults_from_sizes(study, some, named)

    for named in ({}, {"batch_size": 16}, {"sampling_probability": 0.2}):
        assert sized(96, **named) == sized(97, **named) == sized(111, **named)
        assert sized(96, **named) != sized(112, **named)
    assert sized(111, batch_size=16).sampling_probability == 16 / 96
    assert sized(1001).delta <= 0.1 / 1001


def test_a_release_declares_the_rounded_number_of_its_private_points(model):
    made = json.loads((model / "m.json").read_text())
    (points,) = [d for d in made["declared"] if d["of"] == "number of private points"]
    (phase,) = [p for p in made["mechanism"]["phases"] if p["kind"] == "private"]
    low, high = map(int, points["value"].split(" to "))
    exact = {n: v for n, _, _, v in json.loads((model / "m.work/results.json").read_text())["rows"]}
    assert low == phase["points"] <= exact["n_private"] < high <= 1.25 * low
    chosen = json.loads((model / "m" / "experiment.json").read_text())
    assert chosen["normaliser"] == chosen["sampling_probability"] * low
    assert "rounded number of private points" in (model / "m" / "guarantee.txt").read_text()


def test_counts_of_labels_are_named_wherever_they_stand(model):
    """guarantee.txt had "measured: 6 of 8"; the certificate alone said that it is known."""
    said = (model / "m" / "guarantee.txt").read_text()
    assert (
        "measured: " in said
        and certificate_parts.EXACT_COUNTS_NOTE in said
        and "labels" in certificate_parts.EXACT_COUNTS_NOTE
    )
    for rate, named in ((MissRate.measured(6, 8), True), (MissRate(0.1), False)):
        text = str(Guarantee(1.0, 1e-3, "turn", "replace", "pld", gamma=rate, public="all else"))
        assert ("treated as public: all else, and the counts of labels" in text) == named


@given(
    st.floats(1e-9, 1e3), st.floats(1e-12, 0.5), st.integers(0, 30), st.integers(30, 2000)
)  # fmt: skip
def test_what_a_person_reads_is_never_below_the_bound(epsilon, delta, misses, labelled):
    """F9: 32 of 40 guarantees in guarantee.txt were rounded down, by up to 2.9e-4."""
    rate = MissRate.measured(misses, labelled)
    text = str(Guarantee(epsilon, delta, "turn", "replace", "pld", gamma=rate))
    printed = [float(x) for x in re.match(r"\((\S+), (\S+)\)", text).groups()]
    upper = float(re.search(r"upper bound (\S+)\)", text)[1])
    for number, exact in zip([*printed, upper], [epsilon, delta, rate.bound], strict=True):
        assert exact <= number <= 1.001 * exact + 1e-12


def test_a_name_is_text_on_the_model_card():
    name = 'a](http://x) <script>x</script>\n# b `c` "d|'
    facts = {"name": name, "parameters": 1, "trained_parameters": 1, "base": name, "kind": None,
             "method": {"name": "crt", "label": name}, "corpus": {"name": name, "points": 1},
             "settings": {"init": name}, "promise": "none", "perplexity": None, "adapters": True,
             "recurrent": False}  # fmt: skip
    card = model_card.render_model_card(facts).partition("\n---\n")[2]  # the front matter is JSON
    assert not re.search(r'(?<!\\)(<script|\](?=\(http)|"d)|\n# b', card)


def test_a_second_model_does_not_say_its_own_epsilon_as_if_it_were_all(tmp_path):
    text = corpus(tmp_path / "c.jsonl")
    for name in ("one", "two"):
        trainings.train(text, out=tmp_path / name, **CRT)
    said = [(tmp_path / name / "guarantee.txt").read_text() for name in ("one", "two")]
    assert "alone" not in said[0]
    assert "of this model and 1 earlier on this text" in said[1]
    assert "together; of this model alone: (" in said[1]


def test_labels_do_not_judge_a_list_that_they_taught(tmp_path):
    """F2: readers' marks became the list: "public at most 6.6 %" was printed of 88.9 %."""
    known = customersim.simulate_corpus(40, 3, "paper")
    path = corpus(tmp_path / "c.jsonl")
    spans = {(d.id, i): t.secrets for d in known.dialogues for i, t in enumerate(d.turns)}
    values = sorted({d.turns[i].text[s.start : s.end] for d in known.dialogues
                     for i in range(len(d.turns)) for s in spans[d.id, i]})  # fmt: skip
    listed = tmp_path / "list.txt"
    listed.write_text("\n".join(v for v in values if len(v) > 3))
    policy = f"list:{listed}"
    kinds = sorted({s.kind for t in known.turns() for s in t.secrets})
    drawn = {"turns": 20, "seed": 1, "kinds": kinds, "forms": ["jsonl"]}
    drawing.draw_label_tasks(
        path, tmp_path / "sealed", sealed=[policies.policy_digest(policy)], **drawn
    )
    drawing.draw_label_tasks(path, tmp_path / "open", **drawn)

    def read(name):
        tasks = [
            {"task": t.task, "done": True, "secrets": [asdict(s) for s in spans[t.id, t.turn]]}
            for t in label_tasks.read_tasks(tmp_path / name)
        ]
        page = {
            "schema": "crtlib/labels/1",
            "labels": label_tasks.read_label_facts(tmp_path / name)["labels"],
        }
        (tmp_path / "done.json").write_text(json.dumps(page | {"annotator": "a", "tasks": tasks}))
        imports.import_labels(path, tmp_path / "done.json", tmp_path / name)

    for name in ("open", "sealed"):
        read(name)
    how = screening.ScreeningOptions(policy, "cautious")

    def judged(name):
        out = tmp_path / f"{name}-out"
        out.mkdir(exist_ok=True)
        return screening.screen_corpus(path, out, how, key=None, judges=tmp_path / name)

    with pytest.raises(ValueError, match=r"--labels: list:list\.txt may have been made from them"):
        judged("open")
    assert (tmp_path / "open" / "uses.jsonl").read_text() == ""
    assert judged("sealed").rates.public.of > 0
    listed.write_text(listed.read_text() + "\nand what the readers saw")
    with pytest.raises(ValueError, match="may have been made from them"):
        judged("sealed")
    # A7: drawn again from the same seed, and sealed by then, as if nobody had read these turns.
    sealed = [policies.policy_digest(policy)]
    drawing.draw_label_tasks(path, tmp_path / "again", sealed=sealed, **drawn)
    drawing.draw_label_tasks(path, tmp_path / "more", sealed=sealed, **drawn | {"turns": 25})
    for name in ("again", "more"):
        read(name)
    with pytest.raises(ValueError, match="may have been made from them"):
        judged("again")
    late = registry.read_before_seal(tmp_path / "more", sealed).tasks
    places = [
        {(t.id, t.turn) for t in label_tasks.read_tasks(tmp_path / n)} for n in ("more", "open")
    ]
    assert len(late) >= len(places[0] & places[1]) > 0  # a text that stands twice was read twice
    labels = judged("more").summary["labels"]
    assert labels["turns"] == 25 and "apart" not in labels  # 20 had been asked: their words fail
    screening.judge_policies(  # what says itself what taught it, or is ours, needs no seal
        path,
        tmp_path / "open",
        screening.ScreeningOptions("regex:customersim", "cautious").pair(),
        texts=None,
    )


def coded(path, ids="d", labelled=0, people=24):
    """A code in every message of these people; the first ones are labelled inline."""
    rows = []
    for k in range(people):
        code = "ZQ" + "".join(chr(65 + (k * 7919 + j * j * 31) % 26) for j in range(8))
        text = f"my code is {code} , please look at it again for me"
        spans = [{"kind": "id", "start": 11, "end": 21}] if k < labelled else []
        turn = {"speaker": "USR", "text": text, "secrets": spans}
        rows.append(json.dumps({"id": f"{ids}{k}", "user": f"u{k}", "turns": [turn]}))
    path.write_text("\n".join(rows) + "\n")
    return path, [row.partition("code is ")[2][:10] for row in rows]


def test_labels_that_a_corpus_brings_do_not_judge_a_file_that_they_may_have_taught(tmp_path, run):
    """The values of the inline labels were the list: public at most 7 %, in truth 70 %."""
    text, codes = coded(tmp_path / "c.jsonl", labelled=8)
    listed = tmp_path / "codes.txt"
    listed.write_text("\n".join(codes[:8]))
    policy = f"list:{listed}"
    trainings.train(text, out=tmp_path / "m", **CRT | {"policy": policy, "conservative": policy})
    made = certificate(tmp_path / "m", tmp_path / "m.html")
    assert made["verdict"] == "void" and made["rates"]["public"]["how"] == "unknown"
    words = ["screen", text, "--policy", policy, "--conservative", policy, "--keep-ids"]
    assert run(*words, "--out", tmp_path / "s")[0] == 0
    found = json.loads((tmp_path / "s/private/summary.json").read_text())["rates"]
    assert [found[n]["upper"] for n in ("trace", "public")] == [1.0, 1.0]
    assert found["miss"]["of"] == 8  # what was counted is shown, and bounds nothing
    # A folder that was screened by a file is a file: whatever it was made from may have taught it.
    assert policies.is_from_file(f"screened:{tmp_path}/s")


def test_a_turn_that_was_read_under_another_id_was_read(tmp_path):
    """The same draw of a copy with other ids was new, and sealed what the first had taught."""
    one, _ = coded(tmp_path / "one.jsonl")
    other, _ = coded(tmp_path / "other.jsonl", ids="ticket-")
    sealed = [policies.policy_digest("regex:customersim")]
    drawing.draw_label_tasks(one, tmp_path / "a", turns=8, seed=7, forms=["jsonl"])
    drawing.draw_label_tasks(other, tmp_path / "b", turns=8, seed=7, forms=["jsonl"], sealed=sealed)
    assert registry.read_before_seal(tmp_path / "b", sealed).tasks == {
        t.task for t in label_tasks.read_tasks(tmp_path / "b")
    }


def test_every_set_of_labels_of_a_text_counts(tmp_path):
    """The kindest of many small sets: only the pairs that one set had judged were counted."""
    text, _ = coded(tmp_path / "c.jsonl", people=60)
    judged = []
    for k in range(3):
        drawing.draw_label_tasks(text, home := tmp_path / str(k), turns=3, forms=["jsonl"])
        told = label_tasks.read_label_facts(home)["corpus"]
        judged.append(judged_turns.record_judged_pair(home, pi="p", pi_c="c", corpus=told))
    assert judged == [1, 2, 3]


def test_another_reading_is_another_judgement(tmp_path):
    """Of two readers the kinder one was shown, and nothing said that the other had judged."""
    text, _ = coded(tmp_path / "c.jsonl")
    drawing.draw_label_tasks(text, home := tmp_path / "labels", turns=6, forms=["jsonl"])
    judged = []
    for annotator, spans in (("ann", [{"kind": "id", "start": 11, "end": 21}]), ("bob", [])):
        read = [
            {"task": t.task, "done": True, "secrets": spans} for t in label_tasks.read_tasks(home)
        ]
        page = {"schema": "crtlib/labels/1", "labels": label_tasks.read_label_facts(home)["labels"]}
        (tmp_path / "read.json").write_text(
            json.dumps(page | {"annotator": annotator, "tasks": read})
        )
        imports.import_labels(text, tmp_path / "read.json", home, annotator=annotator)
        judged += [
            judged_turns.record_judged_pair(home, pi="p", pi_c="c", corpus="c") for _ in range(2)
        ]
    assert judged == [1, 1, 2, 2]


def test_what_screening_says_of_a_text_it_says_of_all_of_it(tmp_path, run):
    """The first conversation decided whether the text is simulated; people were not known."""
    text, _ = coded(tmp_path / "c.jsonl")
    jsonl.write_jsonl(customersim.simulate_corpus(2, 7).dialogues, tmp_path / "made.jsonl")
    text.write_text((tmp_path / "made.jsonl").read_text() + text.read_text())
    seen = []
    for name in ("c", "made"):
        words = ["screen", tmp_path / f"{name}.jsonl", "--policy", "regex:customersim"]
        assert run(*words, "--out", tmp_path / name)[0] == 0
        seen.append(json.loads((tmp_path / name / "private/summary.json").read_text())["about"])
    assert [s["simulated"] for s in seen] == [False, True]
    assert [s["users_are"] for s in seen] == ["column", "column"]


def test_a_training_that_is_refused_leaves_no_odometer(tmp_path):
    """One whose checkpoint was of another text left a second, empty one."""
    text = corpus(tmp_path / "c.jsonl")
    with pytest.raises(ZeroDivisionError), pytest.MonkeyPatch.context() as patch:
        patch.setattr(study_run, "measure_study", lambda *_: 1 / 0)
        trainings.train(text, out=tmp_path / "m", **CRT)
    corpus(text, seed=9)
    with pytest.raises(ValueError, match="belongs to another run"):
        trainings.train(text, out=tmp_path / "m", **CRT)
    assert len([*tmp_path.glob("*.odometer")]) == 1


@pytest.mark.parametrize("method", ["jft", "selective"])
def test_a_vocabulary_of_what_policies_let_pass_has_no_rate_of_zero(tmp_path, method):
    text = corpus(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "m", **CRT | {"method": method})
    sources = gate.read_release(tmp_path / "m").sources
    assert not any(s.kind == "screened" and not s.screening.public for s in sources)
    assert any(s.kind == "raw" and "vocabulary" in s.of for s in sources)


def test_a_draw_that_is_not_entered_is_not_written(tmp_path, monkeypatch, run):
    """The registry failed after the folder was in its place: people read what nobody knew of."""
    text, _ = coded(tmp_path / "c.jsonl")
    (tmp_path / "full").touch()
    monkeypatch.setenv("CRTLIB_REGISTRY", str(tmp_path / "full" / "x"))
    code, _, error = run("label", "sample", text, "--turns", 8, "--out", tmp_path / "labels")
    assert code == 2 and "Traceback" not in error and not (tmp_path / "labels").exists()


def test_a_policy_of_a_package_is_all_of_its_files(tmp_path, monkeypatch):
    """The list beside its code changed after it was sealed; the hash of the code did not."""
    (tmp_path / "house").mkdir()
    code = tmp_path / "house" / "__init__.py"
    code.write_text("def make(_):\n    pass\n")
    names = {}
    exec(compile(code.read_text(), str(code), "exec"), names)
    monkeypatch.setitem(
        policies.REGISTERED_MAKERS, "house", policies.PolicyMaker("house", "", names["make"])
    )
    hashes = []
    for known in ("", "ZQ"):
        (tmp_path / "house" / "known.txt").write_text(known)
        hashes.append((policies.policy_digest("house"), training_facts.policy_hash("house")))
    assert len({*hashes[0], *hashes[1]}) == 4


def test_no_name_of_a_person_makes_him_a_canary(tmp_path):
    """Who was called "canary-1" was counted nowhere; in raw text the name ended a training."""
    text, _ = coded(tmp_path / "c.jsonl", labelled=24)
    text.write_text(text.read_text().replace('"user": "u', '"user": " canary-'))
    people = corpora.read_corpus_at(text)
    known = rates.measure_rates(
        data_points.make_points(people, "turn"),
        regex_policies.none_policy,
        regex_policies.none_policy,
    )
    assert known.public.of == 24 and known.public.count == 24


def test_a_text_that_was_cut_in_another_way_counts_by_messages(tmp_path, run):
    """Twelve messages of a person were twelve people in the first text; the second one's person
    was composed with one of them. Short messages did not show that it is one text."""
    rows = [f"p{k // 6},t{k // 6},order {k} is late and red" for k in range(14 * 6)]
    (tmp_path / "c.csv").write_text("customer,ticket,body\n" + "\n".join(rows) + "\n")
    flat = ["--text", "body", "--no-users", "--thread", "body"]
    talks = ["--text", "body", "--user", "customer", "--thread", "ticket"]
    for name, words in (("flat", flat), ("talks", talks)):
        assert run("ingest", tmp_path / "c.csv", *words, "--yes", "--out", tmp_path / name)[0] == 0
    for name, method, unit in (("flat", "dpsgd", "dialogue"), ("talks", "user_dpsgd", "user")):
        how = TINY | {"method": method, "unit": unit}
        trainings.train(tmp_path / name, out=tmp_path / f"m-{name}", **how)
    made = certifiable_run.read_certifiable_run(tmp_path / "m-talks")
    both = composed_promise.compose_promise(made.own, made.spent, delta=1e-4)
    assert made.spent.runs == 1 and both.groups == (1, 6)


def test_two_plans_on_one_text_do_not_hold_and_are_known(tmp_path, run):
    """The second certificate said that no earlier run is known, and held as if it were alone."""
    text = corpus(tmp_path / "c.jsonl", dialogues=20)
    words = ["--from-policy", "regex:customersim", "--posterior", 0.1, "--steps", 10, "--scale", 5]
    assert run("protect", text, *words, "--out", tmp_path / "plan")[0] == 0
    plan = ["train", text, "--plan", tmp_path / "plan", "--epochs", 1, "--width", 4]
    for name in ("one", "two"):
        assert run(*plan, "--out", tmp_path / name)[0] == 0
    made = [certificate(tmp_path / n, tmp_path / f"{n}.html") for n in ("one", "two")]
    assert [c["verdict"] for c in made] == ["holds", "void"]
    assert "No earlier run" in (tmp_path / "one.html").read_text()
    said = (tmp_path / "two.html").read_text()
    assert "No earlier run" not in said and "not for each secret" in said


def test_every_pair_that_labels_judge_counts_wherever_they_lie(tmp_path, monkeypatch):
    """A8: a copy of the folder had judged nothing yet. Nor was another setting of the dial, or the
    next version of somebody else's package, another policy."""
    path = corpus(tmp_path / "c.jsonl")
    drawing.draw_label_tasks(path, tmp_path / "labels", turns=20, seed=1, forms=["jsonl"])
    tasks = [
        {"task": t.task, "done": True, "secrets": []}
        for t in label_tasks.read_tasks(tmp_path / "labels")
    ]
    page = {
        "schema": "crtlib/labels/1",
        "labels": label_tasks.read_label_facts(tmp_path / "labels")["labels"],
    }
    (tmp_path / "done.json").write_text(json.dumps(page | {"annotator": "a", "tasks": tasks}))
    imports.import_labels(path, tmp_path / "done.json", tmp_path / "labels")
    shutil.copytree(tmp_path / "labels", tmp_path / "copy")

    def judged(name, **how):
        asked = screening.ScreeningOptions("regex:customersim", "cautious", **how)
        made = screening.judge_policies(path, tmp_path / name, asked.pair(), texts=None)
        return made[1]["judged"]

    assert [judged("labels"), judged("copy"), judged("labels")] == [1, 1, 1]
    assert [judged("copy", gamma=0.1), judged("labels", gamma=0.1)] == [2, 2]
    assert [judged("labels", gamma=0.1, seed=5), judged("copy", gamma=0.2)] == [3, 4]
    before = policies.policy_digest("toy")
    code = tmp_path / "toy.py"
    for version in (1, 2):
        code.write_text(f"def make(_):\n    return {version}\n")
        names = {}
        exec(compile(code.read_text(), str(code), "exec"), names)
        monkeypatch.setitem(
            policies.REGISTERED_MAKERS, "toy", policies.PolicyMaker("toy", "", names["make"])
        )
        before, last = policies.policy_digest("toy"), before
        assert before != last and policies.is_from_file("toy")


def test_who_receives_a_model_is_not_told_of_another(model, tmp_path, monkeypatch, capsys):
    """R3, R4: the certificate of an earlier model was "as it was signed" for a later one; without
    a key to compare, whoever signed a release anew was believed."""
    key = seal.ensure_signing_key(model / "c.jsonl.odometer")
    value = json.loads((model / "m.json").read_text())

    def told(*words, **changes):
        path = tmp_path / "m.json"
        path.write_text(json.dumps(signed(value | changes, key)))
        monkeypatch.setattr(sys, "argv", ["verify", str(model / "m"), str(path), *words])
        return verify.main(), capsys.readouterr().out

    code, said = told()
    assert code == 0 and "no key was compared, so anybody may have signed it" in said
    code, said = told("--key", value["public_key"])
    assert code == 0 and "compared" not in said
    code, said = told(model=value["model"] | {"sha256": "0" * 64})
    assert code == 4 and "is of another model" in said
    rows = [row | {"at_most": 0.5} for row in value["right_guess"]]
    code, said = told(right_guess=rows)
    assert code == 4 and "a guess is right more often than it says" in said


def signed(value, key):
    return seal.sign_value(value | {"id": certificate_pages.hash_certificate(value)}, key)


def test_a_page_that_was_edited_is_not_verified(model, tmp_path, run):
    """R5: the page said another epsilon than its JSON, and was "verified"."""
    home = copied(model, tmp_path)
    page = home / "m.html"
    words = ["certify", home / "m", "--out", page]
    for audience in ("both", "officer"):
        assert run(*words, "--for", audience, "--force")[0] == 0
        assert run(*words, "--verify")[0] == 0
    page.write_text(page.read_text().replace("</body>", "<p>It is safe.</p></body>"))
    code, said, _ = run(*words, "--verify")
    assert code == 4 and "m.html: the page differs from its certificate" in said
    page.unlink()
    assert run(*words, "--verify")[0] == 4


def test_evidence_names_its_model(model, tmp_path, run):
    """R6: an audit that somebody wrote, or of another model, stood in the certificate."""
    said = {"epsilon_lower": 0.1, "proved": 3.0, "confidence": 0.95, "canaries": 300,
            "guessed": 100, "right": 60, "power": 0.2}  # fmt: skip
    sha = outputs.hash_file(model / "m" / "model.safetensors")
    words = ["certify", model / "m", "--out", tmp_path / "c.html", "--for", "officer"]
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
    edited(audit, lambda c: c.update(proved=0.01))
    code, _, error = run(*words, "--audit", audit)
    assert code == 3 and "audit.json: does not match its SHA-256" in error
    audited({"model": sha})
    report = ["report", model / "m", "--corpus", model / "c.jsonl", "--out", tmp_path / "report"]
    assert run(*report)[0] == 0
    evidence = ["--audit", audit, "--report", tmp_path / "report"]
    assert run(*words, *evidence)[0] == 0
    made = json.loads((tmp_path / "c.json").read_text())["evidence"]
    assert made["audit"]["lower"] == 0.1 and "completed" in made["report"]
    assert run(*words, "--verify")[0] == 0
    assert run(*report[:-1], tmp_path / "clear", "--reveal")[0] == 0
    code, _, error = run(*words, "--force", "--report", tmp_path / "clear")
    assert code == 2 and "clear is in clear; a redacted one may be shown" in error
    other = corpus(tmp_path / "other.jsonl", 5, "eve")
    assert run("report", model / "m", "--corpus", other, "--out", tmp_path / "elsewhere")[0] == 0
    code, _, error = run(*words, "--force", "--report", tmp_path / "elsewhere")
    assert code == 2 and "elsewhere is of another text than the model was trained on" in error
    edited(tmp_path / "report" / "report.json", lambda c: c["summary"].update(runs=0))
    code, _, error = run(*words, "--force", "--report", tmp_path / "report")
    assert code == 3 and "report.json: does not match its SHA-256" in error
    edited(tmp_path / "report" / "crtlib.json", lambda c: c["inputs"].update(model="0" * 64))
    edited(tmp_path / "report" / "crtlib.json", lambda c: c["files"].clear())
    code, _, error = run(*words, "--force", "--report", tmp_path / "report")
    assert code == 2 and "report: holds no crtlib.json as it was written" in error


# --- a third reader ------------------------------------------------------------------------------
def test_a_page_with_wildcards_in_its_name_excuses_no_file(model, tmp_path):
    """F1 of the third reading: the name was a pattern, and a file that was slipped in matched."""
    home = copied(model, tmp_path)
    (home / "m" / "raw.json").write_text('{"raw": "my name is Ada"}')
    for page in (home / "m" / "*.html", home / "m" / "[a-z]*.html"):
        value = certificate(home / "m", page)
        assert value["verdict"] == "void" and "raw.json" in str(value["void_because"])
    (tmp_path / "b").mkdir()
    home = copied(model, tmp_path / "b")
    part = home / "m" / ".page.html.raw.part"
    part.write_text("my name is Ada")
    with part.open() as file:  # somebody holds it
        fcntl.flock(file, fcntl.LOCK_EX)
        assert certificate(home / "m", home / "m" / "page.html")["verdict"] == "void"
    assert certificate(home / "m", home / "m" / "page.html")["verdict"] == "holds"
    assert not part.exists()


def test_labels_of_the_corpus_count_what_they_judged_and_no_seed_chooses(tmp_path):
    """F2 of the third reading: of seeds that were tried the kindest drew the secrets that count."""
    said = "My phone number is 55512{:05}.", "my cat is called {}."
    people = [
        records.Dialogue(
            f"d{k}",
            f"u{k}",
            (
                Turn("USR", said[0].format(k), (Secret("phone", 19, 29),)),
                Turn("USR", said[1].format(f"Mia{k:02}"), (Secret("name", 17, 22),)),
            ),
        )
        for k in range(40)
    ]
    path = tmp_path / "c.jsonl"
    jsonl.write_jsonl(people, path)

    def screened(policy, seed):
        (folder := tmp_path / f"{policy[:3]}{seed}").mkdir()
        how = screening.ScreeningOptions(policy, unit="turn", seed=seed)
        return screening.screen_corpus(path, folder, how, key=b"k" * 32).rates

    found = [screened("regex:customersim", k) for k in range(3)]
    assert len({r.miss.count for r in found}) == 1 and {r.judged for r in found} == {1}
    assert screened("cautious", 0).judged == 2
    made = trainings.train(path, out=tmp_path / "m", **CRT | {"policy": "everything"})
    assert made.fitted.data.rates.judged == 3


def test_a_clipping_norm_that_float32_cannot_hold_is_refused():
    """F3 of the third reading: a clipped gradient was 1.3 times its norm."""
    with pytest.raises(ValueError, match="clip_norm=3e-35: must be at least 1e-6"):
        PrivatePhase(1, 0.5, 1, 1.0, 3e-35, 1.0, 0.1)


def test_the_kind_of_a_label_leaves_only_by_a_known_name(tmp_path):
    """F4 of the third reading: a label's kind, which is any text, stood in the certificate."""
    text = corpus(tmp_path / "c.jsonl")
    raw = text.read_text().replace('"kind": "phone"', '"kind": "phone of Ada Lovelace"')
    text.write_text(raw)
    trainings.train(text, out=tmp_path / "m", **CRT)
    value = certificate(tmp_path / "m", tmp_path / "m.html")
    assert value["verdict"] == "holds" and "other" in value["rates"]["by_kind"]
    shown = [p for p in tmp_path.rglob("*") if p.is_file() and p.stat().st_mode & 0o004]
    assert not [p for p in shown if p != text and "Lovelace" in p.read_text(errors="replace")]


def test_what_is_assumed_of_a_foreign_policy_is_said_of_its_folder(tmp_path, run, monkeypatch):
    """F5 of the third reading: it was said of a corpus, and not of its screened folder."""
    text = corpus(tmp_path / "c.jsonl")
    maker = PolicyMaker(
        "company", "", lambda _: Policy("company", lambda points: [()] * len(points))
    )
    monkeypatch.setitem(REGISTERED_MAKERS, "company", maker)
    assert run("screen", text, "--policy", "company", "--out", tmp_path / "s")[0] == 0
    train_on_corpus.train(
        tmp_path / "s", out=tmp_path / "m", method="crt", epochs=1, width=4, epsilon=3.0
    )
    value = certificate(tmp_path / "m", tmp_path / "m.html")
    assert "company, of another package" in json.dumps(value)


def test_a_conversation_that_counts_as_a_person_is_said(tmp_path):
    """F6 of the third reading: 39 of 44 people were conversations, without a word."""
    mixed = [
        replace(d, user=d.id if k % 2 else "ann")
        for k, d in enumerate(customersim.simulate_corpus(6, 0).dialogues)
    ]
    about = training_record.describe_corpus(
        tmp_path / "c.jsonl", records.Corpus("c", tuple(mixed)), "0" * 64
    )
    assert about["users_are"] == "thread"


def test_a_study_cannot_name_another_corpus(tmp_path):
    """F7 of the third reading: one text was trained on, and another watched."""
    text = corpus(tmp_path / "c.jsonl")
    with pytest.raises(ValueError, match="study='corpus': is an option of the training"):
        train_on_corpus.train(text, method="sgd", study={"corpus": str(text)})


def test_an_odometer_lies_outside_of_the_release(tmp_path):
    """F8 of the third reading: refused when all was done, with its key in the folder."""
    text = corpus(tmp_path / "c.jsonl")
    for place, out in ((tmp_path / "m" / "spent", tmp_path / "m"), (tmp_path, tmp_path / "m")):
        with pytest.raises(ValueError, match=r"--odometer: .* must lie outside of --out"):
            train_on_corpus.train(text, method="dpsgd", out=out, odometer=place, epochs=1)
    assert not (tmp_path / "m").exists()


def said(path, people, texts, secret):
    """A corpus in which these people say these texts, each with a secret value; and its labels."""
    talks = []
    for k, (user, text) in enumerate(zip(people, texts, strict=True)):
        at = [m.span() for m in re.finditer(secret, text)]
        turn = Turn("USR", text, tuple(Secret("phone", *ends) for ends in at))
        talks.append(records.Dialogue(f"d{k}", user, (turn,)))
    jsonl.write_jsonl(talks, path)
    return path, {d.id: d.turns[0].secrets for d in talks}


def read(path, home, known, **drawn):
    """Labels of a draw in the folder ``home``, as who knows them marks them."""
    drawing.draw_label_tasks(path, home, forms=["jsonl"], **drawn)
    tasks = [
        {"task": t.task, "done": True, "secrets": [asdict(s) for s in known[t.id]]}
        for t in label_tasks.read_tasks(home)
    ]
    page = {
        "schema": "crtlib/labels/1",
        "labels": label_tasks.read_label_facts(home)["labels"],
        "annotator": "a",
    }
    (done := home.with_suffix(".json")).write_text(json.dumps(page | {"tasks": tasks}))
    imports.import_labels(path, done, home)
    return home


def screened(path, out, policy="regex:customersim", judges=None):
    """The rates of a policy on a text, both searches the same."""
    out.mkdir()
    return screening.screen_corpus(
        path, out, screening.ScreeningOptions(policy, policy), key=b"k" * 32, judges=judges
    ).rates


def test_all_whom_nobody_named_are_not_one_person(tmp_path):
    """They drew one message together: "at most 1.85 of 100" was printed of 67."""
    people = [f"u{k}" if k < 50 else "" for k in range(150)]
    texts = [
        f"my phone is {55512}{k:05} , call" if who else f"my phone is fife {k:05} six , call"
        for k, who in enumerate(people)
    ]
    path, known = said(tmp_path / "c.jsonl", people, texts, r"(?<=phone is )\w+( \d+ six)?")
    home = read(path, tmp_path / "labels", known, turns=150, seed=1)
    assert {label_tasks.read_label_facts(home)[name] for name in ("users", "judge")} == {150}
    found = screened(path, tmp_path / "s", judges=home)
    truth = screened(path, tmp_path / "t")
    trainings.train(path, out=tmp_path / "m", **CRT | {"labels": home})
    assert certificate(tmp_path / "m", tmp_path / "m.html")["corpus"]["users_are"] == "unknown"
    assert "each conversation counts as a person" in (tmp_path / "m.html").read_text()
    assert found.public.upper >= truth.public.rate and truth.public.rate == 2 / 3


def test_a_value_that_stands_twice_in_a_message_is_one_secret(tmp_path):
    """Each place was blacked out by itself: half of the secrets left a trace, in truth all."""
    texts = [f"phone 55512{k:05} , I say 55 512{k:05} !" for k in range(60)]
    path, _ = said(tmp_path / "c.jsonl", [f"u{k}" for k in range(60)], texts, r"55 ?512\d{5}")
    (toml := tmp_path / "p.toml").write_text("[phone]\npattern = '(?<=phone )\\d{10}'\n")
    points = data_points.make_points(corpora.load_corpus(path), "turn")
    found = rates.measure_rates(
        points, policies.policy_by_name(f"regex:{toml}"), regex_policies.none_policy
    )
    assert (found.trace.count, found.trace.of) == (60, 60) and found.trace.all == (120, 120)
    both = toml.with_name("q.toml")
    both.write_text("[phone]\npattern = '55 ?512\\d{5}'\n")
    found = rates.measure_rates(
        points, policies.policy_by_name(f"regex:{both}"), regex_policies.none_policy
    )
    assert found.trace.count == 0


def test_other_labels_of_a_corpus_are_another_judgement(tmp_path):
    """Who labelled a text anew in its own file was charged once, and could keep the kindest."""
    judged = []
    for n in (20, 25, 25, 30):
        text, _ = coded(tmp_path / "c.jsonl", labelled=n, people=60)
        judged.append(screened(text, tmp_path / f"s{len(judged)}").judged)
    assert judged == [1, 2, 2, 3]


def test_a_policy_that_others_followed_was_chosen_among_all(tmp_path):
    """The first policy that labels judged was charged as the only one, whatever came after it."""
    text = corpus(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "m", **CRT)
    page = tmp_path / "m.html"
    one = certificate(tmp_path / "m", page)
    assert one["labels"]["judged"] == 1 and "other time" not in page.read_text()
    screened(text, tmp_path / "s", "regex:multiwoz")
    assert (
        certify.verify_certificate(tmp_path / "m", page)[0] is None
    )  # it was chosen when it was the only one
    two = certificate(tmp_path / "m", page)
    assert two["labels"]["judged"] == 2 and two["id"] != one["id"]
    assert "Labels judged policies 1 other time;" in page.read_text()
    for name in ("trace", "public"):
        assert two["rates"][name]["upper"] > one["rates"][name]["upper"]
    for who in ("secret", "missed"):
        assert two["guarantee"][who]["delta"] >= one["guarantee"][who]["delta"]
    assert two["guarantee"]["secret"]["delta"] > one["guarantee"]["secret"]["delta"]
    assert two["guarantee"]["secret"]["epsilon"] > one["guarantee"]["secret"]["epsilon"]
    assert certify.verify_certificate(tmp_path / "m", page)[0] is None
    assert verify.find_certificate_fault(tmp_path / "m", two) is None


def test_a_screened_folder_that_others_followed_was_chosen_among_all(tmp_path, run):
    text, folders = corpus(tmp_path / "c.jsonl"), [tmp_path / "one", tmp_path / "two"]
    for folder, policy in zip(folders, ("regex:customersim", "cautious"), strict=True):
        words = ["--policy", policy, "--conservative", "cautious", "--out", folder]
        assert run("screen", text, *words)[0] == 0
    first, second = map(screening.rates_of_screened_folder, folders)
    assert first.judged == second.judged == 2
    assert first.trace.upper == rates.rate_upper_bound(
        first.trace.count, first.trace.of, alpha=rates.RATES_ALPHA / 4
    )
    made = train_on_corpus.train(folders[0], out=tmp_path / "m", method="crt", epochs=1, width=4)
    assert "98.7 % upper bound" in made.promise
    value = certificate(tmp_path / "m", tmp_path / "m.html")
    assert value["labels"]["judged"] == 2 and value["verdict"] == "holds"


def test_a_limit_of_a_share_counts_what_earlier_searches_passed_over(tmp_path):
    """The limit "public <= 0.1 %" was met, and a sentence said that 11 of 100 were learned."""
    text = corpus(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "one", **CRT)
    second = CRT | {"policy": "regex:multiwoz", "conservative": "everything"}
    trainings.train(text, out=tmp_path / "two", **second)
    value = certify.write_certificate(tmp_path / "two", tmp_path / "c.html", copies=(),
                          require=["public <= 0.1%", "trace <= 100%"])  # fmt: skip
    assert value["verdict"] == "holds" and value["rates"]["public"]["upper"] == 0
    share = value["spent_before"]["delta2"]
    assert share > 0.01 and [row["met"] for row in value["limits"]] == [False, True]
    assert value["limits"][0]["certified"] == share
    assert verify.find_certificate_fault(tmp_path / "two", value) is None


def test_an_audit_rounds_what_was_proved_up_and_what_was_shown_down():
    """Both were rounded to the nearest: 2.99 was "proved" of 2.9931."""
    found = run_audit.RunAudit(0.9967, 0.95, 300, 100, 60, 2.9931, refuted_from=99, power=0.61)
    assert found.lines()[0] == "proved 3 \u00b7 audited at least 0.99 (95 %)"


@pytest.mark.parametrize("unit", ["dialogue", "user"])
def test_what_was_screened_says_how_many_messages_were_read(tmp_path, run, unit):
    """The page said the average of all conversations, as if it had counted."""
    made = customersim.simulate_corpus(40, 3, "paper")
    made = replace(made, dialogues=tuple(
        replace(d, user=f"ada{k}", turns=d.turns * (1 + 9 * (k % 7 == 0)))
        for k, d in enumerate(made.dialogues)
    ))  # fmt: skip
    jsonl.write_jsonl(made, tmp_path / "c.jsonl")
    words = ["--policy", "regex:customersim", "--unit", unit, "--out", tmp_path / "s"]
    assert run("screen", tmp_path / "c.jsonl", *words)[0] == 0
    names = {n: v for n, v in TINY.items() if n != "unit"} | {"method": "crt"}
    done = trainings.train(tmp_path / "s", out=tmp_path / "m", **names)
    read = sum(p.text.count("\n") + 1 for p in done.fitted.data.points)
    assert certificate(tmp_path / "m", tmp_path / "m.html")["corpus"]["turns"] == read


def test_a_plan_speaks_of_where_its_search_found_a_value(tmp_path, run):
    """Beside the model stood that the promise is of all points that hold a value."""
    text = corpus(tmp_path / "c.jsonl")
    turns = [{"speaker": "USR", "text": t} for t in ("я Анна Петрова", "от Анны Петровой")]
    row = {"id": "x", "user": "x", "turns": turns}
    text.write_text(text.read_text() + json.dumps(row) + "\n")
    (tmp_path / "s.csv").write_text("user,secret\nx,Анна Петрова\n")
    words = ["--secrets", tmp_path / "s.csv", "--posterior", 0.1, "--steps", 10]
    assert run("protect", text, *words, "--out", tmp_path / "plan")[0] == 0
    words = ["--plan", tmp_path / "plan", "--epochs", 1, "--width", 8, "--out", tmp_path / "m"]
    assert run("train", text, *words)[0] == 0
    said = (tmp_path / "m" / "guarantee.txt").read_text()
    assert "all points that hold it" not in said and "in which the search found it" in said
