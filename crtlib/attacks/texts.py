"""The documents of a report whose corpus memory may not hold.

>>> said = Texts()
>>> said.extend([Document("ann", "a/0", [3, 1], (("name", 0, 1),)), Document("bob", "b/0", [5])])
>>> len(said), said[1], [d.secrets for d in said]
(2, Document(user='bob', id='b/0', tokens=[5], secrets=()), [(('name', 0, 1),), ()])

Arrays end to end in a temporary file that nobody else can open: for what memory may not hold.

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

from crtlib.attacks.leakage import Document
from crtlib.checks import MachineError


class Texts(Sequence[Document]):
    """Documents in temporary files (:class:`crtlib.attacks.texts.Flat`). Memory holds users' names,
    labelled secrets, and some twenty bytes for each document."""

    def __init__(self) -> None:
        self._tokens, self._ids = Flat(np.int32), Flat(np.uint8)
        self._names: list[str] = []
        self._number: dict[str, int] = {}
        self._users = array("l")
        self._secrets: dict[int, tuple[tuple[str, int, int], ...]] = {}

    def extend(self, documents: Iterable[Document]) -> None:
        """Put documents at the end."""
        some = list(documents)
        self._secrets |= {i: d.secrets for i, d in enumerate(some, len(self)) if d.secrets}
        for d in some:
            if d.user not in self._number:
                self._number[d.user] = len(self._names)
                self._names.append(d.user)
            self._users.append(self._number[d.user])
        self._ids.extend(np.frombuffer(d.id.encode(), dtype=np.uint8) for d in some)
        self._tokens.extend(d.tokens for d in some)

    def __len__(self) -> int:
        return len(self._users)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        at = range(len(self))[index]
        return self._made(at, self._ids[at], self._tokens[at])

    def __iter__(self) -> Iterator[Document]:
        for at, (identity, tokens) in enumerate(zip(self._ids, self._tokens, strict=True)):
            yield self._made(at, identity, tokens)

    def _made(self, at: int, identity: np.ndarray, tokens: np.ndarray) -> Document:
        user, secrets = self._names[self._users[at]], self._secrets.get(at, ())
        return Document(user, identity.tobytes().decode(), tokens.tolist(), secrets)


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
