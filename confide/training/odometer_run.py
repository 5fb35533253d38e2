"""Enter a training in the odometer: before its first step, and again after its last."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from confide import odometer, odometer_lines, spending, text_registry
from confide.release import file_sources, released_folder, seal
from confide.text import text_sizes
from confide.training.training_facts import (
    PROTECTING_KINDS,
    RAW_TEXT_RATES,
    SEEDED_NOISE_REASON,
    TrainingFacts,
    find_judging_labels,
    find_training_rates,
    hash_screening,
    masks_copies,
)
from crtlib import files, outputs
from crtlib.accounting.events import SampledGaussian, count_private_steps
from crtlib.accounting.guarantees import BoundedRate
from crtlib.arguments import argument_error
from crtlib.checks import plain_name, raise_machine_fault
from crtlib.files import StrPath
from crtlib.models.tensor_files import hash_tensors
from crtlib.screening.rate_values import UNKNOWN_RATE
from crtlib.studies.crt_study import CrtStudy
from crtlib.studies.study_data import PreparedData
from crtlib.text import corpora
from crtlib.training.methods import GuaranteeTerms
from crtlib.training.phases import PrivacyEvent


# --------------------------------------------------------------------------- the odometer
@dataclass
class OdometerRun:
    """Enters one training into the odometer of its corpus and the registry: :meth:`start` before
    its first step, :meth:`finish` after its last."""

    folder: Path
    """The odometer."""
    facts: dict[str, Any]
    """What every line of the run states."""
    init: str
    """What the model starts from."""
    secure: bool
    """Whether the noise does not follow from a seed."""
    protects: bool
    """Whether secure noise protects every point."""
    script: file_sources.ScriptSource | None = None
    """The script that takes the steps, if it is not this application's command."""
    earlier_scripts: tuple[file_sources.ScriptSource, ...] = ()
    """The scripts that took the steps before the checkpoint."""
    stopped: file_sources.StoppedSource | None = None
    """The last step, if a script ended the training early."""
    mark: Path | None = None
    """A file beside the checkpoint that names the run and its place, so that a training that
    resumes there is not counted twice."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of the training, which are kept beside the mark."""
    run: str = ""
    entry: odometer_lines.OdometerEntry = field(init=False, repr=False)
    registry: text_registry.Registry = field(
        default_factory=lambda: text_registry.Registry(text_registry.registry_folder())
    )
    hash_key: bytes = field(default_factory=partial(secrets.token_bytes, 32), repr=False)
    """The key of the hashes that are shown to others."""
    conditions: Callable[[OdometerRun, Sequence[SampledGaussian]], Mapping[str, Any]] | None = None
    """Returns what the first line states about the conditions of the promise
    (:func:`confide.training.training_record.describe_conditions`). Without it the line states none,
    and the run counts as void."""

    def start(self, events: Sequence[PrivacyEvent], resumed: bool) -> str:
        """Enter the run with all that it may spend, and return a receipt for its checkpoint. A run
        that resumes replaces what it had entered, with no less (:meth:`unseen_events`). A run that
        was killed before its first checkpoint still counts, as it may have taken steps, and so does
        one whose checkpoint was copied from elsewhere.

        Guarantee:
            Every script that took steps before the checkpoint is named, whoever takes the rest.
            Test: ``tests/test_session.py::test_every_script_that_took_a_step_is_named``.
        """
        sampled = [e for e in events if isinstance(e, SampledGaussian)]
        self.run = secrets.token_hex(16)
        if self.mark:
            if resumed:
                run, self.earlier_scripts = _read_mark(self.mark)
                self.run = run or self.run
            # Before all else, so that a killed run is not counted twice.
            _write_mark(self.mark, self.run, self.scripts, None if resumed else self.options)
        odometer.prepare_odometer(self.folder, self.facts["corpus"], self.registry)
        conditions = self.conditions(self, sampled) if self.conditions and self.protects else {}
        self.entry = odometer.add_entry(
            self.folder, registry=self.registry, run=self.run, state="started",
            events=sampled if self.protects else None, **self.facts, **conditions,
        )  # fmt: skip
        return str(len(self._lines_of(self.run)))

    def unseen_events(
        self, events: Sequence[PrivacyEvent], ahead: Sequence[PrivacyEvent], receipt: str
    ) -> list[PrivacyEvent]:
        """What the run may have spent, as its odometer says, beyond what its checkpoint says. There
        is more if the run has started again since the checkpoint was written, as where that came
        back from a backup: the steps that were taken then have shown what they learned, though the
        model that they made is gone.

        Args:
            events: What the checkpoint lists.
            ahead: What the run would go on with.
            receipt: What :meth:`start` returned before the checkpoint was written.

        Returns:
            Events to be charged besides both.

        Guarantee:
            Test: ``tests/release/test_odometer_run.py::
            test_a_checkpoint_of_a_backup_takes_back_no_step``.
        """
        run = _read_mark(self.mark)[0] if self.mark else None
        lines = self._lines_of(run)
        starts = len(lines) - (int(receipt) if receipt.isdecimal() else 0)
        if not self.secure or starts <= 0:
            return []
        if not self.protects:  # the odometer states no events: those of a plan
            return [*ahead] * starts
        listed = count_private_steps(events)
        entered = count_private_steps(spending.most_steps(lines))
        return [
            SampledGaussian(probability, noise, more)
            for (noise, probability), steps in entered.items()
            if (more := steps - listed.get((noise, probability), 0)) > 0
        ]

    def _lines_of(self, run: str | None) -> list[odometer_lines.OdometerEntry]:
        """The lines with which the run started or resumed, of the odometer or the registry: from
        whichever has more, as one of them may have come back from a backup."""
        odometer_entries = odometer.read_entries(self.folder) if self.folder.is_dir() else []
        starts_by_ledger = (
            [entry for entry in lines if entry.run == run and entry.state == "started"]
            for lines in (odometer_entries, self.registry.entries())
        )
        return max(starts_by_ledger, key=len)

    def finish(self, model: Path | None, conditions: Mapping[str, Any] | None = None) -> None:
        """Enter that the run is over, with the hashes of its ``model`` (the file of its weights, if
        any) and the ``conditions`` of its promise, if they have changed since it started."""
        hashes = (
            {"model": outputs.hash_file(model), "tensors": hash_tensors(model.parent)}
            if model
            else {}
        )
        self.entry = odometer.add_later_entry(
            self.folder, self.entry, registry=self.registry, state="finished",
            **hashes, **(conditions or {}),
        )  # fmt: skip

    @property
    def scripts(self) -> tuple[file_sources.ScriptSource, ...]:
        """All scripts that took steps, each once."""
        now = () if self.script is None else (self.script,)
        return tuple(dict.fromkeys((*self.earlier_scripts, *now)))

    @property
    def spent(self) -> spending.SpentBudget:
        """What was spent before on this text, and whether the starting weights had learned it."""
        return self._spent_before(self.run or None)

    def spent_before_start(self, *, resumed: bool) -> spending.SpentBudget:
        """:attr:`spent`, asked before :meth:`start`. A training that resumes from a checkpoint has
        already entered what it may spend; that is not counted."""
        return self._spent_before(_read_mark(self.mark)[0] if resumed and self.mark else None)

    def _spent_before(self, run: str | None) -> spending.SpentBudget:
        bases = {self.facts["base"], self.facts["base_tensors"]} - {None}
        history = spending.read_history_if_present(
            self.folder, self.facts["corpus"], self.registry, run
        )
        return history.spent(run, bases)

    def origin(self) -> list[file_sources.FileSource]:
        """What is known about the script, the noise, and the model that training started from. If
        crtlib made that model here, a ledger here has its run; then what its training assumed about
        its own start is assumed here too.

        Guarantee:
            A model whose runs are not counted as having read this text is assumed not to have read
            it, wherever it was made. Test:
            ``tests/release/test_earlier_runs.py::test_a_base_that_is_not_counted_carries_an_assumption``.
        """
        sources: list[file_sources.FileSource] = [*self.scripts]
        sources += [] if self.stopped is None else [self.stopped]
        sources += [] if self.secure else [file_sources.RawSource(SEEDED_NOISE_REASON)]
        if not Path(self.init).is_dir():
            if self.init != "random":
                sources.append(file_sources.BaseSource(plain_name(self.init), "outside"))
            return sources
        lines = [*odometer.read_entries(self.folder), *self.registry.entries()]
        hashes = {self.facts["base"], self.facts["base_tensors"]} - {None}
        base_name = plain_name(Path(self.init).name)
        runs = {e.run for e in lines if {e.model, e.tensors} & hashes}
        if not runs:
            is_of_crtlib = (outputs.find_marker(self.init) or {}).get("command") == "train"
            lineage: Any = "unknown" if is_of_crtlib else "outside"
            return [*sources, file_sources.BaseSource(base_name, lineage)]
        before = [file_sources.BaseSource(f"what {base_name} started from", "outside")]
        with contextlib.suppress(ValueError):  # if only the weights were copied here
            if not (released := released_folder.read_release(self.init)).altered:
                before = [s for s in released.sources if isinstance(s, file_sources.BaseSource)]
        above = spending.ancestor_runs(lines, set(), hashes) - runs
        counted = {e.run for e in self.spent.entries}
        earlier = [
            _judge_base(source.name, above, counted)
            if source.lineage in ("known", "elsewhere")
            else source
            for source in before
        ]
        base = file_sources.BaseSource(base_name, "known")
        if not runs <= counted:
            base = _judge_base(base_name, runs | above, counted)
        return [*sources, *dict.fromkeys((base, *earlier))]

    def record_fields(self) -> dict[str, str]:
        """Where the run is entered, as fields of its record."""
        return {
            "folder": str(self.folder.resolve()),
            "run": self.run,
            "entry": self.entry.entry,
            "screening": self.entry.screening,
            "before": " ".join(sorted({e.run for e in self.spent.entries})),
            "forgotten": str(self.registry.count_forgotten_texts(self.facts["corpus"])),
        }


