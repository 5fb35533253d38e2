"""The notebooks run through papermill, also with changed parameters, and refuse bad ones."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SMALL = {
    "seeds": "1",
    "dialogues": "60",
    "models": '["lstm"]',
    "methods": '["sgd", "crt"]',
    "ablation_gammas": "[0.05]",
}


def papermill(name, out, **parameters):
    given = [x for k, v in parameters.items() for x in ("-p", k, str(v))]
    command = [sys.executable, "-m", "papermill", "--no-progress-bar", "-k", "python3"]
    notebook = ROOT / "notebooks" / f"{name}.ipynb"
    return subprocess.run(
        [*command, notebook, out, *given], cwd=ROOT, capture_output=True, text=True, timeout=900
    )


def outputs(path, kind):
    """All outputs of one MIME type or stream of an executed notebook."""
    cells = json.loads(path.read_text())["cells"]
    made = [o for c in cells for o in c.get("outputs", [])]
    return [o["data"][kind] for o in made if kind in o.get("data", {})]


@pytest.mark.parametrize(
    "name", ["dp_from_zero", "language_models", "customersim", "amplification"]
)
def test_quick_profile_runs(name, tmp_path):
    done = papermill(name, tmp_path / "out.ipynb")
    assert done.returncode == 0, done.stderr[-2000:]
    assert outputs(tmp_path / "out.ipynb", "image/png")


def test_canary_with_other_parameters_computes_only_what_is_missing(tmp_path):
    store, out = tmp_path / "store", tmp_path / "out.ipynb"
    first = papermill("canary", out, gammas="[0.05]", store=store, **SMALL)
    assert first.returncode == 0, first.stderr[-2000:]
    cells = {p: p.stat().st_mtime_ns for p in store.glob("*.json")}
    assert len(cells) == 4  # sgd, crt and the two ablations
    gammas = {json.loads(p.read_text())["experiment"]["gamma"] for p in cells}
    assert gammas == {0.05}
    assert len(outputs(out, "image/png")) >= 2  # the fresh figure and the recorded one
    second = papermill("canary", out, gammas="[0.05, 0.3]", store=store, **SMALL)
    assert second.returncode == 0, second.stderr[-2000:]
    assert {p: p.stat().st_mtime_ns for p in cells} == cells
    assert len(list(store.glob("*.json"))) == 6


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"gamas": "[0.1]"}, "gamas: unknown; allowed are profile, ablation_gammas"),
        ({"gammas": "[7]"}, "gammas=[7]: must be a list of numbers in [0, 1]"),
        ({"gammas": "7"}, "gammas=7: must be a list of numbers in [0, 1]"),
        ({"profile": "huge"}, "profile='huge': must be one of quick, laptop, paper"),
    ],
)
def test_bad_parameters_are_refused_in_one_line(parameters, message, tmp_path):
    store = tmp_path / "store"
    done = papermill("canary", tmp_path / "out.ipynb", store=store, **parameters)
    assert done.returncode != 0
    assert message in done.stderr
    cells = json.loads((tmp_path / "out.ipynb").read_text())["cells"]
    errors = [o for c in cells for o in c.get("outputs", []) if o["output_type"] == "error"]
    assert errors[0]["traceback"] == [f"parameter refused: {errors[0]['evalue']}"]
    assert message in errors[0]["evalue"]
    assert not store.exists()
