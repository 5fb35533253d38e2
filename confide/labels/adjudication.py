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
    both = [task for task in first if task in second]
    ours = {(t, s) for t in both for s in first[t]}
    theirs = {(t, s) for t in both for s in second[t]}
    f1 = 2 * len(ours & theirs) / (len(ours) + len(theirs)) if ours or theirs else 1.0
    n = len(both)
    if not n:
        return float("nan"), float("nan")
    flags = [(bool(first[t]), bool(second[t])) for t in both]
    observed = sum(a == b for a, b in flags) / n
    p, q = sum(a for a, _ in flags) / n, sum(b for _, b in flags) / n
    chance = p * q + (1 - p) * (1 - q)
    return f1, 1.0 if chance == 1 else (observed - chance) / (1 - chance)


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
    about = read_label_facts(folder)
    if "first" not in about:
        raise ValueError(f"{folder}: holds no labels yet; import them with 'crtlib label import'")
    outputs.require_marker(folder, names=["labels.parquet"])
    marked: dict[str, MarkedSpans] = {}
    for row in read_label_rows(Path(folder)):
        spans = tuple(Secret(**s) for s in row["secrets"])
        marked.setdefault(row["annotator"], {})[row["task"]] = spans
    first, undecided, *others = (marked.get(about.get(role, ""), {}) for role in READER_ROLES)
    return about, [first | undecided, *others]


def _merge_marks(
    first: Sequence[Secret], second: Sequence[Secret], undisputed: bool
) -> tuple[Secret, ...]:
    """What at least one reader marked, with overlapping marks merged; if ``undisputed``, only what
    both marked.

    >>> _merge_marks([Secret("name", 0, 3), Secret("id", 9, 12)], [Secret("name", 1, 5)], True)
    (Secret(kind='name', start=0, end=5),)
    """
    groups: list[tuple[Secret, set[int]]] = []
    marks = [(s.start, who, s) for who, some in enumerate((first, second)) for s in some]
    for start, who, s in sorted(marks, key=lambda mark: mark[:2]):
        if groups and start < groups[-1][0].end:
            last, readers = groups[-1]
            groups[-1] = (replace(last, end=max(last.end, s.end)), readers | {who})
        else:
            groups.append((s, {who}))
    return tuple(s for s, readers in groups if len(readers) == 2 or not undisputed)


def read_labelled_turns(
    folder: str | os.PathLike, *, part: str | None = None, undisputed: bool = False
) -> list[tuple[LabelTask, tuple[Secret, ...]]]:
    """The turns that were read, in one ``part`` or both, with their secrets.

    If one reader read a turn, its secrets are that reader's marks. If two did, they are what both
    marked and what was decided; if nobody decided, what at least one marked, or only what both
    marked if ``undisputed``."""
    _, (spans, second, decided) = read_marks_by_role(folder)
    for t, marked in second.items():
        both = _merge_marks(spans.get(t, ()), marked, undisputed or t in decided)
        spans[t] = _merge_marks(both, decided.get(t, ()), False)
    tasks = read_tasks(folder)
    return [(t, spans[t.task]) for t in tasks if t.task in spans and part in (None, t.part)]


def list_unread_tasks(folder: str | os.PathLike) -> list[LabelTask]:
    """The turns drawn to judge that the first reader left unread. Raises ``ValueError`` if there
    are any although a second reader read turns, or if the second reader left some: crtlib 0.3
    allowed that."""
    about, (first, second, _) = read_marks_by_role(folder)
    unread = [t for t in read_tasks(folder) if t.part == "judge" and t.task not in first]
    if "second" in about and (unread or not set(about["again"]["random"]) <= second.keys()):
        raise ValueError(
            f"{folder}: was read twice, but not completely; import everything that the first "
            "reader read again: crtlib label import --role first"
        )
    return unread


def find_disputed_turns(folder: str | os.PathLike) -> dict[str, tuple[Secret, ...]]:
    """The turns on which two readers differ, decided or not, with what at least one marked."""
    _, (first, second, _) = read_marks_by_role(folder)
    pairs = {t: (first.get(t, ()), marked) for t, marked in second.items()}
    return {
        t: _merge_marks(*both, False)
        for t, both in pairs.items()
        if _merge_marks(*both, False) != _merge_marks(*both, True)
    }


def compare_second_reader(folder: str | os.PathLike) -> dict[str, str]:
    """What the second reader found in the turns that were drawn at random, by user (or dialogue):
    "new" if the first reader had marked nothing, "found" if the second reader marked a secret
    there that counts."""
    about, (first, second, _) = read_marks_by_role(folder)
    stands = {t.task: (t, spans) for t, spans in read_labelled_turns(folder, undisputed=True)}
    findings: dict[str, str] = {}
    for t, spans in (stands[name] for name in about["again"]["random"] if name in second):
        name = cluster_of_turn(about["by"], t.user, t.id)
        if not first.get(t.task):
            findings[name] = "new"
        elif _merge_marks(second[t.task], spans, True):
            findings[name] = "found"
    return findings


