"""The log of a command (``--log FILE``): what it did and when, a JSON object a line, never text.

Lines are appended, so one file can hold the log of a whole path. What a person typed stays out:
of options the names alone, of an error its kind and the exit code.

>>> import tempfile
>>> path = Path(tempfile.mkdtemp()) / "path.log"
>>> with events(path, "screen", ["policy"], code=lambda error: 2):
...     pass
>>> lines = [json.loads(line) for line in path.read_text().splitlines()]
>>> [line["event"] for line in lines], lines[0]["options"], lines[1]["code"]
(['started', 'ended'], ['policy'], 0)
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from crtlib.files import check_regular, disk_faults

SCHEMA = "crtlib/log/1"


@contextlib.contextmanager
def events(
    path: Path | None, command: str, options: Sequence[str], code: Callable[[BaseException], int]
) -> Iterator[dict[str, Any]]:
    """Append that a command started, with the names of its ``options``, and how it ended; nothing
    where ``path`` is None.

    Facts put into the mapping go into the last line; ``code`` is the exit code that an error leads
    to. Raises ``ValueError`` for a file that is no log of ours, before anything is written.
    """
    facts: dict[str, Any] = {"code": 0}
    if path is None:
        yield facts
        return
    _check(path)
    head = {"schema": SCHEMA, "command": command, "process": os.getpid()}
    began = time.perf_counter()
    _append(path, head | {"event": "started", "options": sorted(options)})
    try:
        yield facts
    except BaseException as error:
        facts |= {"code": code(error), "error": type(error).__name__}
        raise
    finally:
        facts["seconds"] = round(time.perf_counter() - began, 3)
        _append(path, head | {"event": "ended"} | facts)


def _check(path: Path) -> None:
    """That the file is not there yet or a log of ours: lines in a corpus would damage it."""
    if not path.exists():
        if not path.parent.is_dir():
            raise ValueError(f"--log: {path.parent} is no folder")
        return
    check_regular(path)
    with open(path, "rb") as file:
        first = file.readline(4096)
    with contextlib.suppress(ValueError):
        line = json.loads(first) if first else {"schema": SCHEMA}
        if isinstance(line, dict) and line.get("schema") == SCHEMA:
            return
    raise ValueError(f"--log: {path} is not a log of crtlib; name another file")


def _append(path: Path, line: dict[str, Any]) -> None:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    with disk_faults(path), open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps({"time": now} | line) + "\n")
