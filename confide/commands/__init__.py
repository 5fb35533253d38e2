"""The commands of ``crtlib``: a function each, or a dict of several (``crtlib label sample``).

Its parameters are options. The docstring has their sentences, under the headings that ``--help``
shows (:func:`crtlib.options.option_model_of`). A command returns an
:class:`crtlib.options.CommandResult`; :mod:`crtlib.cli` prints it.
"""

from __future__ import annotations

import os
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from multiprocessing import get_context
from typing import Annotated

from pydantic import Field

from crtlib.executors import executor_of

WorkerCount = Annotated[int, Field(ge=1, le=1024)]
"""Processes in which a command reads batch by batch."""

COMMANDS = {
    "new": "training",
    "run": "training",
    "ingest": "data",
    "simulate": "data",
    "convert": "data",
    "label": "data",
    "tagger": "data",
    "card": "data",
    "advise": "release",
    "screen": "data",
    "train": "training",
    "generate": "training",
    "certify": "release",
    "audit": "release",
    "account": "release",
    "leaver": "release",
    "protect": "data",
    "report": "release",
}
"""Each command, in the order of ``crtlib --help``, and the module that has it."""


def worker_pool(
    workers: int, executor: str = "processes:"
) -> AbstractContextManager[Executor | None]:
    """So many processes, closed at the end; None where one is enough, which is this one. Or an
    ``executor`` by its name (:func:`crtlib.executors.executor_of`)."""
    if executor != "processes:":
        return executor_of(executor, workers)
    # A fork of a process whose torch has threads waits for ever; a fresh one has one thread.
    fresh, alone = get_context("spawn"), ("OMP_NUM_THREADS", "1")
    return ProcessPoolExecutor(workers, fresh, os.putenv, alone) if workers > 1 else nullcontext()
