"""What comes in through the commands: eight formats, broken files, and several workers."""

import csv
import gzip
import json
import mailbox
import os
import subprocess
import sys
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from confide import commands
from confide.release import released_folder
from crtlib.text import corpora, corpus_folder, jsonl
from crtlib.text.customersim import simulate_corpus

ROWS = [
    {"customer": "ann", "ticket": f"t{i // 2}", "sender": "SYS" if i % 2 else "USR",
     "body": f"Grüße, my order is {1000 + i}."}
    for i in range(8)
]  # fmt: skip
MAIL = (
    b"From: ann@x.org\nMessage-ID: <1@x>\nDate: Mon, 02 Mar 2026 10:00:00 +0100\n"
    b"Content-Type: text/plain; charset=utf-8\n\nMy order is late.\n"
)


def table(path, delimiter=",", rows=ROWS):
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def dialogue(texts):
    turns = [{"speaker": "USR", "text": text} for text in texts]
    return {"id": "d", "user": "ann", "turns": turns}


def chat(texts):
    return {"user": "ann", "messages": [{"role": "user", "content": text} for text in texts]}


def box(path):
    made = mailbox.mbox(path)
    made.add(MAIL)
    made.flush()


TEXTS = [row["body"] for row in ROWS]
FORMATS = {
    "csv": table,
    "tsv": lambda path: table(path, "\t"),
    "parquet": lambda path: pq.write_table(pa.Table.from_pylist(ROWS), path),
    "jsonl": lambda path: path.write_text(json.dumps(dialogue(TEXTS)) + "\n"),
    "messages.jsonl": lambda path: path.write_text(json.dumps(chat(TEXTS)) + "\n"),
    "mbox": box,
    "eml": lambda path: path.write_bytes(MAIL),
    "txt": lambda path: path.write_text("\n".join(TEXTS)),
}


@pytest.mark.parametrize("name", FORMATS)
def test_eight_formats_come_in(run, tmp_path, name):
    FORMATS[name](tmp_path / f"in.{name}")
    more = ["--no-users"] if name == "txt" else []
    code, out, err = run(
        "ingest", tmp_path / f"in.{name}", "--yes", *more, "--out", tmp_path / "corpus"
    )
    assert code == 0, err
    read = [t.text for d in corpora.read_dialogues(tmp_path / "corpus") for t in d.turns]
    short = {"mbox": ["My order is late."], "eml": ["My order is late."]}
    assert "".join(read).split() == "".join(short.get(name, TEXTS)).split() or name == "txt"
    assert f"turns {len(read):,}" in out and read


