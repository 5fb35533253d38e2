"""The figures of CRT (2, 3, 4, 5 and 6), and one for the numbers of any attack.

>>> cell = {"model": "lstm", "method": "crt", "method_label": "CRT", "gamma": 0.1}
>>> row = {**cell, "mean": 0.51, "std": 0.01, "seeds": 5, "low": 0.48, "high": 0.52}
>>> fig = plot_attack(pd.DataFrame([row]), ylabel="accuracy")
>>> fig.axes[0].get_title("left"), fig.axes[0].get_ylabel()
('LSTM', 'accuracy')
>>> fig.get_label()
'accuracy against the miss rate; LSTM at 0.1: CRT 0.51 (chance: 0.48 to 0.52).'
"""

import math
from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from pandas import DataFrame

from crtbook.claims.statistics import confidence_half_width
from crtbook.figures.theme import (
    CARD,
    INK,
    MUTED,
    End,
    Look,
    corpus_name,
    describe_figure,
    draw_shared_legend,
    group_rows,
    label_line_ends,
    list_in_words,
    make_panels,
    method_looks,
    model_name,
    set_plain_ticks,
)
from crtlib.attacks import membership_measures
from crtlib.attacks.attack import CELL_COLUMNS, repeat_at_every_gamma
from crtlib.intervals import ChanceBand
from crtlib.text import canaries

GAMMA = "miss rate γ of the redaction policy"
SEEDS = 10
"""Up to this many seeds are drawn as dots; for more, the mean and its 95 % interval are drawn."""


# --------------------------------------------------------------------------- any attack
def plot_attack(
    summary: DataFrame,
    *,
    ylabel: str,
    title: str = "",
    nothing: float | None = None,
    ceiling: tuple[str, Callable[[float], float]] | None = None,
) -> Figure:
    """A statistic of an attack against gamma, one line for each method, one panel for each model.

    ``summary`` holds ``model``, ``method``, ``gamma``, ``mean``, ``std``, ``seeds``, and ``low``
    and ``high`` of the band in which a model that knows nothing lands (with 95 %, NaN where it
    is not known; at each gamma the widest band of the panel's methods is shaded). Two columns are
    optional. ``values`` has the numbers of the single seeds, which are then the dots (without the
    column, or for more than ten seeds, bars are the 95 % interval of the mean). ``method_label`` is
    the name to show for a method that this library does not know.

    Args:
        summary: The table.
        ylabel: The name of the statistic, with its unit.
        title: A title above all panels.
        nothing: The mean for a model that knows nothing (a dotted line).
        ceiling: The name of the highest value that can be reached, and a function that gives it at
            a gamma.
    """
    models = group_rows(summary, "model")
    top = float(max(summary.gamma.max(), 0.05))
    with make_panels([model_name(m) for m, _ in models], sharex=True, sharey=True) as (fig, axes):
        for ax, (_, rows) in zip(axes, models, strict=True):
            _shade_chance(ax, rows)
            if nothing is not None:
                ax.axhline(
                    nothing, label="mean of chance", color=MUTED, linewidth=1, zorder=0.6,
                    linestyle=(0, (1, 2)),
                )  # fmt: skip
            if ceiling is not None:
                gammas = np.linspace(0, top, 50)
                label, most = ceiling
                ax.plot(
                    gammas, [*map(most, gammas)], label=label, linewidth=1, color=INK,
                    linestyle=(0, (6, 2)),
                )  # fmt: skip
            ends = _draw_lines(ax, rows.sort_values(["method", "gamma"]))
            ax.set(xlim=(-0.02 * top, 1.02 * top), ylabel=ylabel)
            label_line_ends(ax, ends)
        axes[-1].set_xlabel(GAMMA)
        if title:
            fig.suptitle(title)
        draw_shared_legend(fig, columns=1)
        describe_figure(
            fig, f"{ylabel} against the miss rate; {_describe_ends_at_largest_gamma(summary)}."
        )
    return fig


def _shade_chance(ax: Axes, rows: DataFrame) -> None:
    """Shade where chance lands: at each gamma the widest band of the panel's methods."""
    band = rows.groupby("gamma").agg({"low": "min", "high": "max"}).dropna()
    if len(band) == 1:  # a band must have a width to be seen
        band = pd.concat([band, band.rename(lambda gamma: gamma + 0.05)])
    if len(band):
        ax.fill_between(
            band.index, band.low, band.high, label="chance: 95% of such figures", color=MUTED,
            alpha=0.16, linewidth=0, zorder=0.5,
        )  # fmt: skip


