"""The lines of an odometer: what a run adds to the file, and how lines are read back."""

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
"""The ledger that crtlib wrote before 0.3. It is read, and taken over when the next line is
added."""
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
"""Private keys beside an odometer's ledger and beside the registry, made after the file itself."""
RUN_STATES = ("started", "finished", "struck")
PRIVACY_UNITS = ("turn", "dialogue", "user")
"""The possible data points, the smallest first."""
OWNERSHIP_KINDS = (
    "entered", "spoken", "speakers", "owners", "compared", "named", "owned", "lone", "said",
)  # fmt: skip
"""Kinds of units that record to whom the other units belong; sharing them does not relate two
texts. The last four are from before 0.4 and are no longer read."""
RELATED_TEXTS_SQL = f"""
SELECT t.corpus, a.kind, COUNT(*),
  MIN((SELECT COUNT(*) FROM known n WHERE n.text = o.text AND n.kind = a.kind),
      (SELECT COUNT(*) FROM known n WHERE n.text = t.text AND n.kind = a.kind)) FROM texts o
JOIN known a ON a.text = o.text JOIN known b ON b.unit = a.unit JOIN texts t ON t.text = b.text
WHERE o.corpus = ? AND t.corpus != o.corpus GROUP BY t.corpus, a.kind
ORDER BY a.kind IN {OWNERSHIP_KINDS}
"""
LINES_SQL = "SELECT content FROM lines ORDER BY n"
TEXT_OF_CORPUS_SQL = "(SELECT text FROM texts WHERE corpus = ?)"
ENTERED_FORM_SQL = "SELECT 1 FROM known WHERE text = ? AND unit = ?"
"""Whether a text was entered in this form, as it is or screened. A text that an older crtlib
entered keeps its old units until somebody reads it again."""
PLAN_METHOD = "lp_weighted"
"""The method in the odometer line of a training with a plan."""
COPY_KEEPING_METHODS = frozenset(
    ("dpsgd", "user_dpsgd", "jft", "selective", "sgd", "plan", PLAN_METHOD)
)
"""Methods that train on every copy of a message just as on the first."""
LEAST_SHARED_MESSAGES = 16
LEAST_SHARE = {"short": 1 / 2, "brief": 1 / 2, "rare": 1 / 8, "stretch": 0.0}
"""Two texts are related if they share ``LEAST_SHARED_MESSAGES`` short messages and this share of
the short messages of one of them, by kind. Strangers share "thank you" and the like, so of all
short messages it takes half. Of "rare" ones, which only one conversation in each text has, it takes
an eighth (any two parts of Schema-Guided Dialogue and of MultiWOZ shared at most 6.2 %). Of
stretches of messages that follow each other in only one conversation no share is needed: there,
1,000 conversations shared 4 with 1,000 others."""


