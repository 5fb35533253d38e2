"""The wheel alone, in an empty folder: a command of each kind, and one real study of each sweep.

    python benchmarks/wheel.py            # make release has built the wheel

The packages that crtlib needs come from the environment that runs this; crtlib itself, its
profiles, templates and tables come from the wheel. Exits 1 where a command fails.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

COMMANDS = (
    "--version",
    "account --delta 1e-5 --batch-size 100 --points 10000 --epochs 10 --epsilon 2 --gamma 0.1",
    "sweep crt --profile quick --dry-run",
    "sweep secrets --profile quick --dry-run",
)

STUDIES = (
    'crt --set seeds=1 --set models=["lstm"] --set methods=["crt"] --set ablations=[]'
    " --set gammas=[0.1]",
    'tuning --set models=["lstm"] --set methods=["crt"] --set ablations=[]'
    ' --set corpora=["customersim"] --set data.customersim.trials=1',
    'leakage --set seeds=1 --set dialogues=60 --set corpora=["customersim"]'
    " --set shapes.table.epochs=1 --set shapes.table.snapshots=[1] --set shapes.table.public=40"
    " --set shapes.methods.epochs=1 --set shapes.methods.snapshots=[1]"
    " --set shapes.methods.public=40 --set shapes.lstm.epochs=1 --set shapes.lstm.snapshots=[1]"
    " --set shapes.lstm.public=40 --set thresholds=[3.0]",
    'secrets --set seeds=1 --set texts=["customersim"] --set scales=[2.0]'
    " --set learning_rates=[0.01] --set hidden=[64] --set noise_multipliers=[0,0.1]",
    "games --set trials=1",
    "screening --set dialogues=60",
)


def seconds() -> float:
    """CPU seconds of the commands so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Print each command, its CPU seconds, and the last line that it printed."""
    wheels = sorted((ROOT / "_build" / "dist").glob("*.whl"))
    if not wheels:
        sys.exit("_build/dist: holds no wheel; run 'make release'")
    with tempfile.TemporaryDirectory() as folder:
        site, empty = Path(folder, "site"), Path(folder, "empty")
        empty.mkdir()
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site]
        subprocess.run([*pip, wheels[-1]], check=True)
        environment = os.environ | {"PYTHONPATH": str(site)}
        where = [sys.executable, "-c", "import crtlib; print(crtlib.__file__)"]
        origin = subprocess.run(where, cwd=empty, env=environment, capture_output=True, text=True)
        if not origin.stdout.startswith(str(site)):
            sys.exit(f"crtlib: comes from {origin.stdout.strip()}, not from the wheel")
        sweeps = [f"sweep {study} --profile quick --store store" for study in STUDIES]
        for command in (*COMMANDS, *sweeps):
            before = seconds()
            run = subprocess.run(
                [sys.executable, "-m", "crtlib", *command.split()],
                cwd=empty, env=environment, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            last = (run.stdout.strip().splitlines() or [""])[-1]
            print(f"crtlib {command}\n  {seconds() - before:.0f} CPU s; {last}", flush=True)
            if run.returncode:
                sys.exit(run.returncode)


if __name__ == "__main__":
    main()
