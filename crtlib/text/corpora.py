"""All corpora by name: ours, those of installed packages, and one's own by path.

>>> load("customersim", limit=2).dialogues[1].user
'user-14234'
>>> source("multiwoz").label, source("customersim").by_rule
('MultiWOZ 2.2', True)
"""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import entry_points
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from crtlib import files, outputs

# Each registers its corpora when it is imported.
from crtlib.text import customersim, jsonl, multiwoz, screened, wikitext
from crtlib.text import folder as corpus_folder
from crtlib.text.records import Corpus, Dialogue, normal, sha
from crtlib.text.source import SOURCES, Folder, Source, digest, register

_OURS = (customersim, multiwoz, wikitext)
GROUP = "crtlib.corpora"
"""The entry points of packages that bring a corpus: each names a ``Source``."""

SHORT, LONG = 40, 80
"""Characters below which a conversation is known by its id as well (many people say "thanks"), and
from which on a message is known by itself: of Schema-Guided Dialogue's development part one in 900
such messages stands in its training part, too, of those of 40 one in 43."""
KEPT = 1 << 17
"""Messages by which a text is known, at most: those with the smallest hashes, of any text."""


def known() -> Mapping[str, Source]:
    """All corpora that have a name, ours first. Packages that bring some are asked here, once."""
    _plugins()
    return MappingProxyType(SOURCES)


@cache
def _plugins() -> None:
    """Register the corpora of installed packages; a broken one is said and passed over."""
    for point in entry_points(group=GROUP):
        try:
            brought = point.load()
            if not isinstance(brought, Source):
                raise TypeError(f"{point.value} is no crtlib.text.source.Source")
            register(brought)
        except Exception as error:  # somebody else's code may fail in any way
            package = point.dist.name if point.dist else "a package"
            why = f"{type(error).__name__}: {error}"
            warnings.warn(f"corpus {point.name!r} of {package}: is left out; {why}", stacklevel=3)


def source(name: str | os.PathLike) -> Source:
    """The corpus called ``name``: a name of ``known()``, or the path of a ``.jsonl`` or
    ``.jsonl.gz`` file or of a corpus folder. Raises ``ValueError`` for another."""
    name = os.fspath(name)
    if name in SOURCES:
        return SOURCES[name]
    if name.endswith((".jsonl", ".jsonl.gz")):
        return _own(Path(name))
    if name in known():
        return SOURCES[name]
    if Path(name).exists():  # JSONL by another name, or a folder
        return _own(Path(name))
    raise ValueError(
        f"corpus={name!r}: must be one of {', '.join(known())}, or the path of a .jsonl or "
        ".jsonl.gz file or of a corpus folder that exists; 'crtlib ingest' reads other forms"
    )


def _own(path: Path) -> Source:
    """A file or a corpus folder of one's own."""

    def check(split: str | None, folder: Folder) -> None:
        if folder is not None or (split not in (None, "train") and not path.is_dir()):
            raise ValueError(f"split={split!r}: {path} is one file, without splits or a folder")
        if not path.is_dir():
            files.check_regular(path)
        elif not screened.is_screened(path):
            corpus_folder.facts(path)
            corpus_folder.parts(path, split)

    return Source(
        str(path),
        path.name,
        check,
        lambda split, _, limit: read(path, split=split, limit=limit),
        lambda *_: corpus_hash(path) if path.is_dir() else digest([path]),
    )


OTHERS = (".csv", ".tsv", ".parquet", ".mbox", ".eml", ".txt", ".ndjson")
"""How names of files end that only ``crtlib ingest`` reads."""


def dialogues(path: str | os.PathLike, *, split: str | None = None) -> Iterator[Dialogue]:
    """The dialogues of a corpus folder, a screened folder (a point each) or a JSONL file, plain or
    ``.gz``, one after another.

    Raises ``ValueError`` for what is missing, unfinished, damaged, or of another form, with the
    command that would help.
    """
    path = Path(path)
    if path.is_dir():
        if screened.is_screened(path):
            yield from screened.dialogues(path)
        else:
            yield from corpus_folder.dialogues(path, split=split)
        return
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in OTHERS and path.is_file():
        what = f"is a {suffix[1:].upper()} file; turn it into a corpus with"
        raise ValueError(f"{path}: {what} 'crtlib ingest {path.name} --out DIR'")
    yield from jsonl.stream(path)


def read(path: str | os.PathLike, *, split: str | None = None, limit: int | None = None) -> Corpus:
    """The first dialogues of a corpus folder or of JSONL, plain or ``.gz``, or all."""
    name = Path(path).name.removesuffix(".gz").removesuffix(".jsonl")
    return Corpus(name, tuple(islice(dialogues(path, split=split), limit)))


