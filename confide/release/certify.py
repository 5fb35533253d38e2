"""Write the certificate of a release, as a page and as JSON, and verify it again.

The promise of the release's files is composed with what was spent before, and sealed.

>>> for path in name_evidence_files(Path("model.html"), "aisvs"):
...     print(path)
model.aisvs.html
model.aisvs.json
>>> summarise_certificate({"verdict": "none", "void_because": []})
'no promise: the method adds no noise'
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jsonschema.exceptions import best_match

from confide.promise_kinds import BAYESIAN_KIND, SECRET_PLAN_KIND
from confide.release import released_folder, seal
from confide.release.certifiable_run import CertifiableRun, read_certifiable_run
from confide.release.certificate_parts import SECRETS_PER_PERSON, collect_certificate_parts
from confide.release.composed_promise import tabulate_privacy_profile
from confide.release.evidence import read_evidence, read_json_object
from confide.release.rate_bounds import (
    find_issued_count,
    recompute_bound,
    with_current_label_counts,
)
from confide.reports import certificate_pages, model_card, standards
from crtlib import files, outputs
from crtlib.arguments import argument_error, option_of
from crtlib.checks import check_choice, check_plain_name, check_whole_number, printable
from crtlib.files import StrPath
from crtlib.foreign_files import refuse_whatever_fails
from crtlib.intervals import at_most
from crtlib.text.identity import hash_text

AUDIENCES = ("officer", "engineer", "both")
DAMAGED_RECORD = "its record is damaged, or of another version of crtlib"


def write_certificate(
    model: StrPath,
    out: StrPath,
    *,
    name: str | None = None,
    audience: str = "both",
    audit: StrPath | None = None,
    report: StrPath | None = None,
    odometer_folder: StrPath | None = None,
    secrets_per_person: Sequence[int] = SECRETS_PER_PERSON,
    require: Sequence[str] = (),
    standard: str | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Certify a model: write the page ``out`` and, under the same name, the JSON.

    Args:
        model: The model's folder, with its record beside it.
        out: The page.
        name: The model's name (:func:`crtlib.checks.check_plain_name`); None: its folder's name.
        audience: Whom the page is for: "officer", "engineer" or "both".
        audit: Evidence to attach: ``audit.json``.
        report: Evidence to attach: the folder of a report.
        odometer_folder: The odometer; None: the one that the record names.
        secrets_per_person: For each of these numbers, the certificate has a row of guesses about a
            person with that many secrets, or about a value that occurs that often.
        require: Limits that the certificate judges (:func:`confide.release.limits.judge_limits`).
        standard: Also write which requirements of this standard the certificate meets
            (:mod:`confide.reports.standards`); None: write no such files.
        force: Replace files that exist.

    Returns:
        The certificate, sealed.

    Raises:
        ValueError: If the run has no record, or the files exist and ``force`` is not set.

    Guarantee:
        Either all files are written or none. They are public (0644, less the umask) if the verdict
        is "holds", else private. Tests: ``tests/release/test_verifier.py::
        test_a_certificate_that_was_stopped_between_its_files_is_made_by_the_same_command``,
        ``tests/release/test_certify.py::test_a_real_run_has_a_certificate_that_the_schema_allows``.
    """
    page = Path(out)
    _check_arguments(page, name=name, audience=audience, secrets_per_person=secrets_per_person)
    release_list = Path(model) / seal.RELEASE_FILE
    output_paths = _list_output_paths(page, standard)
    _check_output_paths(page, output_paths, force=force or _is_half_written(page))
    replaced = (*output_paths, release_list)
    with refuse_whatever_fails(str(model), DAMAGED_RECORD, ours=ValueError):
        trained = read_certifiable_run(model, odometer_folder=odometer_folder, replaced=replaced)
        trained = with_current_label_counts(trained)
        parts = collect_certificate_parts(
            trained,
            name=name,
            secrets_per_person=secrets_per_person,
            evidence=read_evidence(model, trained.record, audit, report, odometer_folder),
            require=require,
        )
        certificate, page_html = _build_signed_certificate(parts, trained, audience, page.name)
    evidence_files = _render_evidence_files(certificate, model, page, standard) if standard else {}
    contents = _order_files(certificate, {page: page_html, **evidence_files}, trained, page)
    modes = {path: mode for path, _, mode in contents}
    with files.replace_together(modes) as temporary_paths:
        for path, text, _ in contents:
            temporary_paths[path].write_text(text, encoding="utf-8")
    return certificate


