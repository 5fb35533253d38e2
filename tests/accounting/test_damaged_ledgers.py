"""What lost its beginning or its end says so, and a key that others know is refused."""

import errno
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from confide import odometer, odometer_lines, text_registry
from confide.release import seal
from crtlib import files, outputs
from crtlib.accounting.events import SampledGaussian
from crtlib.checks import DamagedError

SPEND = {"unit": "turn", "method": "crt", "relation": "replace", "screening": "5" * 64,
         "gamma": 0.05, "delta2": 0.01, "holds": {}, "void": ()}  # fmt: skip
STEPS = (SampledGaussian(0.01, 1.0, 100),)


@pytest.fixture
def ledger(tmp_path):
    """An odometer with two lines, its key, and a registry that knows them."""
    folder, registry = tmp_path / "c.odometer", text_registry.Registry(tmp_path / "registry")
    registry.register("c" * 64, [("dialogue", "d")])
    for run in "ab":
        odometer.add_entry(folder, registry=registry, corpus="c" * 64, run=run, state="started",
                           events=STEPS, **SPEND)  # fmt: skip
    seal.ensure_signing_key(folder)
    return folder, registry


def empty(path):
    path.write_bytes(b"")


def execute(*statements):
    def change(path):
        with sqlite3.connect(path) as base:
            for statement in statements:
                base.execute(statement)
        base.close()

    return change


LOST = {
    "no bytes": empty,
    "no lines": execute("DELETE FROM lines"),
    "no table": execute("DROP TABLE lines"),
    "no head": execute("DELETE FROM head"),
    "a cut tail": execute("DELETE FROM lines WHERE n = (SELECT max(n) FROM lines)"),
    "half a file": lambda path: path.write_bytes(path.read_bytes()[:2048]),
    "text that is no UTF-8": execute(
        "UPDATE lines SET content = CAST(CAST(content AS BLOB) || x'ff' AS TEXT)"
    ),
}


@pytest.mark.parametrize("how", LOST)
def test_a_ledger_that_lost_its_head_is_damaged(ledger, run, how):
    folder, registry = ledger
    LOST[how](folder / "ledger.sqlite")
    with pytest.raises(DamagedError):
        odometer.read_entries(folder)
    with pytest.raises(DamagedError):
        odometer.add_entry(folder, registry=registry, corpus="c" * 64, run="z", state="started",
                           events=STEPS, **SPEND)  # fmt: skip
    code, out, err = run("account", "--odometer", folder)
    assert (code, out) == (3, "") and err.count("\n") == 1 and "about" not in err, err


@pytest.mark.parametrize("how", ["no bytes", "no lines", "no table", "a cut tail", "half a file"])
def test_a_registry_that_lost_lines_is_damaged(ledger, how):
    folder, registry = ledger
    LOST[how](registry.path)
    with pytest.raises(DamagedError):
        registry.entries()
    with pytest.raises(DamagedError):
        odometer.add_entry(folder, registry=registry, corpus="c" * 64, run="z", state="started",
                           events=STEPS, **SPEND)  # fmt: skip


def test_what_was_killed_before_its_first_line_goes_on(tmp_path):
    for name in ("c.odometer/ledger.sqlite", "registry/registry.sqlite"):
        (tmp_path / name).parent.mkdir(mode=0o700)
        (tmp_path / name).write_bytes(b"")
    registry = text_registry.Registry(tmp_path / "registry")
    registry.register("c" * 64)
    odometer.add_entry(tmp_path / "c.odometer", registry=registry, corpus="c" * 64, run="a",
                       state="started", events=STEPS, **SPEND)  # fmt: skip
    assert len(odometer.read_entries(tmp_path / "c.odometer")) == len(registry.entries()) == 1


def test_a_ledger_of_before_has_no_count_and_is_read(ledger):
    folder, _ = ledger
    execute("DROP TRIGGER c", "DROP TABLE counted")(folder / "ledger.sqlite")
    assert len(odometer.read_entries(folder)) == 2
    odometer.add_entry(folder, corpus="c" * 64, run="z", state="started", events=STEPS, **SPEND)
    execute("DELETE FROM lines WHERE n = 3")(folder / "ledger.sqlite")
    with pytest.raises(DamagedError):
        odometer.read_entries(folder)


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o604, 0o602])
def test_a_key_that_others_know_is_refused(ledger, tmp_path, mode):
    folder, registry = ledger
    report = tmp_path / "out"
    key = report / "key"
    with outputs.staged_folder(report, command="x", options={}, key="key"):
        pass
    for path, call in (
        (folder / "signing.key", lambda: seal.ensure_signing_key(folder)),
        (registry.folder / "key", lambda: registry.register("d" * 64)),
        (key, lambda: make_again(report)),
    ):
        os.chmod(path, mode)
        with pytest.raises(ValueError, match=rf"{path.name}: is open to others .*{mode:o}.* 600"):
            call()
        os.chmod(path, 0o600)
        call()


