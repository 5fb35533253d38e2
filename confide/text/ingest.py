"""From files of other people's forms to a corpus folder: ``crtlib ingest`` as a function.

>>> import pathlib, tempfile
>>> home = pathlib.Path(tempfile.mkdtemp())
>>> text = "customer,ticket,body\\nann,1,My name is Ann.\\nbob,2,\\nann,1,Thanks!\\n"
>>> _ = (home / "mails.csv").write_text(text)
>>> summary = ingest([home / "mails.csv"], home / "corpus", yes=True, skip_bad=True, max_bad=0.5)
>>> summary.facts.turns, summary.facts.threads, dict(summary.rejected)
(2, 1, {'no text': 1})
>>> print(table(summary).splitlines()[0])
columns   user=customer  thread=ticket  text=body

The columns of a table are guessed by their names.

>>> names = ["channel", "body", "sender", "conversation_id", "customer"]
>>> guess(names, {}, where="mails.csv")
{'user': 'customer', 'thread': 'conversation_id', 'speaker': 'sender', 'text': 'body'}
>>> guess(["body", "content"], {}, where="mails.csv")
Traceback (most recent call last):
...
ValueError: mails.csv: columns 'body' and 'content' could both be the text; say --text
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import re
import sys
import tempfile
import textwrap
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from tqdm import tqdm

from confide.text import readers
from confide.text.readers import How
from crtlib import files, outputs
from crtlib.files import Named
from crtlib.text import folders, records
from crtlib.text.folders import Facts, Sorter, Writer
from crtlib.text.records import Bad, filled, sha, shipped

TEMPLATES = resources.files(__package__) / "templates"

ROLES: dict[str, list[str]] = tomllib.loads(shipped("columns.toml", TEMPLATES))
"""What a column is called, in lower case and without "_", "-", "." and spaces, that is guessed to
be it."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PLAIN = datetime(1970, 1, 1)
"""The epoch for times without a zone."""
MILLISECOND = timedelta(milliseconds=1)

LOOKED_AT = 3
"""Rows that the guess of the columns is made from."""


# --------------------------------------------------------------------------- columns and options
Columns = dict[str, str]
"""The columns of a table, by role."""


def _plain(name: str) -> str:
    """A name as it is compared."""
    return re.sub(r"[_\-. ]", "", name.lower())


def guess(
    names: Sequence[str], given: Mapping[str, str], *, where: str, no_users: bool = False
) -> Columns:
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
    for role, called in ROLES.items():
        if role in given or (role == "user" and no_users):
            continue
        free = [n for n in names if n not in columns.values() and _plain(n) in called]
        if role == "user" and len(free) > 1:
            free = [n for n in free if _plain(n) not in ("sender", "absender")]
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
    return {role: columns[role] for role in ROLES if role in columns}


@dataclass
class Source:
    """A file, folder or hub address, and what is taken from its rows: ``shape`` says what a row
    is. It counts its rows, and those of agents."""

    path: str
    name: str
    form: str
    how: How
    columns: Columns = field(default_factory=dict)
    shape: str = "table"
    guessed: bool = False
    rows: int = 0
    bad: int = 0
    answers: int = 0

    def read(self) -> Iterator[readers.Row]:
        """Its rows, from the first."""
        return readers.read(self.path, self.form, self.how)

    def look(self) -> None:
        """Settle shape and columns by the first rows that can be read."""
        good = (cells for _, cells in self.read() if not isinstance(cells, Bad))
        first = list(itertools.islice(good, LOOKED_AT))
        no_users = self.how.no_users
        given = {role: name for role, name in self.how.columns.items() if name}
        if first:
            self.shape = shape(first[0])
        if self.shape == "table" and first:
            self.columns = guess(
                list(dict.fromkeys(itertools.chain(*first))),
                given,
                where=self.name,
                no_users=no_users,
            )
            mail = self.form in ("mbox", "eml")  # whose columns are ours
            self.guessed = not mail and len(self.columns) > len(given)

    def refusal(self, number: int, bad: Bad) -> str:
        """The one line that says why a row is refused."""
        if bad.encoding:
            where = bad.says.replace(")", f" in row {number})")
            return f"{self.name}: {where}; try --encoding cp1252"
        column = f", column {bad.column}" if bad.column else ""
        more = f", --user {bad.column} --no-users counts it by its thread"
        user = self.columns.get("user")
        more *= bad.reason == "no user" and bad.column == user and self.form != "mbox"
        return f"{self.name}, row {number}{column}: {bad.says}; --skip-bad leaves it out{more}"


