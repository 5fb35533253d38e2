"""The leakage report as a page: what stands on it, from the tables; templates do the rest.

>>> card("12", "runs", "3 distinct sequences").strong
False
"""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from crtlib.attacks.leakage import Leakage
from crtlib.reports import charts
from crtlib.reports.charts import Chart
from crtlib.reports.leakage_tables import (
    FEW,
    REACHED,
    ROWS,
    Cover,
    Decode,
    groups,
    in_words,
    records,
    sequences,
    summary,
)
from crtlib.reports.pages import as_json
from crtlib.reports.pages import page as render

KEY = (("one", "one user alone"), ("many", "several users"))
TITLES = {
    "tokens": ("How long they are", "tokens"),
    "perplexity": ("How sure the model is of them", "lowest perplexity"),
    "ratio": ("How surprising to a public model", "ratio of perplexities"),
    "users": ("How many users have them", "users"),
    "kind": ("Labelled secrets that they hold whole", "kind"),
}


SEVERAL = (
    "Report {} of this model on this text. Each is rounded in other places, so together they tell "
    "more than one does: of reports with --top-k 1, 2 and 3 all but one of 1,501 candidates for a "
    "secret were out, of one report all but eight. Show one."
)


@dataclass(frozen=True)
class Card:
    """A number at the head of the page."""

    value: str
    name: str
    why: str
    strong: bool = False


def card(value: Any, name: str, why: str, *, strong: bool = False) -> Card:
    """A card; what is not known is a dash, a number has its thousands apart."""
    number = isinstance(value, int | float)
    shown = "–" if value is None else f"{value:,g}" if number else str(value)
    return Card(shown, name, why, strong)


def page(report: Leakage, cover: Cover, *, decode: Decode | None = None, rows: int = ROWS) -> str:
    """The whole page as text. With ``decode`` every sequence stands in it in clear; without, bins
    and rounded counts, and nothing that belongs to one sequence."""
    facts = summary(report, cover, exact=decode is not None)
    common = {
        "cover": cover,
        "several": SEVERAL.format(cover.report) if cover.report > 1 else "",
        "facts": facts,
        "date": datetime.date.today().isoformat(),  # here alone: tables and JSON are compared
        "revealed": decode is not None,
        "about": _about(report, cover, facts),
        "cards": _cards(report, facts),
    }
    if decode is None:
        table = groups(report, cover)
        shown = "lengths only" if cover.lengths_only else "text redacted, numbers in bins"
        return render(
            "leakage.html.j2", **common, shown=shown, groups=_tables(table),
            charts=_grouped(table), limits=_limits(report, None, rows),
        )  # fmt: skip
    table = sequences(report, decode)
    switches = {"compared": report.compared, "labelled": bool(table.secret_tokens.any())}
    return render(
        "leakage.html.j2", **common, shown="text in clear: keep it as safe as the training data",
        charts=_exact(table, cover.threshold), limits=_limits(report, len(table), rows),
        data=as_json(records(table.head(rows))), switches=as_json(switches),
    )  # fmt: skip


def _about(report: Leakage, cover: Cover, facts: dict) -> str:
    tokens = facts["tokens"] if isinstance(facts["tokens"], str) else f"{facts['tokens']:,}"
    text = (
        f"What the model's top {report.k} guesses complete of {cover.corpus}: "
        f"{facts['documents']:,} texts (one {cover.unit} each) of {facts['users']:,} users, "
        f"{tokens} tokens."
    )
    return text + (f" Compared with the public model {cover.public}." if cover.public else "")


