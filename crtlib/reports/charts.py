"""Small charts as inline SVG: places are computed here, the template draws them.

>>> chart = bars("lengths", ["1", "2"], {"one": [3, 1]}, label="tokens")
>>> [(box.style, box.text) for box in chart.boxes]
[('one', '1: 3'), ('one', '2: 1')]
>>> bars("lengths", [], {}, label="tokens", empty="No run was found.").empty
'No run was found.'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 360, 200, 40, 34, 10


@dataclass(frozen=True)
class Box:
    """A bar: its style, its place in pixels, and what it stands for."""

    style: str
    x: float
    y: float
    width: float
    height: float
    text: str


@dataclass(frozen=True)
class Chart:
    """What ``chart.html.j2`` draws. ``levels`` and ``ticks`` are (place, text) of the vertical
    and horizontal axis; ``lines`` are (style, points); ``empty`` stands in place of
    a chart that has nothing to show; ``alt`` are the words for those who do not see it."""

    title: str
    label: str = ""
    note: str = ""
    alt: str = ""
    empty: str = ""
    levels: Sequence[tuple[float, str]] = ()
    ticks: Sequence[tuple[float, str]] = ()
    boxes: Sequence[Box] = ()
    lines: Sequence[tuple[str, str]] = ()
    key: Sequence[tuple[str, str]] = ()
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT


def x(share: float) -> float:
    """Pixels of a place on the horizontal axis, 0 (left) to 1 (right)."""
    return round(LEFT + share * (WIDTH - LEFT), 1)


def y(share: float) -> float:
    """Pixels of a place on the vertical axis, 0 (bottom) to 1 (top)."""
    return round(HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP), 1)


def points(places: Sequence[tuple[float, float]]) -> str:
    """A line through places in [0, 1]^2, as SVG writes it."""
    return " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in places)


def levels(top: float) -> list[tuple[float, str]]:
    """Grid lines for counts from 0 to ``top``: at most five, at 1, 2 or 5 times a power of ten.

    >>> [text for _, text in levels(7)]
    ['0', '2', '4', '6']
    """
    step = next(s for n in range(12) for s in (10**n, 2 * 10**n, 5 * 10**n) if top / s <= 4)
    return [(y(value / top), f"{value:,}") for value in range(0, int(top) + 1, step)]


def bars(
    title: str,
    names: Sequence[str],
    stacks: Mapping[str, Sequence[int]],
    *,
    label: str,
    note: str = "",
    key: Sequence[tuple[str, str]] = (),
    said: Sequence[str] | None = None,
    empty: str = "",
) -> Chart:
    """Bars side by side, one for each of ``names``, at most eight of them on the axis; of each
    style its counts, stacked. ``said`` is what each bar tells who points at it; by default its name
    and count."""
    sums = [sum(counts) for counts in zip(*stacks.values(), strict=True)]
    if empty or not any(sums):
        return Chart(title, note=note, key=key, empty=empty or "Nothing to show.")
    top, width = max(1, *sums), (WIDTH - LEFT) / len(names)
    said = said or [f"{name}: {n:,}" for name, n in zip(names, sums, strict=True)]
    gap, low, boxes = min(1.5, width * 0.1), [0] * len(names), []
    for style, counts in stacks.items():
        for i, n in enumerate(counts):
            upper, lower = y((low[i] + n) / top), y(low[i] / top)
            place = round(x(i / len(names)) + gap, 1)
            box = (place, upper, round(max(1, width - 2 * gap), 1), round(lower - upper, 1))
            boxes.append(Box(style, *box, said[i]))
            low[i] += n
    places = [(x((i + 0.5) / len(names)), name) for i, name in enumerate(names)]
    return Chart(title, label, note, "; ".join(said[:12]), levels=levels(top), 
                 ticks=places[:: max(1, len(names) // 8)],
                 boxes=boxes, key=key)  # fmt: skip
