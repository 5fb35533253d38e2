"""What a training leaves behind: the model, its line in the odometer, and ``record.json``.

The record is private (0600) and signed. The promise of a certificate is that of the released files;
the record holds everything else that :mod:`confide.release.certify` states: rates with bounds,
hashes of the text, the labels, the policies and the model, what was planted, the versions. It holds
no text.

>>> policy_hash("oracle") == policy_hash("oracle"), policy_hash("oracle") == policy_hash("none")
(True, False)
"""

from __future__ import annotations

import contextlib
import json
import platform
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

import crtlib
from confide import spending
from confide.release import (
    certifiable_run,
    certificate_parts,
    composed_promise,
    file_sources,
    rate_bounds,
    released_folder,
    seal,
    source_fold,
    void_reasons,
)
from confide.text import text_sizes
from confide.training.odometer_run import OdometerRun
from confide.training.record_sources import collect_sources_of_steps
from confide.training.training_facts import (
    PERPLEXITY_NAMES,
    PROTECTING_KINDS,
    RAW_TEXT_RATES,
    CardWriter,
    TrainingFacts,
    count_private_points,
    count_teachers,
    find_judging_labels,
    find_training_rates,
    has_tagger,
    policy_hash,
)
from crtlib import files, outputs
from crtlib.accounting.events import SampledGaussian, count_private_steps
from crtlib.accounting.guarantees import Guarantee
from crtlib.attacks import run_audit
from crtlib.checks import plain_name
from crtlib.files import StrPath
from crtlib.models import model_folder
from crtlib.models.pretrained import base_model_name, model_fingerprint
from crtlib.models.specs import ModelSpec
from crtlib.screening import policy_names
from crtlib.screening.rate_values import UNKNOWN_RATE
from crtlib.studies.crt_study import CrtStudy, StudyRow, schedule_phases
from crtlib.studies.study_data import PreparedData
from crtlib.studies.study_run import TrainedStudy, describe_public_knowledge
from crtlib.text import corpora, corpus_folder, customersim, screened_folder
from crtlib.text.canaries import CANARY_USER_PREFIX
from crtlib.text.records import Corpus, Point
from crtlib.text.tokenizer import BpeTokenizer
from crtlib.training.phases import PublicPhase
from crtlib.training.run_state import TrainingRun

RECORD_FORMAT = "crtlib/run/2"
SIGNED_RECORD_FILE = "record.json"
PERPLEXITY_BOUNDS = tuple(2.0**k for k in range(1, 13))
"""The bounds of the intervals in which a model card states a perplexity."""


@dataclass(frozen=True)
class TrainingResult:
    """A finished training by any method: its model, what it promises, and facts about it."""

    run: TrainingRun
    facts: TrainingFacts
    """Facts for ``--json`` and a model card."""
    settings: TrainingFacts
    """The settings it was made with, without paths on this machine."""
    sources: Sequence[file_sources.FileSource]
    """What the released files may know of the text."""
    record: TrainingFacts
    """How the training was done, for :func:`build_record`."""
    promise: str = ""
    """The promise of its certificate at the end of the training, in words."""
    holds: bool = False
    """Whether that certificate holds."""
    lines: Sequence[str] = ()
    """A summary to print."""
    study: CrtStudy | None = None
    fitted: TrainedStudy | None = None
    rows: Sequence[StudyRow] = field(default=(), repr=False)
    """The measurements of a study."""
    secrets: pd.DataFrame | None = field(default=None, repr=False)
    """For a plan, a row for each secret, by pseudonym: what was promised, and the ``posterior``
    accounted for the steps in this run's ledger. If the training was interrupted, more may have
    been spent."""
    keeps_promises: bool = True
    """Whether each of these secrets is within its promise."""


# --------------------------------------------------------------------------- the record
def preview_promise(
    content: TrainingFacts,
    sources: Sequence[file_sources.FileSource],
    meter: OdometerRun,
    spent: spending.SpentBudget,
) -> tuple[composed_promise.ComposedPromise, list[str]]:
    """What the certificate of a training would promise, and why it would be void, given the
    ``content`` of its record and the ``sources`` of its files."""
    content = {**content, "searched": {"trials": meter.facts["trials"]}}
    preview = certifiable_run.CertifiableRun(
        Path(), content, _promise_of_sources(sources, meter), spent
    )
    promise = preview.promise()
    return promise, void_reasons.list_void_reasons(preview, promise, promise.missed_bound()[0])


