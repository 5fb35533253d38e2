"""Files of other people's forms become a corpus, or one line says what would help."""

import csv
import errno
import gzip
import inspect
import json
import os
import random
import stat
import time
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from confide.commands import data
from confide.text import columns, ingest, message_forms, registry_units, times
from crtlib import outputs
from crtlib.checks import MachineError
from crtlib.text import corpora, corpus_folder, identity, jsonl, sorted_rows
from crtlib.text.customersim import simulate_corpus
from crtlib.text.records import Corpus, Dialogue, Secret, Turn

ROWS = [
    {
        "customer": "ann",
        "ticket": "t1",
        "sender": "customer",
        "body": "My name is Ann.",
        "lang": "en",
    },
    {"customer": "ann", "ticket": "t1", "sender": "agent", "body": 'Hello,\n"Ann"!', "lang": "en"},
    {"customer": "bob", "ticket": "t2", "sender": "customer", "body": "Grüße 😀", "lang": "de"},
]
SAID = [
    ("t1", "ann", ["customer", "agent"], ["My name is Ann.", 'Hello,\n"Ann"!']),
    ("t2", "bob", ["customer"], ["Grüße 😀"]),
]
MAIL = (
    b"From: Ann <Ann@x.org>\nTo: help@y.org\nMessage-ID: <1@x>\n"
    b"Date: Mon, 02 Mar 2026 10:00:00 +0100\n"
    b"Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\nContent-Type: text/plain; charset=utf-8\n\n"
    b"My order is late.\n",
    b"From: bob@y.org\nMessage-ID: <2@y>\nReferences: <1@x> <9@z>\n\n"
    b"We are sorry.\n\nOn Monday Ann wrote:\n> My order is late.\n",
)


def stored(path):
    return pq.read_table(path / "data").to_pylist()


def say(path):
    return [
        (d.id, d.user, [t.speaker for t in d.turns], [t.text for t in d.turns])
        for d in corpora.read_corpus_at(path).dialogues
    ]


def write_csv(path, rows=ROWS, *, encoding="utf-8", delimiter=",", start=b""):
    with path.open("w", encoding=encoding, newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    path.write_bytes(start + path.read_bytes())
    return path


def make(tmp_path, kind):
    """The three messages in one of the forms."""
    path = tmp_path / f"in.{kind}"
    if kind in ("csv", "tsv"):
        return write_csv(path, delimiter="\t" if kind == "tsv" else ",")
    if kind == "bom.csv":
        return write_csv(path, start=b"\xef\xbb\xbf", delimiter=";")
    if kind == "utf16.csv":
        return write_csv(path, encoding="utf-16")
    if kind == "csv.gz":
        path.write_bytes(gzip.compress(write_csv(tmp_path / "x.csv").read_bytes()))
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, ROWS)))
    elif kind == "folder":
        path.mkdir()
        for k in range(len(ROWS)):
            pq.write_table(pa.Table.from_pylist(ROWS[k:][:1]), path / f"train-{k}.parquet")
        pq.write_table(pa.Table.from_pylist(ROWS), path / "test-0.parquet")
    return path


TABLES = ("csv", "tsv", "bom.csv", "utf16.csv", "csv.gz", "parquet", "jsonl", "folder")


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_of_any_form_becomes_the_same_corpus(tmp_path, kind):
    summary = ingest.ingest_sources([make(tmp_path, kind)], tmp_path / "o", yes=True)
    assert say(tmp_path / "o") == SAID
    assert summary.columns == {
        "user": "customer", "thread": "ticket", "speaker": "sender", "text": "body"
    }  # fmt: skip
    assert (summary.rows, summary.facts.turns, summary.facts.users) == (3, 3, 2)
    jsonl.write_jsonl(corpora.read_corpus_at(tmp_path / "o"), tmp_path / "c.jsonl")
    assert corpora.hash_corpus(tmp_path / "c.jsonl") == summary.facts.sha256
    assert corpora.corpus_fingerprint(tmp_path / "o") == summary.facts.sha256


@pytest.mark.parametrize("nested", [False, True])
def test_a_split_that_is_not_there_is_refused(tmp_path, nested):
    """Fault: every split was read, and the corpus was called by the one that was asked for."""
    (folder := tmp_path / "d").mkdir()

    def path(split):
        (folder / split).mkdir(exist_ok=True)
        return folder / split / "0.parquet" if nested else folder / f"{split}-0.parquet"

    for split in ("train", "test", "my_own"):
        pq.write_table(pa.Table.from_pylist(ROWS), path(split))
    with pytest.raises(ValueError, match=r"^split: 'validation' is not in .*; must be test or tr"):
        ingest.ingest_sources([folder], tmp_path / "o", split="validation")
    for split in ("train", "test", "my_own"):
        assert ingest.ingest_sources([folder], tmp_path / split, split=split).rows == 3
    path("train").unlink()
    with pytest.raises(ValueError, match=r"^split: 'train' is not in .*; must be test"):
        ingest.ingest_sources([folder], tmp_path / "o")
    path("test").unlink()
    assert ingest.ingest_sources([folder], tmp_path / "o").rows == 3
    with pytest.raises(ValueError, match=r"^split: 'test' is not in .*; no file has its name"):
        ingest.ingest_sources([folder], tmp_path / "p", split="test")
    assert ingest.ingest_sources([path("my_own")], tmp_path / "p", split="test").rows == 3
    (alone := tmp_path / "somewhere" / "test").parent.mkdir()
    path("my_own").parent.rename(alone)
    assert ingest.ingest_sources([alone], tmp_path / "q").rows == 3


