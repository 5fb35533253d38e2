"""What a certificate says in plain words: sentences, each with the condition for it to be true.

They are in ``templates/sentences.toml``. A sentence is printed if and only if its condition holds,
and every number is rounded up: a reader may be told a weaker promise than the true one, but never a
stronger one.

>>> times_in_hundred(0.50999), times_in_hundred(0.009181), times_in_hundred(1.0)
('51.0', '0.919', '100')
>>> round_count_up(21.086), round_count_up(1.201)
('22', '1.21')
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from functools import cache, partial
from importlib import resources
from typing import Any

import jinja2

from confide.assumption_sentences import is_of_earlier_model, states_kind
from confide.reports.html import format_number
from crtlib.intervals import count_of, round_up_to_figures, to_decimal
from crtlib.text.package_data import read_package_file

Certificate = Mapping[str, Any]
"""A certificate as JSON gives it (``schema/certificate.schema.json``)."""

NO_PROMISE = 0.995
"""From this value on, a bound on the chance of a right guess is said to promise nothing."""
NOTHING_PROMISED = "Every bound on a right guess is 99.5 of 100 or more: that promises nothing."
"""Why a certificate carries no promise, however small its epsilon and delta look."""

_SENTENCE_TEMPLATES = jinja2.Environment(  # plain text: the page escapes it
    undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
)
_compile_condition = cache(partial(_SENTENCE_TEMPLATES.compile_expression, undefined_to_none=False))


# --------------------------------------------------------------------------- numbers
def times_in_hundred(chance: float) -> str:
    """A chance as times in 100, rounded up to three figures."""
    hundredfold = round_up_to_figures(100 * to_decimal(chance))
    return "100" if hundredfold >= 100 else f"{hundredfold:f}"


def round_count_up(number: float | Decimal) -> str:
    """A count, rounded up to a whole number from ten on, and below to three figures."""
    return f"{math.ceil(number):,}" if number >= 10 else f"{round_up_to_figures(number):f}"


_SENTENCE_TEMPLATES.tests |= {"assuming": states_kind, "of_earlier_model": is_of_earlier_model}
_SENTENCE_TEMPLATES.filters |= {
    "times": times_in_hundred,
    "counts": round_count_up,
    "number": format_number,
    "exactly": to_decimal,
    "upwards": lambda value: f"{round_up_to_figures(value):f}",
    "up": lambda value: f"{round_up_to_figures(value).normalize():f}",
    "down": lambda value: f"{(-round_up_to_figures(-value)).normalize():f}",
    "plural": count_of,
}


# --------------------------------------------------------------------------- the table
@cache
def _read_sentences_file() -> dict[str, Any]:
    folder = resources.files("confide.reports") / "templates"
    return tomllib.loads(read_package_file("sentences.toml", folder))


@cache
def load_sentences() -> dict[str, tuple[Any, jinja2.Template]]:
    """All sentences in the order of the page: name -> (condition, text)."""
    macros = _read_sentences_file()["macros"]
    return {
        row["name"]: (
            _compile_condition(row["if"]),
            _SENTENCE_TEMPLATES.from_string(macros + row["say"]),
        )
        for row in _read_sentences_file()["sentence"]
    }


def select_sentences(certificate: Certificate) -> dict[str, list[str]]:
    """The sentences that are true of a certificate: name -> paragraphs, with ``**bold**``
    inside."""
    names: dict[str, Any] = {
        **certificate,
        "no_promise": NO_PROMISE,
        "before": Counter(certificate["spent_before"]),
        "guess": {row["who"]: row["at_most"] for row in reversed(certificate["right_guess"])},
        "people": [row for row in certificate["right_guess"] if row["who"] == "user"],
    }
    for name, expression in _read_sentences_file()["given"].items():
        names[name] = _compile_condition(expression)(names)
    return {
        name: [" ".join(p.split()) for p in text.render(names).split("\n\n") if p.strip()]
        for name, (condition, text) in load_sentences().items()
        if condition(names)
    }
