"""Measure the cells that the lecture plan shows live: ``python book/live.py`` writes
``book/teaching/times.json`` with the processor seconds of each demonstration, and of what has to
run before it, at the quick profile on one thread.

Each notebook runs in a process of its own, from its first code cell to the last that is shown.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import subprocess
import sys
import time
from pathlib import Path

import plain
import teaching

BOOK = Path(__file__).resolve().parent
TIMES = BOOK / "teaching" / "times.json"


def code(name: str, last: str) -> list[tuple[str, str]]:
    """The code cells of a notebook up to ``last``: name and source."""
    cells = plain.read(BOOK.parent / "notebooks" / f"{name}.ipynb")["cells"]
    found = [(c["id"], "".join(c["source"])) for c in cells if c["cell_type"] == "code"]
    return found[: [name for name, _ in found].index(last) + 1]


def digest(name: str, last: str) -> str:
    """The hash of what was measured: a test finds a time of other code."""
    return hashlib.sha256(json.dumps(code(name, last)).encode()).hexdigest()[:16]


def measure(name: str, first: str, last: str) -> tuple[float, float]:
    """Processor seconds of the cells before ``first``, and of those from there to ``last``."""
    from IPython.core.interactiveshell import InteractiveShell

    run, shell, spent = code(name, last), InteractiveShell.instance(), [0.0, 0.0]
    for k, (_, source) in enumerate(run):
        start = time.process_time()
        with contextlib.redirect_stdout(io.StringIO()):
            result = shell.run_cell(source)
        result.raise_error()
        spent[k >= [name for name, _ in run].index(first)] += time.process_time() - start
    return spent[0], spent[1]


def main() -> None:
    """Measure all, or with a notebook's name and two cells that one alone."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(*sys.argv[1:4])))
        return
    times = {}
    plan = teaching.data("teaching/plan.yml")
    for shown in (shown for hour in plan for shown in hour["live"]):
        which = [shown["notebook"], shown["first"], shown["last"]]
        run = subprocess.run([sys.executable, __file__, *which], capture_output=True, text=True)
        if run.returncode:
            sys.exit(f"{' '.join(which)}: {run.stderr[-500:]}")
        before, live = json.loads(run.stdout.splitlines()[-1])
        found = {"before": round(before, 1), "live": round(live, 1)}
        times[":".join(which)] = found | {"code": digest(which[0], which[2])}
        print(" ".join(which), times[":".join(which)], flush=True)
    TIMES.write_text(json.dumps(times, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