def test_chats_of_messages(tmp_path):
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None}]
    chat.append({"role": "assistant", "content": [{"type": "text", "text": "Hello"}]})
    lines = [
        {"messages": chat, "metadata": {"user": "ann"}},
        {"id": 7, "user": 0, "messages": chat},
    ]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, lines)))
    ingest.ingest_sources([tmp_path / "m.jsonl"], tmp_path / "o")
    assert say(tmp_path / "o") == [
        ("row-1", "ann", ["user", "assistant"], ["Hi", "Hello"]),
        ("7", "0", ["user", "assistant"], ["Hi", "Hello"]),
    ]


CHAT = {"user": "ann", "messages": [{"role": "user", "content": "Hi"}]}
OURS = {"id": "d", "user": "ann", "turns": [{"speaker": "A", "text": "Hi"}]}


@pytest.mark.parametrize("record", [CHAT, OURS], ids=["chat", "ours"])
@pytest.mark.parametrize(
    "words",
    [
        *(["--user", "u"], ["--thread", "u"], ["--speaker", "u"], ["--text", "u"], ["--time", "u"]),
        *(["--drop-quotes"], ["--agents", "@x.org"], ["--dates", "dmy"]),
    ],
    ids=lambda words: words[0],
)
def test_an_option_that_records_do_not_read_is_refused(tmp_path, run, words, record):
    """Fault: each was accepted, and persons and texts stayed those that the file names."""
    (tmp_path / "x.jsonl").write_text(json.dumps(record))
    code, _, error = run("ingest", tmp_path / "x.jsonl", *words, "--yes", "--out", tmp_path / "o")
    if words[0] == "--dates" and record is CHAT:
        assert code == 0
        return
    kind = "chats" if record is CHAT else "conversations in our own format"
    assert code == 2 and error.count("\n") == 1 and words[0] in error
    assert "is read only with tables" in error and f"x.jsonl holds {kind}" in error
    assert run("ingest", tmp_path / "x.jsonl", "--no-users", "--out", tmp_path / "o")[0] == 0


def test_prompts_and_completions(tmp_path):
    """What is trained as completions can be ingested, and screened."""
    prompt, completion = (
        [{"role": "user", "content": "Hi"}],
        [{"role": "assistant", "content": "Hello"}],
    )
    lines = [
        {"user": "ann", "prompt": "Hi", "completion": "Hello"},
        {"user": "ann", "prompt": prompt, "completion": completion},
    ]
    for lot in (lines[:1], lines[1:]):
        pq.write_table(pa.Table.from_pylist(lot), tmp_path / "p.parquet")
        ingest.ingest_sources([tmp_path / "p.parquet"], tmp_path / "o", force=True)
        assert say(tmp_path / "o") == [("row-1", "ann", ["user", "assistant"], ["Hi", "Hello"])]
    (tmp_path / "p.jsonl").write_text(json.dumps(lines[0]))
    named = {"text": "prompt", "user": "user"}  # a table, as it is told
    ingest.ingest_sources([tmp_path / "p.jsonl"], tmp_path / "t", columns=named)
    assert say(tmp_path / "t") == [("row-1", "ann", [""], ["Hi"])]


def test_a_text_file_says_what_is_a_message_and_may_have_one_a_line(tmp_path):
    (path := tmp_path / "m.txt").write_text("Hi, Ann here.\n\n My order is 7.\r\nThanks\n")
    hint = "read as one message of 3 lines; format='lines' makes each line a message"
    with pytest.raises(ValueError, match=f"m.txt: names no person; no_users=True .*{hint}"):
        ingest.ingest_sources([path], tmp_path / "o")
    made = ingest.ingest_sources([path], tmp_path / "o", no_users=True)
    assert f"m.txt: {hint}" in made.notes and made.facts.turns == 1
    made = ingest.ingest_sources([path], tmp_path / "p", no_users=True, format="lines")
    assert made.notes == ["m.txt: each line is read as one message"]
    assert [s[3] for s in say(tmp_path / "p")] == [
        ["Hi, Ann here."],
        ["My order is 7."],
        ["Thanks"],
    ]
    assert made.facts.users == 3 and made.facts.users_are == "thread"
    (tmp_path / "one.txt").write_text("a line\n")
    made = ingest.ingest_sources([tmp_path / "one.txt"], tmp_path / "q", no_users=True)
    assert made.notes == ["one.txt: read as one message of 1 line"]
    with pytest.raises(ValueError, match="is a folder, a file is needed"):
        ingest.ingest_sources([tmp_path], tmp_path / "r", no_users=True, format="lines")


