"""From files of other people's forms to a corpus folder: ``crtlib ingest`` as a function.

>>> import pathlib, tempfile
>>> home = pathlib.Path(tempfile.mkdtemp())
>>> text = "customer,ticket,body\\nann,1,My name is Ann.\\nbob,2,\\nann,1,Thanks!\\n"
>>> _ = (home / "mails.csv").write_text(text)
>>> summary = ingest([home / "mails.csv"], home / "corpus", yes=True, skip_bad=True, max_bad=0.5)
>>> summary.facts.turns, summary.facts.threads, dict(summary.rejected)
(2, 1, {'no text': 1})
>>> print(table(summary).splitlines()[0])
columns   user=customer  thread=ticket  text=body
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import itertools
import json
import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

import duckdb
import numpy as np
import pyarrow as pa
from tqdm import tqdm

from crtlib import files, outputs
from crtlib.checks import MachineError
from crtlib.text import card, messages, readers
from crtlib.text.folder import COLUMNS, Facts, Writer, facts
from crtlib.text.messages import TAKEN, Bad, Columns, Options

LOOKED_AT = 3
"""Rows that the guess of the columns is made from."""
BATCH = 10_000
"""Messages that are handed over at a time."""
ROOM = 16 << 20
"""Characters of them, about."""
MEMORY = "512MB"
"""What DuckDB may hold; the rest lies in its folder."""


@dataclass(frozen=True)
class Summary:
    """What ``ingest`` did. ``rejected`` counts rows left out by reason, ``cut`` the threads in
    which several people speak; ``form`` is what the records were. ``up_to_date``: the folder was
    there already, made of the same files in the same way."""

    out: str
    form: str
    columns: Columns
    kept: tuple[str, ...]
    rows: int
    rejected: Mapping[str, int]
    cut: int
    facts: Facts
    up_to_date: bool = False

    def json(self) -> dict[str, Any]:
        """As one JSON object, schema ``crtlib/ingest/1``."""
        return {"schema": "crtlib/ingest/1", "ok": True, **asdict(self)}


@dataclass(frozen=True)
class _Reading:
    """How the sources are read: the options of ``ingest`` that its marker records."""

    format: str
    columns: Columns
    no_users: bool
    speaker_map: Mapping[str, str]
    encoding: str
    keep: str
    quotes: str
    skip_bad: bool
    max_bad: float
    limit: int | None
    split: str
    shard: int

    def __post_init__(self) -> None:
        for name, value, allowed, rule in (
            ("max-bad", self.max_bad, 0 <= self.max_bad <= 1, "in [0, 1]"),
            ("limit", self.limit, self.limit is None or self.limit >= 1, "at least 1"),
            ("shard", self.shard, 1 <= self.shard <= 2048, "in [1, 2048] MiB"),
            ("split", self.split, self.split.isidentifier(), "letters, digits and '_'"),
            ("quotes", self.quotes, self.quotes in ("drop", "keep"), "drop or keep"),
        ):
            if not allowed:
                raise ValueError(f"--{name}: {value!r} must be {rule}")

    def recorded(self) -> dict[str, Any]:
        """As JSON values."""
        values = asdict(self)
        del values["columns"]["guessed"]
        return values


@dataclass
class _Source:
    """A file, folder or hub address, and how its records are read; it counts its rows."""

    path: str
    name: str
    form: str
    how: _Reading
    shape: str = "table"
    options: Options = field(default_factory=Options)
    kept: tuple[str, ...] = ()
    rows: int = 0
    bad: int = 0

    def read(self) -> Iterator[readers.Row]:
        """Its rows, from the first."""
        how = self.how
        return readers.read(
            self.path, self.form, encoding=how.encoding, quotes=how.quotes, split=how.split
        )

    def look(self) -> None:
        """Settle shape and columns by the first rows that can be read."""
        good = (cells for _, cells in self.read() if not isinstance(cells, Bad))
        first = list(itertools.islice(good, LOOKED_AT))
        names = list(dict.fromkeys(name for cells in first for name in cells))
        columns = self.how.columns
        if first:
            self.shape = "messages" if self.form == "messages" else messages.shape(first[0])
        if self.form in ("mbox", "eml"):
            user = None if self.how.no_users else "user"
            columns = Columns(user, "thread", None, "text", "time")
        elif self.shape == "table" and first:
            columns = messages.guess(names, columns, where=self.name, no_users=self.how.no_users)
        free = [n for n in names if n not in TAKEN.get(self.shape, ())]
        self.kept = columns.kept(free, self.how.keep)
        self.options = Options(columns, self.how.no_users, self.how.speaker_map)

    def refusal(self, number: int, bad: Bad) -> str:
        """The one line that says why a row is refused."""
        if bad.encoding:
            where = bad.says.replace(")", f" in row {number})")
            return f"{self.name}: {where}; try --encoding cp1252"
        column = f", column {bad.column}" if bad.column else ""
        return f"{self.name}, row {number}{column}: {bad.says}; --skip-bad leaves it out"


def ingest(
    sources: Sequence[str | os.PathLike],
    out: str | os.PathLike,
    *,
    format: str = "auto",
    columns: Columns | None = None,
    no_users: bool = False,
    speaker_map: Mapping[str, str] | None = None,
    encoding: str = "auto",
    keep: str = "all",
    quotes: str = "drop",
    skip_bad: bool = False,
    max_bad: float = 0.01,
    limit: int | None = None,
    split: str = "train",
    shard: int = 128,
    yes: bool = False,
    ask: Callable[[str], bool] | None = None,
    force: bool = False,
    progress: bool = False,
) -> Summary:
    """Make the corpus folder ``out`` of ``sources``: files, folders or ``hub:owner/name``.

    ``format`` is one of ``readers.FORMATS``; ``columns`` names those of a table that are not to be
    guessed; a guess is used with ``yes``, or if ``ask`` says so of the line that shows it.
    ``no_users``: each thread is a user. ``keep``: further columns, "all", "none" or "a,b".
    ``max_bad`` is a share of rows, ``limit`` a number of rows, ``shard`` in MiB. Rows are streamed:
    memory does not grow with the text. Raises ``ValueError`` in one line that names file, row and
    column and never quotes text; then nothing is written.
    """
    how = _Reading(
        *(format, columns or Columns(), no_users, dict(speaker_map or {}), encoding, keep),
        *(quotes, skip_bad, max_bad, limit, split, shard),
    )
    plans = _plans(sources, how)
    for plan in plans:
        plan.look()  # before all of it is hashed: it may be endless, or no table at all
    inputs = {plan.name: _input(plan.path) for plan in plans}
    recipe: dict[str, Any] = {"command": "ingest", "options": how.recorded(), "inputs": inputs}
    if outputs.up_to_date(out, **recipe):
        return _finished(Path(out), plans)
    places = [plan.path for plan in plans if not plan.path.startswith("hub:")]
    outputs.check_folder(out, inputs=places, force=force)
    shown = columns_line(plans[0].options.columns, plans[0].kept, plans[0].shape)
    guessed = any(plan.options.columns.guessed for plan in plans)
    if guessed and not yes and not (ask and ask(shown)):
        what = " ".join(shown.removeprefix("columns").split())
        raise ValueError(f"{plans[0].name}: the columns are guessed ({what}); --yes takes them")
    summary: dict[str, Any] = {}
    with outputs.staged(out, **recipe, facts=summary, force=force) as part:
        counts, counted = _write(part, plans, how, progress)
        summary |= {"corpus": asdict(counts), "ingest": counted}
        card.write(part, Path(out).absolute().name, counts, list(inputs), simulated=False)
    return _summary(out, plans, counted, counts)


def _plans(sources: Sequence[str | os.PathLike], how: _Reading) -> list[_Source]:
    """The sources with their formats and a name each."""
    if not sources:
        raise ValueError("SOURCE: is missing; name a file, a folder or hub:owner/name")
    plans: list[_Source] = []
    for path in [os.fspath(source) for source in sources]:
        if "://" in path:
            raise ValueError(f"{path}: is a URL, must be a local file or folder, or hub:owner/name")
        name = path if path.startswith("hub:") else Path(path).absolute().name
        same = sum(plan.name.partition(" (")[0] == name for plan in plans)
        form = readers.form(path) if how.format == "auto" else how.format
        plans.append(_Source(path, f"{name} ({same + 1})" if same else name, form, how))
    return plans


def _input(path: str) -> str:
    """A hash of a source: of a file, of all files of a folder, of a hub's address."""
    if path.startswith("hub:"):
        return hashlib.sha256(path.encode()).hexdigest()
    return outputs.content(path)


