"""A corpus as a value: its name, how it is read or simulated, and how its content is identified.

Each corpus is registered by the module that reads it; ``corpora`` finds it by name. Other packages
register theirs through the entry point group ``crtlib.corpora``.

>>> from crtlib.text.records import Corpus, Dialogue, Turn
>>> def draw(dialogues, seed, variety):
...     said = (Turn("USR", f"It is {seed}."),)
...     return Corpus("toy", tuple(Dialogue(f"{seed}-{i}", "ann", said) for i in range(dialogues)))
>>> toy = register_corpus(
...     simulated_source("toy", "Toy talk", draw, sizes={"train": 3}, content="v1")
... )
>>> toy.read("train", None, 2).dialogues[1].turns[0].text
'It is 0.'
>>> del REGISTERED_SOURCES["toy"]
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from crtlib.files import StrPath, open_plain_or_gzip
from crtlib.text.identity import hash_text
from crtlib.text.records import Corpus

OptionalPath = StrPath | None


@dataclass(frozen=True)
class CorpusSource:
    """One corpus.

    ``label`` is the name that people are shown. ``check(split, folder)`` raises ``ValueError`` that
    names what is missing, without a download; a split of None means no split in particular.
    ``read(split, folder, limit)`` gives the first ``limit`` dialogues of a split that was checked
    (all if None; it may give more), and ``content(split, folder)`` gives a hash of the split.
    ``draw(dialogues, seed, variety)`` simulates any number of fresh dialogues; it is None for a
    corpus that is read. ``by_rule``: the shapes of its secrets were made by rule, so the regular
    expressions for it miss none.
    """

    name: str
    label: str
    check: Callable[[str | None, OptionalPath], object]
    read: Callable[[str, OptionalPath, int | None], Corpus]
    content: Callable[[str, OptionalPath], str]
    draw: Callable[[int, int, str], Corpus] | None = None
    by_rule: bool = False


REGISTERED_SOURCES: dict[str, CorpusSource] = {}
"""The corpora registered so far; :func:`crtlib.text.corpora.available_corpora` adds those of
installed packages."""


def register_corpus(source: CorpusSource, *, replace: bool = False) -> CorpusSource:
    """Make ``source`` known by its name and return it.

    Raises ``ValueError`` for a name that is taken, unless ``replace``, or that reads as a path.
    """
    if not re.fullmatch(r"[\w.-]+", source.name) or ".jsonl" in source.name:
        raise ValueError(f"name={source.name!r}: must be letters, digits, '.', '_' and '-' only")
    if not replace and REGISTERED_SOURCES.get(source.name, source) is not source:
        raise ValueError(
            f"name={source.name!r}: is taken by another corpus; replace=True overrides it"
        )
    REGISTERED_SOURCES[source.name] = source
    return source


def simulated_source(
    name: str,
    label: str,
    draw: Callable[[int, int, str], Corpus],
    *,
    sizes: Mapping[str, int],
    content: str | Callable[[], str],
    by_rule: bool = False,
) -> CorpusSource:
    """A corpus that is simulated. Its splits have ``sizes`` dialogues if no limit is given; the
    first is drawn from seed 0, the next from seed 1, and so on.

    ``content`` stands for all that a dialogue is made from except the seed. The fingerprint depends
    on it, so change it whenever the same seed would give other text.
    """
    seeds = {split: seed for seed, split in enumerate(sizes)}

    def check(split: str | None, folder: OptionalPath) -> None:
        if folder is not None:
            raise ValueError(f"folder={os.fspath(folder)!r}: {name} is simulated, it has none")
        if split not in (None, *seeds):
            raise ValueError(f"split={split!r}: must be one of {', '.join(seeds)}")

    def read(split: str, _: OptionalPath, limit: int | None) -> Corpus:
        return draw(sizes[split] if limit is None else limit, seeds[split], "paper")

    def made(split: str, _: OptionalPath) -> str:
        made_from = content if isinstance(content, str) else content()
        return hash_text(f"{name}/paper/{split}/{made_from}")

    return CorpusSource(name, label, check, read, made, draw, by_rule)


def fetched_source(
    name: str,
    label: str,
    folders: Sequence[str],
    paths: Callable[[Path, str], list[Path]],
    read: Callable[[Path, str, int | None], Corpus],
    where: str,
    *,
    by_rule: bool = False,
) -> CorpusSource:
    """A corpus in files that somebody has to fetch: none of them is part of this package.

    It is in the first of ``folders`` that exists under ``$CRTLIB_DATA``. ``paths(folder, split)``
    gives its files, and ``read(folder, split, limit)`` the corpus; ``where`` states where to get
    it.
    """

    def home(folder: OptionalPath) -> Path:
        root = os.environ.get("CRTLIB_DATA")
        if folder is None and not root:
            raise ValueError(f"{name}: set folder or CRTLIB_DATA; the corpus is at {where}")
        tried = [Path(folder)] if folder else [Path(root or "", one) for one in folders]
        for path in tried:
            if path.is_dir():
                return path
        raise ValueError(f"{name}: {tried[0]} is not a folder; get the corpus from {where}")

    def check(split: str | None, folder: OptionalPath) -> list[Path]:
        place = home(folder)
        try:
            return paths(place, split) if split is not None else []
        except ValueError as error:
            raise ValueError(f"{name}: {error}; the corpus is at {where}") from None

    return CorpusSource(
        name,
        label,
        check,
        lambda split, folder, limit: read(home(folder), split, limit),
        lambda split, folder: hash_files(check(split, folder)),
        by_rule=by_rule,
    )


def hash_files(paths: list[Path]) -> str:
    """The SHA-256 of the content of files, gzipped or not, in their order.

    A file is read again only when its size or its time has changed.
    """
    if missing := next((path for path in paths if not path.is_file()), None):
        raise ValueError(f"{missing}: no such file")
    facts = [(path, path.stat()) for path in paths]
    parts = [_hash_file_version(path, one.st_size, one.st_mtime_ns) for path, one in facts]
    return hashlib.sha256(b"".join(parts)).hexdigest()


@lru_cache(maxsize=4096)
def _hash_file_version(path: Path, _size: int, _time: int) -> bytes:
    with open_plain_or_gzip(path) as file:
        return hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]
