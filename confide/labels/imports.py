"""Import labels that people made, after checking them against the text they were made for.

>>> text = "Jos\u00e9 \U0001f600 is Ann"
>>> locate_secret(text, ExportedSpan(kind="name", start=11, end=14, value="Ann"), "UTF-16")
Secret(kind='name', start=10, end=13)
"""

from __future__ import annotations

import difflib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, Field, StrictInt

from confide import text_registry
from confide.labels.adjudication import (
    find_disputed_turns,
    measure_agreement,
    read_label_rows,
    read_marks_by_role,
)
from confide.labels.judged_turns import hash_rows_of_readers
from confide.labels.label_tasks import (
    LABEL_FORMS,
    READER_ROLES,
    LabelTask,
    MarkedSpans,
    check_label_corpus,
    name_label_page,
    read_label_facts,
    read_tasks,
    write_label_facts,
)
from confide.labels.registry import (
    open_label_registry,
    register_judged_pairs,
    register_marks,
    register_reading,
)
from crtlib import files, outputs
from crtlib.arguments import argument, argument_error
from crtlib.checks import printable, raise_machine_fault
from crtlib.screening.value_lists import is_cut_inside_word
from crtlib.text.corpus_folder import TURN_TYPE
from crtlib.text.encodings import describe_recoding
from crtlib.text.identity import hash_text, hash_turn_text
from crtlib.text.jsonl import BadRow, RepeatedNameError, load_strict_json
from crtlib.text.records import Secret

LABEL_SCHEMA = pa.schema(
    [("task", pa.string()), ("annotator", pa.string()), TURN_TYPE.field("secrets")]
)

DEFAULT_PAGE_READER = "a"
"""The name of the reader that stands in the page until somebody writes another."""
MAX_EXPORT_BYTES = 256 << 20
"""The most bytes of an export that are read, unpacked."""
OFFSET_CODECS = {"code points": "utf-32-le", "UTF-16": "utf-16-le"}
"""Ways in which tools count offsets: in units of these codecs."""


class ExportedSpan(BaseModel):
    """A span marked as secret: offsets as the tool counts them, and the value if it gives one."""

    kind: str
    start: StrictInt
    end: StrictInt
    value: str | None = Field(default=None, repr=False)


class ExportedTask(BaseModel):
    """A task as it was exported: with ``text`` if the tool gives it, ``done`` if somebody read it,
    ``undecided`` if that reader could not decide."""

    task: str
    done: bool
    undecided: bool = False
    secrets: list[ExportedSpan]
    text: str | None = Field(default=None, repr=False)


