"""Labels: turns drawn to be read by people, and what people marked in them.

Turns drawn to be read by people: ``crtlib label sample`` as a function, and the forms in which
who labels gets them: our page, JSON lines of the same records, Label Studio. Offsets are half-open,
in Unicode code points, as Python slices.

>>> import pathlib, tempfile
>>> from crtlib.text import corpora, records
>>> home = pathlib.Path(tempfile.mkdtemp())
>>> records.write_jsonl(corpora.load("customersim", limit=60), home / "c.jsonl")
>>> summary = sample(home / "c.jsonl", home / "labels", turns=20, teach=5, seed=0, forms=["jsonl"])
>>> summary["judge"], summary["teach"], len(read_tasks(home / "labels"))
(20, 5, 25)

Labels that people made, checked against the text they were made for, and kept.

>>> text = "Jos\u00e9 \U0001f600 is Ann"
>>> secret(text, Span(kind="name", start=11, end=14, value="Ann"), "UTF-16")
Secret(kind='name', start=10, end=13)
"""

from __future__ import annotations

import base64
import contextlib
import difflib
import fcntl
import hashlib
import json
import math
import os
import re
import secrets as operating_system
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from markupsafe import Markup
from pydantic import BaseModel, Field, StrictInt

from crtlib import files, intervals, outputs
from crtlib.text import corpora, records
from crtlib.text.folders import TURN
from crtlib.text.records import (
    Corpus,
    Dialogue,
    Point,
    Secret,
    Turn,
    canonical,
    filled,
    sha,
    shipped,
    turn_hash,
)

TEMPLATES = resources.files(__package__) / "templates"

KINDS = records.LABEL_KINDS
RATE = 0.25
"""Share of turns with a secret that is assumed where nothing is known."""
SECONDS = 9.5
"""What a person takes to read one turn: the sum that is printed is for planning only."""
FORMS = ("page", "jsonl", "labelstudio")
Flags = Callable[[Sequence[Point]], Sequence[Sequence[Secret]]]
"""A policy: points, here a turn's own text without its speaker, to spans."""


Marked = Mapping[str, Sequence[Secret]]
"""Spans to begin with, by task."""


@dataclass(frozen=True, slots=True)
class Task:
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


