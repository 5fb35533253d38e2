"""Turn rows of other people's files into messages: rows of a table, our own format, or a chat."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from confide.text import readers
from confide.text.chats import BY_PROGRAM
from confide.text.columns import (
    COLUMN_ROLES,
    DATE_ROWS,
    GUESS_ROWS,
    ColumnsByRole,
    column_argument,
    comparable_name,
    guess_columns,
    is_weak_name,
)
from confide.text.decoding import describe_encoding_remedy
from confide.text.mail import QUOTED_LINES
from confide.text.quotes import strip_quotes
from confide.text.readers import IngestOptions
from confide.text.times import NUMERIC_DATE, parse_time
from crtlib.arguments import argument, arguments
from crtlib.intervals import count_of
from crtlib.options import InvalidOption, OptionWouldHelp
from crtlib.text import jsonl
from crtlib.text.encodings import find_encoding
from crtlib.text.jsonl import BadRow
from crtlib.text.records import Turn
from crtlib.text.writing import move_spans, unify_writing

TurnMessage = tuple[str | None, str | None, str, str, int | None, str | None]
"""One turn on its way in: conversation, user, speaker, text, time in milliseconds since 1970, and
secrets as JSON. Turns without a conversation form one for each row. Without a user, the
conversation is the user. Secrets are None if nobody looked for them."""


MESSAGE_SCHEMA = pa.schema(
    [
        (name, pa.int64() if name in ("row", "time") else pa.string())
        for name in (
            *("row", "thread", "person", "speaker", "text", "time", "secrets"),
            "thread_as_person",
        )
    ]
)
"""A message as it is sorted. ``thread_as_person`` is the name that a person would have who had the
name of the conversation."""


@dataclass
class IngestSource:
    """A file, folder or hub address, and how its rows are read; ``shape`` is what
    :func:`record_shape` says of a row. It counts its ``rows`` and the ``bad`` ones, messages from
    agents (``answers``), lines left out as quotations, texts that are now written in another way,
    and messages that still seem to quote another, or to be encoded."""

    path: str
    name: str
    form: str
    options: IngestOptions
    columns: ColumnsByRole = field(default_factory=dict)
    shape: str = "table"
    guessed: bool = False
    rows: int = 0
    bad: int = 0
    answers: int = 0
    quoted: int = 0
    rewritten: int = 0
    look_quoted: int = 0
    look_encoded: int = 0
    notes: list[str] = field(default_factory=list)

    def read(self) -> Iterator[readers.NumberedRow]:
        """The rows of the source, from the first on."""
        return readers.read_rows(self.path, self.form, self.options)

    def settle_columns(self) -> None:
        """Settle the encoding, the shape, the columns, and whether the day or the month is first,
        from the first readable rows; ``notes`` state what was guessed."""
        to_find = self.options.encoding == "auto" and self.form in readers.ENCODED_FORMATS
        encoding = "auto"
        if to_find and Path(self.path).is_file() and not self.path.lower().endswith(".zip"):
            encoding = find_encoding(Path(self.path))
        if encoding != "auto":
            self.options = replace(self.options, encoding=encoding)
            self.notes.append(
                f"{self.name}: read as {encoding}; {argument('encoding')} sets another"
            )
        good = (cells for _, cells in self.read() if not isinstance(cells, BadRow))
        first = list(itertools.islice(good, GUESS_ROWS))
        if first and self.form in ("text", "lines"):
            self._tell_how_text_is_read(str(first[0]["text"]))
        if first:
            text = self.options.columns.get("text")
            self.shape = record_shape({n: x for n, x in first[0].items() if n != text})
            self._refuse_options_not_read()
        if self.shape == "table" and first:
            given = {role: name for role, name in self.options.columns.items() if name}
            names = list(dict.fromkeys(itertools.chain(*first)))
            letters = {
                name: sum(c.isalpha() for cells in first for c in str(cells.get(name) or "")[:4096])
                for name in names
                if name not in given.values()
            }
            self.columns = guess_columns(
                names,
                given,
                where=self.name,
                no_users=self.options.no_users,
                longest=max(letters, key=lambda name: letters[name], default=None),
            )
            ours = self.form in ("mbox", "eml", "slack", "whatsapp")  # our readers name the columns
            self.guessed = not ours and len(self.columns) > len(given)
            when = self.columns.get("time")
            weak = when and "time" not in given and is_weak_name(when, "time")
            if weak and not any(_is_time(cells.get(when or "")) for cells in first):
                del self.columns["time"]
            if when := self.columns.get("time"):
                self._find_date_order(when)
            elif not ours and self.form not in ("text", "lines"):
                named = column_argument("time")
                self.notes.append(f"{self.name}: no column looks like the time; {named} names it")

    def _refuse_options_not_read(self) -> None:
        """Refuse an option that records of this shape do not read.

        Guarantee:
            No option is accepted and ignored: whose a message is, and what of it is left out, is as
            the options say. Test:
            ``tests/text/test_ingest.py::test_an_option_that_records_do_not_read_is_refused``.
        """
        options = self.options
        shape = RECORD_SHAPES[self.shape]
        dates = "" if options.dates == "auto" else options.dates
        given = dict(options.columns, agents=",".join(options.agents), dates=dates)
        given |= {"drop_quotes": "yes" * options.drop_quotes, "no_users": "yes" * options.no_users}
        for name, value in given.items():
            if value and name not in shape.options:
                others = [other.called for other in RECORD_SHAPES.values() if name in other.options]
                what = f"is read only with {' or '.join(others)}; {self.name} holds {shape.called}"
                where = f"columns[{name!r}]" if name in options.columns else name
                raise InvalidOption(where, what, value)

    def _tell_how_text_is_read(self, first: str) -> None:
        """Note what counts as a message in a text file; refuse one if people are required, as it
        names none."""
        lines = sum(bool(line.strip()) for line in first.splitlines())
        if self.form == "lines":
            how_it_is_read = "each line is read as one message"
        elif Path(self.path).is_dir():
            how_it_is_read = (
                f"each of its {count_of(len(self._files), 'file', 'files')} is read as one message"
            )
        else:
            how_it_is_read = f"read as one message of {count_of(lines, 'line', 'lines')}"
            if lines > 1:
                how_it_is_read += f"; {argument('format', 'lines')} makes each line a message"
        if not self.options.no_users and not self.options.columns.get("user"):
            unit = "line" if self.form == "lines" else "file"
            counts = f"{argument('no_users', True)} counts each {unit} as a person"
            raise OptionWouldHelp(
                f"{self.name}: names no person; {counts} ({how_it_is_read})", "no_users"
            )
        self.notes.append(f"{self.name}: {how_it_is_read}")

    def _find_date_order(self, column: str) -> None:
        """Settle the order of day and month if the dates of the first rows allow only one."""
        if self.options.dates != "auto" or self.form in ("mbox", "eml", "slack"):
            return
        rows = itertools.islice(self.read(), DATE_ROWS)
        values = [cells.get(column) for _, cells in rows if not isinstance(cells, BadRow)]
        dates = [
            NUMERIC_DATE.fullmatch(value.strip()) for value in values if isinstance(value, str)
        ]
        pairs = {
            (int(date[1]), int(date[3]))
            for date in dates
            if date and date[2] != "." and len(date[1]) < 3
        }
        day_first = any(first > 12 for first, _ in pairs)
        month_first = any(second > 12 for _, second in pairs)
        if day_first != month_first:
            self.options = replace(self.options, dates="dmy" if day_first else "mdy")
            what = "day" if day_first else "month"
            self.notes.append(f"{self.name}: dates have the {what} first, as their numbers show")

    def unified(self, value: Any) -> Any:
        """A text in unified writing (:func:`crtlib.text.writing.unify_writing`), counted if that
        changed it; a value that is not text is returned as it is."""
        if not isinstance(value, str):
            return value
        with contextlib.suppress(UnicodeEncodeError):  # half a surrogate pair is refused later
            value.encode()
            text = unify_writing(value)
            self.rewritten += text != value
            return text
        return value

    def refusal(self, number: int, bad: BadRow) -> str:
        """The one line that says why a row is refused."""
        if bad.encoding:
            where = bad.says.replace(")", f" in row {number})")
            return f"{self.name}: {where}; {self.encoding_remedy}"
        column = f", column {bad.column}" if bad.column else ""
        by_thread: dict[str, Any] = {"columns['user']": bad.column, "no_users": True}
        more = f", {arguments(**by_thread)} counts it by its thread"
        user = self.columns.get("user")
        more *= bad.reason == "no user" and bad.column == user and self.form != "mbox"
        skip = argument("skip_bad", True)
        return f"{self.name}, row {number}{column}: {bad.says}; {skip} leaves it out{more}"

    @cached_property
    def encoding_remedy(self) -> str:
        """Advice for text that is not in the encoding in which it was read."""
        return describe_encoding_remedy(Path(self.path), self.options.encoding)

    @cached_property
    def _files(self) -> list[Path]:
        return readers.files_of_source(Path(self.path), self.form)

    def place(self, number: int) -> str:
        """The file of a row, for the private list of rows that were left out."""
        if self.form not in ("eml", "text") or len(self._files) < 2:
            return self.name
        return f"{self.name}/{self._files[number - 1].relative_to(self.path)}"


# --------------------------------------------------------------------------- cells
def record_shape(cells: Mapping[str, Any]) -> str:
    """The shape of a file's records: "turns" (our own format), "messages" (a chat, or a prompt with
    its completion) or "table"."""
    turns = cells.get("turns")
    # A row of a screened folder is a text, and its "turns" only state where each turn starts.
    places = isinstance(turns, list) and [
        t for t in turns if isinstance(t, Mapping) and "start" in t
    ]
    if isinstance(turns, list) and "id" in cells and not places:
        return "turns"
    pair = cells.get("prompt"), cells.get("completion")
    listed = isinstance(cells.get("messages"), list) or all(isinstance(x, str | list) for x in pair)
    return "messages" if listed else "table"


def _clean_name(value: Any, column: str, reason: str, *, empty: bool = False) -> str | None:
    """A cell with a name or an id, which may be a whole number, without surrounding white space. An
    empty cell is None if ``empty`` allows it; otherwise it is refused for this ``reason``."""
    if not isinstance(value, str):
        if isinstance(value, float) and value.is_integer():  # from a column with gaps
            value = int(value)
        if value is not None and type(value) is not int:
            raise BadRow(reason, "is neither text nor a whole number", column)
        value = str("" if value is None else value)
    text = value.strip()
    if not text and not empty:
        raise BadRow(reason, "is empty", column)
    jsonl.check_unicode(column, text)
    return text or None


def _clean_text(value: Any, column: str) -> str:
    if isinstance(value, str) and value.strip():
        jsonl.check_unicode(column, value)
        return value
    says = "is not text" if value and not isinstance(value, str) else "is empty"
    raise BadRow("no text", says, column)


def _is_time(value: Any) -> bool:
    """Whether a cell is a time, in either order of day and month."""
    for order in ("dmy", "mdy"):
        with contextlib.suppress(BadRow):
            return parse_time(value, dates=order) is not None
    return False


# --------------------------------------------------------------------------- rows to messages


def messages_of_row(cells: Mapping[str, Any], source: IngestSource) -> list[TurnMessage]:
    """The one message in a row of a table."""
    options, columns = source.options, source.columns
    user_column, thread_column, speaker_column, _, time_column = map(columns.get, COLUMN_ROLES)
    text_column = columns["text"]
    text = _clean_text(source.unified(cells.get(text_column)), text_column)
    quoted = cells.get(QUOTED_LINES, 0)
    if options.drop_quotes and source.form not in ("mbox", "eml"):
        text, quoted = strip_quotes(text)
        text = _clean_text(text, text_column)
    by_program = bool(cells.get(BY_PROGRAM))
    may_lack_user = options.no_users or by_program
    user = thread = speaker = None
    if user_column:
        name = _clean_name(cells.get(user_column), user_column, "no user", empty=may_lack_user)
        user = None if by_program else name
    if thread_column:
        thread = _clean_name(cells.get(thread_column), thread_column, "no thread")
    if speaker_column:
        speaker = _clean_name(cells.get(speaker_column), speaker_column, "no speaker", empty=True)
    if options.agents:
        writer = (user or "").lower()
        agents = [name.lower() for name in options.agents]
        answers = writer in agents or f"@{writer.partition('@')[2]}" in agents
        user = None if answers else user
        speaker = speaker or ("SYS" if answers else "USR")
        source.answers += answers
    time = parse_time(cells.get(time_column), time_column, options.dates) if time_column else None
    source.quoted += quoted
    return [(thread, user, speaker or "", text, time, None)]


def _moved_secrets(turn: Turn) -> list[dict[str, Any]]:
    """The labelled spans of a turn, as JSON values, at their places in its unified writing."""
    spans = [(secret.start, secret.end) for secret in turn.secrets]
    if unify_writing(turn.text) != turn.text:
        spans = move_spans(turn.text, spans)
    return [
        {"kind": secret.kind, "start": start, "end": end}
        for secret, (start, end) in zip(turn.secrets, spans, strict=True)
        if start < end
    ]


def messages_of_dialogue(cells: Mapping[str, Any], source: IngestSource) -> list[TurnMessage]:
    """The messages of a dialogue in our own format. Turns with the key ``secrets`` are labelled,
    unless their key ``labelled`` says otherwise."""
    no_users = source.options.no_users
    try:
        dialogue = jsonl.parse_dialogue(dict(cells, user=cells.get("id")) if no_users else cells)
    except ValueError as error:
        raise BadRow("not a dialogue of crtlib", str(error)) from None
    return [
        (
            dialogue.id,
            None if no_users else dialogue.user,
            t.speaker,
            _clean_text(source.unified(t.text), "text"),
            parse_time(turn.get("time")),
            json.dumps(_moved_secrets(t)) if turn.get("labelled", "secrets" in turn) else None,
        )
        for t, turn in zip(dialogue.turns, cells["turns"], strict=True)
    ]


def _messages_of_pair(prompt: Any, completion: Any) -> list[Any] | None:
    """A prompt and its completion, each a text or a list of messages, as the messages of one chat;
    None for anything else."""
    sides = (("user", prompt), ("assistant", completion))
    message_lists = [
        [{"role": role, "content": side}] if isinstance(side, str) else side for role, side in sides
    ]
    if not all(isinstance(side, list) for side in message_lists):
        return None
    return [*itertools.chain(*message_lists)]


def messages_of_chat(cells: Mapping[str, Any], source: IngestSource) -> list[TurnMessage]:
    """The messages of a chat: a list of ``{"role", "content"}``, or a prompt and its completion,
    each a text or such a list. The person is ``user``, beside them or in ``metadata``. Messages
    without text, such as tool calls, are skipped.

    >>> file = IngestSource("c.jsonl", "c.jsonl", "jsonl", IngestOptions())
    >>> messages_of_chat({"messages": [{"role": "user", "content": "Hi"}], "user": "ann"}, file)
    [(None, 'ann', 'user', 'Hi', None, None)]
    >>> row = {"prompt": "Hi", "completion": "Hello", "user": "ann"}
    >>> [message[2:4] for message in messages_of_chat(row, file)]
    [('user', 'Hi'), ('assistant', 'Hello')]
    """
    about, listed = (cells.get(name) for name in ("metadata", "messages"))
    if listed is None:
        listed = _messages_of_pair(cells.get("prompt"), cells.get("completion"))
    metadata = about if isinstance(about, dict) else {}
    every = {comparable_name(key): value for key, value in [*metadata.items(), *cells.items()]}
    named = [every.get(name) for name in ("user", "userid", "id", *COLUMN_ROLES["thread"])]
    options = source.options
    person = next((name for name in named[:2] if name not in (None, "")), None)
    user = None if options.no_users else _clean_name(person, "user", "no user")
    thread = next((_clean_name(v, "id", "no thread") for v in named[2:] if v is not None), None)
    messages: list[TurnMessage] = []
    for message in listed if isinstance(listed, list) else [None]:
        if not isinstance(message, dict):
            raise BadRow("not messages", "holds a message that is not a JSON object", "messages")
        content = message.get("content")
        if isinstance(content, list):
            texts = [element.get("text") for element in content if isinstance(element, dict)]
            content = "\n".join(text for text in texts if isinstance(text, str))
        if content is None or (isinstance(content, str) and not content.strip()):
            continue
        speaker = str(message.get("role") or "")
        jsonl.check_unicode("role", speaker)
        stamps = (message.get("timestamp"), message.get("time"))
        time = parse_time(next((t for t in stamps if t is not None), None), dates=options.dates)
        text = _clean_text(source.unified(content), "content")
        messages.append((thread, user, speaker, text, time, None))
    if not messages:
        raise BadRow("no text", "holds no message with text", "messages")
    return messages


@dataclass(frozen=True)
class RecordShape:
    """Records of one shape: what a person calls them, the function that makes messages of one, and
    those options about columns and people that it reads."""

    called: str
    read: Callable[[Mapping[str, Any], IngestSource], list[TurnMessage]]
    options: frozenset[str]


RECORD_SHAPES = {
    "table": RecordShape(
        "tables",
        messages_of_row,
        frozenset([*COLUMN_ROLES, "agents", "dates", "drop_quotes", "no_users"]),
    ),
    "turns": RecordShape(
        "conversations in our own format", messages_of_dialogue, frozenset(["no_users"])
    ),
    "messages": RecordShape("chats", messages_of_chat, frozenset(["dates", "no_users"])),
}
"""The shapes by the names that :func:`record_shape` gives them."""
