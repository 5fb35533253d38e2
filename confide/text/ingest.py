"""Turn other people's files into a corpus folder: ``crtlib ingest`` as a function.

>>> import pathlib, tempfile
>>> home = pathlib.Path(tempfile.mkdtemp())
>>> text = "customer,ticket,body\\nann,1,My name is Ann.\\nbob,2,\\nann,1,Thanks!\\n"
>>> _ = (home / "mails.csv").write_text(text)
>>> summary = ingest_sources(
...     [home / "mails.csv"], home / "corpus", yes=True, skip_bad=True, max_bad=0.5
... )
>>> summary.facts.turns, summary.facts.threads, dict(summary.rejected)
(2, 1, {'no text': 1})
>>> print(format_ingest_summary(summary).splitlines()[0])
columns   user=customer  thread=ticket  text=body
"""

from __future__ import annotations

import csv
import itertools
import math
import os
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from tqdm import tqdm

from confide.text import readers
from confide.text.columns import COLUMN_ROLES, INGEST_TEMPLATES, ColumnsByRole, column_argument
from confide.text.decoding import name_of_encoding
from confide.text.encoded_text import looks_encoded
from confide.text.message_forms import (
    MESSAGE_SCHEMA,
    RECORD_SHAPES,
    IngestSource,
    TurnMessage,
)
from confide.text.quotes import looks_quoted
from confide.text.readers import IngestOptions
from crtlib import csv_formulas, outputs
from crtlib.arguments import argument, argument_error, arguments
from crtlib.files import StrPath
from crtlib.foreign_files import refuse_whatever_fails
from crtlib.options import OptionWouldHelp
from crtlib.progress import bar_options
from crtlib.text import corpus_folder, screened_folder
from crtlib.text.corpus_folder import CorpusSummary, CorpusWriter
from crtlib.text.identity import hash_text, normalise_unit_name
from crtlib.text.jsonl import BadRow, read_record
from crtlib.text.package_data import fill_page
from crtlib.text.sorted_rows import RowSorter

# A message that names nobody belongs to the one person named in its conversation. If several are
# named it belongs to none of them: whose it is would depend on who else is in the text.
_FILL_PERSONS_SQL = """
UPDATE messages SET person = one.person
FROM (SELECT thread, min(person) AS person FROM messages
      WHERE person IS NOT NULL GROUP BY thread HAVING count(DISTINCT person) = 1) AS one
WHERE messages.person IS NULL AND messages.thread = one.thread"""
_NAME_THREADS_SQL = """
CREATE TABLE named AS
SELECT *, sum(size) OVER (ORDER BY number) // 10000 AS lot,
       CASE WHEN own > 0 THEN 'row-' || number WHEN nth = 1 THEN thread
       ELSE thread || '~' || nth END AS id
FROM (SELECT *, row_number() OVER (ORDER BY began) AS number,
             row_number() OVER (PARTITION BY own, thread ORDER BY began) AS nth
      FROM (SELECT CASE WHEN thread IS NULL THEN row ELSE 0 END AS own, thread, person,
                   min(thread_as_person) AS thread_as_person,
                   min(rowid) AS began, count(*) = count(time) AS timed,
                   sum(1 + len(text) // 1600) AS size
            FROM messages GROUP BY ALL))"""
# A conversation in which nobody is named becomes a user of its own name, so no other conversation
# may have the name of its user.
_RENAME_LIKE_PERSONS_SQL = """
UPDATE named SET id = id || '~' WHERE person IN (thread_as_person, id)
AND EXISTS (SELECT 1 FROM named WHERE person IS NULL)"""
_RENAME_REPEATED_SQL = """
UPDATE named SET id = id || '~' WHERE number IN (
    SELECT number FROM (
        SELECT number, row_number() OVER (PARTITION BY id ORDER BY number) AS k FROM named)
    WHERE k > 1)"""
