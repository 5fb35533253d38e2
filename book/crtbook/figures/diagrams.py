"""How the three papers work, as pictures: boxes, stores, questions and arrows, from top to bottom.

>>> page = render_diagram("crt")
>>> page.count("<svg"), 'role="img"' in page, "DP-SGD" in page
(1, True, True)
>>> sorted(DIAGRAMS)
['crt', 'hush', 'leakage', 'products', 'threat', 'training']

A diagram is data (``templates/diagrams.yml``) on a grid that is as wide as a telephone. Each has a
text that says the same in sentences, for readers who cannot see it.
"""

from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from crtbook import load_data_file
from crtbook.figures.theme import render_page

WIDTH = 360
"""Width of a diagram in pixels: a telephone shows it without shrinking it."""
LINE = 15.5
"""Pixels from one line of text to the next."""
DIAGRAMS: dict[str, dict[str, Any]] = load_data_file("figures/templates/diagrams")


@dataclass(frozen=True)
class Box:
    """A box around a centre, in pixels. ``kind`` is step, store, question, promise (what is
    protected) or risk (what is in clear)."""

    text: str
    x: float
    y: float
    width: float = 150
    kind: str = "step"

    @property
    def lines(self) -> list[str]:
        """The lines of its text."""
        return self.text.split("\n")

    @property
    def height(self) -> float:
        """The height that its lines need."""
        return LINE * len(self.lines) + (22 if self.kind == "question" else 14)

    def edge(self, x: float, y: float) -> tuple[float, float]:
        """Where a line from the centre toward a point leaves the box, two pixels outside of it."""
        dx, dy = x - self.x, y - self.y
        half_x, half_y = self.width / 2 + 2, self.height / 2 + 2
        share = min(half_x / abs(dx) if dx else 9e9, half_y / abs(dy) if dy else 9e9)
        return self.x + share * dx, self.y + share * dy


def _route_arrow(start: Box, end: Box, via: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The corners of an arrow; one that is nearly vertical is made vertical."""
    if via:
        return [start.edge(*via[0]), *via, end.edge(*via[-1])]
    if abs(start.x - end.x) < min(start.width, end.width) / 2:
        x = end.x if end.width < start.width else start.x
        down = 1 if end.y > start.y else -1
        return [(x, start.y + down * (start.height / 2 + 2)),
                (x, end.y - down * (end.height / 2 + 2))]  # fmt: skip
    return [start.edge(end.x, end.y), end.edge(start.x, start.y)]


def render_diagram(name: str) -> str:
    """The picture with this name as HTML: an SVG in the page's own colours."""
    diagram = DIAGRAMS[name]
    boxes = {key: Box(*box) for key, box in diagram["boxes"].items()}
    paths = []
    for start, end, label, via, dashed in (
        (*arrow, *("", [], False)[len(arrow) - 2 :]) for arrow in diagram["arrows"]
    ):
        points = _route_arrow(boxes[start], boxes[end], via)
        (from_x, from_y), (to_x, to_y) = points[len(points) // 2 - 1 : len(points) // 2 + 1]
        paths.append({
            "points": " ".join(f"{x:.0f},{y:.0f}" for x, y in points), "label": label,
            "x": (from_x + to_x) / 2 + (-42 if via else 6), "y": (from_y + to_y) / 2 + 4,
            "dashed": dashed,
        })  # fmt: skip
    return Markup(render_page("diagram.svg.j2", boxes=boxes.values(), arrows=paths, width=WIDTH,
                       height=diagram["height"], line=LINE, alt=diagram["alt"]))  # fmt: skip
