"""A corpus as a value: its name, how it is read or simulated, and how its content is known.

Each corpus registers itself in its own file; ``corpora`` finds them by name. A package of somebody
else's does the same, under the entry point group ``crtlib.corpora``.

>>> from crtlib.text.records import Corpus, Dialogue, Turn
>>> def draw(dialogues, seed, variety):
...     said = (Turn("USR", f"It is {seed}."),)
...     return Corpus("toy", tuple(Dialogue(f"{seed}-{i}", "ann", said) for i in range(dialogues)))
>>> toy = register(simulated("toy", "Toy talk", draw, sizes={"train": 3}, content="v1"))
>>> toy.load("train", None, 2).dialogues[1].turns[0].text, toy.available("test", None)
('It is 0.', False)
>>> del SOURCES["toy"]
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from crtlib.files import Named, reading
from crtlib.text.records import Corpus

Folder = Named | None


@dataclass(frozen=True)
class Source:
    """One corpus.

    ``load(split, folder, limit)`` gives its first ``limit`` dialogues (all where None; it may give
    more), ``available(split, folder)`` says without a download whether ``load`` would find the
    split (any, where None), and ``fingerprint(split, folder)`` is a hash of the content. All three
    raise ``ValueError`` that names what is missing, but for ``available``, which answers no.
    ``draw(dialogues, seed, variety)`` simulates fresh dialogues, as many as one likes; None for
    a corpus that is read. ``by_rule``: the shapes of its secrets were made by rule, so that
    the regular expressions for it miss none. ``label`` is the name that people are shown.
    """

    name: str
    label: str
    load: Callable[[str, Folder, int | None], Corpus]
    available: Callable[[str | None, Folder], bool]
    fingerprint: Callable[[str, Folder], str]
    draw: Callable[[int, int, str], Corpus] | None = None
    by_rule: bool = False


SOURCES: dict[str, Source] = {}
"""What is registered so far; ``corpora.known()`` has all, those of installed packages as well."""


def register(source: Source, *, replace: bool = False) -> Source:
    """Make ``source`` known by its name and return it.

    Raises ``ValueError`` for a name that is taken, unless ``replace``, or that reads as a path.
    """
    if not re.fullmatch(r"(hub:[\w.-]+/)?[\w.-]+", source.name) or ".jsonl" in source.name:
        raise ValueError(f"name={source.name!r}: must be letters, digits, '.', '_' and '-' only")
    if not replace and SOURCES.get(source.name, source) is not source:
        raise ValueError(f"name={source.name!r}: is taken by another corpus; replace=True wins it")
    SOURCES[source.name] = source
    return source


def simulated(
    name: str,
    label: str,
    draw: Callable[[int, int, str], Corpus],
    *,
    sizes: Mapping[str, int],
    content: str | Callable[[], str],
    by_rule: bool = False,
) -> Source:
    """A corpus that is drawn. Its splits have ``sizes`` dialogues where no limit is given, the
    first from seed 0, the next from seed 1 and so on.

    ``content`` stands for all that a dialogue is made from but the seed: the fingerprint follows
    from it, so change it whenever the same seed would give other text.
    """
    seeds = {split: seed for seed, split in enumerate(sizes)}

    def check(split: str, folder: Folder) -> None:
        if folder is not None:
            raise ValueError(f"folder={os.fspath(folder)!r}: {name} is simulated, it has none")
        if split not in seeds:
            raise ValueError(f"split={split!r}: must be one of {', '.join(seeds)}")

    def load(split: str, folder: Folder, limit: int | None) -> Corpus:
        check(split, folder)
        return draw(sizes[split] if limit is None else limit, seeds[split], "paper")

    def available(split: str | None, folder: Folder) -> bool:
        return folder is None and (split is None or split in seeds)

    def fingerprint(split: str, folder: Folder) -> str:
        check(split, folder)
        made_from = content if isinstance(content, str) else content()
        return hashlib.sha256(f"{name}/paper/{split}/{made_from}".encode()).hexdigest()

    return Source(name, label, load, available, fingerprint, draw, by_rule)


@dataclass(frozen=True)
class Files:
    """A corpus in files that somebody has to fetch: none of them is part of this package.

    It lies in the first of ``folders`` that there is under ``$CRTLIB_DATA``; ``paths(folder,
    split)`` are its files, ``read(folder, split, limit)`` the corpus; ``where`` says where to get
    it.
    """

    name: str
    folders: tuple[str, ...]
    paths: Callable[[Path, str], list[Path]]
    read: Callable[[Path, str, int | None], Corpus]
    where: str

    def source(self, label: str, *, by_rule: bool = False) -> Source:
        """The corpus as a value."""
        return Source(
            self.name, label, self.load, self.available, self.fingerprint, by_rule=by_rule
        )

    def folder(self, folder: Folder) -> Path:
        """Where it lies; ``ValueError`` says where to get what is not there."""
        root = os.environ.get("CRTLIB_DATA")
        if folder is None and not root:
            raise ValueError(
                f"{self.name}: set folder or CRTLIB_DATA; the corpus is at {self.where}"
            )
        tried = [Path(folder)] if folder else [Path(root or "", name) for name in self.folders]
        for path in tried:
            if path.is_dir():
                return path
        raise ValueError(f"{self.name}: {tried[0]} is no folder; get the corpus from {self.where}")

    def files(self, split: str, folder: Folder) -> list[Path]:
        """The files of a split."""
        path = self.folder(folder)
        try:
            return self.paths(path, split)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}; the corpus is at {self.where}") from None

    def load(self, split: str, folder: Folder, limit: int | None) -> Corpus:
        self.files(split, folder)
        return self.read(self.folder(folder), split, limit)

    def available(self, split: str | None, folder: Folder) -> bool:
        try:
            if split is None:
                return bool(self.folder(folder))
            return all(path.is_file() for path in self.files(split, folder))
        except ValueError:
            return False

    def fingerprint(self, split: str, folder: Folder) -> str:
        return digest(self.files(split, folder))


def digest(paths: list[Path]) -> str:
    """SHA-256 of the content of files, packed or not, in their order.

    A file is read again only when its size or its time has changed.
    """
    if missing := next((path for path in paths if not path.is_file()), None):
        raise ValueError(f"{missing}: no such file")
    facts = [(path, path.stat()) for path in paths]
    parts = [_digest(path, one.st_size, one.st_mtime_ns) for path, one in facts]
    return hashlib.sha256(b"".join(parts)).hexdigest()


@lru_cache(maxsize=4096)
def _digest(path: Path, _size: int, _time: int) -> bytes:
    with reading(path) as file:
        return hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]
