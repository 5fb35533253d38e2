"""A user's registry, which recognizes a text that it knows under any name."""

from __future__ import annotations

import hmac
import os
import secrets
import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from confide.odometer_lines import (
    ENTERED_FORM_SQL,
    HAS_LINES_SQL,
    LEAST_SHARE,
    LEAST_SHARED_MESSAGES,
    OWNERSHIP_KINDS,
    REGISTRY_KEY_FILE,
    RELATED_TEXTS_SQL,
    TEXT_OF_CORPUS_SQL,
    OdometerEntry,
    has_lines,
    open_connection,
    open_transaction,
    parse_entries,
    read_ledger_lines,
)
from confide.text import registry_units
from crtlib import files
from crtlib.checks import DamagedError
from crtlib.files import StrPath
from crtlib.text import corpora
from crtlib.text.identity import hash_text
from crtlib.text.screened_folder import is_screened_folder

UNITS_VERSION = 3
"""The version of the units that :func:`confide.text.registry_units.hash_registry_units` makes. A
text that was entered with another version is entered again when it is next read."""

MARK_OF_KEY_SQL = "SELECT unit FROM known WHERE text = 0 AND kind = 'key'"
MARK_OF_FILE_SQL = "SELECT 1 FROM known WHERE text = 0 AND unit = CAST(? AS BLOB)"
ENTER_MARK_SQL = "INSERT OR IGNORE INTO known VALUES (?, 0, ?)"
"""Marks of the registry itself are stored among the units of texts, under text number 0."""


# --------------------------------------------------------------------------- the registry
def registry_folder() -> Path:
    """The folder of this user's registry: ``$CRTLIB_REGISTRY``, or one in the system's data
    folder."""
    data_folder = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    place = Path(os.environ.get("CRTLIB_REGISTRY") or Path(data_folder) / "crtlib" / "registry")
    if not place.is_absolute():  # otherwise each working folder would have one of its own
        raise ValueError(f"CRTLIB_REGISTRY={str(place)!r}: must be an absolute path")
    return place


def register_text(corpus_path: str | os.PathLike[str]) -> str:
    """Enter a text in the user's registry, so that it is recognized later.

    Args:
        corpus_path: A file or folder: a text as it is, or a screened one.

    Returns:
        The SHA-256 of the text.

    Raises:
        ValueError: For something that is not a corpus.
        DamagedError: For a registry that is lost or broken.

    Guarantee:
        A screened folder is also recognized by what is left of its text, even if the text itself
        was entered before. Test: ``tests/release/test_text_registry.py::
        test_what_screening_left_is_known_though_the_text_was_entered_before``.
    """
    sha = corpora.hash_corpus(corpus_path)
    form = corpora.hash_text_as_read(corpus_path) if is_screened_folder(corpus_path) else sha
    units = registry_units.hash_registry_units(corpus_path)
    Registry(registry_folder()).register(sha, units, form=form)
    return sha


def count_shared_units(corpus_path: StrPath, other_path: StrPath) -> Counter[str]:
    """Count the units that two texts share: conversations ("talk"), people ("user"), messages and
    so on, for each kind by which a registry would relate them
    (:meth:`Registry.find_related_texts`). "words" counts the conversations of the other
    text that also occur in the first, whoever speaks, if these are more than half. Empty if nothing
    is shared.

    Guarantee:
        Two texts that a registry takes for related share something here, and so does a text with
        more than half of another's conversations, however short they are. Test:
        ``tests/release/test_text_registry.py::test_two_texts_share_what_makes_them_related``.
    """
    theirs = set(registry_units.hash_registry_units(other_path))
    our_counts, shared_counts = Counter[str](), Counter[str]()
    for unit in set(registry_units.hash_registry_units(corpus_path)):
        our_counts[unit[0]] += 1
        shared_counts[unit[0]] += unit in theirs
    their_counts = Counter(kind for kind, _ in theirs)
    fewer = {kind: min(our_counts[kind], count) for kind, count in their_counts.items()}
    shared = Counter({
        kind: count
        for kind, count in shared_counts.items()
        if kind not in OWNERSHIP_KINDS and count and _share_enough_units(kind, count, fewer[kind])
    })  # fmt: skip
    said_there = set(registry_units.hash_conversations(other_path))
    said_in_both = len(said_there.intersection(registry_units.hash_conversations(corpus_path)))
    return shared + Counter(words=said_in_both if 2 * said_in_both > len(said_there) else 0)