def test_text_without_people(tmp_path):
    (tmp_path / "t").mkdir()
    for name in "ab":
        (tmp_path / f"t/{name}.txt").write_text(f"file {name}\n")
    (tmp_path / "t.jsonl").write_text('{"text": "a line"}\n')
    message = (
        "t: names no person; no_users=True counts each file as a person .each of its 2 files is"
    )
    with pytest.raises(ValueError, match=message):
        ingest.ingest_sources([tmp_path / "t"], tmp_path / "o", yes=True)
    sources = [tmp_path / "t", tmp_path / "t.jsonl"]
    summary = ingest.ingest_sources(sources, tmp_path / "o", yes=True, no_users=True)
    assert [s[3] for s in say(tmp_path / "o")] == [["file a"], ["file b"], ["a line"]]
    assert summary.facts.users_are == "thread" and summary.facts.users == 3
    assert all(row["user"] == row["id"] for row in stored(tmp_path / "o"))
    assert "each conversation counts as a user" in ingest.format_ingest_summary(summary)


@pytest.mark.parametrize("form", ["mbox", "eml"])
def test_mail(tmp_path, form):
    if form == "mbox":
        path = tmp_path / "in.mbox"
        path.write_bytes(b"\n".join(b"From - Mon Mar  2 10:00:00 2026\n" + mail for mail in MAIL))
    else:
        path = tmp_path / "mails"
        path.mkdir()
        for k, mail in enumerate(MAIL):
            (path / f"{k}.eml").write_bytes(mail)
    summary = ingest.ingest_sources([path], tmp_path / "o")
    assert say(tmp_path / "o") == [
        ("<1@x>", "ann@x.org", [""], ["My order is late."]),
        ("<1@x>~2", "bob@y.org", [""], ["We are sorry."]),
    ]
    assert summary.cut == 1 and summary.facts.first == "2026-03-02"
    first = stored(tmp_path / "o")[0]
    assert first["turns"][0]["time"].isoformat() == "2026-03-02T09:00:00+00:00"


def test_our_own_dialogues_keep_their_labels(tmp_path):
    record = {
        "id": "d",
        "user": "u",
        "turns": [{"speaker": "A", "text": "I am Ann.", "secrets": []}],
    }
    record["turns"].append({"speaker": "B", "text": "So?"})
    jsonl.write_jsonl(simulate_corpus(30, 0), tmp_path / "c.jsonl")
    with (tmp_path / "c.jsonl").open("a") as file:
        file.write(json.dumps(record))
    summary = ingest.ingest_sources([tmp_path / "c.jsonl"], tmp_path / "o")
    assert (
        corpora.read_corpus_at(tmp_path / "o").dialogues
        == corpora.read_corpus_at(tmp_path / "c.jsonl").dialogues
    )
    assert summary.facts.labelled == summary.facts.turns - 1
    assert summary.facts.sha256 == corpora.hash_corpus(tmp_path / "c.jsonl")


def test_threads_are_put_together_and_in_the_order_of_time(tmp_path):
    rows = [
        {"user": "u", "thread": t, "text": f"{t}{k}", "time": f"2026-01-0{k}T00:00:00"}
        for t, k in (("a", 3), ("b", 2), ("a", 1), ("b", 1), ("a", 2))
    ]
    ingest.ingest_sources([write_csv(tmp_path / "x.csv", rows)], tmp_path / "o", yes=True)
    assert [s[3] for s in say(tmp_path / "o")] == [["a1", "a2", "a3"], ["b1", "b2"]]


def test_a_thread_of_two_people_is_cut_and_ids_stay_unique(tmp_path):
    rows = [{"user": u, "thread": t, "text": u} for u, t in ("aT", "bT", ("c", "T~2"), "aT")]
    ingest.ingest_sources([write_csv(tmp_path / "x.csv", rows)], tmp_path / "o", yes=True)
    assert [s[:2] for s in say(tmp_path / "o")] == [("T", "a"), ("T~2", "b"), ("T~2~", "c")]


