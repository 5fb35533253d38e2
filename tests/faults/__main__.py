"""Plant every fault of the table, one by one, and see its test fail: ``python -m tests.faults``.

A test that has never failed proves little. Each guard first passes on the library as it is; then,
in a process of its own, one function is altered, and the same guard must fail by an assertion.
A guard that this machine skips (it lacks a package, a corpus or a GPU) is named and fails nothing.
"""

import __future__

import argparse
import ast
import builtins
import contextlib
import dis
import importlib
import inspect
import io
import multiprocessing
import os
import signal
import sys
import textwrap
from importlib import resources
from pathlib import Path
from types import CodeType

import jinja2
import pytest
from _pytest import runner

from confide.reports import html, sentences, standards
from tests.faults.table import FAULTS, Fault

ROOT = Path(__file__).parents[2]
SECONDS = 240
SKIPPED = "not run here"
SILENCE = ["-q", "-s", "--no-header", "-p", "no:cacheprovider"]


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
    name = honest.__name__
    if free := honest.__code__.co_freevars:  # from around it: __class__, where it calls super()
        made = f"{name} = around({', '.join('0' * len(free))})"
        around = ast.parse(f"def around({', '.join(free)}):\n    return {name}\n{made}")
        around.body[0].body.insert(0, tree.body[0])
        tree = around
    flags = __future__.annotations.compiler_flag
    names = {}
    exec(compile(tree, fault.target, "exec", flags, dont_inherit=True), honest.__globals__, names)
    return names[name]


def unknown_names(fault):
    """The names of a faulty function that neither it nor its module has, such as a variable that
    was renamed: it would end in a NameError, which no guard counts as caught."""
    known = {*vars(builtins), *function(fault.target).__globals__}
    return _global_names(altered(fault).__code__) - known


def _global_names(code):
    """The names that a function, and those within it, look up in their module."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    inner = (_global_names(part) for part in code.co_consts if isinstance(part, CodeType))
    return names.union(*inner)


def altered_text(fault):
    """The name of a text file of a package, as what reads it calls it, and its text with ``new``
    for ``old``.

    Raises LookupError where ``old`` does not stand exactly once in it.
    """
    package, _, path = fault.target.partition(":")
    text = (resources.files(package) / path).read_text("utf-8")
    if text.count(fault.old) != 1:
        raise LookupError(f"{fault.old!r} stands {text.count(fault.old)} times in {fault.target}")
    return Path(path).name, text.replace(fault.old, fault.new)


def plant_text(fault):
    """Whoever reads the file, as one of a package or as a page, gets the altered text."""
    name, text = altered_text(fault)
    reads = 'return (folder / name).read_text("utf-8")'
    instead = f"return {text!r} if name == {name!r} else (folder / name).read_text('utf-8')"
    reader = "crtlib.text.package_data:read_package_file"
    plant(Fault(fault.name, reader, reads, instead, fault.guard))
    pages = html._PAGE_TEMPLATES
    pages.loader = jinja2.ChoiceLoader([jinja2.DictLoader({name: text}), pages.loader])
    pages.cache.clear()
    for kept in (sentences._read_sentences_file, sentences.load_sentences, standards.load_standard):
        kept.cache_clear()


def plant(fault):
    """Every caller of the function runs the altered code from now on, however it imported it."""
    if fault.is_of_a_text:
        plant_text(fault)
    else:
        function(fault.target).__code__ = altered(fault).__code__


def too_long(*_):
    raise TimeoutError


class Watch:
    """Plants all faults from within one session of pytest, which reads the test files once; each
    is planted, and its guard run, in a process of its own, forked from there."""

    def __init__(self, faults, jobs, out):
        self.faults, self.jobs, self.out = faults, jobs, out
        self.tests, self.failed, self.passed, self.skipped = {}, [], 0, []
        self.survivors = len(faults)

    def pytest_collection_modifyitems(self, items):
        for item in items:
            for name in {item.nodeid, item.nodeid.partition("[")[0]}:
                self.tests.setdefault(name, []).append(item)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if report.failed:
            self.failed.append(call.excinfo.type.__name__)
        elif report.skipped:
            self.skipped.append(str(call.excinfo.value))
        elif report.when == "call" and report.passed:
            self.passed += 1
        return report

    def pytest_runtestloop(self):
        global watch
        watch = self
        guards = list(dict.fromkeys(fault.guard for fault in self.faults))
        # A process for each: what is planted, and what a test leaves behind, dies with it.
        with multiprocessing.get_context("fork").Pool(self.jobs, maxtasksperchild=1) as pool:
            honest = dict(zip(guards, pool.imap(verdict, guards), strict=True))
            here = [f for f in self.faults if not honest[f.guard].startswith(SKIPPED)]
            for fault in self.faults:
                if fault not in here:
                    print(f"{fault.name}  ({honest[fault.guard]}; {fault.guard})",
                          file=self.out)  # fmt: skip
            verdicts = pool.imap(planted, here)
            self.survivors = sum(
                not self.caught(fault, honest[fault.guard], next(verdicts)) for fault in here
            )
        rest = f", {len(self.faults) - len(here)} not run here" if here != self.faults else ""
        caught = len(here) - self.survivors
        print(f"{caught} of {len(here)} planted faults caught{rest}", file=self.out)
        return True

    def caught(self, fault, before, said):
        """Print a line; whether the guard passes without the fault and fails with it."""
        caught = before == "passes" and said in CAUGHT
        why = "" if caught else f"  (without it: {before}; with it: {said}; {fault.guard})"
        line = f"{'caught  ' if caught else 'SURVIVED'}  {fault.name}{why}"
        print(line, file=self.out, flush=True)
        return caught

    def run(self, guard):
        """Run the guard's tests, as pytest would, up to the first that fails."""
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1), os.dup2(silence, 2)
        for item in self.tests.get(guard, ()):
            if not self.failed:
                runner.runtestprotocol(item, log=False, nextitem=None)


