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
from crtlib.records import Corpus, Point, Secret

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


_WORD = r"[A-ZÀ-ÖØ-Þ](?:['’][A-ZÀ-ÖØ-Þ])?[a-zà-öø-ÿ]+(?:['’-]?[A-ZÀ-ÖØ-Þ]?[a-zà-öø-ÿ]+)*"
# Words that start a sentence, and are no first names: "Hello Ada Lovelace" holds one name.
_NO_NAME = (
    r"(?!(?:An?|And|At|But|By|Call|Certainly|Dear|For|From|Good|Here|Hello|Hey|Hi|How|If|In|Is|It|"
    r"Mister|Mrs?|Ms|My|No|Ok|Okay|On|Please|Right|Send|Shipping|Since|Sure|Thanks?|That|The|"
    r"They?|This|To|We|What|When|Where|Who|Why|Yea|Yeah|Yep|Yes|You|Your|"
    r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day)\b)"
)
_CUSTOMERSIM = {
    "address": r"(?<![\w-])(?:\d{1,6}(?: (?:Apt\.|#?\d+|[A-Z][\w'’-]+))+, [A-Z]{2} \d{5}(?:-\d{4})?"
    rf"|(?:PSC \d+, Box \d+|Unit \d+ Box \d+|US[A-Z]+ {_WORD}) [ADF]PO A[AEP] \d{{5}})\b",
    "order": r"(?<![\w-])\d{3}-\d{5}-\d{1,4}(?![\w-])",
    "phone": r"(?<![\w.-])(?:\+?1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-]?)\d{3}[ .-]?\d{4}(?![\w-])",
    "tracking": r"\b[A-Z0-9]{10}\b",
    "name": rf"\b{_NO_NAME}{_WORD}(?: [A-Z]\.)? {_WORD}\b",
}


@dataclass(frozen=True)
class Regex:
    """Flags what ``pattern`` finds; the kind is the name of the group that matched.

    No character class of the built-in pattern matches ``<`` or ``>``: a text that already holds
    ``<MASK>`` is labelled around the mask as if the mask were not there (Proposition 5
    needs labels that do not change elsewhere when one secret is masked).
    """

    name: str
    pattern: re.Pattern[str]

    def __call__(self, points: Sequence[Point]) -> Labels:
        find = self.pattern.finditer
        return [
            tuple(Secret(m.lastgroup, *m.span(m.lastgroup)) for m in find(p.text)) for p in points
        ]


def regex(corpus: str = "customersim") -> Regex:
    """The regular expressions for CustomerSim's five kinds, and for the digits of a canary.

    Made from the *shape* of the secrets (two capitalised words in a row, ten capitals or digits,
    a street and a postcode, ...), without labels, for points without context.
    """
    if corpus != "customersim":
        raise ValueError(f"corpus={corpus!r}: must be one of customersim")
    kinds = [f"(?P<{kind}>{pattern})" for kind, pattern in _CUSTOMERSIM.items()]
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


POLICIES = {"regex": regex, "oracle": oracle, "everything": everything}
"""The policies that a command line can name."""


def policy_by_name(name: str) -> Policy:
    """The policy called ``name``; ``ValueError`` with what is allowed otherwise."""
    if name not in POLICIES:
        raise ValueError(f"policy={name!r}: must be one of {', '.join(POLICIES)}")
    return POLICIES[name]()


def annotate(corpus: Corpus, policy: Policy) -> Corpus:
    """``corpus`` with the policy's spans, turn by turn, in place of its labels."""
    labels = iter(policy(corpora.points(corpus, unit="turn")))
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


def recall(
    points: Sequence[Point], labels: Sequence[tuple[Secret, ...]], *, confidence: float = 0.95
) -> pd.DataFrame:
    """How many labelled secrets the flagged spans ``labels`` catch, by kind and in the row "all".

    A secret is caught where every one of its characters is flagged. Columns: ``secrets``,
    ``caught``, ``recall``, ``miss_upper`` (upper confidence bound of the miss rate), ``flagged``
    (spans of that kind by the policy) and ``precision`` (the share of them that touch a secret).
    NaN where there is nothing to divide by.
    """
    secrets: dict[str, int] = defaultdict(int)
    caught: dict[str, int] = defaultdict(int)
    flagged: dict[str, int] = defaultdict(int)
    right: dict[str, int] = defaultdict(int)
    for p, spans in zip(points, labels, strict=True):
        for s in p.secrets:
            at = s.start
            for f in spans:
                if f.start <= at:
                    at = max(at, f.end)
            secrets[s.kind] += 1
            caught[s.kind] += at >= s.end
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
        }
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("kind")
    return table.astype(dict.fromkeys(("secrets", "caught", "flagged"), int))
