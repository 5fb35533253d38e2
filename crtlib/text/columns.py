"""Which column of a table says who, where and what: guessed by name, or named by its owner.

>>> names = ["channel", "body", "sender", "conversation_id", "customer"]
>>> columns = guess(names, Columns(), where="mails.csv")
>>> columns.user, columns.thread, columns.speaker, columns.text, columns.time
('customer', 'conversation_id', 'sender', 'body', None)
>>> columns.kept(names, "all")
('channel',)
>>> guess(["body", "content"], Columns(), where="mails.csv")
Traceback (most recent call last):
...
ValueError: mails.csv: columns 'body' and 'content' could both be the text; say --text
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

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


def plain(name: str) -> str:
    """A name as it is compared."""
    return re.sub(r"[_\-. ]", "", name.lower())


def shown(names: Sequence[str]) -> str:
    """The names for a message, if all look like names: a first row without a header is data."""
    if all(re.fullmatch(r"[^\W\d_][\w.\- ]{0,40}", name) for name in names):
        return f"the columns are {', '.join(names)}"
    return "its first row does not look like a header"


def guess(names: Sequence[str], given: Columns, *, where: str, no_users: bool = False) -> Columns:
    """The columns of a table ``where``, those not ``given`` guessed from its ``names``.

    Each column serves once; ``sender`` is the speaker where another column is the user. Thread,
    speaker and time may be missing. Raises ``ValueError`` where a given column is missing, two
    could be the same, or there is no text or no user (unless ``no_users``).
    """
    for role in ROLES:
        name = getattr(given, role)
        if name and name not in names:
            raise ValueError(f"{where}: has no column {name!r} (--{role}); {shown(names)}")
    if no_users and given.user:
        raise ValueError("--no-users: leaves no room for --user")
    columns = given
    for role in ROLES:
        if getattr(given, role) or (role == "user" and no_users):
            continue
        free = [n for n in names if n not in columns.used() and plain(n) in ROLES[role]]
        if role == "user" and len(free) > 1:
            free = [n for n in free if plain(n) != "sender"]
        if len(free) > 1:
            both = " and ".join(map(repr, free[:2]))
            raise ValueError(f"{where}: columns {both} could both be the {role}; say --{role}")
        if free:
            columns = replace(columns, **{role: free[0]}, guessed=True)
    if not columns.text:
        raise ValueError(f"{where}: no column looks like the text; say --text ({shown(names)})")
    if not columns.user and not no_users:
        raise ValueError(
            f"{where}: no column looks like the person; say --user, or --no-users where there is "
            f"none ({shown(names)})"
        )
    return columns
