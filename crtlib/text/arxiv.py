"""arXiv's abstracts: the metadata snapshot as JSON lines, or Parquet files of its columns.

An abstract is a document: a dialogue of one turn without a speaker. Its first author is the user,
its categories are its topics. Nothing in it is labelled: each study defines what is secret (words,
in Section 5.1 of Hush!).

>>> one = {"id": "0704.0001", "authors_parsed": [["Lovelace", "Ada", ""], ["Babbage", "C.", ""]],
...        "categories": "math.HO cs.GL", "abstract": "  We weave\\nnumbers.\\n",
...        "versions": [{"version": "v1", "created": "Mon, 2 Apr 2007 19:18:42 GMT"}]}
>>> abstract = parse_abstract(one)
>>> abstract.text, abstract.author, abstract.topics, abstract.created
('We weave numbers.', 'Lovelace Ada', ('math.HO', 'cs.GL'), '2007-04-02')
>>> abstract_dialogue(abstract).turns[0].text
'We weave numbers.'
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from crtlib import files
from crtlib.checks import raise_machine_fault
from crtlib.files import StrPath
from crtlib.text.jsonl import BadRow, check_unicode, read_json_objects
from crtlib.text.records import Corpus, Dialogue, Turn
from crtlib.text.sources import fetched_source

ARXIV_ORIGIN = (
    "https://www.kaggle.com/datasets/Cornell-University/arxiv, file "
    "arxiv-metadata-oai-snapshot.json (arXiv metadata, CC0 1.0)"
)
_SNAPSHOT_FILES, _PARQUET_FILES = "arxiv-metadata*.json*", "abstracts-*.parquet"
PARQUET_COLUMNS = ("id", "category", "created", "first_author", "abstract")
"""The columns of a Parquet file of abstracts: ``category`` is one, or several with blanks between
them; ``first_author`` is a name or a number."""
PARQUET_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Abstract:
    """One paper: its id, its first author, its categories, the day of its first version (ISO 8601,
    empty if it is not known) and the text of its abstract on one line."""

    id: str = field(repr=False)
    author: str = field(repr=False)
    topics: tuple[str, ...]
    created: str
    text: str = field(repr=False)


def arxiv_files(folder: StrPath, split: str) -> list[Path]:
    """The files of the only split, ``train``: ``arxiv-metadata*.json``, with one object a line,
    plain or ``.gz``, or else ``abstracts-*.parquet``. Raises ``ValueError`` where there are
    none."""
    if split != "train":
        raise ValueError(f"split={split!r}: must be train, arXiv has no other")
    for pattern in (_SNAPSHOT_FILES, _PARQUET_FILES):
        if found := sorted(Path(folder).glob(pattern)):
            return found
    raise ValueError(f"{folder}: has no {_SNAPSHOT_FILES} and no {_PARQUET_FILES}")


def stream_abstracts(folder: StrPath, skipped: Counter[str] | None = None) -> Iterator[Abstract]:
    """The abstracts in a folder, in the order of its files, one after another.

    Memory holds one line of the snapshot at a time, or part of a Parquet file (measured: 105 MB for
    files of 20 MB); nothing grows with the corpus. A row without an id, an author or an abstract is
    left out and counted in ``skipped`` by its reason. Raises ``ValueError`` naming a file that is
    damaged or lacks a column.
    """
    left_out = Counter[str]() if skipped is None else skipped
    for row in chain.from_iterable(map(_read_rows, arxiv_files(folder, "train"))):
        try:
            if isinstance(row, BadRow):
                raise row
            yield parse_abstract(row)
        except BadRow as bad:
            left_out[bad.reason] += 1


def _read_rows(path: Path) -> Iterator[Mapping[str, Any] | BadRow]:
    if path.suffix == ".parquet":
        yield from _read_parquet_rows(path)
    else:
        yield from (cells for _, cells in read_json_objects(path))


def _read_parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """The rows, by column. Messages of pyarrow are not passed on, since they may quote a cell."""
    try:
        with pq.ParquetFile(files.check_regular_file(path)) as table:
            names = table.schema_arrow.names
            if lacking := [name for name in PARQUET_COLUMNS if name not in names]:
                raise ValueError(f"{path}: has no column {', '.join(lacking)}")
            for batch in table.iter_batches(PARQUET_ROWS_AT_ONCE, columns=list(PARQUET_COLUMNS)):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise_machine_fault(error)
        raise ValueError(f"{path}: is a damaged Parquet file") from None


def parse_abstract(row: Mapping[str, Any]) -> Abstract:
    """The abstract in a row of either form. Raises ``BadRow``, which quotes no cell."""
    name, text = row.get("id"), row.get("abstract")
    if not isinstance(name, str) or not name:
        raise BadRow("it has no id", "is missing", "id")
    text = " ".join(text.split()) if isinstance(text, str) else ""
    if not text:
        raise BadRow("it has no abstract", "is missing", "abstract")
    author = _first_author(row)
    if not author:
        raise BadRow("it has no author", "is missing", "authors_parsed")
    topics = row.get("categories", row.get("category"))
    created = row["created"] if "created" in row else _first_version_day(row.get("versions"))
    given = (topics if isinstance(topics, str) else "").split()
    created = created if isinstance(created, str) else ""
    check_unicode("abstract", name, author, text, created, *given)
    return Abstract(name, author, tuple(given), created, text)


def _first_author(row: Mapping[str, Any]) -> str:
    """Last name, first name and suffix of the first of ``authors_parsed``; or ``first_author``."""
    if isinstance(number := row.get("first_author"), int | str):
        return str(number)
    listed = row.get("authors_parsed")
    first = listed[0] if isinstance(listed, list) and listed else []
    parts = [p for p in first if isinstance(p, str)] if isinstance(first, list) else []
    return " ".join(" ".join(parts).split())


def _first_version_day(versions: Any) -> str:
    first = versions[0] if isinstance(versions, list) and versions else None
    try:
        return parsedate_to_datetime(str(first["created"])).date().isoformat()  # type: ignore[index]
    except (KeyError, TypeError, ValueError):
        return ""


def abstract_dialogue(one: Abstract) -> Dialogue:
    """An abstract as a dialogue of its first author: one turn, without a speaker or labels."""
    return Dialogue(one.id, one.author, (Turn("", one.text),))


def read_arxiv(folder: StrPath, limit: int | None = None) -> Corpus:
    """The first ``limit`` abstracts as a corpus, all of it in memory: 0.8 GB for 583,128 abstracts
    of 870 characters each. :func:`stream_abstracts` keeps one at a time.

    An abstract whose id was used before is left out and counted. Raises ``ValueError`` where no
    abstract is left.
    """
    dialogues_by_id: dict[str, Dialogue] = {}
    skipped = Counter[str]()
    for one in stream_abstracts(folder, skipped):
        if one.id in dialogues_by_id:
            skipped["its id was used before"] += 1
        else:
            dialogues_by_id[one.id] = abstract_dialogue(one)
        if len(dialogues_by_id) == limit:
            break
    if not dialogues_by_id:
        raise ValueError(f"arxiv: {folder} holds no abstract that can be used")
    return Corpus("arxiv", tuple(dialogues_by_id.values()), tuple(sorted(skipped.items())))


ARXIV_SOURCE = fetched_source(
    "arxiv",
    "arXiv abstracts",
    ("arxiv", "arxiv_abstracts"),
    arxiv_files,
    lambda folder, _, limit: read_arxiv(folder, limit),
    ARXIV_ORIGIN,
)
