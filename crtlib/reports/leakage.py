"""The leakage report as one web page that needs no network, with Parquet and JSON beside it.

Text is left out unless it is asked for, and so is every number that could stand in for it. The
exact perplexity of a sequence is a hash of the secret before it: whoever has the model can try
ten thousand candidates against it. Even its place and length say which digits were guessed. So
a redacted report holds bins and rounded counts only (:mod:`crtlib.reports.leakage_page`), and
one in clear is a private file.

>>> import numpy as np
>>> from crtlib.attacks.leakage import Document, Scores, features, find_runs
>>> texts = (Document("ann", "a", [0, 1, 2]),)
>>> scores = Scores([np.log([1, 0.5, 0.5])], [np.array([9, 0, 0])])
>>> runs = find_runs(texts, scores, k=1)
>>> report = Leakage(texts, scores, runs, features(runs, texts), 1, True, 1, 0, 0, False, 1.0)
>>> cover = Cover(model="demo", corpus="demo.jsonl", unit="turn")
>>> "<title>Leakage report: demo</title>" in leakage_page.page(report, cover)
True
>>> summary(report, cover)["unique"]
'fewer than 5'
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from crtlib import files, outputs
from crtlib.accounting import odometer
from crtlib.attacks import leakage, reading
from crtlib.attacks.leakage import Leakage, Lot
from crtlib.checks import MachineError
from crtlib.files import Named
from crtlib.models import scoring
from crtlib.models.folder import load, tensors
from crtlib.reports import leakage_page
from crtlib.reports.leakage_page import (
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
from crtlib.text import corpora, shards, templates, units
from crtlib.text.records import Corpus, Dialogue
from crtlib.text.shards import Shards, in_order
from crtlib.text.templates import CANDIDATES, Template
from crtlib.text.tokenizer import AnyTokenizer, bos, same_tokenizer

if TYPE_CHECKING:
    from torch import nn

FILES = ("report.html", "report.json", "runs.parquet", "sequences.parquet")
"""What a report is made of: readable by all if it is redacted, else by its owner alone."""


NO_RUN = "no run of this model is known here, so nobody checked that it has read this text"
OTHER_TEXT = "this model was trained on another text: only what both hold can it leak"

LOT = 2**14
"""Turns that are read together: with all that is made of them some fifty megabytes."""


class _Dialogues(Sequence[Dialogue]):
    """The dialogues of a corpus, read from its files whenever they are asked for."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, 0
        for dialogue in self:
            if not dialogue.user:
                raise ValueError(leakage.NO_USER)
            self.size += 1

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Dialogue]:
        return corpora.dialogues(self.path)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


def read_corpus(path: Named) -> Corpus:
    """A corpus that is read anew each time, as memory may not hold it; where users are missing the
    error says what to do about it."""
    try:
        return Corpus(Path(path).name, _Dialogues(Path(path)))
    except ValueError as error:
        if ": user: " in str(error):
            raise ValueError(f"{path}: {leakage.NO_USER}") from None
        raise


