"""Verify a model that you received: ``python -m confide.release.verify MODEL CERTIFICATE.json``.

It needs neither torch nor the odometer. It checks that nobody has edited the certificate, the page
beside it (the same name in ``.html``) or any file since they were signed, that both were signed by
one key, and that what the certificate promises, and the rates that it names, are not more than what
follows from the sources of the files. It does not see earlier models on the text, which can only
make the numbers larger; and not a releaser who lies: compare the key with one that the releaser
gave you in another way.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jsonschema.exceptions import best_match

from confide.promise_kinds import BAYESIAN_KIND
from confide.release import (
    assumptions,
    certificate_parts,
    composed_promise,
    evidence,
    file_sources,
    limits,
    released_folder,
    seal,
    source_fold,
)
from confide.release.rate_bounds import recompute_bound
from confide.reports import certificate_pages
from crtlib import files
from crtlib.accounting.events import count_private_steps
from crtlib.arguments import argument, written_as_options
from crtlib.checks import MachineError, printable
from crtlib.foreign_files import refuse_whatever_fails

LEAST_NUMBER_RATIO = 1 - 1e-6
"""How much smaller than the recomputed number a number may be, as processors round differently."""
LEAST_DELTA_RATIO = 0.99
"""The same for a number that depends on delta, since the certificate's delta is rounded up."""
WEIGHT_FILES = ("model.safetensors", "adapter_model.safetensors")


def find_form_fault(certificate: Mapping[str, Any], page: bytes | None) -> str | None:
    """What is wrong with the form of a certificate, or with the ``page`` that people read, if it is
    given; None: nothing.

    Guarantee:
        An edited page is detected, and so is a number that no certificate can have. Test:
        ``tests/release/test_verifier.py``.
    """
    error = best_match(certificate_pages.certificate_validator().iter_errors(certificate))
    if error:
        return f"certificate: {error.json_path} is not what the schema allows"
    if certificate["model"]["trained_parameters"] > certificate["model"]["parameters"]:
        return "certificate: more parameters were trained than there are"
    rows = [row for name, row in certificate["rates"].items() if name != "by_kind"]
    has_counted_rates = any(row["how"] == "one_per_cluster" for row in rows)
    if has_counted_rates and _rests_on_labels(certificate) and certificate["labels"] is None:
        return "certificate: does not name the labels of its rates"
    if fault := _find_rate_fault(certificate.get("rates", {}), certificate.get("labels")):
        return fault
    if page is not None and hashlib.sha256(page).hexdigest() != certificate.get("page_sha256"):
        return "the page beside the certificate is not the one that was signed with it"
    return None


def _rests_on_labels(certificate: Mapping[str, Any]) -> bool:
    """Whether the promise is about a secret drawn at random, and so rests on labels."""
    return bool(certificate["guarantee"]["kind"] == BAYESIAN_KIND)


def _find_rate_fault(rates: Mapping[str, Any], labels: Mapping[str, Any] | None) -> str | None:
    """Where a rate, over all kinds of secrets or for one, contradicts its counts or the labels'.

    Guarantee:
        A bound that is smaller than its counts allow is detected. Test:
        ``tests/release/test_verifier.py::test_a_number_that_no_certificate_has_is_refused``.
    """
    labelled = labels["secrets"] + labels.get("unread", 0) if labels else float("inf")
    for kind, rows in {"": rates, **rates.get("by_kind", {})}.items():
        for name, row in rows.items():
            if name == "by_kind":
                continue
            subject = f"certificate: the {name} rate{kind and f' of kind {kind}'}"
            count, judged = row["count"], row["of"]
            failing, secrets = row.get("all") or (count, judged)
            if not (count <= judged <= secrets <= labelled and count <= failing <= secrets):
                return f"{subject} counts more than there are"
            if row["rate"] != (count / judged if judged else None):
                return f"{subject} does not follow from its counts"
            if row["upper"] < recompute_bound(row, labels) * LEAST_NUMBER_RATIO:
                return f"{subject} has a bound that is too small for its counts"
    return None


