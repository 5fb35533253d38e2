"""Figures of the primers: each position of a slider shows its own traces, sentence and mark."""

import json
import re

import pytest

from crtlib.figures import primer

FRAMES = [
    primer.Frame("1", "The line falls.", {"D": ([0, 1], [1, 0])}, marked=0.5),
    primer.Frame("2", "The line rises.", {"D": ([0, 1], [0, 1])}),
]
OPTIONS = {"active": 1, "prefix": "σ = ", "alt": "One line.", "xaxis": {}, "yaxis": {}}


def steps(page):
    """What the slider is told of its positions."""
    found = re.search(r"\[\{\"visible\".*?\}\]", page, re.DOTALL)
    return json.loads(found[0])


@pytest.mark.parametrize("draw", [primer.lines, primer.bars])
def test_each_position_shows_its_own_traces_and_sentence(draw):
    page = draw(FRAMES, **OPTIONS)
    positions = steps(page)
    assert [p["sentence"] for p in positions] == ["The line falls.", "The line rises."]
    shown = [[i for i, seen in enumerate(p["visible"]) if seen] for p in positions]
    assert shown[0] and shown[1] and not set(shown[0]) & set(shown[1])
    assert 'aria-label="One line."' in page and page.count('type="range"') == 1
    assert "The line rises." in page


def test_a_mark_is_drawn_where_there_is_one():
    marked, plain = (primer.lines([frame], **OPTIONS | {"active": 0}) for frame in FRAMES)
    assert '"x":[0.5,0.5]' in marked.replace(" ", "")
    assert '"x":[0.5,0.5]' not in plain.replace(" ", "")


def test_words_of_a_figure_cannot_end_its_script():
    frame = primer.Frame("1", "</script><b>", {"D": ([0, 1], [1, 0])})
    assert "</script><b>" not in primer.lines([frame], **OPTIONS | {"active": 0})


def test_pieces_keep_their_order_and_show_spaces():
    page = primer.pieces([("1", "Two pieces.", ["a b", "c"])], active=0, prefix="cuts = ", alt="x")
    assert "a␣b" in page or "a\\u2423b" in page
    assert '"base":[0,3]' in page.replace(" ", "")
