r"""Screening policies: which characters of a point may be secret, and how often that is right.

A policy is called on points and answers with the flagged spans of each, sorted and disjoint.

>>> from crtlib.text.records import Point
>>> points = [Point("0", "u", "USR: I am Ada Lovelace."), Point("1", "u", "SYS: Anything else?")]
>>> regex("customersim")(points)
[(Secret(kind='name', start=10, end=22),), ()]
>>> miss(regex("customersim"), gamma=1.0, seed=0)(points)
[(), ()]
>>> everything(points)
[(Secret(kind='text', start=0, end=23),), (Secret(kind='text', start=0, end=19),)]
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from importlib import import_module, util
from typing import Any, Literal

from crtlib.checks import check, check_choice
from crtlib.screening.policy import (
    THRESHOLD,
    Flag,
    Labels,
    Policy,
    checked,
    spoken,
    words,
)
from crtlib.screening.redact import (
    Clear,
    Spans,
    around,
    clear,
    inside,
    masks,
    merged,
    overlaps,
    redact,
)
from crtlib.text.records import Point, Secret

# Each piece starts with a sign or a capital: an optional start would take exponential time. What
# can go on over many words has a most, or a text of nothing but such words takes quadratic time.
_WORD = (
    r"[A-ZÀ-ÖØ-Þ](?:['’][A-ZÀ-ÖØ-Þ])?[a-zà-öø-ÿ]{1,64}"
    r"(?:(?:['’-][A-ZÀ-ÖØ-Þ]?|[A-ZÀ-ÖØ-Þ])[a-zà-öø-ÿ]{1,64}){0,8}"
)
# Words that start a sentence, and are no first names: "Hello Ada Lovelace" holds one name.
_NO_NAME = (
    r"(?!(?:An?|And|At|But|By|Call|Certainly|Dear|For|From|Good|Here|Hello|Hey|Hi|How|If|In|Is|It|"
    r"Mister|Mrs?|Ms|My|No|Ok|Okay|On|Please|Right|Send|Shipping|Since|Sure|Thanks?|That|The|"
    r"They?|This|To|We|What|When|Where|Who|Why|Yea|Yeah|Yep|Yes|You|Your|"
    r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day)\b)"
)
_NUMERAL = (
    r"(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|twenty|thirty|"
    r"forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand|and)"
)
_ROAD = (
    r"(?i:street|st|avenue|ave|road|rd|boulevard|blvd|drive|dr|lane|ln|way|court|ct|place|pl|plaza|"
    r"square|sq|parkway|pkwy|highway|hwy|circle|terrace|real|row|broadway|alameda|embarcadero|"
    r"camino|mall|walk|hill|center|centre)\b\.?"
)
_SIDE = r"(?i:north|south|east|west|northeast|northwest|southeast|southwest|[ns]\.?[ew]\.?)\b"
_SHAPES = {
    "customersim": {
        "address": (
            r"(?<![\w-])(?:\d{1,6}(?: (?:Apt\.|#?\d+|[A-Z][\w'’-]+)){1,16}, [A-Z]{2} "
            r"\d{5}(?:-\d{4})?"
            rf"|(?:PSC \d+, Box \d+|Unit \d+ Box \d+|US[A-Z]+ {_WORD}) [ADF]PO A[AEP] \d{{5}})\b"
        ),
        "order": r"(?<![\w-])\d{3}-\d{5}-\d{1,4}(?![\w-])",
        "phone": r"(?<![\w.-])(?:\+?1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-]?)\d{3}[ .-]?\d{4}(?![\w-])",
        "tracking": r"\b[A-Z0-9]{10}\b",
        "name": rf"\b{_NO_NAME}{_WORD}(?: [A-Z]\.)? {_WORD}\b",
    },
    "schema_guided": {
        "phone": r"(?<![\w$-])\+?\d{1,4}(?:[ .-]\d{1,4}){2,4}(?![\w-])",
        "address": (
            rf"(?<![\w$:-])\d[\w/-]*(?: {_SIDE})?(?: [\w.'’-]+){{0,4}}? {_ROAD}(?: {_SIDE})?"
            r"(?:,? (?:#|(?i:ste|suite|apt|unit|room|floor)\b\.?) ?\w+)?(?: #? ?\d+\w*)?"
            r"(?:, [A-Z][\w'’-]+(?: [A-Z][\w'’-]+)*)*"
        ),
        "amount": (
            r"\$ ?\d[\d,]*(?:\.\d+)?|\b(?:\d[\d,]{0,32}(?:\.\d{1,32})?"
            rf"|(?i:{_NUMERAL}(?:[ -]{_NUMERAL}){{0,16}})) (?i:dollars|bucks)\b"
        ),
        # One capitalised word is anything; what a doctor has about it, and whom money goes to.
        "name": (
            rf"\b(?:Dr\.? {_WORD}(?: [A-Z]\b\.?)?(?: {_WORD})*"
            rf"|{_WORD}(?: (?:[A-Z]\b\.?|{_WORD})){{0,8}},? "
            r"(?:M\.?D\b\.?|DDS\b|D\.D\.S\.|OD\b|Ph\.?D\b\.?))"
            rf"|(?<=\bto )(?!the |my |your ){_WORD}"
            r"(?=(?:['’]s)?(?: (?:from|in|savings|checking|account)|[.?,!]|$))"
        ),
    },
    "multiwoz": {
        "reference": r"\b(?=[A-Z0-9]*[A-Z])[A-Z0-9]{8}\b",
        "phone": r"(?<![\w-])0\d{3,4}[ -]?\d{5,6}(?![\w-])",
        "postcode": r"\b(?i:[a-z]{2}\.? ?\d{1,2},? ?\d[a-z]{2})\b",
        "address": (
            r"(?<![\w-])(?:\d[\w/-]*(?: - \d+)?(?: [A-Z][\w'’-]*){1,8}?"
            rf"|[A-Z][\w'’-]+(?: [A-Z][\w'’-]+){{0,8}}?) {_ROAD}"
            r"(?:,? (?:City Centre|Chesterton|Fen Ditton|Cherry Hinton|[A-Z][\w'’-]+))*"
        ),
    },
    "wikitext2": {"number": r"\d+"},
}
_SHAPES["wikitext2_cut"] = _SHAPES["wikitext2"]


SHAPES = tuple(_SHAPES)
"""The corpora whose secrets ``regex`` knows by shape."""


def matching(name: str, pattern: re.Pattern[str]) -> Policy:
    """Flags what ``pattern`` finds; the kind is the name of the group that matched.

    A pattern whose character classes have no ``<`` and ``>`` labels a text that holds ``<MASK>``
    around the mask as if the mask were not there (Proposition 5 needs labels that do not change
    elsewhere when one secret is masked). Where people wrote the text a span may still take a
    neighbour along: :func:`crtlib.screening.rates.rates` counts the traces.
    """

    def found(p: Point) -> Iterator[Secret]:
        for m in pattern.finditer(p.text):
            yield Secret(m.lastgroup or "", *m.span(m.lastgroup or 0))

    return Policy(name, partial(map, found), batched=True)


@lru_cache
def regex(corpus: str = "customersim") -> Policy:
    """The regular expressions for the kinds of a corpus, and for the digits of a canary.

    Made from the *shape* of the secrets (two capitalised words in a row, ten capitals or digits,
    a street and a postcode, ...), without labels, for points without context. That is perfect
    where a simulator made the shapes (customersim) or where every digit is a secret (wikitext2);
    people who write as they like are another matter (schema_guided, multiwoz: see ``tagger``).
    """
    check_choice("corpus", corpus, SHAPES)
    kinds = [f"(?P<{kind}>{pattern})" for kind, pattern in _SHAPES[corpus].items()]
    pattern = re.compile("|".join([r"\bID is:? (?P<id>\d{4,})", *kinds]))
    return matching(f"regex:{corpus}", pattern)


oracle = Policy("oracle", lambda points: [p.secrets for p in points], batched=True)
"""Flags the labelled secrets: the perfect policy of the paper's "non-private with masks"."""

