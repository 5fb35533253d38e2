"""What labels buy: each statement on worlds of which every draw of labels can be written out."""

from itertools import combinations, product

import numpy as np
import pytest

from crtbook import exchangeable
from crtlib.intervals import clopper_pearson_upper, exchangeable_rate


def draws(units, read):
    """Every draw of labels, and of one more unit among the others, of equal chance."""
    for labels in combinations(range(units), read):
        for other in set(range(units)) - set(labels):
            yield labels, other


def mean(values):
    return float(np.mean(list(values)))


# --- The identity, and right guesses -------------------------------------------------------------


@pytest.mark.parametrize("units, read", [(2, 1), (5, 2), (6, 5), (7, 3)])
def test_the_identity_on_every_draw_of_every_world(units, read):
    worst = max(
        mean(traces[j] / (sum(traces[i] for i in some) + 1) for some, j in draws(units, read))
        for traces in product((0, 1), repeat=units)
    )
    assert worst == pytest.approx(1 / (read + 1)), "it is tight: where all leave a trace"


def gain(world, read, distance, limit=None):
    """(truth, printed): what a guess gains on average over the draw, and what is printed, both 0
    where nothing is released. ``distance`` follows from the counts; a unit has (trace, public)."""
    truth, printed = [], []
    for some, j in draws(len(world), read):
        traces, public = (sum(world[i][k] for i in some) for k in (0, 1))
        far = distance(traces, public)
        said = exchangeable_rate(traces, read) * far + exchangeable_rate(public, read)
        released = limit is None or said <= limit + 1e-12
        truth.append(released * (world[j][0] * far if not world[j][1] else 1.0))
        printed.append(released * said)
    return np.mean(truth), np.mean(printed)


WORLDS = [
    (t, p, units) for units in (4, 7) for t in range(units + 1) for p in range(t + 1)
]  # so many leave a trace, of which so many are public


@pytest.mark.parametrize("limit", [0.2, 0.4, 0.6, 0.9])
def test_a_limit_set_before_the_count_holds_whatever_noise_is_chosen_after_it(limit):
    for traces, public, units in WORLDS:
        world = [(k < traces, k < public) for k in range(units)]
        for read in range(1, units):
            rate = lambda k, n=read: exchangeable_rate(k, n)  # noqa: E731

            def most(k, p, rate=rate):  # the weakest noise that the limit allows
                return min(1.0, max(0.0, limit - rate(p)) / rate(k))

            assert gain(world, read, most, limit)[0] <= limit + 1e-12


def test_noise_set_before_the_count_is_printed_above_the_truth():
    for traces, public, units in WORLDS:
        world = [(k < traces, k < public) for k in range(units)]
        for read in range(1, units):
            truth, printed = gain(world, read, lambda k, p: 0.3)
            assert truth <= printed + 1e-12


def test_noise_chosen_after_the_count_without_a_limit_is_no_promise():
    """No noise where nobody left a trace, much of it elsewhere: the printed number is beaten."""
    world = [(k < 3, False) for k in range(8)]
    truth, printed = (
        np.mean(
            [
                (world[j][0] if which == "truth" else exchangeable_rate(0, 4))
                * (not any(world[i][0] for i in some))
                for some, j in draws(8, 4)
            ]
        )
        for which in ("truth", "printed")
    )
    assert truth > 3 * printed


