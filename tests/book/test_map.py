"""The map of the papers is true: functions import, tests and chapters and claims exist."""

import importlib
import inspect
import re
import sys
from pathlib import Path

import pandas as pd
import pytest

from crtbook import tables
from crtbook.claims.claim import load_claims, load_claims_file, load_terms

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book"))
computed = importlib.import_module("computed")
papers_map = importlib.import_module("papers_map")
ROWS = papers_map.teaching.load_yaml("map.yml")
CLAIMS = {claim.id: claim for claim in load_claims()}
FIELDS = {"n", "paper", "item", "function", "test", "chapter", "claim", "shows", "corpus", "method",
          "lacks", "absent", "nothing"}  # fmt: skip


def test_every_item_is_there_once_and_no_status_is_typed():
    assert [row["n"] for row in ROWS] == list(range(1, 197))
    for row in ROWS:
        assert set(row) <= FIELDS and row["paper"] in papers_map.SECTIONS
        word, why = papers_map.judge_item(row)
        assert word in papers_map.MEANS and bool(why) == (word != "works"), row["n"]


def test_every_name_is_resolved():
    figures = {figure["id"] for figure in load_claims_file("figures")}
    for row in ROWS:
        if "function" in row:
            assert papers_map.resolve_name(row["function"]) is not None, row["n"]
        if "test" in row:
            assert (ROOT / row["test"]).is_file(), row["n"]
        if "chapter" in row:
            assert (ROOT / "notebooks" / f"{row['chapter']}.ipynb").is_file(), row["n"]
        assert row.get("claim") in {None, *CLAIMS}, row["n"]
        assert row.get("shows") in {None, *figures}, row["n"]


@pytest.mark.parametrize(
    ("row", "status"),
    [
        ({}, "works"),
        ({"lacks": "half of it"}, "partly"),
        ({"claim": "rep-el-small"}, "partly"),  # no recorded run decides it
        ({"claim": "crt-5-4"}, "works"),
        ({"shows": "rep-2"}, "toy"),  # 200 dialogues of 4.4 million
        ({"shows": "crt-3"}, "partly"),  # 10,000 of 10,000 dialogues, 3 of 50 epochs
        ({"shows": "crt-3", "claim": "crt-f3-rise"}, "partly"),  # four seeds decide it there
        ({"shows": "crt-3", "claim": "crt-f3-sdp"}, "partly"),  # decided with a tenth of the size
        ({"shows": "crt-settings"}, "works"),  # three seeds with a tenth of the dialogues
        ({"shows": "rep-5", "claim": "rep-f5-fit"}, "toy"),  # decided by 60 dialogues of 322,000
        ({"shows": "hush-1-plans", "claim": "hush-noise-arxiv"}, "works"),
        ({"test": "tests/test_intervals.py"}, "partly"),  # which does not name the function
        ({"absent": "nobody has it"}, "absent"),
    ],
)
def test_a_status_is_counted_from_runs_tests_and_the_ledger(row, status):
    usual = {"function": "crtbook.claims.ledger.judge_claims",
             "test": "tests/book/experiments/test_claims.py"}  # fmt: skip
    assert papers_map.judge_item(usual | row)[0] == status


def test_a_claim_is_of_the_items_own_figure_and_no_remark():
    """Three items stood on a remark, and Figures 3 and 5 on a claim about Figure 4."""
    figures = {figure["id"]: figure["name"] for figure in load_claims_file("figures")}
    for row in (row for row in ROWS if "claim" in row):
        claim = CLAIMS[row["claim"]]
        assert claim.kind != "remark", row["n"]
        assert claim.paper.removesuffix("_acl") == row["paper"], row["n"]
        numbers = re.findall(r"(?:Figures?|Fig\.) (\d)", row["item"])
        numbers += re.findall(r"Figure (\d)", figures.get(row.get("shows"), ""))
        where = re.sub(r"Figures (\d) to (\d)", _every_figure, claim.where)
        if "Figure" in where and numbers:
            assert {*numbers} & {*re.findall(r"Figure (\d)", where)}, row["n"]


