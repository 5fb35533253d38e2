"""What a person asks: each formula against its definition, on laws that can be written out."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from crtbook.theorems import hockey_stick, indistinguishability
from crtbook.tight import compose
from crtlib.accounting import confidentiality, group_mixtures, guess_bounds, privacy_cost
from crtlib.accounting.events import SampledGaussian
from crtlib.intervals import clopper_pearson_upper

REPLACE = {"neighbouring_relation": "replace"}
ADD = {"neighbouring_relation": "add_or_remove"}


# --- The worked example of a certificate ----------------------------------------------------------


@pytest.fixture(scope="module")
def example():
    """46,080 points, batches of 512, 360 steps, calibrated to epsilon 3 for replacement."""
    shape = {"sampling_probability": 512 / 46_080, "steps": 360}
    sigma = privacy_cost.noise_multiplier(epsilon=3, delta=1e-6, **shape, **REPLACE)
    traces = clopper_pearson_upper(13, 400, confidence=0.975)
    public = clopper_pearson_upper(0, 400, confidence=0.975)
    return SampledGaussian(noise_multiplier=sigma, **shape), traces, public


def guesses(event, copies, traces, public):
    value = guess_bounds.guess_advantage(
        event, copies=copies, trace_rate=traces, public_rate=public, neighbouring_relation="replace"
    )
    return 100 * guess_bounds.right_guess_rate(value)


def test_the_worked_example(example):
    event, traces, public = example
    assert event.noise_multiplier == pytest.approx(0.844316, abs=1e-6)
    assert (traces, public) == pytest.approx((0.054935, 0.009180), abs=1e-6)
    assert privacy_cost.epsilon(event, delta=1e-6, **REPLACE) == pytest.approx(3, abs=1e-6)
    secret = confidentiality.confidentiality_epsilon(
        event, gamma=traces, total_delta=1e-6, **REPLACE
    )
    assert secret == pytest.approx(0.4516, abs=1e-4)
    paper = confidentiality.confidentiality_epsilon(
        event, gamma=traces, total_delta=1e-6, neighbouring_relation="add_or_remove"
    )
    assert paper == pytest.approx(0.2709, abs=1e-4)
    distances = [privacy_cost.delta(event, epsilon=0, group=k, **REPLACE) for k in range(1, 7)]
    assert distances == pytest.approx([0.2208, 0.4185, 0.5845, 0.7157, 0.8137, 0.8829], abs=1e-4)
    assert guesses(event, 1, traces, public) == pytest.approx(51.07, abs=0.01)
    assert guesses(event, 1, 1.0, 0.0) == pytest.approx(61.04, abs=0.01)  # it was missed
    assert guesses(event, 1, 0.0, 0.0) == 50  # it was found
    assert guesses(event, 5, traces, public) == pytest.approx(55.33, abs=0.01)
    assert guesses(event, 20, traces, public) == pytest.approx(71.20, abs=0.01)
    for prior, most in ((1e-6, 21.1), (1e-3, 20.1)):
        value = guess_bounds.value_guess_rate(3.0, delta=1e-6, prior=prior)
        assert value / prior == pytest.approx(most, abs=0.05)
    twice = [event, event]
    assert privacy_cost.epsilon(twice, delta=1e-6, **REPLACE) == pytest.approx(4.0953, abs=1e-3)
    secret = confidentiality.confidentiality_epsilon(
        twice, gamma=traces, total_delta=1e-6, **REPLACE
    )
    assert secret == pytest.approx(0.9806, abs=1e-3)
    assert guesses(twice, 1, traces, public) == pytest.approx(51.31, abs=0.01)
    assert guesses(twice, 1, 1.0, 0.0) == pytest.approx(65.45, abs=0.01)


def test_the_worked_example_by_other_routes(example):
    from dp_accounting.pld import privacy_loss_distribution as pld

    event, traces, _ = example
    q, sigma, steps = 512 / 46_080, event.noise_multiplier, 360
    theirs = pld.from_gaussian_mechanism(
        sigma,
        value_discretization_interval=1e-4,
        sampling_prob=q,
        neighboring_relation=pld.NeighborRel.REPLACE_ONE,
    ).self_compose(steps)
    assert theirs.get_epsilon_for_delta(1e-6) == pytest.approx(3, abs=1e-5)
    read = theirs.get_epsilon_for_delta(1e-6 / traces)
    amplified, _ = confidentiality.amplify_by_miss_rate(read, delta=1e-6, gamma=traces)
    assert amplified == pytest.approx(0.4516, abs=1e-4)
    for k, expected in ((1, 0.2208), (4, 0.7157)):
        law = group_mixtures.poisson_binomial([q] * k)
        low, high = compose(law, sigma, steps, direction="replace").delta(0.0)
        assert low <= expected + 1e-4 and expected - 1e-4 <= high < low + 1e-5


# --- Guesses --------------------------------------------------------------------------------------


def mechanism(clear, q=0.4, noise=0.6):
    """A finite mechanism: count the drawn ``clear`` points, add two-sided geometric noise."""
    count, steps = stats.binom.pmf(np.arange(clear + 1), clear, q), np.arange(-25, 41)
    kernel = noise ** np.abs(steps - np.arange(clear + 1)[:, None])
    return count @ (kernel / kernel.sum(axis=1, keepdims=True))


def test_right_guesses_are_those_of_the_best_adversary():
    p, q = mechanism(2), mechanism(0)
    best = 0.5 * np.maximum(p, q).sum()  # the likelier world at each outcome
    assert guess_bounds.right_guess_rate(hockey_stick(p, q, epsilon=0.0)) == pytest.approx(
        best, rel=1e-12
    )


def test_a_value_is_guessed_at_most_as_often_as_is_said():
    """Each value moves the output; the guesser knows the prior and says the likeliest value. One
    of twenty by a randomised answer reaches the bound."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        worlds, silent = rng.dirichlet(np.full(8, 3.0), 5), rng.dirichlet(np.full(8, 3.0))
        prior = rng.dirichlet(np.ones(5))
        epsilon, right = 0.4, (prior[:, None] * worlds).max(axis=0).sum()
        delta = max(indistinguishability(w, silent, epsilon=epsilon) for w in worlds)
        bound = guess_bounds.value_guess_rate(epsilon, delta=delta, prior=float(prior.max()))
        assert right <= bound + 1e-12
    values, epsilon = 20, 1.0
    truth = math.exp(epsilon) / values
    worlds = np.full((values, values), (1 - truth) / (values - 1))
    np.fill_diagonal(worlds, truth)
    silent = np.full(values, 1 / values)
    assert max(indistinguishability(w, silent, epsilon=epsilon) for w in worlds) < 1e-15
    bound = guess_bounds.value_guess_rate(epsilon, delta=0.0, prior=1 / values)
    assert worlds.max(axis=0).mean() == pytest.approx(bound, rel=1e-12)
    assert guess_bounds.value_guess_rate(800.0, delta=0.1, prior=0.5) == 1.0


