"""Runs of the leakage chapters: who owns a point, what each method reads, what is not run again."""

from dataclasses import fields, replace

import pytest

from crtbook import grids, runner, settings, tables
from crtbook.claims import ledger
from crtbook.claims.claim import load_claims_file
from crtbook.leakage import (
    LeakageStudy,
    draw_data,
    end_at_snapshot,
    make_plain_trainer,
    make_report,
    make_report_without_owners,
    plan_secret_protection,
    public_text,
    screen_points,
    select_figure_5,
    select_table_2,
    train_run,
)
from crtbook.study import Desk, Store
from crtlib.accounting import privacy_cost
from crtlib.accounting.events import SampledGaussian
from crtlib.text import canaries
from crtlib.text.records import Corpus, Dialogue, Turn

TINY = LeakageStudy(
    method="dpsgd", seed=0, unit="user", dialogues=6, heldout=4, public=12, public_epochs=1,
    epochs=2, snapshots=(1, 2), embedding=8, hidden=8, canaries=2, copies=3, bots=1,
    sampling_probability=0.5,
)  # fmt: skip


def test_a_point_is_all_that_a_user_said():
    said, turns = draw_data(TINY).points, draw_data(replace(TINY, unit="turn")).points
    assert len(said) == len({p.user for p in turns}) == 6 + 2 + 1
    for p in said:
        theirs = [t for t in turns if t.user == p.user]
        assert sorted(p.text.split("\n")) == sorted(t.text for t in theirs)
        values = [t.text[s.start : s.end] for t in theirs for s in t.secrets]
        assert sorted(p.text[s.start : s.end] for s in p.secrets) == sorted(values)
    (bot,) = (p for p in said if p.user.startswith("bot"))
    assert len(set(bot.text.split("\n"))) == 1 and bot.text.count("\n") == 2


def test_public_text_and_vocabulary_know_nobody_of_the_corpus():
    ours, same_people = draw_data(TINY), draw_data(replace(TINY, dialogues=7, canaries=1))
    assert ours.tokenizer == same_people.tokenizer  # whoever is in the corpus, the vocabulary stays
    assert ours.public == same_people.public


def test_public_text_beside_prose_is_prose_of_people_whom_no_run_reads():
    abstracts = [Dialogue(f"{k}", f"author {k}", (Turn("", "We prove it."),)) for k in range(3)]
    others = Corpus("arxiv", tuple(abstracts), ())
    assert public_text("arxiv", 2, 0, others).dialogues == others.dialogues[:2]
    assert public_text("schema_guided", 2, 0, others).name == "customersim-rich"


def test_figure_5_on_abstracts_has_a_tenth_of_the_papers_texts_and_its_model():
    every = grids.abstracts_grid(settings.load_settings("leakage_abstracts", "laptop"))
    for run in every:
        size = (run.layers, run.hidden, run.vocab_size)
        assert run.dialogues >= 32_200 and size == (2, 128, 10_000)
        assert (run.batch_size, run.learning_rate, run.unit) == (32, 1e-3, "turn")
        assert run.detail and run.memory() >= TINY.memory()
    texts = [(run.policy, run.dedup, run.min_users) for run in every]
    assert texts == [
        ("none", False, 5),
        ("none", True, 5),
        ("regex", False, 5),
        ("rare", False, 25),
    ]


def test_table_2_of_people_asks_noisy_models_alone_what_is_learned_from_others():
    """A row a model of the paper's Table 2; with a public start also at the least epsilon."""
    runs = grids.people_grid(settings.load_settings("leakage_people", "laptop", seeds=1))
    private, random, started, public = runs
    assert (private.method, random.method, started.method) == ("sgd", "dpsgd", "dpsgd")
    assert (public.method, started.init, random.init) == ("public", "public", "random")
    assert [run.left_out for run in runs] == [False, True, True, False]
    assert (random.left_out_at, started.left_out_at) == ((), (2,))
    assert random.snapshots == started.snapshots == (2, 5, 10) and private.snapshots == (10,)
    assert {run.unit for run in runs} == {"user"}
    rates = private.learning_rate, random.private_learning_rate, started.private_learning_rate
    assert rates == (0.01, 0.02, 0.005)  # each of a search of its own, of three


def test_a_snapshot_is_also_compared_with_a_model_without_the_owners_of_its_sequences():
    last = replace(TINY, left_out=True, snapshots=(1, 2), epochs=2)
    both = replace(last, left_out_at=(1,))
    assert replace(both, left_out_at=()).key == last.key != both.key  # what is stored stays found
    assert both.cost() > last.cost()
    at = [{e for m, e, _, _ in run.run(Desk()) if m == "left_out_users"} for run in (last, both)]
    assert at == [{2}, {1, 2}]


def test_a_figure_of_some_runs_counts_no_others():
    """Masked, scrubbed and deduplicated runs are none of Figure 5's, and it is none of theirs."""
    figures = {f["id"]: f for f in load_claims_file("figures")}
    names = ("rep-5", "rep-5-deduplicated", "rep-5-scrubbed", "rep-5-rare")
    runs = [{*ledger.runs_of_figure(figures[name]).run} for name in names]
    assert all(runs) and sum(map(len, runs)) == len(set().union(*runs))


