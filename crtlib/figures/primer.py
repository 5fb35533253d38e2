"""Figures of the two primers: lines and bars under a slider, a sentence cut into pieces.

>>> frames = [Frame("1", "σ is 1.", {"world D": ([0, 1], [0.2, 0.1])})]
>>> page = lines(frames, active=0, prefix="σ = ", alt="One falling line.", xaxis={}, yaxis={})
>>> 'type="range"' in page, 'aria-label="One falling line."' in page, "σ is 1." in page
(True, True, True)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from crtlib.figures import sliders
from crtlib.figures.theme import CARD, INK, MUTED

Series = tuple[Sequence[Any], Sequence[Any]]
_STYLES = (("#D55E00", "solid"), ("#0072B2", "dash"), ("#00795A", "dot"), (MUTED, "dashdot"))


@dataclass(frozen=True)
class Frame:
    """What one position of a slider shows.

    ``said`` is the sentence below the figure. ``series`` maps a name to its x and y. ``shaded``
    names the series that is filled down to the axis; ``marked`` is an x that gets an upright line.
    """

    label: str
    said: str
    series: Mapping[str, Series] = field(default_factory=dict)
    shaded: str = ""
    marked: float | None = None


def lines(
    frames: Sequence[Frame],
    *,
    active: int,
    prefix: str,
    alt: str,
    xaxis: dict[str, Any],
    yaxis: dict[str, Any],
    **layout: Any,
) -> str:
    """Lines under a slider, as HTML; every frame has the same series in the same order."""

    top = max(float(np.max(y)) for frame in frames for _, y in frame.series.values())

    def traces(frame: Frame) -> list[dict[str, Any]]:
        drawn: list[dict[str, Any]] = []
        for (name, (x, y)), (color, dash) in zip(frame.series.items(), _STYLES, strict=False):
            line = {"color": color, "dash": dash, "width": 2.5}
            filled = {"fill": "tozeroy"} if name == frame.shaded else {}
            curve = {"x": _short(x), "y": _short(y), "name": name, "mode": "lines", "line": line}
            drawn.append({"type": "scatter"} | curve | filled)
        marked = [] if frame.marked is None else [round(float(frame.marked), 4)] * 2
        upright = {"x": marked, "y": [0, round(top, 4)][: len(marked)], "mode": "lines"}
        look = {"line": {"color": INK, "width": 1.5, "dash": "dot"}, "showlegend": False}
        return [*drawn, {"type": "scatter", "hoverinfo": "skip"} | upright | look]

    return _figure(
        frames, traces, active=active, prefix=prefix, alt=alt, xaxis=xaxis, yaxis=yaxis, **layout
    )


def bars(
    frames: Sequence[Frame],
    *,
    active: int,
    prefix: str,
    alt: str,
    xaxis: dict[str, Any],
    yaxis: dict[str, Any],
    **layout: Any,
) -> str:
    """Groups of bars under a slider, as HTML; a series is (categories, heights)."""

    def traces(frame: Frame) -> list[dict[str, Any]]:
        drawn: list[dict[str, Any]] = []
        for (name, (x, y)), (color, _) in zip(frame.series.items(), _STYLES, strict=False):
            look = {"color": color, "pattern": {"shape": "/" if drawn else ""}}
            bar = {"x": list(x), "y": _short(y), "name": name, "marker": look}
            drawn.append({"type": "bar"} | bar)
        return drawn

    alone = all(len(frame.series) == 1 for frame in frames)
    return _figure(
        frames, traces, active=active, prefix=prefix, alt=alt, xaxis=xaxis, yaxis=yaxis,
        **({"showlegend": False} if alone else {}) | layout,
    )  # fmt: skip


def pieces(
    cuts: Sequence[tuple[str, str, Sequence[str]]], *, active: int, prefix: str, alt: str
) -> str:
    """A sentence cut into pieces under a slider, as HTML.

    ``cuts`` holds, for each position of the slider, its label, the sentence below the figure, and
    the pieces; a space is drawn as "␣".
    """
    widest = max(sum(map(len, parts)) for _, _, parts in cuts)

    def traces(frame: Frame) -> list[dict[str, Any]]:
        (parts, starts) = frame.series["pieces"]
        shades = ["#0072B2" if k % 2 else "#00795A" for k in range(len(parts))]
        return [
            {
                "type": "bar",
                "x": [len(part) for part in parts],
                "base": list(starts),
                "y": [""] * len(parts),
                "orientation": "h",
                "text": [part.replace(" ", "␣") for part in parts],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "textangle": 0,
                "textfont": {"color": CARD},
                "marker": {"color": shades, "line": {"color": CARD, "width": 2}},
                "hoverinfo": "text",
                "name": "pieces",
            }
        ]

    frames = []
    for label, said, parts in cuts:
        starts = np.cumsum([0, *map(len, parts)])[:-1].tolist()
        frames.append(Frame(label, said, {"pieces": (list(parts), starts)}))
    return _figure(
        frames, traces, active=active, prefix=prefix, alt=alt,
        xaxis={"range": [0, widest], "visible": False}, yaxis={"visible": False},
        showlegend=False, height=110, margin={"l": 5, "r": 5, "t": 5, "b": 5}, barmode="overlay",
    )  # fmt: skip


def _short(values: Sequence[Any]) -> list[float]:
    """Four significant digits: a page need not carry more."""
    return [float(f"{v:.4g}") for v in np.asarray(values, dtype=float)]


def _figure(
    frames: Sequence[Frame],
    traces: Callable[[Frame], list[dict[str, Any]]],
    *,
    active: int,
    prefix: str,
    alt: str,
    xaxis: dict[str, Any],
    yaxis: dict[str, Any],
    **layout: Any,
) -> str:
    """All frames in one figure, of which the slider shows one at a time."""
    positions = [sliders.Frame(frame.label, traces(frame), frame.said) for frame in frames]
    name = prefix.strip(" =") or "step"
    return sliders.slider(
        positions, active=active, name=name, alt=alt, xaxis=xaxis, yaxis=yaxis, **layout
    )