_COUNT_THREADS_SQL = "SELECT count(*) FILTER (nth = 2), count(*) FILTER (person IS NULL) FROM named"
_COUNT_ALIKE_SQL = r"""
SELECT coalesce(sum(called), 0)::BIGINT FROM (
    SELECT count(DISTINCT person) AS called FROM named WHERE person IS NOT NULL
    GROUP BY lower(strip_accents(regexp_replace(person, '\s+', '', 'g'))))
WHERE called > 1"""
_SORT_TURNS_SQL = """
CREATE TABLE turns AS
SELECT lot, number, id, coalesce(named.person, id) AS "user",
       {'speaker': speaker, 'text': text, 'time': epoch_ms(time)::TIMESTAMP_MS,
        'labelled': secrets IS NOT NULL,
        'secrets': coalesce(from_json(secrets,
            '[{"kind": "VARCHAR", "start": "INTEGER", "end": "INTEGER"}]'), [])} AS turn
FROM messages JOIN named
ON CASE WHEN messages.thread IS NULL THEN messages.row ELSE 0 END = own
   AND messages.thread IS NOT DISTINCT FROM named.thread
   AND messages.person IS NOT DISTINCT FROM named.person
ORDER BY number, CASE WHEN timed THEN time END, messages.rowid"""
_LIST_TURNS_SQL = """
SELECT id, "user", list(turn ORDER BY turns.rowid) AS turns FROM turns WHERE lot = {}
GROUP BY number, id, "user" ORDER BY number"""
COUNTS = ("quoted", "look_quoted", "look_encoded", "rewritten")
"""What is counted for each source, and summed over all."""


# --------------------------------------------------------------------------- the corpus
@dataclass(frozen=True)
class IngestSummary:
    """What ``ingest_sources`` did.

    ``rejected`` counts the rows left out, by reason; ``cut``, the conversations in which several
    people speak; ``alike``, the people whose names differ only in capitals, spaces or accents;
    ``quoted``, the lines left out as quotations; ``look_quoted``, the messages that still seem to
    quote another; ``look_encoded``, those that still seem to be HTML, quoted-printable or base64;
    ``rewritten``, the messages whose accents, line ends or invisible marks are now written in
    another way. ``notes`` say what was guessed besides the columns; ``form`` is what the records
    were. ``up_to_date``: the folder already existed, made from the same files in the same way."""

    out: str
    form: str
    columns: ColumnsByRole
    rows: int
    rejected: Mapping[str, int]
    cut: int
    facts: CorpusSummary
    up_to_date: bool = False
    alike: int = 0
    quoted: int = 0
    look_quoted: int = 0
    look_encoded: int = 0
    rewritten: int = 0
    notes: Sequence[str] = ()


class ParquetFrame(Protocol):
    """A table that can write itself: a pandas DataFrame or a ``datasets.Dataset``."""

    def to_parquet(self, path: Path, /) -> Any: ...


def ingest_sources(
    sources: StrPath | Sequence[StrPath] | ParquetFrame,
    out: StrPath,
    *,
    yes: bool = False,
    ask: Callable[[str], bool] | None = None,
    force: bool = False,
    progress: bool = False,
    **option_values: Any,
) -> IngestSummary:
    """Make the corpus folder ``out`` from files, folders or tables.

    Rows are streamed: memory does not grow with the text. The rows of a DataFrame or a
    ``datasets.Dataset`` are kept in a private temporary folder while they are read.

    Args:
        sources: Files, folders or ``hub:owner/name``; or a table in memory.
        out: The corpus folder.
        yes: Use the guessed columns without asking.
        ask: Is shown the guess in a line and returns whether to use it; None: use it.
        force: Replace the contents of ``out``.
        progress: Show a bar on a terminal.
        option_values: The fields of :class:`IngestOptions`.

    Returns:
        What was read, left out and guessed.

    Raises:
        ValueError: In one line, which names the file, row and column of the first fault of each
            source, all reasons for refusal, and what resolves each. It never quotes text, and
            nothing is written.

    Guarantee:
        Who wrote a message decides what a promise to one person covers, so guessed columns are
        never used after somebody to whom they were shown said no. Test:
        ``tests/text/test_ingest.py::test_a_guess_is_shown_and_asked_for``.
    """
    options = IngestOptions(**option_values)
    if hasattr(sources, "to_parquet"):
        with tempfile.TemporaryDirectory() as private:  # only its owner can read it
            table = Path(private) / "rows.parquet"
            _write_columns_read(sources, table, options)
            return ingest_sources(
                [table], out, yes=yes, ask=ask, force=force, progress=progress, **option_values
            )
    if isinstance(sources, str | os.PathLike):
        sources = [sources]
    plans = _name_sources([os.fspath(source) for source in sources or ()], options)
    for plan in plans:
        plan.settle_columns()  # before hashing all of it: it may be endless, or not a table
    inputs = {
        plan.name: hash_text(plan.path)
        if plan.path.startswith("hub:")
        else outputs.hash_tree(plan.path)
        for plan in plans
    }
    recipe: dict[str, Any] = {
        "command": "ingest",
        "options": asdict(options),
        "inputs": inputs,
    }
    first = plans[0]
    form = first.form if first.shape == "table" else first.shape
    summary_fields = (os.fspath(out), form, first.columns)
    notes = [note for plan in plans for note in plan.notes]
    if outputs.is_up_to_date(out, **recipe):
        with refuse_whatever_fails(
            f"{argument('out')}: {out}", f"its {outputs.MARKER_FILE} is damaged", ours=ValueError
        ):
            counted = outputs.require_marker(out, names=())["facts"]["ingest"]
            return IngestSummary(
                *summary_fields,
                **counted,
                facts=corpus_folder.read_corpus_summary(out),
                up_to_date=True,
                notes=notes,
            )
    places = [plan.path for plan in plans if not plan.path.startswith("hub:")]
    outputs.check_output_folder(out, inputs=places, force=force)
    shown = columns_line(first.columns, first.shape)
    if any(plan.guessed for plan in plans) and not yes and ask and not ask(shown):
        what = " ".join(shown.removeprefix("columns").split())
        named = ", ".join(map(column_argument, COLUMN_ROLES))
        raise ValueError(
            f"{first.name}: columns other than the guessed ones ({what}) are given with {named}"
        )
    summary: dict[str, Any] = {}
    with outputs.staged_folder(out, **recipe, facts=summary, force=force) as staged:
        counts, counted = _write_corpus(staged, plans, options, progress)
        summary |= {"corpus": asdict(counts), "ingest": counted}
        corpus_folder.write_corpus_card(
            staged, Path(out).absolute().name, counts, list(inputs), simulated=False,
            rewritten=counted["rewritten"],
        )  # fmt: skip
    return IngestSummary(*summary_fields, **counted, facts=counts, notes=notes)