def planted(fault):
    """What the fault's guard says of it: see :func:`verdict`."""
    try:
        plant(fault)
    except (LookupError, AttributeError, SyntaxError, ValueError) as error:
        return f"does not apply: {error}"
    return verdict(fault.guard)


def verdict(guard):
    """Whether a test passes, fails (and how), is skipped (and why), or never ran."""
    signal.signal(signal.SIGALRM, too_long)  # a fault may make a loop endless
    signal.alarm(SECONDS)
    watch.run(guard)
    if watch.failed:
        return f"fails: {watch.failed[0]}"
    if watch.skipped and not watch.passed:
        return f"{SKIPPED}: {watch.skipped[0]}"
    return "passes" if watch.passed else "never ran"


# --------------------------------------------------------------------------- all of them
HEAVY = ("hypothesis", "scipy.stats", "torch._dynamo", "transformers.models.gpt2.modeling_gpt2")
CAUGHT = ("fails: AssertionError", "fails: Failed")  # the second: an error that did not come


def plant_all(faults, jobs):
    """Print a line a fault; the number of faults that were not caught."""
    for module in {*HEAVY, *(fault.target.partition(":")[0] for fault in faults)}:
        importlib.import_module(module)  # once, before processes are forked
    files = dict.fromkeys(str(ROOT / fault.guard.partition("::")[0]) for fault in faults)
    every = Watch(faults, jobs, sys.stdout)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        ended = pytest.main([*SILENCE, f"--rootdir={ROOT}", *files], plugins=[every])
    if ended != pytest.ExitCode.OK:
        sys.exit(said.getvalue())
    return every.survivors


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="those that every test run plants")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--start", type=int, default=0, help="begin at this row of the table")
    parser.add_argument("words", nargs="*", help="only faults whose name or target holds one")
    options = parser.parse_args()
    faults = [
        f
        for f in FAULTS[options.start :]
        if (f.quick or not options.quick)
        and (not options.words or any(w in f.name or w in f.target for w in options.words))
    ]
    if not faults:
        parser.error("no fault has that name")
    os.chdir(ROOT)
    sys.exit(min(plant_all(faults, options.jobs), 1))


if __name__ == "__main__":
    main()
