"""Recognise the text that taught a policy, and measure how much other text differs from it.

A policy must not be judged on text that taught it, and its failure rates hold for similar text
only.

>>> from crtlib.text.records import Secret
>>> teaching = digest_teaching_points([Point("0", "ann", "I am Ada 12", (Secret("name", 5, 8),))])
>>> others = [Point("1", "bob", "I am Kurt 345"), Point("2", "bob", "so be it")]
>>> print(measure_shift(others, teaching))
71.4 % of the words and 0.0 % of their shapes are new to it
>>> teaching.repeats_taught_words(Point("0", "ann", "I am Ada 12", (Secret("name", 5, 8),)))
True
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from crtlib.screening.policy import Policy
from crtlib.screening.teaching_digests import (
    Teaching,
    digest_secret_turns,
    digest_teaching_person,
)
from crtlib.text.data_points import spoken_spans
from crtlib.text.records import Point

_WORD_TOKEN = re.compile(r"\w+")


@dataclass(frozen=True)
class Shift:
    """How much a text differs from what taught a policy: the share of its ``of`` words that did not
    occur there, and the share whose shape did not. Both are near 0 for text of the same kind."""

    words: float
    shapes: float
    of: int

    def __str__(self) -> str:
        return (
            f"{100 * self.words:.1f} % of the words and {100 * self.shapes:.1f} % of their shapes "
            "are new to it"
        )


NO_SHIFT = Shift(0.0, 0.0, 0)


# --------------------------------------------------------------------------- what taught it
def digest_teaching_points(points: Sequence[Point]) -> Teaching:
    """The digests that are kept of the points that teach a policy."""
    tokens = [t for p in points for t in _spoken_tokens(p)]
    return Teaching(
        turns=frozenset(d for p in points for d in digest_secret_turns(p)),
        words=frozenset(map(_hash_word, tokens)),
        shapes=frozenset(map(_hash_shape, tokens)),
        people=frozenset(digest_teaching_person(p.user, p.dialogue_id) for p in points),
    )


def count_teaching_people(
    policies: Iterable[Policy], people: Iterable[tuple[str, str]]
) -> int | None:
    """How many ``people`` of a text, each a name (or "") and a conversation, taught one of the
    policies; None where a policy does not record who did.

    >>> taught = digest_teaching_points([Point("0", "ann", "so be it")])
    >>> made = Policy("p", lambda points: [() for p in points], learned=True, taught_by=(taught,))
    >>> count_teaching_people([made], [("ann", "d0"), ("ann", "d1"), ("bob", "d2")])
    1
    """
    learned = [p for p in policies if p.learned]
    people_of_policies = [t.people for p in learned for t in p.taught_by]
    if not all(people_of_policies) or not all(p.taught_by for p in learned):
        return None
    teaching_people = frozenset[str]().union(*people_of_policies)
    if not teaching_people:  # then ``people`` need not be read
        return 0
    found = set[str]()
    for person in people:
        digest = digest_teaching_person(*person)
        if digest in teaching_people:
            found.add(digest)
    return len(found)


def measure_shift(points: Sequence[Point], teaching: Teaching, before: Shift = NO_SHIFT) -> Shift:
    """How much ``points``, and those that ``before`` measured, differ from what taught a policy, by
    occurrences of words in the turns' own text."""
    n = before.of
    new_words, new_shapes = round(before.words * n), round(before.shapes * n)
    for token in (t for p in points for t in _spoken_tokens(p)):
        n += 1
        new_words += _hash_word(token) not in teaching.words
        new_shapes += _hash_shape(token) not in teaching.shapes
    return Shift(new_words / max(n, 1), new_shapes / max(n, 1), n)


def _spoken_tokens(point: Point) -> Iterable[str]:
    for a, b in spoken_spans(point):
        yield from _WORD_TOKEN.findall(point.text, a, b)


def _hash_word(token: str) -> int:
    return zlib.crc32(re.sub(r"\d", "0", token.lower()).encode("utf-8", "replace"))


def _hash_shape(token: str) -> int:
    """The hash of a word's shape: capitals are A, other letters a, digits 9, and a run of one class
    counts once. "McKay12" is AaAa9."""
    classes = ("9" if c.isdigit() else "A" if c.isupper() else "a" for c in token)
    return zlib.crc32(re.sub(r"(.)\1+", r"\1", "".join(classes)).encode())
