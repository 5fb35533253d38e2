"""What the files of a training may know of the text: their sources."""

from __future__ import annotations

from collections.abc import Sequence

from confide.release import file_sources
from confide.screening.corpus import is_deduplicated_by_likeness
from confide.training.odometer_run import OdometerRun
from confide.training.training_facts import count_private_points, user_files_of_study
from crtlib import outputs
from crtlib.accounting.events import SampledGaussian
from crtlib.screening.preparation import CERTIFIABLE_TREATMENTS
from crtlib.studies.crt_study import CrtStudy
from crtlib.studies.study_data import PreparedData
from crtlib.studies.study_run import TrainedStudy
from crtlib.training.phases import Phase, PrivatePhase, PublicPhase
from crtlib.training.selective import SelectivePhase


def collect_training_sources(
    study: CrtStudy, fitted: TrainedStudy, meter: OdometerRun
) -> list[file_sources.FileSource]:
    """What a finished training, with its vocabulary and all that is said of it, may know of the
    text: of each kind of steps that ran, and of what the model started from."""
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
) -> list[file_sources.FileSource]:
    """What a training with these private ``steps`` and this ``schedule`` may know of the text."""
    how, facts, events = study.how, meter.facts, tuple(steps)
    name = outputs.with_keyed_hashes(
        facts["screening"], meter.salt
    )  # a plain hash would tell of the text
    screening = file_sources.Screening(name, facts["gamma"], facts["delta2"])
    redacted: file_sources.FileSource = file_sources.RedactedSource("redacted text", screening)
    raw = file_sources.RawSource("The weights were learned from raw text without noise")
    read = raw if how.reads_raw else redacted
    every: list[file_sources.FileSource] = [file_sources.ConstantSource("settings and sizes")]
    if events and all(e.noise_multiplier for e in events):
        seen, holds = None if how.reads_raw else screening, tuple(facts["holds"].items())
        every.append(
            file_sources.NoisedSource(
                meter.run, facts["unit"], facts["relation"], events, seen, holds,
                facts["hides_copies"],
            )
        )  # fmt: skip
        count = count_private_points(study, prepared)
        every.append(
            file_sources.declare_interval(
                "number of private points", count, file_sources.POINT_COUNT_BOUNDS
            )
        )
    elif private_updates:
        every.append(read)
    if (trials := facts["trials"]) > 1:  # by what is held out, which no noise protects
        among = ("this one", *(f"another, {k}" for k in range(1, trials)))
        every.append(
            file_sources.DeclaredSource("the choice among those compared", among[0], among)
        )
    for phase in schedule:  # what ran, whatever its method says of itself
        if type(phase) not in (PublicPhase, PrivatePhase, SelectivePhase):
            every.append(
                file_sources.RawSource("A phase of another package: what it does is not known here")
            )
        elif "public" in phase.rates():
            apart = phase.part == "public"
            clean = phase.reads_flags or (apart and how.reads_redacted)
            passed = file_sources.ScreenedSource("public steps", screening) if apart else redacted
            every.append(redacted if clean else raw if how.reads_raw else passed)
    every += map(file_sources.BroughtSource, user_files_of_study(study))
    if not how.reads_raw:
        every += map(file_sources.RawSource, _cross_message_clauses(study))
    if study.conservative == "everything" and not study.brings_vocabulary:
        every.append(file_sources.ConstantSource("a vocabulary of single bytes"))
    elif not study.brings_vocabulary:  # what reads raw text has no rate of what screening let pass
        let = file_sources.RawSource(
            "The vocabulary was learned from what the policies let pass, unmeasured"
        )
        every.append(let if how.reads_raw else file_sources.ScreenedSource("vocabulary", screening))
    return every + meter.origin()


def _cross_message_clauses(study: CrtStudy) -> list[str]:
    """Why one message may decide how others are read, a clause each: what no noise covers."""
    screened = study.screening
    clauses = (
        (study.repeats_are_hidden and study.duplicates not in CERTIFIABLE_TREATMENTS,
         "Second occurrences were left out of the private points too, so a found secret in a "
         "repeated message decides how many points there are"),
        (study.repeats_are_hidden and study.coin == "point" and study.gamma > 0,
         "What was missed on purpose was drawn for each message by its name, so copies of one text "
         "were read in two ways"),
        (screened is not None and is_deduplicated_by_likeness(screened),
         "What is a duplicate was decided by likeness, so one message may decide whether any "
         "number of others is read"),
    )  # fmt: skip
    return [clause for applies, clause in clauses if applies]
