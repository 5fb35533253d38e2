"""Audits agree with published values, and are wrong as seldom as they promise."""

import numpy as np
import pytest
from scipy import special, stats

from crtbook import auditing
from crtlib.attacks import one_run_bound
from crtlib.intervals import clopper_pearson

DELTAS = (0, 8e-5, 0.01)
TWO_RATES = {  # made with scipy's beta quantiles, independently of this code
    (900, 1000, 100, 1000): (1.9897063, 1.9896154, 1.9782739),
    (600, 1000, 10, 1000): (3.4360423, 3.4359017, 3.4183075),
    (1000, 1000, 0, 1000): (5.6005875, 5.6005072, 5.5904999),
    (520, 1000, 480, 1000): (0, 0, 0),
}
ONE_RUN = {  # examples, guesses, correct at delta = 0, 1e-5, 8e-5; as jax_privacy's auditing
    (1000, 1000, 600): (0.2974679, 0.2972270, 0.2955118),
    (1000, 1000, 900): (2.0212332, 2.0206456, 2.0164313),
    (1000, 200, 190): (2.3978715, 2.3936183, 2.3621399),
    (1000, 100, 100): (3.4929654, 3.4653763, 3.2622252),
    (1000, 1000, 1000): (5.8090683, 5.7822831, 5.5864366),
}


@pytest.mark.parametrize("counts", TWO_RATES)
def test_golden_bounds_from_rates(counts):
    found = [auditing.epsilon_lower_bound(*counts, delta=d) for d in DELTAS]
    assert np.allclose(found, TWO_RATES[counts], atol=1e-6)
    tp, n, fp, m = counts  # the same attack with its answers exchanged
    assert np.isclose(auditing.epsilon_lower_bound(m - fp, m, n - tp, n), found[0])


@pytest.mark.parametrize("counts", ONE_RUN)
def test_golden_bounds_from_one_run(counts):
    m, r, v = counts
    found = [
        one_run_bound.one_run_lower_bound(m, guesses=r, correct=v, delta=d) for d in (0, 1e-5, 8e-5)
    ]
    assert np.allclose(found, ONE_RUN[counts], atol=1e-6)


def test_both_hold_for_randomised_response():
    """It has exactly epsilon, and its answers are the best attack: too much is claimed in at most
    5 % of runs, and the claim is not idle either."""
    epsilon, rng = 1.5, np.random.default_rng(0)
    right = special.expit(epsilon)
    one, two = [], []
    for _ in range(150):
        coins = rng.random(500) < 0.5
        guess = coins ^ (rng.random(500) > right)
        one.append(
            one_run_bound.one_run_lower_bound(500, guesses=500, correct=(guess == coins).sum())
        )
        counts = (guess & coins).sum(), coins.sum(), (guess & ~coins).sum(), (~coins).sum()
        two.append(auditing.epsilon_lower_bound(*map(int, counts)))
    for bounds in (one, two):
        assert np.mean(np.array(bounds) > epsilon) < 0.09
        assert np.median(bounds) > 0.7 * epsilon


def test_accuracy_bound_is_reached_by_randomised_response():
    assert np.isclose(auditing.accuracy_bound(np.log(3), delta=0.0), 0.75)
    assert np.isclose(auditing.accuracy_bound(0.0, delta=0.2), 0.6)  # (1 + 0.2) / 2
    assert auditing.accuracy_bound(800.0, delta=0.0) == 1


def test_nothing_right_proves_nothing():
    assert one_run_bound.one_run_lower_bound(100, guesses=0, correct=0) == 0
    assert one_run_bound.one_run_lower_bound(100, guesses=50, correct=0, delta=0.1) == 0
    assert clopper_pearson(0, 20)[0] == 0 and clopper_pearson(20, 20)[1] == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: clopper_pearson(3, 2), "count=3"),
        (lambda: clopper_pearson(1, 2, confidence=1), "confidence=1"),
        (lambda: auditing.epsilon_lower_bound(1, 2, 1, 2, delta=1), "delta=1"),
        (lambda: one_run_bound.one_run_lower_bound(5, guesses=6, correct=1), "guesses=6"),
        (lambda: auditing.accuracy_bound(-1, delta=0), "epsilon=-1"),
    ],
)
def test_impossible_counts_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --------------------------------------------------------------------------- games
def test_log_ratio_is_that_of_the_densities_and_beats_a_sum():
    rng = np.random.default_rng(0)
    drawn = rng.random((6, 4000)) < 0.2
    inside = drawn[:, :2000] + 0.5 * rng.normal(size=(6, 2000))
    outside = 0.5 * rng.normal(size=(6, 2000))
    laws = {
        "inside": (np.array([0.0, 1.0]), np.array([0.8, 0.2])),
        "outside": (np.zeros(1), np.ones(1)),
        "sigma": 0.5,
    }
    ratio = auditing.log_ratio(inside, **laws)
    density = stats.norm.pdf(inside, 0, 0.5) * 0.8 + stats.norm.pdf(inside, 1, 0.5) * 0.2
    assert np.allclose(ratio, np.log(density / stats.norm.pdf(inside, 0, 0.5)).sum(0))
    other = auditing.log_ratio(outside, **laws)
    sums = np.r_[inside.sum(0), outside.sum(0)]
    middle = np.median(sums)
    best = (ratio > 0).sum() + (other <= 0).sum()
    assert best > (inside.sum(0) > middle).sum() + (outside.sum(0) <= middle).sum()


def test_one_run_names_the_extremes_and_pays_for_its_tries():
    epsilon, rng = 1.5, np.random.default_rng(0)
    bounds = []
    for _ in range(100):
        coins = rng.random(500) < 0.5
        honest = coins ^ (rng.random(500) > special.expit(epsilon))
        scores = honest + 1e-3 * rng.random(500)
        bounds.append(one_run_bound.audit_one_run(scores, coins, delta=0.0).epsilon)
    assert np.mean(np.array(bounds) > epsilon) < 0.09 and np.median(bounds) > 0.5 * epsilon
    scores = np.arange(10.0)
    found = one_run_bound.audit_one_run(scores, scores >= 5, delta=0.0, guesses=5)
    assert (found.correct, found.guesses) == (5, 5)
    wrong = one_run_bound.audit_one_run(scores, scores < 5, delta=0.0, guesses=4)
    assert (wrong.correct, wrong.epsilon) == (0, 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: one_run_bound.audit_one_run(np.ones(3), np.ones(2), delta=0),
            "included: has shape",
        ),
        (
            lambda: one_run_bound.audit_one_run(np.ones(3), np.ones(3), delta=0, guesses=4),
            "guesses=4",
        ),
        (lambda: auditing.epsilon_lower_bound(0, 0, 1, 2), "members=0"),
        (lambda: auditing.log_ratio(np.ones((1, 1)), inside=(), outside=(), sigma=0), "sigma=0"),
    ],
)
def test_impossible_games_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
