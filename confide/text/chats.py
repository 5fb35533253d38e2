"""Read chats that Slack (folders or zip files of JSON) and WhatsApp (text) export.

>>> lines = ["[31.12.20, 21:41:05] Ann: Hi", "there"]
>>> lines.append("\\u200e[31.12.20, 21:42:00] Bob: \\u200eimage omitted")
>>> [(message["user"], message["text"]) for message in split_whatsapp(lines)]
[('Ann', 'Hi\\nthere')]
"""

from __future__ import annotations

import contextlib
import html
import io
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from confide.text.decoding import decoding_fault, open_decoded
from crtlib import files
from crtlib.text.jsonl import BadRow, NumberedRow, read_record

# --------------------------------------------------------------------------- files of an export
BY_PROGRAM = "written by a program"
"""The cell of a message that says whether a bot wrote it, who is no person."""
_MAX_FILES = 200_000
"""The most files of one export that are listed."""
_DAY_FILE = re.compile(r"(?:.*/)?([^/]+)/(\d{4}-\d\d-\d\d)\.json")
_NO_MESSAGES = frozenset({"channel_join", "channel_leave", "channel_topic", "channel_purpose",
                          "channel_name", "channel_archive", "channel_unarchive", "group_join",
                          "group_leave", "bot_add", "bot_remove", "pinned_item", "tombstone",
                          "reminder_add", "huddle_thread", "sh_room_created"})  # fmt: skip
"""Subtypes of messages that Slack itself writes about a channel."""
_SLACK_LINK = re.compile(r"<([@#!]?)([^<>|\n]{1,2000})(?:\|([^<>\n]{0,2000}))?>")
_MARKS = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff"
_WHATSAPP_LINE = re.compile(
    rf"[{_MARKS}]*\[?(\d{{1,4}}([./-])\d{{1,2}}\2\d{{2,4}})\.?,?\s+"
    r"(\d{1,2})[:.](\d\d)(?:[:.](\d\d))?\s*((?:[ap]\.?\s?m\b\.?)?)\]?\s*(?:[-–—:]\s)?\s*(.*)",
    re.I | re.S,
)
_SAID_BY = re.compile(r"([^:\n]{1,100}?):(?:\s(.*)|$)", re.S)
_NO_TEXT_LINE = re.compile(
    rf"[{_MARKS}]*(?:<[^<>\n]{{3,60}}>|[^\n]{{1,200}}\.\w{{2,5}} \([^()\n]{{3,60}}\))"
)
"""A line that stands for a file that was sent, or says that a message was edited."""


def list_export_files(path: Path) -> list[str]:
    """The names of the files in a folder or a zip file, sorted, relative to its top.

    Raises ``ValueError`` for a file that is not a zip file.
    """
    if path.is_dir():
        members = (member for member in path.rglob("*") if member.is_file())
        return sorted(member.relative_to(path).as_posix() for member in members)
    with _open_zip(path) as packed:
        listed = packed.namelist()[:_MAX_FILES]
        return sorted(name for name in listed if not name.endswith("/"))


@contextlib.contextmanager
def _open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(files.check_regular_file(path)) as packed:
            yield packed
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, UnicodeError, EOFError):
        raise ValueError(f"{path.name}: is not a readable zip file: it is damaged, or locked by a "
                         "password") from None  # fmt: skip


def _read_export_file(path: Path, name: str) -> bytes:
    """Read a file in a folder or a zip file; no more of it is unpacked than may be read."""
    if path.is_dir():
        with files.open_regular_file(path / name) as file:
            content = file.read(files.MAX_LINE_LENGTH + 1)
    else:
        with _open_zip(path) as packed, packed.open(name) as member:
            content = member.read(files.MAX_LINE_LENGTH + 1)
    if len(content) > files.MAX_LINE_LENGTH:
        raise BadRow("too long", f"is longer than {files.MAX_LINE_LENGTH >> 20} MiB")
    return content


