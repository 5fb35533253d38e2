"""What is known of a text once it has been read: its hash, whether it names its people, and how
many messages and conversations one person has."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from crtlib.text import corpora, corpus_folder, screened_folder
from crtlib.text.records import Dialogue


class TextReading:
    """What is known about a text, a file or a corpus folder, once its dialogues have been read."""

    def __init__(self, corpus: str | os.PathLike) -> None:
        is_folder = Path(corpus).is_dir()
        self._summary = corpus_folder.read_corpus_summary(corpus) if is_folder else None
        self._digest = hashlib.sha256()
        self._turns = Counter[str]()
        self._talks = Counter[str]()
        self._longest = 1
        self._unnamed = self._named_like_talk = False

    def watch(self, dialogues: Iterable[Dialogue]) -> Iterator[Dialogue]:
        """Pass the dialogues on, one after another, and note what they show."""
        for dialogue in dialogues:
            if self._summary is None:
                corpus_folder.add_to_corpus_hash(self._digest, dialogue)
            self._longest = max(self._longest, len(dialogue.turns))
            self._turns[dialogue.user] += len(dialogue.turns)
            self._talks[dialogue.user] += 1
            self._unnamed |= not dialogue.user
            self._named_like_talk |= dialogue.user == dialogue.id
            yield dialogue

    @property
    def sha256(self) -> str:
        """The :func:`crtlib.text.corpora.hash_corpus` of the text."""
        return self._summary.sha256 if self._summary else self._digest.hexdigest()

    @property
    def users_are(self) -> str:
        """What the people of the text are: "column" if they are named, "thread" if some or all are
        conversations, and "unknown" if some have no name. A folder records what was known when it
        was made. Other formats name people; a name that is the id of its conversation counts as no
        name here."""
        if self._unnamed:
            return "unknown"
        if self._summary:
            return self._summary.users_are
        return "thread" if self._named_like_talk else "column"

    @property
    def sizes(self) -> dict[str, dict[str, int]]:
        """The :func:`max_points_per_unit` of the text."""
        most = {"turn": max(self._turns.values()), "dialogue": max(self._talks.values())}
        return {"dialogue": {"turn": self._longest}, "user": most}


def describe_users(corpus: str | os.PathLike, dialogues: Iterable[Dialogue]) -> str:
    """What the people of a text are: see :attr:`TextReading.users_are`."""
    reading = TextReading(corpus)
    deque(reading.watch(dialogues), maxlen=0)
    return reading.users_are


def max_points_per_unit(corpus: str | os.PathLike) -> dict[str, dict[str, int]]:
    """The most points of a smaller unit that one conversation, and one person, holds. For a
    screened folder these are counted in the text that was screened, its duplicates included."""
    if screened_folder.is_screened_folder(corpus):
        return dict(screened_folder.read_screening_summary(corpus)["sizes"])
    reading = TextReading(corpus)
    deque(reading.watch(corpora.read_dialogues(corpus)), maxlen=0)
    return reading.sizes
