"""The trade-off curve against the closed form of one Gaussian, and against tests that exist."""

import numpy as np
import pytest
from scipy import stats

from crtbook.tight import compose
from crtlib.accounting import group_mixtures, guess_bounds, privacy_cost
from crtlib.accounting.events import SampledGaussian

AT = np.array([0.0, 1e-3, 0.01, 0.1, 0.3, 0.7, 1.0])


def by_tests(event, at=AT, relation="replace", group=1):
    """The type II error of tests that exist, in the direction where they are better."""
    law = group_mixtures.poisson_binomial([event.sampling_probability] * group)
    ways = ("forward", "backward") if relation == "add_or_remove" else ("replace",)
    power = np.zeros_like(at)
    for way in ways:
        pair = compose(law, event.noise_multiplier, int(event.steps), direction=way)
        power = np.maximum(power, [pair.blow_up(a)[0] for a in at.tolist()])
    return 1 - power


@pytest.mark.parametrize("relation, far", [("add_or_remove", 1), ("replace", 2)])
def test_unsampled_steps_have_the_gaussian_curve(relation, far):
    """f(a) = Phi(Phi^-1(1 - a) - mu) (Dong, Roth and Su 2022)."""
    event = SampledGaussian(1.0, 20.0, 100)
    exact = stats.norm.cdf(stats.norm.isf(AT) - far * 10 / 20)
    found = guess_bounds.tradeoff_curve(event, AT, neighbouring_relation=relation)
    assert (found <= exact + 1e-12).all() and (by_tests(event, AT, relation) >= exact - 1e-6).all()
    np.testing.assert_allclose(found, exact, atol=2e-4)


@pytest.mark.parametrize("relation", privacy_cost.NEIGHBOURING_RELATIONS)
@pytest.mark.parametrize("group", [1, 3])
def test_no_curve_is_above_a_test_that_exists(relation, group):
    event = SampledGaussian(0.02, 1.2, 300)
    found = guess_bounds.tradeoff_curve(event, AT, neighbouring_relation=relation, group=group)
    upper = by_tests(event, AT, relation, group)
    assert (found <= upper).all() and (upper - found < 5e-3).all()
    assert (found <= 1 - AT + 1e-12).all() and (np.diff(found) <= 0).all()
    # the largest gap to a coin is the total variation distance
    far = privacy_cost.delta(event, epsilon=0, group=group, neighbouring_relation=relation)
    grid = np.linspace(0, 1, 401)
    fine = guess_bounds.tradeoff_curve([event], grid, neighbouring_relation=relation, group=group)
    assert (1 - grid - fine).max() == pytest.approx(far, abs=1e-3)


def test_more_steps_lower_the_curve():
    one = guess_bounds.tradeoff_curve(
        [SampledGaussian(0.02, 1.2, 100)], AT, neighbouring_relation="replace"
    )
    two = guess_bounds.tradeoff_curve(
        [SampledGaussian(0.02, 1.2, 100), SampledGaussian(0.5, 9.0, 30)],
        AT,
        neighbouring_relation="replace",
    )
    assert (two <= one).all() and two[3] < one[3]
    none = guess_bounds.tradeoff_curve(
        SampledGaussian(0.0, 1.0, 10), AT, neighbouring_relation="replace"
    )
    np.testing.assert_allclose(none, 1 - AT)
    open_book = guess_bounds.tradeoff_curve(
        SampledGaussian(0.1, 0.0, 10), AT, neighbouring_relation="replace"
    )
    assert (open_book == 0).all()


def test_a_secret_that_may_be_redacted_has_a_curve_nearer_to_a_coins():
    """A test that exists: the secret is public with delta2, in clear with gamma, else redacted."""
    event = SampledGaussian(0.02, 1.2, 300)
    clear = guess_bounds.tradeoff_curve(event, AT, neighbouring_relation="replace")
    for gamma, delta2 in ((0.3, 0.0), (0.1, 0.05), (0.9, 0.05)):
        mixed = guess_bounds.tradeoff_curve(
            event, AT, trace_rate=gamma, public_rate=delta2, neighbouring_relation="replace"
        )
        upper = (1 - gamma - delta2) * (1 - AT) + gamma * by_tests(event)
        assert (mixed <= upper + 1e-9).all()
        assert (mixed >= clear - delta2 - 1e-9).all()
    assert mixed[3] < clear[3]
    near = guess_bounds.tradeoff_curve(event, AT, trace_rate=0.05, neighbouring_relation="replace")
    assert near[3] > clear[3] + 0.1


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"type_i=1.5: must be in \[0, 1\]"):
        guess_bounds.tradeoff_curve(
            SampledGaussian(0.1, 1.0, 10), [0.1, 1.5], neighbouring_relation="replace"
        )
