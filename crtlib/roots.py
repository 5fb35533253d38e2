"""Where things lie: in a folder of this machine, or at a URL that ``fsspec`` knows.

A URL becomes a ``UPath``, which behaves as a ``pathlib.Path`` does; ``file://`` is a folder. A
small file is written in one piece, on a folder by a rename, elsewhere as object stores do. Code
that wants a local path (corpora, weights, checkpoints) reads a copy and writes into a private
folder of this machine, which is sent. Credentials are those of ``fsspec``: its configuration and
its environment.

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
import fcntl
import functools
import hashlib
import importlib.util
import json
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from crtlib import files, outputs, shards
from crtlib.checks import AccessError, MachineError, ParameterError

SENT = 20.0
"""Seconds between two looks at an unfinished run whose state is kept elsewhere: what a kill costs
it, beside the time of sending."""

WHOLE = "files.json"
"""The SHA-256 of each file of a folder that was sent, written last: without it none is there."""

_PASSWORD = re.compile(r"[^/]+//[^/@]*:[^/@]*@")


def check(name: str, what: str = "store") -> str:
    """Refuse what can be no root: an unknown protocol, or a password, which is no option."""
    if not name or "\0" in name:
        raise ParameterError(f"{what}={name!r}: must name a folder or a URL")
    if _PASSWORD.match(name):
        raise ParameterError(f"{what}: the URL holds a password; give it to fsspec, not to us")
    if "://" in name and name.partition("://")[0] not in _protocols():
        raise ParameterError(f"{what}={name!r}: must be a folder or a URL that fsspec knows")
    return name


def _protocols() -> set[str]:
    from fsspec import available_protocols

    return {*available_protocols()}


def root(name: str | os.PathLike[str], what: str = "store") -> Path:
    """The folder or URL of this name; a ``UPath`` goes for a path. ``what`` is its option.

    Raises :class:`ParameterError` for a protocol that is unknown, or whose package is missing.
    """
    if not isinstance(name, str):
        return cast(Path, name) if hasattr(name, "fs") else Path(name)
    protocol, url, rest = check(name, what).partition("://")
    if not url or protocol in ("file", "local"):
        return Path(rest if url else name)
    if lacking := _lacking(protocol):
        raise ParameterError(f"{what}={name!r}: needs pip install {' '.join(lacking)}")
    from upath import UPath

    # What others write must be seen: a listing may not be an old one.
    return cast(Path, UPath(name, use_listings_cache=False))


def _lacking(protocol: str) -> list[str]:
    """The packages that a protocol needs and that are not here."""
    from fsspec.registry import known_implementations

    known = known_implementations.get(protocol, {"class": "fsspec"})
    package = known["class"].partition(".")[0]
    packages = {"upath": "universal_pathlib", package: package}
    return [name for module, name in packages.items() if importlib.util.find_spec(module) is None]


def is_local(place: Path) -> bool:
    """Whether it lies in a folder of this machine, with all that its file system promises."""
    return isinstance(place, Path)


def note(place: Path) -> str:
    """What a person must know of where it lies; empty for a folder of this machine."""
    if is_local(place):
        return ""
    return f"private files lie in {place}: their protection is the bucket's"


@contextlib.contextmanager
def _reaching(place: Path, *passing: type[Exception]) -> Iterator[None]:
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
            f"{place}: does not serve ({type(error).__name__}: {error}); "
            "what was finished is kept: run the same command again"
        ) from error


def _at(path: Path) -> tuple[Any, str]:
    """The file system of a place that is not local, and what the place is called there."""
    place: Any = path
    return place.fs, place.path


# --------------------------------------------------------------------------- small files
def exists(path: Path) -> bool:
    """Whether there is such a file."""
    with _reaching(path):
        return path.exists()


def matching(folder: Path, pattern: str) -> list[Path]:
    """The files of a folder with names like this."""
    with _reaching(folder):
        return sorted(folder.glob(pattern), key=str)


def read(path: Path) -> str:
    """The text of a file; raises ``FileNotFoundError``."""
    if is_local(path):
        return path.read_text(encoding="utf-8")
    with _reaching(path, FileNotFoundError):
        system, at = _at(path)
        return bytes(system.cat_file(at)).decode()


def write(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    if is_local(path):
        files.write_text(path, text)
        return
    with _reaching(path):
        system, at = _at(path)
        system.pipe_file(at, text.encode())


def append(path: Path, text: str) -> None:
    """Add to a file; elsewhere it is written anew, so of two who do so at once one may win."""
    if is_local(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as log:
            log.write(text)
        return
    before = ""
    with contextlib.suppress(FileNotFoundError):
        before = read(path)
    write(path, before + text)


def rename(path: Path, new: Path) -> None:
    """Give a file another name, in place of what had it."""
    with _reaching(path):
        path.rename(new)


def remove(path: Path) -> None:
    """Remove a file that may be gone, or a folder with all that lies in it."""
    if not is_local(path):
        with _reaching(path), contextlib.suppress(FileNotFoundError):
            system, at = _at(path)
            system.rm(at, recursive=True)
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# --------------------------------------------------------------------------- input and output
_NAMES: dict[str, str] = {}
"""Of each local path that stands for a URL, the URL."""
_HERE: dict[tuple[str, str], Path] = {}
_COPYING = threading.Lock()


def told(text: str) -> str:
    """``text`` with URLs in place of the local paths that stand for them: what a person is told,
    and how a worker on another machine is told where to look."""
    for local in sorted(_NAMES, key=len, reverse=True):
        text = text.replace(local, _NAMES[local])
    return text


def here(name: str | os.PathLike[str], what: str = "path") -> Path:
    """A local path of a file or folder: its own, or that of a copy, which is there while this
    process lives and is made anew where it has changed.

    Raises ``ValueError`` where there is none, and :class:`MachineError` where a URL fails.
    """
    place = root(name, what)
    if is_local(place):
        return place
    found = _listed(place)
    if not found:
        raise ValueError(f"{place}: no such file")
    key = str(place), repr(found)
    with _COPYING:
        if key not in _HERE:
            _HERE[key] = _copied(place, found)
        return _HERE[key]


def _copied(place: Path, found: Mapping[str, str]) -> Path:
    copy = Path(tempfile.mkdtemp(dir=_copies())) / place.name
    for name in found:
        (copy / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _get(place / name if name else place, copy / name if name else copy):
            raise MachineError(f"{place}: changed while it was read; run the same command again")
    _NAMES[str(copy)] = str(place)
    return copy


def _listed(place: Path) -> dict[str, str]:
    """The files of a folder that is not local by relative name, "" for a file, and the state of
    each as the store tells it: whether it is another than before."""
    system, at = _at(place)
    files: dict[str, Any] = {}
    with _reaching(place), contextlib.suppress(FileNotFoundError):
        files = system.find(at, detail=True)
    found = {name.removeprefix(at).lstrip("/"): str(facts) for name, facts in files.items()}
    if strange := _strange(found):
        raise ValueError(f"{place}: holds {strange} files with names that lead elsewhere")
    return found


def _strange(names: Iterable[str]) -> int:
    """How many names of files in a folder do not lie in it."""
    return sum(name.startswith("/") or ".." in Path(name).parts for name in names)


@contextlib.contextmanager
def written(place: Path, *, always: bool = False) -> Iterator[Path]:
    """A local path for a folder that a command writes: its own, or, for a URL, one with what lies
    there already, which is sent back at the end where it has changed, the marker last; where the
    command fails with ``always`` only. The folder's unfinished shards (:mod:`crtlib.shards`) and
    its key go with it; shards are sent on the way, and stay there but for a mistake. Raises
    ``ValueError`` for a URL where other files lie."""
    if is_local(place):
        yield place
        return
    if not place.name:
        raise ParameterError(f"{place}: must name a folder in it")
    with staging() as home:
        out = home / place.name
        _NAMES[str(out)] = str(place)
        _mend(place)
        before = _listed(place)
        if before and outputs.MARKER not in before:  # not fetched: it may be all that there is
            raise ValueError(f"{place}: holds files that are not ours; choose another folder")
        write(_note(place), "[]")  # who may not write is told before the work
        for name in before:
            (out / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _get(place / name, out / name)
        key, parts = f".{place.name}.key", shards.folder(out)
        _get(place.with_name(key), home / key)
        known = {name: _sha(out / name) for name in before}
        try:
            with mirrored(parts, place.with_name(parts.name)):
                yield out
        except BaseException as error:
            if always:
                _deliver(out, place, known)
            if isinstance(error, ValueError) and not parts.exists():
                remove(place.with_name(parts.name))
            raise
        else:
            _deliver(out, place, known)
            if (home / key).exists():
                _put(home / key, place.with_name(key))
            remove(place.with_name(parts.name))
        finally:
            _mend(place)


def _deliver(out: Path, place: Path, before: Mapping[str, str]) -> None:
    """Send what differs from ``before``. A note of what comes and goes is there meanwhile: what
    the marker does not list of that is nobody's, if we are killed."""
    after = {str(path.relative_to(out)): _sha(path) for path in _files(out)}
    if after == before:
        return
    write(_note(place), json.dumps(sorted(before.keys() ^ after.keys())))
    for name in sorted(after, key=lambda name: (name == outputs.MARKER, name)):
        if after[name] != before.get(name):
            _put(out / name, place / name)


