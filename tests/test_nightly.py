"""The quick tests are those that a guarantee hangs on, and the table of the others is true."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.faults.table import FAULTS
from tests.nightly import NIGHTLY, ROOT


@pytest.mark.parametrize("name", NIGHTLY)
def test_what_is_left_to_the_night_exists(name):
    file, _, test = name.partition("::")
    assert f"def {test.partition('[')[0] or 'test_'}" in (ROOT / file).read_text()


def test_no_guard_of_a_planted_fault_is_left_to_the_night():
    guards = {fault.guard for fault in FAULTS}
    assert guards and not [g for g in guards if g.startswith(tuple(NIGHTLY))]


def test_a_file_that_the_night_has_as_a_whole_is_not_read_by_day(request):
    conftest = request.config.pluginmanager.get_plugin(str(ROOT / "tests/conftest.py"))
    for expression, file, ignored in (
        ("not nightly", "tests/screening/test_scaling.py", True),
        ("not nightly", "tests/kills/test_kills.py", None),
        ("", "tests/screening/test_scaling.py", None),
    ):
        config = SimpleNamespace(getoption={"markexpr": expression}.get)
        assert conftest.pytest_ignore_collect(ROOT / file, config) is ignored


def test_the_quick_tests_of_a_file_with_both_kinds_and_of_one_that_is_left_out():
    files = ["tests/kills/test_kills.py", "tests/screening/test_scaling.py"]
    command = [sys.executable, "-m", "pytest", "-m", "not nightly", "--collect-only", "-q", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["tests/kills/test_kills.py:", "1"]
