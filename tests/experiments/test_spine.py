"""Sweeps that share a store, runs that fail, and executors by name."""

import json
import os
import signal
import sys
import threading
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace

import pytest

from crtlib.experiments import executors, leases, spine
from crtlib.experiments.game import GameStudy
from crtlib.experiments.store import Store
from crtlib.experiments.study import Study, Whole, value

BEGUN = []


@value
class Slow(Study):
    """Notes that it ran; fails where asked to."""

    fails: Whole = 0  # so many times
    milliseconds: Whole = 20

    def run(self, desk):
        BEGUN.append(self.seed)
        time.sleep(self.milliseconds / 1000)
        if BEGUN.count(self.seed) <= self.fails:
            raise ZeroDivisionError("my card is 4929 1234")
        return [("seed", 0, 0, float(self.seed))]


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    BEGUN.clear()
    monkeypatch.setattr(spine, "POLL", 0.05)


def swept(studies, store, **options):
    return spine.sweep(studies, store, executor="threads:", progress=False, **options)


def failures(store, study):
    return [json.loads(line) for line in store.failures(study.key).read_text().splitlines()]


def test_workers_have_the_environment_of_now_and_their_own_processes(monkeypatch):
    """They are forks of one process, which began with another environment."""
    for word in ("first", "second"):
        monkeypatch.setenv("CRTLIB_TRIED", word)
        with spine.process_pool(1) as pool:
            assert pool.submit(os.getenv, "CRTLIB_TRIED").result() == word
            assert pool.submit(os.getpid).result() != os.getpid()
    assert os.getenv("PYTHONPATH") != os.pathsep.join(sys.path)


def test_two_sweeps_of_one_store_share_the_work(tmp_path):
    runs = [Slow(seed=k) for k in range(12)]
    with ThreadPoolExecutor(2) as both:
        tables = [both.submit(swept, runs, Store(tmp_path), workers=2) for _ in range(2)]
        first, second = (table.result(60) for table in tables)
    assert sorted(BEGUN) == list(range(12))  # each once, by one of them
    assert first.equals(second) and len(first) == 12
    assert not list((tmp_path / "leases").iterdir())


def test_a_living_sweep_is_waited_for_and_a_dead_one_is_not(tmp_path):
    store, study = Store(tmp_path), Slow(seed=0)
    store.begin()
    with ThreadPoolExecutor(1) as other, store.lease(study.key, "alive").held() as ours:
        assert ours
        waiting = other.submit(swept, [study], store)
        time.sleep(0.2)
        assert not waiting.done() and not BEGUN
        lease = store.lease(study.key, "alive")
        facts = dict(lease.facts())
        lease.path.write_text(json.dumps({**facts, "pid": 2**22 + 1}))  # no such process
        assert len(waiting.result(60)) == 1


@pytest.mark.parametrize(("ago", "taken"), [(0, False), (leases.LASTS + leases.GRACE + 1, True)])
def test_a_lease_of_another_machine_ends_by_the_clock(tmp_path, ago, taken):
    theirs, ours = (leases.Lease(tmp_path / "a.json", name) for name in ("theirs", "ours"))
    with theirs.held():
        facts = dict(theirs.facts())
    changed = {**facts, "host": "elsewhere", "until": facts["until"] - ago}
    theirs.path.write_text(json.dumps(changed))
    with ours.held() as free:
        assert free == taken


def test_a_lease_is_renewed_while_the_run_lasts(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "RENEWED", 0.01)
    lease = leases.Lease(tmp_path / "a.json", "ours")
    with lease.held():
        first = lease.facts()
        time.sleep(0.1)
        later = lease.facts()
    assert later["until"] > first["until"] and later["since"] == pytest.approx(
        first["since"], abs=1
    )


def test_a_failing_run_is_recorded_tried_again_and_not_the_end_of_the_others(tmp_path):
    store, once, always = Store(tmp_path), Slow(seed=1, fails=1), Slow(seed=2, fails=9)
    with pytest.raises(spine.UnfinishedError, match="2 of 3 runs are done, 1 failed"):
        swept([Slow(seed=0), once, always], store)
    assert store.has(once.key) and not store.has(always.key)
    (line,) = failures(store, once)
    assert [f["attempt"] for f in failures(store, always)] == [1, 2]
    assert (line["kind"], line["schema"]) == ("exception", "crtlib/failure/1")
    assert line["started"] < line["ended"] and line["host"] and "spine:_run:" in line["where"]
    assert line["message"] == "ZeroDivisionError" and "4929" not in json.dumps(line)


def test_a_second_result_is_compared_and_the_first_one_stays(tmp_path):
    """As where a lease was lost: two sweeps did one run."""
    store = Store(tmp_path)
    store.begin()
    sweep = spine._Sweep(store, "custom", "cpu", False, 1, None)
    study = Slow(seed=5).ready()
    for number in (1.0, 1.0, 2.0):
        sweep._record(study.key, study, spine._Result([("seed", 0, 0, number)], 1.0, 1.0))
        assert store.table([study.key]).value.tolist() == [1.0]
    assert [f["kind"] for f in failures(store, study)] == ["differs"]


class Elsewhere(Executor):
    """An executor that somebody else wrote."""

    def __init__(self):
        self.pool = ThreadPoolExecutor(1)

    def submit(self, *args, **options):
        return self.pool.submit(*args, **options)

    def shutdown(self, wait=True, *, cancel_futures=False):
        self.pool.shutdown(wait, cancel_futures=cancel_futures)


def test_an_executor_of_somebody_elses_serves_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "elsewhere", Elsewhere, raising=False)
    name = "entry:crtlib.experiments.executors:elsewhere"
    table = spine.sweep([Slow(seed=3)], Store(tmp_path), executor=name, progress=False)
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
        spine.sweep([Slow(seed=0)], Store(tmp_path), executor=name, progress=False)
    assert str(refused.value).startswith(f"executor={name!r}: ") and message in str(refused.value)
    assert not BEGUN


def test_a_scheduler_that_is_not_there_is_named(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(executors, "PATIENCE", 1)
    with (
        pytest.raises(ValueError, match=r"executor='dask://127.0.0.1:1': no answer in 1 s"),
        executors.by_name("dask://127.0.0.1:1", 1),
    ):
        pass


def test_a_dask_cluster_one_of_whose_workers_is_killed(tmp_path):
    distributed = pytest.importorskip("distributed")
    game = GameStudy(seed=0, candidates=4, others=8, steps=1, batch_size=6.0)
    games = [replace(game, seed=k) for k in range(12)]
    store = Store(tmp_path)
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        victim = next(iter(client.run(os.getpid).values()))

        def kill():
            while len(list(tmp_path.glob("*.json"))) < 2:
                time.sleep(0.01)
            os.kill(victim, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        address = cluster.scheduler_address.removeprefix("tcp:")
        table = spine.sweep(games, store, executor=f"dask:{address}", progress=False)
        killer.join()
    assert table.seed.nunique() == 12
    alone = swept(games[:2], Store(tmp_path / "alone"))
    same = table[table.run.isin(alone.run)]
    assert same.value.tolist() == alone.value.tolist()
