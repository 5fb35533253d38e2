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

NOT_READ = " had not read this text"
NOT_MADE_FROM = " was not made from this text"
ONE_NAME = "no two names in this text are of one person"
"""What a promise to a person assumes: somebody with two names would count as two people."""
TAUGHT_A_POLICY = " taught a policy"
TOOK_STEPS = ", which took the steps, taught the model nothing of this text beside them"
NOTHING_KEPT = (
    ", kept nothing of one text for the loss of another, let no text choose a learning rate, and "
    "did not change how the model reads"
)
"""The end of what is assumed of a script."""
EARLIER_ENDS = (
    ", kept nothing of one text for the loss of another, and let no text choose a learning rate",
)
"""What stands in its place in odometer lines of earlier versions; those before November 2026 have
neither."""


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
    models from "elsewhere" or "outside" it is assumed that they never read this text."""

    name: str
    lineage: Literal["known", "elsewhere", "outside", "unknown"]
    kind: Literal["base"] = "base"


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


def teaching_assumption(source: TaughtSource) -> str:
    """What is assumed about the people who taught a policy. What they wrote decided how others are
    read, so nothing is proved for them.

    >>> teaching_assumption(TaughtSource(0))
    'nobody of this text taught a policy under another name'
    >>> teaching_assumption(TaughtSource(15)).partition(" masking")[0]
    'for the people of this text who taught a policy, at most 15,'
    """
    if source.people == 0:
        return f"nobody of this text{TAUGHT_A_POLICY} under another name"
    # Some of those who are counted may be held out of training.
    most = "" if source.people is None else f", at most {source.people:,},"
    return (
        f"for the people of this text who{TAUGHT_A_POLICY}{most} masking one of their secrets "
        "would change no label elsewhere, the policy passes over no larger share of their secrets, "
        "and nobody else of this text taught one"
    )


def says_people_taught(sentence: str) -> bool:
    """Whether a model's assumption says that people of its text taught a policy. Nothing is proved
    for those people, and no odometer line says who they are.

    >>> says_people_taught(teaching_assumption(TaughtSource(3)))
    True
    >>> says_people_taught(teaching_assumption(TaughtSource(0)))
    False
    """
    return TAUGHT_A_POLICY in sentence and not sentence.startswith("nobody ")


def script_source() -> ScriptSource:
    """The program that is running, by its file; a notebook has none."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if path is None or not Path(path).is_file():
        return ScriptSource("a notebook or console", "")
    return ScriptSource(plain_name(Path(path).name), hash_file(path))


def script_assumption(script: ScriptSource) -> str:
    """What is assumed about the script that took the steps. A custom loss is tested before the
    first step. No test can show that it keeps no state at a later step, such as a number or a
    tensor that learns, that a learning rate does not depend on the model's results on held-out
    text, or that no function that layers call was another one for a while.

    >>> script_assumption(ScriptSource("run.py", "")).rpartition(", ")[2]
    'and did not change how the model reads'
    """
    known = f" (SHA-256 {script.sha256})" if script.sha256 else ""
    return f"{script.name}{known}{TOOK_STEPS}{NOTHING_KEPT}"


def independence_assumption(name: str) -> str:
    """What is assumed about something that the releaser supplied."""
    return name + NOT_MADE_FROM


def assumption_of_earlier(sentence: str, *, same_text: bool) -> str:
    """An earlier model's assumption, worded for a later model on the ``same_text`` or on another.

    >>> assumption_of_earlier("gpt2 had not read this text", same_text=True)
    'gpt2, from which an earlier model started, had not read this text'
    >>> assumption_of_earlier("a.txt was not made from this text", same_text=False)
    'a.txt was not made from the text of an earlier model that it screened'
    """
    if sentence == ONE_NAME:
        return sentence if same_text else sentence.replace("this text", "an earlier model's text")
    if sentence.endswith(NOT_READ):
        name, text = sentence.removesuffix(NOT_READ), "this text" if same_text else "its text"
        return f"{name}, from which an earlier model started, had not read {text}"
    script = sentence
    for end in (NOTHING_KEPT, *EARLIER_ENDS):
        script = script.removesuffix(end)
    if script.endswith(TOOK_STEPS):
        name, text = script.removesuffix(TOOK_STEPS), "this text" if same_text else "its text"
        return (
            f"{name}, which took the steps of an earlier model, taught it nothing of {text} beside "
            f"them{NOTHING_KEPT}"
        )
    if TAUGHT_A_POLICY in sentence:
        told = sentence if same_text else sentence.replace("this text", "its text")
        return f"{told} (of an earlier model)"
    if same_text:
        return f"{sentence}, which it screened for an earlier model"
    name = sentence.removesuffix(NOT_MADE_FROM)
    return f"{name} was not made from the text of an earlier model that it screened"


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
        known = (p.sources if isinstance(p, SourcedContent) else {p} for p in parts)
        return cls(text.encode(), frozenset[FileSource]().union(*known))


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
