"""The script that counts tokens, and the contracts of imports, can tell when they do not hold.

Whether they hold, `make lint` says.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "benchmarks" / "house.py"
spec = importlib.util.spec_from_file_location("house", SCRIPT)
house = importlib.util.module_from_spec(spec)
sys.modules["house"] = house
spec.loader.exec_module(house)


def counted(root):
    done = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("source", "tokens"),
    [
        ("x = f(1, [2, 3])  # a comment", 6),
        ("x = f(\n    1,\n    [2, 3],\n)", 6),
        ('"""A docstring."""\nx = 1\n', 3),
        ("def f(x):\n    '''Its own.'''\n    return x\n", 6),
        ("x = f'{a} and {b + 1}'", 3),
        ("%matplotlib inline", 0),
    ],
)
def test_neither_long_lines_nor_words_for_people_count(source, tokens):
    assert house.tokens(source) == tokens


def planted(tmp_path, **modules):
    """A checkout of a package with subpackages of one module each, with these texts."""
    for name, text in modules.items():
        folder = tmp_path / "crtlib" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
        (folder / "one.py").write_text(text)
    return tmp_path


def test_sizes_are_printed_by_package_and_summed_and_limit_nothing(tmp_path):
    planted(tmp_path, text="x = 1\n" * 34, models="x = 1\n" * 2000)
    code, printed = counted(tmp_path)
    rows = {"crtlib.text": 102, "crtlib.models": 6000, "crtlib in all": 6102, "sum": 6102}
    said = {line[:22].rstrip(): int(line[22:].replace(",", "")) for line in printed.splitlines()}
    assert code == 0 and rows.items() <= said.items(), printed


def linted(root):
    """What the import contracts of this checkout say of a package with these subpackages only."""
    contracts = (ROOT / ".importlinter").read_text(encoding="utf-8")
    layers = "layers =\n    training\n    models\n    text\n\n"
    contracts = re.sub(r"(?s)exhaustive = True\nlayers =.*?\n\n", layers, contracts, count=1)
    contracts = re.sub(r"\n    crt(book|course)(?=\n)", "", contracts)
    (root / ".importlinter").write_text(contracts)
    (root / "crtlib" / "__init__.py").write_text("")
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout


TYPED = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import crtlib.{}\n"


@pytest.mark.parametrize(
    ("modules", "broken"),
    [
        ({"text": "", "models": "from crtlib.text import one\n"}, 0),
        ({"text": "from crtlib.training import one\n", "training": ""}, 1),  # upward
        (
            {"text": TYPED.format("models.one"), "models": TYPED.format("text.one")},
            2,
        ),  # and a circle
        ({"text": TYPED.format("text.two")}, 1),
    ],
)
def test_imports_run_downwards_and_in_no_circle_also_those_for_types(tmp_path, modules, broken):
    root = planted(tmp_path, **{"training": "", "models": "", **modules})
    (root / "crtlib" / "text" / "two.py").write_text("import crtlib.text.one\n")
    code, printed = linted(root)
    assert code == bool(broken) and f"{broken} broken" in printed, printed
