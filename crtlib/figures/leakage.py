"""Figures and tables of the leakage chapters, in the theme of :mod:`crtlib.figures`.

>>> rows = [("valid_ppl", 1, 0, 9.0), ("train_ppl", 1, 0, 8.0),
...         ("unique_length", 1, 0, 4.0), ("unique_perplexity", 1, 0, 2.5)]
>>> table = pd.DataFrame(rows, columns=["metric", "epoch", "item", "value"]).assign(seed=0)
>>> [ax.get_title("left")[:3] for ax in figure_5(table.replace("valid_ppl", "ppl")).axes]
['(a)', '(b)', '(c)']
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, MaxNLocator, NullFormatter
from pandas.io.formats.style import Styler

from crtlib.attacks.leakage import Leakage
from crtlib.figures.theme import FAINT, METHOD_STYLE, MUTED, theme

RAW, SAFE = METHOD_STYLE["sgd"]["color"], METHOD_STYLE["dpsgd"]["color"]


def figure_5(table: pd.DataFrame, *, longest: int = 30, shown: int = 10) -> Figure:
    """Inan et al., Figure 5: a model through training, from the long table of a run with details.

    (a) perplexity on training and validation text; (b) how long the unique sequences are, a bar
    an epoch, darker later, lengths from ``longest`` on together; (c) their perplexities, ``shown``
    epochs, widths proportional to how many there are. Means over seeds.
    """
    seeds = table.seed.nunique()
    part = {name: rows for name, rows in table.groupby("metric")}
    epochs = sorted(part["train_ppl"].epoch.unique())
    with theme():
        fig, (a, b, c) = plt.subplots(3, 1, figsize=(5.4, 8.4))
        for name, label, line in (("train_ppl", "training", "-"), ("ppl", "validation", "--")):
            mean = part[name].groupby("epoch").value.mean()
            a.plot(mean.index, mean, line, label=label, color=RAW if line == "-" else SAFE)
        a.set(xlabel="epoch", ylabel="perplexity", yscale="log")
        a.set_title("(a) perplexity")
        a.xaxis.set_major_locator(MaxNLocator(integer=True))
        a.legend()
        _lengths(b, part.get("unique_length"), epochs, seeds, longest)
        _perplexities(c, part.get("unique_perplexity"), epochs, seeds, shown)
        for ax in (a, c):  # 1, 2, 5, 10, and no powers of ten
            ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            ax.yaxis.set_major_formatter(FormatStrFormatter("%g"))
            ax.yaxis.set_minor_formatter(NullFormatter())
        plt.close(fig)
    return fig


def _lengths(ax, rows: pd.DataFrame | None, epochs: Sequence[int], seeds: int, longest: int):
    bins = np.unique(np.geomspace(1, longest, 9).round().astype(int))
    pairs = itertools.pairwise(bins)
    names = [f"{lo}" if hi == lo + 1 else f"{lo}–{hi - 1}" for lo, hi in pairs]
    shades = plt.get_cmap("Oranges")(np.linspace(0.25, 1, len(epochs)))
    width = 0.85 / len(epochs)
    for k, epoch in enumerate(epochs):
        values = [] if rows is None else rows.value[rows.epoch == epoch]
        count = np.histogram(values, [*bins, np.inf])[0] / seeds
        at = np.arange(len(bins)) + (k - (len(epochs) - 1) / 2) * width
        ax.bar(at, count, width, color=shades[k])
    ax.set_xticks(range(len(bins)), [*names, f"{bins[-1]}+"])
    ax.set(xlabel="tokens of a unique sequence", ylabel="unique sequences")
    ax.set_title(f"(b) lengths, epochs {epochs[0]} to {epochs[-1]} (darker)")


def _perplexities(ax, rows: pd.DataFrame | None, epochs: Sequence[int], seeds: int, shown: int):
    keep = [epochs[i] for i in np.unique(np.linspace(0, len(epochs) - 1, shown).astype(int))]
    edges = np.geomspace(1, 100, 31)
    counts = [
        np.histogram([] if rows is None else rows.value[rows.epoch == e], edges)[0] / seeds
        for e in keep
    ]
    most = max(1.0, max(n.max() for n in counts))
    for place, count in enumerate(counts):
        wide = 0.9 * count / most
        ax.barh(edges[:-1], wide, np.diff(edges), left=place - wide / 2, align="edge", color=RAW)
    ax.axhline(3, color=MUTED, linestyle=":", linewidth=1.2)
    ax.set(xlabel="epoch", ylabel="perplexity", yscale="log")
    ax.set_xticks(range(len(keep)), keep)
    ax.set_title("(c) perplexities of the unique sequences")


def hardening(train: pd.DataFrame, heldout: pd.DataFrame) -> Figure:
    """What a threshold costs and what it hides: accuracy on held-out text against the unique
    sequences that are left on training text, one point a threshold, both from
    :func:`crtlib.attacks.mitigations.harden`."""
    with theme():
        fig, ax = plt.subplots()
        ax.plot(100 * heldout.accuracy, train.unique, "-o", color=RAW)
        for x, y, t in zip(100 * heldout.accuracy, train.unique, train.threshold, strict=True):
            label = "no threshold" if np.isinf(t) else f"{t:g}"
            ax.annotate(label, (x, y), (-4, 5), textcoords="offset points", ha="right", fontsize=9)
        ax.set(xlabel="top-1 accuracy on held-out text, %", ylabel="unique sequences left")
        ax.margins(y=0.1)  # room for the uppermost label
        ax.set_ylim(0, None)
        plt.close(fig)
    return fig


# --------------------------------------------------------------------------- tables
def means(
    table: pd.DataFrame, names: Mapping[str, str], by: Sequence[str], *, std: bool = True
) -> pd.DataFrame:
    """Mean over seeds (± standard deviation) of some metrics, as text; "–" where none was made.

    ``names`` maps metrics to column titles; rows are the groups ``by``, in their first order.
    """
    rows = {}
    for group, part in table.groupby(list(by), sort=False):
        values = part.groupby("metric").value
        seeds = part.seed.nunique()
        rows[group] = {
            title: _text(values.get_group(m) if m in values.groups else [], seeds, std)
            for m, title in names.items()
        }
    shown = pd.DataFrame(rows).T
    shown.index.names = list(by)
    return shown.reset_index()


TABLE_2 = {
    "ppl": "val perp",
    "acc_percent": "val acc (%)",
    "unique": "unique",
    "unique_secrets": "of these with a whole secret",
    "unique_above": "ratio ≥ t",
    "leakage_epsilon": "ε_l, other text",
    "left_out_leakage_epsilon": "ε_l, owners left out",
}
"""The columns of Table 2 (Inan et al.), and three that its text asks for."""


def table_2(table: pd.DataFrame) -> pd.DataFrame:
    """Inan et al., Table 2, from the runs of :func:`crtlib.experiments.leakage.table_2`: a row a model;
    a DP row is a snapshot, named by the start of its weights and its epsilon."""
    spent = table[table.metric == "epsilon"].groupby("epoch").value.max()
    start = {"random": "RanIni", "public": "PubIni"}
    kinds = zip(table.method, table.init, table.epoch, strict=True)
    row = [
        f"DP-LM {start[i]} ε = {spent[e]:.2f}" if m == "dpsgd" else
        {"sgd": "private LM", "public": "public LM"}[m]
        for m, i, e in kinds
    ]  # fmt: skip
    labelled = _percent(table.assign(model=row))
    order = ["private LM", *(r for r in dict.fromkeys(row) if "RanIni" in r), "public LM"]
    order += [r for r in dict.fromkeys(row) if "PubIni" in r]
    return means(labelled, TABLE_2, ["model"]).set_index("model").loc[order].reset_index()


def _percent(table: pd.DataFrame) -> pd.DataFrame:
    """The accuracies in percent as well, as the paper prints them."""
    found = table[table.metric.isin(["acc", "acc_words"])]
    found = found.assign(metric=found.metric + "_percent", value=100 * found.value)
    return pd.concat([table, found], ignore_index=True)


def one_table(table: pd.DataFrame, rows: Mapping[str, str]) -> pd.DataFrame:
    """The models of :func:`crtlib.experiments.leakage.one_table` side by side; ``rows`` maps the keys of
    the runs to their names."""
    names = {
        "ppl_words": "perplexity",
        "acc_words_percent": "accuracy (%)",
        "runs": "runs",
        "unique": "unique",
        "unique_secrets": "with a whole secret",
        "unique_above": "ratio ≥ t",
        "leakage_epsilon": "ε_l",
        "canaries_completed": "canaries completed",
    }
    labelled = _percent(table).assign(model=lambda t: t.run.map(rows))
    return means(labelled, names, ["model"])


def _text(values, seeds: int, std: bool) -> str:
    v = np.asarray(values, dtype=float)
    if not len(v):
        return "–"
    digits = 0 if (v == v.round()).all() and seeds == 1 else 1 if v.mean() >= 10 else 2
    spread = f" ± {v.std(ddof=1):.{digits}f}" if std and len(v) > 1 else ""
    partial = f" ({len(v)} of {seeds})" if len(v) < seeds else ""
    return f"{v.mean():.{digits}f}{spread}{partial}"


def styled(table: pd.DataFrame, caption: str) -> Styler:
    """A table for a page: no index, numbers to the right, where it comes from below it."""
    right = {"selector": "td:not(:first-child), th:not(:first-child)", "props": "text-align:right"}
    below = {"selector": "caption", "props": f"caption-side:bottom; color:{MUTED}"}
    line = {"selector": "tbody tr", "props": f"border-bottom:1px solid {FAINT}"}
    return (
        table.style.hide(axis="index").set_caption(caption).set_table_styles([right, below, line])
    )


def sequences(report: Leakage, decode: Callable[[Sequence[int]], str], rows: int) -> pd.DataFrame:
    """The form of Tables 3 to 5: unique sequences in clear, the most surprising first. For the
    text of simulated people only."""
    some = report.unique().head(rows)
    pairs = zip(some.perplexities, some.public_perplexities, strict=True)
    best = [max(zip(*p, strict=True), key=lambda v: v[1] / v[0]) for p in pairs]
    return pd.DataFrame(
        {
            "sequence": [decode(w).replace("\n", " ⏎ ") for w in some.tokens],
            "total # in D": some.total_in_d.to_numpy(),
            "user # in D": some.users_in_d.to_numpy(),
            "context length": [min(n for _, n in row) for row in some.contexts],
            "PP model": [f"{a:.2f}" for a, _ in best],
            "PP public": [f"{b:.3g}" for _, b in best],
            "ratio": [f"{r:.3g}" for r in some.ratio],
        }
    )
