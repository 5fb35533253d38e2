"""The columns of a table are guessed by their names.

>>> names = ["channel", "body", "sender", "conversation_id", "customer"]
>>> guess_columns(names, {}, where="mails.csv")
{'user': 'customer', 'thread': 'conversation_id', 'speaker': 'sender', 'text': 'body'}
>>> guess_columns(["body", "content"], {}, where="mails.csv")
Traceback (most recent call last):
...
ValueError: mails.csv: columns 'body' and 'content' could both be the text; say --text
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib import resources

from crtlib.text.package_data import read_package_file

INGEST_TEMPLATES = resources.files("confide.text") / "templates"

COLUMN_ROLES: dict[str, list[str]] = tomllib.loads(
    read_package_file("columns.toml", INGEST_TEMPLATES)
)
"""What a column is called, in lower case and without "_", "-", "." and spaces, that is guessed to
be it."""
RECORD_NAMES = {"id", "userid", "turns", "messages", "metadata"}
"""What parts of a record of our own form, or of a chat, are called beside these."""
EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_WITHOUT_ZONE = datetime(1970, 1, 1)
"""The epoch for times without a zone."""
MILLISECOND = timedelta(milliseconds=1)

GUESS_ROWS = 3
"""Rows that the guess of the columns is made from."""


# --------------------------------------------------------------------------- columns and options
ColumnsByRole = dict[str, str]
"""The columns of a table, by role."""


def comparable_name(name: str) -> str:
    """A name as it is compared."""
    return re.sub(r"[_\-. ]", "", name.lower())


def guess_columns(
    names: Sequence[str], given: Mapping[str, str], *, where: str, no_users: bool = False
) -> ColumnsByRole:
    """The columns of a table ``where``, those not ``given`` guessed from its ``names``.

    Each column serves once; ``sender`` is the speaker where another column is the user. Thread,
    speaker and time may be missing. Raises ``ValueError`` where a given column is missing, two
    could be the same, or there is no text or no user (unless ``no_users``: then none is guessed).
    """
    shown = "its first row does not look like a header"
    if all(re.fullmatch(r"[^\W\d_][\w.\- ]{0,40}", name) for name in names):
        shown = f"the columns are {', '.join(names)}"
    for role, name in given.items():
        if name not in names:
            raise ValueError(f"{where}: has no column {name!r} (--{role}); {shown}")
    columns = dict(given)
    for role, called in COLUMN_ROLES.items():
        if role in given or (role == "user" and no_users):
            continue
        free = [n for n in names if n not in columns.values() and comparable_name(n) in called]
        if role == "user" and len(free) > 1:
            free = [n for n in free if comparable_name(n) not in ("sender", "absender")]
        if len(free) > 1:
            both = " and ".join(map(repr, free[:2]))
            raise ValueError(f"{where}: columns {both} could both be the {role}; say --{role}")
        if free:
            columns[role] = free[0]
    if "text" not in columns:
        raise ValueError(f"{where}: no column looks like the text; say --text ({shown})")
    if "user" not in columns and not no_users:
        raise ValueError(
            f"{where}: no column looks like the person; say --user, or --no-users where there is "
            f"none ({shown})"
        )
    return {role: columns[role] for role in COLUMN_ROLES if role in columns}
