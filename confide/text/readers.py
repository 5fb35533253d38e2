"""Read other people's files row by row: tables, JSON lines, datasets, mail, chats, plain text.

>>> import pathlib, tempfile
>>> path = pathlib.Path(tempfile.mkdtemp()) / "mails.csv"
>>> _ = path.write_text('customer;body\\nann;"Hi,\\nthere"\\nbob\\n')
>>> first, second = read_rows(path, "csv", IngestOptions())
>>> format_by_name(path), first, second[0], second[1].reason
('csv', (2, {'customer': 'ann', 'body': 'Hi,\\nthere'}), 3, 'another number of columns')
"""

from __future__ import annotations

import csv
import itertools
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from confide.text import chats
from confide.text.columns import RECORD_NAMES, comparable_name, may_have_role
from confide.text.decoding import (
    codec_of_mark,
    decoding_fault,
    describe_encoding_remedy,
    name_of_encoding,
    open_decoded,
)
from confide.text.mail import read_mail_files, read_mailbox
from crtlib import files
from crtlib.arguments import argument, argument_error
from crtlib.checks import find_repeated_name, raise_machine_fault
from crtlib.files import StrPath
from crtlib.options import OptionWouldHelp
from crtlib.text import jsonl
from crtlib.text.corpora import REFUSED_SUFFIXES
from crtlib.text.jsonl import BadRow, NumberedRow, read_record
from crtlib.values import PositiveInt, Probability, checked_dataclass

SOURCE_FORMATS = (
    *("csv", "tsv", "parquet", "jsonl", "hub", "mbox", "eml", "text", "lines"),
    *("slack", "whatsapp"),
)
FORMAT_OF_SUFFIX = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".parquet": "parquet",
    ".mbox": "mbox",
}
FORMAT_OF_SUFFIX |= {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".eml": "eml",
    ".txt": "text",
    ".md": "text",
}
"""The format that a file name's suffix stands for."""
ENCODED_FORMATS = ("csv", "tsv", "jsonl", "text", "lines", "whatsapp")
"""The formats that ``--encoding`` applies to; the others declare or fix their own encoding. So does
a zip file of WhatsApp, which is in UTF-8."""
FOLDER_SUFFIXES = {"parquet": ".parquet", "eml": ".eml", "text": ".txt", "whatsapp": ".txt"}
"""The formats for which a folder can be the source, and the suffix of the files read in it."""
REPEATED_HEADER = "the header again"
"""The reason for leaving out a row that repeats the header, which loses nothing."""
_SEPARATOR_LINE = re.compile(r"sep=(\t|[^\w\s\"])", re.IGNORECASE)
"""The line that Excel may write before the header, to name the separator."""
_SPLIT_NAMES = frozenset(
    ["train", "training", "validation", "valid", "val", "dev", "eval", "test", "testing"]
)
"""The usual names of splits."""
PARQUET_BATCH_ROWS = 1_000
"""Rows of a Parquet file that are read at a time."""


@checked_dataclass
class IngestOptions:
    """How sources are read.

    ``format`` is one of ``SOURCE_FORMATS``, or "auto". ``columns`` names a table's columns by role;
    the others are guessed. ``no_users``: each conversation counts as a user; where ``columns``
    names the user, this applies only to conversations in which nobody is named. ``agents``: people,
    addresses or @domains that answer others; they do not count as users. ``dates``: whether
    3/4/2026 is "dmy" or "mdy". ``rename`` maps the numbers of columns of a CSV file to new names.
    ``drop_quotes``: leave quotations out of tables and exported chats too; out of mail they always
    are. ``split``: which split to read from the hub or from a folder of Parquet files. ``max_bad``
    is a share of rows, ``limit`` a number of rows."""

    format: str = "auto"
    columns: Mapping[str, str | None] = field(default_factory=dict)
    no_users: bool = False
    agents: Sequence[str] = field(default=(), repr=False)
    dates: Literal["auto", "dmy", "mdy"] = "auto"
    rename: Mapping[str, str] = field(default_factory=dict, repr=False)
    encoding: str = "auto"
    drop_quotes: bool = False
    skip_bad: bool = False
    max_bad: Probability = 0.05
    limit: PositiveInt | None = None
    split: str = "train"

    def __post_init__(self) -> None:
        if not self.split.isidentifier():
            raise argument_error("split", f"{self.split!r} must be letters, digits and '_'")
        if self.agents and self.no_users and not self.columns.get("user"):
            left_out = f"must be left out with {argument('no_users', True)}"
            raise argument_error("agents", f"{self.agents!r} {left_out}")


