"""A broken or full disk, or a kill, before calls of the whole process: a sample by night."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kills import disk_faults

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no cc to compile with")
@pytest.mark.parametrize("name", disk_faults.COMMANDS)
def test_a_fault_of_the_disk_is_told_and_the_same_command_succeeds(name):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.kills.disk_faults", name]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    total = json.loads(done.stdout.splitlines()[-1])
    assert total["killed"] >= disk_faults.SAMPLE and total["told"] > 0
