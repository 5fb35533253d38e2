"""Figures of screening: Algorithm 1 on real turns, recall with its intervals, and its price.

>>> from crtlib.screening import policies
>>> from crtlib.text.records import Point
>>> from crtlib.text.records import Secret
>>> point = Point("0", "u", "USR: I am Ada Lovelace.", (Secret("name", 10, 22),))
>>> page = figure_7([point, point], policies.oracle, policies.oracle)
>>> page.count('class="f7-m f7-secret"'), page.count('class="f7-m f7-dedup"')
(3, 2)
>>> low, high = clopper_pearson(180, 200)  # the paper's 90 % of 200
>>> f"{low:.3f} to {high:.3f}"
'0.850 to 0.938'
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from crtlib.figures.theme import CORPUS_NAME, INK, theme, with_slider
from crtlib.intervals import clopper_pearson
from crtlib.screening import dedup
from crtlib.screening.policy import Policy
from crtlib.screening.prepare import prepare
from crtlib.screening.redact import redact
from crtlib.text.records import MASK, Point

POLICY_STYLE = {
    "regex": ("regular expressions", "#B97F00", "s"),
    "pi": (r"tagger, $\pi$", "#0072B2", "o"),
    "pi_c": (r"tagger, $\pi_c$", "#00795A", "D"),
}
"""Label, colour and marker of a policy."""


# Tints over the page's own colours, so that light and dark pages both work. On a telephone a turn
# is a block, in which the columns that change nothing are left out.
_STYLE = """<style>
.f7 {display:grid; gap:.3rem .7rem; grid-template-columns:repeat(3,minmax(0,1fr)) 7.2rem;
  font-size:.78rem; line-height:1.4; margin:0}