def import_labels(
    corpus: str | os.PathLike,
    file: str | os.PathLike,
    labels: str | os.PathLike,
    *,
    annotator: str | None = None,
    role: str = "first",
    partial: bool = False,
) -> dict[str, Any]:
    """Import the labels in ``file`` into the folder ``labels`` that was drawn from ``corpus``.

    An import discards the imports of later readers: after a new first reading, others must read
    again. Every set of labels numbers its tasks in the same way, so a file must come from the page
    of this set, or give the text of each turn.

    Args:
        corpus: The text.
        file: An export from the page or from a tool.
        labels: The labels, as :func:`confide.labels.drawing.draw_label_tasks` wrote them.
        annotator: A short name of the reader; None: "a", "b" or "c".
        role: One of ``READER_ROLES``. The first reader reads all that was drawn; the others read
            what :func:`confide.labels.adjudication.write_adjudication` gives them.
        partial: Accept unread turns in the judging part. Since they were drawn, each counts as a
            secret on which a policy fails, like one that nobody could decide
            (:meth:`crtlib.screening.rates.RateCounter.add_unread`). While there are any, no second
            reader can read.

    Returns:
        How many of the ``tasks`` were ``read``, in all and in the judging part; secrets by kind;
        what was mended; and for a second reader the agreement on turns drawn at random (F1 of
        spans, Cohen's kappa of turns).

    Raises:
        ValueError: In one line that names the file and the task and quotes no text, for a page of
            other labels, a changed text, a span outside it or with another value, overlapping spans
            of two kinds, an unknown kind or task, and unread turns.

    Guarantee:
        Marks on the turns of one set are never taken for marks on those of another, and no mark
        moves to other characters. The registry
        has a reading before the folder does, so even if this is killed nobody can certify by the
        reading before it; the same import, run again, repairs it. A turn that was left unread
        counts as a failure until somebody has read it. Tests:
        ``tests/release/test_drawn_turns.py::test_an_export_of_other_labels_is_refused``,
        ``tests/release/test_drawn_turns.py::test_a_reading_is_known_before_its_folder_holds_it``,
        ``tests/text/test_labels.py::
        test_a_place_that_depends_on_how_a_tool_counts_is_refused``,
        ``tests/release/test_unread_turns.py::
        test_nobody_reads_a_second_time_what_was_not_read_whole``,
        ``tests/text/test_labels.py::test_somebody_else_reads_what_the_first_left_undecided``.
    """
    facts, drawn_tasks = read_label_facts(labels), read_tasks(labels)
    check_label_corpus(corpus, facts)
    if role not in READER_ROLES:
        raise argument_error("role", f"{role!r} must be one of {', '.join(READER_ROLES)}")
    reads_anew = role in ("first", "undecided")
    _discard_later_readings(facts, role)
    annotator = _name_reader(annotator, facts, role)
    tasks = _find_tasks_of_role(Path(labels), facts, role, drawn_tasks)

    marks, notes = _read_export(
        Path(file), tasks, facts["kinds"], page=name_label_page(facts, role)
    )
    exported_by = {
        other_role: name_hash
        for other_role, name_hash in facts.get("exported_by", {}).items()
        if other_role in facts
    }
    exported_by[role] = _hash_reader_name(notes.pop("reader"))
    _refuse_same_reader(Path(file), exported_by, role)

    judging_tasks = [task for task in tasks.values() if task.part == "judge"]
    unread = sum(task.task not in marks for task in judging_tasks) if role != "decides" else 0
    undecided = sum(task.task in notes["undecided"] for task in judging_tasks)
    may_leave_unread = undecided if reads_anew else 0
    if unread > may_leave_unread and not (partial and reads_anew):
        advice = f"{argument('partial', True)} counts each as a secret on which a policy fails"
        if role == "second":
            advice = "a second reader reads all the turns given"
        raise ValueError(
            f"{Path(file).name}: {unread:,} of {len(judging_tasks):,} tasks to judge are unread"
            f"{f' ({undecided:,} undecided)' if undecided else ''}; leaving "
            f"out the hard ones spoils the rate; {advice}"
        )

    rows_before = read_label_rows(Path(labels))
    replaced_rows = [row for row in rows_before if row["annotator"] == facts.get(role)]
    rows_of_others = [row for row in rows_before if row["annotator"] != annotator]
    own_rows: list[dict[str, Any]] = [
        {"task": name, "annotator": annotator, "secrets": [asdict(secret) for secret in secrets]}
        for name, secrets in marks.items()
    ]
    agreement = dict[str, float]()
    if role == "second":
        _, (first_marks, *_) = read_marks_by_role(labels)
        random_marks = {name: marks[name] for name in facts["again"]["random"] if name in marks}
        agreement["f1"], agreement["kappa"] = measure_agreement(first_marks, random_marks)
    how_drawn = "at_random" if role == "first" else facts["drawn"]
    readers = dict(facts.get("readers", {}))
    readers[annotator] = {"read": len(marks), "secrets": sum(map(len, marks.values()))}
    facts |= {"readers": readers, "drawn": how_drawn, role: annotator, "exported_by": exported_by}
    facts |= {"agreement": agreement} if agreement else {}
    rows = rows_of_others + own_rows
    changed_rows = replaced_rows, own_rows
    _write_reading(labels, file, facts, role, rows, changed=changed_rows, judge=judging_tasks)
    if judging_tasks:
        text_registry.register_text(corpus)
        text_hashes = (hash_turn_text(task.text) for task in judging_tasks)
        register_judged_pairs(facts, facts["corpus"], [("", "")], text_hashes)
    return {
        "labels": os.fspath(labels),
        "annotator": annotator,
        "tasks": len(tasks),
        "read": len(marks),
        "judged": sum(task.task in marks for task in judging_tasks),
        "judge": len(judging_tasks),
        "unread": unread,
        "secrets": dict(Counter(secret.kind for secrets in marks.values() for secret in secrets)),
        "users_with_a_secret": sum(bool(marks.get(task.task)) for task in judging_tasks),
        "drawn": how_drawn,
        **notes,
        "undecided": undecided,
        **agreement,
    }


def _discard_later_readings(facts: dict[str, Any], role: str) -> None:
    """Discard the readings that rest on that of a role, since it is read anew."""
    later = READER_ROLES[READER_ROLES.index(role) + 1 :]
    of_both = ("agreement", "again") if role in ("first", "undecided") else ()
    for name in (*later, *of_both):
        facts.pop(name, None)


