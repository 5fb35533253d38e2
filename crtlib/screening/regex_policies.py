"""The library's own policies of regular expressions, and those that flag nothing, all labels or
everything."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import lru_cache, partial
from importlib import resources

from crtlib.checks import check_choice
from crtlib.screening.policy import Policy
from crtlib.text.package_data import read_package_file
from crtlib.text.records import Point, Secret

_EXPRESSION_FOLDER = resources.files("crtlib.screening") / "expressions"
_EXPRESSION_FILES = {
    "customersim": "customersim",
    "schema_guided": "schema_guided",
    "multiwoz": "multiwoz",
    "wikitext2": "wikitext2",
    "wikitext2_cut": "wikitext2",
    "multiwoz_held_out": "multiwoz",
}
_CANARY = r"\bID is:? (?P<id>\d{4,})"

REGEX_CORPORA = tuple(_EXPRESSION_FILES)
"""The corpora whose secrets ``corpus_regex_policy`` knows by shape."""

none_policy = Policy("none", lambda points: [()] * len(points))
"""Flags nothing: as ``pi_c`` it leaves the split to ``pi``."""


def pattern_policy(name: str, pattern: re.Pattern[str]) -> Policy:
    """A policy that flags what ``pattern`` finds; the kind is the name of the group that matched.

    If its character classes have no ``<`` and ``>``, a pattern labels the text around a ``<MASK>``
    as if the mask were not there. (Proposition 5 needs labels that do not change elsewhere when one
    secret is masked.) Where people wrote the text, a span may still include a neighbouring word:
    :func:`crtlib.screening.rates.measure_rates` counts such traces.
    """

    def found(p: Point) -> Iterator[Secret]:
        for m in pattern.finditer(p.text):
            yield Secret(m.lastgroup or "", *m.span(m.lastgroup or 0))

    return Policy(name, partial(map, found))


@lru_cache
def corpus_regex_policy(corpus: str = "customersim") -> Policy:
    """A policy of the regular expressions for the kinds of a corpus, and for a canary's digits.

    The expressions are in the folder ``expressions`` beside this module, one table for each kind,
    in the same form as those that users write
    (:func:`crtlib.screening.expression_files.expression_file_policy`). Here they are joined into
    one expression, so what one kind matches belongs to no other kind.

    They were made from the *shape* of the secrets (two capitalised words in a row, ten capitals or
    digits, a street and a postcode, ...), without labels, for points without context. That is
    perfect where a simulator made the shapes (customersim) or where every digit is a secret
    (wikitext2). Text that people write freely is another matter (schema_guided, multiwoz: see
    ``tagger``).
    """
    check_choice("corpus", corpus, REGEX_CORPORA)
    file = read_package_file(f"{_EXPRESSION_FILES[corpus]}.toml", _EXPRESSION_FOLDER)
    kinds = [
        f"(?P<{kind}>{_with_flags(table['pattern'], table.get('flags', ''))})"
        for kind, table in tomllib.loads(file).items()
    ]
    return pattern_policy(f"regex:{corpus}", re.compile("|".join([_CANARY, *kinds])))


def _with_flags(pattern: str, flags: str) -> str:
    return f"(?{flags}:{pattern})" if flags else pattern


oracle_policy = Policy("oracle", lambda points: [p.secrets for p in points], reads_labels=True)
"""Flags the labelled secrets: the perfect policy of the paper's "non-private with masks"."""


everything_policy = Policy(
    "everything",
    lambda points: [(Secret("text", 0, len(p.text)),) for p in points],
    flags_everything=True,
)
"""Flags the whole text of every point, also an empty one: as ``pi_c`` it makes every point
private."""