def test_a_person_is_called_like_a_conversation_only_where_nobody_is_known(tmp_path):
    """Else a person who is called so would be nobody to the registry, or somebody a person."""
    rows = [("7.0", "7"), ("Ann@x.org", "ann@x.org"), ("", "nobody"), ("bob", "t"), ("bob~", "bob")]
    rows = [{"user": user, "thread": thread, "text": "x"} for user, thread in rows]
    path = write_csv(tmp_path / "x.csv", rows)
    made = ingest.ingest_sources(
        [path], tmp_path / "o", yes=True, no_users=True, columns={"user": "user"}
    )
    read = corpora.read_corpus_at(tmp_path / "o").dialogues
    assert [(d.user, d.id) for d in read] == [
        ("7", "7~"), ("ann@x.org", "ann@x.org~"), ("nobody", "nobody"), ("bob", "t"),
        ("bob~", "bob"),
    ]  # fmt: skip
    assert made.facts.users_are == "thread"
    named = {
        unit for kind, unit in registry_units.hash_registry_units(tmp_path / "o") if kind == "user"
    }
    assert named == {identity.hash_text(name) for name in ("7", "ann@x.org", "bob", "bob~")}


def test_a_person_less_moves_no_message_to_another_person(tmp_path):
    """What nobody says who is named went to whoever spoke first in the thread: without that person
    all of it moved to the next one, of whom no promise said so."""
    rows = [("ann", "a1"), ("", "n1"), ("bob", "b1"), ("", "n2"), ("eve", "e1")]
    rows = [{"user": user, "thread": "T", "text": text} for user, text in rows]
    said = []
    for left_out in (None, "ann"):
        path = write_csv(tmp_path / "x.csv", [r for r in rows if r["user"] != left_out])
        ingest.ingest_sources(
            [path], tmp_path / "o", yes=True, no_users=True, columns={"user": "user"}, force=True
        )
        read = corpora.read_dialogues(tmp_path / "o")
        said.append({d.user: [t.text for t in d.turns] for d in read})
    ours = [{who: said_[who] for who in ("bob", "eve")} for said_ in said]
    assert ours == [{"bob": ["b1"], "eve": ["e1"]}] * 2


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "x.parquet"])
def test_names_that_match_no_role_are_not_quoted(tmp_path, name):
    """Fault: a first row that is no header was quoted where one cell looked like a name."""
    row = {"Rosebud": "a", "User": "b", "Ann Quux": "c d e f"}
    if name == "x.csv":
        write_csv(tmp_path / name, [row])
    elif name == "x.jsonl":
        (tmp_path / name).write_text(json.dumps(row))
    else:
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / name)
    for given, told in (
        ({}, "perhaps with the name of column 3"),
        ({"thread": "no"}, "no column 'no'"),
    ):
        with pytest.raises(ValueError, match="number 1, User, number 3") as error:
            ingest.ingest_sources([tmp_path / name], tmp_path / "o", columns=given)
        assert told in str(error.value) or name == "x.parquet"
        assert not {"Rosebud", "Quux"} & set(str(error.value).replace("'", " ").split())


