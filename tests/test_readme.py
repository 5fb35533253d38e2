"""What the README shows of a terminal is what the commands print."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
(SHOWN,) = re.findall(r"```console\n\$ source [^\n]*\n(.*?)```", README, re.DOTALL)
STEPS = [step.strip().split("\n") for step in re.split(r"(?m)^\$ ", SHOWN) if step.strip()]


def without_drawn_numbers(text):
    """How many are trained on follows from coins that are drawn with a key, another each time."""
    return re.sub(r"private [\d,]+ points|one in [\d,]+ people", "#", text)


def said(step, folder):
    """The output of one command of the block, and the lines that the README shows of it, but for
    drawn numbers."""
    command, *lines = step
    program, *words = command.split()
    assert program == "crtlib"
    run = subprocess.run(
        [sys.executable, "-m", "confide", *words], cwd=folder, capture_output=True, text=True,
        env=os.environ | {"CRTLIB_REGISTRY": str(folder / "registry")}, check=True,
    )  # fmt: skip
    return without_drawn_numbers(run.stdout), [*map(without_drawn_numbers, lines)]


def test_the_first_of_the_ten_lines_print_what_they_are_said_to_print(run, tmp_path, monkeypatch):
    """Until the training, which is left to the night; in this process, which is quicker."""
    assert [step[0].split()[1] for step in STEPS] == ["simulate", "screen", "train", "certify"]
    monkeypatch.chdir(tmp_path)
    for command, *lines in STEPS[:2]:
        code, out, err = run(*command.split()[1:])
        assert code == 0, err
        told = without_drawn_numbers(out)
        assert [line for line in map(without_drawn_numbers, lines) if line not in told] == []


def test_all_of_the_ten_lines_print_what_they_are_said_to_print(tmp_path):
    """And so does what follows: the same text, trained on once more with a public part."""
    for step in STEPS:
        out, lines = said(step, tmp_path)
        assert [line for line in lines if line not in out] == []
    (warning,) = re.findall(r"`(holds; promises little[^`]*)`", README)
    for command, *_ in STEPS[1:]:
        again = re.sub(r"\b(screened|model|certificate)\b", r"\1-2", command)
        public = " --conservative cautious" * (" screen " in command)
        out, _ = said([again + public], tmp_path)
    assert without_drawn_numbers(warning) in out
