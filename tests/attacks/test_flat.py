"""Arrays in a file: what lists of arrays say, across the pieces in which they are read."""

import errno
import os
import tempfile
from functools import partial

import numpy as np
import pytest

from crtlib.attacks import texts
from crtlib.attacks.texts import Flat
from crtlib.checks import MachineError


@pytest.mark.parametrize("read", [1, 2, 7, 10**6])
def test_it_says_what_a_list_says(monkeypatch, read):
    monkeypatch.setattr(texts, "READ", read)
    rng = np.random.default_rng(0)
    rows = [rng.integers(-9, 9, size=n).astype(np.int64) for n in rng.integers(0, 6, size=50)]
    held = Flat(np.int64)
    for cut in (rows[:20], [], rows[20:21], rows[21:]):
        held.extend(cut)
        list(held)  # what is read between says nothing about what comes
    places = range(-50, 50)
    assert len(held) == 50 and [held[i].tolist() for i in places] == 2 * [x.tolist() for x in rows]
    for ours in (list(held), held[:]):
        assert [x.tolist() for x in ours] == [x.tolist() for x in rows]
    assert [x.tolist() for x in held[45::2]] == [x.tolist() for x in rows[45::2]]
    with pytest.raises(IndexError):
        held[50]


def test_nobody_else_finds_the_file():
    held = Flat(np.uint8)
    held.extend([np.frombuffer(b"a secret", dtype=np.uint8)])
    assert os.fstat(held._file.fileno()).st_nlink == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_is_said_by_the_name_of_its_folder(monkeypatch):
    monkeypatch.setenv("TMPDIR", "/some/folder")
    monkeypatch.setattr(tempfile, "TemporaryFile", partial(open, "/dev/full", "wb"))
    with pytest.raises(MachineError, match=r"^TMPDIR=/some/folder: no space left on device; "):
        Flat(np.int32).extend([[1, 2, 3]])


def test_no_folder_at_all_is_said(monkeypatch):
    def none():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in [...]")

    monkeypatch.setattr(tempfile, "TemporaryFile", none)
    with pytest.raises(MachineError, match=r"^TMPDIR=.*: no such file or directory; "):
        Flat(np.int32)