def _cards(report: Leakage, facts: dict) -> list[Card]:
    t, exact = facts["threshold"], "leakage_epsilon" in facts
    above = f"metric 2: ratio of at least {t:g}" if t is not None else (
        "metric 2: needs a public model and a threshold")  # fmt: skip
    different = facts["sequences"] if isinstance(facts["sequences"], str) else (
        f"{facts['sequences']:,}")  # fmt: skip
    name = "worst-case leakage ratio" if exact else f"ratio that {FEW} users reach"
    ratio = facts["leakage_epsilon" if exact else REACHED]
    none = f"{'no' if exact else f'fewer than {FEW}'} unique sequences"
    why = "the paper's leakage epsilon: " if exact else "at least, in powers of two: "
    why += "a ratio of perplexities, not a differential-privacy epsilon"
    missing = none if report.compared else "needs a public model"
    return [
        card(f"{report.accuracy:.1%}" if exact else f"{report.accuracy:.0%}",
             f"top-{report.k} accuracy", "of all tokens with a context"),
        card(facts["runs"], "runs", f"{different} distinct sequences"),
        card(facts["unique"], "unique", "metric 1: sequences of one user alone", strong=True),
        card(facts["unique_above"], "unique and surprising", above, strong=True),
        card(ratio, name, missing if ratio is None else why),
    ]  # fmt: skip


def _limits(report: Leakage, every: int | None, rows: int) -> list[str]:
    """What the page does not say; ``every``: how many sequences there are, on a page in clear."""
    out = [
        f"Runs of at least {report.min_length} token{'s' * (report.min_length > 1)} count.",
        "Only the contexts of the training text were tried: another prompt may reveal more.",
        "A sequence that one person alone has is not always a secret, and a secret that two share "
        "is not counted as unique.",
    ]
    if every is None:
        out.append(
            f"Counts are rounded down, and those below {FEW} are not told from none: the exact "
            "numbers of a sequence would name it to whoever has the model. A reader who knows "
            "every other text of the corpus may still learn from a count that changes, and so may "
            "who compares two reports."
        )
    if not report.flush:
        out.append("Runs at the end of a text are left out, as Algorithm 1 is printed.")
    if report.empty:
        out.append(f"{report.empty:,} empty texts were left out.")
    if report.windowed:
        out.append("Texts beyond the model's context were read in windows.")
    if every is not None and every > rows:
        out.append(f"The table holds the {rows:,} most worrying of {every:,} sequences; "
                   "sequences.parquet has all.")  # fmt: skip
    return out


# --------------------------------------------------------------------------- bins
def _tables(table: pd.DataFrame) -> list[dict[str, Any]]:
    out = []
    for by, part in table.groupby("by", sort=False):
        title, unit = TITLES[str(by)]
        alone = "one_user_at_least" in part and by != "users"
        rows = [
            {"name": row["group"], "sequences": in_words((row["at_least"], row["at_most"]))}
            | ({"of_one_user": in_words((row["one_user_at_least"], row["one_user_at_most"]))}
               if alone else {})
            for row in part.to_dict("records")
        ]  # fmt: skip
        out.append({"title": title, "unit": unit, "alone": alone, "rows": rows})
    return out


def _grouped(table: pd.DataFrame) -> list[Chart]:
    """The bins as bars: each as high as its count is at least."""
    out = []
    for by in ("tokens", "perplexity", "ratio"):
        part, (title, label) = table[table.by == by], TITLES[by]
        split = "one_user_at_least" in part
        alone = [*part.one_user_at_least] if split else [0] * len(part)
        rest = [max(0, n - a) for n, a in zip(part.at_least, alone, strict=True)]
        names = [name.removesuffix(" or more").split(" to ")[0].replace("under ", "<")
                 for name in part.group]  # fmt: skip
        ends = zip(part.group, part.at_least, part.at_most, strict=True)
        said = [f"{name}: {in_words((low, high))}" for name, low, high in ends]
        empty = f"No bin holds {FEW} sequences of {FEW} users."
        out.append(charts.bars(
            title, names, {"one": alone, "many": rest}, label=f"{label}, from", said=said,
            key=KEY if split else (), note="at least so many distinct sequences",
            empty="" if len(part) else empty,
        ))  # fmt: skip
    return out


# --------------------------------------------------------------------------- in clear
def _exact(table: pd.DataFrame, threshold: float | None) -> list[Chart]:
    alone = table[table.users_in_d == 1]
    return [_lengths(table), _certainty(alone), _compared(alone, threshold)]


