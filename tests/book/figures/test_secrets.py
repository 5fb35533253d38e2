"""Figures of secret protection show the plans that they are given."""

import numpy as np
import pandas as pd

from crtbook import word_plans
from crtbook.figures import secrets, theme


def _recorded_plans(words):
    """A table as a sweep records it: two constants and no preprocessing, at one seed."""
    values = {1.0: (0.25, 2.0), 4.0: (0.5, 4.0), None: (1.0, 16.0)}
    return pd.DataFrame(
        {"targets": "linear", "scale": scale, "seed": 0, "words": words, "band": "ranks",
         "metric": metric, "value": value}
        for scale, pair in values.items()
        for metric, value in zip(("kept", "needed"), pair, strict=True)
    )  # fmt: skip


def test_figure_1_of_plans_draws_weight_and_noise_of_the_words_that_were_asked_for():
    table = pd.concat([_recorded_plans("blanks"), _recorded_plans("letters").assign(value=9.0)])
    fig = secrets.plot_weight_and_noise(
        word_plans.select_plans_by_constant(table, "blanks", "ranks")
    )
    kept, noise = fig.axes
    drawn = [line for ax in (kept, noise) for line in ax.lines if line.get_marker() == "s"]
    assert [list(line.get_ydata()) for line in drawn] == [[0.25, 0.5], [2.0, 4.0]]
    across = [ax.lines[0].get_ydata()[0] for ax in (kept, noise)]  # without preprocessing
    assert np.allclose(across, [1.0, 16.0])
    assert "keeps 25 % of the weight and needs a noise of 2, 16 without it" in theme.alt_text(fig)