def test_methods_read_what_they_should():
    turns = replace(TINY, unit="turn")
    points = draw_data(turns).points
    assert screen_points(turns, points).all == points  # DP-SGD: raw, every copy
    crt = screen_points(replace(turns, method="crt", policy="regex", dedup=True), points)
    numbers = [p for p in crt.private if p.user.startswith(canaries.CANARY_USER_PREFIX)]
    assert crt.missed_secrets == 0 and crt.public and not numbers[0].secrets
    plan = plan_secret_protection(turns, points)
    found = plan.tables([p.id for p in points], range(len(plan.prior)))["secrets"]
    assert (found.posterior_kl <= turns.posterior + 1e-9).all()
    assert found.examples.max() >= 3  # the copies of a canary are one secret


def test_a_snapshot_has_spent_its_own_epsilon_and_finished_runs_stay(tmp_path):
    store = Store(tmp_path)
    table = runner.sweep([TINY], store, workers=1, progress=False)
    spent = table[table.metric == "epsilon"].set_index("epoch").value
    for epoch in (1, 2):
        event = SampledGaussian(0.5, 1.0, 2 * epoch)
        assert spent[epoch] == pytest.approx(
            privacy_cost.epsilon(event, delta=TINY.delta, neighbouring_relation="add_or_remove")
        )
    before = store.path(TINY.key).stat().st_mtime_ns
    assert len(runner.sweep([TINY], store, workers=1, progress=False)) == len(table)
    assert store.path(TINY.key).stat().st_mtime_ns == before


def test_the_public_model_reads_no_private_text():
    public = replace(TINY, method="public", init="public", snapshots=(2,))
    other = train_run(replace(public, canaries=1), Desk())[1].model.state_dict()
    same = train_run(public, Desk())[1].model.state_dict()
    assert all((same[k] == other[k]).all() for k in same)


@pytest.mark.parametrize("bad", [{"method": "adam"}, {"unit": "word"}, {"policy": "magic"}])
def test_bad_settings_are_named(bad):
    (name,) = bad
    with pytest.raises(ValueError, match=f"{name}='.*': must be '"):
        replace(TINY, **bad)


def test_every_run_of_the_chapters_is_made_once():
    sections = (
        settings.load_settings(name, "quick") for name in ("leakage_report", "leakage_training")
    )
    runs = grids.leakage_chapters(*sections)
    assert len({run.key for run in runs}) == len(runs)
    assert {run.method for run in runs} == {"sgd", "dpsgd", "crt", "lp_weighted", "public"}


def test_the_recorded_table_is_that_of_the_sweep():
    """What the ledger reads of it is what the command writes: no column of an earlier format."""
    recorded = tables.load_recorded("leakage_laptop")
    names = ("leakage_report", "leakage_training")
    sections = [settings.load_settings(name, "laptop").but(seeds=10) for name in names]
    runs = grids.leakage_chapters(*sections)
    assert {f.name for f in fields(TINY)} - TINY.LATER < set(recorded)
    assert set(recorded.study) == {"leakage"}
    assert {*select_table_2(recorded).run} | {*select_figure_5(recorded).run} < {*recorded.run}
    for corpus in ("customersim", "schema_guided"):
        drawn = select_figure_5(recorded[recorded.corpus == corpus])
        assert drawn.run.nunique() == sections[1].seeds and set(drawn.model) == {"lstm"}
    names = ["method", "init", "unit", "policy", "dedup", "detail", "model", "corpus", "seed"]
    one_each = recorded.drop_duplicates("run")
    planned = sorted(tuple(str(getattr(run, n)) for n in names) for run in runs)
    first = one_each[one_each.seed < 10]
    assert sorted(tuple(map(str, row)) for row in first[names].to_numpy()) == planned
    later = one_each[one_each.seed >= 10]  # of Table 2, for open rows
    assert {*later.run} < {*select_table_2(recorded).run} and later.seed.max() == 42


def test_a_shape_called_like_a_corpus_says_what_is_different_there():
    section = settings.load_settings("leakage_training", "laptop")
    here, there = (
        grids.runs_by_text(section, 0, corpus)["as it is"]
        for corpus in ("schema_guided", "customersim")
    )
    assert here.dialogues == section.data["schema_guided"].dialogues != section.dialogues
    assert there == replace(here, dialogues=section.dialogues, corpus="customersim")


def test_training_that_ends_at_a_snapshot_has_its_model():
    assert end_at_snapshot(TINY, 2) is TINY
    whole, early = (train_run(s, Desk())[1] for s in (TINY, end_at_snapshot(TINY, 1)))
    there = {e["epoch"]: e for e in whole.history}[1]
    assert early.history[-1]["ppl_words"] == there["ppl_words"]
    assert whole.history[-1]["ppl_words"] != there["ppl_words"]


def test_the_owners_of_unique_sequences_are_left_out_of_the_model_that_is_compared():
    d = draw_data(TINY)
    learned = replace(TINY, method="sgd", epochs=20, batch_size=2, learning_rate=0.03)
    model = make_plain_trainer(learned, d)(d.points)
    page = make_report(TINY, d, model, model)
    rarest = page.sequences.nsmallest(1, "users_in_s").assign(users_in_d=1)
    page = replace(page, sequences=rarest)
    assert 0 < len(page.owners()) < len({p.user for p in d.points})
    compared = make_report_without_owners(TINY, d, model, page)
    other = make_plain_trainer(TINY, d)([p for p in d.points if p.user not in page.owners()])
    again = make_report(TINY, d, model, other)
    assert compared.sequences.ratio.tolist() == again.sequences.ratio.tolist() != []
    nobody = replace(page, sequences=rarest.head(0))
    assert make_report_without_owners(TINY, d, model, nobody) is None
