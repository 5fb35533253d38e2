"""All corpora by name: ours, those of installed packages, and a user's own by path."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from crtlib import files, outputs, plugins
from crtlib.text import (
    arxiv,
    corpus_folder,
    customersim,
    jsonl,
    multiwoz,
    screened_folder,
    wikitext,
)
from crtlib.text.records import Corpus, Dialogue
from crtlib.text.sources import (
    REGISTERED_SOURCES,
    CorpusSource,
    OptionalPath,
    hash_files,
    register_corpus,
)

CORPUS_ENTRY_POINTS = "crtlib.corpora"
"""The entry points of packages that bring a corpus: each names a ``CorpusSource``."""

for _source in (
    arxiv.ARXIV_SOURCE,
    customersim.CUSTOMERSIM_SOURCE,
    multiwoz.MULTIWOZ_SOURCE,
    multiwoz.MULTIWOZ_HELD_OUT_SOURCE,
    multiwoz.SCHEMA_GUIDED_SOURCE,
    wikitext.WIKITEXT_SOURCE,
    wikitext.WIKITEXT_CUT_SOURCE,
):
    register_corpus(_source)

INGEST_SUFFIXES = (
    *(".csv", ".tsv", ".tab", ".parquet", ".mbox", ".eml", ".txt", ".md", ".ndjson", ".zip"),
)
"""The suffixes of files that must be made into a corpus first."""
REFUSED_SUFFIXES = {
    ".xlsx": "is an Excel file or an archive; save its table as CSV",
    ".xls": "is an Excel file; save its table as CSV",
    ".json": "is one JSON value; write one object per line and name it .jsonl (jq -c '.[]' FILE)",
    ".msg": "is Outlook's own mail format; 'msgconvert FILE.msg' (Debian: "
    "libemail-outlook-message-perl) turns it into an .eml",
    ".pst": "is an Outlook mailbox; 'readpst -e -o FOLDER FILE.pst' (Debian: pst-utils) turns "
    "it into a folder of .eml",
    ".zip": "is neither a Slack nor a WhatsApp export; unpack it and give a file or folder of it",
}
"""The suffixes of files that nothing here can read, and what converts them."""


def available_corpora() -> Mapping[str, CorpusSource]:
    """All corpora that have a name, ours first. Those of installed packages are loaded once."""
    _register_plugins()
    return MappingProxyType(REGISTERED_SOURCES)


@cache
def _register_plugins() -> None:
    for point, source in plugins.load_plugins(CORPUS_ENTRY_POINTS):
        if not isinstance(source, CorpusSource):
            raise plugins.broken_plugin(point, "it is not a crtlib.text.sources.CorpusSource")
        register_corpus(source)


def find_source(name: str | os.PathLike) -> CorpusSource:
    """The corpus called ``name``: one of ``available_corpora()``, or the path of a ``.jsonl`` or
    ``.jsonl.gz`` file or of a corpus folder. Raises ``ValueError`` for anything else."""
    name = os.fspath(name)
    if name in REGISTERED_SOURCES:
        return REGISTERED_SOURCES[name]
    if name.endswith((".jsonl", ".jsonl.gz")):
        return _source_of_path(Path(name))
    if name in available_corpora():
        return REGISTERED_SOURCES[name]
    if Path(name).exists():  # JSONL by another name, or a folder
        return _source_of_path(Path(name))
    raise ValueError(
        f"corpus={name!r}: must be one of {', '.join(available_corpora())}, or the path of a "
        f".jsonl or "
        ".jsonl.gz file or of a corpus folder that exists; 'crtlib ingest' reads other forms"
    )


def _source_of_path(path: Path) -> CorpusSource:
    """The corpus in a user's own file or corpus folder."""

    def check(split: str | None, folder: OptionalPath) -> None:
        if folder is not None or (split not in (None, "train") and not path.is_dir()):
            raise ValueError(f"split={split!r}: {path} is one file, without splits or a folder")
        if not path.is_dir():
            files.check_regular_file(path)
        elif not screened_folder.is_screened_folder(path):
            corpus_folder.read_corpus_summary(path)
            corpus_folder.split_file_names(path, split)

    return CorpusSource(
        str(path),
        path.name,
        check,
        lambda split, _, limit: read_corpus_at(path, split=split, limit=limit),
        lambda *_: hash_corpus(path) if path.is_dir() else hash_files([path]),
    )


