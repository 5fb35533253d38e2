"""Exports as other systems write them: ingested with no option, or with the one that is named."""

import csv
import json
import random
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from confide.text import ingest, times
from crtlib.text import corpora, corpus_folder
from crtlib.text.customersim import simulate_corpus

START = datetime(2026, 3, 2, 8, tzinfo=UTC)
NOW = datetime.now(UTC)
TALK = simulate_corpus(120, 0).dialogues
MESSAGES = [
    (d.user, d.id, turn.speaker, turn.text, START + timedelta(hours=k, minutes=n))
    for k, d in enumerate(TALK)
    for n, turn in enumerate(d.turns)
]
"""Person, conversation, speaker, text and time of each message."""
WHOLE = [(d.user, [(t.speaker, " ".join(t.text.split())) for t in d.turns]) for d in TALK]


def read(place):
    """The conversations of a corpus, as ``WHOLE`` has them."""
    return [
        (d.user, [(t.speaker, " ".join(t.text.split())) for t in d.turns])
        for d in corpora.read_corpus_at(place).dialogues
    ]


def mbox(path, *, references=True):
    """Mails of customers, and of two who answer; threads lie mixed, as they came in."""
    lines = []
    by_time = sorted(range(len(MESSAGES)), key=lambda k: (MESSAGES[k][4].minute, k))
    for k in by_time:
        user, thread, speaker, text, time = MESSAGES[k]
        sender = f"{user}@mail.example"
        if speaker == "SYS":
            sender = random.Random(k).choice(["Help <Help@shop.example>", "eve@desk.shop.example"])
        number = time.minute
        lines += [
            "From - Mon Mar  2 10:00:00 2026",
            f"From: {sender}",
            f"Message-ID: <{thread}.{number}@x>",
        ]
        if number:
            lines.append(f"In-Reply-To: <{thread}.{number - 1}@x>")
            if references:
                lines.append(f"References: <{thread}.0@x> <{thread}.{number - 1}@x>")
        lines += [f"Date: {time:%a, %d %b %Y %H:%M:%S +0000}", "", text, ""]
    path.write_text("\n".join(lines))
    return path


def table(path, header, rows, *, again=0, encoding="utf-8"):
    """A German table: semicolons, and the header once more every ``again`` rows."""
    with path.open("w", encoding=encoding, newline="") as file:
        writer = csv.writer(file, delimiter=";")
        for k, row in enumerate(rows):
            if k == 0 or (again and k % again == 0):
                writer.writerow(header)
            writer.writerow(row)
    return path


def german(path, **how):
    rows = [(u, t, s, x, f"{w:%d.%m.%Y %H:%M}") for u, t, s, x, w in MESSAGES]
    random.Random(0).shuffle(rows)
    return table(path, ("Kunde", "Ticket-Nr.", "Von", "Nachricht", "Datum"), rows, **how)


def whole(place):
    """The corpus holds each conversation once, in its order, and nothing else."""
    assert sorted(read(place)) == sorted(WHOLE)


@pytest.fixture
def take(run):
    """``crtlib ingest`` of a file: its exit code, and all that it printed."""

    def call(*words):
        code, *said = run("ingest", "--yes", *words)
        return code, "".join(said)

    return call


@pytest.mark.parametrize("references", [True, False])
def test_a_mailbox_with_agents(tmp_path, take, references):
    path = mbox(tmp_path / "in.mbox", references=references)
    code, said = take(path, "--out", tmp_path / "halves")
    assert code == 0 and f"cut by person: {len(TALK)}" in said and "--agents" in said
    code, said = take(
        path,
        "--out",
        tmp_path / "o",
        "--agents",
        "help@shop.example,@desk.shop.example",
    )
    assert code == 0 and f"conversations {len(TALK):,}" in said and "cut" not in said
    got = [(user.removesuffix("@mail.example"), turns) for user, turns in read(tmp_path / "o")]
    assert sorted(got) == sorted((user.lower(), turns) for user, turns in WHOLE)
    assert corpus_folder.read_corpus_summary(tmp_path / "o").users_are == "column"


