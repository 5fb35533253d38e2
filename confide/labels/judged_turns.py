"""Read labelled turns as data points, from which rates are counted."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confide.labels.adjudication import read_label_rows, read_labelled_turns
from confide.labels.label_tasks import (
    LABEL_TEMPLATES,
    READER_ROLES,
    LabelTask,
    check_label_corpus,
    read_label_facts,
    read_tasks,
)
from confide.labels.registry import (
    refuse_earlier_reading,
    register_judged_pairs,
    register_reading,
)
from crtlib import files
from crtlib.arguments import argument_error
from crtlib.foreign_files import NOT_AS_WRITTEN, refuse_whatever_fails
from crtlib.text import corpora, data_points
from crtlib.text.identity import hash_text, hash_turn_text
from crtlib.text.package_data import fill_page
from crtlib.text.records import Corpus, Dialogue, Point, Turn


def read_labelled_points(
    corpus_path: str | os.PathLike,
    folder: str | os.PathLike,
    *,
    part: str,
    unit: str,
    without: Collection[str] = (),
    undisputed: bool = False,
    write: Callable[[Dialogue, Sequence[Turn], str], Point] = data_points.join_with_speakers,
) -> tuple[Point, ...]:
    """The points of a corpus in which turns of ``part`` ("judge" or "teach") were read, with the
    readers' marks (:func:`read_labelled_turns`).

    Tasks in ``without`` are left out, and labels that the corpus came with are ignored. ``write``
    makes a text from turns, as in :func:`crtlib.text.data_points.make_points`. Labels from an
    earlier export of a conversation are used for turns that have the same words here, of which
    there may be none. Raises ``ValueError`` if labels that judge are from another corpus, or nobody
    has read that part."""
    facts = read_label_facts(folder)
    if part == "judge":
        check_label_corpus(corpus_path, facts)
    # Keyed by the id of the dialogue and the number of the turn, as all of these dictionaries are.
    text_and_spans = {
        (task.id, task.turn): (task.text, spans)
        for task, spans in read_labelled_turns(folder, part=part, undisputed=undisputed)
        if task.task not in without
    }
    if not text_and_spans:
        drawn_by = {
            "teach": ("teaching", "'crtlib label sample --teach 600'"),
            "judge": ("judging", "'crtlib label sample --secrets 400'"),
        }
        empty, draw = drawn_by[part]
        raise argument_error("labels", f"the {empty} part is empty; draw one with {draw}")
    read_dialogues = {dialogue_id for dialogue_id, _ in text_and_spans}
    corpus_turns = {
        (dialogue.id, number): (turn.text.replace("\r", " "), dialogue.user)  # as it was drawn
        for dialogue in corpora.read_dialogues(corpus_path)
        if dialogue.id in read_dialogues
        for number, turn in enumerate(dialogue.turns)
    }
    secrets = {
        place: spans
        for place, (text, spans) in text_and_spans.items()
        if corpus_turns.get(place, ("",))[0] == text
    }
    labelled_ids = {dialogue_id for dialogue_id, _ in secrets}
    owners = {corpus_turns[place][1] for place in secrets}
    labelled: list[Dialogue] = []
    for dialogue in corpora.read_dialogues(corpus_path):
        if dialogue.id in labelled_ids or (unit == "user" and dialogue.user in owners):
            turns = tuple(
                replace(turn, secrets=secrets.get((dialogue.id, number), ()))
                for number, turn in enumerate(dialogue.turns)
            )
            labelled.append(replace(dialogue, turns=turns))
    read_turns = {f"{dialogue_id}/{number}" for dialogue_id, number in secrets}
    points = data_points.make_points(Corpus("", tuple(labelled)), unit, write)
    return tuple(p for p in points if unit != "turn" or p.id in read_turns)


def hash_reading(folder: str | os.PathLike) -> str:
    """Hash what all readers of a folder marked in the turns that judge, and which of these were
    read again."""
    rows = read_label_rows(Path(folder))
    return hash_rows_of_readers(read_label_facts(folder), read_tasks(folder), rows)


def hash_rows_of_readers(
    facts: Mapping[str, Any], tasks: Iterable[LabelTask], rows: Iterable[Mapping[str, Any]]
) -> str:
    """:func:`hash_reading` for a folder with these facts, tasks and rows of labels."""
    judging_tasks = {task.task for task in tasks if task.part == "judge"}
    rows = [row for row in rows if row["task"] in judging_tasks]
    reading = [row for role in READER_ROLES for row in rows if row["annotator"] == facts.get(role)]
    reading += [facts["again"]] if "second" in facts else []
    return hash_text(json.dumps(reading))


def record_judged_pair(folder: str | os.PathLike, *, pi: str, pi_c: str, corpus_sha256: str) -> int:
    """Note in ``uses.jsonl`` and in the registry that these labels judge a pair of policies on a
    corpus. Returns how many pairs were judged so far, including this one
    (:func:`confide.labels.registry.register_judged_pairs`). Raises ``ValueError`` if another
    reading of the labels came after this one."""
    facts = read_label_facts(folder)
    reading = hash_reading(folder)
    register_reading(facts["labels"], reading, is_last=False)  # unknown if an older crtlib read it
    refuse_earlier_reading(facts["labels"], reading)
    pi += f" by {reading}"  # each reading judges again
    use = {"pi": pi, "pi_c": pi_c, "corpus": corpus_sha256}
    with files.check_regular_file(Path(folder) / "uses.jsonl").open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with refuse_whatever_fails(file.name, NOT_AS_WRITTEN):
            earlier_uses = [json.loads(line) for line in file]
            pairs = {(str(earlier["pi"]), str(earlier["pi_c"])) for earlier in earlier_uses}
        if (pi, pi_c) not in pairs:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            file.write(json.dumps({"time": now, **use}) + "\n")
    turn_hashes = (hash_turn_text(task.text) for task in read_tasks(folder))
    return register_judged_pairs(facts, corpus_sha256, {*pairs, (pi, pi_c)}, turn_hashes)


def format_import_summary(summary: Mapping[str, Any]) -> str:
    """The text that ``crtlib label import`` prints."""
    return fill_page("imported.txt", LABEL_TEMPLATES, **summary)
