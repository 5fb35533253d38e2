"""Nothing leaks, nothing is lost: modes, full disks, hostile folders, codes, threads."""

import contextlib
import errno
import json
import os
import re
import resource
import shutil
import stat
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool

import pytest
import torch
from safetensors.torch import load_file

from confide import __main__ as cli
from confide.commands import COMMANDS
from crtbook import __main__ as companion
from crtbook import runs
from crtbook.runner import sweep
from crtbook.study import Store
from crtlib import cli as runner
from crtlib.checks import DamagedError, MachineError
from crtlib.models import model_folder
from crtlib.options import CommandResult
from crtlib.screening import tagger
from crtlib.studies import study_run
from crtlib.text import customersim, jsonl
from tests import modes
from tests.fuzz import values
from tests.kills.__main__ import CRT


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A corpus and a tiny trained model."""
    home = tmp_path_factory.mktemp("home")
    jsonl.write_jsonl(customersim.simulate_corpus(12, 0, "paper"), home / "c.jsonl")
    fitted = study_run.fit_study(CRT.ready())
    runs.save_run(fitted.run, fitted.data.tokenizer, fitted.spec, home / "model")
    return home


# --------------------------------------------------------------------------- codes
def memory_error_of_torch():
    """What PyTorch raises where the host has no memory: a message of 200,000 letters asked for 37
    GB, and ended in a traceback."""
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**50)
    return raised.value


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ValueError("c.csv, row 2: is empty; --skip-bad"), 2, "c.csv, row 2: is empty; --skip-bad"),
        (PermissionError(errno.EACCES, "x", "a/b"), 2, "a/b: permission denied"),
        (OSError(errno.EDQUOT, "x", "a"), 3, "a: disk quota exceeded; free some, then run the "
         "same command again"),
        (DamagedError("a: does not match; make it again"), 3, "a: does not match; make it again"),
        (MachineError("1 of 2 runs are done"), 3, "1 of 2 runs are done"),
        (BrokenProcessPool(), 3, "workers: one died (killed, or out of memory); what was finished "
         "is kept: run the same command again"),
        (MemoryError(), 3, "memory: there is not enough; try less at a time"),
        (memory_error_of_torch(), 3, "memory: there is not enough; try less at a time"),
        (torch.OutOfMemoryError("CUDA"), 3, "memory: there is not enough; try less at a time"),
        (KeyError("a defect of ours"), None, None),
    ],
)  # fmt: skip
def test_each_fault_is_a_sentence_with_its_exit_code(run, monkeypatch, error, code, text):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(cli.CRTLIB_PROGRAM, "main", fails)
    if code is None:
        with pytest.raises(KeyError):
            cli.main()
        return
    assert run("x") == (code, "", f"crtlib: error: {text}\n")
    ended, out, _ = run("x", "--json")
    facts = json.loads(out)
    assert ended == code == facts.pop("code")
    parts = facts["where"], facts["what"], facts["hint"]
    assert ": ".join(filter(None, parts[:2])) + (f"; {parts[2]}" * bool(parts[2])) == text
    assert (facts["schema"], facts["ok"]) == ("crtlib/error/1", False)


@pytest.mark.parametrize(
    ("facts", "code", "said"),
    [
        ({"a": float("inf")}, 0, {"ok": True, "a": "inf"}),
        ({"ok": False, "b": [float("nan")]}, 4, {"ok": False, "b": [None]}),
    ],
)
def test_every_command_answers_as_one_object_and_may_say_no(capsys, facts, code, said):
    def demo():
        print("a note", file=sys.stderr)
        return CommandResult(facts, ["a line"])

    command = runner.Command(cli.CRTLIB_PROGRAM, "demo", demo)
    for words, out, err in (
        (["--json", "--quiet"], said, ""), (["--json"], said, "a note\n"), (["--quiet"], None, ""),
        ([], "a line\n", "a note\n"),
    ):  # fmt: skip
        assert command.main(words, standalone_mode=False) == code
        shown = capsys.readouterr()
        assert shown.err == err
        if isinstance(out, dict):
            assert json.loads(shown.out) == {"schema": "crtlib/demo/1"} | out
        else:
            assert shown.out == (out or "")


def test_an_empty_output_and_an_input_as_output_are_refused(run, home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    corpus = home / "c.jsonl"
    before = corpus.read_bytes()
    for args, message in (
        (["simulate", "--dialogues", 3, "--out", ""], "--out: is empty"),
        (["simulate", "--dialogues", 3, "--out", corpus], f"--out: {corpus} exists"),
        (["simulate", "--dialogues", 10**30, "--out", "a"], "must be at least 1 and at most"),
        (["convert", corpus, "--out", "a"], f"NAME: {corpus} is a text of your own"),
        (["simulate", "--dialogues", 3, "--out", "/dev/null", "--force"], "pipe or a device"),
    ):
        code, _, err = run(*args)
        assert code == 2 and message in err and err.count("\n") == 1
    assert corpus.read_bytes() == before and list(tmp_path.iterdir()) == []
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


# --------------------------------------------------------------------------- modes
COMPANION = {*companion.app.names}


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_the_mode_of_every_file_that_is_written_is_that_of_the_table(home, tmp_path, mask):
    shutil.copytree(home / "model", tmp_path / "model")
    known = modes.recorded()
    for name, files in modes.measure(tmp_path, mask, only=modes.QUICK).items():
        assert files == {p: m[mask == 0o077] for p, m in known[name].items()}, name
    assert set(known) == set(modes.STEPS)
    assert {name.split()[0] for name in known} == set(COMMANDS) - {"run"} | COMPANION


def test_what_is_private_is_private():
    """The table itself: what holds text, exact counts or a key is its owner's alone."""
    for name, files in modes.recorded().items():
        for path, (wide, narrow) in files.items():
            assert narrow == wide & 0o700
            held = re.search(
                r"\.work/|\.key$|/key$|/private/|labels/|tagger/|^corpus/|^open/|^clear/|odometer"
                r"|names|holders|secrets\.parquet|store/$|marks", path
            )  # fmt: skip
            assert not (held and wide & 0o077), (name, path)


