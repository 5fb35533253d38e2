"""Tables that are recorded with the package, and what a reader must know of where they come from.

>>> table = recorded("tuning")
>>> {"method", "metric", "value", "profile", "device", "seed", "date"} <= set(table)
True
>>> caption(pd.DataFrame({"profile": ["quick"], "device": "cpu", "seed": 0, "date": "2026-01-01"}))
'quick profile, cpu, 1 seed, 2026-01-01'
"""

from __future__ import annotations

import functools
import hashlib
import os
from importlib import resources

import pandas as pd

from crtlib import files
from crtlib.experiments.study import provenance

__all__ = ["caption", "digest", "edition", "names", "provenance", "record", "recorded"]

FOLDER = resources.files("crtbook") / "recorded"
"""The recorded tables: package data, so that they are there without a checkout."""


def record(table: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write a table to ``path`` as Parquet, atomically."""
    with files.replacing(path) as part:
        table.to_parquet(part, index=False)


def recorded(name: str) -> pd.DataFrame:
    """A table that is recorded with the package."""
    return _read(name).copy()


def edition(name: str) -> pd.DataFrame | None:
    """A recorded table, or None where none of this name is recorded: what is large is made by
    those who have the time, and every page can do without."""
    return recorded(name) if (FOLDER / f"{name}.parquet").is_file() else None


def names() -> list[str]:
    """The recorded tables."""
    found = (p.name for p in FOLDER.iterdir())
    return sorted(name.removesuffix(".parquet") for name in found if name.endswith(".parquet"))


@functools.lru_cache(maxsize=8)
def _read(name: str) -> pd.DataFrame:
    path = FOLDER / f"{name}.parquet"
    if not path.is_file():
        raise ValueError(f"name={name!r}: must be one of {', '.join(names())}")
    with path.open("rb") as stream:
        return pd.read_parquet(stream)


def digest(name: str) -> str:
    """SHA-256 of a recorded table's file: a chapter keeps it beside what it shows."""
    return hashlib.sha256((FOLDER / f"{name}.parquet").read_bytes()).hexdigest()


def caption(table: pd.DataFrame) -> str:
    """One line under a figure: which profile, device, seeds and date made its numbers."""
    kinds = [", ".join(sorted(set(table[c].astype(str)))) for c in ("profile", "device")]
    first, last = min(table.date), max(table.date)
    when = first if first == last else f"{first} to {last}"
    seeds = table.seed.nunique()
    return f"{kinds[0]} profile, {kinds[1]}, {seeds} seed{'s' * (seeds > 1)}, {when}"
