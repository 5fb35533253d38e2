"""The runner: run the studies that a store does not hold yet, and return the long table of all.

A study is a frozen value that names itself and knows how to run itself
(:class:`crtbook.study.Study`); the runner knows nothing else about it. The runs of all three
papers, the searches, the games and the screening measurements are kinds of study, so all of them
have processes, any executor, a device, resuming, progress and provenance.

>>> import tempfile
>>> from concurrent.futures import ThreadPoolExecutor
>>> from crtbook.game import GameStudy
>>> games = [GameStudy(seed=s, candidates=4, others=8, steps=1, batch_size=6.0) for s in (0, 1)]
>>> with ThreadPoolExecutor(1) as executor:
...     table = sweep(games, Store(tempfile.mkdtemp()), executor=executor, progress=False)
>>> sorted(table.seed.unique().tolist()), int((table.metric == "success").sum())
([0, 1], 2)
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import (
    Executor,
    Future,
    ProcessPoolExecutor,
    as_completed,
)
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from tqdm.auto import tqdm

from crtbook import tables
from crtbook.study import Desk, Store, Study
from crtbook.tables import Facts
from crtlib import files
from crtlib.checks import MachineError
from crtlib.executors import executor_of
from crtlib.training.devices import device_by_name

ATTEMPTS = 2
"""Attempts for each run: one that fails is tried once more, then recorded, and the others go on."""

POLL = 1.0
"""Seconds between two looks at runs that another sweep is doing."""


class UnfinishedError(MachineError):
    """Some runs failed; the others are finished and kept. One line says how many and where."""

    def _render_traceback_(self) -> list[str]:  # read by IPython
        return [f"sweep unfinished: {self}"]


@dataclass(frozen=True)
class Plan:
    """What a sweep would do: its runs by key, which are ``missing``, and which data is lacking."""

    studies: Mapping[str, Study]
    missing: Mapping[str, Study]
    lacking: tuple[str, ...]


def plan_sweep(studies: Iterable[Study], store: Store) -> Plan:
    """What a sweep of these studies would run, without running it."""
    runs, lacking = dict[str, Study](), Counter[str]()
    for study in studies:
        missing_data = study.lacks()
        if missing_data:  # its corpus is not here, so nobody can say what it would read
            lacking[missing_data] += 1
        else:
            ready_study = study.ready()
            runs[ready_study.key] = ready_study
    missing = {key: study for key, study in runs.items() if not store.has(key)}
    return Plan(runs, missing, tuple(f"{data} ({n} runs)" for data, n in lacking.items()))


def sweep(
    studies: Iterable[Study],
    store: Store,
    *,
    profile: str = "custom",
    workers: int = 2,
    executor: Executor | str = "processes:",
    device: str = "auto",
    keep_models: bool = True,
    keep_states: bool = True,
    long_runs_first: bool = True,
    progress: bool = True,
    command: str = "",
) -> pd.DataFrame:
    """Run what ``store`` lacks, and return the table of all ``studies``.

    ``long_runs_first`` keeps all workers busy to the end. Without it runs begin in the order of
    ``studies``, so that what is finished at any time is a table of the first ones.

    Each finished run is written atomically by its worker, so a kill loses at most the runs in
    flight, and those resume from their checkpoints. ``executor`` is a name for
    :func:`executor_of`, by default ``workers`` processes, or any
    ``concurrent.futures.Executor``; its workers must see the store's folder under the same name.
    Several sweeps may fill one store: each run is done by one of them.
    ``keep_models`` keeps trained models in the store, so that a new measurement needs no training.
    Without ``keep_states`` a run that is interrupted starts from the beginning: for a large model,
    a checkpoint after each phase costs more than a short run does. ``command`` is stored with
    each run: it is what makes the run again. A run that fails is recorded in ``failures/`` of the
    store and tried once more, while the others go on; a worker that dies costs its own run an
    attempt.

    Raises ``ValueError`` before anything runs where data is lacking or the device is not there,
    and :class:`UnfinishedError` at the end where runs have failed.
    """
    way = _Way(store, profile, device_by_name(device), keep_models, keep_states, command)
    store.begin()
    todo = plan_sweep(studies, store)
    if todo.lacking:
        raise ValueError("; ".join(todo.lacking))
    if todo.missing:
        with executor_of(executor, workers) as pool:
            order = sorted(todo.missing, key=lambda key: -todo.missing[key].cost())
            waiting = order if long_runs_first else [*todo.missing]
            failed = _run_all(way, todo.missing, waiting, workers, pool, progress)
        if failed:
            last = json.loads(store.failures(failed[0]).read_text("utf-8").splitlines()[-1])
            kinds = ", ".join(sorted({todo.missing[key].kind for key in failed}))
            raise UnfinishedError(
                f"{len(todo.studies) - len(failed)} of {len(todo.studies)} runs are done, "
                f"{len(failed)} failed ({kinds}: {last['message']}); "
                f"see {store.folder / 'failures'}; the same command tries them again"
            )
    return store.table(list(todo.studies))


def run_studies(settings: Any, studies: Iterable[Study]) -> pd.DataFrame:
    """The table of these studies, with the store, profile, workers and device from a notebook's
    settings (:mod:`crtbook.settings`)."""
    return sweep(
        studies,
        Store(settings.store),
        profile=settings.profile,
        workers=settings.workers,
        device=settings.device,
    )


# --- the runs of a sweep --------------------------------------------------------------------------
Outcome = Facts | bool
"""What became of a run: True where it is recorded, False where it was not begun (another sweep is
running it, or the pool broke), otherwise what went wrong."""


def _run_all(
    way: _Way,
    missing: Mapping[str, Study],
    waiting: list[str],
    workers: int,
    executor: Executor | None,
    progress: bool,
) -> list[str]:
    """Run these studies, in the order of ``waiting``; return the keys of those that failed in
    every attempt."""
    attempts, failed, finished = Counter[str](), list[str](), 0
    bar = tqdm(
        total=sum(study.cost() for study in missing.values()),
        bar_format="{desc} {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}]",
        disable=not progress,
    )
    with bar:
        bar.set_description_str(f"run 0 of {len(missing)}")
        while waiting:
            to_retry, finished_before = list[str](), finished
            for key, outcome in _run_round(way, missing, waiting, workers, executor):
                if outcome is True:
                    finished += 1
                    bar.set_description_str(f"run {finished} of {len(missing)}", refresh=False)
                    bar.update(missing[key].cost())
                    continue
                if outcome:
                    attempts[key] += 1
                    _record_failure(
                        way.store.failures(key), key, missing[key], attempts[key], outcome
                    )
                (to_retry if attempts[key] < ATTEMPTS else failed).append(key)
            if to_retry and finished == finished_before:
                time.sleep(POLL)
            waiting = to_retry
    return failed


def _run_round(
    way: _Way,
    missing: Mapping[str, Study],
    keys: Sequence[str],
    workers: int,
    executor: Executor | None,
) -> Iterator[tuple[str, Outcome]]:
    """Run these keys once, and yield what became of each."""
    pool = executor or process_pool(min(workers, len(keys)))
    futures: dict[Future[Outcome], str] = {}
    running: list[str] = []
    try:
        for key in keys:
            try:
                futures[pool.submit(way.run, missing[key], key)] = key
            except BrokenProcessPool:  # a worker died while the others were handed out
                yield key, False
        for future in as_completed([*futures]):
            key, error = futures[future], future.exception()
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise error
            if isinstance(error, BrokenProcessPool):
                running = running or list(futures.values())[:workers]  # in their order
            del futures[future]
            if error is None:
                yield key, future.result()
            else:
                is_lost = key in running or not isinstance(error, BrokenProcessPool)
                died = f"its worker died, perhaps for lack of memory ({type(error).__name__})"
                yield key, {"kind": "killed", "message": died} if is_lost else False
    finally:
        if executor is None:
            pool.shutdown(cancel_futures=True)


def _record_failure(failures: Path, key: str, study: Study, attempt: int, facts: Facts) -> None:
    """Add a line to the run's failure record: types, places and numbers, never text."""
    line = {
        "schema": "crtlib/failure/1",
        "key": key,
        "study": {"kind": study.kind, **asdict(study)},
        "attempt": attempt,
        "ended": time.time(),
        **facts,
    }
    earlier_lines = failures.read_text("utf-8") if failures.exists() else ""
    files.write_text(failures, f"{earlier_lines}{json.dumps(line, default=str)}\n")


