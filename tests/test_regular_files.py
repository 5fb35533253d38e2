"""What is read is a regular file: a pipe is waited for, and a device may have no end."""

import ast
import os
import signal
import socket
from pathlib import Path

import pytest

from confide import text_registry
from crtlib import files, outputs
from crtlib.screening import cautious, expression_files, value_lists
from crtlib.text import templates
from tests.test_legible import parse, sources

OPENERS = {"ParquetFile", "read_table", "read_schema", "read_parquet", "load_file",
           "from_file", "safe_open", "ZipFile"}  # fmt: skip
"""Functions of libraries that open a path which they are given."""
OPENERS_OF = {
    ("torch", "load"),
    ("torch", "load_model"),
    ("np", "load"),
    ("sqlite3", "connect"),
    ("gzip", "open"),
}
OF_THE_PACKAGE = {"crtlib/files.py", "crtlib/text/package_data.py"}
"""Where files are opened for all others, and where those that come with the package are."""
NO_PATHS = {"packed", "RaggedArray"}
"""What has a method ``open`` and is no path: of a zip file, and of rows in memory."""


def name_of(node):
    """The last part of a dotted name, and the one before it."""
    if isinstance(node, ast.Attribute):
        return node.attr, getattr(node.value, "id", getattr(node.value, "attr", ""))
    return getattr(node, "id", ""), ""


def is_checked(node):
    """Whether an expression is a path that was checked, or no path at all."""
    if isinstance(node, ast.Constant):
        return True
    return isinstance(node, ast.Call) and name_of(node.func)[0] == "check_regular_file"


def writes(call):
    """Whether a call of ``open`` makes a file, or opens one that was made here."""
    said = [a.value for a in (*call.args, *(k.value for k in call.keywords))
            if isinstance(a, ast.Constant)]  # fmt: skip
    return any(isinstance(mode, str) and set(mode) & set("wax+") for mode in said)


def unchecked(tree):
    """The lines of a module in which something is read that may be no regular file."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name, of = name_of(call.func)
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        opens = name in OPENERS or (of, name) in OPENERS_OF
        if opens and not any(map(is_checked, call.args)):
            yield call.lineno
        own = of == "files" or of in NO_PATHS or receiver is None or is_checked(receiver)
        if name in ("read_bytes", "read_text") and not own:
            yield call.lineno
        reads = name == "open" and (of, name) not in OPENERS_OF and of not in ("os", *NO_PATHS)
        if reads and not is_checked(receiver) and not writes(call):
            yield call.lineno


def test_nothing_is_read_that_may_be_no_regular_file():
    found = [
        f"{path}:{line}"
        for path in sources("crtlib", "confide")
        if str(path).removeprefix(f"{Path.cwd()}/") not in OF_THE_PACKAGE
        for line in unchecked(parse(path))
    ]
    assert not found, "read it through crtlib.files"


@pytest.mark.parametrize(
    "source",
    ["path.read_bytes()", "Path(x).read_text()", "open(x)", "path.open('rb')", "pq.ParquetFile(x)",
     "load_file(str(x))", "torch.load(x)", "sqlite3.connect(path)", "(a / b).read_text('utf-8')"],
)  # fmt: skip
def test_a_path_that_is_opened_unchecked_is_seen(source):
    assert list(unchecked(ast.parse(source))) == [1]


@pytest.fixture
def in_time():
    """An alarm, so that what waits for a writer fails."""

    def wait(*_):
        pytest.fail("it waits")

    signal.signal(signal.SIGALRM, wait)
    signal.alarm(30)
    yield
    signal.alarm(0)


def test_a_pipe_is_not_waited_for(tmp_path, in_time):
    pipe, listed = tmp_path / "pipe", tmp_path / "pipe.txt"
    for path in (pipe, listed):
        os.mkfifo(path)
    plug = socket.socket(socket.AF_UNIX)
    plug.bind(str(tmp_path / "socket"))
    for path, what in ((pipe, "is a pipe or a device, not a regular file"),
                       ("/dev/zero", "is a pipe or a device, not a regular file"),
                       (tmp_path, "is a folder, a file is needed")):  # fmt: skip
        for read in (files.read_bytes, files.read_text, files.check_regular_file,
                     outputs.load_or_make_key, outputs.hash_file):  # fmt: skip
            if path != tmp_path or read != outputs.hash_file:  # of a folder it is that of its files
                with pytest.raises(ValueError, match=what):
                    read(path)
    with pytest.raises(OSError, match="No such device"):
        files.read_bytes(tmp_path / "socket")
    with pytest.raises(ValueError, match="is a pipe or a device"):
        value_lists.read_value_table(listed, "list")
    with pytest.raises(ValueError, match="is a pipe or a device"):
        expression_files.expression_file_policy(str(pipe))
    with pytest.raises(ValueError, match="is not a readable file of words"):
        cautious.common_words(str(pipe))
    os.mkfifo(tmp_path / "t.j2")
    with pytest.raises(ValueError, match="is a pipe or a device"):
        templates.template_by_name(str(tmp_path / "t.j2"))


def test_texts_are_read_as_they_were(tmp_path):
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfa\r\nb\n")
    for encoding in ("utf-8", "utf-8-sig"):
        path = tmp_path / "a"
        assert files.read_text(path, encoding) == path.read_text(encoding)
    (tmp_path / "b").symlink_to("a")
    assert files.read_bytes(tmp_path / "b") == (tmp_path / "a").read_bytes()


def test_what_sqlite_opens_beside_a_ledger_is_a_regular_file(tmp_path):
    registry = text_registry.Registry(tmp_path / "registry")
    registry.register("c" * 64, [("dialogue", "d")])
    os.symlink("/dev/null", f"{registry.path}-journal")  # a pipe would never end where it is taken
    with pytest.raises((ValueError, OSError)) as refused:
        registry.entries()
    assert "journal: is a pipe or a device" in str(refused.value)