def test_the_best_of_several_policies_is_charged_for_each():
    """Policies that fail on people of their own: the best on the labels fails on the others."""
    units, read, m = 6, 2, 3
    policies = [[i // 2 == k for i in range(units)] for k in range(m)]
    free, charged = [], []
    for some, j in draws(units, read):
        counts = [sum(policy[i] for i in some) for policy in policies]
        best = int(np.argmin([*counts]))
        worst = max(policies[k][j] for k in range(m) if counts[k] == counts[best])
        free.append(worst / (counts[best] + 1))
        charged.append(worst / (m * (counts[best] + 1)))
    assert mean(free) * (read + 1) > 1.5
    assert mean(charged) * (read + 1) <= 1


@pytest.mark.parametrize("units, read", [(4, 3), (5, 3), (5, 4)])
def test_a_charge_cut_off_at_one_is_no_promise_and_is_left_out(units, read):
    """The worst pair of policies, the worse of the two taken: each of them, on every draw."""

    def worst(charge):
        most = 0.0
        for policies in combinations(list(product((0, 1), repeat=units)), 2):
            gained = []
            for some in combinations(range(units), read):
                rest = set(range(units)) - set(some)
                rates = [charge(sum(policy[i] for i in some)) for policy in policies]
                each = [
                    sum(policy[j] for j in rest) / len(rest) / rate if rate else 0.0
                    for policy, rate in zip(policies, rates, strict=True)
                ]
                gained.append(max(each))
            most = max(most, mean(gained))
        return most

    cut = lambda k: exchangeable_rate(k, read, policy_pairs=2)  # noqa: E731
    assert worst(cut) >= 1.1
    assert worst(lambda k: cut(k) if cut(k) < 1 else 0.0) <= 1 + 1e-12


def test_the_rate_is_charged_and_ends_at_one():
    assert exchangeable_rate(0, 100) == 1 / 101 and exchangeable_rate(3, 99, policy_pairs=2) == 0.08
    assert exchangeable_rate(5, 9, policy_pairs=3) == 1 and exchangeable_rate(0, 0) == 1
    for bad in ({"count": 3, "of": 2}, {"count": 0, "of": 2, "policy_pairs": 0}):
        with pytest.raises(ValueError, match="must be"):
            exchangeable_rate(**bad)


# --- (epsilon, delta) ----------------------------------------------------------------------------


def naive(of):
    return np.arange(1, of + 2) / (of + 1)


@pytest.mark.parametrize("of, epsilon, delta, times, least", [
    (30, 1.0, 1e-5, 4.75, 1.59), (100, 1.0, 1e-5, 2.55, 1.37), (100, 0.1, 1e-3, 1.26, 1.09),
])  # fmt: skip
def test_the_naive_rate_is_not_enough_and_the_factor_is(of, epsilon, delta, times, least):
    terms = {"epsilon": epsilon, "delta": delta}
    assert exchangeable.spent_deltas(naive(of), **terms) == pytest.approx(times, abs=0.01)
    assert exchangeable.rate_factor(of, **terms) == pytest.approx(least, abs=0.011)
    enough = np.minimum(1, exchangeable.rate_factor(of, **terms) * naive(of))
    assert exchangeable.spent_deltas(enough, **terms) <= 1 + 1e-9


def test_a_small_population_asks_for_more_and_a_95_percent_bound_is_not_enough_there():
    terms = {"epsilon": 1.0, "delta": 1e-5}
    endless = np.minimum(1, exchangeable.rate_factor(30, **terms) * naive(30))
    bounds = [clopper_pearson_upper(k, 30) for k in range(31)]
    assert exchangeable.spent_deltas(endless, **terms, population=40) == pytest.approx(
        12.1, abs=0.1
    )
    assert exchangeable.spent_deltas(bounds, **terms, population=40) == pytest.approx(
        3.11, abs=0.01
    )
    assert exchangeable.spent_deltas(bounds, **terms, population=60) <= 1 + 1e-9
    assert exchangeable.rate_factor(30, **terms, population=40) == pytest.approx(3.88, abs=0.03)


def test_the_worst_case_is_that_of_every_draw_written_out():
    """On seven people of whom three are read, with the hockey sticks integrated."""
    epsilon, delta, units, read = 0.5, 0.01, 7, 3
    rates = np.minimum(1, 1.3 * naive(read))

    def stick(mu, rate):
        """Of the mixture that is in clear with this rate, against none."""
        x = np.linspace(-9, 9 + mu, 40_001)
        clear, none = np.exp(-((x - mu) ** 2) / 2), np.exp(-(x**2) / 2)
        above = np.maximum(0, (1 - rate) * none + rate * clear - np.exp(epsilon) * none)
        return np.trapezoid(above, x) / np.sqrt(2 * np.pi)

    def noise(rate):
        low, high = 0.0, 40.0
        while high - low > 1e-6:
            middle = (low + high) / 2
            low, high = (middle, high) if stick(middle, rate) <= delta else (low, middle)
        return low

    mus = [noise(rate) for rate in rates]
    worst = 0.0
    for traces in range(units + 1):
        total = []
        for some in combinations(range(units), read):
            k = sum(i < traces for i in some)
            total.append(stick(mus[k], (traces - k) / (units - read)))
        worst = max(worst, np.mean(total))
    found = exchangeable.spent_deltas(rates, epsilon=epsilon, delta=delta, population=units)
    assert found == pytest.approx(worst / delta, rel=1e-4)


@pytest.mark.parametrize("bad", [
    {"epsilon": 0.0}, {"delta": 0.0}, {"population": 3}, {"of": 0},
])  # fmt: skip
def test_what_cannot_be_is_refused(bad):
    given = {"of": 3, "epsilon": 1.0, "delta": 1e-5, **bad}
    with pytest.raises(ValueError, match="must be"):
        exchangeable.rate_factor(**given)
