"""Every command: one answer, printed for people or as one object, with the same exit code."""

import contextlib
import io
import json
import sys
from types import SimpleNamespace

import pandas as pd
import pytest

from confide import __main__ as cli
from crtbook import __main__ as companion
from crtbook import sweeps
from crtbook.claims import ledger, page
from crtbook.game import GameStudy
from crtcourse import attack, grading
from crtlib.attacks import run_audit
from crtlib.cli import POLICY_OPTIONS
from tests import modes

COMMANDS = cli.CRTLIB_PROGRAM.all_commands() | companion.app.all_commands()


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Exit code and standard output of a call of every command, without --json and with it."""
    with pytest.MonkeyPatch.context() as patch:
        tiny = GameStudy(seed=0, candidates=4, others=8, steps=1, batch_size=6.0)
        patch.setattr(sweeps, "make_studies", lambda *_: [tiny])
        claims = pd.DataFrame({"paper": ["hush"], "verdict": ["holds"]})
        patch.setattr(ledger, "load_ledger", lambda: claims)  # half a minute; two models to train
        runs = pd.DataFrame(
            {"command": ["x"], "hours": [1.0], "ids": [["a"]], "rows": [1], "cells": [0]}
        )
        patch.setattr(ledger, "plan_open_rows", lambda: runs)
        patch.setattr(ledger, "count_verdicts", lambda table: table)
        patch.setattr(page, "format_rows_as_lines", str)
        patch.setattr(
            attack, "hand_out", lambda seed, out: attack.Key({}, "A", {}, [], [], [], {}, {})
        )
        patch.setattr(grading, "grade_folder", lambda *_, **__: [{"name": "ann", "total": 0}])
        patch.setattr(grading, "format_marks", str)
        audited = SimpleNamespace(
            refuted=False, to_json=lambda: {"epsilon_lower": 0.1}, lines=lambda: ["proved"]
        )
        patch.setattr(run_audit, "audit_training", lambda *_, **__: audited)  # takes minutes
        yield {
            flag: _all(tmp_path_factory.mktemp("home"), patch, flag) for flag in ((), ("--json",))
        }


def _all(home, patch, flag):
    modes.given(home)  # each time as for the first: what was trained on bounds what may be next
    patch.setenv("CRTLIB_REGISTRY", str(home.with_name(f"{home.name}.registry")))
    patch.chdir(home)
    rows = {}
    for name, words in (modes.STEPS | {"run": ["project", "--dry-run"]}).items():
        if name == "label import":
            modes.read_by_somebody()
        rows[name] = _call(patch, [*name.split(), *words, *flag])
    return rows


def _call(patch, words):
    patch.setattr(sys, "argv", ["crtlib", *map(str, words)])
    out, err = io.StringIO(), io.StringIO()
    streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    program = companion if words[0] in companion.app.names else cli
    with streams[0], streams[1], pytest.raises(SystemExit) as end:
        program.main()
    return end.value.code, out.getvalue(), err.getvalue()


def test_every_command_is_called(said):
    called = {name.split(" --")[0] for name in said[()]}
    assert called == set(COMMANDS)


@pytest.mark.parametrize("name", [*modes.STEPS, "run"])
def test_json_prints_one_object_and_ends_as_without(said, name):
    code, text, error = said[()][name]
    assert code == 0, error
    again, out, error = said[("--json",)][name]
    assert again == code, error
    facts = json.loads(out)  # the whole of it: nothing stands before or after
    words = name.split(" --")[0].replace(" ", "-")
    program = "crtbook" if words in companion.app.names else "crtlib"
    assert (facts["schema"].split("/")[0], facts["ok"]) == (program, True)
    assert len(facts) > 2 and text
    with pytest.raises(ValueError):
        json.loads(text)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_and_cuts_no_name(name, run):
    code, text, _ = run(*name.split(), "--help")
    assert code == 0 and max(map(len, text.splitlines())) <= 80
    groups = [part for part in text.split("\n\n") if part.rstrip().endswith(":") or ":\n" in part]
    assert max(len(group.splitlines()) for group in groups) <= 24, name
    words, flat = set(text.split()), " ".join(text.split())
    for option in COMMANDS[name].list_options({}):
        forms = {option.flag, f"{option.flag}...", "--no-" + option.flag[2:]}
        assert forms & words and option.text in flat  # a bracket is no mark-up


def test_a_mistake_is_one_line_before_anything_is_written(run, tmp_path):
    for words, says in (
        (["simulate", "--dialogues", 3, "--dialogues", 4, "--out", tmp_path / "a"],
         "--dialogues: is given twice"),
        (["simulate", "--dialogues", "x", "--out", tmp_path / "a"],
         "--dialogues x: must be a valid integer"),
        (["simulate", "--dialogues", 3], "--out: is missing"),
        (["convert"], "NAME: is missing"),
        (["simulate", "--dialogue", 3], "--dialogue: no such option; did you mean --dialogues?"),
        (["tagger", "c", "--epochs", 0, "--out", tmp_path / "a"],
         "--epochs 0: must be greater than or equal to 1"),
    ):  # fmt: skip
        assert run(*words) == (2, "", f"crtlib: error: {says}\n")
        code, out, _ = run(*words, "--json")
        assert code == 2 and json.loads(out)["ok"] is False
    assert list(tmp_path.iterdir()) == []


URL = "s3://nobody/x"


@pytest.mark.parametrize("name", sorted(cli.CRTLIB_PROGRAM.all_commands()))
def test_no_argument_of_any_command_is_a_url(run, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    command = cli.CRTLIB_PROGRAM.all_commands()[name]
    for option in command.list_options(None):
        if not (option.is_path or option.name in POLICY_OPTIONS):
            continue
        given = {o.flag: "x" for o in command.list_options(None) if o.is_positional}
        given |= {option.flag: URL}
        words = [w for k, v in given.items() for w in ([k, v] if k.startswith("--") else [v])]
        says = f"crtlib: error: {option.flag} {URL}: is a URL, must be a local file or folder\n"
        assert run(*name.split(), *words) == (2, "", says)
    assert not list(tmp_path.iterdir())