def corpus_hash(path: str | os.PathLike) -> str:
    """The corpus hash of a folder or a JSONL file: over the text, in any form, without labels.

    A screened folder counts by the hash of the corpus that it was made from."""
    if screened.is_screened(path):
        return screened.summary(path)["corpus_sha256"]
    if Path(path).is_dir():
        return corpus_folder.facts(path).sha256
    return corpus_folder.corpus_hash(dialogues(path))


def read_hash(path: str | os.PathLike) -> str:
    """The hash of what is read there: of a screened folder that of its own, redacted text, which
    is not the text that it was made from."""
    return outputs.content(path) if screened.is_screened(path) else corpus_hash(path)


def units(corpus: str | os.PathLike) -> Iterator[tuple[str, str]]:
    """The units by which a registry knows a text again, the kind and SHA-256 of each: all its
    conversations; where they are no simulation's also its people, where they have names, and its
    messages, which stay when the text is cut in another way: long ones that only one conversation
    has, and short ones; whose they are; and that all its people are named, if they are. A screened
    folder has those of the text that was screened as well."""
    raw = not screened.is_screened(corpus)
    if not raw:
        yield from screened.units(corpus)
    made: tuple[str, ...] = ()
    said, named = dict[str, tuple[bool, int, str]](), raw

    for d in dialogues(corpus):
        if customersim.is_simulated(d):
            made += (f"{d.id.partition('-')[0]}-",)
        content = json.dumps([[t.speaker, t.text] for t in d.turns])
        brief = sum(len(t.text) for t in d.turns) < SHORT
        talk = sha(f"{d.id} {d.user} {content}" if brief else content)
        yield "dialogue", talk
        yield "owned", sha(f"{talk} {d.user}")
        named &= d.user not in ("", d.id)
        if d.id.startswith(made):
            continue
        if d.user and d.user != d.id:
            yield "user", sha(d.user)
        texts = {normal(t.text) for t in d.turns}
        for text in texts:
            _, times, user = said.get(name := sha(text), (False, 0, d.user))
            said[name] = len(text) >= LONG, times + 1, user if user == d.user else ""
        if len(said) > 2 * KEPT:
            said = {name: said[name] for name in sorted(said)[:KEPT]}
    for name in sorted(said)[:KEPT]:
        long, times, user = said[name]
        if not long:
            yield "short", name
        elif times == 1:
            yield "message", name
        if user:
            yield "lone", name
            yield "said", sha(f"{name} {user}")
    if named:
        yield "named", ""


def sizes(corpus: str | os.PathLike) -> dict[str, dict[str, int]]:
    """How many points of a smaller unit one conversation and one person hold at the most; of a
    screened folder, in the text that was screened, its duplicates included."""
    if screened.is_screened(corpus):
        return dict(screened.summary(corpus)["sizes"])
    turns, talks = Counter[str](), Counter[str]()
    longest = 1
    for d in dialogues(corpus):
        longest = max(longest, len(d.turns))
        turns[d.user] += len(d.turns)
        talks[d.user] += 1
    return {
        "dialogue": {"turn": longest},
        "user": {"turn": max(turns.values()), "dialogue": max(talks.values())},
    }


def load(
    name: str | os.PathLike,
    split: str = "train",
    *,
    folder: Folder = None,
    limit: int | None = None,
) -> Corpus:
    """The first ``limit`` dialogues of a corpus that is known by name.

    ``name`` is one of ``known()`` (in ``folder``, by default the corpus' own under
    ``$CRTLIB_DATA``), or the path of a JSONL file or of a corpus folder. Splits are named as the
    corpus names them.
    Raises ``ValueError`` where there is no such corpus, folder or split, and says where to get it.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit}: must be at least 1")
    one = source(name)
    one.check(split, folder)
    corpus = one.read(split, folder, limit)
    return replace(corpus, dialogues=corpus.dialogues[:limit])


def available(name: str | os.PathLike, split: str | None = None, *, folder: Folder = None) -> bool:
    """Whether ``load`` would find the corpus, and the split where one is named."""
    try:
        source(name).check(split, folder)
    except ValueError:
        return False
    return True


def fingerprint(name: str | os.PathLike, split: str = "train", *, folder: Folder = None) -> str:
    """SHA-256 of the content of all files that ``load`` reads, packed or not, in their order.

    Of a simulated corpus: of what it is made from. A file is read again only when its size or its
    time has changed.
    """
    one = source(name)
    one.check(split, folder)
    return one.content(split, folder)
