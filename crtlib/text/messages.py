"""From the cells of a row to messages: a table's row, a list of turns, or a chat's messages.

>>> names = ["channel", "body", "sender", "conversation_id", "customer"]
>>> columns = guess(names, Columns(), where="mails.csv")
>>> columns.user, columns.thread, columns.speaker, columns.text, columns.time
('customer', 'conversation_id', 'sender', 'body', None)
>>> guess(["body", "content"], Columns(), where="mails.csv")
Traceback (most recent call last):
...
ValueError: mails.csv: columns 'body' and 'content' could both be the text; say --text
>>> cells = {"messages": [{"role": "user", "content": "Hi"}], "user": "ann"}
>>> shape(cells), chat(cells, Options())
('messages', [(None, 'ann', 'user', 'Hi', None, None)])
>>> table([{"text": "Hi"}, {"text": " "}], Options(Columns(text="text"), no_users=True))
([(0, None, None, '', 'Hi', None, None)], {1: Bad('no text')})
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from crtlib.text import jsonl

ROLES = {
    "user": (
        *("user", "userid", "username", "customer", "customerid", "client", "clientid"),
        *("author", "authorid", "sender", "senderid"),
    ),
    "thread": (
        *("thread", "threadid", "conversation", "conversationid", "dialogue", "dialogueid"),
        *("ticket", "ticketid", "session", "sessionid", "case", "caseid", "chat", "chatid"),
    ),
    "speaker": ("speaker", "role", "sender", "from", "who"),
    "text": ("text", "body", "message", "content", "utterance"),
    "time": ("time", "timestamp", "date", "createdat", "sent", "sentat"),
}
"""What a column is called, in lower case and without "_", "-", "." and spaces, that is guessed to
be it."""
IDS = ("id", "threadid", "conversationid", "dialogueid", "thread", "conversation")
TAKEN = {"turns": ("id", "user", "turns"), "messages": ("id", "user", "messages", "metadata")}
"""The columns of records that are no rows of a table."""
_JSON = json.JSONEncoder(default=str).encode
EPOCH, NAIVE = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1)
MILLISECOND = timedelta(milliseconds=1)

Message = tuple[str | None, str | None, str, str, int | None, str | None]
"""One turn on its way in: thread, user, speaker, text, time in milliseconds since 1970, secrets as
JSON. Without a thread those of one row are a thread of their own, without a user the thread is the
user; secrets are None where nobody looked."""


class Bad(Exception):
    """Why a row is left out: ``reason`` is counted, ``says`` completes "row 3, column body ...".

    Neither quotes text. ``encoding``: another codec may help.
    """

    def __init__(self, reason: str, says: str, column: str = "", *, encoding: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.says, self.column, self.encoding = reason, says, column, encoding


# --------------------------------------------------------------------------- columns
@dataclass(frozen=True)
class Columns:
    """The column of each role; None where there is none, or where it is to be guessed."""

    user: str | None = None
    thread: str | None = None
    speaker: str | None = None
    text: str | None = None
    time: str | None = None
    guessed: bool = False

    def used(self) -> tuple[str, ...]:
        """The columns that have a role."""
        return tuple(name for role in ROLES if (name := getattr(self, role)))

    def kept(self, names: Sequence[str], keep: str) -> tuple[str, ...]:
        """The other columns that are carried: ``all``, ``none`` or names with commas between."""
        others = [name for name in names if name not in self.used()]
        if keep == "all":
            return tuple(others)
        wanted = [] if keep == "none" else [name.strip() for name in keep.split(",")]
        if unknown := [name for name in wanted if name not in others]:
            raise ValueError(f"--keep: {unknown[0]!r} is no further column")
        return tuple(wanted)

    def __str__(self) -> str:
        return "  ".join(f"{role}={getattr(self, role)}" for role in ROLES if getattr(self, role))


def _plain(name: str) -> str:
    """A name as it is compared."""
    return re.sub(r"[_\-. ]", "", name.lower())


def guess(names: Sequence[str], given: Columns, *, where: str, no_users: bool = False) -> Columns:
    """The columns of a table ``where``, those not ``given`` guessed from its ``names``.

    Each column serves once; ``sender`` is the speaker where another column is the user. Thread,
    speaker and time may be missing. Raises ``ValueError`` where a given column is missing, two
    could be the same, or there is no text or no user (unless ``no_users``).
    """
    shown = "its first row does not look like a header"
    if all(re.fullmatch(r"[^\W\d_][\w.\- ]{0,40}", name) for name in names):
        shown = f"the columns are {', '.join(names)}"
    for role in ROLES:
        name = getattr(given, role)
        if name and name not in names:
            raise ValueError(f"{where}: has no column {name!r} (--{role}); {shown}")
    if no_users and given.user:
        raise ValueError("--no-users: leaves no room for --user")
    columns = given
    for role in ROLES:
        if getattr(given, role) or (role == "user" and no_users):
            continue
        free = [n for n in names if n not in columns.used() and _plain(n) in ROLES[role]]
        if role == "user" and len(free) > 1:
            free = [n for n in free if _plain(n) != "sender"]
        if len(free) > 1:
            both = " and ".join(map(repr, free[:2]))
            raise ValueError(f"{where}: columns {both} could both be the {role}; say --{role}")
        if free:
            columns = replace(columns, **{role: free[0]}, guessed=True)
    if not columns.text:
        raise ValueError(f"{where}: no column looks like the text; say --text ({shown})")
    if not columns.user and not no_users:
        raise ValueError(
            f"{where}: no column looks like the person; say --user, or --no-users where there is "
            f"none ({shown})"
        )
    return columns


# --------------------------------------------------------------------------- cells
@dataclass(frozen=True)
class Options:
    """What is taken from a row, and how: see ``ingest``. ``kept``: further columns, None for one
    that only other sources have. ``ids``: those of records so far, which must not come again."""

    columns: Columns = field(default_factory=Columns)
    no_users: bool = False
    speakers: Mapping[str, str] = field(default_factory=dict)
    kept: Sequence[str | None] = ()
    ids: set[str | None] | None = None


def shape(cells: Mapping[str, Any]) -> str:
    """What the records of a file are: "turns" (our own), "messages" or "table"."""
    if isinstance(cells.get("turns"), list) and "id" in cells:
        return "turns"
    return "messages" if isinstance(cells.get("messages"), list) else "table"


def whole(text: str, column: str) -> str:
    """A text that UTF-8 can say; else ``Bad``."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Bad("half a surrogate pair", "holds half a surrogate pair", column) from None
    return text