def options_file(mark: Path) -> Path:
    """The file beside a mark that holds the options of its run."""
    return mark.with_suffix(".json")


def _write_mark(
    mark: Path,
    run: str,
    scripts: Sequence[file_sources.ScriptSource],
    options: Mapping[str, Any] | None,
) -> None:
    """Write to ``mark`` the run that resumes from the checkpoint beside it, its place, and the
    scripts that took steps; also write the options of a run that begins, in a file beside it."""
    lines = "".join(f"{script.sha256} {script.name}\n" for script in scripts)
    files.write_text(mark, f"{run} {mark.resolve()}\n{lines}")
    if options is not None:
        files.write_text(options_file(mark), json.dumps(options))


def _read_mark(mark: Path) -> tuple[str | None, tuple[file_sources.ScriptSource, ...]]:
    """The run and the scripts that :func:`_write_mark` wrote, if the checkpoint is where it was
    made. For one from elsewhere the run is None and the script unknown."""
    written = files.read_text(mark) if mark.exists() else ""
    run, _, place_and_scripts = written.partition(" ")
    place = f"{mark.resolve()}\n"
    if not place_and_scripts.startswith(place):
        return None, (file_sources.UNKNOWN_SCRIPT,)
    lines = (line.partition(" ") for line in place_and_scripts.removeprefix(place).splitlines())
    return run, tuple(file_sources.ScriptSource(name, sha256) for sha256, _, name in lines)


