"""What a leakage report says, as tables: every number in clear, or bins that identify nobody.

The template ``leakage.html.j2`` makes a page of them.

A redacted report is read by people who may not see the text, so it must not tell the text to one
who has the model. Of a single sequence nothing leaves: not its place, its length, its perplexity
or its user. What leaves are counts over the whole report, of wide bins, rounded down, and none
below five; and the ratio that at least five sequences reach in place of the largest one.

>>> band(3), band(57), band(2306)
((0, 4), (55, 59), (2300, 2399))
>>> in_words(band(3)), in_words(band(2306))
('fewer than 5', '2,300 to 2,399')
"""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import numpy as np
import pandas as pd

from crtlib.attacks import leakage
from crtlib.attacks.leakage import Leakage
from crtlib.reports.pages import as_json
from crtlib.reports.pages import page as render
from crtlib.screening.rates import KINDS

Decode = Callable[[Sequence[int]], str]
ROWS = 2000
"""Sequences on the page, the most worrying ones; the Parquet files hold all of them."""
SHOWN = 5
"""Contexts of one sequence on the page."""
CONTEXT = 240
"""Characters of a context on the page: the nearest ones."""
FEW = 5
"""Counts below it are not told from none in a redacted report, nor those of fewer users."""
REACHED = f"ratio_that_sequences_of_{FEW}_users_reach"
EDGES = {
    "tokens": (1, 2, 3, 5, 9, 17, 33, math.inf),
    "perplexity": (1, *(2.0**k for k in range(1, 11)), math.inf),
    "ratio": (0, *(2.0**k for k in range(-1, 21)), math.inf),
}
USERS = (1, 2, 3, 6, math.inf)


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
def band(count: int) -> tuple[int, int]:
    """The least and the largest count that a redacted report does not tell from this one."""
    if count < FEW:
        return 0, FEW - 1
    width = FEW if count < 100 else 10 ** (len(str(count)) - 2)
    low = count - count % width
    return low, low + width - 1


def in_words(ends: tuple[int, int]) -> str:
    """A band as people read it, or one number."""
    low, high = (f"{end:,}" for end in ends)
    return (
        low if low == high else f"fewer than {ends[1] + 1:,}" if low == "0" else f"{low} to {high}"
    )


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
    every = {kind for d in report.documents for kind, *_ in d.secrets}
    shown = {kind: {kind} for kind in every & KINDS}  # a label's kind may be any text
    if unknown := every - KINDS:
        shown["other"] = unknown | shown.get("other", set())
    for name, some in sorted(shown.items()):
        inside = pd.Series([not some.isdisjoint(kinds) for kinds in table.kinds], dtype=bool)
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
    tokens, users = report.read
    counts: dict[str, int | None] = {
        "tokens": tokens,
        "texts_beyond_the_context_read_in_windows": report.windowed,
        "runs": len(report.runs),
        "sequences": len(report.sequences),
        "unique": numbers["unique"],  # type: ignore[dict-item]
        "unique_above": numbers["unique_above"],  # type: ignore[dict-item]
    }
    figures: dict[str, Any] = {**counts, "accuracy": report.accuracy}
    if exact:
        figures["leakage_epsilon"] = numbers["leakage_epsilon"]
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


def records(table: pd.DataFrame) -> list[dict]:
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
        values |= {"rows": rows, "every": len(clear), "switches": as_json(switches),
                   "data": as_json(records(clear.head(rows)))}  # fmt: skip
    return render("leakage.html.j2", **values)
