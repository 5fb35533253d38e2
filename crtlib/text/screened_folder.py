"""A screened folder: a public and a private part, each with the columns ``id, user, text, turns``.

``turns`` states for each message where its own words begin and end in the text and who speaks
(:func:`crtlib.text.data_points.find_turns`), so that chats and completions can be made from it. An
older folder has no such column: its points are text alone.

>>> import pathlib, tempfile
>>> home = pathlib.Path(tempfile.mkdtemp())
>>> with ScreenedWriter(home, key=b"k" * 32) as parts:
...     parts.add("public", [Point("d/1", "ann", "Hello.", dialogue_id="d")])
...     parts.add("private", [Point("d/0", "ann", "I am <MASK>.", dialogue_id="d")])
...     _ = parts.close()
>>> [(row["id"][0], row["text"], row["turns"]) for row in read_screened_rows(home, "private")]
[('p', 'I am <MASK>.', [{'start': 0, 'end': 12, 'role': ''}])]
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, Field, model_validator

from crtlib import files, outputs
from crtlib.checks import DamagedError
from crtlib.files import StrPath
from crtlib.foreign_files import NOT_AS_WRITTEN, refuse_whatever_fails
from crtlib.text.data_points import find_turns, join_with_speakers
from crtlib.text.records import Dialogue, Point, Turn
from crtlib.text.sorted_rows import RowSorter

SCREENED_PARTS = ("public", "private")
STRING_COLUMNS = dict.fromkeys(
    ("id", "user", "text", "part", "pseudonym", "kind", "policy", "sha256")
)
TURN_TYPE = pa.struct([("start", pa.int32()), ("end", pa.int32()), ("role", pa.string())])
POINT_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("user", pa.string()),
        ("text", pa.large_string()),
        ("turns", pa.list_(TURN_TYPE)),
    ]
)
PRIVATE_TABLE_SCHEMAS = {
    name: pa.schema([(c, pa.string() if c in STRING_COLUMNS else pa.int32()) for c in columns])
    for name, columns in {
        "ids": ("pseudonym", "id", "user", "turn"),
        "spans": ("id", "start", "end", "kind", "policy"),
        "units": ("kind", "sha256"),
        "said": ("id", "turns"),
    }.items()
}
"""Tables beside the private part: what each pseudonym stands for, what was flagged in raw texts,
the units by which a registry recognises the text, and how many messages a point has."""
SCREENED_SUMMARY_FORMAT = "crtlib/screen/2"
"""The schema of a screened folder's summary. In that of crtlib 0.3, "crtlib/screen/1", a secret in
a repeated message counted as no trace, and copies might be dropped."""
KEY_FILE = "private/key"
TURN_COUNTS_FILE = "private/said.parquet"
_BATCH_ROWS = 10_000

Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Pair = Annotated[list[Count], Field(min_length=2, max_length=2)]


class _SavedShare(BaseModel, strict=True, extra="forbid"):
    """A saved :class:`crtlib.screening.secret_shares.ShareOfSecrets`."""

    share: Share
    upper: Share
    cap: Count
    alpha: Share


class _SavedRate(BaseModel, strict=True):
    """A saved :class:`crtlib.screening.rate_values.Rate`."""

    count: Count
    of: Count
    upper: Share
    how: Literal["one_per_cluster", "exchangeable", "assumed", "policy", "unknown"]
    all: Pair = [0, 0]
    again: Pair = [0, 0]
    all_secrets: _SavedShare | None = None

    @model_validator(mode="after")
    def _counts_no_more_than_there_are(self) -> Self:
        for count, of in ((self.count, self.of), self.again):
            if count > of:
                raise ValueError("a count exceeds its total")
        return self


class _SavedRates(BaseModel, strict=True):
    miss: _SavedRate
    trace: _SavedRate
    public: _SavedRate
    by_kind: dict[str, dict[Literal["miss", "trace", "public"], _SavedRate]]


class _SavedLabels(BaseModel, strict=True):
    """What a certificate states about the labels that judged."""

    cluster: Literal["user", "dialogue"]
    drawn: Literal["at_random", "given"]
    turns: Count
    secrets: Count
    judged: Annotated[int, Field(ge=1)]
    sha256: str | None
    agreement: float | None
    reading_sha256: str | None = None
    others: Count = 0
    unread: Count = 0
    apart: Count = 0
    replaced: Count = 0
    read_twice: dict[str, Count] = {}


class _SavedFacts(BaseModel, strict=True):
    """What a certificate states about the text."""

    users_are: str
    simulated: bool
    first: str | None = Field(alias="from")
    last: str | None = Field(alias="to")


class _SavedSummary(BaseModel, strict=True):
    """The content of ``private/summary.json``, as far as it is read."""

    corpus: str
    corpus_sha256: str
    about: _SavedFacts
    taught_people: Count | None = None
    policy: str
    conservative: str
    policy_sha256: str
    conservative_sha256: str
    unit: Literal["turn", "dialogue", "user"]
    gamma: Share
    seed: int
    dedup: str
    dedup_by: str
    rates: _SavedRates
    labels: _SavedLabels | None
    decided: dict[str, str]
    sizes: dict[str, dict[str, Count]]


@lru_cache(maxsize=2**15)  # a point's id and user are in several tables
def make_pseudonym(key: bytes, kind: str, value: str) -> str:
    """The pseudonym of an "id", a "user" or a "secret": a letter and 16 hexadecimal digits."""
    digest = hmac.digest(key, f"{kind}:{value}".encode(), "sha256").hex()
    return {"id": "p", "user": "u", "secret": "s"}[kind] + digest[:16]


class ScreenedWriter:
    """Collects points on disk and writes them in the order of their new ids, so that the order
    reveals nothing about the corpus. Ids and users become HMACs under ``key``; None keeps them."""

    def __init__(self, folder: Path, *, key: bytes | None) -> None:
        self.folder, self.key = folder, key
        points = pa.schema([pa.field("part", pa.string()), *POINT_SCHEMA])
        self.sorter = RowSorter(folder / "rows", points=points, **PRIVATE_TABLE_SCHEMAS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.sorter.__exit__(kind)

    def name(self, kind: str, value: str) -> str:
        """The :func:`make_pseudonym` of an "id" or of a "user"."""
        if self.key is None or not value:  # an empty name has no pseudonym
            return value
        return make_pseudonym(self.key, kind, value)

    def add(self, part: str, points: Sequence[Point]) -> None:
        """Add points of one of the ``SCREENED_PARTS``."""
        named = (
            (
                self.name("id", p.id),
                self.name("user", p.user),
                p.text,
                find_turns(p),
            )
            for p in points
        )
        self.sorter.add("points", ((part, *row) for row in named))
        numbers = (p.id[len(p.dialogue_id) + 1 :] for p in points)  # empty for a dialogue
        turns = (int(number) if number else None for number in numbers)
        self.note(
            "ids", ((p.id, p.dialogue_id, p.user, n) for p, n in zip(points, turns, strict=True))
        )

    def note(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Add rows to one of the tables ``PRIVATE_TABLE_SCHEMAS``; an ``id`` is that of a point."""
        if table != "units":
            rows = ((self.name("id", one), *rest) for one, *rest in rows)
        self.sorter.add(table, rows)

    def close(self) -> dict[str, str]:
        """Write both parts and what is known about their points; return the hashes of the files."""
        for name, schema in PRIVATE_TABLE_SCHEMAS.items():
            path = self.folder / "private" / f"{name}.parquet"
            self._write(path, schema, f"SELECT * FROM {name}")
        for part in SCREENED_PARTS:
            query = (
                f"SELECT id, \"user\", text, turns FROM points WHERE part = '{part}' ORDER BY id"
            )
            self._write(
                self.folder / part / "data/train-00000-of-00001.parquet", POINT_SCHEMA, query
            )
        return hash_screened_files(self.folder)

    def _write(self, path: Path, schema: pa.Schema, query: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(path, schema, compression="zstd") as table:
            for batch in self.sorter.batches(query, _BATCH_ROWS):
                table.write_table(pa.Table.from_batches([batch]).cast(schema))


def is_screened_folder(folder: StrPath) -> bool:
    """Whether a folder is a screened folder, by its marker."""
    content = outputs.find_marker(Path(folder)) if Path(folder).is_dir() else None
    return content is not None and content["command"] == "screen"


def holds_roles(folder: StrPath) -> bool:
    """Whether a screened folder records who spoke; those of crtlib 0.3 and before do not."""
    paths = [p for part in SCREENED_PARTS for p in Path(folder).glob(f"{part}/data/*.parquet")]
    return all("turns" in pq.read_schema(files.check_regular_file(p)).names for p in paths)


def read_screened_rows(folder: StrPath, name: str) -> Iterator[Mapping[str, Any]]:
    """The points of a part in order, or the rows of a file, in bounded memory."""
    pattern = f"{name}/data/*.parquet" if name in SCREENED_PARTS else name
    for path in sorted(Path(folder).glob(pattern)):
        for batch in pq.ParquetFile(files.check_regular_file(path)).iter_batches(batch_size=1_000):
            yield from batch.to_pylist()


def read_screened_dialogues(folder: StrPath) -> Iterator[Dialogue]:
    """The points of both parts, public ones first, each as a dialogue, whatever the unit. If the
    folder does not record who spoke, each is one turn without a speaker.

    Raises:
        ValueError: If the folder is damaged, or holds other files than those that were decided on.

    Guarantee:
        Written with their speakers, the turns of each dialogue are the text of its point. Test:
        ``tests/text/test_roles.py::test_a_screened_folder_says_who_spoke``.
    """
    if hash_screened_files(folder) != read_screening_summary(folder)["decided"]:
        raise DamagedError(f"{folder}: is not what was screened; screen the corpus again")
    with refuse_whatever_fails(str(folder), NOT_AS_WRITTEN):
        for part in SCREENED_PARTS:
            for row in read_screened_rows(folder, part):
                text = row["text"]
                turns = [
                    Turn(turn["role"], text[turn["start"] : turn["end"]])
                    for turn in row.get("turns") or ()
                ]
                d = Dialogue(row["id"], row["user"], tuple(turns or [Turn("", text)]))
                if join_with_speakers(d, d.turns, d.id).text != text:
                    raise ValueError("turns that do not add up to their text")
                yield d


def read_screening_summary(folder: StrPath) -> dict[str, Any]:
    """The summary that screening wrote, with plain hashes; it is in the private part.

    Raises ``ValueError`` if it is from another version, or does not have the form in which it is
    written.
    """
    name = "private/summary.json"
    known = {name, TURN_COUNTS_FILE} <= outputs.require_marker(folder, names=[name])["files"].keys()
    with refuse_whatever_fails(f"{folder}/{name}", NOT_AS_WRITTEN):
        content = dict(json.loads(files.read_bytes(Path(folder) / name))) if known else {}
    if content.get("schema") != SCREENED_SUMMARY_FORMAT or "decided" not in content:
        raise ValueError(
            f"{folder}: was screened by another version of crtlib, whose trace rate may leave out "
            "repeated messages; screen the corpus again"
        )
    with refuse_whatever_fails(f"{folder}/{name}", NOT_AS_WRITTEN):
        _SavedSummary.model_validate(content)
    return content


def hash_screened_files(folder: StrPath) -> dict[str, str]:
    """The SHA-256 of each file that is read from a screened folder, by its name."""
    home = Path(folder)
    paths = [home / "private" / "units.parquet", home / TURN_COUNTS_FILE]
    paths += [p for part in SCREENED_PARTS for p in home.glob(f"{part}/data/*")]
    return {str(p.relative_to(home)): outputs.hash_file(p) for p in sorted(paths) if p.is_file()}


def read_registry_units(folder: StrPath) -> Iterator[tuple[str, str]]:
    """The units by which a registry recognises the text that was screened: the kind and SHA-256
    of each."""
    return (
        (row["kind"], row["sha256"]) for row in read_screened_rows(folder, "private/units.parquet")
    )


def read_turn_counts(folder: StrPath) -> dict[str, int]:
    """How many messages each point has, by its name, points left out as duplicates included."""
    return {row["id"]: int(row["turns"]) for row in read_screened_rows(folder, TURN_COUNTS_FILE)}
