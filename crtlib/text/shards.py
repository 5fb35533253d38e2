"""The finished part of a command's work, kept in a private folder beside its output until all is.

A shard is one batch as a worker took it: its result as JSON, with what it was made from and its
SHA-256. If a command was killed, its next run with the same input and options finds these shards
and makes only the others. A command that ends with a user's mistake leaves none.

>>> import tempfile
>>> out = Path(tempfile.mkdtemp()) / "out"
>>> try:
...     with resume_shards(out, {"policy": "cautious"}) as shards:
...         shards.write("0", [1, 2])
...         raise KeyboardInterrupt
... except KeyboardInterrupt:
...     pass
>>> with resume_shards(out, {"policy": "cautious"}) as shards:
...     shards.read("0"), shards.read("1")
([1, 2], None)
>>> with resume_shards(out, {"policy": "everything"}) as shards:
...     shards.read("0")
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crtlib import files
from crtlib.checks import DamagedError, MachineError
from crtlib.files import StrPath
from crtlib.text.identity import hash_text
from crtlib.version import __version__


@dataclass(frozen=True)
class Shards:
    """The finished shards of one piece of work, which the hash ``recipe`` identifies."""

    folder: Path
    recipe: str
    part: str = ""

    def of(self, part: str) -> Shards:
        """The shards of a part of the work, also numbered from 0."""
        return replace(self, part=f"{part}-")

    def read(self, name: str) -> Any:
        """The result of a shard; None if it is unfinished, damaged or from other work."""
        try:
            recipe, known, text = files.read_text(self._path(name)).split("\n", 2)
        except (OSError, ValueError):
            return None
        return json.loads(text) if (recipe, known) == (self.recipe, hash_text(text)) else None

    def write(self, name: str, result: Any) -> None:
        """Keep the result of a shard, any JSON value except null; any other object becomes text."""
        text = json.dumps(result, default=str)
        files.write_text(self._path(name), f"{self.recipe}\n{hash_text(text)}\n{text}", mode=0o600)

    def _path(self, name: str) -> Path:
        return self.folder / f"{self.part}{name}.json"


def shard_folder(out: StrPath) -> Path:
    """The folder with the shards of an output."""
    place = Path(out).absolute()
    return place.with_name(f".{place.name}.shards")


@contextlib.contextmanager
def resume_shards(out: StrPath, recipe: Mapping[str, Any]) -> Iterator[Shards]:
    """The shards of the work that ``recipe`` identifies, removed when it is done or refused. A
    recipe has JSON values: options, hashes of the input and of policies. One process at a time."""
    place = shard_folder(out)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        yield Shards(place, hash_text(json.dumps([__version__, dict(recipe)], sort_keys=True)))
    except (OSError, DamagedError, MachineError, MemoryError):  # also for a file that a user named
        with contextlib.suppress(OSError):
            place.rmdir()  # if nothing is finished
        raise
    except ValueError:
        shutil.rmtree(place)
        raise
    shutil.rmtree(place)
