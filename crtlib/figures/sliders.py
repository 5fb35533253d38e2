"""Figures with a slider: a plotly figure, and below it a control that the keyboard works.

>>> def line(k):
...     return {"type": "scatter", "x": [0, 1], "y": [0, k], "name": "k"}
>>> frames = [Frame(str(k), [line(k)], f"The line ends at {k}.") for k in (1, 2)]
>>> page = slider(frames, active=1, name="k", alt="A line.", xaxis={"title": "x"}, yaxis={})
>>> page.count('type="range"'), "The line ends at 2." in page, 'aria-label="A line."' in page
(1, True, True)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from crtlib.figures.theme import CARD, FAINT, INK, page

SCRIPT = "../_static/vendor/plotly.min.js"
"""Plotly's script, which the pages of the book share."""


@dataclass(frozen=True)
class Frame:
    """One position of a slider: its ``label``, the traces to show (plotly's dictionaries, equally
    many in each frame) and a sentence that says what they show."""

    label: str
    traces: Sequence[dict[str, Any]]
    sentence: str = ""
    title: str = field(default="", kw_only=True)


def slider(
    frames: Sequence[Frame],
    *,
    active: int,
    name: str,
    alt: str,
    xaxis: dict[str, Any],
    yaxis: dict[str, Any],
    always: Sequence[dict[str, Any]] = (),
    **layout: Any,
) -> str:
    """A plotly figure with a slider below, as HTML in the book's style.

    ``always`` are traces shown at every position. The slider is the browser's own: arrows, Page
    Up and Down, Home and End move it, and a screen reader says the sentence of the frame.
    """
    import plotly.graph_objects as go

    shown = [
        [j == i for j in range(len(frames)) for _ in frames[j].traces] for i in range(len(frames))
    ]
    visible = [[*row, *(True for _ in always)] for row in shown]
    traces = [dict(trace) for frame in frames for trace in frame.traces] + [dict(t) for t in always]
    for trace, seen in zip(traces, visible[active], strict=True):
        trace["visible"] = seen
    fig = go.Figure(data=traces)
    fig.update_layout(**(_style(xaxis, yaxis, frames[active].title) | layout))
    steps = [
        {"visible": row, "label": frame.label, "sentence": frame.sentence, "title": frame.title}
        for frame, row in zip(frames, visible, strict=True)
    ]
    told = json.dumps(steps, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    # From the content, so that two runs write the same page.
    key = "live-" + hashlib.sha256((fig.to_json() + told).encode()).hexdigest()[:12]
    plot = fig.to_html(
        full_html=False,
        include_plotlyjs=SCRIPT,
        div_id=key,
        config={"displayModeBar": False, "responsive": True},
    )
    return page(
        "slider.html.j2", key=key, plot=Markup(plot), steps=Markup(told), frames=frames,
        active=active, name=name, alt=alt,
    )  # fmt: skip


def _style(xaxis: dict[str, Any], yaxis: dict[str, Any], title: str) -> dict[str, Any]:
    return {
        "title": {"text": title, "font": {"size": 15}},
        "xaxis": {"gridcolor": FAINT} | xaxis,
        "yaxis": {"gridcolor": FAINT} | yaxis,
        "hoverlabel": {"bgcolor": CARD},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": INK, "size": 14},
        "margin": {"l": 55, "r": 15, "t": 45 if title else 10, "b": 10},
        "height": 420,
    }
