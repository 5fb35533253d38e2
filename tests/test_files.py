"""Files appear whole, and are readable by those who may read them."""

import contextlib
import os

import pytest

from crtlib import csv_formulas, files


@contextlib.contextmanager
def umask(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path):
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize(
    ("mask", "wanted", "expected"),
    [(0o022, None, 0o644), (0o077, None, 0o600), (0, None, 0o666), (0, 0o600, 0o600)],
)
def test_a_new_file_has_the_mode_less_the_umask_also_while_it_is_written(
    tmp_path, mask, wanted, expected
):
    file = tmp_path / "a"
    with umask(mask), files.replace_atomically(file, mode=wanted) as part:
        part.write_text("new")
        assert mode(part) == expected
    assert mode(file) == expected and file.read_text() == "new"


@pytest.mark.parametrize(
    ("before", "wanted", "expected"),
    [(0o640, None, 0o640), (0o600, None, 0o600), (0o644, 0o600, 0o600), (0o400, 0o600, 0o400)],
)
def test_a_file_that_is_replaced_keeps_its_mode_within_what_is_allowed(
    tmp_path, before, wanted, expected
):
    file = tmp_path / "a"
    file.write_text("old")
    file.chmod(before)
    with umask(0o022), files.replace_atomically(file, mode=wanted) as part:
        part.write_text("new")
    assert mode(file) == expected and file.read_text() == "new"


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    file = tmp_path / "a"
    files.write_text(file, "old")
    with pytest.raises(KeyError), files.replace_atomically(file) as part:
        part.write_text("half")
        raise KeyError
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


def test_no_cell_of_a_sheet_is_a_formula():
    for cell in ("=1+1", "\n=1+1", "＝1+1", "\ufeff=1+1", " \t+1", "－2", "@x", "\r"):
        assert csv_formulas.escape_csv_formula(cell) == f"'{cell}"
    for cell in ("plain", "a = b", "7", "", 7, None):
        assert csv_formulas.escape_csv_formula(cell) == cell
