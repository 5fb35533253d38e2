"""Labels drawn again: both statements hold on people missed whole, and rules that look right do
not; the recorded table says the same of three corpora."""

import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator
from scipy.stats import binom, hypergeom

from crtbook import exchangeable, redraws, tables
from crtlib.accounting import privacy_cost
from crtlib.accounting.events import SampledGaussian

TERMS = {"epsilon": 0.5, "delta": 8e-5}
RATES = (0.005, 0.01, 0.03, 0.1, 0.3)


@pytest.fixture(scope="module")
def drawn():
    """Four hundred people, each tenth with twenty secrets; some are missed whole."""
    secrets = np.where(np.arange(400) % 10, 1, 20)
    worlds = [redraws.missed_whole(secrets, r, seed=1, most=m) for r in RATES for m in (0, 1)]
    return redraws.simulate_draws(worlds, 100, draws=4_000, seed=0, **TERMS)


def kept(rows, draws):
    return (
        (rows.covered >= 0.95 - 4 * (0.95 * 0.05 / draws) ** 0.5).all()
        and (rows["mean"] <= 1 + 4 * rows.mean_error).all()
        and (rows.spent <= 1 + 4 * rows.spent_error).all()
    )


def test_both_statements_hold_and_a_rule_that_counts_every_secret_is_seen_to_fail(drawn):
    assert kept(drawn, 4_000)
    assert drawn.covered_each.min() < 0.9 and drawn.mean_each.max() > 1.5
    assert drawn.spent_naive.max() > 1.5


@pytest.mark.parametrize("row", range(0, 2 * len(RATES), 2))
def test_the_draws_are_those_that_can_be_written_out(drawn, row):
    """People missed whole: the count among the labels is hypergeometric."""
    k, missed = np.arange(101), round(400 * RATES[row // 2])
    chance, rest = hypergeom.pmf(k, 400, missed, 100), np.clip((missed - k) / 300, 0, 1)
    c = exchangeable.rate_factor(100, population=400, **TERMS)
    shifts = exchangeable.largest_sensitivity(np.minimum(1, c * (k + 1) / 101), **TERMS)
    exact = chance @ exchangeable.delta_at(shifts, rest, 0.5) / 8e-5
    found = drawn.iloc[row]
    assert exact <= 1 + 1e-9
    assert found.spent == pytest.approx(exact, abs=5 * found.spent_error + 1e-3)
    assert found["mean"] == pytest.approx(chance @ (rest * 101 / (k + 1)), abs=5 * found.mean_error)


def test_the_recorded_table_has_both_statements_on_three_corpora():
    rows = tables.load_recorded("redraws")
    assert rows.groupby("corpus").labels.max().min() == 300 and (rows.draws == 10_000).all()
    assert kept(rows, 10_000)
    worst = rows.groupby("corpus")[["mean_each", "spent_naive"]].max()
    assert (worst > 1.2).all(axis=None) and rows.covered_each.min() < 0.5


def test_the_factor_of_gaussian_noise_is_enough_for_the_training_of_the_chapter():
    """1,000 steps at q = .01: their profiles at some noises, in between by the logarithm."""
    noises, shares = np.geomspace(0.36, 4.2, 14), np.geomspace(2e-5, 1, 50)
    at = np.log1p(np.expm1(0.5) / shares)
    curves = (
        privacy_cost.privacy_profile(
            [SampledGaussian(0.01, s, 1000)], "pld", neighbouring_relation="replace"
        )
        for s in noises
    )
    known = np.log(np.maximum([shares * c.deltas(at) for c in curves], 1e-300))
    between = RegularGridInterpolator((np.log(noises), np.log(shares)), known)

    def delta(noise, share):
        return np.exp(between(np.stack(np.broadcast_arrays(noise, np.log(share)), axis=-1)))

    for n in (30, 100, 300):
        counts = np.arange(n + 1)
        gamma = np.minimum(1, exchangeable.rate_factor(n, **TERMS) * (counts + 1) / (n + 1))
        low, high = (np.full(n + 1, np.log(end)) for end in noises[[0, -1]])
        for _ in range(30):
            middle = (low + high) / 2
            enough = delta(middle, gamma) <= 8e-5
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        worst = [binom.pmf(counts, n, share) @ delta(high, share) for share in shares]
        assert 0.8 * 8e-5 < max(worst) <= 8e-5
