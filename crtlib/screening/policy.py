"""What a policy is: a named value that answers points with spans, which are checked.

>>> from crtlib.screening.detectors import word_spans
>>> from crtlib.text.records import Point, Secret
>>> first = Policy("first", lambda points: [[Secret("x", 0, 1)] for p in points])
>>> first([Point("0", "u", "hi")])
[(Secret(kind='x', start=0, end=1),)]
>>> Policy("mute", lambda points: [])([Point("0", "u", "hi")])
Traceback (most recent call last):
...
crtlib.screening.policy.UnansweredError: policy='mute': 0 answers for 1 points
>>> word_spans("my ID: 12")
[(0, 2), (3, 5), (5, 6), (7, 9)]
"""

from __future__ import annotations

import hashlib
import json
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
from crtlib.screening.teaching_digests import Teaching
from crtlib.text.data_points import spoken_spans
from crtlib.text.records import Point, Secret

FlagFunction = Callable[[Sequence[Point]], Iterable[Iterable[Secret]]]


class UnansweredError(ValueError):
    """A policy took too long on a turn, or answered for another number of points than it was given.
    The message gives a turn's number among those that were given, and quotes no text."""


@dataclass(frozen=True)
class Policy:
    """A screening policy (CRT, section 3.2: the labelling function pi, or pi_c).

    ``flag`` maps points to spans, and each call checks its answer. ``ValueError`` names the policy
    if ``flag`` raises, answers for another number of points, or returns spans that are unsorted,
    overlap or lie outside their text. The error shows no text, and an exception that ``flag``
    raised is not chained, since it may quote text.

    ``name`` is the policy's name on a command line.

    ``learned``: the policy was taught from labels, so only other labels may judge it, and its rates
    hold for text like those labels; ``taught_by`` records what they were, where that is known.

    ``own_words``: ``flag`` is given each turn's own words, without the speaker, and its spans are
    cut around any ``<MASK>`` that is already there.

    ``flags_everything``: the policy flags every character of every text, which each call checks,
    and an empty text too (its span is [0, 0)). So it reads the speakers and the masks as well,
    whatever ``own_words`` is.

    ``batched``: ``flag`` takes many points at once, for speed, and answers for each as if it were
    alone. Otherwise it is given one point at a time, since a guarantee requires that a secret
    decides nothing about other points.

    ``reads_ids``: the policy is shown the id, user and dialogue_id of a point. Any other policy is
    shown points without these, so that it answers the same for two points with one text.
    Deduplication needs that (:func:`check_text_alone`).

    ``reads_labels``: the policy is shown the labelled secrets, as the oracle is. Any other policy
    is shown points without labels, so that what judges it cannot help it.
    """

    name: str
    flag: FlagFunction = field(repr=False)
    learned: bool = False
    taught_by: tuple[Teaching, ...] = field(default=(), repr=False)
    own_words: bool = False
    flags_everything: bool = False
    batched: bool = False
    reads_ids: bool = False
    reads_labels: bool = False

    @property
    def teaching_hashes(self) -> str | None:
        """Hashes of what taught the policy, joined by commas; "unknown" where that is not known,
        and None where nothing did."""
        teaching_texts = [json.dumps([*map(sorted, vars(t).values())]) for t in self.taught_by]
        hashes = [hashlib.sha256(text.encode()).hexdigest() for text in teaching_texts]
        return ", ".join(hashes) or ("unknown" if self.learned else None)

    def __call__(self, points: Sequence[Point]) -> FlaggedSpans:
        """The flagged spans of each point, sorted and disjoint.

        Args:
            points: Any number, from any corpus.

        Returns:
            The spans of each point, by characters of its own text.

        Raises:
            ValueError: If the policy fails, answers for another number of points, gives spans that
                are unsorted, overlap or lie outside their text, or is to flag everything and leaves
                text in clear. No text is quoted.

        Guarantee:
            A policy that is not ``batched`` is given one point at a time, so a secret decides
            nothing about another point. One without ``reads_ids`` is shown no id, user or
            conversation, and one without ``reads_labels`` no label. One that claims to
            flag everything is held to it, and flags every point, whatever its text. Tests:
            ``tests/screening/test_policy.py::test_a_policy_is_asked_for_one_point_at_a_time``,
            ``tests/screening/test_repeats.py::
            test_a_policy_is_shown_no_id_and_no_user_unless_it_says_so``,
            ``tests/screening/test_policy.py::
            test_no_policy_but_the_oracle_is_shown_the_labels_that_judge_it``,
            ``tests/screening/test_policy.py::
            test_a_policy_that_says_it_flags_everything_is_held_to_it``,
            ``tests/screening/test_policy.py::
            test_what_flags_everything_makes_an_empty_message_private``.
        """
        if self.own_words and not self.flags_everything:
            return self._of_turns(points)
        label = f"policy={self.name!r}"
        flags: FlaggedSpans = []
        shown_points = [self._shown_point(p) for p in points]
        try:
            for batch in [shown_points] if self.batched else [[point] for point in shown_points]:
                answers = [tuple(spans) for spans in self.flag(batch)]
                if len(answers) != len(batch):
                    counts = f"{len(answers)} answers for {len(batch)} points"
                    raise UnansweredError(f"{label}: {counts}")
                flags += answers
        except UnansweredError:  # it quotes no text
            raise
        except Exception as error:  # its message may quote the text
            raise ValueError(f"{label}: failed with {type(error).__name__}") from None
        if self.flags_everything:  # an empty text has no character that could be flagged
            flags = [
                spans if p.text else (Secret("text", 0, 0),)
                for p, spans in zip(points, flags, strict=True)
            ]
        flags = check_flagged_spans(points, flags, label)
        for p, spans in zip(points, flags, strict=True):
            leaves_text = any(c.start < c.end for c in unmasked_pieces(p.text, spans))
            if self.flags_everything and leaves_text:  # rates rely on it
                raise ValueError(f"{label}: claims to flag everything, but leaves text unmasked")
        return flags

    def _of_turns(self, points: Sequence[Point]) -> FlaggedSpans:
        """The answer for the own words of each turn, moved to the places in the points and cut
        around masks."""
        turn_places = [(k, p, a, b) for k, p in enumerate(points) for a, b in spoken_spans(p)]
        turns = [
            Point(
                p.id if self.reads_ids else "",
                p.user if self.reads_ids else "",
                p.text[a:b],
                clip_to_pieces(p.secrets, [UnmaskedPiece(a, b, -a)]) if self.reads_labels else (),
                dialogue_id=p.dialogue_id if self.reads_ids else "",
            )
            for _, p, a, b in turn_places
        ]
        flags: list[list[Secret]] = [[] for _ in points]
        answers = replace(self, own_words=False)(turns)
        for (k, _, a, b), turn, spans in zip(turn_places, turns, answers, strict=True):
            flags[k] += clip_to_pieces(cut_around_masks(turn.text, spans), [UnmaskedPiece(0, b, a)])
        return list(map(tuple, flags))

    def _shown_point(self, p: Point) -> Point:
        """The point without what the policy is not shown: names and labels."""
        name, user, dialogue_id = (p.id, p.user, p.dialogue_id) if self.reads_ids else ("", "", "")
        secrets = p.secrets if self.reads_labels else ()
        if (p.id, p.user, p.dialogue_id, p.secrets) == (name, user, dialogue_id, secrets):
            return p
        return Point(name, user, p.text, secrets, p.spoken_spans, dialogue_id)