def _share_enough_units(kind: str, shared: int, fewer: int) -> bool:
    """Whether sharing ``shared`` units of a kind relates two texts, where the text with fewer units
    of that kind has ``fewer`` of them."""
    share = LEAST_SHARE.get(kind)
    return share is None or shared >= max(LEAST_SHARED_MESSAGES, share * fewer)


@dataclass(frozen=True)
class Registry:
    """All runs of a user and the texts they read, each known by keyed hashes of its conversations
    and people, of 16 bytes each. The folder and the key are private."""

    folder: Path

    @property
    def path(self) -> Path:
        """The file that holds the lines."""
        return self.folder / "registry.sqlite"

    def register(
        self, corpus_sha256: str, units: Iterable[tuple[str, str]] = (), *, form: str | None = None
    ) -> None:
        """Enter the corpus with this hash by its ``units``, pairs of a kind and a content. They are
        not read if the corpus was entered in this ``form`` before. A form is the hash of what is
        read; for a screened folder it is not that of the original text."""
        if not (self.folder / REGISTRY_KEY_FILE).exists():
            with open_transaction(self.path):  # a key must not exist without its ledger
                pass
        with open_transaction(self.path) as base:
            row = base.execute(
                "SELECT text FROM texts WHERE corpus = ?", (corpus_sha256,)
            ).fetchone()
            key = self._key(base)
            entered = "entered", f"{UNITS_VERSION} {form or corpus_sha256}"
            mark = self._hash_unit(key, *entered)
            if row and base.execute(ENTERED_FORM_SQL, (*row, mark)).fetchone():
                return  # else it is new, or an older crtlib entered fewer units
            if row is None:
                base.execute("INSERT INTO texts (corpus) VALUES (?)", (corpus_sha256,))
                row = base.execute(
                    "SELECT text FROM texts WHERE corpus = ?", (corpus_sha256,)
                ).fetchone()
            known = (
                (self._hash_unit(key, kind, content), row[0], kind)
                for kind, content in chain(units, [entered])
            )
            base.executemany("INSERT OR IGNORE INTO known VALUES (?, ?, ?)", known)

    @staticmethod
    def _hash_unit(key: bytes, kind: str, content: str) -> bytes:
        return hmac.digest(key, f"{kind}:{content}".encode(), "sha256")[:16]

    def _key(self, base: sqlite3.Connection) -> bytes:
        """The key of the hashes; it is made inside the exclusive transaction of the first text.

        Raises:
            DamagedError: If hashes were made with another key, or with one that is lost.

        Guarantee:
            No known text is taken for a new one because the key is gone. Test:
            ``tests/release/test_text_registry.py::test_a_lost_part_of_the_registry_is_no_new_one``.
        """
        path = self.folder / REGISTRY_KEY_FILE
        mark = base.execute(MARK_OF_KEY_SQL).fetchone()
        if not path.exists():
            if mark or base.execute("SELECT 1 FROM known WHERE text > 0").fetchone():
                raise self.lost(path.name)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(32))
                file.flush()
                os.fsync(file.fileno())
        files.check_private_key(path)
        key = files.read_bytes(path)
        ours = self._hash_unit(key, "key", "")
        if mark is None:
            base.execute(ENTER_MARK_SQL, (ours, "key"))
        elif mark[0] != ours:
            raise self.lost(path.name)
        return key

    def lost(self, name: str) -> DamagedError:
        """The error that says that the file ``name`` is lost, or is not the one made here."""
        return DamagedError(
            f"registry: {name} in {self.folder} is lost, or of another registry, so what it knew "
            "is not known again; restore it"
        )

    def has_made(self, name: str) -> bool:
        """Whether the registry's further file ``name`` was ever made; if missing, it is lost."""
        if not self.path.is_file():
            return False
        with open_connection(self.path) as base:
            tables = base.execute(HAS_LINES_SQL).fetchone()
            return bool(tables and base.execute(MARK_OF_FILE_SQL, (name,)).fetchone())

    def note_made(self, name: str) -> None:
        """Note that the file ``name`` was made beside the registry."""
        with open_transaction(self.path) as base:
            base.execute(ENTER_MARK_SQL, (name.encode(), "file"))

    def knows_person(self, name: str) -> bool:
        """Whether a known text has a person of this name, as texts name people
        (:func:`crtlib.text.identity.normalise_unit_name`)."""
        if not self.path.is_file():
            return False
        with open_transaction(self.path) as base:
            unit = self._hash_unit(self._key(base), "user", hash_text(name))
            row = base.execute("SELECT 1 FROM known WHERE unit = ?", (unit,)).fetchone()
        return row is not None

    def forget(self, corpus_sha256: str) -> None:
        """Forget whose text the corpus with this hash was. The lines of its runs stay, and each
        later training states that it may have followed them (:meth:`count_forgotten_texts`)."""
        with open_transaction(self.path) as base:
            base.execute("PRAGMA secure_delete=ON")
            for table in ("known", "texts"):
                base.execute(
                    f"DELETE FROM {table} WHERE text IN {TEXT_OF_CORPUS_SQL}", (corpus_sha256,)
                )

    def count_forgotten_texts(self, corpus_sha256: str) -> int:
        """How many other corpora have runs here although it was forgotten whose text they are."""
        known = {corpus_sha256}
        if self.path.is_file():
            with open_connection(self.path) as base:
                if has_lines(base, self.path):
                    known |= {row[0] for row in base.execute("SELECT corpus FROM texts")}
        return len({e.corpus for e in self.entries()} - known)

    def find_related_texts(self, corpus_sha256: str) -> dict[str, Counter[str]]:
        """The hashes of this corpus and of all that share a conversation, a person or messages with
        it; for each, how many units of each kind are shared."""
        shared: dict[str, Counter[str]] = {corpus_sha256: Counter()}
        if self.path.is_file():
            with open_connection(self.path) as base:
                known = has_lines(base, self.path)
                rows = base.execute(RELATED_TEXTS_SQL, (corpus_sha256,)) if known else ()
                for text, kind, shared_units, fewer in rows:
                    owned = kind in OWNERSHIP_KINDS
                    if text in shared if owned else _share_enough_units(kind, shared_units, fewer):
                        shared.setdefault(text, Counter())[kind] = shared_units
        return shared

    def count_other_reports(
        self, corpus_sha256: str, model: str, report: str, *, enter: bool = False
    ) -> int:
        """How many other reports there are on a model and a text, or a related one.

        Args:
            corpus_sha256: The hash of the text.
            model: The hash of the numbers in the model.
            report: The hash of the report that is not another one.
            enter: Also enter this report, since it is being written.
        """
        related = self.find_related_texts(corpus_sha256)
        with open_transaction(self.path) as base:
            rows = base.execute("SELECT text, name FROM reports WHERE model = ?", (model,))
            known = {row[0] for row in base.execute("SELECT corpus FROM texts")}
            others = {name for text, name in rows if text in related or text not in known}
            others -= {report}  # a forgotten text may be related
            if enter:
                line = corpus_sha256, model, report
                base.execute("INSERT OR IGNORE INTO reports VALUES (?, ?, ?)", line)
        return len(others)

    def entries(self) -> list[OdometerEntry]:
        """All lines, for all texts."""
        return parse_entries(read_ledger_lines(self.path))
