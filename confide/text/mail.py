"""Read mails as rows: who wrote each, in which thread, and what.

>>> raw = b"From: Ann <Ann@Example.com>\\nMessage-ID: <2@x>\\nReferences: <1@x>\\n\\n"
>>> cells = parse_mail(raw + b"Thanks.\\n\\nOn Monday Bob wrote:\\n> Here it is.\\n", {})
>>> cells["user"], cells["thread"], cells["text"]
('ann@example.com', '<1@x>', 'Thanks.')
"""

from __future__ import annotations

import base64
import codecs
import contextlib
import email
import email.errors
import hashlib
import quopri
import re
from collections import deque
from collections.abc import Iterator
from email.header import decode_header, make_header
from email.message import Message
from email.utils import parseaddr
from pathlib import Path
from typing import Any

from confide.text.html_text import html_to_text
from confide.text.quotes import strip_quotes
from crtlib import files
from crtlib.text.jsonl import BadRow, NumberedRow, read_record

# --------------------------------------------------------------------------- mail
QUOTED_LINES = "quoted lines"
"""The cell of a mail that holds how many lines were left out as quotations."""
_MESSAGE_ID = re.compile(r"<[^<>\s]{1,998}>")
_ATTACHED_LINE = re.compile(
    r"^[ \t]*(?:\[(?:image|cid)\s?:[^\]\n]{0,400}\]|<[^<>\n]{1,200}\.\w{2,5}>)[ \t]*$\n?",
    re.I | re.M,
)
"""A line with the name of an image or an attachment, as programs write it into plain text."""
_SEPARATOR_LINE = re.compile(rb"From \S+ .*\d{4}( [+-]?\w{1,5})?\s*")
"""The line that begins a mail in an mbox, after an empty line. It ends in a year, or in a zone
after it."""
_ESCAPED_FROM_LINE = re.compile(rb">+From ")
"""A line that began with "From ", or ">From " and so on, as an mbox holds it: with one more ">"."""
_TRANSFER_ENCODING = "Content-Transfer-Encoding"
_LONGEST_TOKEN = 200
_COMMENT = re.compile(r"\([^()]*\)")
_AROUND_TOKEN = "\"' \t\r\n;"
_PADDED_SOFT_BREAK = re.compile(rb"=[ \t]+(?=\r?\n)")
"""The sign that a line of quoted-printable goes on, with space that was added on the way."""
_ESCAPE = re.compile(r"\x1b(?:\$|\([IJ])|~\{[!-}][^\n]{1,200}~\}")
"""Where other characters begin in a text of ISO 2022 or HZ, whose bytes are all ASCII."""
_CODECS_WITH_ESCAPES = frozenset(
    ["hz", "iso2022_kr", "iso2022_jp", *(f"iso2022_jp_{k}" for k in ("1", "2", "2004", "3", "ext"))]
)
_READ_AS = {
    **{"iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "tis-620": "cp874"},
    **{"gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949"},
}
"""The codecs by which all mail programs and browsers read a charset: what is written under its name
holds characters of the larger one. See https://encoding.spec.whatwg.org/#names-and-labels."""
_UNREADABLE_HEADER = (LookupError, ValueError, AssertionError, email.errors.MessageError)


def read_mail_files(paths: list[Path]) -> Iterator[NumberedRow]:
    """Files of one mail each."""
    roots: dict[str, str] = {}
    for path in paths:
        files.check_regular_file(path)
    for number, path in enumerate(paths, 1):
        yield read_record(number, lambda path: parse_mail(_read_mail_file(path), roots), path)


def _read_mail_file(path: Path) -> bytes:
    with files.open_plain_or_gzip(path) as file:
        return _join_lines([file.read(files.MAX_LINE_LENGTH + 1)])


def read_mailbox(path: Path) -> Iterator[NumberedRow]:
    """The mails of an mbox, in order."""
    roots: dict[str, str] = {}
    for number, lines in enumerate(_split_mailbox(path), 1):
        yield read_record(number, lambda lines: parse_mail(_join_lines(lines), roots), lines)


def _split_mailbox(path: Path) -> Iterator[list[bytes]]:
    """The lines of each mail in an mbox, plain or gzipped, without the line that begins it.

    A mail begins at the first line of the file, and after an empty line at one of the form "From
    ADDRESS DATE", which ends in a year. So a sentence that begins with "From" does not begin a
    mail. Of a mail that is too long, just enough lines are kept for it to be found too long later.
    """
    lines: list[bytes] = []
    size, first, after_empty = 0, True, True
    with files.open_plain_or_gzip(path) as file:
        for line in files.read_bounded_lines(file, path):
            if first and not line.startswith(b"From "):
                raise ValueError(f"{path}: is not an mbox; its first line must begin with 'From '")
            if first or (after_empty and _SEPARATOR_LINE.fullmatch(line)):
                if not first:
                    yield lines
                lines, size, first = [], 0, False
            elif size <= files.MAX_LINE_LENGTH:
                lines.append(line)
                size += len(line)
            after_empty = not line.strip()
    if first:
        raise ValueError(f"{path}: is not an mbox; its first line must begin with 'From '")
    yield lines


def _join_lines(lines: list[bytes]) -> bytes:
    """A mail as it was sent, from its lines in an mbox, or from all of its file in one piece."""
    if sum(map(len, lines)) > files.MAX_LINE_LENGTH:
        raise BadRow("too long", f"is longer than {files.MAX_LINE_LENGTH >> 20} MiB")
    return b"".join(line[1:] if _ESCAPED_FROM_LINE.match(line) else line for line in lines)


def parse_mail(raw: bytes, roots: dict[str, str]) -> dict[str, Any]:
    """Parse one mail as a row, without what it quotes, whose lines are counted; raises ``BadRow``.
    ``roots`` maps the id of each mail that was read or referred to before to its thread, since some
    programs refer only to the mail they answer. A sender without an address is identified by the
    whole content of the header.

    >>> cells = parse_mail(b"From: eric at cloud.com\\n\\nHi.\\n> Hello\\n", {})
    >>> cells["user"], cells["text"], cells[QUOTED_LINES]
    ('eric at cloud.com', 'Hi.', 1)
    """
    message = email.message_from_bytes(raw)

    def header(name: str) -> str:
        """A header, decoded if possible."""
        value = str(message.get(name, ""))[:10_000]
        with contextlib.suppress(*_UNREADABLE_HEADER):
            value = str(make_header(decode_header(value)))
        return " ".join(value.encode("utf-8", "replace").decode().split())

    sender = header("From")
    address = parseaddr(sender)[1].strip()
    if "@" not in address:
        address = sender
    if not address:
        raise BadRow("no user", "has no sender", "From")
    ids = _MESSAGE_ID.findall(" ".join(map(header, ("References", "In-Reply-To", "Message-ID"))))
    body = _body_text(message)
    text, quoted = strip_quotes(body)
    first = ids[0] if ids else f"<{hashlib.sha256(raw).hexdigest()[:16]}>"
    thread = next((roots[name] for name in ids if name in roots), first)
    roots |= dict.fromkeys(ids, thread)
    cells = {"user": address.lower(), "thread": thread, "time": header("Date") or None}
    return {**cells, "text": text, QUOTED_LINES: quoted}


def _body_text(message: Message) -> str:
    """The text of a mail: its first plain text that is neither attached nor blank, else its first
    HTML part, as a reader sees it. An attached mail is a mail of its own."""
    parts = list(_own_parts(message))
    for kind, as_text in (("text/plain", str), ("text/html", html_to_text)):
        for part in parts:
            if part.get_content_type() == kind:
                text = as_text(_decoded_text(part))
                if text.strip():
                    return _ATTACHED_LINE.sub("", text)
    raise BadRow("no text", "has no part with text")


def _own_parts(message: Message) -> Iterator[Message]:
    """The parts of a mail that are neither attachments nor parts of a mail inside it."""
    within = deque([message])
    while within:
        part = within.popleft()
        if part.get_filename() or part.get_content_disposition() == "attachment":
            continue
        payload = part.get_payload()
        if part.get_content_maintype() == "message":
            continue
        if isinstance(payload, list):
            within.extendleft(inner for inner in reversed(payload) if isinstance(inner, Message))
        else:
            yield part


def _decoded_text(part: Message) -> str:
    """The text of a part: without its transfer encoding, by its charset, and with the lines that
    ``format=flowed`` broke put together again."""
    content = _without_transfer_encoding(part)
    for charset in _codecs_of_charset(_header_token(part.get_content_charset() or "")):
        with contextlib.suppress(LookupError, ValueError):
            text = content.decode(charset)
            text.encode()
            if charset in _CODECS_WITH_ESCAPES or not _ESCAPE.search(text):
                return _join_flowed_lines(part, text.replace("\r\n", "\n"))
    raise BadRow("not its charset", "has a text that is not in its charset")


def _header_token(value: str) -> str:
    """The word that a header or one of its parameters holds, in small letters, as RFC 2045 reads
    it: without comments, quotation marks and the space around it.

    >>> _header_token(' "Quoted-Printable"  (by our (old) gateway) ')
    'quoted-printable'
    """
    token = value[:_LONGEST_TOKEN]
    while (without := _COMMENT.sub(" ", token)) != token:
        token = without
    return token.strip(_AROUND_TOKEN).lower()


def _without_transfer_encoding(part: Message) -> bytes:
    """The content of a part before it was encoded for its way.

    Guarantee:
        No text is read while it is still encoded, where no search would find a secret in it: a part
        that is not in the encoding that it names, or names one that RFC 2045 does not have, is
        refused. Test: ``tests/text/test_mail_encodings.py``.
    """
    names = {_header_token(str(value)) for value in part.get_all(_TRANSFER_ENCODING, [])}
    del part[_TRANSFER_ENCODING]  # else Python decodes it, and leaves out what it cannot decode
    payload = part.get_payload(decode=True)
    content = payload if isinstance(payload, bytes) else b""
    encoding = names.pop() if len(names) == 1 else "" if not names else "more than one"
    if encoding in ("", "7bit", "8bit", "binary"):
        return content
    if encoding == "quoted-printable":
        return quopri.decodestring(_PADDED_SOFT_BREAK.sub(b"=", content))
    with contextlib.suppress(ValueError):
        if encoding == "base64":
            return base64.b64decode(b"".join(content.split()), validate=True)
    raise BadRow("not its transfer encoding", "has a text that is not in its transfer encoding")


def _codecs_of_charset(charset: str) -> tuple[str, ...]:
    """The codecs by which a text with this charset is read, in their order. A text without a known
    charset is read as UTF-8; one that says it is ASCII, though it is not, may be cp1252 as well."""
    try:
        codec = codecs.lookup(charset or "utf-8").name
    except (LookupError, ValueError):
        return ("utf-8",)
    return ("utf-8", "cp1252") if codec == "ascii" else (_READ_AS.get(codec, codec), "utf-8")


def _join_flowed_lines(part: Message, text: str) -> str:
    """A text of ``format=flowed`` (RFC 3676) with its paragraphs whole; any other as it is.

    A line that ends in a space goes on in the next one, if both are quoted as deeply. The line
    before a signature, ``-- ``, ends a paragraph.
    """
    if part.get_content_type() != "text/plain" or _parameter(part, "format") != "flowed":
        return text
    without_space = _parameter(part, "delsp") == "yes"
    joined: list[str] = []
    depth_before, goes_on = 0, False
    for line in text.split("\n"):
        content = line.lstrip(">")
        depth = len(line) - len(content)
        content = content.removeprefix(" ")  # which keeps ">" and "From" apart from their meaning
        is_signature = content.rstrip("\r") == "-- "
        if goes_on and depth == depth_before and not is_signature:
            last = joined[-1].removesuffix(" ") if without_space else joined[-1]
            joined[-1] = last + content
        else:
            quotation = ">" * depth + " " if depth else ""
            joined.append(quotation + content)
        depth_before, goes_on = depth, content.endswith(" ") and not is_signature
    return "\n".join(joined)


def _parameter(part: Message, name: str) -> str:
    """The value of a parameter of the header Content-Type; empty if it is not there."""
    value = part.get_param(name, "")
    return _header_token(value if isinstance(value, str) else "")
