"""Write the leakage report for people: one web page that needs no network, Parquet and JSON.

Text is left out unless it is requested, and so is every number that could replace it. The exact
perplexity of a sequence acts as a hash of the secret before it: whoever has the model can try ten
thousand candidates against it. Even its place and length reveal which digits were guessed. So a
redacted report holds only bins and bands of counts, and a report in clear is a private file.

People who may not see the text read a redacted report, so it must not reveal the text even to
somebody who has the model. Nothing about a single sequence leaves: neither its place, its length,
its perplexity nor its user. What leaves are counts over the whole report, in wide bins and as bands
with no number below five; and instead of the largest ratio, one that sequences of at least five
users reach.

>>> import numpy as np
>>> from crtlib.attacks.leakage import Document, TokenScores, sequence_features, find_runs
>>> texts = (Document("ann", "a", [0, 1, 2]),)
>>> scores = TokenScores([np.log([1, 0.5, 0.5])], [np.array([9, 0, 0])])
>>> runs = find_runs(texts, scores, k=1)
>>> report = LeakageReport(
...     texts, scores, runs, sequence_features(runs, texts), 1, True, 1, 0, 0, False, 1.0
... )
>>> cover = ReportCover(model="demo", corpus="demo.jsonl", unit="turn")
>>> "<title>Leakage report: demo</title>" in render_leakage_page(report, cover)
True
>>> summarise_report(report, cover)["unique"]
'fewer than 5'
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import itertools
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from torch import nn

from confide import attack_ledger, odometer, text_registry
from confide.reports import html
from confide.reports.bands import LEAST_REPORTED_COUNT, band_in_words, count_band
from crtlib import files, outputs
from crtlib.attacks import leakage
from crtlib.attacks.leakage import LeakageReport
from crtlib.checks import MachineError
from crtlib.files import StrPath
from crtlib.models import scoring
from crtlib.models.model_folder import load_model
from crtlib.models.tensor_files import hash_tensors
from crtlib.screening.rates import SHOWN_KINDS
from crtlib.text import corpora, data_points, templates
from crtlib.text.ordered_map import map_in_order
from crtlib.text.records import Corpus, Dialogue
from crtlib.text.shards import Shards, resume_shards
from crtlib.text.templates import CANDIDATE_TEMPLATES, Template
from crtlib.text.tokenizer import AnyTokenizer, bos_id_of, is_same_tokenizer

REPORT_FILES = ("report.html", "report.json", "runs.parquet", "sequences.parquet")
"""The files of a report: readable by all if it is redacted, else by its owner only."""
TokenDecoder = Callable[[Sequence[int]], str]
MAX_PAGE_ROWS = 2000
"""The most sequences on the page, the most worrying first; the Parquet files hold all of them."""
MAX_SHOWN_CONTEXTS = 5
"""The most contexts of one sequence on the page."""
CONTEXT_CHARACTERS = 240
"""The most characters of a context on the page: those nearest to the sequence."""
REACHED_RATIO_FIELD = f"ratio_that_sequences_of_{LEAST_REPORTED_COUNT}_users_reach"
BIN_EDGES = {
    "tokens": (1, 2, 3, 5, 9, 17, 33, math.inf),
    "perplexity": (1, *(2.0**k for k in range(1, 11)), math.inf),
    "ratio": (0, *(2.0**k for k in range(-1, 21)), math.inf),
}
USER_BIN_EDGES = (1, 2, 3, 6, math.inf)
NO_RUN_NOTE = "no run of this model is known here, so nobody checked that it has read this text"
OTHER_TEXT_NOTE = "this model was trained on another text: it can leak only what both texts contain"

TURNS_PER_LOT = 2**14
"""How many turns are read together; with all that is made from them, some fifty megabytes."""

BIN_COLUMNS = ["by", "group", "at_least", "at_most", "one_user_at_least", "one_user_at_most"]
TokenLists = Sequence[Sequence[int]]


@dataclass(frozen=True)
class ReportCover:
    """The head of a report: the names of the model, the corpus and the public model, what one
    document is, the threshold of metric 2, whether only lengths may be shown, a note on what the
    model has read, and the number of this report among those on the model."""

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
            raise ValueError("threshold: needs a public model to compare with; give one")


# --------------------------------------------------------------------------- bins
def _bin_name(low: float, high: float, whole: bool) -> str:
    if math.isinf(high):
        return f"{low:,g} or more"
    if whole:
        return f"{low:,g}" if high == low + 1 else f"{low:,g} to {high - 1:,g}"
    return f"under {high:,g}" if low == 0 else f"{low:,g} to {high:,g}"


@dataclass(frozen=True)
class BinnedCounts:
    """Sequences or runs to be counted in bins. ``alone`` tells for each whether only one user has
    it, ``owner`` whose it is. ``exact`` counts are for a page in clear."""

    alone: pd.Series = field(repr=False)
    owner: pd.Series = field(repr=False)
    exact: bool = False

    def row(self, by: str, group: str, inside: pd.Series) -> dict[str, Any]:
        """The row for one bin. A bin with few users says only that it holds at most as many as all
        bins together: even many sequences may all be one person's."""
        ends: list[str | int] = [by, group]
        many = self.owner[inside].nunique() >= LEAST_REPORTED_COUNT
        for some in (inside, inside & self.alone):
            count = int(some.sum())
            small = 0, count_band(len(inside))[1]
            ends += (count, count) if self.exact else count_band(count) if many else small
        return dict(zip(BIN_COLUMNS, ends, strict=True))

    def sizes(
        self, length: pd.Series, perplexity: pd.Series, ratio: pd.Series
    ) -> list[dict[str, Any]]:
        """The rows of the groupings by length, by perplexity and by ratio."""
        values = zip(BIN_EDGES.items(), (length, perplexity, ratio), strict=True)
        return [row for (by, edges), some in values for row in self.rows(by, some, edges)]

    def rows(self, by: str, values: pd.Series, edges: Sequence[float]) -> list[dict[str, Any]]:
        """The rows of one grouping, from the first bin that is not small to the last such bin."""
        whole, rows = by in ("tokens", "users"), []
        for low, high in itertools.pairwise(edges):
            inside = (values >= low) & ((values < high) | math.isinf(high))
            rows.append(self.row(by, _bin_name(low, high, whole), inside))
        large = [i for i, row in enumerate(rows) if row["at_least"]]
        return rows[large[0] : large[-1] + 1] if large else []


