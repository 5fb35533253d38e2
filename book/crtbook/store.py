"""The store of runs: a file a run, one long table of all of them.

A store is a folder of JSON files named by the hash of their study. A file is written atomically and
carries its own SHA-256, so it is there whole or not at all, and damage shows; what is there need
not be run again. The model that was trained is kept beside it: when the list of measurements grows,
it is scored again, not trained again.

>>> import tempfile
>>> store = Store(tempfile.mkdtemp())
>>> store.write("abc", {"method": "crt"}, {"seed": 1}, [("exposure", 1, 0, 2.5)])
>>> store.table(["abc"])[["method", "metric", "epoch", "item", "value", "seed"]].values.tolist()
[['crt', 'exposure', 1, 0, 2.5, 1]]
"""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from crtbook.study import STORE_VERSION, Row
from crtlib import files
from crtlib.checks import ParameterError
from crtlib.files import Named

MEASUREMENTS = 3
"""Raised whenever a trained model is measured otherwise than before."""


class Store:
    """A folder of finished runs; private, as a model may have memorised its text. Raises
    ``ValueError`` for what is no folder's name, or a store of another version."""

    def __init__(self, folder: Named) -> None:
        if not str(folder) or "://" in str(folder) or "\0" in str(folder):
            raise ParameterError(f"store={str(folder)!r}: must be a folder")
        self.folder = Path(folder)
        try:
            version = (self.folder / "VERSION").read_text("utf-8").strip()
        except (FileNotFoundError, NotADirectoryError):
            if any(self.folder.glob("*.json")):
                raise ValueError(
                    f"store={str(folder)!r}: holds JSON files but no VERSION: not a store"
                ) from None
        else:
            if version != STORE_VERSION:
                raise ValueError(
                    f"store={str(folder)!r}: has version {version!r}, this library reads "
                    f"{STORE_VERSION!r}; name another folder or remove this one"
                )

    def path(self, key: str) -> Path:
        """Where the run with this hash is, or will be."""
        return self.folder / f"{key}.json"

    def unfinished(self, key: str) -> Path:
        """Where a run keeps its state until it is finished."""
        return self.folder / "unfinished" / f"{key}.pt"

    def model(self, key: str) -> Path:
        """The folder of the trained model (:mod:`crtlib.models.folder`)."""
        return self.folder / "models" / key

    def failures(self, key: str) -> Path:
        """The failure records of a run, a line an attempt."""
        return self.folder / "failures" / f"{key}.jsonl"

    @contextlib.contextmanager
    def alone(self, key: str) -> Iterator[bool]:
        """True where no other sweep runs this study now. It is a lock of the system, and ends with
        its process."""
        place = self.folder / "running" / key
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
        for folder in (self.folder, self.folder / "running"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (self.folder / "VERSION").exists():
            files.write_text(self.folder / "VERSION", STORE_VERSION + "\n")
        for path in self.folder.glob("unfinished/*"):
            key = path.name.lstrip(".").partition(".")[0]
            if self.has(key):  # by a sweep that was killed thereafter
                with self.alone(key) as idle:
                    if idle:
                        path.unlink(missing_ok=True)

    def read(self, key: str) -> dict[str, Any] | None:
        """The run's cell, or None where there is none. A damaged file is set aside, as
        ``KEY.json.damaged``, so that the run is done again."""
        path = self.path(key)
        try:
            cell: dict[str, Any] = json.loads(path.read_text("utf-8"))
            whole = cell.pop("sha256") == _digest(cell)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, AttributeError, TypeError):
            whole = False
        if not whole:
            path.rename(path.with_suffix(".json.damaged"))
            return None
        return cell

    def damaged(self) -> list[Path]:
        """The files that were set aside because their content and their SHA-256 differ."""
        return sorted(self.folder.glob("*.json.damaged"))

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
        files.write_text(self.path(key), json.dumps(cell | {"sha256": _digest(cell)}))
        for path in self.folder.glob(f"unfinished/*{key}*"):
            path.unlink(missing_ok=True)

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


def _digest(cell: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(cell, sort_keys=True).encode()).hexdigest()