def _mend(place: Path) -> None:
    """Remove what a delivery has left."""
    with contextlib.suppress(FileNotFoundError):
        moved = json.loads(read(_note(place)))
        try:
            listed = {outputs.MARKER, *json.loads(read(place / outputs.MARKER))["files"]}
        except FileNotFoundError:
            listed = set()
        for name in moved:
            if name not in listed and not _strange([name]):
                remove(place / name)
        remove(_note(place))


def _note(place: Path) -> Path:
    return place.with_name(f".{place.name}.sending")


# --------------------------------------------------------------------------- files of others
@contextlib.contextmanager
def staging() -> Iterator[Path]:
    """A private, empty folder of this machine, removed at the end. Those that killed processes
    left are removed as well: nobody has locked them."""
    start = f"crtlib-{os.getuid()}-"
    for left in Path(tempfile.gettempdir()).glob(f"{start}*"):
        with contextlib.suppress(OSError):
            if left.stat().st_mtime < time.time() - 60:  # else its lock may be about to come
                with _locked(left):
                    shutil.rmtree(left)
    folder = Path(tempfile.mkdtemp(prefix=start))
    try:
        with _locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def send(folder: Path, place: Path) -> None:
    """Copy a local folder to ``place``. Who fetches it finds all of it, or nothing."""
    told = {str(path.relative_to(folder)): _sha(path) for path in _files(folder)}
    if _told(place) == told:  # as it was fetched, or as somebody else has sent it
        return
    remove(place / WHOLE)
    for name in told:
        _put(folder / name, place / name)
    write(place / WHOLE, json.dumps(told))


