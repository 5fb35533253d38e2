"""Files of other people's forms, row by row: tables, JSON lines, datasets, mail, plain text.

>>> import pathlib, tempfile
>>> path = pathlib.Path(tempfile.mkdtemp()) / "mails.csv"
>>> _ = path.write_text('customer;body\\nann;"Hi,\\nthere"\\nbob\\n')
>>> first, second = read(path, "csv", How())
>>> form(path), first, second[0], second[1].reason
('csv', (2, {'customer': 'ann', 'body': 'Hi,\\nthere'}), 3, 'another number of columns')

A mail is who wrote it, in which thread, and what.

>>> raw = b"From: Ann <Ann@Example.com>\\nMessage-ID: <2@x>\\nReferences: <1@x>\\n\\n"
>>> cells = mail(raw + b"Thanks.\\n\\nOn Monday Bob wrote:\\n> Here it is.\\n", {})
>>> cells["user"], cells["thread"], cells["text"]
('ann@example.com', '<1@x>', 'Thanks.')
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import email
import hashlib
import io
import itertools
import mailbox
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from email.header import decode_header, make_header
from email.message import Message
from email.utils import parseaddr
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from crtlib import files
from crtlib.files import Named
from crtlib.options import Count, Share, value
from crtlib.text import records
from crtlib.text.records import Bad, Row

FORMATS = ("csv", "tsv", "parquet", "jsonl", "hub", "mbox", "eml", "text")
ENDS = {".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".parquet": "parquet", ".mbox": "mbox"}
ENDS |= {".jsonl": "jsonl", ".ndjson": "jsonl", ".eml": "eml", ".txt": "text", ".md": "text"}
"""The format that the end of a name says."""
OTHERS = {
    ".xlsx": "is an Excel file or an archive; save its table as CSV",
    ".json": "is one JSON value; write one object a line and call it .jsonl",
}
FOLDERS = {"parquet": ".parquet", "eml": ".eml", "text": ".txt"}
"""The formats of which a folder is a source, and the files that are read in it."""
HEADER = "the header again"
"""Why a row is left out that is no loss."""
BATCH = 1_000
"""Rows of a Parquet file that are read at a time."""


@value
class How:
    """How sources are read. ``format`` is one of ``FORMATS``; ``columns`` names those of a
    table that are not to be guessed. ``no_users``: each thread is a user, or where ``columns``
    names the user, each thread in which nobody is named. ``agents``: people, addresses or
    @domains that answer others, in whose threads they are no person of their own. ``dates``:
    whether 3/4/2026 is "dmy" or "mdy". ``rename``: new names of columns of a CSV file by their
    numbers. ``split`` is that of the hub or of a folder of Parquet files. ``max_bad`` is a share
    of rows, ``limit`` a number of rows."""

    format: str = "auto"
    columns: Mapping[str, str | None] = field(default_factory=dict)
    no_users: bool = False
    agents: Sequence[str] = ()
    dates: Literal["auto", "dmy", "mdy"] = "auto"
    rename: Mapping[str, str] = field(default_factory=dict)
    encoding: str = "auto"
    skip_bad: bool = False
    max_bad: Share = 0.05
    limit: Count | None = None
    split: str = "train"

    def __post_init__(self) -> None:
        if not self.split.isidentifier():
            raise ValueError(f"--split: {self.split!r} must be letters, digits and '_'")
        if self.agents and self.no_users and not self.columns.get("user"):
            raise ValueError(f"--agents: {self.agents!r} must be left out with --no-users")


def form(path: Named) -> str:
    """The format of a source by its name.

    Raises ``ValueError`` for a folder without files to read, and for a name that says none of
    ``FORMATS``, with what would help.
    """
    if os.fspath(path).startswith("hub:"):
        return "hub"
    path = Path(path)
    if path.is_dir():
        for name, end in FOLDERS.items():
            if next(path.glob(f"**/*{end}"), None):
                return name
        raise ValueError(f"{path}: holds no {', '.join(FOLDERS.values())} files")
    end = Path(path.name.lower().removesuffix(".gz")).suffix
    if end not in ENDS:
        formats = ", ".join(FORMATS)
        hint = OTHERS.get(end, f"its format is not known; say --format {formats}")
        raise ValueError(f"{path}: {hint}")
    return ENDS[end]


def read(path: Named, form: str, how: How) -> Iterator[Row]:
    """The rows of a source, one after another, in bounded memory (of mail, the ids are kept).

    A row that cannot be read has a ``Bad`` instead of cells. Raises ``ValueError`` where the source
    as a whole cannot be read.
    """
    split, encoding = how.split, how.encoding
    if form not in FORMATS:
        raise ValueError(f"--format: {form!r} must be one of auto, {', '.join(FORMATS)}")
    if how.rename and form not in ("csv", "tsv"):
        raise ValueError(f"--rename: is for columns of csv and tsv, {path} is {form}")
    if form == "hub":
        return enumerate(_hub(address(os.fspath(path), split)), 1)
    path = Path(path)
    if form in ("csv", "tsv"):
        return _table(path, encoding, "\t" if form == "tsv" else None, how.rename)
    if form == "jsonl":
        return records.json_lines(path)
    if form == "mbox":
        return _mails(_box(path))
    paths = sorted(path.rglob(f"*{FOLDERS[form]}")) if path.is_dir() else [path]
    if form == "parquet":
        of_split = [p for p in paths if p.name.startswith(split) or p.parent.name == split]
        return enumerate(itertools.chain.from_iterable(map(_records, of_split or paths)), 1)
    return _texts(paths, encoding) if form == "text" else _mails(map(_mail_file, paths))


# --------------------------------------------------------------------------- text
@contextlib.contextmanager
def _decoded(path: Path, encoding: str) -> Iterator[io.TextIOWrapper]:
    """A file as text, by ``encoding`` or, for auto, by its byte order mark, else UTF-8. It goes on
    after a byte that is none: such a byte becomes a lone surrogate."""
    with files.reading(path) as raw:
        start = raw.read(4)
        raw.seek(0)
        name = "utf-8-sig"
        if encoding != "auto":
            try:
                name = codecs.lookup(encoding).name
            except LookupError:
                says = f"{encoding!r} is no codec that Python knows"
                raise ValueError(f"--encoding: {says}") from None
        elif start.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
            name = "utf-32"
        elif start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            name = "utf-16"
        try:
            yield io.TextIOWrapper(raw, name, errors="surrogateescape", newline="")
        except UnicodeDecodeError:
            raise ValueError(f"{path.name}: is not {name}; see --encoding") from None


def _undecoded(text: str) -> Bad | None:
    """What is wrong with a text that was decoded with "surrogateescape"."""
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) - 0xDC00
        if 0x80 <= byte <= 0xFF:
            return Bad("not UTF-8", f"is not UTF-8 (byte 0x{byte:02X})", encoding=True)
        return Bad("half a surrogate pair", "holds half a surrogate pair")
    return None


def _table(
    path: Path, encoding: str, delimiter: str | None, rename: Mapping[str, str]
) -> Iterator[Row]:
    """A table with a header; row 1 is the header, as a spreadsheet counts. It may come again."""
    csv.field_size_limit(max(csv.field_size_limit(), files.LONGEST))
    with _decoded(path, encoding) as text:
        lines = files.lines(text, path)
        first = next(filter(str.strip, lines), "")
        sign = delimiter or max(",;\t|", key=first.count)
        again = [name.strip() for name in next(csv.reader([first], delimiter=sign), [])]
        places = [str(k + 1) for k in range(len(again))]
        if wrong := next((place for place in rename if place not in places), None):
            raise ValueError(f"--rename: {wrong!r} must be a column's number, 1 to {len(again)}")
        header = [rename.get(place, name) for place, name in zip(places, again, strict=True)]
        if not any(header):
            raise ValueError(f"{path.name}: is empty; a header and at least one row are needed")
        if _undecoded("".join(header)):
            raise ValueError(f"{path.name}: its header is not UTF-8; try --encoding cp1252")
        for k, name in enumerate(header):
            if name in header[:k] or not name:
                says = f"and {header.index(name) + 1} have one name" if name else "has no name"
                what = f"column{'s' * bool(name)} {k + 1} {says}"
                raise ValueError(f"{path.name}: {what}; --rename {k + 1}=NAME gives it another")
        reader = csv.reader(lines, delimiter=sign, strict=True)
        number, width = 1, len(header)
        while True:
            try:
                for cells in reader:
                    if not cells:
                        continue
                    number += 1
                    if bad := _undecoded("".join(cells)):
                        yield number, bad
                    elif cells[0].strip() == again[0] and [cell.strip() for cell in cells] == again:
                        yield number, Bad(HEADER, "is the header again")
                    elif len(cells) == width:
                        yield number, dict(zip(header, cells, strict=False))
                    else:
                        says = f"has {len(cells)} cells, the header has {width}"
                        yield number, Bad("another number of columns", says)
                return
            except csv.Error as error:
                number += 1
                unclosed = "unexpected end" in str(error) or "field larger" in str(error)
                where = "that is never closed" if unclosed else "out of place"
                yield number, Bad("a broken quote", f"has a quote {where}")


def _texts(paths: Sequence[Path], encoding: str) -> Iterator[Row]:
    """Each file as one turn."""
    for number, one in enumerate(paths, 1):
        with _decoded(one, encoding) as text:
            content = text.read(files.LONGEST)
        if len(content) == files.LONGEST:
            size = files.LONGEST >> 20
            raise ValueError(f"{one}: is longer than {size} MiB, too long for a turn")
        yield number, _undecoded(content) or {"text": content.strip()}


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a Parquet file."""
    files.check_regular(path)
    try:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=BATCH):
            yield from batch.to_pylist()
    except UnicodeDecodeError:
        raise ValueError(f"{path}: holds strings that are not UTF-8") from None
    except (pa.ArrowException, OSError, MemoryError):
        raise ValueError(f"{path}: is no Parquet file, or damaged") from None


