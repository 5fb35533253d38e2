"""Rows of different lengths in one array: texts as tokens, or a mark for each of their tokens.

A Python list for each text takes some 36 bytes a token; this takes four, and one for a mark. It can
be in a folder that several processes map into memory.

>>> rows = RaggedArray.of([[0, 5, 1], [0, 1]])
>>> len(rows), rows[0].tolist(), rows[1:].tolist(), rows.lengths.tolist()
(2, [0, 5, 1], [[0, 1]], [3, 2])
"""

from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from crtlib import files

_TYPE_CODES: dict[str, str] = {"int32": "i", "bool": "b"}
VALUES, STARTS = "values.npy", "starts.npy"


class RaggedArray(Sequence[Any]):
    """A sequence of rows, each a view of one flat array, which nobody may write to.

    Args:
        values: all rows, one after another, (sum of the lengths,).
        starts: int64, where each row starts in ``values``, and where the last one ends,
            (rows + 1,).
    """

    def __init__(self, values: NDArray[Any], starts: NDArray[np.int64]) -> None:
        self.values, self.starts = values.view(), starts
        self.values.flags.writeable = False

    @classmethod
    def of(
        cls, rows: Iterable[Sequence[int]], kind: Literal["int32", "bool"] = "int32"
    ) -> "RaggedArray":
        """The rows in one array. Rows that are not yet an array of this kind are read once, and
        none of them is kept.

        Raises OverflowError for a number beyond 32 bits.
        """
        dtype = np.int32 if kind == "int32" else np.bool_
        if isinstance(rows, RaggedArray) and rows.values.dtype == dtype:
            return rows
        values, starts = array(_TYPE_CODES[kind]), array("q", [0])
        for row in rows:
            values.extend(row.tolist() if isinstance(row, np.ndarray) else row)
            starts.append(len(values))
        return cls(np.frombuffer(values, dtype), np.frombuffer(starts, np.int64))

    @classmethod
    def joined(cls, tables: Sequence["RaggedArray"]) -> "RaggedArray":
        """The rows of all tables, copied."""
        lengths = np.concatenate([[0], *(table.lengths for table in tables)])
        values = [t.values[t.starts[0] : t.starts[-1]] for t in tables]
        return cls(np.concatenate(values), np.cumsum(lengths))

    @classmethod
    def open(cls, folder: Path) -> "RaggedArray":
        """The rows that :meth:`save` wrote, mapped into memory: processes share the pages."""
        return cls(
            np.load(files.check_regular_file(folder / VALUES), mmap_mode="r"),
            np.load(files.check_regular_file(folder / STARTS)),
        )

    def save(self, folder: Path) -> None:
        """Write the rows into a new folder that only the owner can read, since they are the text.

        Raises FileExistsError if the folder exists.
        """
        folder.mkdir(mode=0o700)
        np.save(folder / VALUES, self.values[self.starts[0] : self.starts[-1]])
        np.save(folder / STARTS, self.starts - self.starts[0])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The length of each row, (rows,)."""
        return np.diff(self.starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, which: int) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, which: slice) -> "RaggedArray": ...
    def __getitem__(self, which: int | slice) -> "NDArray[Any] | RaggedArray":
        """A row, or the rows of a slice without a step: views, no copies."""
        if isinstance(which, slice):
            start, stop, step = which.indices(len(self))
            if step != 1:
                raise ValueError(f"step={step}: must be 1")
            return RaggedArray(self.values, self.starts[start : max(start, stop) + 1])
        k = range(len(self))[which]
        return self.values[self.starts[k] : self.starts[k + 1]]

    def tolist(self) -> list[list[int]]:
        """The rows as Python's lists."""
        return [row.tolist() for row in self]
