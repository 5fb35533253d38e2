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
    about, drawn_tasks = read_label_facts(labels), read_tasks(labels)
    check_label_corpus(corpus, about)
    if role not in READER_ROLES:
        raise argument_error("role", f"{role!r} must be one of {', '.join(READER_ROLES)}")
    reads_anew = role in ("first", "undecided")
    _discard_later_readings(about, role)
    annotator = _name_reader(annotator, about, role)
    tasks = _find_tasks_of_role(Path(labels), about, role, drawn_tasks)

    found, notes = _read_export(
        Path(file), tasks, about["kinds"], page=name_label_page(about, role)
    )
    exported_by = {r: name for r, name in about.get("exported_by", {}).items() if r in about}
    exported_by[role] = _hash_reader_name(notes.pop("reader"))
    _refuse_same_reader(Path(file), exported_by, role)

    judge = [t for t in tasks.values() if t.part == "judge"]
    left = sum(t.task not in found for t in judge) if role != "decides" else 0
    undecided = sum(t.task in notes["undecided"] for t in judge)
    if left > (undecided if reads_anew else 0) and not (partial and reads_anew):
        most = f"{argument('partial', True)} counts each as a secret on which a policy fails"
        if role == "second":
            most = "a second reader reads all the turns given"
        raise ValueError(
            f"{Path(file).name}: {left:,} of {len(judge):,} tasks to judge are unread"
            f"{f' ({undecided:,} undecided)' if undecided else ''}; leaving "
            f"out the hard ones spoils the rate; {most}"
        )

    rows_before = read_label_rows(Path(labels))
    replaced = [row for row in rows_before if row["annotator"] == about.get(role)]
    of_others = [row for row in rows_before if row["annotator"] != annotator]
    now: list[dict[str, Any]] = [
        {"task": task, "annotator": annotator, "secrets": [asdict(s) for s in spans]}
        for task, spans in found.items()
    ]
    scores = dict[str, float]()
    if role == "second":
        _, (before, *_) = read_marks_by_role(labels)
        drawn_at_random = {t: found[t] for t in about["again"]["random"] if t in found}
        scores["f1"], scores["kappa"] = measure_agreement(before, drawn_at_random)
    drawn = "at_random" if role == "first" else about["drawn"]
    readers = dict(about.get("readers", {}))
    readers[annotator] = {"read": len(found), "secrets": sum(map(len, found.values()))}
    about |= {"readers": readers, "drawn": drawn, role: annotator, "exported_by": exported_by}
    about |= {"agreement": scores} if scores else {}
    _write_reading(labels, file, about, role, of_others + now, changed=(replaced, now), judge=judge)
    if judge:
        text_registry.register_text(corpus)
        register_judged_pairs(
            about, about["corpus"], [("", "")], (hash_turn_text(t.text) for t in judge)
        )
    return {
        "labels": os.fspath(labels),
        "annotator": annotator,
        "tasks": len(tasks),
        "read": len(found),
        "judged": sum(t.task in found for t in judge),
        "judge": len(judge),
        "unread": left,
        "secrets": dict(Counter(s.kind for some in found.values() for s in some)),
        "users_with_a_secret": sum(bool(found.get(t.task)) for t in judge),
        "drawn": drawn,
        **notes,
        "undecided": undecided,
        **scores,
    }


def _discard_later_readings(about: dict[str, Any], role: str) -> None:
    """Discard the readings that rest on that of a role, since it is read anew."""
    later = READER_ROLES[READER_ROLES.index(role) + 1 :]
    of_both = ("agreement", "again") if role in ("first", "undecided") else ()
    for name in (*later, *of_both):
        about.pop(name, None)


def _name_reader(annotator: str | None, about: Mapping[str, Any], role: str) -> str:
    """The short name of the reader of a role; by default "a", "b", "c" or "d". Raises
    ``ValueError`` if it is the name of an earlier reader, or if nothing was given to this role."""
    place = READER_ROLES.index(role)
    needed = {"decides": "second"}.get(role, "first")
    if (place and needed not in about) or (role == "second" and "again" not in about):
        raise argument_error("role", f"{role!r} reads what 'crtlib label adjudicate' wrote for it")
    earlier = [about[other] for other in READER_ROLES[:place] if other in about]
    annotator = annotator or {"second": "b", "decides": "c", "undecided": "d"}.get(role, "a")
    if not 0 < len(annotator) <= 40 or annotator in earlier:
        raise argument_error("annotator", f"{annotator!r} must be a short name, of no other reader")
    return annotator


