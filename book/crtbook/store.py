"""One file for each finished run, one long table of all of them.

A store is a folder, or a URL, of JSON files named by the hash of their study. A file is written
atomically and carries its own SHA-256, so it is there whole or not at all, and damage shows; what
is there need not be run again. The model that was trained is kept beside it: when the list of
measurements grows, it is scored again, not trained again.

>>> import tempfile
>>> store = Store(tempfile.mkdtemp())
>>> store.write("abc", {"method": "crt"}, {"seed": 1}, [("exposure", 1, 0, 2.5)])
>>> store.table(["abc"])[["method", "metric", "epoch", "item", "value", "seed"]].values.tolist()
[['crt', 'exposure', 1, 0, 2.5, 1]]
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from crtbook import roots
from crtbook.study import STORE_VERSION, Row
from crtlib import files, outputs
from crtlib.files import Named

MEASUREMENTS = 3
"""Raised whenever a trained model is measured otherwise than before."""

SENT = 20.0
"""Seconds between two looks at an unfinished run whose state is kept elsewhere: what a kill costs
it, beside the time of sending."""

WHOLE = "files.json"
"""The SHA-256 of each file of a model that was sent, written last: without it none is there."""


class Store:
    """A folder of finished runs, or a URL (:func:`crtbook.roots.root`). Raises
    ``ValueError`` for a store of another version."""

    def __init__(self, folder: Named) -> None:
        self.folder = roots.root(folder)
        try:
            version = roots.read(self.folder / "VERSION").strip()
        except (FileNotFoundError, NotADirectoryError):
            if roots.matching(self.folder, "*.json"):
                raise ValueError(
                    f"store={str(folder)!r}: holds JSON files but no VERSION: not a store"
                ) from None
        else:
            if version != STORE_VERSION:
                raise ValueError(
                    f"store={str(folder)!r}: has version {version!r}, this library reads "
                    f"{STORE_VERSION!r}; name another folder or remove this one"
                )

    @property
    def note(self) -> str:
        """What a person must know of where it lies; empty for a folder of this machine."""
        return roots.note(self.folder)

    def check(self, executor: object) -> None:
        """Raise ``ValueError`` where the workers of an executor of this name cannot share it."""
        memory = str(self.folder).startswith("memory:")
        if memory and isinstance(executor, str) and executor != "threads:":
            raise ValueError(
                f"store={str(self.folder)!r}: is the memory of one process; needs executor threads:"
            )

    def path(self, key: str) -> Path:
        """Where the run with this hash is, or will be."""
        return self.folder / f"{key}.json"

    @contextlib.contextmanager
    def at_hand(self, key: str, keep: bool) -> Iterator[tuple[Path, Path | None]]:
        """Local paths of an unfinished run's state and, with ``keep``, of its trained model.

        Of a store that is no local folder they are staged: what is there is fetched, the state is
        sent while it changes, and the model when the run has ended."""
        unfinished = self.folder / "unfinished"
        if roots.is_local(self.folder):
            yield unfinished / f"{key}.pt", self.model(key) if keep else None
            return
        with roots.staging() as folder:
            model, state = folder / "model", folder / "unfinished"
            if keep:
                _fetch(self._model(key), model)
            with _mirrored(state, unfinished, key):
                yield state / f"{key}.pt", model if keep else None
                if keep and model.exists():
                    _send(model, self._model(key))

    def model(self, key: str) -> Path:
        """The folder of the trained model (:mod:`crtlib.models.folder`); of a store that is no
        local folder, a copy that is there while this process lives."""
        place = self._model(key)
        if roots.is_local(place):
            return place
        copy = Path(tempfile.mkdtemp(dir=roots.copies())) / key
        _fetch(place, copy)
        return copy

    def _model(self, key: str) -> Path:
        return self.folder / "models" / key

    def failures(self, key: str) -> Path:
        """The failure records of a run, a line an attempt."""
        return self.folder / "failures" / f"{key}.jsonl"

    @contextlib.contextmanager
    def alone(self, key: str) -> Iterator[bool]:
        """True where no other sweep runs this study now. It is a lock of the system, and ends with
        its process. A bucket has none: two sweeps may do one run there, with the same result."""
        place = self.folder / "running" / key
        if not roots.is_local(place):
            yield True
            return
        with contextlib.ExitStack() as stack:
            try:
                place.mkdir(mode=0o700, parents=True, exist_ok=True)
                stack.enter_context(files.locked(place, "taken"))
                stack.callback(place.rmdir)
            except (ValueError, FileNotFoundError):  # of another; or just ended
                ours = False
            else:
                ours = True
            yield ours

    def begin(self) -> None:
        """Make it a store, if it is none yet, and remove what sweeps that were killed have left."""
        if roots.is_local(self.folder):
            for folder in (self.folder, self.folder / "running"):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not roots.exists(self.folder / "VERSION"):
            roots.write(self.folder / "VERSION", STORE_VERSION + "\n")
        for path in roots.matching(self.folder / "unfinished", "*"):
            key = path.name.lstrip(".").partition(".")[0]
            if self.has(key):  # by a sweep that was killed thereafter
                with self.alone(key) as idle:
                    if idle:
                        roots.remove(path)

    def read(self, key: str) -> dict[str, Any] | None:
        """The run's cell, or None where there is none. A damaged file is set aside, as
        ``KEY.json.damaged``, so that the run is done again."""
        path = self.path(key)
        try:
            cell: dict[str, Any] = json.loads(roots.read(path))
            whole = cell.pop("sha256") == _digest(cell)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, AttributeError, TypeError):
            whole = False
        if not whole:
            with roots.reaching(path):
                path.rename(path.with_suffix(".json.damaged"))
            return None
        return cell

    def damaged(self) -> list[Path]:
        """The files that were set aside because their content and their SHA-256 differ."""
        return roots.matching(self.folder, "*.json.damaged")

    def has(self, key: str) -> bool:
        """True where the run is finished, with today's measurements."""
        cell = self.read(key)
        return cell is not None and cell["measured"] == MEASUREMENTS

    def write(
        self, key: str, study: dict[str, Any], provenance: dict[str, Any], rows: Iterable[Row]
    ) -> None:
        """Record a finished run atomically, and let go of what it kept meanwhile."""
        cell: dict[str, Any] = {"study": study, "provenance": provenance}
        cell |= {"rows": [list(row) for row in rows], "measured": MEASUREMENTS}
        roots.write(self.path(key), json.dumps(cell | {"sha256": _digest(cell)}))
        self.clean(key)

    def clean(self, key: str) -> None:
        """Remove what an unfinished run has left."""
        for path in roots.matching(self.folder / "unfinished", f"*{key}*"):
            roots.remove(path)

    def table(self, keys: Sequence[str]) -> pd.DataFrame:
        """Long table of the runs ``keys``: one row a measurement, study and provenance as
        columns. Raises ``KeyError`` for a run that is not finished."""
        frames = []
        for key in keys:
            cell = self.read(key)
            if cell is None or cell["measured"] != MEASUREMENTS:
                raise KeyError(f"run {key} is not in the store")
            frame = pd.DataFrame(cell["rows"], columns=["metric", "epoch", "item", "value"])
            constants = {"run": key, **cell["study"], **cell["provenance"]}
            front = pd.DataFrame({k: [v] * len(frame) for k, v in constants.items()})
            frames.append(pd.concat([front, frame], axis=1))
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


