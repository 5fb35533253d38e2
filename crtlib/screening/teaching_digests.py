"""Digests of the text that taught a policy, by which it is known again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from crtlib.screening.redaction import overlapping_pairs
from crtlib.text.data_points import spoken_spans
from crtlib.text.identity import normalise_text
from crtlib.text.records import Point, Secret


@dataclass(frozen=True)
class Teaching:
    """Digests of what taught a policy: of the turns with a secret, of all words and their shapes,
    and of all people whose turns taught it, with a secret or without.

    Digests name nobody, but whoever has them can try out names and texts, so they are private.
    """

    turns: frozenset[str] = field(repr=False)
    words: frozenset[int] = field(repr=False)
    shapes: frozenset[int] = field(repr=False)
    people: frozenset[str] = field(default=frozenset(), repr=False)

    def repeats_taught_words(self, point: Point) -> bool:
        """Whether this labelled point would judge the policy on what taught it: the same words with
        a secret, whoever says them. (Older taggers recorded the people who said such words, but not
        the other people who taught them.)"""
        digests = {*digest_secret_turns(point), _digest_of_teaching(f"user\x1f{point.user}")}
        return not self.turns.isdisjoint(digests)

    def was_taught_by(self, point: Point) -> bool:
        """Whether a turn of the same person taught the policy, whatever they said; where no name is
        known, a turn of the same conversation."""
        return digest_teaching_person(point.user, point.dialogue_id) in self.people


def digest_secret_turns(point: Point) -> Iterator[str]:
    """The digest of each turn in the point that holds a labelled secret. It is the same whoever
    says the turn, and for every unit of points."""
    turns = [Secret("turn", a, b) for a, b in spoken_spans(point) if a < b]
    for turn in dict.fromkeys(turn for turn, _ in overlapping_pairs(turns, point.secrets)):
        yield _digest_of_teaching(f"turn\x1f{normalise_text(point.text[turn.start : turn.end])}")


def digest_teaching_person(user: str, dialogue_id: str) -> str:
    """The digest of the person who says a turn, or of the conversation where no name is known."""
    return _digest_of_teaching(f"person\x1f{user}" if user else f"thread\x1f{dialogue_id}")


def _digest_of_teaching(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=12).hexdigest()
