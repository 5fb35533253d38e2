"""The certificate: one JSON value, and two pages that a person reads, made from it alone.

:func:`certificate` seals the parts; :func:`officer` is one sheet of plain words, each sentence
printed if and only if it is true (:mod:`crtlib.reports.sentences`); :func:`engineer` has every
field. What the parts are says ``schema/certificate.schema.json``, a file of this package.

>>> schema()["$id"]
'crtlib:certificate:1'
>>> sealed = certificate({"verdict": "none"}, issued="2026-01-01T00:00:00Z")
>>> sealed["id"] == identity(sealed | {"issued": "2030-01-01T00:00:00Z"})
True
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

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
TITLES = {
    "guarantee": "Guarantee",
    "right_guess": "Right guesses",
    "value_guess": "Guesses of a value",
    "mechanism": "Mechanism",
    "rates": "Rates",
    "labels": "Labels",
    "policies": "Policies",
    "treated_as_public": "Treated as public",
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


def identity(value: Certificate) -> str:
    """SHA-256 of the canonical JSON without ``id`` and ``issued``: equal runs, equal ids. It
    detects change; it is no signature."""
    kept = {k: v for k, v in value.items() if k not in ("id", "issued")}
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
def officer(value: Certificate) -> str:
    """The officer's page: plain words, one sheet of A4, every number from the JSON."""
    said = sentences(value)
    small = [text for name in ("O14",) for text in said.pop(name)]
    void = said.pop("O0", [])
    paragraphs = [text for texts in said.values() for text in texts]
    return page("officer.html.j2", name=value["model"]["name"], void=void, paragraphs=paragraphs,
                small=small)  # fmt: skip


def engineer(
    value: Certificate,
    *,
    profile: Mapping[str, Sequence[Mapping[str, float]]] | None = None,
    command: str = "",
) -> str:
    """The engineer's page: every field in tables, rates by kind, trade-off curves, hashes.

    ``profile`` holds what the ledger says beyond the one delta: ``delta_at`` and ``epsilon_at``,
    rows of numbers with equal columns (``epsilon`` or ``delta``, and one column a neighbouring
    relation). ``command`` is the line that repeats the certificate.
    """
    sections = [
        {"title": title, "value": value[name], "fields": fields(value[name])}
        for name, title in TITLES.items()
        if value.get(name) not in (None, [], {})
    ]
    return page(
        "engineer.html.j2", c=value, sections=sections, phases=value["mechanism"]["phases"],
        rates=list(_rates(value)), profile=profile or {}, chart=trade_off(value), command=command,
        promised=holds(value), error_charged=ERROR_CHARGED, floating_point=FLOATING_POINT,
    )  # fmt: skip


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
    rows = [{"kind": "all", "what": name, **rates[name]} for name in ("miss", "trace", "public")]
    for kind, some in (rates.get("by_kind") or {}).items():
        rows += [{"kind": kind, "what": name, **row} for name, row in some.items()]
    return rows


def trade_off(value: Certificate) -> Chart:
    """Trade-off curves: the least share of misses that any test of "was it there?" has at each
    share of false alarms, for a secret that was found, missed, or drawn at random.

    From the (epsilon, delta) of the certificate (Wasserman and Zhou 2010; Dong, Roth and Su 2022,
    Proposition 2.5): f(a) = max(0, 1 - delta - e^epsilon a, e^-epsilon (1 - delta - a)).
    """
    title = "Trade-off: false alarms against misses"
    if not holds(value) or value["guarantee"]["secret"]["epsilon"] == "inf":
        return Chart(title, empty="There is no bound to draw.")
    lines, grid = [], [i / 80 for i in range(81)]
    for style, name in (("line", "secret"), ("second", "missed")):
        promise = value["guarantee"][name]
        points = [(a, least_misses(a, promise["epsilon"], promise["delta"])) for a in grid]
        lines.append((style, charts.points(points)))
    lines.append(("third", charts.points([(0, 1), (1, 0)])))
    shares = [(i / 4, f"{25 * i} %") for i in range(5)]
    kind = value["guarantee"]["kind"]
    key = [("line", "drawn at random"), ("line second", "missed by the search"),
           ("line third", "found")] if kind != "dp" else [("line", "any one")]  # fmt: skip
    return Chart(
        title, "false alarms", note="the least share of misses that any attack can have",
        alt="the nearer a curve is to the diagonal, the less can be told",
        levels=[(charts.y(at), text) for at, text in shares],
        ticks=[(charts.x(min(max(at, 0.03), 0.95)), text) for at, text in shares],
        lines=lines[::2] if kind == "dp" else lines, key=key,
    )  # fmt: skip


def least_misses(false_alarms: float, epsilon: float, delta: float) -> float:
    """The trade-off function of (epsilon, delta) at a share of false alarms.

    >>> least_misses(0.25, 0.0, 0.0), round(least_misses(0.0, 1.0, 0.1), 3)
    (0.75, 0.9)
    """
    growth = math.exp(epsilon)
    rest = 1 - delta
    return max(0.0, rest - growth * false_alarms, (rest - false_alarms) / growth)