def fetch(place: Path, folder: Path) -> None:
    """Copy what was sent to ``place`` into a local folder: all of it, or nothing where it is not
    there, or not whole."""
    told = _told(place)
    for name, sha in told.items():
        path = folder / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _get(place / name, path) or _sha(path) != sha:
            shutil.rmtree(folder)
            return


def _told(place: Path) -> dict[str, str]:
    with contextlib.suppress(FileNotFoundError, ValueError):
        told = json.loads(read(place / WHOLE))
        if not _strange(told):
            return dict(told)
    return {}


def _put(path: Path, place: Path) -> None:
    with _reaching(place):
        system, at = _at(place)
        system.put_file(str(path), at)


def _get(place: Path, path: Path) -> bool:
    with _reaching(place), contextlib.suppress(FileNotFoundError):
        system, at = _at(place)
        system.get_file(at, str(path))
        return True
    return False


def copy(place: Path) -> Path:
    """A local copy of a folder that was sent, for as long as this process lives."""
    folder = Path(tempfile.mkdtemp(dir=_copies())) / place.name
    fetch(place, folder)
    return folder


@functools.cache
def _copies() -> Path:
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(staging())


@contextlib.contextmanager
def mirrored(folder: Path, place: Path, start: str = "") -> Iterator[None]:
    """Keep ``place`` like a local folder while something writes there: what begins with ``start``
    is fetched first; a file that was replaced is sent within ``SENT`` seconds, and when an error
    ends it."""
    folder.mkdir(mode=0o700)
    for there in matching(place, f"{start}*"):
        _get(there, folder / there.name)
    known = {path: path.stat().st_mtime_ns for path in _files(folder)}

    def look() -> None:
        for path in _files(folder):
            with contextlib.suppress(FileNotFoundError):  # just replaced
                stamp = path.stat().st_mtime_ns
                if known.get(path) != stamp:
                    _put(path, place / str(path.relative_to(folder)))
                    known[path] = stamp

    try:
        with repeating(SENT, look):
            yield
    except BaseException:
        with contextlib.suppress(Exception):  # the error that ended it is the one to tell
            look()
        raise


@contextlib.contextmanager
def repeating(seconds: float, call: Callable[[], None]) -> Iterator[None]:
    """``call`` on a thread again and again meanwhile; what fails may succeed the next time."""
    end = threading.Event()

    def run() -> None:
        while not end.wait(seconds):
            with contextlib.suppress(Exception):
                call()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _files(folder: Path) -> list[Path]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(path for path in found if not path.name.endswith(".part"))


def _sha(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
