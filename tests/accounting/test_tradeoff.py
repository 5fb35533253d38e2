"""The trade-off curve against the closed form of one Gaussian, and against tests that exist."""

import numpy as np
import pytest
from scipy import stats

from crtlib.accounting import ledger, tradeoff
from crtlib.accounting.events import SampledGaussian

AT = np.array([0.0, 1e-3, 0.01, 0.1, 0.3, 0.7, 1.0])


@pytest.mark.parametrize("relation, far", [("add_or_remove", 1), ("replace", 2)])
def test_unsampled_steps_have_the_gaussian_curve(relation, far):
    """f(a) = Phi(Phi^-1(1 - a) - mu) (Dong, Roth and Su 2022)."""
    event = SampledGaussian(1.0, 20.0, 100)
    exact = stats.norm.cdf(stats.norm.isf(AT) - far * 10 / 20)
    found = tradeoff.tradeoff(event, AT, neighbouring_relation=relation)
    assert (found.lower <= exact + 1e-12).all() and (found.upper >= exact - 1e-6).all()
    np.testing.assert_allclose(found.lower, exact, atol=2e-4)


@pytest.mark.parametrize("relation", ledger.RELATIONS)
@pytest.mark.parametrize("group", [1, 3])
def test_no_curve_is_above_a_test_that_exists(relation, group):
    event = SampledGaussian(0.02, 1.2, 300)
    found = tradeoff.tradeoff(event, AT, neighbouring_relation=relation, group=group)
    assert (found.lower <= found.upper).all() and (found.upper - found.lower < 5e-3).all()
    assert (found.lower <= 1 - AT + 1e-12).all() and (np.diff(found.lower) <= 0).all()
    # the largest gap to a coin is the total variation distance
    far = ledger.delta(event, epsilon=0, group=group, neighbouring_relation=relation)
    fine = tradeoff.tradeoff(
        [event], np.linspace(0, 1, 401), neighbouring_relation=relation, group=group
    )
    assert (1 - fine.type_i - fine.lower).max() == pytest.approx(far, abs=1e-3)
    assert fine.upper is None


def test_more_steps_lower_the_curve():
    one = tradeoff.tradeoff([SampledGaussian(0.02, 1.2, 100)], AT)
    two = tradeoff.tradeoff([SampledGaussian(0.02, 1.2, 100), SampledGaussian(0.5, 9.0, 30)], AT)
    assert (two.lower <= one.lower).all() and two.lower[3] < one.lower[3]
    none = tradeoff.tradeoff(SampledGaussian(0.0, 1.0, 10), AT)
    np.testing.assert_allclose(none.lower, 1 - AT)
    open_book = tradeoff.tradeoff(SampledGaussian(0.1, 0.0, 10), AT)
    assert (open_book.lower == 0).all()


def test_a_secret_that_may_be_redacted_has_a_curve_nearer_to_a_coins():
    """A test that exists: the secret is public with delta2, in clear with gamma, else redacted."""
    event = SampledGaussian(0.02, 1.2, 300)
    clear = tradeoff.tradeoff(event, AT)
    for gamma, delta2 in ((0.3, 0.0), (0.1, 0.05), (0.9, 0.05)):
        mixed = tradeoff.tradeoff(event, AT, trace_rate=gamma, public_rate=delta2)
        tested = (1 - gamma - delta2) * (1 - AT) + gamma * clear.upper
        assert (mixed.lower <= tested + 1e-9).all() and mixed.upper is None
        assert (mixed.lower >= clear.lower - delta2 - 1e-9).all()
    assert mixed.lower[3] < clear.lower[3]
    near = tradeoff.tradeoff(event, AT, trace_rate=0.05)
    assert near.lower[3] > clear.lower[3] + 0.1


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"type_i=1.5: must be in \[0, 1\]"):
        tradeoff.tradeoff(SampledGaussian(0.1, 1.0, 10), [0.1, 1.5])
