"""The spine: run the studies that a store does not hold yet, return the long table of all.

A study is a frozen value that names itself and knows how to run itself
(:class:`crtlib.experiments.study.Study`); the spine knows nothing else of it. The runs of all three
papers, the searches, the games and the screening measurements are kinds of study, so all of them
have processes, any executor, a device, resume, progress and provenance.

>>> import tempfile
>>> from concurrent.futures import ThreadPoolExecutor
>>> from crtlib.experiments.game import GameStudy
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
import threading
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from tqdm.auto import tqdm

from crtlib.checks import MachineError
from crtlib.experiments import tables
from crtlib.experiments.store import Row, Store
from crtlib.experiments.study import Desk, Study

ATTEMPTS = 2
"""A run that fails is tried once more; then it is recorded, and the others go on."""


class UnfinishedError(MachineError):
    """Some runs failed; the others are finished and kept. One line says how many and where."""

    def _render_traceback_(self) -> list[str]:  # read by IPython
        return [f"sweep unfinished: {self}"]


@dataclass(frozen=True)
class Plan:
    """What a sweep would do: its runs by key, the ``missing`` of them, the data that is lacking."""

    studies: Mapping[str, Study]
    missing: Mapping[str, Study]
    lacking: tuple[str, ...]

    @property
    def cpu_seconds(self) -> float:
        """Estimated time of the missing runs on one core."""
        return sum(study.cost() for study in self.missing.values())

    @property
    def memory(self) -> float:
        """Estimated memory of the largest of them, in GiB."""
        return max((study.memory() for study in self.missing.values()), default=0.0)

    def summary(self, workers: int) -> str:
        """What is there, what is missing, how long it may take, how much memory, what lacks."""
        kinds = pd.Series([study.kind for study in self.missing.values()], dtype=str)
        parts = ", ".join(f"{n} {kind}" for kind, n in kinds.value_counts().items())
        lines = [
            f"runs     {len(self.studies)}, of which {len(self.missing)} are missing"
            + (f" ({parts})" if parts else ""),
            f"time     about {duration(self.cpu_seconds)} of one core, "
            f"{duration(self.cpu_seconds / workers)} with {workers} workers",
            f"memory   about {workers * self.memory + 0.6:.1f} GiB",
        ]
        lines += [f"lacking  {need}" for need in self.lacking]
        return "\n".join(lines)


def duration(seconds: float) -> str:
    """A time that a person can read: 40 s, 12 min, 3.5 h.

    >>> duration(40), duration(700), duration(12600)
    ('40 s', '12 min', '3.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def plan(studies: Iterable[Study], store: Store) -> Plan:
    """What a sweep of these studies would run, without running it."""
    runs: dict[str, Study] = {}
    lacking: dict[str, int] = {}  # what is lacking, and for how many runs
    for study in studies:
        if need := study.lacks():  # its corpus is not here, so nobody can say what it would read
            lacking[need] = lacking.get(need, 0) + 1
        else:
            ready = study.ready()
            runs[ready.key] = ready
    missing = {key: study for key, study in runs.items() if not store.has(key)}
    return Plan(runs, missing, tuple(f"{need} ({n} runs)" for need, n in lacking.items()))


def device_by_name(name: str) -> str:
    """The device of this name: ``auto`` is CUDA where torch finds it, else the CPU. Raises
    ``ValueError`` for a device that is not there."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name != "cpu" and not (name.split(":")[0] == "cuda" and torch.cuda.is_available()):
        raise ValueError(f"device={name!r}: must be auto or cpu; torch finds no other here")
    return name


def sweep(
    studies: Iterable[Study],
    store: Store,
    *,
    profile: str = "custom",
    workers: int = 2,
    executor: Executor | None = None,
    device: str = "auto",
    keep_models: bool = True,
    progress: bool = True,
) -> pd.DataFrame:
    """Run what ``store`` lacks, the long runs first, and return the table of all ``studies``.

    Each finished run is written atomically by this process, whatever the executor, so a kill loses
    at most the runs in flight, and those go on from their checkpoints. Any
    ``concurrent.futures.Executor`` serves (a Dask client's too); by default ``workers`` processes.
    ``keep_models`` keeps what was trained in the store, so that a new measurement needs no
    training. A run that fails is recorded in ``failures/`` of the store and tried once more, the
    others go on; a worker that dies costs its own run an attempt.

    Raises ``ValueError`` before anything runs where data is lacking or the device is not there,
    :class:`UnfinishedError` at the end where runs have failed.
    """
    device = device_by_name(device)
    with store.alone():
        todo = plan(studies, store)
        if todo.lacking:
            raise ValueError("; ".join(todo.lacking))
        if todo.missing:
            run = _Sweep(store, profile, device, keep_models)
            failed = run.all(todo.missing, workers, executor, progress)
            if failed:
                last = json.loads(store.failures(failed[0]).read_text().splitlines()[-1])
                raise UnfinishedError(
                    f"{len(todo.studies) - len(failed)} of {len(todo.studies)} runs are done, "
                    f"{len(failed)} failed ({_kinds(failed, todo.missing)}: {last['message']}); "
                    f"see {store.folder / 'failures'}; the same command tries them again"
                )
    return store.table(list(todo.studies))


def run(settings: Any, studies: Iterable[Study]) -> pd.DataFrame:
    """The table of these studies with the store, profile, workers and device of a notebook's
    settings (:mod:`crtlib.experiments.settings`)."""
    return sweep(
        studies,
        Store(settings.store),
        profile=settings.profile,
        workers=settings.workers,
        device=settings.device,
    )


def _kinds(failed: Iterable[str], studies: Mapping[str, Study]) -> str:
    return ", ".join(sorted({studies[key].kind for key in failed}))


@dataclass(frozen=True)
class _Sweep:
    """One sweep on its way: where results go, and how its runs are described."""

    store: Store
    profile: str
    device: str
    keep_models: bool

    def all(
        self,
        missing: Mapping[str, Study],
        workers: int,
        executor: Executor | None,
        progress: bool,
    ) -> list[str]:
        """Run these studies; the keys of those that failed in every attempt."""
        order = sorted(missing, key=lambda key: -missing[key].cost())
        attempts = dict.fromkeys(missing, 0)
        total = sum(study.cost() for study in missing.values())
        shape = "{desc} {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}]"
        done = 0
        bar = tqdm(total=total, bar_format=shape, disable=not progress)
        bar.set_description_str(f"run 0 of {len(missing)}")
        waiting = order
        failed: list[str] = []
        try:
            while waiting:
                again: list[str] = []
                for key, error in self._round(missing, waiting, workers, executor):
                    if error is None:
                        done += 1
                        bar.set_description_str(f"run {done} of {len(missing)}", refresh=False)
                        bar.update(missing[key].cost())
                        continue
                    if not isinstance(error, _NotStarted):
                        attempts[key] += 1
                        self._note(key, missing[key], attempts[key], error)
                    (again if attempts[key] < ATTEMPTS else failed).append(key)
                waiting = again
        finally:
            bar.close()
        return failed

    def _round(
        self,
        missing: Mapping[str, Study],
        keys: Sequence[str],
        workers: int,
        executor: Executor | None,
    ) -> Iterable[tuple[str, BaseException | None]]:
        """Each key with None when its run is recorded, or with what went wrong."""
        pool = executor or process_pool(min(workers, len(keys)))
        futures: dict[Future[_Result], str] = {}
        try:
            for key in keys:
                model = self.store.model(key) if self.keep_models else None
                desk = Desk(self.store.checkpoint(key), model, self.device)
                try:
                    futures[pool.submit(_run, missing[key], desk)] = key
                except BrokenProcessPool:  # a worker died while the others were handed out
                    yield key, _NotStarted()
            for future in as_completed(futures):
                key, error = futures[future], future.exception()
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    raise error
                if isinstance(error, BrokenProcessPool):
                    started = self._marker(key)
                    error = _KilledError() if started.exists() else _NotStarted()
                    started.unlink(missing_ok=True)
                elif error is None:
                    self._record(key, missing[key], future.result())
                yield key, error
        finally:
            if executor is None:
                pool.shutdown(cancel_futures=True)

    def _marker(self, key: str) -> Path:
        return _started(self.store.checkpoint(key))

    def _record(self, key: str, study: Study, result: _Result) -> None:
        facts = tables.provenance(
            profile=self.profile,
            device=self.device,
            seconds=result.seconds,
            cpu_seconds=result.cpu_seconds,
        )
        self.store.write(key, {"study": study.kind, **asdict(study)}, facts, result.rows)

    def _note(self, key: str, study: Study, attempt: int, error: BaseException) -> None:
        """A line in the run's failure record: types, places and numbers, never text."""
        frames = traceback.extract_tb(error.__traceback__)
        ours = [f for f in frames if "crtlib" in f.filename] or frames
        where = f"{Path(ours[-1].filename).stem}:{ours[-1].name}:{ours[-1].lineno}" if ours else ""
        message = str(error) if isinstance(error, (ValueError, _KilledError)) else ""
        line = {
            "schema": "crtlib/failure/1",
            "key": key,
            "study": {"kind": study.kind, **asdict(study)},
            "attempt": attempt,
            "host": socket.gethostname(),
            "ended": time.time(),
            "kind": _kind(error),
            "where": where,
            "message": f"{type(error).__name__}: {message}".removesuffix(": "),
        }
        path = self.store.failures(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as log:
            log.write(json.dumps(line, default=str) + "\n")


class _KilledError(RuntimeError):
    """The worker that ran this study died."""

    def __str__(self) -> str:
        return "the worker died (killed, or out of memory)"


class _NotStarted(RuntimeError):
    """The pool broke before this study was begun: not its fault, and no attempt."""


def _kind(error: BaseException) -> str:
    if isinstance(error, _KilledError):
        return "killed"
    return "memory" if isinstance(error, MemoryError) else "exception"


@dataclass(frozen=True)
class _Result:
    rows: list[Row]
    seconds: float
    cpu_seconds: float


def _started(checkpoint: Path) -> Path:
    return checkpoint.with_suffix(".started")


def _run(study: Study, desk: Desk) -> _Result:
    """Run one study here, in a worker; its time is that of everything, preparing included."""
    torch.set_num_threads(1)  # two processes beat two threads at these sizes
    assert desk.checkpoint is not None
    started = _started(desk.checkpoint)
    started.parent.mkdir(parents=True, exist_ok=True)
    started.touch()
    wall, cpu = time.perf_counter(), time.process_time()
    rows = list(study.run(desk))
    seconds = time.perf_counter() - wall, time.process_time() - cpu
    started.unlink(missing_ok=True)
    return _Result(rows, *seconds)


def process_pool(workers: int) -> ProcessPoolExecutor:
    """Fresh processes that end with this one."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_leave_with_parent)


def _leave_with_parent() -> None:
    """End this worker when the sweep is killed; left alone it would wait for work for ever."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
