"""The odometer: a ledger beside a corpus in which every private training on it is entered.

An odometer is a folder (0700) with one SQLite file (0600) of lines that are added and never
changed, each in a transaction of its own. When a run starts, before its first step, its line
reserves all that it may spend. Another line is added when it is finished, and perhaps one that
strikes it because nobody ever saw its model. Each line holds the hash of the previous one, so that
a lost or changed line is noticed. A run that was started and never finished counts in full.

The same lines go into the user's :class:`Registry`, which recognizes a text by its units: keyed
hashes of its conversations and of its people. So a corpus that was moved, extended or screened
elsewhere brings its earlier runs along, and so do next month's messages from the same people.

>>> from confide.spending import sum_spending
>>> from crtlib.accounting.events import SampledGaussian
>>> import tempfile
>>> folder = Path(tempfile.mkdtemp()) / "talk.jsonl.odometer"
>>> spend = {"unit": "turn", "method": "crt", "relation": "replace", "screening": "5" * 64,
...          "gamma": 0.05, "delta2": 0.01, "holds": {}, "void": ()}
>>> step = SampledGaussian(0.01, 1.0, 100)
>>> first = add_entry(folder, corpus="c" * 64, run="a", state="started", events=(step,), **spend)
>>> second = add_entry(folder, corpus="c" * 64, run="b", state="started", events=(step,), **spend)
>>> before = sum_spending(read_entries(folder), run="b")
>>> before.protected_run_count, [e.steps for e in before.events], before.rates("5" * 64, 0.05, 0.01)
(1, [100], (0.05, 0.01))
>>> before.rates("6" * 64, 0.03, 0.0)  # another screening: either may pass a secret over
(0.08, 0.01)
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confide.odometer_lines import (
    LEDGER_FILE,
    ODOMETER_FORMAT,
    ODOMETER_SUFFIX,
    OLD_LEDGER_FILE,
    OdometerEntry,
    hash_ledger_line,
    lost_lines_error,
    open_connection,
    open_transaction,
    parse_entries,
    parse_entry,
    read_counted_lines,
    read_ledger_lines,
    read_old_ledger,
    refuse_no_folder,
)
from confide.text_registry import Registry
from crtlib import files


def prepare_odometer(
    folder: str | os.PathLike[str], corpus: str, registry: Registry | None = None
) -> None:
    """Make ``folder`` the odometer of a corpus, before its text is trained on. A ledger from before
    version 0.3 is taken over. Several processes may do this at once: one creates the odometer, and
    the others find it.

    Args:
        folder: Where the odometer is, or is to be.
        corpus: The hash of the corpus.
        registry: The registry that is given the lines it lacks, such as those of a folder from
            another machine; None: no registry.

    Raises:
        ValueError: For a broken odometer, or that of another corpus.
        OSError: If it cannot be written.

    Guarantee:
        From now on, other texts from the same people bring in this folder's runs. Tests:
        ``tests/accounting/test_odometer.py::test_a_ledger_of_before_is_read_and_taken_over``,
        ``tests/release/test_text_registry.py::test_runs_of_a_moved_home_are_known_to_other_texts``.
    """
    path = Path(folder) / LEDGER_FILE
    with open_transaction(path) as base:
        head = base.execute("SELECT corpus FROM head").fetchone()
        if head is None:
            if read_counted_lines(base, path):
                raise lost_lines_error(path)
            old_lines = read_old_ledger(path.parent)
            check_odometer_corpus(path.parent, parse_entries(old_lines), corpus)
            base.execute("INSERT INTO head VALUES (?)", (corpus,))
            base.executemany("INSERT INTO lines (content) VALUES (?)", [(x,) for x in old_lines])
        elif head[0] != corpus:
            _refuse_other_corpus(path.parent, head[0], corpus)
        if registry is not None:
            lines = parse_entries(read_counted_lines(base, path))
            _enter_in_registry(lines, corpus, registry)
    with contextlib.suppress(FileNotFoundError):
        os.replace(path.parent / OLD_LEDGER_FILE, path.parent / f"{OLD_LEDGER_FILE}.imported")


def _enter_in_registry(lines: Sequence[OdometerEntry], corpus: str, registry: Registry) -> None:
    """Add to the registry those lines of a corpus's odometer that it lacks."""
    registered_lines = [_shared_fields(e) for e in registry.entries() if e.corpus == corpus]
    for line in map(_shared_fields, lines):
        if line in registered_lines:
            registered_lines.remove(line)
        else:
            _append_line(registry.path, line)


