"""A kernel that is a fork shows what one of its own shows, and leaves with the build."""

import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
CELLS = [
    "import os, sys, warnings\nprint(os.getcwd(), __name__)",
    "print('told', file=sys.stderr)\nwarnings.warn('warned')",
    "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
    "import torch, numpy\ntorch.initial_seed() == torch.seed(), numpy.random.get_state()[0]",
    "len([m for m in sys.modules if m.startswith('crtlib.experiments')]) > 2",
]
SCRIPT = """
import sys

sys.path.insert(0, "book")
import papermill
import warm

if __name__ == "__main__":
    engine = warm.engine() if sys.argv[1] == "warm" else {}
    papermill.execute_notebook(
        sys.argv[2], sys.argv[3], {}, kernel_name="python3", cwd=".", progress_bar=False, **engine
    )
"""


def written(folder, cells):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "", "language": "python"}
    nbformat.write(notebook, folder / "in.ipynb")
    (folder / "build.py").write_text(SCRIPT)
    return [sys.executable, folder / "build.py"], folder / "in.ipynb"


@pytest.mark.skipif(sys.platform != "linux", reason="kernels are forks on Linux alone")
def test_a_fork_shows_what_a_kernel_of_its_own_shows(tmp_path):
    command, source = written(tmp_path, CELLS)
    shown = {}
    for how in ("cold", "warm"):
        run = [*command, how, source, tmp_path / how]
        subprocess.run(run, cwd=ROOT, check=True, capture_output=True)
        shown[how] = [
            [(o.get("name"), o.get("text"), sorted(o.get("data", {}))) for o in cell.outputs]
            for cell in nbformat.read(tmp_path / how, 4).cells
        ]
        del shown[how][1][0]  # the line of a warning has the number of its process
    assert shown["warm"][:-1] == shown["cold"][:-1] and "image/png" in shown["warm"][2][0][2]
    told = [nbformat.read(tmp_path / how, 4).cells for how in ("cold", "warm")]
    assert [cells[-1].outputs[0].data["text/plain"] for cells in told] == ["False", "True"]


@pytest.mark.skipif(sys.platform != "linux", reason="kernels are forks on Linux alone")
def test_a_kernel_leaves_with_a_build_that_is_killed(tmp_path):
    mark = tmp_path / "kernel"
    cell = f"import os, time\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    command, source = written(tmp_path, [cell])
    build = subprocess.Popen([*command, "warm", source, tmp_path / "out"], cwd=ROOT,
                             stderr=subprocess.DEVNULL)  # fmt: skip
    until = time.monotonic() + 60
    while not (mark.exists() and mark.read_text()) and time.monotonic() < until:
        time.sleep(0.1)
    kernel = psutil.Process(int(mark.read_text()))
    build.kill()
    build.wait()
    assert psutil.wait_procs([kernel], timeout=30)[0] or not psutil.pid_exists(kernel.pid)