def _write(
    part: Path, plans: list[_Source], how: _Reading, progress: bool
) -> tuple[Facts, dict[str, Any]]:
    """Read all rows, put the threads together, write the shards."""
    names = list(dict.fromkeys(name for plan in plans for name in plan.kept))
    with (
        Threads(part / "threads", names) as threads,
        (part / "rejected.csv").open("w", encoding="utf-8", newline="") as file,
    ):
        rejected = csv.writer(file)
        rejected.writerow(("file", "row", "column", "reason"))
        reasons: Counter[str] = Counter()
        ids: set[str | None] | None = None
        if any(plan.shape != "table" for plan in plans):
            ids = set()
        left = sys.maxsize if how.limit is None else how.limit
        for plan in plans:
            kept = [name if name in plan.kept else None for name in names]
            options = replace(plan.options, kept=kept, ids=ids)
            bar = tqdm(plan.read(), "reading", unit=" rows", disable=not progress)
            rows = itertools.islice(bar, left)
            while lot := list(itertools.islice(rows, readers.BATCH)):
                good = [(number, cells) for number, cells in lot if not isinstance(cells, Bad)]
                made, faults = messages.SHAPES[plan.shape]([cells for _, cells in good], options)
                bad = [(number, cells) for number, cells in lot if isinstance(cells, Bad)]
                bad += [(good[k][0], fault) for k, fault in faults.items()]
                for number, fault in sorted(bad, key=itemgetter(0)):
                    if not how.skip_bad:
                        raise ValueError(plan.refusal(number, fault))
                    reasons[fault.reason] += 1
                    row = (plan.name, str(number), fault.column, fault.reason)
                    rejected.writerow(map(files.harmless, row))
                plan.rows += len(lot)
                plan.bad += len(bad)
                threads.put(made, len(good))
            left -= plan.rows
            if plan.bad > how.max_bad * plan.rows:
                raise ValueError(
                    f"{plan.name}: {plan.bad:,} of {plan.rows:,} rows are bad "
                    f"({plan.bad / plan.rows:.2g}), more than --max-bad {how.max_bad}"
                )
        if not threads.turns:
            raise ValueError(f"{plans[0].name}: holds no message that can be used")
        users = "thread" if how.no_users else "column"
        writer = Writer(part, split=how.split, shard=how.shard << 20, users_are=users)
        for table in threads.tables():
            writer.add(table)
        counted = {
            "rows": sum(plan.rows for plan in plans),
            "rejected": dict(reasons),
            "cut": threads.cut,
        }
        return writer.close(), counted


