"""Plans of a whole corpus: holders as with a model, promises kept, ranks as they are said."""

from dataclasses import replace

import numpy as np
import pytest

from crtbook import grids, runner, secrets, settings, word_plans
from crtbook.study import Desk, Store
from crtlib.accounting import secret_protection
from crtlib.accounting.secret_guesses import allowed_divergence

RUN = word_plans.WordPlanStudy(
    seed=0, targets="linear", scale=1.0, dialogues=60, first=120, secrets=100, steps=5, batch_size=8
)
LINES = ["The cat, the CAT sat.", "A dog sat!", "Nothing", "the dog ran ran"]


def facts(study):
    return {name: value for name, _, _, value in study.run(Desk())}


def test_words_are_held_as_they_are_with_a_model():
    lines = secrets.load_texts("customersim", 60, 0).train
    index = word_plans.index_words(lines, "letters")
    ranked = word_plans.rank_words(index)[60:80]
    held = word_plans.hold_words(index, ranked)
    like = secrets.secret_words(
        lines, first=60, count=20, prior=0.01, posteriors=(0.1, 0.9), seed=0
    )
    names = [index.words[i] for i in ranked]
    assert sorted(names) == sorted(like.secrets)
    for name, row in zip(names, held.toarray(), strict=True):
        other = like.matrix.toarray()[like.secrets.tolist().index(name)]
        assert row.sum() == other.sum()
    assert held.shape[1] == len(like.examples)  # who holds none is no example


def test_a_word_is_letters_or_all_between_blanks():
    letters, blanks = (word_plans.index_words(LINES, how) for how in ("letters", "blanks"))
    assert {"cat", "sat", "the"} <= set(letters.words) and "cat," not in letters.words
    assert {"cat,", "cat", "sat.", "sat!"} <= set(blanks.words)
    often = dict(zip(letters.words, letters.frequencies().tolist(), strict=True))
    assert (often["the"], often["cat"], often["ran"]) == (2, 1, 1)  # documents, not words


def test_secrets_are_of_the_ranks_or_of_the_frequencies_that_are_said():
    often = np.array([101, 100, 60, 50, 49, 2])
    assert word_plans.secret_ranks(often, "frequency", 0, 0) == slice(1, 4)
    assert word_plans.secret_ranks(often, "ranks", 2, 3) == slice(2, 5)
    for band, first, count in (("ranks", 4, 3), ("ranks", 9, 1)):
        with pytest.raises(ValueError, match="the text has 6 words"):
            word_plans.secret_ranks(often, band, first, count)
    with pytest.raises(ValueError, match="secrets=0: the text has 2 words"):
        word_plans.secret_ranks(often[4:], "frequency", 0, 0)


def test_every_promise_is_kept_and_less_is_kept_with_less_noise():
    index = word_plans.index_words(secrets.load_texts("customersim", 60, 0).train, "letters")
    held = word_plans.hold_words(index, word_plans.rank_words(index)[60:90])
    promised = np.linspace(0.1, 0.9, 30)
    made = secret_protection.plan_protection(
        held,
        0.01,
        promised,
        steps=5,
        batch_size=8,
        scale=1.0,
        budget_growth="linear",
        neighbouring_relation="reference",
    )
    spent = 5 * secret_protection.secret_kl_divergences(
        held, made.probabilities, made.noise_multiplier, neighbouring_relation="reference"
    )
    assert (spent <= allowed_divergence(0.01, promised) * (1 + 1e-9)).all()
    every, some = facts(replace(RUN, scale=None)), facts(RUN)
    assert every["kept"] == 1 and 0 < some["kept"] < 1
    assert some["needed"] < every["needed"]
    assert every["first_rank"] == 121 and every["last_rank"] == 220
    assert every["least_examples_of_a_secret"] <= every["most_examples_of_a_secret"]


def test_the_seed_draws_promises_and_not_the_text():
    one, two = facts(RUN), facts(replace(RUN, seed=1))
    assert one["incidences"] == two["incidences"] and one["needed"] != two["needed"]


def test_every_profile_makes_plans(tmp_path):
    for name in ("quick", "laptop", "paper"):
        section = settings.load_settings("word_plans", name)
        plans = grids.word_plan_grid(section)
        arms = 1 + 2 * len(section.scales)
        assert len(plans) == arms * section.seeds * len(section.words) * len(section.bands)
    few = grids.word_plan_grid(settings.load_settings("word_plans", "quick", seeds=1, scales=[1.0]))
    table = runner.sweep(few, Store(tmp_path), workers=1, executor="threads:", progress=False)
    needed = table[(table.metric == "needed") & (table.targets == "linear")]
    one, every = (needed[mask].value.item() for mask in (needed.scale == 1, needed.scale.isna()))
    assert one < every
