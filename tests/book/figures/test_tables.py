"""Tables for people: verdicts first, every text escaped, what is long is folded."""

import pandas as pd
import pytest

from crtbook.figures import tables

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


def test_a_verdict_is_a_dot_for_each_gamma_and_leaves_out_what_was_not_measured():
    wide = tables.tabulate_verdicts(ROWS, {"all": "all secrets", "missed": "missed ones"})
    assert wide.loc[("LSTM", "CRT"), "all secrets"] == "○○ 50"
    assert wide.loc[("LSTM", "CRT"), "missed ones"] == "–"
    plain = wide.loc[("LSTM", "non-private, masked")]
    assert plain.tolist() == ["▽● 44–62", "● 70"]


def test_a_row_may_have_more_names_than_model_and_method():
    rows = ROWS.dropna().assign(text="so")
    wide = tables.pivot_by_gamma(rows, "text", ["metric", "model", "method"])
    assert wide.index.names == ["metric", "model", "method"]
    assert wide.loc[("missed", "LSTM", "non-private, masked")].tolist() == ["–", "so"]


def test_a_folded_table_escapes_its_words():
    table = pd.DataFrame({"kept as": ["<MASK>"]})
    page = tables.render_folded_table(table, "all <rows>", "a & b")
    assert "all &lt;rows&gt;</summary>" in page and "&lt;MASK&gt;" in page
    assert "a &amp; b" in page


@pytest.mark.parametrize(
    ("value", "digits", "read"),
    [(999.7, 3, "1,000"), (2e-5, 4, "2·10⁻⁵"), (-5.51145e19, 3, "-5.51·10¹⁹"), (55, 1, "55"),
     (float("nan"), 3, "–"), (float("inf"), 3, "∞"), (0, 3, "0")],
)  # fmt: skip
def test_no_number_is_written_as_computers_write_it(value, digits, read):
    assert tables.format_number(value, digits) == read


def test_a_table_has_one_row_of_headers_and_writes_every_number_for_people():
    rows = {"labels": [36740, 12], "leaked": [True, False], "δ": [8e-5, float("nan")]}
    mixed = pd.DataFrame(rows).assign(seen=[3.674e4, "all"])
    page = tables.render_table(mixed.set_index(pd.Index([0.5, 20_000], name="σ"))).to_html()
    assert page.count("<tr") == 3 and ">σ</th>" in page
    for text in ("36,740", "yes", "no", "8·10⁻⁵", "–", "all", "0.5", "20,000"):
        assert f">{text}</t" in page
