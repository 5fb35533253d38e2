"""Atomic files: a reader sees the old content or the new content, never half of either.

>>> import tempfile, pathlib
>>> folder = pathlib.Path(tempfile.mkdtemp())
>>> write_text(folder / "a.json", "{}")
>>> (folder / "a.json").read_text(), [p.name for p in folder.iterdir()]
('{}', ['a.json'])
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import gzip
import io
import os
import re
import secrets
import stat
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, AnyStr, BinaryIO, cast

StrPath = str | os.PathLike[str]
"""A file or folder, as a caller names it."""
NO_SUCH_FILE = "no such file"

DISK_FULL_PROBE_BYTES = 1 << 20
"""If there is no room for this many bytes, an error during writing means that the disk is full."""
_WRITER_FAILED = re.compile("PytorchStreamWriter|inline_container|iostream error|I/O error")
"""What torch and safetensors print if a disk fails while they write."""
MAX_LINE_LENGTH = 64 << 20
"""Bytes or characters of the longest line that is read: a file may be one endless line."""


def cache_folder() -> Path:
    """The folder in which models are kept between runs: ``CRTLIB_CACHE``, or
    ``~/.cache/crtlib``."""
    home = os.environ.get("CRTLIB_CACHE")
    return Path(home) if home else Path.home() / ".cache" / "crtlib"


@contextlib.contextmanager
def replace_atomically(path: StrPath, mode: int | None = None) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it becomes ``path``, else it is removed.

    The data is on disk before the name changes, so a crash or a kill leaves the old file. Parent
    folders are made. Raises ``OSError`` if the folder cannot be written.

    A new file has ``mode`` minus the umask: 0666 by default, 0600 for what is private. A file that
    is replaced keeps its permissions, but never more of them than ``mode`` allows.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked_part_file(path, 0o666 if mode is None else mode) as part_path:
        if path.exists():
            allowed = 0o777 if mode is None else mode
            os.chmod(part_path, stat.S_IMODE(path.stat().st_mode) & allowed)
        with translate_disk_errors(path):
            yield part_path
            with part_path.open("rb+") as f:
                os.fsync(f.fileno())
        os.replace(part_path, path)


@contextlib.contextmanager
def replace_together(modes: Mapping[Path, int]) -> Iterator[dict[Path, Path]]:
    """Yield a temporary path beside each of these; on success each replaces its file, in the given
    order. On an error before that, all temporary files are removed.

    All are on disk before the first name changes. So a crash leaves the old files, or some new ones
    without the last: if the last one is new, all are. ``modes`` are as in
    :func:`replace_atomically`.

    Guarantee:
        Both files of a pair are written, or neither is. After a kill between the two names, the
        same command can be run again. Test: ``tests/release/test_verifier.py::
        test_a_certificate_that_was_stopped_between_its_files_is_made_by_the_same_command``.
    """
    with contextlib.ExitStack() as stack:
        part_paths: dict[Path, Path] = {}
        for path, mode in modes.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            part_paths[path] = stack.enter_context(locked_part_file(path, mode))
            if path.exists():
                os.chmod(part_paths[path], stat.S_IMODE(path.stat().st_mode) & mode)
        with translate_disk_errors(next(iter(modes))):
            yield part_paths
            for part_path in part_paths.values():
                with part_path.open("rb+") as file:
                    os.fsync(file.fileno())
        for path, part_path in part_paths.items():
            os.replace(part_path, path)


def remove_stale_parts(path: Path) -> None:
    """Remove files that were written beside ``path`` to replace it and that nobody has locked: a
    process that was killed left them."""
    for stale in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with contextlib.suppress(OSError, ValueError), open_regular_file(stale) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            stale.unlink()


@contextlib.contextmanager
def locked_part_file(path: Path, mode: int) -> Iterator[Path]:
    """A new, empty file beside ``path``, locked while it is written, and removed on an error.
    Otherwise the caller has renamed it, and nothing is removed by its old name."""
    remove_stale_parts(path)
    while True:
        part_path = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
        # Its permissions are never wider than in the end, also while it is written.
        handle = os.open(part_path, os.O_CREAT | os.O_EXCL | os.O_RDONLY, mode)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if part_path.exists():  # else somebody swept it before it was locked
            break
        os.close(handle)
    try:
        yield part_path
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is raised; the next run sweeps
            part_path.unlink()
        raise
    finally:
        os.close(handle)


@contextlib.contextmanager
def lock_folder(folder: StrPath, taken: str) -> Iterator[None]:
    """Hold a folder, which one process at a time can do. If another holds it, raises ``ValueError``
    with the message ``taken``. A process that was killed holds nothing."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(taken) from None
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def translate_disk_errors(path: StrPath) -> Iterator[None]:
    """Report a full disk as the system does: raise ``OSError`` (no space, quota, file too large)
    for the errors of their own that torch and safetensors raise."""
    try:
        yield
    except OSError as error:
        if error.errno:  # without a number it would print as no more than a path
            error.filename = error.filename or os.fspath(path)
        raise
    except Exception as fault:
        home = path if os.path.isdir(path) else Path(path).parent
        with contextlib.suppress(FileNotFoundError), tempfile.TemporaryFile(dir=home) as f:
            try:
                os.posix_fallocate(f.fileno(), 0, DISK_FULL_PROBE_BYTES)
            except OSError as error:
                raise OSError(error.errno, os.strerror(error.errno or 0), os.fspath(path)) from None
        if _WRITER_FAILED.search(str(fault)):
            raise OSError(errno.EIO, os.strerror(errno.EIO), os.fspath(path)) from None
        raise