def _first_owners(report: LeakageReport) -> pd.Series:
    """For each distinct sequence, the first user in whose text it was guessed."""
    first = [row[0][0] for row in report.sequences.contexts]
    return pd.Series([report.owner[i] for i in first], dtype=object)


def group_sequences(
    report: LeakageReport, cover: ReportCover, *, exact: bool = False
) -> pd.DataFrame:
    """The distinct sequences in bins, with a row for each bin of tokens, of perplexity (the lowest
    of each sequence), of ratio, of users who have it, and of kinds of labelled secrets that it
    completely contains.

    ``at_least`` and ``at_most`` bound the count of sequences; ``one_user_at_least`` and
    ``one_user_at_most`` bound the count of those that only one user has. If only lengths may be
    shown, users and kinds are left out.
    """
    table = report.sequences
    bins = BinnedCounts(table.users_in_d == 1, _first_owners(report), exact)
    lowest = pd.Series([min(row) for row in table.perplexities], dtype=float)
    rows = bins.sizes(table.length, lowest, table.ratio)
    if cover.lengths_only:
        return pd.DataFrame(rows, columns=BIN_COLUMNS)[BIN_COLUMNS[:4]]
    rows += bins.rows("users", table.users_in_d, USER_BIN_EDGES)
    known = {kind for d in report.documents for kind, *_ in d.secrets}
    shown = {kind: kind if kind in SHOWN_KINDS else "other" for kind in known}  # or any text
    for name in sorted(set(shown.values())):
        inside = pd.Series([name in map(shown.get, held) for held in table.kinds], dtype=bool)
        rows.append(bins.row("kind", name, inside))
    return pd.DataFrame(rows, columns=BIN_COLUMNS)


