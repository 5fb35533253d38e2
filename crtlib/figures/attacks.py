"""Figures of the attacks, in the theme of :mod:`crtlib.figures`.

>>> cell = {"metric": "mia_accuracy", "model": "lstm", "method": "crt", "gamma": 0.1}
>>> row = {**cell, "mean": 0.51, "std": 0.01, "seeds": 5, "low": 0.48, "high": 0.52}
>>> fig = membership_figure(pd.DataFrame([row]), "mia_accuracy", ylabel="accuracy")
>>> fig.axes[0].get_title("left"), fig.axes[0].get_ylabel()
('LSTM', 'accuracy')
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from crtlib.attacks import membership
from crtlib.figures.theme import METHOD_STYLE, MODEL_MARKER, MUTED, shared_legend, theme

MODEL_TITLE = {"lstm": "LSTM", "gpt2": "GPT-2 (from scratch)"}


def membership_figure(
    summary: pd.DataFrame, metric: str, *, ylabel: str, title: str = "", level: float = 0.95
) -> Figure:
    """CRT, Figures 4 and 5: accuracy of an attack against gamma, one panel a model.

    ``summary`` is :func:`crtlib.attacks.membership.summary` (made at ``level``); ``metric`` is
    "mia_accuracy" for Figure 4, "group_accuracy" for Figure 5, or another that has a band. Bars are
    one standard deviation over seeds; the band is where a model that knows nothing lands, at each
    gamma the widest of the panel's methods. On "mia_accuracy" the dotted line is the most that the
    rule can reach (:func:`crtlib.attacks.membership.ceiling`). Raises ``ValueError`` for a metric that the
    summary does not hold.
    """
    rows = summary[summary.metric == metric]
    if rows.empty:
        raise ValueError(
            f"metric={metric!r}: must be one of {', '.join(sorted(set(summary.metric)))}"
        )
    kinds = list(dict.fromkeys(rows.model))
    with theme():
        fig, axes = plt.subplots(
            len(kinds), 1, figsize=(5.4, 0.9 + 2.9 * len(kinds)), sharex=True, sharey=True,
            squeeze=False,
        )  # fmt: skip
        for ax, kind in zip(axes[:, 0], kinds, strict=True):
            panel = rows[rows.model == kind]
            band = panel.groupby("gamma").agg({"low": "min", "high": "max"}).dropna()
            if len(band) == 1:  # a band must have a width to be seen
                band = pd.concat([band, band.rename(lambda gamma: gamma + 0.05)])
            label = f"chance, {level:.0%} of such figures"
            shade = {"color": MUTED, "alpha": 0.16, "linewidth": 0, "zorder": 0.5}
            ax.fill_between(band.index, band.low, band.high, label=label, **shade)
            ax.axhline(0.5, color=MUTED, linewidth=1, linestyle=(0, (1, 2)), zorder=0.6)
            if metric == "mia_accuracy":
                gammas = np.linspace(0, panel.gamma.max(), 50)
                most = [membership.ceiling(g) for g in gammas]
                ax.plot(gammas, most, ":", color=MUTED, linewidth=1.2, label="all missed found")
            present = [m for m in METHOD_STYLE if m in set(panel.method)]
            for k, method in enumerate(present):
                line = panel[panel.method == method].sort_values("gamma")
                shift = 0.004 * (k - (len(present) - 1) / 2)  # bars of equal gamma side by side
                ax.errorbar(
                    line.gamma + shift,
                    line["mean"],
                    yerr=line["std"].fillna(0),
                    marker=MODEL_MARKER[kind],
                    elinewidth=1.2,
                    capsize=2.5,
                    **METHOD_STYLE[method],
                )
            ax.set_title(MODEL_TITLE.get(kind, kind))
            ax.set_ylabel(ylabel)
        axes[-1, 0].set_xlabel("miss rate γ of the redaction policy")
        if title:
            fig.suptitle(title)
        shared_legend(fig)
        plt.close(fig)
    return fig
