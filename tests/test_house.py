"""The script that counts tokens, and the contracts of imports, can tell when they do not hold.

Whether they hold, `make lint` says.
"""

import ast
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


def planted(tmp_path, package="crtlib", **modules):
    """A checkout of a package with subpackages of one module each, with these texts."""
    for name, text in modules.items():
        folder = tmp_path / package / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
        (folder / "one.py").write_text(text)
    return tmp_path


def test_sizes_are_printed_by_package_and_summed_and_limit_nothing(tmp_path):
    planted(tmp_path, text="x = 1\n" * 34, models="x = 1\n" * 2000)
    planted(tmp_path, "confide", text="x = 1\n")
    code, printed = counted(tmp_path)
    rows = {"crtlib.text": 102, "crtlib.models": 6000, "crtlib in all": 6102}
    rows |= {"confide.text": 3, "confide in all": 3, "sum": 6105}
    said = {line[:22].rstrip(): int(line[22:].replace(",", "")) for line in printed.splitlines()}
    assert code == 0 and rows.items() <= said.items(), printed


def linted(root):
    """What the import contracts of this checkout say of a package with these subpackages only."""
    contracts = (ROOT / ".importlinter").read_text(encoding="utf-8")
    layers = "layers =\n    training\n    models\n    text\n\n"
    contracts = re.sub(r"(?s)exhaustive = True\nlayers =.*?\n\n", layers, contracts, count=1)
    contracts, application = re.subn(
        r"(?s)\[importlinter:contract:application\].*?\n\n", "", contracts
    )
    contracts, upward = re.subn(r"ignore_imports =\n    crtlib.__main__ -> .*\n", "", contracts)
    assert application == upward == 1
    contracts = re.sub(r"\n    crt(book|course)(?=\n)", "", contracts)
    if not (root / "confide").is_dir():
        contracts = re.sub(r"\n    confide(?=\n)", "", contracts)
    (root / ".importlinter").write_text(contracts)
    for package in ("crtlib", "confide"):
        if (root / package).is_dir():
            (root / package / "__init__.py").write_text("")
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


@pytest.mark.parametrize(
    "source",
    [
        "from confide.text import one\n",
        "def late():\n    import confide.text.one\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import confide.text.one\n",
    ],
)
def test_the_library_imports_nothing_of_the_application(tmp_path, source):
    planted(tmp_path, "confide", text="from crtlib.text import one\n")
    root = planted(tmp_path, text="", models="", training="")
    assert linted(root)[0] == 0
    (root / "crtlib" / "models" / "one.py").write_text(source)
    code, printed = linted(root)
    assert code == 1 and "the library knows nothing of what stands on it BROKEN" in printed, printed


PLACES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "crtlib").rglob("*.py")
}
"""The modules of the library."""
GROUPS = {"crtlib.attacks", "crtlib.corpora", "crtlib.methods", "crtlib.policies"}
"""Entry points, by which another package adds to the library: names for others."""
FILES = {"crtlib.json", "crtlib.toml", "crtlib.text", "crtlib.screening"}


def named_modules(source):
    """The strings of a module of the library, docstrings left out, that name a module: what is
    imported by such a name no contract of imports sees."""
    tree = ast.parse(source)
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Expr)]
    docs = {id(text) for text in texts if isinstance(text, ast.Constant)}
    for node in ast.walk(tree):
        text = getattr(node, "value", None)
        if not isinstance(node, ast.Constant) or id(node) in docs or not isinstance(text, str):
            continue
        place, colon, name = text.partition(":")
        whole = re.fullmatch(r"(crtlib|confide|crtbook|crtcourse)\.[\w.]*", place)
        part = colon and name.isidentifier() and any(m.endswith(f".{place}") for m in PLACES)
        if (whole and text not in GROUPS | FILES) or part:
            yield text


def names_above(source):
    """Where a docstring or a comment names a package that stands on the library."""
    return re.findall(r"\b(?:confide|crtbook|crtcourse)\b", source)


def test_no_word_of_the_library_names_what_stands_on_it():
    named = {
        str(path.relative_to(ROOT)): found
        for path in (ROOT / "crtlib").rglob("*.py")
        if (found := names_above(path.read_text(encoding="utf-8")))
    }
    assert named.keys() == {"crtlib/__main__.py"}, named  # so that the command has one name


def test_a_docstring_that_names_the_application_is_found():
    said = '"""Options are fields (:mod:`confide.recipes`); see crtbook."""\nconfidence = 1'
    assert names_above(said) == ["confide", "crtbook"]


def test_no_string_of_the_library_names_a_module():
    for path in (ROOT / "crtlib").rglob("*.py"):
        assert list(named_modules(path.read_text(encoding="utf-8"))) == [], path


@pytest.mark.parametrize(
    "source",
    [
        'HOME = {"tagger": ("tagger:by_folder", ":FOLDER")}',
        'resolve_name(f"crtlib.screening.{where}")',
        'import_module("confide.release.released_folder")',
        'x = "crtlib.text.data_points:make_points"',
    ],
)
def test_a_string_that_names_a_module_is_found(source):
    assert len(list(named_modules(source))) == 1
    assert not list(named_modules('"""crtlib.text.records"""\nGROUP = "crtlib.policies"'))
