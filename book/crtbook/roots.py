"""Where things lie: in a folder of this machine, or at a URL that ``fsspec`` knows.

A URL becomes a ``UPath``, which behaves as a ``pathlib.Path`` does; ``file://`` is a folder. A
small file is written in one piece, on a folder by a rename, elsewhere as object stores do.
The store of ``crtbook sweep`` takes URLs; no command of ``crtlib`` does. Credentials are those of
``fsspec``: its configuration and its environment.

>>> place = root("file://" + tempfile.mkdtemp())
>>> write(place / "a.json", "{}")
>>> read(place / "a.json"), is_local(place)
('{}', True)
>>> root("s4://bucket")
Traceback (most recent call last):
...
crtlib.checks.ParameterError: store='s4://bucket': must be a folder or a URL that fsspec knows
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from crtlib import files, outputs
from crtlib.checks import AccessError, MachineError, ParameterError
from crtlib.files import Named

_PASSWORD = re.compile(r"[^/]+//[^/@]*:[^/@]*@")


def check(name: str, what: str = "store") -> str:
    """Refuse what can be no root: an unknown protocol, or a password, which is no option."""
    if not name or "\0" in name:
        raise ParameterError(f"{what}={name!r}: must name a folder or a URL")
    if _PASSWORD.match(name):
        raise ParameterError(f"{what}: the URL holds a password; give it to fsspec, not to us")
    if "://" in name:
        from fsspec import available_protocols

        if name.partition("://")[0] not in available_protocols():
            raise ParameterError(f"{what}={name!r}: must be a folder or a URL that fsspec knows")
    return name


def root(name: Named, what: str = "store") -> Path:
    """The folder or URL of this name; a ``UPath`` goes for a path. ``what`` is its option.

    Raises :class:`ParameterError` for a protocol that is unknown, or whose package is missing.
    """
    if not isinstance(name, str):
        return cast(Path, name) if hasattr(name, "fs") else Path(name)
    protocol, url, rest = check(name, what).partition("://")
    if not url or protocol in ("file", "local"):
        return Path(rest if url else name)
    from fsspec.registry import known_implementations

    package = known_implementations.get(protocol, {"class": "fsspec"})["class"].partition(".")[0]
    needed = {"upath": "universal_pathlib", package: package}
    if lacking := [needed[module] for module in needed if not importlib.util.find_spec(module)]:
        raise ParameterError(f"{what}={name!r}: needs pip install {' '.join(lacking)}")
    from upath import UPath

    # What others write must be seen: a listing may not be an old one.
    return cast(Path, UPath(name, use_listings_cache=False))


def is_local(place: Path) -> bool:
    """Whether it lies in a folder of this machine, with all that its file system promises."""
    return isinstance(place, Path)


def note(place: Path) -> str:
    """What a person must know of where it lies; empty for a folder of this machine."""
    if is_local(place):
        return ""
    return f"private files lie in {place}: their protection is the bucket's"


@contextlib.contextmanager
def reaching(place: Path, *passing: type[Exception]) -> Iterator[None]:
    """Say it in one line where a root that is not local fails: no bucket, no credentials, no
    network; not what is ``passing``. Raises :class:`MachineError`, for lack of credentials
    :class:`AccessError`."""
    try:
        yield
    except Exception as error:
        if is_local(place) or isinstance(error, passing):
            raise
        kind = type(error).__name__
        if isinstance(error, PermissionError) or re.search("Credential|Authentication", kind):
            raise AccessError(
                f"{place}: does not let us in ({kind}); fsspec takes credentials from the "
                "environment, no option does"
            ) from error
        raise MachineError(
            f"{place}: does not serve ({kind}: {error}); "
            "what was finished is kept: run the same command again"
        ) from error


# --------------------------------------------------------------------------- small files
def exists(path: Path) -> bool:
    """Whether there is such a file."""
    with reaching(path):
        return path.exists()


def matching(folder: Path, pattern: str) -> list[Path]:
    """The files of a folder with names like this."""
    with reaching(folder):
        return sorted(folder.glob(pattern), key=str)


def read(path: Any) -> str:
    """The text of a file; raises ``FileNotFoundError``."""
    if is_local(path):
        return str(path.read_text(encoding="utf-8"))
    with reaching(path, FileNotFoundError):
        return bytes(path.fs.cat_file(path.path)).decode()


def write(path: Any, text: str, mode: int | None = None) -> None:
    """Write a file, whole or not at all; a local one with this ``mode``."""
    if is_local(path):
        files.write_text(path, text, mode)
        return
    with reaching(path):
        path.fs.pipe_file(path.path, text.encode())


def remove(path: Any) -> None:
    """Remove a file that may be gone, or a folder with all that lies in it."""
    if not is_local(path):
        with reaching(path), contextlib.suppress(FileNotFoundError):
            path.fs.rm(path.path, recursive=True)
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# --------------------------------------------------------------------------- files of others
def strange(names: Iterable[str]) -> int:
    """How many names of files in a folder do not lie in it."""
    return sum(name.startswith("/") or ".." in Path(name).parts for name in names)


@contextlib.contextmanager
def staging() -> Iterator[Path]:
    """A private, empty folder of this machine, removed at the end. Those that killed processes
    left are removed as well: nobody has locked them."""
    start = f"crtlib-{os.getuid()}-"
    for left in Path(tempfile.gettempdir()).glob(f"{start}*"):
        with contextlib.suppress(OSError, ValueError):
            if left.stat().st_mtime < time.time() - 60:  # else its lock may be about to come
                with files.locked(left, "in use"):
                    shutil.rmtree(left)
    folder = Path(tempfile.mkdtemp(prefix=start))
    try:
        with files.locked(folder, "in use"):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def put(path: Path, place: Any) -> None:
    """Send a file."""
    with reaching(place):
        place.fs.put_file(str(path), place.path)


def get(place: Any, path: Path) -> bool:
    """Fetch a file into a private folder; False where there is none."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with reaching(place), contextlib.suppress(FileNotFoundError):
        place.fs.get_file(place.path, str(path))
        return True
    return False


@functools.cache
def copies() -> Path:
    """A private folder that is there while this process lives."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(staging())


def files_of(folder: Path) -> list[Path]:
    """The finished files in a local folder."""
    return [p for p in sorted(folder.rglob("*")) if p.is_file() and p.suffix != ".part"]


def hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file of a local folder, by relative name."""
    return {str(path.relative_to(folder)): outputs.sha256(path) for path in files_of(folder)}
