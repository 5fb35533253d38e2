"""Tables 3 to 5 of the leakage report, from models of a toy text."""

import numpy as np

from crtbook.figures import leakage
from crtbook.figures.theme import LOOKS
from crtlib.attacks.leakage import (
    NO_CONTEXT_RANK,
    Document,
    LeakageReport,
    TokenScores,
    find_runs,
    sequence_features,
)

WORDS = ["my", " lock", "er", " is", " open", ",", " I", " see"]


def decode(tokens):
    return "".join(WORDS[t] for t in tokens)


def report(guessed, *, ratio=2.0):
    """A model that guesses these places of one text of U1, and never those of U2."""
    documents = (Document("U1", "U1/0", [0, 1, 2, 3, 4, 5, 6, 7]), Document("U2", "U2/0", [0, 3]))
    ranks = [
        np.array([NO_CONTEXT_RANK, *(int(i not in guessed) for i in range(1, 8))]),
        np.array([NO_CONTEXT_RANK, 1]),
    ]
    said = [np.full(len(r), np.log(1 / 2)) for r in ranks]
    public = [np.full(len(r), np.log(1 / 2 / ratio)) for r in ranks]
    for values in (*said, *public):
        values[0] = np.nan
    runs = find_runs(documents, TokenScores(said, ranks), k=1, public=TokenScores(public, ranks))
    return LeakageReport(
        documents,
        TokenScores(said, ranks),
        runs,
        sequence_features(runs, documents),
        k=1,
        flush=True,
        min_length=1,
        empty=0,
        windowed=0,
        compared=True,
        accuracy=1.0,
    )


def test_a_sequence_is_shown_with_the_rest_of_the_words_that_it_cuts():
    table = leakage.tabulate_sequences(report({2, 3}), decode)
    assert table.sequence.tolist() == ["[lock]er is"]
    assert leakage.tabulate_sequences(report({1}), decode).sequence.tolist() == [" lock[er]"]
    assert table["context length"].tolist() == [2]
    assert table["PP model"].tolist() == ["2.00"] and table["PP public"].tolist() == ["4"]


def test_models_that_complete_nothing_are_named():
    models = {("RanIni", 0): (report(set()), decode), ("PubIni", 0): (report({5, 6}), decode)}
    shown = leakage.tabulate_snapshot(models)
    assert shown.index.tolist() == [("PubIni", 0, ", I")]
    assert leakage.list_models_without_sequences(models) == "Without any: RanIni of seed 0."
    assert leakage.tabulate_snapshot({("RanIni", 0): models["RanIni", 0]}).empty


def test_the_papers_tables_are_counted_beside_ours():
    some = {
        ("RanIni", 0): (report({5, 6, 7}, ratio=3.0), decode),
        ("RanIni", 1): (report(set()), decode),
    }
    none = {("RanIni", 0): (report(set()), decode)}
    table = leakage.tabulate_beside_the_paper({2.9: none, 4.7: none, 8.7: some})
    assert table.columns[2] == "Table 5, ε = 26.4; ours 8.70"
    assert table.loc["unique sequences"].loc["paper, RanIni"].tolist() == ["5", "11", "30"]
    ours = table.xs("ours, RanIni", level=1)
    assert ours.iloc[:, 2].tolist() == ["1, 0", "1 of 1", "5 to 5", "3"]
    assert ours.iloc[:, 0].tolist() == ["0", "–", "–", "–"]
    assert (
        leakage.tabulate_beside_the_paper({8.7: some}).columns.tolist()
        == table.columns[2:].tolist()
    )


def test_what_is_counted_in_the_papers_tables_adds_up():
    marked = [cell.split(" of ") for cell in LOOKS["paper"]["with punctuation"]]
    assert [of for _, of in marked] == LOOKS["paper"]["unique sequences"]
    assert sum(int(some) for some, _ in marked) == 43
