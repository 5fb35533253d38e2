"""Diagrams: boxes stand apart inside the picture, and a sentence says the same."""

import html
import itertools
import re

import pytest

from crtbook.figures import diagrams

NUMBERS = ("x", "y", "width", "height")


@pytest.mark.parametrize("name", diagrams.DIAGRAMS)
def test_boxes_stand_apart_inside_the_picture(name):
    page = html.unescape(str(diagrams.render_diagram(name)))
    assert f'aria-label="{diagrams.DIAGRAMS[name]["alt"]}"' in page
    width, height = map(float, re.search(r'viewBox="0 0 (\S+) (\S+)" xmlns', page).groups())
    boxes = [
        tuple(float(re.search(rf' {n}="([-\d.]+)"', tag)[1]) for n in NUMBERS)
        for tag in re.findall(r"<rect [^>]+>", page)
    ]
    assert len(boxes) > 3
    for x, y, w, h in boxes:
        assert min(x, y) >= 0 and x + w <= width and y + h <= height
    for (ax, ay, aw, ah), (bx, by, bw, bh) in itertools.combinations(boxes, 2):
        assert ax + aw <= bx or bx + bw <= ax or ay + ah <= by or by + bh <= ay