def preview_certificate(trained: TrainingResult, meter: OdometerRun) -> dict[str, Any]:
    """The parts of the certificate that ``crtlib certify`` would make now, at the end of a
    training; only the hash of the weights is missing, as they are not written yet."""
    content = build_record(trained, meter)
    now = certifiable_run.CertifiableRun(
        Path(), content, _promise_of_sources(trained.sources, meter), meter.spent
    )
    return certificate_parts.collect_certificate_parts(
        rate_bounds.with_current_label_counts(now),
        name=trained.facts["name"],
        secrets_per_person=(),
    )


def describe_conditions(
    content: TrainingFacts, sources: Sequence[file_sources.FileSource], meter: OdometerRun
) -> dict[str, Any]:
    """The conditions of a run's own promise, for its odometer line: the fields ``void``,
    ``assumed``, ``treated_as_public`` and ``declared`` of
    :class:`confide.odometer_lines.OdometerEntry`, under which a later certificate composes with it.
    Conditions of earlier runs are in their own lines, except whether the starting weights were
    unprotected."""
    spent_by_start = spending.SpentBudget((), base_unprotected=meter.spent.base_unprotected)
    _, void = preview_promise(content, sources, meter, spent_by_start)
    fold = _promise_of_sources(sources, meter)
    if fold.kind == "none":
        void = ["No noise of it is counted."]
    return {
        "void": tuple(void),
        "assumed": tuple(assumption.sentence() for assumption in fold.assumed),
        "treated_as_public": tuple(content["treated_as_public"]),
        "declared": tuple(certificate_parts.declarations_as_json(fold.declared)),
    }


def facts_before_training(study: CrtStudy, prepared: PreparedData) -> TrainingFacts:
    """What the record of a training will state about what its promise depends on, known before the
    first step: the fields that :func:`preview_promise` and :func:`describe_conditions` read."""
    rates = find_training_rates(study, prepared)
    judged = rates is not RAW_TEXT_RATES and rates.trace.origin != UNKNOWN_RATE.origin
    return {
        "rates": rates.to_json(),
        "protects_all": True,
        "accountant": study.accountant,
        "delta": study.delta,
        "labels": find_judging_labels(study, prepared) if judged else None,
        "oracle_on_real_text": reads_labels_of_real_text(study),
        "treated_as_public": [describe_public_knowledge(study)],
    }


def conditions_before_training(
    study: CrtStudy,
    prepared: PreparedData,
    meter: OdometerRun,
    events: Sequence[SampledGaussian],
) -> dict[str, Any]:
    """:func:`describe_conditions` for a training that is about to take these steps; declarations
    are left out, as they belong to a finished training."""
    content = facts_before_training(study, prepared)
    phases = schedule_phases(study)
    sources = collect_sources_of_steps(study, prepared, meter, events, phases, 0)
    return describe_conditions(content, sources, meter) | {"declared": ()}


def _promise_of_sources(
    sources: Sequence[file_sources.FileSource], meter: OdometerRun
) -> source_fold.FilesPromise:
    """What these sources promise, with the screening under its name in the odometer."""
    fold = source_fold.combine_sources(sources)
    return replace(fold, screening=fold.screening and meter.facts["screening"])


def conditions_of_result(
    trained: TrainingResult,
    meter: OdometerRun,
    texts: Iterable[file_sources.SourcedContent] = (),
) -> dict[str, Any]:
    """:func:`describe_conditions` for a finished training, including the sources of further
    ``texts``. Empty for a training that promises nothing, neither by noise for points nor by a
    plan.

    Guarantee:
        The line of a training with a plan states whether anything voids its promise. Test:
        ``tests/release/test_secret_plans.py::test_what_a_plan_promises_is_of_one_training``.
    """
    if not meter.protects and "plan" not in trained.record:
        return {}
    sources = [*trained.sources, *(source for text in texts for source in text.sources)]
    return describe_conditions(build_record(trained, meter), sources, meter)


