"""One axis for all methods: what is proved of a secret, what audits and attacks show, the cost.

>>> row = {"label": "CRT", "arm": "crt", "proved_add_or_remove": 0.7, "proved_replace": 2.4,
...        "proved_swap": 4.9, "audited": 0.0, "exposure": 4.2, "accuracy": 0.51,
...        "strongest": "zlib", "strongest_high": 0.53, "test_ppl_words": 2.2}
>>> fig = axis(pd.DataFrame([row, row | {"label": "redaction", "proved_replace": np.inf}]))
>>> fig.get_label()
'By method: CRT proves ε = 2.4, 0 audited, attack 0.51, perplexity 2.2; redaction proves nothing, 0 audited, attack 0.51, perplexity 2.2.'
"""  # noqa: E501

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from crtbook.figures.theme import (
    INK,
    MUTED,
    describe,
    method_looks,
    panels,
    plain_ticks,
    shared_legend,
)

NOTHING = "#d55e00"
TITLES = (
    "ε of one secret",
    "strongest membership attack",
    "highest canary exposure, bits",
    "test perplexity over words",
)


def axis(rows: pd.DataFrame) -> Figure:
    """One row a method in four panels; ``rows`` is :func:`crtbook.axis.summary`.

    The first: a bar from what is proved for a point added or removed to what is proved for the
    secret replaced, a cross where nothing is proved, a triangle at what the audit in one run shows.
    The second: the accuracy of the best of all scores, with the upper end of its chance band.
    """
    n = len(rows)
    with panels(list(TITLES), height=0.75 + 0.3 * n, room=0.5, sharey=True) as (fig, axes):
        for ax in axes:
            ax.set_yticks(range(n), rows.label.tolist())
            ax.set_ylim(n - 0.4, -0.6)
            ax.grid(axis="y", visible=False)
        _epsilons(axes[0], rows)
        _dots(axes[1], rows, "accuracy")
        axes[1].scatter(
            rows.strongest_high,
            range(n),
            marker="|",
            s=90,
            color=MUTED,
            label="upper end of chance",
        )
        axes[1].axvline(0.5, color=MUTED, linewidth=0.8)
        _dots(axes[2], rows, "exposure")
        _dots(axes[3], rows, "test_ppl_words")
        axes[3].set_xscale("log")
        plain_ticks(axes[3].xaxis, axes[3].get_xlim())
        shared_legend(fig, columns=1)
        describe(fig, f"By method: {_said(rows)}.")
    return fig


def _epsilons(ax: Axes, rows: pd.DataFrame) -> None:
    finite = rows[["proved_add_or_remove", "proved_replace"]].to_numpy(dtype=float)
    most = float(np.max(finite[np.isfinite(finite)], initial=1.0))
    edge, colors = 2.0 * most, _colors(rows)
    row: Any
    for k, row in enumerate(rows.itertuples()):
        low, high = row.proved_add_or_remove, row.proved_replace
        if np.isfinite(high):
            ax.plot(
                [low, high],
                [k, k],
                color=colors[k],
                linewidth=5,
                solid_capstyle="butt",
                label="proved: added or removed, to replaced" if _first(rows, k) else None,
            )
    none = [k for k, high in enumerate(rows.proved_replace) if not np.isfinite(high)]
    if none:
        ax.scatter(
            [edge] * len(none), none, marker="x", s=40, color=NOTHING, label="nothing proved"
        )
    ax.scatter(
        rows.audited,
        range(len(rows)),
        marker="<",
        s=40,
        color=INK,
        zorder=3,
        label="audited in one run, at least",
    )
    ax.set_xlim(-0.03 * edge, 1.08 * edge)


def _first(rows: pd.DataFrame, k: int) -> bool:
    return not np.isfinite(rows.proved_replace.to_numpy()[:k]).any()


def _dots(ax: Axes, rows: pd.DataFrame, column: str) -> None:
    ax.scatter(rows[column], range(len(rows)), color=_colors(rows), s=45, zorder=3)


def _colors(rows: pd.DataFrame) -> list[str]:
    named = rows.arm.replace({"raw": "sgd", "redaction": "sgd"})
    looks = method_looks(rows.assign(method=named, method_label=rows.label))
    return [looks[name].color for name in named]


def _said(rows: pd.DataFrame) -> str:
    each = []
    row: Any
    for row in rows.itertuples():
        proved = f"ε = {row.proved_replace:.2g}" if np.isfinite(row.proved_replace) else "nothing"
        each.append(
            f"{row.label} proves {proved}, {row.audited:.2g} audited, attack {row.accuracy:.2g}, "
            f"perplexity {row.test_ppl_words:.2g}"
        )
    return "; ".join(each)
