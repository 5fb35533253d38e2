"""The experiments of Hush!: parts that share no text, promises kept by what ran, fair choices."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from crtbook import grids, runner, secrets, settings
from crtbook.study import Desk, Store

RUN = secrets.MaskedStudy(
    seed=0,
    targets="sqrt",
    scale=2.0,
    noisy=True,
    dialogues=40,
    first=60,
    secrets=20,
    vocab_size=280,
    hidden=8,
    layers=1,
    context=16,
    steps=2,
    batch_size=8,
)


def test_parts_share_no_text_and_follow_from_the_seed():
    one = secrets.load_texts("customersim", 40, 0)
    parts = [one.public, one.train, one.valid, one.test]
    assert all(parts) and len(set().union(*parts)) == sum(map(len, parts))
    assert secrets.load_texts("customersim", 40, 1).train != one.train


def test_a_corpus_without_its_training_split_is_read_from_the_next(tmp_path, monkeypatch):
    monkeypatch.setenv("CRTLIB_DATA", str(tmp_path))
    assert secrets.first_available(["wikitext2", "customersim"]) == "customersim"
    with pytest.raises(ValueError, match="corpora=wikitext2: none is available"):
        secrets.first_available(["wikitext2"])
    folder = tmp_path / "wikitext-2"
    folder.mkdir()
    lines = [f" The {i}th paragraph has a sentence . \n" for i in range(40)]
    (folder / "wiki.valid.raw").write_text("".join(lines))
    assert secrets.first_available(["wikitext2", "customersim"]) == "wikitext2"
    read = secrets.load_texts("wikitext2", 40, 0)
    assert len(read.train) == 26 and "paragraph has a sentence" in read.train[0]
    run = replace(RUN, corpus="wikitext2", dialogues=40)
    before = run.key
    (folder / "wiki.valid.raw").write_text("".join(lines[1:]))
    assert run.key != before  # another text, another run


def test_a_secret_is_held_by_the_lines_that_have_its_word():
    lines = secrets.load_texts("customersim", 40, 0).train
    held = secrets.secret_words(
        lines, first=60, count=20, prior=0.01, posteriors=(0.1, 0.9), seed=0
    )
    for j, word in enumerate(held.secrets):
        has = {i for i, line in enumerate(lines) if f" {word} " in f" {line.lower()} "}
        columns = held.matrix.indices[held.matrix.indptr[j] : held.matrix.indptr[j + 1]]
        assert has <= {int(held.examples[i]) for i in columns}
    assert len(held.secrets) == 20 and ((held.posterior > 0.1) & (held.posterior < 0.9)).all()
    assert (held.matrix.sum(axis=0) > 0).all()  # texts without a secret are left out
    with pytest.raises(ValueError, match="first=60, count=99999: the text has"):
        secrets.secret_words(
            lines, first=60, count=99999, prior=0.01, posteriors=(0.1, 0.9), seed=0
        )


def test_rounds_that_ran_keep_every_promise_and_without_noise_none():
    facts = {name: value for name, _, _, value in RUN.run(Desk())}
    assert facts["noise_multiplier"] == facts["needed"] > 0
    assert 0.99 < facts["worst"] <= 1 + 1e-9  # the binding secret is at its limit
    plain = {name: value for name, _, _, value in replace(RUN, noisy=False).run(Desk())}
    assert plain["noise_multiplier"] == 0 and plain["worst"] > 1
    assert plain["needed"] == facts["needed"] and plain["kept"] == facts["kept"] < 1
    whole = secrets.plan_masked_study(replace(RUN, scale=None))[0]
    assert whole.kept_share == 1 and whole.noise_multiplier > facts["needed"]


def test_learning_rate_is_chosen_on_validation_alone(tmp_path):
    rows = []
    for rate, valid, test in ((0.1, 2.0, 9.0), (0.2, 3.0, 1.0)):
        for seed in (0, 1):
            cell = {"run": f"{rate}{seed}", "targets": "sqrt", "noisy": True, "seed": seed}
            cell |= {"scale": None, "learning_rate": rate}
            rows += [{**cell, "metric": "valid", "value": valid + seed}]
            rows += [{**cell, "metric": "test", "value": test}]
    best = secrets.choose_learning_rates(pd.DataFrame(rows))
    assert best.learning_rate.tolist() == [0.1, 0.1] and best.test.tolist() == [9.0, 9.0]
    assert np.isinf(best.scale).all()


def test_extraction_counts_every_probe_once_and_its_bound_falls_with_noise(tmp_path):
    run = secrets.ExtractionStudy(
        seed=0, noise_multiplier=0.0, model="lstm", hidden=8, probes=6, others=10, epochs=1
    )
    store = Store(tmp_path)
    table = runner.sweep([run], store, workers=1, progress=False).set_index("metric").value
    assert table[["kept", "generalised", "memorised"]].sum() == 6 and table["steps"] == 5
    bounds = [replace(run, noise_multiplier=s).posterior(0.01) for s in (0.0, 0.5, 2.0, 50.0)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] == 1 and 0.01 < bounds[-1] < 0.02
    with pytest.raises(ValueError, match="others=99999"):
        replace(run, others=99999).run(Desk())


def test_a_tenth_of_the_noise_breaks_promises_and_says_so():
    facts = {name: value for name, _, _, value in replace(RUN, simulated=10).run(Desk())}
    assert facts["noise_multiplier"] == pytest.approx(facts["needed"] / 10)
    assert facts["worst"] > 1.5


def adjacent(one, other, *, holders, view):
    """Whether two datasets may differ in one secret: those that do not hold it (``holders``: the
    numbers of those that do) are equal, and the others look the same."""
    return len(one) == len(other) and all(
        a == b or (i in holders and view(a) == view(b))
        for i, (a, b) in enumerate(zip(one, other, strict=True))
    )


def test_what_the_narrower_predicate_leaves_is_the_same_for_all_adjacent_datasets():
    _, held = secrets.plan_masked_study(RUN)
    lines = secrets.load_texts("customersim", 40, 0).train
    read = [lines[int(i)] for i in held.examples]
    words = held.secrets.tolist()

    def view(line):
        return secrets.mask_words(line, words)

    j = 0
    holders = held.matrix.indices[held.matrix.indptr[j] : held.matrix.indptr[j + 1]]
    other = [re.sub(rf"(?i)\b{words[j]}\b", words[1], x) if i in holders else x
             for i, x in enumerate(read)]  # fmt: skip
    assert other != read and adjacent(read, other, holders=set(holders), view=view)
    assert [view(x) for x in read] == [view(x) for x in other]
    shown = set(re.findall("[a-z]+", " ".join(view(x) for x in read).replace("<MASK>", "").lower()))
    assert not shown & set(words)


def test_the_narrower_predicate_costs_no_promise_and_reads_more():
    facts = {name: value for name, _, _, value in RUN.run(Desk())}
    more = {name: value for name, _, _, value in replace(RUN, predicate="word").run(Desk())}
    assert more["worst"] == facts["worst"] and more["needed"] == facts["needed"]
    assert more["valid"] != facts["valid"]
    assert replace(RUN, predicate="word").cost() > RUN.cost()


def test_greedy_bounding_keeps_no_more_than_the_program_at_the_same_budgets():
    plans = secrets.tabulate_plans(RUN, scales=(1.0, 8.0), seeds=2)
    kept = plans.pivot_table(index=["scale", "seed"], columns="targets", values="kept")
    assert len(plans) == 12 and (kept.greedy <= kept.linear + 1e-9).all()
    assert (kept.greedy < kept.linear - 1e-3).any()


def test_what_stands_beside_figure_1_is_not_drawn_in_it():
    runs = grids.beside_grid(settings.load_settings("secret_protection"))
    assert {(r.simulated, r.predicate) for r in runs} == {(10, "anything"), (1, "word")}
    cell = {"targets": "linear", "scale": 1.0, "noisy": True, "seed": 0, "learning_rate": 0.1}
    rows = [
        {"run": f"{k}{metric}", **cell, **change, "metric": metric, "value": float(k)}
        for k, change in enumerate([{}, {"simulated": 10}, {"predicate": "word"}])
        for metric in ("valid", "test")
    ]
    table = pd.DataFrame(rows).assign(run=lambda t: t.run.str[0])
    best = secrets.choose_learning_rates(table)
    assert best.set_index(["simulated", "predicate"]).test.to_dict() == {
        (1, "anything"): 0.0, (10, "anything"): 1.0, (1, "word"): 2.0,
    }  # fmt: skip


def test_every_profile_makes_runs():
    for name in settings.profile_names():
        settings.load_settings("reconstruction_bounds", name)
        runs = grids.masked_grid(settings.load_settings("secret_protection", name))
        assert {run.targets for run in runs} == {"linear", "sqrt"}
        assert {run.noisy for run in runs if run.scale is None} == {False, True}
        assert len(grids.drop_repeats(runs)) == len(runs)
        section = settings.load_settings("extraction", name)
        assert {run.hidden for run in grids.extraction_grid(section)} == set(section.hidden)
    with pytest.raises(settings.ParameterError, match="texts"):
        settings.load_settings("secret_protection", texts=["nowhere"])


def test_word_counts_know_what_is_frequent_and_nothing_of_its_place():
    """In nats a token: below the logarithm of the vocabulary, and the same again."""
    study = secrets.UnigramStudy(seed=0, dialogues=40, vocab_size=300)
    ((name, *_, loss),) = study.run(Desk())
    assert name == "test" and 3 < loss < np.log(300)
    assert study.run(Desk()) == [(name, 0, 0, loss)]
    grid = grids.unigram_grid(settings.load_settings("secret_protection", "quick"))
    assert {run.seed for run in grid} == set(range(len(grid))) != set()