def build_record(trained: TrainingResult, meter: OdometerRun) -> dict[str, Any]:
    """Everything that a certificate states about a finished training: how it was done, the
    versions, the model, and where it is entered."""
    facts, entered = trained.facts, meter.facts
    processes = trained.run.processes
    base = None
    if meter.init != "random":
        name = plain_name(Path(meter.init).name)
        base = {"name": name, "sha256": model_fingerprint(meter.init)}
    return {
        "schema": RECORD_FORMAT,
        "key": meter.hash_key.hex(),
        "software": {"crtlib": crtlib.__version__, "python": platform.python_version(),
                     "torch": torch.__version__},
        "model": {"sha256": meter.entry.model, "parameters": facts["parameters"],
                  "trained_parameters": facts["trained_parameters"],
                  "base": base},
        "unit": entered["unit"],
        "method": facts["method"],
        "randomness": "operating_system" if meter.secure else "seed",
        "searched": {"trials": entered["trials"], "charged": "plan" not in trained.record},
        "odometer": meter.record_fields(),
        **({"processes": processes} if processes > 1 else {}),
        **trained.record,
    }  # fmt: skip


def record_study(
    study: CrtStudy, fitted: TrainedStudy, promise: Guarantee | None, meter: OdometerRun
) -> dict[str, Any]:
    """The record of how a study's training was done, for :func:`build_record`."""
    prepared = fitted.data
    facts = facts_before_training(study, prepared)
    return {
        "corpus": describe_corpus(study.corpus, prepared.corpus, meter.facts["corpus"]),
        "protects_all": promise is None or promise.kind in PROTECTING_KINDS,
        "accountant": facts["accountant"],
        "delta": facts["delta"],
        "phases": _phase_rows(study, fitted),
        "rates": facts["rates"],
        "labels": facts["labels"],
        "policies": _policy_rows(study, prepared),
        "oracle_on_real_text": facts["oracle_on_real_text"],
        "treated_as_public": facts["treated_as_public"] if promise and promise.public else [],
        "canaries": {
            **_canary_record(study, prepared),
            "read_before": _list_canaries_read_before(meter),
        },
        "settings": asdict(study) | {"corpus": Path(study.corpus).name},
    }


def describe_corpus(corpus: StrPath, read: Corpus, corpus_sha256: str) -> dict[str, Any]:
    """What a certificate states about a corpus. Counts are of the part that was ``read`` in
    training, without canaries; the hash is that of the whole corpus."""
    users = {d.user for d in read.dialogues}
    if screened_folder.is_screened_folder(corpus):
        summary = screened_folder.read_screening_summary(corpus)
        turn_counts = screened_folder.read_turn_counts(corpus)  # by point
        name = summary["corpus"]
        turns = sum(turn_counts[d.id] for d in read.dialogues)
        dates = {key: summary["about"][key] for key in ("users_are", "from", "to")}
    else:
        facts = corpus_folder.read_corpus_summary(corpus) if Path(corpus).is_dir() else None
        users_are = text_sizes.describe_users(corpus, read.dialogues)
        name = Path(corpus).name
        turns = sum(len(d.turns) for d in read.dialogues)
        dates = {"users_are": users_are, "from": facts and facts.first, "to": facts and facts.last}
    return {"name": name, "sha256": corpus_sha256, "turns": turns, "users": len(users), **dates}


def _phase_rows(study: CrtStudy, fitted: TrainedStudy) -> list[dict[str, Any]]:
    """A row for the public steps, and one for each kind of private steps. The exact number of
    gradients that were not finite is private and left out."""
    prepared = fitted.data.prepared
    rows = list[dict[str, Any]]()
    if public_steps := fitted.run.updates["public"]:
        parts = {phase.part for phase in fitted.schedule if isinstance(phase, PublicPhase)}
        read = prepared.public if parts == {"public"} else prepared.all
        rows.append({"kind": "public", "points": len(read), "steps": public_steps})
    private_points = file_sources.round_down_points(count_private_points(study, fitted.data))
    steps_by_noise = count_private_steps(fitted.run.events)
    return rows + [
        {"kind": "private", "points": private_points, "steps": steps, "noise_multiplier": noise,
         "sampling_probability": probability, "clip_norm": study.clip_norm}
        for (noise, probability), steps in steps_by_noise.items()
    ]  # fmt: skip


def _policy_rows(study: CrtStudy, prepared: PreparedData) -> dict[str, Any]:
    """Rows for both policies. For a screened folder these are the policies that screened it; for a
    method that uses no policy, the first is "none".

    Guarantee:
        No certificate names a search that had no effect. Test: ``tests/reports/
        test_model_cards.py::test_no_search_is_named_where_the_text_was_read_as_it_is``.
    """
    screening = study.screening
    rows = {}
    names = {"pi": "policy", "pi_c": "conservative"}
    searches = screening is not None or "policy" in study.training_method.reads
    people = count_teachers(study, prepared) if has_tagger(study) else None
    policies = (prepared.policy, prepared.conservative_policy)
    for (key, name), policy in zip(names.items(), policies, strict=True):
        if screening:
            shown_name, sha256 = screening[name], screening[f"{name}_sha256"]
            teachers = screening["taught_by"][name]
        else:
            policy_name = getattr(study, name) if searches or key == "pi_c" else "none"
            shown_name, sha256 = policy_names.strip_paths(policy_name), policy_hash(policy_name)
            teachers = policy.teaching_hashes if searches else None
        rows[key] = {"name": shown_name, "sha256": sha256, "taught_by": teachers}
        if teachers and people:
            rows[key]["people"] = people
    return rows


