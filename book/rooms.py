"""Draw the rooms of the library and the imports between them: ``book/_assets/rooms.svg``.

    python book/rooms.py

The picture follows from the imports (``benchmarks/house.py`` reads them); a test compares it.
"""

from __future__ import annotations

import importlib.util
import sys
from html import escape
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "book" / "_assets" / "rooms.svg"
WIDTH, BOX, HEIGHT, FLOOR, WIDE = 540, 124, 40, 72, 4
GROUND = "#eef1f4"


def _house() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", ROOT / "benchmarks" / "house.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["house"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def direct(graph: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The imports that no way over another room implies: the picture stays readable, and every
    other arrow can be followed along these."""

    def below(name: str) -> set[str]:
        return graph[name].union(*(below(other) for other in graph[name]))

    return [
        (a, b)
        for a in sorted(graph)
        for b in sorted(graph[a])
        if not any(b in below(c) for c in graph[a] - {b})
    ]


def draw() -> str:
    """The picture as SVG text."""
    house = _house()
    graph = house.read(ROOT / "crtlib").rooms()
    floors = [sorted(set(layer) & set(graph)) for layer in house.layers(ROOT / ".importlinter")]
    rows = [names[k : k + WIDE] for names in floors for k in range(0, len(names), WIDE)]
    centre = {}
    for floor, names in enumerate(rows):
        for k, name in enumerate(names):
            x = WIDTH * (k + 0.5) / len(names)
            centre[name] = (round(x), round(FLOOR * (floor + 0.5)))
    height = FLOOR * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="sans-serif" font-size="19">',
        "<title>The rooms of crtlib; each imports only what lies below it</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for a, b in direct(graph):
        (x, y), (u, v) = centre[a], centre[b]
        if {a, b} <= set(floors[-1]):
            continue
        parts.append(
            f'<line x1="{x}" y1="{y + HEIGHT // 2}" x2="{u}" y2="{v - HEIGHT // 2}" '
            'stroke="#5b6673" stroke-width="1.2"/>'
        )
    for name, (x, y) in centre.items():
        parts.append(
            f'<rect x="{x - BOX // 2}" y="{y - HEIGHT // 2}" width="{BOX}" height="{HEIGHT}" '
            f'rx="6" fill="{GROUND}" stroke="#1d2733"/>'
            f'<text x="{x}" y="{y + 6}" text-anchor="middle" fill="#1d2733">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(draw(), "utf-8")
    print(PICTURE)