class Threads:
    """Collects messages and gives them back as rows of a corpus, threads in the order in which
    they began, one person each: who else speaks in a thread gets one of his own (``id~2``).

    DuckDB holds and sorts them: it sees no file but those that it writes into ``folder``, which is
    private and goes at the end, and loads no extension. ``names``: those of the further columns.
    """

    def __init__(self, folder: Path, names: Sequence[str] = ()) -> None:
        folder.mkdir(mode=0o700)
        self.folder = folder
        self.names = [json.dumps(name) for name in names]
        columns = ["row", "thread", "person", "speaker", "text", "time", "secrets"]
        columns += [f"x{k}" for k in range(len(names))]
        kinds = {"row": pa.int64(), "time": pa.int64()}
        self.schema = pa.schema([(name, kinds.get(name, pa.string())) for name in columns])
        self.waiting: list[tuple[Any, ...]] = []
        self.rows, self.turns, self.size, self.cut = 1, 0, 0, 0
        config: dict[str, Any] = {
            "temp_directory": str(folder),
            "memory_limit": MEMORY,
            "threads": 1,
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "allow_persistent_secrets": "false",
        }
        self.database = duckdb.connect(":memory:", config=config)
        self._run("SET enable_external_access = false")
        self._run("SET lock_configuration = true")
        sql = ", ".join(f"{c} {'BIGINT' if c in kinds else 'VARCHAR'}" for c in columns)
        self._run(f"CREATE TABLE messages ({sql})")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.database.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, query: str) -> list[Any]:
        with self._sorting():
            return self.database.execute(query).fetchall()

    @contextlib.contextmanager
    def _sorting(self) -> Iterator[None]:
        try:
            yield
        except duckdb.Error as error:  # its message may quote a cell
            raise MachineError(
                f"{self.folder}: the messages cannot be sorted ({type(error).__name__}); is there "
                "room on the disk?"
            ) from None

    def put(self, rows: Sequence[tuple[Any, ...]], count: int) -> None:
        """Take the messages of ``count`` rows of a source, as ``messages.SHAPES`` make them."""
        self.waiting += [(self.rows + row[0], *row[1:]) for row in rows]
        self.rows += count
        self.turns += len(rows)
        self.size += sum(len(row[4]) + ROOM // BATCH for row in rows)
        if self.size >= ROOM:
            self._flush()

    def _flush(self) -> None:
        columns = zip(*self.waiting, strict=True)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, self.schema, strict=False)]
        if arrays:
            with self._sorting():  # to register a table would import pandas
                self.database.from_arrow(pa.table(arrays, self.schema)).insert_into("messages")
        self.waiting, self.size = [], 0

    def tables(self) -> Iterator[pa.Table]:
        """The threads as rows of a corpus, some at a time; turns that all have a time are put in
        its order."""
        self._flush()
        self._run(_NAMED)
        while self._run("SELECT count(*) > count(DISTINCT id) FROM named")[0][0]:
            self._run(_ANOTHER)
        self.cut = self._run("SELECT count(*) FROM named WHERE nth = 2")[0][0]
        further = "".join(f", x{k}" for k in range(len(self.names)))
        rest: pa.Table | None = None
        with self._sorting():
            for batch in self.database.sql(_SORTED.replace("FURTHER", further)).to_arrow_reader(
                2_048
            ):
                table = pa.Table.from_batches([batch])
                rest = pa.concat_tables([rest, table]) if rest else table
                number = rest["number"]
                if number[0] == number[-1] or (len(rest) < BATCH and rest.nbytes < ROOM):
                    continue
                whole = int(np.searchsorted(number.to_numpy(), number[-1].as_py()))
                yield self._rows(rest[:whole])  # the last one may go on
                rest = rest[whole:]
            if rest:
                yield self._rows(rest)

    def _rows(self, table: pa.Table) -> pa.Table:
        """Turns, those of a thread one after another, as rows of a corpus."""
        table = table.combine_chunks()
        starts = np.flatnonzero(np.diff(table["number"].to_numpy(), prepend=-1))
        first, offsets = table.take(starts), [*starts.tolist(), len(table)]
        turns = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), table["turn"].chunk(0))
        further = [(n, table[f"x{k}"].to_pylist()) for k, n in enumerate(self.names)]
        extra = [
            _extra([(name, cells[a:b]) for name, cells in further])
            for a, b in itertools.pairwise(offsets)
        ]
        columns = [first["id"], first["user"], turns, pa.array(extra, pa.string())]
        return pa.table(columns, COLUMNS.names).cast(COLUMNS)


