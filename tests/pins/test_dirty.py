"""Dirty files give the rows, the rejects and the error lines that they gave.

Each file is ingested twice through the command line, in this process: as it is, where a bad row is
refused in one line, and with ``--skip-bad``, where it is listed. A corpus is compared row by row,
with its times; a refusal by its exit code and its line.
"""

import contextlib
import csv
import gzip
import io
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pyarrow.parquet as pq

from confide import __main__ as cli
from tests import pins

HEAD = "customer,ticket,sender,body,when\n"
GOOD = HEAD + (
    "ann,t1,customer,My name is Ann.,2026-03-02 10:00\n"
    'ann,t1,agent,"Hello,\n""Ann""!",2026-03-02 10:05\n'
    "bob,t2,customer,Grüße 😀,2026-03-03T09:00:00+02:00\n"
)
CHAT = {"id": "c1", "user": "ann", "messages": [{"role": "user", "content": "Hi"}]}
MAIL = (
    "From ann@x.org Mon Mar  2 10:00:00 2026\nFrom: Ann <Ann@x.org>\nMessage-ID: <1@x>\n"
    "Date: Mon, 02 Mar 2026 10:00:00 +0100\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\n"
    "Content-Type: text/plain; charset=utf-8\n\nMy order is late.\n>From here on.\n\n"
    "From bob@y.org Mon Mar  2 11:00:00 2026\nFrom: bob@y.org\nMessage-ID: <2@y>\n"
    "References: <1@x> <9@z>\n\nWe are sorry.\n\nOn Monday Ann wrote:\n> My order is late.\n\n"
    "From nobody Mon Mar  2 12:00:00 2026\nSubject: no sender\n\nWho am I?\n\n"
    "From c Mon Mar  2 12:00:00 2026\nFrom: c@z.org\nDate: yesterday\nMessage-ID: <3@z>\n"
    'Content-Type: multipart/mixed; boundary="b"\n\n--b\nContent-Type: text/html\n\n'
    "<p>Only <b>HTML</b></p>\n--b--\n"
)


def lines(*values: Any) -> str:
    """Values as JSON lines; a text stands as it is."""
    return "".join(f"{v if isinstance(v, str) else json.dumps(v)}\n" for v in values)


def rows(*more: str) -> str:
    """The good table with more lines."""
    return GOOD + "".join(f"{line}\n" for line in more)


FILES: dict[str, str | bytes] = {
    "good.csv": GOOD,
    "bom.csv": b"\xef\xbb\xbf" + GOOD.encode(),
    "utf16.csv": GOOD.encode("utf-16"),
    "utf32.csv": GOOD.encode("utf-32"),
    "latin1.csv": GOOD.replace("😀", "").encode("latin-1"),
    "crlf.csv": GOOD.replace("\n", "\r\n"),
    "cr.csv": GOOD.replace("\n", "\r"),
    "semicolons.csv": GOOD.replace("Hello,", "Hello").replace(",", ";"),
    "tabs.tsv": GOOD.replace(",", "\t"),
    "tabs.csv": GOOD.replace(",", "\t"),
    "pipes.csv": GOOD.replace(",", "|"),
    "packed.csv.gz": gzip.compress(GOOD.encode(), mtime=0),
    "cut.csv.gz": gzip.compress(GOOD.encode(), mtime=0)[:-20],
    "spaces.csv": rows("  ann  , t1 ,agent,  both sides  ,2026-03-04", "ann,t1,agent,\t,2026"),
    "blank.csv": rows("", "ann,t3,customer,after a blank line,2026-03-04", "", ""),
    "names.csv": GOOD.replace("customer,ticket", "Customer ID,Ticket-No", 1),
    "twice.csv": GOOD.replace("sender,body", "body,body", 1),
    "unnamed.csv": GOOD.replace("ticket", "", 1),
    "nobody.csv": GOOD.replace("customer,", "colour,", 1),
    "no-text.csv": GOOD.replace("body", "remark", 1),
    "no-header.csv": GOOD.removeprefix(HEAD),
    "header-alone.csv": HEAD,
    "empty.csv": "",
    "white.csv": " \n\n",
    "short.csv": rows("cat,t3,customer", "dan,t4,customer,fine,2026-03-04"),
    "long.csv": rows("cat,t3,customer,one,2026-03-04,too,many", "dan,t4,customer,fine,"),
    "times.csv": rows(
        *("e,t5,customer,no such day,2026-02-30", "e,t5,customer,a word,yesterday"),
        *("e,t5,customer,a number,1772445600", "e,t5,customer,milliseconds,1772445600000"),
        *("e,t5,customer,mail,\"Mon, 02 Mar 2026 10:00:00 +0100\"", "e,t5,customer,,02.03.2026"),
        *("e,t5,customer,ours,02.03.2026", "e,t5,customer,none,"),
    ),
    "no-user.csv": rows(",t6,customer,whose?,2026-03-04", "f,,customer,which?,2026-03-04"),
    "unclosed.csv": rows('g,t7,customer,"never closed,2026-03-04', "h,t8,agent,lost?,2026-03-04"),
    "inside.csv": rows('g,t7,customer,say "hi" now,2026-03-04', 'g,t7,agent,"a"b,2026-03-04'),
    "nul.csv": rows("i,t9,customer,nul\0byte,2026-03-04", "i,t9,agent,bell\a,2026-03-04"),
    "bytes.csv": GOOD.encode() + b"j,t10,customer,bad \xff byte,2026-03-04\n",
    "formula.csv": rows("=1+1,@t,customer,=cmd(),2026-03-04", "-2,+3,agent,@x,2026-03-04"),
    "two-people.csv": rows("k,t2,customer,same thread,2026-03-05", "l,t2,agent,third,2026-03-05"),
    "numbers.csv": "user,thread,text\n1,007,12\n1.0,1e3,NA\nnan,null,None\ntrue,-0,\n",
    "long-text.csv": rows("m,t11,customer," + "x" * 200_000 + ",2026-03-04"),
    "rows.jsonl": lines(
        *({"user": "a", "thread": "t", "text": "one"}, '{"user": "a", "thread": "t", "text":'),
        *("[1, 2]", "", {"user": "a", "thread": "t"}, {"user": 5, "thread": 6, "text": 7}),
        {"user": None, "thread": "t", "text": "x"},
        {"user": "b", "thread": "u", "text": "\ud800"},
        {"user": "b", "thread": "u", "text": "nested", "meta": {"a": [1, 2]}},
    ),
    "twice.jsonl": '{"user": "a", "thread": "t", "text": "one", "text": "two"}\n',
    "chats.jsonl": lines(
        *(CHAT, CHAT, CHAT | {"id": "c2", "messages": []}, CHAT | {"id": "c3", "messages": "Hi"}),
        *({"messages": CHAT["messages"]}, CHAT | {"id": "c4", "messages": [{"role": "user"}]}),
        CHAT | {"id": "c5", "messages": [{"role": "user", "content": [{"text": "parts"}]}]},
    ),
    "turns.jsonl": lines(
        {"id": "d1", "user": "a", "turns": [{"speaker": "USR", "text": "I am Ann.",
         "secrets": [{"kind": "name", "start": 5, "end": 8}]}]},
        {"id": "d2", "user": "a", "turns": [{"speaker": "USR", "text": "Hi",
         "secrets": [{"kind": "name", "start": 5, "end": 8}]}]},
        {"id": "d3", "turns": [{"speaker": "USR", "text": "nobody"}]},
    ),
    "one.json": json.dumps([CHAT]),
    "mails.mbox": MAIL,
    "none.mbox": MAIL.replace("From ", "To ", 1),
    "one.eml": MAIL.partition("\n")[2].partition("\n\nFrom bob")[0],
    "plain.txt": "First paragraph\nof two lines.\n\nSecond.\n\n\n  \nThird\f page.",
    "sheet.xlsx": b"PK\x03\x04rest",
    "what.dat": b"\x00\x01\x02",
}  # fmt: skip
MORE: dict[str, tuple[str, ...]] = {
    "latin1.csv": ("--encoding", "cp1252"),
    "no-text.csv": ("--text", "remark"),
    "nobody.csv": ("--no-users",),
    "numbers.csv": ("--user", "user", "--thread", "thread", "--text", "text"),
    "plain.txt": ("--no-users",),
    "good.csv": ("--limit", "2"),
}
"""Options that a file is read with as well."""


