"""A screened folder: a public and a private part, each with the columns ``id, user, text``.

>>> import pathlib, tempfile
>>> home = pathlib.Path(tempfile.mkdtemp())
>>> with Parts(home, key=b"k" * 32) as parts:
...     parts.add("public", "d/1", "ann", "Hello.")
...     parts.add("private", "d/0", "ann", "I am <MASK>.")
...     _ = parts.close()
>>> [(row["id"][0], row["text"]) for row in rows(home, "private")]
[('p', 'I am <MASK>.')]
"""

from __future__ import annotations

import hmac
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from crtlib import outputs
from crtlib.checks import DamagedError
from crtlib.text.records import Dialogue, Turn

PARTS = ("public", "private")
ROWS = pa.schema([("id", pa.string()), ("user", pa.string()), ("text", pa.large_string())])
IDS = pa.schema([*((n, pa.string()) for n in ("pseudonym", "id", "user")), ("turn", pa.int32())])
SPANS = pa.schema(
    [
        ("id", pa.string()),
        *((n, pa.int32()) for n in ("start", "end")),
        *((n, pa.string()) for n in ("kind", "policy")),
    ]
)
UNITS = pa.schema([("kind", pa.string()), ("sha256", pa.string())])
KEY = "private/key"
_BATCH = 10_000


class Parts:
    """Collects points on disk and writes them in the order of their new ids, so that the order
    says nothing of the corpus. Ids and users become HMACs under ``key``; None keeps them."""

    def __init__(self, folder: Path, *, key: bytes | None, form: str = "parquet") -> None:
        self.folder, self.key, self.form = folder, key, form
        self.file = folder / "rows.sqlite"
        self.database = sqlite3.connect(self.file, isolation_level=None)
        for line in (
            "PRAGMA journal_mode=OFF",
            "PRAGMA synchronous=OFF",
            "PRAGMA temp_store=FILE",
            "CREATE TABLE points (part TEXT, id TEXT, user TEXT, text TEXT)",
            "BEGIN",
        ):
            self.database.execute(line)
        (folder / "private").mkdir(exist_ok=True)
        self.tables: dict[str, pq.ParquetWriter] = {}
        self.waiting: dict[str, list[dict[str, Any]]] = {"spans": [], "ids": [], "units": []}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.database.close()
        self.file.unlink(missing_ok=True)
        for table in self.tables.values():
            table.close()

    def name(self, kind: str, value: str) -> str:
        """The pseudonym of an "id" (p and 16 hexadecimal digits) or of a "user" (u and 16)."""
        if self.key is None:
            return value
        digest = hmac.digest(self.key, f"{kind}:{value}".encode(), "sha256").hex()
        return {"id": "p", "user": "u"}[kind] + digest[:16]

    def add(self, part: str, point: str, user: str, text: str) -> None:
        """Take a point of one of the ``PARTS``."""
        row = (part, self.name("id", point), self.name("user", user), text)
        self.database.execute("INSERT INTO points VALUES (?, ?, ?, ?)", row)
        thread, slash, turn = point.rpartition("/")
        number = int(turn) if slash and turn.isdecimal() else None
        known = {"pseudonym": row[1], "id": thread if number is not None else point}
        self._put("ids", IDS, known | {"user": user, "turn": number})

    def span(self, point: str, start: int, end: int, kind: str, policy: str) -> None:
        """Note what ``policy`` flagged in the raw text of a point."""
        row = {"id": self.name("id", point), "start": start, "end": end, "kind": kind}
        self._put("spans", SPANS, row | {"policy": policy})

    def unit(self, kind: str, sha256: str) -> None:
        """Note a unit of the raw text, by which a registry knows it again."""
        self._put("units", UNITS, {"kind": kind, "sha256": sha256})

    def _put(self, name: str, schema: pa.Schema, row: dict[str, Any] | None) -> None:
        waiting = self.waiting[name]
        waiting += [] if row is None else [row]
        if row is None or len(waiting) == _BATCH:
            if name not in self.tables:
                path = self.folder / "private" / f"{name}.parquet"
                self.tables[name] = pq.ParquetWriter(path, schema, compression="zstd")
            self.tables[name].write_table(pa.Table.from_pylist(waiting, schema))
            waiting.clear()

    def close(self) -> dict[str, str]:
        """Write both parts, and what is known of their points; the hashes of what was written."""
        for name, schema in (("ids", IDS), ("spans", SPANS), ("units", UNITS)):
            self._put(name, schema, None)
            self.tables.pop(name).close()
        for part in PARTS:
            query = "SELECT id, user, text FROM points WHERE part = ? ORDER BY id"
            with closing(self.database.execute(query, (part,))) as cursor:
                self._write(self.folder / part, cursor)
        return decided(self.folder)

    def _write(self, folder: Path, cursor: sqlite3.Cursor) -> None:
        if self.form == "jsonl":
            folder.mkdir(exist_ok=True)
            with (folder / "train.jsonl").open("w", encoding="utf-8") as file:
                for row in cursor:
                    file.write(json.dumps(dict(zip(ROWS.names, row, strict=True))) + "\n")
            return
        (folder / "data").mkdir(parents=True)
        path = folder / "data" / "train-00000-of-00001.parquet"
        with pq.ParquetWriter(path, ROWS, compression="zstd") as table:
            while batch := cursor.fetchmany(_BATCH):
                columns = dict(zip(ROWS.names, zip(*batch, strict=True), strict=True))
                table.write_table(pa.table(columns, ROWS))