def _extra(columns: Sequence[tuple[str, list[str | None]]]) -> str | None:
    """The further columns of a thread: a value where all turns agree, else a list, one a turn."""
    parts = []
    for name, cells in columns:
        if any(cells):
            values = [cell or "null" for cell in cells]
            same = values.count(values[0]) == len(values)
            parts.append(f"{name}: {values[0] if same else '[' + ', '.join(values) + ']'}")
    return f"{{{', '.join(parts)}}}" if parts else None


_NAMED = """
CREATE TABLE named AS
SELECT *, CASE WHEN own > 0 THEN 'row-' || number WHEN nth = 1 THEN thread
          ELSE thread || '~' || nth END AS id
FROM (SELECT *, row_number() OVER (ORDER BY began) AS number,
             row_number() OVER (PARTITION BY own, thread ORDER BY began) AS nth
      FROM (SELECT CASE WHEN thread IS NULL THEN row ELSE 0 END AS own, thread, person,
                   min(rowid) AS began, count(*) = count(time) AS timed,
                   sum(1 + len(text) // 1600) AS size
            FROM messages GROUP BY ALL))"""
_ANOTHER = """
UPDATE named SET id = id || '~' WHERE number IN (
    SELECT number FROM (
        SELECT number, row_number() OVER (PARTITION BY id ORDER BY number) AS k FROM named)
    WHERE k > 1)"""
