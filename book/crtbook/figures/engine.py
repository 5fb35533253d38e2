"""What a private step costs.

>>> len(STEP_STYLE) > 3
True
"""

import pandas as pd
from matplotlib.figure import Figure

from crtbook.figures.theme import INK, LOOKS, describe, panels, plain_ticks, shared_legend

STEP_STYLE, SHAPES = LOOKS["engines"], LOOKS["shapes"]
"""Label, colour and marker of each engine of ``benchmarks/dp_step.py``."""


def step_times(rows: pd.DataFrame) -> Figure:
    """Step time of each engine over the natural, non-private step's, one line a model.

    ``rows`` are those of ``benchmarks/dp_step.py``; a mark at ``ratio_median``, a line to
    ``ratio_min``.
    """
    kinds = list(dict.fromkeys(rows.model))
    with panels([""], height=0.72 * len(kinds), room=1.5) as (fig, (ax,)):
        ax.axvline(1, color=INK, linewidth=1)
        for k, (engine, (label, color, marker)) in enumerate(STEP_STYLE.items()):
            some = rows[(rows.engine == engine) & rows.ratio_median.notna()]
            y = some.model.map(kinds.index) + 0.16 * (k - 1.5)  # close marks do not hide each other
            ax.hlines(y, some.ratio_min, some.ratio_median, color=color)
            ax.plot(some.ratio_median, y, marker, color=color, label=label)
        limits = (0.85 * rows.ratio_min.min(), max(2.0, 1.3 * rows.ratio_median.max()))
        ax.set_xscale("log")
        ax.set(xlim=limits, ylim=(len(kinds) - 0.45, -0.55), xlabel="step time / natural step")
        plain_ticks(ax.xaxis, limits, apart=1.45)
        ax.set_yticks(range(len(kinds)), [SHAPES.get(kind, kind) for kind in kinds])
        ax.grid(visible=False, axis="y")
        shared_legend(fig)
        describe(fig, f"Step time over that of a step without privacy. Our DP-SGD: {_ours(rows)}.")
    return fig


def _ours(rows: pd.DataFrame) -> str:
    own = rows[(rows.engine == "ours") & rows.ratio_median.notna()]
    pairs = zip(own.model, own.ratio_median, strict=True)
    return ", ".join(f"{SHAPES.get(m, m)} {r:.2f}".replace("\n", " ") for m, r in pairs)