def find_certificate_fault(
    model: Path, certificate: Mapping[str, Any], public: str | None = None
) -> str | None:
    """Find the first fault in a certificate of the folder ``model``.

    Args:
        model: The folder as it was received.
        certificate: The certificate.
        public: The releaser's key, as obtained in another way: 64 hexadecimal digits, in upper or
            lower case.

    Returns:
        A line that describes the fault; None: there is none.

    Guarantee:
        A certificate that passes promises no more than follows from the listed sources of the
        files. Tests: ``tests/release/test_released_folder.py::
        test_a_certificate_that_promises_more_than_its_files_keep_is_refused``,
        ``tests/release/test_released_folder.py::
        test_a_certificate_of_another_key_or_of_void_files_is_refused``.
    """
    if public is not None and not re.fullmatch("[0-9a-f]{64}", public := public.strip().lower()):
        return f"{argument('public')}: must be 64 hexadecimal digits"
    try:
        seal.check_signature(certificate, "certificate", public)
        released = released_folder.read_release(model)
    except ValueError as error:
        return str(error)
    key = certificate["public_key"]
    if released.key != key:
        return "release.json: was signed with another key than the certificate"
    if certificate_pages.hash_certificate(certificate) != certificate["id"]:
        return "certificate: its id is not the hash of its content"
    if released.altered:
        return f"{released.altered[0]}: is not what was released"
    weights = {sha for name, sha in released.hashes.items() if name in WEIGHT_FILES}
    if certificate["model"]["sha256"] not in weights:
        return "certificate: is of another model"
    if certificate["verdict"] != "holds":
        return "certificate: the model carries no promise"
    stated_limits = certificate.get("limits", [])
    if limits.judge_limits(certificate, [row["limit"] for row in stated_limits]) != stated_limits:
        return "limits: do not follow from what is certified"
    files_promise = source_fold.combine_sources(released.sources)
    if files_promise.void or files_promise.kind == "none":
        reason = files_promise.void[0] if files_promise.void else "nothing protects the text"
        return f"release.json: {reason}"
    mechanism = certificate["mechanism"]
    return _find_number_fault(certificate, files_promise) or _find_mechanism_fault(
        mechanism, released.sources, files_promise
    )


def _find_mechanism_fault(
    mechanism: Mapping[str, Any],
    sources: Iterable[file_sources.FileSource],
    files_promise: source_fold.FilesPromise,
) -> str | None:
    """The fault if the private steps in a certificate are not those of any training among the
    files' sources. A plan's steps are not compared: they differ from point to point."""
    if files_promise.plan:
        return None
    noised = [s for s in sources if isinstance(s, file_sources.NoisedSource)]
    stated_steps = {
        (row["noise_multiplier"], row["sampling_probability"]): row["steps"]
        for row in mechanism["phases"]
        if row["kind"] == "private"
    }
    if any(stated_steps == count_private_steps(source.events) for source in noised):
        return None
    return "certificate: its private steps are not those of the files"


def _find_number_fault(
    certificate: Mapping[str, Any], files_promise: source_fold.FilesPromise
) -> str | None:
    """The fault if the certificate promises more than follows from the files alone."""
    if fault := _find_kind_fault(certificate, files_promise):
        return fault
    if fault := _find_condition_fault(certificate, files_promise):
        return fault
    delta = float(certificate["guarantee"]["missed"]["delta"])
    if not 0 <= delta <= 1:
        return "certificate: its delta is not a probability"
    promise = composed_promise.compose_promise(files_promise, None, delta=delta)
    if fault := _find_value_guess_fault(certificate, promise):
        return fault
    if fault := _find_right_guess_fault(certificate, promise):
        return fault
    return None if files_promise.plan else _find_bound_fault(certificate, promise, delta)