def test_agents_in_a_table_and_a_name_that_nobody_has(tmp_path):
    rows = [("ann", 1, "a"), ("Eve", 1, "b"), ("bob", 1, "c"), ("Eve", 2, "d"), ("ann", 1, "e")]
    path = table(tmp_path / "x.csv", ("Nutzer", "Vorgang", "Inhalt"), rows)
    with pytest.raises(ValueError, match=r"^agents: none of these wrote"):
        ingest.ingest_sources([path], tmp_path / "o", yes=True, agents=["adam"])
    made = ingest.ingest_sources([path], tmp_path / "o", yes=True, agents=["eve"])
    assert read(tmp_path / "o") == [
        ("ann", [("USR", "a"), ("USR", "e")]),
        ("1~2", [("SYS", "b")]),  # whose it is nobody can tell: the conversation counts as a person
        ("bob", [("USR", "c")]),
        ("2", [("SYS", "d")]),
    ]
    assert made.cut == 1 and made.facts.users_are == "thread"
    with pytest.raises(ValueError, match=r"^agents: .* left out with no_users=True"):
        ingest.ingest_sources([path], tmp_path / "p", yes=True, agents=["eve"], no_users=True)


def test_a_german_table_with_repeated_headers(tmp_path, take):
    path = german(tmp_path / "export.csv", again=100, encoding="utf-8-sig")
    code, said = take(path, "--out", tmp_path / "o")
    assert code == 0 and "2026-03-02 to 2026-03-07" in said and "the header again" in said
    whole(tmp_path / "o")
    german(path, again=100, encoding="cp1252")
    with path.open("ab") as file:
        file.write("eva;x;USR;Grüße;07.03.2026 23:59 Uhr\r\n".encode("cp1252"))
    code, said = take(path, "--out", tmp_path / "p")
    assert code == 0 and "export.csv: read as cp1252; --encoding sets another" in said
    assert read(tmp_path / "p")[-1][1] == [("USR", "Grüße")]


def test_two_columns_of_one_name(tmp_path, take):
    rows = [(u, t, s, x, f"{w:%Y-%m-%d %H:%M}", "2026-01-01") for u, t, s, x, w in MESSAGES]
    path = table(tmp_path / "x.csv", ("user", "thread", "role", "text", "date", "date"), rows)
    code, said = take(path, "--out", tmp_path / "o")
    assert code == 2 and "columns 6 and 5 have the same name; --rename 6=NAME" in said
    code, _ = take(path, "--out", tmp_path / "o", "--rename", "6=printed")
    assert code == 0
    whole(tmp_path / "o")
    for wrong in ("7=x", "date=x", "6=user"):
        code, said = take(path, "--out", tmp_path / "p", "--rename", wrong)
        assert code == 2 and "--rename" in said and said.count("\n") == 1
    code, said = take(mbox(tmp_path / "a.mbox"), "--out", tmp_path / "p", "--rename", "6=x")
    assert code == 2 and "--rename: is for columns of csv and tsv" in said


def test_one_row_of_a_hundred_is_broken(tmp_path, take):
    path = german(tmp_path / "x.csv")
    lines = path.read_bytes().splitlines(keepends=True)
    broken = range(50, len(lines), 100)
    ways = [b"only;two\r\n", b'a;b;c;"x" y;02.03.2026\r\n', b"a;b;c;;02.03.2026\r\n"]
    ways += [b";b;c;x;02.03.2026\r\n", b"a;b;c;x;soon\r\n", b"a;b;c;\xff;02.03.2026\r\n"]
    for n, k in enumerate(reversed(broken)):
        lines.insert(k, ways[n % len(ways)])
    path.write_bytes(b"".join(lines))
    code, said = take(path, "--out", tmp_path / "o")
    assert code == 2 and "--skip-bad leaves it out" in said
    code, said = take(path, "--out", tmp_path / "o", "--skip-bad")
    assert code == 0 and f"left out {len(broken)}" in said
    whole(tmp_path / "o")
    with (tmp_path / "o/rejected.csv").open() as file:
        listed = list(csv.DictReader(file))
    rows = [k + 1 + n for n, k in enumerate(broken)]
    assert [int(row["row"]) for row in listed] == rows and all(row["reason"] for row in listed)
    assert {row["reason"] for row in listed} == {
        *("another number of columns", "a broken quote", "no text"),
        *("no user", "no time", "not UTF-8"),
    }


