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


def planted(tmp_path, budget=100, **modules):
    """A checkout of a package with subpackages of one module each, with these texts."""
    for name, text in modules.items():
        folder = tmp_path / "crtlib" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
        (folder / "one.py").write_text(text)
    names = [*(f"crtlib.{name}" for name in modules), "crtlib", "crtlib in all", "sum"]
    lines = "".join(f'"{name}" = {budget}\n' for name in names)
    (tmp_path / "pyproject.toml").write_text("[tool.house]\n" + lines)
    return tmp_path


def test_a_sound_checkout_is_accepted(tmp_path):
    code, printed = counted(planted(tmp_path, text="", models="from crtlib.text import one\n"))
    assert code == 0 and "budget" in printed


@pytest.mark.parametrize(
    ("modules", "named"),
    [
        ({"text": "x = 1\n" * 34}, "crtlib.text: 102 tokens, its budget is 100"),
        ({"text": "x = 1\n" * 20, "models": "x = 1\n" * 20}, "sum: 120 tokens"),
    ],
)
def test_what_is_beyond_a_limit_is_named_and_refused(tmp_path, modules, named):
    code, printed = counted(planted(tmp_path, **modules))
    assert code == 1 and named in printed


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


def test_a_part_without_a_budget_has_none(tmp_path):
    root = planted(tmp_path, text="")
    (root / "crtlib" / "extra").mkdir()
    (root / "crtlib" / "extra" / "one.py").write_text("x = 1\n")
    assert "crtlib.extra: 3 tokens, its budget is 0" in counted(root)[1]