def _draw_lines(ax: Axes, rows: DataFrame) -> list[End]:
    """The methods' means, and their seeds as dots (for many seeds 95 % intervals of the mean).
    Return where each line ends, with its name."""
    looks = method_looks(rows)
    ends = []
    step = 0.006 * float(rows.gamma.max() or 0.05)
    for method_number, (method, look) in enumerate(looks.items()):
        line = rows[rows.method == method]
        has_no_gamma = len(line) > 1 and line["mean"].nunique() == 1  # the method has no gamma
        ax.plot(line.gamma, line["mean"], **look.line | ({"marker": ""} if has_no_gamma else {}))
        points = line.tail(1) if has_no_gamma else line
        shift = step * (method_number - (len(looks) - 1) / 2)  # side by side
        _draw_spread(ax, points, look, shift)
        ends.append((line.gamma.iloc[-1], line["mean"].iloc[-1], look.label, look.color))
    return ends


def _draw_spread(ax: Axes, line: DataFrame, look: Look, shift: float) -> None:
    """Dots of the seeds, or else a bar: the 95 % interval of the mean. For two seeds it would be
    wider than the figure."""
    with_dots = line[line.seeds <= SEEDS] if "values" in line else line.iloc[:0]
    for gamma, values in zip(with_dots.gamma, with_dots.get("values", ()), strict=True):
        ax.scatter(
            [gamma + shift] * len(values), values, color=look.color, marker=look.marker, s=20,
            alpha=0.55, linewidth=0,
        )  # fmt: skip
    bars = line.drop(with_dots.index)
    bars = bars[(bars.seeds > 2) & bars["std"].notna()]
    if len(bars):
        half_width = confidence_half_width(bars["std"], bars.seeds)
        ax.errorbar(
            bars.gamma + shift, bars["mean"], yerr=half_width, fmt="none",
            color=look.color, elinewidth=1.2, capsize=2.5, label="95 % interval of the mean",
        )  # fmt: skip


def _describe_ends_at_largest_gamma(summary: DataFrame) -> str:
    """What the figure shows at the largest gamma: the highest and lowest method of each model."""
    sentences = []
    for model, rows in group_rows(summary, "model"):
        largest_gamma = rows.gamma.max()
        rows_at_top = rows[rows.gamma == largest_gamma].sort_values("mean", ascending=False)
        looks = method_looks(rows_at_top)
        low, high = rows_at_top.low.min(), rows_at_top.high.max()
        ends = rows_at_top.iloc[[0, -1]] if len(rows_at_top) > 1 else rows_at_top
        values = [
            f"{looks[m].label} {v:.3g}" for m, v in zip(ends.method, ends["mean"], strict=True)
        ]
        chance = "" if math.isnan(low) else f" (chance: {low:.3g} to {high:.3g})"
        listed = list_in_words(values)
        sentences.append(f"{model_name(model)} at {largest_gamma:g}: {listed}{chance}")
    return "; ".join(sentences)


# --------------------------------------------------------------------------- the paper's figures
def plot_utility_by_epsilon(curves: DataFrame, *, value: str = "ppl") -> Figure:
    """CRT, Figure 2: utility against epsilon, one point per epoch, one panel per corpus and model.

    ``curves`` is :func:`crtbook.utility.utility_by_epoch` at one gamma for each method; ``value``
    is "ppl" (validation perplexity over words, lower is better) or "acc" (top-1 accuracy). Bars
    are 95 % intervals of the mean over seeds. A method without a finite epsilon is a horizontal
    line: it reached that utility, but promises nothing.
    """
    label = {"ppl": "perplexity over words", "acc": "top-1 accuracy over words"}[value]
    cells = group_rows(curves, ["corpus", "model"])
    titles = [f"{corpus_name(c)}, {model_name(m)}" for (c, m), _ in cells]
    rename = {"epsilon": "gamma", f"{value}_mean": "mean", f"{value}_std": "std"}
    with make_panels(titles, height=3.1, room=0.5) as (fig, axes):
        for ax, (_, rows) in zip(axes, cells, strict=True):
            ax.set(ylabel=label, yscale="log" if value == "ppl" else "linear")
            _draw_utility(
                ax, rows.drop(columns="gamma").rename(columns=rename).sort_values("epoch")
            )
            if value == "ppl":
                set_plain_ticks(ax.yaxis)
        axes[-1].set_xlabel("ε so far")
        last = curves.groupby(["corpus", *CELL_COLUMNS[:2]]).epoch.transform("max")
        finding = _describe_ends(curves[curves.epoch == last], f"{value}_mean")
        describe_figure(fig, f"Validation {label} against epsilon, one point per epoch. "
                             f"At the end: {finding}.")  # fmt: skip
    return fig


