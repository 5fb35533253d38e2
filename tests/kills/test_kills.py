"""A bounded sample of ``make kills``, and that it can see a difference and a leftover."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.kills import __main__ as kills

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_killed_goes_on_as_if_nothing_had_happened():
    """Each job twice: train, report, and the sweeps, whose worker is killed the second time."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.kills", "--moments", "10", "--seed", "3", "--json"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    total = json.loads(done.stdout)
    assert total["moments"] == 10 and total.get("finished_before", 0) <= 5
    for fault in ("refused", "differences", "leftovers", "orphans", "done_again"):
        assert not total.get(fault)


def test_the_comparison_sees_what_it_looks_for(tmp_path):
    for name, numbers in (("a", [1, 2]), ("b", [1, 3])):
        (tmp_path / name).mkdir()
        cell = {"rows": numbers, "seconds": len(name)}
        (tmp_path / name / "cell.json").write_text(json.dumps(cell))
    reference = kills.content(tmp_path / "a")
    assert not +kills.compare(reference, tmp_path / "a")
    (tmp_path / "b" / ".cell.json.x.part").write_text("half")
    assert kills.compare(reference, tmp_path / "b") == {"differences": 1, "leftovers": 1}
