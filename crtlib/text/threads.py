"""Messages in any order, put together as threads: on disk, so that memory stays bounded.

>>> import pathlib, tempfile
>>> with Threads(pathlib.Path(tempfile.mkdtemp()) / "t.sqlite") as threads:
...     for user, text in (("ann", "a"), ("bob", "b"), ("ann", "c")):
...         threads.put([Message("t", user, "USR", text)])
...     [(row["id"], [turn["text"] for turn in row["turns"]]) for row in threads.rows()]
[('t', ['a', 'c']), ('t~2', ['b'])]
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BATCH = 10_000
_JSON = json.JSONEncoder(default=str).encode  # one for all: to make one takes longer than to use it


@dataclass(frozen=True, slots=True)
class Message:
    """One turn on its way in. Without ``thread`` those of one row are a thread of their own,
    without ``user`` the thread is the user; ``secrets`` is None where nobody looked."""

    thread: str | None
    user: str | None
    speaker: str
    text: str
    time: datetime | None = None
    secrets: list[dict[str, Any]] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def packed(self) -> list[Any]:
        """As a JSON value, but for what ``extra`` holds."""
        return [self.thread, self.user, self.speaker, self.text, _since(self.time), self.secrets,
                dict(self.extra)]  # fmt: skip

    @classmethod
    def unpacked(cls, value: Iterable[Any]) -> Self:
        """The message that was packed."""
        thread, user, speaker, text, time, secrets, extra = value
        return cls(thread, user, speaker, text, _moment(time), secrets, extra)


def _since(time: datetime | None) -> int | None:
    """Milliseconds since 1970."""
    return None if time is None else (time - EPOCH) // timedelta(milliseconds=1)


def _moment(since: int | None) -> datetime | None:
    return None if since is None else EPOCH + timedelta(milliseconds=since)


class Threads:
    """Collects messages and gives them back as rows of a corpus, threads in the order in which
    they began, one person each: who else speaks in a thread gets one of his own (``id~2``)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = sqlite3.connect(path, isolation_level=None)
        for line in (
            "PRAGMA journal_mode=OFF",
            "PRAGMA synchronous=OFF",
            "PRAGMA cache_size=-65536",
            "CREATE TABLE threads (number INTEGER PRIMARY KEY, id TEXT, user TEXT)",
            "CREATE TABLE turns (thread INTEGER, turn INTEGER, speaker TEXT, text TEXT,"
            " time INTEGER, secrets TEXT, extra TEXT, PRIMARY KEY (thread, turn)) WITHOUT ROWID",
            "BEGIN",
        ):
            self.database.execute(line)
        self.numbers: dict[int, int] = {}  # hash of thread and user -> number
        self.people: dict[int, int] = {}  # hash of thread -> how many people it has
        self.ids: set[int] = set()
        self.waiting: list[tuple] = []
        self.count, self.turns, self.cut = 0, 0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.database.close()
        self.path.unlink(missing_ok=True)

    def __contains__(self, thread: str) -> bool:
        return _key(thread) in self.people

    def put(self, messages: Iterable[Message]) -> None:
        """Take messages that belong to one row of a source."""
        own: int | None = None
        for m in messages:
            number = own if m.thread is None and own is not None else self._number(m)
            own = number
            self.turns += 1
            secrets = None if m.secrets is None else _JSON(m.secrets)
            extra = _JSON(dict(m.extra)) if m.extra else None
            row = (number, self.turns, m.speaker, m.text, _since(m.time), secrets, extra)
            self.waiting.append(row)
            if len(self.waiting) == _BATCH:
                self._flush()

    def _number(self, m: Message) -> int:
        if m.thread is not None:
            whose = _key(m.thread, "" if m.user is None else m.user)
            if (number := self.numbers.get(whose)) is not None:
                return number
        self.count += 1
        name = f"row-{self.count}" if m.thread is None else m.thread
        if m.thread is not None:
            self.numbers[whose] = self.count
            thread = _key(m.thread)
            self.people[thread] = person = self.people.get(thread, 0) + 1
            if person > 1:
                self.cut += person == 2
                name = f"{m.thread}~{person}"
        while (key := _key(name)) in self.ids:
            name += "~"
        self.ids.add(key)
        user = name if m.user is None else m.user
        self.database.execute("INSERT INTO threads VALUES (?, ?, ?)", (self.count, name, user))
        return self.count

    def _flush(self) -> None:
        self.database.executemany("INSERT INTO turns VALUES (?,?,?,?,?,?,?)", self.waiting)
        self.waiting = []

    def rows(self) -> Iterator[dict[str, Any]]:
        """The threads as rows of a corpus; turns that all have a time are put in its order."""
        self._flush()
        cursor = self.database.execute(
            "SELECT number, id, user, speaker, text, time, secrets, turns.extra FROM threads"
            " CROSS JOIN turns ON turns.thread = threads.number ORDER BY number, turn"
        )
        for _, group in itertools.groupby(cursor, key=lambda row: row[0]):
            turns = list(group)
            if all(t[5] is not None for t in turns):
                turns.sort(key=lambda t: t[5])
            yield {
                "id": turns[0][1],
                "user": turns[0][2],
                "turns": [_turn(*t[3:7]) for t in turns],
                "extra": _merged([t[7] for t in turns]),
            }


def _key(*parts: str) -> int:
    """96 bits of a hash: a tenth of the memory of the strings, and no two alike."""
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=12).digest())


def _turn(speaker: str, text: str, time: int | None, secrets: str | None) -> dict[str, Any]:
    return {
        "speaker": speaker,
        "text": text,
        "time": _moment(time),
        "labelled": secrets is not None,
        "secrets": json.loads(secrets) if secrets else [],
    }


def _merged(extras: list[str | None]) -> str | None:
    """The further columns of a thread: a value where all turns agree, else a list, one a turn."""
    if not any(extras):
        return None
    if len(set(extras)) == 1:
        return extras[0]
    rows = [json.loads(extra) if extra else {} for extra in extras]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    return json.dumps(
        {name: v[0] if all(x == v[0] for x in v) else v for name, v in columns.items()}
    )