def _judge_base(base_name: str, runs: set[str], counted: set[str]) -> file_sources.BaseSource:
    """The source for a model that ``runs`` made: "known" if the promise on this text counts all of
    them, given the runs that it has ``counted``; otherwise "elsewhere"."""
    if runs and runs <= counted:
        return file_sources.BaseSource(base_name, "known")
    return file_sources.BaseSource(base_name, "elsewhere", beside_counted=bool(runs & counted))


def open_odometer(
    corpus: StrPath,
    facts: TrainingFacts,
    *,
    init: str,
    protects: bool,
    odometer_folder: StrPath | None = None,
    secure: bool = True,
    trials: int = 1,
    conditions: Callable[[OdometerRun, Sequence[SampledGaussian]], Mapping[str, Any]] | None = None,
) -> OdometerRun:
    """Open the odometer of a training. Its folder is created with the first line. The corpus, and
    the runs in all odometers of it beside it, are entered in the registry.

    Args:
        corpus: The text, a file or a folder.
        facts: What every line of the run states.
        init: What the model starts from.
        protects: Whether the noise protects every point.
        odometer_folder: The odometer; None: the one beside the corpus.
        secure: Whether the noise comes from the operating system. If it follows from a known seed,
            it protects nobody.
        trials: How many trainings on this text are compared.
        conditions: Returns what the first line states about the conditions of the promise.

    Returns:
        The run, which has entered nothing yet.

    Raises:
        ValueError: For a broken odometer or that of another corpus, and if it cannot be written.
    """
    corpus_sha256 = corpora.hash_corpus(corpus)
    odometers_beside = odometer.find_odometers(corpus, corpus_sha256)
    own_folder = (
        Path(odometer_folder)
        if odometer_folder is not None
        else odometer.find_odometer(corpus, corpus_sha256)
    )
    others = [folder for folder in odometers_beside if folder.resolve() != own_folder.resolve()]
    if odometers_beside and others == odometers_beside:
        raise argument_error(
            "odometer",
            f"{odometer_folder}: this text has one already, {odometers_beside[0]}; name that",
        )
    weights = Path(init) / "model.safetensors"
    facts_of_run = {
        "corpus": corpus_sha256,
        "base": outputs.hash_file(weights) if weights.is_file() else None,
        "base_tensors": hash_tensors(init),
        "about": text_sizes.max_points_per_unit(corpus),
        "trials": trials,
        **facts,
    }
    odometer_lines.refuse_no_folder(own_folder)
    meter = OdometerRun(
        own_folder, facts_of_run, init, secure, protects and secure, conditions=conditions
    )
    if os.path.lexists(own_folder / odometer_lines.SIGNING_KEY_FILE):
        seal.ensure_signing_key(own_folder)  # refuses a broken key before anything is written
    try:
        odometer.enter_other_odometers(others, corpus_sha256, meter.registry)
        if own_folder.is_dir():
            odometer.prepare_odometer(own_folder, corpus_sha256, meter.registry)
        folder_and_parents = (own_folder.absolute(), *own_folder.absolute().parents)
        files.check_writable(next(folder for folder in folder_and_parents if folder.is_dir()))
        text_registry.register_text(corpus)
    except OSError as error:
        raise_machine_fault(error)
        where = meter.registry.folder if str(meter.registry.folder) in str(error) else own_folder
        raise ValueError(f"odometer: {where} cannot be written; name a folder that can") from None
    if own_folder.is_dir():  # else it is created with its first line, so a refusal leaves none
        odometer.check_odometer_corpus(own_folder, odometer.read_entries(own_folder), corpus_sha256)
    return meter


