"""Corpora as files: one dialogue a line, and from dialogues to data points.

>>> import tempfile, pathlib
>>> from crtlib.text.records import Corpus
>>> from crtlib.text.records import Dialogue
>>> from crtlib.text.records import Secret
>>> from crtlib.text.records import Turn
>>> turn = Turn("USR", "I am Ada Lovelace.", (Secret("name", 5, 17),))
>>> corpus = Corpus("tiny", (Dialogue("d0", "ada", (turn,)),))
>>> path = pathlib.Path(tempfile.mkdtemp()) / "tiny.jsonl.gz"
>>> write_jsonl(corpus, path)
>>> read_jsonl(path) == corpus
True
>>> point = points(corpus, unit="turn")[0]
>>> point.id, point.text, point.secrets[0].start
('d0/0', 'USR: I am Ada Lovelace.', 10)
>>> load(path) == corpus
True
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from crtlib.files import reading
from crtlib.text import multiwoz, wikitext
from crtlib.text.jsonl import _dialogue, _field, _read, read_jsonl
from crtlib.text.records import Corpus, Dialogue, Turn


def _shi2021(record: Any) -> Dialogue | None:
    name, text = (_field(record, "a dialogue", key, str) for key in ("id", "text"))
    if name.startswith("canary"):
        return None
    turns = []
    for i, line in enumerate(text.rstrip("\n").split("\n")):
        speaker, colon, said = line.partition(": ")
        if not colon:
            raise ValueError(f"turn {i}: needs a speaker and a colon")
        turns.append(Turn(speaker, said))
    return Dialogue(name, name, tuple(turns))


def _shi2021_files(folder: str | os.PathLike, split: str) -> list[Path]:
    if split not in ("train", "valid", "test"):
        raise ValueError(f"split={split!r}: must be one of train, valid, test")
    path = Path(folder) / f"{split}.jsonl"
    return [path if path.exists() else path.with_suffix(".jsonl.gz")]


def read_customersim_shi2021(folder: str | os.PathLike, split: str) -> Corpus:
    """The original CustomerSim (Shi et al., 2022), text verbatim, one line ``{"id", "text"}``.

    Reads ``folder/split.jsonl`` or ``.jsonl.gz`` for ``split`` in train, valid, test. It has no
    labels, so no turn has secrets (``screen.annotate`` attaches a policy's), and no customers, so
    every dialogue is a user of its own. The authors' ten canary lines in train are left out.
    """
    (path,) = _shi2021_files(folder, split)
    canaries = 0

    def parse(record: Any) -> Dialogue | None:
        nonlocal canaries
        dialogue = _shi2021(record)
        canaries += dialogue is None
        return dialogue

    dialogues = _read(path, parse)
    return Corpus("customersim-shi2021", dialogues, (("canary", canaries),) if canaries else ())


@dataclass(frozen=True)
class _Home:
    """How to read a corpus: its folder (the first that is there), files, loader and source."""

    folders: tuple[str, ...]
    files: Callable[[Path, str], list[Path]]
    read: Callable[[Path, str, int | None], Corpus]
    where: str


HOMES = {
    "customersim_shi2021": _Home(
        ("customersim_shi2021",),
        _shi2021_files,
        lambda folder, split, _: read_customersim_shi2021(folder, split),
        "https://github.com/wyshi/lm_privacy",
    ),
    "schema_guided": _Home(
        ("sgd",),
        multiwoz.files,
        lambda folder, split, n: multiwoz.read(folder, split, name="schema_guided", limit=n),
        "https://github.com/google-research-datasets/dstc8-schema-guided-dialogue",
    ),
    "multiwoz": _Home(
        ("multiwoz_2.2", "multiwoz_2.2_subset"),
        multiwoz.files,
        lambda folder, split, n: multiwoz.read(folder, split, name="multiwoz", limit=n),
        "https://github.com/budzianowski/multiwoz, folder data/MultiWOZ_2.2",
    ),
    "wikitext2": _Home(
        ("wikitext-2",),
        wikitext.files,
        lambda folder, split, _: wikitext.read(folder, split),
        "https://huggingface.co/datasets/Salesforce/wikitext, as hub:Salesforce/wikitext",
    ),
}
"""The corpora that ``load`` knows by name. None of them is part of this package."""

HUB = {
    "Salesforce/wikitext": "wikitext-2-raw-v1",
    "google-research-datasets/schema_guided_dstc8": "dialogues",
    "pfb30/multi_woz_v22": "v2.2",
}
"""The configuration that is meant where ``hub:owner/name`` names none (else: ``default``)."""


def _home(name: str, folder: str | os.PathLike | None) -> tuple[_Home, Path]:
    """How to read a corpus, and its folder; ``ValueError`` says where to get what is not there."""
    if name not in HOMES:
        raise ValueError(
            f"corpus={name!r}: must be one of {', '.join(HOMES)}, hub:owner/name, or the path of "
            "a .jsonl or .jsonl.gz file that exists"
        )
    home, root = HOMES[name], os.environ.get("CRTLIB_DATA")
    if folder is None and not root:
        raise ValueError(f"{name}: set folder or CRTLIB_DATA; the corpus is at {home.where}")
    tried = [Path(folder)] if folder is not None else [Path(root or "", f) for f in home.folders]
    for path in tried:
        if path.is_dir():
            return home, path
    raise ValueError(f"{name}: {tried[0]} is no folder; get the corpus from {home.where}")


def _files(name: str, split: str, folder: str | os.PathLike | None) -> list[Path]:
    """The files that ``load`` reads for a corpus that is not on the hub."""
    if name.endswith((".jsonl", ".jsonl.gz")):
        if split != "train" or folder is not None:
            raise ValueError(f"split={split!r}: {name} is one file, without splits or a folder")
        return [Path(name)]
    home, path = _home(name, folder)
    try:
        return home.files(path, split)
    except ValueError as error:
        raise ValueError(f"{name}: {error}; the corpus is at {home.where}") from None


def load(
    name: str | os.PathLike,
    split: str = "train",
    *,
    folder: str | os.PathLike | None = None,
    limit: int | None = None,
) -> Corpus:
    """The first ``limit`` dialogues of a corpus that is known by name.

    ``name`` is one of ``HOMES`` (in ``folder``, by default the corpus' own under
    ``$CRTLIB_DATA``), ``hub:owner/name`` or ``hub:owner/name/configuration`` (downloaded with the
    package ``datasets``, which must be installed; the splits there are train, validation and test),
    or the path of a JSONL file. Splits are named as the corpus names them. Raises ``ValueError``
    where there is no such corpus, folder or split, and says where to get it.
    """
    name = os.fspath(name)
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit}: must be at least 1")
    if name.startswith("hub:"):
        return read_parquet(_hub(name, split), name=name.removeprefix("hub:"), limit=limit)
    files = _files(name, split, folder)
    if name not in HOMES:
        corpus = read_jsonl(files[0])
    else:
        home, path = _home(name, folder)
        corpus = home.read(path, split, limit)
    return replace(corpus, dialogues=corpus.dialogues[:limit])


def available(
    name: str | os.PathLike, split: str | None = None, *, folder: str | os.PathLike | None = None
) -> bool:
    """Whether ``load`` would find the corpus, and the split where one is named.

    Of the hub only that ``datasets`` is installed: nothing is downloaded.
    """
    name = os.fspath(name)
    if name.startswith("hub:"):
        return importlib.util.find_spec("datasets") is not None
    try:
        if name in HOMES and split is None:
            return bool(_home(name, folder))
        return all(path.is_file() for path in _files(name, split or "train", folder))
    except ValueError:
        return False


def fingerprint(
    name: str | os.PathLike, split: str = "train", *, folder: str | os.PathLike | None = None
) -> str:
    """SHA-256 of the content of all files that ``load`` reads, packed or not, in their order.

    Of the hub's rows. A file is read again only when its size or its time has changed.
    """
    name = os.fspath(name)
    if name.startswith("hub:"):
        return _hub_digest(_hub(name, split))
    parts = [_digest(path, *_state(path)) for path in _files(name, split, folder)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _state(path: Path) -> tuple[int, int]:
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    return path.stat().st_size, path.stat().st_mtime_ns


@lru_cache(maxsize=16)  # millions of rows, and asked for at every run
def _hub_digest(files: str) -> str:
    digest = hashlib.sha256()
    for row in _rows(files):
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()


@lru_cache(maxsize=4096)
def _digest(path: Path, _size: int, _time: int) -> bytes:
    with reading(path) as file:
        return hashlib.file_digest(file, "sha256").digest()


def _hub(name: str, split: str) -> str:
    """Where the hub keeps a split as Parquet: it converts every dataset to that on a branch.

    Two of ours are Python scripts otherwise, which ``datasets`` no longer runs.
    """
    parts = name.removeprefix("hub:").split("/")
    if len(parts) not in (2, 3) or not all(re.fullmatch(r"[\w.-]+", p) for p in (*parts, split)):
        raise ValueError(f"corpus={name!r}, split={split!r}: must be hub:owner/name and its split")
    owner, repository, *rest = parts
    configuration = rest[0] if rest else HUB.get(f"{owner}/{repository}", "default")
    where = f"{owner}/{repository}@refs/convert/parquet/{configuration}/{split}"
    return f"hf://datasets/{where}/*.parquet"


def _rows(files: str) -> Iterator[dict]:
    """The rows of Parquet files, local or on the hub."""
    try:
        import datasets
    except ImportError:
        raise ValueError(f"{files}: needs the package datasets (pip install datasets)") from None
    try:
        rows = datasets.load_dataset("parquet", data_files=files, split="train")
    except Exception as error:  # the hub's, the network's and Arrow's errors have no common base
        raise ValueError(f"{files}: cannot be read ({type(error).__name__})") from error
    yield from rows


def read_parquet(files: str, *, name: str, limit: int | None = None) -> Corpus:
    """A corpus from Parquet files, a path or ``hf://`` address with wildcards.

    The columns decide what it is: ``dialogue_id`` and ``turns`` (MultiWOZ, Schema-Guided
    Dialogue), ``id``, ``user`` and ``turns`` (the records of ``read_jsonl``), ``text`` alone
    (WikiText, a line each), or ``abstract`` among others (arXiv, as in
    ``hub:gfissore/arxiv-abstracts-2021``; an abstract is a paragraph).
    """
    rows = _rows(files)
    first = next(rows, {})

    def again() -> Iterator[dict]:
        yield first
        yield from rows

    if {"dialogue_id", "turns"} <= set(first):
        return multiwoz.parse(again(), name=name, limit=limit)
    if {"id", "user", "turns"} <= set(first):
        dialogues = tuple(_dialogue(row) for row in islice(again(), limit))
        if len({d.id for d in dialogues}) < len(dialogues):
            raise ValueError(f"{files}: ids must be unique")
        return Corpus(name, dialogues)
    if set(first) == {"text"}:
        corpus = wikitext.parse((row["text"] for row in again()), name)
        return replace(corpus, name=name, dialogues=corpus.dialogues[:limit])
    if "abstract" in first:  # its lines are broken for print
        lines = (" ".join(row["abstract"].split()) for row in islice(again(), limit))
        return replace(wikitext.parse(lines, name), name=name)
    raise ValueError(
        f"{files}: has the columns {', '.join(first) or 'none'}, must have dialogue_id and turns, "
        "or id, user and turns, or text alone, or abstract"
    )
