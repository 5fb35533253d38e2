"""Figures under a slider: the keyboard moves it, its sentences follow it, words stand for it."""

from __future__ import annotations

import html
import json
import re

import plotly.graph_objects as go
import pytest

from crtlib.figures import primer, theme
from crtlib.figures.primer import Frame

AXES = {"xaxis": {"title": "x"}, "yaxis": {"title": "y"}}


def frames(count=3):
    return [
        Frame(f"{k}", f"At {k} it is {k * k}.", {"a": ([0, 1], [k, k * k]), "b": ([0, 1], [1, 2])})
        for k in range(count)
    ]


def moves(page: str) -> list[dict]:
    """What the script of the page does at each position of the slider."""
    return json.loads(re.search(r"steps = (\[.*?\]);\n", page).group(1))


def traces(page: str) -> list[dict]:
    found = json.JSONDecoder().raw_decode(page[page.index("[{", page.index("Plotly.newPlot")) :])
    return found[0]


@pytest.mark.parametrize("draw", [primer.lines, primer.bars])
def test_each_position_shows_its_own_traces_and_sentence(draw):
    page = draw(frames(), active=1, prefix="k = ", alt="Two series.", **AXES)
    shown = [trace["visible"] for trace in traces(page)]
    assert shown == [False, False, True, True, False, False]
    for k, move in enumerate(moves(page)):
        visible = move["args"][0]["visible"]
        assert [i // 2 for i, seen in enumerate(visible) if seen] == [k, k]
        assert (move["label"], move["say"]) == (f"{k}", f"At {k} it is {k * k}.")


def test_slider_is_the_browsers_own_and_says_where_it_stands():
    page = primer.lines(frames(), active=2, prefix="k = ", alt="Two series.", **AXES)
    (control,) = re.findall(r"<input [^>]*>", page)
    for part in ('type="range"', 'min="0"', 'max="2"', 'value="2"', 'aria-label="k"'):
        assert part in control
    assert 'aria-valuetext="2"' in control
    assert '<p aria-live="polite">At 2 it is 4.</p>' in page
    assert 'role="group" aria-label="Two series."' in page
    assert '"sliders"' not in page  # plotly's own, which the keyboard cannot reach


def test_words_of_a_figure_cannot_end_its_script():
    evil = "</script><b>x</b>"
    page = primer.lines(
        [Frame(evil, evil, {"a": ([0], [1])})], active=0, prefix="k = ", alt=evil, **AXES
    )
    assert page.count("</script>") == page.count("<script")
    assert html.escape(evil) in page
    assert moves(page)[0]["say"] == evil


def test_pieces_lie_side_by_side_and_cover_the_sentence():
    cuts = [("3", "3 tokens.", ["My", " ", "cat"]), ("2", "2 tokens.", ["My ", "cat"])]
    page = primer.pieces(cuts, active=0, prefix="size = ", alt="A sentence in blocks.")
    for trace, (_, _, parts) in zip(traces(page), cuts, strict=True):
        assert trace["x"] == [len(part) for part in parts]
        ends = [start + width for start, width in zip(trace["base"], trace["x"], strict=True)]
        assert trace["base"][1:] == ends[:-1] and ends[-1] == len("My cat")
    assert traces(page)[0]["text"] == ["My", "␣", "cat"]


def test_marked_line_moves_with_the_slider_and_goes_where_there_is_none():
    marked = [Frame("0", "", {"a": ([0, 1], [0, 1])}, marked=0.5),
              Frame("1", "", {"a": ([0, 1], [0, 1])})]  # fmt: skip
    page = primer.lines(marked, active=0, prefix="k = ", alt="A line.", **AXES)
    first, second = (move["args"][1]["shapes"] for move in moves(page))
    assert (first[0]["x0"], first[0]["x1"]) == (0.5, 0.5)
    assert second == []


def test_figure_without_words_of_its_own_is_named_by_its_slider():
    fig = go.Figure(go.Scatter(x=[0], y=[1]))
    step = {"label": "1", "method": "update", "args": [{"visible": [True]}]}
    page = theme.with_slider(fig, [step], active=0, prefix="σ = ", xaxis={}, yaxis={})
    assert 'aria-label="σ"' in page
    assert "aria-live=" not in page.split("<script")[0]