def odometer_fields(study: CrtStudy, prepared: PreparedData) -> dict[str, Any]:
    """The facts that the odometer line of a study states, for :func:`open_odometer`."""
    rates = find_training_rates(study, prepared)
    counted = {
        name: (rate.failures, rate.judged_secrets, *(rate.reread_counts or ()))
        for name, rate in (("trace", rates.trace), ("public", rates.public))
        if rate.origin == "one_per_cluster"
    }
    unit = "user" if study.training_method.by_user else study.unit
    judged = rates is not RAW_TEXT_RATES and rates.trace.origin != UNKNOWN_RATE.origin
    labels = find_judging_labels(study, prepared) if counted or judged else {}
    reading = {"reading": labels["reading_sha256"]} if "reading_sha256" in labels else {}
    return {
        "counted": {"labels": labels["sha256"], **counted, **reading} if counted else {},
        "unit": unit,
        "method": study.method,
        "relation": study.neighbouring_relation,
        "screening": hash_screening(study, corpora.hash_corpus(study.corpus)),
        "gamma": rates.gamma,
        "delta2": rates.delta2,
        "holds": {} if unit == "turn" else text_sizes.max_points_per_unit(study.corpus)[unit],
        "law": odometer_lines.draw_law(labels) if judged else None,
        "repeats_counted": True,
        "hides_copies": masks_copies(study),
    }


def has_bound_for_missed(study: CrtStudy) -> bool:
    """Whether there is a bound for what a policy passes over. To find out, the method is asked for
    its promise for one step with much noise if half of all secrets leave a trace."""
    if not study.noise_multiplier:
        return False
    half = BoundedRate(0.5)
    terms = GuaranteeTerms(
        gamma=half, delta2=BoundedRate(0.0), noise_delta=1e-3, unit=study.unit, accountant="rdp",
        neighbouring_relation="replace", public="",
    )  # fmt: skip
    promise = study.training_method.promise((SampledGaussian(0.1, 5.0, 1),), terms)
    return promise is not None and promise.kind in PROTECTING_KINDS and promise.epsilon < math.inf
