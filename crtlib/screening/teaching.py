"""What taught a policy: whom it must not be judged on, and what text its numbers are for.

>>> from crtlib.text.records import Point, Secret
>>> known = teaching([Point("0", "ann", "I am Ada 12", (Secret("name", 5, 8),))])
>>> print(shift([Point("1", "bob", "I am Kurt 345"), Point("2", "bob", "so be it")], known))
71.4 % of the words and 0.0 % of their shapes are new to it
>>> known.judged_by(Point("0", "ann", "I am Ada 12", (Secret("name", 5, 8),)))
True
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from crtlib.screening.spans import overlaps
from crtlib.text.records import Point, Secret


@dataclass(frozen=True)
class Teaching:
    """Digests of the turns with a secret that taught a policy, of its words and of their shapes.

    Digests name nobody, but who has them can try names and texts: they are private.
    """

    turns: frozenset[str]
    words: frozenset[int]
    shapes: frozenset[int]

    def judged_by(self, point: Point) -> bool:
        """Whether this labelled point would judge what it taught."""
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


def teaching(points: Sequence[Point]) -> Teaching:
    """What is kept of the points that teach a policy."""
    tokens = [t for p in points for t in _tokens(p)]
    return Teaching(
        turns=frozenset(d for p in points for d in _digests(p)),
        words=frozenset(map(_word, tokens)),
        shapes=frozenset(map(_shape, tokens)),
    )


def shift(points: Sequence[Point], known: Teaching) -> Shift:
    """How unlike ``points`` are to what taught; by occurrences of words in the turns' own text."""
    words = shapes = n = 0
    for p in points:
        for token in _tokens(p):
            n += 1
            words += _word(token) not in known.words
            shapes += _shape(token) not in known.shapes
    return Shift(words / max(n, 1), shapes / max(n, 1), n)


def _turns(point: Point) -> tuple[tuple[int, int], ...]:
    return point.spoken or ((0, len(point.text)),)


def _digests(point: Point) -> Iterator[str]:
    """Of each turn of the point that holds a labelled secret; the same for each unit."""
    turns = [Secret("turn", a, b) for a, b in _turns(point) if a < b]
    for turn in dict.fromkeys(turn for turn, _ in overlaps(turns, point.secrets)):
        said = f"{point.user}\x1f{point.text[turn.start : turn.end]}"
        yield hashlib.blake2b(said.encode("utf-8", "replace"), digest_size=12).hexdigest()


_TOKEN = re.compile(r"\w+")


def _tokens(point: Point) -> Iterable[str]:
    for a, b in _turns(point):
        yield from _TOKEN.findall(point.text, a, b)


def _word(token: str) -> int:
    return zlib.crc32(re.sub(r"\d", "0", token.lower()).encode("utf-8", "replace"))


def _shape(token: str) -> int:
    """Capitals A, other letters a, digits 9, a run of one class once: "McKay12" is AaAa9."""
    classes = ("9" if c.isdigit() else "A" if c.isupper() else "a" for c in token)
    return zlib.crc32(re.sub(r"(.)\1+", r"\1", "".join(classes)).encode())