def group_runs(report: LeakageReport) -> pd.DataFrame:
    """The runs in bins, like the distinct sequences in :func:`group_sequences`."""
    table = report.runs
    bins = BinnedCounts(pd.Series(False, index=table.index), table.user)
    rows = bins.sizes(table.length, table.perplexity, table.ratio)
    return pd.DataFrame(rows, columns=BIN_COLUMNS)[BIN_COLUMNS[:4]]


def ratio_reached(report: LeakageReport) -> float | None:
    """The largest power of two that the ratios of unique sequences of at least
    ``LEAST_REPORTED_COUNT`` users reach; None if fewer users have one. The largest ratio itself
    would identify its sequence."""
    ratio = report.sequences.ratio[report.sequences.users_in_d == 1].dropna()
    best = np.sort(ratio.groupby(_first_owners(report)[ratio.index]).max().to_numpy())
    if len(best) < LEAST_REPORTED_COUNT or best[-LEAST_REPORTED_COUNT] <= 0:
        return None
    return (
        math.inf
        if math.isinf(best[-LEAST_REPORTED_COUNT])
        else 2.0 ** math.floor(math.log2(best[-LEAST_REPORTED_COUNT]))
    )


# --------------------------------------------------------------------------- the summary
def summarise_report(report: LeakageReport, cover: ReportCover, *, exact: bool = False) -> dict:
    """What was read and the metrics, as JSON values without any text from the corpus. Counts that
    depend on the text are bands, unless ``exact``."""
    numbers = leakage.leakage_metrics(report.sequences, cover.threshold)
    largest = numbers.pop("leakage_epsilon")
    tokens, users = report.read_counts
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
        figures = {
            k: None if n is None else band_in_words(count_band(n)) for k, n in counts.items()
        }
        coarse = 2 if tokens >= 100 * LEAST_REPORTED_COUNT else 1
        figures["accuracy"] = (
            round(report.accuracy, coarse) if users >= LEAST_REPORTED_COUNT else None
        )
        figures[REACHED_RATIO_FIELD] = ratio_reached(report)
    return {
        **asdict(cover),
        "top_k": report.k,
        "min_length": report.min_length,
        "runs_at_the_end": "kept" if report.flush else "dropped, as Algorithm 1 is printed",
        "documents": len(report.documents),
        "users": users,
        "empty_texts_left_out": report.empty,
        **{name: round_for_json(value) for name, value in figures.items()},
        "ratios_are": "ratios of perplexities, not a differential-privacy epsilon",
        "crtlib": metadata.version("crtlib"),
    }


def round_for_json(value: Any) -> Any:
    """Round to four digits, so that no long run of digits looks like a secret; NaN becomes null."""
    if isinstance(value, list | tuple):
        return [round_for_json(v) for v in value]
    if isinstance(value, float | np.floating):
        if math.isnan(value):
            return None
        return "infinite" if math.isinf(value) else float(f"{value:.4g}")
    return value.item() if isinstance(value, np.generic) else value


# --------------------------------------------------------------------------- in clear
def sequence_table(report: LeakageReport, decode: TokenDecoder) -> pd.DataFrame:
    """The distinct sequences in clear, one row each, the most worrying first, with the text, the
    first contexts, the users and all numbers of each."""
    every = report.sequences
    table = every.drop(columns=["tokens", "contexts", "kinds"])
    table.insert(0, "sequence", np.arange(1, len(table) + 1))
    table.insert(1, "text", [decode(w) for w in every.tokens])
    table["context_lengths"] = [[n for _, n in row] for row in every.contexts]
    table["kinds"] = [list(kinds) for kinds in every.kinds]
    table["contexts"] = [
        [decode(report.documents[i].tokens[:n]) for i, n in row[: 4 * MAX_SHOWN_CONTEXTS]]
        for row in every.contexts
    ]
    table["users"] = [list(dict.fromkeys(report.owner[i] for i, _ in row))
                      for row in every.contexts]  # fmt: skip
    return table


