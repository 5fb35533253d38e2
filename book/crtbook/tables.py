"""Tables that are recorded with the package, with their provenance.

>>> table = load_recorded("tuning")
>>> {"method", "metric", "value", "profile", "device", "seed", "date"} <= set(table)
True
>>> caption(pd.DataFrame({"profile": ["quick"], "device": "cpu", "seed": 0, "date": "2026-01-01"}))
'quick profile, cpu, 1 seed, 2026-01-01'
"""

import contextlib
import datetime
import functools
import hashlib
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from pandas import DataFrame

import crtbook
from crtlib import __version__, files
from crtlib.files import StrPath

FOLDER = crtbook.FOLDER / "recorded"
"""The recorded tables: package data, so that they are there without a checkout."""
STUDIES: dict[str, Any] = crtbook.load_data_file("studies")
"""The constants that the studies of the papers use."""


Made = TypeVar("Made")
Facts = dict[str, str | float]


def collect_provenance(
    *, profile: str, device: str, seconds: float, cpu_seconds: float | None = None
) -> Facts:
    """What a reader must know about where a number comes from. ``seconds`` is the wall-clock time
    of the whole run, including preparing and attacks."""
    versions = {n: metadata.version(n) for n in ("torch", "transformers", "numpy")}
    versions = {"crtlib": __version__, **versions}
    provenance: Facts = {
        "profile": profile,
        "device": device,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "date": datetime.date.today().isoformat(),
        "seconds": round(seconds, 2),
    }
    if cpu_seconds is not None:
        provenance |= {"cpu_seconds": round(cpu_seconds, 2)}
    return provenance


def measure_with_provenance(
    make: Callable[[], Made], *, profile: str, device: str = "cpu"
) -> tuple[Made, Facts]:
    """What ``make`` makes, and its :func:`collect_provenance`."""
    wall, cpu = time.perf_counter(), time.process_time()
    made = make()
    seconds = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    return made, collect_provenance(profile=profile, device=device, **seconds)


@functools.cache
def find_commit() -> str:
    """The commit of this checkout, with a ``+`` where tracked files differ from it; empty where
    the package is in no checkout."""
    root = Path(__file__).resolve().parents[2]
    options = f"--git-dir={root / '.git'}", f"--work-tree={root}"
    describe = ("describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+")
    try:
        process = subprocess.run(
            ["git", *options, *describe], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return process.stdout.strip()


@functools.cache
def name_processor() -> str:
    """The name of this machine's processor."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def describe_origin(command: str, data: Iterable[str]) -> dict[str, str]:
    """What is needed to make a run again: the ``command``, the commit, the processor (each run uses
    one thread), and the hash of the ``data`` that it read (the fingerprints of its files)."""
    data_hash = hashlib.sha256("".join(data).encode()).hexdigest()[:16]
    return {
        "command": command,
        "commit": find_commit(),
        "processor": name_processor(),
        "data": data_hash,
    }


def write_table(table: DataFrame, path: StrPath) -> None:
    """Write a table to ``path`` as Parquet, atomically."""
    with files.replace_atomically(path) as temporary_file:
        table.to_parquet(temporary_file, index=False)


def load_recorded(name: str) -> DataFrame:
    """A table that is recorded with the package."""
    return _read_table(name).copy()


def find_recorded(name: str) -> DataFrame | None:
    """A recorded table, or None where there is none of this name: whoever has the time makes the
    large ones, and every page works without them."""
    return load_recorded(name) if (FOLDER / f"{name}.parquet").is_file() else None


def list_table_names() -> list[str]:
    """The names of the recorded tables."""
    return sorted(path.stem for path in FOLDER.glob("*.parquet"))


@functools.lru_cache(maxsize=8)
def _read_table(name: str) -> DataFrame:
    path = FOLDER / f"{name}.parquet"
    if not path.is_file():
        raise ValueError(f"name={name!r}: must be one of {', '.join(list_table_names())}")
    return pd.read_parquet(path)


def hash_table(name: str) -> str:
    """The SHA-256 of a recorded table's file, which a chapter stores beside what it shows."""
    return hashlib.sha256((FOLDER / f"{name}.parquet").read_bytes()).hexdigest()


def caption(table: DataFrame) -> str:
    """One line below a figure: the profile, device, seeds and date that made its numbers."""
    kinds = [", ".join(sorted(set(table[c].astype(str)))) for c in ("profile", "device")]
    first, last = min(table.date), max(table.date)
    dates = first if first == last else f"{first} to {last}"
    seeds = table.seed.nunique()
    return f"{kinds[0]} profile, {kinds[1]}, {seeds} seed{'s' * (seeds > 1)}, {dates}"