def _find_kind_fault(
    certificate: Mapping[str, Any], files_promise: source_fold.FilesPromise
) -> str | None:
    """The fault if the promise is of a kind, or rests on rates, that the files cannot keep."""
    guarantee = certificate["guarantee"]
    kinds: list[str] = [files_promise.kind]  # or what earlier runs leave of it
    bayesian = files_promise.kind == BAYESIAN_KIND
    if files_promise.kind == "dp":
        kinds.append(BAYESIAN_KIND)
    if bayesian and not files_promise.delta2:
        kinds.append("dp")
    relation = files_promise.neighbouring_relation
    if guarantee["kind"] not in kinds or guarantee["relation"] != relation:
        return "certificate: promises something of another kind than the files can keep"
    if guarantee.get("plan") != (files_promise.plan and files_promise.plan.plan):
        return "certificate: its plan is not that of the files"
    if bayesian and files_promise.gamma < 1 and "rates" in certificate:
        for name, smallest in (("trace", files_promise.gamma), ("public", files_promise.delta2)):
            if certificate["rates"][name]["upper"] < smallest * LEAST_NUMBER_RATIO:
                return f"certificate: the {name} rate is smaller than that of the files"
    return None


def _find_value_guess_fault(
    certificate: Mapping[str, Any], promise: composed_promise.ComposedPromise
) -> str | None:
    """The fault if values can be guessed more often than the certificate states."""
    stated, chances = certificate["value_guess"], promise.value_guesses()
    least_ratio = LEAST_NUMBER_RATIO if promise.files_promise.plan else LEAST_DELTA_RATIO
    for row, (prior, chance) in zip(stated, chances, strict=False):
        if row["prior"] != prior or row["at_most"] < chance * least_ratio:
            return "certificate: a value can be guessed more often than it states"
    if len(stated) != len(chances):
        return "certificate: omits promises about values"
    return None


def _find_right_guess_fault(
    certificate: Mapping[str, Any], promise: composed_promise.ComposedPromise
) -> str | None:
    """The fault if guesses about a secret can be right more often than the certificate states."""
    rows, kind = certificate["right_guess"], certificate["guarantee"]["kind"]
    sizes = [row["copies"] for row in rows if row["who"] == "user"]
    names = [(row["who"], row["copies"]) for row in rows]
    average = None
    if ("other", 1) in names:
        average = certificate_parts.average_rates(promise, certificate)
    chances = {(w, k): p for w, k, p in promise.right_guesses(sizes, average)}
    if kind == BAYESIAN_KIND:
        # If redaction leaves no secret out, one drawn at random is as any other.
        chances.setdefault(("random", 1), chances["missed", 1])
    elif kind == "dp":
        chances.pop(("random", 1), None)
    if not chances.keys() <= set(names):
        return "certificate: omits right guesses"
    for name, row in zip(names, rows, strict=True):
        if row["at_most"] < chances.get(name, 1.0) * LEAST_NUMBER_RATIO:
            return "certificate: a guess can be right more often than it states"
    return None


