"""Turns drawn to be read by people: ``crtlib label sample`` as a function, and the forms in which
who labels gets them: our page, JSON lines of the same records, Label Studio. Offsets are half-open,
in Unicode code points, as Python slices.

>>> import pathlib, tempfile
>>> from crtlib.text import corpora, jsonl
>>> home = pathlib.Path(tempfile.mkdtemp())
>>> jsonl.write_jsonl(corpora.load("customersim", limit=60), home / "c.jsonl")
>>> summary = sample(home / "c.jsonl", home / "labels", turns=20, teach=5, seed=0, forms=["jsonl"])
>>> summary["judge"], summary["teach"], len(tasks(home / "labels"))
(20, 5, 25)
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
import os
import re
import secrets as operating_system
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from markupsafe import Markup

from crtlib import files, intervals, outputs
from crtlib.text import corpora, jsonl
from crtlib.text.records import Point, Secret, filled, normal, sha, shipped

KINDS = ("name", "address", "phone", "id", "other")
RATE = 0.25
"""Share of turns with a secret that is assumed where nothing is known."""
SECONDS = 9.5
"""What a person takes to read one turn: the sum that is printed is for planning only."""
FORMS = ("page", "jsonl", "labelstudio")
Flags = Callable[[Sequence[Point]], Sequence[Sequence[Secret]]]
"""A policy: points, here a turn's own text without its speaker, to spans."""


Spans = Mapping[str, Sequence[Secret]]
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
        most = np.argsort(-np.array(doubt(_points(rest))), kind="stable")
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
        with known(about, [turn(t.text) for t in tasks]):  # before anybody can read them
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
        digest.update(jsonl.canonical(d.id, d.user, ((t.speaker, t.text) for t in d.turns)))
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


def _points(tasks: Sequence[Task]) -> list[Point]:
    return [Point(f"{t.id}/{t.turn}", t.user, t.text) for t in tasks]


def _flags(policy: Flags, tasks: Sequence[Task]) -> list[tuple[Secret, ...]]:
    return [tuple(spans) for spans in policy(_points(tasks))]


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


def pairs(
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


def turn(text: str) -> str:
    """What is kept of a turn, by its text alone: who has read it knows it under any id, of
    anybody."""
    return sha(normal(text))


def late(folder: str | os.PathLike, policies: Sequence[str]) -> set[str]:
    """The tasks that somebody may have read before all of these ``policies``, each a hash, were
    sealed: their turns were in a set of labels before, by whatever seed or in whatever folder."""
    drawn = tasks(folder)
    with known(about(folder), [turn(t.text) for t in drawn]) as base:
        sealed = dict(base.execute("SELECT policy, n FROM sealed"))
        first = dict(base.execute("SELECT task, min(n) FROM drawn GROUP BY task"))
    last = max((sealed.get(policy, math.inf) for policy in policies), default=-1)
    return {t.task for t in drawn if first[turn(t.text)] <= last}


def tasks(labels: str | os.PathLike) -> list[Task]:
    """The turns that were drawn into a folder, in order."""
    outputs.demand(labels, names=["tasks.parquet", "labels.json"])
    return [Task(**row) for row in pq.read_table(Path(labels) / "tasks.parquet").to_pylist()]


def about(labels: str | os.PathLike) -> dict[str, Any]:
    """What ``labels.json`` says: corpus hash, seed, kinds, counts, and after an import who read
    what, and whether the labels were ``drawn`` "at_random" or count as "given"."""
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
        "drawn.txt", **summary, n=n, who=who, hours=hours, bounds=bounds, few=few, expected=expected
    )


# --------------------------------------------------------------------------- the forms
def write(
    forms: Sequence[str], folder: Path, tasks: Sequence[Task], flags: Spans, about: Mapping
) -> list[str]:
    """Write the tasks in some of the ``FORMS`` into ``folder``; the names of the files."""
    texts: dict[str, str] = {}
    for form in forms or [""]:
        if form not in FORMS:
            raise ValueError(f"--for: {form!r} must be one of {', '.join(FORMS)}")
        if form == "page":
            texts["page.html"] = page(tasks, flags, about)
        elif form == "jsonl":
            lines = [json.dumps(r, ensure_ascii=False) + "\n" for r in records(tasks, flags)]
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


def labelstudio(tasks: Sequence[Task], flags: Spans) -> list[dict[str, Any]]:
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
    return filled("labelstudio.xml", kinds=[quoteattr(kind) for kind in kinds]) + "\n"


def records(tasks: Sequence[Task], flags: Spans) -> list[dict[str, Any]]:
    """The tasks as our page holds them, a line each in JSONL. Who has read one marks its secrets
    and says ``"done": true``."""
    return [
        {
            **{name: getattr(t, name) for name in ("task", "part", "text", "before", "after")},
            **{"done": False, "secrets": [asdict(s) for s in flags.get(t.task, ())]},
        }
        for t in tasks
    ]


def page(tasks: Sequence[Task], flags: Spans, about: Mapping[str, Any]) -> str:
    """The labelling page: one self-contained file, without network."""
    script, style = shipped("label.js"), shipped("label.css")
    return filled(
        "label.html",
        data={"labels": about["labels"], "kinds": about["kinds"], "tasks": records(tasks, flags)},
        hashes={"script": _csp(script), "style": _csp(style)},
        **{"script": Markup(script), "style": Markup(style)},
    )


def _csp(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
