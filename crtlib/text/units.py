"""Data points: what one point of a corpus is (a turn, a dialogue, a person), cut or not.

>>> from crtlib.text.records import Corpus, Dialogue, Secret, Turn
>>> ann = Turn("USR", "I am Ann.", (Secret("name", 5, 8),))
>>> corpus = Corpus("toy", (Dialogue("d", "ann", (ann, Turn("SYS", "hello"))),))
>>> [(p.id, p.text) for p in points(corpus, unit="turn")]
[('d/0', 'USR: I am Ann.'), ('d/1', 'SYS: hello')]
>>> [(p.text, p.secrets[0].start) for p in points(corpus, unit="dialogue")]
[('USR: I am Ann.\\nSYS: hello', 10)]
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from crtlib.text.records import MASK, Corpus, Dialogue, Point, Secret, Turn

UNITS = ("turn", "dialogue", "user")


def prefix(turn: Turn) -> str:
    """What a point's text has before the turn's: ``"USR: "``, nothing where nobody speaks."""
    return f"{turn.speaker}: " if turn.speaker else ""


def people(corpus: Corpus) -> Corpus:
    """Everybody's dialogues as one, in their order. Raises ``ValueError`` where it is not known
    whose a dialogue is."""
    said: dict[str, list[Turn]] = {}
    for d in corpus.dialogues:
        if not d.user:
            raise ValueError(f"unit='user': whose the dialogue {d.id!r} is, is not known")
        said.setdefault(d.user, []).extend(d.turns)
    every = (Dialogue(user, user, tuple(turns)) for user, turns in said.items())
    return replace(corpus, dialogues=tuple(every))


def points(corpus: Corpus, unit: str) -> tuple[Point, ...]:
    """The data points of a corpus: what differs between neighbours, and what DP-SGD clips.

    ``unit="turn"``: ``"USR: text"`` with id ``"dialogue/i"``. ``unit="dialogue"``: the turns
    joined by newlines. ``unit="user"``: all turns of a person. There is no default, as the choice
    decides what is public: every CustomerSim dialogue holds a name, so with dialogues as points
    nothing is. A WikiText paragraph is a turn, and ``sentences`` cuts it further.
    """
    if unit not in UNITS:
        raise ValueError(f"unit={unit!r}: must be one of {', '.join(UNITS)}")
    if unit == "user":
        return points(people(corpus), "dialogue")
    cut: list[Point] = []
    for d in corpus.dialogues:
        lines: list[str] = []
        spans: list[Secret] = []
        spoken: list[tuple[int, int]] = []
        at = 0
        for i, turn in enumerate(d.turns):
            line = prefix(turn) + turn.text
            shift = at + len(line) - len(turn.text)
            moved = tuple(Secret(s.kind, s.start + shift, s.end + shift) for s in turn.secrets)
            own = (shift, at + len(line))
            if unit == "turn":
                cut.append(Point(f"{d.id}/{i}", d.user, line, moved, (own,) if shift else ()))
            else:
                lines.append(line)
                spans.extend(moved)
                spoken.append(own)
                at += len(line) + 1
        if unit == "dialogue":
            cut.append(Point(d.id, d.user, "\n".join(lines), tuple(spans), tuple(spoken)))
    return tuple(cut)


_END = re.compile(r"(?:(?<=\s[.!?]|\w[!?])|(?<=[a-z]{4}\.))\s+(?![a-z]|[\"'”)]\s*$)|\n")


def sentences(points: Iterable[Point]) -> tuple[Point, ...]:
    """Each point cut after its sentences, for paragraphs longer than a model's context.

    Ids get ``/j``. A sentence ends at a mark that stands alone, as in WikiText, or closes a word of
    four letters or more, never before a lower-case letter or a last quotation mark: a missed cut
    leaves a longer point, one too many cuts a sentence in two (CRT, A.6.3). The cuts are made as if
    each labelled secret read ``<MASK>``, so no secret is cut, and a point and its neighbour with
    the secret masked are cut alike (A.6.2; neither holds for a secret without a label).
    """
    pieces: list[Point] = []
    for p in points:
        masked, moves, last = "", [], 0  # moves: where masks end, there and in the text
        for s in p.secrets:
            masked += p.text[last : s.start] + MASK
            moves.append((len(masked), s.end))
            last = s.end
        masked += p.text[last:]
        cuts = [0]
        for end in _END.finditer(masked):
            before = [real - there for there, real in moves if there <= end.start()]
            cuts += [at + (before[-1] if before else 0) for at in end.span()]
        cuts.append(len(p.text))
        spans = list(zip(cuts[::2], cuts[1::2], strict=True))
        for j, (a, b) in enumerate((a, b) for a, b in spans if a < b):
            inside = (Secret(s.kind, s.start - a, s.end - a) for s in p.secrets if a <= s.start < b)
            own = tuple((max(c, a) - a, min(e, b) - a) for c, e in p.spoken if c < b and a < e)
            pieces.append(Point(f"{p.id}/{j}", p.user, p.text[a:b], tuple(inside), own))
    return tuple(pieces)
