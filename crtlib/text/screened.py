"""A screened folder: a public and a private part, each with the columns ``id, user, text``.

>>> import pathlib, tempfile
>>> home = pathlib.Path(tempfile.mkdtemp())
>>> with Parts(home, key=b"k" * 32) as parts:
...     parts.add("public", [Point("d/1", "ann", "Hello.", thread="d")])
...     parts.add("private", [Point("d/0", "ann", "I am <MASK>.", thread="d")])
...     _ = parts.close()
>>> [(row["id"][0], row["text"]) for row in rows(home, "private")]
[('p', 'I am <MASK>.')]
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from crtlib import outputs
from crtlib.checks import DamagedError
from crtlib.files import Named
from crtlib.text.folder import Sorter
from crtlib.text.records import Dialogue, Point, Turn

PARTS = ("public", "private")
STRINGS = dict.fromkeys(("id", "user", "text", "part", "pseudonym", "kind", "policy", "sha256"))
ROWS = pa.schema([("id", pa.string()), ("user", pa.string()), ("text", pa.large_string())])
BESIDE = {
    name: pa.schema([(c, pa.string() if c in STRINGS else pa.int32()) for c in columns])
    for name, columns in {
        "ids": ("pseudonym", "id", "user", "turn"),
        "spans": ("id", "start", "end", "kind", "policy"),
        "units": ("kind", "sha256"),
        "said": ("id", "turns"),
    }.items()
}
"""What lies beside the private part: whose a pseudonym is, what was flagged in raw texts, by what a
registry knows the text again, and how many messages a point has."""
KEY = "private/key"
SAID = "private/said.parquet"
_BATCH = 10_000


class Parts:
    """Collects points on disk and writes them in the order of their new ids, so that the order
    says nothing of the corpus. Ids and users become HMACs under ``key``; None keeps them."""

    def __init__(self, folder: Path, *, key: bytes | None) -> None:
        self.folder, self.key = folder, key
        points = pa.schema([pa.field("part", pa.string()), *ROWS])
        self.sorter = Sorter(folder / "rows", points=points, **BESIDE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sorter.__exit__()

    def name(self, kind: str, value: str) -> str:
        """The pseudonym of an "id" (p and 16 hexadecimal digits) or of a "user" (u and 16)."""
        if self.key is None or not value:  # nobody has no pseudonym
            return value
        digest = hmac.digest(self.key, f"{kind}:{value}".encode(), "sha256").hex()
        return {"id": "p", "user": "u"}[kind] + digest[:16]

    def add(self, part: str, points: Sequence[Point]) -> None:
        """Take points of one of the ``PARTS``."""
        named = ((self.name("id", p.id), self.name("user", p.user), p.text) for p in points)
        self.sorter.add("points", ((part, *row) for row in named))
        numbers = (p.id[len(p.thread) + 1 :] for p in points)  # none where a point is a thread
        turns = (int(number) if number else None for number in numbers)
        self.note("ids", ((p.id, p.thread, p.user, n) for p, n in zip(points, turns, strict=True)))

    def note(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Take rows of one of the tables ``BESIDE``; an ``id`` is that of a point."""
        if table != "units":
            rows = ((self.name("id", one), *rest) for one, *rest in rows)
        self.sorter.add(table, rows)

    def close(self) -> dict[str, str]:
        """Write both parts, and what is known of their points; the hashes of what was written."""
        for name, schema in BESIDE.items():
            path = self.folder / "private" / f"{name}.parquet"
            self._write(path, schema, f"SELECT * FROM {name}")
        for part in PARTS:
            query = f"SELECT id, \"user\", text FROM points WHERE part = '{part}' ORDER BY id"
            self._write(self.folder / part / "data/train-00000-of-00001.parquet", ROWS, query)
        return decided(self.folder)

    def _write(self, path: Path, schema: pa.Schema, query: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(path, schema, compression="zstd") as table:
            for batch in self.sorter.batches(query, _BATCH):
                table.write_table(pa.Table.from_batches([batch]).cast(schema))


def is_screened(folder: Named) -> bool:
    """Whether ``crtlib screen`` wrote this folder."""
    content = outputs.marker(Path(folder)) if Path(folder).is_dir() else None
    return content is not None and content["command"] == "screen"


def rows(folder: Named, name: str) -> Iterator[Mapping[str, str]]:
    """The points of a part in order, or the rows of a file; bounded memory."""
    pattern = f"{name}/data/*.parquet" if name in PARTS else name
    for path in sorted(Path(folder).glob(pattern)):
        for batch in pq.ParquetFile(path).iter_batches(batch_size=1_000):
            yield from batch.to_pylist()


def dialogues(folder: Named) -> Iterator[Dialogue]:
    """The points of both parts, public ones first, each as a dialogue of one turn by nobody: its
    text is the point's, whatever the unit. Raises ``ValueError`` for a folder that is damaged, or
    holds other files than those that were decided on."""
    if decided(folder) != summary(folder)["decided"]:
        raise DamagedError(f"{folder}: is not what was screened; screen the corpus anew")
    for part in PARTS:
        for row in rows(folder, part):
            yield Dialogue(row["id"], row["user"], (Turn("", row["text"]),))


def summary(folder: Named) -> dict[str, Any]:
    """What screening said of the folder, with plain hashes: it stands in the private part."""
    name = "private/summary.json"
    known = {name, SAID} <= outputs.demand(folder, names=[name])["files"].keys()
    content = json.loads((Path(folder) / name).read_bytes()) if known else {}
    if "decided" not in content:
        raise ValueError(f"{folder}: is of another version of crtlib; screen the corpus anew")
    return content


def decided(folder: Named) -> dict[str, str]:
    """The SHA-256 of each file that is read of a screened folder, by its name."""
    home = Path(folder)
    paths = [home / "private" / "units.parquet", home / SAID]
    paths += [p for part in PARTS for p in home.glob(f"{part}/data/*")]
    return {str(p.relative_to(home)): outputs.sha256(p) for p in sorted(paths) if p.is_file()}


def units(folder: Named) -> Iterator[tuple[str, str]]:
    """The units of the text that was screened: see :func:`crtlib.text.corpora.units`."""
    return ((row["kind"], row["sha256"]) for row in rows(folder, "private/units.parquet"))


def turns(folder: Named) -> dict[str, int]:
    """How many messages each point has, by its name; one that was cut out as a duplicate, too."""
    return {row["id"]: int(row["turns"]) for row in rows(folder, SAID)}
