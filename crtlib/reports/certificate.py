"""The certificate: one JSON value, and two pages that a person reads, made from it alone.

:func:`certificate` seals the parts; on :func:`pages` the officer's is one sheet of plain words,
each sentence printed if and only if it is true (:mod:`crtlib.reports.sentences`); the engineer's
has every field. What the parts are says ``schema/certificate.schema.json``, a file of this package.

>>> schema()["$id"]
'crtlib:certificate:1'
>>> sealed = certificate({"verdict": "none"}, issued="2026-01-01T00:00:00Z")
>>> sealed["id"] == identity(sealed | {"issued": "2030-01-01T00:00:00Z"})
True
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import jsonschema

from crtlib.reports import charts
from crtlib.reports.charts import Chart
from crtlib.reports.pages import page
from crtlib.reports.sentences import Certificate, holds, sentences

SCHEMA = "crtlib/certificate/1"
FLOATING_POINT = (
    "Noise is drawn in floating point. The proofs hold for real numbers; attacks on the gaps "
    "between floating-point numbers are outside of them."
)
ERROR_CHARGED = (
    "What the accountant's own numerical error was bounded by; it is part of the epsilon above."
)
UNSEALED = ("id", "issued", "public_key", "signature")
TITLES = {
    "guarantee": "Guarantee",
    "right_guess": "Right guesses",
    "value_guess": "Guesses of a value",
    "mechanism": "Mechanism",
    "labels": "Labels",
    "policies": "Policies",
    "treated_as_public": "Treated as public",
    "limits": "Limits",
    "declared": "Declared public",
    "assumed": "Assumed",
    "not_promised": "Not promised",
    "searched": "Searched",
    "canaries": "Canaries",
    "spent_before": "Spent before",
    "evidence": "Evidence",
    "model": "Model",
    "corpus": "Corpus",
    "method": "Method",
    "software": "Software",
}
"""The parts of a certificate in the order of the engineer's page."""


# --------------------------------------------------------------------------- the value
def schema() -> dict[str, Any]:
    """The JSON schema of a certificate."""
    file = resources.files("crtlib.reports") / "schema" / "certificate.schema.json"
    return dict(json.loads(file.read_text(encoding="utf-8")))


@cache
def validator() -> jsonschema.protocols.Validator:
    """What checks a certificate against the schema."""
    return jsonschema.Draft202012Validator(schema())


def identity(value: Certificate) -> str:
    """SHA-256 of the canonical JSON without ``id`` and ``issued``: equal runs, equal ids. It
    detects change; the signature is by whom."""
    kept = {k: v for k, v in value.items() if k not in UNSEALED}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False,
                      allow_nan=False)  # fmt: skip
    return hashlib.sha256(text.encode()).hexdigest()


def certificate(parts: Mapping[str, Any], *, issued: str) -> dict[str, Any]:
    """The sealed value: ``parts`` with their schema, the time of issue (ISO 8601) and the id.

    Raises ``ValueError`` for a number that is not finite: infinite is written "inf".
    """
    value = {**parts, "schema": SCHEMA, "issued": issued}
    try:
        return value | {"id": identity(value)}
    except ValueError:
        raise ValueError('certificate: a number is not finite; infinite is written "inf"') from None