def count_decided_turns(folder: str | os.PathLike) -> tuple[int, int]:
    """How many turns on which two readers differ were decided by somebody, and in how many of these
    a mark of one of the two no longer counts anywhere."""
    _, (first, second, decided) = read_marks_by_role(folder)
    dropped = 0
    for t in decided:
        one_at_least = _merge_marks(first.get(t, ()), second.get(t, ()), False)
        stands = _merge_marks(first.get(t, ()), second.get(t, ()), True) + decided[t]
        dropped += any(
            all(mark.end <= s.start or s.end <= mark.start for s in stands) for mark in one_at_least
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
    about = read_label_facts(labels)
    check_label_corpus(corpus, about)
    marked = read_labelled_turns(labels, part="judge")
    role, flags = "second", dict[str, tuple[Secret, ...]]()
    if unread := list_unread_tasks(labels):
        role, tasks = "undecided", unread
    elif "second" in about:
        role, flags = "decides", find_disputed_turns(labels)
        tasks = [t for t, _ in marked if t.task in flags]
    else:
        drawn = _draw_again(marked, about, share)
        tasks = [t for t, spans in marked if spans or t.task in drawn]
        about["again"] = {"read": [t.task for t in tasks], "random": sorted(drawn)}
    reach = _bounds_in_reach(marked, about, share) if role == "second" else []
    if not tasks:
        raise argument_error("labels", f"{labels} has no mark on which readers could differ")
    shown = about | {"labels": name_label_page(about, role), "role": role}
    recipe: dict[str, Any] = {"command": "label adjudicate", "options": {"role": role}}
    with outputs.staged_folder(
        out, **recipe, inputs={"corpus": about["corpus"]}, force=force
    ) as part:
        names = write_forms(forms, part, tasks, flags, shown)
        with outputs.staged_folder(labels, add=True, **recipe) as kept:
            write_label_facts(kept, about)
    return {
        "out": os.fspath(out), "role": role, "turns": len(tasks), "files": names, "reach": reach,
    }  # fmt: skip


def _bounds_in_reach(
    marked: Sequence[tuple[LabelTask, tuple[Secret, ...]]], about: dict[str, Any], share: float
) -> list[dict[str, Any]]:
    """For no second reader (share None) and for each of some shares to read again: the turns and
    hours that this takes, and the smallest bound on a rate that it can give for any policy."""
    secrets = sum(bool(spans) for _, spans in marked)
    judged = register_judged_pairs(about, about["corpus"]) + 1  # each reading judges again
    rows = []
    for each in (None, *sorted({*SHOWN_SHARES, share})):
        drawn = 0 if each is None else len(_draw_again(marked, about, each) | _marked_tasks(marked))
        pairs = judged if each is not None else max(judged - 1, 1)
        upper = bound_levers.bound_in_reach(secrets, each, alpha=RATES_ALPHA / (2 * pairs))
        hours = drawn * SECONDS_PER_TURN / 3600
        rows.append({"share": each, "turns": drawn, "hours": hours, "at_most": upper})
    return rows


def _draw_again(
    marked: Sequence[tuple[LabelTask, tuple[Secret, ...]]], about: Mapping[str, Any], share: float
) -> set[str]:
    """The turns that a second reader is given regardless of marks; those of a smaller share are
    part of those of a larger one."""
    order = np.random.default_rng([about["seed"], 2]).permutation(len(marked))
    return {marked[k][0].task for k in order[: math.ceil(share * len(marked))]}


def _marked_tasks(marked: Sequence[tuple[LabelTask, tuple[Secret, ...]]]) -> set[str]:
    return {t.task for t, spans in marked if spans}


def format_adjudication(summary: Mapping[str, Any]) -> str:
    """The text that ``crtlib label adjudicate`` prints."""
    lines = [f"to read   {summary['turns']:,} turns; import them with --role {summary['role']}"]
    if summary["reach"]:
        lines.append(
            "about the least bound, if nothing fails and a share of the turns has that share of "
            "the secrets:"
        )
    for row in summary["reach"]:
        how = "nobody reads again" if row["share"] is None else f"--share {row['share']:g}"
        most = percent_rounded_up(row["at_most"])
        time = f"{row['hours']:.1f} hours"
        lines.append(f"  {how:<20}{row['turns']:>8,} turns {time:>12}  at most {most:>8}")
    if summary["reach"]:
        lines.append("note: the bound for one reader takes all marks as complete; others do not")
    return "\n".join([*lines, *(f"{summary['out']}/{name}" for name in summary["files"])])