# --------------------------------------------------------------------------- cells
def shape(cells: Mapping[str, Any]) -> str:
    """What the records of a file are: "turns" (our own), "messages" or "table"."""
    if isinstance(cells.get("turns"), list) and "id" in cells:
        return "turns"
    return "messages" if isinstance(cells.get("messages"), list) else "table"


def _name(value: Any, column: str, reason: str, *, empty: bool = False) -> str | None:
    """A cell, without the white space around it; numbers are ids as well. One that is ``empty``,
    where that is allowed, is None."""
    if not isinstance(value, str):
        if isinstance(value, float) and value.is_integer():  # of a column with gaps
            value = int(value)
        if value is not None and type(value) is not int:
            raise Bad(reason, "is neither text nor a whole number", column)
        value = str("" if value is None else value)
    text = value.strip()
    if not text and not empty:
        raise Bad(reason, "is empty", column)
    records.check_unicode(column, text)
    return text or None


def _text(value: Any, column: str) -> str:
    if isinstance(value, str) and value.strip():
        records.check_unicode(column, value)
        return value
    says = "is no text" if value and not isinstance(value, str) else "is empty"
    raise Bad("no text", says, column)


def moment(value: Any, column: str = "time", dates: str = "auto") -> int | None:
    """Milliseconds since 1970 of a time in ISO 8601, as in e-mails, as 28.2.2026 12:00, 2026/2/28
    or, where ``dates`` says what comes first, 28/2/2026, or in seconds or milliseconds since 1970;
    UTC where it names no zone.

    >>> moment("2026-02-28T12:00:00+01:00"), moment(0), moment("")
    (1772276400000, 0, None)
    >>> moment("28.2.2026 12:00") == moment("02/28/26, 12:00 PM", dates="mdy")
    True
    """
    if value is None or value == "":
        return None
    try:
        if isinstance(value, bool):  # a number to Python
            raise TypeError
        time = _parsed(value, dates, column)
        return (time - (EPOCH if time.tzinfo else PLAIN)) // MILLISECOND
    except Bad:
        raise
    except (ValueError, TypeError, OverflowError, OSError, IndexError):
        raise Bad("no time", "is no time that is understood", column) from None


_DATE = re.compile(
    r"(\d{1,4})([./-])(\d{1,2})\2(\d{1,4})"
    r"(?:,?\s+(\d{1,2})[:.](\d\d)(?:[:.](\d\d))?)?\s*(?:([ap])\.?m\.?|Uhr)?",
    re.I,
)
"""A date of three numbers, and a time of day."""


def _dated(found: re.Match[str], dates: str, column: str) -> datetime:
    """What a date of three numbers says; with points between the day is first."""
    sign, half = found[2], found[8] or ""
    first, second, third = (int(found[k]) for k in (1, 3, 4))
    hours, minutes, seconds = (int(found[k] or 0) for k in (5, 6, 7))
    if half and 1 <= hours <= 12:
        hours = hours % 12 + 12 * (half in "pP")
    clock = (hours, minutes, seconds)
    if len(found[1]) > 2:
        return datetime(first, second, third, *clock)
    if sign != "." and dates == "auto":
        raise Bad("day or month first", "begins with day or month: say --dates dmy or mdy", column)
    day, month = (second, first) if sign != "." and dates == "mdy" else (first, second)
    return datetime(third + 2000 * (third < 100), month, day, *clock)


def _parsed(value: Any, dates: str, column: str) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, str):
        value = value.strip()[:64]
        if value[4:5] == "-" or len(value) <= 8 or not value.replace(".", "", 1).isdecimal():
            try:
                return datetime.fromisoformat(value)
            except ValueError:
                found = _DATE.fullmatch(value)
                return _dated(found, dates, column) if found else parsedate_to_datetime(value)
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("no time")
    return datetime.fromtimestamp(number / 1000 if abs(number) > 1e11 else number, UTC)


# --------------------------------------------------------------------------- rows to messages
Message = tuple[str | None, str | None, str, str, int | None, str | None]
"""One turn on its way in: thread, user, speaker, text, time in milliseconds since 1970, secrets as
JSON. Without a thread those of one row are a thread of their own, without a user the thread is the
user; secrets are None where nobody looked."""
MESSAGES = pa.schema(
    [
        (name, pa.int64() if name in ("row", "time") else pa.string())
        for name in ("row", "thread", "person", "speaker", "text", "time", "secrets")
    ]
)


