"""Labels that people made, checked against the text they were made for, and kept.

>>> text = "Jos\u00e9 \U0001f600 is Ann"
>>> secret(text, Span(kind="name", start=11, end=14, value="Ann"), "UTF-16")
Secret(kind='name', start=10, end=13)
"""

from __future__ import annotations

import difflib
import fcntl
import json
import math
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, Field, StrictInt

from crtlib import files, outputs
from crtlib.text import corpora, labels, units
from crtlib.text.folder import TURN
from crtlib.text.labels import Task
from crtlib.text.records import Corpus, Dialogue, Point, Secret, filled, sha

LABELS = pa.schema([("task", pa.string()), ("annotator", pa.string()), TURN.field("secrets")])
Spans = dict[str, tuple[Secret, ...]]
"""The secrets of each task that was read."""
ROLES = ("first", "second", "decides")
"""In which order turns are read: all of them; again, blind; where the first two differ."""


class Span(BaseModel):
    """What is said to be secret: offsets as the tool counts, and the value if it gives one."""

    kind: str
    start: StrictInt
    end: StrictInt
    value: str | None = Field(default=None, repr=False)


class Answer(BaseModel):
    """A task as it came back; ``text`` where the tool gives it, ``done`` if somebody read it."""

    task: str
    done: bool
    secrets: list[Span]
    text: str | None = Field(default=None, repr=False)


def take(
    corpus: str | os.PathLike,
    file: str | os.PathLike,
    folder: str | os.PathLike,
    *,
    annotator: str | None = None,
    role: str = "first",
    partial: bool = False,
) -> dict[str, Any]:
    """Import the labels in ``file`` into the labels ``folder`` that was drawn from ``corpus``: what
    was ``read`` of its ``tasks``, in all and in the judging part, secrets by kind, what was mended,
    and of two readers the agreement on turns drawn at random (F1 of spans, Cohen's kappa of turns).

    ``role`` is one of ``ROLES``: the first reader reads all that was drawn; the second and who
    decides read what :func:`adjudicate` gives them. Who comes later is forgotten: a new first
    reading is read again anew. ``partial`` accepts turns that the first in the judging part, or the
    second, left unread; the labels then count as "given". Raises ``ValueError`` naming file
    and task: a changed text, a span outside it or with another value, overlapping spans of two
    kinds, an unknown kind or task, unread turns. No text is quoted.
    """
    about, tasks = labels.about(folder), {t.task: t for t in labels.tasks(folder)}
    same_corpus(corpus, about)
    if role not in ROLES:
        raise ValueError(f"--role: {role!r} must be one of {', '.join(ROLES)}")
    place = ROLES.index(role)
    for later in (*ROLES[place + 1 :], *(["agreement", "again"] if role == "first" else [])):
        about.pop(later, None)
    others = [about.get(other) for other in ROLES[:place]]
    if None in others or (role == "second" and "again" not in about):
        raise ValueError(f"--role: {role!r} reads what 'crtlib label adjudicate' wrote for it")
    annotator = annotator or "abc"[place]
    if not 0 < len(annotator) <= 40 or annotator in others:
        raise ValueError(f"--annotator: {annotator!r} must be a short name of no other reader")
    if role != "first":
        asked = about["again"]["read"] if role == "second" else _disputed(folder)
        tasks = {name: tasks[name] for name in asked}
    found, notes = _read(Path(file), tasks, about["kinds"])
    judge = [t for t in tasks.values() if t.part == "judge"]
    unread = sum(t.task not in found for t in judge) if role != "decides" else 0
    if unread and not partial:
        raise ValueError(
            f"{Path(file).name}: {unread:,} of {len(judge):,} tasks to judge are unread; leaving "
            "out the hard ones spoils the rate; --partial takes them as given"
        )
    rows = [row for row in _rows(Path(folder)) if row["annotator"] != annotator]  # others' stay
    scores = dict[str, float]()
    if role == "second":
        _, (before, *_) = _readings(folder)
        drawn_at_random = {t: found[t] for t in about["again"]["random"] if t in found}
        scores["f1"], scores["kappa"] = agreement(before, drawn_at_random)
    drawn = "given" if unread else "at_random" if role == "first" else about["drawn"]
    summary = {
        "labels": os.fspath(folder),
        "annotator": annotator,
        "tasks": len(tasks),
        "read": len(found),
        "judged": sum(t.task in found for t in judge),
        "judge": len(judge),
        "secrets": dict(Counter(s.kind for some in found.values() for s in some)),
        "users_with_a_secret": sum(bool(found.get(t.task)) for t in judge),
        "drawn": drawn,
        **notes,
        **scores,
    }
    readers = dict(about.get("readers", {}))
    readers[annotator] = {"read": len(found), "secrets": sum(map(len, found.values()))}
    for task, spans in found.items():
        rows.append({"task": task, "annotator": annotator, "secrets": [asdict(s) for s in spans]})
    about |= {"readers": readers, "drawn": drawn, role: annotator}
    about |= {"agreement": scores} if scores else {}
    with outputs.staged(
        folder,
        add=True,
        command="label import",
        options={"annotator": annotator, "role": role},
        inputs={"file": file},
    ) as part:
        pq.write_table(pa.Table.from_pylist(rows, LABELS), part / "labels.parquet")
        labels.tell(part, about)
    if judge:
        labels.pairs(about, about["corpus"], [("", "")], (labels.turn(t.text) for t in judge))
    return summary