def sample(
    corpus: str | os.PathLike,
    out: str | os.PathLike,
    *,
    secrets: int = 400,
    turns: int | None = None,
    rate: float | None = None,
    teach: int = 0,
    by: str = "user",
    policy: Flags | None = None,
    sealed: Sequence[str] = (),
    doubt: Callable[[Sequence[Point]], Sequence[float]] | None = None,
    kinds: Sequence[str] = KINDS,
    context: int = 2,
    forms: Sequence[str] = ("page",),
    seed: int | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Draw turns of ``corpus`` (a folder or JSONL) and write them to ``out`` for people to read.

    To judge: users (or threads) uniformly without replacement, one turn of each, uniformly; never
    prefilled. As many as make about ``secrets`` users with a secret at ``rate``, the share of turns
    that have one (by default the share that ``policy`` flags, else 0.25), or ``turns``. To teach:
    ``teach`` turns of other users, half of them where ``doubt`` is largest, prefilled by
    ``policy``. Where the users are too few for both parts,
    each gets its share of them. ``sealed`` are hashes of policies as they are before anybody reads.
    ``forms`` are of ``FORMS``. Raises ``ValueError`` for an option outside its range, and where
    ``out`` may not be written.
    """
    for name, value, allowed, rule in (
        ("secrets", secrets, 20 <= secrets <= 100_000, "in [20, 100000]"),
        ("turns", turns, turns is None or turns >= 1, "at least 1"),
        ("rate", rate, rate is None or 0 < rate <= 1, "in (0, 1]"),
        ("teach", teach, teach >= 0, "at least 0"),
        ("by", by, by in ("user", "dialogue"), "user or dialogue"),
        ("context", context, 0 <= context <= 20, "in [0, 20]"),
    ):
        if not allowed:
            raise ValueError(f"--{name}: {value!r} must be {rule}")
    if not 1 <= len(set(kinds)) == len(kinds) <= 9:
        raise ValueError("--kinds: must be 1 to 9 different names")
    if bad := [k for k in kinds if not re.fullmatch(r"[^\W\d][\w-]{0,39}", k)]:
        raise ValueError(f"--kinds: {bad[0]!r} must be letters, digits, '-' and '_'")
    out = outputs.check_folder(out, inputs=[corpus], force=force)
    seed = operating_system.randbits(31) if seed is None else seed
    rng = np.random.default_rng(seed)
    whose, digest = _one_each(corpus, by, rng)
    whose = [whose[k] for k in rng.permutation(len(whose))]
    if rate is None:
        rate = RATE
        if policy:
            first = _flags(policy, _texts(corpus, whose[:2000], 0))
            rate = max(sum(map(bool, first)) / len(first), 0.01)
    wanted = turns or math.ceil(secrets / rate)
    wanted = min(wanted, math.ceil(len(whose) * wanted / (wanted + teach)))
    judge = _texts(corpus, whose[:wanted], context)
    # To teach: half uniform, half where the policies disagree, of people who judge nothing.
    uniform = (teach + 1) // 2 if doubt else teach
    choice = max(20 * teach, uniform) if doubt else teach
    pool = _texts(corpus, whose[wanted:][:choice], context)
    some, rest = pool[:uniform], pool[uniform:]
    if doubt:
        most = np.argsort(-np.array(doubt(points_of(rest))), kind="stable")
        some += [rest[k] for k in most[: teach - uniform]]
    tasks = [
        replace(t, task=f"{part}-{k:05d}", part=part)
        for part, each in (("judge", judge), ("teach", some))
        for k, t in enumerate(each, 1)
    ]
    taught = tasks[len(judge) :]
    flags = (
        dict(zip((t.task for t in taught), _flags(policy, taught), strict=True)) if policy else {}
    )
    if corpora.corpus_hash(corpus) != digest:
        raise ValueError(f"{corpus}: was changed while it was read; run this again")
    how = {"by": by, "seed": seed, "kinds": list(kinds)}
    options = {"sealed": list(sealed), **how}
    about = {"schema": "crtlib/tasks/1", "corpus": digest, "labels": _hash(tasks), **options}
    drawn = {"users": len(whose), "judge": len(judge), "teach": len(taught)}
    # The others are neither read nor chosen from.
    about |= drawn | {"others": len(whose) - len(judge) - len(pool)}
    options |= {"context": context, "teach": teach}
    with outputs.staged(
        out, command="label sample", options=options, inputs={"corpus": digest}, force=force
    ) as part:
        pq.write_table(pa.Table.from_pylist([asdict(t) for t in tasks]), part / "tasks.parquet")
        tell(part, about)
        (part / "uses.jsonl").touch()
        names = write(forms, part, tasks, flags, about)
        with known(about, [turn_hash(t.text) for t in tasks]):  # before anybody can read them
            pass
    wish = {**how, "secrets": secrets, "rate": rate}
    return {"out": os.fspath(out), "corpus": digest, **wish, **drawn, "files": names}


def unlike(first: Flags, second: Flags) -> Callable[[Sequence[Point]], Sequence[float]]:
    """Doubt of two policies: 1 for a point of which they flag different characters, else 0."""

    def doubt(points: Sequence[Point]) -> Sequence[float]:
        covered = (
            [{i for s in spans for i in range(s.start, s.end)} for spans in policy(points)]
            for policy in (first, second)
        )
        return [float(a != b) for a, b in zip(*covered, strict=True)]

    return doubt


Place = tuple[str, int]
"""Thread and number of a turn."""


def _one_each(corpus: str | os.PathLike, by: str, rng: np.random.Generator) -> tuple[list, str]:
    """One turn of each user (or thread; one of nobody is a user), uniform among his, in one pass;
    and the corpus hash."""
    chosen: dict[str, Place] = {}
    seen: dict[str, int] = {}
    digest = hashlib.sha256()
    for d in corpora.dialogues(corpus):
        digest.update(canonical(d.id, d.user, ((t.speaker, t.text) for t in d.turns)))
        who = (by == "user" and d.user) or d.id  # all whom nobody named are not one person
        turns = [i for i, turn in enumerate(d.turns) if turn.text.strip()]
        if not turns:
            continue
        seen[who] = seen.get(who, 0) + len(turns)
        if rng.random() * seen[who] < len(turns):  # this thread's share of his turns so far
            chosen[who] = (d.id, turns[int(rng.random() * len(turns))])
    if not chosen:
        raise ValueError(f"{corpus}: holds no turn with text")
    return list(chosen.values()), digest.hexdigest()


def _texts(corpus: str | os.PathLike, places: Sequence[Place], context: int) -> list[Task]:
    """The turns at ``places``, in that order, with their surroundings."""
    wanted: dict[str, list[int]] = {}
    for thread, turn in places:
        wanted.setdefault(thread, []).append(turn)
    found: dict[Place, Task] = {}
    for d in corpora.dialogues(corpus):
        for turn in wanted.get(d.id, ()):
            lines = [f"{t.speaker}: {t.text}" if t.speaker else t.text for t in d.turns]
            before = "\n".join(lines[max(0, turn - context) : turn])
            after = "\n".join(lines[turn + 1 : turn + 1 + context])
            text = d.turns[turn].text.replace("\r", " ")  # which tools drop, or count as they like
            found[d.id, turn] = Task("", d.id, d.user, turn, "", text, before, after)
    return [found[place] for place in places]


def points_of(tasks: Sequence[Task]) -> list[Point]:
    """Turns that were drawn, each as a point of its own words, without what is marked there."""
    return [Point(f"{t.id}/{t.turn}", t.user, t.text, thread=t.id) for t in tasks]


def _flags(policy: Flags, tasks: Sequence[Task]) -> list[tuple[Secret, ...]]:
    return [tuple(spans) for spans in policy(points_of(tasks))]


def _hash(tasks: Sequence[Task]) -> str:
    text = json.dumps([asdict(t) for t in tasks], sort_keys=True, ensure_ascii=False)
    return sha(text)


# What the registry of the user knows of labels: sets of one seed, and copies of folders, are one.
TABLES = """
CREATE TABLE IF NOT EXISTS drawn (task TEXT, labels TEXT, n INT, PRIMARY KEY (task, labels));
CREATE TABLE IF NOT EXISTS sealed (policy TEXT PRIMARY KEY, n INT);
CREATE TABLE IF NOT EXISTS judged (labels TEXT, pi TEXT, pi_c TEXT, corpus TEXT,
 UNIQUE (labels, pi, pi_c, corpus));
"""

JUDGED = """
SELECT DISTINCT labels, pi, pi_c FROM judged WHERE corpus = ?1 OR labels IN
 (SELECT a.labels FROM drawn a JOIN drawn b USING (task)
  WHERE b.labels = ?2 OR b.labels IN (SELECT labels FROM judged WHERE corpus = ?1))
"""


@contextlib.contextmanager
def known(told: dict[str, Any], drawn: Iterable[str]) -> Iterator[sqlite3.Connection]:
    """The registry of labels, in which what was ``drawn`` is entered once: first the policies that
    :func:`about` says are sealed, then the turns, by what :func:`turn` says of them."""
    path = files.home() / "labels.sqlite"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    with contextlib.closing(sqlite3.connect(path, timeout=120)) as base, base:
        base.executescript(f"BEGIN EXCLUSIVE;{TABLES}")
        before = base.execute("SELECT 1 FROM drawn WHERE labels = ?", (told["labels"],))
        if not before.fetchone():
            (n,) = base.execute("SELECT count(*) FROM drawn").fetchone()  # grows with each set
            seals = ((policy, n) for policy in told.get("sealed", ()))
            base.executemany("INSERT OR IGNORE INTO sealed VALUES (?, ?)", seals)
            turns = ((t, told["labels"], n + 1) for t in drawn)
            base.executemany("INSERT OR IGNORE INTO drawn VALUES (?, ?, ?)", turns)
        yield base


def judged_pairs(
    told: dict[str, Any],
    corpus: str,
    rows: Iterable[Sequence[str]] = (),
    drawn: Iterable[str] = (),
) -> int:
    """Note in the registry that the labels of which ``told`` says judge these pairs of policies,
    each named by a hash, on a corpus; how many pairs they have judged so far, as have others that
    share a turn with them, and all sets of this corpus: who draws many may choose, so a set that
    was read (of which the pair is ("", "")) and judges nothing counts as one."""
    with known(told, drawn) as base:
        every = [(told["labels"], *row, corpus) for row in rows]
        base.executemany("INSERT OR IGNORE INTO judged VALUES (?, ?, ?, ?)", every)
        found = base.execute(JUDGED, (corpus, told["labels"])).fetchall()
    judging = {name for name, pi, _ in found if pi} | {told["labels"]}
    return sum(bool(pi) or name not in judging for name, pi, _ in found)


def late(folder: str | os.PathLike, policies: Sequence[str]) -> set[str]:
    """The tasks that somebody may have read before all of these ``policies``, each a hash, were
    sealed: their turns were in a set of labels before, by whatever seed or in whatever folder."""
    drawn = read_tasks(folder)
    with known(facts(folder), [turn_hash(t.text) for t in drawn]) as base:
        sealed = dict(base.execute("SELECT policy, n FROM sealed"))
        first = dict(base.execute("SELECT task, min(n) FROM drawn GROUP BY task"))
    last = max((sealed.get(policy, math.inf) for policy in policies), default=-1)
    return {t.task for t in drawn if first[turn_hash(t.text)] <= last}


def read_tasks(labels: str | os.PathLike) -> list[Task]:
    """The turns that were drawn into a folder, in order."""
    outputs.demand(labels, names=["tasks.parquet", "labels.json"])
    return [Task(**row) for row in pq.read_table(Path(labels) / "tasks.parquet").to_pylist()]


def facts(labels: str | os.PathLike) -> dict[str, Any]:
    """What ``labels.json`` says: corpus hash, seed, kinds, counts, and after an import who read
    what, and that the labels were ``drawn`` "at_random"; of some that were not read whole crtlib
    0.3 said "given"."""
    outputs.demand(labels, names=["labels.json"])
    return json.loads((Path(labels) / "labels.json").read_bytes())


def tell(folder: Path, about: Mapping[str, Any]) -> None:
    """Write what :func:`about` reads."""
    (folder / "labels.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def table(summary: Mapping[str, Any]) -> str:
    """What ``crtlib label sample`` prints."""
    total = summary["judge"] + summary["teach"]
    expected = summary["judge"] * summary["rate"]
    n = max(1, min(summary["secrets"], round(expected)))
    bounds = {
        x: intervals.at_most(100 * intervals.clopper_pearson_upper(x, n, confidence=0.975), 3)
        for x in (0, 3, 10, 30)
        if x <= n
    }
    few = total >= summary["users"] and expected < 0.9 * summary["secrets"]
    hours = total * SECONDS / 3600
    who = "users" if summary["by"] == "user" else "threads"
    return filled(
        "drawn.txt",
        TEMPLATES,
        **summary,
        n=n,
        who=who,
        hours=hours,
        bounds=bounds,
        few=few,
        expected=expected,
    )


# --------------------------------------------------------------------------- the forms
def write(
    forms: Sequence[str], folder: Path, tasks: Sequence[Task], flags: Marked, about: Mapping
) -> list[str]:
    """Write the tasks in some of the ``FORMS`` into ``folder``; the names of the files."""
    texts: dict[str, str] = {}
    for form in forms or [""]:
        if form not in FORMS:
            raise ValueError(f"--for: {form!r} must be one of {', '.join(FORMS)}")
        if form == "page":
            texts["page.html"] = page(tasks, flags, about)
        elif form == "jsonl":
            lines = [json.dumps(r, ensure_ascii=False) + "\n" for r in json_records(tasks, flags)]
            text = "".join(lines)  # some tools end lines at these two as well
            text = text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
            texts["tasks.jsonl"] = text
        else:
            studio = json.dumps(labelstudio(tasks, flags), ensure_ascii=False, indent=1)
            texts["labelstudio.json"] = studio
            texts["labelstudio.xml"] = labelstudio_config(about["kinds"])
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="")
    return list(texts)


def labelstudio(tasks: Sequence[Task], flags: Marked) -> list[dict[str, Any]]:
    """Label Studio's tasks, with predictions where there are flags."""
    made = []
    place = {"from_name": "label", "to_name": "text", "type": "labels"}
    for t in tasks:
        values = [
            {"start": s.start, "end": s.end, "text": t.text[s.start : s.end], "labels": [s.kind]}
            for s in flags.get(t.task, ())
        ]
        result = [place | {"value": value} for value in values]
        predictions = [{"model_version": "policy", "result": result}] if result else []
        data = {"task": t.task, "text": t.text, "before": t.before, "after": t.after}
        made.append({"data": data, "predictions": predictions})
    return made


def labelstudio_config(kinds: Sequence[str]) -> str:
    """The labelling configuration of a Label Studio project."""
    return filled("labelstudio.xml", TEMPLATES, kinds=[quoteattr(kind) for kind in kinds]) + "\n"


def json_records(tasks: Sequence[Task], flags: Marked) -> list[dict[str, Any]]:
    """The tasks as our page holds them, a line each in JSONL. Who has read one marks its secrets
    and says ``"done": true``."""
    return [
        {
            **{name: getattr(t, name) for name in ("task", "part", "text", "before", "after")},
            **{"done": False, "secrets": [asdict(s) for s in flags.get(t.task, ())]},
        }
        for t in tasks
    ]


def page(tasks: Sequence[Task], flags: Marked, about: Mapping[str, Any]) -> str:
    """The labelling page: one self-contained file, without network."""
    script, style = (shipped(name, TEMPLATES) for name in ("label.js", "label.css"))
    return filled(
        "label.html",
        TEMPLATES,
        data={
            "labels": about["labels"],
            "kinds": about["kinds"],
            "tasks": json_records(tasks, flags),
        },
        hashes={"script": _csp(script), "style": _csp(style)},
        **{"script": Markup(script), "style": Markup(style)},
    )


def _csp(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


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
    reading is read again anew. ``partial`` accepts turns that the first left unread in the judging
    part: they were drawn, so each counts as a secret on which a policy fails
    (:meth:`crtlib.screening.rates.RateCounter.add_unread`), and nobody reads them a second time.
    Raises ``ValueError`` naming file and task: a changed text, a span outside it or with another
    value, overlapping spans of two kinds, an unknown kind or task, unread turns. No text is quoted.
    """
    about, tasks = facts(folder), {t.task: t for t in read_tasks(folder)}
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
    left = sum(t.task not in found for t in judge) if role != "decides" else 0
    if left and not (partial and role == "first"):
        most = "--partial counts each as a secret on which a policy fails"
        if role == "second":
            most = "a second reader reads all that he is given"
        raise ValueError(
            f"{Path(file).name}: {left:,} of {len(judge):,} tasks to judge are unread; leaving "
            f"out the hard ones spoils the rate; {most}"
        )
    rows = [row for row in _rows(Path(folder)) if row["annotator"] != annotator]  # others' stay
    scores = dict[str, float]()
    if role == "second":
        _, (before, *_) = _readings(folder)
        drawn_at_random = {t: found[t] for t in about["again"]["random"] if t in found}
        scores["f1"], scores["kappa"] = agreement(before, drawn_at_random)
    drawn = "at_random" if role == "first" else about["drawn"]
    summary = {
        "labels": os.fspath(folder),
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
        tell(part, about)
    if judge:
        judged_pairs(about, about["corpus"], [("", "")], (turn_hash(t.text) for t in judge))
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
            forms = ", ".join(FORMS)
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
    about = facts(folder)
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
    tasks = read_tasks(folder)
    return [(t, spans[t.task]) for t in tasks if t.task in spans and part in (None, t.part)]


def unread(folder: str | os.PathLike) -> list[Task]:
    """The turns to judge that were drawn and that the first reader left unread. Raises
    ``ValueError`` where a second one read others, or left some: crtlib 0.3 let that pass."""
    about, (first, second, _) = _readings(folder)
    left = [t for t in read_tasks(folder) if t.part == "judge" and t.task not in first]
    if "second" in about and (left or not set(about["again"]["random"]) <= second.keys()):
        raise ValueError(
            f"{folder}: was read twice, and not whole; bring in all that the first reader read "
            "anew: crtlib label import --role first"
        )
    return left


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
    about = facts(folder)
    same_corpus(corpus, about)
    if left := unread(folder):
        raise ValueError(
            f"--labels: {folder} has {len(left):,} turns to judge that the first reader left "
            "unread; a second one begins when all are read"
        )
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
        names = write(forms, part, some, flags, shown)
        with outputs.staged(folder, add=True, **said) as kept:
            tell(kept, about)
    return {"out": os.fspath(out), "role": role, "turns": len(some), "files": names}


def points(
    corpus: str | os.PathLike,
    folder: str | os.PathLike,
    *,
    part: str,
    unit: str,
    without: Collection[str] = (),
    sure: bool = False,
    write: Callable[[Dialogue, Sequence[Turn], str], Point] = records.by_speaker,
) -> tuple[Point, ...]:
    """The points of ``corpus`` in which turns of ``part`` ("judge" or "teach") were read, with what
    readers marked there (:func:`read`), ``without`` some tasks; labels that the corpus came with
    are passed over. ``write`` makes a text of turns, as in :func:`crtlib.text.records.points`.
    Raises ``ValueError`` where they are of another corpus, or that part is empty."""
    about = facts(folder)
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
    cut = records.points(Corpus("", tuple(found)), unit, write)
    return tuple(p for p in cut if unit != "turn" or p.id in read_turns)


def judging(folder: str | os.PathLike, *, pi: str, pi_c: str, corpus: str) -> int:
    """Note in ``uses.jsonl`` and in the registry that these labels judge a pair of policies on a
    corpus; how many pairs so far (:func:`confide.text.labels.judged_pairs`), this one included."""
    told = facts(folder)
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
    drawn = (turn_hash(task.text) for task in read_tasks(folder))
    return judged_pairs(told, corpus, {*pairs, (pi, pi_c)}, drawn)


def imported_table(summary: Mapping[str, Any]) -> str:
    """What ``crtlib label import`` prints."""
    return filled("imported.txt", TEMPLATES, **summary)