def enter_other_odometers(folders: Sequence[Path], corpus: str, registry: Registry) -> None:
    """Add to the registry the lines of a corpus's other odometers, such as a backup or one from a
    branch: what was spent is the sum over all of them. Nothing is written to them.

    Raises ``ValueError``, with its name, for one that is broken.

    Guarantee:
        If several odometers of a text are beside it, the runs of all of them count. Test:
        ``tests/accounting/test_odometer.py::test_all_odometers_of_a_text_beside_it_count``.
    """
    for folder in folders:
        try:
            lines = read_entries(folder)
        except ValueError as error:
            reason = str(error).removeprefix("odometer: ")
            raise ValueError(
                f"odometer: {folder} is for this text, too, and cannot be read ({reason}); what it "
                "lists is not known: restore it, or move it away if its runs are listed elsewhere"
            ) from None
        _enter_in_registry(lines, corpus, registry)


def read_entries(folder: str | os.PathLike[str]) -> list[OdometerEntry]:
    """All lines of an odometer, oldest first.

    Raises ``ValueError`` if it is missing, or a line was lost, damaged or changed, because then
    nobody knows what was spent.
    """
    home = Path(folder)
    if (home / LEDGER_FILE).is_file():
        entries = parse_entries(read_ledger_lines(home / LEDGER_FILE))
        check_odometer_corpus(home, entries, read_corpus_hash(home) or "none")
        return entries
    if not (home / OLD_LEDGER_FILE).is_file():
        refuse_no_folder(home)
        raise ValueError(f"odometer: {folder} holds no {LEDGER_FILE}")
    return parse_entries(read_old_ledger(home))


def add_entry(
    folder: str | os.PathLike[str], *, registry: Registry | None = None, **values: Any
) -> OdometerEntry:
    """Add a line and flush it to disk, first in the ``registry`` and then in the ``folder``.

    Args:
        folder: The odometer; created if it does not exist.
        registry: The registry through which other texts find the line; None: no registry.
        values: The fields of :class:`OdometerEntry` other than its hashes and its time.

    Returns:
        The line as it was written.

    Raises:
        ValueError: For a broken odometer, or that of another corpus.
        OSError: If it cannot be written.

    Guarantee:
        The line is on disk when this returns, no earlier line is lost, and later texts from the
        same people bring it in. Tests:
        ``tests/accounting/test_odometer.py::test_a_line_is_on_disk_before_training_goes_on``,
        ``tests/accounting/test_odometer.py::test_a_line_that_is_lost_or_changed_shows``,
        ``tests/accounting/test_odometer.py::
        test_next_months_messages_of_the_same_people_bring_their_runs``.
    """
    folder = Path(folder)
    prepare_odometer(folder, values["corpus"], registry)
    if registry is not None:
        _append_line(registry.path, values)
    return _append_line(folder / LEDGER_FILE, values)


def _append_line(path: Path, values: Mapping[str, Any]) -> OdometerEntry:
    with open_transaction(path) as base:
        entries = parse_entries(read_counted_lines(base, path))
        previous = entries[-1].entry if entries else None
        written_at = datetime.now(UTC).isoformat(timespec="seconds")
        content = asdict(OdometerEntry(entry="", previous=previous, time=written_at, **values))
        content["schema"] = ODOMETER_FORMAT
        content["entry"] = hash_ledger_line(content)
        entry = parse_entry(content)  # refuses what could not be read back
        line = json.dumps(content, sort_keys=True, allow_nan=False)
        base.execute("INSERT INTO lines (content) VALUES (?)", (line,))
    return entry


def add_later_entry(
    folder: str | os.PathLike[str],
    entry: OdometerEntry,
    *,
    registry: Registry | None = None,
    **changes: Any,
) -> OdometerEntry:
    """Add a further line for the run of ``entry``: finished, struck, or started again."""
    return add_entry(folder, registry=registry, **(_shared_fields(entry) | changes))