def _find_tasks_of_role(
    folder: Path, about: Mapping[str, Any], role: str, drawn: Sequence[LabelTask]
) -> dict[str, LabelTask]:
    """The tasks that the reader of a role is given, by name, of those that were ``drawn``."""
    tasks = {t.task: t for t in drawn}
    if role == "first":
        return tasks
    if role == "undecided":
        rows = read_label_rows(folder)
        read = {row["task"] for row in rows if row["annotator"] == about["first"]}
        return {name: t for name, t in tasks.items() if t.part == "judge" and name not in read}
    asked = about["again"]["read"] if role == "second" else find_disputed_turns(folder)
    return {name: tasks[name] for name in asked}


def _write_reading(
    folder: str | os.PathLike,
    file: str | os.PathLike,
    about: dict[str, Any],
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
        about: The facts of the labels, with this reading.
        role: What the reader is.
        rows: All labels, of all readers.
        changed: The labels that this reading replaces, and its own.
        judge: The tasks that judge policies.
    """
    with open_label_registry(about, ()):  # refuses a broken one before anything is written
        pass
    with outputs.staged_folder(
        folder,
        add=True,
        command="label import",
        options={"annotator": about[role], "role": role},
        inputs={"file": file},
    ) as part:
        table = pa.Table.from_pylist(rows, LABEL_SCHEMA)
        pq.write_table(table, part / "labels.parquet")
        write_label_facts(part, about)
        # Before the folder takes its place, so that a kill leaves a reading too many, never too
        # few.
        for some in changed:  # the registry may lack what an older crtlib imported
            places = {
                row["task"]: sorted((s["start"], s["end"]) for s in row["secrets"]) for row in some
            }
            register_marks(
                about["labels"],
                "first" if role in ("first", "undecided") else role,
                {t.task: hash_turn_text(t.text) for t in judge},
                {t.task: hash_text(f"{places[t.task]}") for t in judge if t.task in places},
            )
        reading = hash_rows_of_readers(about, read_tasks(folder), table.to_pylist())
        register_reading(about["labels"], reading)


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
        whole = load_strict_json(text)
    except json.JSONDecodeError:
        return [load_strict_json(line) for line in text.split("\n") if line.strip()], None, ""
    page, reader = None, ""
    if isinstance(whole, dict):
        page, reader = whole.get("labels"), str(whole.get("annotator", ""))
        whole = whole.get("tasks", whole)
    return (whole if isinstance(whole, list) else [whole]), page, reader


def exported_page(path: Path) -> str | None:
    """The page that an exported file names; None if it names none or is not JSON."""
    try:
        page = json.loads(files.read_text(path, "utf-8-sig"))["labels"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise_machine_fault(error)
        return None
    return page if isinstance(page, str) else None


def _normalised_record(r: dict[str, Any]) -> dict[str, Any]:
    """A record in our format; from Label Studio, the last annotation that was not cancelled
    counts. Raises ``BadRow`` for marks under another name than the one that is read, because they
    would count as "nothing here is secret"."""
    if "data" not in r:
        others = [name for name in r if name != "secrets" and _may_hold_marks(r[name])]
        if others:
            name = f"{printable(others[0], quoted=True)} holds a list"
            raise BadRow("unread marks", f"{name}; marks are read from 'secrets' alone")
        return r
    given = [a["result"] for a in r.get("annotations", []) if not a.get("was_cancelled")]
    marks = [x for x in (given[-1] if given else []) if "start" in x.get("value", {})]
    if others := [x.get("type") for x in marks if x.get("type") != "labels"]:
        kind = printable(str(others[0]), quoted=True)
        raise BadRow("unread marks", f"has marks of the type {kind}; those of 'labels' are read")
    values = [x["value"] for x in marks]
    spans = [v | {"kind": v["labels"][0], "value": v.get("text")} for v in values]
    return r["data"] | {"done": bool(given), "secrets": spans}


def _may_hold_marks(value: Any) -> bool:
    """Whether a field of an exported record may hold marks: a list of lists or objects, or an
    object that has such a list."""
    if isinstance(value, dict):
        return any(map(_may_hold_marks, value.values()))
    return isinstance(value, list) and any(isinstance(entry, (list, dict)) for entry in value)


def _readers_of(record: Mapping[str, Any]) -> set[str]:
    """Who annotated a Label Studio record, as it names them. If one person did, the last annotation
    counts; if several did, no annotation is the reading of all."""
    given = (a for a in record.get("annotations", []) if not a.get("was_cancelled"))
    return {json.dumps(a.get("completed_by"), sort_keys=True) for a in given}


def locate_secret(text: str, s: ExportedSpan, way: str) -> Secret | None:
    """A span at its place in ``text``, without white space at its ends; None if it is empty,
    outside the text, or has another value there."""
    codec = OFFSET_CODECS[way]
    width, coded = (4, 2)[way == "UTF-16"], text.encode(codec)
    if not 0 <= s.start < s.end <= len(coded) // width:
        return None
    try:
        start, end = (len(coded[: width * at].decode(codec)) for at in (s.start, s.end))
    except UnicodeDecodeError:  # between the two halves of a character
        return None
    marked = text[start:end]
    start += len(marked) - len(marked.lstrip())
    end = start + len(marked.strip())
    return Secret(s.kind, start, end) if start < end and s.value in (None, marked) else None


def _check_offsets_are_clear(
    tasks: Mapping[str, LabelTask], done: Mapping[str, tuple[str, list[ExportedSpan]]]
) -> None:
    """Raise ``ValueError`` for a span without a value that is at another place if its offsets count
    UTF-16: nothing says which of the two was marked."""
    for task, (where, spans) in done.items():
        for s in spans:
            places = {locate_secret(tasks[task].text, s, way) for way in OFFSET_CODECS}
            if s.value is None and len(places) > 1:
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
    done: dict[str, tuple[str, list[ExportedSpan]]] = {}
    doubted = set[str]()
    for number, record in enumerate(records, 1):
        where = f"{file}, task {number}"
        try:
            a = ExportedTask.model_validate(_normalised_record(record))
            readers = _readers_of(record)
        except BadRow as bad:
            raise ValueError(f"{where}: {bad.says}") from None
        except (KeyError, TypeError, AttributeError, IndexError, ValueError):
            forms = ", ".join(LABEL_FORMS)
            raise ValueError(f"{where}: is in none of the forms {forms}") from None
        if len(readers) > 1:
            raise ValueError(
                f"{where}: was read by {len(readers)} people, of whom only one would count; export "
                "the annotations of each alone, and import the second with "
                f"{argument('role', 'second')}"
            )
        if a.undecided or not a.done:  # a task with both is undecided
            doubted |= {a.task} if a.undecided else set()
            continue
        if a.task not in tasks:
            raise ValueError(f"{where}: is not a task of this folder")
        if a.task in done:
            raise ValueError(f"{where}: appeared before; a task has one answer")
        if a.text is None and not names_page:
            raise ValueError(f"{where}: has no text that shows which labels it belongs to")
        if a.text not in (None, tasks[a.task].text):
            raise ValueError(f"{where}: its text was changed; labels refer to the original")
        done[a.task] = where, a.secrets
    return done, {task for task in doubted if task not in done}


def _merge_overlaps(where: str, found: Sequence[Secret]) -> tuple[Secret, ...]:
    """Spans of one text in order, where those of one kind that overlap are one. Raises
    ``ValueError`` if two of different kinds overlap."""
    apart: list[Secret] = []
    for one in sorted(found, key=lambda s: (s.start, s.end)):
        if apart and one.start < apart[-1].end:
            if one.kind != apart[-1].kind:
                raise ValueError(f"{where}: two spans of different kinds overlap")
            apart[-1] = replace(apart[-1], end=max(one.end, apart[-1].end))
        else:
            apart.append(one)
    return tuple(apart)


def _read_export(
    path: Path, tasks: Mapping[str, LabelTask], kinds: Sequence[str], page: str
) -> tuple[MarkedSpans, Any]:
    """One reader's marks on a ``page``, as a tool exported them, with notes: how it counts offsets,
    how many overlaps were merged, how many spans end inside a word, which tasks remained undecided,
    and the name of the reader, "" if there is none."""
    records, told, reader = _load_export(path)
    if told not in (None, page):
        raise ValueError(
            f"{path.name}: is from the page of other labels, or of another reader of these; import "
            "what was marked in the page of this folder"
        )
    done, undecided = _read_answers(path.name, records, tasks, names_page=told is not None)
    every = [(tasks[task].text, s) for task, (_, spans) in done.items() for s in spans]
    ways = [way for way in OFFSET_CODECS if all(locate_secret(text, s, way) for text, s in every)]
    way = [*ways, *OFFSET_CODECS][0]
    if told is None and len(ways) > 1:  # our own page counts code points
        _check_offsets_are_clear(tasks, done)
    secrets: MarkedSpans = {}
    merged = inside = 0
    for task, (where, spans) in done.items():
        text, found = tasks[task].text, list[Secret]()
        for s in spans:
            if s.kind not in kinds:
                near = difflib.get_close_matches(s.kind, kinds, 1, 0)
                raise ValueError(f"{where}: a kind is not one of {', '.join(kinds)}; {near[0]}?")
            if (one := locate_secret(text, s, way)) is None:
                raise ValueError(f"{where}: a span is empty, outside its text or of another value")
            found.append(one)
        secrets[task] = apart = _merge_overlaps(where, found)
        merged += len(found) - len(apart)
        inside += sum(any(is_cut_inside_word(text, at) for at in (s.start, s.end)) for s in apart)
    notes = {"offsets": way, "merged": merged, "inside_words": inside}
    return secrets, notes | {"undecided": undecided, "reader": reader}