def _name_sources(paths: Sequence[str], options: IngestOptions) -> list[IngestSource]:
    """The sources at these paths, each with its format and a name of its own for messages. Raises
    ``ValueError`` if there is none, and for a URL or a text that was screened."""
    if not paths:
        raise argument_error("sources", "is missing; name a file, a folder or hub:owner/name")
    plans: list[IngestSource] = []
    for path in paths:
        if "://" in path:
            raise ValueError(f"{path}: is a URL, must be a local file or folder, or hub:owner/name")
        if not path.startswith("hub:"):
            _refuse_screened_text(path)
        name = path if path.startswith("hub:") else Path(path).absolute().name
        same = sum(plan.name.partition(" (")[0] == name for plan in plans)
        form = readers.format_by_name(path) if options.format == "auto" else options.format
        plans.append(IngestSource(path, f"{name} ({same + 1})" if same else name, form, options))
    return plans


def _write_columns_read(frame: Any, path: Path, options: IngestOptions) -> None:
    """Write those columns of a DataFrame or a ``datasets.Dataset`` that may have a role.

    Guarantee:
        No cell is quoted, though other libraries quote what they cannot convert, and what has no
        role is not converted. Test:
        ``tests/release/test_library.py::test_no_cell_of_a_table_in_memory_is_quoted``.
    """
    with refuse_whatever_fails(
        argument("sources"), "this table has a column that Parquet cannot hold"
    ):
        names = list(frame.column_names if hasattr(frame, "column_names") else frame.columns)
        given = {name for name in options.columns.values() if name}
        read = [n for n in names if isinstance(n, str) and readers.is_column_read(n, given)]
        choose = getattr(frame, "select_columns", frame.__getitem__)
        choose(read or names[:1]).to_parquet(path)


def _refuse_screened_text(path: str) -> None:
    """Refuse a screened folder, or a file in one. Ingested as a text of its own, it would lose the
    record of the rules by which messages were left out, and of whether one decided about others.

    Guarantee:
        A text that was deduplicated by likeness cannot get a certificate by this detour. Test:
        ``tests/text/test_ingest.py::test_what_a_screening_left_is_no_source``.
    """
    place = Path(path).absolute()
    for folder in (place, *place.parents[:3]):  # such as public/data/train-00000-of-00001.parquet
        if screened_folder.is_screened_folder(folder):
            raise ValueError(
                f"{path}: is what 'crtlib screen' left of a text; 'crtlib train' reads that folder "
                "as it is"
            )


