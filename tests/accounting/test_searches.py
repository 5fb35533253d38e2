"""The price of a search against another implementation, its definition, and a finite search."""

import math

import numpy as np
import pytest
from scipy import stats

from crtlib.accounting import ledger, searches
from crtlib.accounting.events import SampledGaussian
from crtlib.accounting.renyi import to_epsilon

EVENT = SampledGaussian(0.01, 1.27053328, 1000)


@pytest.mark.parametrize("law", searches.LAWS)
@pytest.mark.parametrize("trials", [1, 5, 50])
def test_the_price_is_that_of_dp_accounting(law, trials):
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    curve = ledger.profile(EVENT, "rdp", "replace").renyi
    each = rdp._compute_rdp_repeat_and_select(
        curve.orders, curve.values, trials, searches.LAWS[law]
    )
    theirs, _ = rdp.compute_epsilon(curve.orders, each, 8e-5)
    found = searches.searched(EVENT, delta=8e-5, trials=trials, law=law)
    assert found == pytest.approx(theirs, rel=1e-7)


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("mean", [1.5, 10.0])
def test_the_number_of_trials_has_the_mean_that_was_asked(shape, mean):
    g, k = searches.success_probability(mean, shape=shape), np.arange(1, 20_001)
    logs = k * math.log1p(-g)  # (1 - g)^k Gamma(k + shape) / k!, normalised
    from scipy.special import gammaln

    logs = logs + gammaln(k + shape) - gammaln(k + 1)
    law = np.exp(logs - logs.max())
    assert law @ k / law.sum() == pytest.approx(mean, rel=1e-6)


def test_the_best_of_a_random_number_of_coins_is_bounded():
    """A finite search, exactly: the released output is the best of K draws from a small law."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.6, 0.3, 0.1])  # a run, in both worlds

    def best(run, weights):  # the law of the maximum of K runs, K distributed as weights[k - 1]
        above = np.cumsum(run)
        return sum(w * np.diff(above**k, prepend=0) for k, w in enumerate(weights, 1))

    orders = np.array([1.5, 2.0, 4.0, 8.0, 32.0])
    renyi = np.array([np.log((p**a * q ** (1 - a)).sum()) / (a - 1) for a in orders])
    for shape in (0.0, 1.0):
        g = searches.success_probability(4.0, shape=shape)
        k = np.arange(1, 400)
        weights = (1 - g) ** k if shape else (1 - g) ** k / k
        one, two = (best(run, weights / weights.sum()) for run in (p, q))
        exact = np.array([np.log((one**a * two ** (1 - a)).sum()) / (a - 1) for a in orders])
        bound = searches.negative_binomial(orders, renyi, 4.0, shape=shape)
        assert (exact <= bound + 1e-12).all() and (exact > renyi).any()
    weights = stats.poisson.pmf(np.arange(1, 60), 4.0)
    none = stats.poisson.pmf(0, 4.0)
    one, two = (np.append(best(run, weights), none) for run in (p, q))
    exact = np.array([np.log((one**a * two ** (1 - a)).sum()) / (a - 1) for a in orders])
    assert (exact <= searches.poisson(orders, renyi, 4.0) + 1e-12).all()


def test_a_search_costs_and_a_fixed_one_is_a_composition():
    alone = ledger.epsilon(EVENT, delta=8e-5, neighbouring_relation="replace")
    for law in searches.LAWS:
        spent = [searches.searched(EVENT, delta=8e-5, trials=n, law=law) for n in (1, 2, 10)]
        assert alone < spent[0] < spent[1] < spent[2]
    whole = SampledGaussian(0.01, 1.27053328, 3000)
    fixed = searches.fixed(EVENT, delta=8e-5, trials=3)
    assert fixed == ledger.epsilon(whole, delta=8e-5, neighbouring_relation="replace")
    assert searches.fixed([EVENT], delta=8e-5, trials=1) == alone
    # one trial of a truncated law is one training: the Renyi bound of that
    curve = ledger.profile(EVENT, "rdp", "replace").renyi
    least = searches.negative_binomial(curve.orders, curve.values, 1.0, shape=0.0)
    assert to_epsilon(curve.orders, least, 8e-5) >= to_epsilon(curve.orders, curve.values, 8e-5)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"trials": 0.5}, "trials=0.5: must be at least 1"),
        ({"law": "fixed"}, "law='fixed': must be one of poisson"),
        ({"delta": 0}, "delta=0: must be in"),
    ],
)
def test_mistakes_are_named(changes, said):
    with pytest.raises(ValueError, match=said):
        searches.searched(EVENT, **{"delta": 1e-5, "trials": 2} | changes)