def plot_final_perplexity(ends: DataFrame) -> Figure:
    """CRT, Figure 2 on test perplexity at the end of training: every method and model of a corpus
    in one panel. ``ends`` is :func:`crtbook.utility.utility_at_end`, under both neighbouring
    relations, joined by a line. A method without a finite epsilon is a horizontal line. For the
    first model marks are filled and horizontal lines have the method's style; for the others marks
    are hollow and lines dotted.
    """
    corpora = group_rows(ends, "corpus")
    first, *others = sorted(set(ends.model))
    marks = dict(zip([first, *others], "os^Dv", strict=False))
    with make_panels([corpus_name(c) for c, _ in corpora], height=3.6, room=2.4) as (fig, axes):
        for ax, (_, rows) in zip(axes, corpora, strict=True):
            looks = method_looks(rows)
            for (method, model), line in group_rows(rows, ["method", "model"]):
                look = looks[method]
                finite = line[np.isfinite(line.epsilon)]
                label = f"{look.label}, {model_name(model)}"
                if finite.empty:
                    dash = look.line["linestyle"] if model == first else (0, (1, 1.5))
                    ax.axhline(line.ppl_mean.iloc[0], color=look.color, linestyle=dash,
                               label=f"{label} (no ε)")  # fmt: skip
                    continue
                face = look.color if model == first else CARD
                half_width = confidence_half_width(finite.ppl_std, finite.seeds)
                ax.errorbar(finite.epsilon, finite.ppl_mean, yerr=half_width, capsize=2.5,
                            marker=marks[model], markerfacecolor=face, label=label,
                            color=look.color, markeredgecolor=look.color)  # fmt: skip
            ax.set(xscale="log", yscale="log", ylabel="test perplexity")
            set_plain_ticks(ax.yaxis)
            low, high = ax.get_xlim()
            set_plain_ticks(ax.xaxis, apart=max(1.35, (high / low) ** (1 / 8)))
        axes[-1].set_xlabel("ε: added or removed, to replaced")
        draw_shared_legend(fig, columns=1)
        finding = _describe_ends(ends[ends.relation == "replace"], "ppl_mean")
        describe_figure(fig, f"Test perplexity against epsilon; {finding}.")
    return fig


def plot_perplexity_by_epochs(trials: DataFrame) -> Figure:
    """The trials of a search over several numbers of epochs, one panel for each corpus and model.
    It shows the least validation perplexity over words of each method and number of epochs, and as
    dots the other trials, except those more than three times as high as all of these.

    ``trials`` is a recorded search (:mod:`crtbook.search`), in which each run is read at the epoch
    of its least perplexity: at one epsilon a longer training has more noise, which a curve of one
    run cannot show.
    """
    curves = trials[trials.metric == "valid_ppl_words"].reset_index(drop=True)
    reached = curves.loc[curves.groupby("run").value.idxmin()]
    cells = group_rows(reached, ["corpus", "model"])
    titles = [f"{corpus_name(c)}, {model_name(m)}" for (c, m), _ in cells]
    sentences = []
    with make_panels(titles, height=2.6, room=0.5, sharex=True) as (fig, axes):
        for ax, title, (_, rows) in zip(axes, titles, cells, strict=True):
            ends, chosen = [], []
            for method, look in method_looks(rows).items():
                trials_of_method = rows[rows.method == method]
                best = trials_of_method.groupby("epochs").value.min()
                ax.scatter(trials_of_method.epochs, trials_of_method.value, color=look.color, s=14,
                           alpha=0.35, linewidth=0)  # fmt: skip
                ax.plot(best.index, best, **look.line)
                ends.append((best.index[-1], best.iloc[-1], look.label, look.color))
                chosen.append(f"{look.label} {best.min():.3g} after {best.idxmin()}")
            least, most = min(y for _, y, *_ in ends), max(y for _, y, *_ in ends)
            ax.set(xscale="log", yscale="log", ylabel="perplexity over words",
                   ylim=(0.8 * least, 3 * most))  # fmt: skip
            set_plain_ticks(ax.yaxis)
            tried = sorted(set(rows.epochs))
            ax.set_xticks(tried, labels=[f"{epochs:g}" for epochs in tried])
            ax.xaxis.set_minor_locator(plt.NullLocator())
            label_line_ends(ax, ends)
            sentences.append(f"{title}: {list_in_words(chosen)}")
        axes[-1].set_xlabel("epochs of the training, at the same ε")
        describe_figure(
            fig, f"The best trial of each number of epochs, least: {'; '.join(sentences)}."
        )
    return fig


