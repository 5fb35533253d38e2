"""The map of the papers is true: functions import, tests and chapters and claims exist."""

import importlib.util
from pathlib import Path

import pytest

from crtbook.claims import ledger

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("book_map", ROOT / "book" / "map.py")
book_map = importlib.util.module_from_spec(spec)
spec.loader.exec_module(book_map)
ROWS = book_map.items()
FIELDS = {"n", "paper", "item", "function", "test", "chapter", "claim", "status", "why"}


def test_every_item_is_there_once_with_a_status_and_a_reason_where_it_does_not_work():
    assert [row["n"] for row in ROWS] == list(range(1, 195))
    for row in ROWS:
        assert set(row) <= FIELDS and row["paper"] in book_map.SECTIONS
        assert row["status"] in book_map.MEANS
        assert ("why" in row) == (row["status"] != "works"), row["n"]


def test_every_name_is_resolved():
    claims = {claim["id"] for claim in ledger.read("claims")}
    for row in ROWS:
        if "function" in row:
            assert book_map.resolved(row["function"]) is not None, row["n"]
        if "test" in row:
            assert (ROOT / row["test"]).is_file(), row["n"]
        if "chapter" in row:
            assert (ROOT / "notebooks" / f"{row['chapter']}.ipynb").is_file(), row["n"]
        assert row.get("claim") in {None, *claims}, row["n"]


def test_what_works_is_tested():
    """But for what is no code: the layout, and the teaching."""
    without = [r["n"] for r in ROWS if r["status"] == "works" and "test" not in r]
    assert without == []


def test_a_name_that_is_gone_fails():
    with pytest.raises((AttributeError, ModuleNotFoundError)):
        book_map.resolved("crtlib.accounting.ledger.nowhere")


def test_the_page_is_todays():
    text = (ROOT / "book" / "map.md").read_text(encoding="utf-8")
    assert text == book_map.page(), "python book/map.py"
