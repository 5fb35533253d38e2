"""A corpus as a folder: Parquet shards, a card and a marker; ``datasets`` reads it as well.

>>> import pathlib, tempfile
>>> from crtlib.text.customersim import simulate
>>> out = pathlib.Path(tempfile.mkdtemp()) / "corpus"
>>> facts = save(simulate(20, 0).dialogues, out, command="simulate", options={"seed": 0})
>>> facts.threads, tuple(dialogues(out)) == simulate(20, 0).dialogues
(20, True)
>>> sorted(p.name for p in out.iterdir())
['README.md', 'croissant.json', 'crtlib.json', 'data']
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import itertools
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Self

import jinja2
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from crtlib import outputs
from crtlib.checks import MachineError, check_choice
from crtlib.files import Named
from crtlib.text import jsonl
from crtlib.text.records import Dialogue, unit

TURN = pa.struct(
    [
        ("speaker", pa.string()),
        ("text", pa.large_string()),
        ("time", pa.timestamp("ms", tz="UTC")),
        ("labelled", pa.bool_()),
        (
            "secrets",
            pa.list_(
                pa.struct([("kind", pa.string()), *((n, pa.int32()) for n in ("start", "end"))])
            ),
        ),
    ]
)
COLUMNS = pa.schema(
    [("id", pa.string()), ("user", pa.string()), ("turns", pa.list_(TURN)), ("extra", pa.string())]
)
"""The columns of a corpus: one row a thread."""
USERS_ARE = ("column", "thread", "unknown")
GROUP_ROWS = 1_000
"""Dialogues that are written at a time."""


SIZES = {"n<1K": 10**3, "1K<n<10K": 10**4, "10K<n<100K": 10**5, "100K<n<1M": 10**6}


@dataclass(frozen=True)
class Facts:
    """What a corpus folder holds. ``sha256`` is the corpus hash: over ``jsonl.canonical`` of its
    dialogues in order, so the same for Parquet and JSONL, any sharding and any labels. ``first``
    and ``last`` are dates, None where no turn has a time."""

    turns: int
    threads: int
    users: int
    labelled: int
    sha256: str
    shards: int
    users_are: str
    policy: str | None
    first: str | None
    last: str | None


def corpus_hash(dialogues: Iterable[Dialogue]) -> str:
    """The corpus hash of dialogues in their order."""
    digest = hashlib.sha256()
    for d in dialogues:
        digest.update(jsonl.canonical(d.id, d.user, ((t.speaker, t.text) for t in d.turns)))
    return digest.hexdigest()


class Writer:
    """Writes tables with the columns ``COLUMNS`` into the shards of one split, each as a row group:
    ``time`` may be null, ``extra`` is a JSON object as a string or null."""

    def __init__(
        self,
        folder: Path,
        *,
        split: str = "train",
        shard: int = 128 << 20,
        users_are: str = "column",
        policy: str | None = None,
    ) -> None:
        self.folder, self.split, self.shard = folder / "data", split, shard
        self.users_are, self.policy = users_are, policy
        self.folder.mkdir(parents=True, exist_ok=True)
        about = {"schema": "crtlib/corpus/1", "users_are": users_are, "policy": policy}
        self.schema = COLUMNS.with_metadata({"crtlib": json.dumps(about)})
        self.turns, self.threads, self.labelled = 0, 0, 0
        self.users: set[bytes] = set()
        self.digest = hashlib.sha256()
        self.first: datetime.datetime | None = None
        self.last: datetime.datetime | None = None
        self.parts: list[Path] = []
        self.open: pq.ParquetWriter | None = None

    def add(self, rows: pa.Table) -> None:
        """Take some threads."""
        lists = rows["turns"].combine_chunks()
        turns = lists.flatten()
        ends = lists.offsets.to_pylist()
        said = list(zip(*(turns.field(n).to_pylist() for n in ("speaker", "text")), strict=True))
        names, users = (rows[name].to_pylist() for name in ("id", "user"))
        for name, user, a, b in zip(names, users, ends, ends[1:], strict=False):
            self.digest.update(jsonl.canonical(name, user, said[a - ends[0] : b - ends[0]]))
            self.users.add(hashlib.blake2b(unit(user).encode(), digest_size=12).digest())
        self.threads += len(names)
        self.turns += len(said)
        self.labelled += turns.field("labelled").true_count
        dates = pc.min_max(turns.field("time")).as_py()
        if dates["min"]:
            self.first = min(self.first or dates["min"], dates["min"])
            self.last = max(self.last or dates["max"], dates["max"])
        if self.open is None:
            path = self.folder / f"{self.split}-{len(self.parts):05d}.part"
            self.parts.append(path)
            self.open = pq.ParquetWriter(path, self.schema, compression="zstd")
        self.open.write_table(rows.cast(self.schema))
        if self.parts[-1].stat().st_size >= self.shard:
            self.open.close()
            self.open = None

    def close(self) -> Facts:
        """Finish the last shard and name them all; ``ValueError`` where nothing was written."""
        if self.open is not None:
            self.open.close()
        if not self.parts:
            raise ValueError("the corpus is empty, at least one dialogue is needed")
        for k, part in enumerate(self.parts):
            part.rename(self.folder / f"{self.split}-{k:05d}-of-{len(self.parts):05d}.parquet")
        return Facts(
            turns=self.turns,
            threads=self.threads,
            users=len(self.users),
            labelled=self.labelled,
            sha256=self.digest.hexdigest(),
            shards=len(self.parts),
            users_are=self.users_are,
            policy=self.policy,
            first=self.first.date().isoformat() if self.first else None,
            last=self.last.date().isoformat() if self.last else None,
        )


def card(folder: Path, name: str, facts: Facts, sources: Sequence[str], *, simulated: bool) -> None:
    """Write what lies beside the ``data`` of ``folder``: a dataset card (README.md) and its
    Croissant 1.0 description."""
    shards = {p.name: outputs.sha256(p) for p in sorted((folder / "data").glob("*.parquet"))}
    for file, template in (("README.md", "card.md"), ("croissant.json", "croissant.json")):
        source = (resources.files("crtlib.text") / "templates" / template).read_text("utf-8")
        text = (
            jinja2.Environment(undefined=jinja2.StrictUndefined)
            .from_string(source)
            .render(
                name=name,
                facts=facts,
                sources=sources,
                simulated=simulated,
                shards=shards,
                splits=sorted({n.rpartition("-of-")[0].rpartition("-")[0] for n in shards}),
                size=next((size for size, n in SIZES.items() if facts.threads < n), "n>1M"),
                today=datetime.date.today().isoformat(),
            )
        )
        (folder / file).write_text(text + "\n", encoding="utf-8")


def row(d: Dialogue, *, labelled: bool = True) -> dict[str, Any]:
    """A dialogue as a row, without times."""
    record = jsonl.record(d)
    for turn in record["turns"]:
        turn |= {"time": None, "labelled": labelled}
    return record | {"extra": None}


def save(
    dialogues: Iterable[Dialogue],
    out: Named,
    *,
    command: str,
    options: Mapping[str, Any],
    inputs: outputs.Inputs | None = None,
    users_are: str = "column",
    policy: str | None = None,
    labelled: bool = True,
    simulated: bool = False,
    split: str = "train",
    shard: int = 128 << 20,
    force: bool = False,
) -> Facts:
    """Write dialogues, read one after another, as a corpus folder.

    Its files are private, unless the dialogues were ``simulated``. ``labelled`` says that somebody
    looked for secrets, so that a turn without one has none. Raises ``ValueError`` where ``out`` may
    not be written (``outputs.check_folder``), or a dialogue is none.
    """
    summary: dict[str, Any] = {}
    with outputs.staged(
        out,
        command=command,
        options=options,
        inputs=inputs,
        public=("*",) if simulated else (),
        facts=summary,
        force=force,
    ) as part:
        writer = Writer(part, split=split, shard=shard, users_are=users_are, policy=policy)
        rows = (row(d, labelled=labelled) for d in dialogues)
        while some := list(itertools.islice(rows, GROUP_ROWS)):
            writer.add(pa.Table.from_pylist(some, COLUMNS))
        counts = writer.close()
        summary["corpus"] = asdict(counts)
        card(part, Path(out).name, counts, list(inputs or {}), simulated=simulated)
    return counts


FORMS = ("jsonl", "dataset")


def check_as(form: str, out: Named, *, inputs: Sequence[Path] = (), force: bool = False) -> None:
    """Refuse a place where :func:`save_as` may not write, and a form that is none."""
    check_choice("--as", form, FORMS)
    place = outputs.check_file if form == "jsonl" else outputs.check_folder
    place(out, inputs=inputs, force=force)


def save_as(form: str, dialogues: Iterable[Dialogue], out: Named, **how: Any) -> None:
    """Write dialogues as one JSONL file, or as a corpus folder (:func:`save`, with ``how``)."""
    if form == "jsonl":
        jsonl.write_jsonl(dialogues, out)
    else:
        save(dialogues, out, **how)


def facts(folder: Named) -> Facts:
    """What a finished corpus folder holds, as its marker says; ``ValueError`` for another."""
    content = outputs.demand(folder, names=()).get("facts", {})
    try:
        return Facts(**content.get("corpus", {}))
    except TypeError:
        raise ValueError(f"{folder}: is no corpus folder; its {outputs.MARKER} says so") from None


def rows(folder: Named, *, split: str | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a corpus folder in order, its hashes checked first; bounded memory.

    Of one split, or of all. Raises ``ValueError`` for a folder that is unfinished, damaged or no
    corpus, and for a split that is not there.
    """
    pattern = f"data/{split or '*'}-*.parquet"
    marker = outputs.demand(folder, names=[pattern])
    names = sorted(n for n in marker["files"] if Path(n).match(pattern))
    if not names:
        raise ValueError(f"split={split or 'train'!r}: {folder} has no {pattern}")
    for name in names:
        path = Path(folder) / name
        try:
            table = pq.ParquetFile(path)
            if not table.schema_arrow.equals(COLUMNS):
                raise ValueError(f"{path}: has other columns than a corpus")
            for batch in table.iter_batches(batch_size=1_000):
                yield from batch.to_pylist()
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: is damaged ({type(error).__name__})") from None