def command(*argv: object) -> tuple[int, str, str]:
    """Call the command line in this process: exit code, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["crtlib", *map(str, argv)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as end:
            return int(end.code or 0), out.getvalue(), err.getvalue()
    raise AssertionError("the command line ends with an exit code")


def ingest(file: Path, out: Path, *options: str) -> dict[str, Any]:
    """What comes of a file: its rows and rejects, or the line that refuses it."""
    code, _, said = command("ingest", file, "--out", out, *options)
    if code:
        assert not out.exists()
        return {"code": code, "says": said.replace(str(file.parent), "HOME").strip()}
    shards = sorted(out.glob("data/*.parquet"))
    read = [row for shard in shards for row in pq.read_table(shard).to_pylist()]
    with (out / "rejected.csv").open(encoding="utf-8", newline="") as rejected:
        return {
            "rows": json.loads(json.dumps(read, default=str)),
            "rejected": [*csv.reader(rejected)],
        }


def make() -> dict[str, Any]:
    every = {}
    with TemporaryDirectory() as home:
        for name, content in FILES.items():
            file = Path(home, name)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
            ways = {"strict": ("--yes",), "skipping": ("--yes", "--skip-bad", "--max-bad", "1")}
            if name in MORE:
                ways["with options"] = (*ways["skipping"], *MORE[name])
            for way, options in ways.items():
                every[f"{name} {way}"] = ingest(file, Path(home, f"{name}-{way}"), *options)
    for result in every.values():  # of a long text its length and its end
        for turn in (t for row in result.get("rows", ()) for t in row["turns"]):
            if len(turn["text"]) > 1000:
                turn["text"] = [len(turn["text"]), turn["text"][-20:]]
    return every


def test_a_dirty_file_gives_the_rows_and_the_rejects_that_it_gave():
    pins.same("dirty")


def test_the_pin_has_corpora_rejects_and_refusals_without_a_traceback():
    pinned = pins.read("dirty")
    assert {name.rpartition(" ")[0] for name in pinned} >= {*FILES} and len(FILES) > 30
    refused = [result["says"] for result in pinned.values() if "says" in result]
    assert len(refused) > 20 and not any("Traceback" in line for line in refused)
    assert sum(len(result.get("rejected", ())) > 1 for result in pinned.values()) > 10
    assert sum(len(result.get("rows", ())) > 1 for result in pinned.values()) > 40