GOOD = json.dumps(dialogue(["hello"])).encode()
BROKEN = {
    "empty.csv": (b"", "in.empty.csv: "),
    "headers.csv": (b"customer,ticket,body\n", "holds no message"),
    "latin.csv": ("customer,body\nann,Gr\u00fc\u00dfe\n".encode("cp850"), "--encoding cp850"),
    "short.csv": (b"customer,body\nann\n", "row 2"),
    "nouser.csv": (b"customer,body\n,hello\n", "row 2, column customer: is empty"),
    "guess.csv": (b"customer,body,content\nann,a,b\n", "use --text"),
    "quote.csv": (b'customer,body\nann,"open\n', "row 2"),
    "fake.parquet": (b"PAR1junkPAR1", "in.fake.parquet: "),
    "half.jsonl": (GOOD[:40], "row 1"),
    "twice.jsonl": (GOOD + b"\n" + GOOD + b"\n", "row 2"),
    "torn.jsonl.gz": (gzip.compress(GOOD)[:-9], "damaged gzip"),
    "nothing.mbox": (b"no mail at all\n", "in.nothing.mbox"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_twelve_broken_files_are_one_line_that_would_help(run, tmp_path, name):
    content, helps = BROKEN[name]
    (tmp_path / f"in.{name}").write_bytes(content)
    before = sorted(tmp_path.iterdir())
    code, out, err = run("ingest", tmp_path / f"in.{name}", "--yes", "--out", tmp_path / "corpus")
    assert code == 2 and not out and err.startswith("crtlib: error: ") and err.count("\n") == 1
    assert helps in err and f"in.{name}" in err and "hello" not in err
    assert sorted(tmp_path.iterdir()) == before


def made(run, source, home, *where):
    """What ingest, screen and report make: the corpus hash, the public part, the exact scores."""

    def done(*words):
        code, _, err = run(*words, *(where if words[0] != "ingest" else ()))
        assert code == 0, err

    corpus, out = source / "c.jsonl", home / "s"
    done("ingest", f"{source}/in.csv", "--yes", "--out", f"{home}/corpus")
    done("screen", corpus, "--policy", "cautious", "--keep-ids", "--out", out)
    done("report", f"{source}/model", "--corpus", corpus, "--reveal", "--out", f"{home}/r")
    return [
        corpora.hash_corpus(f"{home}/corpus"),
        (home / "s" / PUBLIC).read_bytes(),
        (home / "r" / "sequences.parquet").read_bytes(),
    ]


PUBLIC = "public/data/train-00000-of-00001.parquet"


@pytest.fixture
def source(run, tmp_path):
    """A folder with a table, a corpus, a list of secrets and a model."""
    folder = tmp_path / "source"
    folder.mkdir()
    table(folder / "in.csv", rows=ROWS * 700)
    (folder / "names.txt").write_text("express delivery\n")
    corpus, train = folder / "c.jsonl", ["--method", "sgd", "--epochs", 1, "--width", 8]
    assert run("simulate", "--dialogues", 40, "--out", corpus)[0] == 0
    assert run("train", corpus, *train, "--out", folder / "model")[0] == 0
    return folder


def test_two_processes_make_the_same(run, source, tmp_path):
    alone = made(run, source, tmp_path / "alone")
    assert made(run, source, tmp_path / "pool", "--workers", 2) == alone


def test_one_worker_is_this_process():
    with commands.worker_pool(1) as none:
        assert none is None


THREADS = """
from confide import commands
def product(n):
    import torch
    return float((torch.ones(n, n) @ torch.ones(n, n)).mean()), torch.get_num_threads()
if __name__ == "__main__":
    assert product(500) == (500, 2)
    with commands.worker_pool(2) as pool:
        assert pool.submit(product, 500).result() == (500, 1)
"""


def test_workers_end_though_torch_had_threads_before_they_began(tmp_path):
    (tmp_path / "threads.py").write_text(THREADS)
    about = os.environ | {"OMP_NUM_THREADS": "2", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, tmp_path / "threads.py"]
    done = subprocess.run(command, env=about, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_simulated_corpus_is_a_dataset_with_a_card(run, tmp_path):
    words = ["simulate", "--dialogues", 12]
    assert run(*words, "--out", tmp_path / "d")[0] == 0
    assert run("simulate", "--dialogues", 12, "--out", tmp_path / "c.jsonl")[0] == 0
    assert corpora.hash_corpus(tmp_path / "d") == corpora.hash_corpus(tmp_path / "c.jsonl")
    assert corpus_folder.read_corpus_summary(tmp_path / "d").policy == "regex:customersim"
    assert "Simulated: it is about nobody." in (tmp_path / "d" / "README.md").read_text()
    words = ["convert", "customersim", "--limit", 3]
    assert run(*words, "--out", tmp_path / "e")[0] == 0
    assert corpus_folder.read_corpus_summary(tmp_path / "e").threads == 3


def test_a_person_is_the_unit_from_screening_to_the_certificate(run, tmp_path):
    corpus = tmp_path / "c.jsonl"
    people = [
        replace(d, user=f"u{i % 40}") for i, d in enumerate(simulate_corpus(120, 0).dialogues)
    ]
    jsonl.write_jsonl(people, corpus)
    code, out, err = run(
        "screen", corpus, "--unit", "user", "--policy", "regex:customersim", "--out", tmp_path / "s"
    )
    assert code == 0 and "users 40 · duplicates 0 · private 40" in out, err
    longest = max(sum(len(d.turns) for d in people if d.user == f"u{k}") for k in range(40))
    train = ["train", tmp_path / "s", "--epochs", 1, "--width", 8, "--out", tmp_path / "m"]
    assert run(*train)[0] == 0
    code, _, err = run("certify", tmp_path / "m", "--out", tmp_path / "c.html")
    made = json.loads((tmp_path / "c.json").read_text())
    assert (code, made["unit"], made["verdict"]) == (0, "user", "holds"), err
    (held,) = (
        dict(s.holds)
        for s in released_folder.read_release(tmp_path / "m").sources
        if s.kind == "noised"
    )
    assert held == {"turn": longest, "dialogue": 3}
    words = ["report", tmp_path / "m", "--corpus", tmp_path / "s", "--out", tmp_path / "r"]
    assert run(*words)[0] == 0
    nobody = [replace(people[0], user="")]
    jsonl.write_jsonl(nobody, tmp_path / "n.jsonl")
    code, _, err = run("screen", tmp_path / "n.jsonl", "--unit", "user", "--out", tmp_path / "x")
    assert code == 2 and err.count("\n") == 1