BROKEN = {
    "empty.csv": (b"", "is empty; a header"),
    "header.csv": (b"user,body\n", "holds no message"),
    "two.csv": (b"user,body,content\na,b,c\n", "'body' and 'content' could both be the text; use"),
    "none.csv": (
        b"who,what\na,b\n",
        r"text or the person; use columns\['text'\] and columns\['user'\]",
    ),
    "data.csv": (b"a,4111 1111 1111 1111\nb,c\n", "first row does not look like a header"),
    "said.csv": (b"Ann Quux,my card\nb,c\n", "first row does not look like a header"),
    "words.csv": (b"agent,I lost my red card\nb,c\n", "first row does not look like a header"),
    "gap.csv": (b"user,body\nann,x\n,y\n", "gap.csv, row 3, column user: is empty; skip_bad="),
    "blank.csv": (
        b"user,body\nann, \n",
        "row 2, column body: is empty; skip_bad=True leaves it out",
    ),
    "cp.csv": (
        b"user,body\nann,caf\x81\n",
        r"cp.csv: is not UTF-8 \(byte 0x81 in row 2\); it looks.*: encoding='cp850'",
    ),
    "cells.csv": (b"user,body\nann,x\nbob\n", "row 3: has 1 cells, the header has 2"),
    "quote.csv": (b'user,body\nann,x\nbob,"y\n', "row 3: has a quote that is never closed"),
    "same.csv": (
        b"user,user,body\na,b,c\n",
        "columns 2 and 1 have the same name; rename={'2': 'NAME'}",
    ),
    "time.csv": (b"user,body,date\na,b,soon\n", "row 2, column date: is not a time"),
    "bad.jsonl": (b'{"user": "a", "text": "b"}\n{"user":', "bad.jsonl, row 2: is not JSON; skip"),
    "half.jsonl": (b'{"user": "a", "text": "\\ud800"}', "row 1, column text: holds half a surrog"),
    "list.jsonl": (b"[1]\n", "row 1: is not a JSON object"),
    "deep.jsonl": (b"[" * 100_000, "row 1: is not JSON"),
    "long.jsonl": (
        b'{"user": ' + b"1" * 5000 + b', "text": "b"}',
        "holds a number that is too long",
    ),
    "no.parquet": (b"PAR1 but no more", "is not a Parquet file, or is damaged"),
    "torn.csv.gz": (gzip.compress(b"user,body\n" + b"a,b\n" * 9999)[:60], "damaged gzip file"),
    "book.xlsx": (b"PK\x03\x04", "is an Excel file or an archive; save its table as CSV"),
    "x.json": (b"[{}]", "is one JSON value; write one object per line"),
    "x.bin": (b"\x00\x01", "its format is not known; use format"),
    "x.mbox": (b"hello", "is not an mbox"),
    "x.eml": (b"Subject: x\n\nhello", "row 1, column From: has no sender"),
    "image.eml": (b"From: a@b.c\nContent-Type: image/png\n\nx", "has no part with text"),
    "a.msg": (b"\xd0\xcf\x11\xe0", "is Outlook's own mail format; 'msgconvert FILE.msg'"),
    "a.zip": (b"PK\x03\x04", "is not a readable zip file"),
    "twice.jsonl": (
        b'{"id": "d", "user": "u", "turns": [{"speaker": "A", "text": "x"}]}\n' * 2,
        "row 2, column id: has an id that was used before",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_one_line_that_says_what_would_help(tmp_path, name):
    content, message = BROKEN[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        ingest.ingest_sources([tmp_path / name], tmp_path / "o", yes=True)
    said = str(error.value)
    assert "\n" not in said and name in said and "4111" not in said and "caf" not in said
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_another_codec_helps(tmp_path):
    path = write_csv(tmp_path / "x.csv", [{"user": "a", "body": "café"}], encoding="cp1252")
    ingest.ingest_sources([path], tmp_path / "o", yes=True, encoding="cp1252")
    assert say(tmp_path / "o")[0][3] == ["café"]
    with pytest.raises(ValueError, match=r"^encoding: 'foo' is not an encoding"):
        ingest.ingest_sources([path], tmp_path / "p", yes=True, encoding="foo")


def test_bad_rows_are_left_out_counted_and_listed(tmp_path):
    rows = [{"user": f"=u{k}", "body": "x"} for k in range(10)]
    rows[3]["body"], rows[5]["user"] = "", " "
    path = write_csv(tmp_path / "=mails.csv", rows)
    said = r"2 of 10 rows are bad \(1 no text, 1 no user\), a share of 0.2, more than max_bad=0.05"
    with pytest.raises(ValueError, match=said):
        ingest.ingest_sources([path], tmp_path / "o", yes=True, skip_bad=True)
    assert not (tmp_path / "o").exists()
    summary = ingest.ingest_sources([path], tmp_path / "o", yes=True, skip_bad=True, max_bad=0.2)
    assert summary.rejected == {"no text": 1, "no user": 1} and summary.facts.turns == 8
    with (tmp_path / "o/rejected.csv").open() as file:
        listed = list(csv.reader(file))
    assert listed == [
        ["file", "row", "column", "reason"],
        ["'=mails.csv", "5", "body", "no text"],
        ["'=mails.csv", "7", "user", "no user"],
    ]
    assert "left out 2: 1 no text, 1 no user" in ingest.format_ingest_summary(summary)


def test_a_guess_is_shown_and_asked_for(tmp_path):
    path, shown = write_csv(tmp_path / "x.csv"), []
    with pytest.raises(
        ValueError, match=r"than the guessed ones .user=customer thread=.*columns\['user'\]"
    ):
        ingest.ingest_sources([path], tmp_path / "o", ask=lambda line: bool(shown.append(line)))
    assert "user=customer" in shown[0]
    named = {"user": "customer", "thread": "ticket", "speaker": "sender", "text": "body"}
    ingest.ingest_sources([path], tmp_path / "o", columns=named)
    with pytest.raises(ValueError, match="has no column 'nobody'"):
        ingest.ingest_sources([path], tmp_path / "p", columns={"user": "nobody"})


def test_sender_is_the_speaker_where_another_column_is_the_user():
    found = columns.guess_columns(["Sender", "User-ID", "Text"], {}, where="x")
    assert (found["user"], found["speaker"]) == ("User-ID", "Sender")
    alone = columns.guess_columns(["Sender", "Text"], {}, where="x")
    assert alone == {"user": "Sender", "text": "Text"}


def test_the_same_again_is_up_to_date_and_another_input_needs_force(tmp_path):
    path = write_csv(tmp_path / "x.csv")
    first = ingest.ingest_sources([path], tmp_path / "o", yes=True)
    again = ingest.ingest_sources([path], tmp_path / "o", yes=True)
    assert again.up_to_date and again.facts == first.facts and again.rows == first.rows
    assert "o: up to date" in ingest.format_ingest_summary(again)
    with pytest.raises(ValueError, match="holds what 'crtlib ingest' made"):
        ingest.ingest_sources([path], tmp_path / "o", yes=True, limit=2)
    cut = ingest.ingest_sources([path], tmp_path / "o", yes=True, limit=2, force=True)
    assert cut.facts.turns == 2
    for out in (path, tmp_path, ""):
        with pytest.raises(ValueError, match=r"^out: "):
            ingest.ingest_sources([path], out, yes=True, force=True)


def test_all_files_are_private(tmp_path):
    before = os.umask(0o022)
    try:
        ingest.ingest_sources([write_csv(tmp_path / "x.csv")], tmp_path / "o", yes=True)
        corpus_folder.save_corpus(
            simulate_corpus(3, 0).dialogues,
            tmp_path / "s",
            command="simulate",
            options={},
            simulated=True,
        )
    finally:
        os.umask(before)
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "o").rglob("*")}
    assert all(m == (0o700 if p.is_dir() else 0o600) for p, m in modes.items()) and len(modes) == 6
    assert stat.S_IMODE((tmp_path / "o").stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "s").rglob("*") if p.is_file()} == {
        0o644
    }