# --------------------------------------------------------------------------- Slack


def is_slack_export(names: Iterable[str]) -> bool:
    """Whether these are the files of a workspace: a list of people or channels, and days."""
    listed = list(names)
    tops = {name.rpartition("/")[2] for name in listed}
    return bool(tops & {"users.json", "channels.json", "dms.json", "groups.json"}) and any(
        _DAY_FILE.fullmatch(name) for name in listed
    )


def read_slack_export(path: Path) -> Iterator[NumberedRow]:
    """The messages of a workspace, numbered, channel by channel and day by day.

    A conversation is a Slack thread, or else one day of a channel. The person is the id of the
    author. A bot answers: it speaks as "SYS", and is no person. Names of attached files are not
    text, and a mention becomes the name that people see.
    """
    names = list_export_files(path)
    members = _read_members(path, names)
    number = 0
    for name in names:
        day = _DAY_FILE.fullmatch(name)
        if not day:
            continue
        _, listed = read_record(number + 1, partial(_messages_of_day, path), name)
        if isinstance(listed, BadRow):
            number += 1
            yield number, listed
            continue
        for record in listed:
            number += 1
            read = partial(_slack_message, channel=day[1], day=day[2], members=members)
            row = read_record(number, read, record)
            if row[1]:
                yield row


def _messages_of_day(path: Path, name: str) -> list[Any]:
    """The messages in the file of one day of a channel; raises ``BadRow``."""
    try:
        listed = json.loads(_read_export_file(path, name))
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadRow):
            raise
        raise BadRow("not JSON", "is in the file of a day, which is not JSON") from None
    if not isinstance(listed, list):
        raise BadRow("not JSON", "is in the file of a day, which is not a list of messages")
    return listed


@dataclass(frozen=True)
class _Member:
    """A member of a workspace: the name that people see, and whether it is a program."""

    name: str = field(repr=False)
    is_bot: bool


def _read_members(path: Path, names: list[str]) -> dict[str, _Member]:
    """The members of a workspace, by id; those that are not as Slack writes them are left out."""
    members_file = next((name for name in names if name.rpartition("/")[2] == "users.json"), None)
    listed: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        listed = json.loads(_read_export_file(path, members_file)) if members_file else None
    members: dict[str, _Member] = {}
    for member in listed if isinstance(listed, list) else []:
        if not isinstance(member, dict):
            continue
        profile = member.get("profile")
        profile = profile if isinstance(profile, dict) else {}
        called = (profile.get("display_name"), profile.get("real_name"), member.get("name"))
        shown = next((name for name in called if isinstance(name, str) and name), "")
        number = str(member.get("id"))
        members[number] = _Member(shown, member.get("is_bot") is True or number == "USLACKBOT")
    return members


def _slack_message(
    record: Any, channel: str, day: str, members: Mapping[str, _Member]
) -> dict[str, Any]:
    """The row of a message; empty for a record that is not a message."""
    if not isinstance(record, dict):
        raise BadRow("not messages", "is not a JSON object")
    text = record.get("text")
    if record.get("subtype") in _NO_MESSAGES or record.get("type", "message") != "message":
        return {}
    if not isinstance(text, str) or not text.strip():
        if record.get("files") or record.get("attachments") or record.get("blocks"):
            return {}  # only a file or a card
        raise BadRow("no text", "has no text", "text")

    def shown(link: re.Match[str]) -> str:
        """A link as people see it."""
        sign, target, label = link[1], link[2], link[3]
        if sign == "@":
            member = members.get(target)
            return f"@{(member and member.name) or label or target}"
        return {"#": "#", "!": "@", "": ""}[sign] + (label or target.removeprefix("mailto:"))

    user = record.get("user")
    author = members.get(user) if isinstance(user, str) else None
    by_program = record.get("subtype") == "bot_message" or (
        author.is_bot if author else bool(record.get("bot_id"))
    )
    stamp = str(record.get("ts") or "")
    thread = record.get("thread_ts") or day
    return {
        "user": user,
        "thread": f"{channel}/{thread}",
        "speaker": "SYS" if by_program else "USR",
        BY_PROGRAM: by_program,
        "text": html.unescape(_SLACK_LINK.sub(shown, text)),
        "time": stamp.partition(".")[0] or None,
    }


