"""The figures of CRT (2, 3, 4, 5 and 6), and one for the numbers of any attack.

>>> cell = {"model": "lstm", "method": "crt", "method_label": "CRT", "gamma": 0.1}
>>> row = {**cell, "mean": 0.51, "std": 0.01, "seeds": 5, "low": 0.48, "high": 0.52}
>>> fig = attack_figure(pd.DataFrame([row]), ylabel="accuracy")
>>> fig.axes[0].get_title("left"), fig.axes[0].get_ylabel()
('LSTM', 'accuracy')
>>> fig.get_label()
'accuracy against the miss rate; LSTM at 0.1: CRT 0.51 (chance: 0.48 to 0.52).'
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from pandas import DataFrame

from crtbook.figures.theme import (
    CARD,
    INK,
    MUTED,
    End,
    Look,
    corpus_name,
    describe,
    end_labels,
    half,
    listed,
    method_looks,
    model_name,
    panels,
    plain_ticks,
    provenance,
    readable,
    shared_legend,
)
from crtlib.attacks import membership
from crtlib.attacks.attack import CELL, at_every_gamma
from crtlib.intervals import Band
from crtlib.text import canaries

GAMMA = "miss rate γ of the redaction policy"
SEEDS = 10
"""So many seeds are drawn as dots; of more, the mean and its 95 % interval."""


# --------------------------------------------------------------------------- any attack
def attack_figure(
    summary: DataFrame,
    *,
    ylabel: str,
    title: str = "",
    level: float = 0.95,
    nothing: float | None = None,
    ceiling: float | Callable[[float], float] | None = None,
    ceiling_label: str = "the most there is",
) -> Figure:
    """A statistic of an attack against gamma, one line a method, one panel a model.

    ``summary`` holds ``model``, ``method``, ``gamma``, ``mean``, ``std``, ``seeds``, and ``low``
    and ``high`` of the band in which a model that knows nothing lands (at ``level``, NaN where it
    is not known; at each gamma the widest of the panel's methods is shaded). Two columns are
    optional: ``values``, the numbers of the single seeds, which are then the dots (of more than
    ten seeds, and without the column, bars are the 95 % interval of the mean); ``method_label``,
    the name to show of a method that this library does not know.

    ``nothing`` is the mean of a model that knows nothing (a dotted line), ``ceiling`` the most
    that can be reached, one number or a function of gamma.
    """
    models = list(dict.fromkeys(summary.model))
    top = float(max(summary.gamma.max(), 0.05))
    with panels([model_name(m) for m in models], sharex=True, sharey=True) as (fig, axes):
        for ax, model in zip(axes, models, strict=True):
            rows = summary[summary.model == model].sort_values(["method", "gamma"])
            _band(ax, rows, f"chance: {level:.0%} of such figures")
            if nothing is not None:
                ax.axhline(
                    nothing, label="mean of chance", color=MUTED, linewidth=1, zorder=0.6,
                    linestyle=(0, (1, 2)),
                )  # fmt: skip
            if ceiling is not None:
                gammas = np.linspace(0, top, 50)
                most = [ceiling(g) if callable(ceiling) else ceiling for g in gammas]
                ax.plot(
                    gammas, most, label=ceiling_label, linewidth=1, linestyle=(0, (6, 2)), color=INK
                )
            ends = _lines(ax, rows)
            ax.set(xlim=(-0.02 * top, 1.02 * top), ylabel=ylabel)
            end_labels(ax, ends)
        axes[-1].set_xlabel(GAMMA)
        if title:
            fig.suptitle(title)
        shared_legend(fig, columns=1)
        describe(fig, f"{ylabel} against the miss rate; {_finding(summary)}.")
    return fig


def _band(ax: Axes, rows: DataFrame, label: str) -> None:
    """Shade where chance lands: at each gamma the widest band of the panel's methods."""
    band = rows.groupby("gamma").agg({"low": "min", "high": "max"}).dropna()
    if len(band) == 1:  # a band must have a width to be seen
        band = pd.concat([band, band.rename(lambda gamma: gamma + 0.05)])
    if len(band):
        ax.fill_between(
            band.index, band.low, band.high, label=label, color=MUTED, alpha=0.16, linewidth=0,
            zorder=0.5,
        )  # fmt: skip


def _lines(ax: Axes, rows: DataFrame) -> list[End]:
    """The methods' means, and their seeds as dots (many seeds: 95 % intervals of the mean); returns
    where each line ends, with its name."""
    looks, ends = method_looks(rows), []
    step = 0.006 * float(rows.gamma.max() or 0.05)
    for k, (name, look) in enumerate(looks.items()):
        line = rows[rows.method == name]
        fixed = len(line) > 1 and line["mean"].nunique() == 1  # it knows no gamma
        ax.plot(line.gamma, line["mean"], **look.line | ({"marker": ""} if fixed else {}))
        shown = line.tail(1) if fixed else line
        _spread(ax, shown, look, step * (k - (len(looks) - 1) / 2))  # side by side
        ends.append((line.gamma.iloc[-1], line["mean"].iloc[-1], look.label, look.color))
    return ends


def _spread(ax: Axes, line: DataFrame, look: Look, shift: float) -> None:
    """Dots of the seeds, else a bar: the 95 % interval of the mean; of two seeds it would
    be wider than the figure."""
    shown = line[line.seeds <= SEEDS] if "values" in line else line.iloc[:0]
    for gamma, values in zip(shown.gamma, shown.get("values", ()), strict=True):
        ax.scatter(
            [gamma + shift] * len(values), values, color=look.color, marker=look.marker, s=20,
            alpha=0.55, linewidth=0,
        )  # fmt: skip
    bars = line.drop(shown.index)
    bars = bars[(bars.seeds > 2) & bars["std"].notna()]
    if len(bars):
        ax.errorbar(
            bars.gamma + shift, bars["mean"], yerr=half(bars["std"], bars.seeds), fmt="none",
            color=look.color, elinewidth=1.2, capsize=2.5, label="95 % interval of the mean",
        )  # fmt: skip


def _finding(summary: DataFrame) -> str:
    """What the figure shows at the largest gamma: of each model the highest and lowest method."""
    said = []
    for model, rows in summary.groupby("model", sort=False):
        top = rows.gamma.max()
        at = rows[rows.gamma == top].sort_values("mean", ascending=False)
        looks, (low, high) = method_looks(at), (at.low.min(), at.high.max())
        ends = at.iloc[[0, -1]] if len(at) > 1 else at
        values = [
            f"{looks[m].label} {v:.3g}" for m, v in zip(ends.method, ends["mean"], strict=True)
        ]
        chance = "" if math.isnan(low) else f" (chance: {low:.3g} to {high:.3g})"
        said.append(f"{model_name(str(model))} at {top:g}: {listed(values)}{chance}")
    return "; ".join(said)


# --------------------------------------------------------------------------- the paper's figures
def figure_2(curves: DataFrame, *, value: str = "ppl") -> Figure:
    """CRT, Figure 2: utility against epsilon, one point an epoch, one panel a corpus and model.

    ``curves`` is :func:`crtbook.utility.curve` at one gamma for each method; ``value``
    is "ppl" (validation perplexity over words, lower is better) or "acc" (top-1 accuracy). Bars
    are 95 % intervals of the mean over seeds. A method without a finite epsilon is a line across:
    it reached that utility, and promises nothing for it.
    """
    label = {"ppl": "perplexity over words", "acc": "top-1 accuracy over words"}[value]
    pairs = list(dict.fromkeys(zip(curves.corpus, curves.model, strict=True)))
    titles = [f"{corpus_name(c)}, {model_name(m)}" for c, m in pairs]
    rename = {"epsilon": "gamma", f"{value}_mean": "mean", f"{value}_std": "std"}
    with panels(titles, height=3.1, room=0.5) as (fig, axes):
        for ax, (corpus, model) in zip(axes, pairs, strict=True):
            rows = curves[(curves.corpus == corpus) & (curves.model == model)]
            rows = rows.drop(columns="gamma").rename(columns=rename).sort_values("epoch")
            ax.set(ylabel=label, yscale="log" if value == "ppl" else "linear")
            _utility(ax, rows)
            if value == "ppl":
                plain_ticks(ax.yaxis, ax.get_ylim())
        axes[-1].set_xlabel("ε so far")
        last = curves.groupby(["corpus", *CELL[:2]]).epoch.transform("max")
        said = _ended(curves[curves.epoch == last], f"{value}_mean")
        describe(fig, f"Validation {label} against epsilon, one point an epoch. "
                      f"At the end: {said}.")  # fmt: skip
    return fig


def figure_2_test(ends: DataFrame) -> Figure:
    """CRT, Figure 2 on test perplexity: every method and model of a corpus in one panel, at the end
    of training. ``ends`` is :func:`crtbook.utility.ends`: under both neighbouring
    relations, joined by a line. A method without a finite epsilon is a line across. Of the first
    model the marks are filled and the lines across as the method's; the others are hollow, dotted.
    """
    corpora = list(dict.fromkeys(ends.corpus))
    first, *others = sorted(set(ends.model))
    marks = {m: mark for m, mark in zip([first, *others], "os^Dv", strict=False)}
    with panels([corpus_name(c) for c in corpora], height=3.6, room=2.4) as (fig, axes):
        for ax, corpus in zip(axes, corpora, strict=True):
            part = ends[ends.corpus == corpus]
            looks = method_looks(part)
            for (method, model), line in part.groupby(["method", "model"]):
                look, seen = looks[str(method)], line[np.isfinite(line.epsilon)]
                name = f"{look.label}, {model_name(str(model))}"
                if seen.empty:
                    dash = look.line["linestyle"] if model == first else (0, (1, 1.5))
                    ax.axhline(line.ppl_mean.iloc[0], color=look.color, linestyle=dash,
                               label=f"{name} (no ε)")  # fmt: skip
                    continue
                face = look.color if model == first else CARD
                ax.errorbar(seen.epsilon, seen.ppl_mean, yerr=half(seen.ppl_std, seen.seeds),
                            capsize=2.5, marker=marks[model], markerfacecolor=face, label=name,
                            color=look.color, markeredgecolor=look.color)  # fmt: skip
            ax.set(xscale="log", yscale="log", ylabel="test perplexity")
            plain_ticks(ax.yaxis, ax.get_ylim())
            low, high = ax.get_xlim()
            plain_ticks(ax.xaxis, (low, high), apart=max(1.35, (high / low) ** (1 / 8)))
        axes[-1].set_xlabel("ε: added or removed, to replaced")
        shared_legend(fig, columns=1)
        said = _ended(ends[ends.relation == "replace"], "ppl_mean")
        describe(fig, f"Test perplexity against epsilon; {said}.")
    return fig


def _ended(ends: DataFrame, mean: str) -> str:
    """What each method of the first corpus and model reaches, and at which epsilon."""
    first = ends[(ends.corpus == ends.corpus.iloc[0]) & (ends.model == ends.model.iloc[0])]
    looks = method_looks(first)
    rows = first.drop_duplicates("method", keep="last").set_index("method")
    said = []
    for name, look in looks.items():
        epsilon = rows.epsilon[name]
        at = f" at ε = {epsilon:.2g}" if np.isfinite(epsilon) else ""
        said.append(f"{look.label} {rows[mean][name]:.3g}{at}")
    return listed(said)


@dataclass(frozen=True)
class Note:
    """A sentence in the place of a figure."""

    text: str

    def _repr_markdown_(self) -> str:
        return self.text


def edition(
    table: DataFrame | None,
    draw: Callable[[DataFrame], Figure],
    *,
    caption: Callable[[DataFrame], str],
    command: str,
) -> Figure | Note:
    """A figure of a recorded table that not every edition has, of the points that it has, with the
    line that says whose runs it shows; where there is none, the sentence that says so, with the
    command that makes it."""
    if table is None or table.empty:
        return Note(f"*Not recorded in this edition: `{command}` makes it.*")
    return provenance(draw(table), "recorded: " + caption(table))


def _utility(ax: Axes, rows: DataFrame) -> None:
    """Lines with their names beside the first epoch; what promises nothing is a line across, named
    at the right edge."""
    across = []
    for name, look in method_looks(rows).items():
        line = rows[rows.method == name]
        if np.isfinite(line.gamma).all():
            ax.plot(line.gamma, line["mean"], **look.line)
            _spread(ax, line, look, 0.0)
            ax.annotate(
                look.label, (line.gamma.iloc[0], line["mean"].iloc[0]), xytext=(9, 0),
                textcoords="offset points", va="center", color=readable(look.color),
            )  # fmt: skip
        else:
            y = line["mean"].iloc[-1]
            ax.axhline(y, **look.line | {"marker": ""})
            across.append((y, f"{look.label} (no ε)", look.color))
    right = ax.get_xlim()[1]
    ax.set(xlim=(None, right))
    end_labels(ax, [(right, *end) for end in across])


def exposures(table: DataFrame) -> DataFrame:
    """One row a (model, method, gamma) of a results table, with mean and spread over seeds.

    ``max`` is the paper's statistic, the exposure of the luckiest canary of each run; ``mean``
    the average over the canaries. DP-SGD knows no gamma: its one result stands at every gamma.
    """
    values = table[table.metric == "exposure"].groupby([*CELL, "seed"]).value
    runs = values.agg(["max", "mean"])
    words = table[table.metric == "test_ppl_words"].set_index([*CELL, "seed"]).value
    runs["ppl"] = words
    out = runs.groupby(CELL).agg(["mean", "std", "count"])
    out.columns = pd.Index(["_".join(names) for names in out.columns])
    out = out.rename(columns={"max_count": "seeds"}).drop(columns=["mean_count", "ppl_count"])
    return at_every_gamma(out.reset_index())


def figure_3(summary: DataFrame, band: Band, runs: DataFrame | None = None) -> Figure:
    """CRT, Figure 3: exposure of the luckiest canary against gamma, one panel a model.

    ``summary`` is :func:`exposures`; ``band`` is where a model that knows
    nothing lands (:func:`crtlib.attacks.exposure.chance_band`). With the table of results that
    the summary was made from (``runs``), each seed is a dot; no exposure is above the ceiling.
    """
    rows = summary.rename(columns={"max_mean": "mean", "max_std": "std"})
    rows = rows.assign(low=band.low, high=band.high)
    if runs is not None:
        exposures = runs[runs.metric == "exposure"].groupby([*CELL, "seed"]).value.max()
        rows = with_seeds(rows, exposures.reset_index())
    most = math.log2(canaries.SPACE)
    fig = attack_figure(
        rows, ylabel="highest exposure (bits)", level=band.level, nothing=band.mean,
        ceiling=most, ceiling_label=f"the most a canary can have: {most:.1f} bits",
    )  # fmt: skip
    for ax in fig.axes:
        ax.set_ylim(0, 21)
    return fig


def membership_figure(
    summary: DataFrame,
    metric: str,
    *,
    ylabel: str,
    runs: DataFrame | None = None,
) -> Figure:
    """CRT, Figures 4 and 5: accuracy of an attack against gamma, one panel a model.

    ``summary`` is :func:`crtlib.attacks.membership.summary`; ``metric`` is
    "mia_accuracy" for Figure 4, "group_accuracy" for Figure 5, or another that has a band. With
    the table of results that the summary was made from (``runs``), each seed is a dot. On
    "mia_accuracy" the dashed line is the most that the rule can reach
    (:func:`crtlib.attacks.membership.ceiling`). Raises ``ValueError`` for a metric that the
    summary does not hold.
    """
    rows = summary[summary.metric == metric]
    if rows.empty:
        known = ", ".join(sorted(set(summary.metric)))
        raise ValueError(f"metric={metric!r}: must be one of {known}")
    if runs is not None:
        rows = with_seeds(rows, runs[runs.metric == metric])
    most = membership.ceiling if metric == "mia_accuracy" else None
    return attack_figure(
        rows, ylabel=ylabel, nothing=0.5, ceiling=most, ceiling_label="all missed secrets named",
    )  # fmt: skip


def with_seeds(summary: DataFrame, runs: DataFrame) -> DataFrame:
    """``summary`` with the column ``values``: what the single seeds of ``runs`` gave (columns
    model, method, gamma, value). A method that stands at several gammas of the summary, and was
    run at one, has its values at each."""
    cells: pd.Series = runs.groupby(CELL).value.agg(tuple)
    single = runs.groupby(["model", "method"]).value.agg(tuple)
    gammas = runs.groupby(["model", "method"]).gamma.nunique()
    rows = zip(summary.model, summary.method, summary.gamma, strict=True)
    values = [
        single[model, method] if gammas[model, method] == 1 else cells[model, method, gamma]
        for model, method, gamma in rows
    ]
    return summary.assign(values=pd.Series(values, index=summary.index, dtype=object))


def figure_6(table: DataFrame) -> Figure:
    """CRT, Figure 6: Bayesian confidentiality against gamma, one line for each epsilon' of DP-SGD.

    Columns ``target`` (epsilon'), ``gamma``, ``epsilon`` and, to compare, ``relation``: one panel
    each. The vertical axis is linear up to 0.1 and logarithmic above.
    """
    table = table if "relation" in table else table.assign(relation="")
    relations, targets = list(dict.fromkeys(table.relation)), sorted(table.target.unique())
    shades = plt.get_cmap("viridis")(np.linspace(0.0, 0.7, len(targets)))
    titles = [str(name).replace("_", " ") for name in relations]
    with panels(titles, height=3.5, room=0.4, sharex=True, sharey=True) as (fig, axes):
        for ax, relation in zip(axes, relations, strict=True):
            rows = table[table.relation == relation]
            for target, shade in zip(targets, shades, strict=True):
                line = rows[rows.target == target].sort_values("gamma")
                ax.plot(line.gamma, line.epsilon, "o-", color=shade, clip_on=False)
            ax.set_yscale("symlog", linthresh=0.1, linscale=0.6)
            most = 1.3 * table.epsilon.max()
            ticks = [t for t in (0, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10) if t <= most]
            ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
            ax.minorticks_off()
            ax.set(xlim=(0, None), ylim=(0, most), ylabel="Bayesian confidentiality ε")
            ends = rows.sort_values(["target", "gamma"]).groupby("target").tail(1)
            named = [(row.gamma, row.epsilon, f"ε′ = {row.target:g}", to_hex(shade))
                     for shade, row in zip(shades, ends.itertuples(), strict=True)]  # fmt: skip
            end_labels(ax, named)
        axes[-1].set_xlabel(GAMMA)
        rows, gammas = table[table.target == targets[len(targets) // 2]], sorted(set(table.gamma))
        gamma = gammas[len(gammas) // 2]
        describe(fig, f"Bayesian confidentiality against the miss rate. At ε′ = "
                      f"{rows.target.iloc[0]:g}, {_amplified(rows, gamma)}")  # fmt: skip
    return fig


def _amplified(rows: DataFrame, gamma: float) -> str:
    """What a gamma makes of an epsilon', in words."""
    said = [
        f"{row.epsilon:.2g}" + (f" ({str(row.relation).replace('_', ' ')})" if row.relation else "")
        for row in rows[rows.gamma == gamma].itertuples()
    ]
    return f"at γ = {gamma:g}, ε is {listed(said)}."
