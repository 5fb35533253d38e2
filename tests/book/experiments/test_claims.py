"""Claims are judged by what was measured: a planted result must change the verdict."""

from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

from crtbook import claims, utility
from crtlib.experiments.crt import CrtStudy
from crtlib.intervals import clopper_pearson_upper

SEEDS = 5
PPL = {"sgd": 2.0, "dpsgd": 6.0, "selective": 5.0, "crt": 2.1}


def run(method, gamma, seed, *, ppl, exposed, accuracy, null=0.01):
    e = CrtStudy(
        method=method, model="lstm", gamma=gamma, seed=seed, epochs=2, noise_multiplier=2.0
    )
    rng = np.random.default_rng([seed, int(10 * gamma), len(method)])
    rows = [("valid_ppl_words", k, 0, ppl * (3 - k)) for k in (1, 2)]
    rows += [("valid_acc_words", k, 0, 0.5) for k in (1, 2)]
    rows += [("test_ppl_words", 2, 0, ppl * rng.uniform(0.99, 1.01)), ("steps", 2, 0, 20.0)]
    rows += [("exposure", 2, k, exposed) for k in range(10)]
    for name in ("mia_accuracy", "group_accuracy"):
        rows += [(name, 2, 0, accuracy), (f"{name}_null", 2, 0, null)]
    table = pd.DataFrame(rows, columns=["metric", "epoch", "item", "value"])
    return table.assign(run=f"{method}{gamma}{seed}", **asdict(e))


def results(ppl=PPL, leaky=("sgd", "selective"), null=0.01):
    runs = []
    for method in ppl:
        for gamma in (0.0,) if method == "dpsgd" else (0.0, 0.1):
            leaks = method in leaky and gamma > 0
            seen = {"exposed": 18.0 if leaks else 1.4, "accuracy": 0.7 if leaks else 0.5}
            seen |= {"ppl": ppl[method], "null": null}
            runs += [run(method, gamma, s, **seen) for s in range(SEEDS)]
    return pd.concat(runs, ignore_index=True)


def verdicts(table):
    return claims.claims(table).set_index("claim").verdict


def test_a_table_that_bears_the_paper_out_agrees_everywhere():
    assert set(verdicts(results())) == {"agrees"}


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        ({"ppl": PPL | {"crt": 3.0}}, "CRT's perplexity is close to non-private"),
        ({"ppl": PPL | {"dpsgd": 1.5}}, "CRT's perplexity is no worse than DP-SGD's"),
        ({"leaky": ("sgd", "selective", "crt")}, "CRT at every γ: highest canary exposure"),
        ({"leaky": ("sgd", "selective", "crt")}, "CRT at every γ: membership accuracy"),
        ({"leaky": ("selective",)}, "Non-private at γ > 0: group membership accuracy"),
        ({"leaky": ("sgd",)}, "S-DP at γ > 0: highest canary exposure"),
    ],
)
def test_a_planted_result_changes_the_verdict(change, claim):
    found = verdicts(results(**change))
    assert set(found[found.index.str.startswith(claim)]) == {"differs"}


def test_an_attack_without_power_tells_nothing():
    """A wide band, or an attack that finds nothing anywhere, supports no claim of safety."""
    wide = verdicts(results(null=0.5))
    blind = verdicts(results(leaky=()))
    for found in (wide, blind):
        assert found["CRT at every γ: membership accuracy is at chance"] == claims.UNTOLD
    assert blind["Non-private at γ > 0: membership accuracy is above chance"] == "differs"
    few = results(leaky=())
    few = verdicts(few[few.seed < 2])
    assert few["Non-private at γ > 0: membership accuracy is above chance"] == claims.UNTOLD


def test_two_seeds_tell_nothing_about_perplexity():
    table = results()
    found = verdicts(table[table.seed < 2])
    assert found["CRT's perplexity is no worse than DP-SGD's"] == claims.UNTOLD


def test_epsilon_of_a_learned_policy_uses_what_it_was_counted_to_miss():
    """Not the dial: that says only how much more than its own misses a policy misses."""
    table = results()
    table = table[table.method == "crt"].assign(corpus="schema_guided", policy="tagger")
    counts = {"pi_misses": 20, "pi_labelled": 200, "pi_c_misses": 5, "pi_c_labelled": 200}
    runs = table.drop_duplicates("run")
    rows = [runs.assign(metric=name, value=float(n), epoch=2) for name, n in counts.items()]
    table = pd.concat([table, *rows], ignore_index=True)
    curve = utility.curve(table).set_index(["gamma", "epoch"])
    gamma, delta2 = (clopper_pearson_upper(n, 200, confidence=0.975) for n in (20, 5))
    assert set(curve.miss_rate) == {gamma}
    assert curve.delta.to_numpy() == pytest.approx(8e-5 + delta2)
    expected = utility.spent(
        "crt", sampling_probability=0.1, noise_multiplier=2.0, steps=20, gamma=gamma, delta=8e-5
    )
    assert curve.epsilon[0.0, 2] == curve.epsilon[0.1, 2] == expected > 0
    unlabelled = utility.curve(
        table.assign(value=table.value.where(table.metric != "pi_labelled", 0))
    )
    assert set(unlabelled.miss_rate) == {1.0}
    named = claims.claims(table).claim
    assert not named.str.startswith("Non-private at γ = 0").any()


def test_epsilon_grows_with_the_epochs_and_shrinks_with_gamma():
    curve = utility.curve(results()).set_index(["method", "gamma", "epoch"]).epsilon
    assert curve["dpsgd", 0.0, 1] < curve["dpsgd", 0.0, 2]
    assert 0 == curve["crt", 0.0, 2] < curve["crt", 0.1, 1] < curve["crt", 0.1, 2]
    assert curve["crt", 0.1, 2] < curve["dpsgd", 0.0, 2]
    assert np.isinf(curve["sgd", 0.0, 2]) and np.isinf(curve["selective", 0.1, 1])
