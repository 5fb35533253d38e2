"""Figure 1: every error of the policy is marked, and no text can break out of the page."""

import re

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from crtlib.figures import redaction
from crtlib.text import customersim
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
    return re.findall(rf'<mark class="f1-m f1-{style}" title="[^"]*">([^<]*)</mark>', html)


def test_marks_count_the_errors():
    flagged = [(Secret("name", 8, 12),), (Secret("name", 0, 12),)]
    html = redaction.figure_1(DIALOGUE, flagged, caption="a < b")
    # One of each is the key below the panels.
    assert marks(html, "secret") == ["Ada Lovelace", "555-123-4567", "secret"]
    assert marks(html, "caught") == ["&lt;MASK&gt;"] * 4
    assert marks(html, "missed") == ["555-123-4567", "secret"]
    assert marks(html, "wrong") == ["&lt;MASK&gt;"] * 2
    assert html.count("Ada Lovelace") == 1
    assert "<figcaption>a &lt; b<" in html and "<b>full" not in html and "&amp; number" in html


def test_a_perfect_policy_makes_no_error():
    dialogue = customersim.simulate(1, 0).dialogues[0]
    html = redaction.figure_1(dialogue, [t.secrets for t in dialogue.turns])
    assert len(marks(html, "missed")) == len(marks(html, "wrong")) == 1
    with pytest.raises(ValueError, match="zip"):
        redaction.figure_1(dialogue, [()])


def test_bars_show_shares():
    counts = pd.DataFrame(
        {"public": [60, 0], "private": [30, 10], "masked": [10, 0]}, index=["turn", "dialogue"]
    )
    fig = redaction.public_and_private(counts)
    assert [t.get_text() for t in fig.axes[0].texts] == ["60 %", "100 %", "30 %", "10 %"]
    plt.close(fig)


def test_certified_miss_rate_says_how_many_labels():
    fig = redaction.certified_miss_rate(target=8e-5)
    texts = [t.get_text() for t in fig.axes[0].texts]
    assert "37,446 labels: 8e-05" in texts and "200 labels: 0.015" in texts
    plt.close(fig)
