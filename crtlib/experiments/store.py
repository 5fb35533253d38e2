"""One file for each finished run, one long table of all of them.

A store is a folder of JSON files named by the hash of their experiment. A file is written
atomically, so it is there whole or not at all, and what is there need not be run again. The model
that was trained is kept beside it: when the list of measurements grows, it is scored again, not
trained again.

>>> import tempfile
>>> store = Store(tempfile.mkdtemp())
>>> store.write("abc", {"method": "crt"}, {"seed": 1}, [("exposure", 1, 0, 2.5)])
>>> store.table(["abc"])[["method", "metric", "epoch", "item", "value", "seed"]].values.tolist()
[['crt', 'exposure', 1, 0, 2.5, 1]]
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm.auto import tqdm

from crtlib import __version__, files

STORE_VERSION = "2"
"""Raised whenever the same experiment would train another model than before."""

MEASUREMENTS = 1
"""Raised whenever a trained model is measured otherwise than before."""

Row = tuple[str, int, int, float]
"""``(metric, epoch, item, value)``; ``item`` numbers canaries, 0 where there is but one."""


class Store:
    """A folder of finished runs. Raises ``ValueError`` for a store of another version."""

    def __init__(self, folder: str | os.PathLike) -> None:
        self.folder = Path(folder)
        mark = self.folder / "VERSION"
        if mark.exists():
            found = mark.read_text().strip()
            if found != STORE_VERSION:
                raise ValueError(
                    f"store={str(folder)!r}: has version {found!r}, this library reads "
                    f"{STORE_VERSION!r}; name another folder or remove this one"
                )
        elif self.folder.exists() and any(self.folder.glob("*.json")):
            raise ValueError(f"store={str(folder)!r}: holds JSON files but no VERSION: not a store")
        else:
            files.write_text(mark, STORE_VERSION + "\n")

    def path(self, key: str) -> Path:
        """Where the run with this hash is, or will be."""
        return self.folder / f"{key}.json"

    def checkpoint(self, key: str) -> Path:
        """Where an unfinished run keeps its state."""
        return self.folder / "unfinished" / f"{key}.pt"

    def model(self, key: str) -> Path:
        """The folder of the trained model (:func:`crtlib.experiments.trials.save`)."""
        return self.folder / "models" / key

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no other sweep fills this store: two notebooks may ask for the same runs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the system releases it when its holder ends
            yield

    def has(self, key: str) -> bool:
        """True where the run is finished, with today's measurements."""
        if not self.path(key).exists():
            return False
        return json.loads(self.path(key).read_text(encoding="utf-8"))["measured"] == MEASUREMENTS

    def write(self, key: str, experiment: dict, provenance: dict, rows: Iterable[Row]) -> None:
        """Record a finished run atomically."""
        cell = {"experiment": experiment, "provenance": provenance, "rows": list(rows)}
        cell["measured"] = MEASUREMENTS
        files.write_text(self.path(key), json.dumps(cell))

    def table(self, keys: Sequence[str]) -> pd.DataFrame:
        """Long table of the runs ``keys``: one row a measurement, experiment and provenance as
        columns. Raises ``KeyError`` for a run that is not finished."""
        frames = []
        for key in keys:
            if not self.has(key):
                raise KeyError(f"run {key} is not in the store")
            cell = json.loads(self.path(key).read_text(encoding="utf-8"))
            frame = pd.DataFrame(cell["rows"], columns=["metric", "epoch", "item", "value"])
            constants = {"run": key, **cell["experiment"], **cell["provenance"]}
            front = pd.DataFrame({k: [v] * len(frame) for k, v in constants.items()})
            frames.append(pd.concat([front, frame], axis=1))
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def collect(
    wanted: Mapping[str, Any],
    measure: Callable[[str, Any], Iterable[Row]],
    store: Store,
    *,
    describe: Callable[[Any], dict] = asdict,
    profile: str = "custom",
    device: str = "cpu",
    progress: bool = True,
) -> pd.DataFrame:
    """The long table of all runs ``wanted``, by key. What the store does not hold yet is measured,
    one run after the other in this process, ``measure(key, run)``, each recorded atomically."""
    missing = [key for key in wanted if not store.has(key)]
    for key in tqdm(missing, desc="runs", unit="run", disable=not (missing and progress)):
        if store.has(key):  # another notebook has been here meanwhile
            continue
        started = time.perf_counter()
        rows = measure(key, wanted[key])
        seconds = time.perf_counter() - started
        made = provenance(profile=profile, device=device, seconds=seconds)
        store.write(key, describe(wanted[key]), made, rows)
    return store.table(list(wanted))


def provenance(*, profile: str, device: str, seconds: float) -> dict:
    """What a reader must know of where a number comes from."""
    names = ("torch", "transformers", "numpy")
    return {
        "profile": profile,
        "device": device,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "versions": ", ".join(
            [f"crtlib {__version__}"] + [f"{n} {metadata.version(n)}" for n in names]
        ),
        "date": datetime.date.today().isoformat(),
        "seconds": round(seconds, 2),
    }


def record(table: pd.DataFrame, path: str | os.PathLike) -> None:
    """Write a table to ``path`` as Parquet, atomically."""
    with files.replacing(path) as part:
        table.to_parquet(part, index=False)


def recorded(name: str) -> pd.DataFrame:
    """A table recorded in the repository's ``data/results``."""
    path = Path(__file__).resolve().parents[2] / "data" / "results" / f"{name}.parquet"
    if not path.exists():
        raise ValueError(f"name={name!r}: no recorded table {path.name} in data/results")
    return pd.read_parquet(path)


def caption(table: pd.DataFrame) -> str:
    """One line under a figure: which profile, device, seeds and date made its numbers."""
    kinds = [", ".join(sorted(set(table[c].astype(str)))) for c in ("profile", "device")]
    first, last = min(table.date), max(table.date)
    when = first if first == last else f"{first} to {last}"
    seeds = table.seed.nunique()
    return f"{kinds[0]} profile, {kinds[1]}, {seeds} seed{'s' * (seeds > 1)}, {when}"
