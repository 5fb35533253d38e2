"""Read a finished training for its certificate.

That is its record, the promise of its files, and what was spent before it on the same text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from confide import odometer, odometer_lines, spending, text_registry
from confide.release import released_folder, seal, source_fold
from confide.release.composed_promise import ComposedPromise, compose_promise
from confide.release.source_fold import FilesPromise
from crtlib import files, outputs
from crtlib.checks import raise_machine_fault
from crtlib.files import StrPath

RECORD_FILE = "record.json"


UNCOUNTED_REPEATS_NOTE = "which counted no trace of a secret whose message occurs twice"


class JudgingLabels(BaseModel):
    """The labels that judged a training's policies, as far as a certificate reads them."""

    model_config = ConfigDict(strict=True)
    sha256: str
    drawn: str
    judged: int = Field(ge=1)


class TrainingRecord(BaseModel):
    """``record.json``, as far as a certificate reads it; only the signature protects deeper levels.

    Guarantee:
        A record with rates that were counted on labels names those labels. Test:
        ``tests/release/test_damaged_records.py::
        test_a_record_that_was_signed_again_is_refused_in_one_line``.
    """

    model_config = ConfigDict(strict=True)
    schema_: Literal["crtlib/run/2"] = Field(alias="schema")
    key: str
    software: dict[str, str]
    model: dict[str, Any]
    corpus: dict[str, Any]
    unit: Literal["turn", "dialogue", "user"]
    method: dict[str, str]
    protects_all: bool
    accountant: str
    delta: float
    randomness: Literal["operating_system", "seed"]
    phases: list[dict[str, Any]]
    rates: dict[str, dict[str, Any]]
    labels: JudgingLabels | None
    policies: dict[str, dict[str, Any]]
    oracle_on_real_text: bool
    treated_as_public: list[str]
    searched: dict[str, Any]
    canaries: dict[str, Any]
    odometer: dict[str, str]

    @model_validator(mode="after")
    def _names_the_labels_of_its_rates(self) -> TrainingRecord:
        has_counted_rates = any(row.get("how") == "one_per_cluster" for row in self.rates.values())
        if has_counted_rates and self.labels is None:
            raise ValueError("labels: must be those of the rates")
        return self


@dataclass(frozen=True)
class CertifiableRun:
    """A training: its model's folder, its record, the promise of its files alone, and what was
    spent before it on the same text. ``void_reasons``: what voids its promise. ``spent`` is None if
    the odometer cannot be read; ``key`` is the key beside it."""

    folder: Path
    record: Mapping[str, Any]
    files_promise: FilesPromise
    spent: spending.SpentBudget | None
    void_reasons: tuple[str, ...] = ()
    key: Ed25519PrivateKey | None = None

    def promise(self) -> ComposedPromise:
        """The promise of its files, composed with what was spent before."""
        terms = self.record
        return compose_promise(
            self.files_promise, self.spent, delta=terms["delta"], accountant=terms["accountant"],
            trials=terms["searched"]["trials"],
            law=odometer_lines.draw_law(terms.get("labels")),
        )  # fmt: skip


