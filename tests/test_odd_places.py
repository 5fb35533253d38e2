"""Odd projects, outputs and streams end in one line."""

import errno
import os
import subprocess
import sys

import pytest

from crtlib import cli, files

TOML = {
    "source = 5": "must be a list of names", "source = 'a'": "must be a list of names",
    "source = [['a']]": "must be a text", "source = {a = 1}": "must be a text",
}  # fmt: skip


@pytest.mark.parametrize("line", TOML)
def test_a_source_that_is_none_is_one_line(run, tmp_path, line):
    (tmp_path / "crtlib.toml").write_text(f"[ingest]\n{line}\n")
    code, _, err = run("run", tmp_path, "--dry-run")
    assert code == 2 and err.count("\n") == 1 and TOML[line] in err


@pytest.mark.parametrize("text", ["[[ingest]]\nsource = ['a']\n", 'ingest = "x"\n', "ingest = 7\n"])
def test_a_step_that_is_no_table_is_one_line(run, tmp_path, text):
    (tmp_path / "crtlib.toml").write_text(text)
    code, _, err = run("run", tmp_path, "--dry-run")
    assert code == 2 and err.count("\n") == 1 and "must be one table, [ingest]" in err


def test_a_project_of_notepad_is_read(run, tmp_path):
    (tmp_path / "crtlib.toml").write_text("\ufeff[ingest]\nsource = ['a.csv']\n")
    assert run("run", tmp_path, "--dry-run")[0] == 0


@pytest.mark.parametrize("name", ["loop", "\udcff"])
def test_an_output_that_cannot_be_is_one_line(run, tmp_path, name):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "in.csv").write_text("user,text\nann,hello\n")
    code, _, err = run("ingest", tmp_path / "in.csv", "--yes", "--out", f"{tmp_path}/{name}")
    assert code == 2 and err.count("\n") == 1 and "--out" in err


def test_links_in_a_circle_are_one_line_wherever_they_are_followed(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises((RuntimeError, OSError)) as circle:
        (tmp_path / "loop").resolve(strict=True)
    told = cli.describe_failure(circle.value)
    assert told is not None and told.code == 2
    assert str(told) == f"{tmp_path}/loop: too many levels of symbolic links"


def test_a_command_without_standard_input_answers(tmp_path):
    (tmp_path / "in.csv").write_text("user,text\nann,hello\n")
    line = f"{sys.executable} -m confide ingest in.csv --yes --out o <&-"
    done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("said", ["[enforce fail at inline_container.cc:659]", "I/O error: 5"])
def test_a_disk_that_broke_below_torch_is_the_machines_fault(tmp_path, said):
    with pytest.raises(OSError) as error, files.translate_disk_errors(tmp_path / "x"):
        raise RuntimeError(said)
    assert error.value.errno == errno.EIO and os.listdir(tmp_path) == []
