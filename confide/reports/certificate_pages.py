"""The certificate: one JSON value, and two pages that a person reads, made from it alone.

:func:`assemble_certificate` joins the parts and gives them an id. :func:`render_certificate_pages`
makes two pages of them: one sheet in plain words for an officer, each sentence printed if and only
if it is true (:mod:`confide.reports.sentences`), and one with every field for an engineer.
``schema/certificate.schema.json``, a file of this package, says what the parts are.

>>> read_certificate_schema()["$id"]
'crtlib:certificate:1'
>>> sealed = assemble_certificate({"verdict": "none"}, issued="2026-01-01T00:00:00Z")
>>> sealed["id"] == hash_certificate(sealed | {"issued": "2030-01-01T00:00:00Z"})
True
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import jsonschema

from confide.reports.html import render_template
from confide.reports.model_card import flatten_fields
from confide.reports.sentences import Certificate, select_sentences
from confide.reports.small_groups import LEAST_PEOPLE, SMALL_GROUPS_NOTE
from crtlib.text.package_data import read_package_file

CERTIFICATE_FORMAT = "crtlib/certificate/1"
UNSEALED_FIELDS = ("id", "issued", "public_key", "signature", "page_sha256")
PAGE_TITLES = (b"<title>What this model may give away", b"<title>Certificate, every part")
"""Titles by which one of our pages is recognized, even if a certificate is only half written."""
SENTENCES_BESIDE = {
    "right_guess": (
        "random_secret", "secret_of_unread_people", "missed_secret", "learned_without_noise",
        "several_secrets",
    ),
    "value_guess": ("guessed_value",),
    "labels": ("labels_drawn_at_random", "labels_given"),
    "spent_before": (
        "shares_of_earlier_searches", "earlier_runs", "runs_on_other_text", "no_earlier_run",
        "unprotected_runs", "struck_runs", "forgotten_texts",
    ),
    "model": ("base_model",),
}  # fmt: skip
"""The officer's sentences that state the conditions of a part's numbers. An engineer's page without
the officer's shows them beside the part."""


# --------------------------------------------------------------------------- the value
def read_certificate_schema() -> dict[str, Any]:
    """The JSON schema of a certificate."""
    folder = resources.files("confide.reports") / "schema"
    return dict(json.loads(read_package_file("certificate.schema.json", folder)))


@cache
def certificate_validator() -> jsonschema.protocols.Validator:
    """The validator for a certificate's schema."""
    return jsonschema.Draft202012Validator(read_certificate_schema())


def hash_certificate(value: Certificate) -> str:
    """SHA-256 of the canonical JSON without ``UNSEALED_FIELDS``, so equal runs have equal ids. It
    detects changes; only the signature shows who issued the certificate."""
    sealed = {k: v for k, v in value.items() if k not in UNSEALED_FIELDS}
    text = json.dumps(sealed, sort_keys=True, separators=(",", ":"), ensure_ascii=False,
                      allow_nan=False)  # fmt: skip
    return hashlib.sha256(text.encode()).hexdigest()


def assemble_certificate(parts: Mapping[str, Any], *, issued: str) -> dict[str, Any]:
    """The sealed value: ``parts`` with their schema, the time of issue (ISO 8601) and the id.

    Raises ``ValueError`` for a number that is not finite: infinite is written "inf".
    """
    value = {**parts, "schema": CERTIFICATE_FORMAT, "issued": issued}
    try:
        return value | {"id": hash_certificate(value)}
    except ValueError:
        raise ValueError('certificate: a number is not finite; infinite is written "inf"') from None


# --------------------------------------------------------------------------- the pages
def render_certificate_pages(
    value: Certificate,
    audience: str = "both",
    *,
    profile: Mapping[str, Any] | None = None,
    command: str = "",
) -> str:
    """One page with the officer's sheet, the engineer's, or both, one after the other.

    The officer's sheet is one sheet of A4 in plain words, with every number from the JSON. The
    engineer's has every field in tables, rates by kind, trade-off curves and hashes; if it is the
    only one, its numbers come with the sentences that say whom they are about and under what
    conditions. ``profile`` holds what the ledger yields beyond the one delta: ``delta_at`` and
    ``epsilon_at``, rows of numbers with the same columns (``epsilon`` or ``delta``, and one for
    each neighbouring relation), and ``curves``, the trade-off curves of ``secret`` and ``missed``
    (f-DP; Dong, Roth and Su 2022), from
    :func:`crtlib.accounting.guess_bounds.tradeoff_curve`. ``command`` is the command line that
    repeats the certificate.
    """
    sentences = select_sentences(value)
    sentences_beside = {
        part: [text for name in names for text in sentences.get(name, ())]
        for part, names in SENTENCES_BESIDE.items()
        if audience == "engineer"
    }
    cluster = (value.get("labels") or {}).get("cluster", "user")
    noun = "people" if cluster == "user" else "conversations"
    small, void = sentences.pop("not_promised"), sentences.pop("no_promise", [])
    return render_template(
        "certificate.html.j2", audience=audience, c=value, void=void, small=small,
        paragraphs=[text for texts in sentences.values() for text in texts], fields=flatten_fields,
        profile=profile or {}, command=command, beside=sentences_beside,
        small_groups=SMALL_GROUPS_NOTE.format(LEAST_PEOPLE, noun),
    )  # fmt: skip
