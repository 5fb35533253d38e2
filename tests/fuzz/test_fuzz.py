"""A bounded sample of ``make fuzz``, and that its judge can see."""

import os
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.fuzz import __main__ as fuzz
from tests.fuzz import damage, home

ROOT = Path(__file__).resolve().parents[2]


def test_a_sample_of_bad_input_is_refused_in_one_line():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.fuzz", "--cases", "60", "--seed", "9"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert "cases 60: " in done.stdout and " 0 traceback, 0 several lines, 0 hang" in done.stdout
    assert "python -m tests.fuzz" not in done.stdout  # no case is to be played again


NAME = damage.PLANTED.split()[0]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise ValueError('--a: is bad; do b')", "refused"),
        ("raise ValueError", "refused"),
        ("raise KeyError('x')", "traceback"),
        ("print('x', file=sys.stderr); raise ValueError('a')", "several lines"),
        ("open('left', 'w').write('x'); raise ValueError('a')", "wrote"),
        ("tempfile.mkdtemp(); raise ValueError('a')", "wrote"),
        ("open('file', 'a').write('x')", "touched"),
        ("open('file', 'a').write('x'); raise ValueError('a')", "touched"),
        ("os.chmod('file', 0o666)", "touched"),
        ("open(other / 'new', 'w')", "touched"),
        (f"raise ValueError('{NAME}: is bad')", "named"),
        (f"print('{NAME}')", "named"),
        (f"open('{NAME}.txt', 'w')", "named"),
        ("resource.setrlimit(resource.RLIMIT_CPU, (1, 2))\nwhile 1: 1", "hang"),
        ("pass", "answered"),
    ],
)  # fmt: skip
def test_the_judge_sees_each_fault(tmp_path, monkeypatch, code, expected):
    """Each fault is planted in a command, which is run as the others are."""
    other = tmp_path / "other"
    for folder in (tmp_path / "work", other):
        folder.mkdir()
    (tmp_path / "work" / "file").write_text("x")
    names = {"sys": sys, "os": os, "tempfile": tempfile, "resource": resource, "other": other}
    monkeypatch.setattr(fuzz.cli.CRTLIB_PROGRAM, "main", lambda *_, **__: exec(code, names))
    assert fuzz.outcome(["x"], tmp_path, other=other)[0] == expected


def test_a_case_is_the_same_whenever_it_is_asked_for(tmp_path):
    (tmp_path / "model").mkdir()
    for name in ("tokenizer.json", "model.json", "model.safetensors", "experiment.json"):
        (tmp_path / "model" / name).write_text("{}")
    one = fuzz.Cases(20261127, tmp_path, tmp_path)
    first, later = [one.case(k)[:-1] for k in range(60)], [one.case(k)[:-1] for k in range(60)]
    assert first == later and one.case(77)[:-1] != one.case(78)[:-1]


def test_900_cases_reach_every_option_parameter_and_file(tmp_path):
    (tmp_path / "model").mkdir()
    for name in ("tokenizer.json", "model.json", "model.safetensors", "experiment.json"):
        (tmp_path / "model" / name).write_text("{}")
    cases = fuzz.Cases(20261127, tmp_path, tmp_path)
    seen = [cases.case(k) for k in range(900)]
    said = {(c[1], key) for c in seen if c[0] == "option" for key in c[2]}
    assert {(name, key) for name, key, _ in fuzz.places()} <= said
    assert {c[1] for c in seen if c[0] == "file"} == set(home.DOORS)
    assert {(c[1], c[4]) for c in seen if c[0] == "file"} == {(n, c) for n, _, c in home.doors()}
    named = {one[:2] for c in seen if c[0] == "name" for one in c[1]}
    assert named == {(s, n) for s, c in fuzz.SECTIONS.items() for n, _ in fuzz.list_leaves(c)}


@pytest.mark.parametrize("form", sorted({form for form, _ in home.DOORS.values()}))
def test_every_kind_of_damage_can_be_done(form, tmp_path):
    """To a file without anything in it, too."""
    for kind in damage.NODES:
        (tmp_path / kind).write_bytes(b"{}")
        damage.apply(tmp_path / kind, form, kind, random.Random(1))
    for kind in {*damage.ANY} & {*damage.KINDS[form]}:
        for raw in (b"", b"a\n{}"):
            (tmp_path / "file").write_bytes(raw)
            damage.apply(tmp_path / "file", form, kind, random.Random(1))