@pytest.mark.parametrize(
    "option",
    [
        {"max_bad": 2},
        {"limit": 0},
        {"split": "a-b"},
        {"dates": "x"},
        {"format": "doc"},
        {"max_bad": float("nan")},
    ],
)
def test_options_outside_their_range_are_refused(tmp_path, option):
    with pytest.raises(ValueError, match=f"{next(iter(option))}.*must be"):
        ingest.ingest_sources([write_csv(tmp_path / "x.csv")], tmp_path / "o", yes=True, **option)
    with pytest.raises(ValueError, match=r"^sources: is missing"):
        ingest.ingest_sources([], tmp_path / "o")


@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "none.csv", "empty"])
def test_what_never_ends_is_refused_at_once(tmp_path, name, ends):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    path = tmp_path / name
    for read in (
        corpora.read_corpus_at,
        lambda p: ingest.ingest_sources([p], tmp_path / "o", yes=True),
    ):
        with pytest.raises(ValueError) as error:
            read(path)
        assert "\n" not in str(error.value)


def test_a_sparse_terabyte_is_refused_at_its_first_line(tmp_path, monkeypatch):
    monkeypatch.setattr("crtlib.files.MAX_LINE_LENGTH", 1 << 20)
    for name in ("x.jsonl", "x.csv"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 40)
    with pytest.raises(ValueError, match="line 1: is longer than 1 MiB"):
        corpora.read_corpus_at(tmp_path / "x.jsonl")
    for name in ("x.jsonl", "x.csv"):
        with pytest.raises(ValueError, match="line 1: is longer than 1 MiB"):
            ingest.ingest_sources([tmp_path / name], tmp_path / "o", yes=True, format=name[2:])


def test_a_file_of_another_form_is_told_the_command(tmp_path):
    path = write_csv(tmp_path / "mails.csv")
    message = f"is a CSV file; turn it into a corpus with crtlib ingest {path} --out DIR"
    with pytest.raises(ValueError, match=message):
        corpora.read_corpus_at(path)
    (spaced := tmp_path / "our talks.jsonl").write_text('{"user": "a", "text": "b"}\n')
    message = f"id, user and turns; turn the file into a corpus with crtlib ingest '{spaced}' --out"
    with pytest.raises(ValueError, match=message):
        corpora.read_corpus_at(spaced)
    (tmp_path / "book.xlsx").write_bytes(b"PK")
    with pytest.raises(ValueError, match="is an Excel file or an archive; save its table as CSV"):
        corpora.read_corpus_at(tmp_path / "book.xlsx")


def test_the_corpus_hash_is_of_the_text(tmp_path, monkeypatch):
    made = simulate_corpus(200, 0)
    one = corpus_folder.save_corpus(made.dialogues, tmp_path / "a", command="x", options={})
    monkeypatch.setattr(corpus_folder, "ROWS_PER_GROUP", 20)
    assert corpus_folder.save_corpus(made.dialogues, tmp_path / "b", command="x", options={}) == one
    assert corpora.read_corpus_at(tmp_path / "b").dialogues == made.dialogues
    unlabelled = [replace_secrets(d) for d in made.dialogues]
    assert corpus_folder.hash_dialogues(unlabelled) == one.sha256
    assert corpus_folder.hash_dialogues(made.dialogues[1:]) != one.sha256


def test_a_folder_of_several_files_and_a_further_column_is_read(tmp_path):
    """As a former version wrote it."""
    made = simulate_corpus(6, 0).dialogues
    with outputs.staged_folder(tmp_path / "o", command="ingest", options={}) as part:
        for k in range(2):
            corpus_folder.CorpusWriter(part, f"x{k}").add(
                pa.Table.from_pylist(
                    [jsonl.dialogue_to_json(d) for d in made[3 * k :][:3]],
                    corpus_folder.CORPUS_SCHEMA,
                )
            )
        files = sorted((part / "data").iterdir())
        for k, file in enumerate(files):
            table = pq.read_table(file).append_column("extra", pa.array([None] * 3, pa.string()))
            pq.write_table(table, part / f"data/train-{k:05d}-of-00002.parquet")
            file.unlink()
    assert tuple(corpus_folder.read_folder_dialogues(tmp_path / "o")) == made


