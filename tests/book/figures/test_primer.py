"""Figures of the primers: each position of a slider shows its own marks and sentence."""

import json
import re

import matplotlib.pyplot as plt
import pytest

from crtbook.figures import primer

FRAMES = [
    primer.Frame("1", "The line falls.", {"D": ([0, 1], [1, 0])}, marked=0.5),
    primer.Frame("2", "The line rises.", {"D": ([0, 1], [0, 1])}),
]
OPTIONS = {"active": 1, "prefix": "σ = ", "alt": "One line.", "xaxis": {}, "yaxis": {}}


@pytest.mark.parametrize("draw", [primer.render_lines, primer.render_bars])
def test_each_position_shows_its_own_marks_and_sentence(draw):
    page = draw(FRAMES, **OPTIONS)
    steps = json.loads(re.search(r"const steps = (\[.*?\]), name", page, re.DOTALL)[1])
    assert [step["sentence"] for step in steps] == ["The line falls.", "The line rises."]
    assert 'data-frame="0" style="display:none"' in page
    assert 'data-frame="1"' in page and 'data-frame="1" style' not in page
    assert 'aria-label="One line."' in page and page.count('type="range"') == 1


def test_a_mark_is_drawn_where_there_is_one():
    marked, plain = (primer.render_lines([frame], **OPTIONS | {"active": 0}) for frame in FRAMES)
    assert marked.count("data-frame") == plain.count("data-frame") + 1


def test_words_of_a_figure_cannot_end_its_script():
    frame = primer.Frame("1", "</script><b>", {"D": ([0, 1], [1, 0])})
    assert "</script><b>" not in primer.render_lines([frame], **OPTIONS | {"active": 0})


def test_pieces_keep_their_order_and_show_spaces():
    page = primer.render_pieces(
        [("1", "Two pieces.", ["a b", "c"])], active=0, prefix="cuts = ", alt="x"
    )
    assert page.index("a␣b") < page.index(">c<")


def test_a_logarithmic_axis_is_as_wide_as_its_data(monkeypatch):
    drawn = {}
    monkeypatch.setattr(primer, "render_slider", lambda *_, **given: drawn.update(given))
    frame = primer.Frame("1", "It rises.", {"r": ([1e-3, 1e-1], [0, 1])})
    primer.render_lines([frame], **OPTIONS | {"xaxis": {"log": True}})
    fig, ax = plt.subplots()
    ax.plot(*frame.series["r"])
    drawn["arrange"](ax)
    low, high = ax.get_xlim()
    plt.close(fig)
    assert 0 < low <= 1e-3 and 1e-1 <= high < 1