def format_by_name(path: StrPath) -> str:
    """The format of a source, judged by its name; for a folder, .txt or .zip also by its content.

    Raises ``ValueError`` for a folder without files to read and for a name that matches none of
    ``SOURCE_FORMATS``; the message says what would help.
    """
    if os.fspath(path).startswith("hub:"):
        return "hub"
    path = Path(path)
    if path.is_dir():
        return _format_of_folder(path)
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if suffix == ".txt" and _is_whatsapp(path):
        return "whatsapp"
    if suffix == ".zip" and path.is_file():
        names = chats.list_export_files(path)
        if chats.is_slack_export(names):
            return "slack"
        if any(name.endswith(".txt") for name in names):
            return "whatsapp"
    if suffix not in FORMAT_OF_SUFFIX:
        formats = ", ".join(SOURCE_FORMATS)
        if hint := REFUSED_SUFFIXES.get(suffix):
            raise ValueError(f"{path}: {hint}")
        remedy = f"its format is not known; use {argument('format')} {formats}"
        raise OptionWouldHelp(f"{path}: {remedy}", "format")
    return FORMAT_OF_SUFFIX[suffix]


def _format_of_folder(path: Path) -> str:
    """The format of the files in a folder."""
    if next(path.glob("**/*.json"), None) and chats.is_slack_export(chats.list_export_files(path)):
        return "slack"
    for name, suffix in FOLDER_SUFFIXES.items():
        if first := next(path.glob(f"**/*{suffix}"), None):
            return "whatsapp" if name == "text" and _is_whatsapp(first) else name
    suffixes = (suffix for suffix in REFUSED_SUFFIXES if next(path.glob(f"**/*{suffix}"), None))
    hint = next((f"; a {suffix} file {REFUSED_SUFFIXES[suffix]}" for suffix in suffixes), "")
    every = ", ".join(dict.fromkeys(FOLDER_SUFFIXES.values()))
    raise ValueError(f"{path}: holds no {every} files{hint}")


def _is_whatsapp(path: Path) -> bool:
    """Whether a text file begins like an exported WhatsApp chat."""
    if not path.is_file():
        return False
    with files.open_plain_or_gzip(path) as file:
        start = file.read(8192)
    return chats.is_whatsapp_text(start.decode(codec_of_mark(start), "replace"))


def files_of_source(path: Path, form: str) -> list[Path]:
    """The files of a source, in the order in which they are read."""
    if form not in FOLDER_SUFFIXES or not path.is_dir():
        return [path]
    return sorted(path.rglob(f"*{FOLDER_SUFFIXES[form]}"))


def read_rows(path: StrPath, form: str, options: IngestOptions) -> Iterator[NumberedRow]:
    """Iterate over the rows of a source in bounded memory (for mail, message ids are kept).

    A row that cannot be read has a ``BadRow`` instead of cells. Raises ``ValueError`` if the source
    as a whole cannot be read.
    """
    split, encoding = options.split, options.encoding
    if form not in SOURCE_FORMATS:
        raise argument_error("format", f"{form!r} must be one of auto, {', '.join(SOURCE_FORMATS)}")
    if options.rename and form not in ("csv", "tsv"):
        raise argument_error("rename", f"is for columns of csv and tsv, {path} is {form}")
    if encoding != "auto" and form not in ENCODED_FORMATS:
        raise argument_error("encoding", f"is for {', '.join(ENCODED_FORMATS)}, {path} is {form}")
    if encoding != "auto" and Path(path).suffix.lower() == ".zip":
        reason = f"is for text files, {path} is a zip file, which has UTF-8"
        raise argument_error("encoding", reason)
    if form == "hub":
        return _hub_rows(hub_address(os.fspath(path), split))
    path = Path(path)
    if form in ("csv", "tsv"):
        return _table_rows(path, encoding, "\t" if form == "tsv" else None, options.rename)
    if form == "jsonl":
        return _json_rows(path, encoding)
    if form == "lines":
        return _line_rows(path, encoding)
    if form == "mbox":
        return read_mailbox(path)
    if form == "slack":
        return chats.read_slack_export(path)
    paths = files_of_source(path, form)
    if form == "whatsapp":
        return chats.read_whatsapp_chats(paths, encoding)
    if form == "parquet":
        named = {name for name in options.columns.values() if name}
        records = (_parquet_records(file, named) for file in _files_of_split(path, paths, split))
        return enumerate(itertools.chain.from_iterable(records), 1)
    return _text_file_rows(paths, encoding) if form == "text" else read_mail_files(paths)


# --------------------------------------------------------------------------- text