_SORTED = """
SELECT named.number, named.id, coalesce(named.person, named.id) AS user,
       {'speaker': speaker, 'text': text, 'time': epoch_ms(time)::TIMESTAMP_MS,
        'labelled': secrets IS NOT NULL,
        'secrets': coalesce(from_json(secrets,
            '[{"kind": "VARCHAR", "start": "INTEGER", "end": "INTEGER"}]'), [])} AS turn
       FURTHER
FROM messages JOIN named
ON CASE WHEN messages.thread IS NULL THEN messages.row ELSE 0 END = own
   AND messages.thread IS NOT DISTINCT FROM named.thread
   AND messages.person IS NOT DISTINCT FROM named.person
ORDER BY number, CASE WHEN timed THEN time END, messages.rowid"""


def _summary(
    out: str | os.PathLike,
    plans: list[_Source],
    counted: Mapping[str, Any],
    counts: Facts,
    *,
    up_to_date: bool = False,
) -> Summary:
    first = plans[0]
    form = first.form if first.shape == "table" else first.shape
    columns, kept = first.options.columns, first.kept
    return Summary(
        os.fspath(out), form, columns, kept, **counted, facts=counts, up_to_date=up_to_date
    )


def _finished(out: Path, plans: list[_Source]) -> Summary:
    """The summary of a folder that is there already."""
    counted = outputs.demand(out, names=())["facts"]["ingest"]
    return _summary(out, plans, counted, facts(out), up_to_date=True)


def columns_line(columns: Columns, kept: Sequence[str], shape: str = "table") -> str:
    """The line that shows what was guessed."""
    roles = str(columns) if shape == "table" else f"{shape}, as they are"
    further = f"   kept: {', '.join(kept)}" if kept else ""
    indent = " " * 10
    return textwrap.fill(f"columns   {roles}{further}", 80, subsequent_indent=indent)


def table(summary: Summary) -> str:
    """What a command prints of it; at most 80 columns wide where names allow."""
    counts = summary.facts
    lines = [
        columns_line(
            summary.columns, summary.kept, summary.form if summary.form in TAKEN else "table"
        )
    ]
    dates = f" · {counts.first} to {counts.last}" if counts.first else ""
    lines.append(
        f"turns {counts.turns:,} · threads {counts.threads:,} · users {counts.users:,}{dates}"
    )
    if counts.users_are == "thread":
        lines.append("no person is known: each thread counts as a user")
    if summary.cut:
        lines.append(f"threads of several people, cut by person: {summary.cut:,}")
    if summary.rejected:
        why = sorted(summary.rejected.items(), key=lambda item: -item[1])
        parts = ", ".join(f"{count:,} {reason}" for reason, count in why)
        total = sum(summary.rejected.values())
        lines.append(f"left out {total:,}: {parts}         {summary.out}/rejected.csv")
    if summary.up_to_date:
        lines.append(f"{summary.out}: up to date")
    lines.append("policy that fits: none is known for this text; see 'crtlib label sample'")
    return "\n".join(lines)