def _name_reader(annotator: str | None, facts: Mapping[str, Any], role: str) -> str:
    """The short name of the reader of a role; by default "a", "b", "c" or "d". Raises
    ``ValueError`` if it is the name of an earlier reader, or if nothing was given to this role."""
    rank = READER_ROLES.index(role)
    needed = {"decides": "second"}.get(role, "first")
    if (rank and needed not in facts) or (role == "second" and "again" not in facts):
        raise argument_error("role", f"{role!r} reads what 'crtlib label adjudicate' wrote for it")
    earlier = [facts[other] for other in READER_ROLES[:rank] if other in facts]
    annotator = annotator or {"second": "b", "decides": "c", "undecided": "d"}.get(role, "a")
    if not 0 < len(annotator) <= 40 or annotator in earlier:
        raise argument_error("annotator", f"{annotator!r} must be a short name, of no other reader")
    return annotator


def _find_tasks_of_role(
    folder: Path, facts: Mapping[str, Any], role: str, drawn: Sequence[LabelTask]
) -> dict[str, LabelTask]:
    """The tasks that the reader of a role is given, by name, of those that were ``drawn``."""
    tasks = {task.task: task for task in drawn}
    if role == "first":
        return tasks
    if role == "undecided":
        rows = read_label_rows(folder)
        read = {row["task"] for row in rows if row["annotator"] == facts["first"]}
        return {name: t for name, t in tasks.items() if t.part == "judge" and name not in read}
    given = facts["again"]["read"] if role == "second" else find_disputed_turns(folder)
    return {name: tasks[name] for name in given}


def _write_reading(
    folder: str | os.PathLike,
    file: str | os.PathLike,
    facts: dict[str, Any],
    role: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    changed: Sequence[Sequence[Mapping[str, Any]]],
    judge: Sequence[LabelTask],
) -> None:
    """Enter a reading in the registry, and write the folder that holds it.

    Args:
        folder: The labels.
        file: The export of the reading.
        facts: The facts of the labels, with this reading.
        role: What the reader is.
        rows: All labels, of all readers.
        changed: The labels that this reading replaces, and its own.
        judge: The tasks that judge policies.
    """
    with open_label_registry(facts, ()):  # refuses a broken one before anything is written
        pass
    with outputs.staged_folder(
        folder,
        add=True,
        command="label import",
        options={"annotator": facts[role], "role": role},
        inputs={"file": file},
    ) as staging:
        table = pa.Table.from_pylist(rows, LABEL_SCHEMA)
        pq.write_table(table, staging / "labels.parquet")
        write_label_facts(staging, facts)
        # Before the folder takes its place, so that a kill leaves a reading too many, never too
        # few.
        for changed_rows in changed:  # the registry may lack what an older crtlib imported
            offsets_by_task = {
                row["task"]: sorted((span["start"], span["end"]) for span in row["secrets"])
                for row in changed_rows
            }
            marks_by_task = {
                t.task: hash_text(f"{offsets_by_task[t.task]}")
                for t in judge
                if t.task in offsets_by_task
            }
            register_marks(
                facts["labels"],
                "first" if role in ("first", "undecided") else role,
                {t.task: hash_turn_text(t.text) for t in judge},
                marks_by_task,
            )
        reading_hash = hash_rows_of_readers(facts, read_tasks(folder), table.to_pylist())
        register_reading(facts["labels"], reading_hash)


def _hash_reader_name(name: str) -> str:
    """A hash of the name under which somebody exported; "" for none, and for the one that the page
    gives everybody."""
    words = " ".join(name.casefold().split())
    return "" if words in ("", DEFAULT_PAGE_READER) else hash_text(words)


def _refuse_same_reader(file: Path, exported_by: Mapping[str, str], role: str) -> None:
    """Raise ``ValueError`` if somebody exported under the same name for an earlier role: what one
    person marks twice is not the reading of two."""
    for earlier in READER_ROLES[: READER_ROLES.index(role)]:
        if exported_by[role] and exported_by.get(earlier) == exported_by[role]:
            raise ValueError(
                f"{file.name}: was exported under the name of the reader with "
                f"{argument('role', earlier)}; {argument('role', role)} is for somebody else"
            )


def _parse_records(text: str) -> tuple[list[Any], Any, str]:
    """The records of a JSON list, of our page's export, or of JSON lines, and the page and the
    reader that they name, if any."""
    try:
        content = load_strict_json(text)
    except json.JSONDecodeError:
        return [load_strict_json(line) for line in text.split("\n") if line.strip()], None, ""
    page, reader = None, ""
    if isinstance(content, dict):
        page, reader = content.get("labels"), str(content.get("annotator", ""))
        content = content.get("tasks", content)
    return (content if isinstance(content, list) else [content]), page, reader