def _write_corpus(
    folder: Path, plans: list[IngestSource], options: IngestOptions, progress: bool
) -> tuple[CorpusSummary, dict[str, Any]]:
    """Read all rows, group them into conversations of one person each, and write those in the order
    in which they began. Returns the facts of the corpus, and what was counted."""
    with (
        RowSorter(folder / "threads", messages=MESSAGE_SCHEMA) as sorter,
        (folder / "rejected.csv").open("w", encoding="utf-8", newline="") as file,
    ):
        left_out = _collect_messages(plans, options, sorter, csv.writer(file), progress)
        names_people = (
            options.agents
            or options.columns.get("user")
            or any(plan.form == "slack" for plan in plans)
        )
        _group_messages(sorter, fill_persons=bool(names_people))
        ((threads_cut, threads_of_nobody),) = sorter.run(_COUNT_THREADS_SQL)
        ((people_alike,),) = sorter.run(_COUNT_ALIKE_SQL)
        sorter.run(_SORT_TURNS_SQL)
        writer = CorpusWriter(folder, options.split)
        for (lot,) in sorter.run("SELECT DISTINCT lot FROM named ORDER BY lot"):
            writer.add(pa.Table.from_batches(sorter.batches(_LIST_TURNS_SQL.format(lot))))
    facts = writer.close("thread" if threads_of_nobody else "column")
    return facts, {
        "rows": sum(plan.rows for plan in plans),
        "rejected": left_out,
        "cut": threads_cut,
        "alike": people_alike,
        **{name: sum(getattr(plan, name) for plan in plans) for name in COUNTS},
    }


def _collect_messages(
    plans: list[IngestSource],
    options: IngestOptions,
    sorter: RowSorter,
    rejected: Any,
    progress: bool,
) -> dict[str, int]:
    """Read all rows of all sources, and give their messages to the sorter.

    Args:
        plans: The sources, which count what was read.
        options: Which rows are refused, and how many are read.
        sorter: Holds the messages.
        rejected: A ``csv.writer`` for the rows that are left out, by place and reason.
        progress: Show a bar on a terminal.

    Returns:
        How many rows were left out, by reason.

    Raises:
        ValueError: For rows that are refused, with the first of each source, and if no message can
            be used.
    """
    unique = any(plan.shape != "table" for plan in plans)  # ids are of records or conversations
    ids: set[str | None] = set()
    all_reasons: Counter[str] = Counter()
    rows_left = sys.maxsize if options.limit is None else options.limit
    good_rows = message_count = 0
    refusals: list[str] = []
    helpful_options: list[str] = []
    rejected.writerow(("file", "row", "column", "reason"))
    for plan in plans:
        reasons: Counter[str] = Counter()
        row_stream = itertools.islice(
            tqdm(plan.read(), "reading", unit=" rows", **bar_options(progress)), rows_left
        )
        while rows := list(itertools.islice(row_stream, readers.PARQUET_BATCH_ROWS)):
            messages: list[tuple[Any, ...]] = []
            for number, cells in rows:
                row_messages = _read_messages(plan, number, cells)
                is_repeated = (
                    unique and not isinstance(row_messages, BadRow) and row_messages[0][0] in ids
                )
                if is_repeated and plan.shape != "table":
                    row_messages = BadRow("repeated id", "has an id that was used before", "id")
                if isinstance(row_messages, BadRow):
                    fault = row_messages
                    plan.bad += fault.reason != readers.REPEATED_HEADER
                    if plan.bad == 1 and fault.reason != readers.REPEATED_HEADER:
                        refusals.append(plan.refusal(number, fault))
                        helpful_options.append("encoding" if fault.encoding else "skip_bad")
                    reasons[fault.reason] += 1
                    cells_of_fault = (plan.place(number), str(number), fault.column, fault.reason)
                    rejected.writerow(map(csv_formulas.escape_csv_formula, cells_of_fault))
                    continue
                if unique and row_messages[0][0] is not None:
                    ids.add(row_messages[0][0])
                good_rows += 1
                plan.look_quoted += any(looks_quoted(text) for _, _, _, text, *_ in row_messages)
                plan.look_encoded += any(looks_encoded(text) for _, _, _, text, *_ in row_messages)
                messages += [
                    (good_rows, talk, person and normalise_unit_name(person), *rest,
                     talk and normalise_unit_name(talk))
                    for talk, person, *rest in row_messages
                ]  # fmt: skip
            plan.rows += len(rows)
            sorter.add("messages", messages)
            message_count += len(messages)
        rows_left -= plan.rows
        all_reasons += reasons
        if plan.bad and not options.skip_bad:
            del reasons[readers.REPEATED_HEADER]
            refusals[-1] += _list_remedies(plan, reasons, options)
        else:
            _refuse_too_many_bad_rows(plan, reasons, options.max_bad)
    if refusals and not options.skip_bad:
        raise OptionWouldHelp("; and ".join(refusals), *dict.fromkeys(helpful_options))
    if options.agents and not any(plan.answers for plan in plans):
        raise argument_error("agents", "none of these wrote a message here")
    if not message_count:
        raise ValueError(f"{plans[0].name}: holds no message that can be used")
    return dict(all_reasons)


