"""Figures 2, 3 and 6 of CRT.

>>> figure_6.__name__
'figure_6'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from crtlib.figures.theme import (
    CORPUS_NAME,
    INK,
    METHOD_STYLE,
    MODEL_MARKER,
    MODEL_NAME,
    MUTED,
    chance_band,
    shared_legend,
    theme,
    with_slider,
)

if TYPE_CHECKING:
    from crtlib.intervals import Band


def figure_2(curves: pd.DataFrame, *, value: str = "ppl") -> Figure:
    """CRT, Figure 2: utility against epsilon, one point an epoch, one panel a corpus and model.

    ``curves`` is :func:`crtlib.experiments.utility.curve` at one gamma for each method; ``value`` is "ppl"
    (perplexity, lower is better) or "acc" (top-1 accuracy). A method without a finite epsilon is a
    line across: it reached that utility, and promises nothing for it.
    """
    panels = list(dict.fromkeys(zip(curves.corpus, curves.model, strict=True)))
    with theme():
        fig, axes = plt.subplots(
            len(panels), 1, figsize=(5.4, 1.0 + 2.7 * len(panels)), squeeze=False
        )
        for ax, (corpus, model) in zip(axes[:, 0], panels, strict=True):
            rows = curves[(curves.corpus == corpus) & (curves.model == model)]
            for method in [m for m in METHOD_STYLE if m in set(rows.method)]:
                line, style = rows[rows.method == method].sort_values("epoch"), METHOD_STYLE[method]
                mean, std = line[f"{value}_mean"], line[f"{value}_std"].fillna(0)
                if np.isfinite(line.epsilon).all():
                    ax.errorbar(
                        line.epsilon,
                        mean,
                        yerr=std,
                        marker=MODEL_MARKER[model],
                        elinewidth=1.2,
                        capsize=2.5,
                        **style,
                    )
                else:
                    ax.axhline(mean.iloc[-1], **style | {"label": f"{style['label']} (no ε)"})
            ax.set_title(f"{CORPUS_NAME.get(corpus, corpus)}, {MODEL_NAME.get(model, model)}")
            ax.set_ylabel("perplexity" if value == "ppl" else "top-1 accuracy")
            if value == "ppl":
                ax.set_yscale("log")
                low, high = ax.get_ylim()
                ticks = [t for t in (1, 1.5, 2, 3, 5, 10, 20, 50, 100, 200) if low <= t <= high]
                ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
                ax.minorticks_off()
        axes[-1, 0].set_xlabel("ε so far")
        shared_legend(fig)
        plt.close(fig)
    return fig


def figure_3(summary: pd.DataFrame, band: Band) -> Figure:
    """CRT, Figure 3: exposure of the luckiest canary against gamma, one panel a model.

    ``summary`` is :func:`crtlib.attacks.exposure.summary`; bars are one standard deviation over seeds;
    ``band`` is where a model that knows nothing lands (:func:`crtlib.attacks.exposure.chance_band`).
    """
    kinds = list(dict.fromkeys(summary.model))
    with theme():
        fig, axes = plt.subplots(
            len(kinds), 1, figsize=(5.4, 0.9 + 2.9 * len(kinds)), sharex=True, squeeze=False
        )
        for ax, kind in zip(axes[:, 0], kinds, strict=True):
            label = f"chance, {band.level:.0%} of such figures"
            chance_band(ax, band.low, band.high, mean=band.mean, label=label)
            rows = summary[summary.model == kind]
            present = [m for m in METHOD_STYLE if m in set(rows.method)]
            for k, method in enumerate(present):
                line = rows[rows.method == method].sort_values("gamma")
                shift = 0.004 * (k - (len(present) - 1) / 2)  # bars of equal gamma side by side
                ax.errorbar(
                    line.gamma + shift,
                    line.max_mean,
                    yerr=line.max_std.fillna(0),
                    marker=MODEL_MARKER[kind],
                    elinewidth=1.2,
                    capsize=2.5,
                    **METHOD_STYLE[method],
                )
            ax.set_title(MODEL_NAME.get(kind, kind))
            ax.set_ylabel("highest exposure (bits)")
            ax.set_ylim(0, 21)
        axes[-1, 0].set_xlabel("miss rate γ of the redaction policy")
        shared_legend(fig)
        plt.close(fig)
    return fig


def figure_6(table: pd.DataFrame) -> Figure:
    """CRT, Figure 6: Bayesian confidentiality against gamma, one line for each epsilon' of DP-SGD.

    Columns ``target`` (epsilon'), ``gamma``, ``epsilon`` and, to compare, ``relation``: the second
    relation is drawn dashed. The vertical axis is linear up to 0.1 and logarithmic above.
    """
    table = table if "relation" in table else table.assign(relation="")
    relations, targets = list(dict.fromkeys(table.relation)), sorted(table.target.unique())
    shades = plt.get_cmap("viridis")(np.linspace(0.0, 0.7, len(targets)))
    with theme():
        fig, ax = plt.subplots(figsize=(5.4, 4.2))
        for relation, style in zip(relations, ("-", "--"), strict=False):
            for target, shade in zip(targets, shades, strict=True):
                chosen = (table.target == target) & (table.relation == relation)
                line = table[chosen].sort_values("gamma")
                marker = "o" if style == "-" else None
                ax.plot(line.gamma, line.epsilon, style, color=shade, marker=marker, clip_on=False)
                if style == "-" and len(line):
                    end = line.iloc[-1]
                    ax.annotate(
                        f"ε′ = {target:g}",
                        (end.gamma, end.epsilon),
                        (8, 0),
                        textcoords="offset points",
                        va="center",
                        color=shade,
                        annotation_clip=False,
                    )
        ax.set_yscale("symlog", linthresh=0.1, linscale=0.6)
        ticks = [t for t in (0, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10) if t <= 1.3 * table.epsilon.max()]
        ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
        ax.minorticks_off()
        ax.set_ylim(0, None)
        ax.set_xlim(0, None)
        ax.set(xlabel="miss rate γ of the redaction policy", ylabel="Bayesian confidentiality ε")
        if len(relations) > 1:
            names = [name.replace("_", " ") for name in relations]
            lines = [plt.Line2D([], [], color=INK, linestyle=s) for s in ("-", "--")]
            fig.legend(lines, names, loc="outside upper left", ncols=2)
        plt.close(fig)
    return fig


def figure_6_slider(table: pd.DataFrame) -> str:
    """Figure 6 with a slider for epsilon', as HTML; columns as in :func:`figure_6`."""
    import plotly.graph_objects as go

    targets, relations = sorted(table.target.unique()), list(dict.fromkeys(table.relation))
    middle = len(targets) // 2
    fig = go.Figure()
    styles = (("#00795A", "solid"), ("#D55E00", "dash"), (MUTED, "dot"))
    for i, target in enumerate(targets):
        for name, (color, dash) in zip(relations, styles, strict=False):
            line = table[(table.target == target) & (table.relation == name)]
            fig.add_scatter(
                x=line.gamma.tolist(),
                y=line.epsilon.round(5).tolist(),
                name=name.replace("_", " "),
                line={"color": color, "dash": dash},
                visible=i == middle,
            )
    steps = [
        {
            "label": f"{target:g}",
            "method": "update",
            "args": [{"visible": [j // len(relations) == i for j in range(len(fig.data))]}],
        }
        for i, target in enumerate(targets)
    ]
    return with_slider(
        fig,
        steps,
        active=middle,
        prefix="ε′ = ",
        xaxis={"title": "miss rate γ", "rangemode": "tozero"},
        yaxis={"title": "Bayesian confidentiality ε", "rangemode": "tozero"},
        hovermode="x unified",
    )
