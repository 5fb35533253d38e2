"""All methods side by side: proved, audited, attacked, their cost; and the cost of a private step.

>>> row = {"label": "CRT", "arm": "crt", "proved_add_or_remove": 0.7, "proved_replace": 2.4,
...        "proved_swap": 4.9, "audited": 0.0, "exposure": 4.2, "accuracy": 0.51,
...        "strongest": "zlib", "strongest_high": 0.53, "test_ppl_words": 2.2}
>>> fig = plot_axis(pd.DataFrame([row, row | {"label": "redaction", "proved_replace": np.inf}]))
>>> fig.get_label()
'By method: CRT proves ε = 2.4, 0 audited, attack 0.51, perplexity 2.2; redaction proves nothing, 0 audited, attack 0.51, perplexity 2.2.'
"""  # noqa: E501

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from crtbook.figures.theme import (
    INK,
    LOOKS,
    MUTED,
    describe_figure,
    draw_shared_legend,
    label_rows,
    make_panels,
    method_looks,
    set_plain_ticks,
)

NOTHING = "#d55e00"


def plot_axis(rows: pd.DataFrame) -> Figure:
    """One row for each method in four panels; ``rows`` is :func:`crtbook.axis.summarise_arms`.

    The first panel has a bar from what is proved for a point added or removed to what is proved for
    the secret replaced, a cross where nothing is proved, and a triangle at what the audit in one
    run shows. The second has the accuracy of the best of all scores, with the upper end of its
    chance band.
    """
    colors = _list_colors(rows)
    y = np.arange(len(rows))
    with make_panels(LOOKS["axis"], height=0.75 + 0.3 * len(y), room=0.5, sharey=True) as (
        fig,
        axes,
    ):
        for ax, column in zip(axes, ("", "accuracy", "exposure", "test_ppl_words"), strict=True):
            label_rows(ax, rows.label.tolist())
            if column:
                ax.scatter(rows[column], y, color=colors, s=45, zorder=3)
        _draw_epsilons(axes[0], rows, colors)
        axes[1].scatter(
            rows.strongest_high, y, marker="|", s=90, color=MUTED, label="upper end of chance"
        )
        axes[1].axvline(0.5, color=MUTED, linewidth=0.8)
        axes[3].set_xscale("log")
        set_plain_ticks(axes[3].xaxis)
        draw_shared_legend(fig, columns=1)
        describe_figure(fig, f"By method: {_describe_methods(rows)}.")
    return fig


def _draw_epsilons(ax: Axes, rows: pd.DataFrame, colors: list[str]) -> None:
    """What is proved and audited for each method, in the colours of the methods."""
    y = np.arange(len(rows))
    low, high = rows.proved_add_or_remove, rows.proved_replace
    proved = np.isfinite(high)
    edge = 2.0 * max([1.0, *low[np.isfinite(low)], *high[proved]])
    ax.hlines(
        y[proved], low[proved], high[proved], colors=np.array(colors)[proved], linewidth=5,
        capstyle="butt", label="proved (left: added or removed; right: replaced)",
    )  # fmt: skip
    if not proved.all():
        nothing = np.full((~proved).sum(), edge), y[~proved]
        ax.scatter(*nothing, s=40, marker="x", color=NOTHING, label="nothing proved")
    audit_label = "audited in one run, at least"
    ax.scatter(rows.audited, y, s=40, zorder=3, marker="<", color=INK, label=audit_label)
    ax.set_xlim(-0.03 * edge, 1.08 * edge)


def _list_colors(rows: pd.DataFrame) -> list[str]:
    """The colour of each row's method. Training without noise on raw or on redacted text has that
    of ordinary training."""
    names = rows.arm.replace({"raw": "sgd", "redaction": "sgd"})
    looks = method_looks(rows.assign(method=names, method_label=rows.label))
    return [looks[name].color for name in names]


def _describe_methods(rows: pd.DataFrame) -> str:
    """The numbers of each method, as a clause."""
    tuples: Any = rows.itertuples()
    return "; ".join(
        f"{row.label} proves "
        + (f"ε = {row.proved_replace:.2g}" if row.proved_replace < np.inf else "nothing")
        + f", {row.audited:.2g} audited, attack {row.accuracy:.2g}, "
        + f"perplexity {row.test_ppl_words:.2g}"
        for row in tuples
    )


STEP_STYLE, SHAPES = LOOKS["engines"], LOOKS["shapes"]
"""Label, colour and marker of each engine in ``benchmarks/dp_step.py``."""


def plot_step_times(rows: pd.DataFrame) -> Figure:
    """Step time of each engine relative to a natural, non-private step, one line for each model.

    ``rows`` are those of ``benchmarks/dp_step.py``. The mark is at ``ratio_median``, with a line to
    ``ratio_min``.
    """
    kinds = list(dict.fromkeys(rows.model))
    with make_panels([""], height=0.72 * len(kinds), room=1.5) as (fig, (ax,)):
        ax.axvline(1, color=INK, linewidth=1)
        for engine_number, (engine, (label, color, marker)) in enumerate(STEP_STYLE.items()):
            of_engine = rows[(rows.engine == engine) & rows.ratio_median.notna()]
            # Apart, so that close marks do not hide each other.
            y = of_engine.model.map(kinds.index) + 0.16 * (engine_number - 1.5)
            ax.hlines(y, of_engine.ratio_min, of_engine.ratio_median, color=color)
            ax.plot(of_engine.ratio_median, y, marker, color=color, label=label)
        limits = (0.85 * rows.ratio_min.min(), max(2.0, 1.3 * rows.ratio_median.max()))
        ax.set_xscale("log")
        ax.set(xlim=limits, xlabel="step time / natural step")
        set_plain_ticks(ax.xaxis, apart=1.45)
        label_rows(ax, [SHAPES.get(kind, kind) for kind in kinds])
        draw_shared_legend(fig)
        ours = _describe_own_engine(rows)
        describe_figure(fig, f"Step time over that of a step without privacy. Our DP-SGD: {ours}.")
    return fig


def _describe_own_engine(rows: pd.DataFrame) -> str:
    own_rows = rows[(rows.engine == "ours") & rows.ratio_median.notna()]
    pairs = zip(own_rows.model, own_rows.ratio_median, strict=True)
    return ", ".join(f"{SHAPES.get(m, m)} {r:.2f}".replace("\n", " ") for m, r in pairs)
