"""Frozen records that the whole library passes around: what a corpus, a turn and a secret are.

Their ``repr`` shows no text, no name, and no id, which may be a name: a log or a traceback may
quote it.

>>> turn = Turn("USR", "I am Ada Lovelace.", (Secret("name", 5, 17),))
>>> turn.values()
('Ada Lovelace',)
>>> Turn("USR", "short", (Secret("name", 0, 9),))  # doctest: +ELLIPSIS
Traceback (most recent call last):
...
ValueError: secret at [0, 9): must lie inside its text of 5 characters; spans must be sorted ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pydantic import StrictInt

MASK = "<MASK>"
"""The one mask token (CRT, A.6.4: redaction and deduplication must use the same one)."""

LABEL_KINDS = ("name", "address", "phone", "id", "other")
"""The kinds of secrets that readers mark unless other kinds are given."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A half-open character span ``[start, end)`` in its text, and what kind of secret it is."""

    kind: str
    start: StrictInt
    end: StrictInt


def check_spans(text: str, secrets: tuple[Secret, ...]) -> None:
    """Raise ``ValueError`` unless the spans lie inside ``text``, in order and without overlap. The
    message names no kind, since a kind may be any text."""
    last = 0
    for s in secrets:
        if not last <= s.start < s.end <= len(text):
            raise ValueError(
                f"secret at [{s.start}, {s.end}): must lie inside its text of {len(text)} "
                "characters; spans must be sorted and must not overlap"
            )
        last = s.end


@dataclass(frozen=True, slots=True)
class Turn:
    """One utterance: who speaks, the text, and the spans of its secrets (sorted, disjoint)."""

    speaker: str = field(repr=False)
    text: str = field(repr=False)
    secrets: tuple[Secret, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.secrets:
            check_spans(self.text, self.secrets)

    def values(self) -> tuple[str, ...]:
        """The text of each secret, in order."""
        return tuple(self.text[s.start : s.end] for s in self.secrets)


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A dialogue of one user (the customer): the unit that belongs to a person."""

    id: str = field(repr=False)
    user: str = field(repr=False)
    turns: tuple[Turn, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Corpus:
    """A named list of dialogues; ``skipped`` lists what its loader left out: (reason, count)."""

    name: str
    dialogues: Sequence[Dialogue] = field(repr=False)
    skipped: tuple[tuple[str, int], ...] = ()

    def __len__(self) -> int:
        return len(self.dialogues)

    def turns(self) -> Iterator[Turn]:
        """All turns, in order."""
        for dialogue in self.dialogues:
            yield from dialogue.turns


@dataclass(frozen=True, slots=True)
class Point:
    """One data point: what differs between neighbouring datasets, and what DP-SGD clips.

    ``text`` is a whole turn (``"USR: ..."``) or a whole dialogue (turns joined by newlines), so
    that no sentence is cut in two (CRT, A.6.3). ``secrets`` are the labelled spans, empty where
    they are not known. ``id`` is unique in its corpus. ``spoken_spans`` are the places of the
    turns' own words, without their speakers, for policies that must not read "USR"; empty: the
    whole text. ``dialogue_id`` is the id of its dialogue; it cannot be derived from ``id``, since
    both may hold a slash.
    """

    id: str = field(repr=False)
    user: str = field(repr=False)
    text: str = field(repr=False)
    secrets: tuple[Secret, ...] = field(default=(), repr=False)
    spoken_spans: tuple[tuple[int, int], ...] = field(default=(), compare=False, repr=False)
    dialogue_id: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.secrets:
            check_spans(self.text, self.secrets)