def row(cells: Mapping[str, Any], source: Source) -> list[Message]:
    """A row of a table: one message."""
    how, columns = source.how, source.columns
    person, talk, sender, _, when = map(columns.get, ROLES)
    body = columns["text"]
    text = _text(cells.get(body), body)
    user = _name(cells.get(person), person, "no user", empty=how.no_users) if person else None
    thread = _name(cells.get(talk), talk, "no thread") if talk else None
    speaker = _name(cells.get(sender), sender, "no speaker", empty=True) if sender else None
    if how.agents:
        who, agents = (user or "").lower(), [name.lower() for name in how.agents]
        answers = who in agents or f"@{who.partition('@')[2]}" in agents
        user, speaker = None if answers else user, speaker or ("USR", "SYS")[answers]
        source.answers += answers
    time = moment(cells.get(when), when, how.dates) if when else None
    return [(thread, user, speaker or "", text, time, None)]


def own(cells: Mapping[str, Any], source: Source) -> list[Message]:
    """A dialogue in our own form; turns with the key ``secrets`` are labelled, unless they say
    otherwise (``labelled``)."""
    no_users = source.how.no_users
    try:
        d = records.dialogue(dict(cells, user=cells.get("id")) if no_users else cells)
    except ValueError as error:
        raise Bad("no dialogue of ours", str(error)) from None
    return [
        (
            d.id,
            None if no_users else d.user,
            t.speaker,
            t.text,
            moment(turn.get("time")),
            json.dumps([asdict(s) for s in t.secrets])
            if turn.get("labelled", "secrets" in turn)
            else None,
        )
        for t, turn in zip(d.turns, cells["turns"], strict=True)
    ]


def chat(cells: Mapping[str, Any], source: Source) -> list[Message]:
    """A chat of ``{"role", "content"}`` messages; the person is ``user``, beside them or in
    ``metadata``. Messages without text, such as the calls of tools, are passed over.

    >>> file = Source("c.jsonl", "c.jsonl", "jsonl", How())
    >>> chat({"messages": [{"role": "user", "content": "Hi"}], "user": "ann"}, file)
    [(None, 'ann', 'user', 'Hi', None, None)]
    """
    about, listed = (cells.get(name) for name in ("metadata", "messages"))
    every = {_plain(k): v for k, v in (about.items() if isinstance(about, dict) else ())}
    every |= {_plain(k): v for k, v in cells.items()}
    named = [every.get(name) for name in ("user", "userid", "id", *ROLES["thread"])]
    how = source.how
    user = None if how.no_users else _name(named[0] or named[1], "user", "no user")
    thread = next((_name(v, "id", "no thread") for v in named[2:] if v is not None), None)
    messages: list[Message] = []
    for m in listed if isinstance(listed, list) else [None]:
        if not isinstance(m, dict):
            raise Bad("not messages", "holds a message that is no JSON object", "messages")
        content = m.get("content")
        if isinstance(content, list):
            parts = [p.get("text") for p in content if isinstance(p, dict)]
            content = "\n".join(p for p in parts if isinstance(p, str))
        if content is None or (isinstance(content, str) and not content.strip()):
            continue
        speaker = str(m.get("role") or "")
        records.check_unicode("role", speaker)
        time = moment(m.get("timestamp", m.get("time")), dates=how.dates)
        messages.append((thread, user, speaker, _text(content, "content"), time, None))
    if not messages:
        raise Bad("no text", "holds no message with text", "messages")
    return messages


SHAPES = {"table": row, "turns": own, "messages": chat}
"""What makes messages of a row, by its shape."""


# --------------------------------------------------------------------------- the corpus
@dataclass(frozen=True)
class Summary:
    """What ``ingest`` did. ``rejected`` counts rows left out by reason, ``cut`` the threads in
    which several people speak; ``form`` is what the records were. ``up_to_date``: the folder was
    there already, made of the same files in the same way."""

    out: str
    form: str
    columns: Columns
    rows: int
    rejected: Mapping[str, int]
    cut: int
    facts: Facts
    up_to_date: bool = False


class Frame(Protocol):
    """A table that writes itself: a DataFrame of pandas, a ``datasets.Dataset``."""

    def to_parquet(self, path: Path, /) -> Any: ...


