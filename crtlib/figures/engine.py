"""What a private step costs.

>>> len(STEP_STYLE) > 3
True
"""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from crtlib.figures.theme import INK, MUTED, theme

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
