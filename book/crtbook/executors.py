"""Where the runs of a sweep are run, by the name that ``--executor`` takes.

``processes:`` are fresh processes of this machine, ``threads:`` threads of this process,
``dask://HOST:PORT`` the workers of a Dask scheduler, and ``entry:MODULE:NAME`` what a function of
that name returns, any ``concurrent.futures.Executor``.

>>> with of("threads:", workers=1) as executor:
...     executor.submit(abs, -2).result()
2
>>> with of("ssh:", workers=1) as executor:
...     pass
Traceback (most recent call last):
ValueError: executor='ssh:': must be processes:, threads:, dask://HOST:PORT or entry:MODULE:NAME
"""

import contextlib
import importlib
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from crtlib import __version__ as ours

PATIENCE = 30
"""Seconds in which a scheduler must answer."""


@contextlib.contextmanager
def of(name: str | Executor, workers: int) -> Iterator[Executor | None]:
    """The executor of this name, closed at the end, or the one that is given; None for processes,
    which the sweep starts itself, so that it can start them again where one died.

    Raises ``ValueError`` in one line for a name that is none, a package that is absent, a scheduler
    that does not answer, or a worker with another version of this library.
    """
    if isinstance(name, Executor):
        yield name
        return
    kind, _, rest = name.partition(":")
    if name == "processes:":
        yield None
    elif name == "threads:":
        with ThreadPoolExecutor(workers) as executor:
            yield executor
    elif kind == "dask" and rest.startswith("//") and rest.count(":") == 1:
        with _dask(rest[2:], name) as executor:
            yield executor
    elif kind == "entry" and rest.count(":") == 1:
        with _entry(rest, name) as executor:
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
        for worker, theirs in client.run(version).items():
            if theirs != ours:
                raise ValueError(f"executor={name!r}: {worker} has crtlib {theirs}, must be {ours}")
        # Results depend on the clock of the run: none is taken from an earlier one.
        with client.get_executor(pure=False, retries=0) as executor:
            yield executor


def version() -> str:
    """Of the library that a worker imports."""
    return ours
