"""What ``pip install crtlib`` and ``crtlib[app]`` bring: accounting, simulation and screening need
no torch, and the library nothing of the application."""

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
HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
"""


def bare(code, folder, hidden=NOT_THERE):
    """Python with the packages hidden, in a process of its own."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", f"HIDDEN = {hidden!r}{HIDE}{code}"],
        cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip


SAYS = """
import contextlib, io, json, os
from confide.__main__ import main
told = {}
for line in LINES:
    sys.argv, out, err = ["crtlib", *line.split()], io.StringIO(), io.StringIO()
    before = sorted(os.listdir())
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main()
        except SystemExit as end:
            code = end.code
    told[line] = code, out.getvalue(), err.getvalue(), sorted(os.listdir()) != before
print(json.dumps(told))
"""
TRAINS_NOTHING = [
    "--help",
    "train --help",
    f"{ACCOUNT} --gamma 0.1",
    f"{ACCOUNT} --accountant rdp --neighbouring replace --json",
    "screen dialogues.jsonl --policy regex:customersim --conservative everything --out out",
    "ingest messages.csv --yes --out corpus",
]
NEEDS = {
    "train dialogues.jsonl --out model": "train",
    "tagger dialogues.jsonl --out tagger": "train",
    f"{ACCOUNT} --accountant autodp": "accountants",
}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """By command: its exit code, what it printed and said, and whether it left files. All in one
    process, which pays once for what is imported."""
    folder = tmp_path_factory.mktemp("bare")
    rows = "".join(f"t{i // 4},u{i // 4},2024-01-01 10:{i:02d},call {i}\n" for i in range(40))
    (folder / "messages.csv").write_text("thread,user,sent,text\n" + rows)
    lines = ["simulate --dialogues 20 --seed 0 --out dialogues.jsonl", *TRAINS_NOTHING, *NEEDS]
    done = bare(f"LINES = {lines!r}\n{SAYS}", folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("line", TRAINS_NOTHING)
def test_a_command_that_trains_nothing_needs_no_torch(line, told):
    code, printed, said, _ = told[line]
    assert code == 0, said
    if "--json" in line:
        assert json.loads(printed)


@pytest.mark.parametrize("line", NEEDS)
def test_what_needs_an_extra_says_which_in_one_line(line, told):
    code, _, said, left = told[line]
    assert code == 2 and not left, said
    assert f"pip install 'crtlib[{NEEDS[line]}]'" in said and said.count("\n") == 1


APP = ["cryptography", "duckdb", "jsonschema", "tqdm", "yaml"]


def test_the_library_alone_accounts_simulates_and_screens(tmp_path):
    """Algorithm 1 on simulated text, and both epsilons, without torch and the application."""
    done = bare(
        "import crtlib\n"
        "points = crtlib.points(crtlib.simulate(30, seed=0), 'turn')\n"
        "pi, pi_c = (crtlib.policy(p)(points) for p in ('regex:customersim', 'cautious'))\n"
        "parts = crtlib.prepare(points, pi, pi_c)\n"
        "phase = crtlib.SampledGaussian(sampling_probability=.1, noise_multiplier=2, steps=9)\n"
        "relation = {'neighbouring_relation': 'replace'}\n"
        "epsilon = crtlib.epsilon(phase, delta=1e-5, **relation)\n"
        "print(len(parts.public), len(parts.private), epsilon)\n"
        "print(crtlib.confidentiality(phase, gamma=0.1, total_delta=1e-5, **relation))\n"
        "assert not any(name.startswith('confide') for name in sys.modules)",
        tmp_path,
        NOT_THERE + APP,
    )
    assert done.returncode == 0 and min(map(float, done.stdout.split())) > 0, done


@pytest.mark.parametrize("module", ["crtlib", "confide"])
def test_the_command_without_its_extra_says_in_one_line_what_to_install(module, tmp_path):
    done = bare(
        "import importlib.util, runpy\n"
        "known = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda n, *a: None if n in {APP!r} else known(n, *a)\n"
        f"sys.argv = ['crtlib', '--help']\nrunpy.run_module({module!r}, run_name='__main__')",
        tmp_path,
        NOT_THERE + APP,
    )
    assert done.returncode == 2 and not done.stdout, done
    assert done.stderr.startswith("crtlib: error: ") and done.stderr.count("\n") == 1, done.stderr
    assert "pip install 'crtlib[app]'" in done.stderr