def run_table(report: LeakageReport, decode: TokenDecoder) -> pd.DataFrame:
    """The long table in clear, one row for each run; ``sequence`` is as in
    :func:`sequence_table`."""
    place = {w: i + 1 for i, w in enumerate(report.sequences.tokens)}
    table = report.runs.drop(columns=["tokens", "kinds", "index"])
    table = table.rename(columns={"start": "context_length"})
    table.insert(0, "sequence", [place[w] for w in report.runs.tokens])
    table["text"] = [decode(w) for w in report.runs.tokens]
    return table


def sequence_records(table: pd.DataFrame) -> list[dict]:
    """The rows of :func:`sequence_table` for JSON, with only the first few contexts and their
    numbers."""
    out = []
    for row in table.to_dict("records"):
        shortest = min(row["context_lengths"])
        # The pair with the largest ratio (without a public model, the lowest perplexity), so that
        # the three numbers side by side belong to one run.
        pairs = zip(row["perplexities"], row["public_perplexities"], strict=True)
        row["perplexity"], row["public"] = min(
            pairs, key=lambda p: p[0] if math.isnan(p[1]) else -p[1] / p[0]
        )
        for name in ("perplexities", "public_perplexities", "context_lengths", "users", "contexts"):
            row[name] = row[name][:MAX_SHOWN_CONTEXTS]
        row["contexts"] = [text[-CONTEXT_CHARACTERS:] for text in row["contexts"]]
        out.append({str(k): round_for_json(v) for k, v in row.items()} | {"context": shortest})
    return out


# --------------------------------------------------------------------------- the page
def render_leakage_page(
    report: LeakageReport,
    cover: ReportCover,
    *,
    decode: TokenDecoder | None = None,
    rows: int = MAX_PAGE_ROWS,
) -> str:
    """The whole page as text. With ``decode`` it shows sequences in clear; without, only bins and
    bands of counts, and nothing about any single sequence."""
    exact = decode is not None
    facts = summarise_report(report, cover, exact=exact)
    values: dict[str, Any] = {
        "report": report,
        "cover": cover,
        "facts": facts,
        "ratio": facts["leakage_epsilon" if exact else REACHED_RATIO_FIELD],
        "few": LEAST_REPORTED_COUNT,
        "date": datetime.date.today().isoformat(),  # only here, as tables and JSON are compared
        "revealed": exact,
        "bins": group_sequences(report, cover, exact=exact).to_dict("records"),
        "in_words": band_in_words,
    }
    if decode is not None:
        clear = sequence_table(report, decode)
        switches = {"compared": report.compared, "labelled": bool(clear.secret_tokens.any())}
        values |= {"rows": rows, "every": len(clear), "switches": html.embed_json(switches),
                   "data": html.embed_json(sequence_records(clear.head(rows)))}  # fmt: skip
    return html.render_template("leakage.html.j2", **values)


