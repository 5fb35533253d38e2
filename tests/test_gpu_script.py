"""The command for the hour when a GPU is there, rehearsed on a CPU, and what it does where a part
fails or the time is over."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu.py"


@pytest.fixture
def gpu(monkeypatch):
    pytest.importorskip("opacus")
    monkeypatch.syspath_prepend(SCRIPT.parent)
    spec = importlib.util.spec_from_file_location("gpu", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu", module)  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


def rehearsed(gpu, folder, monkeypatch, *words):
    """The exit status, and the rows of the table."""
    table = folder / "gpu.json"
    words = ["--rehearse", "--json", str(table), "--store", str(folder / "store"), *words]
    monkeypatch.setattr(sys, "argv", ["gpu.py", *words])
    with pytest.raises(SystemExit) as end:
        gpu.main()
    return end.value.code, json.loads(table.read_text())["rows"]


def small(gpu, monkeypatch):
    for name, value in (("MODELS", ("smollm2-lora",)), ("SWEEPS", ()), ("STEPS", 1)):
        monkeypatch.setattr(gpu, name, value)
    monkeypatch.setattr(gpu, "SMALL", gpu.Size(by=64, times=(4,), tokens=8, layers=1))


def test_the_whole_hour_is_rehearsed(gpu, tmp_path, monkeypatch):
    failed, rows = rehearsed(gpu, tmp_path, monkeypatch)
    assert not failed, [row for row in rows if "error" in row]
    assert {row["model"] for row in rows if "model" in row} == set(gpu.MODELS)
    assert {row["sweep"] for row in rows if "sweep" in row} == set(gpu.SWEEPS)
    assert {row["engine"] for row in rows if row.get("model") == "gpt2"} == {
        "natural", "ours", "ours-noiseless", "opacus-hooks", "opacus-ghost"
    }  # fmt: skip


def test_what_fails_is_a_row_and_the_rest_goes_on(gpu, tmp_path, monkeypatch):
    small(gpu, monkeypatch)
    assert not rehearsed(gpu, tmp_path, monkeypatch)[0]

    def broken(*args, **options):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(gpu.dp_step, "add_noise", broken)
    failed, rows = rehearsed(gpu, tmp_path, monkeypatch)
    wrong = [row["engine"] for row in rows if "error" in row]
    assert failed and wrong == ["ours", "ours"] and len(rows) == 7


def test_a_number_that_differs_between_devices_is_an_error(gpu, monkeypatch):
    assert "error" not in gpu.checked("cpu")
    honest, given = gpu.words, []

    def drifting(key, count, device):
        given.append(device)
        return honest(key, count, device) + len(given)

    monkeypatch.setattr(gpu, "words", drifting)
    assert "words of the cipher" in gpu.checked("cpu")["error"]


def test_no_row_begins_after_the_time_is_over(gpu, tmp_path, monkeypatch):
    small(gpu, monkeypatch)
    failed, rows = rehearsed(gpu, tmp_path, monkeypatch, "--minutes", "0")
    assert failed and {row["error"] for row in rows} == {"out of time"} and len(rows) == 7
