"""Figures with a slider: every position is drawn beforehand, and a control shows one of them.

>>> def line(ax, k):
...     ax.plot([0, 1], [0, k], label="k")
>>> positions = [(str(k), f"The line ends at {k}.", k) for k in (1, 2)]
>>> page = slider(positions, line, active=1, name="k", alt="A line.", xlabel="x")
>>> page.count('type="range"'), "The line ends at 2." in page, 'aria-label="A line."' in page
(1, True, True)
>>> page.count('data-frame="0" style="display:none"'), page.count('data-frame="1"')
(1, 1)

The page needs no drawing library: the positions lie in one SVG, and a few lines of script show one
and hide the others. Without the script, and in print, the figure stands at its first position.
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes

from crtbook.figures.theme import page, panels, svg


def slider(
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
    """A figure with a slider below, as HTML in the book's style, ``height`` inches high.

    A position is its label, a sentence that says what is seen there, and what ``draw`` puts on the
    axes. All share the axes, so that what moves is what the slider moves. ``arrange`` comes last
    (ticks, limits), ``axes`` goes to ``Axes.set``. The slider is the browser's own: arrows, Page
    Up, Page Down, Home and End work, and a screen reader says its value with the sentence of the
    position.
    """
    with panels([""], height=height, room=0.1) as (fig, (ax,)):
        for k, (_, _, what) in enumerate(positions):
            before = set(ax.get_children())
            draw(ax, what)
            for artist in set(ax.get_children()) - before:
                artist.set_gid(f"frame-{k}")
        ax.set(**axes)
        if arrange:
            arrange(ax)
        if legend:
            entries = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
            columns = 2 if max(map(len, entries), default=0) < 26 else 1
            fig.legend(entries.values(), entries.keys(), loc="outside upper left", ncols=columns)
        drawn = svg(fig).replace('role="img" aria-label=""', 'aria-hidden="true"', 1)
    for k in range(len(positions)):
        hidden = "" if k == active else ' style="display:none"'
        drawn = drawn.replace(f'id="frame-{k}"', f'data-frame="{k}"{hidden}')
    steps = [{"label": label, "sentence": sentence} for label, sentence, _ in positions]
    told = json.dumps(steps, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    # From the content, so that two runs write the same page.
    key = "live-" + hashlib.sha256((drawn + told).encode()).hexdigest()[:12]
    drawn = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{key}-", drawn)
    return page(
        "slider.html.j2", key=key, plot=Markup(drawn), steps=Markup(told), frames=steps,
        active=active, name=name, alt=alt,
    )  # fmt: skip
