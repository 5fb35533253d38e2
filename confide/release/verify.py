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
from crtlib.checks import MachineError, printable
from crtlib.foreign_files import refuse_whatever_fails

LEAST_NUMBER_RATIO = 1 - 1e-6
"""How much smaller than the recomputed number a number may be, as processors round differently."""
LEAST_DELTA_RATIO = 0.99
"""The same for a number that depends on delta, since the certificate's delta is rounded up."""
WEIGHT_FILES = ("model.safetensors", "adapter_model.safetensors")


def find_fault_of_sheet(value: Mapping[str, Any], page: bytes | None) -> str | None:
    """What is wrong with the form of a certificate, or with the ``page`` that people read, if it is
    given; None: nothing.

    Guarantee:
        An edited page is detected, and so is a number that no certificate can have. Test:
        ``tests/release/test_verifier.py``.
    """
    error = best_match(certificate_pages.certificate_validator().iter_errors(value))
    if error:
        return f"certificate: {error.json_path} is not what the schema allows"
    if value["model"]["trained_parameters"] > value["model"]["parameters"]:
        return "certificate: more parameters were trained than there are"
    rows = [row for name, row in value["rates"].items() if name != "by_kind"]
    counted = any(row["how"] == "one_per_cluster" for row in rows)
    if counted and _rests_on_labels(value) and value["labels"] is None:
        return "certificate: does not name the labels of its rates"
    if wrong := _find_rate_fault(value.get("rates", {}), value.get("labels")):
        return wrong
    if page is not None and hashlib.sha256(page).hexdigest() != value.get("page_sha256"):
        return "the page beside the certificate is not the one that was signed with it"
    return None


def _rests_on_labels(value: Mapping[str, Any]) -> bool:
    """Whether the promise is about a secret drawn at random, and so rests on labels."""
    return bool(value["guarantee"]["kind"] == composed_promise.BAYESIAN_KIND)


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
            where = f"certificate: the {name} rate{kind and f' of kind {kind}'}"
            count, of = row["count"], row["of"]
            failing, secrets = row.get("all") or (count, of)
            if not (count <= of <= secrets <= labelled and count <= failing <= secrets):
                return f"{where} counts more than there are"
            if row["rate"] != (count / of if of else None):
                return f"{where} does not follow from its counts"
            if row["upper"] < recompute_bound(row, labels) * LEAST_NUMBER_RATIO:
                return f"{where} has a bound that is too small for its counts"
    return None


