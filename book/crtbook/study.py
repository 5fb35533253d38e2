"""A study is one run as a value: it names itself, says what it reads, and knows how to run itself.

>>> @value
... class Coin(Study):
...     tosses: Whole = 10
...     def run(self, desk):
...         return [("heads", 0, 0, float(self.tosses // 2))]
>>> Coin(seed=0).key == Coin(seed=0, tosses=10).key, Coin(seed=0).key == Coin(seed=1).key
(True, False)
>>> @value
... class Later(Coin):  # a field that came after runs were stored
...     kind, LATER = Coin.kind, frozenset({"bias"})
...     bias: Whole = 5
>>> Later(seed=0).key == Coin(seed=0).key, Later(seed=0, bias=6).key == Coin(seed=0).key
(True, False)
"""

import datetime
import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from crtlib import __version__
from crtlib.options import Whole, value

STORE_VERSION = "3"
"""Raised whenever the same study would train another model than before."""

Row = tuple[str, int, int, float]
"""``(metric, epoch, item, value)``; ``item`` numbers canaries, 0 where there is but one."""


def rows(facts: Mapping[str, float], epoch: int = 0) -> list[Row]:
    """A row a fact, which no item of its own has."""
    return [(name, epoch, 0, float(number)) for name, number in facts.items()]


@dataclass(frozen=True)
class Desk:
    """What a run may use: where it keeps its state until it is finished, where its model, and the
    device. ``None``: it keeps none."""

    checkpoint: Path | None = None
    model: Path | None = None
    device: str = "cpu"

    def part(self, name: str) -> Path | None:
        """A checkpoint of its own for each of several trainings of one run."""
        return self.checkpoint and self.checkpoint.with_suffix(f".{name}.pt")


@value
class Study:
    """One run as a frozen, validated value; what :func:`crtbook.runner.sweep` knows.

    ``LATER`` names fields that were added after results had been stored: at their default they
    stay out of the key, so that what is stored stays found. ``seed`` draws everything random.
    """

    LATER: ClassVar[frozenset[str]] = frozenset()
    kind: ClassVar[str] = "study"

    seed: Whole

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" not in vars(cls):
            cls.kind = cls.__name__.lower().removesuffix("study") or "study"

    def ready(self) -> Self:
        """The same run with what it does not read set to fixed values, and its noise filled in."""
        return self

    def reads(self) -> Iterable[str]:
        """Fingerprints of the files and folders that it reads."""
        return ()

    def lacks(self) -> str | None:
        """What is missing on this machine before it could run, in one sentence; None: nothing."""
        return None

    def cost(self) -> float:
        """Estimated CPU seconds on one core; the long runs start first."""
        return 1.0

    def memory(self) -> float:
        """Estimated peak of memory, in GiB."""
        return 0.6

    def run(self, desk: Desk) -> Iterable[Row]:
        """Train and measure: ``(metric, epoch, item, value)`` rows."""
        raise TypeError(f"{type(self).__name__}: has no run of its own")

    @property
    def key(self) -> str:
        """The hash that names the result: of the kind, the fields, and the files that are read."""
        study = self.ready()
        default = {f.name: f.default for f in fields(study) if f.default is not MISSING}
        named = {
            name: entry
            for name, entry in asdict(study).items()
            if name not in study.LATER or entry != default.get(name)
        }
        text = json.dumps([STORE_VERSION, study.kind, named], sort_keys=True)
        return hashlib.sha256("".join([text, *study.reads()]).encode()).hexdigest()[:24]


Made = TypeVar("Made")
Facts = dict[str, str | float]


def provenance(
    *, profile: str, device: str, seconds: float, cpu_seconds: float | None = None
) -> Facts:
    """What a reader must know of where a number comes from. ``seconds``: wall clock of the whole
    run, preparing and attacks included."""
    versions = {n: metadata.version(n) for n in ("torch", "transformers", "numpy")}
    versions = {"crtlib": __version__, **versions}
    facts: Facts = {
        "profile": profile,
        "device": device,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "date": datetime.date.today().isoformat(),
        "seconds": round(seconds, 2),
    }
    return facts if cpu_seconds is None else facts | {"cpu_seconds": round(cpu_seconds, 2)}


def measured(make: Callable[[], Made], *, profile: str, device: str = "cpu") -> tuple[Made, Facts]:
    """What ``make`` makes, and its :func:`provenance`."""
    wall, cpu = time.perf_counter(), time.process_time()
    made = make()
    seconds = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    return made, provenance(profile=profile, device=device, **seconds)
