"""What ``pip install crtlib`` brings: accounting, simulation and screening need no torch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOT_THERE = [
    "torch",
    "transformers",
    "safetensors",
    "peft",
    "opacus",
    "dp_accounting",
    "autodp",
    "matplotlib",
    "seaborn",
    "llvmlite",
    "ortools",
    "datasets",
    "distributed",
]
ACCOUNT = "account --epsilon 2 --delta 1e-5 --batch-size 100 --points 4000 --epochs 8"
HIDE = f"""
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {NOT_THERE!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
"""


def bare(code, folder):
    """Python with the packages hidden, in a process of its own."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", HIDE + code],
        cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip


def crtlib(line, folder):
    code = f"from crtlib.__main__ import main\nsys.argv = ['crtlib', *{line.split()!r}]\nmain()"
    return bare(code, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bare")
    done = crtlib("simulate --dialogues 20 --seed 0 --out dialogues.jsonl", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    "line",
    [
        "--help",
        "train --help",
        f"{ACCOUNT} --gamma 0.1",
        f"{ACCOUNT} --accountant rdp --neighbouring replace --json",
        "screen dialogues.jsonl --policy regex:customersim --conservative everything --out out",
    ],
)
def test_a_command_that_trains_nothing_needs_no_torch(line, folder):
    done = crtlib(line, folder)
    assert done.returncode == 0, done.stderr
    if "--json" in line:
        assert json.loads(done.stdout)


def test_a_table_is_read_without_torch(folder):
    rows = "".join(f"t{i // 4},u{i // 4},2024-01-01 10:{i:02d},call {i}\n" for i in range(40))
    (folder / "messages.csv").write_text("thread,user,sent,text\n" + rows)
    done = crtlib("ingest messages.csv --yes --out corpus", folder)
    assert done.returncode == 0, done.stderr


def test_the_library_is_imported_and_accounts(folder):
    done = bare(
        "import crtlib\n"
        "phase = crtlib.SampledGaussian(sampling_probability=.1, noise_multiplier=2, steps=9)\n"
        "print(crtlib.confidentiality(phase, gamma=0.1, delta=1e-5))",
        folder,
    )
    assert done.returncode == 0 and float(done.stdout.split("epsilon=")[-1].split(",")[0]), done


@pytest.mark.parametrize(
    ("line", "extra"),
    [
        ("train dialogues.jsonl --out model", "train"),
        ("tagger dialogues.jsonl --out tagger", "train"),
        (f"{ACCOUNT} --accountant autodp", "accountants"),
    ],
)
def test_what_needs_an_extra_says_which_in_one_line(line, extra, folder):
    before = sorted(folder.iterdir())
    done = crtlib(line, folder)
    assert done.returncode == 2, done.stderr
    assert f"pip install 'crtlib[{extra}]'" in done.stderr and done.stderr.count("\n") == 1
    assert sorted(folder.iterdir()) == before