def _refuse_too_many_bad_rows(
    plan: IngestSource, reasons: Mapping[str, int], max_bad: float
) -> None:
    """Refuse a source of which a larger share of rows is left out than is allowed."""
    if plan.bad > max_bad * plan.rows:
        raise OptionWouldHelp(
            f"{plan.name}: {plan.bad:,} of {plan.rows:,} rows are bad ({_rank_reasons(reasons)}), "
            f"a share of {plan.bad / plan.rows:.2g}, more than {argument('max_bad', max_bad)}",
            "max_bad",
        )


def _group_messages(sorter: RowSorter, *, fill_persons: bool) -> None:
    """Group messages into conversations of one person each, in the table ``named``. Each further
    person who speaks in a conversation gets a separate part (``id~2``). To ``fill_persons``,
    messages that name nobody belong to the person of their conversation if exactly one is named
    there; otherwise they form one more part, of nobody.

    Guarantee:
        In a folder where some conversation counts as a user because nobody is named there, a user
        has the same name as its conversation if and only if it is such a user. Test:
        ``tests/text/test_ingest.py::
        test_a_person_is_called_like_a_conversation_only_where_nobody_is_known``.
    """
    if fill_persons:
        sorter.run(_FILL_PERSONS_SQL)
    sorter.run(_NAME_THREADS_SQL)
    sorter.run(_RENAME_LIKE_PERSONS_SQL)
    while sorter.run("SELECT count(*) > count(DISTINCT id) FROM named")[0][0]:
        sorter.run(_RENAME_REPEATED_SQL)


def _list_remedies(plan: IngestSource, reasons: Mapping[str, int], options: IngestOptions) -> str:
    """All reasons for refusing rows of a source, with what resolves each; empty if only one row is
    bad."""
    if plan.bad == 1:
        return ""
    skip = argument("skip_bad", True)
    remedies = {
        "day or month first": argument("dates", "dmy", "mdy"),
        "no user": f"{argument('no_users', True)} with {column_argument('user')}, or {skip}",
    }
    if plan.form in readers.ENCODED_FORMATS and not plan.encoding_remedy.startswith(skip):
        named = f"not {name_of_encoding(plan.options.encoding)}"
        remedies[named] = argument("encoding")
    skipped = sum(count for reason, count in reasons.items() if reason not in remedies)
    share = skipped / plan.rows
    if share > options.max_bad:
        skip = arguments(skip_bad=True, max_bad=math.ceil(100 * share) / 100)
    listed_reasons = ", ".join(
        f"{count:,} {reason} ({remedies.get(reason, skip)})"
        for reason, count in sorted(reasons.items(), key=lambda item: -item[1])
    )
    return f"; in all {plan.bad:,} of {plan.rows:,} rows: {listed_reasons}"


def _read_messages(
    source: IngestSource, number: int, cells: dict[str, Any] | BadRow
) -> list[TurnMessage] | BadRow:
    """The messages of a row, or what is wrong with it."""
    if isinstance(cells, BadRow):
        return cells
    read = RECORD_SHAPES[source.shape].read
    return read_record(number, lambda row: read(row, source), cells)[1]


def columns_line(columns: ColumnsByRole, shape: str = "table") -> str:
    """The line that shows what was guessed."""
    roles = "  ".join(f"{role}={name}" for role, name in columns.items())
    roles = roles if shape == "table" else f"{shape}, as they are"
    return textwrap.fill(f"columns   {roles}", 80, subsequent_indent=" " * 10)


def _rank_reasons(reasons: Mapping[str, int]) -> str:
    """The reasons with their counts, the most frequent first."""
    ranked = sorted(reasons.items(), key=lambda item: -item[1])
    return ", ".join(f"{count:,} {reason}" for reason, count in ranked)


def format_ingest_summary(summary: IngestSummary) -> str:
    """The summary as the command prints it, at most 80 columns wide where names allow."""
    shape = summary.form if summary.form in ("turns", "messages") else "table"
    columns = columns_line(summary.columns, shape)
    rejected = sum(summary.rejected.values()), _rank_reasons(summary.rejected)
    return fill_page(
        "ingested.txt",
        INGEST_TEMPLATES,
        **vars(summary) | {"columns": columns, "rejected": rejected},
    )
