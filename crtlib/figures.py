"""Figures: one theme, and one function for each figure of the papers (table -> matplotlib Figure).

>>> with theme():
...     fig, ax = plt.subplots()
>>> METHOD_STYLE["crt"]["label"], MODEL_MARKER["lstm"]
('CRT', 'o')
>>> _ = chance_band(ax, 1.94, 7.60, mean=4.23)
>>> provenance(fig, "quick, cpu, 1 seed, 2026-01-01").get_text()
'quick, cpu, 1 seed, 2026-01-01'
>>> plt.close(fig)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from crtlib.exposure import Band

INK = "#1d2733"
"""Text."""
MUTED = "#5b6673"
"""Secondary text."""
FAINT = "#d9dee4"
"""Grid lines."""
CARD = "#ffffff"
"""The card every figure lies on, on light and on dark pages."""

# Okabe and Ito's palette, which stays apart under the common colour-vision deficiencies. The line
# style differs as well, so that the methods are told apart in grey.
METHOD_STYLE: dict[str, dict] = {
    "sgd": {"label": "non-private, masked", "color": "#D55E00", "linestyle": "-"},
    "dpsgd": {"label": "DP-SGD", "color": "#0072B2", "linestyle": "--"},
    "crt": {"label": "CRT", "color": "#00795A", "linestyle": "-"},
    "crt_sigma0": {"label": "CRT, σ = 0", "color": "#3A9BD6", "linestyle": "-."},
    "dedup": {"label": "dedup only", "color": "#B97F00", "linestyle": ":"},
    "selective": {"label": "S-DP", "color": "#B05A8B", "linestyle": (0, (5, 1, 1, 1, 1, 1))},
    "lp_weighted": {"label": "LP-weighted", "color": "#4B4B9B", "linestyle": (0, (3, 1))},
}
"""Label, colour and line style of each method: ``ax.plot(x, y, **METHOD_STYLE["crt"])``."""

MODEL_MARKER: dict[str, str] = {"lstm": "o", "gru": "D", "gpt2": "^", "gpt2_public": "v"}
"""Marker of each model family."""

# 5.4 inches wide: on a telephone, where a figure gets about 350 px, 11 points are still 10 px tall.
_RC = {
    "figure.figsize": (5.4, 3.6),
    "figure.dpi": 160,
    "figure.facecolor": CARD,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.07,
    "figure.constrained_layout.w_pad": 0.07,
    "savefig.facecolor": CARD,
    "savefig.pad_inches": 0.12,
    "axes.facecolor": CARD,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(color=[style["color"] for style in METHOD_STYLE.values()]),
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "font.size": 10.5,
    "font.family": "DejaVu Sans",
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "lines.linewidth": 2,
    "lines.markersize": 6.5,
    "lines.markeredgecolor": CARD,
    "lines.markeredgewidth": 0.8,
    "mathtext.fontset": "dejavusans",
}


@contextlib.contextmanager
def theme() -> Iterator[None]:
    """Draw in the book's style inside this ``with`` block; matplotlib's settings come back after.

    A figure lies on a white card, so that it reads the same on a light and on a dark page.
    """
    with plt.rc_context(_RC):
        yield


def provenance(fig: Figure, text: str) -> Text:
    """Print a small footer below the axes: profile, device, seeds and date of the run."""
    # The figure's x label: the layout engine keeps room for it, whatever the axes need.
    return fig.supxlabel(text, x=0.99, ha="right", fontsize=8, color=MUTED)


def chance_band(
    ax: Axes, low: float, high: float, *, mean: float | None = None, label: str = "chance, 5–95 %"
) -> Rectangle:
    """Shade what a model that knows nothing scores, from ``low`` to ``high`` on the y axis."""
    if mean is not None:
        ax.axhline(mean, color=MUTED, linewidth=1, linestyle=(0, (1, 2)), zorder=0.6)
    return ax.axhspan(low, high, color=MUTED, alpha=0.16, linewidth=0, zorder=0.5, label=label)


def shared_legend(fig: Figure) -> None:
    """One legend above all panels, of what is drawn in any of them."""
    drawn: dict = {}
    for ax in fig.axes:
        drawn |= {b: a for a, b in zip(*ax.get_legend_handles_labels(), strict=True)}
    fig.legend(drawn.values(), drawn.keys(), loc="outside upper center", ncols=2)


MODEL_NAME = {
    "lstm": "LSTM",
    "gpt2": "GPT-2 (from scratch)",
    "gpt2_public": "GPT-2 (public start)",
}
CORPUS_NAME = {
    "customersim": "CustomerSim",
    "schema_guided": "Schema-Guided Dialogue",
    "multiwoz": "MultiWOZ 2.2",
    "wikitext2": "WikiText-2",
}


def figure_2(curves: pd.DataFrame, *, value: str = "ppl") -> Figure:
    """CRT, Figure 2: utility against epsilon, one point an epoch, one panel a corpus and model.

    ``curves`` is :func:`crtlib.utility.curve` at one gamma for each method; ``value`` is "ppl"
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

    ``summary`` is :func:`crtlib.exposure.summary`; bars are one standard deviation over seeds;
    ``band`` is where a model that knows nothing lands (:func:`crtlib.exposure.chance_band`).
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


