"""A bounded sample of ``make fuzz``, and that its judge can see."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import __main__ as fuzz

ROOT = Path(__file__).resolve().parents[2]


def test_a_sample_of_bad_input_is_refused_in_one_line():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.fuzz", "--cases", "60", "--seed", "9"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert "cases 60: " in done.stdout and " 0 traceback, 0 several lines, 0 hang" in done.stdout


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise ValueError('--a: is bad; do b')", "refused"),
        ("raise ValueError", "refused"),
        ("raise KeyError('x')", "traceback"),
        ("print('x', file=sys.stderr); raise ValueError('a')", "several lines"),
        ("open('left', 'w').write('x'); raise ValueError('a')", "wrote"),
        ("open(home, 'a').write('x')", "touched"),
        ("fuzz.resource.setrlimit(fuzz.resource.RLIMIT_CPU, (1, 2))\nwhile 1: 1", "hang"),
        ("pass", "answered"),
    ],
)  # fmt: skip
def test_the_judge_sees_each_fault(tmp_path, monkeypatch, code, expected):
    """Each fault is planted in a command, which is run as the others are."""
    home, work = tmp_path / "home", tmp_path / "work"
    for folder in (home, work):
        folder.mkdir()
    (home / "file").write_text("x")
    names = {"sys": sys, "home": home / "file", "fuzz": fuzz}
    monkeypatch.setattr(fuzz.cli.CRTLIB_PROGRAM, "main", lambda *_, **__: exec(code, names))
    assert fuzz.outcome(["x"], home, work)[0] == expected