# --------------------------------------------------------------------------- a full disk
@contextlib.contextmanager
def disk(place, size):
    """A disk of so many KiB; where none may be mounted, files may be no larger."""
    place.mkdir()
    how = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(place)]
    if subprocess.run(how, capture_output=True).returncode == 0:
        try:
            yield
        finally:
            subprocess.run(["umount", "-l", str(place)], check=True)
        return
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size << 10, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_is_one_line_and_finished_work_is_kept(run, home, tmp_path):
    place = tmp_path / "disk"
    with disk(place, 24):
        (place / "mine").write_text("x")
        for words in (
            ["simulate", "--dialogues", 400, "--out", place / "a.jsonl"],
            ["report", home / "model", "--corpus", home / "c.jsonl", "--out", place / "r"],
            ["train", home / "c.jsonl", "--unit", "turn", "--epochs", 1, "--canaries", 0,
             "--out", place / "m"],
        ):  # fmt: skip
            code, _, err = run(*words)
            last = err.splitlines()[-1]
            assert code == 3, err[-2000:]
            assert f"crtlib: error: {place}" in last and "run the same command again" in last
        assert (place / "mine").read_text() == "x"
        assert not (place / "a.jsonl").exists() and not (place / "r").exists()


def test_a_sweep_on_a_full_disk_ends_with_a_sentence_and_goes_on_when_there_is_room(tmp_path):
    place, study = tmp_path / "disk", CRT
    with disk(place, 24), pytest.raises((OSError, MachineError)) as ended:
        sweep([study], Store(place / "s"), workers=1, progress=False)
    assert runner.describe_failure(ended.value).code == 3
    table = sweep([study], Store(place / "s"), workers=1, progress=False)
    assert len(table)


# --------------------------------------------------------------------------- hostile folders
def test_no_folder_runs_code_or_breaks_the_reader(home, tmp_path):
    """Remote code, pickles, a header of an exabyte, damaged tokenizers and shapes."""
    place = tmp_path / "h"
    place.mkdir()
    (place / "model").symlink_to(home / "model")
    folders = [p for p in values.files(place) if p.is_dir() and p.name != "folder"]
    assert len(folders) > 15
    for folder in folders:
        if folder.name.startswith("experiment.json"):
            continue
        for load in (model_folder.load_model, tagger.load_tagger):
            with pytest.raises(ValueError) as refused:
                load(folder)
            assert "\n" not in str(runner.describe_failure(refused.value))
    assert not list(tmp_path.rglob("ran"))


def test_a_report_depends_on_the_day_in_one_line_of_its_page(home, run, tmp_path, monkeypatch):
    """Dates stay out of what is compared: JSON and tables."""
    words = ["report", home / "model", "--corpus", home / "c.jsonl", "--out"]
    for day in ("1", "2"):
        monkeypatch.setattr("confide.reports.leakage_page.datetime", _Day(f"2026-01-0{day}"))
        assert run(*words, tmp_path / day)[0] == 0
    for name in ("report.json", "runs.parquet", "sequences.parquet"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()
    pages = [(tmp_path / day / "report.html").read_text() for day in ("1", "2")]
    assert pages[0] != pages[1] == pages[0].replace("2026-01-01", "2026-01-02")


def test_any_number_of_threads_gives_the_same(home, run, tmp_path):
    """The report bit for bit. Training takes the same steps; weights, a tagger's too, differ by
    the rounding of sums that are split. ``--workers`` of train is what OMP_NUM_THREADS is."""
    before, found, weights = torch.get_num_threads(), [], []
    train = ["train", home / "c.jsonl", "--epochs", 1, "--repeatable-noise", "--width", 16]
    try:
        for n in (1, 2, 4):
            place = tmp_path / str(n)
            assert run(*train, "--workers", n, "--out", place / "m")[0] == 0
            assert torch.get_num_threads() == n
            words = ["tagger", home / "c.jsonl", "--epochs", 1]
            assert run(*words, "--out", place / "t")[0] == 0
            words = ["report", home / "model", "--corpus", home / "c.jsonl", "--reveal"]
            assert run(*words, "--out", place / "r")[0] == 0
            phases = json.loads((place / "m.work/record.json").read_text())["phases"]
            found.append([phases, (place / "r/sequences.parquet").read_bytes()])
            both = [load_file(place / f) for f in ("m/model.safetensors", "t/tagger.safetensors")]
            weights.append({f"{k} {name}": w for k, m in enumerate(both) for name, w in m.items()})
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1] == found[2]
    for name, one in weights[0].items():
        far = max(float((one - other[name]).abs().max()) for other in weights)
        assert far < 1e-4, (name, far)


class _Day:
    """The module ``datetime`` on another day."""

    def __init__(self, day):
        self.date = self
        self.day = day

    def today(self):
        return self

    def isoformat(self):
        return self.day
