"""Atomic files: a reader sees the old content or the new content, never half of either.

>>> import tempfile, pathlib
>>> folder = pathlib.Path(tempfile.mkdtemp())
>>> write_text(folder / "a.json", "{}")
>>> (folder / "a.json").read_text(), [p.name for p in folder.iterdir()]
('{}', ['a.json'])
"""

from __future__ import annotations

import contextlib
import gzip
import os
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it becomes ``path``, else it is removed.

    The data is on disk before the name changes, so a crash or a kill leaves the old file.
    Parent folders are made. Raises ``OSError`` where the folder cannot be written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    part = Path(name)
    try:
        yield part
        with part.open("rb+") as f:
            os.fsync(f.fileno())
        os.chmod(part, 0o644)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: str | os.PathLike, text: str) -> None:
    """Write ``text`` (UTF-8) to ``path`` atomically."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def reading(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """The bytes of a plain or gzipped file; ``ValueError`` names it if missing or damaged."""
    if not Path(path).is_file():
        raise ValueError(f"{path}: no such file")
    with Path(path).open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        try:
            yield gzip.GzipFile(fileobj=raw) if packed else raw
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise ValueError(f"{path}: damaged gzip file") from None


def check_writable(folder: str | os.PathLike) -> None:
    """Make ``folder`` and raise ``OSError`` unless a file can be written there."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
