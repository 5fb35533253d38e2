r"""Screening policies: which characters of a point may be secret, and how often that is right.

A policy is called on points and answers with the flagged spans of each, sorted and disjoint.

>>> from crtlib.records import Point
>>> points = [Point("0", "u", "USR: I am Ada Lovelace."), Point("1", "u", "SYS: Anything else?")]
>>> regex()(points)
[(Secret(kind='name', start=10, end=22),), ()]
>>> miss(regex(), gamma=1.0, seed=0)(points)
[(), ()]
>>> round(miss_rate_upper(0, 200), 5)  # what 200 labels without a miss certify
0.01487
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import pandas as pd
from scipy.stats import beta

from crtlib import corpora
from crtlib.records import Corpus, Point, Secret, check_spans

Labels = list[tuple[Secret, ...]]
"""The flagged spans of each point."""


class Policy(Protocol):
    """A screening policy (CRT, section 3.2: the labelling function pi, or pi_c)."""

    @property
    def name(self) -> str:
        """How a table or a guarantee calls it."""
        ...

    def __call__(self, points: Sequence[Point]) -> Labels:
        """The flagged spans of each point, sorted and disjoint."""
        ...


# Each piece starts with a sign or a capital: an optional start would take exponential time.
_WORD = (
    r"[A-ZÀ-ÖØ-Þ](?:['’][A-ZÀ-ÖØ-Þ])?[a-zà-öø-ÿ]+(?:(?:['’-][A-ZÀ-ÖØ-Þ]?|[A-ZÀ-ÖØ-Þ])[a-zà-öø-ÿ]+)*"
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
            r"(?<![\w-])(?:\d{1,6}(?: (?:Apt\.|#?\d+|[A-Z][\w'’-]+))+, [A-Z]{2} \d{5}(?:-\d{4})?"
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
            r"\$ ?\d[\d,]*(?:\.\d+)?|\b(?:\d[\d,]*(?:\.\d+)?"
            rf"|(?i:{_NUMERAL}(?:[ -]{_NUMERAL})*)) (?i:dollars|bucks)\b"
        ),
        # One capitalised word is anything; what a doctor has about it, and whom money goes to.
        "name": (
            rf"\b(?:Dr\.? {_WORD}(?: [A-Z]\b\.?)?(?: {_WORD})*"
            rf"|{_WORD}(?: (?:[A-Z]\b\.?|{_WORD}))*,? "
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
            r"(?<![\w-])(?:\d[\w/-]*(?: - \d+)?(?: [A-Z][\w'’-]*)+?"
            rf"|[A-Z][\w'’-]+(?: [A-Z][\w'’-]+)*?) {_ROAD}"
            r"(?:,? (?:City Centre|Chesterton|Fen Ditton|Cherry Hinton|[A-Z][\w'’-]+))*"
        ),
    },
    "wikitext2": {"number": r"\d+"},
}


@dataclass(frozen=True)
class Regex:
    """Flags what ``pattern`` finds; the kind is the name of the group that matched.

    No character class of the built-in pattern matches ``<`` or ``>``: a text that already holds
    ``<MASK>`` is labelled around the mask as if the mask were not there (Proposition 5
    needs labels that do not change elsewhere when one secret is masked). Where people wrote the
    text a span may still take a neighbour along: ``tagger.label_stability`` counts how often.
    """

    name: str
    pattern: re.Pattern[str]

    def __call__(self, points: Sequence[Point]) -> Labels:
        find = self.pattern.finditer
        return [
            tuple(Secret(m.lastgroup, *m.span(m.lastgroup)) for m in find(p.text)) for p in points
        ]


def regex(corpus: str = "customersim") -> Regex:
    """The regular expressions for the kinds of a corpus, and for the digits of a canary.

    Made from the *shape* of the secrets (two capitalised words in a row, ten capitals or digits,
    a street and a postcode, ...), without labels, for points without context. That is perfect
    where a simulator made the shapes (customersim) or where every digit is a secret (wikitext2);
    people who write as they like are another matter (schema_guided, multiwoz: see ``tagger``).
    """
    if corpus not in _SHAPES:
        raise ValueError(f"corpus={corpus!r}: must be one of {', '.join(_SHAPES)}")
    kinds = [f"(?P<{kind}>{pattern})" for kind, pattern in _SHAPES[corpus].items()]
    return Regex("regex", re.compile("|".join([r"\bID is:? (?P<id>\d{4,})", *kinds])))


@dataclass(frozen=True)
class Oracle:
    """Flags the labelled secrets: the perfect policy of the paper's "non-private with masks"."""

    name: str = "oracle"

    def __call__(self, points: Sequence[Point]) -> Labels:
        return [p.secrets for p in points]


