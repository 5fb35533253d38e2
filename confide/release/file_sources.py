"""Sources: values that state what a released file may know of private text."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import Field, PositiveInt, TypeAdapter
from pydantic.dataclasses import dataclass

from crtlib.accounting.events import SampledGaussian
from crtlib.checks import plain_name
from crtlib.outputs import hash_file

UnitInterval = Annotated[float, Field(ge=0, le=1)]
PrivacyUnit = Literal["turn", "dialogue", "user"]
SourceType = TypeVar("SourceType")

NAME_BESIDE_COUNTED = "apart from the earlier models that are counted, "
"""How ``release.json`` marked, in its name, a base that stands beside counted models, until
``beside_counted`` did."""


POINT_COUNT_BOUNDS = tuple(m << k for k in range(1, 29) for m in (4, 5, 6, 7))[1:]
"""The numbers between which a release states its number of private points: four to a doubling."""


@dataclass(frozen=True)
class Screening:
    """A pair of policies on one text, and upper bounds on its rates: ``trace``, of secrets that
    leave a trace in the redacted text; ``public``, of secrets in points where neither policy flags
    anything."""

    id: str
    trace: UnitInterval
    public: UnitInterval


RAW_TEXT_SCREENING = Screening("", trace=1.0, public=0.0)
"""The screening of a run on raw text, from which no secret is left out."""


@dataclass(frozen=True)
class ConstantSource:
    """Knows nothing of the text, or only what every promise treats as known: a format, single
    bytes."""

    of: str
    kind: Literal["constant"] = "constant"


@dataclass(frozen=True)
class NoisedSource:
    """The private steps of one run. ``screening`` is None if they read raw text; then redaction
    amplifies the protection of no secret. ``holds``: the largest number of points of each smaller
    unit in one ``unit``. ``hides_copies``: second occurrences of a message were masked or left out,
    so several messages from one template become copies of each other once they are masked."""

    run: str
    unit: PrivacyUnit
    relation: Literal["replace", "add_or_remove"]
    events: tuple[SampledGaussian, ...]
    screening: Screening | None
    holds: tuple[tuple[PrivacyUnit, int], ...] = ()
    hides_copies: bool = True
    kind: Literal["noised"] = "noised"


@dataclass(frozen=True)
class PlannedSource:
    """The private steps of a run under a plan. ``guesses``: pairs of a prior and of the chance that
    the noise leaves of guessing a secret that the plan knows. ``keeps``: all of these are within
    what the plan promised. ``of_people``: a secret is every point that one person's values touch,
    rather than the points that hold one value."""

    run: str
    plan: str
    relation: Literal["reference", "replace", "add_or_remove"]
    guesses: tuple[tuple[UnitInterval, UnitInterval], ...]
    keeps: bool
    of_people: bool = False
    kind: Literal["planned"] = "planned"


@dataclass(frozen=True)
class ScreenedSource:
    """Learned without noise where neither policy flags anything; charges the public rate."""

    of: str
    screening: Screening
    kind: Literal["screened"] = "screened"


@dataclass(frozen=True)
class RedactedSource:
    """Learned without noise from redacted text; charges the trace rate."""

    of: str
    screening: Screening
    kind: Literal["redacted"] = "redacted"


@dataclass(frozen=True)
class BaseSource:
    """An earlier model from which a run started. ``lineage`` is "known" for one whose run is known
    and counted as having read this text; "elsewhere" for one whose run is known to have read other
    text; "outside" for one made elsewhere; "unknown" for one made by crtlib in an unknown run. Of
    models from "elsewhere" or "outside" it is assumed that they never read this text.
    ``beside_counted``: it started itself from models that are counted; the rest is assumed."""

    name: str
    lineage: Literal["known", "elsewhere", "outside", "unknown"]
    kind: Literal["base"] = "base"
    beside_counted: bool = False

    def __post_init__(self) -> None:
        if self.name.startswith(NAME_BESIDE_COUNTED):
            object.__setattr__(self, "name", self.name.removeprefix(NAME_BESIDE_COUNTED))
            object.__setattr__(self, "beside_counted", True)


@dataclass(frozen=True)
class DeclaredSource:
    """A value of the text that the releaser declares public. It is one of ``among``, a finite set
    that does not depend on the text."""

    of: str
    value: str
    among: tuple[str, ...]
    kind: Literal["declared"] = "declared"

    def __post_init__(self) -> None:
        if self.value not in self.among:
            raise ValueError(f"{self.of}={self.value!r}: must be one of {', '.join(self.among)}")

    @property
    def bits(self) -> float:
        """The number of bits that it can reveal at most."""
        return math.log2(len(self.among))


@dataclass(frozen=True)
class StoppedSource:
    """The step, out of ``steps``, after which a script ended a training early. The script may have
    looked at text that no noise protects, such as an evaluation, so the number is declared public.

    >>> round(StoppedSource(3, 100).bits, 1)
    6.6
    """

    number: PositiveInt
    steps: PositiveInt
    kind: Literal["stopped"] = "stopped"
    of: ClassVar[str] = "the step after which a script ended the training"

    @property
    def value(self) -> str:
        """The number as it is shown."""
        return f"{self.number:,}"

    @property
    def bits(self) -> float:
        """The number of bits that it can reveal at most."""
        return math.log2(self.steps)


@dataclass(frozen=True)
class RawSource:
    """Learned from raw text without noise, or from what one message decided about others, as the
    clause ``of`` states. It may leave, but then nothing is promised."""

    of: str
    kind: Literal["raw"] = "raw"


@dataclass(frozen=True)
class BroughtSource:
    """Something that the releaser supplied and that decided how the text is read, such as a file of
    rules; it is assumed that it was not made from this text. ``name`` is a name for it that may be
    shown."""

    name: str
    kind: Literal["brought"] = "brought"


@dataclass(frozen=True)
class ScriptSource:
    """A script that took the steps in place of the command; nobody sees what else it did. ``name``
    is its file's name and ``sha256`` its hash, which is empty if there is no file."""

    name: str
    sha256: str
    kind: Literal["script"] = "script"


