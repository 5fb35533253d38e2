"""One file for each finished run, one long table of all of them.

A store is a folder of JSON files named by the hash of their study. A file is written atomically
and carries its own SHA-256, so it is there whole or not at all, and damage shows; what is there
need not be run again. The model that was trained is kept beside it: when the list of measurements
grows, it is scored again, not trained again.

>>> import tempfile
>>> store = Store(tempfile.mkdtemp())
>>> store.write("abc", {"method": "crt"}, {"seed": 1}, [("exposure", 1, 0, 2.5)])
>>> store.table(["abc"])[["method", "metric", "epoch", "item", "value", "seed"]].values.tolist()
[['crt', 'exposure', 1, 0, 2.5, 1]]
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from crtlib import files
from crtlib.experiments.leases import Lease

STORE_VERSION = "3"
"""Raised whenever the same study would train another model than before."""

MEASUREMENTS = 3
"""Raised whenever a trained model is measured otherwise than before."""

Row = tuple[str, int, int, float]
"""``(metric, epoch, item, value)``; ``item`` numbers canaries, 0 where there is but one."""


class Store:
    """A folder of finished runs. Raises ``ValueError`` for a store of another version."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        mark = self.folder / "VERSION"
        if mark.exists():
            version = mark.read_text().strip()
            if version != STORE_VERSION:
                raise ValueError(
                    f"store={str(folder)!r}: has version {version!r}, this library reads "
                    f"{STORE_VERSION!r}; name another folder or remove this one"
                )
        elif self.folder.exists() and any(self.folder.glob("*.json")):
            raise ValueError(f"store={str(folder)!r}: holds JSON files but no VERSION: not a store")

    def path(self, key: str) -> Path:
        """Where the run with this hash is, or will be."""
        return self.folder / f"{key}.json"

    def checkpoint(self, key: str) -> Path:
        """Where an unfinished run keeps its state."""
        return self.folder / "unfinished" / f"{key}.pt"

    def model(self, key: str) -> Path:
        """The folder of the trained model (:mod:`crtlib.models.folder`)."""
        return self.folder / "models" / key

    def failures(self, key: str) -> Path:
        """The failure records of a run, a line an attempt."""
        return self.folder / "failures" / f"{key}.jsonl"

    def lease(self, key: str, owner: str) -> Lease:
        """The right to run this study, of a sweep called ``owner``."""
        return Lease(self.folder / "leases" / f"{key}.json", owner)

    def begin(self) -> None:
        """Make it a store, if it is none yet."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (self.folder / "VERSION").exists():
            files.write_text(self.folder / "VERSION", STORE_VERSION + "\n")
        leases = [self.lease(path.stem, "") for path in (self.folder / "leases").glob("*.json")]
        if any(lease.living() for lease in leases):
            return
        for part in self.folder.rglob(".*.part"):  # of a sweep that was killed
            if not part.name.startswith(".VERSION"):  # of one that begins beside this one
                part.unlink(missing_ok=True)

    def read(self, key: str) -> dict[str, Any] | None:
        """The run's cell, or None where there is none. A damaged file is set aside, as
        ``KEY.json.damaged``, so that the run is done again."""
        path = self.path(key)
        try:
            cell: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            whole = cell.pop("sha256") == _digest(cell)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, AttributeError, TypeError):
            whole = False
        if not whole:
            os.replace(path, path.with_suffix(".json.damaged"))
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
        self.clean(key)

    def clean(self, key: str) -> None:
        """Remove what an unfinished run has left."""
        for path in (self.folder / "unfinished").glob(f"{key}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

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
