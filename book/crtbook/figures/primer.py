"""Figures with a slider: any figure, and the primers' lines, bars and cut sentences.

>>> frames = [Frame("1", "σ is 1.", {"world D": ([0, 1], [0.2, 0.1])})]
>>> page = render_lines(frames, active=0, prefix="σ = ", alt="A falling line.", xaxis={}, yaxis={})
>>> 'type="range"' in page, 'aria-label="A falling line."' in page, "σ is 1." in page
(True, True, True)
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from crtbook.figures.theme import (
    CARD,
    INK,
    LOOKS,
    SMALL,
    make_panels,
    render_page,
    render_svg,
    set_plain_ticks,
)


def render_slider(
    positions: Sequence[tuple[str, str, Any]],
    draw: Callable[[Axes, Any], Any],
    *,
    active: int,
    name: str,
    alt: str,
    height: float = 3.0,
    arrange: Callable[[Axes], Any] | None = None,
    legend: bool = True,
    **axes: Any,
) -> str:
    """A figure with a slider below, as HTML in the book's style.

    All positions share the axes, so only what the slider controls moves. The slider is the
    browser's own: arrows, Page Up, Page Down, Home and End work, and a screen reader reads its
    value and the sentence of the position. The page needs no drawing library: all positions are in
    one SVG, and a few lines of script show one and hide the others. Without the script, and in
    print, the figure shows the position ``active``.

    Args:
        positions: For each its label, a sentence that says what is seen there, and what ``draw``
            puts on the axes.
        draw: Draws a position.
        active: The number of the position that is shown first, from 0.
        name: The name of what the slider moves.
        alt: A sentence that describes the figure where it cannot be seen.
        height: The height of the axes in inches.
        arrange: Is called last, for ticks and limits.
        legend: Whether the figure has one.
        axes: Arguments of ``Axes.set``.

    >>> def line(ax, k):
    ...     ax.plot([0, 1], [0, k], label="k")
    >>> positions = [(str(k), f"The line ends at {k}.", k) for k in (1, 2)]
    >>> page = render_slider(positions, line, active=1, name="k", alt="A line.", xlabel="x")
    >>> page.count('type="range"'), "The line ends at 2." in page, 'aria-label="A line."' in page
    (1, True, True)
    >>> page.count('data-frame="0" style="display:none"'), page.count('data-frame="1"')
    (1, 1)
    """
    with make_panels([""], height=height, room=0.1) as (fig, (ax,)):
        for frame_number, (_, _, position) in enumerate(positions):
            before = set(ax.get_children())
            draw(ax, position)
            for artist in set(ax.get_children()) - before:
                artist.set_gid(f"frame-{frame_number}")
        ax.set(**axes)
        if arrange:
            arrange(ax)
        if legend:
            entries = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
            columns = 2 if max(map(len, entries), default=0) < 26 else 1
            fig.legend(entries.values(), entries.keys(), loc="outside upper left", ncols=columns)
        svg = render_svg(fig).replace('role="img" aria-label=""', 'aria-hidden="true"', 1)
    for frame_number in range(len(positions)):
        hidden = "" if frame_number == active else ' style="display:none"'
        svg = svg.replace(f'id="frame-{frame_number}"', f'data-frame="{frame_number}"{hidden}')
    steps = [{"label": label, "sentence": sentence} for label, sentence, _ in positions]
    steps_json = json.dumps(steps, ensure_ascii=False, separators=(",", ":")).replace(
        "<", "\\u003c"
    )
    # Made from the content, so that two runs write the same page.
    key = "live-" + hashlib.sha256((svg + steps_json).encode()).hexdigest()[:12]
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{key}-", svg)
    return render_page(
        "slider.html.j2", key=key, plot=Markup(svg), steps=Markup(steps_json), frames=steps,
        active=active, name=name, alt=alt,
    )  # fmt: skip


Series = tuple[Any, Any]
Axis = Mapping[str, Any]
"""Settings of an axis: ``title``, ``range`` (two numbers), ``share`` (as per cent), ``log``."""
LINE = 44
"""The number of characters in a line of pieces."""
_STYLES = [(color, (0, dashes or None)) for color, dashes in LOOKS["series"]]


@dataclass(frozen=True)
class Frame:
    """What one position of a slider shows.

    ``said`` is the sentence below the figure. ``series`` maps a name to its x and y. ``shaded``
    names the series that is filled down to the axis; ``marked`` is an x that gets a vertical line.
    """

    label: str
    said: str
    series: Mapping[str, Series] = field(default_factory=dict)
    shaded: str = ""
    marked: float | None = None


def render_lines(frames: Sequence[Frame], **options: Any) -> str:
    """Lines under a slider, as HTML; every frame has the same series in the same order."""

    def draw(ax: Axes, frame: Frame) -> None:
        for (name, (x, y)), (color, dash) in zip(frame.series.items(), _STYLES, strict=False):
            ax.plot(x, y, color=color, linestyle=dash, label=name)
            if name == frame.shaded:
                ax.fill_between(x, y, color=color, alpha=0.3, linewidth=0)
        if frame.marked is not None:
            ax.axvline(frame.marked, color=INK, linewidth=1.2, linestyle=(0, (1, 2)))

    return _render_frames(frames, draw, **options)


def render_bars(frames: Sequence[Frame], **options: Any) -> str:
    """Groups of bars under a slider, as HTML; a series is (categories, heights)."""

    def draw(ax: Axes, frame: Frame) -> None:
        width = 0.8 / len(frame.series)
        series = zip(frame.series.items(), _STYLES, strict=False)
        for series_number, ((name, (x, y)), (color, _)) in enumerate(series):
            places = np.arange(len(y)) + width * (series_number - (len(frame.series) - 1) / 2)
            ax.bar(places, y, width, label=name, color=color, hatch="//" * series_number,
                   edgecolor=CARD, linewidth=0)  # fmt: skip
            if series_number > 0:
                continue
            for category_number, word in enumerate(x):  # the names change with the slider
                ax.text(category_number, -0.03, str(word), ha="center", fontsize=SMALL, va="top",
                        transform=ax.get_xaxis_transform())  # fmt: skip

    alone = all(len(frame.series) == 1 for frame in frames)
    return _render_frames(frames, draw, legend=not alone, with_legend=False, **options)


def render_pieces(
    cuts: Sequence[tuple[str, str, Sequence[str]]], *, active: int, prefix: str, alt: str
) -> str:
    """A sentence cut into pieces under a slider, as HTML.

    ``cuts`` holds, for each position of the slider, its label, the sentence below the figure, and
    the pieces; a space is drawn as "␣". Long sentences take several lines.
    """

    longest = max(sum(map(len, pieces)) for _, _, pieces in cuts)
    line = min(LINE, longest)

    def draw(ax: Axes, pieces: Sequence[str]) -> None:
        x = y = 0
        for piece_number, piece in enumerate(pieces):
            if x + len(piece) > line:
                x, y = 0, y + 1
            color = "#0072B2" if piece_number % 2 else "#00795A"
            ax.barh(y, len(piece) - 0.15, left=x, height=0.8, color=color)
            ax.text(x + len(piece) / 2 - 0.07, y, piece.replace(" ", "␣"), family="monospace",
                    color=CARD, ha="center", va="center")  # fmt: skip
            x += len(piece)

    rows = 1 if longest <= LINE else -(-longest // (LINE - 6))
    return render_slider(
        cuts, draw, active=active, name=prefix.strip(" =") or "step", alt=alt, legend=False,
        height=0.36 * rows, arrange=lambda ax: ax.set_axis_off(),
        xlim=(0, line), ylim=(rows - 0.4, -0.6),
    )  # fmt: skip


def _render_frames(
    frames: Sequence[Frame],
    draw: Callable[..., None],
    *,
    prefix: str,
    xaxis: Axis,
    yaxis: Axis,
    with_legend: bool = True,
    **options: Any,
) -> str:
    """All frames in one figure, of which the slider shows one at a time. ``prefix`` is the name of
    what the slider moves; ``options`` are those of :func:`render_slider`."""

    def arrange(ax: Axes) -> None:
        for options, axis, scale in ((xaxis, ax.xaxis, "xscale"), (yaxis, ax.yaxis, "yscale")):
            axis.set_label_text(options.get("title", ""))
            ax.set(**{scale: "log" if options.get("log") else "linear"})
            if options.get("share"):
                axis.set_major_formatter(PercentFormatter(1, decimals=0))
        ax.set(xlim=xaxis.get("range", ax.get_xlim()), ylim=yaxis.get("range", (0, None)))
        if yaxis.get("log"):
            set_plain_ticks(ax.yaxis, apart=2.9)
        if not with_legend:  # the bars carry their names
            ax.set_xticks([])
            ax.xaxis.labelpad = 20

    positions = [(f.label, f.said, f) for f in frames]
    name = prefix.strip(" =") or "step"
    return render_slider(positions, draw, name=name, arrange=arrange, **options)
