"""Figures of secret protection, in the theme of :mod:`crtlib.figures`.

>>> cell = {"targets": "sqrt", "noisy": True, "seed": 0, "learning_rate": 0.001}
>>> rows = [{**cell, "scale": s, "kept": 0.5, "test": 5.0, "needed": 2.0} for s in (2.0, np.inf)]
>>> fig = figure_1(pd.DataFrame(rows + [{**row, "noisy": False} for row in rows]))
>>> [ax.get_title("left") for ax in fig.axes]
['weight that is kept', 'test loss without noise', 'noise multiplier', 'test loss with noise']
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from crtlib.figures.theme import CARD, INK, MUTED, shared_legend, theme, with_slider

RULE_STYLE = {
    "linear": {"label": "budget C c, as in the paper", "color": "#D55E00", "marker": "s"},
    "sqrt": {"label": "budget C √c, ours", "color": "#00795A", "marker": "o"},
}
PANELS = (
    ("weight that is kept", "kept", True),
    ("test loss without noise", "test", False),
    ("noise multiplier", "needed", True),
    ("test loss with noise", "test", True),
)


def figure_1(cells: pd.DataFrame) -> Figure:
    """Hush!, Figure 1: four panels against the constant C, and no preprocessing as a line across.

    ``cells`` is :func:`crtlib.experiments.secrets.chosen`, one row a plan and seed; an infinite ``scale``
    is no preprocessing. Marks are means, bars one standard deviation over seeds. Losses are in
    nats a token that is asked for.
    """
    with theme():
        fig, axes = plt.subplots(2, 2, figsize=(5.8, 5.4))
        for ax, (title, value, noisy) in zip(axes.flat, PANELS, strict=True):
            rows = cells[cells.noisy == noisy]
            whole = rows[~np.isfinite(rows.scale)][value]
            mean, std = whole.mean(), np.nan_to_num(whole.std())
            ax.axhline(mean, color=INK, linewidth=1.2, linestyle="--", label="no preprocessing")
            ax.axhspan(mean - std, mean + std, color=MUTED, alpha=0.16, linewidth=0)
            for k, (rule, style) in enumerate(RULE_STYLE.items()):
                some = rows[(rows.targets == rule) & np.isfinite(rows.scale)]
                line = some.groupby("scale")[value].agg(["mean", "std"])
                x = line.index * 1.03 ** (2 * k - 1)  # bars of equal C side by side
                bars = {"yerr": line["std"].fillna(0), "capsize": 2.5, "elinewidth": 1.2}
                ax.errorbar(x, line["mean"], **bars, **style)
            ax.set_xscale("log", base=2)
            ticks = sorted(set(rows.scale[np.isfinite(rows.scale)]))
            ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
            ax.set_title(title)
        for ax in axes[1]:
            ax.set_xlabel("constant C")
        for ax in axes[:, 0]:
            ax.set_ylim(0, None)
        shared_legend(fig)
        plt.close(fig)
    return fig


def game_figure(verdicts: pd.DataFrame) -> Figure:
    """How often the attacker named the secret, with the interval, against what was promised and
    what is accounted; ``verdicts`` is :func:`crtlib.experiments.game.verdicts`, one row a line."""
    names = {0.0: "no noise", 0.5: "half the noise", 1.0: "noise as promised"}
    kinds = {"bias": "only a bias learns", "lstm": "an LSTM learns"}
    rows = verdicts.sort_values(["kind", "noise"]).reset_index(drop=True)
    y = np.arange(len(rows))
    with theme():
        fig, ax = plt.subplots(figsize=(5.4, 1.4 + 0.48 * len(rows)))
        ax.hlines(y, rows.low, rows.high, color="#0072B2")
        ax.plot(rows.rate, y, "o", color="#0072B2", label="measured, 95 % interval")
        ax.plot(rows.promised, y, "|", color="#D55E00", markersize=16, markeredgewidth=2.5,
                markeredgecolor="#D55E00", label="promised")  # fmt: skip
        ax.plot(rows.accounted, y - 0.24, "D", color="#00795A", label="bound for the noise added")
        labels = [
            f"{kinds[kind]},\n{names.get(noise, f'{noise:g} of the noise')}"
            for kind, noise in zip(rows.kind, rows.noise, strict=True)
        ]
        ax.set_yticks(y, labels)
        ax.set(
            xlim=(0, 1.03), ylim=(len(rows) - 0.5, -0.5), xlabel="chance that the secret is named"
        )
        fig.legend(loc="outside upper left", ncols=3, columnspacing=1.1, handlelength=1.1)
        plt.close(fig)
    return fig


def extraction_figure(summary: pd.DataFrame) -> Figure:
    """Hush!, Figure 3: validation loss, and memorised (filled) and generalised (hollow) probes,
    against the noise multiplier.

    Columns ``hidden``, ``noise_multiplier``, and for ``loss``, ``memorised`` and ``generalised``
    (shares of the probes) ``_mean`` and ``_std``.
    """
    shades = plt.get_cmap("viridis")(np.linspace(0.1, 0.75, summary.hidden.nunique()))
    with theme():
        fig, axes = plt.subplots(2, 1, figsize=(5.4, 5.4), sharex=True)
        for shade, (size, rows) in zip(shades, summary.groupby("hidden"), strict=True):
            rows = rows.sort_values("noise_multiplier")
            x = rows.noise_multiplier
            for ax, name, fill in (
                (axes[0], "loss", shade),
                (axes[1], "memorised", shade),
                (axes[1], "generalised", CARD),
            ):
                bars = {"yerr": rows[f"{name}_std"].fillna(0), "capsize": 2.5, "elinewidth": 1.2}
                ax.errorbar(
                    x, rows[f"{name}_mean"], color=shade, marker="o", markerfacecolor=fill,
                    markeredgecolor=shade, linestyle="-" if fill is shade else ":",
                    label=f"width {size}" if ax is axes[0] else None, **bars,
                )  # fmt: skip
        axes[0].set_ylabel("validation loss (nats)")
        axes[1].set_ylabel("share of the probes")
        least = summary.noise_multiplier[summary.noise_multiplier > 0].min()
        axes[1].set_xscale("symlog", linthresh=least, linscale=0.5)
        ticks = sorted(set(summary.noise_multiplier))
        axes[1].set_xticks(ticks, [f"{t:g}" for t in ticks])
        axes[1].minorticks_off()
        axes[1].set_xlabel("noise multiplier σ")
        look = {"color": MUTED, "marker": "o", "markeredgecolor": MUTED}
        styles = ({"markerfacecolor": MUTED}, {"markerfacecolor": CARD, "linestyle": ":"})
        marks = [plt.Line2D([], [], **look, **style) for style in styles]
        axes[1].legend(marks, ["memorised", "generalised"])
        fig.legend(loc="outside upper center", ncols=3)
        plt.close(fig)
    return fig


def posterior_slider(table: pd.DataFrame) -> str:
    """The posterior r against the prior p with a slider for the noise multiplier, as HTML.

    Columns ``sigma``, ``bound`` (a line each), ``prior``, ``posterior``; r = p is drawn as well.
    """
    import plotly.graph_objects as go

    sigmas, bounds = sorted(table.sigma.unique()), list(dict.fromkeys(table.bound))
    middle = len(sigmas) // 2
    fig = go.Figure()
    styles = (("#D55E00", "dash"), ("#00795A", "solid"), ("#0072B2", "dot"))
    for i, sigma in enumerate(sigmas):
        for bound, (color, dash) in zip(bounds, styles, strict=False):
            line = table[(table.sigma == sigma) & (table.bound == bound)].sort_values("prior")
            fig.add_scatter(
                x=line.prior.tolist(),
                y=line.posterior.round(5).tolist(),
                name=bound,
                line={"color": color, "dash": dash},
                visible=i == middle,
            )
    each = sorted(table.prior.unique())
    fig.add_scatter(x=each, y=each, name="nothing learned", line={"color": MUTED, "width": 1})
    steps = [
        {
            "label": f"{sigma:g}",
            "method": "update",
            "args": [
                {"visible": [j // len(bounds) == i for j in range(len(fig.data) - 1)] + [True]}
            ],
        }
        for i, sigma in enumerate(sigmas)
    ]
    return with_slider(
        fig,
        steps,
        active=middle,
        prefix="σ = ",
        xaxis={
            "title": "prior p: a guess without the model",
            "type": "log",
            "exponentformat": "none",
            "dtick": 1,
        },
        yaxis={"title": "posterior r: with the model", "range": [0, 1.02]},
        hovermode="x unified",
    )
