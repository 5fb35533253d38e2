"""Figures of secret protection, in the theme of :mod:`crtbook.figures`.

>>> cell = {"targets": "sqrt", "noisy": True, "seed": 0, "learning_rate": 0.001}
>>> rows = [{**cell, "scale": s, "kept": 0.5, "test": 5.0, "needed": 2.0} for s in (2.0, np.inf)]
>>> fig = plot_plans_by_constant(pd.DataFrame(rows + [{**row, "noisy": False} for row in rows]))
>>> [ax.get_title("left") for ax in fig.axes]
['weight that is kept', 'test loss without noise', 'noise multiplier', 'test loss with noise']
"""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from crtbook.claims.statistics import confidence_half_width
from crtbook.figures.primer import Frame, render_lines
from crtbook.figures.theme import (
    CARD,
    INK,
    LOOKS,
    MUTED,
    describe_figure,
    draw_shared_legend,
    label_rows,
    list_in_words,
    make_panels,
)

RULE_STYLE = LOOKS["rules"]


def plot_plans_by_constant(cells: DataFrame, plans: DataFrame | None = None) -> Figure:
    """Hush!, Figure 1: four panels against the constant C, with no preprocessing as a horizontal
    line.

    ``cells`` is :func:`crtbook.secrets.choose_learning_rates`, one row per plan and seed; an
    infinite ``scale`` means no preprocessing. ``plans`` (:func:`crtbook.secrets.tabulate_plans`)
    has more constants and rules for the panels that need no training. Lines are means, dots are
    seeds, and the band is the 95 % interval of the mean without preprocessing. Losses are in nats
    per hidden token.
    """
    titles = [title for title, _, _ in LOOKS["panels"]]
    with make_panels(titles, columns=2, height=2.6, room=0.7) as (fig, axes):
        for ax, (_, value, noisy) in zip(axes, LOOKS["panels"], strict=True):
            rows = cells[cells.noisy == noisy]
            if plans is not None and value != "test":
                rows = pd.concat([rows[~np.isfinite(rows.scale)], plans])
            _draw_against_scale(ax, rows, value)
            ax.title.set_fontsize(11.3)
        for ax in axes[2:]:
            ax.set_xlabel("constant C")
        draw_shared_legend(fig, columns=1)
        describe_figure(
            fig, f"Weight kept, noise and losses against the constant C. {_describe_best(cells)}"
        )
    return fig


def plot_weight_and_noise(plans: DataFrame) -> Figure:
    """The two panels of Hush!'s Figure 1 that need no training, for a whole corpus.

    ``plans`` is :func:`crtbook.word_plans.select_plans_by_constant`, one row per plan and seed; an
    infinite ``scale`` means no preprocessing.
    """
    panels = [(title, value) for title, value, _ in LOOKS["panels"] if value != "test"]
    with make_panels([title for title, _ in panels], columns=2, height=2.6, room=0.7) as (
        fig,
        axes,
    ):
        for ax, (_, value) in zip(axes, panels, strict=True):
            _draw_against_scale(ax, plans, value)
            ax.title.set_fontsize(11.3)
            ax.set_xlabel("constant C")
        draw_shared_legend(fig, columns=1)
        mean = plans[plans.targets == "linear"].groupby("scale")[["kept", "needed"]].mean()
        least, unprocessed = mean.iloc[0], mean.iloc[-1]
        describe_figure(
            fig,
            f"Weight kept and noise against the constant C. At C = {mean.index[0]:g} the rule of "
            f"the paper keeps {100 * least.kept:.0f} % of the weight and needs a noise of "
            f"{least.needed:.3g}, {unprocessed.needed:.3g} without it.",
        )
    return fig


def _draw_against_scale(ax: Axes, rows: DataFrame, value: str) -> None:
    """The column ``value`` against the constant C, a line for each rule."""
    unprocessed = rows[~np.isfinite(rows.scale)][value]
    ax.axhline(
        unprocessed.mean(), color=INK, linewidth=1.2, linestyle="--", label="no preprocessing"
    )
    if half_width := confidence_half_width(unprocessed.std(), len(unprocessed)):
        ends = unprocessed.mean() - half_width, unprocessed.mean() + half_width
        ax.axhspan(*ends, color=MUTED, alpha=0.16, linewidth=0)
    for rule_number, (rule, style) in enumerate(RULE_STYLE.items()):
        of_rule = rows[(rows.targets == rule) & np.isfinite(rows.scale)]
        if of_rule.empty:
            continue
        mean = of_rule.groupby("scale")[value].mean()
        ax.plot(mean.index, mean, **style)
        ax.scatter(of_rule.scale * 1.05 ** (2 * rule_number - 1), of_rule[value], s=16, alpha=0.5,
                   linewidth=0, color=style["color"], marker=style["marker"])  # fmt: skip
    ax.set_xscale("log", base=2)
    ticks = sorted(set(rows.scale[np.isfinite(rows.scale)]))
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    low = min(0.0, rows[value].min()) if value in ("kept", "needed") else None
    ax.set(xlabel="", ylabel="", ylim=(low, None))


def _describe_best(cells: DataFrame) -> str:
    """The lowest mean loss under noise, with and without preprocessing."""
    means = cells[cells.noisy].groupby(["targets", "scale"]).test.mean()
    finite = np.isfinite(means.index.get_level_values("scale"))
    plans, unprocessed = means[finite], means[~finite]
    if not len(plans) or not len(unprocessed):
        return ""
    lowest: Any = plans.idxmin()
    rule, scale = lowest
    label = RULE_STYLE[rule]["label"].split(",")[0]
    best = f"{plans.min():.3g} nats ({label}, C = {scale:g})"
    return f"Best with noise: {best}, {unprocessed.min():.3g} without preprocessing."