def with_slider(
    fig: go.Figure,
    steps: list[dict],
    *,
    active: int,
    prefix: str,
    xaxis: dict,
    yaxis: dict,
    **layout: object,
) -> str:
    """A plotly figure with a slider below, as HTML in the book's style.

    ``steps`` are plotly's; ``active`` is the one at the start. Plotly's script is the one that the
    book's pages share, so the figure works on those pages.
    """
    shown = {"prefix": prefix, "font": {"size": 15}}
    style = {
        "sliders": [{"steps": steps, "active": active, "currentvalue": shown, "pad": {"t": 55}}],
        "xaxis": {"gridcolor": FAINT} | xaxis,
        "yaxis": {"gridcolor": FAINT} | yaxis,
        "hoverlabel": {"bgcolor": CARD},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": INK, "size": 14},
        "margin": {"l": 55, "r": 15, "t": 10, "b": 10},
        "height": 460,
    }
    fig.update_layout(**(style | layout))
    return fig.to_html(
        full_html=False,
        include_plotlyjs="../_static/vendor/plotly.min.js",
        config={"displayModeBar": False, "responsive": True},
    )


STEP_STYLE: dict[str, tuple[str, str, str]] = {
    "kernels": ("our kernels, no DP", MUTED, "D"),
    "ours": ("our DP-SGD", "#00795A", "o"),
    "opacus-hooks": ("Opacus, hooks", "#0072B2", "s"),
    "opacus-ghost": ("Opacus, ghost", "#D55E00", "^"),
}
"""Label, colour and marker of each engine of ``benchmarks/dp_step.py``."""


def step_times(rows: pd.DataFrame, goals: Mapping[str, float]) -> Figure:
    """Step time of each engine over the natural, non-private step's, one line a model.

    ``rows`` are those of ``benchmarks/dp_step.py``; a mark at ``ratio_median``, a line to
    ``ratio_min``. ``goals``: what our own engine was to reach on a model, drawn as a short line.
    """
    names = {"lstm-10k": "LSTM\nV = 10,000", "lstm-2k": "LSTM\nV = 2,000",
             "gpt2-4x256": "GPT-2\n4 × 256", "distilgpt2": "distilgpt2"}  # fmt: skip
    kinds = list(dict.fromkeys(rows.model))
    with theme():
        fig, ax = plt.subplots(figsize=(5.4, 1.3 + 0.62 * len(kinds)))
        ax.axvline(1, color=INK, linewidth=1)
        for k, (engine, (label, color, marker)) in enumerate(STEP_STYLE.items()):
            some = rows[(rows.engine == engine) & rows.ratio_median.notna()]
            y = some.model.map(kinds.index) + 0.16 * (k - 1.5)  # close marks do not hide each other
            ax.hlines(y, some.ratio_min, some.ratio_median, color=color)
            ax.plot(some.ratio_median, y, marker, color=color, label=label)
        for kind in set(goals) & set(kinds):
            y = kinds.index(kind)
            ax.vlines(goals[kind], y - 0.3, y + 0.14, color="#00795A", linewidth=1.4)
        low, high = 0.85 * rows.ratio_min.min(), max(2.0, 1.3 * rows.ratio_median.max())
        steps = (0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50)
        ticks = [t for t in steps if low < t < high]
        ax.set_xscale("log")
        ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
        ax.set(xlim=(low, high), ylim=(len(kinds) - 0.45, -0.55))
        ax.minorticks_off()
        ax.set_yticks(range(len(kinds)), [names.get(kind, kind) for kind in kinds])
        ax.grid(visible=False, axis="y")
        ax.set_xlabel("step time / natural step")
        fig.legend(loc="outside upper left", ncols=2, columnspacing=1.2)
        plt.close(fig)
    return fig
