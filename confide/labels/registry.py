"""The user's registry of labels: which turns were drawn and read for which corpus."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confide import text_registry
from confide.labels.label_tasks import (
    LABEL_TEMPLATES,
    SECONDS_PER_TURN,
    read_label_facts,
    read_tasks,
)
from confide.odometer_lines import open_connection
from crtlib import files, intervals
from crtlib.screening.rate_values import RATES_ALPHA
from crtlib.text.identity import hash_text, hash_turn_text
from crtlib.text.package_data import fill_page

# The registry's tables about labels. Sets drawn with one seed, and copies of a folder, are one set.
LABEL_TABLES_SQL = """
CREATE TABLE IF NOT EXISTS drawn (task TEXT, labels TEXT, n INT, PRIMARY KEY (task, labels));
CREATE TABLE IF NOT EXISTS asked (person TEXT, labels TEXT, PRIMARY KEY (person, labels));
CREATE TABLE IF NOT EXISTS sealed (policy TEXT PRIMARY KEY, n INT);
CREATE TABLE IF NOT EXISTS readings (n INTEGER PRIMARY KEY, labels TEXT, reading TEXT,
 UNIQUE (labels, reading));
CREATE TABLE IF NOT EXISTS judged (labels TEXT, pi TEXT, pi_c TEXT, corpus TEXT,
 UNIQUE (labels, pi, pi_c, corpus));
CREATE TABLE IF NOT EXISTS marks_of_turns (labels TEXT, role TEXT, task TEXT, turn TEXT,
 marked TEXT, UNIQUE (labels, role, task, marked));
CREATE INDEX IF NOT EXISTS by_turn ON marks_of_turns (turn, role);
CREATE TABLE IF NOT EXISTS replaced (labels TEXT, reading TEXT, UNIQUE (labels, reading));
"""

HAS_DRAWN_SQL = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'drawn'"
LAST_READING_SQL = "SELECT reading FROM readings WHERE labels = ? ORDER BY n DESC LIMIT 1"

OTHERWISE_READ_SQL = """
SELECT count(*) FROM
 (SELECT a.task FROM marks_of_turns a JOIN marks_of_turns b USING (labels, role, task)
  WHERE labels = ?1 AND a.marked != b.marked
  UNION SELECT a.task FROM marks_of_turns a JOIN marks_of_turns b USING (turn, role)
  WHERE a.labels = ?1 AND b.labels != ?1 AND a.marked != b.marked)
"""

REPLACED_READINGS_SQL = """
SELECT count(*) FROM replaced r WHERE labels IN (SELECT value FROM json_each(?)) AND NOT EXISTS
 (SELECT 1 FROM judged j WHERE j.labels = r.labels AND j.pi LIKE '% by ' || r.reading)
"""

OTHER_SETS_SQL = """
SELECT count(DISTINCT labels) FROM judged
 WHERE corpus IN (SELECT value FROM json_each(?1)) AND labels != ?2
"""

SETS_OF_CORPUS_SQL = "labels IN (SELECT labels FROM judged WHERE corpus = ?)"
FORGOTTEN_SQL = f"'forgotten ' || hex(randomblob(16)) WHERE {SETS_OF_CORPUS_SQL}"
HAS_FORGOTTEN_SQL = f"SELECT 1 FROM drawn WHERE task LIKE 'forgotten %' AND {SETS_OF_CORPUS_SQL}"

ASKED_PEOPLE_SQL = """
SELECT person, min(n) FROM asked JOIN (SELECT labels, min(n) AS n FROM drawn GROUP BY labels)
 USING (labels) GROUP BY person
"""

JUDGED_PAIRS_SQL = """
WITH texts AS (SELECT value FROM json_each(?1)),
 judging AS (SELECT labels FROM judged WHERE corpus IN texts UNION SELECT ?2)
SELECT DISTINCT labels, pi, pi_c FROM judged WHERE corpus IN texts OR labels IN
 (SELECT a.labels FROM drawn a JOIN drawn b USING (task) WHERE b.labels IN judging)
