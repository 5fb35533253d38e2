"""Policies of regular expressions that come with the library, and the policies of none and of
all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from crtlib.checks import check_choice
from crtlib.screening.policy import Policy
from crtlib.text.records import Point, Secret

if TYPE_CHECKING:
    pass

# Each piece starts with a sign or a capital: an optional start would take exponential time. What
# can go on over many words has a most, or a text of nothing but such words takes quadratic time.
_NAME_WORD = (
    r"[A-ZÀ-ÖØ-Þ](?:['’][A-ZÀ-ÖØ-Þ])?[a-zà-öø-ÿ]{1,64}"
    r"(?:(?:['’-][A-ZÀ-ÖØ-Þ]?|[A-ZÀ-ÖØ-Þ])[a-zà-öø-ÿ]{1,64}){0,8}"
)
# Words that start a sentence, and are no first names: "Hello Ada Lovelace" holds one name.
_NOT_A_NAME = (
    r"(?!(?:An?|And|At|But|By|Call|Certainly|Dear|For|From|Good|Here|Hello|Hey|Hi|How|If|In|Is|It|"
    r"Mister|Mrs?|Ms|My|No|Ok|Okay|On|Please|Right|Send|Shipping|Since|Sure|Thanks?|That|The|"
    r"They?|This|To|We|What|When|Where|Who|Why|Yea|Yeah|Yep|Yes|You|Your|"
    r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day)\b)"
)
_NUMERAL_WORD = (
    r"(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|twenty|thirty|"
    r"forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand|and)"
)
_ROAD_WORD = (
    r"(?i:street|st|avenue|ave|road|rd|boulevard|blvd|drive|dr|lane|ln|way|court|ct|place|pl|plaza|"
    r"square|sq|parkway|pkwy|highway|hwy|circle|terrace|real|row|broadway|alameda|embarcadero|"
    r"camino|mall|walk|hill|center|centre)\b\.?"
)
_COMPASS_WORD = (
    r"(?i:north|south|east|west|northeast|northwest|southeast|southwest|[ns]\.?[ew]\.?)\b"
)
_SHAPES_BY_CORPUS = {
    "customersim": {
        "address": (
            r"(?<![\w-])(?:\d{1,6}(?: (?:Apt\.|#?\d+|[A-Z][\w'’-]+)){1,16}, [A-Z]{2} "
            r"\d{5}(?:-\d{4})?"
            rf"|(?:PSC \d+, Box \d+|Unit \d+ Box \d+|US[A-Z]+ {_NAME_WORD}) [ADF]PO A[AEP] "
            rf"\d{{5}})\b"
        ),
        "order": r"(?<![\w-])\d{3}-\d{5}-\d{1,4}(?![\w-])",
        "phone": r"(?<![\w.-])(?:\+?1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-]?)\d{3}[ .-]?\d{4}(?![\w-])",
        "tracking": r"\b[A-Z0-9]{10}\b",
        "name": rf"\b{_NOT_A_NAME}{_NAME_WORD}(?: [A-Z]\.)? {_NAME_WORD}\b",
    },
    "schema_guided": {
        "phone": r"(?<![\w$-])\+?\d{1,4}(?:[ .-]\d{1,4}){2,4}(?![\w-])",
        "address": (
            rf"(?<![\w$:-])\d[\w/-]*(?: {_COMPASS_WORD})?(?: [\w.'’-]+){{0,4}}? {_ROAD_WORD}(?: "
            rf"{_COMPASS_WORD})?"
            r"(?:,? (?:#|(?i:ste|suite|apt|unit|room|floor)\b\.?) ?\w+)?(?: #? ?\d+\w*)?"
            r"(?:, [A-Z][\w'’-]+(?: [A-Z][\w'’-]+)*)*"
        ),
        "amount": (
            r"\$ ?\d[\d,]*(?:\.\d+)?|\b(?:\d[\d,]{0,32}(?:\.\d{1,32})?"
            rf"|(?i:{_NUMERAL_WORD}(?:[ -]{_NUMERAL_WORD}){{0,16}})) (?i:dollars|bucks)\b"
        ),
        # One capitalised word is anything; what a doctor has about it, and whom money goes to.
        "name": (
            rf"\b(?:Dr\.? {_NAME_WORD}(?: [A-Z]\b\.?)?(?: {_NAME_WORD})*"
            rf"|{_NAME_WORD}(?: (?:[A-Z]\b\.?|{_NAME_WORD})){{0,8}},? "
            r"(?:M\.?D\b\.?|DDS\b|D\.D\.S\.|OD\b|Ph\.?D\b\.?))"
            rf"|(?<=\bto )(?!the |my |your ){_NAME_WORD}"
            r"(?=(?:['’]s)?(?: (?:from|in|savings|checking|account)|[.?,!]|$))"
        ),
    },
    "multiwoz": {
        "reference": r"\b(?=[A-Z0-9]*[A-Z])[A-Z0-9]{8}\b",
        "phone": r"(?<![\w-])0\d{3,4}[ -]?\d{5,6}(?![\w-])",
        "postcode": r"\b(?i:[a-z]{2}\.? ?\d{1,2},? ?\d[a-z]{2})\b",
        "address": (
            r"(?<![\w-])(?:\d[\w/-]*(?: - \d+)?(?: [A-Z][\w'’-]*){1,8}?"
            rf"|[A-Z][\w'’-]+(?: [A-Z][\w'’-]+){{0,8}}?) {_ROAD_WORD}"
            r"(?:,? (?:City Centre|Chesterton|Fen Ditton|Cherry Hinton|[A-Z][\w'’-]+))*"
        ),
    },
    "wikitext2": {"number": r"\d+"},
}
_SHAPES_BY_CORPUS["wikitext2_cut"] = _SHAPES_BY_CORPUS["wikitext2"]
_SHAPES_BY_CORPUS["multiwoz_held_out"] = _SHAPES_BY_CORPUS["multiwoz"]


REGEX_CORPORA = tuple(_SHAPES_BY_CORPUS)
"""The corpora whose secrets ``corpus_regex_policy`` knows by shape."""

none_policy = Policy("none", lambda points: [()] * len(points))
"""Flags nothing: as ``pi_c`` it leaves the split to ``pi``."""


def pattern_policy(name: str, pattern: re.Pattern[str]) -> Policy:
    """Flags what ``pattern`` finds; the kind is the name of the group that matched.

    A pattern whose character classes have no ``<`` and ``>`` labels a text that holds ``<MASK>``
    around the mask as if the mask were not there (Proposition 5 needs labels that do not change
    elsewhere when one secret is masked). Where people wrote the text a span may still take a
    neighbour along: :func:`crtlib.screening.rates.measure_rates` counts the traces.
    """

    def found(p: Point) -> Iterator[Secret]:
        for m in pattern.finditer(p.text):
            yield Secret(m.lastgroup or "", *m.span(m.lastgroup or 0))

    return Policy(name, partial(map, found))


@lru_cache
def corpus_regex_policy(corpus: str = "customersim") -> Policy:
    """The regular expressions for the kinds of a corpus, and for the digits of a canary.

    Made from the *shape* of the secrets (two capitalised words in a row, ten capitals or digits,
    a street and a postcode, ...), without labels, for points without context. That is perfect
    where a simulator made the shapes (customersim) or where every digit is a secret (wikitext2);
    people who write as they like are another matter (schema_guided, multiwoz: see ``tagger``).
    """
    check_choice("corpus", corpus, REGEX_CORPORA)
    kinds = [f"(?P<{kind}>{pattern})" for kind, pattern in _SHAPES_BY_CORPUS[corpus].items()]
    pattern = re.compile("|".join([r"\bID is:? (?P<id>\d{4,})", *kinds]))
    return pattern_policy(f"regex:{corpus}", pattern)


oracle_policy = Policy("oracle", lambda points: [p.secrets for p in points])
"""Flags the labelled secrets: the perfect policy of the paper's "non-private with masks"."""


everything_policy = Policy(
    "everything",
    lambda points: [(Secret("text", 0, len(p.text)),) if p.text else () for p in points],
    total=True,
)
"""Flags the whole text of every point: as ``pi_c`` it makes every point private."""