def _table_rows(
    path: Path, encoding: str, delimiter: str | None, rename: Mapping[str, str]
) -> Iterator[NumberedRow]:
    """The rows of a table, below its header, which is row 1, as in a spreadsheet. Where the header
    is repeated, the row is a ``BadRow``."""
    csv.field_size_limit(max(csv.field_size_limit(), files.MAX_LINE_LENGTH))
    with open_decoded(path, encoding) as text:
        lines = files.read_bounded_lines(text, path)
        first = next(filter(str.strip, lines), "")
        if named := _SEPARATOR_LINE.fullmatch(first.rstrip("\r\n")):  # which Excel may write
            delimiter = named[1]
            first = next(filter(str.strip, lines), "")
        sign = delimiter or max(",;\t|", key=first.count)
        reader = csv.reader(itertools.chain([first], lines), delimiter=sign, strict=True)
        written, header = _read_table_header(reader, path, encoding, rename)
        number, width = 1, len(header)
        while True:
            try:
                for cells in reader:
                    number += 1
                    if not cells:
                        continue
                    if bad := decoding_fault("".join(cells), encoding):
                        yield number, bad
                    elif (
                        " ".join(cells[0].split()) == written[0]
                        and [" ".join(cell.split()) for cell in cells] == written
                    ):
                        yield number, BadRow(REPEATED_HEADER, "is the header again")
                    elif len(cells) == width:
                        yield number, dict(zip(header, cells, strict=False))
                    else:
                        says = f"has {len(cells)} cells, the header has {width}"
                        yield number, BadRow("another number of columns", says)
                return
            except csv.Error as error:
                number += 1
                unclosed = "unexpected end" in str(error) or "field larger" in str(error)
                where = "that is never closed" if unclosed else "out of place"
                yield number, BadRow("a broken quote", f"has a quote {where}")