def reads_labels_of_real_text(study: CrtStudy) -> bool:
    """Whether a policy reads the labels of text that was not simulated.

    Guarantee:
        A text counts as simulated only if every dialogue is, together with its labels. Test:
        ``tests/release/test_simulated_text.py``.
    """
    settings = study.screening or vars(study)
    if "oracle" not in f"{settings['policy']}+{settings['conservative']}".split("+"):
        return False
    if study.screening:
        return not settings["about"]["simulated"]
    path = Path(study.corpus)
    return not (path.exists() and customersim.are_simulated(corpora.read_dialogues(path)))


def _canary_record(study: CrtStudy, prepared: PreparedData) -> dict[str, Any]:
    """Which canaries were planted, and which of them training read in clear, with noise or
    without."""
    planted = [
        (p.user.removeprefix(CANARY_USER_PREFIX), p.text)
        for p in prepared.points
        if p.user.startswith(CANARY_USER_PREFIX)
    ]

    def read(points: Sequence[Point]) -> list[int]:
        texts = {p.text for p in points}
        return sorted({int(number) for number, text in planted if text in texts})

    return {
        "planted": len(prepared.canaries),
        "copies": study.copies if prepared.canaries else 0,
        "seed": study.seed,
        "in_public": read(prepared.prepared.public),
        "in_private": read(prepared.prepared.private),
    }


def _list_canaries_read_before(meter: OdometerRun) -> list[int] | None:
    """The seeds of the canaries that a run's starting model had read; None if unknown, as for a
    model made by crtlib whose record is missing."""
    bases = [s for s in meter.origin() if isinstance(s, file_sources.BaseSource)]
    if all(base.lineage == "outside" for base in bases):
        return []
    place = run_audit.find_record(Path(meter.init))
    if place is None:
        return None
    with contextlib.suppress(ValueError):
        record = seal.read_signed(place)
        if record["model"]["sha256"] == meter.facts["base"]:
            planted = record["canaries"]
            before = planted.get("read_before", [] if record["model"]["base"] is None else None)
            if before is None:
                return None
            mine = [planted["seed"]] if planted["planted"] else []
            return sorted({*before, *mine})
    return None


# --------------------------------------------------------------------------- writing
def work_folder(out: StrPath) -> Path:
    """The private folder beside a model, not for release: unfinished work, exact scores."""
    place = Path(out).absolute()
    return place.with_name(f"{place.name}.work")


def make_work_folder(out: StrPath) -> Path:
    """:func:`work_folder`, created if needed, for its owner only."""
    folder = work_folder(out)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@dataclass(frozen=True)
class SavedModel:
    """The files of a model as they were written when its training ended, with their hashes by
    name."""

    folder: Path
    hashes: Mapping[str, str]

    def refuse_changed_files(self, folder: Path, names: Iterable[str]) -> None:
        """Raise ValueError if the files of these names in ``folder`` are not those that were
        written, or one is another than it was."""
        for name in self.hashes.keys() | names:
            is_file = name in self.hashes and (folder / name).is_file()
            if not is_file or outputs.hash_file(folder / name) != self.hashes[name]:
                raise ValueError(f"{name}: is not as it was when the training ended")