def _every_figure(between):
    """ "Figure 3, Figure 4, Figure 5" for "Figures 3 to 5"."""
    return ", ".join(f"Figure {k}" for k in range(int(between[1]), int(between[2]) + 1))


def test_an_item_whose_claim_runs_decide_is_held_against_the_papers_size():
    for row in (row for row in ROWS if "claim" in row):
        claim = CLAIMS[row["claim"]]
        if papers_map.is_measured(claim) and claim.tables != ("screening",):
            assert "shows" in row, row["n"]


def test_a_size_counts_with_enough_seeds_only_and_the_larger_one_is_named():
    """Ten items were shown in part through one run of one seed, which decides no claim."""
    sizes = [  # of the paper's, seeds, whether it decides
        (0.1, 1, False),
        (0.01, papers_map.MIN_SEEDS, True),
        (0.05, papers_map.MIN_SEEDS - 1, True),
    ]
    table = pd.DataFrame(sizes, columns=["least", "seeds", "decides"]).sort_values("least")
    table = table.assign(counts=True, share_of_dialogues=table.least, share_of_width=1.0)
    assert papers_map.choose_size(table).least == 0.01
    said = papers_map.describe_toy(papers_map.choose_size(table), table)
    assert said == "0.01 of the paper's dialogues; at 0.1 of its size 1 seed decides nothing"
    none = papers_map.choose_size(table[table.seeds < papers_map.MIN_SEEDS])
    assert none is None and "no size has" in papers_map.describe_toy(none, table)


def test_a_toy_says_what_more_would_take():
    for row in papers_map.judge_items():
        if row["status"] == "toy":
            assert re.search(r"it would take .*\d core hours", row["why"]), row["n"]
    by_number = {row["n"]: row["why"] for row in papers_map.judge_items()}
    price = load_terms()["runs"]["r"]["hours"]
    assert f"{price} core hours: `crtbook sweep abstracts" in by_number[121]  # the ledger's price
    reports = tables.load_recorded("leakage_laptop").drop_duplicates("run")
    largest = reports[(reports.dialogues == 200) & (reports.unit == "user")]
    a_seed = largest.cpu_seconds.sum() / largest.seed.nunique()
    hours = 3 * a_seed * (440_000 / 200) / 3600
    assert f"at least {float(f'{hours:.2g}'):,.10g} core hours" in by_number[126]


def test_a_package_is_named_by_code_that_imports_it():
    """Opacus was named by our own engine, and seaborn by a figure that does not use it."""
    for row in (row for row in ROWS if row["paper"] == papers_map.OWN and "function" in row):
        package = row["item"].partition(" ")[0]
        if package in ("torch", "transformers", "opacus", "autodp", "seaborn", "datasets"):
            place = inspect.unwrap(papers_map.resolve_name(row["function"]))
            text = Path(inspect.getsourcefile(place)).read_text("utf-8")
            assert re.search(rf"import {package}|from {package}|\"{package}\.", text), row["n"]


def test_a_name_that_is_gone_fails():
    with pytest.raises((AttributeError, ModuleNotFoundError)):
        papers_map.resolve_name("crtlib.accounting.privacy_cost.nowhere")


def test_the_page_is_todays():
    text = (ROOT / "book" / "map.md").read_text(encoding="utf-8")
    assert text == papers_map.render_map(), "python book/computed.py"


def test_the_picture_of_the_readme_is_of_recorded_runs():
    """It was drawn by hand, and nothing said of which runs."""
    drawn, made = computed.draw_readme_picture()
    assert computed.FIGURE_3.read_text("utf-8") == drawn
    readme = computed.README.read_text("utf-8")
    assert (
        f"Figure 3: {made}.*" in readme
        and computed.insert_caption_of_figure_3(readme, made) == readme
    )