def _read_table_header(
    rows: Iterator[list[str]], path: Path, encoding: str, rename: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Read the header of a table.

    Args:
        rows: The rows of the table from its header on.
        path: The file, for messages.
        encoding: Its encoding.
        rename: New names by the number of a column, from "1" on.

    Returns:
        The names of the columns as they are written, in one line each, and as they are renamed.

    Raises:
        ValueError: If a column has no name or that of another, or is not there to be renamed.
    """
    try:  # a name may span several lines
        written = [" ".join(name.split()) for name in next(rows, [])]
    except csv.Error:
        raise ValueError(f"{path.name}: its header has a quote that is out of place") from None
    numbers = [str(k + 1) for k in range(len(written))]
    if wrong := next((number for number in rename if number not in numbers), None):
        raise argument_error("rename", f"{wrong!r} must be a column's number, 1 to {len(written)}")
    header = [rename.get(number, name) for number, name in zip(numbers, written, strict=True)]
    if not any(header):
        raise ValueError(f"{path.name}: is empty; a header and at least one row are needed")
    if decoding_fault("".join(header), encoding):
        name = name_of_encoding(encoding)
        remedy = describe_encoding_remedy(path, encoding)
        raise OptionWouldHelp(f"{path.name}: its header is not {name}; {remedy}", "encoding")
    fault, column = "", 0
    if "" in header:
        column = header.index("") + 1
        fault = f"column {column} has no name"
    elif repeated := find_repeated_name(header):
        column = repeated[1]
        fault = "columns {1} and {0} have the same name".format(*repeated)
    if fault:
        remedy = argument("rename", {str(column): "NAME"})
        raise OptionWouldHelp(f"{path.name}: {fault}; {remedy} gives it another", "rename")
    return written, header


def _text_file_rows(paths: Sequence[Path], encoding: str) -> Iterator[NumberedRow]:
    """Each file as one turn."""
    for number, path in enumerate(paths, 1):
        with open_decoded(path, encoding) as text:
            content = text.read(files.MAX_LINE_LENGTH)
        if len(content) == files.MAX_LINE_LENGTH:
            size = files.MAX_LINE_LENGTH >> 20
            raise ValueError(f"{path}: is longer than {size} MiB, too long for a turn")
        yield number, decoding_fault(content, encoding) or {"text": content.strip()}


def _line_rows(path: Path, encoding: str) -> Iterator[NumberedRow]:
    """Each line of a file that is not blank as one turn."""
    with open_decoded(path, encoding, "\n") as text:
        for number, line in enumerate(files.read_bounded_lines(text, path), 1):
            if line.strip():
                yield number, decoding_fault(line, encoding) or {"text": line.strip()}


def _json_rows(path: Path, encoding: str) -> Iterator[NumberedRow]:
    """The rows of a file that has one JSON object on each line."""

    def read(line: str) -> dict[str, Any]:
        if bad := decoding_fault(line, encoding):
            raise bad
        return jsonl.parse_json_object(line)

    with open_decoded(path, encoding, "\n") as text:
        for number, line in enumerate(files.read_bounded_lines(text, path), 1):
            if line.strip():
                yield read_record(number, read, line)


def is_column_read(name: str, named: Collection[str]) -> bool:
    """Whether a column of a table with types is read: it is ``named``, or could have a role."""
    return name in named or comparable_name(name) in RECORD_NAMES or may_have_role(name)


def _parquet_records(path: Path, named: Collection[str]) -> Iterator[dict[str, Any] | BadRow]:
    """The records of a Parquet file. Cells are read only from columns that are ``named`` or whose
    name could give them a role; of the others only the names are read."""
    try:
        table = pq.ParquetFile(files.check_regular_file(path))
        names = table.schema_arrow.names
        if repeated := find_repeated_name(names):
            places = "columns {} and {}".format(*repeated)
            raise ValueError(f"{path.name}: {places} have the same name; rename one")
        read = [name for name in names if is_column_read(name, named)]
        no_cells = dict.fromkeys(names)
        for batch in table.iter_batches(PARQUET_BATCH_ROWS, columns=read or names[:1]):
            for cells in _parquet_cells(batch):
                yield cells if isinstance(cells, BadRow) else no_cells | cells
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise_machine_fault(error)
        raise ValueError(f"{path}: is not a Parquet file, or is damaged") from None


def _parquet_cells(batch: pa.RecordBatch) -> list[dict[str, Any] | BadRow]:
    """The rows of a batch, read one by one if they cannot be read together."""
    try:
        return list(batch.to_pylist())
    except Exception:  # UnicodeDecodeError, OverflowError and others
        rows = (read_record(k, _parquet_row, batch.slice(k, 1)) for k in range(len(batch)))
        return [cells for _, cells in rows]


def _parquet_row(row: pa.RecordBatch) -> dict[str, Any]:
    """The cells of a batch of one row; raises ``BadRow``."""
    try:
        (cells,) = row.to_pylist()
    except UnicodeDecodeError:
        raise BadRow("not UTF-8", "holds strings that are not UTF-8") from None
    except OverflowError:
        raise BadRow("no time", "holds a time that no calendar has") from None
    return dict(cells)


def _files_of_split(source: Path, paths: list[Path], split: str) -> list[Path]:
    """The Parquet files of a split: those that it names, by their own name or that of their folder.
    All files, where none has the name of any split and none was asked for.

    Raises ``ValueError`` for a split that is not there; it names those that are.

    >>> paths = [Path("d/train-00000-of-00001.parquet"), Path("d/test/0.parquet")]
    >>> _files_of_split(Path("d"), paths, "test")
    [PosixPath('d/test/0.parquet')]
    """

    def is_of(path: Path, name: str) -> bool:
        """Whether a file's own name begins with that of a split, or its folder has it."""
        inside = path.parent != source and path.parent.name == name
        return inside or bool(re.match(rf"{name}(?![A-Za-z0-9])", path.name))

    of_split = [path for path in paths if is_of(path, split)]
    present = sorted(name for name in _SPLIT_NAMES if any(is_of(path, name) for path in paths))
    if of_split or paths == [source] or (not present and split == IngestOptions.split):
        return of_split or paths
    remedy = f"must be {' or '.join(present)}" if present else "no file has its name"
    raise OptionWouldHelp(f"{argument('split')}: {split!r} is not in {source}; {remedy}", "split")


def hub_address(name: str, split: str) -> str:
    """The address of a split's Parquet files on the hub, which converts every dataset to Parquet on
    a separate branch.

    >>> hub_address("hub:ada/own", "train")
    'hf://datasets/ada/own@refs/convert/parquet/default/train/*.parquet'
    """
    name_parts = name.removeprefix("hub:").split("/")
    are_names = all(re.fullmatch(r"[\w.-]+", part) for part in (*name_parts, split))
    if len(name_parts) not in (2, 3) or not are_names:
        must = f"must be hub:owner/name[/configuration], its {argument('split')} a name"
        raise ValueError(f"{name}: {must}")
    owner, repository, configuration = [*name_parts, "default"][:3]
    where = f"{owner}/{repository}@refs/convert/parquet/{configuration}/{split}"
    return f"hf://datasets/{where}/*.parquet"


def _hub_rows(files: str) -> Iterator[NumberedRow]:
    """The rows of Parquet files on the hub."""
    try:
        import datasets
    except ImportError:
        raise ValueError(f"{files}: needs the package datasets (pip install datasets)") from None
    try:
        table = datasets.load_dataset("parquet", data_files=files, split="train")
    except Exception as error:  # the hub's, the network's and Arrow's errors have no common base
        raise ValueError(f"{files}: cannot be read ({type(error).__name__})") from error
    for number in range(len(table)):
        yield read_record(number + 1, table.__getitem__, number)
