"""What a policy is: a value with a name that answers points with spans, checked.

>>> from crtlib.screening.detectors import word_spans
>>> from crtlib.text.records import Point, Secret
>>> first = Policy("first", lambda points: [[Secret("x", 0, 1)] for p in points])
>>> first([Point("0", "u", "hi")])
[(Secret(kind='x', start=0, end=1),)]
>>> Policy("mute", lambda points: [])([Point("0", "u", "hi")])
Traceback (most recent call last):
...
crtlib.screening.policy.UnansweredError: policy='mute': 0 labels for 1 points
>>> word_spans("my ID: 12")
[(0, 2), (3, 5), (5, 6), (7, 9)]
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from crtlib.screening.redaction import (
    FlaggedSpans,
    Spans,
    UnmaskedPiece,
    check_flagged_spans,
    clip_to_pieces,
    cut_around_masks,
    merge_spans,
    overlapping_pairs,
    redact,
    unmasked_pieces,
)
from crtlib.text.identity import normalise_text
from crtlib.text.records import Point, Secret

FlagFunction = Callable[[Sequence[Point]], Iterable[Iterable[Secret]]]


@dataclass(frozen=True)
class Teaching:
    """Digests of the turns with a secret that taught a policy, of its words and of their shapes,
    and of all people of whom a turn taught it, with a secret or without.

    Digests name nobody, but who has them can try names and texts: they are private.
    """

    turns: frozenset[str]
    words: frozenset[int]
    shapes: frozenset[int]
    people: frozenset[str] = frozenset()

    def judged_by(self, point: Point) -> bool:
        """Whether this labelled point would judge what it taught: the same words with a secret,
        whoever says them. (An older tagger kept who said those, and not who taught besides.)"""
        digests = {*digest_secret_turns(point), _digest_of_teaching(f"user\x1f{point.user}")}
        return not self.turns.isdisjoint(digests)

    def was_taught_by(self, point: Point) -> bool:
        """Whether a turn of the same person taught it, whatever they said; without a name, of the
        same conversation."""
        return digest_teaching_person(point.user, point.dialogue_id) in self.people


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


class UnansweredError(ValueError):
    """A policy took too long on a turn, or answered another number of points than it was asked for.
    It says which, by its number among those that were asked for, and quotes no text."""


@dataclass(frozen=True)
class Policy:
    """A screening policy (CRT, section 3.2: the labelling function pi, or pi_c).

    ``flag`` maps points to spans; a call checks what it answers, and ``ValueError`` names the
    policy where it raises, or returns labels for another number of points, or spans that are
    unsorted, overlap or lie outside their text. No text is shown, and the exception that ``flag``
    raised is not chained, as it may quote one.

    ``name`` is what a command line says. ``learned``: it was taught from labels, so that only
    others may judge it and its numbers are for text like them; ``taught_by`` says what those were,
    where that is known. ``own_words``: ``flag`` gets the words of each turn alone, without the
    speaker, and what it says is cut around a ``<MASK>`` that is there already. ``total``: it flags
    every character of every text, which each call checks; so it reads the speakers and the masks as
    well, whatever ``own_words`` says. ``batched``: ``flag`` takes many points at once, for speed,
    and answers each as if it stood alone; otherwise it is asked for one point at a time, as a
    guarantee needs that a secret decides nothing about other points. ``reads_ids``: it is shown
    whose a point is and what it is called; every other policy gets points without id, user and
    dialogue_id, so that of two points with one text it says the same. Deduplication needs that
    (:func:`check_text_alone`).
    """

    name: str
    flag: FlagFunction = field(repr=False)
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

    def __call__(self, points: Sequence[Point]) -> FlaggedSpans:
        """The flagged spans of each point, sorted and disjoint.

        Args:
            points: Any number, of any corpus.

        Returns:
            The spans of each point, by characters of its own text.

        Raises:
            ValueError: The policy fails, answers for another number of points, gives spans that lie
                outside their text, or says ``total`` and leaves text in clear. No text is quoted.

        Guarantee:
            A policy that is not ``batched`` is asked for one point at a time, so a secret decides
            nothing about another point; one that does not say ``reads_ids`` is shown no id, user or
            conversation; one that says ``total`` is held to it. Tests:
            ``tests/screening/test_policy.py::test_a_policy_is_asked_for_one_point_at_a_time``,
            ``tests/screening/test_repeats.py::
            test_a_policy_is_shown_no_id_and_no_user_unless_it_says_so``,
            ``tests/screening/test_policy.py::
            test_a_policy_that_says_it_flags_everything_is_held_to_it``.
        """
        if self.own_words and not self.total:
            return self._of_turns(points)
        who = f"policy={self.name!r}"
        labels: FlaggedSpans = []
        shown = points if self.reads_ids else [_anonymous_point(p) for p in points]
        try:
            for batch in [shown] if self.batched else [[point] for point in shown]:
                answers = [tuple(spans) for spans in self.flag(batch)]
                if len(answers) != len(batch):
                    raise UnansweredError(f"{who}: {len(answers)} labels for {len(batch)} points")
                labels += answers
        except UnansweredError:  # what quotes no text
            raise
        except Exception as error:  # its message may quote the text
            raise ValueError(f"{who}: failed with {type(error).__name__}") from None
        labels = check_flagged_spans(points, labels, who)
        for p, spans in zip(points, labels, strict=True):  # rates take "total" at its word
            if self.total and any(c.start < c.end for c in unmasked_pieces(p.text, spans)):
                raise ValueError(f"{who}: total, but leaves text in clear")
        return labels

    def _of_turns(self, points: Sequence[Point]) -> FlaggedSpans:
        """The answer on the own words of each turn, with the labels in them, as one on the points;
        cut around the masks in them."""
        at = [(k, p, a, b) for k, p in enumerate(points) for a, b in spoken_spans(p)]
        turns = [
            Point(
                p.id if self.reads_ids else "",
                p.user if self.reads_ids else "",
                p.text[a:b],
                clip_to_pieces(p.secrets, [UnmaskedPiece(a, b, -a)]),
            )
            for _, p, a, b in at
        ]
        labels: list[list[Secret]] = [[] for _ in points]
        answers = replace(self, own_words=False)(turns)
        for (k, _, a, b), turn, spans in zip(at, turns, answers, strict=True):
            labels[k] += clip_to_pieces(
                cut_around_masks(turn.text, spans), [UnmaskedPiece(0, b, a)]
            )
        return list(map(tuple, labels))


def _anonymous_point(point: Point) -> Point:
    """The point as its text alone, with its labels: without id, user and dialogue_id."""
    if not (point.id or point.user or point.dialogue_id):
        return point
    return Point("", "", point.text, point.secrets, point.spoken_spans)


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


def as_policy(policy: FlagFunction) -> Policy:
    """``policy`` as a ``Policy``, named after its attribute ``name`` or after its type."""
    if isinstance(policy, Policy):
        return policy
    return Policy(getattr(policy, "name", None) or type(policy).__name__, policy)


# --------------------------------------------------------------------------- steady
def _flags_when_masked(pi: Policy, jobs: Sequence[tuple[Point, Spans]]) -> Iterator[Spans]:
    """Of each point what ``pi`` flags where some spans are masked, at its place in the point."""
    masked = [redact(p, spans) for p, spans in jobs]
    for (p, spans), neighbour, flags in zip(jobs, masked, pi(masked), strict=True):
        pieces = unmasked_pieces(p.text, spans)
        back = [UnmaskedPiece(c.start + c.shift, c.end + c.shift, -c.shift) for c in pieces]
        yield clip_to_pieces(cut_around_masks(neighbour.text, flags), back)


def stable_under_masking(policy: FlagFunction) -> Policy:
    """Flags what ``policy`` flags also where all else that it flags is masked.

    What reads context flags a neighbour beside a secret and not beside its mask, which is a trace
    though nothing was missed. So each span is asked about again with all others masked, those
    included that are flagged beside their masks only: whether it stays no longer depends on the
    value of another. A turn in which nothing is flagged costs no more.

    >>> from crtlib.text.records import Point
    >>> def both(points):  # flags 2 as well beside 1
    ...     return [[Secret("x", k, k + 1) for k, c in enumerate(p.text)
    ...              if c == "1" or (c == "2" and "1" in p.text)] for p in points]
    >>> stable_under_masking(Policy("both", both))([Point("0", "u", "1 or 2")])
    [(Secret(kind='x', start=0, end=1),)]
    """
    pi = as_policy(policy)

    def flag(points: Sequence[Point]) -> FlaggedSpans:
        flags = pi(points)
        flagged = [(p, spans) for p, spans in zip(points, flags, strict=True) if spans]
        candidates = [
            (p, merge_spans([spans, beside_masks]))
            for (p, spans), beside_masks in zip(
                flagged, _flags_when_masked(pi, flagged), strict=True
            )
        ]
        others_masked = [
            (p, tuple(other for other in spans if other is not span))
            for p, spans in candidates
            for span in spans
        ]
        answers = _flags_when_masked(pi, others_masked)
        stable = iter(
            [
                [flag for span in spans for flag, _ in overlapping_pairs(next(answers), [span])]
                for _, spans in candidates
            ]
        )
        return [merge_spans([next(stable)]) if spans else () for spans in flags]

    return replace(pi, flag=flag, own_words=False, batched=True)


# --------------------------------------------------------------------------- by name
PolicyFactory = Callable[[str], Policy]


@dataclass(frozen=True)
class PolicyMaker:
    """How a name becomes a policy. ``takes``: ``""``, ``":FILE"`` (needed), ``"[:FILE]"``."""

    name: str
    takes: str
    make: PolicyFactory
    learned: bool = False


REGISTERED_MAKERS: dict[str, PolicyMaker] = {}
"""What has been registered so far; :func:`crtlib.screening.policy_names.available_policies` knows
all names."""


def register_policy(
    name: str, takes: str = "", *, learned: bool = False
) -> Callable[[PolicyFactory], PolicyFactory]:
    """Make a policy reachable by ``name`` on every command line and in every setting.

    A package of your own registers by being imported, or without that through the entry point
    group ``crtlib.policies``, whose names are those of policies and whose values are such
    functions.

    Args:
        name: Lower-case letters, digits and _.
        takes: What follows the name: "" nothing, ":FILE" what has to, "[:FILE]" what may.
        learned: Whether it was taught from labels, as :class:`Policy` says it, for those who must
            know before it is made.

    Returns:
        A decorator of the function that makes the policy, which gets what follows the colon.

    Raises:
        ValueError: For a name of other signs.

    Guarantee:
        A policy that was taught is known as such by its name, so only others judge it. Test:
        ``tests/screening/test_own_policies.py::
        test_a_strangers_policy_that_was_taught_is_known_by_its_name``.

    >>> @register_policy("shouting", ":WORD")
    ... def _(word):
    ...     return Policy(f"shouting:{word}", lambda points: [() for p in points])
    >>> REGISTERED_MAKERS.pop("shouting").make("hey").name
    'shouting:hey'
    """
    if not re.fullmatch(r"[a-z]\w*", name):
        raise ValueError(f"name={name!r}: must be lower-case letters, digits and _")

    def add(make: PolicyFactory) -> PolicyFactory:
        REGISTERED_MAKERS[name] = PolicyMaker(name, takes, make, learned)
        return make

    return add


def spoken_spans(point: Point) -> tuple[tuple[int, int], ...]:
    """Where the turns' own words stand in a point."""
    return point.spoken_spans or ((0, len(point.text)),)


def digest_secret_turns(point: Point) -> Iterator[str]:
    """Of each turn of the point that holds a labelled secret, whoever says it; the same for each
    unit."""
    turns = [Secret("turn", a, b) for a, b in spoken_spans(point) if a < b]
    for turn in dict.fromkeys(turn for turn, _ in overlapping_pairs(turns, point.secrets)):
        yield _digest_of_teaching(f"turn\x1f{normalise_text(point.text[turn.start : turn.end])}")


def digest_teaching_person(user: str, dialogue_id: str) -> str:
    """Of who says a turn: of the person, or of the conversation where no name is known."""
    return _digest_of_teaching(f"person\x1f{user}" if user else f"thread\x1f{dialogue_id}")


def _digest_of_teaching(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=12).hexdigest()
