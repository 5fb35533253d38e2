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

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from crtlib import files
from crtlib.attacks import leakage, reading
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
from crtlib.text import jsonl, templates
from crtlib.text.records import Corpus
from crtlib.text.templates import CANDIDATES, Template
from crtlib.text.tokenizer import Bpe, same_tokenizer

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

PUBLIC, PRIVATE = None, 0o600
"""Permissions of a redacted report (as the umask says) and of one in clear."""


def read_corpus(path: str | Path) -> Corpus:
    """A JSONL corpus; where users are missing the error says what to do about it."""
    try:
        return jsonl.read_jsonl(path)
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
    facts: Mapping[str, Any] | None = None,
) -> Path:
    """``report.html``, ``report.json``, ``sequences.parquet`` and ``runs.parquet``, atomically.

    Returns the path of the page. ``facts`` join the summary in JSON. ``decode`` (the tokenizer's)
    writes text in clear, into all four, which are then private files (0600), unless only lengths
    may be shown; without it there is no text and no number of a single sequence.
    """
    folder = Path(folder)
    decode = None if cover.lengths_only else decode
    mode = PRIVATE if decode else PUBLIC
    told: dict = {"summary": summary(report, cover, exact=decode is not None) | dict(facts or {})}
    if decode:
        table, long = sequences(report, decode), runs(report, decode)
        told |= {"shown": min(rows, len(table)), "sequences": records(table.head(rows))}
    else:
        table, long = groups(report, cover), grouped_runs(report)
        told |= {"groups": table.to_dict("records")}
    for name, frame in (("sequences", table), ("runs", long)):
        with files.replacing(folder / f"{name}.parquet", mode) as part:
            frame.to_parquet(part, index=False)
    page = leakage_page.page(report, cover, decode=decode, rows=rows)
    data = json.dumps(told, indent=1, allow_nan=False) + "\n"
    texts = {"report.json": data, "report.html": page}
    for name, text in texts.items():
        with files.replacing(folder / name, mode) as part:
            part.write_text(text, encoding="utf-8")
    return folder / "report.html"


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
    template: str | None = None,
    prefix_scan: bool = False,
    device: str = "cpu",
) -> tuple[Path, dict]:
    """From folders and files to the written report: its page and its summary.

    ``unit`` says what one document is; by default what the run was trained on, where it says so
    (``experiment.json``), else a turn. ``template`` says how turns became text
    (:mod:`crtlib.text.templates`): by default what the folder records, else the tokenizer's chat
    template, else the one that the model reads most easily; the summary has ``warning`` where
    another one fits better. ``prefix_scan`` reads each text after every beginning.

    Raises ``ValueError`` for bad input, before it writes.
    """
    if reveal and lengths_only:
        raise ValueError("reveal, lengths_only: contradict each other, give one of the two")
    cover = Cover(
        model=Path(model).resolve().name,
        corpus=Path(corpus).name,
        unit=unit or (_recorded(Path(model)) or {}).get("unit") or "turn",
        public=None if public is None else Path(public).resolve().name,
        threshold=threshold,
        lengths_only=lengths_only,
    )
    if prefix_scan and public is not None:
        raise ValueError("prefix_scan, public: contradict each other, give one of the two")
    dialogues = read_corpus(corpus)
    network, tokenizer = load(model)
    used, fit = _template(template, Path(model), dialogues, network, tokenizer, cover.unit, device)
    points = templates.points(dialogues, cover.unit, used)
    found = None
    if prefix_scan:
        found, best = reading.scan(network, tokenizer, dialogues, unit=cover.unit, used=used,
                                   k=top_k, device=device)  # fmt: skip
        fit |= {"prefixes": best}
    other = None
    if public is not None:
        other, its = load(public)
        if not same_tokenizer(tokenizer, its, [p.text for p in points[:1000]]):
            raise ValueError(f"public={cover.public!r}: must read the tokenizer of the model")
    report = leakage.leakage(
        network,
        tokenizer,
        points,
        k=top_k,
        public=other,
        flush=not verbatim,
        min_length=min_length,
        own_words=used.name != "speaker",
        reading=found,
        device=device,
    )
    decode = cast(Decode, tokenizer.decode) if reveal else None
    page = write(report, folder, cover, decode=decode, facts=fit)
    return page, summary(report, cover, exact=reveal) | fit


def _template(
    name: str | None,
    folder: Path,
    corpus: Corpus,
    network: nn.Module,
    tokenizer: Bpe | PreTrainedTokenizerBase,
    unit: str,
    device: str,
) -> tuple[Template, dict[str, Any]]:
    """The template to read with, and what the check says of it: ``template`` and ``warning``.

    A model that records its own is not asked about others.
    """
    recorded = _recorded(folder)
    if name is None and recorded is not None:
        name = recorded.get("template", "speaker")
        name = "chat" if name not in CANDIDATES else name
        return templates.by_name(name, tokenizer), {"template": {"used": name}}
    if name is None and getattr(tokenizer, "chat_template", None):
        name = "chat"
    used = None if name is None else templates.by_name(name, tokenizer)
    fit = reading.fit(network, tokenizer, corpus, unit=unit, used=used, device=device)
    facts: dict[str, Any] = {"template": fit.summary()}
    if text := fit.warning():
        facts["warning"] = text
    return used or CANDIDATES[fit.used], facts


def _recorded(model: Path) -> dict[str, Any] | None:
    """The study that trained a model, where its folder says so."""
    recorded = model / "experiment.json"
    if not recorded.is_file():
        return None
    return dict(json.loads(recorded.read_text(encoding="utf-8")))
