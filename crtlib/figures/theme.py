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
import html
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

if TYPE_CHECKING:
    import plotly.graph_objects as go


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


def with_slider(
    fig: go.Figure,
    steps: list[dict],
    *,
    active: int,
    prefix: str,
    xaxis: dict,
    yaxis: dict,
    alt: str = "",
    **layout: object,
) -> str:
    """A plotly figure under a slider, as HTML in the book's style.

    ``steps`` are plotly's, of method "update", with a key ``say`` for the sentence that a step
    shows below the figure, if it has one; ``active`` is the one at the start. ``alt`` says in
    words what is drawn. The slider is the browser's own, so that the keyboard moves it and a
    screen reader speaks it. Plotly's script is the one that the book's pages share, so the figure
    works on those pages.
    """
    style = {
        "xaxis": {"gridcolor": FAINT} | xaxis,
        "yaxis": {"gridcolor": FAINT} | yaxis,
        "hoverlabel": {"bgcolor": CARD},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": INK, "size": 14},
        "margin": {"l": 55, "r": 15, "t": 10, "b": 10},
        "height": 390,
    }
    fig.update_layout(**(style | layout))
    moves = [{key: step[key] for key in ("label", "say", "args") if key in step} for step in steps]
    plot = fig.to_html(
        full_html=False,
        include_plotlyjs="../_static/vendor/plotly.min.js",
        config={"displayModeBar": False, "responsive": True},
        post_script=_MOVE.replace("STEPS", json.dumps(moves).replace("</", "<\\/")),
    )
    said, label = steps[active].get("say"), html.escape(steps[active]["label"])
    name = html.escape(prefix.strip(" =") or "step")
    return (
        f'<figure class="with-slider" role="group" aria-label="{html.escape(alt or name)}" '
        f'style="margin:0;color:{INK}"><label style="display:block;padding:.2rem .5rem">'
        f"{html.escape(prefix)}<b>{label}</b>"
        f'<input type="range" min="0" max="{len(steps) - 1}" value="{active}" autocomplete="off" '
        f'aria-label="{name}" aria-valuetext="{label}" '
        f'style="display:block;width:100%;height:1.8rem;accent-color:#1D4E89"></label>{plot}'
        + (f'<p aria-live="polite">{html.escape(said)}</p>' if said else "")
        + "</figure>"
    )


_MOVE = """
const box = document.getElementById('{plot_id}').closest('.with-slider');
const input = box.querySelector('input'), steps = STEPS;
input.addEventListener('input', () => {  // the sentence stands below this script: not yet there
  const step = steps[input.value], said = box.querySelector('p[aria-live]');
  box.querySelector('label b').textContent = step.label;
  input.setAttribute('aria-valuetext', step.label);
  if (said) said.textContent = step.say || '';
  Plotly.update('{plot_id}', step.args[0], step.args[1] || {});
});
"""