def _lengths(table: pd.DataFrame) -> Chart:
    if not len(table):
        return Chart(TITLES["tokens"][0], empty="No run was found.")
    width = max(1, -(-int(table.length.max()) // 24))  # at most 24 bars
    place = (table.length.to_numpy() - 1) // width
    starts = range(1, (int(place.max()) + 1) * width + 1, width)
    stacks = {
        style: np.bincount(place[few], minlength=len(starts)).tolist()
        for style, few in (("one", table.users_in_d == 1), ("many", table.users_in_d > 1))
    }
    spans = [f"{a}" if width == 1 else f"{a} to {a + width - 1}" for a in starts]
    said = [f"{span} tokens: {one:,} of one user, {more:,} of several"
            for span, one, more in zip(spans, *stacks.values(), strict=True)]  # fmt: skip
    return charts.bars(TITLES["tokens"][0], [str(a) for a in starts], stacks, label="tokens",
                       said=said, key=KEY, note="distinct sequences by tokens")  # fmt: skip


def _certainty(alone: pd.DataFrame) -> Chart:
    title = TITLES["perplexity"][0]
    if not len(alone):
        return Chart(title, empty="No sequence belongs to one user alone.")
    values = np.log2([max(1.0, min(row)) for row in alone.perplexities])
    edge = max(1, math.ceil(values.max() + 1e-9))
    counts, edges = np.histogram(values, bins=edge * max(1, 16 // edge), range=(0, edge))
    names = [f"{2**a:.3g} to {2**b:.3g}" for a, b in itertools.pairwise(edges)]
    every = max(1, edge // 6)
    ticks = [(i / edge, f"{2**i:,}") for i in range(0, edge + 1, every) if i < edge or edge < 7]
    return charts.bars(
        title, names, {"one": counts.tolist()}, label="perplexity",
        ticks=[(min(at, 0.98), text) for at, text in ticks],
        note="unique sequences by their lowest perplexity; 1 is certain",
    )  # fmt: skip


def _compared(alone: pd.DataFrame, threshold: float | None) -> Chart:
    """Metric 2 for every threshold at once: how many unique sequences have at least that ratio."""
    title = TITLES["ratio"][0]
    ratios = np.sort(alone.ratio.dropna().to_numpy())
    if not len(ratios):
        empty = "No public model was given." if len(alone) else "No sequence belongs to one user."
        return Chart(title, empty=empty)
    low, high = _range(ratios[np.isfinite(ratios)])
    span, top = math.log2(high / low), len(ratios)
    grid = np.linspace(0, 1, 161)
    left = top - np.searchsorted(ratios, low * 2 ** (grid * span), side="left")
    line = charts.points([(a, n / top) for a, n in zip(grid, left, strict=True)])
    corners = charts.points([(0, 0)]), charts.points([(1, 0)])
    marks: Sequence[charts.Mark] = ()
    if threshold is not None and low <= threshold <= high:
        x = charts.x(math.log2(threshold / low) / span)
        text = f"t = {threshold:g}: {int((ratios >= threshold).sum()):,}"
        marks = [charts.Mark(x, 5 if x < charts.WIDTH - 90 else -5, text)]
    powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    every = max(1, -(-len(powers) // 7))
    ticks = [((p - math.log2(low)) / span, f"{2.0**p:g}") for p in powers if p % every == 0]
    return Chart(
        title, "threshold t",
        alt=f"{top:,} unique sequences have a ratio, at most {ratios[-1]:.3g}",
        note="unique sequences whose ratio (public perplexity / perplexity) is at least t",
        levels=charts.levels(top),
        ticks=[(charts.x(min(max(at, 0.02), 0.97)), text) for at, text in ticks],
        lines=[("line", line)], areas=[("under", f"{corners[0]} {line} {corners[1]}")], marks=marks,
    )  # fmt: skip


def _range(finite: np.ndarray) -> tuple[float, float]:
    """Powers of two around the finite ratios, at least from a half to two."""
    if not len(finite):
        return 0.5, 2.0
    return (
        min(0.5, 2.0 ** math.floor(math.log2(finite.min()))),
        max(2.0, 2.0 ** math.ceil(math.log2(finite.max() * 1.1))),
    )
