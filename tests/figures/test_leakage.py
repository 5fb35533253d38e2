"""Tables 3 to 5 of the leakage report, from models of a toy text."""

import numpy as np
import pytest

from crtlib.attacks.leakage import NEVER, Document, Leakage, Scores, features, find_runs
from crtlib.figures import leakage

WORDS = ["my", " lock", "er", " is", " open", ",", " I", " see"]


def decode(tokens):
    return "".join(WORDS[t] for t in tokens)


def report(guessed, *, ratio=2.0):
    """A model that guesses these places of one text of U1, and never those of U2."""
    documents = (Document("U1", "U1/0", [0, 1, 2, 3, 4, 5, 6, 7]), Document("U2", "U2/0", [0, 3]))
    ranks = [np.array([NEVER, *(int(i not in guessed) for i in range(1, 8))]), np.array([NEVER, 1])]
    said = [np.full(len(r), np.log(1 / 2)) for r in ranks]
    public = [np.full(len(r), np.log(1 / 2 / ratio)) for r in ranks]
    for values in (*said, *public):
        values[0] = np.nan
    runs = find_runs(documents, Scores(said, ranks), k=1, public=Scores(public, ranks))
    return Leakage(documents, Scores(said, ranks), runs, features(runs, documents), k=1, flush=True,
                   min_length=1, empty=0, windowed=0, compared=True)  # fmt: skip


def test_a_sequence_is_shown_with_the_rest_of_the_words_that_it_cuts():
    table = leakage.sequences(report({2, 3}), decode)
    assert table.sequence.tolist() == ["[lock]er is"]
    assert leakage.sequences(report({1}), decode).sequence.tolist() == [" lock[er]"]
    assert table["context length"].tolist() == [2]
    assert table["PP model"].tolist() == ["2.00"] and table["PP public"].tolist() == ["4"]


def test_a_model_that_completes_nothing_has_a_row_that_says_so():
    models = {("RanIni", 0): (report(set()), decode), ("PubIni", 0): (report({5, 6}), decode)}
    shown = leakage.snapshot(models)
    assert [i[2] for i in shown.index] == ["none", ", I"]
    assert shown.loc["RanIni"].ratio.tolist() == ["–"]


def test_the_papers_tables_are_counted_beside_ours():
    some = {
        ("RanIni", 0): (report({5, 6, 7}, ratio=3.0), decode),
        ("RanIni", 1): (report(set()), decode),
    }
    none = {("RanIni", 0): (report(set()), decode)}
    table = leakage.beside_the_paper({2.9: none, 4.7: none, 8.7: some})
    ours = table.xs("ours, RanIni", level=1)["Table 5"]
    assert ours.tolist() == ["8.70", "1, 0", "1 of 1", "1 of 1", "5 to 5", "3"]
    assert table.loc["unique sequences"].loc["paper, RanIni"].tolist() == ["5", "11", "30"]
    assert table.xs("ours, RanIni", level=1)["Table 3"].tolist() == ["2.90", "0"] + ["–"] * 4
    assert leakage.beside_the_paper({8.7: some}).columns.tolist() == ["Table 5"]


@pytest.mark.parametrize("what, number", [("said once", 46), ("with punctuation", 43)])
def test_what_is_counted_in_the_papers_tables_adds_up(what, number):
    parts = [cell.split(" of ") for cell in leakage.PAPER[what]]
    assert [of for _, of in parts] == leakage.PAPER["unique sequences"]
    assert sum(int(some) for some, _ in parts) == number