def write_text(path: StrPath, text: str, mode: int | None = None) -> None:
    """Write ``text`` (UTF-8) to ``path`` atomically; ``mode`` is as in
    :func:`replace_atomically`."""
    with replace_atomically(path, mode) as part_path:
        part_path.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def open_plain_or_gzip(path: StrPath) -> Iterator[BinaryIO]:
    """The bytes of a plain or gzipped file; ``ValueError`` names it if it is missing or damaged.

    A pipe or a device is refused, as it may never end.
    """
    with check_regular_file(path).open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            yield cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise ValueError(f"{path}: damaged gzip file") from None


def why_not_regular(path: StrPath) -> str:
    """Why a path is no regular file, in words; empty if it is one. The path is examined only once,
    since another process may remove it in the meantime."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return NO_SUCH_FILE
    except ValueError:  # for a name that no file can have
        return NO_SUCH_FILE
    if stat.S_ISREG(mode):
        return ""
    if stat.S_ISDIR(mode):
        return "is a folder, a file is needed"
    return "is a pipe or a device, not a regular file"


def check_regular_file(path: StrPath) -> Path:
    """The path of a regular file, for a library that opens files itself. For any other path,
    ``ValueError`` states in one line what it is.

    Guarantee:
        Each file that a library opens for us went through this function or through
        :func:`open_regular_file`. Test:
        ``tests/test_regular_files.py::test_nothing_is_read_that_may_be_no_regular_file``.
    """
    if fault := why_not_regular(path):
        raise ValueError(f"{path}: {fault}")
    return Path(path)


def open_regular_file(path: StrPath) -> io.BufferedReader:
    """Open a regular file for reading; links are followed.

    Raises:
        ValueError: In one line, if it is a folder, a pipe or a device. A pipe is not waited for.
        OSError: If there is none, or it may not be read.

    Guarantee:
        No read waits for a writer, or for an end that never comes. Test:
        ``tests/test_regular_files.py::test_a_pipe_is_not_waited_for``.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError(f"{path}: {why_not_regular(path) or 'is not a regular file'}")
    except BaseException:
        os.close(handle)
        raise
    return open(handle, "rb")


def read_bytes(path: StrPath) -> bytes:
    """The bytes of a regular file (:func:`open_regular_file`)."""
    with open_regular_file(path) as file:
        return file.read()


def read_text(path: StrPath, encoding: str = "utf-8") -> str:
    """The text of a regular file (:func:`open_regular_file`); each end of a line is a newline."""
    with io.TextIOWrapper(open_regular_file(path), encoding=encoding) as file:
        return file.read()


def read_bounded_lines(file: IO[AnyStr], path: StrPath) -> Iterator[AnyStr]:
    """The lines of an open file; ``ValueError`` for one longer than ``MAX_LINE_LENGTH``."""
    number = 0
    while line := file.readline(MAX_LINE_LENGTH):
        number += 1
        if len(line) == MAX_LINE_LENGTH:
            raise ValueError(f"{path}, line {number}: is longer than {MAX_LINE_LENGTH >> 20} MiB")
        yield line


def check_writable(folder: StrPath) -> None:
    """Make ``folder`` and raise ``OSError`` unless a file can be written there."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def check_owned(folder: StrPath) -> None:
    """Refuse a folder that belongs to another user or in which others may write, since its content
    may be theirs.

    Raises ``ValueError`` in one line with what would help.
    """
    _check_owner_and_mode(Path(folder), stat.S_IWGRP | stat.S_IWOTH, "700")


def check_private_key(path: StrPath) -> None:
    """Refuse a key that belongs to another user or that others may read or write, as ssh does:
    whoever put it there could sign, or guess, with it. Raises ``ValueError`` in one line with what
    would help.

    Guarantee:
        Nothing is signed or hashed with a key that, by its mode or owner, somebody else may know.
        Test:
        ``tests/accounting/test_damaged_ledgers.py::test_a_key_that_others_know_is_refused``.
    """
    _check_owner_and_mode(Path(path), stat.S_IRWXG | stat.S_IRWXO, "600")


def _check_owner_and_mode(path: Path, forbidden: int, mode: str) -> None:
    status = path.stat()
    if status.st_uid not in (os.geteuid(), 0):
        raise ValueError(f"{path}: belongs to another user; take a folder of your own")
    if status.st_mode & forbidden:
        current_mode = f"{stat.S_IMODE(status.st_mode):04o}"
        raise ValueError(
            f"{path}: is open to others (mode {current_mode}); if nobody else has put it there, "
            f"chmod {mode} it"
        )
