"""The tables and the summary of a leakage report: redacted, or in clear.

A redacted report must not reveal the text even to somebody who has the model. The exact perplexity
of a sequence acts as a hash of the secret before it: whoever has the model can try ten thousand
candidates against it. Even its place and length reveal which digits were guessed. So nothing about
a single sequence leaves: neither its place, its length, its perplexity nor its user. What leaves
are counts over the whole report, in wide bins and as bands with no number below five; and instead
of the largest ratio, one that sequences of at least five users reach.

>>> import numpy as np
>>> from crtlib.attacks.leakage import Document, TokenScores, sequence_features, find_runs
>>> texts = (Document("ann", "a", [0, 1, 2]),)
>>> scores = TokenScores([np.log([1, 0.5, 0.5])], [np.array([9, 0, 0])])
>>> runs = find_runs(texts, scores, k=1)
>>> report = LeakageReport(
...     texts, scores, runs, sequence_features(runs, texts), 1, True, 1, 0, 0, False, 1.0
... )
>>> cover = ReportCover(model="demo", corpus="demo.jsonl", unit="turn")
>>> summarise_report(report, cover)["unique"]
'fewer than 5'
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any

import numpy as np
import pandas as pd

from confide.reports.bands import LEAST_REPORTED_COUNT, band_in_words, count_band
from crtlib.attacks import leakage
from crtlib.attacks.leakage import LeakageReport
from crtlib.screening.rates import SHOWN_KINDS

TokenDecoder = Callable[[Sequence[int]], str]
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
BIN_COLUMNS = ["by", "group", "at_least", "at_most", "one_user_at_least", "one_user_at_most"]


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


def _bin_name(low: float, high: float, is_whole: bool) -> str:
    if math.isinf(high):
        return f"{low:,g} or more"
    if is_whole:
        return f"{low:,g}" if high == low + 1 else f"{low:,g} to {high - 1:,g}"
    return f"under {high:,g}" if low == 0 else f"{low:,g} to {high:,g}"


@dataclass(frozen=True)
class BinnedCounts:
    """Sequences or runs to be counted in bins. ``alone`` tells for each whether only one user has
    it, ``owner`` whose it is. ``exact`` counts are for a page in clear."""

    alone: pd.Series = field(repr=False)
    owner: pd.Series = field(repr=False)
    exact: bool = False

    def row(self, grouping: str, group: str, in_bin: pd.Series) -> dict[str, Any]:
        """The row for one bin. A bin with few users says only that it holds at most as many as all
        bins together: even many sequences may all be one person's."""
        cells: list[str | int] = [grouping, group]
        has_many_users = self.owner[in_bin].nunique() >= LEAST_REPORTED_COUNT
        for selected in (in_bin, in_bin & self.alone):
            count = int(selected.sum())
            small = 0, count_band(len(in_bin))[1]
            if self.exact:
                cells += [count, count]
            else:
                cells += count_band(count) if has_many_users else small
        return dict(zip(BIN_COLUMNS, cells, strict=True))

    def sizes(
        self, length: pd.Series, perplexity: pd.Series, ratio: pd.Series
    ) -> list[dict[str, Any]]:
        """The rows of the groupings by length, by perplexity and by ratio."""
        values = zip(BIN_EDGES.items(), (length, perplexity, ratio), strict=True)
        rows = []
        for (grouping, edges), column in values:
            rows += self.rows(grouping, column, edges)
        return rows

    def rows(
        self, grouping: str, values: pd.Series, edges: Sequence[float]
    ) -> list[dict[str, Any]]:
        """The rows of one grouping, from the first bin that is not small to the last such bin."""
        is_whole, rows = grouping in ("tokens", "users"), []
        for low, high in itertools.pairwise(edges):
            in_bin = (values >= low) & ((values < high) | math.isinf(high))
            rows.append(self.row(grouping, _bin_name(low, high, is_whole), in_bin))
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
    kinds = {kind for d in report.documents for kind, *_ in d.secrets}
    shown_names = {kind: kind if kind in SHOWN_KINDS else "other" for kind in kinds}  # or any text
    for name in sorted(set(shown_names.values())):
        has_name = [name in map(shown_names.get, row_kinds) for row_kinds in table.kinds]
        has_kind = pd.Series(has_name, dtype=bool)
        rows.append(bins.row("kind", name, has_kind))
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
    largest_ratios = np.sort(ratio.groupby(_first_owners(report)[ratio.index]).max().to_numpy())
    if len(largest_ratios) < LEAST_REPORTED_COUNT or largest_ratios[-LEAST_REPORTED_COUNT] <= 0:
        return None
    reached = largest_ratios[-LEAST_REPORTED_COUNT]
    return math.inf if math.isinf(reached) else 2.0 ** math.floor(math.log2(reached))


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


def sequence_table(report: LeakageReport, decode: TokenDecoder) -> pd.DataFrame:
    """The distinct sequences in clear, one row each, the most worrying first, with the text, the
    first contexts, the users and all numbers of each."""
    sequences = report.sequences
    table = sequences.drop(columns=["tokens", "contexts", "kinds"])
    table.insert(0, "sequence", np.arange(1, len(table) + 1))
    table.insert(1, "text", [decode(w) for w in sequences.tokens])
    table["context_lengths"] = [[n for _, n in row] for row in sequences.contexts]
    table["kinds"] = [list(kinds) for kinds in sequences.kinds]
    table["contexts"] = [
        [decode(report.documents[i].tokens[:n]) for i, n in row[: 4 * MAX_SHOWN_CONTEXTS]]
        for row in sequences.contexts
    ]
    table["users"] = [list(dict.fromkeys(report.owner[i] for i, _ in row))
                      for row in sequences.contexts]  # fmt: skip
    return table


def run_table(report: LeakageReport, decode: TokenDecoder) -> pd.DataFrame:
    """The long table in clear, one row for each run; ``sequence`` is as in
    :func:`sequence_table`."""
    numbers = {w: i + 1 for i, w in enumerate(report.sequences.tokens)}
    table = report.runs.drop(columns=["tokens", "kinds", "index"])
    table = table.rename(columns={"start": "context_length"})
    table.insert(0, "sequence", [numbers[w] for w in report.runs.tokens])
    table["text"] = [decode(w) for w in report.runs.tokens]
    return table


def sequence_records(table: pd.DataFrame) -> list[dict]:
    """The rows of :func:`sequence_table` for JSON, with only the first few contexts and their
    numbers."""
    records = []
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
        records.append({str(k): round_for_json(v) for k, v in row.items()} | {"context": shortest})
    return records