def address(name: str, split: str) -> str:
    """Where the hub keeps a split as Parquet: it converts every dataset to that on a branch.

    >>> address("hub:ada/own", "train")
    'hf://datasets/ada/own@refs/convert/parquet/default/train/*.parquet'
    """
    parts = name.removeprefix("hub:").split("/")
    if len(parts) not in (2, 3) or not all(re.fullmatch(r"[\w.-]+", p) for p in (*parts, split)):
        raise ValueError(f"{name}: must be hub:owner/name[/configuration], its --split a name")
    owner, repository, configuration = [*parts, "default"][:3]
    where = f"{owner}/{repository}@refs/convert/parquet/{configuration}/{split}"
    return f"hf://datasets/{where}/*.parquet"


def _hub(files: str) -> Iterator[dict[str, Any]]:
    """The rows of Parquet files on the hub."""
    try:
        import datasets
    except ImportError:
        raise ValueError(f"{files}: needs the package datasets (pip install datasets)") from None
    try:
        table = datasets.load_dataset("parquet", data_files=files, split="train")
    except Exception as error:  # the hub's, the network's and Arrow's errors have no common base
        raise ValueError(f"{files}: cannot be read ({type(error).__name__})") from error
    yield from table


# --------------------------------------------------------------------------- mail
_ID = re.compile(r"<[^<>\s]{1,998}>")
_WROTE = re.compile(r"[^\n]{0,200}(?:wrote|schrieb|a écrit|escribió|ha scritto)\s?:\s*")
_ORIGINAL = re.compile(r"-{2,}\s?(?:Original Message|Forwarded message)\s?-{2,}\s*", re.I)