def is_screened(folder: str | os.PathLike) -> bool:
    """Whether ``crtlib screen`` wrote this folder."""
    content = outputs.marker(Path(folder)) if Path(folder).is_dir() else None
    return content is not None and content["command"] == "screen"


def rows(folder: str | os.PathLike, part: str) -> Iterator[Mapping[str, str]]:
    """The points of a part in order; bounded memory."""
    home = Path(folder) / part
    if (home / "train.jsonl").is_file():
        with (home / "train.jsonl").open(encoding="utf-8") as file:
            yield from map(json.loads, file)
        return
    for path in sorted(home.glob("data/*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(batch_size=1_000):
            yield from batch.to_pylist()


def dialogues(folder: str | os.PathLike) -> Iterator[Dialogue]:
    """The points of both parts, public ones first, each as a dialogue of one turn by nobody: its
    text is the point's, whatever the unit. Raises ``ValueError`` for a folder that is damaged, or
    holds other files than those that were decided on."""
    if decided(folder) != summary(folder)["decided"]:
        raise DamagedError(f"{folder}: is not what was screened; screen the corpus anew")
    for part in PARTS:
        for row in rows(folder, part):
            yield Dialogue(row["id"], row["user"], (Turn("", row["text"]),))


def summary(folder: str | os.PathLike) -> dict[str, Any]:
    """What screening said of the folder, with plain hashes: it stands in the private part."""
    name = "private/summary.json"
    known = name in outputs.demand(folder, names=[name])["files"]
    content = json.loads((Path(folder) / name).read_bytes()) if known else {}
    if "decided" not in content:
        raise ValueError(f"{folder}: is of another version of crtlib; screen the corpus anew")
    return content


def decided(folder: str | os.PathLike) -> dict[str, str]:
    """The SHA-256 of each file that is read of a screened folder, by its name."""
    home = Path(folder)
    paths = [
        p for part in PARTS for p in (*home.glob(f"{part}/data/*"), home / part / "train.jsonl")
    ]
    paths.append(home / "private" / "units.parquet")
    return {str(p.relative_to(home)): outputs.sha256(p) for p in sorted(paths) if p.is_file()}


def units(folder: str | os.PathLike) -> Iterator[tuple[str, str]]:
    """The units of the text that was screened: see :func:`crtlib.text.corpora.units`."""
    for batch in pq.ParquetFile(Path(folder) / "private" / "units.parquet").iter_batches():
        yield from ((row["kind"], row["sha256"]) for row in batch.to_pylist())


def private_names(folder: str | os.PathLike, column: str = "id") -> frozenset[str]:
    """The "id" or the "user" of the private points, as the folder calls them."""
    return frozenset(row[column] for row in rows(folder, "private"))