def _describe_ends(ends: DataFrame, mean: str) -> str:
    """What each method reaches for the first corpus and model, and at which epsilon."""
    first = ends[(ends.corpus == ends.corpus.iloc[0]) & (ends.model == ends.model.iloc[0])]
    looks = method_looks(first)
    rows = first.drop_duplicates("method", keep="last").set_index("method")
    values = []
    for method, look in looks.items():
        epsilon = rows.epsilon[method]
        where = f" at ε = {epsilon:.2g}" if np.isfinite(epsilon) else ""
        values.append(f"{look.label} {rows[mean][method]:.3g}{where}")
    return list_in_words(values)


def _draw_utility(ax: Axes, rows: DataFrame) -> None:
    """Draw lines with their names beside the first epoch. A method that promises nothing is a
    horizontal line, named at the right edge."""
    horizontal_ends = []
    for method, look in method_looks(rows).items():
        line = rows[rows.method == method]
        if np.isfinite(line.gamma).all():
            ax.plot(line.gamma, line["mean"], **look.line)
            _draw_spread(ax, line, look, 0.0)
            ax.annotate(
                look.label, (line.gamma.iloc[0], line["mean"].iloc[0]), xytext=(9, 0),
                textcoords="offset points", va="center",
            )  # fmt: skip
        else:
            y = line["mean"].iloc[-1]
            ax.axhline(y, **look.line | {"marker": ""})
            horizontal_ends.append((y, f"{look.label} (no ε)", look.color))
    right = ax.get_xlim()[1]
    ax.set(xlim=(None, right))
    label_line_ends(ax, [(right, *end) for end in horizontal_ends])


def tabulate_exposures(table: DataFrame) -> DataFrame:
    """One row for each (model, method, gamma) of a results table: mean and spread over seeds.

    ``max`` is the paper's statistic, the exposure of the luckiest canary of each run; ``mean``
    the average over the canaries. DP-SGD has no gamma: its one result appears at every gamma.
    """
    runs = [*CELL_COLUMNS, "seed"]
    by_run = table[table.metric == "exposure"].groupby(runs).value.agg(["max", "mean"])
    by_run["ppl"] = table[table.metric == "test_ppl_words"].set_index(runs).value
    statistics = by_run.groupby(CELL_COLUMNS).agg(["mean", "std"])
    statistics.columns = statistics.columns.map("_".join)
    return repeat_at_every_gamma(
        statistics.assign(seeds=by_run.groupby(CELL_COLUMNS).size()).reset_index()
    )


def plot_exposure_by_gamma(
    summary: DataFrame, band: ChanceBand, runs: DataFrame | None = None
) -> Figure:
    """CRT, Figure 3: exposure of the luckiest canary against gamma, one panel for each model.

    ``summary`` is :func:`tabulate_exposures`; ``band`` is where a model that knows nothing lands
    (:func:`crtlib.attacks.exposure.exposure_chance_band`). Given the results table from which the
    summary was made (``runs``), each seed is a dot. No exposure is above the ceiling.
    """
    rows = summary.rename(columns={"max_mean": "mean", "max_std": "std"})
    rows = rows.assign(low=band.low, high=band.high)
    if runs is not None:
        exposures = runs[runs.metric == "exposure"].groupby([*CELL_COLUMNS, "seed"]).value.max()
        rows = add_values_of_seeds(rows, exposures.reset_index())
    most = math.log2(canaries.CANARY_SPACE_SIZE)
    ceiling = f"the most a canary can have: {most:.1f} bits", lambda _: most
    fig = plot_attack(rows, ylabel="highest exposure (bits)", nothing=band.mean, ceiling=ceiling)
    for ax in fig.axes:
        ax.set_ylim(0, 21)
    return fig