def _check_arguments(
    page: Path, *, name: str | None, audience: str, secrets_per_person: Sequence[int]
) -> None:
    """Raise ``ValueError`` for an argument that no certificate can have."""
    check_choice(option_of("audience"), audience, AUDIENCES)
    if name is not None:
        check_plain_name("name", name)
    if isinstance(secrets_per_person, int | str):
        shown = printable(secrets_per_person, quoted=True)
        raise ValueError(f"secrets_per_person={shown}: must be a list of whole numbers")
    for number in secrets_per_person:
        check_whole_number("secrets_per_person", number, 1)
    if page.suffix != ".html":
        raise argument_error("out", f"{page} must end in .html; its JSON has the same name")


def _list_output_paths(page: Path, standard: str | None) -> tuple[Path, ...]:
    """The files that make up a certificate: its page, its JSON and those for a standard."""
    evidence_files = name_evidence_files(page, standard) if standard else ()
    return (page, page.with_suffix(".json"), *evidence_files)


def _check_output_paths(page: Path, paths: Iterable[Path], *, force: bool) -> None:
    """Raise ``ValueError`` if one of the files of a certificate may not be written."""
    for path in paths:
        if path.is_symlink():
            raise argument_error("out", f"{path} is a link; name the file itself")
        outputs.check_output_file(path, force=force)
    path = page.with_suffix(".json")
    if path.is_file() and "void_because" not in read_json_object(path):  # such as model.json
        raise argument_error("out", f"{path} exists and is not a certificate; take another name")


def _build_signed_certificate(
    parts: Mapping[str, Any], trained: CertifiableRun, audience: str, page_name: str
) -> tuple[dict[str, Any], str]:
    """The certificate, signed if the odometer has a key, and its page, whose hash it contains."""
    issued = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    certificate = certificate_pages.assemble_certificate(parts, issued=issued)
    if trained.key:
        certificate["public_key"] = trained.key.public_key().public_bytes_raw().hex()
    page_html = _render_certificate(certificate, trained, audience, page_name)
    certificate["page_sha256"] = hash_text(page_html)  # people read the page, not the JSON
    if trained.key:
        certificate = seal.sign_value(certificate, trained.key)
    certificate_pages.certificate_validator().validate(certificate)
    return certificate, page_html


def _order_files(
    certificate: Mapping[str, Any], pages: Mapping[Path, str], trained: CertifiableRun, page: Path
) -> list[tuple[Path, str, int]]:
    """The files to write, each with its text and mode, in the order in which they take their names.
    The JSON is last: once it is there, so are all others. If the page is inside the model's folder,
    the signed list of the release is extended by these files, and comes just before the JSON."""
    promise_holds = certificate["verdict"] == "holds"
    mode = outputs.PUBLIC_FILE_MODE if promise_holds else outputs.PRIVATE_FILE_MODE
    certificate_json = json.dumps(certificate, indent=1, allow_nan=False) + "\n"
    texts = {**pages, page.with_suffix(".json"): certificate_json}
    contents = [(path, text, mode) for path, text in texts.items()]
    folder, release_list = trained.folder, trained.folder / seal.RELEASE_FILE
    if folder.resolve() in page.resolve().parents and trained.key and release_list.is_file():
        listed_files = {path.resolve(): text.encode() for path, text in texts.items()}
        longer_list = released_folder.list_more_files(folder, listed_files, trained.key)
        if longer_list is not None:
            contents.insert(-1, (release_list, longer_list, outputs.PUBLIC_FILE_MODE))
    return contents


def name_evidence_files(page: Path, standard: str) -> tuple[Path, Path]:
    """The paths of the page and the JSON that state what the certificate ``page`` shows about a
    standard."""
    check_choice(option_of("standard"), standard, standards.STANDARDS)
    return page.with_suffix(f".{standard}.html"), page.with_suffix(f".{standard}.json")


def _render_evidence_files(
    certificate: Mapping[str, Any], model: StrPath, page: Path, standard: str
) -> dict[Path, str]:
    """The two files of :func:`name_evidence_files`, rendered from a certificate."""
    evidence_page, evidence_json = name_evidence_files(page, standard)
    evidence = standards.assemble_evidence(certificate, standard)
    arguments = ["crtlib", "certify", Path(model).resolve().name, "--out", page.name]
    command = shlex.join([*arguments, "--evidence", standard])
    return {
        evidence_page: standards.render_evidence_page(evidence, f"{command} --verify"),
        evidence_json: json.dumps(evidence, indent=1, allow_nan=False) + "\n",
    }


