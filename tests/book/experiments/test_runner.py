"""Sweeps that share a store, runs that fail, and executors by name."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import pytest

from crtbook import runner
from crtbook.study import Store, Study
from crtlib import executors
from crtlib.text import sources
from crtlib.values import NonNegativeInt, checked_dataclass

BEGUN = []


@checked_dataclass
class Slow(Study):
    """Notes that it ran; fails where asked to."""

    fails: NonNegativeInt = 0  # so many times
    milliseconds: NonNegativeInt = 20

    def run(self, desk):
        BEGUN.append(self.seed)
        time.sleep(self.milliseconds / 1000)
        if BEGUN.count(self.seed) <= self.fails:
            raise ZeroDivisionError("my card is 4929 1234")
        return [("seed", 0, 0, float(self.seed))]


@checked_dataclass
class Fatal(Study):
    """Ends its process where it takes no time."""

    milliseconds: NonNegativeInt = 0

    def cost(self):
        return 9.0 if not self.milliseconds else 1.0

    def run(self, desk):
        if not self.milliseconds:
            os._exit(9)
        return [("seed", 0, 0, float(self.seed))]


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    BEGUN.clear()
    monkeypatch.setattr(runner, "POLL", 0.05)


def swept(studies, store, **options):
    return runner.sweep(studies, store, executor="threads:", progress=False, **options)


def failures(store, study):
    return [json.loads(line) for line in store.failures(study.key).read_text().splitlines()]


def test_workers_have_the_environment_of_now_and_their_own_processes(monkeypatch):
    """They are forks of one process, which began with another environment."""
    for word in ("first", "second"):
        monkeypatch.setenv("CRTLIB_TRIED", word)
        with runner.process_pool(1) as pool:
            assert pool.submit(os.getenv, "CRTLIB_TRIED").result() == word
            assert pool.submit(os.getpid).result() != os.getpid()
    assert os.getenv("PYTHONPATH") != os.pathsep.join(sys.path)


def test_two_sweeps_of_one_store_share_the_work(tmp_path):
    runs = [Slow(seed=k) for k in range(12)]
    with ThreadPoolExecutor(2) as both:
        tables = [both.submit(swept, runs, Store(tmp_path), workers=2) for _ in range(2)]
        first, second = (table.result(600) for table in tables)
    assert sorted(BEGUN) == list(range(12))  # each once, by one of them
    assert first.equals(second) and len(first) == 12
    assert not list((tmp_path / "running").iterdir())


def test_a_living_sweep_is_waited_for_and_a_dead_one_is_not(tmp_path):
    store, study = Store(tmp_path), Slow(seed=0)
    store.begin()
    with ThreadPoolExecutor(1) as other:
        with store.alone(study.key) as ours:
            assert ours
            waiting = other.submit(swept, [study], store)
            time.sleep(0.2)
            assert not waiting.done() and not BEGUN
        assert len(waiting.result(600)) == 1


def test_a_sweep_that_was_killed_holds_nothing(tmp_path):
    code = f"""if True:
        import time
        from crtbook.study import Store
        with Store({str(tmp_path)!r}).alone("a") as ours:
            print(ours, flush=True)
            time.sleep(600)
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as theirs:
        assert theirs.stdout.readline() == b"True\n"
        with Store(tmp_path).alone("a") as ours:
            assert not ours
        theirs.kill()
    with Store(tmp_path).alone("a") as ours:
        assert ours


def test_of_a_pool_that_breaks_what_was_begun_is_tried_again_and_what_waited_is_no_failure(
    tmp_path,
):
    store, fatal = Store(tmp_path), Fatal(seed=0, milliseconds=0)
    runs = [fatal, *(Fatal(seed=k, milliseconds=5) for k in range(1, 5))]
    with pytest.raises(runner.UnfinishedError, match=r"4 of 5 runs are done, 1 failed \(fatal"):
        runner.sweep(runs, store, workers=1, progress=False)
    assert [(f["kind"], f["attempt"]) for f in failures(store, fatal)] == [
        ("killed", 1),
        ("killed", 2),
    ]
    assert len(list((tmp_path / "failures").iterdir())) == 1


