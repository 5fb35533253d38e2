"""The house keeps its plan, and the script that counts it can tell when it does not."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
spec = importlib.util.spec_from_file_location("house", ROOT / "benchmarks" / "house.py")
house = importlib.util.module_from_spec(spec)
sys.modules["house"] = house
spec.loader.exec_module(house)


@pytest.fixture(scope="module")
def ours():
    return house.count(house.read(ROOT / "crtlib"), house.layers(ROOT / ".importlinter"))


@pytest.mark.parametrize("name", list(house.LIMITS))
def test_the_house_keeps_its_limits(ours, name):
    number, what = ours[name]
    assert number <= house.LIMITS[name], what


def test_there_are_ten_rooms_and_the_commands(ours):
    assert ours["rooms"][0] == 12


def test_the_layers_are_those_of_the_contract():
    assert house.layers(ROOT / ".importlinter")[0] == {"__main__"}
    assert house.layers(ROOT / ".importlinter")[-1] == {
        *("outputs", "roots", "shards", "intervals", "files", "checks", "draws", "log", "machine")
    }


def planted(tmp_path, **modules):
    """A package of rooms, each one module, with these texts."""
    for name, text in modules.items():
        folder = tmp_path / "crtlib" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
        (folder / "one.py").write_text(text)
    (tmp_path / ".importlinter").write_text(
        "[importlinter:contract:house]\nlayers =\n    training\n    models\n    text\n"
    )
    return tmp_path / "crtlib"


def counted(package):
    script = ROOT / "benchmarks" / "house.py"
    run = subprocess.run([sys.executable, script, package], capture_output=True, text=True)
    return run.returncode, run.stdout


def test_a_sound_house_is_accepted(tmp_path):
    package = planted(tmp_path, text="", models="from crtlib.text import one\n")
    code, printed = counted(package)
    assert code == 0 and "floors                 2" in printed


@pytest.mark.parametrize(
    ("modules", "named"),
    [
        ({"text": "from crtlib.training import one\n", "training": ""}, "text -> training"),
        (
            {
                "text": "from crtlib.models import one\n",
                "models": "def f():\n    import crtlib.text.one\n",
            },
            "models - text",
        ),
        ({"text": "x = 1\n" * 901}, "too long: crtlib.text.one, 901 lines"),
        ({"text": "def f():\n" + "    x = 1\n" * 81}, "too long: crtlib.text.one:f, 81 lines"),
    ],
)
def test_a_planted_fault_is_named_and_refused(tmp_path, modules, named):
    code, printed = counted(planted(tmp_path, **modules))
    assert code == 1 and named in printed
