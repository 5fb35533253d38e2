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

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from crtbook.figures import sliders
from crtbook.figures.theme import CARD, INK, MUTED, SMALL, Style

Series = tuple[Sequence[Any], Sequence[Any]]
Axis = Mapping[str, Any]
"""Of an axis: ``title``, ``range`` (two numbers), ``share`` (as per cent), ``log`` (of y)."""
LINE = 44
"""Characters in a line of pieces."""
_STYLES = (
    ("#D55E00", "-"),
    ("#0072B2", (0, (4, 2))),
    ("#00795A", (0, (1, 1.5))),
    (MUTED, (0, (4, 2, 1, 2))),
)


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
    xaxis: Axis,
    yaxis: Axis,
) -> str:
    """Lines under a slider, as HTML; every frame has the same series in the same order."""

    def draw(frame: Frame) -> Callable[[Axes], None]:
        def on(ax: Axes) -> None:
            for (name, (x, y)), (color, dash) in zip(frame.series.items(), _STYLES, strict=False):
                ax.plot(x, y, color=color, linestyle=dash, label=name)
                if name == frame.shaded:
                    ax.fill_between(x, y, color=color, alpha=0.3, linewidth=0)
            if frame.marked is not None:
                ax.axvline(frame.marked, color=INK, linewidth=1.2, linestyle=(0, (1, 2)))

        return on

    return _figure(frames, draw, active, prefix, alt, xaxis, yaxis)


def bars(
    frames: Sequence[Frame],
    *,
    active: int,
    prefix: str,
    alt: str,
    xaxis: Axis,
    yaxis: Axis,
) -> str:
    """Groups of bars under a slider, as HTML; a series is (categories, heights)."""

    def draw(frame: Frame) -> Callable[[Axes], None]:
        width = 0.8 / len(frame.series)

        def on(ax: Axes) -> None:
            for k, ((name, (x, y)), (color, _)) in enumerate(
                zip(frame.series.items(), _STYLES, strict=False)
            ):
                shift = width * (k - (len(frame.series) - 1) / 2)
                look: Style = {"color": color, "hatch": "//" * k, "edgecolor": CARD, "linewidth": 0}
                ax.bar([j + shift for j in range(len(y))], y, width, label=name, **look)
                if k == 0:  # the names of the bars change with the slider
                    for j, word in enumerate(x):
                        place: Style = {"transform": ax.get_xaxis_transform(), "va": "top"}
                        ax.text(j, -0.03, str(word), ha="center", fontsize=SMALL, **place)

        return on

    alone = all(len(frame.series) == 1 for frame in frames)
    return _figure(frames, draw, active, prefix, alt, xaxis, yaxis, legend=not alone, named=False)


def pieces(
    cuts: Sequence[tuple[str, str, Sequence[str]]], *, active: int, prefix: str, alt: str
) -> str:
    """A sentence cut into pieces under a slider, as HTML.

    ``cuts`` holds, for each position of the slider, its label, the sentence below the figure, and
    the pieces; a space is drawn as "␣". Long sentences run over several lines.
    """

    longest = max(sum(map(len, parts)) for _, _, parts in cuts)
    line = min(LINE, longest)

    def draw(parts: Sequence[str]) -> Callable[[Axes], None]:
        def on(ax: Axes) -> None:
            x, y = 0, 0
            for k, part in enumerate(parts):
                if x + len(part) > line:
                    x, y = 0, y + 1
                color = "#0072B2" if k % 2 else "#00795A"
                ax.barh(y, len(part) - 0.15, left=x, height=0.8, color=color)
                shown = part.replace(" ", "␣")
                look: Style = {"family": "monospace", "color": CARD}
                ax.text(x + len(part) / 2 - 0.07, y, shown, ha="center", va="center", **look)
                x += len(part)

        return on

    rows = 1 if longest <= LINE else -(-longest // (LINE - 6))
    positions = [sliders.Frame(label, draw(parts), said) for label, said, parts in cuts]
    return sliders.slider(
        positions, active=active, name=prefix.strip(" =") or "step", alt=alt, legend=False,
        height=0.36 * rows, arrange=lambda ax: ax.set_axis_off(),
        xlim=(0, line), ylim=(rows - 0.4, -0.6),
    )  # fmt: skip


def _figure(
    frames: Sequence[Frame],
    draw: Callable[[Frame], Callable[[Axes], None]],
    active: int,
    prefix: str,
    alt: str,
    xaxis: Axis,
    yaxis: Axis,
    *,
    legend: bool = True,
    named: bool = True,
) -> str:
    """All frames in one figure, of which the slider shows one at a time."""

    def arrange(ax: Axes) -> None:
        ax.set(xlabel=xaxis.get("title", ""), ylabel=yaxis.get("title", ""))
        ax.set_xlim(xaxis.get("range", ax.get_xlim()))
        ax.set_yscale("log" if yaxis.get("log") else "linear")
        ax.set_ylim(yaxis.get("range", (0, None)))
        for axis in (ax.xaxis, ax.yaxis):
            if (xaxis if axis is ax.xaxis else yaxis).get("share"):
                axis.set_major_formatter(PercentFormatter(1, decimals=0))
        if not named:  # the bars have their names themselves
            ax.set_xticks([])
            ax.xaxis.labelpad = 20

    positions = [sliders.Frame(frame.label, draw(frame), frame.said) for frame in frames]
    return sliders.slider(
        positions, active=active, name=prefix.strip(" =") or "step", alt=alt, legend=legend,
        arrange=arrange,
    )  # fmt: skip