def test_a_failing_run_is_recorded_tried_again_and_not_the_end_of_the_others(tmp_path):
    store, once, always = Store(tmp_path), Slow(seed=1, fails=1), Slow(seed=2, fails=9)
    with pytest.raises(runner.UnfinishedError, match="2 of 3 runs are done, 1 failed"):
        swept([Slow(seed=0), once, always], store)
    assert store.has(once.key) and not store.has(always.key)
    (line,) = failures(store, once)
    assert [f["attempt"] for f in failures(store, always)] == [1, 2]
    assert (line["kind"], line["schema"]) == ("exception", "crtlib/failure/1")
    assert line["started"] < line["ended"] and line["host"] and "runner:<lambda>:" in line["where"]
    assert line["message"] == "ZeroDivisionError" and "4929" not in json.dumps(line)


@checked_dataclass
class Reader(Study):
    """Reads a file, which somebody replaces meanwhile, ``spoils``: the first time it is read."""

    path: str = ""
    spoils: NonNegativeInt = 0

    def reads(self):
        yield sources.hash_files([Path(self.path)])

    def run(self, desk):
        BEGUN.append(self.seed)
        if len(BEGUN) <= self.spoils:
            Path(self.path).write_text("my card is 4929 1234")
        return [("read", 0, 0, float(len(Path(self.path).read_text())))]


def test_a_run_whose_data_changed_under_it_is_no_result(tmp_path):
    path, store = tmp_path / "c.jsonl", Store(tmp_path / "runs")
    path.write_text("first")
    study = Reader(seed=0, path=str(path), spoils=1)
    with pytest.raises(runner.UnfinishedError, match="have changed since it was planned"):
        swept([study], store)
    assert len(BEGUN) == 1 and not list((tmp_path / "runs").glob("*.json"))
    path.write_text("first")
    lines = failures(store, study)
    assert [line["kind"] for line in lines] == ["data", "data"] and "4929" not in str(lines)
    assert swept([study], store).value.tolist() == [5.0]


def test_data_that_cannot_be_read_is_said_with_its_place(tmp_path):
    path, store = tmp_path / "c.jsonl", Store(tmp_path / "runs")
    path.write_text("first")
    ready = Reader(seed=0, path=str(path)).ready()
    path.unlink()
    way = runner._Way(store, "custom", "cpu", False, True, "")
    told = way.run(ready, "abc")
    assert told["kind"] == "data" and "since it was planned (ValueError)" in told["message"]
    assert told["where"].startswith("sources:hash_files:")


class Elsewhere(Executor):
    """An executor that somebody else wrote."""

    def __init__(self):
        self.pool = ThreadPoolExecutor(1)

    def submit(self, *args, **options):
        return self.pool.submit(*args, **options)

    def shutdown(self, wait=True, *, cancel_futures=False):
        self.pool.shutdown(wait, cancel_futures=cancel_futures)


def test_an_executor_of_somebody_elses_serves_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "elsewhere", Elsewhere, raising=False)
    name = "entry:crtbook.runner:elsewhere"
    table = runner.sweep([Slow(seed=3)], Store(tmp_path), executor=name, progress=False)
    assert table.value.tolist() == [3.0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("processes", "must be processes:, threads:, dask://HOST:PORT or entry:MODULE:NAME"),
        ("threads:4", "must be processes:"),
        ("dask://nowhere", "must be processes:"),
        ("entry:math:pi", "'float' object is not callable"),
        ("entry:math:tau_", "has no attribute 'tau_'"),
        ("entry:builtins:dict", "must return a concurrent.futures.Executor, not a dict"),
    ],
)
def test_other_executors_are_refused_in_one_line(name, message, tmp_path):
    with pytest.raises(ValueError) as refused:
        runner.sweep([Slow(seed=0)], Store(tmp_path), executor=name, progress=False)
    assert str(refused.value).startswith(f"executor={name!r}: ") and message in str(refused.value)
    assert not BEGUN


def test_a_scheduler_that_is_not_there_is_named(monkeypatch):
    pytest.importorskip("distributed", reason="the package distributed is not installed")
    monkeypatch.setattr(executors, "PATIENCE", 1)
    with (
        pytest.raises(ValueError, match=r"executor='dask://127.0.0.1:1': no answer in 1 s"),
        executors.executor_of("dask://127.0.0.1:1", 1),
    ):
        pass


def test_workers_of_a_scheduler_fill_a_folder_that_they_see(tmp_path):
    distributed = pytest.importorskip(
        "distributed", reason="the package distributed is not installed"
    )
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
    with distributed.LocalCluster(**options, dashboard_address=None, protocol="tcp") as cluster:
        name = cluster.scheduler_address.replace("tcp://", "dask://")
        runs = [Slow(seed=1), Slow(seed=2)]
        table = runner.sweep(runs, Store(tmp_path), executor=name, progress=False)
    assert sorted(table.value) == [1.0, 2.0]
