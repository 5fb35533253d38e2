"""A command that dies before any of its calls to the disk, one after the other, and runs again."""

import builtins
import io
import json
import os
import re
import shutil
import sqlite3

import pytest

from confide import odometer, spending, text_registry
from confide.release import certify
from confide.reports import screening_page  # noqa: F401
from confide.training import train_on_corpus  # noqa: F401 (imported once, before forks)
from crtlib.text import customersim, jsonl
from tests.kills import __main__ as kills

CALLS = ("open", "replace", "rename", "unlink", "remove", "mkdir", "rmdir", "fsync", "chmod",
         "write", "symlink", "link", "truncate", "ftruncate")  # fmt: skip
"""Of :mod:`os`, those that change what is on the disk."""
KILLED = 77


def counted(die, out):
    """Count calls that change the disk, and leave at once before the one with the number ``die``;
    ``out`` is then told how many there were."""
    told, made = {"calls": 0}, sqlite3.connect

    def before():
        told["calls"] += 1
        if told["calls"] == die:
            os._exit(KILLED)

    def wrapped(real):
        def call(*args, **named):
            before()
            return real(*args, **named)

        return call

    def opened(real):
        def call(file, mode="r", *args, **named):
            if set(mode) & set("wax+"):
                before()
            return real(file, mode, *args, **named)

        return call

    class Connection(sqlite3.Connection):
        execute = wrapped(sqlite3.Connection.execute)
        executemany = wrapped(sqlite3.Connection.executemany)
        close = wrapped(sqlite3.Connection.close)

    real = {name: getattr(os, name) for name in CALLS}
    for name in CALLS:
        setattr(os, name, wrapped(real[name]))
    builtins.open = io.open = opened(builtins.open)
    sqlite3.connect = lambda *args, **named: made(*args, factory=Connection, **named)
    leave = os._exit

    def exit_(code):
        handle = real["open"](out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        real["write"](handle, str(told["calls"]).encode())
        leave(code)

    os._exit = lambda code: leave(code) if code == KILLED else exit_(code)


def commands(home):
    """Each command by name, on a corpus or a model in the folder that it is given."""
    tiny = ("--unit", "turn", "--epochs", 2, "--width", 4, "--repeatable-noise")
    return {
        "train": kills._command("train", "{home}/c.jsonl", *tiny, "--out", "{home}/m"),
        "screen": kills._command("screen", "{home}/c.jsonl", "--policy", "regex:customersim",
                                 "--keep-ids", "--out", "{home}/s"),  # one order in each
        "certify": kills._command("certify", "{home}/m", "--out", "{home}/m/page.html", "--for",
                                  "officer", "--secrets-per-person", 2, "--force"),
    }  # fmt: skip


def prepared(home, name, model):
    """A folder with what the command reads, and a registry of its own."""
    home.mkdir()
    jsonl.write_jsonl(customersim.simulate_corpus(14, 0, "paper"), home / "c.jsonl")
    if name == "certify":
        for end in ("m", "m.work"):
            shutil.copytree(model / end, home / end)
    os.environ["CRTLIB_REGISTRY"] = str(home / "registry")
    return home


def called(job, home, die=0):
    """Run a command in a fork that dies before call ``die``; its exit code, and its calls."""

    def watched(*places):
        counted(die, home.parent / "calls")
        job(*places)

    code = kills.finish(kills.start(watched, home, home))
    return code, int((home.parent / "calls").read_text()) if code != KILLED else die


def names(home):
    return sorted(str(p.relative_to(home)) for p in home.rglob("*") if p.name != "log")


def kept(home):
    """What is compared: all files but keys and ledgers, of which the lines are looked at; without
    times, and hashes that a key has made."""
    every = {}
    for name, value in kills.content(home).items():
        if isinstance(value, dict) or name.endswith(".html"):
            text = json.dumps(value) if isinstance(value, dict) else value.decode()
            value = re.sub(VARIES, "#", text)
        every[name] = value
    return {n: v for n, v in every.items() if not re.search("odometer|registry|key$|log$", n)}


VARIES = r"\b[0-9a-f]{8,}(\b|…)|\d{4}-\d\d-\d\dT[\d:]+Z|\"(sha256|key)\": \"[^\"]*\""


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A model of the operating system's noise, to certify."""
    home = tmp_path / "made"
    home.mkdir()
    monkeypatch.setenv("CRTLIB_REGISTRY", str(home / "registry"))
    jsonl.write_jsonl(customersim.simulate_corpus(14, 0, "paper"), home / "c.jsonl")
    words = ("train", "{home}/c.jsonl", "--unit", "turn", "--epochs", 1, "--width", 4)
    assert called(kills._command(*words, "--out", "{home}/m"), home)[0] == 0
    return home


@pytest.fixture
def warm(tmp_path, monkeypatch):
    """Each command once in this process, so that its forks import and compute nothing again."""
    home = prepared(tmp_path / "warm", "train", None)
    for job in commands(home).values():
        with pytest.raises(SystemExit), monkeypatch.context() as patch:
            patch.setattr("sys.argv", [])
            job(home, home)


@pytest.mark.parametrize("name", ["train", "screen", "certify"])
def test_who_dies_before_any_call_to_the_disk_goes_on(tmp_path, warm, model, name):
    job = commands(tmp_path)[name]
    whole = prepared(tmp_path / "whole", name, model)
    code, calls = called(job, whole)
    assert code == 0, (whole / "log").read_text()
    assert calls > 20
    for die in range(1, calls + 1):
        home = prepared(tmp_path / "again", name, model)
        code, _ = called(job, home, die)
        assert code == KILLED, (die, (home / "log").read_text())
        code, _ = called(job, home)
        said = (home / "log").read_text()
        done = code == 2 and "is a finished model" in said
        assert code == 0 or done, (die, said)
        assert names(home) == names(whole), die
        one, other = kept(whole), kept(home)
        assert [n for n in one if one[n] != other[n]] == [], die
        if name == "train":
            ledger(home, die)
        if name == "certify":
            assert (
                certify.compare_certificate_with_run(home / "m", home / "m" / "page.html")[0]
                is None
            ), die
        shutil.rmtree(home)


def ledger(home, die):
    """One run is finished, in both ledgers; another counts only if it was killed after it had begun
    and before its first checkpoint."""
    (folder,) = home.glob("*.odometer")
    beside, registry = (
        odometer.read_entries(folder),
        text_registry.Registry(home / "registry").entries(),
    )
    for entries in (beside, registry):
        assert len({e.run for e in entries if e.state == "finished"}) == 1, die
        assert len({e.model for e in entries if e.state == "finished"}) == 1, die
        assert len({e.run for e in entries}) <= 2, die
    assert {e.run for e in beside} <= {e.run for e in registry}, die
    whole = spending.read_odometer_history(
        folder, text_registry.Registry(home / "registry")
    ).spent()
    assert len(whole.entries) == len({e.run for e in registry}), die


@pytest.mark.parametrize("together", [2, 4])
def test_trainings_at_once_are_one_ledger_with_the_right_sums(tmp_path, together, monkeypatch):
    monkeypatch.setenv("CRTLIB_REGISTRY", str(tmp_path / "registry"))
    jsonl.write_jsonl(customersim.simulate_corpus(14, 0, "paper"), tmp_path / "c.jsonl")
    words = ("train", "{home}/c.jsonl", "--unit", "turn", "--epochs", 2, "--width", 4)
    running = [
        kills.start(kills._command(*words, "--out", "{out}"), tmp_path, tmp_path / f"m{k}")
        for k in range(together)
    ]
    assert [kills.finish(pid) for pid in running] == [0] * together, (tmp_path / "log").read_text()
    (folder,) = tmp_path.glob("*.odometer")
    registry = text_registry.Registry(tmp_path / "registry")
    for entries in (odometer.read_entries(folder), registry.entries()):
        states = [(e.run, e.state) for e in entries]
        assert len(states) == len(set(states)) == 2 * together
    steps = [e.steps for e in odometer.read_entries(folder)[0].events]
    before = []
    for k in range(together):
        record = json.loads((tmp_path / f"m{k}.work" / "record.json").read_text())
        spent = spending.read_odometer_history(folder, registry, record["odometer"]["run"]).spent(
            record["odometer"]["run"]
        )
        assert sum(e.steps for e in spent.events) == spent.protected_run_count * sum(steps)
        before.append(spent.protected_run_count)
    assert sorted(before) == list(range(together))