def replace_secrets(d):
    return Dialogue(d.id, d.user, tuple(Turn(t.speaker, t.text) for t in d.turns))


def test_a_damaged_corpus_is_named(tmp_path):
    corpus_folder.save_corpus(
        simulate_corpus(5, 0).dialogues, tmp_path / "o", command="simulate", options={}
    )
    shard = tmp_path / "o/data/train-00000-of-00001.parquet"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + b"\x00")
    with pytest.raises(
        ValueError, match=r"parquet: does not match its SHA-256 in crtlib.json; make"
    ):
        corpora.read_corpus_at(tmp_path / "o")
    (tmp_path / "o/crtlib.json").unlink()
    with pytest.raises(ValueError, match=r"has no intact crtlib.json; it is unfinished"):
        corpora.read_corpus_at(tmp_path / "o")
    assert not corpora.is_corpus_available(tmp_path / "o")


def test_datasets_reads_the_folder_and_the_card_says_what_it_holds(tmp_path):
    made = simulate_corpus(20, 0)
    corpus_folder.save_corpus(
        made.dialogues, tmp_path / "o", command="simulate", options={}, simulated=True
    )
    front, body = (tmp_path / "o/README.md").read_text().split("---\n")[1:]
    assert yaml.safe_load(front)["configs"][0]["data_files"] == [
        {"split": "train", "path": "data/train-*.parquet"}
    ]
    assert "about nobody" in body
    described = json.loads((tmp_path / "o/croissant.json").read_text())
    assert described["conformsTo"] == "http://mlcommons.org/croissant/1.0"
    assert {f["name"] for f in described["recordSet"][0]["field"]} == {
        "id",
        "user",
        "turns",
    }
    shard = described["distribution"][0]
    assert shard["sha256"] == outputs.hash_file(tmp_path / "o" / shard["contentUrl"])
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    rows = datasets.load_dataset(
        str(tmp_path / "o"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert rows["id"] == [d.id for d in made.dialogues]
    assert [t["text"] for t in rows[3]["turns"]] == [t.text for t in made.dialogues[3].turns]


def test_a_private_corpus_says_so_on_its_card(tmp_path):
    ingest.ingest_sources([write_csv(tmp_path / "x.csv")], tmp_path / "o", yes=True)
    card = (tmp_path / "o/README.md").read_text()
    assert "holds personal text" in card and "x.csv" in card and "Ann" not in card


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-01-02", "2026-01-02T00:00:00+00:00"),
        ("2026-01-02 03:04:05.6", "2026-01-02T03:04:05.600000+00:00"),
        (1767312000, "2026-01-02T00:00:00+00:00"),
        ("1767312000000", "2026-01-02T00:00:00+00:00"),
        ("Fri, 02 Jan 2026 01:00:00 +0100", "2026-01-02T00:00:00+00:00"),
    ],
)
def test_times(value, expected):
    assert times.parse_time(value) == 1000 * datetime.fromisoformat(expected).timestamp()


@pytest.mark.parametrize(
    "value", ["soon", "99/99/9999", 1e300, "nan", float("inf"), [], True, "1" * 400]
)
def test_what_is_no_time_is_refused(value):
    with pytest.raises(ingest.BadRow):
        times.parse_time(value)


def seconds(work):
    started = time.process_time()
    work()
    return time.process_time() - started


@pytest.mark.parametrize("kind", ["long lines", "one thread", "many secrets", "mail"])
def test_twice_the_input_takes_twice_the_time(tmp_path, kind):
    """A line of a megabyte, a thread of thousands of turns, a turn of thousands of secrets."""

    def work(n):
        path = tmp_path / f"{n}.jsonl"
        if kind == "many secrets":
            spans = tuple(Secret("k", 2 * i, 2 * i + 1) for i in range(n))
            turn = Turn("A", "x " * n, spans)
            jsonl.write_jsonl(Corpus("c", (Dialogue("d", "u", (turn,)),)), path)
        elif kind == "mail":
            path = tmp_path / f"{n}.eml"
            path.write_bytes(b"From: a@b.c\n\nx\n" + b"> y wrote\n\n" * n)
        elif kind == "long lines":
            path.write_text(json.dumps({"user": "u", "text": "x é" * 60 * n}))
        else:
            rows = ({"user": "u", "thread": "t", "text": f"x{i}"} for i in range(n))
            path.write_text("\n".join(map(json.dumps, rows)))
        out = tmp_path / f"{n}-{time.monotonic_ns()}"
        ingest.ingest_sources([path], out, yes=True)
        corpora.read_corpus_at(out)

    work(100)
    sizes = 5_000, 20_000
    small, large = (min(seconds(lambda n=n: work(n)) for _ in range(2)) for n in sizes)
    assert large < 4 * 1.6 * small + 0.1


