"""Pins: what has to stay the same while the code moves, is renamed, or gets smaller.

Each ``test_NAME.py`` here has a function ``make`` that computes something of the whole library, and
a test that compares it with ``data/NAME.json.gz``, which an earlier state of the library wrote:

===============  ==================================================================================
keys             of every recorded or declared study: kind and fields, and the key that they hash to
grids            of every profile and sweep: which studies it declares
edition          of every page of the published edition: all printed numbers, in order
policies         of every policy by name: its spans on 2,000 turns, and on lines of other scripts
dirty            of dirty files: the rows and the rejects of an ingestion, or its error line
studies          of a tiny study of each kind and method: its rows (slow)
released         of each method: files, schemas, hashes and norms of a released folder (slow)
certificates     six certificates, without what differs from run to run (slow)
===============  ==================================================================================

``python -m tests.pins NAME`` shows what differs, ``python -m tests.pins --write NAME`` writes a pin
anew. That is allowed in a commit that changes the thing on purpose, and says so in its body: a new
measurement, a mended policy, an edition that was recorded anew. It is not allowed in a commit that
moves, renames or shortens: there a difference is a fault of the commit. A key that is pinned may
never change without a table from old to new (``docs/decisions/20-stored-runs.md``).
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "data"
NAMES = tuple(
    ["keys", "grids", "edition", "policies", "dirty", "studies", "released", "certificates"]
)  # in the order of their cost
SHOWN = 20
"""Differences that a failing test lists."""


def made(name: str) -> Any:
    """A pin as the code makes it now; its numbers as JSON would give them back."""
    return json.loads(json.dumps(import_module(f"tests.pins.test_{name}").make()))


def read(name: str) -> Any:
    """A pin as it was written."""
    return json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))


def write(name: str, value: Any) -> None:
    """Write a pin; the same value gives the same bytes."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def same(name: str, now: Any = None, *, rtol: float = 0.0) -> None:
    """Fail with the first differences from the pin; ``rtol`` holds for fractions, counts are exact.

    ``now``: what is compared, by default all that the code makes."""
    found = list(differences(read(name), made(name) if now is None else now, rtol=rtol))
    assert not found, "\n".join([f"{len(found)} differences of {name}", *found[:SHOWN]])


def differences(old: Any, new: Any, where: str = "", *, rtol: float = 0.0) -> Iterator[str]:
    """One line for each place where two JSON values differ.

    Fractions are equal within ``rtol``, all else only if it is the same: a whole number is a count,
    also where it is written as a float.
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*old, *(k for k in new if k not in old)]:
            if key not in old or key not in new:
                yield f"{where}/{key}: {'is new' if key in new else 'is gone'}"
            else:
                yield from differences(old[key], new[key], f"{where}/{key}", rtol=rtol)
    elif _listed(old) and _listed(new) and len(old) == len(new):
        for k, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from differences(a, b, f"{where}/{k}", rtol=rtol)
    elif not _equal(old, new, rtol):
        yield f"{where}: was {_short(old)}, is {_short(new)}"


def _listed(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _equal(old: Any, new: Any, rtol: float) -> bool:
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (old, new))
    if not numbers or rtol == 0 or (float(old).is_integer() and float(new).is_integer()):
        return bool(old == new) or (old != old and new != new)
    return math.isclose(old, new, rel_tol=rtol, abs_tol=rtol)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 200 else f"{text[:200]}…"
