"""Pages for people, made from values: certificates, their sentences, and model cards.

Pages from templates: every value is escaped, style and script are inside, no network is asked.

>>> page("base.html.j2").count("<style>")
1
>>> str(as_json({"text": "</script>"}))
'{"text":"\\\\u003c/script>"}'
>>> str(bold("**<b>** ends"))
'<strong>&lt;b&gt;</strong> ends'

What a certificate says in plain words: each sentence with the condition under which it is true.

They stand in ``templates/sentences.toml``. A sentence is printed if and only if its condition
holds, and every number is rounded up: a reader may be told a promise that is weaker than the true
one, never a stronger.

>>> times(0.50999), times(0.009181), times(1.0)
('51.0', '0.919', '100')
>>> counts(21.086), counts(1.201)
('22', '1.21')

The certificate: one JSON value, and two pages that a person reads, made from it alone.

:func:`certificate` seals the parts; on :func:`pages` the officer's is one sheet of plain words,
each sentence printed if and only if it is true (:mod:`confide.reports.pages`); the engineer's
has every field. What the parts are says ``schema/certificate.schema.json``, a file of this package.

>>> schema()["$id"]
'crtlib:certificate:1'
>>> sealed = certificate({"verdict": "none"}, issued="2026-01-01T00:00:00Z")
>>> sealed["id"] == identity(sealed | {"issued": "2030-01-01T00:00:00Z"})
True

The model card: README.md of a released folder, as transformers and the hub read it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cache, partial
from importlib import resources
from typing import Any

import jinja2
import jsonschema
from markupsafe import Markup, escape

from crtlib.accounting.guarantees import MissRate
from crtlib.accounting.ledger import describe_relation
from crtlib.intervals import at_most, exactly, upwards


def bold(text: str) -> Markup:
    """A plain sentence as HTML: two stars around what is bold, back quotes around code."""
    html = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", str(escape(text)))
    return Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", html))


def number(value: Any) -> str:
    """A number as a table shows it; a dash for none."""
    if value is None or isinstance(value, jinja2.Undefined):
        return "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def bound(value: Any) -> str:
    """A number that must not be told too small, rounded up to four figures; a dash for none."""
    if not isinstance(value, float) or math.isinf(value):
        return number(value)
    up = upwards(value, 4).normalize()
    return f"{up:f}" if not up or up >= Decimal("1e-4") else f"{up:.3e}"


def words(name: str) -> str:
    """A field's name as a heading."""
    return name.replace("_", " ")


def cell(value: Any) -> str:
    """A value in Markdown, as text: it ends no cell and no row, is no link and no HTML."""
    return " ".join(re.sub(r"[\\`*\[\]<>&|\"]", r"\\\g<0>", str(value)).split())


def yaml(text: str) -> str:
    """A text as a YAML scalar that cannot be taken for anything else (JSON is YAML)."""
    return json.dumps(text, ensure_ascii=False)


_PAGES = jinja2.Environment(
    loader=jinja2.PackageLoader("confide.reports"), trim_blocks=True, lstrip_blocks=True,
    autoescape=jinja2.select_autoescape(["html.j2"], disabled_extensions=["md.j2"], default=True),
    keep_trailing_newline=True,
)  # fmt: skip
_PAGES.filters |= {"bold": bold, "number": number, "bound": bound, "words": words, "cell": cell,
                   "yaml": yaml, "percent": lambda share: f"{100 * share:.1f} %"}  # fmt: skip


def page(template: str, **values: Any) -> str:
    """A template of this room with its values; in HTML each of them is escaped."""
    return _PAGES.get_template(template).render(**values)


