"""No record ends a run, and no line of a mail vanishes or goes to another person."""

import json
import subprocess
import sys
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from confide.text import ingest, mail
from crtlib.text import corpora, jsonl

GOOD = "From a@b.org Mon Mar  2 10:00:00 2026\nFrom: a@b.org\nMessage-ID: <{k}@b>\n\nMail {k}.\n\n"
CANARY = "Zebulon"


def box(path, *raw):
    """Twenty good mails, and others between them."""
    mails = [GOOD.format(k=k) for k in range(20)]
    at = "From x Mon Mar  2 10:00:00 2026\n"
    path.write_text("".join([*mails[:10], *(at + one + "\n\n" for one in raw), *mails[10:]]))
    return path


def said(folder):
    return [(d.user, t.text) for d in corpora.read_corpus_at(folder).dialogues for t in d.turns]


def take(path, out, **how):
    return ingest.ingest_sources([path], out, yes=True, **how)


WORD = "=?utf-8?b?a?="
NESTED = "".join(f'Content-Type: multipart/mixed; boundary="b{k}"\n\n--b{k}\n' for k in range(3000))
BROKEN = {
    "From": f"From: {WORD} <z@b.org>\n\n{CANARY}",
    "Date": f"From: z@b.org\nDate: {WORD}\n\n{CANARY}",
    "References": f"From: z@b.org\nReferences: {WORD} <1@b>\n\n{CANARY}",
    "Message-ID": f"From: z@b.org\nMessage-ID: {WORD}\n\n{CANARY}",
    "comments": f"From: {'(' * 20_000}\n\n{CANARY}",
    "multipart": f"From: z@b.org\n{NESTED}{CANARY}",
    "charset": f"From: z@b.org\nContent-Type: text/plain; charset=\xff\n\n{CANARY}",
    "encoding": f"From: z@b.org\nContent-Transfer-Encoding: uuencode\n\nbegin 666 x\n{CANARY}",
    "nothing": "",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_mail_is_a_row(tmp_path, kind):
    summary = take(box(tmp_path / "in.mbox", BROKEN[kind]), tmp_path / "o", skip_bad=True)
    assert summary.rows == 21 and sum(summary.rejected.values()) <= 1
    assert sum(user == "a@b.org" for user, _ in said(tmp_path / "o")) == 20
    assert CANARY not in (tmp_path / "o" / "rejected.csv").read_text()
    if summary.rejected:
        with pytest.raises(
            ValueError, match=r"in.mbox, row 11.*skip_bad=True leaves it out"
        ) as error:
            take(tmp_path / "in.mbox", tmp_path / "p")
        assert CANARY not in str(error.value) and not (tmp_path / "p").exists()


def test_lines_that_begin_with_from_stay_with_who_wrote_them(tmp_path):
    raw = (
        "From: ann@x.org\nMessage-ID: <1@x>\n\nHe said:\n>From my heart, 4111 1111 1111 1111\n\n"
        "From now on use it.\nFrom: boss@corp.org\n\nFrom 2026 on.\n>>From deeper\nbye\n"
    )
    summary = take(box(tmp_path / "in.mbox", raw), tmp_path / "o", skip_bad=True, max_bad=1)
    ann = [text for user, text in said(tmp_path / "o") if user == "ann@x.org"]
    assert ann == [
        "He said:\nFrom my heart, 4111 1111 1111 1111\n\nFrom now on use it.\n"
        "From: boss@corp.org\n\nFrom 2026 on.\nbye"
    ]
    assert summary.quoted == 1 and not any(u == "boss@corp.org" for u, _ in said(tmp_path / "o"))


@pytest.mark.parametrize(
    ("line", "begins"),
    [
        ("From ann@x.org Mon Mar  2 10:00:00 2026", True),
        ("From - Tue Apr  5 12:00:00 2011", True),
        ("From MAILER-DAEMON Fri Jul  8 12:08:34 2011 +0100", True),
        ("From ann@x.org Mon Mar  2 10:00:00 2026 CEST\r", True),
        ("From now on use it.", False),
        ("From: ann@x.org", False),
        ("From 2026", False),
    ],
)
def test_what_begins_a_mail(line, begins):
    assert bool(mail._SEPARATOR_LINE.fullmatch(line.encode() + b"\n")) == begins


def test_senders_without_an_address_are_told_apart(tmp_path):
    raws = ("From: eric at cloud.com\n\nOne.", "From: eric at sea.org\n\nTwo.")
    take(box(tmp_path / "in.mbox", *raws), tmp_path / "o")
    users = {user for user, _ in said(tmp_path / "o")}
    assert users == {"a@b.org", "eric at cloud.com", "eric at sea.org"}


@pytest.mark.parametrize(
    "time", ["9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00+14:00", "9" * 40, "1e308"]
)
def test_a_time_that_no_calendar_has_is_a_bad_row(tmp_path, time):
    path = tmp_path / "never.csv"
    path.write_text(f"user,text,time\nann,hello,{time}\nbob,hi,2026-03-02\n")
    summary = take(path, tmp_path / "o", skip_bad=True, max_bad=0.5)
    assert sum(summary.rejected.values()) == 1 == summary.facts.turns
    assert set(summary.rejected) <= {"no time", "an implausible time"}


def parquet(path, **columns):
    base = {"user": ["ann", "bob"], "text": ["hello", "hi"]}
    pq.write_table(pa.table({**base, **columns}), path)
    return path


FAR = pa.array(np.array([2**62, 0]), pa.timestamp("us"))


def test_a_column_that_nobody_asks_for_is_not_read(tmp_path):
    path = parquet(tmp_path / "in.parquet", printed=FAR, day=pa.array([2**30, 0], pa.date32()))
    assert take(path, tmp_path / "o").facts.turns == 2


def test_a_far_date_in_a_column_that_is_read_is_a_bad_row(tmp_path):
    path = parquet(tmp_path / "in.parquet", time=FAR)
    summary = take(path, tmp_path / "o", skip_bad=True, max_bad=0.5)
    assert dict(summary.rejected) == {"no time": 1} and summary.facts.turns == 1
    assert said(tmp_path / "o") == [("bob", "hi")]


def test_strings_that_are_no_utf_8_are_bad_rows(tmp_path):
    broken = pa.array([b"\xff", b"hi"]).cast(pa.binary())
    text = pa.StringArray.from_buffers(2, broken.buffers()[1], broken.buffers()[2])
    path = parquet(tmp_path / "in.parquet", text=text)
    summary = take(path, tmp_path / "o", skip_bad=True, max_bad=0.5)
    assert dict(summary.rejected) == {"not UTF-8": 1}


def test_two_columns_of_one_name_are_refused(tmp_path):
    table = pa.table([["ann"], ["one"], ["two"]], names=["user", "text", "text"])
    pq.write_table(table, tmp_path / "in.parquet")
    with pytest.raises(ValueError, match="columns 2 and 3 have the same name"):
        take(tmp_path / "in.parquet", tmp_path / "o")


def test_whatever_a_record_raises_is_named_by_its_number():
    def fail(error):
        raise error

    for error in (RecursionError(), OverflowError(CANARY), TypeError(), KeyError(CANARY)):
        number, bad = jsonl.read_record(3, fail, error)
        assert number == 3 and bad.reason == "cannot be read" and CANARY not in str(bad)
    for error in (OSError(5, "disk"), MemoryError()):
        with pytest.raises(type(error)):
            jsonl.read_record(3, fail, error)


def test_a_date_of_another_type_is_read(tmp_path):
    path = parquet(tmp_path / "in.parquet", time=[date(2026, 3, 2), None])
    assert take(path, tmp_path / "o").facts.turns == 2


@pytest.mark.parametrize(
    "name", ["base64", "rot13", "zip", "no such", "a\x1bb", "idna", "punycode"]
)
def test_an_encoding_that_is_none_of_texts_is_one_line(tmp_path, name):
    path = tmp_path / "in.csv"
    path.write_bytes(b"user,text\nann,gr\xc3\xbc\xff\n")
    with pytest.raises(ValueError, match=r"\bencoding\b") as error:
        take(path, tmp_path / "o", encoding=name)
    assert str(error.value).isprintable() and not (tmp_path / "o").exists()


LABEL_OUTSIDE = {"kind": "name", "start": 0, "end": 99}
OUTSIDE = {
    "id": "d",
    "user": "u",
    "turns": [{"speaker": "A", "text": "hi", "secrets": [LABEL_OUTSIDE]}],
}


def test_a_label_outside_its_text_is_one_line(tmp_path):
    """Fault: its error and pydantic's held each other, which Python cannot free; so DuckDB's
    connection was never closed, and wrote some 40 lines about that."""
    (tmp_path / "x.jsonl").write_text(json.dumps(OUTSIDE))
    words = [sys.executable, "-m", "confide", "ingest", tmp_path / "x.jsonl", "--yes"]
    done = subprocess.run([*words, "--out", tmp_path / "o"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "must lie inside its text of 2 characters" in done.stderr
