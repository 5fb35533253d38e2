"""The leakage report for people: one web page that needs no network, Parquet and JSON.

Text is left out unless it is asked for, and so is every number that could stand in for it. The
exact perplexity of a sequence is a hash of the secret before it: whoever has the model can try
ten thousand candidates against it. Even its place and length say which digits were guessed. So
a redacted report holds bins and rounded counts only, and one in clear is a private file.

A redacted report is read by people who may not see the text, so it must not tell the text to one
who has the model. Of a single sequence nothing leaves: not its place, its length, its perplexity
or its user. What leaves are counts over the whole report, of wide bins, rounded down, and none
below five; and the ratio that at least five sequences reach in place of the largest one.

>>> import numpy as np
>>> from crtlib.attacks.leakage import Document, Scores, features, find_runs
>>> texts = (Document("ann", "a", [0, 1, 2]),)
>>> scores = Scores([np.log([1, 0.5, 0.5])], [np.array([9, 0, 0])])
>>> runs = find_runs(texts, scores, k=1)
>>> report = Leakage(texts, scores, runs, features(runs, texts), 1, True, 1, 0, 0, False, 1.0)
>>> cover = Cover(model="demo", corpus="demo.jsonl", unit="turn")
>>> "<title>Leakage report: demo</title>" in page(report, cover)
True
>>> summary(report, cover)["unique"]
'fewer than 5'
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from torch import nn

from confide import odometer
from confide.reports import pages
from confide.reports.bands import FEW, band, in_words
from crtlib import files, outputs
from crtlib.attacks import leakage
from crtlib.attacks.leakage import Leakage
from crtlib.checks import MachineError
from crtlib.files import Named
from crtlib.models import scoring
from crtlib.models.folder import load, tensors
from crtlib.screening.rates import KINDS
from crtlib.text import canaries, corpora, records
from crtlib.text.canaries import CANDIDATES, Template
from crtlib.text.folders import Shards, beside, in_order
from crtlib.text.records import Corpus, Dialogue
from crtlib.text.tokenizer import AnyTokenizer, bos, same_tokenizer

FILES = ("report.html", "report.json", "runs.parquet", "sequences.parquet")
"""What a report is made of: readable by all if it is redacted, else by its owner alone."""
Decode = Callable[[Sequence[int]], str]
ROWS = 2000
"""Sequences on the page, the most worrying ones; the Parquet files hold all of them."""
SHOWN = 5
"""Contexts of one sequence on the page."""
CONTEXT = 240
"""Characters of a context on the page: the nearest ones."""
REACHED = f"ratio_that_sequences_of_{FEW}_users_reach"
EDGES = {
    "tokens": (1, 2, 3, 5, 9, 17, 33, math.inf),
    "perplexity": (1, *(2.0**k for k in range(1, 11)), math.inf),
    "ratio": (0, *(2.0**k for k in range(-1, 21)), math.inf),
}
USERS = (1, 2, 3, 6, math.inf)
NO_RUN = "no run of this model is known here, so nobody checked that it has read this text"
OTHER_TEXT = "this model was trained on another text: only what both hold can it leak"

LOT = 2**14
"""Turns that are read together: with all that is made of them some fifty megabytes."""


@dataclass(frozen=True)
class Cover:
    """What stands at the head of a report: the names of model, corpus and public model, what one
    document is, the threshold of metric 2, and whether anything but lengths may be shown; a note on
    what the model has read, and how many reports of it there are, with this one."""

    model: str
    corpus: str
    unit: str
    public: str | None = None
    threshold: float | None = None
    lengths_only: bool = False
    note: str = ""
    report: int = 1

    def __post_init__(self) -> None:
        if self.threshold is not None and not self.threshold > 0:
            raise ValueError(f"threshold={self.threshold}: must be positive")
        if self.threshold is not None and self.public is None:
            raise ValueError("threshold: compares with a public model, give one")


# --------------------------------------------------------------------------- bins
def _bin_name(low: float, high: float, whole: bool) -> str:
    if math.isinf(high):
        return f"{low:,g} or more"
    if whole:
        return f"{low:,g}" if high == low + 1 else f"{low:,g} to {high - 1:,g}"
    return f"under {high:,g}" if low == 0 else f"{low:,g} to {high:,g}"


@dataclass(frozen=True)
class Bins:
    """Sequences or runs that are counted in bins: which are one user's, and whose each is.
    ``exact`` counts are for a page in clear."""

    alone: pd.Series
    owner: pd.Series
    exact: bool = False

    def row(self, by: str, group: str, inside: pd.Series) -> dict[str, Any]:
        """One bin. Of one with few users nothing is said but that it holds at most what all bins
        do: one person's many sequences are still that person's."""
        ends: list[str | int] = [by, group]
        many = self.owner[inside].nunique() >= FEW
        for some in (inside, inside & self.alone):
            count = int(some.sum())
            small = 0, band(len(inside))[1]
            ends += (count, count) if self.exact else band(count) if many else small
        return dict(zip(COLUMNS, ends, strict=True))

    def sizes(
        self, length: pd.Series, perplexity: pd.Series, ratio: pd.Series
    ) -> list[dict[str, Any]]:
        """Rows by each of the three."""
        values = zip(EDGES.items(), (length, perplexity, ratio), strict=True)
        return [row for (by, edges), some in values for row in self.rows(by, some, edges)]

    def rows(self, by: str, values: pd.Series, edges: Sequence[float]) -> list[dict[str, Any]]:
        """One grouping, from the first bin that is not small to the last."""
        whole, rows = by in ("tokens", "users"), []
        for low, high in itertools.pairwise(edges):
            inside = (values >= low) & ((values < high) | math.isinf(high))
            rows.append(self.row(by, _bin_name(low, high, whole), inside))
        large = [i for i, row in enumerate(rows) if row["at_least"]]
        return rows[large[0] : large[-1] + 1] if large else []


COLUMNS = ["by", "group", "at_least", "at_most", "one_user_at_least", "one_user_at_most"]


def _owners(report: Leakage) -> pd.Series:
    """Of each distinct sequence the first user of whom it was guessed."""
    first = [row[0][0] for row in report.sequences.contexts]
    return pd.Series([report.owner[i] for i in first], dtype=object)


def groups(report: Leakage, cover: Cover, *, exact: bool = False) -> pd.DataFrame:
    """The distinct sequences in bins: one row a bin of tokens, perplexity (the lowest of each),
    ratio, users who have it and kind of labelled secret that it holds whole.

    ``at_least`` and ``at_most`` bound the count, ``one_user_at_least`` and ``one_user_at_most``
    that of sequences which one user alone has. Where only lengths may be shown, users and kinds
    are left out.
    """
    table = report.sequences
    bins = Bins(table.users_in_d == 1, _owners(report), exact)
    lowest = pd.Series([min(row) for row in table.perplexities], dtype=float)
    rows = bins.sizes(table.length, lowest, table.ratio)
    if cover.lengths_only:
        return pd.DataFrame(rows, columns=COLUMNS)[COLUMNS[:4]]
    rows += bins.rows("users", table.users_in_d, USERS)
    known = {kind for d in report.documents for kind, *_ in d.secrets}
    shown = {kind: kind if kind in KINDS else "other" for kind in known}  # it may be any text
    for name in sorted(set(shown.values())):
        inside = pd.Series([name in map(shown.get, held) for held in table.kinds], dtype=bool)
        rows.append(bins.row("kind", name, inside))
    return pd.DataFrame(rows, columns=COLUMNS)


def grouped_runs(report: Leakage) -> pd.DataFrame:
    """The runs in bins, as :func:`groups` has the distinct sequences."""
    table = report.runs
    bins = Bins(pd.Series(False, index=table.index), table.user)
    rows = bins.sizes(table.length, table.perplexity, table.ratio)
    return pd.DataFrame(rows, columns=COLUMNS)[COLUMNS[:4]]


def ratio_reached(report: Leakage) -> float | None:
    """A power of two that unique sequences of at least ``FEW`` users reach with their ratio; None
    if fewer have one. The largest ratio itself would name its sequence."""
    ratio = report.sequences.ratio[report.sequences.users_in_d == 1].dropna()
    best = np.sort(ratio.groupby(_owners(report)[ratio.index]).max().to_numpy())
    if len(best) < FEW or best[-FEW] <= 0:
        return None
    return math.inf if math.isinf(best[-FEW]) else 2.0 ** math.floor(math.log2(best[-FEW]))


# --------------------------------------------------------------------------- the summary
def summary(report: Leakage, cover: Cover, *, exact: bool = False) -> dict:
    """What was read and the metrics: JSON-safe, and without any text of the corpus. Counts that
    depend on the text are bands, unless ``exact``."""
    numbers = leakage.metrics(report.sequences, cover.threshold)
    largest, (tokens, users) = numbers.pop("leakage_epsilon"), report.read
    counts: dict[str, Any] = {
        "tokens": tokens,
        "texts_beyond_the_context_read_in_windows": report.windowed,
        "runs": len(report.runs),
        "sequences": len(report.sequences),
        **numbers,
    }
    figures: dict[str, Any] = {**counts, "accuracy": report.accuracy}
    if exact:
        figures["leakage_epsilon"] = largest
    else:
        figures = {k: None if n is None else in_words(band(n)) for k, n in counts.items()}
        coarse = 2 if tokens >= 100 * FEW else 1
        figures["accuracy"] = round(report.accuracy, coarse) if users >= FEW else None
        figures[REACHED] = ratio_reached(report)
    return {
        **asdict(cover),
        "top_k": report.k,
        "min_length": report.min_length,
        "runs_at_the_end": "kept" if report.flush else "dropped, as Algorithm 1 is printed",
        "documents": len(report.documents),
        "users": users,
        "empty_texts_left_out": report.empty,
        **{name: safe(value) for name, value in figures.items()},
        "ratios_are": "ratios of perplexities, not a differential-privacy epsilon",
        "crtlib": metadata.version("crtlib"),
    }


def safe(value: Any) -> Any:
    """Four digits (never a long run of digits that could be taken for a secret); NaN is null."""
    if isinstance(value, list | tuple):
        return [safe(v) for v in value]
    if isinstance(value, float | np.floating):
        if math.isnan(value):
            return None
        return "infinite" if math.isinf(value) else float(f"{value:.4g}")
    return value.item() if isinstance(value, np.generic) else value


# --------------------------------------------------------------------------- in clear
def sequences(report: Leakage, decode: Decode) -> pd.DataFrame:
    """One row a distinct sequence in clear, the most worrying first, with its text, its first
    contexts, its users and every number of it."""
    every = report.sequences
    table = every.drop(columns=["tokens", "contexts", "kinds"])
    table.insert(0, "sequence", np.arange(1, len(table) + 1))
    table.insert(1, "text", [decode(w) for w in every.tokens])
    table["context_lengths"] = [[n for _, n in row] for row in every.contexts]
    table["kinds"] = [list(kinds) for kinds in every.kinds]
    table["contexts"] = [
        [decode(report.documents[i].tokens[:n]) for i, n in row[: 4 * SHOWN]]
        for row in every.contexts
    ]
    table["users"] = [list(dict.fromkeys(report.owner[i] for i, _ in row))
                      for row in every.contexts]  # fmt: skip
    return table


def runs(report: Leakage, decode: Decode) -> pd.DataFrame:
    """The long table in clear: one row a run, ``sequence`` as in :func:`sequences`."""
    place = {w: i + 1 for i, w in enumerate(report.sequences.tokens)}
    table = report.runs.drop(columns=["tokens", "kinds", "index"])
    table = table.rename(columns={"start": "context_length"})
    table.insert(0, "sequence", [place[w] for w in report.runs.tokens])
    table["text"] = [decode(w) for w in report.runs.tokens]
    return table


def as_records(table: pd.DataFrame) -> list[dict]:
    """Rows of :func:`sequences` for JSON; of contexts and their numbers the first few."""
    out = []
    for row in table.to_dict("records"):
        shortest = min(row["context_lengths"])
        # The pair of the largest ratio (without a public model, of the lowest perplexity), so that
        # the three numbers that stand side by side belong to one run.
        pairs = zip(row["perplexities"], row["public_perplexities"], strict=True)
        row["perplexity"], row["public"] = min(
            pairs, key=lambda p: p[0] if math.isnan(p[1]) else -p[1] / p[0]
        )
        for name in ("perplexities", "public_perplexities", "context_lengths", "users", "contexts"):
            row[name] = row[name][:SHOWN]
        row["contexts"] = [text[-CONTEXT:] for text in row["contexts"]]
        out.append({str(k): safe(v) for k, v in row.items()} | {"context": shortest})
    return out


# --------------------------------------------------------------------------- the page
def page(report: Leakage, cover: Cover, *, decode: Decode | None = None, rows: int = ROWS) -> str:
    """The whole page as text. With ``decode`` every sequence stands in it in clear; without, bins
    and rounded counts, and nothing that belongs to one sequence."""
    exact = decode is not None
    facts = summary(report, cover, exact=exact)
    values: dict[str, Any] = {
        "report": report,
        "cover": cover,
        "facts": facts,
        "ratio": facts["leakage_epsilon" if exact else REACHED],
        "few": FEW,
        "date": datetime.date.today().isoformat(),  # here alone: tables and JSON are compared
        "revealed": exact,
        "bins": groups(report, cover, exact=exact).to_dict("records"),
        "in_words": in_words,
    }
    if decode is not None:
        clear = sequences(report, decode)
        switches = {"compared": report.compared, "labelled": bool(clear.secret_tokens.any())}
        values |= {"rows": rows, "every": len(clear), "switches": pages.as_json(switches),
                   "data": pages.as_json(as_records(clear.head(rows)))}  # fmt: skip
    return pages.page("leakage.html.j2", **values)


# --------------------------------------------------------------------------- the folder
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
        content |= {"shown": min(rows, len(table)), "sequences": as_records(table.head(rows))}
    else:
        table, long = groups(report, cover), grouped_runs(report)
        content |= {"groups": table.to_dict("records")}
    for name, frame in (("sequences", table), ("runs", long)):
        frame.to_parquet(folder / f"{name}.parquet", index=False)
    data = json.dumps(content, indent=1, allow_nan=False) + "\n"
    (folder / "report.json").write_text(data, encoding="utf-8")
    file = folder / "report.html"
    file.write_text(page(report, cover, decode=decode, rows=rows), encoding="utf-8")
    return file


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
    (:mod:`crtlib.text.canaries`): by default what the folder records, else the tokenizer's chat
    template, else the one that the model reads most easily; the summary has ``warning`` where
    another one fits better. ``prefix_scan`` reads each text after every beginning.

    The corpus is read in lots: memory holds a lot, the runs, and of all else the ids of dialogues,
    the labels and some bytes a text; where the ``unit`` is a user, the text as well. An
    ``executor`` scores several batches of a lot at a time. What is scored is kept beside the report
    until all is done (:mod:`crtlib.text.folders`). A report of the same input and options is not
    made again; another folder is replaced with ``force`` only
    (:func:`crtlib.outputs.check_folder`), and with it alone a second report of a model on a text is
    written, unless it is in clear: the registry knows them
    (:meth:`confide.odometer.Registry.reported`), and each says which it is. The summary
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
    every = {"model": model, "public": public, "template": ours}
    folders = {name: path for name, path in every.items() if path is not None}
    dialogues, loaded = read_corpus(corpus), load(model)
    folder, key = Path(folder), outputs.key_in(outputs.beside_key(Path(folder)))
    text = corpora.corpus_hash(corpus)
    its = folders | {"corpus": outputs.keyed(outputs.content(corpus), key)}
    its |= {"text": outputs.keyed(corpora.read_hash(corpus), key)}  # in any form: for certify
    recipe: dict = {"command": "report", "options": options | how, "inputs": its}
    if outputs.up_to_date(folder, **recipe):
        return _made(folder)
    outputs.check_folder(folder, inputs=[corpus, *folders.values()], force=force)
    registry, numbers = odometer.Registry(odometer.home()), str(tensors(model))
    registry.register(text, corpora.units(corpus))
    told = hashlib.sha256(json.dumps([recipe["options"], text]).encode()).hexdigest()
    if not (reveal or force) and registry.reported(text, numbers, told):
        raise ValueError(
            f"--out: {model} was reported on this text before, with other options; several reports "
            "tell more than one: show one, or --force another, which says that it is one of several"
        )
    place = odometer.find(corpus, text)
    lines = [*(odometer.read(place) if place.is_dir() else []), *registry.entries()]
    read = {e.corpus for e in lines if e.tensors == numbers}  # what this model has read
    note = "" if text in read else OTHER_TEXT if read else NO_RUN
    other, its_tokenizer = (None, None) if public is None else load(public)
    leakage.check_models(*loaded, k=top_k)
    with (
        outputs.staged(folder, **recipe, public=() if reveal else FILES, force=force) as part,
        beside(folder, {"model": outputs.content(model)}) as kept,
    ):
        used, fit = _template(template, Path(model), dialogues, *loaded, cover.unit, device)
        _check_texts(dialogues, cover, used, loaded[1], its_tokenizer)
        leakage.check_models(*loaded, k=top_k, public=other)
        on = executor, kept, device
        reader = _Reader(
            loaded[1], cover.unit, used, top_k, _scorer(model, loaded[0], *on),
            None if public is None or other is None else _scorer(public, other, *on),
            Counter() if prefix_scan else None,
        )  # fmt: skip
        report = leakage.of_lots(*loaded, reader.lots(dialogues), **options, into=leakage.Texts())
        if reader.prefixes is not None:
            seen = reader.prefixes.items()
            rounded = {name: band(n)[0] for name, n in seen if n >= FEW}
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
    return _made(folder)


def _made(folder: Path) -> tuple[Path, dict]:
    """The page of a report that is there, and its summary."""
    held = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return folder / "report.html", held["summary"]


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

    tokenizer: AnyTokenizer
    unit: str
    used: Template
    k: int
    scorer: scoring.Scorer
    public: scoring.Scorer | None
    prefixes: Counter[str] | None

    def lots(self, corpus: Corpus) -> Iterator[leakage.Reading]:
        """The corpus in lots of whole dialogues, or of whole people."""
        if self.unit == "user":
            people = replace(self, unit="dialogue")
            yield from people.lots(records.people(corpus))
        else:
            yield from map(self._lot, _pieces(corpus))

    def _lot(self, some: Corpus) -> leakage.Reading:
        if self.prefixes is None:
            points, own = canaries.points(some, self.unit, self.used), self.used.name != "speaker"
            found = leakage.read(self.scorer, self.tokenizer, points, own_words=own)
        else:
            how: dict[str, Any] = {"unit": self.unit, "used": self.used, "k": self.k}
            found, best = leakage.scan(self.scorer, self.tokenizer, some, **how)
            self.prefixes.update(best)
        if self.public is None:
            return found
        first = bos(self.tokenizer)
        return found._replace(public=leakage.score(self.public, found.documents, bos=first))


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
        these = kept.of(hashlib.sha256(json.dumps([sha, texts]).encode()).hexdigest())
        parts = in_order(call, ([texts[i] for i in lot] for lot in lots), executor, these)
        found = {
            i: both
            for lot, (_, part) in zip(lots, parts, strict=True)
            for i, *both in zip(lot, *part, strict=True)
        }
        rows = [found.get(i, ((), ())) for i in range(len(texts))]  # of one token: no scores
        logprobs = [np.array(each, dtype=float) for each, _ in rows]
        return logprobs, [np.array(each, dtype=np.int64) for _, each in rows]

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
        points = canaries.points(some, unit, used)
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
        return canaries.by_name(name, tokenizer), {"template": {"used": name}}
    if name is None and getattr(tokenizer, "chat_template", None):
        name = "chat"
    used = None if name is None else canaries.by_name(name, tokenizer)
    first, facts = leakage.fit(network, tokenizer, corpus, unit=unit, used=used, device=device)
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