def as_json(value: Any) -> Markup:
    """JSON that can stand in a ``<script>`` of a page: no text in it can close the script."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    escapes = (("<", "\\u003c"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029"))
    for letter, code in escapes:
        text = text.replace(letter, code)
    return Markup(text)


Certificate = Mapping[str, Any]
"""A certificate as JSON gives it (``schema/certificate.schema.json``)."""


# --------------------------------------------------------------------------- numbers
def times(chance: float) -> str:
    """A chance as times in 100, rounded up to three figures."""
    hundredfold = upwards(100 * exactly(chance))
    return "100" if hundredfold >= 100 else f"{hundredfold:f}"


def counts(number: float | Decimal) -> str:
    """A count, rounded up: to a whole number from ten on, else to three figures."""
    return f"{math.ceil(number):,}" if number >= 10 else f"{upwards(number):f}"


_WORDS = jinja2.Environment(  # plain text: the page escapes it
    undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
)
_WORDS.tests["ending"] = str.endswith
_WORDS.filters |= {
    "times": times,
    "counts": counts,
    "number": number,
    "exactly": exactly,
    "upwards": lambda value: f"{upwards(value):f}",
    "up": lambda value: f"{upwards(value).normalize():f}",
    "down": lambda value: f"{(-upwards(-value)).normalize():f}",
    "plural": lambda n, one, more: f"{n:,} {one if n == 1 else more}",
}


# --------------------------------------------------------------------------- the table
@cache
def _file() -> dict[str, Any]:
    file = resources.files("confide.reports") / "templates" / "sentences.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


_expression = cache(partial(_WORDS.compile_expression, undefined_to_none=False))


@cache
def table() -> dict[str, tuple[Any, jinja2.Template]]:
    """All sentences, in the order of the page: name -> condition, and text."""
    macros = _file()["macros"]
    return {
        row["name"]: (_expression(row["if"]), _WORDS.from_string(macros + row["say"]))
        for row in _file()["sentence"]
    }


def sentences(c: Certificate) -> dict[str, list[str]]:
    """What this certificate says: name of the sentence -> its paragraphs, ``**bold**`` inside."""
    known: dict[str, Any] = {
        **c,
        "before": Counter(c["spent_before"]),
        "guess": {row["who"]: row["at_most"] for row in reversed(c["right_guess"])},
        "people": [row for row in c["right_guess"] if row["who"] == "user"],
    }
    for name, expression in _file()["given"].items():
        known[name] = _expression(expression)(known)
    return {
        name: [" ".join(p.split()) for p in text.render(known).split("\n\n") if p.strip()]
        for name, (condition, text) in table().items()
        if condition(known)
    }


SCHEMA = "crtlib/certificate/1"
UNSEALED = ("id", "issued", "public_key", "signature")


# --------------------------------------------------------------------------- the value
def schema() -> dict[str, Any]:
    """The JSON schema of a certificate."""
    file = resources.files("confide.reports") / "schema" / "certificate.schema.json"
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
    columns (``epsilon`` or ``delta``, and one column a neighbouring relation), and ``curves``, the
    trade-off curves of ``secret`` and ``missed`` (f-DP; Dong, Roth and Su 2022), from
    :func:`crtlib.accounting.guarantees.tradeoff`. ``command`` is the line that repeats the
    certificate.
    """
    said = sentences(value)
    small, void = said.pop("O14"), said.pop("O0", [])
    return page(
        "certificate.html.j2", audience=audience, c=value, void=void, small=small,
        paragraphs=[text for texts in said.values() for text in texts], fields=fields,
        profile=profile or {}, command=command,
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


# --------------------------------------------------------------------------- in one line
KINDS = {
    "dp": "differential privacy",
    "bayesian_confidentiality": "Bayesian confidentiality",
}

SAME = "on this text or text with some of the same people or messages"


def promise(c: Certificate) -> str:
    """What a certificate promises, in one line: for ``guarantee.txt``, the model's card and a
    terminal. ``c`` has the parts of a certificate; it need not be sealed.

    What holds is that of the model and of all that was trained on its text before; what it would
    be of this model alone stands beside it, and says so.

    Guarantee:
        Every number is one of the certificate's, rounded upwards where it has more digits; none is
        computed here: ``tests/release/test_one_number.py``.
    """
    if c["verdict"] == "none":
        raw = ", and it read the text as it is" if c["policies"]["pi"]["name"] == "none" else ""
        return f"no guarantee: this method adds no noise{raw}"
    if c["verdict"] != "holds":
        return f"no guarantee; void: {' '.join(c['void_because'])}"
    g = c["guarantee"]
    neighbours = describe_relation(g["relation"], g["accountant"])
    told = _of_values(c) if g["kind"] == "secret_protection" else _of_points(c)
    told += [
        f"neighbours: {neighbours}",
        f"accountant: {g['accountant']}",
        *_rates_told(c),
        f"treated as public: {'; '.join(c['treated_as_public'])}",
        *([f"assumed: {'; '.join(c['assumed'])}"] if c["assumed"] else []),
    ]
    return "; ".join(told + _not_counted(c["spent_before"]))


def _bounds(pair: Mapping[str, Any]) -> str:
    """(epsilon, delta) as people read it."""
    return f"({at_most(float(pair['epsilon']))}, {at_most(pair['delta'])})"


def _of_points(c: Certificate) -> list[str]:
    """Epsilon and delta of what was trained with noise for each data point, and of which unit."""
    g, before, unit = c["guarantee"], c["spent_before"], c["unit"]
    others = c["searched"]["trials"] - 1
    beside = [f"{before['runs']} earlier {SAME}"] * (before["runs"] > 0)
    beside += [f"{others} that were compared with it"] * (others > 0)
    together = f" of this model and {' and '.join(beside)} together" if beside else ""
    told = [f"{_bounds(g['secret'])} {KINDS[g['kind']]}{together}"]
    if before["runs"]:
        compared = " and those that were compared with it" if others else ""
        told.append(f"of this model{compared} alone: {_bounds(before['alone'])}")
    if g["kind"] == "dp":
        whole = ", with all his points" if unit == "user" else ""
        return [*told, f"unit: one {unit}{whole}"]
    learned = ", but that was learned with noise" if before["delta2"] > 0 else ""
    passed = f"of one that the policy passed over{learned}: {_bounds(g['missed'])}"
    return [*told, passed, f"unit: one secret in one {unit}"]


def _of_values(c: Certificate) -> list[str]:
    """How often a value is guessed that a plan protects."""
    rows = [
        f"a protected value, which is guessed with a chance of "
        f"{(-upwards(-row['prior'], 4)).normalize():f} without the model, is guessed with a chance "
        f"of at most {at_most(row['at_most'])} with it"
        for row in c["value_guess"]
    ]
    noise = [
        f"{phase['steps']} steps with noise multiplier {phase['noise_multiplier']:.6g}"
        for phase in c["mechanism"]["phases"]
    ]
    return [*rows, "unit: all points in which the search found it", *noise]


def _rates_told(c: Certificate) -> list[str]:
    """The two rates that confidentiality stands on: those of this model's own search, and with the
    searches of earlier models, where these add to them."""
    kind, before = c["guarantee"]["kind"], c["spent_before"]
    if kind != "bayesian_confidentiality":
        return ["holds whatever a search for secrets finds"] * (kind == "dp")
    rows = (
        ("trace rate: the redacted points differ", "gamma", "trace"),
        ("public rate: learned without noise", "delta2", "public"),
    )
    labels, told = c["labels"], []
    alpha = labels["alpha"] / (2 * labels["judged"]) if labels else 0.0
    for what, symbol, name in rows:
        rate = c["rates"][name]
        said = MissRate.counted(rate, alpha=alpha)
        added = before[symbol] != rate["upper"]
        earlier = f", with earlier models at most {at_most(before[symbol])}" if added else ""
        told.append(f"{what}, {symbol} = {said}{earlier}")
    if unread := (labels or {}).get("unread"):
        told.append(f"in both counts {unread} turns that were drawn and not read, as failures")
    return told


def _not_counted(before: Mapping[str, Any]) -> list[str]:
    """Earlier models that no number counts."""
    rows = (
        ("unprotected", f"trained {SAME} without protection, or with one that does not count here"),
        ("struck", "that nobody ever saw, as the releaser says"),
        ("forgotten", "on texts of which the releaser forgot whose they were"),
    )
    return [f"not counted: {before[n]} {what}" for n, what in rows if before.get(n)]


def of_training(facts: Mapping[str, Any]) -> str:
    """README.md of a trained model: what it is, was trained on and may give away, as the line of
    the training promises it. Nothing of the text that was trained on is in it.

    ``facts`` are those of a :class:`confide.experiments.record.Trained`.
    """
    return page("model_card.md.j2", f=facts)
