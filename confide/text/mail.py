"""A mail is who wrote it, in which thread, and what.

>>> raw = b"From: Ann <Ann@Example.com>\\nMessage-ID: <2@x>\\nReferences: <1@x>\\n\\n"
>>> cells = parse_mail(raw + b"Thanks.\\n\\nOn Monday Bob wrote:\\n> Here it is.\\n", {})
>>> cells["user"], cells["thread"], cells["text"]
('ann@example.com', '<1@x>', 'Thanks.')
"""

from __future__ import annotations

import contextlib
import email
import hashlib
import mailbox
import re
from collections.abc import Iterable, Iterator
from email.header import decode_header, make_header
from email.message import Message
from email.utils import parseaddr
from pathlib import Path
from typing import Any

from crtlib import files
from crtlib.text.jsonl import BadRow, NumberedRow

# --------------------------------------------------------------------------- mail
_MESSAGE_ID = re.compile(r"<[^<>\s]{1,998}>")
_QUOTE_ANNOUNCEMENT = re.compile(
    r"[^\n]{0,200}(?:wrote|schrieb|a écrit|escribió|ha scritto)\s?:\s*"
)
_ORIGINAL_MESSAGE_LINE = re.compile(
    r"-{2,}\s?(?:Original Message|Forwarded message)\s?-{2,}\s*", re.I
)


def _mail_rows(mails: Iterable[bytes]) -> Iterator[NumberedRow]:
    """Mails in their order."""
    roots: dict[str, str] = {}
    for number, raw in enumerate(mails, 1):
        try:
            yield number, parse_mail(raw, roots)
        except BadRow as bad:
            yield number, bad


def _read_mail_file(path: Path) -> bytes:
    with files.open_plain_or_gzip(path) as file:
        return file.read(files.MAX_LINE_LENGTH)


def _read_mbox(path: Path) -> Iterator[bytes]:
    files.check_regular_file(path)
    with path.open("rb") as file:
        if not file.readline(1 << 16).startswith(b"From "):
            raise ValueError(f"{path}: is no mbox; its first line must begin with 'From '")
    with contextlib.closing(mailbox.mbox(path, create=False)) as box:
        yield from map(box.get_bytes, box.iterkeys())


def parse_mail(raw: bytes, roots: dict[str, str]) -> dict[str, Any]:
    """One mail as a row, without what it quotes; raises ``BadRow``. ``roots`` has the thread of
    each
    mail that was read or named before: some programs name no mail but the one they answer."""
    message = email.message_from_bytes(raw)

    def header(name: str) -> str:
        """A header in clear, as it stands where it cannot be decoded."""
        value = str(message.get(name, ""))[:10_000]
        with contextlib.suppress(LookupError, ValueError, AssertionError):
            value = str(make_header(decode_header(value)))
        return " ".join(value.encode("utf-8", "replace").decode().split())

    address = parseaddr(header("From"))[1].strip().lower()
    if not address:
        raise BadRow("no user", "has no sender", "From")
    ids = _MESSAGE_ID.findall(" ".join(map(header, ("References", "In-Reply-To", "Message-ID"))))
    text = strip_quotes(_plain_text_body(message))
    first = ids[0] if ids else f"<{hashlib.sha256(raw).hexdigest()[:16]}>"
    thread = next((roots[name] for name in ids if name in roots), first)
    roots |= dict.fromkeys(ids, thread)
    return {"user": address, "thread": thread, "time": header("Date") or None, "text": text}


def _plain_text_body(message: Message) -> str:
    """The first text/plain part that is no attachment."""
    for part in message.walk():
        if part.get_content_type() == "text/plain" and not part.get_filename():
            payload = part.get_payload(decode=True)
            content = payload if isinstance(payload, bytes) else b""
            for charset in (part.get_content_charset() or "utf-8", "utf-8"):
                with contextlib.suppress(LookupError, ValueError):
                    text = content.decode(charset)
                    text.encode()
                    return text.replace("\r\n", "\n")
            raise BadRow("not its charset", "has a text that is not in its charset")
    raise BadRow("no text", "has no text/plain part")


def strip_quotes(text: str) -> str:
    """A mail's own lines: without those that begin with ``>``, the line that announces them, and
    all that follows an "Original Message" line.

    >>> strip_quotes("I agree.\\n\\nOn Monday, Bob wrote:\\n> Shall we?\\nAnn")
    'I agree.\\n\\nAnn'
    """
    kept: list[str] = []
    for line in text.split("\n"):
        if _ORIGINAL_MESSAGE_LINE.fullmatch(line.strip()):
            break
        if line.startswith(">"):
            while kept and not kept[-1].strip():
                kept.pop()
            if kept and _QUOTE_ANNOUNCEMENT.fullmatch(kept[-1]):
                kept.pop()
        else:
            kept.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
