"""Turns that were drawn to be read, as files: tasks, who reads them, and of which corpus they
are."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from crtlib import outputs
from crtlib.text import corpora, records
from crtlib.text.identity import hash_text
from crtlib.text.records import Point, Secret

LABEL_TEMPLATES = resources.files("confide.text") / "templates"

DEFAULT_LABEL_KINDS = records.LABEL_KINDS
ASSUMED_SECRET_SHARE = 0.25
"""Share of turns with a secret that is assumed where nothing is known."""
SECONDS_PER_TURN = 9.5
"""What a person takes to read one turn: the sum that is printed is for planning only."""
LABEL_FORMS = ("page", "jsonl", "labelstudio")
SpanFlagger = Callable[[Sequence[Point]], Sequence[Sequence[Secret]]]
"""A policy: points, here a turn's own text without its speaker, to spans."""


PrefilledSpans = Mapping[str, Sequence[Secret]]
"""Spans to begin with, by task."""

MarkedSpans = dict[str, tuple[Secret, ...]]
"""The secrets of each task that was read."""
READER_ROLES = ("first", "second", "decides")
"""In which order turns are read: all of them; again, blind; where the first two differ."""


@dataclass(frozen=True, slots=True)
class LabelTask:
    """One turn to be read: its name, thread, user and number there, ``part`` ("judge" or "teach"),
    its text and what was said ``before`` and ``after``, a line a turn."""

    task: str
    id: str
    user: str = field(repr=False)
    turn: int
    part: str
    text: str = field(repr=False)
    before: str = field(repr=False)
    after: str = field(repr=False)


def points_of_tasks(tasks: Sequence[LabelTask]) -> list[Point]:
    """Turns that were drawn, each as a point of its own words, without what is marked there."""
    return [Point(f"{t.id}/{t.turn}", t.user, t.text, thread=t.id) for t in tasks]


def _flag_tasks(policy: SpanFlagger, tasks: Sequence[LabelTask]) -> list[tuple[Secret, ...]]:
    return [tuple(spans) for spans in policy(points_of_tasks(tasks))]


def _hash_tasks(tasks: Sequence[LabelTask]) -> str:
    text = json.dumps([asdict(t) for t in tasks], sort_keys=True, ensure_ascii=False)
    return hash_text(text)


def read_tasks(labels: str | os.PathLike) -> list[LabelTask]:
    """The turns that were drawn into a folder, in order."""
    outputs.require_marker(labels, names=["tasks.parquet", "labels.json"])
    return [LabelTask(**row) for row in pq.read_table(Path(labels) / "tasks.parquet").to_pylist()]


def read_label_facts(labels: str | os.PathLike) -> dict[str, Any]:
    """What ``labels.json`` says: corpus hash, seed, kinds, counts, and after an import who read
    what, and that the labels were ``drawn`` "at_random"; of some that were not read whole crtlib
    0.3 said "given"."""
    outputs.require_marker(labels, names=["labels.json"])
    return json.loads((Path(labels) / "labels.json").read_bytes())


def write_label_facts(folder: Path, about: Mapping[str, Any]) -> None:
    """Write what :func:`read_label_facts` reads."""
    (folder / "labels.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def name_label_page(about: Mapping[str, Any], role: str) -> str:
    """What the page that a reader of this role gets is called, and what he exports from it names:
    a page, and a browser, know their own answers by it."""
    return str(about["labels"]) + ("" if role == READER_ROLES[0] else role)


def check_label_corpus(corpus: str | os.PathLike, about: Mapping[str, Any]) -> None:
    """Refuse labels that were drawn from another corpus, or from the text that this one, redacted,
    was made of."""
    digest = corpora.hash_text_as_read(corpus)
    if digest != about["corpus"]:
        raise ValueError(
            f"labels: were drawn from corpus {about['corpus'][:4]}…, this is {digest[:4]}…; "
            "they teach, they do not judge"
        )
