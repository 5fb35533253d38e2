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
import os
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from crtlib import files, outputs, shards
from crtlib.shards import Shards
from crtlib.text import card, readers, shapes
from crtlib.text.ahead import in_order
from crtlib.text.columns import Columns, guess
from crtlib.text.folder import Facts, Writer, facts
from crtlib.text.rows import Fault, TableRow
from crtlib.text.shapes import Bad, Options
from crtlib.text.threads import Message, Threads

LOOKED_AT = 3
"""Rows that the guess of the columns is made from."""
BATCH = 2_000
"""Rows that a worker reads at a time."""
_SHAPES = {"table": shapes.table, "turns": shapes.own, "messages": shapes.chat}


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
    rows: int = 0
    bad: int = 0

    def read(self) -> Iterator[TableRow]:
        """Its rows, from the first."""
        how = self.how
        return readers.rows(
            self.path, self.form, encoding=how.encoding, quotes=how.quotes, split=how.split
        )

    def look(self) -> None:
        """Settle shape and columns by the first rows that can be read."""
        good = (dict(row.cells) for row in self.read() if not row.fault)
        first = list(itertools.islice(good, LOOKED_AT))
        names = list(dict.fromkeys(name for cells in first for name in cells))
        columns = self.how.columns
        if first:
            self.shape = "messages" if self.form == "messages" else shapes.shape(first[0])
        if self.form in ("mbox", "eml"):
            user = None if self.how.no_users else "user"
            columns = Columns(user, "thread", None, "text", "time")
        elif self.shape == "table" and first:
            columns = guess(names, columns, where=self.name, no_users=self.how.no_users)
        free = [n for n in names if n not in _TAKEN.get(self.shape, ())]
        kept = columns.kept(free, self.how.keep)
        self.options = Options(columns, kept, self.how.no_users, self.how.speaker_map)

    def fault(self, row: TableRow, fault: Fault) -> str:
        """The one line that says why a row is refused."""
        if fault.encoding:
            where = fault.says.replace(")", f" in row {row.number})")
            return f"{self.name}: {where}; try --encoding cp1252"
        column = f", column {fault.column}" if fault.column else ""
        return f"{self.name}, row {row.number}{column}: {fault.says}; --skip-bad leaves it out"


_TAKEN = {"turns": ("id", "user", "turns"), "messages": ("id", "user", "messages", "metadata")}


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
    executor: Executor | None = None,
    progress: bool = False,
) -> Summary:
    """Make the corpus folder ``out`` of ``sources``: files, folders or ``hub:owner/name``.

    ``format`` is one of ``readers.FORMATS``; ``columns`` names those of a table that are not to be
    guessed; a guess is used with ``yes``, or if ``ask`` says so of the line that shows it.
    ``no_users``: each thread is a user. ``keep``: further columns, "all", "none" or "a,b".
    ``max_bad`` is a share of rows, ``limit`` a number of rows, ``shard`` in MiB. Rows are streamed:
    memory does not grow with the text; an ``executor`` reads several batches of them at a time,
    which are kept beside ``out`` until all is done, so that a killed call goes on
    (:mod:`crtlib.shards`).
    Raises ``ValueError`` in one line that names file, row and column and never quotes text; then
    nothing is written.
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
    shown = columns_line(plans[0].options.columns, plans[0].options.kept, plans[0].shape)
    guessed = any(plan.options.columns.guessed for plan in plans)
    if guessed and not yes and not (ask and ask(shown)):
        what = " ".join(shown.removeprefix("columns").split())
        raise ValueError(f"{plans[0].name}: the columns are guessed ({what}); --yes takes them")
    summary: dict[str, Any] = {}
    with (
        outputs.staged(out, **recipe, facts=summary, force=force) as part,
        shards.beside(out, recipe) if executor else contextlib.nullcontext() as kept,
    ):
        counts, counted = _write(part, plans, how, partial(_messages, executor, kept, progress))
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
    part: Path, plans: list[_Source], how: _Reading, messages: Callable[..., Iterator[_Read]]
) -> tuple[Facts, dict[str, Any]]:
    """Read all rows, put the threads together, write the shards."""
    with (
        Threads(part / "threads.sqlite") as threads,
        (part / "rejected.csv").open("w", encoding="utf-8", newline="") as file,
    ):
        rejected = csv.writer(file)
        rejected.writerow(("file", "row", "column", "reason"))
        reasons: Counter[str] = Counter()
        left = how.limit
        for number, plan in enumerate(plans):
            for row, fault in _taken(plan, threads, messages(number, plan, left)):
                if not how.skip_bad:
                    raise ValueError(plan.fault(row, fault))
                reasons[fault.reason] += 1
                cells = (plan.name, str(row.number), fault.column, fault.reason)
                rejected.writerow([files.harmless(cell) for cell in cells])
            left = None if left is None else left - plan.rows
            if plan.bad > how.max_bad * plan.rows:
                raise ValueError(
                    f"{plan.name}: {plan.bad:,} of {plan.rows:,} rows are bad "
                    f"({plan.bad / plan.rows:.2g}), more than --max-bad {how.max_bad}"
                )
        users = "thread" if how.no_users else "column"
        writer = Writer(part, split=how.split, shard=how.shard << 20, users_are=users)
        for record in threads.rows():
            writer.add(record)
        if not threads.turns:
            raise ValueError(f"{plans[0].name}: holds no message that can be used")
        counted = {
            "rows": sum(plan.rows for plan in plans),
            "rejected": dict(reasons),
            "cut": threads.cut,
        }
        return writer.close(), counted


_Read = tuple[TableRow, list[Message], Fault | None]
"""A row, its messages, and what is wrong with it."""


def _parsed(shape: str, options: Options, rows: Sequence[TableRow]) -> list[Any]:
    """Of each row: its messages, and why there are none, as JSON values."""
    read: list[Any] = []
    for row in rows:
        messages, fault = [], row.fault
        if fault is None:
            try:
                messages = _SHAPES[shape](row.cells, options)
            except Bad as bad:
                fault = bad.fault
        read.append(([m.packed() for m in messages], fault and asdict(fault)))
    return read


def _messages(
    executor: Executor | None,
    kept: Shards | None,
    progress: bool,
    number: int,
    plan: _Source,
    limit: int | None,
) -> Iterator[_Read]:
    """The rows of a source in order, with their messages."""
    rows = iter(tqdm(itertools.islice(plan.read(), limit), "reading", unit=" rows",
                     disable=not progress))  # fmt: skip
    size = BATCH if executor else 1
    lots = iter(lambda: list(itertools.islice(rows, size)), [])
    call = partial(_parsed, plan.shape, plan.options)
    for lot, read in in_order(call, lots, executor, kept and kept.of(str(number))):
        for row, (messages, fault) in zip(lot, read, strict=True):
            yield row, [Message.unpacked(m) for m in messages], fault and Fault(**fault)


def _taken(
    plan: _Source, threads: Threads, read: Iterator[_Read]
) -> Iterator[tuple[TableRow, Fault]]:
    """Put the messages of a source into ``threads``; yield the rows that were left out."""
    for row, messages, fault in read:
        plan.rows += 1
        if fault is None:
            thread = messages[0].thread
            if plan.shape != "table" and thread is not None and thread in threads:
                fault = Fault("repeated id", "has an id that was used before", "id")
            else:
                threads.put(messages)
        if fault is not None:
            plan.bad += 1
            yield row, fault


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
    columns, kept = first.options.columns, first.options.kept
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
            summary.columns, summary.kept, summary.form if summary.form in _TAKEN else "table"
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