def test_rows_without_a_person_count_by_their_thread(tmp_path):
    rows = [("ann", 1, "a"), ("", 1, "b"), ("", 2, "c"), ("", 2, "d")]
    path = table(tmp_path / "x.csv", ("user", "thread", "text"), rows)
    told = r"skip_bad=True leaves it out, columns\['user'\]='user', no_users=True counts"
    with pytest.raises(ValueError, match=told):
        ingest.ingest_sources([path], tmp_path / "o", yes=True)
    made = ingest.ingest_sources(
        [path], tmp_path / "o", yes=True, columns=dict(user="user"), no_users=True
    )
    assert read(tmp_path / "o") == [
        ("ann", [("", "a"), ("", "b")]),
        ("2", [("", "c"), ("", "d")]),
    ]
    assert made.facts.users_are == "thread" and made.facts.users == 2


NOON = 1_773_748_800_000  # 17 March 2026, 12:00 UTC
NIGHT = NOON - 12 * 3_600_000


@pytest.mark.parametrize(
    ("text", "dates", "found"),
    [
        ("17.03.2026 12:00", "auto", NOON),
        ("17.3.26, 12:00:00 Uhr", "auto", NOON),
        ("2026/03/17 12:00", "auto", NOON),
        ("17/03/2026 12:00", "dmy", NOON),
        ("03/17/2026 12:00 PM", "mdy", NOON),
        ("3-17-2026 12:00 a.m.", "mdy", NIGHT),
        ("17.03.2026", "mdy", NIGHT),
        ("Tue, 17 Mar 2026 12:00:00 +0000", "dmy", NOON),
        ("2026-03-17T12:00", "mdy", NOON),
    ],
)
def test_dates_of_other_countries(text, dates, found):
    assert times.parse_time(text, dates=dates) == found


@pytest.mark.parametrize(
    ("time", "read"),
    [
        *(("31.12.99", "1999-12-31"), ("31/12/70 23:59", "1970-12-31T23:59")),
        *((f"1.1.{year % 100:02d}", f"{year}-01-01") for year in (2000, 2026, NOW.year + 1)),
        *((time, "2026-01-01T12:00") for time in ("20260101120000", 202601011200, "202601011200")),
        *((time, "2026-01-01") for time in ("20260101", 20260101, 20260101.0)),
        *((time, "2026-01-01T10:00") for time in ("46023.4166666667", 46023.416666666664)),
        *(("46023", "2026-01-01"), (915148800000, "1999-01-01"), (915148800, "1999-01-01")),
    ],
)
def test_a_time_is_not_misread_in_silence(time, read):
    """Fault: these were in 2099, 2612 and 1970, and a certificate showed them as from and to."""
    try:
        found = datetime.fromtimestamp(times.parse_time(time, dates="dmy") / 1000, UTC)
    except ingest.BadRow:
        found = None
    assert found == datetime.fromisoformat(read).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    "time",
    [
        *("1969-12-31", f"{NOW.year + 2}-01-01", "1.1.1900", "9999-12-31T23:59:59", "0026-01-01"),
        *("1969-12-31T23:59:59Z", "Fri, 02 Jan 1931 01:00:00 +0100", -1, 1e15, 2**40 * 4),
        *("9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00+14:00", "99999999999999"),
        *(
            f"1.1.{(NOW.year + 2) % 100:02d}",
            "1.1.69",
            datetime(1900, 1, 1),
            datetime(2099, 1, 1),
            "99991231235959",
        ),
    ],
)
def test_a_time_that_no_message_can_have_is_refused(time):
    try:
        says = str(times.parse_time(time, dates="dmy"))
    except ingest.BadRow as bad:
        says = bad.reason
    assert says in ("an implausible time", "no time")


