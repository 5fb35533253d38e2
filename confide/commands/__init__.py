"""The commands of ``crtlib``: each a function, or a dict of several (``crtlib label sample``).

A function's parameters are the command's options. Its docstring describes them, under the headings
that ``--help`` shows (:func:`crtlib.options.option_model_of`). A command returns an
:class:`crtlib.options.CommandResult`, which :mod:`crtlib.cli` prints.
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
"""The number of processes in which a command reads batch by batch."""

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
"""The module that has each command, in the order of ``crtlib --help``."""


def worker_pool(
    workers: int, executor: str = "processes:"
) -> AbstractContextManager[Executor | None]:
    """A pool of ``workers`` processes, closed at the end, or None for a single one, which is this
    process; or the ``executor`` of another name (:func:`crtlib.executors.executor_of`)."""
    if executor != "processes:":
        return executor_of(executor, workers)
    # A fork of a process whose torch has threads hangs; a fresh process has one thread.
    context, one_thread = get_context("spawn"), ("OMP_NUM_THREADS", "1")
    if workers <= 1:
        return nullcontext()
    return ProcessPoolExecutor(workers, context, os.putenv, one_thread)