# --------------------------------------------------------------------------- the folder
class _DialoguesOnDisk(Sequence[Dialogue]):
    """The dialogues of a corpus, read from its files each time they are needed."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, 0
        for dialogue in self:
            if not dialogue.user:
                raise ValueError(leakage.NO_USER_MESSAGE)
            self.size += 1

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Dialogue]:
        return corpora.read_dialogues(self.path)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


def read_corpus(path: StrPath) -> Corpus:
    """A corpus that is read from disk each time, as it may not fit into memory. If users are
    missing, the error says what to do about it."""
    try:
        return Corpus(Path(path).name, _DialoguesOnDisk(Path(path)))
    except ValueError as error:
        if ": user: " in str(error):
            raise ValueError(f"{path}: {leakage.NO_USER_MESSAGE}") from None
        raise


def write_report_files(
    report: LeakageReport,
    folder: StrPath,
    cover: ReportCover,
    *,
    decode: TokenDecoder | None = None,
    rows: int = MAX_PAGE_ROWS,
    facts: Mapping[str, Any] | None = None,
) -> Path:
    """Write ``report.html``, ``report.json``, ``runs.parquet`` and ``sequences.parquet``. Returns
    the path of the page.

    ``facts`` are added to the summary in JSON. With ``decode`` (the tokenizer's) all four files
    contain text in clear, unless only lengths may be shown; without it they contain no text and no
    number about a single sequence.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    decode = None if cover.lengths_only else decode
    content: dict = {"summary": summarise_report(report, cover, exact=decode is not None)}
    content["summary"] |= facts or {}
    if decode:
        table, long = sequence_table(report, decode), run_table(report, decode)
        content |= {"shown": min(rows, len(table)), "sequences": sequence_records(table.head(rows))}
    else:
        table, long = group_sequences(report, cover), group_runs(report)
        content |= {"groups": table.to_dict("records")}
    for name, frame in (("sequences", table), ("runs", long)):
        frame.to_parquet(folder / f"{name}.parquet", index=False)
    data = json.dumps(content, indent=1, allow_nan=False) + "\n"
    (folder / "report.json").write_text(data, encoding="utf-8")
    file = folder / "report.html"
    file.write_text(render_leakage_page(report, cover, decode=decode, rows=rows), encoding="utf-8")
    return file


def make_leakage_report(
    model: StrPath,
    corpus: StrPath,
    folder: StrPath,
    *,
    top_k: int = 3,
    public: StrPath | None = None,
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
    """Make a leakage report from the folder of a model and a corpus, and write it.

    The corpus is read in lots. Memory holds one lot, the runs, and for everything else the ids of
    dialogues, the labels and some bytes per text; if the ``unit`` is a user, also the text. Scores
    are kept beside the report until everything is done (:mod:`crtlib.text.shards`). A report with
    the same input and options is not made again.

    Args:
        model: The folder of a model and its tokenizer.
        corpus: The text that the model may have read.
        folder: The folder of the report.
        top_k: How many tokens an attacker tries at each place; 1 is the tab attack.
        public: A model that has not read the text, which shows what is common anyway.
        unit: What one document is; None: what the model was trained on, if its folder records that
            (``experiment.json``), else a turn.
        reveal: Write the text in clear.
        lengths_only: Write only lengths and counts, no users and no labels.
        min_length: The number of tokens in the shortest run that is listed.
        threshold: The ratio t of metric 2.
        verbatim: Leave out runs at the end of a text, as Algorithm 1 does as printed.
        template: How turns became text (:mod:`crtlib.text.templates`); None: what the folder
            records, else the tokenizer's chat template, else the one with which the model predicts
            the text best. The summary has ``warning`` if another one fits better.
        prefix_scan: Read each text after every candidate beginning.
        device: Where the model runs.
        force: Replace the contents of ``folder``, and permit a second report.
        executor: Scores several batches of a lot at a time.

    Returns:
        The page and the summary, which has ``warning`` if the model was trained in known runs but
        none of them read this text.

    Raises:
        ValueError: For bad input, before anything is scored or written.
        MachineError: If the corpus has changed in the meantime.

    Guarantee:
        Several redacted reports on one model and one text reveal more than one does, so a second is
        written only with ``force``, and states its number
        (:meth:`confide.text_registry.Registry.count_other_reports`). Test:
        ``tests/reports/test_leakage.py::test_a_second_report_of_a_model_is_forced_and_says_so``.
    """
    _refuse_both(reveal=reveal, lengths_only=lengths_only)
    _refuse_both(prefix_scan=prefix_scan, public=public is not None)
    unit = unit or (_read_recorded_study(Path(model)) or {}).get("unit") or "turn"
    names = (
        _folder_name(model),
        Path(corpus).name,
        unit,
        None if public is None else _folder_name(public),
    )
    cover = ReportCover(*names, threshold=threshold, lengths_only=lengths_only)
    options: dict[str, Any] = {"k": top_k, "min_length": min_length, "flush": not verbatim}
    ours = template if template and Path(template).is_file() else None
    shown = Path(ours).name if ours else template  # no path on this machine
    of_page = {"reveal": reveal, "template": shown, "prefix_scan": prefix_scan, **asdict(cover)}
    every = {"model": model, "public": public, "template": ours}
    folders = {name: path for name, path in every.items() if path is not None}
    dialogues, loaded = read_corpus(corpus), load_model(model)
    beside = outputs.key_path_beside(Path(folder))
    if beside.is_file():
        files.check_private_key(beside)
    folder, key = Path(folder), outputs.load_or_make_key(beside)
    text = corpora.hash_corpus(corpus)
    its = folders | {"corpus": outputs.with_keyed_hashes(outputs.hash_tree(corpus), key)}
    its |= {
        "text": outputs.with_keyed_hashes(corpora.hash_text_as_read(corpus), key)
    }  # whatever its format, for certify
    recipe: dict = {"command": "report", "options": options | of_page, "inputs": its}
    if outputs.is_up_to_date(folder, **recipe):
        return _read_report(folder)
    outputs.check_output_folder(folder, inputs=[corpus, *folders.values()], force=force)
    registry, numbers = (
        text_registry.Registry(text_registry.registry_folder()),
        str(hash_tensors(model)),
    )
    text_registry.register_text(corpus)
    told = hashlib.sha256(json.dumps([recipe["options"], text]).encode()).hexdigest()
    if not (reveal or force) and registry.count_other_reports(text, numbers, told):
        raise ValueError(
            f"--out: {model} was reported on this text before, with other options; several reports "
            "reveal more than one does: show one, or --force another, which states that it is one "
            "of several"
        )
    meters = odometer.find_odometers(corpus, text)
    lines = [*(e for place in meters for e in odometer.read_entries(place)), *registry.entries()]
    read = {e.corpus for e in lines if e.tensors == numbers}  # the texts that this model has read
    note = "" if text in read else OTHER_TEXT_NOTE if read else NO_RUN_NOTE
    meter = attack_ledger.find_ledgers(None, meters[0] if meters else None)
    attack_ledger.refuse_damaged_ledgers(meter)
    other, its_tokenizer = (None, None) if public is None else load_model(public)
    leakage.check_leakage_models(*loaded, k=top_k)
    with (
        _key_beside(beside, key) as write_key,
        outputs.staged_folder(
            folder,
            **recipe,
            public=() if reveal else REPORT_FILES,
            force=force,
            seal=write_key,
        ) as part,
        resume_shards(folder, {"model": outputs.hash_tree(model)}) as kept,
    ):
        used, fit = _choose_template(template, Path(model), dialogues, *loaded, cover.unit, device)
        _check_texts(dialogues, cover, used, loaded[1], its_tokenizer)
        leakage.check_leakage_models(*loaded, k=top_k, public=other)
        on = executor, kept, device
        reader = _LotReader(
            loaded[1], cover.unit, used, top_k, _scorer_of_folder(model, loaded[0], *on),
            None if public is None or other is None else _scorer_of_folder(public, other, *on),
            Counter() if prefix_scan else None,
        )  # fmt: skip
        report = leakage.measure_leakage_of_chunks(
            *loaded, reader.lots(dialogues), **options, into=leakage.DocumentStore()
        )
        if reader.prefixes is not None:
            seen = reader.prefixes.items()
            rounded = {name: count_band(n)[0] for name, n in seen if n >= LEAST_REPORTED_COUNT}
            fit |= {"prefixes": dict(seen) if reveal else rounded}
        decode = cast(TokenDecoder, loaded[1].decode) if reveal else None
        warnings = [fit["warning"]] if "warning" in fit else []
        if read and note:
            warnings.insert(0, note)
        if warnings:
            fit["warning"] = "; ".join(warnings)
        others = 0 if reveal else registry.count_other_reports(text, numbers, told, enter=True)
        cover = replace(cover, note=note, report=others + 1)
        least = float(count_band(len(report.runs))[0])
        name = attack_ledger.name_report(recipe["options"], text)
        attack_ledger.enter_attack(meter, "report", numbers, name, least)
        write_report_files(report, part, cover, decode=decode, facts=fit)
        if outputs.with_keyed_hashes(outputs.hash_tree(corpus), key) != its["corpus"]:
            raise MachineError(f"{corpus}: changed while it was read; make the report again")
    return _read_report(folder)


@contextlib.contextmanager
def _key_beside(path: Path, key: bytes) -> Iterator[Callable[[Path], None]]:
    """A function that writes the key of a report; it is called last, just before the report takes
    its place, so no report is without its key. A new key is removed again if the report fails."""
    new = False

    def write_key(_: Path) -> None:
        nonlocal new
        new = not path.exists()
        with files.replace_atomically(path, mode=0o600) as file:
            file.write_bytes(key)

    try:
        yield write_key
    except BaseException:
        if new:
            path.unlink(missing_ok=True)
        raise


def _read_report(folder: Path) -> tuple[Path, dict]:
    """The page of an existing report, and its summary."""
    held = json.loads(files.read_text(folder / "report.json"))
    return folder / "report.html", held["summary"]


def _split_into_lots(corpus: Corpus) -> Iterator[Corpus]:
    """Split a corpus into lots of whole dialogues with about ``TURNS_PER_LOT`` turns each."""
    held: list[Dialogue] = []
    turns = 0
    for dialogue in corpus.dialogues:
        held.append(dialogue)
        turns += len(dialogue.turns)
        if turns >= TURNS_PER_LOT:
            yield replace(corpus, dialogues=tuple(held))
            held, turns = [], 0
    if held:
        yield replace(corpus, dialogues=tuple(held))


@dataclass(frozen=True)
class _LotReader:
    """Reads a corpus lot by lot with a tokenizer, as documents of a unit, and scores its texts,
    also with the ``public`` model if there is one. ``prefixes`` counts how often each beginning was
    the best, if all are tried."""

    tokenizer: AnyTokenizer
    unit: str
    used: Template
    k: int
    scorer: scoring.SequenceScorer
    public: scoring.SequenceScorer | None
    prefixes: Counter[str] | None = field(repr=False)

    def lots(self, corpus: Corpus) -> Iterator[leakage.ScoredPoints]:
        """The corpus in lots of whole dialogues, or of whole people."""
        if self.unit == "user":
            people = replace(self, unit="dialogue")
            yield from people.lots(data_points.merge_by_user(corpus))
        else:
            yield from map(self._lot, _split_into_lots(corpus))

    def _lot(self, some: Corpus) -> leakage.ScoredPoints:
        if self.prefixes is None:
            points, own = (
                templates.render_points(some, self.unit, self.used),
                self.used.name != "speaker",
            )
            found = leakage.score_points(self.scorer, self.tokenizer, points, own_words=own)
        else:
            found, best = leakage.scan_beginnings(
                self.scorer, self.tokenizer, some, unit=self.unit, used=self.used, k=self.k
            )
            self.prefixes.update(best)
        if self.public is None:
            return found
        first = bos_id_of(self.tokenizer)
        return found._replace(
            public=leakage.score_documents(self.public, found.documents, bos=first)
        )


def _scorer_of_folder(
    folder: StrPath,
    network: nn.Module,
    executor: Executor | None,
    kept: Shards,
    device: str,
) -> scoring.SequenceScorer:
    """A function that scores texts with the model in ``folder``: in this process, or on an executor
    whose workers load it from that path. Batches are formed as in one process, so that the bits are
    the same. A batch that ``kept`` holds is not scored again."""
    where, sha = str(Path(folder).absolute()), outputs.hash_tree(folder)
    call = (
        partial(_score_in_worker, where, sha)
        if executor
        else partial(_score_texts, network, device)
    )

    def score(texts: TokenLists) -> tuple[list[Any], list[Any]]:
        if not texts:
            return [], []
        lots = scoring.group_by_length(texts)
        these = kept.of(hashlib.sha256(json.dumps([sha, texts]).encode()).hexdigest())
        parts = map_in_order(call, ([texts[i] for i in lot] for lot in lots), executor, these)
        found = {
            i: both
            for lot, (_, part) in zip(lots, parts, strict=True)
            for i, *both in zip(lot, *part, strict=True)
        }
        rows = [found.get(i, ((), ())) for i in range(len(texts))]  # one token: no scores
        logprobs = [np.array(each, dtype=float) for each, _ in rows]
        return logprobs, [np.array(each, dtype=np.int64) for _, each in rows]

    return score


@lru_cache(maxsize=2)  # the model and a public one
def _load_unchanged_model(where: str, sha: str) -> nn.Module:
    """The model at a path, loaded once by each worker; it must still have this hash."""
    if outputs.hash_tree(where) != sha:
        raise MachineError(f"{where}: has changed, or is another model where a worker reads it")
    return load_model(where)[0]


def _score_in_worker(where: str, sha: str, texts: TokenLists) -> list[Any]:
    return _score_texts(_load_unchanged_model(where, sha), None, texts)


def _score_texts(network: nn.Module, device: str | None, texts: TokenLists) -> list[Any]:
    """Log-probabilities and ranks as JSON values, which preserve every bit of a float."""
    both = scoring.token_scores(network, texts, device=device)
    return [[x.tolist() for x in values] for values in both]


def _refuse_both(**given: bool) -> None:
    """Refuse options that contradict each other."""
    if all(given.values()):
        raise ValueError(f"{', '.join(given)}: contradict each other; give one of the two")


def _folder_name(folder: StrPath) -> str:
    return os.path.basename(os.path.abspath(folder))


def _check_texts(
    corpus: Corpus,
    cover: ReportCover,
    used: Template,
    tokenizer: AnyTokenizer,
    public: AnyTokenizer | None,
) -> None:
    """Render every text once before scoring begins, which may take hours, since a template may
    refuse any of them. The tokenizer of a ``public`` model must read them like the model's own."""
    unit = "dialogue" if cover.unit == "user" else cover.unit
    for some in _split_into_lots(corpus):
        points = templates.render_points(some, unit, used)
        if public is not None:
            if not is_same_tokenizer(tokenizer, public, [p.text for p in points[:1000]]):
                raise ValueError(f"public={cover.public!r}: must read the tokenizer of the model")
            public = None
        if used.name == "speaker":  # refuses none
            break


def _choose_template(
    name: str | None,
    folder: Path,
    corpus: Corpus,
    network: nn.Module,
    tokenizer: AnyTokenizer,
    unit: str,
    device: str,
) -> tuple[Template, dict[str, Any]]:
    """The template to read with, and what was found about it: ``template`` and ``warning``.

    If a model records its own template, no others are tried.
    """
    recorded = _read_recorded_study(folder)
    if name is None and recorded is not None:
        name = recorded.get("template", "speaker")
        name = "chat" if name not in CANDIDATE_TEMPLATES else name
        return templates.template_by_name(name, tokenizer), {"template": {"used": name}}
    if name is None and getattr(tokenizer, "chat_template", None):
        name = "chat"
    used = None if name is None else templates.template_by_name(name, tokenizer)
    first, facts = leakage.choose_template(
        network, tokenizer, corpus, unit=unit, used=used, device=device
    )
    return used or CANDIDATE_TEMPLATES[first], facts


def _read_recorded_study(model: Path) -> dict[str, Any] | None:
    """The settings of the study that trained a model, if its folder records them."""
    recorded = model / "experiment.json"
    if not recorded.is_file():
        return None
    try:
        return dict(json.loads(files.read_text(recorded)))
    except (ValueError, TypeError, RecursionError):
        raise ValueError(f"{recorded}: is not the record of a training") from None