class _DataError(ValueError):
    """An error about data; its message has the names of files and errors, and no text."""


@dataclass(frozen=True)
class _Way:
    """Where the results of a sweep go, how its runs are described, and on what they run."""

    store: Store
    profile: str
    device: str
    keep_models: bool
    keep_states: bool
    command: str

    def run(self, study: Study, key: str) -> Outcome:
        """Run one study here, in a worker, and record it."""
        torch.set_num_threads(1)  # two processes beat two threads at these sizes
        started = time.time()
        with self.store.alone(key) as is_ours:
            if self.store.has(key):
                return True
            try:
                if is_ours:
                    self._measured(study, key)
            except Exception as error:
                message = f": {error}" if isinstance(error, ValueError) else ""
                return {
                    "kind": "data" if isinstance(error, _DataError) else "exception",
                    "message": f"{type(error).__name__}{message}".removeprefix("_"),
                    "where": _find_place_of_error(error.__cause__ or error),
                    "host": socket.gethostname(),
                    "started": started,
                }
            return is_ours

    def _measured(self, study: Study, key: str) -> None:
        """Run the study on the data for which it was planned: its rows belong to a key that names
        that data. The time includes everything, also preparing."""
        _same_data(study, key)
        model = self.store.model(key) if self.keep_models else None
        state = self.store.unfinished(key) if self.keep_states else None
        desk = Desk(state, model, self.device)
        try:
            rows, provenance = tables.measure_with_provenance(
                lambda: list(study.run(desk)), profile=self.profile, device=self.device
            )
        finally:
            _same_data(study, key)
        provenance |= tables.describe_origin(self.command, study.reads())
        self.store.write(key, {"study": study.kind, **asdict(study)}, provenance, rows)


