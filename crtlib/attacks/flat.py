"""Arrays end to end in a temporary file that nobody else can open: for what memory may not hold.

>>> import numpy as np
>>> rows = Flat(np.int32)
>>> rows.extend([[3, 1, 4], [], [1, 5]])
>>> len(rows), rows[-1], [row.tolist() for row in rows]
(3, array([1, 5], dtype=int32), [[3, 1, 4], [], [1, 5]])
"""

from __future__ import annotations

import itertools
import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

READ = 2**20
"""Numbers that are read at a time, where all are."""


class Flat(Sequence[np.ndarray]):
    """Arrays of one ``dtype`` and one dimension, in a file of ``TMPDIR`` that has no name and goes
    with its process; memory holds eight bytes for each array. It grows at its end."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as this is)
        self._ends = array("q", [0])

    def extend(self, rows: Iterable[Sequence[Any] | np.ndarray]) -> None:
        """Put arrays at the end. Raises ``OSError`` where the disk is full."""
        every = [np.asarray(row, dtype=self.dtype) for row in rows]
        if every:
            self._file.write(np.concatenate(every).tobytes())
            self._file.flush()
        for row in every:
            self._ends.append(self._ends[-1] + len(row))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        at = range(len(self))[index]
        return self._read(self._ends[at], self._ends[at + 1])

    def __iter__(self) -> Iterator[np.ndarray]:
        ends, first = np.array(self._ends), 0
        while first < len(self):  # whole arrays, one at least
            last = max(first + 1, int(np.searchsorted(ends, ends[first] + READ, side="right")) - 1)
            some = self._read(int(ends[first]), int(ends[last]))
            cuts = (ends[first : last + 1] - ends[first]).tolist()
            yield from (some[a:b] for a, b in itertools.pairwise(cuts))
            first = last

    def _read(self, begin: int, end: int) -> np.ndarray:
        size = self.dtype.itemsize
        raw = os.pread(self._file.fileno(), (end - begin) * size, begin * size)
        return np.frombuffer(raw, dtype=self.dtype)
