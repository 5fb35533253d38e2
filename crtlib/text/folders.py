"""Folders of text: a corpus, a screened corpus, and what a command has finished of its work.

A corpus as a folder: Parquet shards, a card and a marker; ``datasets`` reads it as well.

>>> import pathlib, tempfile
>>> from crtlib.text.customersim import simulate
>>> out = pathlib.Path(tempfile.mkdtemp()) / "corpus"
>>> facts = save(simulate(20, 0).dialogues, out, command="simulate", options={"seed": 0})
>>> facts.threads, tuple(dialogues(out)) == simulate(20, 0).dialogues
(20, True)
>>> sorted(p.name for p in out.iterdir())
['README.md', 'croissant.json', 'crtlib.json', 'data']

A screened folder: a public and a private part, each with the columns ``id, user, text``.

>>> import pathlib, tempfile
>>> home = pathlib.Path(tempfile.mkdtemp())
>>> with Parts(home, key=b"k" * 32) as parts:
...     parts.add("public", [Point("d/1", "ann", "Hello.", thread="d")])
...     parts.add("private", [Point("d/0", "ann", "I am <MASK>.", thread="d")])
...     _ = parts.close()
>>> [(row["id"][0], row["text"]) for row in rows(home, "private")]
[('p', 'I am <MASK>.')]

What a command has finished of its work, in a private folder beside its output, until all is.

A shard is a batch as one worker took it: its result as JSON, with what it was made of and its
SHA-256. A command that was killed finds the shards of the same input and options, and does the
others; one that ends in a user's mistake leaves none.

>>> import tempfile
>>> out = Path(tempfile.mkdtemp()) / "out"
>>> try:
...     with beside(out, {"policy": "cautious"}) as shards:
...         shards.write("0", [1, 2])
...         raise KeyboardInterrupt
... except KeyboardInterrupt:
...     pass
>>> with beside(out, {"policy": "cautious"}) as shards:
...     shards.read("0"), shards.read("1")
([1, 2], None)
>>> with beside(out, {"policy": "everything"}) as shards:
...     shards.read("0")

A function on batches, in their order, some of them at a time on an executor.

>>> from concurrent.futures import ThreadPoolExecutor
>>> with ThreadPoolExecutor(2) as executor:
...     list(in_order(sum, iter([[1, 2], [3], []]), executor))
[([1, 2], 3), ([3], 3), ([], 0)]
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import hmac
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from crtlib import files, outputs
from crtlib.checks import DamagedError, MachineError
from crtlib.files import Named
from crtlib.text import records
from crtlib.text.records import Dialogue, Point, Turn, filled, sha, unit
from crtlib.version import __version__

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
    """What a corpus folder holds. ``sha256`` is the corpus hash: over ``records.canonical`` of its
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
        digest.update(records.canonical(d.id, d.user, ((t.speaker, t.text) for t in d.turns)))
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
            self.digest.update(records.canonical(name, user, said[a - ends[0] : b - ends[0]]))
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
        rows = map(records.record, dialogues)
        while some := list(itertools.islice(rows, GROUP_ROWS)):
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
        return lambda dialogues, **_: records.write_jsonl(dialogues, out)
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
                yield from map(records.dialogue, batch.to_pylist())
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
SCREENED = "crtlib/screen/2"
"""Schema of the summary of a screened folder. In that of 0.3, "crtlib/screen/1", a secret in a
repeated message left no trace, and copies might be dropped."""
KEY = "private/key"
SAID = "private/said.parquet"
_BATCH = 10_000


def pseudonym(key: bytes, kind: str, value: str) -> str:
    """How an "id", a "user" or a "secret" is called: its letter and 16 hexadecimal digits."""
    digest = hmac.digest(key, f"{kind}:{value}".encode(), "sha256").hex()
    return {"id": "p", "user": "u", "secret": "s"}[kind] + digest[:16]


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
        """The :func:`pseudonym` of an "id" or of a "user"."""
        if self.key is None or not value:  # nobody has no pseudonym
            return value
        return pseudonym(self.key, kind, value)

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


def screened_dialogues(folder: Named) -> Iterator[Dialogue]:
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
    if content.get("schema") != SCREENED or "decided" not in content:
        raise ValueError(
            f"{folder}: was screened by another version of crtlib, whose trace rate may leave out "
            "repeated messages; screen the corpus anew"
        )
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


@dataclass(frozen=True)
class Shards:
    """The finished shards of one piece of work, which is named by the hash of its ``recipe``."""

    folder: Path
    recipe: str
    part: str = ""

    def of(self, part: str) -> Shards:
        """Those of a part of the work, numbered from 0 as well."""
        return replace(self, part=f"{part}-")

    def read(self, name: str) -> Any:
        """The result of a shard; None where it is not finished, damaged or of other work."""
        try:
            recipe, known, text = self._path(name).read_text(encoding="utf-8").split("\n", 2)
        except (OSError, ValueError):
            return None
        return json.loads(text) if (recipe, known) == (self.recipe, sha(text)) else None

    def write(self, name: str, result: Any) -> None:
        """Keep the result of a shard, any JSON value but null; what is none becomes its text."""
        text = json.dumps(result, default=str)
        files.write_text(self._path(name), f"{self.recipe}\n{sha(text)}\n{text}", mode=0o600)

    def _path(self, name: str) -> Path:
        return self.folder / f"{self.part}{name}.json"


def folder(out: Named) -> Path:
    """Where the shards of an output lie."""
    place = Path(out).absolute()
    return place.with_name(f".{place.name}.shards")


@contextlib.contextmanager
def beside(out: Named, recipe: Mapping[str, Any]) -> Iterator[Shards]:
    """The shards of the work that ``recipe`` tells from all other (JSON values: options, hashes of
    input and of policies), removed when it is done or refused. One process at a time."""
    place = folder(out)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        yield Shards(place, sha(json.dumps([__version__, dict(recipe)], sort_keys=True)))
    except ValueError as error:
        if not isinstance(error, DamagedError):
            shutil.rmtree(place)
        raise
    except OSError:  # also one of a file that a user named
        with contextlib.suppress(OSError):
            place.rmdir()  # if nothing is finished
        raise
    shutil.rmtree(place)


In = TypeVar("In")
Out = TypeVar("Out")
AHEAD = 8
"""Batches that are handed out before the first is back: memory holds no more of them."""


def in_order(
    call: Callable[[In], Out],
    lots: Iterator[In],
    executor: Executor | None,
    shards: Shards | None = None,
) -> Iterator[tuple[In, Out]]:
    """Each batch with ``call`` of it; here where there is no executor. A batch and its result must
    be picklable. A result that ``shards`` hold is not made again, any other is kept there: it must
    be a JSON value, tuples come back as lists."""

    def begin(number: int, lot: In) -> tuple[In, Callable[[], Out]]:
        known = shards.read(str(number)) if shards else None
        if known is not None:
            return lot, lambda: known
        if executor is None:
            return lot, partial(keep, number, lambda: call(lot))
        return lot, partial(keep, number, executor.submit(call, lot).result)

    def keep(number: int, result: Callable[[], Out]) -> Out:
        found = result()
        if shards:
            shards.write(str(number), found)
        return found

    begun = itertools.starmap(begin, enumerate(lots))
    ahead = list(itertools.islice(begun, AHEAD if executor else 1))
    while ahead:
        lot, result = ahead.pop(0)
        yield lot, result()
        ahead += itertools.islice(begun, 1)
