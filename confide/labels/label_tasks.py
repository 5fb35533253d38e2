"""Turns drawn for reading, as files: the tasks, their readers, and the corpus they are from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pydantic import BaseModel, TypeAdapter

from crtlib import files, outputs
from crtlib.arguments import argument_error
from crtlib.foreign_files import NOT_AS_WRITTEN, refuse_whatever_fails
from crtlib.text import corpora, records
from crtlib.text.identity import hash_text
from crtlib.text.records import Point, Secret

LABEL_TEMPLATES = resources.files("confide.text") / "templates"

DEFAULT_LABEL_KINDS = records.LABEL_KINDS
ASSUMED_SECRET_SHARE = 0.25
"""The share of turns with a secret that is assumed if nothing is known."""
SECONDS_PER_TURN = 9.5
"""The time a person takes to read one turn; the printed total is for planning only."""
LABEL_FORMS = ("page", "jsonl", "labelstudio")
SpanFlagger = Callable[[Sequence[Point]], Sequence[Sequence[Secret]]]
"""A policy that maps points, here a turn's text without its speaker, to spans."""


PrefilledSpans = Mapping[str, Sequence[Secret]]
"""The spans that are already marked when reading begins, by task."""

MarkedSpans = dict[str, tuple[Secret, ...]]
"""The secrets of each task that was read."""
READER_ROLES = ("first", "undecided", "second", "decides")
"""The roles of readers, in the order in which they read: the first reads all turns; somebody else
reads those that the first left undecided or unread; the second reads turns again, blind; the last
decides where the first two differ."""


@dataclass(frozen=True, slots=True)
class LabelTask:
    """One turn to be read: its task name, its dialogue's ``id``, its user and its number there, its
    ``part`` ("judge" or "teach"), its text, and what was written ``before`` and ``after`` it, one
    line per turn."""

    task: str
    id: str = field(repr=False)
    user: str = field(repr=False)
    turn: int
    part: str
    text: str = field(repr=False)
    before: str = field(repr=False)
    after: str = field(repr=False)


class RereadTurns(BaseModel, strict=True):
    """The turns that a second reader is given, and which of them were drawn at random."""

    read: list[str]
    random: list[str]


class LabelFacts(BaseModel, strict=True):
    """What ``labels.json`` holds, as far as its types are relied on: from what turns were drawn
    and, after an import, who read them."""

    corpus: str
    labels: str
    kinds: list[str]
    by: str
    users: int
    judge: int
    teach: int
    seed: int
    first: str = ""
    undecided: str = ""
    second: str = ""
    decides: str = ""
    drawn: str = ""
    readers: dict[str, dict[str, Any]] = {}
    rules: list[str] = []
    again: RereadTurns | None = None


TASKS_ADAPTER = TypeAdapter(list[LabelTask])


def points_of_tasks(tasks: Sequence[LabelTask]) -> list[Point]:
    """Drawn turns, each as a point that has only its own words and no marks."""
    return [Point(f"{t.id}/{t.turn}", t.user, t.text, dialogue_id=t.id) for t in tasks]


def flag_tasks(policy: SpanFlagger, tasks: Sequence[LabelTask]) -> list[tuple[Secret, ...]]:
    """What a policy flags in each task when it reads that turn alone."""
    return [tuple(spans) for spans in policy(points_of_tasks(tasks))]


def hash_tasks(tasks: Sequence[LabelTask]) -> str:
    """Hash all fields of all tasks, in order."""
    text = json.dumps([asdict(task) for task in tasks], sort_keys=True, ensure_ascii=False)
    return hash_text(text)


def cluster_of_turn(by: str, user: str, dialogue_id: str) -> str:
    """Whose turn counts as one in a draw ``by`` "user" or "dialogue": the person's, or the
    conversation's where no person is known, as these are not one person together."""
    return (user if by == "user" else "") or dialogue_id


def read_tasks(labels: str | os.PathLike) -> list[LabelTask]:
    """Read the turns that were drawn into a folder, in order."""
    outputs.require_marker(labels, names=["tasks.parquet", "labels.json"])
    path = Path(labels) / "tasks.parquet"
    with refuse_whatever_fails(str(path), NOT_AS_WRITTEN):
        return TASKS_ADAPTER.validate_python(
            pq.read_table(files.check_regular_file(path)).to_pylist()
        )


def read_label_facts(labels: str | os.PathLike) -> dict[str, Any]:
    """Read ``labels.json``: the corpus hash, the seed, the kinds, counts, and after an import who
    read what, and that the labels were ``drawn`` "at_random" (crtlib 0.3 wrote "given" for some
    that were not completely read). Raises ``ValueError`` for anything but a folder of labels."""
    path, marker, problem = Path(labels), outputs.find_marker(labels), ""
    if not path.is_dir():
        problem = "is no folder" if path.exists() else "is not there"
    elif marker is None:
        problem = f"has no {outputs.MARKER_FILE}, or a changed one"
    elif "labels.json" not in marker["files"]:
        problem = f"was made by 'crtlib {marker['command']}'"
    if problem:
        needed = "a folder of 'crtlib label sample' is needed"
        raise argument_error("labels", f"{labels} {problem}; {needed}")
    outputs.require_marker(labels, names=["labels.json"])
    path /= "labels.json"
    with refuse_whatever_fails(str(path), NOT_AS_WRITTEN):
        content = dict(json.loads(files.read_bytes(path)))
        LabelFacts.model_validate(content)
        return content


def write_label_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write what :func:`read_label_facts` reads."""
    (folder / "labels.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def name_label_page(facts: Mapping[str, Any], role: str) -> str:
    """The name of the page for a reader of this role, which exports from the page repeat. By it a
    page, and the browser, recognize their own answers."""
    return str(facts["labels"]) + ("" if role == READER_ROLES[0] else role)


def check_label_corpus(corpus: str | os.PathLike, facts: Mapping[str, Any]) -> None:
    """Refuse labels that were not drawn from this corpus as it is: those from another corpus, or
    from the original text if this corpus is redacted."""
    corpus_hash = corpora.hash_text_as_read(corpus)
    if corpus_hash != facts["corpus"]:
        raise argument_error(
            "labels",
            f"were drawn from corpus {facts['corpus'][:4]}…, and {corpus} is {corpus_hash[:4]}…; "
            "they can teach, but not judge",
        )