def check_text_alone(*policies: Policy) -> None:
    """Refuse a policy that reads ids or users where points are deduplicated. It might flag only one
    of two copies, and which of them is read would depend on who said the other.

    Raises:
        ValueError: In one line that names the policy and states what to do.
    """
    for policy in policies:
        if policy.reads_ids:
            raise ValueError(
                f"policy={policy.name!r}: reads ids or users, so copies of a text may be flagged "
                "in two ways; set dedup to none, or take a policy that reads only the text"
            )


def check_reads_no_label(*policies: Policy) -> None:
    """Refuse a policy that reads labels where labels are to judge it: it flags whatever they say.

    Raises:
        ValueError: In one line that names the policy.
    """
    for policy in policies:
        if policy.reads_labels:
            raise ValueError(
                f"policy={policy.name!r}: reads the labels that were to judge it, so they say "
                "nothing about it; must be a policy that reads the text alone"
            )


def as_policy(policy: FlagFunction) -> Policy:
    """``policy`` as a ``Policy``, named after its attribute ``name`` or after its type."""
    if isinstance(policy, Policy):
        return policy
    return Policy(getattr(policy, "name", None) or type(policy).__name__, policy)


# --------------------------------------------------------------------------- stable
def _flags_when_masked(pi: Policy, jobs: Sequence[tuple[Point, Spans]]) -> Iterator[Spans]:
    """For each point what ``pi`` flags if some spans are masked, at its place in the point."""
    masked = [redact(p, spans) for p, spans in jobs]
    for (p, spans), neighbour, flags in zip(jobs, masked, pi(masked), strict=True):
        pieces = unmasked_pieces(p.text, spans)
        inverse_pieces = []
        for piece in pieces:
            start, end = piece.start + piece.shift, piece.end + piece.shift
            inverse_pieces.append(UnmaskedPiece(start, end, -piece.shift))
        yield clip_to_pieces(cut_around_masks(neighbour.text, flags), inverse_pieces)


def stable_under_masking(policy: FlagFunction) -> Policy:
    """A policy that flags what ``policy`` still flags when everything else it flags is masked.

    A policy that reads context may flag a word beside a secret but not beside the secret's mask.
    That is a trace although nothing was missed. So each span is checked again with all others
    masked, including those that are flagged only beside masks: whether it stays no longer depends
    on the value of another span. A turn in which nothing is flagged costs no extra time.

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
            (p, tuple(other_span for other_span in spans if other_span is not span))
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
