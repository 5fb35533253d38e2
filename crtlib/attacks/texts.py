"""The documents of a report whose corpus memory may not hold.

>>> said = Texts()
>>> said.extend([Document("ann", "a/0", [3, 1], (("name", 0, 1),)), Document("bob", "b/0", [5])])
>>> len(said), said[1], [d.secrets for d in said]
(2, Document(user='bob', id='b/0', tokens=[5], secrets=()), [(('name', 0, 1),), ()])
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from crtlib.attacks.flat import Flat
from crtlib.attacks.leakage import Document


class Texts(Sequence[Document]):
    """Documents in temporary files (:class:`crtlib.attacks.flat.Flat`). Memory holds users' names,
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
