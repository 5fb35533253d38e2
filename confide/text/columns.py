"""Guess the columns of a table by their names.

>>> names = ["channel", "body", "sender", "conversation_id", "customer"]
>>> guess_columns(names, {}, where="mails.csv")
{'user': 'customer', 'thread': 'conversation_id', 'speaker': 'sender', 'text': 'body'}
>>> guess_columns(["body", "content"], {}, where="mails.csv")
Traceback (most recent call last):
...
crtlib.options.OptionWouldHelp: mails.csv: columns 'body' and 'content' could both be the text; \
use columns['text']
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Mapping, Sequence
from importlib import resources

from crtlib.arguments import argument
from crtlib.options import OptionWouldHelp
from crtlib.text.package_data import read_package_file

INGEST_TEMPLATES = resources.files("confide.text") / "templates"

_KNOWN_NAMES: dict[str, dict[str, list[str]]] = tomllib.loads(
    read_package_file("columns.toml", INGEST_TEMPLATES)
)
COLUMN_ROLES: dict[str, list[str]] = {
    role: [*words["names"], *words["weak"]] for role, words in _KNOWN_NAMES.items()
}
"""Names by which the column of each role is guessed, in lower case, without accents, "_", "-", "."
and spaces; some may have a word such as "id" before or after them."""
RECORD_NAMES = {"id", "userid", "turns", "messages", "prompt", "completion", "metadata"}
"""Further names, of the parts of a record in our own format or of a chat."""
GUESS_ROWS = 3
"""The number of rows from which the columns are guessed."""
DATE_ROWS = 1_000
"""The number of rows whose dates decide whether the day or the month is first."""


# --------------------------------------------------------------------------- columns and options
ColumnsByRole = dict[str, str]
"""The columns of a table, by role."""


def comparable_name(name: str) -> str:
    """A name in the form in which names are compared.

    >>> comparable_name("Nº de Descripción")
    'nodedescripcion'
    """
    decomposed = unicodedata.normalize("NFKD", name.lower())
    return re.sub(r"[_\-. ]", "", "".join(c for c in decomposed if not unicodedata.combining(c)))


def _match_name(name: str, role: str) -> tuple[bool, str, int] | None:
    """How a column's name matches a role: whether it is one of the role's weak names, which name it
    is without its affix, and the index of that affix. The first match counts; None if there is
    none.

    >>> _match_name("customer_no", "user"), _match_name("ID Cliente", "user")
    ((False, 'customer', 1), (False, 'cliente', 0))
    """
    words = _KNOWN_NAMES[role]
    compared = comparable_name(name)
    for index, affix in enumerate(words["affixes"]):
        for stem in {compared.removesuffix(affix), compared.removeprefix(affix)}:
            if stem != compared or not affix:
                for weak in (False, True):
                    if stem in words["weak" if weak else "names"]:
                        return weak, stem, index
    return None


def is_weak_name(name: str, role: str) -> bool:
    """Whether a name is a weak one, which stands for a role only if the cells confirm it."""
    match = _match_name(name, role)
    return match is not None and match[0]


def may_have_role(name: str) -> bool:
    """Whether a column of this name could be guessed to have any role."""
    return any(_match_name(name, role) for role in COLUMN_ROLES)


def column_argument(role: str, *names: str) -> str:
    """The argument that names the column of a role, as the caller writes it."""
    return argument(f"columns[{role!r}]", *names)


def guess_columns(
    names: Sequence[str],
    given: Mapping[str, str],
    *,
    where: str,
    no_users: bool = False,
    longest: str | None = None,
) -> ColumnsByRole:
    """The columns of a table by role; those that are not ``given`` are guessed from its ``names``.

    Each column has one role. ``sender`` is the speaker if another column is the user;
    ``customer_id`` is preferred to ``customer``. Thread, speaker and time may be missing.

    Args:
        names: The columns of the table, in order.
        given: Columns by role that the caller names.
        where: The name of the table, for messages.
        no_users: No user is guessed, and none need be there.
        longest: The column with the longest cells, which a message suggests as the text.

    Raises:
        ValueError: If a given column is missing, if two columns could have the same role, or if
            there is no text or no user. The message lists everything that is missing. It quotes
            names that are given or match a role, and calls other columns by their numbers: they may
            be the cells of a table without a header.

    Guarantee:
        No cell of a table without a header is quoted. Test:
        ``tests/text/test_ingest.py::test_names_that_match_no_role_are_not_quoted``.
    """
    shown = "its first row does not look like a header"
    known = [name for name in names if name in given.values() or may_have_role(name)]
    if known and all(re.fullmatch(r"[^\W\d_][\w.\-]{0,40}( [\w.\-]+){0,3}", n) for n in names):
        listed = (n if n in known else f"number {k}" for k, n in enumerate(names, 1))
        shown = f"the columns are {', '.join(listed)}"
    for role, name in given.items():
        if name not in names:
            raise ValueError(f"{where}: has no column {name!r} ({column_argument(role)}); {shown}")
    columns = dict(given)
    for role in COLUMN_ROLES:
        if role in given or (role == "user" and no_users):
            continue
        matches = {n: _match_name(n, role) for n in names if n not in columns.values()}
        candidates = {n: match for n, match in matches.items() if match}
        strong = {n: match for n, match in candidates.items() if not match[0]} or candidates
        if len({stem for _, stem, _ in strong.values()}) > 1 or (
            len(strong) > 1 and len({place for _, _, place in strong.values()}) == 1
        ):
            ambiguous_names = " and ".join(map(repr, list(strong)[:2]))
            raise OptionWouldHelp(
                f"{where}: columns {ambiguous_names} could both be the {role}; "
                f"use {column_argument(role)}",
                role,
            )
        if strong:
            columns[role] = min(strong, key=lambda n: strong[n][2])
    _refuse_missing_roles(columns, names, shown, where=where, no_users=no_users, longest=longest)
    return {role: columns[role] for role in COLUMN_ROLES if role in columns}


def _refuse_missing_roles(
    columns: ColumnsByRole,
    names: Sequence[str],
    shown: str,
    *,
    where: str,
    no_users: bool,
    longest: str | None,
) -> None:
    """Refuse a table that has no text, or no user although one is needed.

    Args:
        columns: The columns by role, given or guessed.
        names: All columns of the table, in order.
        shown: What a message may say about them.
        where: The name of the table.
        no_users: No user is needed.
        longest: The column with the longest cells.
    """
    missing, remedies, options = [], [], []
    hint = ""
    if "text" not in columns:
        missing.append("the text")
        remedies.append(column_argument("text"))
        options.append("text")
        if longest in names and shown.startswith("the columns"):
            hint = f", perhaps with the name of column {names.index(longest) + 1}"
    if "user" not in columns and not no_users:
        missing.append("the person")
        no_users_given = argument("no_users", True)
        remedies.append(f"{column_argument('user')}, or {no_users_given} where there is none")
        options += ["user", "no_users"]
    if missing:
        advice = " and ".join(remedies) + hint
        raise OptionWouldHelp(
            f"{where}: no column looks like {' or '.join(missing)}; use {advice} ({shown})",
            *options,
        )