def make_again(folder):
    with outputs.staged_folder(folder, command="x", options={}, key="key", force=True):
        pass


def test_a_folder_in_which_others_write_is_refused(ledger):
    folder, registry = ledger
    for path in (folder, registry.folder):
        os.chmod(path, 0o777)
        with pytest.raises(ValueError, match="is open to others"):
            odometer.add_entry(folder, registry=registry, corpus="c" * 64, run="z",
                               state="started", events=STEPS, **SPEND)  # fmt: skip
        os.chmod(path, 0o700)


def test_what_belongs_to_another_user_is_refused(ledger, monkeypatch):
    folder, _ = ledger
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    if os.getuid():
        with pytest.raises(ValueError, match="belongs to another user"):
            seal.ensure_signing_key(folder)
    else:
        os.chown(folder, 65534, 65534)
        with pytest.raises(ValueError, match="belongs to another user"):
            files.check_owned(folder)


@pytest.mark.parametrize(
    ("name", "number"),
    [("SQLITE_FULL", errno.ENOSPC), ("SQLITE_IOERR_WRITE", errno.EIO),
     ("SQLITE_READONLY_DBMOVED", errno.EIO), ("SQLITE_CANTOPEN", errno.EIO)],
)  # fmt: skip
def test_a_full_or_broken_disk_below_a_ledger_is_the_machines_fault(tmp_path, name, number):
    error = odometer_lines._named_error(tmp_path / "ledger.sqlite", name)
    assert isinstance(error, OSError) and error.errno == number


def test_the_first_error_is_told_and_no_row_is_quoted(tmp_path):
    path = tmp_path / "c.odometer" / "ledger.sqlite"
    with pytest.raises(OSError, match="first"), odometer_lines.open_transaction(path) as base:
        base.execute("ROLLBACK")  # as SQLite does where the disk is full
        raise OSError(errno.ENOSPC, "first")


def test_a_ledger_that_is_gone_is_not_made_anew(ledger):
    folder, registry = ledger
    (folder / "ledger.sqlite").unlink()
    with pytest.raises(DamagedError):
        odometer.add_entry(folder, registry=registry, corpus="c" * 64, run="z", state="started",
                           events=STEPS, **SPEND)  # fmt: skip
    assert not (folder / "ledger.sqlite").exists()


def test_a_link_to_nothing_is_no_odometer(tmp_path):
    """It is refused before a training is opened, and where it is read."""
    place = tmp_path / "c.odometer"
    place.symlink_to("nowhere")
    for refuse in (odometer.read_entries, odometer_lines.refuse_no_folder):
        with pytest.raises(ValueError, match=r"c\.odometer is a link to nothing"):
            refuse(place)


def test_a_registry_whose_maker_died_before_its_first_line_is_none(tmp_path):
    """The next certificate was void: "registry.sqlite is damaged"."""
    registry = text_registry.Registry(tmp_path / "registry")
    registry.folder.mkdir(mode=0o700)
    registry.path.touch(mode=0o600)
    assert registry.entries() == [] and registry.count_forgotten_texts("a") == 0
    assert list(registry.find_related_texts("a")) == ["a"]
    (registry.folder / odometer_lines.REGISTRY_KEY_FILE).touch(mode=0o600)
    with pytest.raises(DamagedError):
        registry.entries()


def test_a_signing_key_has_one_name(tmp_path, monkeypatch):
    """Where the name that it was written under stays, as a disk breaks, it is told."""
    folder = tmp_path / "c.odometer"
    folder.mkdir(mode=0o700)
    unlink = Path.unlink

    def fail(path, missing_ok=False):
        if path.name.endswith(".part"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return unlink(path, missing_ok)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="Input/output"):
        patch.setattr(Path, "unlink", fail)
        seal.ensure_signing_key(folder)
    seal.ensure_signing_key(folder)  # given again, it sweeps
    assert [path.name for path in folder.iterdir()] == ["signing.key"]
    shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    seal.ensure_signing_key(folder)
    assert [path.name for path in folder.iterdir()] == ["signing.key"]