def plot_games(verdicts: DataFrame) -> Figure:
    """How often the attacker named the secret, with the interval, against what was promised and
    what is accounted. ``verdicts`` is :func:`crtbook.game.summarise_games`; each row is a line."""
    rows = verdicts.sort_values(["learns", "noise"]).reset_index(drop=True)
    y = np.arange(len(rows))
    with make_panels([""], height=0.6 * len(rows), room=1.7) as (fig, (ax,)):
        ax.hlines(y, rows.low, rows.high, color="#0072B2")
        for column, shift, style in LOOKS["game_marks"]:
            ax.scatter(rows[column], y + shift, **style)
        names = [f"{LOOKS['games'][k]},\n{LOOKS['noise'].get(n, f'{n:g} of the noise')}"
                 for k, n in zip(rows.learns, rows.noise, strict=True)]  # fmt: skip
        label_rows(ax, names)
        ax.set(xlim=(0, 1.03), ylabel="", xlabel="chance that the secret is named")
        draw_shared_legend(fig, columns=1)
        full_noise = rows[rows.noise == 1.0]
        rates = [
            f"{r.rate:.2f} against {r.promised:.2f} ({r.learns})" for r in full_noise.itertuples()
        ]
        end = f"; with the promised noise: {list_in_words(rates)}" if rates else ""
        describe_figure(fig, f"How often the secret was named, by noise, against the promise{end}.")
    return fig


def plot_extraction(summary: DataFrame) -> Figure:
    """Hush!, Figure 3: validation loss, and memorised (filled) and generalised (hollow) probes,
    against the noise multiplier.

    Columns ``hidden``, ``noise_multiplier``, and for ``loss``, ``memorised`` and ``generalised``
    (shares of the probes) ``_mean`` and ``_std``. Bars are one standard deviation over seeds.
    """
    shades = plt.get_cmap("viridis")(np.linspace(0.1, 0.75, summary.hidden.nunique()))
    with make_panels(["", ""], height=2.7, room=0.5, sharex=True) as (fig, (above, below)):
        ends = summary.sort_values("noise_multiplier").groupby("hidden")
        for shade, (size, rows) in zip(shades, ends, strict=True):
            for ax, name, label, face, line in (
                (above, "loss", f"width {size}", shade, "-"), (below, "memorised", "", shade, "-"),
                (below, "generalised", "", CARD, ":"),
            ):  # fmt: skip
                ax.errorbar(
                    rows.noise_multiplier, rows[f"{name}_mean"], rows[f"{name}_std"].fillna(0),
                    color=shade, marker="o", markeredgecolor=shade, capsize=2.5, elinewidth=1.2,
                    markerfacecolor=face, linestyle=line, label=label,
                )  # fmt: skip
        above.set_ylabel("validation loss (nats)")
        below.set(ylabel="share of the probes", xlabel="noise multiplier σ")
        least = summary.noise_multiplier[summary.noise_multiplier > 0].min()
        below.set_xscale("symlog", linthresh=least, linscale=0.5)
        ticks = sorted(set(summary.noise_multiplier))
        below.set_xticks(ticks, [f"{t:g}" for t in ticks])
        below.minorticks_off()
        for name, face, line in (("memorised", MUTED, "-"), ("generalised", CARD, ":")):
            below.plot([], [], "o", color=MUTED, markeredgecolor=MUTED, markerfacecolor=face,
                       linestyle=line, label=name)  # fmt: skip
        below.legend()
        widths = above.get_legend_handles_labels()
        fig.legend(*widths, loc="outside upper left", ncols=3)
        describe_figure(fig, _describe_extraction(summary))
    return fig


def _describe_extraction(summary: DataFrame) -> str:
    """The share of memorised probes of each width, at the least and at the most noise."""
    sentences = []
    for size, rows in summary.sort_values("noise_multiplier").groupby("hidden"):
        first, last = rows.iloc[0], rows.iloc[-1]
        sentences.append(
            f"width {size}: {first.memorised_mean:.0%} at σ = {first.noise_multiplier:g}, "
            f"{last.memorised_mean:.0%} at {last.noise_multiplier:g}"
        )
    return (
        f"Loss and shares of memorised probes against the noise multiplier; {'; '.join(sentences)}."
    )


def render_posterior_slider(table: DataFrame) -> str:
    """The posterior r against the prior p with a slider for the noise multiplier, as HTML.

    Columns ``sigma``, ``bound`` (each a line), ``prior``, ``posterior``; r = p is drawn as well.
    """
    frames = []
    priors = sorted(table.prior.unique())
    shown_prior = priors[int(np.argmin(np.abs(np.log(priors) - np.log(0.01))))]
    for sigma, rows in table.groupby("sigma"):
        rows_shown = rows[rows.prior == shown_prior].itertuples()
        values = [f"{row.posterior:.2g} ({row.bound})" for row in rows_shown]
        curves = {
            str(bound): (line.prior, line.posterior)
            for bound, line in rows.sort_values("prior").groupby("bound", sort=False)
        }
        sentence = f"A prior of {shown_prior:.2g} becomes {list_in_words(values)}."
        frames.append(Frame(f"{sigma:g}", sentence, curves | {"nothing learned": (priors, priors)}))
    return render_lines(
        frames, active=len(frames) // 2, prefix="σ",
        xaxis={"title": "prior p: a guess without the model", "log": True},
        yaxis={"title": "posterior r: with the model", "range": (0, 1.02)},
        alt="The posterior chance of a right guess against the prior, with a slider for the noise "
        "multiplier σ.",
    )  # fmt: skip