def write(
    report: Leakage,
    folder: Named,
    cover: Cover,
    *,
    decode: Decode | None = None,
    rows: int = ROWS,
    facts: Mapping[str, Any] | None = None,
) -> Path:
    """``report.html``, ``report.json``, ``sequences.parquet``, ``runs.parquet``; the page's path.

    ``facts`` join the summary in JSON. ``decode`` (the tokenizer's) writes text in clear into all
    four, unless only lengths may be shown; without it there is no text and no number of a single
    sequence.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    decode = None if cover.lengths_only else decode
    content: dict = {"summary": summary(report, cover, exact=decode is not None)}
    content["summary"] |= facts or {}
    if decode:
        table, long = sequences(report, decode), runs(report, decode)
        content |= {"shown": min(rows, len(table)), "sequences": records(table.head(rows))}
    else:
        table, long = groups(report, cover), grouped_runs(report)
        content |= {"groups": table.to_dict("records")}
    for name, frame in (("sequences", table), ("runs", long)):
        frame.to_parquet(folder / f"{name}.parquet", index=False)
    data = json.dumps(content, indent=1, allow_nan=False) + "\n"
    (folder / "report.json").write_text(data, encoding="utf-8")
    page = folder / "report.html"
    page.write_text(leakage_page.page(report, cover, decode=decode, rows=rows), encoding="utf-8")
    return page


def make(
    model: Named,
    corpus: Named,
    folder: Named,
    *,
    top_k: int = 3,
    public: Named | None = None,
    unit: str | None = None,
    reveal: bool = False,
    lengths_only: bool = False,
    min_length: int = 1,
    threshold: float | None = None,
    verbatim: bool = False,
    template: str | None = None,
    prefix_scan: bool = False,
    device: str = "cpu",
    force: bool = False,
    executor: Executor | None = None,
) -> tuple[Path, dict]:
    """From folders and files to the written report: its page and its summary.

    ``unit`` says what one document is; by default what the run was trained on, where it says so
    (``experiment.json``), else a turn. ``template`` says how turns became text
    (:mod:`crtlib.text.templates`): by default what the folder records, else the tokenizer's chat
    template, else the one that the model reads most easily; the summary has ``warning`` where
    another one fits better. ``prefix_scan`` reads each text after every beginning.

    The corpus is read in lots: memory holds a lot, the runs, and of all else the ids of dialogues,
    the labels and some bytes a text; where the ``unit`` is a user, the text as well. An
    ``executor`` scores several batches of a lot at a time. What is scored is kept beside the report
    until all is done (:mod:`crtlib.text.shards`). A report of the same input and options is not
    made again; another folder is replaced with ``force`` only
    (:func:`crtlib.outputs.check_folder`), and with it alone a second report of a model on a text is
    written, unless it is in clear: the registry knows them
    (:meth:`crtlib.accounting.odometer.Registry.reported`), and each says which it is. The summary
    has ``warning`` where no run is known in which the model has read the text.

    Raises ``ValueError`` for bad input, before it scores or writes, and :class:`MachineError`
    where the corpus has changed meanwhile.
    """
    _one_of(reveal=reveal, lengths_only=lengths_only)
    _one_of(prefix_scan=prefix_scan, public=public is not None)
    unit = unit or (_recorded(Path(model)) or {}).get("unit") or "turn"
    names = _name(model), Path(corpus).name, unit, None if public is None else _name(public)
    cover = Cover(*names, threshold=threshold, lengths_only=lengths_only)
    options: dict[str, Any] = {"k": top_k, "min_length": min_length, "flush": not verbatim}
    ours = template if template and Path(template).is_file() else None
    shown = Path(ours).name if ours else template  # no path of this machine
    how = {"reveal": reveal, "template": shown, "prefix_scan": prefix_scan, **asdict(cover)}
    folders = {"model": model} | ({} if public is None else {"public": public})
    folders |= {"template": ours} if ours else {}
    dialogues, loaded = read_corpus(corpus), load(model)
    folder, key = Path(folder), outputs.key_in(outputs.beside_key(Path(folder)))
    text = corpora.corpus_hash(corpus)
    its = folders | {"corpus": outputs.keyed(outputs.content(corpus), key)}
    its |= {"text": outputs.keyed(corpora.read_hash(corpus), key)}  # in any form: for certify
    recipe: dict = {"command": "report", "options": options | how, "inputs": its}
    if outputs.up_to_date(folder, **recipe):
        held = (folder / "report.json").read_text(encoding="utf-8")
        return folder / "report.html", json.loads(held)["summary"]
    outputs.check_folder(folder, inputs=[corpus, *folders.values()], force=force)
    registry, numbers = _registry(), str(tensors(model))
    registry.register(text, corpora.units(corpus))
    told = hashlib.sha256(json.dumps([recipe["options"], text]).encode()).hexdigest()
    if not (reveal or force) and registry.reported(text, numbers, told):
        raise ValueError(
            f"--out: {model} was reported on this text before, with other options; several reports "
            "tell more than one: show one, or --force another, which says that it is one of several"
        )
    read = _read_by(numbers, corpus, text)
    note = "" if text in read else OTHER_TEXT if read else NO_RUN
    other, its_tokenizer = (None, None) if public is None else load(public)
    leakage.check_models(*loaded, k=top_k)
    with (
        outputs.staged(folder, **recipe, public=() if reveal else FILES, force=force) as part,
        shards.beside(folder, {"model": outputs.content(model)}) as kept,
    ):
        used, fit = _template(template, Path(model), dialogues, *loaded, cover.unit, device)
        _check_texts(dialogues, cover, used, loaded[1], its_tokenizer)
        leakage.check_models(*loaded, k=top_k, public=other)
        on = executor, kept, device
        reader = _Reader(
            *loaded, cover.unit, used, top_k, _scorer(model, loaded[0], *on),
            None if public is None or other is None else _scorer(public, other, *on),
            Counter() if prefix_scan else None,
        )  # fmt: skip
        report = leakage.of_lots(*loaded, reader.lots(dialogues), **options, into=leakage.Texts())
        if reader.prefixes is not None:
            seen = reader.prefixes.items()
            rounded = {name: leakage_page.band(n)[0] for name, n in seen if n >= leakage_page.FEW}
            fit |= {"prefixes": dict(seen) if reveal else rounded}
        decode = cast(Decode, loaded[1].decode) if reveal else None
        said = [note] * bool(read and note) + [fit[n] for n in ("warning",) if n in fit]
        fit |= {"warning": "; ".join(said)} if said else {}
        others = 0 if reveal else registry.reported(text, numbers, told, enter=True)
        cover = replace(cover, note=note, report=others + 1)
        write(report, part, cover, decode=decode, facts=fit)
        if outputs.keyed(outputs.content(corpus), key) != its["corpus"]:
            raise MachineError(f"{corpus}: changed while it was read; make the report again")
    with files.replacing(outputs.beside_key(folder), mode=0o600) as file:
        file.write_bytes(key)
    return folder / "report.html", summary(report, cover, exact=reveal) | fit


Tokens = Sequence[Sequence[int]]


def _pieces(corpus: Corpus) -> Iterator[Corpus]:
    """Whole dialogues with about ``LOT`` turns together."""
    held: list[Dialogue] = []
    turns = 0
    for dialogue in corpus.dialogues:
        held.append(dialogue)
        turns += len(dialogue.turns)
        if turns >= LOT:
            yield replace(corpus, dialogues=tuple(held))
            held, turns = [], 0
    if held:
        yield replace(corpus, dialogues=tuple(held))


@dataclass(frozen=True)
class _Reader:
    """How a corpus is read, a lot at a time: with what, as what, and who scores its texts, for the
    ``public`` model too where there is one. ``prefixes`` counts what each beginning was best for,
    where all are tried."""

    model: nn.Module
    tokenizer: AnyTokenizer
    unit: str
    used: Template
    k: int
    scorer: scoring.Scorer
    public: scoring.Scorer | None
    prefixes: Counter[str] | None

    def lots(self, corpus: Corpus) -> Iterator[Lot]:
        """The corpus in lots of whole dialogues, or of whole people."""
        if self.unit == "user":
            people = replace(self, unit="dialogue")
            yield from people.lots(units.people(corpus))
        else:
            yield from map(self._lot, _pieces(corpus))

    def _lot(self, some: Corpus) -> Lot:
        both = self.model, self.tokenizer
        points = templates.points(some, self.unit, self.used)
        if self.prefixes is None:
            own = self.used.name != "speaker"
            found = leakage.read(*both, points, own_words=own, scorer=self.scorer)
        else:
            found, best = reading.scan(
                *both, some, unit=self.unit, used=self.used, k=self.k, scorer=self.scorer
            )
            self.prefixes.update(best)
        other = None
        if self.public is not None:
            first = bos(self.tokenizer)
            other = leakage.score(self.model, found.documents, bos=first, scorer=self.public)
        return Lot(found, other, len(points))


def _scorer(
    folder: Named,
    network: nn.Module,
    executor: Executor | None,
    kept: Shards,
    device: str,
) -> scoring.Scorer:
    """What scores texts with the model of ``folder``: here, or on an executor, whose workers read
    it where it lies. Texts are cut as one process would cut them, so that the bits are the same;
    a batch that ``kept`` holds is not scored again."""
    where, sha = str(Path(folder).absolute()), outputs.content(folder)
    call = partial(_score, where, sha) if executor else partial(_scored, network, device)

    def score(texts: Tokens) -> tuple[list[Any], list[Any]]:
        if not texts:
            return [], []
        lots = scoring.batches(texts)
        found: list[Any] = [(np.empty(0), np.empty(0, dtype=np.int64))] * len(texts)
        these = kept.of(hashlib.sha256(json.dumps([sha, texts]).encode()).hexdigest())
        parts = in_order(call, ([texts[i] for i in lot] for lot in lots), executor, these)
        for lot, (_, part) in zip(lots, parts, strict=True):
            for i, *both in zip(lot, *part, strict=True):
                found[i] = tuple(map(np.asarray, both))
        logprobs, ranks = zip(*found, strict=True)
        return list(logprobs), list(ranks)

    return score


@lru_cache(maxsize=2)  # the model and a public one
def _loaded(where: str, sha: str) -> nn.Module:
    """The model that lies there, read once by each worker; it must be the one of that hash."""
    if outputs.content(where) != sha:
        raise MachineError(f"{where}: is another model now, or where a worker reads it")
    return load(where)[0]


def _score(where: str, sha: str, texts: Tokens) -> list[Any]:
    return _scored(_loaded(where, sha), None, texts)


def _scored(network: nn.Module, device: str | None, texts: Tokens) -> list[Any]:
    """Log-probabilities and ranks as JSON values: every bit of a float is in its text."""
    both = scoring.token_scores(network, texts, device=device)
    return [[x.tolist() for x in values] for values in both]


def _one_of(**given: bool) -> None:
    """Refuse options that contradict each other."""
    if all(given.values()):
        raise ValueError(f"{', '.join(given)}: contradict each other, give one of the two")


def _read_by(numbers: str, corpus: Named, text: str) -> set[str]:
    """The hashes of all corpora that the model with these ``numbers`` is known to have read."""
    beside = odometer.find(corpus, text)
    lines = odometer.read(beside) if beside.is_dir() else []
    return {e.corpus for e in [*lines, *_registry().entries()] if e.tensors == numbers}


def _registry() -> odometer.Registry:
    return odometer.Registry(odometer.home())


def _name(folder: Named) -> str:
    return os.path.basename(os.path.abspath(folder))


def _check_texts(
    corpus: Corpus,
    cover: Cover,
    used: Template,
    tokenizer: AnyTokenizer,
    public: AnyTokenizer | None,
) -> None:
    """Write every text once before the first is scored, which may take hours: a template may refuse
    any of them. The tokenizer of a ``public`` model must read them as the model's own does."""
    unit = "dialogue" if cover.unit == "user" else cover.unit
    for some in _pieces(corpus):
        points = templates.points(some, unit, used)
        if public is not None:
            if not same_tokenizer(tokenizer, public, [p.text for p in points[:1000]]):
                raise ValueError(f"public={cover.public!r}: must read the tokenizer of the model")
            public = None
        if used.name == "speaker":  # refuses none
            break


def _template(
    name: str | None,
    folder: Path,
    corpus: Corpus,
    network: nn.Module,
    tokenizer: AnyTokenizer,
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
    first, facts = reading.fit(network, tokenizer, corpus, unit=unit, used=used, device=device)
    return used or CANDIDATES[first], facts


def _recorded(model: Path) -> dict[str, Any] | None:
    """The study that trained a model, where its folder says so."""
    recorded = model / "experiment.json"
    if not recorded.is_file():
        return None
    try:
        return dict(json.loads(recorded.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError):
        raise ValueError(f"{recorded}: is no record of a training") from None
