"""Executors for the work of a command, by the names that ``--executor`` takes."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from crtlib.version import __version__

PATIENCE = 30
"""Seconds in which a scheduler must answer."""


@contextlib.contextmanager
def executor_of(name: str | Executor, workers: int) -> Iterator[Executor | None]:
    """The executor of a name that ``--executor`` takes; None for processes, which the caller
    starts.

    The names are ``processes:`` for fresh processes on this machine, ``threads:`` for threads of
    this process, ``dask://HOST:PORT`` for the workers of a Dask scheduler, and
    ``entry:MODULE:NAME`` for any ``concurrent.futures.Executor`` that a function returns. The
    executor is closed at the end, unless it was given itself.

    Raises ``ValueError`` in one line for an unknown name, a missing package, a scheduler that does
    not answer, or a worker with another version of this library.

    >>> with executor_of("threads:", workers=1) as executor:
    ...     executor.submit(abs, -2).result()
    2
    """
    if isinstance(name, Executor):
        yield name
        return
    kind, _, address = name.partition(":")
    if name == "processes:":
        yield None
    elif name == "threads:":
        with ThreadPoolExecutor(workers) as executor:
            yield executor
    elif kind == "dask" and address.startswith("//") and address.count(":") == 1:
        with _dask(address[2:], name) as executor:
            yield executor
    elif kind == "entry" and address.count(":") == 1:
        with _entry(address, name) as executor:
            yield executor
    else:
        raise ValueError(
            f"executor={name!r}: must be processes:, threads:, dask://HOST:PORT or "
            "entry:MODULE:NAME"
        )


def _entry(path: str, name: str) -> Executor:
    module, function = path.split(":")
    try:
        executor = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError, TypeError) as error:
        raise ValueError(f"executor={name!r}: {error}") from None
    if not isinstance(executor, Executor):
        raise ValueError(
            f"executor={name!r}: must return a concurrent.futures.Executor, "
            f"not a {type(executor).__name__}"
        )
    return executor


@contextlib.contextmanager
def _dask(address: str, name: str) -> Iterator[Executor]:
    try:
        from distributed import Client
    except ImportError:
        raise ValueError(f"executor={name!r}: needs pip install 'crtlib[dask]'") from None
    try:
        connect: Any = Client  # it has no types
        client = connect(f"tcp://{address}", timeout=PATIENCE, set_as_default=False)
    except (OSError, TimeoutError):
        raise ValueError(f"executor={name!r}: no answer in {PATIENCE} s") from None
    with client:
        for worker, worker_version in client.run(version).items():
            if worker_version != __version__:
                raise ValueError(
                    f"executor={name!r}: {worker} has crtlib {worker_version}, "
                    f"must be {__version__}"
                )
        # Results depend on the clock of the run, so none is reused from an earlier one.
        with client.get_executor(pure=False, retries=0) as executor:
            yield executor


def version() -> str:
    """The version of the library that a worker imports."""
    return __version__