def _shared_fields(entry: OdometerEntry) -> dict[str, Any]:
    """The fields that a further line of the same run takes over."""
    own_fields = ("entry", "previous", "time")
    names = [field.name for field in fields(OdometerEntry)]
    return {name: getattr(entry, name) for name in names if name not in own_fields}


def strike_run(
    folder: str | os.PathLike[str], entry: str, *, because: str, registry: Registry | None = None
) -> OdometerEntry:
    """Strike a run because nobody ever saw its model.

    Args:
        folder: The odometer.
        entry: The beginning of the hash of one of the run's lines.
        because: The reason. The odometer keeps it, so that it can be asked for later.
        registry: The registry through which other texts find the line; None: no registry.

    Returns:
        The line that strikes the run.

    Raises:
        ValueError: If the lines that begin so are not those of exactly one run, or if no reason is
            given.

    Guarantee:
        The run no longer counts, unless a run that counts started from its model. Later
        certificates mention that a run was struck. This takes a reason. Tests:
        ``tests/accounting/test_odometer.py::test_a_run_is_struck_with_a_reason_only``,
        ``tests/release/test_withdrawn_runs.py::test_a_struck_run_is_named``.
    """
    if not because.strip():
        raise ValueError("because='': must state why nobody ever saw the model")
    runs = {e.run: e for e in read_entries(folder) if e.entry.startswith(entry)}
    if len(runs) != 1 or not entry:
        raise ValueError(
            f"entry={entry!r}: must be the start of one entry's hash, not of {len(runs)}"
        )
    (line,) = runs.values()
    return add_later_entry(folder, line, registry=registry, state="struck", because=because.strip())


def find_odometer(corpus: str | os.PathLike[str], sha: str) -> Path:
    """The odometer, beside ``corpus``, of the corpus with this hash: if there are several, the one
    named after ``corpus``, or else the first; if there is none, the folder that it would be in. An
    odometer without any line may be used for any corpus."""
    if odometers := find_odometers(corpus, sha):
        return odometers[0]
    own_odometer = _own_odometer(corpus)  # of another text, if the file has changed since
    has_old_ledger = (own_odometer / OLD_LEDGER_FILE).exists()
    if read_corpus_hash(own_odometer) in (None, sha) and not has_old_ledger:
        return own_odometer
    return own_odometer.with_name(f"{Path(corpus).resolve().name}-{sha[:8]}{ODOMETER_SUFFIX}")


def find_odometers(corpus: str | os.PathLike[str], sha: str) -> list[Path]:
    """All odometers beside ``corpus`` of the corpus with this hash; the one named after ``corpus``
    is first."""
    own_odometer = _own_odometer(corpus)
    folders = own_odometer.parent.glob(f"*{ODOMETER_SUFFIX}")
    own_first = sorted(folders, key=lambda path: (path != own_odometer, path))
    return [folder for folder in own_first if read_corpus_hash(folder) == sha]


def _own_odometer(corpus: str | os.PathLike[str]) -> Path:
    """The odometer folder beside a corpus that is named after it."""
    path = Path(corpus).resolve()
    return path.with_name(path.name + ODOMETER_SUFFIX)


def read_corpus_hash(folder: Path) -> str | None:
    """The hash of an odometer's corpus, even if its lines are broken."""
    if (folder / LEDGER_FILE).is_file():
        with (
            contextlib.suppress(ValueError, OSError, sqlite3.Error),
            open_connection(folder / LEDGER_FILE) as base,
        ):
            row = base.execute("SELECT corpus FROM head").fetchone()
            return row and str(row[0])
        return None
    try:
        with files.check_regular_file(folder / OLD_LEDGER_FILE).open(encoding="utf-8") as file:
            return str(json.loads(file.readline())["corpus"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def check_odometer_corpus(folder: Path, entries: Sequence[OdometerEntry], corpus: str) -> None:
    """Refuse the odometer of another corpus."""
    if entries and entries[0].corpus != corpus:
        _refuse_other_corpus(folder, entries[0].corpus, corpus)


def _refuse_other_corpus(folder: Path, odometer_corpus: str, given_corpus: str) -> None:
    hashes = f"of corpus {odometer_corpus[:8]}…, this is {given_corpus[:8]}…"
    raise ValueError(f"odometer: {folder} is {hashes}")