def find_certificate_fault(
    model: Path, value: Mapping[str, Any], public: str | None = None
) -> str | None:
    """Find the first fault in a certificate of the folder ``model``.

    Args:
        model: The folder as it was received.
        value: The certificate.
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
        return "--key: must be 64 hexadecimal digits"
    try:
        seal.check_signature(value, "certificate", public)
        released = released_folder.read_release(model)
    except ValueError as error:
        return str(error)
    key = value["public_key"]
    if released.key != key:
        return "release.json: was signed with another key than the certificate"
    if certificate_pages.hash_certificate(value) != value["id"]:
        return "certificate: its id is not the hash of its content"
    if released.altered:
        return f"{released.altered[0]}: is not what was released"
    weights = {sha for name, sha in released.hashes.items() if name in WEIGHT_FILES}
    if value["model"]["sha256"] not in weights:
        return "certificate: is of another model"
    if value["verdict"] != "holds":
        return "certificate: the model carries no promise"
    told = value.get("limits", [])
    if limits.judge_limits(value, [row["limit"] for row in told]) != told:
        return "limits: do not follow from what is certified"
    own = source_fold.combine_sources(released.sources)
    if own.void or own.kind == "none":
        return f"release.json: {own.void[0] if own.void else 'nothing protects the text'}"
    mechanism = value["mechanism"]
    return _find_number_fault(value, own) or _find_mechanism_fault(mechanism, released.sources, own)


def _find_mechanism_fault(
    mechanism: Mapping[str, Any],
    sources: Iterable[file_sources.FileSource],
    own: source_fold.FilesPromise,
) -> str | None:
    """The fault if the private steps in a certificate are not those of any training among the
    files' sources. A plan's steps are not compared: they differ from point to point."""
    if own.plan:
        return None
    noised = [s for s in sources if isinstance(s, file_sources.NoisedSource)]
    told = {
        (row["noise_multiplier"], row["sampling_probability"]): row["steps"]
        for row in mechanism["phases"]
        if row["kind"] == "private"
    }
    if any(told == count_private_steps(source.events) for source in noised):
        return None
    return "certificate: its private steps are not those of the files"


def _find_number_fault(value: Mapping[str, Any], own: source_fold.FilesPromise) -> str | None:
    """The fault if the certificate promises more than follows from the files alone. It writes an
    infinite epsilon as "inf", which ``float`` accepts."""
    given = value["guarantee"]
    kinds: list[str] = [own.kind]  # or what earlier runs leave of it
    kinds += [composed_promise.BAYESIAN_KIND] if own.kind == "dp" else []
    kinds += ["dp"] if own.kind == composed_promise.BAYESIAN_KIND and not own.delta2 else []
    if given["kind"] not in kinds or given["relation"] != own.neighbouring_relation:
        return "certificate: promises something of another kind than the files can keep"
    if given.get("plan") != (own.plan and own.plan.plan):
        return "certificate: its plan is not that of the files"
    if own.kind == composed_promise.BAYESIAN_KIND and own.gamma < 1 and "rates" in value:
        for name, least in (("trace", own.gamma), ("public", own.delta2)):
            if value["rates"][name]["upper"] < least * LEAST_NUMBER_RATIO:
                return f"certificate: the {name} rate is smaller than that of the files"
    if wrong := _find_condition_fault(value, own):
        return wrong
    delta = float(given["missed"]["delta"])
    if not 0 <= delta <= 1:
        return "certificate: its delta is not a probability"
    promise = composed_promise.compose_promise(own, None, delta=delta)
    guesses = promise.value_guesses()
    for row, (prior, chance) in zip(value["value_guess"], guesses, strict=False):
        if row["prior"] != prior or row["at_most"] < chance * (
            LEAST_NUMBER_RATIO if own.plan else LEAST_DELTA_RATIO
        ):
            return "certificate: a value can be guessed more often than it states"
    if len(value["value_guess"]) != len(guesses):
        return "certificate: omits promises about values"
    rows = value["right_guess"]
    sizes = [row["copies"] for row in rows if row["who"] == "user"]
    names = [(row["who"], row["copies"]) for row in rows]
    average = certificate_parts.average_rates(promise, value) if ("other", 1) in names else None
    chances = {(w, k): p for w, k, p in promise.right_guesses(sizes, average)}
    if (
        bayes := given["kind"] == composed_promise.BAYESIAN_KIND
    ):  # if redaction leaves no secret out, it is as any other
        chances.setdefault(("random", 1), chances["missed", 1])
    elif given["kind"] == "dp":
        chances.pop(("random", 1), None)
    if not chances.keys() <= set(names):
        return "certificate: omits right guesses"
    if any(
        row["at_most"] < chances.get(name, 1.0) * LEAST_NUMBER_RATIO
        for name, row in zip(names, rows, strict=True)
    ):
        return "certificate: a guess can be right more often than it states"
    if own.plan:
        return None
    if own.unit != value["unit"]:
        return "certificate: has another unit than the noise"
    missed = promise.missed_bound()[0]
    if float(given["missed"]["epsilon"]) < missed * LEAST_NUMBER_RATIO:
        return "certificate: epsilon is smaller than the noise allows"
    before = value["spent_before"]
    if before["gamma"] < own.gamma * LEAST_NUMBER_RATIO or before["delta2"] < own.delta2:
        return "certificate: with what was spent before, a rate is smaller than that of the files"
    alone = before["alone"]
    secret, least = promise.random_secret_bound() if bayes else (missed, delta)
    if given["secret"]["delta"] < least * LEAST_DELTA_RATIO:
        return "certificate: delta leaves out what was learned without noise"
    if float(given["secret"]["epsilon"]) < secret * LEAST_NUMBER_RATIO:
        return "certificate: the epsilon of a secret at random is smaller than it can be"
    if (
        float(alone["epsilon"]) < secret * LEAST_NUMBER_RATIO
        or alone["delta"] < least * LEAST_DELTA_RATIO
    ):
        return "certificate: what it states about this model alone is smaller than it can be"
    return None


def _find_condition_fault(value: Mapping[str, Any], own: source_fold.FilesPromise) -> str | None:
    """The fault if the certificate omits a condition of its promise, or what that does not
    cover."""
    declared = (*own.declared, *evidence.declare_report_counts(value.get("evidence")))
    named = {(d["of"], d["value"]): d for d in certificate_parts.declarations_as_json(declared)}
    earlier = certificate_parts.OF_AN_EARLIER_MODEL
    told = [d for d in value["declared"] if not d["of"].endswith(earlier)]
    if sorted((d["of"], d["value"]) for d in told) != sorted((d.of, d.value) for d in declared):
        return "certificate: does not name what was declared public"
    if any(d["bits"] < named[d["of"], d["value"]]["bits"] * LEAST_DELTA_RATIO for d in told):
        return "certificate: what was declared public reveals more bits than it states"
    rests_on_labels = "rates" in value and _rests_on_labels(value)
    of_labels = assumptions.assume_of_labels(value) if rests_on_labels else []
    needed_assumptions = assumptions.state_assumptions([*own.assumed, *of_labels])
    if not {*needed_assumptions} <= {*value.get("assumed", ())}:
        return "certificate: does not state what is assumed"
    if not {*certificate_parts.ALWAYS_KNOWN} <= {*value.get("treated_as_public", ())}:
        return "certificate: does not state what is treated as public"
    needed = certificate_parts.list_not_promised(value["unit"], own)
    if not {*needed} <= {*value.get("not_promised", ())}:
        return "certificate: does not state what is not promised"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="folder that was released")
    parser.add_argument("certificate", type=Path, help="its certificate, as JSON")
    parser.add_argument("--key", help="public key of the releaser, 64 hexadecimal digits")
    given = parser.parse_args()
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    page, value = given.certificate.with_suffix(".html"), {}
    try:
        with refuse_whatever_fails(str(given.certificate), "is no certificate", ours=ValueError):
            value = seal.read_signed(given.certificate)
            read = files.read_bytes(page) if page.is_file() else None
            wrong = find_certificate_fault(given.model, value, given.key)
            wrong = wrong or find_fault_of_sheet(value, read)
    except (ValueError, OSError, MachineError) as error:
        wrong = str(error)
    unknown = "" if given.key else "; no key was compared, so anybody may have signed it"
    beside = "" if page.is_file() else f"; there is no page {page.name} to compare"
    same = f"as it was signed, by key {value.get('public_key')}{unknown}{beside}"
    print(printable(f"refused: {wrong}" if wrong else same, 4_000))
    return 4 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