"""


@contextlib.contextmanager
def open_label_registry(
    facts: dict[str, Any], drawn: Iterable[str], asked: Iterable[str] = ()
) -> Iterator[sqlite3.Connection]:
    """Open the registry of labels, and enter this set if it is new: first the policies that its
    facts list as sealed, then the turns that were ``drawn``, by the hash of their text, and the
    people whose turns were drawn or chosen from (``asked``, by :func:`hash_asked_people`).

    Raises:
        DamagedError: If there was a registry and it is lost, so what was drawn and judged is
            unknown.

    Guarantee:
        A lost registry of labels is never taken for a new one. Test:
        ``tests/release/test_text_registry.py::test_a_lost_part_of_the_registry_is_no_new_one``.
    """
    path = text_registry.registry_folder() / "labels.sqlite"
    registry = text_registry.Registry(path.parent)
    was_made = registry.has_made(path.name)  # first: another process may be making it
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.check_owned(path.parent)
    if not path.exists() and was_made:  # and nothing is created through a dangling link
        raise registry.lost(path.name)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    with open_connection(path) as base:
        if was_made and not base.execute(HAS_DRAWN_SQL).fetchone():
            raise registry.lost(path.name)
        base.executescript(f"BEGIN EXCLUSIVE;{LABEL_TABLES_SQL}")
        entered = base.execute("SELECT 1 FROM drawn WHERE labels = ?", (facts["labels"],))
        if not entered.fetchone():
            (n,) = base.execute("SELECT count(*) FROM drawn").fetchone()  # grows with each set
            seals = ((policy, n) for policy in facts.get("sealed", ()))
            base.executemany("INSERT OR IGNORE INTO sealed VALUES (?, ?)", seals)
            turns = ((t, facts["labels"], n + 1) for t in drawn)
            base.executemany("INSERT OR IGNORE INTO drawn VALUES (?, ?, ?)", turns)
            people = ((person, facts["labels"]) for person in asked)
            base.executemany("INSERT OR IGNORE INTO asked VALUES (?, ?)", people)
        yield base
        base.execute("COMMIT")  # without it, closing the connection undoes all
    if not was_made:
        registry.note_made(path.name)


def register_judged_pairs(
    facts: dict[str, Any],
    corpus_sha256: str,
    rows: Iterable[Sequence[str]] = (),
    drawn: Iterable[str] = (),
) -> int:
    """Note in the registry which pairs of policies some labels judge, and count all so far.

    Args:
        facts: The facts of the labels.
        corpus_sha256: The hash of the text on which they judge the pairs.
        rows: The pairs, each policy by its hash.
        drawn: The hashes of the turns of these labels.

    Returns:
        How many pairs have been judged so far: by these labels, by others that share a turn with
        them, and by all sets for this corpus or for one with the same conversations, people or
        messages (:meth:`confide.text_registry.Registry.find_related_texts`). Whoever draws many
        sets could choose among them, so a set that was drawn (:func:`register_draw`) and judges
        nothing counts as one pair. So does a reading that was imported and replaced
        (:func:`register_marks`).

    Raises:
        DamagedError: As for :func:`open_label_registry`.

    Guarantee:
        A text is the same if only its ids and the names of its people differ. Test:
        ``tests/release/test_text_registry.py::test_draws_from_one_text_under_other_names_count``.
    """
    texts = text_registry.Registry(text_registry.registry_folder()).find_related_texts(
        corpus_sha256
    )
    with open_label_registry(facts, drawn) as base:
        judged_rows = [(facts["labels"], *row, corpus_sha256) for row in rows]
        base.executemany("INSERT OR IGNORE INTO judged VALUES (?, ?, ?, ?)", judged_rows)
        parameters = json.dumps([*texts]), facts["labels"]
        judged_pairs = base.execute(JUDGED_PAIRS_SQL, parameters).fetchall()
        sets = json.dumps([*{name for name, *_ in judged_pairs} | {facts["labels"]}])
        (replaced,) = base.execute(REPLACED_READINGS_SQL, (sets,)).fetchone()
    judging = {name for name, pi, _ in judged_pairs if pi} | {facts["labels"]}
    return sum(bool(pi) or name not in judging for name, pi, _ in judged_pairs) + int(replaced)


def hash_asked_people(corpus_sha256: str, user: str, dialogue_id: str) -> list[str]:
    """The hashes that are kept of whose turn was drawn: that of the person, if one is named, and
    that of the conversation. They match only within the text whose hash is ``corpus_sha256``."""
    names = [f"{corpus_sha256}\x1fthread\x1f{dialogue_id}"]
    if user:
        names.insert(0, f"{corpus_sha256}\x1fuser\x1f{user}")
    return list(map(hash_text, names))


def register_draw(
    facts: dict[str, Any], corpus_sha256: str, drawn: Iterable[str], asked: Iterable[str] = ()
) -> None:
    """Note in the registry that the turns ``drawn`` from a corpus can be read from now on, and
    whose they are (``asked``). The set counts as one judgement even if its labels are never
    imported: whoever has seen several pages could import the kindest.

    Guarantee:
        Every set for a text counts from the moment its page is written; a set that is drawn again
        with the same seed and options is the same one. Test:
        ``tests/release/test_drawn_turns.py::test_each_set_counts_from_when_its_page_is_written``.
    """
    with open_label_registry(facts, drawn, asked) as base:
        line = (facts["labels"], "", "", corpus_sha256)
        base.execute("INSERT OR IGNORE INTO judged VALUES (?, ?, ?, ?)", line)


def forget_draws(corpus_sha256: str) -> None:
    """Forget which turns of a corpus were drawn and whose they are. It stays known that sets were
    drawn, when, and what they judged: they count as before, and as read before any seal.

    Guarantee:
        No hash of a message or of a person's name remains for a text that is forgotten. Test:
        ``tests/release/test_withdrawn_runs.py::test_who_forgets_a_text_forgets_its_drawn_turns``.
    """
    path = text_registry.registry_folder() / "labels.sqlite"
    if not path.is_file():
        return
    with open_connection(path) as base:
        if not base.execute(HAS_DRAWN_SQL).fetchone():  # it is lost, as the next draw will report
            return
        base.executescript(f"PRAGMA secure_delete = ON; BEGIN EXCLUSIVE;{LABEL_TABLES_SQL}")
        for column, table in (
            ("task", "drawn"), ("person", "asked"), ("turn", "marks_of_turns")
        ):  # fmt: skip
            base.execute(f"UPDATE {table} SET {column} = {FORGOTTEN_SQL}", (corpus_sha256,))
        base.execute("COMMIT")


def has_forgotten_draws(corpus_sha256: str) -> bool:
    """Whether turns of a corpus were drawn and it was forgotten which they were."""
    path = text_registry.registry_folder() / "labels.sqlite"
    if not path.is_file():
        return False
    with open_connection(path) as base:
        has_drawn = base.execute(HAS_DRAWN_SQL).fetchone()
        return bool(has_drawn and base.execute(HAS_FORGOTTEN_SQL, (corpus_sha256,)).fetchone())


def count_other_sets(labels: str, corpus_sha256: str) -> int:
    """How many other sets of labels the registry has for this corpus or a related one; somebody who
    was left out of one set may have been read for another."""
    texts = text_registry.Registry(text_registry.registry_folder()).find_related_texts(
        corpus_sha256
    )
    with open_label_registry({"labels": labels}, ()) as base:
        (count,) = base.execute(OTHER_SETS_SQL, (json.dumps([*texts]), labels)).fetchone()
    return int(count)


def register_reading(labels: str, reading: str, *, is_last: bool = True) -> None:
    """Note in the registry what readers marked in a set of labels, by its hash.

    Args:
        labels: The set.
        reading: The hash of what its readers marked.
        is_last: True: the reading was just imported, so it is the last one, even if it was an
            earlier one before. False: note it only if it is unknown, as if an older crtlib imported
            it.
    """
    conflict = "REPLACE" if is_last else "IGNORE"
    with open_label_registry({"labels": labels}, ()) as base:
        base.execute(f"INSERT OR {conflict} INTO readings (labels, reading) VALUES (?, ?)",
                     (labels, reading))  # fmt: skip


def register_marks(
    labels: str, role: str, turns: Mapping[str, str], marked: Mapping[str, str]
) -> None:
    """Note in the registry what was marked in turns of a set of labels, before the reading that the
    marks belong to is noted (:func:`register_reading`). If the same role's marks on one of these
    turns were imported before and differ, the last reading counts as replaced.

    Args:
        labels: The set.
        role: The reader's role; whoever reads what the first left unread has the first one's.
        turns: For each task, the hash of its text (:func:`crtlib.text.identity.hash_turn_text`).
        marked: For each task that was read, the hash of the places that were marked.

    Guarantee:
        If a kinder reading is imported in place of another, both are known, whatever the folder,
        and whichever set of labels with the same turns they were for. Test:
        ``tests/release/test_counted_judgements.py::
        test_a_reading_that_was_replaced_is_said_and_counts``.
    """
    with open_label_registry({"labels": labels}, ()) as base:
        known_marks_sql = "SELECT task, marked FROM marks_of_turns WHERE (labels, role) = (?, ?)"
        earlier_marks = base.execute(known_marks_sql, (labels, role)).fetchall()
        last = base.execute(LAST_READING_SQL, (labels,)).fetchone()
        if last and any(marked.get(task, mark) != mark for task, mark in earlier_marks):
            base.execute("INSERT OR IGNORE INTO replaced VALUES (?, ?)", (labels, *last))
        rows = ((labels, role, task, turns[task], mark) for task, mark in marked.items())
        base.executemany("INSERT OR IGNORE INTO marks_of_turns VALUES (?, ?, ?, ?, ?)", rows)


def count_replaced_turns(labels: str) -> int:
    """For how many turns of a set of labels another reading by the same role was imported with
    other marks, in this set or in another one with the same words (:func:`register_marks`). That
    reading is in no count."""
    with open_label_registry({"labels": labels}, ()) as base:
        (count,) = base.execute(OTHERWISE_READ_SQL, (labels,)).fetchone()
    return int(count)


def were_read_since(labels: str, reading: str | None) -> bool:
    """Whether another reading of the labels was imported after this ``reading``, a hash, was last
    imported: a second reader found more, or the first one's marks were corrected or reverted. None
    stands for a reading that is not known here.

    Guarantee:
        Bounds are for the last reading that was imported. Tests:
        ``tests/release/test_drawn_turns.py::test_labels_that_were_read_again_bound_nothing``,
        ``tests/release/test_drawn_turns.py::test_a_reading_that_is_brought_back_is_the_last``.
    """
    with open_label_registry({"labels": labels}, ()) as base:
        last = base.execute(LAST_READING_SQL, (labels,)).fetchone()
    return last is not None and last[0] != reading


def refuse_earlier_reading(labels: str | None, reading: str | None) -> None:
    """Raise ``ValueError`` if labels were read again after this reading of them."""
    if labels is not None and were_read_since(labels, reading):
        raise ValueError(
            "labels: were read again since (crtlib label import); screen again with their last "
            "reading"
        )


@dataclass(frozen=True)
class ReadBeforeSeal:
    """What somebody may have read before some policies were sealed. ``tasks``: the tasks in a
    folder whose words were in an earlier set of labels, with any seed and in any folder.
    ``people``, by :func:`hash_asked_people`: those whose turns were in an earlier set for the same
    text."""

    tasks: frozenset[str] = field(repr=False)
    people: frozenset[str] = field(repr=False)


def read_before_seal(folder: str | os.PathLike, policies: Sequence[str]) -> ReadBeforeSeal:
    """What was drawn before all of these ``policies`` (hashes) were sealed."""
    tasks = read_tasks(folder)
    with open_label_registry(
        read_label_facts(folder), [hash_turn_text(t.text) for t in tasks]
    ) as base:
        sealed = dict(base.execute("SELECT policy, n FROM sealed"))
        first = dict(base.execute("SELECT task, min(n) FROM drawn GROUP BY task"))
        people = base.execute(ASKED_PEOPLE_SQL).fetchall()
    last = max((sealed.get(policy, math.inf) for policy in policies), default=-1)
    return ReadBeforeSeal(  # a forgotten turn may have been drawn at any time
        frozenset(t.task for t in tasks if first.get(hash_turn_text(t.text), 0) <= last),
        frozenset(person for person, n in people if n <= last),
    )


def format_drawn_summary(summary: Mapping[str, Any]) -> str:
    """The text that ``crtlib label sample`` prints."""
    total = summary["judge"] + summary["teach"]
    expected = summary["judge"] * summary["rate"]
    n = max(1, min(summary["secrets"], round(expected)))
    confidence = 1 - RATES_ALPHA / (2 * summary["policy_pairs"])
    bounds = {
        x: intervals.at_most(100 * intervals.clopper_pearson_upper(x, n, confidence=confidence), 3)
        for x in (0, 3, 10, 30)
        if x <= n
    }
    has_too_few = total >= summary["users"] and expected < 0.9 * summary["secrets"]
    hours = total * SECONDS_PER_TURN / 3600
    noun = "users" if summary["by"] == "user" else "conversations"
    return fill_page(
        "drawn.txt",
        LABEL_TEMPLATES,
        **summary,
        n=n,
        who=noun,
        hours=hours,
        bounds=bounds,
        confidence=100 * confidence,
        few=has_too_few,
        expected=expected,
    )
