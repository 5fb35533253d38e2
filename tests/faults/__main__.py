"""Plant every fault of the table, one by one, and see its test fail: ``python -m tests.faults``.

A test that has never failed proves little. Each guard first passes on the library as it is; then,
in a process of its own, one function is altered, and the same guard must fail by an assertion.
"""

import __future__

import argparse
import ast
import contextlib
import importlib
import inspect
import io
import multiprocessing
import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from tests.faults.table import FAULTS

ROOT = Path(__file__).parents[2]
SECONDS = 240
SILENCE = ["-q", "-x", "--no-header", "-p", "no:cacheprovider"]


# --------------------------------------------------------------------------- one fault
def function(target):
    """The plain function that ``module:name`` or ``module:Class.name`` runs."""
    module, _, path = target.partition(":")
    owner = importlib.import_module(module)
    for name in path.split("."):
        owner = inspect.getattr_static(owner, name)
    owner = owner.fget if isinstance(owner, property) else owner
    return inspect.unwrap(getattr(owner, "__func__", owner))


def altered(fault):
    """The function with ``new`` for ``old``, compiled beside the other names of its module.

    Raises LookupError where ``old`` does not stand exactly once in its source.
    """
    honest = function(fault.target)
    source = inspect.getsource(honest)
    if source.count(fault.old) != 1:
        raise LookupError(f"{fault.old!r} stands {source.count(fault.old)} times in {fault.target}")
    tree = ast.parse(textwrap.dedent(source.replace(fault.old, fault.new)))
    tree.body[0].decorator_list = []
    flags = __future__.annotations.compiler_flag
    names = {}
    exec(compile(tree, fault.target, "exec", flags, dont_inherit=True), honest.__globals__, names)
    return names[honest.__name__]


def plant(fault):
    """Every caller of the function runs the altered code from now on, however it imported it."""
    function(fault.target).__code__ = altered(fault).__code__


def too_long(*_):
    raise TimeoutError


class Watch:
    """Notes by what kind of exception a test failed."""

    def __init__(self):
        self.failed, self.passed = [], 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if report.failed:
            self.failed.append(call.excinfo.type.__name__)
        elif report.when == "call" and report.passed:
            self.passed += 1
        return report


def planted(fault):
    """What the fault's guard says of it: see :func:`verdict`."""
    try:
        plant(fault)
    except (LookupError, AttributeError, SyntaxError) as error:
        return f"does not apply: {error}"
    return verdict(fault.guard)


def verdict(guard):
    """Whether a test passes, fails (and how), or never ran."""
    watch = Watch()
    signal.signal(signal.SIGALRM, too_long)  # a fault may make a loop endless
    signal.alarm(SECONDS)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        pytest.main([*SILENCE, f"--rootdir={ROOT}", str(ROOT / guard)], plugins=[watch])
    if watch.failed:
        return f"fails: {watch.failed[0]}"
    return "passes" if watch.passed else "never ran"


# --------------------------------------------------------------------------- all of them
HEAVY = ("hypothesis", "scipy.stats", "torch._dynamo", "transformers.models.gpt2.modeling_gpt2")
CAUGHT = ("fails: AssertionError", "fails: Failed")  # the second: an error that did not come


def plant_all(faults, jobs, *, honest=True):
    """Print a line a fault; the number of faults that were not caught. ``honest``: see the guards
    pass first, which a run of the whole suite does beside us."""
    for module in {*HEAVY, *(fault.target.partition(":")[0] for fault in faults)}:
        importlib.import_module(module)  # once, before processes are forked
    guards = list(dict.fromkeys(fault.guard for fault in faults))
    # A process for each, forked: what is planted, and what a test leaves behind, dies with it.
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        seen = pool.imap(verdict, guards) if honest else ["passes"] * len(guards)
        passed = dict(zip(guards, seen, strict=True))
        survivors = 0
        for fault, said in zip(faults, pool.imap(planted, faults), strict=True):
            before = passed[fault.guard]
            caught = before == "passes" and said in CAUGHT
            survivors += not caught
            why = "" if caught else f"  (without it: {before}; with it: {said}; {fault.guard})"
            print(f"{'caught  ' if caught else 'SURVIVED'}  {fault.name}{why}", flush=True)
    print(f"{len(faults) - survivors} of {len(faults)} planted faults caught")
    return survivors


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="those that every test run plants")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("words", nargs="*", help="only faults whose name or target holds one")
    options = parser.parse_args()
    faults = [
        f
        for f in FAULTS
        if (f.quick or not options.quick)
        and (not options.words or any(w in f.name or w in f.target for w in options.words))
    ]
    if not faults:
        parser.error("no fault has that name")
    os.chdir(ROOT)
    sys.exit(min(plant_all(faults, options.jobs, honest=not options.quick), 1))


if __name__ == "__main__":
    main()
