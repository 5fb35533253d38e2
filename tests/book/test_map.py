"""The map of the papers is true: functions import, tests and chapters and claims exist."""

import importlib
import sys
from pathlib import Path

import pandas as pd
import pytest

from crtbook.claims.claim import load_claims, load_claims_file

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book"))
computed = importlib.import_module("computed")
ROWS = computed.teaching.load_yaml("map.yml")
FIELDS = {"n", "paper", "item", "function", "test", "chapter", "claim", "shows", "lacks", "absent",
          "nothing"}  # fmt: skip


def test_every_item_is_there_once_and_no_status_is_typed():
    assert [row["n"] for row in ROWS] == list(range(1, 197))
    for row in ROWS:
        assert set(row) <= FIELDS and row["paper"] in computed.SECTIONS
        word, why = computed.judge_item(row)
        assert word in computed.MEANS and bool(why) == (word != "works"), row["n"]


def test_every_name_is_resolved():
    claims = {claim.id for claim in load_claims()}
    figures = {figure["id"] for figure in load_claims_file("figures")}
    for row in ROWS:
        if "function" in row:
            assert computed.resolve_name(row["function"]) is not None, row["n"]
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
        ({"shows": "crt-3"}, "partly"),  # 10,000 of 10,000 dialogues, 3 of 50 epochs
        ({"test": "tests/test_intervals.py"}, "partly"),  # which does not name the function
        ({"absent": "nobody has it"}, "absent"),
    ],
)
def test_a_status_is_counted_from_runs_tests_and_the_ledger(row, status):
    usual = {"function": "crtbook.claims.ledger.judge_claims",
             "test": "tests/book/experiments/test_claims.py"}  # fmt: skip
    assert computed.judge_item(usual | row)[0] == status


def test_a_name_that_is_gone_fails():
    with pytest.raises((AttributeError, ModuleNotFoundError)):
        computed.resolve_name("crtlib.accounting.privacy_cost.nowhere")


def test_the_page_is_todays():
    text = (ROOT / "book" / "map.md").read_text(encoding="utf-8")
    assert text == computed.render_map(), "python book/computed.py"


def test_the_picture_of_the_readme_is_of_recorded_runs():
    """It was drawn by hand, and nothing said of which runs."""
    drawn, made = computed.draw_readme_picture()
    assert computed.FIGURE_3.read_text("utf-8") == drawn
    readme = computed.README.read_text("utf-8")
    assert (
        f"Figure 3: {made}.*" in readme
        and computed.insert_caption_of_figure_3(readme, made) == readme
    )


def test_what_we_know_is_what_the_ledger_says():
    for path, text in computed.render_what_we_know(computed.ledger.load_ledger()).items():
        assert path.read_text(encoding="utf-8") == text, "python book/computed.py"
    assert computed.judge_standing({"agrees", "not comparable"}) == "established"
    assert computed.judge_standing({"agrees", "differs"}) == "refuted somewhere"
    assert computed.judge_standing({"differs", "not decided"}) == "refuted"
    assert computed.judge_standing({"not comparable"}) == "open"
    assert computed.judge_standing({"in part", "not decided"}) == "in part"
    assert computed.judge_standing({"by construction"}) == "by construction"


def test_what_no_data_could_meet_is_counted_apart():
    rows = [("a", {"agrees", "not decided"}), ("b", {"remark"}), ("c", {"by construction"})]
    table = computed.pd.DataFrame(
        [{"claim": name, "paper": "crt", "verdict": v} for name, each in rows for v in each]
    )
    told = computed.count_standings(table)
    assert (told["counted"], told["remark"], told["by construction"]) == (1, 1, 1)
    assert told["established somewhere"] == 1


@pytest.mark.parametrize(
    ("verdicts", "title"),
    [
        ({"small": "agrees", "large": "not decided"}, "On a small corpus"),
        ({"small": "agrees", "large": "agrees"}, "The better the search, the more"),
        ({"small": "differs", "large": "not decided"}, "A better search does not"),
        ({"small": "agrees", "large": "differs"}, "With a better search"),
        ({"small": "not decided"}, "Whether a better search"),
    ],
)
def test_a_findings_title_follows_from_its_verdicts(verdicts, title):
    finding = computed.teaching.load_yaml("known.yml")[0]
    rows = [{"group": group, "verdict": verdict} for group, verdict in verdicts.items()]
    said, counts = computed.answer_finding(finding, pd.DataFrame(rows))
    assert said.startswith(title) and counts.startswith("Small corpus: ")


def test_the_first_pages_count_the_items_as_the_map_does():
    """They said that everything is here, and the map said what is not; the parts add up."""
    for path in computed.COUNTING:
        text = path.read_text("utf-8")
        assert computed.insert_counts(text) == text, "python book/computed.py"
        total, *parts = map(int, computed.COUNTED.search(text).groups())
        assert total == sum(parts), "two items of 196 were in no part"
