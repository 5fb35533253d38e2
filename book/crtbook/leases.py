"""Who runs what where several sweeps fill one store: a lease on each run.

A lease only saves work. Results are pure functions of the key, so a run that two sweeps did is
compared and one of the two dropped: a clock that is wrong harms nothing.

>>> import tempfile
>>> path = Path(tempfile.mkdtemp()) / "leases" / "abc.json"
>>> ours, theirs = Lease(path, "us"), Lease(path, "them")
>>> with ours.held() as first, theirs.held() as second:
...     first, second
(True, False)
>>> ours.release()
>>> path.exists()
False
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crtlib import roots

LASTS, RENEWED, GRACE = 120.0, 40.0, 60.0
"""Seconds: a lease is valid so long, renewed so often, taken over so long after its end."""


@dataclass(frozen=True)
class Lease:
    """The right to run one study: a small file, which names its ``owner`` (a sweep) and its end."""

    path: Path
    owner: str

    @contextlib.contextmanager
    def held(self) -> Iterator[bool]:
        """True where the run is ours now; the lease is renewed meanwhile, and stays afterwards
        until it is released, or over. False where a living sweep has it."""
        if not self._take():
            yield False
            return
        since = time.time()
        with repeating(RENEWED, lambda: self._write(since)):
            yield True

    def release(self) -> None:
        """Give it back, if it is ours."""
        if self.facts().get("owner") == self.owner:
            roots.remove(self.path)

    def facts(self) -> Mapping[str, Any]:
        """``key``, ``owner``, ``host``, ``pid``, ``since`` and ``until``; empty where none is."""
        try:
            facts = json.loads(roots.read(self.path))
        except (FileNotFoundError, ValueError):
            return {}
        return facts if isinstance(facts, dict) else {}

    def living(self) -> bool:
        """Whether a sweep may be at work on it."""
        return roots.exists(self.path) and self._valid(self.facts())

    def _take(self) -> bool:
        if roots.is_local(self.path) and self._create():
            return True
        other = self.facts()
        if other.get("owner") != self.owner and self._valid(other):
            return False
        self._write(time.time())
        return self.facts().get("owner") == self.owner

    def _create(self) -> bool:
        """Whether it is ours because nobody had it. Elsewhere than in a folder two may both find
        it free, and do one run twice."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            self._write(time.time())
            return True
        return False

    def _valid(self, other: Mapping[str, Any]) -> bool:
        """Whether its holder may still be at work."""
        if not other:  # just created, or damaged: as old as its file
            with contextlib.suppress(FileNotFoundError):
                return time.time() < self.path.stat().st_mtime + GRACE
            return False
        if other["host"] == socket.gethostname() and not _runs(other["pid"]):
            return False
        return bool(time.time() < other["until"] + GRACE)

    def _write(self, since: float) -> None:
        facts: dict[str, Any] = {"key": self.path.stem, "owner": self.owner}
        facts |= {"host": socket.gethostname(), "pid": os.getpid()}
        facts |= {"since": since, "until": time.time() + LASTS}
        roots.write(self.path, json.dumps(facts))


@contextlib.contextmanager
def repeating(seconds: float, call: Callable[[], None]) -> Iterator[None]:
    """``call`` on a thread again and again meanwhile; what fails may succeed the next time."""
    end = threading.Event()

    def run() -> None:
        while not end.wait(seconds):
            with contextlib.suppress(Exception):
                call()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _runs(pid: int) -> bool:
    """Whether a process of this machine is there and has not ended. One that has ended and that
    nobody has reaped, as where process 1 of a container reaps none, takes signals still."""
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's process, or a system that has no such file: it is there
        return True
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")  # its name may hold brackets
