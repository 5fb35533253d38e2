"""Fold the sources of a release's files into the promise that they make together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from pydantic.dataclasses import dataclass

from confide.assumption_sentences import Assumption
from confide.promise_kinds import BAYESIAN_KIND, SECRET_PLAN_KIND, PromiseKind
from confide.release.file_sources import (
    RAW_TEXT_SCREENING,
    BaseSource,
    BroughtSource,
    DeclaredSource,
    FileSource,
    NoisedSource,
    PlannedSource,
    PrivacyUnit,
    RawSource,
    RedactedSource,
    ScreenedSource,
    ScriptSource,
    SourceType,
    StoppedSource,
    TaughtSource,
)
from crtlib.accounting.events import SampledGaussian

AssumableSource = BaseSource | BroughtSource | ScriptSource | TaughtSource


@dataclass(frozen=True)
class FilesPromise:
    """What a set of files promises together: the ``kind``, the private steps, and upper bounds on
    the share of secrets that leave a trace (``gamma``) or were learned without noise (``delta2``).
    The promise is void if anything in ``assumed`` is false."""

    kind: PromiseKind
    unit: PrivacyUnit = "turn"
    neighbouring_relation: str = "replace"
    events: tuple[SampledGaussian, ...] = ()
    gamma: float = 0.0
    delta2: float = 0.0
    screening: str = ""
    holds: Mapping[str, int] = field(default_factory=dict)
    masks_copies: bool = True
    plan: PlannedSource | None = None
    declared: tuple[DeclaredSource | StoppedSource, ...] = ()
    assumed: tuple[Assumption, ...] = ()
    void: tuple[str, ...] = ()


def combine_sources(sources: Iterable[FileSource], altered: Iterable[str] = ()) -> FilesPromise:
    """The promise of all files together. A run counts once, however many files it contributed to.

    Args:
        sources: What each file may know of the text.
        altered: Names of files that are not as they were released; they void the promise.

    Returns:
        The kind of promise, its unit, relation, events and screening, and what voids it.

    Guarantee:
        The promise is that of the weakest file. If one file knows something without protection, or
        two contradict each other, there is no promise. Tests:
        ``tests/release/test_released_folder.py::test_what_a_file_may_know_decides_what_is_promised``,
        ``tests/release/test_released_folder.py::test_what_contradicts_itself_is_void``.
    """
    all_sources = list(dict.fromkeys(sources))

    def of_kind(kind: type[SourceType]) -> tuple[SourceType, ...]:
        return tuple(s for s in all_sources if isinstance(s, kind))

    noised, plans, bases = of_kind(NoisedSource), of_kind(PlannedSource), of_kind(BaseSource)
    runs: list[NoisedSource | PlannedSource] = [*noised, *plans]
    void = [f"{name} is not what was released." for name in altered]
    if len({s.run for s in runs}) < len(runs):
        void.append("One run is declared in two ways.")
    if len(runs) > 1 and (plans or len({(s.unit, s.relation) for s in noised}) > 1):
        void.append("Runs with different promises were written into one release.")
    void += [f"{s.of}." for s in of_kind(RawSource) if runs]
    void += [f"It is not known what {s.name}, from which it started, has read." for s in bases
             if s.lineage == "unknown"]  # fmt: skip
    screenings = {screening for s in all_sources if (screening := getattr(s, "screening", None))}
    if len({screening.id for screening in screenings}) < len(screenings):
        void.append("One screening is declared in two ways.")
    noised_screenings = [s.screening or RAW_TEXT_SCREENING for s in noised]
    gamma = {screening.id: screening.trace for screening in noised_screenings}
    charged = [(s.screening.public, s.screening.id) for s in of_kind(ScreenedSource)]
    charged += [(s.screening.trace, s.screening.id) for s in of_kind(RedactedSource)]
    public = {name: rate for rate, name in sorted(charged)}  # the larger of a screening's two rates
    traces = min(1.0, math.fsum(gamma.values()))
    delta2 = min(1.0, math.fsum(public.values()))
    assumable: list[AssumableSource] = [*bases]
    assumable += [*of_kind(BroughtSource), *of_kind(ScriptSource), *of_kind(TaughtSource)]
    assumed = [a for source in assumable if (a := assumption_of_source(source))]
    if any(s.unit == "user" for s in noised) or any(s.of_people for s in plans):
        assumed.append(Assumption("one_name"))  # somebody with two would count as two people
    declared = (*of_kind(DeclaredSource), *of_kind(StoppedSource))
    common_fields: dict[str, Any] = {"declared": declared}
    common_fields |= {"assumed": tuple(assumed), "void": tuple(void)}
    if plans:
        plan = plans[0]
        return FilesPromise(
            SECRET_PLAN_KIND,
            neighbouring_relation=plan.relation,
            gamma=1.0,
            plan=plan,
            **common_fields,
        )
    if not noised:
        return FilesPromise("none", gamma=1.0, delta2=1.0, **common_fields)
    first = noised[0]
    return FilesPromise(
        classify_promise(traces, delta2),
        first.unit,
        first.relation,
        tuple(e for s in noised for e in s.events),
        traces,
        delta2,
        "+".join(sorted({*gamma, *public} - {""})),
        dict(first.holds),
        any(s.hides_copies for s in noised),
        **common_fields,
    )


def assumption_of_source(source: AssumableSource) -> Assumption | None:
    """What is assumed about a source; None: nothing.

    What people who taught a policy wrote decided how others are read, so nothing is proved for
    them. Some of those who are counted may be held out of training, so their number is a bound.

    A custom loss of a script is tested before the first step. No test can show that it keeps no
    state at a later step, such as a number or a tensor that learns, that a learning rate does not
    depend on the model's results on held-out text, or that no function that layers call was
    another one for a while.

    Guarantee:
        Test: ``tests/release/test_assumption_sentences.py::test_what_is_assumed_of_a_source``.
    """
    if isinstance(source, BroughtSource):
        return Assumption("not_made_from_text", source.name)
    if isinstance(source, ScriptSource):
        return Assumption("script", source.name, sha256=source.sha256)
    if isinstance(source, TaughtSource):
        if source.people == 0:
            return Assumption("nobody_taught")
        return Assumption("people_taught", people=source.people)
    if source.lineage in ("outside", "elsewhere"):
        return Assumption("base_unread", source.name, beside_counted=source.beside_counted)
    return None


def classify_promise(gamma: float, delta2: float) -> PromiseKind:
    """The kind of promise: "dp", for any data point, if redaction leaves nothing out and nothing
    was learned without noise; else for a secret drawn at random."""
    return "dp" if gamma >= 1 and not delta2 else BAYESIAN_KIND
