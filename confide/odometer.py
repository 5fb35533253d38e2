"""The odometer: a ledger beside a corpus in which every private training on it is entered.

A folder (0700) with one SQLite file (0600) of lines that are added and never changed, each in a
transaction of its own. A run reserves with a line when it starts, before its first step, all that
it may spend; has one when it is finished; perhaps one that strikes it, for a model that nobody ever
saw. Each line holds the hash of the one before, so that a lost or changed line shows. A run that
was only started counts in full.

The same lines go into the :class:`Registry` of the user, which knows a text again by its units:
keyed hashes of its conversations and of its people. So a corpus that was moved, appended to or
screened elsewhere, and next month's messages of the same people, bring their earlier runs along.

>>> import tempfile
>>> folder = Path(tempfile.mkdtemp()) / "talk.jsonl.odometer"
>>> spend = {"unit": "turn", "method": "crt", "relation": "replace", "screening": "5" * 64,
...          "gamma": 0.05, "delta2": 0.01, "holds": {}}
>>> step = SampledGaussian(0.01, 1.0, 100)
>>> first = add(folder, corpus="c" * 64, run="a", state="started", events=(step,), **spend)
>>> second = add(folder, corpus="c" * 64, run="b", state="started", events=(step,), **spend)
>>> before = spent(read(folder), run="b")
>>> before.runs, [e.steps for e in before.events], before.rates("5" * 64, 0.05, 0.01)
(1, [100], (0.05, 0.01))
>>> before.rates("6" * 64, 0.03, 0.0)  # another screening: either may pass a secret over
(0.08, 0.01)
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import math
import os
import secrets
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from crtlib import files
from crtlib.accounting import ledger
from crtlib.accounting.ledger import SampledGaussian
from crtlib.checks import check_choice, check_delta, check_whole

SCHEMA = "crtlib/odometer/1"
SUFFIX = ".odometer"
LEDGER = "ledger.sqlite"
IMPORTED = "ledger.jsonl"
"""What crtlib wrote before 0.3: it is read, and taken over with the next line."""
TABLES = """
CREATE TABLE IF NOT EXISTS head (corpus TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS lines (n INTEGER PRIMARY KEY, content TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS texts (text INTEGER PRIMARY KEY, corpus TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS known (unit BLOB, text INTEGER, kind TEXT, PRIMARY KEY (unit, text));
CREATE INDEX IF NOT EXISTS of_text ON known (text, kind);
CREATE TABLE IF NOT EXISTS reports (text TEXT, model TEXT, name TEXT, UNIQUE (text, model, name));
"""
STATES = ("started", "finished", "struck")
UNITS = ("turn", "dialogue", "user")
"""Units of a data point, the smallest first."""
RELATED = """
SELECT t.corpus, a.kind, COUNT(*),
  MIN((SELECT COUNT(*) FROM known n WHERE n.text = o.text AND n.kind = a.kind),
      (SELECT COUNT(*) FROM known n WHERE n.text = t.text AND n.kind = a.kind)) FROM texts o
JOIN known a ON a.text = o.text JOIN known b ON b.unit = a.unit JOIN texts t ON t.text = b.text
WHERE o.corpus = ? AND t.corpus != o.corpus GROUP BY t.corpus, a.kind
ORDER BY a.kind IN ('named', 'owned', 'lone', 'said')
"""
LINES = "SELECT content FROM lines ORDER BY n"
OF_CORPUS = "(SELECT text FROM texts WHERE corpus = ?)"
FACTS = ("named", "owned", "lone", "said")
"""Kinds of units that say whose the others are, and make no two texts the same."""
KNOWN = "SELECT 1 FROM known WHERE text = ? AND kind IN ('rare', 'stretch')"
"""Whether it is known which short messages of a text are rare: one that crtlib 0.3 entered is known
as it was then, until somebody reads it again."""
KEEPS_COPIES = frozenset(("dpsgd", "user_dpsgd", "jft", "selective", "sgd", "plan", "lp_weighted"))
"""Methods that train on each copy of a message as on the first."""
ALIKE = 16
LEAST_SHARE = {"short": 1 / 2, "rare": 1 / 8, "stretch": 0.0}
"""``ALIKE`` short messages in common, and this share of those of one text, make two texts the same.
Strangers share "thank you" and the like: half of all short messages are asked for; of the "rare"
ones, that one conversation of each text alone has, an eighth (of Schema-Guided Dialogue's and
MultiWOZ' conversations any two parts shared at most 6.2 %); of stretches that follow each other in
one conversation alone, no share: there 1,000 conversations shared 4 with 1,000 others."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line. ``entry`` is the SHA-256 of the others, ``previous`` that of the line before.

    ``events`` is None for a training without secret noise. ``screening`` names what decided which
    secrets stay in the text, ``gamma`` and ``delta2`` bound how many. ``holds``: how many data
    points of a smaller unit one of this unit holds at the most; ``about`` says that of every unit
    of its text. ``model`` is the SHA-256 of the weights that were made, ``base`` that of those it
    started from, where they were a file; ``tensors`` and ``base_tensors`` are those of the numbers
    in them, which stay when a model is saved again. ``trials``: how many trainings like this one
    the text has paid for, of which this model was chosen. ``counted``: of the labels that bound
    ``gamma`` and ``delta2`` their hash, and how many secrets left a ``trace``, or were ``public``,
    of how many. ``repeats_counted``: a secret in a repeated message counted as a trace, and copies
    were hidden so that one message decides about no other; a line of crtlib 0.3 does not say it.
    ``hides_copies``: second occurrences of a message were masked or left out.
    ``brought``: names of what the user brought to screen the text, of which it is assumed that it
    was not made from it.
    """

    entry: str
    previous: str | None
    time: str
    corpus: str
    run: str
    state: str
    unit: str
    method: str
    relation: str
    events: tuple[SampledGaussian, ...] | None
    screening: str
    gamma: float
    delta2: float
    holds: Mapping[str, int]
    model: str | None = None
    because: str | None = None
    base: str | None = None
    tensors: str | None = None
    base_tensors: str | None = None
    about: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    trials: int = 1
    counted: Mapping[str, Any] = field(default_factory=dict)
    repeats_counted: bool = False
    hides_copies: bool = True
    brought: tuple[str, ...] = ()

    @property
    def leaves_out_repeats(self) -> bool:
        """Whether its rates are too small where messages repeat: it was trained by crtlib 0.3 with
        a method that hides copies."""
        return not self.repeats_counted and self.method not in KEEPS_COPIES

    @property
    def moves_copies(self) -> bool:
        """Whether several messages that are masked together may become copies of each other, each
        of which is a private point that changes, though none leaves a trace alone."""
        return self.hides_copies and self.method not in KEEPS_COPIES

    @property
    def charged(self) -> tuple[SampledGaussian, ...] | None:
        """Its events, those of each trial as they are: a search of a fixed size."""
        if self.events is None:
            return None
        return tuple(replace(event, steps=event.steps * self.trials) for event in self.events)


def _digest(content: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in content.items() if name != "entry"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, allow_nan=False).encode()).hexdigest()


# --------------------------------------------------------------------------- the file
@contextlib.contextmanager
def _transaction(path: Path) -> Iterator[sqlite3.Connection]:
    """One exclusive transaction, on disk when it ends; the file is made where there is none."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    with _connection(path) as base:
        base.execute("PRAGMA journal_mode=DELETE")  # no WAL: homes of clusters are network disks
        base.execute("PRAGMA synchronous=EXTRA")
        base.execute("BEGIN EXCLUSIVE")
        try:
            for statement in TABLES.strip().split("\n"):
                base.execute(statement)
            yield base
        except BaseException:
            base.execute("ROLLBACK")
            raise
        base.execute("COMMIT")


@contextlib.contextmanager
def _connection(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        base = sqlite3.connect(path, timeout=120, isolation_level=None)
        try:
            yield base
        finally:
            base.close()
    except sqlite3.OperationalError as error:
        raise OSError(f"odometer: {path.parent} cannot be used ({error})") from None
    except sqlite3.DatabaseError:
        raise ValueError(f"odometer: {path.name} is damaged") from None


def reserve(folder: str | os.PathLike[str], corpus: str, registry: Registry | None = None) -> None:
    """Make ``folder`` the odometer of the corpus with this hash, before its text is trained on; a
    ledger of before 0.3 is taken over. Lines that the ``registry`` lacks, as of a folder that came
    from another machine, are entered there first. Of several processes one makes it, and the others
    find it.

    Raises ``ValueError`` for the odometer of another corpus or a broken one, ``OSError`` where it
    cannot be written.
    """
    path = Path(folder) / LEDGER
    with _transaction(path) as base:
        head = base.execute("SELECT corpus FROM head").fetchone()
        if head is None:
            older = _older(path.parent)
            check_corpus(path.parent, _entries(older), corpus)
            base.execute("INSERT INTO head VALUES (?)", (corpus,))
            base.executemany("INSERT INTO lines (content) VALUES (?)", [(x,) for x in older])
        elif head[0] != corpus:
            _other(path.parent, head[0], corpus)
        if registry is not None:
            known = [_same(e) for e in registry.entries() if e.corpus == corpus]
            for line in map(_same, _entries(r[0] for r in base.execute(LINES))):
                if line in known:
                    known.remove(line)
                else:
                    _append(registry.path, line)
    with contextlib.suppress(FileNotFoundError):
        os.replace(path.parent / IMPORTED, path.parent / f"{IMPORTED}.imported")


def _older(folder: Path) -> list[str]:
    """The lines of a ledger of before 0.3. One without an end was never on disk, and its run never
    began: it is left out."""
    try:
        text = (folder / IMPORTED).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return text[: text.rfind("\n") + 1].splitlines()


def _lines(path: Path) -> list[str]:
    """What is in the file of an odometer or of the registry."""
    if not path.is_file():
        return []
    with _connection(path) as base:
        if not base.execute("SELECT 1 FROM sqlite_master WHERE name = 'lines'").fetchone():
            return []  # made a moment ago
        return [row[0] for row in base.execute(LINES)]


def read(folder: str | os.PathLike[str]) -> list[Entry]:
    """All lines of an odometer, oldest first.

    Raises ``ValueError`` where it is missing, or a line is lost, damaged or was changed: nobody
    knows then what was spent.
    """
    home = Path(folder)
    if (home / LEDGER).is_file():
        entries = _entries(_lines(home / LEDGER))
        check_corpus(home, entries, _corpus_of(home) or "none")
        return entries
    if not (home / IMPORTED).is_file():
        raise ValueError(f"odometer: {folder} holds no {LEDGER}")
    return _entries(_older(home))


def _entries(lines: Iterable[str]) -> list[Entry]:
    entries: list[Entry] = []
    for number, line in enumerate(lines, 1):
        last = entries[-1].entry if entries else None
        try:
            content = json.loads(line)
            whole = content["schema"] == SCHEMA and content["entry"] == _digest(content)
            entry = _entry(content)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"odometer: entry {number} is damaged") from None
        if not whole:
            raise ValueError(f"odometer: entry {number} was changed")
        if entry.previous != last:
            raise ValueError(f"odometer: entry {number} does not follow entry {number - 1}")
        entries.append(entry)
    return entries


def _entry(content: Mapping[str, Any]) -> Entry:
    values = {f.name: content[f.name] for f in fields(Entry) if f.name in content}
    if values["events"] is not None:
        values["events"] = tuple(SampledGaussian(**event) for event in values["events"])
    values["brought"] = tuple(content.get("brought", ()))
    entry = Entry(**values)  # of older lines, some of its fields have their defaults
    check_choice("state", entry.state, STATES)
    check_choice("unit", entry.unit, UNITS)
    check_whole("trials", entry.trials, 1)
    return entry


def add(
    folder: str | os.PathLike[str], *, registry: Registry | None = None, **values: Any
) -> Entry:
    """Add a line and have it on disk, first in the ``registry`` and then in the ``folder``, which
    is made where there is none. ``values`` are the fields of :class:`Entry` but for its hashes and
    its time.

    Raises ``ValueError`` for an odometer of another corpus or a broken one, ``OSError`` where it
    cannot be written.
    """
    folder = Path(folder)
    reserve(folder, values["corpus"], registry)
    if registry is not None:
        _append(registry.path, values)
    return _append(folder / LEDGER, values)


def _append(path: Path, values: Mapping[str, Any]) -> Entry:
    with _transaction(path) as base:
        entries = _entries(r[0] for r in base.execute(LINES))
        previous = entries[-1].entry if entries else None
        now = datetime.now(UTC).isoformat(timespec="seconds")
        content = asdict(Entry(entry="", previous=previous, time=now, **values))
        content["schema"] = SCHEMA
        content["entry"] = _digest(content)
        entry = _entry(content)  # refuses what could not be read back
        line = json.dumps(content, sort_keys=True, allow_nan=False)
        base.execute("INSERT INTO lines (content) VALUES (?)", (line,))
    return entry


def again(
    folder: str | os.PathLike[str],
    entry: Entry,
    *,
    registry: Registry | None = None,
    **changes: Any,
) -> Entry:
    """A further line of the run of ``entry``: finished, struck, or started once more."""
    return add(folder, registry=registry, **(_same(entry) | changes))


def _same(entry: Entry) -> dict[str, Any]:
    """What a further line of the same run begins with."""
    ours = ("entry", "previous", "time")
    return {f.name: getattr(entry, f.name) for f in fields(Entry) if f.name not in ours}


def strike(
    folder: str | os.PathLike[str], entry: str, *, because: str, registry: Registry | None = None
) -> Entry:
    """Strike the run to which the line belongs whose hash begins with ``entry``: its model was
    never seen by anybody, as ``because`` says. Raises ``ValueError`` where none or several do."""
    if not because.strip():
        raise ValueError("because='': must say why nobody ever saw the model")
    runs = {e.run: e for e in read(folder) if e.entry.startswith(entry)}
    if len(runs) != 1 or not entry:
        raise ValueError(f"entry={entry!r}: must begin the hash of one entry, not of {len(runs)}")
    (line,) = runs.values()
    return again(folder, line, registry=registry, state="struck", because=because.strip())


def find(corpus: str | os.PathLike[str], sha: str) -> Path:
    """The odometer of the corpus with this hash, among those beside ``corpus``; where there is
    none, the folder that would be it. One in which nothing was entered yet is anybody's."""
    path = Path(corpus).resolve()
    for folder in sorted(path.parent.glob(f"*{SUFFIX}")):
        if _corpus_of(folder) == sha:
            return folder
    own = path.with_name(path.name + SUFFIX)  # of another text, where the file has changed since
    free = _corpus_of(own) in (None, sha) and not (own / IMPORTED).exists()
    return own if free else path.with_name(f"{path.name}-{sha[:8]}{SUFFIX}")


def _corpus_of(folder: Path) -> str | None:
    """The corpus of an odometer, also of one that is broken further on."""
    if (folder / LEDGER).is_file():
        with (
            contextlib.suppress(ValueError, OSError, sqlite3.Error),
            _connection(folder / LEDGER) as base,
        ):
            row = base.execute("SELECT corpus FROM head").fetchone()
            return row and str(row[0])
        return None
    try:
        with (folder / IMPORTED).open(encoding="utf-8") as file:
            return str(json.loads(file.readline())["corpus"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def check_corpus(folder: Path, entries: Sequence[Entry], corpus: str) -> None:
    """Refuse the odometer of another corpus."""
    if entries and entries[0].corpus != corpus:
        _other(folder, entries[0].corpus, corpus)


def _other(folder: Path, theirs: str, ours: str) -> None:
    raise ValueError(f"odometer: {folder} is of corpus {theirs[:8]}…, this is {ours[:8]}…")


# --------------------------------------------------------------------------- the registry
home = files.home


@dataclass(frozen=True)
class Registry:
    """All runs of a user, and of which text they were: keyed hashes of its conversations and of
    its people, 16 bytes each. The folder is private, and so is the key."""

    folder: Path

    @property
    def path(self) -> Path:
        """The file with the lines."""
        return self.folder / "registry.sqlite"

    def register(self, corpus: str, units: Iterable[tuple[str, str]] = ()) -> None:
        """Know the corpus with this hash again by its ``units``: kind and content of each."""
        with _transaction(self.path) as base:
            row = base.execute("SELECT text FROM texts WHERE corpus = ?", (corpus,)).fetchone()
            if row and base.execute(KNOWN, row).fetchone():
                return  # else it is new, or was entered by crtlib 0.3, which knew less
            if row is None:
                base.execute("INSERT INTO texts (corpus) VALUES (?)", (corpus,))
                row = base.execute("SELECT text FROM texts WHERE corpus = ?", (corpus,)).fetchone()
            key = self._key()
            hashes = (
                (hmac.digest(key, f"{kind}:{content}".encode(), "sha256")[:16], row[0], kind)
                for kind, content in units
            )
            base.executemany("INSERT OR IGNORE INTO known VALUES (?, ?, ?)", hashes)

    def _key(self) -> bytes:
        """Of the hashes; it is made inside the exclusive transaction of the first text."""
        path = self.folder / "key"
        if not path.exists():
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(32))
                file.flush()
                os.fsync(file.fileno())
        return path.read_bytes()

    def forget(self, corpus: str) -> None:
        """Know no more whose text the corpus with this hash was. The lines of its runs stay, and
        each training from now on says that it may have followed them: :meth:`forgotten`."""
        with _transaction(self.path) as base:
            base.execute("PRAGMA secure_delete=ON")
            for table in ("known", "texts"):
                base.execute(f"DELETE FROM {table} WHERE text IN {OF_CORPUS}", (corpus,))

    def forgotten(self, corpus: str) -> int:
        """How many other corpora have runs here of which nobody knows whose text they read."""
        known = {corpus}
        if self.path.is_file():
            with _connection(self.path) as base:
                known |= {row[0] for row in base.execute("SELECT corpus FROM texts")}
        return len({e.corpus for e in self.entries()} - known)

    def related(self, corpus: str) -> dict[str, Counter[str]]:
        """The hashes of all corpora with a conversation, a person or messages of this one, and its
        own; of each how many units of a kind they share."""
        shared: dict[str, Counter[str]] = {corpus: Counter()}
        if self.path.is_file():
            with _connection(self.path) as base:
                for text, kind, both, fewer in base.execute(RELATED, (corpus,)):
                    share = LEAST_SHARE.get(kind)
                    same = share is None or both >= max(ALIKE, share * fewer)
                    if text in shared if kind in FACTS else same:
                        shared.setdefault(text, Counter())[kind] = both
        return shared

    def reported(self, corpus: str, model: str, report: str, *, enter: bool = False) -> int:
        """How many other reports of a model there are on this text, or on one with some of the
        same conversations or people; ``enter``: this one is written now. Of a report, of the
        numbers in a model and of a corpus the hash is given."""
        related = self.related(corpus)
        with _transaction(self.path) as base:
            rows = base.execute("SELECT text, name FROM reports WHERE model = ?", (model,))
            known = {row[0] for row in base.execute("SELECT corpus FROM texts")}
            others = {name for text, name in rows if text in related or text not in known}
            others -= {report}  # of what was forgotten nobody knows whose text it is
            if enter:
                line = corpus, model, report
                base.execute("INSERT OR IGNORE INTO reports VALUES (?, ?, ?)", line)
        return len(others)

    def entries(self) -> list[Entry]:
        """All lines, of whatever text."""
        return _entries(_lines(self.path))


@dataclass(frozen=True)
class History:
    """What is known of a text: ``entries`` of its odometer and, from the registry, of runs on text
    with the same conversations, people or messages; ``others`` are the registry's lines of any
    text, for what a model started from; ``cut`` has the texts whose conversations, or people, may
    be others than those of this one."""

    entries: tuple[Entry, ...]
    others: tuple[Entry, ...] = ()
    cut: Mapping[str, set[str]] = field(default_factory=dict)

    def spent(self, run: str | None = None, bases: Iterable[str] = ()) -> Spent:
        """What was spent by all runs, or by those that started before ``run`` did, or that would
        be before one that starts from ``bases``, hashes of a model."""
        known = spent(self.entries, run=run, others=self.others, bases=bases)
        return replace(known, cut=self.cut)


def history(
    folder: str | os.PathLike[str], registry: Registry | None, run: str | None = None
) -> History:
    """The lines of an odometer and those that the registry adds: of runs that are not in it, or
    are further there, and that started before ``run`` last did, where it knows when that was."""
    own = read(folder)
    if registry is None:
        return History(tuple(own))
    every = registry.entries()
    related = registry.related(_corpus_of(Path(folder)) or "")
    before = {e.run for e in every[: _begun(every, run)] if e.corpus in related} - {run}
    known = {name: sum(e.run == name for e in own) for name in before}
    added = [e for e in every if e.run in before and not known[e.run]]
    ahead = {r for r in before if 0 < known[r] < sum(e.run == r for e in every)}
    later = [e for e in every if e.run in ahead]  # a process was killed between the two ledgers
    other = {text for text in related if related[text]}  # than this one
    cut = {"dialogue": other, "user": {text for text in other if not _same_people(related[text])}}
    return History((*added, *own, *later), tuple(every), cut)


def _same_people(shared: Counter[str]) -> bool:
    """Whether two texts that share so many units of a kind name their people, and give each the
    conversations, and the messages that one person alone says, that the other gives him."""
    alike = shared["dialogue"] == shared["owned"] and shared["lone"] == shared["said"]
    return bool(shared["named"]) and alike


# --------------------------------------------------------------------------- what was spent
@dataclass(frozen=True)
class Spent:
    """What earlier runs have spent: the last line of each, without those that were struck.
    ``bare``: the weights that this run started from had learned the text without protection;
    ``heirs`` are runs of which that is true. ``struck``: this run was. ``left``: how many runs
    do not count, as they were struck. ``cut``: the texts
    whose conversations, or people, may be others than those of this one."""

    entries: tuple[Entry, ...]
    bare: bool = False
    heirs: frozenset[str] = frozenset()
    struck: bool = False
    left: int = 0
    cut: Mapping[str, set[str]] = field(default_factory=dict)

    @property
    def private(self) -> tuple[Entry, ...]:
        """Those whose noise protects."""
        return tuple(e for e in self.entries if e.events is not None and e.run not in self.heirs)

    @property
    def runs(self) -> int:
        """How many were trained with protection."""
        return len(self.private)

    @property
    def unprotected(self) -> int:
        """How many were trained without, or from a model that had been."""
        return len(self.entries) - self.runs

    @property
    def events(self) -> tuple[SampledGaussian, ...]:
        """All their events, in order."""
        return tuple(event for e in self.private for event in e.charged or ())

    def groups(self, unit: str, holds: Mapping[str, int]) -> tuple[int, ...]:
        """Of each of ``events``: how many of its data points change with one ``unit``, which
        ``holds`` so many of a smaller unit at the most, if the run does not say how many it held
        in its own text. Another text may have been cut in another way, and each message of one
        ``unit`` be in a point of its own there, unless units are people whom both texts name and
        both give the same conversations and messages. Raises ``ValueError`` where neither says how
        many."""
        sizes = []
        for e in self.private:
            smaller = UNITS.index(e.unit) < UNITS.index(unit)
            size = e.about.get(unit, {}).get(e.unit, holds.get(e.unit)) if smaller else 1
            if unit != "turn" and e.corpus in self.cut.get(unit, ()):
                turns = holds.get("turn")
                size = size and turns and max(size, turns)
            if size is None:
                raise ValueError(f"holds: must say how many {e.unit}s one {unit} holds")
            sizes += [size] * len(e.events or ())
        return tuple(sizes)

    def holds(self, unit: str) -> dict[str, int]:
        """How many points of a smaller unit one ``unit`` holds, as its own runs say."""
        every = (e.holds for e in self.private if e.unit == unit)
        return {name: size for held in every for name, size in held.items()}

    def rates(self, screening: str, gamma: float, delta2: float) -> tuple[float, float]:
        """gamma and delta2 of all runs and of one more: a secret counts where any screening passes
        it over (union bound); runs of one screening read the same text, so they count once."""
        worst = {screening: (gamma, delta2)}
        for e in self.private:
            g, d = worst.get(e.screening, (0.0, 0.0))
            worst[e.screening] = max(g, e.gamma), max(d, e.delta2)
        traces, public = (min(1.0, sum(rates)) for rates in zip(*worst.values(), strict=True))
        return traces, public


def spent(
    entries: Sequence[Entry],
    *,
    run: str | None = None,
    others: Sequence[Entry] = (),
    bases: Iterable[str] = (),
) -> Spent:
    """What was spent by all runs, or by those that started before ``run`` last did: one that went
    on may hold what others learned in between. A struck run does not count, unless it was struck
    without a reason, or one that counts started from its model: that one shows what it had learned.
    A run of which two models are known counts for each. ``others`` are lines of other texts, for
    models that came by way of one."""
    first = {e.run for e in entries[: _begun(entries, run)]} - {run}
    last = {e.run: e for e in entries if e.run in first}  # what became of them later, too
    ends = [e for e in entries if e.run in first and e.state == "finished"]
    model = {e.run: e.model for e in ends}
    more = {(e.run, e.model): e for e in ends if e.model != model[e.run]}.values()
    every = (*entries, *others)
    counted = {e.run for e in last.values() if e.state != "struck" or not e.because}
    above = _above(every, {run} if run else set(), bases)
    heirs = {e.run for e in {e.run: e for e in others}.values() if e.state != "struck"} - set(last)
    counted |= (above | _above(every, counted | heirs)) & set(last)
    counted |= {e.run for e in more}
    naked = {e.run for e in entries if e.events is None}
    return Spent(
        (*(e for e in last.values() if e.run in counted), *more),
        bare=bool(naked & above),
        heirs=frozenset(name for name in counted if naked & {name, *_above(every, {name})}),
        struck=any(e.run == run and e.state == "struck" for e in every),
        left=len(set(last) - counted),
    )


def _begun(entries: Sequence[Entry], run: str | None) -> int:
    """The place of the last line that says that ``run`` starts, or goes on; the end, if none."""
    ours = (n for n, e in enumerate(entries) if e.run == run and e.state == "started")
    return max(ours, default=len(entries))


def _above(entries: Sequence[Entry], runs: set[str], bases: Iterable[str] = ()) -> set[str]:
    """The runs from whose models ``runs`` started, or one from ``bases``, at any remove."""
    found, hashes = set[str](), set(bases)
    while runs or hashes:
        hashes |= {x for e in entries if e.run in runs for x in (e.base, e.base_tensors) if x}
        runs = {e.run for e in entries if {e.model, e.tensors} & hashes} - found
        found, hashes = found | runs, set()
    return found


def bill(known: History, *, delta: float) -> dict[str, Any]:
    """What is known of a text, as JSON: each run with its own epsilon at ``delta``, and all that
    count together, for the largest unit among them. Infinite is "inf", no protection null."""
    check_delta(delta)
    last = {e.run: e for e in known.entries}
    whole = known.spent()
    unit = max((e.unit for e in whole.private), key=UNITS.index, default=UNITS[0])

    def epsilon(events: Sequence[SampledGaussian], groups: ledger.Group) -> float | str:
        value = ledger.epsilon(events, delta=delta, neighbouring_relation="replace", group=groups)
        return "inf" if math.isinf(value) else math.ceil(value * 1000) / 1000

    names = ("entry", "time", "state", "method", "unit", "model", "because")
    rows = [
        {name: getattr(e, name) for name in names}
        | {"epsilon": None if e.charged is None else epsilon(e.charged, 1)}
        for e in last.values()
    ]
    gamma, delta2 = whole.rates("", 0.0, 0.0)
    together = epsilon(whole.events, whole.groups(unit, whole.holds(unit))) if whole.events else 0.0
    if whole.unprotected:
        together = "inf"
    return {
        "unit": unit,
        "delta": delta,
        "runs": rows,
        "together": {"epsilon": together, "gamma": gamma, "delta2": delta2},
        "leave_out_repeats": sum(e.leaves_out_repeats for e in whole.private),
    }