.f7 b {align-self:end; border-bottom:2px solid #8a94a055; font-size:.84rem; line-height:1.25}
.f7 p {margin:0; padding:.25rem .5rem; border-radius:7px; background:#8a94a01f;
  line-height:1.4 !important; overflow-wrap:anywhere}
.f7 p.f7-same {background:none; opacity:.5; text-align:center}
.f7 p.f7-public {background:#00795a33; border-left:4px solid #00795a}
.f7 p.f7-private {background:#0072b233; border-left:4px double #3a8fd0}
.f7-m {color:inherit; border-radius:4px; padding:.03em .2em; box-decoration-break:clone;
  -webkit-box-decoration-break:clone}
.f7-secret {background:#f4a26170}
.f7-mask {background:#8a94a04d; font:.88em ui-monospace,monospace}
.f7-dedup {background:#e0442e33; border:1.5px dashed #e0442e; font:.88em ui-monospace,monospace}
.f7-left {background:#e0442e40; border:1.5px solid #e0442e}
.f7-key {font-size:.8rem; opacity:.9; margin:.7rem 0 0; line-height:1.9 !important}
.f7-key + figcaption {font-size:.88rem; font-weight:400 !important; line-height:1.5;
  letter-spacing:0; margin-top:.3rem; color:inherit !important; opacity:.8}
@media (max-width:760px) {.f7 {display:block} .f7 b, .f7 p.f7-same {display:none}
  .f7 p {margin-bottom:.25rem} .f7 p[data-line]::before {content:attr(data-line) ": "; opacity:.7}
  .f7 p.f7-public, .f7 p.f7-private {margin-bottom:1rem}}
</style>"""


def _mark(style: str, text: str) -> str:
    return f'<mark class="f7-m f7-{style}">{html.escape(text)}</mark>'


def _marked(point: Point, secret: str, mask: str) -> str:
    """A point as HTML: its labelled secrets in the style ``secret``, its masks in ``mask``."""
    pieces = [(s.start, s.end, secret) for s in point.secrets]
    pieces += [(*m.span(), mask) for m in re.finditer(re.escape(MASK), point.text)]
    out, at = "", 0
    for start, end, style in sorted(pieces):
        out += html.escape(point.text[at:start]) + _mark(style, point.text[start:end])
        at = end
    return out + html.escape(point.text[at:])


def figure_7(points: Sequence[Point], pi: Policy, pi_c: Policy, *, caption: str = "") -> str:
    """Figure 7 of CRT as HTML: what each line of Algorithm 1 does to each data point.

    The points are shown in clear: give simulated ones only, or ones that may be shown. Duplicates
    are those among ``points``.
    """
    repeated, flagged, cautious = dedup.pattern(points), pi(points), pi_c(points)
    points = [replace(p, id=str(i)) for i, p in enumerate(points)]
    done = prepare(points, flagged, cautious, pattern=repeated)
    public = {p.id for p in done.public}
    heads = ("the dataset D", "line 1: deduplicate", "line 2: redact by π", "lines 3, 4: split")
    cells = "".join(f"<b>{head}</b>" for head in heads)
    same = '<p class="f7-same">unchanged</p>'
    for p, again, spans, careful in zip(points, repeated, flagged, cautious, strict=True):
        cells += f"<p>{_marked(p, 'secret', 'mask')}</p>"
        once = f'<p data-line="line 1">{_mark("dedup", MASK)}</p>'
        cells += once if again else same
        left = redact(p, spans)
        twice = f'<p data-line="line 2">{_marked(left, "left", "mask")}</p>'
        cells += twice if (spans or left.secrets) and not again else same
        speaks = "π<sub>c</sub> speaks" if careful else ""
        why = "holds a mask" if again or MASK in left.text else speaks
        side = "public" if p.id in public else "private"
        cells += f'<p class="f7-{side}">{side}{": " * bool(why)}{why}</p>'
    shown = (("secret", "secret", "a secret"), ("dedup", MASK, "second occurrence"))
    shown += (("mask", MASK, "flagged by π"), ("left", "secret", "still in clear"))
    key = " &nbsp; ".join(f"{_mark(style, text)} {said}" for style, text, said in shown)
    caption = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    grid = f'<div class="f7">{cells}</div><p class="f7-key">{key}</p>'
    return f"{_STYLE}<figure>{grid}{caption}</figure>"


def recall_bars(table: pd.DataFrame) -> Figure:
    """Recall by kind with two-sided 95 % intervals, one panel a corpus.

    Columns ``corpus``, ``policy`` (a key of ``POLICY_STYLE``), ``kind``, ``secrets``, ``caught``.
    """
    table = table[table.secrets > 0]
    names = list(dict.fromkeys(table.corpus))
    kinds = {n: list(dict.fromkeys(table[table.corpus == n].kind)) for n in names}
    sizes = [len(kinds[n]) for n in names]
    with theme():
        fig, axes = plt.subplots(
            len(names), 1, figsize=(5.4, 0.9 + 0.5 * len(names) + 0.36 * sum(sizes)), sharex=True,
            height_ratios=sizes, squeeze=False,
        )  # fmt: skip
        for ax, name in zip(axes[:, 0], names, strict=True):
            for k, (policy, (label, color, marker)) in enumerate(POLICY_STYLE.items()):
                rows = table[(table.corpus == name) & (table.policy == policy)]
                recall = rows.caught / rows.secrets
                ends = [
                    clopper_pearson(*map(int, r)) for r in rows[["caught", "secrets"]].to_numpy()
                ]
                low, high = np.array(ends).reshape(-1, 2).T
                y = [kinds[name].index(kind) + 0.22 * (k - 1) for kind in rows.kind]
                bars = np.array([recall - low, high - recall]).clip(0)
                ax.errorbar(
                    recall, y, xerr=bars, fmt=marker, color=color, label=label, elinewidth=1.2
                )
            ax.set_title(CORPUS_NAME.get(name, name))
            ax.set_yticks(range(len(kinds[name])), kinds[name])
            ax.set_ylim(len(kinds[name]) - 0.5, -0.5)
        axes[-1, 0].set_xlabel("recall on held-out secrets, 95 % interval")
        axes[-1, 0].set_xlim(None, 1.02)
        fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
        plt.close(fig)
    return fig


def threshold_slider(sweep: pd.DataFrame) -> str:
    """Recall by kind and what it costs, with a slider for the threshold, as HTML.

    ``sweep``: rows of one corpus; a word is flagged where its score for *plain* is under ``plain``.
    Columns ``plain``, ``kind``, ``secrets``, ``caught``, ``precision``, ``turns``, ``speaks``.
    """
    import plotly.graph_objects as go

    sweep = sweep[sweep.secrets > 0]
    fig, steps, every = go.Figure(), [], sorted(sweep.plain.unique())
    start = every.index(0.9) if 0.9 in every else 0  # the paper's
    for i, plain in enumerate(every):
        rows = sweep[sweep.plain == plain]
        overall = rows[rows.kind == "all"].iloc[0]
        recall = rows.caught / rows.secrets
        counts = rows[["caught", "secrets"]].to_numpy()
        ends = [clopper_pearson(*map(int, r)) for r in counts]
        low, high = np.array(ends).T
        bars = {"array": (high - recall).round(4), "arrayminus": (recall - low).round(4)}
        fig.add_bar(
            x=recall.round(4),
            y=rows.kind,
            orientation="h",
            error_x={"type": "data", "color": INK, **bars},
            marker_color="#0072B2",
            visible=i == start,
        )
        said = f"{overall.speaks / overall.turns:.0%} of turns flagged, "
        said += f"{overall.precision:.0%} of flags right"
        shown = [{"visible": [j == i for j in range(len(every))]}, {"title.text": said}]
        steps.append({"label": f"{plain:g}", "method": "update", "args": shown})
    return with_slider(
        fig,
        steps,
        active=start,
        prefix="plain under ",
        title={"text": steps[start]["args"][1]["title.text"], "font": {"size": 15}},
        xaxis={"title": "recall", "range": [0, 1.02]},
        yaxis={"autorange": "reversed"},
        margin={"l": 75, "r": 15, "t": 45, "b": 10},
    )
