"""Arrays end to end in a temporary file that nobody else can open: for what memory may not hold.

>>> import numpy as np
>>> rows = Flat(np.int32)
>>> rows.extend([[3, 1, 4], [], [1, 5]])
>>> len(rows), rows[-1], [row.tolist() for row in rows]
(3, array([1, 5], dtype=int32), [[3, 1, 4], [], [1, 5]])
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np

from crtlib.checks import MachineError

READ = 2**20
"""Numbers that are read at a time, where all are."""


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Say which folder it is that fails: it is not the one that a command writes into."""
    try:
        yield
    except OSError as error:
        place = os.environ.get("TMPDIR", "/tmp")
        why = os.strerror(error.errno or errno.EIO).lower()
        raise MachineError(f"TMPDIR={place}: {why}; name a folder that has room") from None


def _closed(file: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # what a full disk did not take
        file.close()


class Flat(Sequence[np.ndarray]):
    """Arrays of one ``dtype`` and one dimension, in a file of ``TMPDIR`` that has no name and goes
    with this object; memory holds eight bytes for each array. It grows at its end, not while it is
    iterated over; the arrays that come back are read-only. Raises :class:`MachineError` where the
    folder fails."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        with _told():
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as this is)
        weakref.finalize(self, _closed, self._file)
        self._ends = array("q", [0])

    def extend(self, rows: Iterable[Sequence[Any] | np.ndarray]) -> None:
        """Put arrays at the end."""
        every = [np.asarray(row, dtype=self.dtype) for row in rows]
        if every:
            with _told():
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