# --------------------------------------------------------------------------- the threads
def test_a_folder_of_rows_that_stays_is_told(tmp_path, monkeypatch):
    """It would be a part of the corpus that is written around it; the first error is told first."""

    def fail(*_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(sorted_rows.shutil.os, "rmdir", fail)
    for name, kind in (("a", OSError), ("b", KeyError)):
        with (
            pytest.raises(kind),
            sorted_rows.RowSorter(tmp_path / name, messages=message_forms.MESSAGE_SCHEMA),
        ):
            if kind is KeyError:
                raise KeyError


def test_what_duckdb_writes_is_private_and_gone_and_it_reads_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(sorted_rows, "DUCKDB_MEMORY_LIMIT", "100MB")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.csv").write_text("user,text\na,b\n")
    place = tmp_path / "threads"
    with sorted_rows.RowSorter(place, messages=message_forms.MESSAGE_SCHEMA) as sorter:
        rows = [(k, f"t{k // 9}", "u", "A", f"{k} " * 200, *[None] * 3) for k in range(60_000)]
        sorter.add("messages", rows)
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        assert [one.name for one in tmp_path.iterdir() if one != place] == ["other.csv"]
        for query in (
            "SELECT * FROM 'other.csv'",
            "SELECT * FROM read_text('other.csv')",
            "COPY messages TO 'out.csv'",
            "ATTACH 'out.db'",
            "INSTALL httpfs",
            "SET memory_limit = '1TB'",
        ):
            with pytest.raises(MachineError) as error:
                sorter.run(query)
            assert "\n" not in str(error.value) and "other" not in str(error.value)
        for query in (ingest._FILL_PERSONS_SQL, ingest._NAME_THREADS_SQL, ingest._SORT_TURNS_SQL):
            sorter.run(query)
        made, spilled = [], set()
        for (lot,) in sorter.run("SELECT DISTINCT lot FROM named ORDER BY lot"):
            made += [
                row
                for b in sorter.batches(ingest._LIST_TURNS_SQL.format(lot))
                for row in b.to_pylist()
            ]
            spilled |= set(place.iterdir())
        assert spilled
        assert [turn["text"] for row in made for turn in row["turns"]] == [row[4] for row in rows]
    assert [one.name for one in tmp_path.iterdir()] == ["other.csv"]


def test_little_memory_and_small_lots_make_the_same_corpus(tmp_path, monkeypatch):
    draw = random.Random(0)
    rows = [
        {"user": f"u{draw.randrange(40)}", "ticket": f"t{draw.randrange(300)}",
         "text": "x é\n" * draw.randrange(1, 400), "time": f"2026-01-{draw.randrange(1, 28):02d}"}
        for _ in range(4_000)
    ]  # fmt: skip
    path = write_csv(tmp_path / "x.csv", rows)
    plain = ingest.ingest_sources([path], tmp_path / "a", yes=True)
    monkeypatch.setattr(sorted_rows, "DUCKDB_MEMORY_LIMIT", "32MB")
    monkeypatch.setattr(sorted_rows, "FLUSH_BYTES", 1 << 16)
    small = ingest.ingest_sources([path], tmp_path / "b", yes=True)
    assert small.facts == plain.facts and small.cut == plain.cut > 100
    assert list(stored(tmp_path / "a")) == list(stored(tmp_path / "b"))
    times = [[t["time"] for t in row["turns"]] for row in stored(tmp_path / "a")]
    assert all(sorted(one) == one for one in times)


def test_what_a_screening_left_is_no_source(tmp_path, run):
    """A text that near duplicates were left out of became a corpus, and had a certificate."""
    jsonl.write_jsonl(simulate_corpus(12, 3, "rich"), tmp_path / "c.jsonl")
    words = ["--policy", "names", "--dedup-by", "near", "--out", tmp_path / "s"]
    assert run("screen", tmp_path / "c.jsonl", *words)[0] == 0
    part = next((tmp_path / "s" / "public" / "data").iterdir())
    for source in (tmp_path / "s", tmp_path / "s" / "public", part):
        code, _, error = run("ingest", source, "--yes", "--out", tmp_path / "again")
        assert code == 2 and "is what 'crtlib screen' left of a text" in error
        assert not (tmp_path / "again").exists()


def test_the_chapter_says_how_many_bad_rows_stop_the_command():
    """It said one in a hundred, where one in twenty is the default."""
    text = (Path(__file__).parents[2] / "notebooks" / "own_data.ipynb").read_text(encoding="utf-8")
    most = inspect.signature(data.ingest).parameters["max_bad"].default
    assert most == 1 / 20 and f"more than one in twenty (`--max-bad {most}`) still stop" in text