def plot_membership(
    summary: DataFrame,
    metric: str,
    *,
    ylabel: str,
    runs: DataFrame | None = None,
) -> Figure:
    """CRT, Figures 4 and 5: accuracy of an attack against gamma, one panel for each model.

    ``summary`` is :func:`crtlib.attacks.membership.summarise_membership`; ``metric`` is
    "mia_accuracy" for Figure 4, "group_accuracy" for Figure 5, or another that has a band. Given
    the results table from which the summary was made (``runs``), each seed is a dot. For
    "mia_accuracy" the dashed line is the most that the rule can reach
    (:func:`crtlib.attacks.membership_measures.best_possible_accuracy`). Raises ``ValueError`` for a
    metric that the summary does not hold.
    """
    rows = summary[summary.metric == metric]
    if rows.empty:
        metrics = ", ".join(sorted(set(summary.metric)))
        raise ValueError(f"metric={metric!r}: must be one of {metrics}")
    if runs is not None:
        rows = add_values_of_seeds(rows, runs[runs.metric == metric])
    most = (
        ("all missed secrets named", membership_measures.best_possible_accuracy)
        if metric == "mia_accuracy"
        else None
    )
    return plot_attack(rows, ylabel=ylabel, nothing=0.5, ceiling=most)


def add_values_of_seeds(summary: DataFrame, runs: DataFrame) -> DataFrame:
    """``summary`` with the column ``values``: the results of the single seeds in ``runs`` (columns
    model, method, gamma, value). A method without gamma has its values at each gamma."""
    values: DataFrame = runs.groupby(CELL_COLUMNS).value.agg(tuple).rename("values").reset_index()
    return summary.merge(repeat_at_every_gamma(values), on=CELL_COLUMNS, how="left")


def plot_epsilon_by_gamma(table: DataFrame) -> Figure:
    """CRT, Figure 6: Bayesian confidentiality against gamma, one line for each epsilon' of DP-SGD.

    Columns ``target`` (epsilon'), ``gamma``, ``epsilon`` and ``relation``: one panel for each. The
    vertical axis is linear up to 0.1 and logarithmic above.
    """
    relations = group_rows(table, "relation")
    targets = sorted(set(table.target))
    shades = [*map(to_hex, plt.get_cmap("viridis")(np.linspace(0.0, 0.7, len(targets))))]
    titles = [name.replace("_", " ") for name, _ in relations]
    most = 1.3 * table.epsilon.max()
    with make_panels(titles, height=3.5, room=0.4, sharex=True, sharey=True) as (fig, axes):
        for ax, (_, rows) in zip(axes, relations, strict=True):
            ends = []
            for (target, line), shade in zip(
                group_rows(rows.sort_values("target"), "target"), shades, strict=True
            ):
                x, y = line.sort_values("gamma")[["gamma", "epsilon"]].to_numpy().T
                ax.plot(x, y, "o-", color=shade, clip_on=False)
                ends.append((x[-1], y[-1], f"ε′ = {target:g}", shade))
            ax.set_yscale("symlog", linthresh=0.1, linscale=0.6)
            ticks = [t for t in (0, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10) if t <= most]
            ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
            ax.minorticks_off()
            ax.set(xlim=(0, None), ylim=(0, most), ylabel="Bayesian confidentiality ε")
            label_line_ends(ax, ends)
        axes[-1].set_xlabel(GAMMA)
        target, gamma = (x[len(x) // 2] for x in (targets, sorted(set(table.gamma))))
        rows = table[(table.target == target) & (table.gamma == gamma)]
        pairs = zip(rows.epsilon, rows.relation, strict=True)
        values = list_in_words(
            [f"{epsilon:.2g} ({name.replace('_', ' ')})" for epsilon, name in pairs]
        )
        describe_figure(fig, f"Bayesian confidentiality against the miss rate. At ε′ = {target:g}, "
                             f"at γ = {gamma:g}, ε is {values}.")  # fmt: skip
    return fig
