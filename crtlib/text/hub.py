"""Corpora of the Hugging Face hub that are lines or abstracts; ``crtlib ingest`` reads tables.

>>> address("hub:ada/own", "train")
'hf://datasets/ada/own@refs/convert/parquet/default/train/*.parquet'
>>> source("hub:ada/own").label
'ada/own (Hugging Face)'
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import chain

from crtlib.text import wikitext
from crtlib.text.records import Corpus
from crtlib.text.source import Folder, Source, register

CONFIGURATIONS = {"Salesforce/wikitext": "wikitext-2-raw-v1"}
"""The configuration that is meant where ``hub:owner/name`` names none (else: ``default``)."""


def address(name: str, split: str) -> str:
    """Where the hub keeps a split as Parquet: it converts every dataset to that on a branch."""
    parts = name.removeprefix("hub:").split("/")
    if len(parts) not in (2, 3) or not all(re.fullmatch(r"[\w.-]+", p) for p in (*parts, split)):
        raise ValueError(f"corpus={name!r}, split={split!r}: must be hub:owner/name and its split")
    owner, repository, *rest = parts
    configuration = rest[0] if rest else CONFIGURATIONS.get(f"{owner}/{repository}", "default")
    where = f"{owner}/{repository}@refs/convert/parquet/{configuration}/{split}"
    return f"hf://datasets/{where}/*.parquet"


def rows(files: str) -> Iterator[dict]:
    """The rows of Parquet files, local or on the hub."""
    try:
        import datasets
    except ImportError:
        raise ValueError(f"{files}: needs the package datasets (pip install datasets)") from None
    try:
        table = datasets.load_dataset("parquet", data_files=files, split="train")
    except Exception as error:  # the hub's, the network's and Arrow's errors have no common base
        raise ValueError(f"{files}: cannot be read ({type(error).__name__})") from error
    yield from table


def read_parquet(files: str, *, name: str, limit: int | None = None) -> Corpus:
    """A corpus from Parquet files, a path or ``hf://`` address with wildcards.

    The columns decide what it is: ``text`` alone (WikiText, a line each), or ``abstract`` among
    others (arXiv, as in ``hub:gfissore/arxiv-abstracts-2021``; an abstract is a paragraph).
    """
    remaining = rows(files)
    first = next(remaining, {})
    column = "text" if set(first) == {"text"} else "abstract"
    if column not in first:
        raise ValueError(
            f"{files}: has the columns {', '.join(first) or 'none'}, must have text alone, or "
            "abstract; 'crtlib ingest' reads others"
        )
    lines = (row[column] for row in chain([first], remaining))
    if column == "abstract":  # its lines are broken for print
        lines = (" ".join(line.split()) for line in lines)
    corpus = wikitext.parse(lines, name)
    return replace(corpus, name=name, dialogues=corpus.dialogues[:limit])


@lru_cache(maxsize=16)  # millions of rows, and asked for at every run
def _digest(files: str) -> str:
    digest = hashlib.sha256()
    for row in rows(files):
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()


def source(name: str, label: str = "", *, by_rule: bool = False) -> Source:
    """``hub:owner/name`` or ``hub:owner/name/configuration`` as a corpus; it needs ``datasets``.

    ``available`` says only that the package is installed: nothing is downloaded for an answer.
    """

    def load(split: str, _folder: Folder, limit: int | None) -> Corpus:
        return read_parquet(address(name, split), name=name.removeprefix("hub:"), limit=limit)

    def available(_split: str | None, _folder: Folder) -> bool:
        return importlib.util.find_spec("datasets") is not None

    def fingerprint(split: str, _folder: Folder) -> str:
        return _digest(address(name, split))

    label = label or f"{name.removeprefix('hub:')} (Hugging Face)"
    return Source(name, label, load, available, fingerprint, by_rule=by_rule)


register(source("hub:Salesforce/wikitext", "WikiText-2 (Hugging Face)", by_rule=True))
register(source("hub:gfissore/arxiv-abstracts-2021", "arXiv abstracts"))
