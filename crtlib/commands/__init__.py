"""The commands of ``crtlib``, one file each: a function of the file's name, or a dict of several
(``crtlib label sample``), whose parameters are options (:func:`crtlib.options.opt`).

A command returns an :class:`crtlib.options.Answer`; :mod:`crtlib.cli` prints it.
"""

from __future__ import annotations

import os
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from multiprocessing import get_context
from typing import Annotated

from crtlib.options import opt

Force = Annotated[bool, opt("Replace results that exist.", "place")]
"""The option of every command that writes."""

Workers = Annotated[int, opt("Processes.", "speed", ge=1, le=1024)]
"""In which a command reads batch by batch."""


def pool(workers: int) -> AbstractContextManager[Executor | None]:
    """So many processes, closed at the end; None where one is enough, which is this one."""
    # A fork of a process whose torch has threads waits for ever; a fresh one has one thread.
    fresh, alone = get_context("spawn"), ("OMP_NUM_THREADS", "1")
    return ProcessPoolExecutor(workers, fresh, os.putenv, alone) if workers > 1 else nullcontext()


COMMANDS = (
    "new",
    "run",
    "ingest",
    "simulate",
    "convert",
    "label",
    "tagger",
    "card",
    "advise",
    "screen",
    "train",
    "generate",
    "certify",
    "audit",
    "account",
    "protect",
    "report",
)
"""Their names, in the order of ``crtlib --help``."""
