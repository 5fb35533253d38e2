"""The leakage report as one web page that needs no network, with Parquet and JSON beside it.

Text is left out unless it is asked for, and so is every number that could stand in for it. The
exact perplexity of a sequence is a hash of the secret before it: whoever has the model can try
ten thousand candidates against it. Even its place and length say which digits were guessed. So
a redacted report holds bins and rounded counts only (:mod:`crtlib.reports.leakage_tables`), and
one in clear is a private file.

>>> import numpy as np
>>> from crtlib.attacks.leakage import Document, Scores, features, find_runs
>>> texts = (Document("ann", "a", [0, 1, 2]),)
>>> scores = Scores([np.log([1, 0.5, 0.5])], [np.array([9, 0, 0])])
>>> runs = find_runs(texts, scores, k=1)
>>> report = Leakage(texts, scores, runs, features(runs, texts), 1, True, 1, 0, 0, False)
>>> cover = Cover(model="demo", corpus="demo.jsonl", unit="turn")
>>> "<title>Leakage report: demo</title>" in leakage_page.page(report, cover)
True
>>> summary(report, cover)["unique"]
'fewer than 5'
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from torch import nn

from crtlib import files, outputs
from crtlib.attacks import leakage
from crtlib.attacks.leakage import Leakage
from crtlib.models.folder import load
from crtlib.reports import leakage_page
from crtlib.reports.leakage_tables import (
    ROWS,
    Cover,
    Decode,
    grouped_runs,
    groups,
    records,
    runs,
    sequences,
    summary,
)
from crtlib.text import corpora, units
from crtlib.text.records import Corpus, Point
from crtlib.text.tokenizer import same_tokenizer

FILES = ("report.html", "report.json", "runs.parquet", "sequences.parquet")
"""What a report is made of: readable by all if it is redacted, else by its owner alone."""


def read_corpus(path: str | Path) -> Corpus:
    """A corpus; where users are missing the error says what to do about it."""
    try:
        return corpora.read(path)
    except ValueError as error:
        if "needs 'user'" in str(error):
            raise ValueError(f"{path}: {leakage.NO_USER}") from None
        raise


def write(
    report: Leakage,
    folder: str | Path,
    cover: Cover,
    *,
    decode: Decode | None = None,
    rows: int = ROWS,
) -> Path:
    """``report.html``, ``report.json``, ``sequences.parquet``, ``runs.parquet``; the page's path.

    ``decode`` (the tokenizer's) writes text in clear into all four, unless only lengths may be
    shown; without it there is no text and no number of a single sequence.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    decode = None if cover.lengths_only else decode
    facts: dict = {"summary": summary(report, cover, exact=decode is not None)}
    if decode:
        table, long = sequences(report, decode), runs(report, decode)
        facts |= {"shown": min(rows, len(table)), "sequences": records(table.head(rows))}
    else:
        table, long = groups(report, cover), grouped_runs(report)
        facts |= {"groups": table.to_dict("records")}
    for name, frame in (("sequences", table), ("runs", long)):
        frame.to_parquet(folder / f"{name}.parquet", index=False)
    data = json.dumps(facts, indent=1, allow_nan=False) + "\n"
    (folder / "report.json").write_text(data, encoding="utf-8")
    page = folder / "report.html"
    page.write_text(leakage_page.page(report, cover, decode=decode, rows=rows), encoding="utf-8")
    return page


def make(
    model: str | Path,
    corpus: str | Path,
    folder: str | Path,
    *,
    top_k: int = 3,
    public: str | Path | None = None,
    unit: str | None = None,
    reveal: bool = False,
    lengths_only: bool = False,
    min_length: int = 1,
    threshold: float | None = None,
    verbatim: bool = False,
    device: str = "cpu",
    force: bool = False,
) -> tuple[Path, dict]:
    """From folders and files to the written report: its page and its summary.

    ``unit`` says what one document is; by default what the run was trained on, where it says so
    (``experiment.json``), else a turn. A report of the same input and options is not made again;
    another folder is replaced with ``force`` only (:func:`crtlib.outputs.check_folder`). Raises
    ``ValueError`` for bad input, before it writes.
    """
    if reveal and lengths_only:
        raise ValueError("reveal, lengths_only: contradict each other, give one of the two")
    cover = Cover(
        model=_name(model),
        corpus=Path(corpus).name,
        unit=unit or _trained_unit(Path(model)) or "turn",
        public=None if public is None else _name(public),
        threshold=threshold,
        lengths_only=lengths_only,
    )
    options = {"top_k": top_k, "reveal": reveal, "min_length": min_length, "verbatim": verbatim}
    key = _key(Path(folder))
    inputs = {"model": model} | ({} if public is None else {"public": public})
    points = units.points(read_corpus(corpus), unit=cover.unit)
    network, tokenizer = load(model)
    its_hash = hmac.new(key, outputs.content(corpus).encode(), "sha256").hexdigest()
    recipe: dict = {
        "command": "report",
        "options": options | asdict(cover),
        "inputs": inputs | {"corpus": its_hash},
    }
    if outputs.up_to_date(folder, **recipe):
        page = Path(folder) / "report.html"
        return page, json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))["summary"]
    other = None if public is None else _public(public, tokenizer, points)
    outputs.check_folder(folder, inputs=[corpus, *inputs.values()], force=force)
    shown = () if reveal else FILES
    with outputs.staged(folder, **recipe, public=shown, force=force) as part:
        report = leakage.leakage(
            network,
            tokenizer,
            points,
            k=top_k,
            public=other,
            flush=not verbatim,
            min_length=min_length,
            device=device,
        )
        write(report, part, cover, decode=cast(Decode, tokenizer.decode) if reveal else None)
    with files.replacing(_key_file(Path(folder)), mode=0o600) as part:
        part.write_bytes(key)
    return Path(folder) / "report.html", summary(report, cover, exact=reveal)


def _key_file(folder: Path) -> Path:
    place = folder.absolute()
    return place.with_name(f".{place.name}.key")


def _key(folder: Path) -> bytes:
    """The key of the corpus' hash in the marker, a private file beside the report: against the
    hash itself, whoever knows all other text could try candidates for the rest."""
    try:
        return _key_file(folder).read_bytes()
    except FileNotFoundError:
        return secrets.token_bytes(32)


def _name(folder: str | Path) -> str:
    return os.path.basename(os.path.abspath(folder))


def _public(folder: str | Path, tokenizer: Any, points: Sequence[Point]) -> nn.Module:
    """The model to compare with, which must read the same tokens."""
    other, its = load(folder)
    if not same_tokenizer(tokenizer, its, [p.text for p in points[:1000]]):
        raise ValueError(f"public={_name(folder)!r}: must read the tokenizer of the model")
    return other


def _trained_unit(model: Path) -> str | None:
    """What one document was when the model was trained, where its folder says so."""
    recorded = model / "experiment.json"
    if not recorded.is_file():
        return None
    try:
        return json.loads(recorded.read_text(encoding="utf-8")).get("unit")
    except (ValueError, AttributeError, RecursionError):
        raise ValueError(f"{recorded}: is no record of a training; name --unit") from None
