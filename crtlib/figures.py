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
from collections.abc import Iterator

import matplotlib.pyplot as plt
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

INK, MUTED, FAINT, CARD = "#1d2733", "#5b6673", "#d9dee4", "#ffffff"
"""Text, secondary text, grid lines, and the card every figure lies on (light and dark pages)."""

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

MODEL_MARKER: dict[str, str] = {"lstm": "o", "gru": "D", "gpt2": "^"}
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
