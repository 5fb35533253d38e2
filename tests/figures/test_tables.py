"""Tables for people: verdicts first, every text escaped, what is long is folded."""

import pandas as pd

from crtlib.figures import tables

ROWS = pd.DataFrame(
    {
        "metric": ["all"] * 4 + ["missed"] * 2,
        "model": "lstm",
        "method": ["crt", "crt", "sgd", "sgd", "sgd", "sgd"],
        "gamma": [0.0, 0.1] * 3,
        "mean": [0.5, 0.5, 0.44, 0.62, float("nan"), 0.7],
        "verdict": ["inside", "inside", "below", "above", None, "above"],
    }
)


def test_a_verdict_counts_both_sides_and_leaves_out_what_was_not_measured():
    wide = tables.verdicts(ROWS, {"all": "all secrets", "missed": "missed ones"})
    assert wide.loc[("LSTM", "CRT"), "all secrets"] == "inside: 0.500"
    assert wide.loc[("LSTM", "CRT"), "missed ones"] == "–"
    plain = wide.loc[("LSTM", "non-private, masked")]
    assert plain.tolist() == [
        "above at 1 of 2, below at 1 of 2: 0.440 to 0.620",
        "above at 1 of 1: 0.700",
    ]


def test_a_row_may_have_more_names_than_model_and_method():
    rows = ROWS.dropna().assign(text="so")
    wide = tables.by_gamma(rows, "text", ["metric", "model", "method"])
    assert wide.index.names == ["metric", "model", "method"]
    assert wide.loc[("missed", "LSTM", "non-private, masked")].tolist() == ["–", "so"]


def test_a_folded_table_escapes_its_words():
    table = pd.DataFrame({"kept as": ["<MASK>"]})
    page = tables.folded(table, "all <rows>", "a & b")
    assert "all &lt;rows&gt;</summary>" in page and "&lt;MASK&gt;" in page
    assert "a &amp; b" in page