def _is_half_written(page: Path) -> bool:
    """Whether only one of a certificate's two files exists, and crtlib wrote it: the command was
    killed before the other took its name, and when repeated it makes both."""
    certificate_json = page.with_suffix(".json")
    if page.is_file() == certificate_json.is_file():
        return False
    if certificate_json.is_file():
        return "void_because" in read_json_object(certificate_json)
    with files.open_regular_file(page) as file:
        start = file.read(1 << 22)
    return any(title in start for title in certificate_pages.PAGE_TITLES)


def _render_certificate(
    certificate: Mapping[str, Any], trained: CertifiableRun, audience: str, name: str
) -> str:
    """The page of this name for an audience; it contains neither its own hash nor the signature."""
    certificate = {k: v for k, v in certificate.items() if k not in ("page_sha256", "signature")}
    promise, profile = trained.promise(), None
    if certificate["verdict"] == "holds" and audience != "officer" and promise.has_noise_bound:
        profile = tabulate_privacy_profile(promise)
    command = shlex.join(["crtlib", "certify", trained.folder.resolve().name, "--out", name])
    return certificate_pages.render_certificate_pages(
        certificate, audience, profile=profile, command=command
    )


def summarise_certificate(certificate: Mapping[str, Any]) -> str:
    """A certificate in one line, for a terminal."""
    if unmet := [row["limit"] for row in certificate.get("limits", ()) if not row["met"]]:
        return f"does not meet your limits: {', '.join(unmet)}; {_verdict_line(certificate)}"
    return (
        f"meets your limits; {_verdict_line(certificate)}"
        if certificate.get("limits")
        else _verdict_line(certificate)
    )


def _verdict_line(certificate: Mapping[str, Any]) -> str:
    if certificate["verdict"] != "holds":
        reasons = " ".join(certificate["void_because"])
        if certificate["verdict"] == "none":
            return f"no promise: {reasons or 'the method adds no noise'}"
        return reasons
    guarantee, earlier_runs = certificate["guarantee"], certificate["spent_before"]["runs"]
    if guarantee["kind"] == SECRET_PLAN_KIND:
        worst = max(row["at_most"] for row in certificate["value_guess"])
        return f"holds; a protected value is guessed with a chance of at most {at_most(worst, 3)}"
    with_earlier = f"; with {earlier_runs} earlier" if earlier_runs else ""
    pairs = [
        f"({x['epsilon']}, {at_most(x['delta'], 3)})"
        for x in (guarantee["secret"], guarantee["missed"])
    ]
    subject = (
        f"a secret at random {pairs[0]}, one passed over"
        if guarantee["kind"] == BAYESIAN_KIND
        else "any one"
    )
    little = _say_promises_little(certificate)
    return f"holds; {little}{subject} {pairs[1]}{with_earlier}; id {certificate['id'][:12]}"


def _say_promises_little(certificate: Mapping[str, Any]) -> str:
    """A warning if delta is above 1/n, as a model that publishes one of n at random would keep such
    a promise. For a promise about any one message or conversation, n is the number of these; for
    any other it is the number of people, with whom the draw of a random secret begins.

    >>> bayesian = {"kind": BAYESIAN_KIND, "secret": {"delta": 0.26}, "missed": {"delta": 1e-5}}
    >>> every = {"kind": "dp", "missed": {"delta": 0.1}}
    >>> text = {"corpus": {"users": 3, "turns": 900}, "unit": "turn"}
    >>> _say_promises_little({"guarantee": bayesian, **text})
    ''
    >>> _say_promises_little({"guarantee": every, **text})
    'promises little, as delta is above one in 900 messages; '
    >>> phases = {"phases": [{"kind": "private", "points": 40}]}
    >>> talks = {"unit": "dialogue", "corpus": {"users": 3}, "mechanism": phases}
    >>> _say_promises_little({"guarantee": every, **talks})
    'promises little, as delta is above one in 40 conversations; '
    """
    guarantee, text, unit = certificate["guarantee"], certificate["corpus"], certificate["unit"]
    is_bayesian = guarantee["kind"] == BAYESIAN_KIND
    count, noun = text.get("users"), "people"
    if not is_bayesian and unit == "turn":
        count, noun = text.get("turns"), "messages"
    elif not is_bayesian and unit == "dialogue":
        private = [row for row in certificate["mechanism"]["phases"] if row["kind"] == "private"]
        count, noun = max((row["points"] for row in private), default=0), "conversations"
    delta = float(guarantee["secret" if is_bayesian else "missed"]["delta"])
    if not count or delta <= 1 / count:
        return ""
    return f"promises little, as delta is above one in {count:,} {noun}; "