@pytest.mark.parametrize("at", [0.0, 0.3, 1.0, 1.7, 2.5, 3.0])
def test_the_concave_majorant_is_the_worst_law_with_that_mean(at):
    values = [0.0, 0.1, 0.5, 0.6]
    grid = np.linspace(0, 1, 21)
    worst = max(
        np.dot(law, values)
        for law in product(grid, repeat=4)
        if abs(sum(law) - 1) < 1e-9 and np.dot(law, range(4)) <= at + 1e-9
    )
    assert worst - 1e-9 <= guess_bounds.concave_majorant(values, at) <= worst + 0.03


def test_the_bound_for_copies_holds_however_misses_depend():
    """On a finite mechanism: all copies missed together, independently, or never two."""
    copies, gamma = 3, 0.1
    worlds = [mechanism(k) for k in range(copies + 1)]
    distances = [hockey_stick(w, worlds[0], epsilon=0.0) for w in worlds]
    bound = guess_bounds.concave_majorant(distances, copies * gamma)
    laws = {
        "together": [1 - gamma, 0, 0, gamma],
        "independent": stats.binom.pmf(range(4), 3, gamma),
        "apart": [1 - 3 * gamma, 3 * gamma, 0, 0],
    }
    spread = {}
    for name, law in laws.items():
        mixed = np.array(law) @ np.array(worlds)
        spread[name] = hockey_stick(mixed, worlds[0], epsilon=0.0)
        assert spread[name] <= bound + 1e-12
    assert spread["apart"] == pytest.approx(bound, rel=1e-9)  # these distances are concave
    assert spread["together"] < spread["independent"] < spread["apart"]
    alone = 2 * stats.norm.cdf(1 / 4.0) - 1  # one step without sampling, of one replaced point
    told = guess_bounds.guess_advantage(
        SampledGaussian(1.0, 4.0, 1),
        copies=copies,
        trace_rate=gamma,
        neighbouring_relation="replace",
    )
    assert told >= laws["apart"][1] * alone - 1e-12


