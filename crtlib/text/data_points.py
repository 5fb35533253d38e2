"""Data points: what one point of a corpus is (a turn, a dialogue, or a person).

>>> from crtlib.text.records import Corpus, Dialogue, Secret, Turn
>>> ann = Turn("USR", "I am Ann.", (Secret("name", 5, 8),))
>>> corpus = Corpus("toy", (Dialogue("d", "ann", (ann, Turn("SYS", "hello"))),))
>>> [(p.id, p.text) for p in make_points(corpus, unit="turn")]
[('d/0', 'USR: I am Ann.'), ('d/1', 'SYS: hello')]
>>> [(p.text, p.secrets[0].start) for p in make_points(corpus, unit="dialogue")]
[('USR: I am Ann.\\nSYS: hello', 10)]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from crtlib.text.records import MASK, Corpus, Dialogue, Point, Secret, Turn

POINT_UNITS = ("turn", "dialogue", "user")


ROLE_NAMES = (
    "user|usr|customer|client|caller|human|person|patient|student|guest|system|sys|assistant|agent"
    "|bot|operator|support|advisor|representative|staff|doctor|teacher|model|gpt|tool|function"
)
"""The names of speakers that may appear in the text of a point, as the alternatives of a regular
expression; no policy screens them."""
ROLE_PATTERN = re.compile(f"(?:{ROLE_NAMES})?", re.IGNORECASE)
"""One of ``ROLE_NAMES``, or nothing: a turn may name no speaker."""


SpokenTurn = tuple[int, int, str]
"""Where a turn's own words begin and end in the text of a point, and who speaks."""
_LEAD = re.compile(rf"(?P<line>\n)?((?P<speaker>S1|{ROLE_NAMES}): )?", re.IGNORECASE)
"""What :func:`join_with_speakers` writes before a turn."""


def with_role_speakers(d: Dialogue) -> Dialogue:
    """The dialogue with every speaker that does not match ``ROLE_PATTERN`` renamed S1. A number or
    a hash would reveal who they are, or let one message decide what all later speakers are called.

    >>> d = with_role_speakers(Dialogue("d", "u", (Turn("Ada", "a"), Turn("SYS", "b"))))
    >>> [t.speaker for t in d.turns]
    ['S1', 'SYS']
    """

    turns = (
        t if ROLE_PATTERN.fullmatch(t.speaker) else Turn("S1", t.text, t.secrets) for t in d.turns
    )
    return Dialogue(d.id, d.user, tuple(turns))


def merge_by_user(corpus: Corpus) -> Corpus:
    """The corpus with each user's dialogues joined into one, in their order. Raises ``ValueError``
    where the user of a dialogue is not known."""
    turns_of_users: dict[str, list[Turn]] = {}
    for d in corpus.dialogues:
        if not d.user:
            raise ValueError(f"unit='user': the user of the dialogue {d.id!r} is not known")
        turns_of_users.setdefault(d.user, []).extend(d.turns)
    dialogues = (Dialogue(user, user, tuple(turns)) for user, turns in turns_of_users.items())
    return replace(corpus, dialogues=tuple(dialogues))


def join_turns(
    name: str, user: str, turns: Sequence[Turn], before: Sequence[str], after: str = ""
) -> Point:
    """Join turns into one point: each turn follows its own text ``before``, and ``after`` follows
    the last. The point has the spans of their secrets and of their own words."""
    parts: list[str] = []
    secrets: list[Secret] = []
    spoken: list[tuple[int, int]] = []
    at = 0
    for turn, lead in zip(turns, before, strict=True):
        at += len(lead)
        secrets += [Secret(s.kind, s.start + at, s.end + at) for s in turn.secrets]
        spoken.append((at, at + len(turn.text)))
        parts += [lead, turn.text]
        at += len(turn.text)
    return Point(name, user, "".join([*parts, after]), tuple(secrets), tuple(spoken))