@pytest.mark.parametrize(
    "text",
    [
        "1.2.3",
        "1.2.999",
        "20261399",
        "1234567",
        "31.02.2026",
        "17.03.2026 25:00",
        "17.13.2026",
        "1.2",
        "17.03/2026",
    ],
)
def test_no_dates(text):
    with pytest.raises(ingest.BadRow):
        times.parse_time(text, dates="dmy")


def test_a_date_that_may_be_two_is_asked_for(tmp_path, take):
    path = table(tmp_path / "x.csv", ("user", "text", "time"), [("a", "b", "3/4/2026")])
    code, said = take(path, "--out", tmp_path / "o")
    assert code == 2 and "column time: begins with day or month: use --dates dmy or mdy" in said
    for how, first in (("dmy", "2026-04-03"), ("mdy", "2026-03-04")):
        code, _ = take(path, "--out", tmp_path / how, "--dates", how)
        assert code == 0 and corpus_folder.read_corpus_summary(tmp_path / how).first == first
    code, said = take(path, "--out", tmp_path / "o", "--dates", "ymd")
    assert code == 2 and "dates='ymd': must be 'auto', 'dmy' or 'mdy'" in said


def test_the_recipe_for_intercom_leaves_nothing_encoded(tmp_path, take):
    """Fault: it left "O&#39;Neill", which is on no list of names."""
    page = (Path(__file__).parents[2] / "book/exports.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"```python\n(import json\n.*?)```", page, re.S)
    (tmp_path / "intercom.py").write_text(recipe)
    ann, help_ = {"type": "user", "id": "u1"}, {"type": "admin", "id": "a1"}
    parts = [
        {"author": help_, "created_at": 1772445660, "body": "<p>Hello<br>Pat</p>"},
        {"author": ann, "created_at": 1772445661, "body": "<img src='x'>"},
        {"author": ann, "created_at": 1772445662, "body": None},
    ]
    talk = {
        "id": "7",
        "created_at": 1772445600,
        "source": {"author": ann, "body": "I am <b>O</b>&#39;Neill, born&nbsp;1990"},
        "conversation_parts": {"conversation_parts": parts},
    }
    (tmp_path / "7.json").write_text(json.dumps(talk))
    words = [sys.executable, tmp_path / "intercom.py", tmp_path / "7.json"]
    made = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    (tmp_path / "intercom.jsonl").write_text(made)
    code, said = take(tmp_path / "intercom.jsonl", "--out", tmp_path / "o")
    assert code == 0 and "2026-03-02" in said and "still look like" not in said
    assert read(tmp_path / "o") == [
        ("u1", [("USR", "I am O'Neill, born 1990"), ("SYS", "Hello Pat")])
    ]


def test_messages_that_are_still_encoded_are_counted(tmp_path, take):
    """No policy finds a secret in them, so all is public; it was said of quotations alone."""
    encoded = ["O&#39;Neill", "<p>Ann</p>", "An=\nna", "=C3=89va", "QW5uYSBTbWl0aCwgb2YgVWxt" * 3]
    plain = ["1 < 2 & 3; x=y", "https://x.org/?a=b&c=d;", "ab" * 40]
    rows = [("u", text) for text in encoded + plain]
    path = table(tmp_path / "x.csv", ("user", "text"), rows)
    code, said = take(path, "--out", tmp_path / "o")
    assert code == 0 and "still look like HTML, quoted-printable or base64: 5\n" in said