@dataclass(frozen=True, kw_only=True)
class OdometerEntry:
    """One line of an odometer.

    ``entry`` is the SHA-256 of the other fields, ``previous`` the hash of the line before.
    ``events`` is None for a training without secure noise. ``screening`` names what decided which
    secrets stay in the text; ``gamma`` and ``delta2`` bound their shares. ``holds``: the largest
    number of points of each smaller unit in one of this unit; ``about`` states the same for every
    unit of the text.

    ``model`` is the SHA-256 of the weights that were made, ``base`` that of the weights it started
    from, if they were a file. ``tensors`` and ``base_tensors`` are hashes of the numbers in them,
    which do not change when a model is saved again. ``trials``: how many trainings like this one
    are charged, from which this model was chosen.

    ``counted``, for labels that bound ``gamma`` and ``delta2``: their hash, the hash of what their
    readers had marked, and how many secrets left a ``trace`` or were ``public``, out of how many.
    ``repeats_counted``: a secret in a repeated message counted as a trace, and copies were hidden
    in such a way that no message decides about another; lines of crtlib 0.3 do not state it.
    ``hides_copies``: second occurrences of a message were masked or left out. ``law``: the law by
    which the labels that bound its rates were drawn (:func:`draw_law`); None if no labels did.

    ``void``: why its promise is void, a sentence each; None if the line does not state it, which no
    line of crtlib 0.3 does. ``assumed``, ``treated_as_public`` and ``declared``: the conditions of
    its promise, as in its own certificate.
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
        """Whether its noise protects each point and it states that nothing voids its promise.

        Guarantee:
            A later certificate does not compose with a run that has no valid one itself. Test:
            ``tests/release/test_earlier_runs.py::test_a_void_run_counts_as_one_without_protection``.
        """
        return self.events is not None and self.void == ()

    @property
    def spends_past_plans(self) -> bool:
        """Whether a later plan, which counts for each secret, cannot add what this run spent,
        because that was counted for messages, or by another plan."""
        return self.events is not None or self.method == PLAN_METHOD

    @property
    def leaves_out_repeats(self) -> bool:
        """Whether its rates may be too small where messages repeat, because crtlib 0.3 trained it
        with a method that hides copies."""
        return not self.repeats_counted and self.method not in COPY_KEEPING_METHODS

    @property
    def counts_masked_copies(self) -> bool:
        """Whether several messages may become copies of each other once they are masked; then each
        may change a private point although none leaves a trace alone."""
        return self.hides_copies and self.method not in COPY_KEEPING_METHODS

    @property
    def charged(self) -> tuple[SampledGaussian, ...] | None:
        """Its events, repeated for each trial, as for a search of a fixed size; None without
        events."""
        if self.events is None:
            return None
        return tuple(replace(event, steps=event.steps * self.trials) for event in self.events)


def draw_law(labels: Mapping[str, Any] | None) -> str | None:
    """The law by which a secret is drawn in the rates that these labels bound, given the labels as
    a certificate has them. Rates under two laws do not add.

    >>> draw_law({"cluster": "user", "drawn": "given"}), draw_law(None)
    ('user, given', None)
    """
    return f"{labels['cluster']}, {labels['drawn']}" if labels else None


def hash_ledger_line(content: Mapping[str, Any]) -> str:
    """The hash of a line: over all its fields except the hash itself."""
    hashed_fields = {name: value for name, value in content.items() if name != "entry"}
    text = json.dumps(hashed_fields, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def refuse_no_folder(folder: Path) -> None:
    """Refuse as an odometer a file, or a link that does not lead to a folder. A path that does not
    exist may be created."""
    if os.path.lexists(folder) and not folder.is_dir():
        fault = "is a link to nothing" if folder.is_symlink() else "is no folder"
        raise ValueError(f"odometer: {folder} {fault}")


@contextlib.contextmanager
def open_transaction(path: Path) -> Iterator[sqlite3.Connection]:
    """Open one exclusive transaction, which is on disk when it ends; the file is created if needed.

    Raises ``DamagedError`` if a key beside the file shows that it existed and now it is missing or
    empty: a crash may leave it so, and it would mean that nothing was spent. Raises ``ValueError``
    for a folder that belongs to somebody else or that others may write to.

    Guarantee:
        A lost ledger is never replaced by a new one. Test:
        ``tests/accounting/test_damaged_ledgers.py::test_a_ledger_that_lost_its_head_is_damaged``.
    """
    refuse_no_folder(path.parent)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.check_owned(path.parent)
    keys = (path.parent / name for name in (SIGNING_KEY_FILE, REGISTRY_KEY_FILE))
    was_used = any(key.exists() for key in keys) and not (path.parent / OLD_LEDGER_FILE).exists()
    if was_used and not path.exists():
        raise lost_lines_error(path)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    with open_connection(path) as base:
        base.execute("PRAGMA journal_mode=DELETE")  # no WAL: a cluster's homes are on network disks
        base.execute("PRAGMA synchronous=EXTRA")
        base.execute("BEGIN EXCLUSIVE")
        try:
            if was_used and not base.execute(HAS_LINES_SQL).fetchone():
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
    """Open a connection. SQLite's own error messages are not quoted, since they may contain rows.

    Raises ``OSError`` with its number if the disk is full or broken, ``DamagedError`` for a file
    that is not as it was written, and ``ValueError`` for one that cannot be used.
    """
    for side_file in (path.with_name(path.name + end) for end in ("-journal", "-wal", "-shm")):
        fault = files.why_not_regular(side_file)  # SQLite opens it too, if it exists
        if fault not in ("", files.NO_SUCH_FILE):
            raise ValueError(f"{side_file}: {fault}")
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
    """The exception that stands for SQLite's error of this name."""
    busy_texts = {"SQLITE_BUSY": "is in use by another process", "SQLITE_LOCKED": "is in use"}
    if name == "SQLITE_FULL":
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    kind = "_".join(name.split("_")[:2])
    if kind in ("SQLITE_READONLY", "SQLITE_CANTOPEN") and not (
        os.access(path.parent, os.W_OK) and (os.access(path, os.W_OK) or not path.exists())
    ):
        return OSError(f"odometer: {path.parent} cannot be written")
    if kind in ("SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PROTOCOL"):
        return OSError(errno.EIO, os.strerror(errno.EIO), str(path))
    if kind in busy_texts:
        return OSError(f"odometer: {path.parent} {busy_texts[kind]}")
    return DamagedError(f"odometer: {path.name} is damaged")


