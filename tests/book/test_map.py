"""The map of the papers is true: functions import, tests and chapters and claims exist."""

import importlib.util
from pathlib import Path

import pytest

from crtbook.claims.claim import entries, read

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("book_map", ROOT / "book" / "map.py")
book_map = importlib.util.module_from_spec(spec)
spec.loader.exec_module(book_map)
ROWS = book_map.items()
FIELDS = {"n", "paper", "item", "function", "test", "chapter", "claim", "shows", "lacks", "absent",
          "nothing"}  # fmt: skip


def test_every_item_is_there_once_and_no_status_is_typed():
    assert [row["n"] for row in ROWS] == list(range(1, 197))
    for row in ROWS:
        assert set(row) <= FIELDS and row["paper"] in book_map.SECTIONS
        word, why = book_map.status(row)
        assert word in book_map.MEANS and bool(why) == (word != "works"), row["n"]


def test_every_name_is_resolved():
    claims = {claim.id for claim in read()}
    figures = {figure["id"] for figure in entries("figures")}
    for row in ROWS:
        if "function" in row:
            assert book_map.resolved(row["function"]) is not None, row["n"]
        if "test" in row:
            assert (ROOT / row["test"]).is_file(), row["n"]
        if "chapter" in row:
            assert (ROOT / "notebooks" / f"{row['chapter']}.ipynb").is_file(), row["n"]
        assert row.get("claim") in {None, *claims}, row["n"]
        assert row.get("shows") in {None, *figures}, row["n"]


@pytest.mark.parametrize(
    ("row", "status"),
    [
        ({}, "works"),
        ({"lacks": "half of it"}, "partly"),
        ({"claim": "rep-el-small"}, "partly"),  # no recorded run decides it
        ({"claim": "crt-f3-rise"}, "works"),
        ({"shows": "rep-2"}, "toy"),  # 200 dialogues of 4.4 million
        ({"shows": "crt-3"}, "works"),  # 10,000 of 10,000
        ({"test": "tests/test_intervals.py"}, "partly"),  # which does not name the function
        ({"absent": "nobody has it"}, "absent"),
    ],
)
def test_a_status_is_counted_from_runs_tests_and_the_ledger(row, status):
    usual = {"function": "crtbook.claims.ledger.judged",
             "test": "tests/book/experiments/test_claims.py"}  # fmt: skip
    assert book_map.status(usual | row)[0] == status


def test_a_name_that_is_gone_fails():
    with pytest.raises((AttributeError, ModuleNotFoundError)):
        book_map.resolved("crtlib.accounting.ledger.nowhere")


def test_the_page_is_todays():
    text = (ROOT / "book" / "map.md").read_text(encoding="utf-8")
    assert text == book_map.page(), "python book/map.py"


def test_what_we_know_is_what_the_ledger_says():
    path = ROOT / "book" / "known.py"
    spec = importlib.util.spec_from_file_location("book_known", path)
    known = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(known)
    text = (ROOT / "book" / "what_we_know.md").read_text(encoding="utf-8")
    assert text == known.page(known.ledger.ledger()), "python book/known.py"
    assert known.standing({"agrees", "not comparable"}) == "established"
    assert known.standing({"agrees", "differs"}) == "refuted somewhere"
    assert known.standing({"differs", "not decided"}) == "refuted"
    assert known.standing({"not comparable"}) == "open"