def oracle() -> Oracle:
    """The policy that knows the labels."""
    return Oracle()


@dataclass(frozen=True)
class Everything:
    """Flags the whole text of every point: as ``pi_c`` it makes every point private."""

    name: str = "everything"

    def __call__(self, points: Sequence[Point]) -> Labels:
        return [(Secret("text", 0, len(p.text)),) if p.text else () for p in points]


def everything() -> Everything:
    """The most conservative policy: recall 1, nothing is public."""
    return Everything()


@dataclass(frozen=True)
class Miss:
    """``policy``, of whose spans each is dropped with probability ``gamma``. See ``miss``."""

    policy: Policy
    gamma: float
    seed: int
    per: Literal["occurrence", "value"]

    @property
    def name(self) -> str:
        return f"{self.policy.name} (misses {self.gamma:g} per {self.per})"

    def _coin(self, point: Point, s: Secret) -> float:
        """Uniform on [0, 1), a function of what is hashed and of nothing else."""
        key = [str(self.seed), *([point.id] if self.per == "occurrence" else [])]
        key.append(point.text[s.start : s.end])
        digest = hashlib.blake2b("\x1f".join(key).encode(), digest_size=8).digest()
        return (int.from_bytes(digest, "big") >> 11) * 2.0**-53

    def __call__(self, points: Sequence[Point]) -> Labels:
        return [
            tuple(s for s in spans if self._coin(p, s) >= self.gamma)
            for p, spans in zip(points, self.policy(points), strict=True)
        ]


def miss(
    policy: Policy, gamma: float, seed: int, per: Literal["occurrence", "value"] = "occurrence"
) -> Miss:
    """The dial: ``policy`` with miss rate ``gamma`` in [0, 1] on what it would have found.

    ``per="occurrence"`` tosses a coin for each point and value, so that a secret which stands in
    twenty points is missed in about ``20 * gamma`` of them; ``per="value"`` tosses one coin for a
    value wherever it stands. The coin is a hash, not the next number of a generator: masking one
    secret, or adding a point, changes no other label, which Proposition 5 needs. For the same
    reason equal values within one point share their coin: counting them would let the mask of
    the first change the second. What is missed at some ``gamma`` is missed at every larger one.
    """
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma={gamma}: must be in [0, 1]")
    if per not in ("occurrence", "value"):
        raise ValueError(f"per={per!r}: must be one of occurrence, value")
    return Miss(policy, gamma, seed, per)


@dataclass(frozen=True)
class Checked:
    """``policy``, whose mistakes become one line that names it. See ``checked``."""

    policy: Policy

    @property
    def name(self) -> str:
        return getattr(self.policy, "name", None) or type(self.policy).__name__

    def __call__(self, points: Sequence[Point]) -> Labels:
        try:
            labels = [tuple(spans) for spans in self.policy(points)]
        except Exception as error:  # its message may quote the text
            raise ValueError(f"policy={self.name!r}: failed with {type(error).__name__}") from None
        if len(labels) != len(points):
            raise ValueError(
                f"policy={self.name!r}: gave {len(labels)} labels for {len(points)} points"
            )
        for p, spans in zip(points, labels, strict=True):
            try:
                check_spans(p.text, spans)
            except (ValueError, AttributeError, TypeError) as error:
                why = str(error) if isinstance(error, ValueError) else "its spans are no Secrets"
                raise ValueError(f"policy={self.name!r}: point {p.id!r}: {why}") from None
        return labels


def checked(policy: Policy) -> Checked:
    """``policy``, refused with a ``ValueError`` where it raises, or returns labels for another
    number of points or spans that are unsorted, overlap or lie outside their text.

    No text is shown, and the exception that a policy raised is not chained, as it may quote one.
    """
    return Checked(policy)


POLICIES = {"regex": regex, "oracle": oracle, "everything": everything}
"""The policies that need no folder, package or model."""

_LOADED = {"tagger": "FOLDER", "ner": "NAME", "flair": "NAME"}
NAMES = (
    *POLICIES,
    "regex:CORPUS",
    "presidio",
    *(f"{kind}{c}:{what}" for kind, what in _LOADED.items() for c in ("", "_conservative")),
)
"""What a command line can say; NAME is that of a model on the hub, or its folder."""


