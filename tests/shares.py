"""Run the tests in several processes, each of which reads its own files alone.

``python -m tests.shares --jobs 2 -m "not nightly"`` starts ``pytest`` as often as ``--jobs`` says
and hands it the rest of the words. Where one process collects all files and others run them, each
of them reads all files: a tenth of the time of ``make test``. What the first process says is shown
at once, what the others said when they end.
"""

import argparse
import contextlib
import functools
import shutil
import subprocess
import sys
import tempfile

NO_TESTS = 5
"""How ``pytest`` ends where no test was left: no fault of a share."""


def pytest_addoption(parser):
    parser.addoption("--share", metavar="K/N", help="of N shares of the files the K-th alone")


@functools.cache
def files_by_size(root, folders):
    """All files of Python below ``folders``, with their places in the order of their sizes."""
    files = sorted(path for folder in folders for path in (root / folder).rglob("*.py"))
    files.sort(key=lambda path: path.stat().st_size)
    return {path: place for place, path in enumerate(files)}


def pytest_ignore_collect(collection_path, config):
    """Files go to the shares in turn, from the smallest to the largest: large ones take longer."""
    if not (share := config.getoption("share")):
        return None
    number, count = map(int, share.split("/"))
    files = files_by_size(config.rootpath, tuple(config.getini("testpaths")))
    place = files.get(collection_path, number - 1)
    return True if place % count != number - 1 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options, words = parser.parse_known_args()
    command = [sys.executable, "-m", "pytest", "-p", "tests.shares", *words]

    def start(number, log):
        share = f"{number}/{options.jobs}"
        return subprocess.Popen([*command, "--share", share], stdout=log, stderr=subprocess.STDOUT)

    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(1, options.jobs)]
        others = [start(number, log) for number, log in enumerate(logs, 2)]
        ends = [start(1, None).wait()]
        for process, log in zip(others, logs, strict=True):
            ends.append(process.wait())
            log.seek(0)
            shutil.copyfileobj(log, sys.stdout.buffer)
            sys.stdout.flush()
    faults = [end for end in ends if end not in (0, NO_TESTS)]
    raise SystemExit(faults[0] if faults else min(ends))


if __name__ == "__main__":
    main()