# --------------------------------------------------------------------------- WhatsApp


def is_whatsapp_text(head: str) -> bool:
    """Whether a text begins like an exported chat: its first line has a time, and the first lines
    contain a message."""
    lines = [line for line in head.splitlines() if line.strip()][:30]
    stamped = [match for line in lines if (match := _WHATSAPP_LINE.fullmatch(line))]
    return bool(
        lines
        and _WHATSAPP_LINE.fullmatch(lines[0])
        and any(_SAID_BY.match(match[7]) for match in stamped)
    )


def split_whatsapp(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The messages of a chat. A line without a time continues the message before it. Notices that
    nobody wrote (who joined, that the chat is encrypted) and lines that stand for files are left
    out."""
    open_message: dict[str, Any] | None = None
    size = 0  # characters of its further lines
    for line in lines:
        match = _WHATSAPP_LINE.fullmatch(line.rstrip("\r\n"))
        if not match:
            if open_message is not None:
                size += len(line)
                if size > files.MAX_LINE_LENGTH:
                    raise ValueError(f"a message is longer than {files.MAX_LINE_LENGTH >> 20} MiB")
                open_message["lines"].append(line.rstrip("\r\n"))
            continue
        if open_message is not None:
            yield from _finished(open_message)
        open_message, size = None, 0
        spoken = _SAID_BY.fullmatch(match[7])
        if spoken and not (spoken[2] or "").startswith(("\u200e", "\u200f")):
            half_of_day = re.sub(r"[\s.]", "", match[6]).lower()
            time = f"{int(match[3])}:{match[4]}:{match[5] or '00'} {half_of_day}".strip()
            open_message = {
                "user": spoken[1].strip(_MARKS + " ~\u202f\xa0"),
                "thread": match[1],
                "lines": [spoken[2] or ""],
                "time": f"{match[1]} {time}",
            }
    if open_message is not None:
        yield from _finished(open_message)


def _finished(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a message without the lines that stand for files; nothing if no other line is left."""
    lines = message.pop("lines")
    kept_lines = [line for line in lines if not _NO_TEXT_LINE.fullmatch(line.strip())]
    text = re.sub(rf"\s*[{_MARKS}]<[^<>\n]{{5,60}}>$", "", "\n".join(kept_lines)).strip()
    if text or len(kept_lines) == len(lines):
        yield message | {"text": text}


def read_whatsapp_chats(paths: list[Path], encoding: str = "auto") -> Iterator[NumberedRow]:
    """The messages of exported chats, numbered; each day of a chat is one conversation. Chats are
    told apart by a number, because their file names contain the name of a person. ``encoding`` is
    that of text files; in a zip file, WhatsApp writes UTF-8."""
    number = 0
    for chat, path in enumerate(paths, 1):
        for chat_text in _open_whatsapp_texts(path, encoding):
            for message in split_whatsapp(files.read_bounded_lines(chat_text, path)):
                number += 1
                fault = decoding_fault(message["user"] + message["text"], encoding)
                yield number, fault or message | {"thread": f"chat-{chat} {message['thread']}"}


def _open_whatsapp_texts(path: Path, encoding: str) -> Iterator[IO[str]]:
    """The text of a chat, or the texts in a zip file, each open until the next is asked for."""
    if path.suffix.lower() != ".zip":
        with open_decoded(path, encoding, "\n") as text:
            yield text
        return
    for name in list_export_files(path):
        if name.endswith(".txt"):
            with _open_zip(path) as packed, packed.open(name) as raw:
                yield io.TextIOWrapper(raw, "utf-8-sig", errors="surrogateescape", newline="\n")
