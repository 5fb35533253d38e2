"""Read a corpus on disk in batches of whole dialogues, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

from crtlib.files import StrPath
from crtlib.screening.deduplication import TextCounts
from crtlib.text import corpora, data_points
from crtlib.text.records import Corpus, Dialogue

TURNS_PER_BATCH = 10_000
"""About how many turns are in a batch."""


def batch_dialogues(
    dialogues: Iterator[Dialogue], *, in_one_batch: bool = False
) -> Iterator[list[Dialogue]]:
    """Yield the dialogues in lists of about 10,000 turns, or all at once."""
    batch: list[Dialogue] = []
    turns = 0
    for dialogue in dialogues:
        batch.append(dialogue)
        turns += len(dialogue.turns)
        if turns >= TURNS_PER_BATCH and not in_one_batch:
            yield batch
            batch, turns = [], 0
    if batch:
        yield batch


def count_texts(corpus: StrPath, unit: str) -> TextCounts:
    """Count how often each text occurs in a corpus on disk, in bounded memory except for a hash of
    each distinct text."""
    texts = TextCounts()
    for batch in batch_dialogues(corpora.read_dialogues(corpus), in_one_batch=unit == "user"):
        texts.add(data_points.make_points(Corpus("", tuple(batch)), unit))
    return texts
