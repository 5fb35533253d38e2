"""Screening's figures: every error of a policy is marked, and no text can break out of the page."""

import re

import pandas as pd
import pytest

from crtbook.figures import screening
from crtbook.figures.theme import alt_text
from crtlib.screening import regex_policies
from crtlib.text import customersim, data_points
from crtlib.text.records import Dialogue, Secret, Turn

DIALOGUE = Dialogue(
    "d",
    "u",
    (
        Turn("SYS", "Your <b>full</b> name & number?"),
        Turn(
            "USR", "Ada Lovelace, 555-123-4567.", (Secret("name", 0, 12), Secret("phone", 14, 26))
        ),
    ),
)


def marks(html, style):
    return re.findall(rf'<mark class="rd-m rd-{style}"(?: title="[^"]*")?>([^<]*)</mark>', html)


def test_marks_count_the_errors():
    flags = [(Secret("name", 8, 12),), (Secret("name", 0, 12),)]
    html = screening.render_redacted_dialogue(DIALOGUE, flags, caption="a < b")
    # One of each is the key below the panels.
    assert marks(html, "secret") == ["Ada Lovelace", "555-123-4567", "secret"]
    assert marks(html, "caught") == ["&lt;MASK&gt;"] * 4
    assert marks(html, "missed") == ["555-123-4567", "secret"]
    assert marks(html, "wrong") == ["&lt;MASK&gt;"] * 2
    assert html.count("Ada Lovelace") == 1
    assert "<figcaption>a &lt; b<" in html and "<b>full" not in html and "&amp; number" in html
    assert "1 missed, 1 masked that are not secrets" in html


def test_a_perfect_policy_makes_no_error():
    dialogue = customersim.simulate_corpus(1, 0).dialogues[0]
    html = screening.render_redacted_dialogue(dialogue, [t.secrets for t in dialogue.turns])
    assert len(marks(html, "missed")) == len(marks(html, "wrong")) == 1
    with pytest.raises(ValueError, match="zip"):
        screening.render_redacted_dialogue(dialogue, [()])


def test_a_hostile_kind_or_speaker_is_text():
    """Kinds and speakers of a foreign file reach attributes and text only when escaped."""
    bad = '"><script>alert(1)</script>'
    dialogue = Dialogue("d", "u", (Turn(bad, "Ada", (Secret(bad, 0, 3),)),))
    html = screening.render_redacted_dialogue(dialogue, [()], caption=bad)
    assert "<script>" not in html and html.count("&#34;&gt;&lt;script&gt;") >= 3


def test_figure_7_says_where_each_point_goes():
    points = data_points.make_points(customersim.simulate_corpus(4, 0, "paper"), unit="turn")[:20]
    html = screening.render_screening_steps(
        points, regex_policies.oracle_policy, regex_policies.oracle_policy
    )
    public, private = (len(re.findall(rf'<p class="rd-{s}">', html)) for s in ("public", "private"))
    assert public + private == 20 and f"{public} become public, {private} private" in html
    repeats = len(points) - len({p.text for p in points})
    assert html.count("rd-repeat") - 2 == repeats > 0  # the style sheet and the key have one each


def test_bars_show_shares():
    counts = pd.DataFrame(
        {"public": [60, 0], "private": [30, 10], "masked": [10, 0]}, index=["turn", "dialogue"]
    )
    fig = screening.plot_public_and_private(counts)
    assert [t.get_text() for t in fig.axes[0].texts] == ["60 %", "100 %", "30 %", "10 %"]
    assert alt_text(fig).endswith("public: turn 60%, dialogue 0%.")


def test_certified_miss_rate_says_how_many_labels():
    fig = screening.plot_certified_miss_rate(target=8e-5)
    texts = [t.get_text() for t in fig.axes[0].texts]
    assert "37,446 labels: 8·10⁻⁵" in texts and "200 labels: 0.015" in texts