def compare_certificate_with_run(
    model: StrPath,
    out: StrPath,
    *,
    odometer_folder: StrPath | None = None,
    standard: str | None = None,
) -> tuple[str | None, dict[str, Any]]:
    """Compare a certificate with what its run yields when it is certified again.

    Args:
        model: The model's folder, with its record beside it.
        out: The page of the certificate; its JSON has the same name.
        odometer_folder: The odometer; None: the one that the record names.
        standard: Also compare the files for this standard; None: no such files.

    Returns:
        The first difference (None: there is none), and the certificate. The comparison covers the
        schema, the id, the bounds of the rates, the model's hash, every number from the ledger, and
        the page.

    Raises:
        ValueError: If there is nothing to verify.

    Guarantee:
        Any change to a number, the model or the page is reported. Tests:
        ``tests/release/test_certify.py::test_a_changed_number_is_noticed``,
        ``tests/release/test_certify.py::test_another_model_and_a_changed_page_are_noticed``.
    """
    page = Path(out).with_suffix(".html")
    if standard:
        name_evidence_files(page, standard)  # refuses an unknown standard
    certificate = read_json_object(page.with_suffix(".json"))
    if "id" not in certificate or "verdict" not in certificate:
        raise ValueError(f"{page.with_suffix('.json')}: is no certificate")
    with refuse_whatever_fails(str(model), DAMAGED_RECORD, ours=ValueError):
        difference = next(_certificate_differences(certificate, model, odometer_folder, page), None)
        if standard and not difference:
            for path, text in _render_evidence_files(certificate, model, page, standard).items():
                if not path.is_file() or files.read_bytes(path) != text.encode():
                    return f"{path}: differs from what the certificate shows", certificate
        return difference, certificate


def _certificate_differences(
    certificate: dict[str, Any],
    model: StrPath,
    odometer_folder: StrPath | None,
    page: Path,
) -> Iterator[str]:
    if error := best_match(certificate_pages.certificate_validator().iter_errors(certificate)):
        yield f"{error.json_path}: is not what the schema allows"
    if certificate_pages.hash_certificate(certificate) != certificate["id"]:
        yield "id: is not that of this content; it was changed"
    trained = read_certifiable_run(model, odometer_folder=odometer_folder)
    try:
        if trained.key:
            seal.check_signature(
                certificate, "signature", trained.key.public_key().public_bytes_raw().hex()
            )
    except ValueError as error:
        yield str(error)
    issued = certificate["labels"] or find_issued_count(trained, certificate["rates"])
    trained = with_current_label_counts(trained, issued)
    for name, rate in certificate["rates"].items():
        if name != "by_kind" and recompute_bound(rate, certificate["labels"]) != rate["upper"]:
            yield f"rates.{name}.upper: does not follow from its counts"
    weights = Path(model) / "model.safetensors"
    if weights.is_file() and outputs.hash_file(weights) != certificate["model"]["sha256"]:
        yield "model.sha256: is the hash of another model"
    guesses = certificate["right_guess"]
    recomputed_parts = collect_certificate_parts(
        trained,
        name=certificate["model"]["name"],
        secrets_per_person=[row["copies"] for row in guesses if row["who"] == "user"],
        evidence=certificate.get("evidence"),
        require=[row["limit"] for row in certificate.get("limits", ())],
    )
    stated = {name: part for name, part in certificate.items() if name in recomputed_parts}
    recomputed = json.loads(json.dumps(recomputed_parts))
    if stated != recomputed:
        old, new = (dict(model_card.flatten_fields(parts)) for parts in (stated, recomputed))
        changed = (path for path in old | new if old.get(path) != new.get(path))
        yield f"{next(changed, 'a part')}: differs when it is recomputed"
    text = files.read_bytes(page) if page.is_file() else b""
    if not any(
        _render_certificate(certificate, trained, a, page.name).encode() == text for a in AUDIENCES
    ):
        yield f"{page}: the page differs from its certificate"