def dialogues(folder: Named, *, split: str | None = None) -> Iterator[Dialogue]:
    """The dialogues of a corpus folder, one after another."""
    return map(jsonl.dialogue, rows(folder, split=split))


# --------------------------------------------------------------------------- rows in other order
MEMORY = "512MB"
"""What DuckDB may hold; the rest lies in its folder."""
ROOM = 16 << 20
"""Bytes that are handed over at a time, about."""


class Sorter:
    """Rows that DuckDB holds, sorts and joins, in ``tables`` by name. It sees no file but those
    that it writes into ``folder``, which is private and goes at the end, and loads no extension."""

    def __init__(self, folder: Path, **tables: pa.Schema) -> None:
        import duckdb  # only what writes a corpus needs it

        folder.mkdir(mode=0o700)
        self.folder, self.schemas, self.fault = folder, tables, duckdb.Error
        self.waiting: dict[str, list[pa.RecordBatch]] = {name: [] for name in tables}
        self.size = 0
        config: dict[str, Any] = {
            "temp_directory": str(folder),
            "memory_limit": MEMORY,
            "threads": 1,
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "allow_persistent_secrets": "false",
        }
        self.database = duckdb.connect(":memory:", config=config)
        self.run("SET enable_external_access = false")
        self.run("SET lock_configuration = true")
        for name, schema in tables.items():
            self.database.from_arrow(schema.empty_table()).create(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.database.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextlib.contextmanager
    def _sorting(self) -> Iterator[None]:
        try:
            yield
        except self.fault as error:  # its message may quote a cell
            raise MachineError(
                f"{self.folder}: the rows cannot be sorted ({type(error).__name__}); is there "
                "room on the disk?"
            ) from None

    def add(self, table: str, *columns: Sequence[Any]) -> None:
        """Take rows, column by column."""
        pairs = zip(columns, self.schemas[table], strict=True)
        arrays = [pa.array(column, field.type) for column, field in pairs]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schemas[table])
        self.waiting[table].append(batch)
        self.size += batch.nbytes
        if self.size >= ROOM:
            self._flush()

    def _flush(self) -> None:
        for name, batches in self.waiting.items():
            if batches:
                with self._sorting():  # to register a table would import pandas
                    rows = pa.Table.from_batches(batches)
                    self.database.from_arrow(rows).insert_into(name)
                batches.clear()
        self.size = 0

    def run(self, query: str) -> list[Any]:
        """What a query answers."""
        self._flush()
        with self._sorting():
            return self.database.execute(query).fetchall()

    def batches(self, query: str, size: int = 2_048) -> Iterator[pa.RecordBatch]:
        """The rows of a query, ``size`` at a time."""
        self._flush()
        with self._sorting():
            yield from self.database.sql(query).to_arrow_reader(size)
