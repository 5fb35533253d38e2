"""Each example runs as it stands, in a folder of its own, and is short."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").iterdir())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short_and_runs(path, tmp_path, registry):
    assert len(path.read_text().splitlines()) <= 70
    here = str(Path(sys.executable).parent)
    about = os.environ | {"PATH": os.pathsep.join([here, os.environ["PATH"]])}
    about |= {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable if path.suffix == ".py" else "sh", path]
    done = subprocess.run(command, cwd=tmp_path, env=about, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout, done.stderr
    assert not list(tmp_path.iterdir())  # what it makes it takes away