# --------------------------------------------------------------------------- the pages
def pages(
    value: Certificate,
    audience: str = "both",
    *,
    profile: Mapping[str, Any] | None = None,
    command: str = "",
) -> str:
    """One page with the officer's sheet, the engineer's, or both, one after the other.

    The officer's is plain words, one sheet of A4, every number from the JSON. The engineer's has
    every field in tables, rates by kind, trade-off curves, hashes. ``profile`` holds what the
    ledger says beyond the one delta: ``delta_at`` and ``epsilon_at``, rows of numbers with equal
    columns (``epsilon`` or ``delta``, and one column a neighbouring relation), and ``curves``, for
    :func:`trade_off`. ``command`` is the line that repeats the certificate.
    """
    said = sentences(value)
    small = said.pop("O14")
    void = said.pop("O0", [])
    sections = [
        {"title": title, "value": value[name], "fields": fields(value[name])}
        for name, title in TITLES.items()
        if value.get(name) not in (None, [], {})
    ]
    rows = {name: rows for name, rows in (profile or {}).items() if name != "curves"}
    return page(
        "certificate.html.j2", audience=audience, name=value["model"]["name"], void=void,
        paragraphs=[text for texts in said.values() for text in texts], small=small,
        c=value, sections=sections, phases=value["mechanism"]["phases"],
        rates=list(_rates(value)), profile=rows, command=command, promised=holds(value),
        chart=trade_off(value, (profile or {}).get("curves", {})),
        error_charged=ERROR_CHARGED, floating_point=FLOATING_POINT,
    )  # fmt: skip


def officer(value: Certificate) -> str:
    """The officer's page."""
    return pages(value, "officer")


def engineer(
    value: Certificate, *, profile: Mapping[str, Any] | None = None, command: str = ""
) -> str:
    """The engineer's page."""
    return pages(value, "engineer", profile=profile, command=command)


def fields(value: Any, path: str = "") -> Sequence[tuple[str, str]]:
    """Every field of a JSON value: (dotted path, text).

    >>> fields({"a": {"b": [1, "x"]}, "c": None})
    [('a.b.1', '1'), ('a.b.2', 'x'), ('c', '–')]
    """
    if isinstance(value, Mapping):
        parts = [fields(v, f"{path}.{k}" if path else str(k)) for k, v in value.items()]
    elif isinstance(value, list):
        parts = [fields(v, f"{path}.{i}" if path else str(i)) for i, v in enumerate(value, 1)]
    else:
        known = {None: "–", True: "yes", False: "no"}
        text = known[value] if value is None or isinstance(value, bool) else (
            f"{value:,}" if isinstance(value, int) else str(value))  # fmt: skip
        return [(path, text)]
    return [field for part in parts for field in part]


def _rates(value: Certificate) -> Sequence[dict[str, Any]]:
    rates = value["rates"]
    groups = {"all": {n: rates[n] for n in ("miss", "trace", "public")}}
    rows = []
    for kind, some in (groups | (rates.get("by_kind") or {})).items():
        for name, row in some.items():
            every = " of ".join(f"{n:,}" for n in row.get("all") or ())
            rows.append({"kind": kind, "what": name, **row, "all": every or None})
    return rows


def trade_off(value: Certificate, curves: Mapping[str, Sequence[tuple[float, float]]]) -> Chart:
    """Trade-off curves (f-DP; Dong, Roth and Su 2022): the least share of misses that any test of
    "was it there?" has at each share of false alarms, for a secret that was found, missed, or
    drawn at random.

    ``curves`` are places of ``secret`` and ``missed``, from
    :func:`crtlib.accounting.statements.tradeoff`.
    """
    title = "Trade-off: false alarms against misses"
    if not holds(value) or not curves:
        return Chart(title, empty="There is no bound to draw.")
    dp = value["guarantee"]["kind"] == "dp"
    names = {"secret": ("line", "drawn at random"), "missed": ("second", "missed by the search")}
    if dp:
        names = {"missed": ("line", "any one")}
    lines = [(style, charts.points(curves[name])) for name, (style, _) in names.items()]
    lines.append(("third", charts.points([(0, 1), (1, 0)])))
    key = [(f"line {style}".removesuffix(" line"), text) for style, text in names.values()]
    shares = [(i / 4, f"{25 * i} %") for i in range(5)]
    return Chart(
        title, "false alarms", note="the least share of misses that any attack can have",
        alt="the nearer a curve is to the diagonal, the less can be told",
        levels=[(charts.y(at), text) for at, text in shares],
        ticks=[(charts.x(min(max(at, 0.03), 0.95)), text) for at, text in shares],
        lines=lines, key=[*key, ("line third", "a coin")],
    )  # fmt: skip