def test_how_far_seeds_lie_apart_is_read_from_the_recorded_runs():
    """ "Three seeds of deduplication differ by 40 %", when five were recorded, by 58 %."""
    page = computed.FIGURES.read_text("utf-8")
    assert computed.insert_spread_of_seeds(page) == page, "python book/computed.py"
    runs = tables.load_recorded("crt_paper").query("metric == 'test_ppl_words' and gamma == 0.1")
    of = runs[runs.method == "dedup"].value
    assert f"{100 * (of.max() / of.min() - 1):.0f} % for deduplication ({len(of)})" in page
    with pytest.raises(AssertionError, match="one sentence"):
        computed.insert_spread_of_seeds("Seeds lie apart.")


def test_what_we_know_is_what_the_ledger_says():
    for path, text in computed.render_what_we_know(computed.ledger.load_ledger()).items():
        assert path.read_text(encoding="utf-8") == text, "python book/computed.py"
    assert computed.judge_standing({"agrees", "not comparable"}) == "established"


@pytest.mark.parametrize(
    ("verdicts", "standing"),
    [
        ({"agrees", "not comparable"}, "established"),
        ({"agrees", "not decided"}, "established somewhere"),
        ({"agrees", "in part"}, "established somewhere"),
        ({"agrees", "differs"}, "both"),
        ({"differs", "not comparable"}, "refuted"),
        ({"differs", "not decided"}, "refuted somewhere"),  # it was called refuted
        ({"differs", "in part"}, "refuted somewhere"),
        ({"not comparable"}, "not comparable"),  # it was counted as open
        ({"not decidable here"}, "open"),
        ({"in part", "not decided"}, "in part"),
        ({"by construction"}, "by construction"),
        ({"by construction", "not decided"}, "by construction"),
    ],
)
def test_a_claim_is_refuted_or_established_only_where_every_row_is(verdicts, standing):
    assert computed.judge_standing(verdicts) == standing
    assert standing in computed.KNOWN


def test_what_no_data_could_meet_is_counted_apart():
    rows = [("a", {"agrees", "not decided"}), ("b", {"remark"}), ("c", {"by construction"}),
            ("d", {"not comparable"})]  # fmt: skip
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


@pytest.mark.parametrize(
    ("verdicts", "title"),
    [
        (["agrees", "in part", "not decided"], "worse by under a tenth in others"),
        (["agrees", "differs"], "in some settings, and worse in others"),
        (["agrees", "not decided"], "or better, wherever we could tell"),
    ],
)
def test_what_is_right_in_part_is_not_called_refuted(verdicts, title):
    """CRT at 1.06 times DP-SGD's perplexity, within the margin, was called worse."""
    finding = next(f for f in computed.teaching.load_yaml("known.yml") if f["name"] == "order")
    rows = pd.DataFrame([{"group": "written", "verdict": v} for v in verdicts])
    assert computed.answer_finding(finding, rows)[0].endswith(title)
    assert ("refute" in computed.tally_settings(verdicts)) == ("differs" in verdicts)


def test_a_finding_names_the_seeds_of_its_own_rows():
    """A table of thirty seeds made a finding of five look like thirty."""
    finding = next(f for f in computed.teaching.load_yaml("known.yml") if f["name"] == "noise")
    table = computed.add_claim_and_place(computed.ledger.load_ledger())
    rows = computed.select_rows_of_finding(finding, table)
    told = computed.describe_finding(finding, rows)["recorded"]
    most = max(int(n) for n in rows.edition.str.extract(r"(\d+) seeds?$")[0])
    assert all(int(t.split(" seed")[0].split()[-1]) <= most for t in told), told


def test_the_first_pages_count_the_papers_items_and_none_of_ours():
    """They said that everything is here, and the map said what is not; the parts add up. Sixteen
    items were the companion's own: jupyter-book, torch, environment.yml."""
    papers = [row for row in ROWS if row["paper"] != "design"]
    for path in papers_map.COUNTING:
        text = path.read_text("utf-8")
        assert papers_map.insert_counts(text) == text, "python book/computed.py"
        total, *parts = map(int, papers_map.COUNTED.search(text).groups())
        assert total == sum(parts) == len(papers) == 180