def _string(value: Any, column: str, reason: str) -> str:
    """A cell that must not be empty; numbers are ids as well."""
    if value is None or (isinstance(value, str) and not value.strip()):
        raise Bad(reason, "is empty", column)
    if isinstance(value, float) and value.is_integer():  # of a column with gaps
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Bad(reason, "is neither text nor a whole number", column)
    return whole(str(value), column)


def _name(value: Any, column: str, reason: str) -> str:
    """The same without the white space around it."""
    if type(value) is str and value.isascii() and (name := value.strip()):  # as most are
        return name
    return _string(value, column, reason).strip()


def _text(value: Any, column: str) -> str:
    if type(value) is str and value.isascii() and value.strip():
        return value
    if isinstance(value, str) and value.strip():
        return whole(value, column)
    raise Bad(
        "no text",
        "is no text" if value and not isinstance(value, str) else "is empty",
        column,
    )


def cell(value: Any, column: str) -> str:
    """A further cell as JSON."""
    return _JSON(whole(value, column) if isinstance(value, str) else value)


def moment(value: Any, column: str = "time") -> int | None:
    """Milliseconds since 1970 of a time in ISO 8601, as in e-mails, or in seconds or milliseconds
    since 1970; UTC where it names no zone.

    >>> moment("2026-02-28T12:00:00+01:00"), moment(0), moment("")
    (1772276400000, 0, None)
    """
    if value is None or value == "":
        return None
    try:
        if isinstance(value, bool):  # a number to Python
            raise TypeError
        time = _parsed(value)
        return (time - (EPOCH if time.tzinfo else NAIVE)) // MILLISECOND
    except (ValueError, TypeError, OverflowError, OSError, IndexError):
        raise Bad("no time", "is no time that is understood", column) from None


def _parsed(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, str):
        value = value.strip()[:64]
        if value[4:5] == "-" or len(value) <= 8 or not value.replace(".", "", 1).isdecimal():
            try:
                return datetime.fromisoformat(value)
            except ValueError:
                return parsedate_to_datetime(value)
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("no time")
    return datetime.fromtimestamp(number / 1000 if abs(number) > 1e11 else number, UTC)


