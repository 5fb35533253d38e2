"""Losses of Hush! on whole documents: parts that share nothing, promises kept, a fair choice."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from crtbook import fine_tuning, grids, settings
from crtbook.study import Desk

RUN = fine_tuning.FineTunedStudy(
    seed=0, targets="linear", scale=1.0, dialogues=60, first=120, secrets=60, steps=2,
    batch_size=8, hidden=8, layers=1, context=16,
)  # fmt: skip


def facts(study):
    return {name: value for name, _, _, value in study.run(Desk())}


def test_documents_are_cut_alike_for_all_and_none_is_in_two_parts():
    one = fine_tuning.cut_documents([f"d{i}" for i in range(50)], before=20, heldout=5)
    assert [len(part) for part in one] == [20, 5, 5, 20]
    assert len({d for part in one for d in part}) == 50
    assert one == fine_tuning.cut_documents([f"d{i}" for i in range(50)], before=20, heldout=5)
    with pytest.raises(ValueError, match="before=40, heldout=5: leave nothing of 50 documents"):
        fine_tuning.cut_documents([""] * 50, before=40, heldout=5)


def test_rounds_that_ran_keep_every_promise_and_without_noise_none():
    noisy, clean = facts(RUN), facts(replace(RUN, noisy=False))
    assert noisy["worst"] == pytest.approx(1, abs=1e-6) and clean["worst"] > 1
    assert noisy["noise_multiplier"] == noisy["needed"] == clean["needed"] > 0
    assert clean["noise_multiplier"] == 0 and noisy["test"] != clean["test"]


def test_every_arm_starts_from_the_same_weights_whatever_its_seed_and_rate():
    runs = [RUN, replace(RUN, seed=1), replace(RUN, scale=None), replace(RUN, learning_rate=0.1)]
    assert len({facts(run)["start_test"] for run in runs}) == 1
    assert len({facts(run)["needed"] for run in runs[:3]}) == 3  # promises, and the plan


def test_a_rate_near_zero_leaves_the_first_weights():
    still = facts(replace(RUN, learning_rate=1e-12))
    assert still["test"] == pytest.approx(still["start_test"], abs=1e-6)


def test_examples_are_the_documents_that_hold_a_secret():
    plan, holders = fine_tuning._plan_study(RUN)
    train = fine_tuning._load_documents(RUN.corpus, RUN.dialogues, RUN.before, RUN.heldout).train
    assert len(plan.weights) == len(holders.examples) == holders.matrix.shape[1]
    for j, word in enumerate(holders.secrets[:20]):
        held = holders.examples[holders.matrix[[j]].indices]
        assert {train[i] for i in held} == {
            d for d in train if word in fine_tuning.index_words([d], RUN.words).words
        }


def planted(valid):
    """A table with a validation and a test loss for each arm, rate and seed."""
    made = []
    for (targets, scale, noisy, rate, seed), value in valid.items():
        run = {"run": f"{len(made)}", "targets": targets, "scale": scale, "noisy": noisy}
        run |= {"learning_rate": rate, "seed": seed}
        made += [run | {"metric": m, "value": value + 0.1 * (m == "test")} for m in
                 ("valid", "test")]  # fmt: skip
    return pd.DataFrame(made)


def test_rate_and_c_are_chosen_by_validation_at_the_first_seed():
    table = planted({
        ("linear", None, True, 0.1, 0): 3.0, ("linear", None, True, 0.2, 0): 2.0,
        ("linear", 1.0, True, 0.1, 0): 1.0, ("linear", 1.0, True, 0.2, 0): 1.5,
        ("linear", 4.0, True, 0.1, 0): 1.2, ("linear", 4.0, True, 0.2, 0): 1.6,
        ("linear", 1.0, True, 0.1, 1): 9.0, ("linear", 4.0, True, 0.1, 1): 0.1,
        ("linear", None, True, 0.2, 1): 2.2,
    })  # fmt: skip
    rates = fine_tuning.choose_rates(table).set_index("scale").learning_rate
    assert rates.to_dict() == {1.0: 0.1, 4.0: 0.1, np.inf: 0.2}
    runs = fine_tuning.select_chosen_runs(table)
    assert {*runs[runs.best].scale} == {1.0}  # although seed 1 likes 4 better
    assert len(runs[runs.metric == "test"]) == 6


def test_arms_that_start_from_different_weights_are_not_compared():
    table = planted({("linear", None, True, 0.1, 0): 3.0, ("linear", 1.0, True, 0.1, 0): 1.0})
    starts = table[table.metric == "test"].assign(metric="start_test", value=4.6)
    other = starts.assign(seed=1, value=4.3)  # another seed may have another machine
    fine_tuning.select_chosen_runs(pd.concat([table, starts, other]))
    starts.iloc[0, starts.columns.get_loc("value")] = 4.3
    with pytest.raises(ValueError, match="seed 0 start from 2 different weights; all arms"):
        fine_tuning.select_chosen_runs(pd.concat([table, starts]))


def test_the_grid_searches_every_arm_alike_and_repeats_what_was_chosen():
    for name in ("quick", "laptop", "paper"):
        section = settings.load_settings("fine_tuning", name)
        runs = grids.fine_tuning_grid(section)
        by_arm = pd.DataFrame([(r.targets, r.scale, r.noisy, r.learning_rate) for r in runs])
        assert by_arm.fillna(np.inf).groupby([0, 1, 2])[3].agg(tuple).nunique() == 1
        assert {r.seed for r in runs} == {0}
        table = planted({(r.targets, r.scale, r.noisy, r.learning_rate, 0): r.learning_rate
                         for r in runs})  # fmt: skip
        more = grids.fine_tuning_grid(section, table)
        again = [r for r in more if r.seed]
        assert {r.learning_rate for r in again} == {min(section.learning_rates)}
        assert len(again) == (section.seeds - 1) * len(runs) // len(section.learning_rates)
        assert more[: len(runs)] == runs