def join_with_speakers(d: Dialogue, turns: Sequence[Turn], name: str) -> Point:
    """Join turns of a dialogue into one point, a line for each, as ``"USR: text"``; a turn without
    a speaker is its text alone."""
    leads = [f"{t.speaker}: " if t.speaker else "" for t in turns]
    return join_turns(name, d.user, turns, [*leads[:1], *(f"\n{lead}" for lead in leads[1:])])


def spoken_spans(point: Point) -> tuple[tuple[int, int], ...]:
    """The places of the turns' own words in a point."""
    return point.spoken_spans or ((0, len(point.text)),)


def find_turns(point: Point) -> tuple[SpokenTurn, ...]:
    """The turns of a point that :func:`join_with_speakers` wrote, as far as masks leave them clear.

    Args:
        point: Redacted or not.

    Returns:
        Start, end and speaker of each turn, sorted and disjoint. If a mask covers the line break or
        the speaker of a turn, that turn belongs to the one before it; if it is the first turn, it
        has no speaker and begins where the text does. A point that does not record its turns is one
        turn without a speaker.

    Guarantee:
        The turns reveal no more than the masked text and where messages begin in it: written again
        they give the text, and what is under a mask changes none of them. Test:
        ``tests/text/test_roles.py::test_what_a_mask_covers_changes_no_turn``.

    >>> d = Dialogue("d", "u", (Turn("USR", "hi"), Turn("S1", "yes")))
    >>> talk = join_with_speakers(d, d.turns, d.id)
    >>> talk.text, find_turns(talk)
    ('USR: hi\\nS1: yes', ((5, 7, 'USR'), (12, 15, 'S1')))
    """
    text, end = point.text, 0
    turns: list[SpokenTurn] = []
    for start, stop in spoken_spans(point):
        lead = _LEAD.fullmatch(text, end, start)
        clear = lead is not None and bool(lead["line"]) == bool(turns)
        speaker = lead["speaker"] or "" if lead else ""
        if turns and not speaker and text.startswith(MASK, start):
            clear = False  # it may cover who speaks
        if clear:
            turns.append((start, stop, speaker))
        elif turns:
            turns[-1] = turns[-1][0], max(stop, end), turns[-1][2]
        else:
            turns.append((0, stop, ""))
        end = max(end, stop)
    return tuple(turns)


def make_points(
    corpus: Corpus,
    unit: str,
    write: Callable[[Dialogue, Sequence[Turn], str], Point] = join_with_speakers,
) -> tuple[Point, ...]:
    """The data points of a corpus: what differs between neighbours, and what DP-SGD clips.

    The unit decides what is public. Every CustomerSim dialogue holds a name, so nothing is public
    when dialogues are the points. Hence there is no default.

    Args:
        corpus: Dialogues with their labels.
        unit: "turn": ``"USR: text"`` with id ``"dialogue/i"``. "dialogue": the turns joined by
            newlines. "user": all turns of a person. A WikiText paragraph is a turn.
        write: Makes a point from a dialogue, some of its turns, and the point's id.

    Returns:
        The points, in the order of the corpus.

    Raises:
        ValueError: For any other unit, and for "user" where the user of a dialogue is not known.

    Guarantee:
        Every label of the corpus is a label of one point, and covers the same characters there.
        Test:
        ``tests/text/test_corpora.py::test_points_keep_the_secrets``.
    """
    if unit not in POINT_UNITS:
        raise ValueError(f"unit={unit!r}: must be one of {', '.join(POINT_UNITS)}")
    if unit == "user":
        return make_points(merge_by_user(corpus), "dialogue", write)
    points: list[Point] = []
    for d in map(with_role_speakers, corpus.dialogues):
        if unit == "turn":
            written = [write(d, [t], f"{d.id}/{i}") for i, t in enumerate(d.turns)]
        else:
            written = [write(d, d.turns, d.id)]
        points += [Point(p.id, p.user, p.text, p.secrets, p.spoken_spans, d.id) for p in written]
    return tuple(points)