def ingest(
    sources: Named | Sequence[Named] | Frame,
    out: Named,
    *,
    yes: bool = False,
    ask: Callable[[str], bool] | None = None,
    force: bool = False,
    progress: bool = False,
    **how: Any,
) -> Summary:
    """Make the corpus folder ``out`` of ``sources``: files, folders or ``hub:owner/name``; or of a
    DataFrame or a ``datasets.Dataset``, whose rows lie in a private temporary folder meanwhile.

    ``how`` are the fields of :class:`How`. A guess of columns is used with ``yes``, or if ``ask``
    says so of the line that shows it. Rows are streamed: memory does not grow with the text. Raises
    ``ValueError`` in one line that names file, row and column and never quotes text; then nothing
    is written.
    """
    if hasattr(sources, "to_parquet"):
        with tempfile.TemporaryDirectory() as private:  # 0700
            sources.to_parquet(table := Path(private) / "rows.parquet")
            return ingest([table], out, yes=yes, ask=ask, force=force, progress=progress, **how)
    reading = How(**how)
    if isinstance(sources, str | os.PathLike):
        sources = [sources]
    if not sources:
        raise ValueError("SOURCE: is missing; name a file, a folder or hub:owner/name")
    plans: list[Source] = []
    for path in [os.fspath(source) for source in sources]:
        if "://" in path:
            raise ValueError(f"{path}: is a URL, must be a local file or folder, or hub:owner/name")
        name = path if path.startswith("hub:") else Path(path).absolute().name
        same = sum(plan.name.partition(" (")[0] == name for plan in plans)
        form = readers.form(path) if reading.format == "auto" else reading.format
        plans.append(Source(path, f"{name} ({same + 1})" if same else name, form, reading))
    for plan in plans:
        plan.look()  # before all of it is hashed: it may be endless, or no table at all
    inputs = {
        plan.name: sha(plan.path) if plan.path.startswith("hub:") else outputs.content(plan.path)
        for plan in plans
    }
    recipe: dict[str, Any] = {"command": "ingest", "options": asdict(reading), "inputs": inputs}
    first = plans[0]
    form = first.form if first.shape == "table" else first.shape
    told = (os.fspath(out), form, first.columns)
    if outputs.up_to_date(out, **recipe):
        counted = outputs.demand(out, names=())["facts"]["ingest"]
        return Summary(*told, **counted, facts=folders.facts(out), up_to_date=True)
    places = [plan.path for plan in plans if not plan.path.startswith("hub:")]
    outputs.check_folder(out, inputs=places, force=force)
    shown = columns_line(first.columns, first.shape)
    if any(plan.guessed for plan in plans) and not yes and not (ask and ask(shown)):
        what = " ".join(shown.removeprefix("columns").split())
        raise ValueError(f"{first.name}: the columns are guessed ({what}); --yes takes them")
    summary: dict[str, Any] = {}
    with outputs.staged(out, **recipe, facts=summary, force=force) as part:
        counts, counted = _write(part, plans, reading, progress)
        summary |= {"corpus": asdict(counts), "ingest": counted}
        folders.card(part, Path(out).absolute().name, counts, list(inputs), simulated=False)
    return Summary(*told, **counted, facts=counts)


def _write(
    part: Path, plans: list[Source], how: How, progress: bool
) -> tuple[Facts, dict[str, Any]]:
    """Read all rows; put the threads together, in the order in which they began, one person each:
    who else speaks in a thread gets one of his own (``id~2``); and write them."""
    unique = any(plan.shape != "table" for plan in plans)  # of a record its id, of a row its thread
    ids: set[str | None] = set()
    total: Counter[str] = Counter()
    left = sys.maxsize if how.limit is None else how.limit
    good_rows = turns = 0
    with (
        Sorter(part / "threads", messages=MESSAGES) as sorter,
        (part / "rejected.csv").open("w", encoding="utf-8", newline="") as file,
    ):
        rejected = csv.writer(file)
        rejected.writerow(("file", "row", "column", "reason"))
        for plan in plans:
            reasons: Counter[str] = Counter()
            stream = itertools.islice(
                tqdm(plan.read(), "reading", unit=" rows", disable=not progress), left
            )
            while lot := list(itertools.islice(stream, readers.BATCH)):
                messages: list[tuple[Any, ...]] = []
                for number, cells in lot:
                    try:
                        if isinstance(cells, Bad):
                            raise cells
                        made = SHAPES[plan.shape](cells, plan)
                        thread = made[0][0]
                        if plan.shape != "table" and thread in ids:
                            raise Bad("repeated id", "has an id that was used before", "id")
                    except Bad as bad:
                        plan.bad += bad.reason != readers.HEADER
                        if plan.bad and not how.skip_bad:
                            raise ValueError(plan.refusal(number, bad)) from None
                        reasons[bad.reason] += 1
                        rejected.writerow(
                            map(files.harmless, (plan.name, str(number), bad.column, bad.reason))
                        )
                        continue
                    if unique and thread is not None:
                        ids.add(thread)
                    good_rows += 1
                    messages += [(good_rows, *message) for message in made]
                plan.rows += len(lot)
                sorter.add("messages", messages)
                turns += len(messages)
            left -= plan.rows
            total += reasons
            if plan.bad > how.max_bad * plan.rows:
                raise ValueError(
                    f"{plan.name}: {plan.bad:,} of {plan.rows:,} rows are bad ({_why(reasons)}), "
                    f"a share of {plan.bad / plan.rows:.2g}, more than --max-bad {how.max_bad}"
                )
        if how.agents and not any(plan.answers for plan in plans):
            raise ValueError("--agents: nobody of these wrote a message here")
        if not turns:
            raise ValueError(f"{plans[0].name}: holds no message that can be used")
        if how.agents or how.columns.get("user"):
            sorter.run(_FILLED)
        sorter.run(_NAMED)
        while sorter.run("SELECT count(*) > count(DISTINCT id) FROM named")[0][0]:
            sorter.run(_ANOTHER)
        ((cut, nobody),) = sorter.run(_COUNTED)
        sorter.run(_SORTED)
        writer = Writer(part, how.split)
        for (lots,) in sorter.run("SELECT DISTINCT lot FROM named ORDER BY lot"):
            writer.add(pa.Table.from_batches(sorter.batches(_LISTED.format(lots))))
    read = sum(plan.rows for plan in plans)
    facts = writer.close("thread" if nobody else "column")
    return facts, {"rows": read, "rejected": dict(total), "cut": cut}