def _same_data(study: Study, key: str) -> None:
    """Raise :class:`_DataError` if the study would now read something else, or nothing."""
    reason = "its data are missing, or have changed since it was planned"
    try:
        is_same = study.key == key
    except (OSError, ValueError) as error:
        raise _DataError(f"{reason} ({type(error).__name__})") from error
    if not is_same:
        raise _DataError(reason)


PACKAGES = ("crtlib", "confide", "crtbook")


def _find_place_of_error(error: BaseException) -> str:
    """Module, function and line of the library where an error arose."""
    frames = traceback.extract_tb(error.__traceback__)
    own_frames = [f for f in frames if any(p in f.filename for p in PACKAGES)] or frames
    return f"{Path(own_frames[-1].filename).stem}:{own_frames[-1].name}:{own_frames[-1].lineno}"


MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(8 << 30)}
"""Settings of glibc, read when a process starts: memory that one step frees is kept for the next.
Fresh pages from the system cost a GPT-2 a tenth of its time."""


PRELOADED = ["crtlib.studies.crt_study", "torch._dynamo", "scipy.signal"]
"""What every worker needs: the second is what torch imports when the first optimizer is made; the
third, with ``scipy.stats``, computes a guarantee and compares attacks."""


def process_pool(workers: int) -> ProcessPoolExecutor:
    """Fresh processes that end with this one.

    On Linux they are forks of one process that has imported the library and done nothing else. It
    starts with the first pool and stays, so that the imports are paid once, not by every worker.
    """
    for name, setting in MALLOC.items():  # for new processes only; this one has started
        os.environ.setdefault(name, setting)
    context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(PRELOADED)
        path_before = os.environ.get("PYTHONPATH")
        try:  # the new process must find what this one has found
            os.environ["PYTHONPATH"] = os.pathsep.join(map(str, sys.path))
            forkserver.ensure_running()
        finally:
            os.environ.pop("PYTHONPATH", None)
            os.environ |= {} if path_before is None else {"PYTHONPATH": path_before}
    return ProcessPoolExecutor(workers, context, _begin_worker, (dict(os.environ),))


def _begin_worker(environment: Mapping[str, str]) -> None:
    """What a new worker does first: take the environment as it is now, watch the parent."""
    os.environ.clear()
    os.environ.update(environment)
    _leave_with_parent()


def _leave_with_parent() -> None:
    """End this worker when the sweep is killed; otherwise it would wait for work for ever."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