def test_advantage_is_one_where_a_secret_is_public():
    event = SampledGaussian(0.1, 2.0, 10)
    assert (
        guess_bounds.guess_advantage(
            event, copies=4, trace_rate=0.1, public_rate=0.3, neighbouring_relation="replace"
        )
        == 1
    )
    assert (
        guess_bounds.guess_advantage(
            event, copies=0, trace_rate=0.1, public_rate=0.3, neighbouring_relation="replace"
        )
        == 0
    )
    few = guess_bounds.guess_advantage(
        event, copies=2, trace_rate=0.1, public_rate=0.01, neighbouring_relation="replace"
    )
    more = guess_bounds.guess_advantage(
        event, copies=3, trace_rate=0.1, public_rate=0.01, neighbouring_relation="replace"
    )
    assert 0.02 < few < more < 1


def test_a_statement_is_about_the_relation_that_is_asked_for():
    event, other = SampledGaussian(1, 20, 4), SampledGaussian(1, 30, 2)
    for relation in (REPLACE, ADD):
        far = [privacy_cost.delta(event, epsilon=0, group=k, **relation) for k in (1, 2, 4)]
        rates = {"copies": 2, "trace_rate": 0.1, **relation}
        bound = guess_bounds.concave_majorant([0, *far[:2]], 0.2)
        assert guess_bounds.guess_advantage(event, **rates) == pytest.approx(bound, rel=1e-9)
        assert guess_bounds.guess_advantage(event, public_rate=0.01, **rates) == pytest.approx(
            bound + 0.02
        )
        bound = guess_bounds.concave_majorant([0, *far[1:]], 0.2)
        assert guess_bounds.guess_advantage(event, group=2, **rates) == pytest.approx(
            bound, rel=1e-9
        )
        both = guess_bounds.guess_advantage([event, other], group=(2, 0), **rates)
        assert both == pytest.approx(bound, rel=1e-9)


@pytest.mark.parametrize(
    "call, said",
    [
        (
            lambda e: guess_bounds.guess_advantage(
                e, copies=1, trace_rate=2, neighbouring_relation="replace"
            ),
            "trace_rate=2: must be in",
        ),
        (
            lambda e: guess_bounds.guess_advantage(
                e, copies=-1, trace_rate=0, neighbouring_relation="replace"
            ),
            "copies=-1: must be a whole",
        ),
        (
            lambda e: guess_bounds.guess_advantage(
                e, copies=1.5, trace_rate=0, neighbouring_relation="replace"
            ),
            "copies=1.5: must be a whol",
        ),
        (
            lambda e: guess_bounds.guess_advantage(
                e, copies=1, trace_rate=0, public_rate=2, neighbouring_relation="replace"
            ),
            "public_rate=2: must be in",
        ),
        (lambda e: guess_bounds.value_guess_rate(1.0, delta=0.0, prior=0), "prior=0: must be in"),
        (
            lambda e: guess_bounds.value_guess_rate(-1, delta=0.0, prior=1),
            "epsilon=-1: must be at least",
        ),
        (lambda e: guess_bounds.right_guess_rate(1.2), "advantage=1.2: must be in"),
        (lambda e: guess_bounds.right_guess_rate(-0.1), "advantage=-0.1: must be in"),
    ],
)
def test_mistakes_are_named(call, said):
    with pytest.raises(ValueError, match=said):
        call(SampledGaussian(0.1, 1.0, 10))
