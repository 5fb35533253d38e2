"""A list in a temporary file that nobody else can open: for what memory may not hold.

>>> said = OnDisk(["hello", "goodbye"])
>>> said.append("again")
>>> len(said), said[-1], said[:2], list(said)
(3, 'again', ['hello', 'goodbye'], ['hello', 'goodbye', 'again'])
>>> said[3]
Traceback (most recent call last):
...
IndexError: list index out of range
"""

from __future__ import annotations

import pickle
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar, overload

T = TypeVar("T")


class OnDisk(Sequence[T]):
    """Values that can be pickled, in a file of ``TMPDIR`` that has no name and goes with its
    process; memory holds eight bytes for each. It grows at its end, by one thread."""

    def __init__(self, values: Iterable[T] = ()) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (it is the list's own, until the end)
        self._places, self._end = array("Q"), 0
        self.extend(values)

    def append(self, value: T) -> None:
        """Put it at the end. Raises ``OSError`` where the disk is full."""
        self._file.seek(self._end)
        pickle.dump(value, self._file, pickle.HIGHEST_PROTOCOL)
        self._places.append(self._end)
        self._end = self._file.tell()

    def extend(self, values: Iterable[T]) -> None:
        """Put each at the end."""
        for value in values:
            self.append(value)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        try:
            self._file.seek(self._places[index])
        except IndexError:
            raise IndexError("list index out of range") from None
        return pickle.load(self._file)

    def __iter__(self) -> Iterator[T]:
        return (self[i] for i in range(len(self)))