def same_corpus(corpus: str | os.PathLike, about: Mapping[str, Any]) -> None:
    """Refuse labels that were drawn from another corpus, or from the text that this one, redacted,
    was made of."""
    digest = corpora.read_hash(corpus)
    if digest != about["corpus"]:
        raise ValueError(
            f"labels: were drawn from corpus {about['corpus'][:4]}…, this is {digest[:4]}…; "
            "they teach, they do not judge"
        )


def _values(text: str) -> list[Any]:
    """The records of a JSON list, of our page's export, or of JSON lines."""
    try:
        whole = json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    if isinstance(whole, dict):
        whole = whole.get("tasks", whole)
    return whole if isinstance(whole, list) else [whole]


def _ours(r: dict[str, Any]) -> dict[str, Any]:
    """A record in our form; of Label Studio: the last annotation that was not cancelled."""
    if "data" not in r:
        return r
    given = [a["result"] for a in r.get("annotations", []) if not a.get("was_cancelled")]
    values = [x["value"] for x in given[-1] if x.get("type") == "labels"] if given else []
    spans = [v | {"kind": v["labels"][0], "value": v.get("text")} for v in values]
    return r["data"] | {"done": bool(given), "secrets": spans}


WAYS = {"code points": "utf-32-le", "UTF-16": "utf-16-le"}
"""How tools count offsets: in what this codec makes of a character."""


def secret(text: str, s: Span, way: str) -> Secret | None:
    """A span as it stands in ``text``, without white space at its ends; None where it is empty,
    outside the text, or has another value."""
    codec = WAYS[way]
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


