"""Collect the sources of a training's files: what they may know of the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from confide.release.file_sources import (
    POINT_COUNT_BOUNDS,
    BroughtSource,
    ConstantSource,
    DeclaredSource,
    FileSource,
    NoisedSource,
    RawSource,
    RedactedSource,
    ScreenedSource,
    Screening,
    TaughtSource,
    declare_interval,
)
from confide.screening.screened_rates import is_deduplicated_by_likeness
from confide.training.odometer_run import OdometerRun
from confide.training.training_facts import (
    count_private_points,
    count_teachers,
    has_tagger,
    user_files_of_study,
)
from crtlib import outputs
from crtlib.accounting.events import SampledGaussian, WeightedGaussian
from crtlib.checks import plain_name
from crtlib.screening.preparation import CERTIFIABLE_TREATMENTS
from crtlib.studies.crt_study import CrtStudy
from crtlib.studies.study_data import PreparedData
from crtlib.studies.study_run import TrainedStudy
from crtlib.training.phases import Phase, PrivatePhase, PublicPhase
from crtlib.training.selective import SelectivePhase


def collect_training_sources(
    study: CrtStudy, fitted: TrainedStudy, meter: OdometerRun
) -> list[FileSource]:
    """What a finished training may know of the text: through its vocabulary, through each kind of
    step that ran, and through what the model started from."""
    events = [e for e in fitted.run.events if isinstance(e, SampledGaussian)]
    updates = fitted.run.updates["private"]
    return collect_sources_of_steps(study, fitted.data, meter, events, fitted.schedule, updates)


def collect_sources_of_steps(
    study: CrtStudy,
    prepared: PreparedData,
    meter: OdometerRun,
    steps: Sequence[SampledGaussian],
    schedule: Sequence[Phase],
    private_updates: int,
    *,
    origin: Sequence[FileSource] | None = None,
) -> list[FileSource]:
    """What a training may know of the text, by every path that leads from the text to its files.

    Args:
        study: The training, with its method and its policies.
        prepared: What it reads; only counts are taken from it.
        meter: Its entry in the odometer, with facts about the text.
        steps: The private steps that ran, as in the ledger.
        schedule: The phases that ran.
        private_updates: How many private steps ran, with noise or without.
        origin: What is known about its start, if the caller already has ``meter.origin()``.

    Returns:
        The sources from which every file of the release is made; a certificate combines them
        (:func:`confide.release.source_fold.combine_sources`).

    Guarantee:
        Whatever ran is charged, regardless of what a method declares, and that people of the text
        taught a policy is stated. Tests: ``tests/training/test_methods.py::
        test_what_ran_is_charged_whatever_a_method_says_of_itself``,
        ``tests/release/test_drawn_turns.py::test_a_promise_is_of_those_who_taught_no_policy``.
    """
    # A plain hash of the screening would reveal something about the text.
    screening_name = outputs.with_keyed_hashes(meter.facts["screening"], meter.hash_key)
    screening = Screening(screening_name, meter.facts["gamma"], meter.facts["delta2"])
    return [
        ConstantSource("settings and sizes"),
        *_sources_of_private_steps(
            study, prepared, meter, tuple(steps), private_updates, screening
        ),
        *_sources_of_a_choice(meter.facts["trials"]),
        *(s for phase in schedule for s in _sources_of_phase(phase, study, screening)),
        *(BroughtSource(plain_name(name)) for name in user_files_of_study(study)),
        *([TaughtSource(count_teachers(study, prepared))] if has_tagger(study) else []),
        *([] if study.training_method.reads_raw else map(RawSource, _cross_message_clauses(study))),
        *_sources_of_the_vocabulary(study, screening),
        *(meter.origin() if origin is None else origin),
    ]


def _source_of_reading(study: CrtStudy, screening: Screening) -> FileSource:
    """The source for what is learned without noise from all points, as the method reads them."""
    if study.training_method.reads_raw:
        return RawSource("The weights were learned from raw text without noise")
    return RedactedSource("redacted text", screening)


def _sources_of_private_steps(
    study: CrtStudy,
    prepared: PreparedData,
    meter: OdometerRun,
    events: tuple[SampledGaussian, ...],
    private_updates: int,
    screening: Screening,
) -> Iterator[FileSource]:
    """The sources of private steps: noise, if every step had some, and the declared number of
    points on which its amount depends."""
    if events and all(e.noise_multiplier for e in events):
        yield NoisedSource(
            meter.run,
            meter.facts["unit"],
            meter.facts["relation"],
            events,
            None if study.training_method.reads_raw else screening,
            tuple(meter.facts["holds"].items()),
            meter.facts["hides_copies"],
        )
        points = count_private_points(study, prepared)
        yield declare_interval("number of private points", points, POINT_COUNT_BOUNDS)
    elif private_updates:
        yield _source_of_reading(study, screening)


def _sources_of_a_choice(trials: int) -> Iterator[FileSource]:
    """The source for having chosen one of several trainings by held-out text, which no noise
    protects."""
    if trials > 1:
        choices = ("this one", *(f"another, {k}" for k in range(1, trials)))
        yield DeclaredSource("the choice among those compared", choices[0], choices)


def _sources_of_phase(phase: Phase, study: CrtStudy, screening: Screening) -> Iterator[FileSource]:
    """The sources of a phase's public steps, judged by what ran and not by what its method
    declares."""
    if type(phase) not in (PublicPhase, PrivatePhase, SelectivePhase):
        yield RawSource("A phase of another package: what it does is not known here")
    elif isinstance(phase.event(), WeightedGaussian):
        yield RawSource(
            "Each point was drawn with a probability of its own, which only a plan accounts for"
        )
    elif "public" in phase.learning_rates():
        reads_public_part = phase.part == "public"
        if phase.reads_flags or (reads_public_part and study.training_method.reads_redacted):
            yield RedactedSource("redacted text", screening)
        elif reads_public_part and not study.training_method.reads_raw:
            yield ScreenedSource("public steps", screening)
        else:
            yield _source_of_reading(study, screening)


def _sources_of_the_vocabulary(study: CrtStudy, screening: Screening) -> Iterator[FileSource]:
    """The source of a vocabulary that was learned here. For a method that reads raw text, no rate
    bounds what the policies let pass."""
    if study.brings_vocabulary:
        return
    if study.conservative == "everything":
        yield ConstantSource("a vocabulary of single bytes")
    elif study.training_method.reads_raw:
        yield RawSource("The vocabulary was learned from what the policies let pass, unmeasured")
    else:
        yield ScreenedSource("vocabulary", screening)


def _cross_message_clauses(study: CrtStudy) -> Iterator[str]:
    """The ways in which one message may decide how others are read, which no noise covers; a clause
    each."""
    if study.repeats_are_hidden and study.duplicates not in CERTIFIABLE_TREATMENTS:
        yield (
            "Second occurrences were left out of the private points too, so a found secret in a "
            "repeated message decides how many points there are"
        )
    if study.repeats_are_hidden and study.coin == "point" and study.gamma > 0:
        yield (
            "What was missed on purpose was drawn for each message by its name, so copies of one "
            "text were read in two ways"
        )
    if study.screening is not None and is_deduplicated_by_likeness(study.screening):
        yield (
            "What is a duplicate was decided by likeness, so one message may decide whether any "
            "number of others is read"
        )
