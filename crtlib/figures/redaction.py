"""Figures of redaction: a dialogue and its secrets, what becomes of points, what labels certify.

>>> from crtlib.text.records import Dialogue
>>> from crtlib.text.records import Secret
>>> from crtlib.text.records import Turn
>>> turn = Turn("USR", "I am Ada.", (Secret("name", 5, 8),))
>>> page = figure_1(Dialogue("0", "u", (turn,)), [()])
>>> page.count("f1-m f1-missed")  # once in the panel of the imperfect policy, once in the key
2
"""

from __future__ import annotations

import html
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from crtlib.figures.theme import CARD, FAINT, INK, MUTED, theme
from crtlib.intervals import clopper_pearson_upper
from crtlib.text.records import MASK, Dialogue, Secret, Turn

# Tints over the page's own colours, so that light and dark pages both work; each kind of mark also
# differs in its border, so that none is told by colour alone.
_FIGURE_1 = """<style>
.f1 {display:grid; grid-auto-flow:column; gap:.35rem 1rem; margin:0; font-size:.8rem;
  line-height:1.45; grid-template:repeat(var(--rows),auto) / repeat(3,minmax(0,1fr))}
.f1 b {font-size:.86rem; line-height:1.25; align-self:end; padding-bottom:.15rem;
  border-bottom:2px solid #8a94a055}
.f1 p {margin:0; padding:.35rem .55rem; border-radius:8px; background:#8a94a01f;
  line-height:1.45 !important; overflow-wrap:anywhere}
.f1 p.usr {background:#3a7bd524; margin-left:.9rem}
.f1 small {opacity:.65; margin-right:.35em; letter-spacing:.03em}
.f1-m {color:inherit; border-radius:4px; padding:.04em .22em; box-decoration-break:clone;
  -webkit-box-decoration-break:clone}
.f1-secret {background:#f4a26170}
.f1-caught {background:#8a94a04d; font:.88em ui-monospace,monospace}
.f1-missed {background:#e0442e40; border:1.5px solid #e0442e}
.f1-wrong {background:#b05a8b33; border:1.5px dashed #c471a0; font:.88em ui-monospace,monospace}
.f1-key {font-size:.8rem; opacity:.9; margin:.7rem 0 0; line-height:1.9 !important}
.f1-key + figcaption {font-size:.88rem; font-weight:400 !important; line-height:1.5;
  letter-spacing:0; margin-top:.3rem; color:inherit !important; opacity:.8}
@media (max-width:760px) {.f1 {display:block} .f1 p {margin-bottom:.35rem}
  .f1 b {display:block; margin:.9rem 0 .4rem}}
</style>"""


def _mark(style: str, text: str, title: str) -> str:
    """A marked piece of text."""
    return f'<mark class="f1-m f1-{style}" title="{title}">{html.escape(text)}</mark>'


def _marked(turn: Turn, flagged: Sequence[Secret] | None) -> str:
    """A turn as HTML: its secrets marked, or, given ``flagged``, redacted and the errors marked."""

    def overlaps(a: Secret, b: Secret) -> bool:
        return a.start < b.end and b.start < a.end

    if flagged is None:
        pieces = [(s, "secret", turn.text[s.start : s.end]) for s in turn.secrets]
    else:
        missed = [s for s in turn.secrets if not any(overlaps(s, f) for f in flagged)]
        pieces = [(s, "missed", turn.text[s.start : s.end]) for s in missed]
        for f in flagged:
            caught = any(overlaps(s, f) for s in turn.secrets)
            pieces.append((f, "caught" if caught else "wrong", MASK))
    out, at = "", 0
    for s, style, text in sorted(pieces, key=lambda piece: piece[0].start):
        title = {"wrong": "no secret: a false positive", "missed": f"{s.kind}: a false negative"}
        out += html.escape(turn.text[at : s.start]) + _mark(style, text, title.get(style, s.kind))
        at = s.end
    return out + html.escape(turn.text[at:])


