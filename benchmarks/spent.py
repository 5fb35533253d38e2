"""What a command takes, with all the processes that it leaves behind: Linux only.

    python benchmarks/spent.py [--json FILE] make book

``time`` counts the children that somebody waits for. The workers of a pool that ends with its
notebook are waited for by nobody, and they do most of the work; here they become children of this
process. ``busy`` is the share of all cores, over the whole time, that the command kept busy.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

SUBREAPER = 36
"""``PR_SET_CHILD_SUBREAPER`` of ``prctl``: children that lose their parent are ours."""


def spent(command: list[str]) -> dict:
    """Run it; its exit status, seconds on the wall and of all processors, share of the cores, and
    the megabytes of its largest process."""
    if ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, 1, 0, 0, 0):
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    start = time.perf_counter()
    child, status, wall = subprocess.Popen(command), 0, 0.0
    with contextlib.suppress(ChildProcessError):
        while True:  # orphans at once: to others, who look for them, one that waits seems alive
            pid, ended = os.wait()
            if pid == child.pid:
                status, wall = os.waitstatus_to_exitcode(ended), time.perf_counter() - start
                child.returncode = status
    whole = time.perf_counter() - start
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu, cores = usage.ru_utime + usage.ru_stime, os.cpu_count() or 1
    return {
        "command": " ".join(command),
        "exit": status,
        "wall_seconds": round(wall, 1),
        "cpu_seconds": round(cpu, 1),
        "busy": round(cpu / whole / cores, 2),
        "cores": cores,
        "largest_mb": round(usage.ru_maxrss / 1024),
        "load_at_end": round(os.getloadavg()[0], 1),
        "date": datetime.date.today().isoformat(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="add a line with the result to this file")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run, with its arguments")
    options = parser.parse_args()
    if not options.command:
        parser.error("command: must be given")
    result = spent(options.command)
    print(json.dumps(result))
    if options.json:
        with options.json.open("a") as out:
            out.write(json.dumps(result) + "\n")
    sys.exit(result["exit"])


if __name__ == "__main__":
    main()