# --------------------------------------------------------------------------- shapes
def table(
    lot: Sequence[Mapping[str, Any]], options: Options
) -> tuple[list[tuple[Any, ...]], dict[int, Bad]]:
    """Rows of a table, a message each: which row it is, the message, and the further cells as JSON;
    and what is wrong with the others."""
    faults: dict[int, Bad] = {}

    def column(name: str | None, check: Callable[..., Any], *more: str) -> list[Any]:
        checked = []
        for k, cells in enumerate(lot):
            try:
                checked.append(check(cells.get(name or ""), name, *more))
            except Bad as bad:
                faults.setdefault(k, bad)
                checked.append(None)
        return checked

    def speaker(value: Any, name: str) -> str:
        given = "" if value in (None, "") else _name(value, name, "no speaker")
        return options.speakers.get(given, given)

    c, none = options.columns, [None] * len(lot)
    text = column(c.text, _text)
    user = none if options.no_users else column(c.user, _name, "no user")
    thread = column(c.thread, _name, "no thread") if c.thread else none
    speakers = column(c.speaker, speaker)
    further = [column(name, cell) if name else none for name in options.kept]
    time = column(c.time, moment) if c.time else none
    rows = zip(range(len(lot)), thread, user, speakers, text, time, none, *further, strict=True)
    if options.ids is not None:
        options.ids.update(thread)
    return [row for row in rows if row[0] not in faults], faults


def records(
    lot: Sequence[Mapping[str, Any]], options: Options, make: Callable[..., list[Message]]
) -> tuple[list[tuple[Any, ...]], dict[int, Bad]]:
    """The same of records that hold several messages each."""
    faults, rows = {}, []
    for k, cells in enumerate(lot):
        try:
            turns = make(cells, options)
            further = [cell(cells.get(name), name) if name else None for name in options.kept]
            name = turns[0][0]
            if options.ids is not None and name is not None:
                if name in options.ids:
                    raise Bad("repeated id", "has an id that was used before", "id")
                options.ids.add(name)
            rows += [(k, *turn, *further) for turn in turns]
        except Bad as bad:
            faults[k] = bad
    return rows, faults


def own(cells: Mapping[str, Any], options: Options) -> list[Message]:
    """A dialogue in our own form; turns with the key ``secrets`` are labelled, unless they say
    otherwise (``labelled``)."""
    try:
        d = jsonl.dialogue(dict(cells, user=cells.get("id")) if options.no_users else cells)
    except ValueError as error:
        raise Bad("no dialogue of ours", str(error)) from None
    user = None if options.no_users else d.user
    return [
        (
            d.id,
            user,
            options.speakers.get(record["speaker"], record["speaker"]),
            record["text"],
            moment(turn.get("time")),
            json.dumps(record["secrets"]) if turn.get("labelled", "secrets" in turn) else None,
        )
        for record, turn in zip(jsonl.record(d)["turns"], cells["turns"], strict=True)
    ]


def chat(cells: Mapping[str, Any], options: Options) -> list[Message]:
    """A chat of ``{"role", "content"}`` messages; the person is ``user``, beside them or in
    ``metadata``. Messages without text, such as the calls of tools, are passed over."""
    metadata = cells.get("metadata")
    places = [cells, metadata if isinstance(metadata, dict) else {}]
    whose = [v for place in places for k, v in place.items() if _plain(k) in ("user", "userid")]
    user = None if options.no_users else _string(next(iter(whose), None), "user", "no user")
    names = [v for place in places for k, v in place.items() if _plain(k) in IDS and v is not None]
    thread = _string(names[0], "id", "no thread") if names else None
    messages: list[Message] = []
    listed = cells.get("messages")
    for m in listed if isinstance(listed, list) else [None]:
        if not isinstance(m, dict):
            raise Bad("not messages", "holds a message that is no JSON object", "messages")
        content = m.get("content")
        if isinstance(content, list):
            parts = [p.get("text") for p in content if isinstance(p, dict)]
            content = "\n".join(p for p in parts if isinstance(p, str))
        if content is None or (isinstance(content, str) and not content.strip()):
            continue
        speaker = whole(str(m.get("role") or ""), "role")
        text = _text(content, "content")
        time = moment(m.get("timestamp", m.get("time")))
        messages.append((thread, user, options.speakers.get(speaker, speaker), text, time, None))
    if not messages:
        raise Bad("no text", "holds no message with text", "messages")
    return messages


SHAPES: dict[str, Callable[..., tuple[list[tuple[Any, ...]], dict[int, Bad]]]] = {
    "table": table,
    "turns": partial(records, make=own),
    "messages": partial(records, make=chat),
}
