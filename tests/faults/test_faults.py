"""The suite is tested as well: a fault of the table must fail its guard. All: ``make faults``."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.faults import __main__ as faults
from tests.faults.table import FAULTS, Fault

ROOT = Path(__file__).parents[2]


def test_the_quick_faults_are_caught():
    command = [sys.executable, "-m", "tests.faults", "--quick", "--jobs", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    caught, _, of = done.stdout.split(" planted faults caught")[0].split()[-3:]
    absent = done.stdout.count("not run here: ")
    assert int(caught) == int(of) == sum(f.quick for f in FAULTS) - absent > 0


@pytest.mark.parametrize("fault", FAULTS, ids=[f.name for f in FAULTS])
def test_a_fault_of_the_table_applies_and_names_a_test(fault):
    """Else it would be a survivor that nobody notices before "make faults"."""
    if fault.is_of_a_text:
        assert fault.new not in (fault.old, faults.altered_text(fault)[0])
    else:
        altered, honest = faults.altered(fault).__code__, faults.function(fault.target).__code__
        assert altered != honest and altered.co_freevars == honest.co_freevars
        assert faults.unknown_names(fault) == set()
    path, _, test = fault.guard.partition("::")
    assert f"def {test.partition('[')[0]}(" in (ROOT / path).read_text()


def test_the_table_is_long_and_says_nothing_twice():
    assert len(FAULTS) >= 60
    assert max(Counter(f.name for f in FAULTS).values()) == 1
    assert max(Counter((f.target, f.old, f.new) for f in FAULTS).values()) == 1


def test_a_session_of_tests_that_breaks_off_is_said(monkeypatch):
    """One row that could not be planted ended all others, without a word."""

    def broken(*_):
        raise RuntimeError("out of order")

    monkeypatch.setattr(faults.Watch, "pytest_runtestloop", broken)
    with pytest.raises(SystemExit, match="out of order"):
        faults.plant_all([FAULTS[0]], jobs=1)


def test_a_fault_that_no_longer_applies_or_is_not_noticed_is_reported(capfd, monkeypatch):
    harmless = FAULTS[0].target, "if std == 0:", "if std == 0 and True:"
    guard = "tests/training/test_clipping.py::test_mistakes_are_named"
    gone = FAULTS[0].target, "a line that is not there", "another"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    elsewhere = "tests/training/test_clipping.py::test_on_a_gpu"
    rows = [Fault("harmless", *harmless, guard), Fault("gone", *gone, guard)]
    rows += [Fault("elsewhere", *harmless, elsewhere), Fault("no test", *harmless, guard + "_2")]
    assert faults.plant_all(rows, jobs=1) == 3
    out = capfd.readouterr().out
    assert "elsewhere  (not run here: no GPU" in out
    assert "SURVIVED  harmless  (without it: passes; with it: passes" in out
    assert "SURVIVED  gone  (without it: passes; with it: does not apply" in out
    assert "SURVIVED  no test  (without it: never ran; with it: never ran" in out
    assert "0 of 3 planted faults caught, 1 not run here" in out