def figure_1(dialogue: Dialogue, flagged: Sequence[Sequence[Secret]], *, caption: str = "") -> str:
    """Figure 1 of CRT as HTML: a dialogue, redacted, and redacted by an imperfect policy.

    ``flagged`` holds the imperfect policy's spans in each turn's text. The dialogue is shown in
    clear: give it simulated ones only, or ones whose customer has agreed.
    """
    panels = {
        "The dialogue and its secrets": [None] * len(dialogue.turns),
        "Redacted perfectly": [turn.secrets for turn in dialogue.turns],
        "Redacted imperfectly": flagged,
    }
    cells = ""
    for title, labels in panels.items():
        cells += f"<b>{title}</b>"
        for turn, spans in zip(dialogue.turns, labels, strict=True):
            style = "usr" if turn.speaker == "USR" else "sys"
            speaker = html.escape(turn.speaker)
            cells += f'<p class="{style}"><small>{speaker}</small>{_marked(turn, spans)}</p>'
    key = " &nbsp; ".join(
        _mark(style, text, "") + f" {meaning}"
        for style, text, meaning in (
            ("secret", "secret", "confidential"),
            ("caught", MASK, "found"),
            ("missed", "secret", "missed: false negative"),
            ("wrong", MASK, "no secret: false positive"),
        )
    )
    rows = len(dialogue.turns) + 1
    body = f'<div class="f1" style="--rows:{rows}">{cells}</div><p class="f1-key">{key}</p>'
    caption = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    return f"{_FIGURE_1}<figure>{body}{caption}</figure>"


def public_and_private(counts: pd.DataFrame) -> Figure:
    """Stacked bars: what becomes of the data points, one bar for each row of ``counts``.

    Columns ``public``, ``private``, ``masked`` (``<MASK>`` only): numbers of points.
    """
    parts = {
        "public": ("public", "#00795A"),
        "private": ("private", "#0072B2"),
        "masked": ("nothing but <MASK>", FAINT),
    }
    shares = counts[list(parts)].div(counts[list(parts)].sum(axis=1), axis=0)[::-1]
    with theme():
        fig, ax = plt.subplots(figsize=(5.4, 0.75 + 0.52 * len(counts)))
        left = np.zeros(len(shares))
        for column, (label, color) in parts.items():
            ax.barh(shares.index, shares[column], left=left, label=label, color=color, height=0.62)
            for y, (start, width) in enumerate(zip(left, shares[column], strict=True)):
                if width > 0.08:
                    text, ink = f"{100 * width:.0f} %", INK if column == "masked" else CARD
                    ax.text(start + width / 2, y, text, color=ink, ha="center", va="center")
            left += shares[column].to_numpy()
        ax.set(xlim=(0, 1), xticks=[])
        ax.grid(visible=False)
        ax.spines[:].set_visible(False)
        ax.tick_params(left=False)
        fig.legend(loc="outside upper left", ncols=3, columnspacing=1.2, handlelength=1.1)
        plt.close(fig)  # a notebook shows it where it is asked for, once
    return fig


def certified_miss_rate(*, target: float, labelled: int = 200) -> Figure:
    """Upper 95 % bound of a miss rate against the number of labelled secrets, both logarithmic.

    Marks ``labelled`` labels without a miss, and how many it takes to certify ``target``.
    """
    n = np.unique(np.geomspace(20, 3 / target, 120).astype(int))
    enough = int(np.ceil(np.log(0.05) / np.log1p(-target)))
    with theme():
        fig, ax = plt.subplots()
        styles = ((0, "-", "#00795A"), (1, "--", "#B97F00"), (10, ":", "#D55E00"))
        for misses, style, color in styles:
            bound = [clopper_pearson_upper(misses, int(k)) for k in n[n > misses]]
            label = f"{misses} missed" if misses else "no miss"
            ax.plot(n[n > misses], bound, style, color=color, label=label)
        ax.axhline(target, color=MUTED, linewidth=1)
        ax.annotate(
            f"δ = {target:g}", (n[0], target), (0, -6), textcoords="offset points", va="top"
        )
        for k in (labelled, enough):
            bound = clopper_pearson_upper(0, k)
            ax.plot(k, bound, "o", color="#00795A")
            text = f"{k:,} labels: {bound:.2g}"
            ax.annotate(
                text, (k, bound), (-8, -5), textcoords="offset points", ha="right", va="top"
            )
        ax.set(xscale="log", yscale="log", xlabel="labelled secrets", ylim=(target / 8, 1))
        ax.set_ylabel("miss rate, 95 % upper bound")
        ax.legend(loc="upper right")
        plt.close(fig)
    return fig
