"""What a policy is: a value with a name that answers points with spans, checked.

>>> from crtlib.text.records import Point, Secret
>>> first = Policy("first", lambda points: [[Secret("x", 0, 1)] for p in points])
>>> first([Point("0", "u", "hi")])
[(Secret(kind='x', start=0, end=1),)]
>>> Policy("mute", lambda points: [])([Point("0", "u", "hi")])
Traceback (most recent call last):
...
crtlib.screening.policy.Unanswered: policy='mute': 0 labels for 1 points
>>> words("my ID: 12")
[(0, 2), (3, 5), (5, 6), (7, 9)]

What taught a policy it must not be judged on, and its numbers are for text like that:

>>> known = teaching([Point("0", "ann", "I am Ada 12", (Secret("name", 5, 8),))])
>>> print(shift([Point("1", "bob", "I am Kurt 345"), Point("2", "bob", "so be it")], known))
71.4 % of the words and 0.0 % of their shapes are new to it
>>> known.judged_by(Point("0", "ann", "I am Ada 12", (Secret("name", 5, 8),)))
True
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from crtlib.checks import check
from crtlib.screening.redaction import (
    Clear,
    Labels,
    Spans,
    around,
    check_labels,
    clear,
    inside,
    merged,
    overlaps,
    redact,
)
from crtlib.text.records import MASK, Point, Secret, normal

Flag = Callable[[Sequence[Point]], Iterable[Iterable[Secret]]]


@dataclass(frozen=True)
class Teaching:
    """Digests of the turns with a secret that taught a policy, of the people who said them, of its
    words and of their shapes.

    Digests name nobody, but who has them can try names and texts: they are private.
    """

    turns: frozenset[str]
    words: frozenset[int]
    shapes: frozenset[int]

    def judged_by(self, point: Point) -> bool:
        """Whether this labelled point would judge what it, or its person, taught."""
        return any(digest in self.turns for digest in _digests(point))


@dataclass(frozen=True)
class Shift:
    """How unlike a text is to what taught a policy: the share of its ``of`` words that did not
    stand there, and of those whose shape did not. Near 0 for text of the same kind."""

    words: float
    shapes: float
    of: int

    def __str__(self) -> str:
        return (
            f"{100 * self.words:.1f} % of the words and {100 * self.shapes:.1f} % of their shapes "
            "are new to it"
        )


class Unanswered(ValueError):
    """A policy took too long on a turn, or answered another number of points than it was asked for.
    It says which, by its number among those that were asked for, and quotes no text."""


@dataclass(frozen=True)
class Policy:
    """A screening policy (CRT, section 3.2: the labelling function pi, or pi_c).

    ``flag`` maps points to spans; a call checks what it answers, and ``ValueError`` names the
    policy where it raises, or returns labels for another number of points, or spans that are
    unsorted, overlap or lie outside their text. No text is shown, and the exception that ``flag``
    raised is not chained, as it may quote one.

    ``name`` is what a command line says. ``learned``: it was taught
    from labels, so that only others may judge it and its numbers are for text like them;
    ``taught_by`` says what those were, where that is known. ``own_words``: ``flag`` gets the words
    of each turn alone, without the speaker, and what it says is cut around a ``<MASK>`` that is
    there already. ``total``: it flags every character of every text, which each call checks;
    so it reads the speakers and the masks as well, whatever ``own_words`` says.
    ``batched``: ``flag`` takes many points at once, for speed, and answers each as if it stood
    alone; otherwise it is asked for one point at a time, as a guarantee needs that a secret decides
    nothing about other points. ``reads_ids``: it is shown whose a point is and what it is called;
    every other policy gets points without id, user and thread, so that of two points with one text
    it says the same. Deduplication needs that (:func:`check_text_alone`).
    """

    name: str
    flag: Flag = field(repr=False)
    learned: bool = False
    taught_by: tuple[Teaching, ...] = field(default=(), repr=False)
    own_words: bool = False
    total: bool = False
    batched: bool = False
    reads_ids: bool = False

    @property
    def teachers(self) -> str | None:
        """Hashes of what taught it; None where nothing did."""
        taught = [json.dumps([*map(sorted, vars(t).values())]) for t in self.taught_by]
        hashes = [hashlib.sha256(text.encode()).hexdigest() for text in taught]
        return ", ".join(hashes) or ("unknown" if self.learned else None)

    def __call__(self, points: Sequence[Point]) -> Labels:
        """The flagged spans of each point, sorted and disjoint."""
        if self.own_words and not self.total:
            return self._of_turns(points)
        who = f"policy={self.name!r}"
        labels: Labels = []
        shown = points if self.reads_ids else [_of_nobody(p) for p in points]
        try:
            for lot in [shown] if self.batched else [[point] for point in shown]:
                found = [tuple(spans) for spans in self.flag(lot)]
                if len(found) != len(lot):
                    raise Unanswered(f"{who}: {len(found)} labels for {len(lot)} points")
                labels += found
        except Unanswered:  # what quotes no text
            raise
        except Exception as error:  # its message may quote the text
            raise ValueError(f"{who}: failed with {type(error).__name__}") from None
        labels = check_labels(points, labels, who)
        for p, spans in zip(points, labels, strict=True):  # rates take "total" at its word
            if self.total and any(c.start < c.end for c in clear(p.text, spans)):
                raise ValueError(f"{who}: total, but leaves text in clear")
        return labels

    def _of_turns(self, points: Sequence[Point]) -> Labels:
        """The answer on the own words of each turn, with the labels in them, as one on the points;
        cut around the masks in them."""
        at = [(k, p, a, b) for k, p in enumerate(points) for a, b in spoken(p)]
        turns = [
            Point(
                p.id if self.reads_ids else "",
                p.user if self.reads_ids else "",
                p.text[a:b],
                inside(p.secrets, [Clear(a, b, -a)]),
            )
            for _, p, a, b in at
        ]
        labels: list[list[Secret]] = [[] for _ in points]
        said = replace(self, own_words=False)(turns)
        for (k, _, a, b), turn, spans in zip(at, turns, said, strict=True):
            labels[k] += inside(around(turn.text, spans), [Clear(0, b, a)])
        return list(map(tuple, labels))


def _of_nobody(point: Point) -> Point:
    """The point as its text alone, with its labels: without id, user and thread."""
    if not (point.id or point.user or point.thread):
        return point
    return Point("", "", point.text, point.secrets, point.spoken)


def check_text_alone(*policies: Policy) -> None:
    """Refuse a policy that reads ids or users where points are deduplicated: of two copies it might
    flag one, and which of them is read would follow from who said the other.

    Raises:
        ValueError: In one line that names the policy and what to do.
    """
    for policy in policies:
        if policy.reads_ids:
            raise ValueError(
                f"policy={policy.name!r}: reads ids or users, so copies of a text may be flagged "
                "in two ways; deduplicate with dedup none, or take one that reads the text alone"
            )


def checked(policy: Flag) -> Policy:
    """``policy`` as a ``Policy``, named after its attribute ``name`` or after its type."""
    if isinstance(policy, Policy):
        return policy
    return Policy(getattr(policy, "name", None) or type(policy).__name__, policy)


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


# --------------------------------------------------------------------------- by name
Make = Callable[[str], Policy]


@dataclass(frozen=True)
class Maker:
    """How a name becomes a policy. ``takes``: ``""``, ``":FILE"`` (needed), ``"[:FILE]"``."""

    name: str
    takes: str
    make: Make
    learned: bool = False


MAKERS: dict[str, Maker] = {}
"""What has been registered so far; :func:`crtlib.screening.policies.known` knows all names."""


def register(name: str, takes: str = "", *, learned: bool = False) -> Callable[[Make], Make]:
    """Make a policy reachable by ``name`` on every command line and in every setting.

    The function gets what follows the colon, ``""`` if nothing does, and returns the policy;
    ``learned`` says of it what :class:`Policy` does, for those who must know before it is made. A
    package of your own registers by being imported, or without that through the entry point group
    ``crtlib.policies``, whose names are those of policies and whose values are such functions.

    >>> @register("shouting", ":WORD")
    ... def _(word):
    ...     return Policy(f"shouting:{word}", lambda points: [() for p in points])
    >>> MAKERS.pop("shouting").make("hey").name
    'shouting:hey'
    """
    if not re.fullmatch(r"[a-z]\w*", name):
        raise ValueError(f"name={name!r}: must be lower-case letters, digits and _")

    def add(make: Make) -> Make:
        MAKERS[name] = Maker(name, takes, make, learned)
        return make

    return add


# --------------------------------------------------------------------------- what taught it
def teaching(points: Sequence[Point]) -> Teaching:
    """What is kept of the points that teach a policy."""
    tokens = [t for p in points for t in _tokens(p)]
    return Teaching(
        turns=frozenset(d for p in points for d in _digests(p)),
        words=frozenset(map(_word, tokens)),
        shapes=frozenset(map(_shape, tokens)),
    )


def shift(points: Sequence[Point], known: Teaching, before: Shift = Shift(0.0, 0.0, 0)) -> Shift:
    """How unlike ``points`` are to what taught, and those ``before`` them; by occurrences of words
    in the turns' own text."""
    words, shapes, n = round(before.words * before.of), round(before.shapes * before.of), before.of
    for token in (t for p in points for t in _tokens(p)):
        n += 1
        words += _word(token) not in known.words
        shapes += _shape(token) not in known.shapes
    return Shift(words / max(n, 1), shapes / max(n, 1), n)