def exported_page(path: Path) -> str | None:
    """The page that an exported file names; None if it names none or is not JSON."""
    try:
        page = json.loads(files.read_text(path, "utf-8-sig"))["labels"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise_machine_fault(error)
        return None
    return page if isinstance(page, str) else None


def _normalised_record(record: dict[str, Any]) -> dict[str, Any]:
    """A record in our format; from Label Studio, the last annotation that was not cancelled
    counts. Raises ``BadRow`` for marks under another name than the one that is read, because they
    would count as "nothing here is secret"."""
    if "data" not in record:
        others = [name for name in record if name != "secrets" and _may_hold_marks(record[name])]
        if others:
            name = f"{printable(others[0], quoted=True)} holds a list"
            raise BadRow("unread marks", f"{name}; marks are read from 'secrets' alone")
        return record
    results = [a["result"] for a in record.get("annotations", []) if not a.get("was_cancelled")]
    last_result = results[-1] if results else []
    marks = [mark for mark in last_result if "start" in mark.get("value", {})]
    if other_types := [mark.get("type") for mark in marks if mark.get("type") != "labels"]:
        quoted_type = printable(str(other_types[0]), quoted=True)
        message = f"has marks of the type {quoted_type}; those of 'labels' are read"
        raise BadRow("unread marks", message)
    spans = []
    for mark in marks:
        value = mark["value"]
        spans.append(value | {"kind": value["labels"][0], "value": value.get("text")})
    return record["data"] | {"done": bool(results), "secrets": spans}


def _may_hold_marks(value: Any) -> bool:
    """Whether a field of an exported record may hold marks: a list of lists or objects, or an
    object that has such a list."""
    if isinstance(value, dict):
        return any(map(_may_hold_marks, value.values()))
    return isinstance(value, list) and any(isinstance(entry, (list, dict)) for entry in value)


def _readers_of(record: Mapping[str, Any]) -> set[str]:
    """Who annotated a Label Studio record, as it names them. If one person did, the last annotation
    counts; if several did, no annotation is the reading of all."""
    counted = (a for a in record.get("annotations", []) if not a.get("was_cancelled"))
    return {json.dumps(a.get("completed_by"), sort_keys=True) for a in counted}


def locate_secret(text: str, span: ExportedSpan, offset_unit: str) -> Secret | None:
    """A span at its place in ``text``, without white space at its ends; None if it is empty,
    outside the text, or has another value there. ``offset_unit`` is one of ``OFFSET_CODECS``."""
    codec = OFFSET_CODECS[offset_unit]
    encoded = text.encode(codec)
    unit_bytes = 2 if offset_unit == "UTF-16" else 4
    if not 0 <= span.start < span.end <= len(encoded) // unit_bytes:
        return None
    try:
        start = len(encoded[: unit_bytes * span.start].decode(codec))
        end = len(encoded[: unit_bytes * span.end].decode(codec))
    except UnicodeDecodeError:  # between the two halves of a character
        return None
    marked = text[start:end]
    start += len(marked) - len(marked.lstrip())
    end = start + len(marked.strip())
    return Secret(span.kind, start, end) if start < end and span.value in (None, marked) else None


def _check_offsets_are_clear(
    tasks: Mapping[str, LabelTask], answers: Mapping[str, tuple[str, list[ExportedSpan]]]
) -> None:
    """Raise ``ValueError`` for a span without a value that is at another place if its offsets count
    UTF-16: nothing says which of the two was marked."""
    for name, (where, spans) in answers.items():
        for span in spans:
            places = {locate_secret(tasks[name].text, span, unit) for unit in OFFSET_CODECS}
            if span.value is None and len(places) > 1:
                raise ValueError(
                    f"{where}: a span is at one place if offsets count code points, and at another "
                    "if they count UTF-16; give each span its value"
                )


def _load_export(path: Path) -> tuple[list[Any], Any, str]:
    """The records of an exported file, and the page and the reader that it names, if any."""
    with files.open_plain_or_gzip(path) as file:
        content = file.read(MAX_EXPORT_BYTES + 1)  # a gzip file of 1 MiB may hold a thousand
    if len(content) > MAX_EXPORT_BYTES:
        raise ValueError(f"{path.name}: is longer than {MAX_EXPORT_BYTES >> 20} MiB")
    try:
        return _parse_records(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError(f"{path.name}: is not UTF-8; {describe_recoding(path)}") from None
    except RepeatedNameError:
        raise ValueError(f"{path.name}: holds an object in which a name stands twice") from None
    except (ValueError, RecursionError):  # as for a number of thousands of digits
        raise ValueError(f"{path.name}: is not JSON") from None


def _read_answers(
    file: str, records: Sequence[Any], tasks: Mapping[str, LabelTask], *, names_page: bool
) -> tuple[dict[str, tuple[str, list[ExportedSpan]]], set[str]]:
    """The marks of each task that was read, with the place of its record for messages, and the
    tasks that were left undecided. Unless the file ``names_page``, each record must have the text
    of its task."""
    answers: dict[str, tuple[str, list[ExportedSpan]]] = {}
    undecided = set[str]()
    for number, record in enumerate(records, 1):
        where = f"{file}, task {number}"
        try:
            answer = ExportedTask.model_validate(_normalised_record(record))
            readers = _readers_of(record)
        except BadRow as bad_row:
            raise ValueError(f"{where}: {bad_row.says}") from None
        except (KeyError, TypeError, AttributeError, IndexError, ValueError):
            forms = ", ".join(LABEL_FORMS)
            raise ValueError(f"{where}: is in none of the forms {forms}") from None
        if len(readers) > 1:
            raise ValueError(
                f"{where}: was read by {len(readers)} people, of whom only one would count; export "
                "the annotations of each alone, and import the second with "
                f"{argument('role', 'second')}"
            )
        if answer.undecided or not answer.done:  # a task with both is undecided
            undecided |= {answer.task} if answer.undecided else set()
            continue
        if answer.task not in tasks:
            raise ValueError(f"{where}: is not a task of this folder")
        if answer.task in answers:
            raise ValueError(f"{where}: appeared before; a task has one answer")
        if answer.text is None and not names_page:
            raise ValueError(f"{where}: has no text that shows which labels it belongs to")
        if answer.text not in (None, tasks[answer.task].text):
            raise ValueError(f"{where}: its text was changed; labels refer to the original")
        answers[answer.task] = where, answer.secrets
    return answers, {task for task in undecided if task not in answers}


def _merge_overlaps(where: str, secrets: Sequence[Secret]) -> tuple[Secret, ...]:
    """Spans of one text in order, where those of one kind that overlap are one. Raises
    ``ValueError`` if two of different kinds overlap."""
    merged: list[Secret] = []
    for secret in sorted(secrets, key=lambda s: (s.start, s.end)):
        if merged and secret.start < merged[-1].end:
            if secret.kind != merged[-1].kind:
                raise ValueError(f"{where}: two spans of different kinds overlap")
            merged[-1] = replace(merged[-1], end=max(secret.end, merged[-1].end))
        else:
            merged.append(secret)
    return tuple(merged)


def _read_export(
    path: Path, tasks: Mapping[str, LabelTask], kinds: Sequence[str], page: str
) -> tuple[MarkedSpans, Any]:
    """One reader's marks on a ``page``, as a tool exported them, with notes: how it counts offsets,
    how many overlaps were merged, how many spans end inside a word, which tasks remained undecided,
    and the name of the reader, "" if there is none."""
    records, named_page, reader = _load_export(path)
    if named_page not in (None, page):
        raise ValueError(
            f"{path.name}: is from the page of other labels, or of another reader of these; import "
            "what was marked in the page of this folder"
        )
    answers, undecided = _read_answers(path.name, records, tasks, names_page=named_page is not None)
    texts_and_spans = [
        (tasks[name].text, span) for name, (_, spans) in answers.items() for span in spans
    ]
    fitting_units = [
        unit
        for unit in OFFSET_CODECS
        if all(locate_secret(text, span, unit) for text, span in texts_and_spans)
    ]
    offset_unit = [*fitting_units, *OFFSET_CODECS][0]
    if named_page is None and len(fitting_units) > 1:  # our own page counts code points
        _check_offsets_are_clear(tasks, answers)
    secrets: MarkedSpans = {}
    merged_count = cut_word_count = 0
    for name, (where, spans) in answers.items():
        text, located = tasks[name].text, list[Secret]()
        for span in spans:
            if span.kind not in kinds:
                nearest = difflib.get_close_matches(span.kind, kinds, 1, 0)
                raise ValueError(f"{where}: a kind is not one of {', '.join(kinds)}; {nearest[0]}?")
            if (secret := locate_secret(text, span, offset_unit)) is None:
                raise ValueError(f"{where}: a span is empty, outside its text or of another value")
            located.append(secret)
        secrets[name] = merged = _merge_overlaps(where, located)
        merged_count += len(located) - len(merged)
        cut_word_count += sum(
            is_cut_inside_word(text, secret.start) or is_cut_inside_word(text, secret.end)
            for secret in merged
        )
    notes = {"offsets": offset_unit, "merged": merged_count, "inside_words": cut_word_count}
    return secrets, notes | {"undecided": undecided, "reader": reader}
