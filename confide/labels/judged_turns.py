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
    read = {
        (t.id, t.turn): (t.text, spans)
        for t, spans in read_labelled_turns(folder, part=part, undisputed=undisputed)
        if t.task not in without
    }
    if not read:
        drawn_by = {
            "teach": ("teaching", "'crtlib label sample --teach 600'"),
            "judge": ("judging", "'crtlib label sample --secrets 400'"),
        }
        empty, draw = drawn_by[part]
        raise argument_error("labels", f"the {empty} part is empty; draw one with {draw}")
    read_dialogues = {dialogue_id for dialogue_id, _ in read}
    here = {
        (d.id, i): (t.text.replace("\r", " "), d.user)  # as it was drawn
        for d in corpora.read_dialogues(corpus_path)
        if d.id in read_dialogues
        for i, t in enumerate(d.turns)
    }
    secrets = {
        turn: spans for turn, (text, spans) in read.items() if here.get(turn, ("",))[0] == text
    }
    labelled_dialogues = {dialogue_id for dialogue_id, _ in secrets}
    owners = {here[turn][1] for turn in secrets}
    labelled: list[Dialogue] = []
    for d in corpora.read_dialogues(corpus_path):
        if d.id in labelled_dialogues or (unit == "user" and d.user in owners):
            turns = [replace(t, secrets=secrets.get((d.id, i), ())) for i, t in enumerate(d.turns)]
            labelled.append(replace(d, turns=tuple(turns)))
    read_turns = {f"{dialogue_id}/{turn}" for dialogue_id, turn in secrets}
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
    judge = {t.task for t in tasks if t.part == "judge"}
    rows = [row for row in rows if row["task"] in judge]
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
            pairs = {(str(u["pi"]), str(u["pi_c"])) for u in map(json.loads, file)}
        if (pi, pi_c) not in pairs:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            file.write(json.dumps({"time": now, **use}) + "\n")
    drawn = (hash_turn_text(task.text) for task in read_tasks(folder))
    return register_judged_pairs(facts, corpus_sha256, {*pairs, (pi, pi_c)}, drawn)


def format_import_summary(summary: Mapping[str, Any]) -> str:
    """The text that ``crtlib label import`` prints."""
    return fill_page("imported.txt", LABEL_TEMPLATES, **summary)
