"""Files of other people's forms, read row by row: tables, JSON lines, datasets, plain text.

>>> import pathlib, tempfile
>>> path = pathlib.Path(tempfile.mkdtemp()) / "mails.csv"
>>> _ = path.write_text('customer;body\\nann;"Hi,\\nthere"\\nbob\\n')
>>> first, second = read(path, "csv")
>>> form(path), first, second[0], second[1].reason
('csv', (2, {'customer': 'ann', 'body': 'Hi,\\nthere'}), 3, 'another number of columns')
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from crtlib import files
from crtlib.text import hub, mail
from crtlib.text.messages import Bad

Row = tuple[int, dict[str, Any] | Bad]
"""A row by its number, as its owner counts: its cells by column, or what is wrong with it."""
FORMATS = (
    *("csv", "tsv", "parquet", "jsonl", "text-jsonl", "messages"),
    *("datasets", "mbox", "eml", "text"),
)
BATCH = 1_000
"""Rows of a Parquet file that are read at a time."""


def form(path: str | os.PathLike) -> str:
    """The format of a source by its name, or where that is silent by its first bytes.

    Raises ``ValueError`` for what is no regular file or folder, and for a form that is none of
    ``FORMATS``, with what would help.
    """
    if os.fspath(path).startswith("hub:"):
        return "datasets"
    path = Path(path)
    if path.is_dir():
        return _folder_form(path)
    files.check_regular(path)
    ends = {".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".parquet": "parquet", ".mbox": "mbox"}
    ends |= {".jsonl": "jsonl", ".ndjson": "jsonl", ".eml": "eml", ".txt": "text", ".md": "text"}
    suffixes = [s.lower() for s in path.suffixes if s.lower() != ".gz"]
    name = ends.get(suffixes[-1]) if suffixes else None
    with files.reading(path) as file:
        start = file.read(512)
    if start.startswith(b"PK\x03\x04"):
        raise ValueError(f"{path}: is an Excel file or an archive; save its table as CSV")
    if suffixes[-1:] == [".json"]:
        raise ValueError(f"{path}: is one JSON value; write one object a line and call it .jsonl")
    signs = {b"PAR1": "parquet", b"From ": "mbox", b"{": "jsonl"}
    name = name or next((f for sign, f in signs.items() if start.startswith(sign)), None)
    if name is None:
        raise ValueError(f"{path}: its format is not known; say --format {', '.join(FORMATS)}")
    return name


def _folder_form(path: Path) -> str:
    if any((path / name).is_file() for name in ("state.json", "dataset_dict.json")):
        return "datasets"
    for pattern, name in (("**/*.parquet", "datasets"), ("**/*.eml", "eml"), ("**/*.txt", "text")):
        if next(path.glob(pattern), None):
            return name
    raise ValueError(f"{path}: holds no dataset, no .parquet, .eml or .txt files")


def read(
    path: str | os.PathLike,
    form: str,
    *,
    encoding: str = "auto",
    quotes: str = "drop",
    split: str = "train",
) -> Iterator[Row]:
    """The rows of a source, one after another, in bounded memory.

    A row that cannot be read has a ``Bad`` instead of cells. ``split`` is that of a ``datasets``
    folder or of the hub. Raises ``ValueError`` where the source as a whole cannot be read.
    """
    if form not in FORMATS:
        raise ValueError(f"--format: {form!r} must be one of auto, {', '.join(FORMATS)}")
    if form == "datasets":
        return enumerate(_dataset(os.fspath(path), split), 1)
    if form in ("mbox", "eml"):
        return mail.rows(Path(path), form, quotes=quotes)
    if form in ("csv", "tsv"):
        return _table(Path(path), encoding, "\t" if form == "tsv" else None)
    if form == "parquet":
        return enumerate(_records(Path(path)), 1)
    return _text(Path(path), encoding) if form == "text" else _json(Path(path))


def codec(path: Path, encoding: str) -> str:
    """``encoding``, checked; for auto that of the byte order mark, else UTF-8."""
    if encoding != "auto":
        try:
            return codecs.lookup(encoding).name
        except LookupError:
            raise ValueError(f"--encoding: {encoding!r} is no codec that Python knows") from None
    with files.reading(path) as file:
        start = file.read(4)
    if start.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "utf-8-sig"


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


def _opened(path: Path, raw: Any, encoding: str) -> io.TextIOWrapper:
    """Text that goes on after a byte that is none: such a byte becomes a lone surrogate."""
    return io.TextIOWrapper(raw, codec(path, encoding), errors="surrogateescape", newline="")


def _table(path: Path, encoding: str, delimiter: str | None) -> Iterator[Row]:
    """A table with a header; row 1 is the header, as a spreadsheet counts."""
    csv.field_size_limit(max(csv.field_size_limit(), files.LONGEST))
    with files.reading(path) as raw, _opened(path, raw, encoding) as text:
        try:
            yield from _rows(path, text, delimiter)
        except UnicodeDecodeError:
            raise ValueError(
                f"{path.name}: is not {codec(path, encoding)}; see --encoding"
            ) from None


def _rows(path: Path, text: io.TextIOWrapper, delimiter: str | None) -> Iterator[Row]:
    lines = files.lines(text, path)
    first = next((line for line in lines if line.strip()), "")
    sign = delimiter or max(",;\t|", key=first.count)
    header = [name.strip() for name in next(csv.reader([first], delimiter=sign), [])]
    if not any(header):
        raise ValueError(f"{path.name}: is empty; a header and at least one row are needed")
    if _undecoded("".join(header)):
        raise ValueError(f"{path.name}: its header is not UTF-8; try --encoding cp1252")
    if len(set(header)) < len(header) or not all(header):
        raise ValueError(f"{path.name}: two columns have one name, or one has none")
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
                elif len(cells) == width:
                    yield number, dict(zip(header, cells, strict=True))
                else:
                    says = f"has {len(cells)} cells, the header has {width}"
                    yield number, Bad("another number of columns", says)
            return
        except csv.Error as error:
            number += 1
            open_quote = "unexpected end" in str(error) or "field larger" in str(error)
            says = "has a quote that is never closed" if open_quote else "has a quote out of place"
            yield number, Bad("a broken quote", says)


def _json(path: Path) -> Iterator[Row]:
    """One JSON object a line."""
    with files.reading(path) as file:
        for number, line in enumerate(files.lines(file, path), 1):
            if not line.strip():
                continue
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            try:
                record = json.loads(line)
            except UnicodeDecodeError as error:
                says = f"is not UTF-8 (byte 0x{line[error.start]:02X})"
                yield number, Bad("not UTF-8", says, encoding=True)
            except (json.JSONDecodeError, RecursionError):
                yield number, Bad("not JSON", "is not JSON")
            except ValueError:  # an integer of more than 4,300 digits
                yield number, Bad("not JSON", "holds a number that is too long")
            else:
                known = isinstance(record, dict)
                yield number, record if known else Bad("not a JSON object", "is not a JSON object")


def _text(path: Path, encoding: str) -> Iterator[Row]:
    """A file, or each .txt file of a folder, as one turn."""
    paths = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
    for number, one in enumerate(paths, 1):
        with files.reading(one) as raw, _opened(one, raw, encoding) as text:
            content = text.read(files.LONGEST)
        if len(content) == files.LONGEST:
            raise ValueError(
                f"{one}: is longer than {files.LONGEST >> 20} MiB, too long for a turn"
            )
        yield number, _undecoded(content) or {"text": content.strip()}


def _batches(path: Path, batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """The records of a file of ``datasets``."""
    try:
        for batch in batches:
            yield from batch.to_pylist()
    except UnicodeDecodeError:
        raise ValueError(f"{path}: holds strings that are not UTF-8") from None


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a Parquet file, or of an Arrow file as ``Dataset.save_to_disk`` writes it."""
    files.check_regular(path)
    form = "Arrow" if path.suffix == ".arrow" else "Parquet"
    try:
        if form == "Parquet":
            yield from _batches(path, pq.ParquetFile(path).iter_batches(batch_size=BATCH))
        else:
            with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as stream:
                yield from _batches(path, stream)
    except (pa.ArrowException, OSError, MemoryError):
        raise ValueError(f"{path}: is no {form} file, or damaged") from None


def _dataset(name: str, split: str) -> Iterator[dict[str, Any]]:
    """The records of a folder of ``datasets`` (saved, or of Parquet files), or of the hub."""
    if name.startswith("hub:"):
        yield from hub.rows(hub.address(name, split))
        return
    folder = Path(name)
    if (folder / "dataset_dict.json").is_file():
        folder /= split
        if not folder.is_dir():
            raise ValueError(f"--split: {name} has no split {split!r}")
    parquet = sorted(folder.rglob("*.parquet"))
    matching = [p for p in parquet if p.name.startswith(split) or p.parent.name == split]
    for path in _saved(folder) or matching or parquet:
        yield from _records(path)


def _saved(folder: Path) -> list[Path]:
    """The Arrow files of ``save_to_disk`` in their order; they must lie in the folder."""
    state = folder / "state.json"
    if not state.is_file():
        return []
    try:
        names = [entry["filename"] for entry in json.loads(state.read_bytes())["_data_files"]]
        paths = [folder / Path(name).name for name in names]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"{state}: does not list the files of a dataset") from None
    return paths
