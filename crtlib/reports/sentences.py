"""What a certificate says in plain words: each sentence with the condition under which it is true.

They stand in ``templates/sentences.toml``. A sentence is printed if and only if its condition
holds, and every number is rounded up: a reader may be told a promise that is weaker than the true
one, never a stronger.

>>> times(0.50999), times(0.009181), times(1.0)
('51.0', '0.919', '100')
>>> counts(21.086), counts(1.201)
('22', '1.21')
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from importlib import resources
from typing import Any

import jinja2

from crtlib.intervals import exactly, upwards
from crtlib.reports.pages import number

Certificate = Mapping[str, Any]
"""A certificate as JSON gives it (``schema/certificate.schema.json``)."""
POINTS = {"turn": "message", "dialogue": "conversation", "user": "person"}
WITHIN = {
    "turn": "said in one message", "dialogue": "said in one conversation",
    "user": "said by one person",
}  # fmt: skip
"""Of what a secret must not be said beyond, where a bound is that of one data point."""
NO_PROMISE = 0.995
"""From here on a bound on right guesses is called no promise."""


# --------------------------------------------------------------------------- numbers
def times(chance: float) -> str:
    """A chance as times in 100, rounded up to three figures."""
    hundredfold = upwards(100 * exactly(chance))
    return "100" if hundredfold >= 100 else f"{hundredfold:f}"


def counts(number: float | Decimal) -> str:
    """A count, rounded up: to a whole number from ten on, else to three figures."""
    return f"{math.ceil(number):,}" if number >= 10 else f"{upwards(number):f}"


def holds(c: Certificate) -> bool:
    """Whether the model carries a promise at all."""
    return bool(c["verdict"] == "holds")


_WORDS = jinja2.Environment(  # plain text: the page escapes it
    undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
)
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
def table() -> dict[str, tuple[Any, jinja2.Template]]:
    """All sentences, in the order of the page: name -> condition, and text."""
    file = resources.files("crtlib.reports") / "templates" / "sentences.toml"
    read = tomllib.loads(file.read_text(encoding="utf-8"))
    return {
        row["name"]: (
            _WORDS.compile_expression(row["if"], undefined_to_none=False),
            _WORDS.from_string(read["macros"] + row["say"]),
        )
        for row in read["sentence"]
    }


def sentences(c: Certificate) -> dict[str, list[str]]:
    """What this certificate says: name of the sentence -> its paragraphs, ``**bold**`` inside."""
    labels, rates = c["labels"] or {}, c["rates"]
    before: Counter[str] = Counter(c["spent_before"])
    kind = c["guarantee"]["kind"] if holds(c) else None
    evidence = c.get("evidence") or {}
    known = {"limits": (), "assumed": (), "declared": ()} | dict(c) | {
        "holds": holds(c),
        "bayes": kind == "bayesian_confidentiality",
        "dp": kind == "dp",
        "plan": kind == "secret_protection",
        "point": POINTS[c["unit"]],
        "within": WITHIN[c["unit"]],
        "no_promise": NO_PROMISE,
        "guess": {row["who"]: row["at_most"] for row in reversed(c["right_guess"])},
        "people": [row for row in c["right_guess"] if row["who"] == "user"],
        "before": before,
        # The shares that this run, or an earlier one, may have learned with and without noise.
        "trace": max(rates["trace"]["upper"], before["gamma"]),
        "public": max(rates["public"]["upper"], before["delta2"]),
        "unknown": rates["public"]["how"] == "unknown",
        "drawn": labels.get("drawn"),
        "cluster": labels.get("cluster"),
        "persons": "persons" if labels.get("cluster") == "user" else "conversations",
        "audit": evidence.get("audit"),
        "report": evidence.get("report"),
    }  # fmt: skip
    return {
        name: [" ".join(p.split()) for p in text.render(known).split("\n\n") if p.strip()]
        for name, (condition, text) in table().items()
        if condition(known)
    }