def spoken(point: Point) -> tuple[tuple[int, int], ...]:
    """Where the turns' own words stand in a point."""
    return point.spoken or ((0, len(point.text)),)


def _digests(point: Point) -> Iterator[str]:
    """Of each turn of the point that holds a labelled secret, whoever says it, and of who says
    these; the same for each unit."""
    turns = [Secret("turn", a, b) for a, b in spoken(point) if a < b]
    for turn in dict.fromkeys(turn for turn, _ in overlaps(turns, point.secrets)):
        text = normal(point.text[turn.start : turn.end])
        for said in (f"turn\x1f{text}", f"user\x1f{point.user}"):
            if point.user or said.startswith("turn"):
                yield hashlib.blake2b(said.encode("utf-8", "replace"), digest_size=12).hexdigest()


_TOKEN = re.compile(r"\w+")


def _tokens(point: Point) -> Iterable[str]:
    for a, b in spoken(point):
        yield from _TOKEN.findall(point.text, a, b)


def _word(token: str) -> int:
    return zlib.crc32(re.sub(r"\d", "0", token.lower()).encode("utf-8", "replace"))


def _shape(token: str) -> int:
    """Capitals A, other letters a, digits 9, a run of one class once: "McKay12" is AaAa9."""
    classes = ("9" if c.isdigit() else "A" if c.isupper() else "a" for c in token)
    return zlib.crc32(re.sub(r"(.)\1+", r"\1", "".join(classes)).encode())