def _read(path: Path, tasks: Mapping[str, Task], kinds: Sequence[str]) -> tuple[Spans, Any]:
    """One reader's work, as a tool exported it; and how it counts offsets, how many overlaps were
    merged, and how many ends of spans are inside a word."""
    try:
        with files.reading(path) as file:
            records = _values(file.read().decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError(f"{path.name}: is not UTF-8") from None
    except (json.JSONDecodeError, RecursionError):
        raise ValueError(f"{path.name}: is not JSON") from None
    done: dict[str, tuple[str, list[Span]]] = {}
    for number, record in enumerate(records, 1):
        where = f"{path.name}, task {number}"
        try:
            a = Answer.model_validate(_ours(record))
        except (KeyError, TypeError, AttributeError, IndexError, ValueError):
            forms = ", ".join(labels.FORMS)
            raise ValueError(f"{where}: is in none of the forms {forms}") from None
        if not a.done:
            continue
        if a.task not in tasks:
            raise ValueError(f"{where}: is none of the tasks in this folder")
        if a.task in done:
            raise ValueError(f"{where}: was there before; a task has one answer")
        if a.text not in (None, tasks[a.task].text):
            raise ValueError(f"{where}: its text was changed; labels refer to the original")
        done[a.task] = where, a.secrets
    every = [(tasks[task].text, s) for task, (_, spans) in done.items() for s in spans]
    ways = [way for way in WAYS if all(secret(text, s, way) for text, s in every)]
    way = [*ways, *WAYS][0]
    secrets: Spans = {}
    merged = inside = 0
    for task, (where, spans) in done.items():
        text, found = tasks[task].text, list[Secret]()
        for s in spans:
            if s.kind not in kinds:
                near = difflib.get_close_matches(s.kind, kinds, 1, 0)
                raise ValueError(f"{where}: a kind is none of {', '.join(kinds)}; {near[0]}?")
            if (one := secret(text, s, way)) is None:
                raise ValueError(f"{where}: a span is empty, outside its text or of another value")
            found.append(one)
        apart: list[Secret] = []  # overlaps of one kind merged and counted, of two refused
        for one in sorted(found, key=lambda s: (s.start, s.end)):
            if apart and one.start < apart[-1].end:
                if one.kind != apart[-1].kind:
                    raise ValueError(f"{where}: two spans of different kinds overlap")
                apart[-1] = replace(apart[-1], end=max(one.end, apart[-1].end))
                merged += 1
            else:
                apart.append(one)
        secrets[task] = tuple(apart)
        cut = [at for s in apart for at in (s.start, s.end) if 0 < at < len(text)]
        inside += sum(text[at - 1].isalnum() and text[at].isalnum() for at in cut)
    return secrets, {"offsets": way, "merged": merged, "inside_words": inside}


def agreement(
    first: Mapping[str, Sequence[Secret]], second: Mapping[str, Sequence[Secret]]
) -> tuple[float, float]:
    """F1 of spans and Cohen's kappa of turns, over the tasks that both read; nan where none.

    >>> a = {"1": (Secret("name", 0, 3),), "2": ()}
    >>> agreement(a, a)
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


def _rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "labels.parquet"
    return pq.read_table(path).to_pylist() if path.is_file() else []


def _readings(folder: str | os.PathLike) -> tuple[dict[str, Any], list[Spans]]:
    """What labels say of themselves, and what the reader of each of the ``ROLES`` marked."""
    about = labels.about(folder)
    if "first" not in about:
        raise ValueError(f"{folder}: holds no labels yet; bring them in with 'crtlib label import'")
    outputs.demand(folder, names=["labels.parquet"])
    marked: dict[str, Spans] = {}
    for row in _rows(Path(folder)):
        spans = tuple(Secret(**s) for s in row["secrets"])
        marked.setdefault(row["annotator"], {})[row["task"]] = spans
    return about, [marked.get(about.get(role, ""), {}) for role in ROLES]


def _joined(first: Sequence[Secret], second: Sequence[Secret], sure: bool) -> tuple[Secret, ...]:
    """What one reader at least marked, overlapping marks as one; ``sure``: what both marked.

    >>> _joined([Secret("name", 0, 3), Secret("id", 9, 12)], [Secret("name", 1, 5)], True)
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
    return tuple(s for s, readers in groups if len(readers) == 2 or not sure)


def read(
    folder: str | os.PathLike, *, part: str | None = None, sure: bool = False
) -> list[tuple[Task, tuple[Secret, ...]]]:
    """The turns that were read, of one ``part`` or both, and their secrets: what both readers
    marked, or who decides; where nobody did, what one at least marked, unless only what is ``sure``
    is asked for; where one read, what the first says."""
    _, (spans, second, decided) = _readings(folder)
    for t, marked in second.items():
        both = _joined(spans.get(t, ()), marked, sure or t in decided)
        spans[t] = _joined(both, decided.get(t, ()), False)
    tasks = labels.tasks(folder)
    return [(t, spans[t.task]) for t in tasks if t.task in spans and part in (None, t.part)]


def _disputed(folder: str | os.PathLike) -> dict[str, tuple[Secret, ...]]:
    """The turns on which two readers differ, decided or not, with what one at least marked."""
    _, (first, second, _) = _readings(folder)
    pairs = {t: (first.get(t, ()), marked) for t, marked in second.items()}
    return {
        t: _joined(*both, False)
        for t, both in pairs.items()
        if _joined(*both, False) != _joined(*both, True)
    }


def again(folder: str | os.PathLike) -> dict[str, str]:
    """What the second reader found in the turns that were drawn at random, by user (or thread):
    "new" where the first had marked nothing, "found" where he marked a secret that stands."""
    about, (first, second, _) = _readings(folder)
    stands = {t.task: (t, spans) for t, spans in read(folder, sure=True)}
    found: dict[str, str] = {}
    for t, spans in (stands[name] for name in about["again"]["random"] if name in second):
        name = (about["by"] == "user" and t.user) or t.id
        if not first.get(t.task):
            found[name] = "new"
        elif _joined(second[t.task], spans, True):
            found[name] = "found"
    return found


def adjudicate(
    corpus: str | os.PathLike,
    folder: str | os.PathLike,
    out: str | os.PathLike,
    *,
    share: float = 0.2,
    forms: Sequence[str] = ("page",),
    force: bool = False,
) -> dict[str, Any]:
    """Write to ``out`` what is to be read next of the judging part of the labels ``folder``.

    After the first reader: each turn with a mark, and a random ``share`` of all turns, in one
    order, without the marks, for the second; which they are is noted in ``folder``, and of a larger
    share those of a smaller one are a part, so that nobody can choose. After the second: where they
    differ, with all marks, for who decides.
    Raises ``ValueError`` where nothing is left, and where ``out`` may not be written."""
    if not 0 < share <= 1:
        raise ValueError(f"--share: {share!r} must be in (0, 1]")
    about = labels.about(folder)
    same_corpus(corpus, about)
    marked = read(folder, part="judge")
    role, flags = "second", dict[str, tuple[Secret, ...]]()
    if "second" in about:
        role, flags = "decides", _disputed(folder)
        some = [t for t, _ in marked if t.task in flags]
    else:
        order = np.random.default_rng([about["seed"], 2]).permutation(len(marked))
        drawn = {marked[k][0].task for k in order[: math.ceil(share * len(marked))]}
        some = [t for t, spans in marked if spans or t.task in drawn]
        about["again"] = {"read": [t.task for t in some], "random": sorted(drawn)}
    if not some:
        raise ValueError(f"--labels: {folder} has no mark that a reader could differ on")
    shown = about | {"labels": about["labels"] + role}  # a page remembers its own answers
    said: dict[str, Any] = {"command": "label adjudicate", "options": {"role": role}}
    with outputs.staged(out, **said, inputs={"corpus": about["corpus"]}, force=force) as part:
        names = labels.write(forms, part, some, flags, shown)
        with outputs.staged(folder, add=True, **said) as kept:
            labels.tell(kept, about)
    return {"out": os.fspath(out), "role": role, "turns": len(some), "files": names}


def points(
    corpus: str | os.PathLike,
    folder: str | os.PathLike,
    *,
    part: str,
    unit: str,
    without: Collection[str] = (),
    sure: bool = False,
) -> tuple[Point, ...]:
    """The points of ``corpus`` in which turns of ``part`` ("judge" or "teach") were read, with what
    readers marked there (:func:`read`), ``without`` some tasks; labels that the corpus came with
    are passed over. Raises ``ValueError`` where they are of another corpus, or that part is
    empty."""
    about = labels.about(folder)
    same_corpus(corpus, about)
    done = ((t, spans) for t, spans in read(folder, part=part, sure=sure) if t.task not in without)
    secrets = {(t.id, t.turn): spans for t, spans in done}
    if not secrets:
        empty, size = {"teach": ("teaching", "--teach 600"), "judge": ("judging", "--secrets 400")}[
            part
        ]
        raise ValueError(
            f"--labels: the {empty} part is empty; draw one with 'crtlib label sample {size}'"
        )
    threads = {thread for thread, _ in secrets}
    owners = {d.user for d in corpora.dialogues(corpus) if d.id in threads}
    found: list[Dialogue] = []
    for d in corpora.dialogues(corpus):
        if d.id in threads or (unit == "user" and d.user in owners):
            turns = [replace(t, secrets=secrets.get((d.id, i), ())) for i, t in enumerate(d.turns)]
            found.append(replace(d, turns=tuple(turns)))
    read_turns = {f"{thread}/{turn}" for thread, turn in secrets}
    cut = units.points(Corpus("", tuple(found)), unit)
    return tuple(p for p in cut if unit != "turn" or p.id in read_turns)


def judging(folder: str | os.PathLike, *, pi: str, pi_c: str, corpus: str) -> int:
    """Note in ``uses.jsonl`` and in the registry that these labels judge a pair of policies on a
    corpus; how many pairs so far (:func:`crtlib.text.labels.pairs`), this one included."""
    told = labels.about(folder)
    rows = _rows(Path(folder))
    said = [row for role in ROLES for row in rows if row["annotator"] == told.get(role)]
    said += [told["again"]] if "second" in told else []
    pi += f" by {sha(json.dumps(said))}"  # each reading judges anew
    use = {"pi": pi, "pi_c": pi_c, "corpus": corpus}
    with (Path(folder) / "uses.jsonl").open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        pairs = {(u["pi"], u["pi_c"]) for u in map(json.loads, file)}
        if (pi, pi_c) not in pairs:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            file.write(json.dumps({"time": now, **use}) + "\n")
    drawn = (labels.turn(task.text) for task in labels.tasks(folder))
    return labels.pairs(told, corpus, {*pairs, (pi, pi_c)}, drawn)


def table(summary: Mapping[str, Any]) -> str:
    """What ``crtlib label import`` prints."""
    return filled("imported.txt", **summary)
