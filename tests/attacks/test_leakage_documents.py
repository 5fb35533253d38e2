"""Documents that memory does not hold: what a list says, in a file that nobody finds."""

import sqlite3

import numpy as np
import pytest

from crtlib import cli
from crtlib.attacks.leakage import Document, DocumentStore


def documents(count, size=6):
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 9, size=n).tolist() for n in rng.integers(1, size, size=count)]
    return [Document(f"u{k % 7}", f"{k}/0", t, (("id", 0, 1),) * (k % 2)) for k, t in
            enumerate(texts)]  # fmt: skip


def test_it_says_what_a_list_says():
    rows, held = documents(50), DocumentStore()
    for cut in (rows[:20], [], rows[20:21], rows[21:]):
        held.extend(cut)
        list(held)  # what is read between says nothing about what comes
    assert len(held) == 50 and [held[i] for i in range(-50, 50)] == 2 * rows
    assert list(held) == rows
    both = zip(held, held, strict=True)  # each reads for itself
    assert all(a == b for a, b in both)
    with pytest.raises(IndexError):
        held[50]


def test_nobody_else_finds_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    held = DocumentStore()
    held.extend(documents(2000, 2000))  # more than is held in memory
    assert held[1999] and not list(tmp_path.iterdir())


def test_a_full_disk_is_no_defect():
    held = DocumentStore()
    held._rows.execute("pragma max_page_count = 5")
    with pytest.raises(sqlite3.OperationalError) as error:
        held.extend(documents(2000, 200))
    assert cli.describe_failure(error.value).code == cli.EXIT_MACHINE_FAULT
