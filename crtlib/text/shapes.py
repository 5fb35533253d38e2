"""From the cells of a row to messages: a table's row, a list of turns, or a chat's messages.

>>> from crtlib.text.columns import Columns
>>> cells = {"messages": [{"role": "user", "content": "Hi"}], "user": "ann"}
>>> shape(cells), chat(cells, Options())[0].text
('messages', 'Hi')
>>> table({"text": " "}, Options(Columns(text="text"), no_users=True))
Traceback (most recent call last):
...
crtlib.text.shapes.Bad: no text
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from crtlib.text import jsonl
from crtlib.text.columns import Columns, plain
from crtlib.text.rows import Fault
from crtlib.text.threads import Message

IDS = ("id", "threadid", "conversationid", "dialogueid", "thread", "conversation")


class Bad(Exception):
    """A row that cannot be used, with its ``fault``."""

    def __init__(self, reason: str, says: str, column: str = "") -> None:
        super().__init__(reason)
        self.fault = Fault(reason, says, column)


@dataclass(frozen=True)
class Options:
    """What is taken from a row, and how: see ``ingest``."""

    columns: Columns = field(default_factory=Columns)
    kept: tuple[str, ...] = ()
    no_users: bool = False
    speakers: Mapping[str, str] = field(default_factory=dict)


def shape(cells: Mapping[str, Any]) -> str:
    """What the records of a file are: "turns" (our own), "messages" or "table"."""
    if isinstance(cells.get("turns"), list) and "id" in cells:
        return "turns"
    return "messages" if isinstance(cells.get("messages"), list) else "table"


def _string(value: Any, column: str, reason: str) -> str:
    """A cell that must not be empty; numbers are ids as well."""
    if value is None or (isinstance(value, str) and not value.strip()):
        raise Bad(reason, "is empty", column)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Bad(reason, "is neither text nor a whole number", column)
    return _whole(str(value), column)


def _whole(text: str, column: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Bad("half a surrogate pair", "holds half a surrogate pair", column) from None
    return text


def _text(value: Any, column: str) -> str:
    if isinstance(value, str) and value.strip():
        return _whole(value, column)
    said = "is no text" if value and not isinstance(value, str) else "is empty"
    raise Bad("no text", said, column)


def moment(value: Any, column: str = "time") -> datetime | None:
    """A time in ISO 8601, as in e-mails, or in seconds or milliseconds since 1970; UTC where it
    names no zone.

    >>> moment("2026-02-28T12:00:00+01:00").isoformat(), moment(0).year
    ('2026-02-28T11:00:00+00:00', 1970)
    """
    if value is None or value == "":
        return None
    try:
        if isinstance(value, bool):  # a number to Python
            raise TypeError
        time = _parsed(value)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, TypeError, OverflowError, OSError, IndexError):
        raise Bad("no time", "is no time that is understood", column) from None


def _parsed(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, str):
        value = value.strip()[:64]
        if not (len(value) > 8 and value.replace(".", "", 1).isdecimal()):  # 8 digits are a date
            try:
                return datetime.fromisoformat(value)
            except ValueError:
                return parsedate_to_datetime(value)
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("no time")
    return datetime.fromtimestamp(number / 1000 if abs(number) > 1e11 else number, UTC)


def table(cells: Mapping[str, Any], options: Options) -> list[Message]:
    """A row of a table: one message."""
    c = options.columns
    text = _text(cells.get(c.text or ""), c.text or "text")
    user = None if options.no_users else _string(cells.get(c.user or ""), c.user or "", "no user")
    thread = _string(cells.get(c.thread), c.thread, "no thread").strip() if c.thread else None
    speaker = ""
    if c.speaker:
        value = cells.get(c.speaker)
        speaker = "" if value in (None, "") else _string(value, c.speaker, "no speaker").strip()
    extra = {n: _plain(cells.get(n), n) for n in options.kept}
    time = moment(cells.get(c.time), c.time) if c.time else None
    speaker = options.speakers.get(speaker, speaker)
    return [Message(thread, user and user.strip(), speaker, text, time, None, extra)]


def _plain(value: Any, column: str) -> Any:
    return _whole(value, column) if isinstance(value, str) else value


def own(cells: Mapping[str, Any], options: Options) -> list[Message]:
    """A dialogue in our own form; turns with the key ``secrets`` are labelled."""
    record = dict(cells)
    if options.no_users:
        record["user"] = record.get("id")
    try:
        d = jsonl.dialogue(record)
    except ValueError as error:
        raise Bad("no dialogue of ours", str(error)) from None
    known = [_looked_at(turn) for turn in cells["turns"]]
    records = jsonl.record(d)["turns"]
    extra = {n: _plain(cells.get(n), n) for n in options.kept}
    return [
        Message(
            d.id,
            None if options.no_users else d.user,
            options.speakers.get(t["speaker"], t["speaker"]),
            t["text"],
            moment(turn.get("time")),
            t["secrets"] if looked else None,
            extra,
        )
        for t, turn, looked in zip(records, cells["turns"], known, strict=True)
    ]


def _looked_at(turn: Mapping[str, Any]) -> bool:
    return bool(turn.get("labelled", "secrets" in turn))


def chat(cells: Mapping[str, Any], options: Options) -> list[Message]:
    """A chat of ``{"role", "content"}`` messages; the person is ``user``, beside them or in
    ``metadata``. Messages without text, such as the calls of tools, are passed over."""
    metadata = cells.get("metadata")
    places = [cells, metadata if isinstance(metadata, dict) else {}]
    whose = [v for place in places for k, v in place.items() if plain(k) in ("user", "userid")]
    user = None if options.no_users else _string(next(iter(whose), None), "user", "no user")
    names = [v for place in places for k, v in place.items() if plain(k) in IDS and v is not None]
    thread = _string(names[0], "id", "no thread") if names else None
    messages = []
    extra = {n: _plain(cells.get(n), n) for n in options.kept}
    for m in cells["messages"]:
        if not isinstance(m, dict):
            raise Bad("not messages", "holds a message that is no JSON object", "messages")
        content = m.get("content")
        if isinstance(content, list):
            parts = [p.get("text") for p in content if isinstance(p, dict)]
            content = "\n".join(p for p in parts if isinstance(p, str))
        if content is None or (isinstance(content, str) and not content.strip()):
            continue
        speaker = str(m.get("role") or "")
        text = _text(content, "content")
        time = moment(m.get("timestamp", m.get("time")))
        messages.append(
            Message(thread, user, options.speakers.get(speaker, speaker), text, time, None, extra)
        )
    if not messages:
        raise Bad("no text", "holds no message with text", "messages")
    return messages