def read_certifiable_run(
    model: StrPath,
    *,
    odometer_folder: StrPath | None = None,
    replaced: Sequence[Path] = (),
) -> CertifiableRun:
    """Read the training of the model in a folder; its record is in the folder ``.work`` beside it.

    Args:
        model: The folder of the model.
        odometer_folder: The odometer; None: the one that the record names.
        replaced: Files that are about to be rewritten, which does not count as a change to the
            release. What a killed process left beside them is removed.

    Raises:
        ValueError: If there is no record, or it was changed after it was signed.

    Guarantee:
        If the release, the record or the ledger was edited, an error says so in one line, or the
        certificate does not hold. Tests: ``tests/release/test_edited_files.py::
        test_who_edits_what_is_signed_is_told_in_one_line``,
        ``tests/release/test_edited_files.py::test_who_harms_a_ledger_is_told_in_one_line``.
    """
    # The record: an error here is raised; all that is wrong below voids the promise instead.
    folder = Path(model)
    record_paths = [folder / RECORD_FILE, folder.with_name(folder.name + ".work") / RECORD_FILE]
    record_path = next((path for path in record_paths if path.is_file()), None)
    if record_path is None:
        raise ValueError(f"{folder}: holds no {RECORD_FILE}; it was not made by 'crtlib train'")
    record = seal.read_signed(record_path)
    try:
        TrainingRecord.model_validate(record)
        record_key = bytes.fromhex(record["key"])
    except (ValidationError, ValueError):
        raise ValueError(f"{record_path}: is damaged, or of another version of crtlib") from None
    odometer_record, public_key = record["odometer"], str(record["public_key"])
    void_reasons: list[str] = []

    # The files: what their sources promise together.
    files_promise = FilesPromise("none")
    replaced_paths = {path.resolve() for path in replaced}
    for path in replaced_paths:
        files.remove_stale_parts(path)
    try:
        released = released_folder.read_release(folder)
        altered = [
            name for name in released.altered if folder.resolve() / name not in replaced_paths
        ]
        files_promise = source_fold.combine_sources(released.sources, altered)
        screening = odometer_record["screening"]
        if files_promise.screening == outputs.with_keyed_hashes(screening, record_key):
            files_promise = replace(files_promise, screening=screening)  # as the odometer names it
        if (released.run, released.key) != (odometer_record["run"], public_key):
            void_reasons.append("The files are from another run than the record.")
    except ValueError as error:
        void_reasons.append(f"What was released is not known ({str(error).rpartition('/')[2]}).")

    # The odometer: what was spent before this run. What was read of it before an error stays.
    home = Path(odometer_record["folder"] if odometer_folder is None else odometer_folder)
    corpus_hash = record["corpus"]["sha256"]
    registry = text_registry.Registry(text_registry.registry_folder())
    spent = signing_key = None
    try:
        entries = odometer.read_entries(home)
        odometer.check_odometer_corpus(home, entries, corpus_hash)
        if odometer_record["entry"] not in {entry.entry for entry in entries}:
            raise ValueError("odometer: the entries of this run are missing")
        history = spending.read_odometer_history(home, registry, odometer_record["run"])
        spent = history.spent(odometer_record["run"])
        known_when_trained = set(odometer_record.get("before", "").split())
        if known_when_trained - {entry.run for entry in history.entries}:
            void_reasons.append(
                "Earlier runs that were known when it was trained are not known here."
            )
        all_lines = *registry.entries(), *entries
        run_lines = [line for line in all_lines if line.run == odometer_record["run"]]
        void_reasons += _check_odometer_lines(run_lines, files_promise, record)
        if (home / seal.SIGNING_KEY_FILE).is_file():
            signing_key = seal.ensure_signing_key(home)
        if signing_key is None or signing_key.public_key().public_bytes_raw().hex() != public_key:
            void_reasons.append("The record is not signed by the key beside the odometer.")
    except (ValueError, OSError) as error:
        raise_machine_fault(error)
        reason = str(error) if isinstance(error, ValueError) else "odometer: cannot be read"
        reason = reason.replace(f"{home} ", "")
        void_reasons.append(f"What was spent before is not known ({reason}).")
    return CertifiableRun(folder, record, files_promise, spent, tuple(void_reasons), signing_key)


def _check_odometer_lines(
    lines: Sequence[odometer_lines.OdometerEntry],
    files_promise: FilesPromise,
    record: Mapping[str, Any],
) -> list[str]:
    """Where a run's last odometer line, or the model or the steps in any of its lines, contradict
    the files or the record; a sentence each."""
    line, model_hash = lines[-1], record["model"]["sha256"]
    if line.leaves_out_repeats and files_promise.kind != "none":
        return [f"It was trained by crtlib 0.3, {UNCOUNTED_REPEATS_NOTE}: train it again."]
    other_models = [e.model for e in lines if e.state == "finished" and e.model != model_hash]
    compared: list[tuple[str, Any, Any]] = [("model", [line.model, *other_models], [model_hash])]
    compared += [("trials", line.trials, record["searched"]["trials"])]
    if files_promise.events and line.events is not None:
        compared += [
            ("events", spending.most_steps(lines), files_promise.events),
            ("unit", line.unit, files_promise.unit),
            ("relation", line.relation, files_promise.neighbouring_relation),
            ("trace rate", line.gamma, files_promise.gamma),
        ]
        if files_promise.delta2:
            compared.append(("public rate", line.delta2, files_promise.delta2))
    return [
        f"The odometer disagrees about the {name} of this run."
        for name, in_odometer, in_record in compared
        if in_odometer != in_record
    ]
