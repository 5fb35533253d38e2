"""Sort rows by a key, on disk if they do not fit into memory."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from crtlib.checks import MachineError

# --------------------------------------------------------------------------- rows in other order
DUCKDB_MEMORY_LIMIT = "512MB"
"""What DuckDB may hold in memory; the rest is in its folder."""
FLUSH_BYTES = 16 << 20
"""About how many bytes are handed over to DuckDB at a time."""
ROWS_PER_BATCH = 4_096
"""Rows that become columns at a time."""


class RowSorter:
    """Rows that DuckDB holds, sorts and joins, in ``tables`` by name. It accesses only files that
    it writes into ``folder``, which is private and removed at the end, and loads no extension."""

    def __init__(self, folder: Path, **tables: pa.Schema) -> None:
        import duckdb  # needed only to write a corpus

        folder.mkdir(mode=0o700)
        self.folder, self.schemas, self.fault = folder, tables, duckdb.Error
        self.waiting: dict[str, list[pa.RecordBatch]] = {name: [] for name in tables}
        self.size = 0
        config: dict[str, Any] = {
            "temp_directory": str(folder),
            "memory_limit": DUCKDB_MEMORY_LIMIT,
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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Remove the folder: if it stayed, it would be part of the output around it."""
        self.database.close()
        shutil.rmtree(self.folder, ignore_errors=kind is not None)  # the first error is raised

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
        """Add rows to a table, some thousands at a time."""
        schema, rows = self.schemas[table], iter(rows)
        while chunk := list(itertools.islice(rows, ROWS_PER_BATCH)):
            pairs = zip(zip(*chunk, strict=True), schema.types, strict=True)
            batch = pa.record_batch([pa.array(*pair) for pair in pairs], schema)
            self.waiting[table].append(batch)
            self.size += batch.nbytes
            if self.size >= FLUSH_BYTES:
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
        """The answer to a query."""
        self._flush()
        with self._sorting():
            return self.database.execute(query).fetchall()

    def batches(self, query: str, size: int = 2_048) -> Iterator[pa.RecordBatch]:
        """The rows of a query, ``size`` at a time."""
        self._flush()
        with self._sorting():
            yield from self.database.sql(query).to_arrow_reader(size)
