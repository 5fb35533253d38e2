"""The lines of an odometer: what a run adds to the file, and how they are read back."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from crtlib import files
from crtlib.accounting.events import SampledGaussian
from crtlib.checks import DamagedError, check_choice, check_whole_number

ODOMETER_FORMAT = "crtlib/odometer/1"
ODOMETER_SUFFIX = ".odometer"
LEDGER_FILE = "ledger.sqlite"
OLD_LEDGER_FILE = "ledger.jsonl"
"""What crtlib wrote before 0.3: it is read, and taken over with the next line."""
LEDGER_TABLES_SQL = """
CREATE TABLE IF NOT EXISTS head (corpus TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS lines (n INTEGER PRIMARY KEY, content TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS texts (text INTEGER PRIMARY KEY, corpus TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS known (unit BLOB, text INTEGER, kind TEXT, PRIMARY KEY (unit, text));
CREATE INDEX IF NOT EXISTS of_text ON known (text, kind);
CREATE TABLE IF NOT EXISTS counted (lines INTEGER NOT NULL);
INSERT OR IGNORE INTO counted (rowid, lines) SELECT 1, count(*) FROM lines;
CREATE TRIGGER IF NOT EXISTS c AFTER INSERT ON lines BEGIN UPDATE counted SET lines=lines+1; END;
CREATE TABLE IF NOT EXISTS reports (text TEXT, model TEXT, name TEXT, UNIQUE (text, model, name));
CREATE TABLE IF NOT EXISTS attacks (kind, model, name, found, UNIQUE (kind, model, name));
"""
HAS_LINES_SQL = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'lines'"
HAS_COUNT_SQL = HAS_LINES_SQL.replace("'lines'", "'counted'")
SIGNING_KEY_FILE, REGISTRY_KEY_FILE = "signing.key", "key"
"""Private keys beside a ledger and beside the registry; they are made after its first line."""
RUN_STATES = ("started", "finished", "struck")
PRIVACY_UNITS = ("turn", "dialogue", "user")
"""Units of a data point, the smallest first."""
RELATED_TEXTS_SQL = """
SELECT t.corpus, a.kind, COUNT(*),
  MIN((SELECT COUNT(*) FROM known n WHERE n.text = o.text AND n.kind = a.kind),
      (SELECT COUNT(*) FROM known n WHERE n.text = t.text AND n.kind = a.kind)) FROM texts o
JOIN known a ON a.text = o.text JOIN known b ON b.unit = a.unit JOIN texts t ON t.text = b.text
WHERE o.corpus = ? AND t.corpus != o.corpus GROUP BY t.corpus, a.kind
ORDER BY a.kind IN
  ('entered', 'spoken', 'speakers', 'owners', 'compared', 'named', 'owned', 'lone', 'said')
"""
LINES_SQL = "SELECT content FROM lines ORDER BY n"
TEXT_OF_CORPUS_SQL = "(SELECT text FROM texts WHERE corpus = ?)"
OWNERSHIP_KINDS = (
    "entered", "spoken", "speakers", "owners", "compared", "named", "owned", "lone", "said",
)  # fmt: skip
"""Kinds of units that say whose the others are, and make no two texts the same; the last four are
those of before 0.4, which nothing asks for any more."""
ENTERED_FORM_SQL = "SELECT 1 FROM known WHERE text = ? AND unit = ?"
"""Whether a text was read in this form, as it is or screened: one that an older crtlib entered is
known as it was then, until somebody reads it again."""
PLAN_METHOD = "lp_weighted"
"""What the line of a training by a plan calls its method."""
COPY_KEEPING_METHODS = frozenset(
    ("dpsgd", "user_dpsgd", "jft", "selective", "sgd", "plan", PLAN_METHOD)
)
"""Methods that train on each copy of a message as on the first."""
LEAST_SHARED_MESSAGES = 16
LEAST_SHARE = {"short": 1 / 2, "brief": 1 / 2, "rare": 1 / 8, "stretch": 0.0}
"""``LEAST_SHARED_MESSAGES`` short messages in common, and this share of those of one text, make two
texts the same. Strangers share "thank you" and the like: half of all short messages are asked for;
of the "rare" ones, that one conversation of each text alone has, an eighth (of Schema-Guided
Dialogue's and MultiWOZ' conversations any two parts shared at most 6.2 %); of stretches that follow
each other in one conversation alone, no share: there 1,000 conversations shared 4 with 1,000
others."""


@dataclass(frozen=True, kw_only=True)
class OdometerEntry:
    """One line. ``entry`` is the SHA-256 of the others, ``previous`` that of the line before.

    ``events`` is None for a training without secure noise. ``screening`` names what decided which
    secrets stay in the text, ``gamma`` and ``delta2`` bound how many. ``holds``: how many data
    points of a smaller unit one of this unit holds at the most; ``about`` says that of every unit
    of its text. ``model`` is the SHA-256 of the weights that were made, ``base`` that of those it
    started from, where they were a file; ``tensors`` and ``base_tensors`` are those of the numbers
    in them, which stay when a model is saved again. ``trials``: how many trainings like this one
    the text has paid for, of which this model was chosen. ``counted``: of the labels that bound
    ``gamma`` and ``delta2`` their hash, that of what readers had said of them, and how many secrets
    left a ``trace``, or were ``public``, of how many. ``repeats_counted``: a secret in a repeated
    message counted as a trace, and copies were hidden so that one message decides about no other; a
    line of crtlib 0.3 does not say it.
    ``hides_copies``: second occurrences of a message were masked or left out.
    ``void``: why what it promises is void, a sentence each; None where a line does not say it, as
    no line of crtlib 0.3 does. ``assumed``, ``treated_as_public`` and ``declared``: the conditions
    of what it promises, as its own certificate names them. ``law``: by which law the labels that
    bound its rates were drawn (:func:`draw_law`); None where none did.
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
    void: tuple[str, ...] | None = None
    assumed: tuple[str, ...] = ()
    treated_as_public: tuple[str, ...] = ()
    declared: tuple[Mapping[str, Any], ...] = ()
    law: str | None = None

    @property
    def protects(self) -> bool:
        """Whether its noise protects each point, and it says that nothing voids what it promises.

        Guarantee:
            A later certificate composes with no run that has none itself. Test:
            ``tests/release/test_earlier_runs.py::test_a_void_run_counts_as_one_without_protection``.
        """
        return self.events is not None and self.void == ()

    @property
    def spends_past_plans(self) -> bool:
        """Whether a later plan, which counts for each secret, cannot add what it spent: that was
        counted for messages, or by another plan."""
        return self.events is not None or self.method == PLAN_METHOD

    @property
    def leaves_out_repeats(self) -> bool:
        """Whether its rates are too small where messages repeat: it was trained by crtlib 0.3 with
        a method that hides copies."""
        return not self.repeats_counted and self.method not in COPY_KEEPING_METHODS

    @property
    def counts_masked_copies(self) -> bool:
        """Whether several messages that are masked together may become copies of each other, each
        of which is a private point that changes, though none leaves a trace alone."""
        return self.hides_copies and self.method not in COPY_KEEPING_METHODS

    @property
    def charged(self) -> tuple[SampledGaussian, ...] | None:
        """Its events, those of each trial as they are: a search of a fixed size."""
        if self.events is None:
            return None
        return tuple(replace(event, steps=event.steps * self.trials) for event in self.events)


def draw_law(labels: Mapping[str, Any] | None) -> str | None:
    """By which law a secret is drawn that these labels, as a certificate has them, bound a rate of:
    rates under two laws do not add.

    >>> draw_law({"cluster": "user", "drawn": "given"}), draw_law(None)
    ('user, given', None)
    """
    return f"{labels['cluster']}, {labels['drawn']}" if labels else None


def hash_ledger_line(content: Mapping[str, Any]) -> str:
    """The hash by which a line is entered: of all that it says but for the hash itself."""
    rest = {name: value for name, value in content.items() if name != "entry"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, allow_nan=False).encode()).hexdigest()


def refuse_no_folder(place: Path) -> None:
    """Refuse for an odometer a file, and a link that leads to no folder; what is not there may be
    made."""
    if os.path.lexists(place) and not place.is_dir():
        what = "is a link to nothing" if place.is_symlink() else "is no folder"
        raise ValueError(f"odometer: {place} {what}")


@contextlib.contextmanager
def open_transaction(path: Path) -> Iterator[sqlite3.Connection]:
    """One exclusive transaction, on disk when it ends; the file is made where there is none.

    Raises ``DamagedError`` where there must have been one, as a key beside it says: an empty file
    is what a crash may leave, and would say that nothing was spent; and ``ValueError`` for a folder
    of somebody else, or in which others may write.

    Guarantee:
        No lost ledger becomes a new one. Test:
        ``tests/accounting/test_damaged_ledgers.py::test_a_ledger_that_lost_its_head_is_damaged``.
    """
    refuse_no_folder(path.parent)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.check_owned(path.parent)
    keys = (path.parent / name for name in (SIGNING_KEY_FILE, REGISTRY_KEY_FILE))
    used = any(key.exists() for key in keys) and not (path.parent / OLD_LEDGER_FILE).exists()
    if used and not path.exists():
        raise lost_lines_error(path)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    with open_connection(path) as base:
        base.execute("PRAGMA journal_mode=DELETE")  # no WAL: homes of clusters are network disks
        base.execute("PRAGMA synchronous=EXTRA")
        base.execute("BEGIN EXCLUSIVE")
        try:
            if used and not base.execute(HAS_LINES_SQL).fetchone():
                raise lost_lines_error(path)
            for statement in LEDGER_TABLES_SQL.strip().split("\n"):
                base.execute(statement)
            yield base
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # SQLite may have done so itself
                base.execute("ROLLBACK")
            raise
        base.execute("COMMIT")


@contextlib.contextmanager
def open_connection(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection. What SQLite says of an error is not quoted: it holds rows.

    Raises ``OSError`` with its number where the disk is full or broken, ``DamagedError`` for a file
    that is not what was written, ``ValueError`` for one that cannot be used.
    """
    for beside in (path.with_name(path.name + end) for end in ("-journal", "-wal", "-shm")):
        told = files.why_not_regular(beside)  # SQLite opens it, too, if it is there
        if told not in ("", files.NO_SUCH_FILE):
            raise ValueError(f"{beside}: {told}")
    try:
        base = sqlite3.connect(files.check_regular_file(path), timeout=120, isolation_level=None)
        try:
            yield base
        finally:
            base.close()
    except sqlite3.OperationalError as error:
        raise _named_error(path, getattr(error, "sqlite_errorname", "")) from None
    except sqlite3.DatabaseError:
        raise DamagedError(f"odometer: {path.name} is damaged") from None


def _named_error(path: Path, name: str) -> Exception:
    """What an error of SQLite with this name means."""
    what = {"SQLITE_BUSY": "is in use by another process", "SQLITE_LOCKED": "is in use"}
    if name == "SQLITE_FULL":
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    kind = "_".join(name.split("_")[:2])
    if kind in ("SQLITE_READONLY", "SQLITE_CANTOPEN") and not (
        os.access(path.parent, os.W_OK) and (os.access(path, os.W_OK) or not path.exists())
    ):
        return OSError(f"odometer: {path.parent} cannot be written")
    if kind in ("SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PROTOCOL"):
        return OSError(errno.EIO, os.strerror(errno.EIO), str(path))
    if kind in what:
        return OSError(f"odometer: {path.parent} {what[kind]}")
    return DamagedError(f"odometer: {path.name} is damaged")


def lost_lines_error(path: Path) -> DamagedError:
    """What is raised where lines of a ledger, or its head, are lost."""
    return DamagedError(
        f"odometer: {path.name} in {path.parent} is damaged, lines or their head are lost, and "
        "what was spent is not known; restore it"
    )


def read_old_ledger(folder: Path) -> list[str]:
    """The lines of a ledger of before 0.3. One without an end was never on disk, and its run never
    began: it is left out."""
    try:
        text = files.read_text(folder / OLD_LEDGER_FILE)
    except FileNotFoundError:
        return []
    return text[: text.rfind("\n") + 1].splitlines()


def read_ledger_lines(path: Path) -> list[str]:
    """What is in the file of an odometer or of the registry.

    Raises ``DamagedError`` where the head of an odometer, or a line at the end, is lost.

    Guarantee:
        Fewer lines than were written are no smaller spending. Test:
        ``tests/accounting/test_damaged_ledgers.py::test_a_ledger_that_lost_its_head_is_damaged``.
    """
    if not path.is_file():
        return []
    with open_connection(path) as base:
        base.execute("BEGIN")  # the lines and their number are of one moment: others may write
        if not has_lines(base, path):
            return []
        if path.name == LEDGER_FILE and not base.execute("SELECT 1 FROM head").fetchone():
            raise lost_lines_error(path)
        return read_counted_lines(base, path)


def has_lines(base: sqlite3.Connection, path: Path) -> bool:
    """Whether anything was ever written in the file of an odometer or of the registry. A registry
    of no bytes, without its key, is that of somebody who died before the first line.

    Raises ``DamagedError`` for any other without lines.
    """
    if base.execute(HAS_LINES_SQL).fetchone():
        return True
    key = path.parent / REGISTRY_KEY_FILE
    if path.name == LEDGER_FILE or path.stat().st_size or key.exists():
        raise lost_lines_error(path)
    return False


def read_counted_lines(base: sqlite3.Connection, path: Path) -> list[str]:
    """All lines, as many as were written: of a file of crtlib 0.3 nobody knows how many."""
    lines = [row[0] for row in base.execute(LINES_SQL)]
    if base.execute(HAS_COUNT_SQL).fetchone():
        told = base.execute("SELECT lines FROM counted").fetchone()
        if told is None or told[0] != len(lines):
            raise lost_lines_error(path)
    return lines


def parse_entries(lines: Iterable[str]) -> list[OdometerEntry]:
    """Raises ``DamagedError`` for a line that is not what was written, or is not in its place."""
    entries: list[OdometerEntry] = []
    for number, line in enumerate(lines, 1):
        last = entries[-1].entry if entries else None
        try:
            content = json.loads(line)
            whole = content["schema"] == ODOMETER_FORMAT and content["entry"] == hash_ledger_line(
                content
            )
            entry = parse_entry(content)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DamagedError(f"odometer: entry {number} is damaged") from None
        if not whole:
            raise DamagedError(f"odometer: entry {number} was changed")
        if entry.previous != last:
            raise DamagedError(f"odometer: entry {number} does not follow entry {number - 1}")
        entries.append(entry)
    return entries


def parse_entry(content: Mapping[str, Any]) -> OdometerEntry:
    """The run that a line tells of, in any form that was ever written."""
    values = {f.name: content[f.name] for f in fields(OdometerEntry) if f.name in content}
    if values["events"] is not None:
        values["events"] = tuple(SampledGaussian(**event) for event in values["events"])
    for name in ("void", "assumed", "treated_as_public", "declared"):
        if values.get(name) is not None:
            values[name] = tuple(values[name])
    entry = OdometerEntry(**values)  # of older lines, some of its fields have their defaults
    check_choice("state", entry.state, RUN_STATES)
    check_choice("unit", entry.unit, PRIVACY_UNITS)
    check_whole_number("trials", entry.trials, 1)
    return entry