def read_dialogues(path: str | os.PathLike, *, split: str | None = None) -> Iterator[Dialogue]:
    """The dialogues of a corpus folder, a screened folder (each point is one) or a JSONL file,
    plain or ``.gz``, one after another.

    Raises ``ValueError`` for what is missing, unfinished, damaged or in another format, with the
    command that would help.
    """
    path = Path(path)
    if path.is_dir():
        if screened_folder.is_screened_folder(path):
            yield from screened_folder.read_screened_dialogues(path)
        else:
            yield from corpus_folder.read_folder_dialogues(path, split=split)
        return
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in INGEST_SUFFIXES and path.is_file():
        what = f"is a {suffix[1:].upper()} file; turn it into a corpus with"
        raise ValueError(f"{path}: {what} {jsonl.ingest_command(path)}")
    if suffix in REFUSED_SUFFIXES and path.is_file():
        raise ValueError(f"{path}: {REFUSED_SUFFIXES[suffix]}")
    yield from jsonl.read_jsonl(path)


def read_corpus_at(
    path: str | os.PathLike, *, split: str | None = None, limit: int | None = None
) -> Corpus:
    """The first dialogues, or all, of a corpus folder or a JSONL file, plain or ``.gz``."""
    name = Path(path).name.removesuffix(".gz").removesuffix(".jsonl")
    return Corpus(name, tuple(islice(read_dialogues(path, split=split), limit)))


def hash_corpus(path: str | os.PathLike) -> str:
    """The corpus hash of a folder or a JSONL file: of its text without labels, in any format.

    That of a screened folder is the hash of the corpus from which it was made."""
    if screened_folder.is_screened_folder(path):
        return screened_folder.read_screening_summary(path)["corpus_sha256"]
    if Path(path).is_dir():
        return corpus_folder.read_corpus_summary(path).sha256
    return corpus_folder.hash_dialogues(read_dialogues(path))


def hash_text_as_read(path: str | os.PathLike) -> str:
    """The hash of the text that is read from a path. For a screened folder that is the hash of its
    own, redacted text, not of the text from which it was made."""
    return (
        outputs.hash_tree(path) if screened_folder.is_screened_folder(path) else hash_corpus(path)
    )


def load_corpus(
    name: str | os.PathLike,
    split: str = "train",
    *,
    folder: OptionalPath = None,
    limit: int | None = None,
) -> Corpus:
    """The first dialogues of a corpus that is known by name, or of a file or folder.

    Args:
        name: One of ``available_corpora()``, or the path of a JSONL file or of a corpus folder.
        split: As the corpus names it.
        folder: Where the corpus is; None: in its own folder below ``$CRTLIB_DATA``.
        limit: The number of dialogues, at least 1; None: all.

    Returns:
        The corpus, with what its reader left out counted in ``skipped``.

    Raises:
        ValueError: Where there is no such corpus, folder or split; it states where to get it.

    Guarantee:
        What is missing is refused in one line before anything is read, and nothing is fetched.
        Test: ``tests/text/test_corpora.py::test_load_by_name``.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit}: must be at least 1")
    one = find_source(name)
    one.check(split, folder)
    corpus = one.read(split, folder, limit)
    return replace(corpus, dialogues=corpus.dialogues[:limit])


def is_corpus_available(
    name: str | os.PathLike, split: str | None = None, *, folder: OptionalPath = None
) -> bool:
    """Whether ``load_corpus`` would find the corpus, and the split if one is named."""
    try:
        find_source(name).check(split, folder)
    except ValueError:
        return False
    return True


def corpus_fingerprint(
    name: str | os.PathLike, split: str = "train", *, folder: OptionalPath = None
) -> str:
    """The SHA-256 of the content of all files that ``load_corpus`` reads, gzipped or not, in their
    order.

    For a simulated corpus, it is the hash of what the corpus is made from. A file is read again
    only when its size or its time has changed.
    """
    one = find_source(name)
    one.check(split, folder)
    return one.content(split, folder)