def _mails(mails: Iterable[bytes]) -> Iterator[Row]:
    """Mails in their order."""
    roots: dict[str, str] = {}
    for number, raw in enumerate(mails, 1):
        try:
            yield number, mail(raw, roots)
        except Bad as bad:
            yield number, bad


def _mail_file(path: Path) -> bytes:
    with files.reading(path) as file:
        return file.read(files.LONGEST)


def _box(path: Path) -> Iterator[bytes]:
    files.check_regular(path)
    with path.open("rb") as file:
        if not file.readline(1 << 16).startswith(b"From "):
            raise ValueError(f"{path}: is no mbox; its first line must begin with 'From '")
    with contextlib.closing(mailbox.mbox(path, create=False)) as box:
        yield from map(box.get_bytes, box.iterkeys())


def mail(raw: bytes, roots: dict[str, str]) -> dict[str, Any]:
    """One mail as a row, without what it quotes; raises ``Bad``. ``roots`` has the thread of each
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
        raise Bad("no user", "has no sender", "From")
    ids = _ID.findall(" ".join(map(header, ("References", "In-Reply-To", "Message-ID"))))
    text = without_quotes(_body(message))
    first = ids[0] if ids else f"<{hashlib.sha256(raw).hexdigest()[:16]}>"
    thread = next((roots[name] for name in ids if name in roots), first)
    roots |= dict.fromkeys(ids, thread)
    return {"user": address, "thread": thread, "time": header("Date") or None, "text": text}


def _body(message: Message) -> str:
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