def _find_bound_fault(
    certificate: Mapping[str, Any], promise: composed_promise.ComposedPromise, delta: float
) -> str | None:
    """The fault if an epsilon, a delta or a rate is smaller than the noise of the files allows. A
    certificate writes an infinite epsilon as "inf", which ``float`` accepts."""
    guarantee, files_promise = certificate["guarantee"], promise.files_promise
    if files_promise.unit != certificate["unit"]:
        return "certificate: has another unit than the noise"
    missed = promise.missed_bound()[0]
    if float(guarantee["missed"]["epsilon"]) < missed * LEAST_NUMBER_RATIO:
        return "certificate: epsilon is smaller than the noise allows"
    spent_before = certificate["spent_before"]
    if (
        spent_before["gamma"] < files_promise.gamma * LEAST_NUMBER_RATIO
        or spent_before["delta2"] < files_promise.delta2
    ):
        return "certificate: with what was spent before, a rate is smaller than that of the files"
    secret, least_delta = missed, delta
    if guarantee["kind"] == BAYESIAN_KIND:
        secret, least_delta = promise.random_secret_bound()
    if guarantee["secret"]["delta"] < least_delta * LEAST_DELTA_RATIO:
        return "certificate: delta leaves out what was learned without noise"
    if float(guarantee["secret"]["epsilon"]) < secret * LEAST_NUMBER_RATIO:
        return "certificate: the epsilon of a secret at random is smaller than it can be"
    stated_alone = spent_before["alone"]
    if (
        float(stated_alone["epsilon"]) < secret * LEAST_NUMBER_RATIO
        or stated_alone["delta"] < least_delta * LEAST_DELTA_RATIO
    ):
        return "certificate: what it states about this model alone is smaller than it can be"
    return None


def _find_condition_fault(
    certificate: Mapping[str, Any], files_promise: source_fold.FilesPromise
) -> str | None:
    """The fault if the certificate omits a condition of its promise, or what that does not
    cover."""
    declared = (
        *files_promise.declared,
        *evidence.declare_report_counts(certificate.get("evidence")),
    )
    declared_rows = {
        (d["of"], d["value"]): d for d in certificate_parts.declarations_as_json(declared)
    }
    earlier_suffix = certificate_parts.OF_AN_EARLIER_MODEL
    stated = [d for d in certificate["declared"] if not d["of"].endswith(earlier_suffix)]
    if sorted((d["of"], d["value"]) for d in stated) != sorted((d.of, d.value) for d in declared):
        return "certificate: does not name what was declared public"
    for d in stated:
        if d["bits"] < declared_rows[d["of"], d["value"]]["bits"] * LEAST_DELTA_RATIO:
            return "certificate: what was declared public reveals more bits than it states"
    rests_on_labels = "rates" in certificate and _rests_on_labels(certificate)
    label_assumptions = assumptions.assume_of_labels(certificate) if rests_on_labels else []
    needed_assumptions = assumptions.state_assumptions([*files_promise.assumed, *label_assumptions])
    if not {*needed_assumptions} <= {*certificate.get("assumed", ())}:
        return "certificate: does not state what is assumed"
    if not {*certificate_parts.ALWAYS_KNOWN} <= {*certificate.get("treated_as_public", ())}:
        return "certificate: does not state what is treated as public"
    needed = certificate_parts.list_not_promised(certificate["unit"], files_promise)
    if not {*needed} <= {*certificate.get("not_promised", ())}:
        return "certificate: does not state what is not promised"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="folder that was released")
    parser.add_argument("certificate", type=Path, help="its certificate, as JSON")
    parser.add_argument("--key", help="public key of the releaser, 64 hexadecimal digits")
    arguments = parser.parse_args()
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    page, certificate = arguments.certificate.with_suffix(".html"), {}
    try:
        named = str(arguments.certificate)
        with (
            written_as_options({"public": "key"}),
            refuse_whatever_fails(named, "is no certificate", ours=ValueError),
        ):
            certificate = seal.read_signed(arguments.certificate)
            read = files.read_bytes(page) if page.is_file() else None
            fault = find_certificate_fault(arguments.model, certificate, arguments.key)
            fault = fault or find_form_fault(certificate, read)
    except (ValueError, OSError, MachineError) as error:
        fault = str(error)
    unknown = "" if arguments.key else "; no key was compared, so anybody may have signed it"
    missing_page = "" if page.is_file() else f"; there is no page {page.name} to compare"
    confirmation = (
        f"as it was signed, by key {certificate.get('public_key')}{unknown}{missing_page}"
    )
    print(printable(f"refused: {fault}" if fault else confirmation, 4_000))
    return 4 if fault else 0


if __name__ == "__main__":
    sys.exit(main())
