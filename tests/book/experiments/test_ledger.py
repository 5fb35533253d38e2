"""The ledger: what papers say is data, what we say of it is made; a planted number changes it."""

import importlib.util
import inspect
import json
from pathlib import Path

import numpy as np
import pytest

from crtbook import tables
from crtbook.claims import crt, ledger, others, page, report, rules

ROOT = Path(__file__).resolve().parents[3]
CLAIMS = ledger.read("claims")
CHAPTERS = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
FIELDS = {"id", "paper", "where", "words", "number", "chapter", "measure"}


def test_every_claim_says_where_it_stands_and_no_verdict_is_typed():
    assert len(CLAIMS) >= 90
    for claim in CLAIMS:
        assert set(claim) - {"number"} == FIELDS - {"number"}, claim["id"]
        assert claim["chapter"] in CHAPTERS, claim["id"]
        assert claim["paper"] in ledger.PAPERS


@pytest.mark.parametrize("entries", ["claims", "errata"])
def test_every_measure_exists_and_takes_its_options(entries):
    for entry in ledger.read(entries):
        if "measure" not in entry:
            continue
        name, *options = entry["measure"]
        measure = crt.MEASURES.get(name) or ledger.MEASURES[name]
        given = (crt.editions(),) if name in crt.MEASURES else ()
        inspect.signature(measure).bind(*given, **(options[0] if options else {}))


@pytest.mark.parametrize("claim", [c for c in CLAIMS if c["measure"][0] in report.MEASURES
                                   or c["measure"][0] in others.MEASURES],
                         ids=lambda claim: claim["id"])  # fmt: skip
def test_what_the_tables_answer_is_judged_by_a_rule(claim):
    for row in ledger._rows(claim):
        assert row["verdict"] in rules.VERDICTS
        assert row["rule"] and (row["ours"] or row["why"])
        assert row["low"] is None or row["low"] <= row["value"] <= row["high"]


def test_a_planted_number_changes_the_verdict():
    given = {"crt_laptop": crt.editions()["crt_laptop"]}
    before = crt.ratio(given, over="crt", under="dpsgd")
    table = given["crt_laptop"]
    worse = (table.method == "crt") & (table.metric == "test_ppl_words")
    planted = {"crt_laptop": table.assign(value=table.value.where(~worse, 10 * table.value))}
    after = crt.ratio(planted, over="crt", under="dpsgd")
    assert {one.verdict for one in before} == {"agrees"}
    assert {one.verdict for one in after} == {"differs"}


def test_a_claim_that_nothing_answers_fails_once_something_does():
    (told,) = others.nothing(corpus="avocado")
    assert (told.verdict, told.why) == (rules.UNTOLD, "no recorded run reads avocado")
    with pytest.raises(ValueError, match="customersim is recorded, so it needs a measure"):
        others.nothing(corpus="customersim")


def test_close_is_as_near_as_another_draw_of_the_learning_rate():
    """The largest gap between best and median of non-private training in a recorded search."""
    table = tables.recorded("tuning")
    last = table[(table.metric == "valid_ppl_words") & (table.epoch == table.epochs)]
    trials = last[last.method == "sgd"].groupby(["corpus", "model", "init"]).value
    gap = (trials.median() / trials.min()).max()
    assert np.ceil(10 * gap) / 10 == rules.CLOSE


def test_an_interval_decides_and_two_runs_do_not():
    assert rules.lower([0.9, 0.91, 0.92], 1.0).verdict == rules.AGREES
    assert rules.lower([0.9, 1.3, 0.8], 1.0).verdict == rules.UNTOLD
    assert rules.higher([0.1, 0.1], 0.0).verdict == rules.UNTOLD
    assert rules.share(200, of=200, least=1.0).verdict == rules.AGREES
    assert rules.share(199, of=200, least=1.0).verdict == rules.DIFFERS
    parts = [rules.lower([0.9, 0.91, 0.92], 1.0), rules.higher([0.9, 0.91, 0.92], 1.0)]
    assert rules.all_of(parts).verdict == rules.PART


def test_the_readme_has_todays_line_for_each_figure():
    spec = importlib.util.spec_from_file_location("badges", ROOT / "book" / "badges.py")
    badges = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(badges)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert badges.renewed(text) == text, "python book/badges.py"


def test_a_figure_is_at_the_papers_size_only_where_a_run_is():
    figure = {"tables": ["crt_laptop"], "dialogues": 300, "hidden": 64}
    assert ledger.status(figure, "customersim") == ledger.SIZE
    assert ledger.status(figure | {"dialogues": 301}, "customersim") == "smaller"
    assert ledger.status(figure, "multiwoz").startswith("other corpus (CustomerSim")
    assert ledger.status(figure | {"tables": ["nowhere"]}, "customersim") == "not recorded"


def test_the_page_escapes_and_the_terminal_has_a_line_a_row():
    (row,) = ledger._rows(next(c for c in CLAIMS if c["id"] == "crt-regex"))
    table = ledger.pd.DataFrame([row | {"words": "<MASK>"}])
    assert "&lt;MASK&gt;" in page.html(table) and "<MASK>" not in page.html(table)
    assert page.text(table).startswith("agrees")
    assert json.loads(table.to_json(orient="records"))[0]["id"] == "crt-regex"


def test_the_command_prints_every_paper_or_one(run):
    code, out, _ = run("claims", "--json")
    assert code == 0
    assert len({row["paper"] for row in json.loads(out)["rows"]}) == len(ledger.PAPERS)
    code, out, _ = run("claims", "--json", "--paper", "hush")
    assert {row["paper"] for row in json.loads(out)["rows"]} == {"hush"}
    assert run("claims", "--paper", "bible")[0] == 2
