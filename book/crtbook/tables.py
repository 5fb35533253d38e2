"""Tables that are recorded with the package, and what a reader must know of where they come from.

>>> table = recorded("tuning")
>>> {"method", "metric", "value", "profile", "device", "seed", "date"} <= set(table)
True
>>> caption(pd.DataFrame({"profile": ["quick"], "device": "cpu", "seed": 0, "date": "2026-01-01"}))
'quick profile, cpu, 1 seed, 2026-01-01'
"""

import contextlib
import functools
import hashlib
import platform
import subprocess
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from pandas import DataFrame

from crtbook.study import measured, provenance
from crtlib import files
from crtlib.files import Named

__all__ = ["caption", "digest", "edition", "measured", "names", "provenance", "record", "recorded"]

FOLDER = resources.files("crtbook") / "recorded"
"""The recorded tables: package data, so that they are there without a checkout."""
STUDIES: dict[str, Any] = yaml.safe_load(
    (resources.files("crtbook") / "studies.yml").read_text("utf-8")
)
"""What the studies of the papers are made of."""


@functools.cache
def commit() -> str:
    """The commit of this checkout, with a ``+`` where tracked files differ from it; empty where
    the package lies in none."""
    root = Path(__file__).resolve().parents[2]
    try:
        where, head, changed = (
            subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=True)
            for words in (
                ("rev-parse", "--show-toplevel"),
                ("rev-parse", "--short=12", "HEAD"),
                ("status", "--porcelain", "--untracked-files=no"),
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    inside = Path(where.stdout.strip()) == root
    return head.stdout.strip() + "+" * bool(changed.stdout) if inside else ""


@functools.cache
def processor() -> str:
    """What this machine computes with."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def origin(command: str, data: Iterable[str]) -> dict[str, str]:
    """What makes a run again: the ``command``, the commit, the processor (of which each run
    has one thread), and the hash of the ``data`` that it read (the fingerprints of its files)."""
    read = hashlib.sha256("".join(data).encode()).hexdigest()[:16]
    return {"command": command, "commit": commit(), "processor": processor(), "data": read}


def record(table: DataFrame, path: Named) -> None:
    """Write a table to ``path`` as Parquet, atomically."""
    with files.replacing(path) as part:
        table.to_parquet(part, index=False)


def recorded(name: str) -> DataFrame:
    """A table that is recorded with the package."""
    return _read(name).copy()


def edition(name: str) -> DataFrame | None:
    """A recorded table, or None where none of this name is recorded: what is large is made by
    those who have the time, and every page can do without."""
    return recorded(name) if (FOLDER / f"{name}.parquet").is_file() else None


def names() -> list[str]:
    """The recorded tables."""
    found = (p.name for p in FOLDER.iterdir())
    return sorted(name.removesuffix(".parquet") for name in found if name.endswith(".parquet"))


@functools.lru_cache(maxsize=8)
def _read(name: str) -> DataFrame:
    path = FOLDER / f"{name}.parquet"
    if not path.is_file():
        raise ValueError(f"name={name!r}: must be one of {', '.join(names())}")
    with path.open("rb") as stream:
        return pd.read_parquet(stream)


def digest(name: str) -> str:
    """SHA-256 of a recorded table's file: a chapter keeps it beside what it shows."""
    return hashlib.sha256((FOLDER / f"{name}.parquet").read_bytes()).hexdigest()


def caption(table: DataFrame) -> str:
    """One line under a figure: which profile, device, seeds and date made its numbers."""
    kinds = [", ".join(sorted(set(table[c].astype(str)))) for c in ("profile", "device")]
    first, last = min(table.date), max(table.date)
    when = first if first == last else f"{first} to {last}"
    seeds = table.seed.nunique()
    return f"{kinds[0]} profile, {kinds[1]}, {seeds} seed{'s' * (seeds > 1)}, {when}"
