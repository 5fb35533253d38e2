"""Mails: an mbox, or files in the Internet message format; who wrote, in which thread, and what.

>>> raw = b"From: Ann <Ann@Example.com>\\nMessage-ID: <2@x>\\nReferences: <1@x>\\n\\n"
>>> cells = parse(raw + b"Thanks.\\n\\nOn Monday Bob wrote:\\n> Here it is.\\n")
>>> cells["user"], cells["thread"], cells["text"]
('ann@example.com', '<1@x>', 'Thanks.')
"""

from __future__ import annotations

import contextlib
import email
import hashlib
import mailbox
import re
from collections.abc import Iterator
from email.header import decode_header, make_header
from email.message import Message
from email.utils import parseaddr
from pathlib import Path
from typing import Any

from crtlib import files
from crtlib.text.messages import Bad

COLUMNS = ("user", "thread", "time", "subject", "text")
_ID = re.compile(r"<[^<>\s]{1,998}>")
_WROTE = re.compile(r"[^\n]{0,200}(?:wrote|schrieb|a écrit|escribió|ha scritto)\s?:\s*")
_ORIGINAL = re.compile(r"-{2,}\s?(?:Original Message|Forwarded message)\s?-{2,}\s*", re.I)


def rows(
    path: Path, form: str, *, quotes: str = "drop"
) -> Iterator[tuple[int, dict[str, Any] | Bad]]:
    """The mails of an mbox, of one .eml file or of a folder of them, in order."""
    if quotes not in ("drop", "keep"):
        raise ValueError(f"--quotes: {quotes!r} must be drop or keep")
    for number, raw in enumerate(_raw(path, form), 1):
        try:
            yield number, parse(raw, quotes=quotes)
        except Bad as bad:
            yield number, bad


def _raw(path: Path, form: str) -> Iterator[bytes]:
    if form == "eml":
        for one in sorted(path.rglob("*.eml")) if path.is_dir() else [path]:
            with files.reading(one) as file:
                yield file.read(files.LONGEST)
        return
    files.check_regular(path)
    with path.open("rb") as file:
        if not file.readline(1 << 16).startswith(b"From "):
            raise ValueError(f"{path}: is no mbox; its first line must begin with 'From '")
    box = mailbox.mbox(path, create=False)
    try:
        for key in box.iterkeys():
            yield box.get_bytes(key)
    finally:
        box.close()


def parse(raw: bytes, *, quotes: str = "drop") -> dict[str, Any]:
    """One mail as a row with the cells ``COLUMNS``; raises ``Bad``."""
    message = email.message_from_bytes(raw)
    address = parseaddr(_header(message, "From"))[1].strip().lower()
    if not address:
        raise Bad("no user", "has no sender", "From")
    ids = _ID.findall(
        " ".join(_header(message, name) for name in ("References", "In-Reply-To", "Message-ID"))
    )
    text = _body(message)
    return {
        "user": address,
        "thread": ids[0] if ids else f"<{hashlib.sha256(raw).hexdigest()[:16]}>",
        "time": _header(message, "Date") or None,
        "subject": _header(message, "Subject"),
        "text": without_quotes(text) if quotes == "drop" else text.strip(),
    }


def _header(message: Message, name: str) -> str:
    """A header in clear, as it stands where it cannot be decoded."""
    value = str(message.get(name, ""))[:10_000]
    with contextlib.suppress(LookupError, ValueError, AssertionError):
        value = str(make_header(decode_header(value)))
    return " ".join(value.encode("utf-8", "replace").decode().split())


def _body(message: Message) -> str:
    """The first text/plain part that is no attachment."""
    for part in message.walk():
        if part.get_content_type() == "text/plain" and not part.get_filename():
            payload = part.get_payload(decode=True)
            content = payload if isinstance(payload, bytes) else b""
            for charset in (part.get_content_charset() or "utf-8", "utf-8"):
                try:
                    text = content.decode(charset)
                    text.encode()
                    return text.replace("\r\n", "\n")
                except (LookupError, ValueError):
                    continue
            raise Bad("not its charset", "has a text that is not in its charset")
    raise Bad("no text", "has no text/plain part")


def without_quotes(text: str) -> str:
    """A mail's own lines: without those that begin with ``>``, the line that announces them, and
    all that follows an "Original Message" line.

    >>> without_quotes("I agree.\\n\\nOn Monday, Bob wrote:\\n> Shall we?\\nAnn")
    'I agree.\\n\\nAnn'
    """
    kept: list[str] = []
    for line in text.split("\n"):
        if _ORIGINAL.fullmatch(line.strip()):
            break
        if line.startswith(">"):
            while kept and not kept[-1].strip():
                kept.pop()
            if kept and _WROTE.fullmatch(kept[-1]):
                kept.pop()
        else:
            kept.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
