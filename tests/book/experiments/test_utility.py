"""Epsilon of Figure 2: of what a policy was counted to miss, and along the epochs."""

from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

from crtbook import tables, utility
from crtbook.figures.crt import plot_utility_by_epsilon
from crtlib.intervals import clopper_pearson_upper
from crtlib.studies.crt_study import CrtStudy

SEEDS = 5
PPL = {"sgd": 2.0, "dpsgd": 6.0, "selective": 5.0, "crt": 2.1}


def run(method, gamma, seed):
    e = CrtStudy(
        method=method, model="lstm", gamma=gamma, seed=seed, epochs=2, noise_multiplier=2.0
    )
    rows = [("valid_ppl_words", k, 0, PPL[method] * (3 - k)) for k in (1, 2)]
    rows += [("valid_acc_words", k, 0, 0.5) for k in (1, 2)] + [("steps", 2, 0, 20.0)]
    table = pd.DataFrame(rows, columns=["metric", "epoch", "item", "value"])
    return table.assign(run=f"{method}{gamma}{seed}", **asdict(e))


def results():
    gammas = {m: (0.0,) if m == "dpsgd" else (0.0, 0.1) for m in PPL}
    return pd.concat(
        [run(m, g, s) for m in PPL for g in gammas[m] for s in range(SEEDS)], ignore_index=True
    )


def test_epsilon_of_a_learned_policy_uses_what_it_was_counted_to_miss():
    """Not the dial: that says only how much more than its own misses a policy misses."""
    table = results()
    table = table[table.method == "crt"].assign(corpus="schema_guided", policy="tagger")
    counts = {"pi_misses": 20, "pi_labelled": 200, "pi_c_misses": 5, "pi_c_labelled": 200}
    runs = table.drop_duplicates("run")
    rows = [runs.assign(metric=name, value=float(n), epoch=2) for name, n in counts.items()]
    table = pd.concat([table, *rows], ignore_index=True)
    curve = utility.utility_by_epoch(table, neighbouring_relation="add_or_remove").set_index(
        ["gamma", "epoch"]
    )
    gamma, delta2 = (clopper_pearson_upper(n, 200, confidence=0.975) for n in (20, 5))
    assert set(curve.miss_rate) == {gamma}
    assert curve.delta.to_numpy() == pytest.approx(8e-5 + delta2)
    expected = utility.epsilon_after_steps(
        "crt",
        sampling_probability=0.1,
        noise_multiplier=2.0,
        steps=20,
        gamma=gamma,
        delta=8e-5,
        neighbouring_relation="add_or_remove",
    )
    assert curve.epsilon[0.0, 2] == curve.epsilon[0.1, 2] == expected > 0
    unlabelled = utility.utility_by_epoch(
        table.assign(value=table.value.where(table.metric != "pi_labelled", 0)),
        neighbouring_relation="add_or_remove",
    )
    assert set(unlabelled.miss_rate) == {1.0}


def test_epsilon_grows_with_the_epochs_and_shrinks_with_gamma():
    curve = (
        utility.utility_by_epoch(results(), neighbouring_relation="add_or_remove")
        .set_index(["method", "gamma", "epoch"])
        .epsilon
    )
    assert curve["dpsgd", 0.0, 1] < curve["dpsgd", 0.0, 2]
    assert 0 == curve["crt", 0.0, 2] < curve["crt", 0.1, 1] < curve["crt", 0.1, 2]
    assert curve["crt", 0.1, 2] < curve["dpsgd", 0.0, 2]
    assert np.isinf(curve["sgd", 0.0, 2]) and np.isinf(curve["selective", 0.1, 1])


def test_one_seed_has_a_mean_and_no_spread():
    table = results()
    curve = utility.utility_by_epoch(table[table.seed == 0], neighbouring_relation="add_or_remove")
    assert curve.ppl_std.isna().all() and curve.ppl_mean.notna().all()
    assert set(plot_utility_by_epsilon(curve).axes[0].get_title("left").split(", ")) == {
        "CustomerSim",
        "LSTM",
    }


def test_the_chapter_says_which_number_of_epochs_was_best():
    """What *How many epochs?* says of the recorded search, in words."""
    trials = tables.load_recorded("tuning_settled")
    curves = trials[trials.metric == "valid_ppl_words"]
    best = curves.groupby(["method", "corpus", "epochs"]).value.min()
    chosen = {
        method: best[method].unstack().idxmin(axis=1).to_dict() for method in ("crt", "dpsgd")
    }
    assert chosen["crt"] == {
        "customersim": 48, "multiwoz": 12, "schema_guided": 24, "wikitext2_cut": 24,
    }  # fmt: skip
    assert chosen["dpsgd"] == dict.fromkeys(chosen["crt"], 24) | {"wikitext2_cut": 48}
    draws = curves.groupby("corpus").run.nunique() / 9  # three methods, three numbers of epochs
    assert draws.to_dict() == dict.fromkeys(chosen["crt"], 6) | {"customersim": 18}
