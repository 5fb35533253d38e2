"""What a command has finished of its work, in a private folder beside its output, until all is.

A shard is a batch as one worker took it: its result as JSON, with what it was made of and its
SHA-256. A command that was killed finds the shards of the same input and options, and does the
others; one that ends in a user's mistake leaves none.

>>> import tempfile
>>> out = Path(tempfile.mkdtemp()) / "out"
>>> try:
...     with beside(out, {"policy": "cautious"}) as shards:
...         shards.write("0", [1, 2])
...         raise KeyboardInterrupt
... except KeyboardInterrupt:
...     pass
>>> with beside(out, {"policy": "cautious"}) as shards:
...     shards.read("0"), shards.read("1")
([1, 2], None)
>>> with beside(out, {"policy": "everything"}) as shards:
...     shards.read("0")

A function on batches, in their order, some of them at a time on an executor.

>>> from concurrent.futures import ThreadPoolExecutor
>>> with ThreadPoolExecutor(2) as executor:
...     list(in_order(sum, iter([[1, 2], [3], []]), executor))
[([1, 2], 3), ([3], 3), ([], 0)]
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from crtlib import __version__, files
from crtlib.checks import DamagedError
from crtlib.files import Named
from crtlib.text.records import sha


@dataclass(frozen=True)
class Shards:
    """The finished shards of one piece of work, which is named by the hash of its ``recipe``."""

    folder: Path
    recipe: str
    part: str = ""

    def of(self, part: str) -> Shards:
        """Those of a part of the work, numbered from 0 as well."""
        return replace(self, part=f"{part}-")

    def read(self, name: str) -> Any:
        """The result of a shard; None where it is not finished, damaged or of other work."""
        try:
            recipe, known, text = self._path(name).read_text(encoding="utf-8").split("\n", 2)
        except (OSError, ValueError):
            return None
        return json.loads(text) if (recipe, known) == (self.recipe, sha(text)) else None

    def write(self, name: str, result: Any) -> None:
        """Keep the result of a shard, any JSON value but null; what is none becomes its text."""
        text = json.dumps(result, default=str)
        files.write_text(self._path(name), f"{self.recipe}\n{sha(text)}\n{text}", mode=0o600)

    def _path(self, name: str) -> Path:
        return self.folder / f"{self.part}{name}.json"


def folder(out: Named) -> Path:
    """Where the shards of an output lie."""
    place = Path(out).absolute()
    return place.with_name(f".{place.name}.shards")


@contextlib.contextmanager
def beside(out: Named, recipe: Mapping[str, Any]) -> Iterator[Shards]:
    """The shards of the work that ``recipe`` tells from all other (JSON values: options, hashes of
    input and of policies), removed when it is done or refused. One process at a time."""
    place = folder(out)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        yield Shards(place, sha(json.dumps([__version__, dict(recipe)], sort_keys=True)))
    except ValueError as error:
        if not isinstance(error, DamagedError):
            shutil.rmtree(place)
        raise
    except OSError:  # also one of a file that a user named
        with contextlib.suppress(OSError):
            place.rmdir()  # if nothing is finished
        raise
    shutil.rmtree(place)


In = TypeVar("In")
Out = TypeVar("Out")
AHEAD = 8
"""Batches that are handed out before the first is back: memory holds no more of them."""


def in_order(
    call: Callable[[In], Out],
    lots: Iterator[In],
    executor: Executor | None,
    shards: Shards | None = None,
) -> Iterator[tuple[In, Out]]:
    """Each batch with ``call`` of it; here where there is no executor. A batch and its result must
    be picklable. A result that ``shards`` hold is not made again, any other is kept there: it must
    be a JSON value, tuples come back as lists."""

    def begin(number: int, lot: In) -> tuple[In, Callable[[], Out]]:
        known = shards.read(str(number)) if shards else None
        if known is not None:
            return lot, lambda: known
        if executor is None:
            return lot, partial(keep, number, lambda: call(lot))
        return lot, partial(keep, number, executor.submit(call, lot).result)

    def keep(number: int, result: Callable[[], Out]) -> Out:
        found = result()
        if shards:
            shards.write(str(number), found)
        return found

    begun = itertools.starmap(begin, enumerate(lots))
    ahead = list(itertools.islice(begun, AHEAD if executor else 1))
    while ahead:
        lot, result = ahead.pop(0)
        yield lot, result()
        ahead += itertools.islice(begun, 1)
