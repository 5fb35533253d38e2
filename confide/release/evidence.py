"""Read what an audit and a leakage report found about a model, for its certificate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from confide import attack_ledger
from confide.release import file_sources
from confide.release.composed_promise import round_bound_up
from confide.reports import bands
from crtlib import files, outputs
from crtlib.arguments import argument, argument_error
from crtlib.attacks.one_run_bound import AUDIT_CONFIDENCE
from crtlib.files import StrPath
from crtlib.models.tensor_files import hash_tensors
from crtlib.text import jsonl

REPORT_COUNTS = {
    "completed": "passages that a report found completed",
    "unique": "passages of one person only that it found completed",
}
"""Counts in a report that were made on the text itself, which the certificate shows as bands."""
OTHER_MODEL = "is of another model, or names none; make it again"


def read_evidence(
    model: StrPath,
    record: Mapping[str, Any],
    audit: StrPath | None,
    report: StrPath | None,
    odometer_folder: StrPath | None = None,
) -> dict[str, Any]:
    """Read what ``audit.json`` and the folder of a leakage report say about the model in ``model``.

    ``odometer_folder`` is the odometer; None: the one that the record names. Raises ``ValueError``
    if an audit or report is about another model or names none; if the report is about another text
    than that of the ``record``, such as what screening left of it; if options were chosen that
    change how much an attack finds; and if another report found more.

    Guarantee:
        All audits and reports of the model that its odometer or this user's registry lists are
        counted, and the audit's bound is the largest of them. Tests:
        ``tests/release/test_evidence.py::test_the_largest_of_all_audits_is_said``,
        ``tests/release/test_evidence.py::test_all_reports_of_a_model_are_counted``.

    The numbers of an audit depend on the model, on the noise that was accounted for and on invented
    canaries, so they reveal nothing about the text beyond the model. The numbers of a report are
    counts on the text itself: :func:`declare_report_counts` declares them."""
    attached: dict[str, Any] = {}
    text_hash, tensors_hash = record["corpus"]["sha256"], str(hash_tensors(model))
    ledgers = attack_ledger.find_ledgers(
        record, None if odometer_folder is None else Path(odometer_folder)
    )
    if audit is not None:
        attached["audit"] = _read_audit(model, audit, ledgers, tensors_hash)
    if report is not None:
        attached["report"] = _read_report(model, report, ledgers, tensors_hash, text_hash)
    return attached


def _read_audit(
    model: StrPath, audit: StrPath, ledgers: Sequence[Path], tensors_hash: str
) -> dict[str, Any]:
    """What an audit says, with the largest bound among all audits of the model in ``ledgers``,
    where ``tensors_hash`` names it. Raises ``ValueError`` for an audit that cannot be attached."""
    audit_result = read_json_object(Path(audit))
    marker = outputs.require_marker(Path(audit).parent, [Path(audit).name])
    if audit_result.get("model") != outputs.hash_file(Path(model) / "model.safetensors"):
        raise argument_error("audit", f"{audit} {OTHER_MODEL}")
    if "strongest_attacker_power" not in audit_result:
        raise argument_error(
            "audit", f"{audit} was made by another version of crtlib; make it again"
        )
    if audit_result.get("claimed"):
        raise argument_error("audit", f"{audit} tests a claim; audit without {argument('claim')}")
    if audit_result["confidence"] != AUDIT_CONFIDENCE:
        raise argument_error(
            "audit",
            f"{audit} tests at confidence {audit_result['confidence']:g}, must be "
            f"{AUDIT_CONFIDENCE:g}; audit without {argument('confidence')}",
        )
    if marker["options"].get("guesses") is not None:
        raise argument_error(
            "audit",
            f"{audit} guesses on a chosen number of canaries; audit without {argument('guesses')}",
        )
    if marker["options"].get("seed") is not None:
        raise argument_error(
            "audit", f"{audit} drew coins by a chosen seed; audit without {argument('seed')}"
        )
    proved = audit_result["proved"]
    if proved != "inf":
        proved = round_bound_up(proved)
    bounds = attack_ledger.list_attacks(ledgers, "audit", tensors_hash)  # None for one that stopped
    bounds[audit_result.get("name") or outputs.hash_file(audit)] = audit_result["epsilon_lower"]
    largest_bound = max(bound for bound in bounds.values() if bound is not None)
    copied_fields = (
        "confidence", "canaries", "guessed", "right", "strongest_attacker_power", "says_nothing",
    )  # fmt: skip
    facts = {
        "lower": math.floor(1000 * largest_bound) / 1000,
        "epsilon": proved,
        "made": len(bounds),
        "stopped": sum(bound is None for bound in bounds.values()),
        **{name: audit_result[name] for name in copied_fields},
    }
    if largest_bound > audit_result["epsilon_lower"]:
        facts["says_nothing"] = None
    return facts


def _read_report(
    model: StrPath, report: StrPath, ledgers: Sequence[Path], tensors_hash: str, text_hash: str
) -> dict[str, Any]:
    """What a leakage report says about a model and the text with a hash. Raises ``ValueError`` for
    a report that cannot be attached, or if another report in ``ledgers`` found more."""
    marker = outputs.require_marker(report)
    inputs, options = marker["inputs"], marker["options"]
    key = outputs.load_or_make_key(outputs.key_path_beside(report))
    if options.get("reveal"):
        raise argument_error("report", f"{report} shows text in clear; attach a redacted report")
    if inputs.get("model") != outputs.hash_tree(model):
        raise argument_error("report", f"{report} {OTHER_MODEL}")
    if inputs.get("text") != outputs.with_keyed_hashes(text_hash, key):
        raise argument_error(
            "report",
            f"{report} is not on the text of the certificate; make it on that text, "
            "as it was before it was screened",
        )
    for left_out, option in (
        ("short passages", options["min_length"] > 1 and argument("min_length")),
        ("the ends of texts", not options.get("flush", True) and argument("verbatim")),
    ):
        if option:
            raise argument_error("report", f"{report} leaves {left_out} out ({option})")
    if (template := options.get("template")) is not None:
        raise argument_error(
            "report",
            f"{report} reads texts with template {template!r}; report without "
            f"{argument('template')}, as the model was trained",
        )
    summary = read_json_object(Path(report) / "report.json")["summary"]
    reports_of_model = attack_ledger.list_attacks(ledgers, "report", tensors_hash)
    # Passages found by each report of the model on this text; None for a report that stopped.
    found = {name: n for name, n in reports_of_model.items() if name.startswith(text_hash)}
    own_name = attack_ledger.name_report(options, text_hash)
    own_found = found.setdefault(own_name, float(bands.least_of(summary["runs"])))
    most_found = max(n for n in found.values() if n is not None)
    if own_found is None or own_found < most_found:
        raise argument_error(
            "report",
            f"{report} found fewer passages than another report of this model, of "
            f"{len(found)}; attach the one that found most",
        )
    facts = {"completed": summary["runs"], "unique": summary["unique"], "top_k": summary["top_k"]}
    return facts | {"made": len(found)}


def declare_report_counts(
    evidence: Mapping[str, Any] | None,
) -> tuple[file_sources.DeclaredSource, ...]:
    """Declare what the leakage report in a certificate's ``evidence`` reveals about the private
    text outside the promise: its counts have no noise, and one message can move a count to the next
    band. Raises ``ValueError`` for a value that is not a band.

    >>> [
    ...     (d.value, round(d.bits, 2))
    ...     for d in declare_report_counts({"report": {"completed": "5 to 9"}})
    ... ]
    [('5 to 9', 9.85)]
    """
    report = (evidence or {}).get("report") or {}
    declared = [
        file_sources.DeclaredSource(counted, report[name], bands.list_band_names())
        for name, counted in REPORT_COUNTS.items()
        if name in report
    ]
    if (reports := report.get("made", 1)) > 1:  # it was chosen by what it found
        ranks = ("the one that found most", *(f"number {k}" for k in range(2, reports + 1)))
        declared.append(file_sources.DeclaredSource(f"which of {reports} reports", ranks[0], ranks))
    return tuple(declared)


def read_json_object(path: Path) -> dict[str, Any]:
    try:
        return dict(jsonl.load_strict_json(files.read_text(path)))
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except (ValueError, TypeError):
        raise ValueError(f"{path}: is not a JSON object of crtlib") from None
