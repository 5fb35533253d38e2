"""Every recorded table is listed with the command that makes it, and the command exists."""

import re
from pathlib import Path

from crtbook import settings, sweeps, tables

ROOT = Path(__file__).resolve().parents[2]
LINES = [
    line.split("|")[1:-1]
    for line in (ROOT / "data" / "README.md").read_text(encoding="utf-8").splitlines()
    if re.match(r"\| `\w+\.parquet`", line)
]


def test_every_recorded_table_is_listed_once():
    listed = [re.search(r"`(\w+)\.parquet`", cells[0])[1] for cells in LINES]
    assert len(set(listed)) == len(listed)
    assert set(tables.list_table_names()) <= set(listed)


def test_a_table_that_is_listed_and_not_recorded_says_so():
    for cells in LINES:
        name = re.search(r"`(\w+)\.parquet`", cells[0])[1]
        assert name in tables.list_table_names() or "not in every edition" in cells[0], name


def test_every_command_runs_a_sweep_or_script_that_exists():
    for cells in LINES:
        commands = re.findall(r"crtbook sweep (\w+) --profile (\w+)", cells[2])
        scripts = re.findall(r"python ((?:benchmarks|book)/\w+\.py)", cells[2])
        chapters = re.findall(r"--publish laptop --only (\w+)", cells[2])
        assert commands or scripts, cells[0]
        for name, profile in commands:
            assert name in sweeps.SWEEPS and profile in settings.profile_names()
        assert all((ROOT / script).is_file() for script in scripts)
        assert all((ROOT / "notebooks" / f"{name}.ipynb").is_file() for name in chapters)