none = Policy("none", lambda points: [()] * len(points), batched=True)
"""Flags nothing: as ``pi_c`` it leaves the split to ``pi``."""

everything = Policy(
    "everything",
    lambda points: [(Secret("text", 0, len(p.text)),) if p.text else () for p in points],
    total=True,
    batched=True,
)
"""Flags the whole text of every point: as ``pi_c`` it makes every point private."""


def _changed(policy: Flag, change: Callable[[Point, Spans], Iterable[Secret]]) -> Policy:
    """``policy``, with what it flags in a point put through ``change``."""
    pi = checked(policy)

    def flag(points: Sequence[Point]) -> Iterator[Iterable[Secret]]:
        return map(change, points, pi(points))

    return replace(pi, flag=flag, own_words=False, batched=True)


# --------------------------------------------------------------------------- the dial
Per = Literal["occurrence", "value"]


def _coin(seed: int, per: Per, point: Point, s: Secret) -> float:
    """Uniform on [0, 1), a function of what is hashed and of nothing else."""
    key = [str(seed), *([point.id] if per == "occurrence" else [])]
    key.append(point.text[s.start : s.end])
    digest = hashlib.blake2b("\x1f".join(key).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


def miss(policy: Flag, gamma: float, seed: int, per: Per = "occurrence") -> Policy:
    """The dial: ``policy`` with miss rate ``gamma`` in [0, 1] on what it would have found.

    ``per="occurrence"`` tosses a coin for each point and value, so that a secret which stands in
    twenty points is missed in about ``20 * gamma`` of them; ``per="value"`` tosses one coin for a
    value wherever it stands. The coin is a hash, not the next number of a generator: masking one
    secret, or adding a point, changes no other label, which Proposition 5 needs. For the same
    reason equal values within one point share their coin: counting them would let the mask of
    the first change the second. What is missed at some ``gamma`` is missed at every larger one.
    """
    check("gamma", gamma, 0 <= gamma <= 1, "in [0, 1]")
    check_choice("per", per, ("occurrence", "value"))

    def found(p: Point, spans: Spans) -> Iterator[Secret]:
        return (s for s in spans if _coin(seed, per, p, s) >= gamma)

    made = _changed(policy, found)
    return replace(made, name=f"{made.name} (misses {gamma:g} per {per})", total=False)


# --------------------------------------------------------------------------- unions
def union(*parts: Flag) -> Policy:
    """Flags what any of ``parts`` flags; spans that touch or overlap become one.

    A span has the kind of the first part, in the order given, that has a share in it.
    """
    check("parts", len(parts), bool(parts), "at least one policy")
    policies = [checked(policy) for policy in parts]
    return Policy(
        "+".join(p.name for p in policies),
        lambda points: map(merged, zip(*(policy(points) for policy in policies), strict=True)),
        learned=any(p.learned for p in policies),
        taught_by=tuple(t for p in policies for t in p.taught_by),
        total=any(p.total for p in policies),
        batched=True,
    )


# --------------------------------------------------------------------------- steady
def _hidden(pi: Policy, jobs: Sequence[tuple[Point, Spans]]) -> Iterator[Spans]:
    """Of each point what ``pi`` flags where some spans are masked, at its place in the point."""
    hidden = [redact(p, spans) for p, spans in jobs]
    for (p, spans), h, found in zip(jobs, hidden, pi(hidden), strict=True):
        left = clear(p.text, spans)
        back = [Clear(c.start + c.shift, c.end + c.shift, -c.shift) for c in left]
        yield inside(around(h.text, found), back)


def steady(policy: Flag) -> Policy:
    """Flags what ``policy`` flags also where all else that it flags is masked.

    What reads context flags a neighbour beside a secret and not beside its mask, which is a trace
    though nothing was missed. So each span is asked about again with all others masked, those
    included that are flagged beside their masks only: whether it stays no longer depends on the
    value of another. A turn in which nothing is flagged costs no more.

    >>> from crtlib.text.records import Point
    >>> def both(points):  # flags 2 as well beside 1
    ...     return [[Secret("x", k, k + 1) for k, c in enumerate(p.text)
    ...              if c == "1" or (c == "2" and "1" in p.text)] for p in points]
    >>> steady(Policy("both", both))([Point("0", "u", "1 or 2")])
    [(Secret(kind='x', start=0, end=1),)]
    """
    pi = checked(policy)

    def flag(points: Sequence[Point]) -> Labels:
        first = pi(points)
        held = [(p, spans) for p, spans in zip(points, first, strict=True) if spans]
        every = [
            (p, merged([spans, more]))
            for (p, spans), more in zip(held, _hidden(pi, held), strict=True)
        ]
        jobs = [(p, tuple(o for o in spans if o is not s)) for p, spans in every for s in spans]
        again = _hidden(pi, jobs)
        kept = iter(
            [[f for s in spans for f, _ in overlaps(next(again), [s])] for _, spans in every]
        )
        return [merged([next(kept)]) if spans else () for spans in first]

    return replace(pi, flag=flag, own_words=False, batched=True)


# --------------------------------------------------------------------------- whole turns
def whole_turns(policy: Flag) -> Policy:
    """Flags the whole of each turn of which ``policy`` flags anything, or that holds a ``<MASK>``.

    A turn with a secret and the same with a mask in its place then both become one mask, whatever
    ``policy`` says of the words around: a secret leaves a trace only where nothing in its turn is
    flagged. The price is the rest of these turns, which nothing is learned from.

    >>> from crtlib.text.records import Point
    >>> [redact(p, whole_turns(regex("customersim"))([p])[0]).text
    ...  for p in (Point("0", "u", "I am Ada Lovelace."), Point("1", "u", "I am <MASK>."))]
    ['<MASK>', '<MASK>']
    """

    def found(p: Point, spans: Spans) -> Spans:
        turns = [Secret("turn", a, b) for a, b in spoken(p) if a < b]
        hit = overlaps(turns, merged([spans, masks(p.text)]))
        return merged([spans, list(dict.fromkeys(turn for turn, _ in hit))])

    made = _changed(policy, found)
    return replace(made, name=f"{made.name}+whole_turns")


# --------------------------------------------------------------------------- Presidio
SPACY_MODELS = tuple(f"en_core_web_{size}" for size in ("trf", "lg", "md", "sm"))
"""English models of spaCy, the largest first."""


def _engine(policy: str, model: str) -> Any:
    """Presidio's engine on a spaCy model that is installed: ``model``, or the largest."""
    if util.find_spec("presidio_analyzer") is None:
        raise ValueError(
            f"policy={policy!r}: needs the package presidio_analyzer: pip install presidio-analyzer"
        )
    packages = ("spacy", "presidio_analyzer", "presidio_analyzer.nlp_engine")
    spacy, analyzer, nlp = map(import_module, packages)
    wanted = (model,) if model else SPACY_MODELS
    here = [name for name in wanted if spacy.util.is_package(name)]
    if not here:
        raise ValueError(
            f"policy={policy!r}: needs a language model: python -m spacy download {wanted[0]}"
        )
    models = [{"lang_code": "en", "model_name": here[0]}]
    how = {"nlp_engine_name": "spacy", "models": models}
    provider = nlp.NlpEngineProvider(nlp_configuration=how)
    return analyzer.AnalyzerEngine(nlp_engine=provider.create_engine(), supported_languages=["en"])


def presidio(model: str = "", *, engine: Any = None) -> Policy:
    """Flags the words in which Microsoft's Presidio, in English, finds something with a score of
    at least 0.3 (CRT, A.4), on a spaCy ``model`` that is installed (the largest of
    ``SPACY_MODELS`` by default); ``engine`` is an ``AnalyzerEngine`` of your own.

    It gets the turn's own words, without the speaker: to Presidio "USR" is an organisation."""
    name = f"presidio:{model}" if model else "presidio"
    engine = engine or _engine(name, model)

    def found(p: Point) -> Spans:
        whole = []
        for r in engine.analyze(text=p.text, language="en", score_threshold=THRESHOLD):
            touched = [at for at in words(p.text) if at[0] < r.end and r.start < at[1]]
            if touched:
                whole.append([Secret(r.entity_type, touched[0][0], touched[-1][1])])
        return merged(whole)

    return Policy(name, partial(map, found), learned=True, own_words=True, batched=True)
