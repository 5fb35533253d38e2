"""Of what a promise speaks: one point replaced, people or conversations, and all of the text."""

import json
import re
from dataclasses import replace

import pytest

from confide.reports import sentences
from confide.training import train_on_corpus, training_record
from crtlib.text import customersim, jsonl, records
from crtlib.text.records import Secret, Turn
from tests import trainings
from tests.texts import draw_and_label, write_coded_messages, write_simulated_text
from tests.trainings import CRT, TINY, make_certificate


def test_a_certificate_is_of_one_point_replaced(tmp_path):
    text = write_simulated_text(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "m", **CRT | {"neighbouring": "add_or_remove"})
    page = make_certificate(tmp_path / "m", tmp_path / "m.html")
    assert page["verdict"] == "void" and "treated as known" in " ".join(page["void_because"])


def test_what_screening_says_of_a_text_it_says_of_all_of_it(tmp_path, run):
    """The first conversation decided whether the text is simulated; people were not known."""
    text, _ = write_coded_messages(tmp_path / "c.jsonl")
    jsonl.write_jsonl(customersim.simulate_corpus(2, 7).dialogues, tmp_path / "made.jsonl")
    text.write_text((tmp_path / "made.jsonl").read_text() + text.read_text())
    seen = []
    for name in ("c", "made"):
        words = ["screen", tmp_path / f"{name}.jsonl", "--policy", "regex:customersim"]
        assert run(*words, "--out", tmp_path / name)[0] == 0
        seen.append(json.loads((tmp_path / name / "private/summary.json").read_text())["about"])
    assert [s["simulated"] for s in seen] == [False, True]
    assert [s["users_are"] for s in seen] == ["column", "column"]


def test_a_conversation_that_counts_as_a_person_is_said(tmp_path):
    """39 of 44 people were conversations, without a word."""
    mixed = [
        replace(d, user=d.id if k % 2 else "ann")
        for k, d in enumerate(customersim.simulate_corpus(6, 0).dialogues)
    ]
    about = training_record.describe_corpus(
        tmp_path / "c.jsonl", records.Corpus("c", tuple(mixed)), "0" * 64
    )
    assert about["users_are"] == "thread"


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
    assert make_certificate(tmp_path / "m", tmp_path / "m.html")["corpus"]["turns"] == read


def test_a_share_of_conversations_is_counted_by_conversations(tmp_path):
    """Two people of 47 have 70 of the 120 conversations, and in all of theirs a secret is passed
    over: "a conversation, then one of its messages: at most 14.6 of 100"."""
    talks = []
    for k in range(120):
        user, said = (f"h{k % 2}", f"fife {k:05} six") if k < 70 else (f"u{k}", f"55512{k:05}")
        text = f"my phone is {said} , call"
        spans = (Secret("phone", *re.search(said, text).span()),)
        talks.append(records.Dialogue(f"d{k}", user, (Turn("USR", text, spans),)))
    jsonl.write_jsonl(talks, path := tmp_path / "c.jsonl")
    known = {d.id: d.turns[0].secrets for d in talks}
    home = draw_and_label(path, tmp_path / "labels", known, turns=110, seed=1, by="dialogue")
    settings = {"labels": home, "unit": "user", "conservative": "everything"}
    with pytest.raises(ValueError, match=r"^labels: were drawn by conversation"):
        trainings.train(path, out=tmp_path / "m", **CRT | settings)


def test_a_conversation_that_counts_as_a_person_is_said_of_what_was_screened(tmp_path, run):
    """It was said of raw text alone."""
    made = customersim.simulate_corpus(40, 0).dialogues
    mixed = [replace(d, user=d.id if k % 2 else f"ann{k}") for k, d in enumerate(made)]
    jsonl.write_jsonl(mixed, tmp_path / "c.jsonl")
    words = ["--policy", "regex:customersim", "--out", tmp_path / "s"]
    assert run("screen", tmp_path / "c.jsonl", *words)[0] == 0
    train_on_corpus.train(tmp_path / "s", out=tmp_path / "m", method="crt", epochs=1, width=4)
    value = make_certificate(tmp_path / "m", tmp_path / "m.html")
    assert (
        "each conversation counts as a person"
        in sentences.select_sentences(value)["training_text"][0]
    )