def policy_by_name(name: str, corpus: str = "customersim") -> Policy:
    """The policy called ``name``, one of ``NAMES``; ``ValueError`` with what is allowed otherwise.

    "regex:CORPUS" looks for the shapes of that corpus' secrets, "regex" for those of ``corpus``.
    Names that end in ``_conservative`` also flag plain text with a score under 0.9 (A.4).
    """
    kind, _, where = name.partition(":")
    of, careful = kind.removesuffix("_conservative"), kind.endswith("_conservative")
    if kind == "regex":
        return regex(where or corpus)
    if name in POLICIES:
        return POLICIES[name]()
    if name == "presidio":
        from crtlib import detectors

        return checked(detectors.presidio())
    if where and of == "tagger":
        from crtlib import tagger

        made = tagger.load(where)
        return checked(tagger.conservative(made) if careful else tagger.redacting(made))
    if where and of in _LOADED:
        from crtlib import detectors

        make = detectors.transformers_ner if of == "ner" else detectors.flair
        return checked(make(where, plain=0.9 if careful else 0.0))
    raise ValueError(f"policy={name!r}: must be one of {', '.join(NAMES)}")


def annotate(corpus: Corpus, policy: Policy) -> Corpus:
    """``corpus`` with the policy's spans, turn by turn, in place of its labels."""
    labels = iter(checked(policy)(corpora.points(corpus, unit="turn")))
    dialogues = []
    for d in corpus.dialogues:
        turns = []
        for turn in d.turns:
            shift = len(corpora.prefix(turn))  # the spans are those of the point "USR: text"
            moved = [Secret(s.kind, max(s.start - shift, 0), s.end - shift) for s in next(labels)]
            turns.append(replace(turn, secrets=tuple(s for s in moved if s.end > 0)))
        dialogues.append(replace(d, turns=tuple(turns)))
    return replace(corpus, dialogues=tuple(dialogues))


def miss_rate_upper(misses: int, secrets: int, *, confidence: float = 0.95) -> float:
    """Clopper-Pearson one-sided upper bound of a miss rate, from independent labelled secrets.

    With probability ``confidence`` over the labelled sample the true rate is at most this: 0 of
    200 gives 0.01487, and 8e-5 (the paper's delta) takes 37,446 secrets without a miss.
    """
    if not 0 <= misses <= secrets:
        raise ValueError(f"misses={misses}: must be in [0, {secrets}], the number of secrets")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence}: must be in (0, 1)")
    if misses == secrets:
        return 1.0
    return float(beta.ppf(confidence, misses + 1, secrets - misses))


def missed(point: Point, spans: Sequence[Secret]) -> tuple[Secret, ...]:
    """The labelled secrets of which ``spans`` (sorted) leave anything in clear."""
    left = []
    for s in point.secrets:
        at = s.start
        for f in spans:
            if f.start <= at:
                at = max(at, f.end)
        if at < s.end:
            left.append(s)
    return tuple(left)


def recall(
    points: Sequence[Point], labels: Sequence[tuple[Secret, ...]], *, confidence: float = 0.95
) -> pd.DataFrame:
    """How many labelled secrets the flagged spans ``labels`` catch, by kind and in the row "all".

    A secret is caught where every one of its characters is flagged and no gap is between the
    spans: half a telephone number in clear is a miss. Columns: ``secrets``, ``caught``, ``recall``,
    ``miss_upper`` (upper confidence bound of the miss rate, so 1 - it bounds recall from below),
    ``flagged`` (spans of that kind by the policy), ``precision`` (the share of them that touch a
    secret) and its lower bound ``precision_lower``. NaN where there is nothing to divide by. The
    bounds are for independent secrets: copies of one value promise less.
    """
    secrets: dict[str, int] = defaultdict(int)
    caught: dict[str, int] = defaultdict(int)
    flagged: dict[str, int] = defaultdict(int)
    right: dict[str, int] = defaultdict(int)
    for p, spans in zip(points, labels, strict=True):
        left = missed(p, spans)
        for s in p.secrets:
            secrets[s.kind] += 1
            caught[s.kind] += s not in left
        for f in spans:
            flagged[f.kind] += 1
            right[f.kind] += any(f.start < s.end and s.start < f.end for s in p.secrets)
    rows = {}
    for kind in (*sorted({*secrets, *flagged}), "all"):
        n, c, f, r = (
            sum(d.values()) if kind == "all" else d[kind] for d in (secrets, caught, flagged, right)
        )
        rows[kind] = {
            "secrets": n,
            "caught": c,
            "recall": c / n if n else math.nan,
            "miss_upper": miss_rate_upper(n - c, n, confidence=confidence),
            "flagged": f,
            "precision": r / f if f else math.nan,
            "precision_lower": 1 - miss_rate_upper(f - r, f, confidence=confidence),
        }
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("kind")
    return table.astype(dict.fromkeys(("secrets", "caught", "flagged"), int))