# Messages of nobody are the first person's of their thread, where some are known.
_FILLED = """
UPDATE messages SET person = first.person
FROM (SELECT thread, arg_min(person, rowid) AS person FROM messages
      WHERE person IS NOT NULL GROUP BY thread) AS first
WHERE messages.person IS NULL AND messages.thread = first.thread"""
_NAMED = """
CREATE TABLE named AS
SELECT *, sum(size) OVER (ORDER BY number) // 10000 AS lot,
       CASE WHEN own > 0 THEN 'row-' || number WHEN nth = 1 THEN thread
       ELSE thread || '~' || nth END AS id
FROM (SELECT *, row_number() OVER (ORDER BY began) AS number,
             row_number() OVER (PARTITION BY own, thread ORDER BY began) AS nth
      FROM (SELECT CASE WHEN thread IS NULL THEN row ELSE 0 END AS own, thread, person,
                   min(rowid) AS began, count(*) = count(time) AS timed,
                   sum(1 + len(text) // 1600) AS size
            FROM messages GROUP BY ALL))"""
_ANOTHER = """
UPDATE named SET id = id || '~' WHERE number IN (
    SELECT number FROM (
        SELECT number, row_number() OVER (PARTITION BY id ORDER BY number) AS k FROM named)
    WHERE k > 1)"""
_COUNTED = "SELECT count(*) FILTER (nth = 2), count(*) FILTER (person IS NULL) FROM named"
_SORTED = """
CREATE TABLE turns AS
SELECT lot, number, id, coalesce(named.person, id) AS "user",
       {'speaker': speaker, 'text': text, 'time': epoch_ms(time)::TIMESTAMP_MS,
        'labelled': secrets IS NOT NULL,
        'secrets': coalesce(from_json(secrets,
            '[{"kind": "VARCHAR", "start": "INTEGER", "end": "INTEGER"}]'), [])} AS turn
FROM messages JOIN named
ON CASE WHEN messages.thread IS NULL THEN messages.row ELSE 0 END = own
   AND messages.thread IS NOT DISTINCT FROM named.thread
   AND messages.person IS NOT DISTINCT FROM named.person
ORDER BY number, CASE WHEN timed THEN time END, messages.rowid"""
_LISTED = """
SELECT id, "user", list(turn ORDER BY turns.rowid) AS turns FROM turns WHERE lot = {}
GROUP BY number, id, "user" ORDER BY number"""


def columns_line(columns: Columns, shape: str = "table") -> str:
    """The line that shows what was guessed."""
    roles = "  ".join(f"{role}={name}" for role, name in columns.items())
    roles = roles if shape == "table" else f"{shape}, as they are"
    return textwrap.fill(f"columns   {roles}", 80, subsequent_indent=" " * 10)


def _why(reasons: Mapping[str, int]) -> str:
    """Reasons and how often each, the most frequent first."""
    why = sorted(reasons.items(), key=lambda item: -item[1])
    return ", ".join(f"{count:,} {reason}" for reason, count in why)


def table(summary: Summary) -> str:
    """What a command prints of it; at most 80 columns wide where names allow."""
    shape = summary.form if summary.form in ("turns", "messages") else "table"
    columns = columns_line(summary.columns, shape)
    rejected = sum(summary.rejected.values()), _why(summary.rejected)
    return filled(
        "ingested.txt", TEMPLATES, **vars(summary) | {"columns": columns, "rejected": rejected}
    )