@contextlib.contextmanager
def _mirrored(folder: Path, place: Path, start: str = "") -> Iterator[None]:
    """Keep ``place`` like a local folder while something writes there: what begins with ``start``
    is fetched first; a file that was replaced is sent within ``SENT`` seconds, and when an error
    ends it."""
    folder.mkdir(mode=0o700)
    for there in roots.matching(place, f"{start}*"):
        roots.get(there, folder / there.name)
    known = {path: path.stat().st_mtime_ns for path in roots.files_of(folder)}

    def look() -> None:
        for path in roots.files_of(folder):
            with contextlib.suppress(FileNotFoundError):  # just replaced
                stamp = path.stat().st_mtime_ns
                if known.get(path) != stamp:
                    roots.put(path, place / str(path.relative_to(folder)))
                    known[path] = stamp

    end = threading.Event()

    def repeat() -> None:
        while not end.wait(SENT):
            with contextlib.suppress(Exception):  # what fails may succeed the next time
                look()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        try:
            yield
        finally:
            end.set()
            thread.join()
    except BaseException:
        with contextlib.suppress(Exception):  # the error that ended it is the one to tell
            look()
        raise


def _send(folder: Path, place: Path) -> None:
    """Copy a local folder to ``place``. Who fetches it has all of it, or nothing."""
    hashes = roots.hashes(folder)
    if _sent(place) == hashes:  # as it was fetched, or as somebody else has sent it
        return
    roots.remove(place / WHOLE)
    for name in hashes:
        roots.put(folder / name, place / name)
    roots.write(place / WHOLE, json.dumps(hashes))


def _fetch(place: Path, folder: Path) -> None:
    """Copy what was sent to ``place`` into a local folder: all of it, or nothing where it is not
    there, or not whole."""
    hashes = _sent(place)
    if hashes != {
        n: outputs.sha256(folder / n) for n in hashes if roots.get(place / n, folder / n)
    }:
        shutil.rmtree(folder)


def _sent(place: Path) -> dict[str, str]:
    with contextlib.suppress(FileNotFoundError, ValueError):
        hashes = json.loads(roots.read(place / WHOLE))
        if not roots.strange(hashes):
            return dict(hashes)
    return {}


def _digest(cell: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(cell, sort_keys=True).encode()).hexdigest()
