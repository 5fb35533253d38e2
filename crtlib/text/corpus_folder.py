"""A corpus as a folder: Parquet shards, a card and a marker; ``datasets`` reads it as well.

>>> import pathlib, tempfile
>>> from crtlib.text.customersim import simulate_corpus
>>> out = pathlib.Path(tempfile.mkdtemp()) / "corpus"
>>> facts = save_corpus(
...     simulate_corpus(20, 0).dialogues, out, command="simulate", options={"seed": 0}
... )
>>> facts.threads, tuple(read_folder_dialogues(out)) == simulate_corpus(20, 0).dialogues
(20, True)
>>> sorted(p.name for p in out.iterdir())
['README.md', 'croissant.json', 'crtlib.json', 'data']
"""

from __future__ import annotations

import datetime
import fnmatch
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError

from crtlib import files, outputs
from crtlib.checks import raise_machine_fault
from crtlib.files import StrPath
from crtlib.text import jsonl
from crtlib.text.identity import normalise_unit_name
from crtlib.text.package_data import fill_page
from crtlib.text.records import Dialogue

TURN_TYPE = pa.struct(
    [
        ("speaker", pa.string()),
        ("text", pa.large_string()),
        ("time", pa.timestamp("ms", tz="UTC")),
        ("labelled", pa.bool_()),
        (
            "secrets",
            pa.list_(
                pa.struct([("kind", pa.string()), *((n, pa.int32()) for n in ("start", "end"))])
            ),
        ),
    ]
)
CORPUS_SCHEMA = pa.schema(
    [("id", pa.string()), ("user", pa.string()), ("turns", pa.list_(TURN_TYPE))]
)
"""The columns of a corpus, with one row for each dialogue."""
ROWS_PER_GROUP = 1_000
"""Dialogues that are written at a time."""


@dataclass(frozen=True)
class CorpusSummary:
    """What a corpus folder holds.

    ``sha256`` is the corpus hash: over the canonical lines
    (:func:`crtlib.text.jsonl.canonical_line`) of its dialogues in order, so it is the same for
    Parquet and JSONL and for any labels. ``users_are`` is "thread" if each dialogue counts as a
    user, otherwise "column". ``policy`` is one that fits the text, if one is known. ``first`` and
    ``last`` are dates, None if no turn has a time."""

    turns: int
    threads: int
    users: int
    labelled: int
    sha256: str
    users_are: str
    policy: str | None
    first: str | None
    last: str | None


SUMMARY = TypeAdapter(CorpusSummary)


def hash_dialogues(dialogues: Iterable[Dialogue]) -> str:
    """The corpus hash of dialogues in their order."""
    digest = hashlib.sha256()
    for d in dialogues:
        add_to_corpus_hash(digest, d)
    return digest.hexdigest()


def add_to_corpus_hash(digest: Any, d: Dialogue) -> None:
    """Add the next dialogue to the SHA-256 that becomes the corpus hash."""
    digest.update(jsonl.canonical_line(d.id, d.user, ((t.speaker, t.text) for t in d.turns)))


class CorpusWriter:
    """Writes tables with the columns ``CORPUS_SCHEMA`` into the file of one split, each as a row
    group. Only ``time`` may be null."""

    def __init__(self, folder: Path, split: str) -> None:
        path = folder / "data" / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = pq.ParquetWriter(path, CORPUS_SCHEMA, compression="zstd")
        self.turns, self.threads, self.labelled = 0, 0, 0
        self.users: set[bytes] = set()
        self.digest = hashlib.sha256()
        self.dates: list[datetime.datetime] = []

    def add(self, rows: pa.Table) -> None:
        """Write some dialogues."""
        lists = rows["turns"].combine_chunks()
        turns = lists.flatten()
        ends = lists.offsets.to_pylist()
        said = list(zip(*(turns.field(n).to_pylist() for n in ("speaker", "text")), strict=True))
        names, users = (rows[name].to_pylist() for name in ("id", "user"))
        for name, user, a, b in zip(names, users, ends, ends[1:], strict=False):
            self.digest.update(jsonl.canonical_line(name, user, said[a - ends[0] : b - ends[0]]))
            self.users.add(
                hashlib.blake2b(normalise_unit_name(user).encode(), digest_size=12).digest()
            )
        self.threads += len(names)
        self.turns += len(said)
        self.labelled += turns.field("labelled").true_count
        dates = [*self.dates, *filter(None, pc.min_max(turns.field("time")).as_py().values())]
        self.dates = [min(dates), max(dates)] if dates else []
        self.file.write_table(rows.cast(CORPUS_SCHEMA))

    def close(self, users_are: str = "column", policy: str | None = None) -> CorpusSummary:
        """Finish the file and return what it holds. Raises ``ValueError`` where nothing was
        written."""
        self.file.close()
        if not self.threads:
            raise ValueError("the corpus is empty, at least one dialogue is needed")
        first, last = [date.date().isoformat() for date in self.dates] or (None, None)
        counts = (self.turns, self.threads, len(self.users), self.labelled)
        return CorpusSummary(*counts, self.digest.hexdigest(), users_are, policy, first, last)