UNKNOWN_SCRIPT = ScriptSource("an unknown script", "")
"""Stands for whoever took the steps before a checkpoint of unknown origin."""


@dataclass(frozen=True)
class TaughtSource:
    """A policy that learned from labelled text decided how the text is read. ``people``: how many
    people of the corpus it learned from, including those who are held out; None if unknown."""

    people: int | None
    kind: Literal["taught"] = "taught"


def script_source() -> ScriptSource:
    """The program that is running, by its file; a notebook has none."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if path is None or not Path(path).is_file():
        return ScriptSource("a notebook or console", "")
    return ScriptSource(plain_name(Path(path).name), hash_file(path))


FileSource = (
    ConstantSource
    | NoisedSource
    | PlannedSource
    | ScreenedSource
    | RedactedSource
    | BaseSource
    | DeclaredSource
    | StoppedSource
    | RawSource
    | BroughtSource
    | ScriptSource
    | TaughtSource
)
SOURCES_ADAPTER: TypeAdapter[list[FileSource]] = TypeAdapter(
    list[Annotated[FileSource, Field(discriminator="kind")]]
)


@dataclass(frozen=True)
class SourcedContent:
    """Content, or the file that holds it, with the sources that state what it may know."""

    content: bytes | Path
    sources: frozenset[FileSource]

    @classmethod
    def text(cls, text: str, *parts: SourcedContent | FileSource) -> SourcedContent:
        """A text made from ``parts``: it may know all that they may know."""
        sources = (p.sources if isinstance(p, SourcedContent) else {p} for p in parts)
        return cls(text.encode(), frozenset[FileSource]().union(*sources))


def declare_interval(of: str, value: float, bounds: Sequence[float]) -> DeclaredSource:
    """Declare a number by the interval between two of ``bounds`` in which it lies; NaN is declared
    as the last interval.

    >>> declare_interval("perplexity", 12.3, (8, 16)).value
    '8 to 16'
    """
    edges = [f"{b:g}" for b in bounds]
    names = (f"below {edges[0]}", *map(" to ".join, itertools.pairwise(edges)),
             f"{edges[-1]} or more")  # fmt: skip
    return DeclaredSource(of, names[sum(not value < b for b in bounds)], names)


def round_down_points(points: int) -> int:
    """Round a number of private points down to one of ``POINT_COUNT_BOUNDS``; a number below all of
    them becomes 8. A release may depend on this value only.

    Guarantee:
        What leaves depends on the number of private points only through its declared value, so few
        single messages can change it. Test: ``tests/release/test_declared_counts.py::
        test_what_leaves_depends_on_the_number_of_private_points_only_as_it_is_declared``.

    >>> [round_down_points(n) for n in (3, 11, 1023, 1024)]
    [8, 10, 896, 1024]
    """
    return max((b for b in POINT_COUNT_BOUNDS if b <= points), default=8)