@contextlib.contextmanager
def saved_model(
    model: nn.Module, out: StrPath, *, init: str, tokenizer: BpeTokenizer, spec: ModelSpec | None,
    template: str | None,
) -> Iterator[SavedModel]:  # fmt: skip
    """While active, the model is in :func:`work_folder` as it was when its training ended. It is
    written before anything measures it: an attack of another package, or the card of a script, may
    hold the model and train it, and no noise would protect what it then learned.

    Guarantee:
        What is released is what the last step left. Tests: ``tests/release/
        test_what_is_written.py::test_what_measures_a_model_teaches_it_nothing``, ``tests/release/
        test_what_is_written.py::test_a_file_that_was_changed_is_not_released``.
    """
    files_folder = make_work_folder(out) / ".made"
    if files_folder.exists():  # of a training that was killed
        shutil.rmtree(files_folder)
    try:
        with outputs.translate_disk_errors(files_folder):
            model_folder.save_model(
                model, tokenizer, spec if spec and spec.recurrent else None, files_folder,
                template=template, base=base_model_name(init),
            )  # fmt: skip
        names = released_folder.list_contents(files_folder)
        hashes = {name: outputs.hash_file(files_folder / name) for name in names}
        yield SavedModel(files_folder, hashes)
    finally:
        shutil.rmtree(files_folder, ignore_errors=True)


def write_training(
    trained: TrainingResult,
    saved: SavedModel,
    out: Path,
    inputs: Mapping[str, str],
    meter: OdometerRun,
    card: CardWriter | None,
    device: str,
) -> None:
    """Write the model, with its promise, as a folder that ``transformers`` loads (for a recurrent
    model, that :mod:`crtlib.models.model_folder` loads); the marker comes last. Private files go
    into :func:`work_folder`, for their owner only. Others may read the model if its promise holds.
    The run is finished in the odometer before the weights take their place.

    Args:
        trained: The result of the training.
        saved: The files of its model.
        out: The folder for the model.
        inputs: Hashes of what the training read, by name.
        meter: Its entry in the odometer.
        card: Makes the model's README.md; None: it gets none.
        device: Where it ran.

    Raises:
        ValueError: If a file of the saved model was changed since it was written.
    """
    work = make_work_folder(out)
    key = seal.ensure_signing_key(meter.folder)
    with outputs.staged_folder(
        out,
        command="train",
        options=trained.settings,
        inputs=outputs.with_keyed_hashes(inputs, meter.hash_key),
        public=("*",) if trained.holds else (),
        seal=lambda _: release.close(key, meter.run),
    ) as staged:
        release = released_folder.Release(staged)
        described = _public_texts(trained.settings, trained.facts, card) if trained.study else {}
        conditions = conditions_of_result(trained, meter, described.values())
        shutil.move(saved.folder, staged / ".made")  # which may be on another disk
        release.write_folder(staged / ".made", *trained.sources)
        shutil.rmtree(staged / ".made")
        saved.refuse_changed_files(staged, release.sources)
        meter.finish(staged / "model.safetensors", conditions)
        promise = file_sources.SourcedContent.text(trained.promise + "\n")
        texts = {"guarantee.txt": promise, **described}
        private = {SIGNED_RECORD_FILE: seal.sign_value(build_record(trained, meter), key)}
        if trained.study:
            private["results.json"] = {
                "guarantee": trained.promise,
                "rows": trained.rows,
                "device": device,
                "seconds": round(trained.run.seconds, 2),
            }
        sources = frozenset(trained.sources).union(*(text.sources for text in texts.values()))
        for name, text in texts.items():
            release.write(name, file_sources.SourcedContent(text.content, sources))
        # Before the model takes its place, as a run that is killed afterwards is not repeated.
        for name, content in private.items():
            files.write_text(work / name, json.dumps(content, indent=1) + "\n", mode=0o600)
        if trained.secrets is not None:
            with files.replace_atomically(work / "secrets.parquet", mode=0o600) as file:
                trained.secrets.to_parquet(file, index=False)


def _public_texts(
    settings: TrainingFacts, facts: TrainingFacts, card: CardWriter | None
) -> dict[str, file_sources.SourcedContent]:
    """The texts to write beside the weights of a study, with the sources of what they may know.

    Guarantee:
        A card, even a custom one, is given no exact measurement on a text, only the interval that
        is declared. Test: ``tests/release/test_declared_counts.py::
        test_a_card_is_told_what_is_declared_and_nothing_more_exact``.
    """
    card_facts = {**facts, "bits_per_character": None}
    texts = {
        "experiment.json": file_sources.SourcedContent.text(json.dumps(settings, indent=1) + "\n")
    }
    if card and facts.get("perplexity") is None:
        texts["README.md"] = file_sources.SourcedContent.text(card(card_facts))
    elif card:
        name = PERPLEXITY_NAMES[facts["held_out"]]
        interval = file_sources.declare_interval(name, facts["perplexity"], PERPLEXITY_BOUNDS)
        readme = card(card_facts | {"perplexity": interval.value})
        texts["README.md"] = file_sources.SourcedContent.text(readme, interval)
    return texts