def lost_lines_error(path: Path) -> DamagedError:
    """The error to raise if lines of a ledger, or its head, are lost."""
    return DamagedError(
        f"odometer: {path.name} in {path.parent} is damaged, lines or their head are lost, and "
        "what was spent is not known; restore it"
    )


def read_old_ledger(folder: Path) -> list[str]:
    """The lines of a ledger from before 0.3. A last line without a line end was never completely on
    disk and its run never began, so it is left out."""
    try:
        text = files.read_text(folder / OLD_LEDGER_FILE)
    except FileNotFoundError:
        return []
    return text[: text.rfind("\n") + 1].splitlines()


def read_ledger_lines(path: Path) -> list[str]:
    """The lines in the file of an odometer or of the registry.

    Raises ``DamagedError`` if the head of an odometer, or a line at the end, is lost.

    Guarantee:
        Lost lines are never taken for smaller spending. Test:
        ``tests/accounting/test_damaged_ledgers.py::test_a_ledger_that_lost_its_head_is_damaged``.
    """
    if not path.is_file():
        return []
    with open_connection(path) as base:
        base.execute("BEGIN")  # lines and their count from one moment, as others may write
        if not has_lines(base, path):
            return []
        if path.name == LEDGER_FILE and not base.execute("SELECT 1 FROM head").fetchone():
            raise lost_lines_error(path)
        return read_counted_lines(base, path)


def has_lines(base: sqlite3.Connection, path: Path) -> bool:
    """Whether the file of an odometer or of the registry has its tables. A registry of no bytes,
    without its key, was left by a process that died before the first line.

    Raises ``DamagedError`` for any other file without tables.
    """
    if base.execute(HAS_LINES_SQL).fetchone():
        return True
    key = path.parent / REGISTRY_KEY_FILE
    if path.name == LEDGER_FILE or path.stat().st_size or key.exists():
        raise lost_lines_error(path)
    return False


def read_counted_lines(base: sqlite3.Connection, path: Path) -> list[str]:
    """All lines, after a check that none is missing; in a file from crtlib 0.3 that is not
    known."""
    lines = [row[0] for row in base.execute(LINES_SQL)]
    if base.execute(HAS_COUNT_SQL).fetchone():
        counted = base.execute("SELECT lines FROM counted").fetchone()
        if counted is None or counted[0] != len(lines):
            raise lost_lines_error(path)
    return lines


def parse_entries(lines: Iterable[str]) -> list[OdometerEntry]:
    """Parse the lines of a ledger. Raises ``DamagedError`` for a line that is not as it was written
    or not in its place."""
    entries: list[OdometerEntry] = []
    for number, line in enumerate(lines, 1):
        last = entries[-1].entry if entries else None
        try:
            content = json.loads(line)
            is_unchanged = content["entry"] == hash_ledger_line(content)
            is_unchanged &= content["schema"] == ODOMETER_FORMAT
            entry = parse_entry(content)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DamagedError(f"odometer: entry {number} is damaged") from None
        if not is_unchanged:
            raise DamagedError(f"odometer: entry {number} was changed")
        if entry.previous != last:
            raise DamagedError(f"odometer: entry {number} does not follow entry {number - 1}")
        entries.append(entry)
    return entries


def parse_entry(content: Mapping[str, Any]) -> OdometerEntry:
    """Parse the content of a line, in any format that was ever written."""
    values = {f.name: content[f.name] for f in fields(OdometerEntry) if f.name in content}
    if values["events"] is not None:
        values["events"] = tuple(SampledGaussian(**event) for event in values["events"])
    for name in ("void", "assumed", "treated_as_public", "declared"):
        if values.get(name) is not None:
            values[name] = tuple(values[name])
    entry = OdometerEntry(**values)  # fields that older lines lack have defaults
    check_choice("state", entry.state, RUN_STATES)
    check_choice("unit", entry.unit, PRIVACY_UNITS)
    check_whole_number("trials", entry.trials, 1)
    return entry
