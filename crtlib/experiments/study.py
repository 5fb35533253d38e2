"""A study is one run as a value: it names itself, says what it reads, and knows how to run itself.

>>> @value
... class Coin(Study):
...     tosses: Count = 10
...     def run(self, desk):
...         return [("heads", 0, 0, float(self.tosses // 2))]
>>> Coin(seed=0).key == Coin(seed=0, tosses=10).key, Coin(seed=0).key == Coin(seed=1).key
(True, False)
>>> @value
... class Later(Coin):  # a field that came after runs were stored
...     kind, LATER = Coin.kind, frozenset({"bias"})
...     bias: Share = 0.5
>>> Later(seed=0).key == Coin(seed=0).key, Later(seed=0, bias=0.6).key == Coin(seed=0).key
(True, False)

Frozen values whose fields have types and ranges; a bad one is refused in one line.

>>> @value
... class Shape:
...     hidden: Count = 64
...     gamma: Share = 0.1
>>> Shape(gamma=1).gamma
1.0
>>> Shape(hidden=-1)
Traceback (most recent call last):
...
crtlib.checks.ParameterError: hidden=-1: must be greater than or equal to 1
>>> Shape(hiden=3)
Traceback (most recent call last):
...
crtlib.checks.ParameterError: hiden: unknown; allowed are hidden, gamma
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar, cast, dataclass_transform

import pydantic
import pydantic.dataclasses
from pydantic import ConfigDict, Field, ValidationError

from crtlib import __version__
from crtlib.checks import ParameterError
from crtlib.options import refused

Share = Annotated[float, Field(ge=0, le=1)]
Open = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Word = Annotated[str, Field(min_length=1)]

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
def value(cls: type[T]) -> type[T]:
    """A frozen, keyword-only dataclass that checks its fields' types and ranges when it is made.

    ``dataclasses.replace``, ``asdict`` and ``fields`` work as on any other. Integers become floats
    where a float is asked for, so that 3 and 3.0 are one value; nothing else is converted. Raises
    :class:`ParameterError`, one line, for a bad or unknown field.
    """
    config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    made: Any = pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=config)(cls)
    honest = made.__init__

    @functools.wraps(honest)
    def checked(self: Any, *args: Any, **given: Any) -> None:
        try:
            honest(self, *args, **given)
        except ValidationError as error:
            unknown = f"unknown; allowed are {', '.join(f.name for f in fields(self))}"
            raise ParameterError(str(refused(error, repr, unknown))) from None

    made.__init__ = checked
    return cast(type[T], made)


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


def provenance(
    *, profile: str, device: str, seconds: float, cpu_seconds: float | None = None
) -> dict[str, str | float]:
    """What a reader must know of where a number comes from. ``seconds``: wall clock of the whole
    run, preparing and attacks included."""
    versions = {n: metadata.version(n) for n in ("torch", "transformers", "numpy")}
    versions = {"crtlib": __version__, **versions}
    facts: dict[str, str | float] = {
        "profile": profile,
        "device": device,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "date": datetime.date.today().isoformat(),
        "seconds": round(seconds, 2),
    }
    return facts if cpu_seconds is None else facts | {"cpu_seconds": round(cpu_seconds, 2)}