def write_corpus_card(
    folder: Path,
    name: str,
    facts: CorpusSummary,
    sources: Sequence[str],
    *,
    simulated: bool,
    rewritten: int = 0,
) -> None:
    """Write the files beside the ``data`` of ``folder``: a dataset card (README.md) and its
    Croissant 1.0 description. ``rewritten`` is the number of turns in which the writing of accents
    or unseen marks was changed."""
    (file,) = (folder / "data").iterdir()
    for out, template in (("README.md", "card.md"), ("croissant.json", "croissant.json")):
        text = fill_page(
            template,
            name=name,
            facts=facts,
            sources=sources,
            simulated=simulated,
            rewritten=rewritten,
            file=file.name,
            sha256=outputs.hash_file(file),
            split=file.name.rsplit("-", 3)[0],
            today=datetime.date.today().isoformat(),
        )
        (folder / out).write_text(text + "\n", encoding="utf-8")


def save_corpus(
    dialogues: Iterable[Dialogue],
    out: StrPath,
    *,
    command: str,
    options: Mapping[str, Any],
    policy: str | None = None,
    simulated: bool = False,
    split: str = "train",
    force: bool = False,
) -> CorpusSummary:
    """Write labelled dialogues, read one after another, as a corpus folder.

    Its files are private, unless the dialogues were ``simulated``. Raises ``ValueError`` where
    ``out`` may not be written (:func:`crtlib.outputs.check_output_folder`), or where there is no
    dialogue.
    """
    summary: dict[str, Any] = {}
    with outputs.staged_folder(
        out,
        command=command,
        options=options,
        public=("*",) if simulated else (),
        facts=summary,
        force=force,
    ) as part:
        writer = CorpusWriter(part, split)
        rows = map(jsonl.dialogue_to_json, dialogues)
        while some := list(itertools.islice(rows, ROWS_PER_GROUP)):
            for turn in itertools.chain.from_iterable(record["turns"] for record in some):
                turn["labelled"] = True
            writer.add(pa.Table.from_pylist(some, CORPUS_SCHEMA))
        counts = writer.close(policy=policy)
        summary["corpus"] = asdict(counts)
        write_corpus_card(part, Path(out).name, counts, [], simulated=simulated)
    return counts


def make_corpus_writer(
    out: StrPath, *, inputs: Sequence[Path] = (), force: bool = False
) -> Callable[..., Any]:
    """Return a function that writes dialogues to ``out``: as :func:`save_corpus` does, or as one
    file of JSON lines if the name ends in ``.jsonl`` or ``.jsonl.gz``. Raises ``ValueError`` where
    nothing may be written there."""
    if os.fspath(out).endswith((".jsonl", ".jsonl.gz")):
        outputs.check_output_file(out, inputs=inputs, force=force)
        return lambda dialogues, **_: jsonl.write_jsonl(dialogues, out)
    outputs.check_output_folder(out, inputs=inputs, force=force)
    return partial(save_corpus, out=out, force=force)


def read_corpus_summary(folder: StrPath) -> CorpusSummary:
    """What a finished corpus folder holds, by its marker. Raises ``ValueError`` for any other
    folder."""
    marker = outputs.require_marker(folder, names=())
    content = marker.get("facts", {}).get("corpus", {})
    try:
        return SUMMARY.validate_json(json.dumps(content), strict=True)
    except ValidationError:
        raise _no_corpus(folder, marker) from None


def _no_corpus(folder: StrPath, marker: Mapping[str, Any]) -> ValueError:
    """The error for a finished folder of ours that is not a corpus."""
    return ValueError(
        f"{folder}: is not a corpus folder, but what 'crtlib {marker['command']}' made"
    )


def split_file_names(folder: StrPath, split: str | None) -> list[str]:
    """The names of the files of one split, or of all. Raises ``ValueError`` for a folder that is
    unfinished or not ours, and for a split that is not there."""
    pattern = f"data/{split or '*'}-*.parquet"
    marker = outputs.require_marker(folder, names=())
    names = sorted(n for n in marker["files"] if Path(n).match(pattern))
    if not fnmatch.filter(marker["files"], "data/*-*.parquet"):
        raise _no_corpus(folder, marker)
    if not names:
        raise ValueError(f"split={split or 'train'!r}: {folder} has no {pattern}")
    return names


def read_folder_dialogues(folder: StrPath, *, split: str | None = None) -> Iterator[Dialogue]:
    """The dialogues of a corpus folder in order, of one split or of all, in bounded memory; its
    hashes are checked first. Raises ``ValueError`` as :func:`split_file_names` does, and for a
    damaged file."""
    names = split_file_names(folder, split)
    outputs.require_marker(folder, names=names)
    for name in names:
        path = Path(folder) / name
        try:
            table = pq.ParquetFile(files.check_regular_file(path))
            for batch in table.iter_batches(1_000, columns=CORPUS_SCHEMA.names):
                if not batch.schema.equals(CORPUS_SCHEMA):
                    raise ValueError(f"{path}: has other columns than a corpus")
                yield from map(jsonl.parse_dialogue, batch.to_pylist())
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise_machine_fault(error)
            raise ValueError(f"{path}: is damaged ({type(error).__name__})") from None