# --------------------------------------------------------------------------- words
_WORDS = re.compile(rf"{re.escape(MASK)}|\w+(?:['’/@&+-]+\w+|(?<=\d)[.,:]\d\w*)*|[^\w\s]")

Floats = npt.NDArray[np.float64]


def words(text: str) -> list[tuple[int, int]]:
    """Where the words of a text stand: ``<MASK>``, runs of letters and digits, single signs."""
    return [m.span() for m in _WORDS.finditer(text)]


_PLAIN = re.compile(
    "[.,;:!?]|a|about|all|also|am|an|and|any|are|as|at|be|been|but|by|can|could|did|do|does|for|"
    "from|get|had|has|have|he|help|her|his|how|i|if|in|is|it|its|just|like|me|my|need|no|not|of|"
    "ok|on|or|our|please|she|so|some|thank|thanks|that|the|their|them|then|there|they|this|to|us|"
    "want|was|we|were|what|when|where|which|who|will|with|would|yes|you|your"
)
"""What ends no secret: function words without a capital, and the signs between sentences."""


def trimmed(text: str, flagged: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which words of a text are ``flagged``, less the plain ones at either end of each run.

    Where a secret is masked its neighbours are scored anew, and a "to" before it that is flagged in
    one text and not in the other is a trace. None is, beside a secret or a mask.

    >>> trimmed("pay it to Ada of Wien.", np.array([0, 0, 1, 1, 1, 1, 1], bool)).tolist()
    [False, False, False, True, True, True, False]
    """
    marks = (
        " " if not mark else "p" if _PLAIN.fullmatch(text[a:b]) else "x"
        for mark, (a, b) in zip(flagged, words(text), strict=True)
    )
    kept = np.zeros_like(flagged)
    for m in re.finditer("x(?:[px]*x)?", "".join(marks)):
        kept[m.start() : m.end()] = True
    return kept


def runs(
    text: str,
    flagged: npt.NDArray[np.bool_],
    begins: Floats,
    goes_on: Floats,
    kinds: Sequence[str],
) -> Spans:
    """Spans from the ``flagged`` words of a text: those next to each other are one secret, unless
    the second rather begins one than goes on. ``begins``, ``goes_on``: (words, kinds) scores."""
    at = words(text)
    each = np.array([i for i in np.flatnonzero(flagged) if text[slice(*at[i])] != MASK], dtype=int)
    new = (begins.sum(1) > goes_on.sum(1))[each[1:]] | (np.diff(each) > 1)
    groups = np.split(each, np.flatnonzero(new) + 1) if len(each) else []
    return tuple(
        Secret(kinds[int((begins[g] + goes_on[g]).sum(0).argmax())], at[g[0]][0], at[g[-1]][1])
        for g in groups
    )


# --------------------------------------------------------------------------- scores of words
Score = Callable[[Sequence[Point]], list[Floats]]
"""Points -> of each (words, 1 + 2 kinds): plain; then, of each kind, begins and goes on."""

THRESHOLD = 0.3
"""Which score of the kinds together flags a word (CRT, A.4)."""


def plain_under(threshold: float) -> float:
    """Under which score for plain a word is flagged, so that a ``threshold`` of the kinds flags it.
    Probabilities have six decimals: a score of exactly the threshold counts."""
    check("threshold", threshold, 0 < threshold <= 1, "in (0, 1]")
    return 1 - threshold + 5e-7


def detector(
    name: str, kinds: tuple[str, ...], score: Score, plain: float = plain_under(THRESHOLD)
) -> Policy:
    """Flags words whose ``score`` for plain is under ``plain``. Those next to each other are one
    secret, cut where one begins, of the kind that is likeliest over its words; a mask is none.

    It gets the turn's own words, without the speaker. It reads context, so what
    :mod:`crtlib.screening.tagger` says about Proposition 5 holds for it too.

    >>> def shouting(points):
    ...     return [np.array([[1 - w.isupper(), w.isupper(), 0.0] for w in p.text.split()])
    ...             for p in points]
    >>> detector("shouting", ("NAME",), shouting)([Point("0", "u", "call ADA now")])
    [(Secret(kind='NAME', start=5, end=8),)]
    """
    check("plain", plain, 0 <= plain <= 1, "in [0, 1]")

    def flag(points: Sequence[Point]) -> Iterator[Spans]:
        for point, p in zip(points, score(points), strict=True):
            flagged = trimmed(point.text, p[:, 0] < plain)
            yield runs(point.text, flagged, p[:, 1::2], p[:, 2::2], kinds)

    return Policy(name, flag, learned=True, own_words=True, batched=True)
