"""Compare what two people marked in the same turns, and settle where they differ."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pydantic import BaseModel, TypeAdapter

from confide.labels.forms import write_forms
from confide.labels.label_tasks import (
    READER_ROLES,
    SECONDS_PER_TURN,
    LabelTask,
    MarkedSpans,
    check_label_corpus,
    cluster_of_turn,
    name_label_page,
    read_label_facts,
    read_tasks,
    write_label_facts,
)
from confide.labels.registry import register_judged_pairs
from crtlib import files, outputs
from crtlib.arguments import argument_error
from crtlib.foreign_files import NOT_AS_WRITTEN, refuse_whatever_fails
from crtlib.screening import bound_levers
from crtlib.screening.rate_values import RATES_ALPHA, percent_rounded_up
from crtlib.text.records import Secret

SHOWN_SHARES = (0.2, 0.5, 1.0)
"""Shares to read again for which the attainable bounds are stated before anybody reads."""


class LabelRow(BaseModel):
    """What one reader marked in a turn, as ``labels.parquet`` holds it."""

    task: str
    annotator: str
    secrets: list[Secret]


LABEL_ROWS_ADAPTER = TypeAdapter(list[LabelRow])


def measure_agreement(
    first: Mapping[str, Sequence[Secret]], second: Mapping[str, Sequence[Secret]]
) -> tuple[float, float]:
    """F1 of spans and Cohen's kappa of turns, over the tasks that both read; nan if there are none.

    >>> a = {"1": (Secret("name", 0, 3),), "2": ()}
    >>> measure_agreement(a, a)
    (1.0, 1.0)
    """
    shared_tasks = [task for task in first if task in second]
    n = len(shared_tasks)
    if not n:
        return float("nan"), float("nan")
    first_marks = {(task, secret) for task in shared_tasks for secret in first[task]}
    second_marks = {(task, secret) for task in shared_tasks for secret in second[task]}
    mark_count = len(first_marks) + len(second_marks)
    f1 = 2 * len(first_marks & second_marks) / mark_count if mark_count else 1.0
    is_marked = [(bool(first[task]), bool(second[task])) for task in shared_tasks]
    agreement = sum(by_first == by_second for by_first, by_second in is_marked) / n
    first_share = sum(by_first for by_first, _ in is_marked) / n
    second_share = sum(by_second for _, by_second in is_marked) / n
    chance_agreement = first_share * second_share + (1 - first_share) * (1 - second_share)
    if chance_agreement == 1:
        return f1, 1.0
    return f1, (agreement - chance_agreement) / (1 - chance_agreement)


def read_label_rows(folder: Path) -> list[dict[str, Any]]:
    """What readers marked, as imported, with a row for each reader and turn; empty if nothing was
    imported."""
    path = folder / "labels.parquet"
    if not path.is_file():
        return []
    with refuse_whatever_fails(str(path), NOT_AS_WRITTEN):
        rows = pq.read_table(files.check_regular_file(path)).to_pylist()
        LABEL_ROWS_ADAPTER.validate_python(rows)
        return rows


def read_marks_by_role(folder: str | os.PathLike) -> tuple[dict[str, Any], list[MarkedSpans]]:
    """The facts of the labels, and three sets of marks: those of the first reader together with
    those of whoever read what the first left undecided; those of the second; and those of whoever
    decides."""
    facts = read_label_facts(folder)
    if "first" not in facts:
        raise ValueError(f"{folder}: holds no labels yet; import them with 'crtlib label import'")
    outputs.require_marker(folder, names=["labels.parquet"])
    marks_by_reader: dict[str, MarkedSpans] = {}
    for row in read_label_rows(Path(folder)):
        spans = tuple(Secret(**secret) for secret in row["secrets"])
        marks_by_reader.setdefault(row["annotator"], {})[row["task"]] = spans
    first, undecided, *others = (
        marks_by_reader.get(facts.get(role, ""), {}) for role in READER_ROLES
    )
    return facts, [first | undecided, *others]


def _merge_marks(
    first: Sequence[Secret], second: Sequence[Secret], undisputed: bool
) -> tuple[Secret, ...]:
    """What at least one reader marked, with overlapping marks merged; if ``undisputed``, only what
    both marked.

    >>> _merge_marks([Secret("name", 0, 3), Secret("id", 9, 12)], [Secret("name", 1, 5)], True)
    (Secret(kind='name', start=0, end=5),)
    """
    merged_marks: list[tuple[Secret, set[int]]] = []  # each with the readers whose marks it joins
    marks = [
        (mark.start, reader, mark)
        for reader, reader_marks in enumerate((first, second))
        for mark in reader_marks
    ]
    for start, reader, mark in sorted(marks, key=lambda row: row[:2]):
        if merged_marks and start < merged_marks[-1][0].end:
            merged, readers = merged_marks[-1]
            longer = replace(merged, end=max(merged.end, mark.end))
            merged_marks[-1] = longer, readers | {reader}
        else:
            merged_marks.append((mark, {reader}))
    return tuple(mark for mark, readers in merged_marks if len(readers) == 2 or not undisputed)


def read_labelled_turns(
    folder: str | os.PathLike, *, part: str | None = None, undisputed: bool = False
) -> list[tuple[LabelTask, tuple[Secret, ...]]]:
    """The turns that were read, in one ``part`` or both, with their secrets.

    If one reader read a turn, its secrets are that reader's marks. If two did, they are what both
    marked and what was decided; if nobody decided, what at least one marked, or only what both
    marked if ``undisputed``."""
    _, (spans, second, decided) = read_marks_by_role(folder)
    for name, marks in second.items():
        merged = _merge_marks(spans.get(name, ()), marks, undisputed or name in decided)
        spans[name] = _merge_marks(merged, decided.get(name, ()), False)
    tasks = read_tasks(folder)
    return [(t, spans[t.task]) for t in tasks if t.task in spans and part in (None, t.part)]


def list_unread_tasks(folder: str | os.PathLike) -> list[LabelTask]:
    """The turns drawn to judge that the first reader left unread. Raises ``ValueError`` if there
    are any although a second reader read turns, or if the second reader left some: crtlib 0.3
    allowed that."""
    facts, (first, second, _) = read_marks_by_role(folder)
    unread = [t for t in read_tasks(folder) if t.part == "judge" and t.task not in first]
    if "second" in facts and (unread or not set(facts["again"]["random"]) <= second.keys()):
        raise ValueError(
            f"{folder}: was read twice, but not completely; import everything that the first "
            "reader read again: crtlib label import --role first"
        )
    return unread


def find_disputed_turns(folder: str | os.PathLike) -> dict[str, tuple[Secret, ...]]:
    """The turns on which two readers differ, decided or not, with what at least one marked."""
    _, (first, second, _) = read_marks_by_role(folder)
    marks_of_both = {name: (first.get(name, ()), marks) for name, marks in second.items()}
    return {
        name: _merge_marks(*marks, False)
        for name, marks in marks_of_both.items()
        if _merge_marks(*marks, False) != _merge_marks(*marks, True)
    }


def compare_second_reader(folder: str | os.PathLike) -> dict[str, str]:
    """What the second reader found in the turns that were drawn at random, by user (or dialogue):
    "new" if the first reader had marked nothing, "found" if the second reader marked a secret
    there that counts."""
    facts, (first, second, _) = read_marks_by_role(folder)
    labelled_turns = read_labelled_turns(folder, undisputed=True)
    counted_by_task = {task.task: (task, spans) for task, spans in labelled_turns}
    findings: dict[str, str] = {}
    for name in facts["again"]["random"]:
        if name not in second:
            continue
        task, counted_spans = counted_by_task[name]
        cluster = cluster_of_turn(facts["by"], task.user, task.id)
        if not first.get(name):
            findings[cluster] = "new"
        elif _merge_marks(second[name], counted_spans, True):
            findings[cluster] = "found"
    return findings


def count_decided_turns(folder: str | os.PathLike) -> tuple[int, int]:
    """How many turns on which two readers differ were decided by somebody, and in how many of these
    a mark of one of the two no longer counts anywhere."""
    _, (first, second, decided) = read_marks_by_role(folder)
    dropped = 0
    for name, decided_marks in decided.items():
        marks_of_both = first.get(name, ()), second.get(name, ())
        counted = _merge_marks(*marks_of_both, True) + decided_marks
        dropped += any(
            all(mark.end <= other.start or other.end <= mark.start for other in counted)
            for mark in _merge_marks(*marks_of_both, False)
        )
    return len(decided), dropped


def write_adjudication(
    corpus: str | os.PathLike,
    labels: str | os.PathLike,
    out: str | os.PathLike,
    *,
    share: float = 0.2,
    forms: Sequence[str] = ("page",),
    force: bool = False,
) -> dict[str, Any]:
    """Write to ``out`` what is to be read next in the judging part of the folder ``labels``.

    If the first reader left turns undecided or unread, these come first, for somebody else; before
    that nothing is read again. Next, for the second reader, comes every turn with a mark and a
    random ``share`` of all turns, in one order and without the marks. Which turns these are is
    noted in ``labels``, and the turns of a smaller share are part of those of a larger one, so that
    nobody can choose. After the second reader come the turns on which the two differ, with all
    marks, for whoever decides.

    Raises ``ValueError`` if nothing is left to read, and if ``out`` may not be written."""
    if not 0 < share <= 1:
        raise argument_error("share", f"{share!r} must be in (0, 1]")
    outputs.check_output_folder(out, inputs=[corpus, labels], force=force)
    facts = read_label_facts(labels)
    check_label_corpus(corpus, facts)
    labelled_turns = read_labelled_turns(labels, part="judge")
    role, prefilled = "second", dict[str, tuple[Secret, ...]]()
    if unread_tasks := list_unread_tasks(labels):
        role, tasks = "undecided", unread_tasks
    elif "second" in facts:
        role, prefilled = "decides", find_disputed_turns(labels)
        tasks = [t for t, _ in labelled_turns if t.task in prefilled]
    else:
        random_tasks = _draw_again(labelled_turns, facts, share)
        tasks = [t for t, spans in labelled_turns if spans or t.task in random_tasks]
        facts["again"] = {"read": [t.task for t in tasks], "random": sorted(random_tasks)}
    attainable_bounds = _bounds_in_reach(labelled_turns, facts, share) if role == "second" else []
    if not tasks:
        raise argument_error("labels", f"{labels} has no mark on which readers could differ")
    page_facts = facts | {"labels": name_label_page(facts, role), "role": role}
    provenance: dict[str, Any] = {"command": "label adjudicate", "options": {"role": role}}
    with outputs.staged_folder(
        out, **provenance, inputs={"corpus": facts["corpus"]}, force=force
    ) as staging:
        written_files = write_forms(forms, staging, tasks, prefilled, page_facts)
        with outputs.staged_folder(labels, add=True, **provenance) as labels_staging:
            write_label_facts(labels_staging, facts)
    return {
        "out": os.fspath(out),
        "role": role,
        "turns": len(tasks),
        "files": written_files,
        "reach": attainable_bounds,
    }


def _bounds_in_reach(
    labelled_turns: Sequence[tuple[LabelTask, tuple[Secret, ...]]],
    facts: dict[str, Any],
    share: float,
) -> list[dict[str, Any]]:
    """For no second reader (share None) and for each of some shares to read again: the turns and
    hours that this takes, and the smallest bound on a rate that it can give for any policy."""
    turns_with_a_secret = sum(bool(spans) for _, spans in labelled_turns)
    judged_pairs = register_judged_pairs(facts, facts["corpus"]) + 1  # each reading judges again
    rows = []
    for reread_share in (None, *sorted({*SHOWN_SHARES, share})):
        reread_tasks, charged_pairs = set[str](), max(judged_pairs - 1, 1)
        if reread_share is not None:
            reread_tasks = _draw_again(labelled_turns, facts, reread_share)
            reread_tasks |= _marked_tasks(labelled_turns)
            charged_pairs = judged_pairs
        least_bound = bound_levers.bound_in_reach(
            turns_with_a_secret, reread_share, alpha=RATES_ALPHA / (2 * charged_pairs)
        )
        hours = len(reread_tasks) * SECONDS_PER_TURN / 3600
        row = {"turns": len(reread_tasks), "hours": hours, "at_most": least_bound}
        rows.append({"share": reread_share, **row})
    return rows


def _draw_again(
    labelled_turns: Sequence[tuple[LabelTask, tuple[Secret, ...]]],
    facts: Mapping[str, Any],
    share: float,
) -> set[str]:
    """The turns that a second reader is given regardless of marks; those of a smaller share are
    part of those of a larger one."""
    order = np.random.default_rng([facts["seed"], 2]).permutation(len(labelled_turns))
    drawn = order[: math.ceil(share * len(labelled_turns))]
    return {labelled_turns[place][0].task for place in drawn}


def _marked_tasks(labelled_turns: Sequence[tuple[LabelTask, tuple[Secret, ...]]]) -> set[str]:
    return {t.task for t, spans in labelled_turns if spans}


def format_adjudication(summary: Mapping[str, Any]) -> str:
    """The text that ``crtlib label adjudicate`` prints."""
    lines = [f"to read   {summary['turns']:,} turns; import them with --role {summary['role']}"]
    if summary["reach"]:
        lines.append(
            "about the least bound, if nothing fails and a share of the turns has that share of "
            "the secrets:"
        )
    for row in summary["reach"]:
        option = "nobody reads again" if row["share"] is None else f"--share {row['share']:g}"
        bound_text = percent_rounded_up(row["at_most"])
        hours_text = f"{row['hours']:.1f} hours"
        lines.append(
            f"  {option:<20}{row['turns']:>8,} turns {hours_text:>12}  at most {bound_text:>8}"
        )
    if summary["reach"]:
        lines.append("note: the bound for one reader takes all marks as complete; others do not")
    return "\n".join([*lines, *(f"{summary['out']}/{name}" for name in summary["files"])])
