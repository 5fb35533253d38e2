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
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from crtlib import outputs
from crtlib.checks import MachineError
from crtlib.files import Named
from crtlib.text import jsonl
from crtlib.text.records import Dialogue, filled, unit

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
COLUMNS = pa.schema([("id", pa.string()), ("user", pa.string()), ("turns", pa.list_(TURN))])
"""The columns of a corpus: one row a thread."""
GROUP_ROWS = 1_000
"""Dialogues that are written at a time."""


@dataclass(frozen=True)
class Facts:
    """What a corpus folder holds. ``sha256`` is the corpus hash: over ``jsonl.canonical`` of its
    dialogues in order, so the same for Parquet and JSONL and any labels. ``users_are``: "thread"
    where each thread counts as a user, else "column". ``policy``: one that fits the text, if one
    is known. ``first`` and ``last`` are dates, None where no turn has a time."""

    turns: int
    threads: int
    users: int
    labelled: int
    sha256: str
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
    """Writes tables with the columns ``COLUMNS``, of which ``time`` may be null, into the file of
    one split, each as a row group."""

    def __init__(self, folder: Path, split: str) -> None:
        path = folder / "data" / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = pq.ParquetWriter(path, COLUMNS, compression="zstd")
        self.turns, self.threads, self.labelled = 0, 0, 0
        self.users: set[bytes] = set()
        self.digest = hashlib.sha256()
        self.dates: list[datetime.datetime] = []

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
        dates = [*self.dates, *filter(None, pc.min_max(turns.field("time")).as_py().values())]
        self.dates = [min(dates), max(dates)] if dates else []
        self.file.write_table(rows.cast(COLUMNS))

    def close(self, users_are: str = "column", policy: str | None = None) -> Facts:
        """Finish the file; ``ValueError`` where nothing was written."""
        self.file.close()
        if not self.threads:
            raise ValueError("the corpus is empty, at least one dialogue is needed")
        first, last = [date.date().isoformat() for date in self.dates] or (None, None)
        counts = (self.turns, self.threads, len(self.users), self.labelled)
        return Facts(*counts, self.digest.hexdigest(), users_are, policy, first, last)


def card(folder: Path, name: str, facts: Facts, sources: Sequence[str], *, simulated: bool) -> None:
    """Write what lies beside the ``data`` of ``folder``: a dataset card (README.md) and its
    Croissant 1.0 description."""
    (file,) = (folder / "data").iterdir()
    for out, template in (("README.md", "card.md"), ("croissant.json", "croissant.json")):
        text = filled(
            template,
            name=name,
            facts=facts,
            sources=sources,
            simulated=simulated,
            file=file.name,
            sha256=outputs.sha256(file),
            split=file.name.rsplit("-", 3)[0],
            today=datetime.date.today().isoformat(),
        )
        (folder / out).write_text(text + "\n", encoding="utf-8")


def save(
    dialogues: Iterable[Dialogue],
    out: Named,
    *,
    command: str,
    options: Mapping[str, Any],
    policy: str | None = None,
    simulated: bool = False,
    split: str = "train",
    force: bool = False,
) -> Facts:
    """Write labelled dialogues, read one after another, as a corpus folder.

    Its files are private, unless the dialogues were ``simulated``. Raises ``ValueError`` where
    ``out`` may not be written (``outputs.check_folder``), or a dialogue is none.
    """
    summary: dict[str, Any] = {}
    with outputs.staged(
        out,
        command=command,
        options=options,
        public=("*",) if simulated else (),
        facts=summary,
        force=force,
    ) as part:
        writer = Writer(part, split)
        records = map(jsonl.record, dialogues)
        while some := list(itertools.islice(records, GROUP_ROWS)):
            for turn in itertools.chain.from_iterable(record["turns"] for record in some):
                turn["labelled"] = True
            writer.add(pa.Table.from_pylist(some, COLUMNS))
        counts = writer.close(policy=policy)
        summary["corpus"] = asdict(counts)
        card(part, Path(out).name, counts, [], simulated=simulated)
    return counts


def writer(out: Named, *, inputs: Sequence[Path] = (), force: bool = False) -> Callable[..., Any]:
    """What writes dialogues as :func:`save` does, to ``out``: that, or one file of JSON lines where
    the name ends so. Raises ``ValueError`` where nothing may be written there."""
    if os.fspath(out).endswith((".jsonl", ".jsonl.gz")):
        outputs.check_file(out, inputs=inputs, force=force)
        return lambda dialogues, **_: jsonl.write_jsonl(dialogues, out)
    outputs.check_folder(out, inputs=inputs, force=force)
    return partial(save, out=out, force=force)


def facts(folder: Named) -> Facts:
    """What a finished corpus folder holds, as its marker says; ``ValueError`` for another."""
    content = outputs.demand(folder, names=()).get("facts", {}).get("corpus", {})
    try:
        return Facts(**{one.name: content[one.name] for one in fields(Facts)})
    except KeyError:
        raise ValueError(f"{folder}: is no corpus folder; its {outputs.MARKER} says so") from None


def parts(folder: Named, split: str | None) -> list[str]:
    """The names of the files of one split, or of all; ``ValueError`` for a folder that is
    unfinished or not ours, and for a split that is not there."""
    pattern = f"data/{split or '*'}-*.parquet"
    marker = outputs.demand(folder, names=())
    names = sorted(n for n in marker["files"] if Path(n).match(pattern))
    if not names:
        raise ValueError(f"split={split or 'train'!r}: {folder} has no {pattern}")
    return names


def dialogues(folder: Named, *, split: str | None = None) -> Iterator[Dialogue]:
    """The dialogues of a corpus folder in order, of one split, or of all, its hashes checked first;
    bounded memory. Raises ``ValueError`` as :func:`parts` does, and for a damaged file."""
    names = parts(folder, split)
    outputs.demand(folder, names=names)
    for name in names:
        path = Path(folder) / name
        try:
            for batch in pq.ParquetFile(path).iter_batches(1_000, columns=COLUMNS.names):
                if not batch.schema.equals(COLUMNS):
                    raise ValueError(f"{path}: has other columns than a corpus")
                yield from map(jsonl.dialogue, batch.to_pylist())
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: is damaged ({type(error).__name__})") from None


# --------------------------------------------------------------------------- rows in other order
MEMORY = "512MB"
"""What DuckDB may hold; the rest lies in its folder."""
ROOM = 16 << 20
"""Bytes that are handed over at a time, about."""
LOT = 4_096
"""Rows that become columns at a time."""


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

    def add(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        """Take rows, some thousands at a time."""
        schema, rows = self.schemas[table], iter(rows)
        while lot := list(itertools.islice(rows, LOT)):
            pairs = zip(zip(*lot, strict=True), schema.types, strict=True)
            batch = pa.record_batch([pa.array(*pair) for pair in pairs], schema)
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
