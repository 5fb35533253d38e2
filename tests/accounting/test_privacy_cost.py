"""Privacy cost against golden numbers, second routes, and the properties a guarantee must have."""

import inspect
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from crtbook.tight import compose
from crtlib.accounting import (
    accountants,
    confidentiality,
    guess_bounds,
    privacy_cost,
    secret_protection,
    selective_privacy,
)
from crtlib.accounting.events import SampledGaussian
from crtlib.accounting.guarantees import BoundedRate, Guarantee
from crtlib.intervals import clopper_pearson_upper, labels_needed

DELTA = 8e-5
# Figure 6's noise: (accountant, q, steps, epsilon') -> sigma.
SIGMA = {
    ("pld", 0.01, 1000, 1.0): 1.270533,
    ("pld", 0.1, 100, 8.0): 0.869112,
    ("rdp", 0.01, 1000, 8.0): 0.586551,
}


def sigma_for(q, steps, epsilon, accountant="pld", delta=DELTA, relation="add_or_remove"):
    return privacy_cost.noise_multiplier(
        epsilon=epsilon,
        delta=delta,
        sampling_probability=q,
        steps=steps,
        accountant=accountant,
        neighbouring_relation=relation,
    )


# --- Golden numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SIGMA)
def test_calibrated_noise(setting):
    """The golden numbers are dp-accounting's, whose grid of 1e-4 asks for up to 1e-5 more."""
    accountant, q, steps, epsilon = setting
    sigma = sigma_for(q, steps, epsilon, accountant)
    assert sigma == pytest.approx(SIGMA[setting], rel=1e-5)
    if accountant == "pld":  # less noise breaks the promise: there is a test that shows it
        pair = compose([1 - q, q], sigma * (1 - 1e-5), steps)
        assert pair.epsilon(DELTA)[0] > epsilon


def test_recall_bounds():
    assert clopper_pearson_upper(0, 200) == pytest.approx(0.01487, abs=5e-6)
    assert clopper_pearson_upper(20, 200) == pytest.approx(0.14199, abs=5e-6)
    for misses, n in ((3, 50), (20, 200)):  # second route: the bound's own definition
        bound = clopper_pearson_upper(misses, n, confidence=0.9)
        assert stats.binom.cdf(misses, n, bound) == pytest.approx(0.1, rel=1e-9)
    assert clopper_pearson_upper(5, 5) == 1.0
    n = labels_needed(DELTA)
    assert n == 37446
    bounds = [clopper_pearson_upper(0, m) for m in (n - 1, n)]
    assert bounds[0] > DELTA >= bounds[1]


# --- Second routes --------------------------------------------------------------------------------


def hockey_stick(epsilon, q, sigma, replace=False):
    """One step, integrated directly, in the worse direction."""

    def density(x, shift):
        norm = stats.norm(scale=sigma).pdf
        return (1 - q) * norm(x) + q * norm(x - shift)

    def one(left, right):
        def gap(x):
            return max(0.0, density(x, left) - math.exp(epsilon) * density(x, right))

        return integrate.quad(gap, -12 * sigma, 12 * sigma, limit=500, points=[0.0])[0]

    return one(1, -1) if replace else max(one(1, 0), one(0, 1))


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("q, sigma, epsilon", [(0.1, 0.8, 0.5), (0.5, 1.5, 0.2), (1.0, 2.0, 0.3)])
def test_one_step_equals_the_integral(q, sigma, epsilon, replace):
    relation = "replace" if replace else "add_or_remove"
    event = SampledGaussian(q, sigma, 1)
    found = privacy_cost.delta(event, epsilon=epsilon, neighbouring_relation=relation)
    assert found == pytest.approx(hockey_stick(epsilon, q, sigma, replace), rel=1e-4)
    back = privacy_cost.epsilon(event, delta=found, neighbouring_relation=relation)
    assert back == pytest.approx(epsilon, rel=1e-4)


def test_composition_of_phases():
    for accountant in ("pld", "rdp", "autodp"):
        parts = [SampledGaussian(0.01, 1.0, 300), SampledGaussian(0.01, 1.0, 700)]
        whole = SampledGaussian(0.01, 1.0, 1000)
        two, one = (
            privacy_cost.epsilon(
                events, delta=DELTA, accountant=accountant, neighbouring_relation="add_or_remove"
            )
            for events in (parts, whole)
        )
        assert two == one
        mixed = [SampledGaussian(0.01, 1.0, 500), SampledGaussian(0.02, 2.0, 500)]
        more = privacy_cost.epsilon(
            mixed, delta=DELTA, accountant=accountant, neighbouring_relation="add_or_remove"
        )
        assert more > privacy_cost.epsilon(
            mixed[0], delta=DELTA, accountant=accountant, neighbouring_relation="add_or_remove"
        )
    gaussians = [SampledGaussian(1, 10, 50), SampledGaussian(1, 20, 100)]
    together = SampledGaussian(1, (50 / 100 + 100 / 400) ** -0.5, 1)  # exact for Gaussians
    assert privacy_cost.epsilon(
        gaussians, delta=DELTA, neighbouring_relation="add_or_remove"
    ) == pytest.approx(
        privacy_cost.epsilon(together, delta=DELTA, neighbouring_relation="add_or_remove"), rel=1e-4
    )


def test_each_event_may_have_a_group_of_its_own():
    """k points in every step of a Gaussian: k times the shift, as if the noise were a k-th."""
    events = [SampledGaussian(1, 10, 50), SampledGaussian(1, 20, 100)]

    def spent(events, **options):
        return privacy_cost.epsilon(events, delta=DELTA, **options)

    shifted = [SampledGaussian(1, 5, 50), SampledGaussian(1, 20, 100)]
    for relation in privacy_cost.NEIGHBOURING_RELATIONS:
        way = {"neighbouring_relation": relation}
        assert spent(events, group=(2, 1), **way) == pytest.approx(spent(shifted, **way), rel=1e-9)
        assert spent(events, group=(1, 0), **way) == spent(events[0], **way) > 0
        assert spent(events, group=0, **way) == 0 == spent([SampledGaussian(1, 10, 0)], **way)
        both = spent(events, **way)
        assert spent(events, group=1, **way) == spent(events, group=(1, 1), **way) == both
        more = [SampledGaussian(1, 10, 20), SampledGaussian(1, 20, 100), SampledGaussian(1, 10, 30)]
        assert spent(more, **way) == both


@pytest.mark.parametrize("function", [
    privacy_cost.epsilon, privacy_cost.epsilon_and_accountant, privacy_cost.delta,
    privacy_cost.noise_multiplier, privacy_cost.privacy_profile, guess_bounds.guess_advantage,
    guess_bounds.tradeoff_curve, confidentiality.confidentiality_epsilon,
    confidentiality.crt_guarantee, confidentiality.account_training,
    selective_privacy.selective_guarantee, secret_protection.plan_protection,
    secret_protection.secret_kl_divergences, secret_protection.secret_guess_bounds,
    secret_protection.noise_multiplier_for_promises,
])  # fmt: skip
def test_nobody_accounts_for_a_relation_that_was_not_named(function):
    """Sibling functions had different defaults once, and one phase two epsilons."""
    parameter = inspect.signature(function).parameters["neighbouring_relation"]
    assert parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty


def test_what_a_question_leaves_open_is_the_tight_bound_for_one_point():
    event, paper = SampledGaussian(1, 10, 5), {"neighbouring_relation": "add_or_remove"}
    said = {"accountant": "pld", "neighbouring_relation": "add_or_remove", "group": 1}
    found = privacy_cost.epsilon(event, delta=DELTA, **paper)
    assert found == privacy_cost.epsilon(event, delta=DELTA, **said)
    assert privacy_cost.epsilon_and_accountant(
        event, delta=DELTA, **paper
    ) == accountants.AccountantBound(found, "pld")
    assert privacy_cost.delta(event, epsilon=0.5, **paper) == privacy_cost.delta(
        event, epsilon=0.5, **said
    )
    other = {"accountant": "rdp", "neighbouring_relation": "replace", "group": 3}
    sampled = SampledGaussian(0.1, 4.0, 10)
    much = privacy_cost.epsilon_and_accountant(sampled, delta=DELTA, **other)
    assert much == accountants.AccountantBound(
        privacy_cost.epsilon(sampled, delta=DELTA, **other), "rdp"
    )
    assert privacy_cost.delta(sampled, epsilon=much.value, **other) == pytest.approx(
        DELTA, rel=1e-6
    )
    for name, value in said.items():  # each of the three was heard
        assert privacy_cost.epsilon(sampled, delta=DELTA, **(other | {name: value})) < much.value
    assert 0 < privacy_cost.delta(event, epsilon=0, neighbouring_relation="add_or_remove") < 1
    sigma = privacy_cost.noise_multiplier(
        epsilon=1,
        delta=DELTA,
        sampling_probability=1,
        steps=5,
        neighbouring_relation="add_or_remove",
    )
    event = SampledGaussian(1, sigma, 5)
    assert (
        1 - 1e-6
        < privacy_cost.epsilon(event, delta=DELTA, neighbouring_relation="add_or_remove")
        <= 1
    )


def test_a_relation_is_said_in_words():
    said = {
        (r, a): privacy_cost.describe_relation(r, a)
        for r in ("replace", "x")
        for a in ("pld", "prv")
    }
    assert said["x", "pld"] == "x" == said["x", "prv"]
    assert said["replace", "pld"] == "one data point replaced (antipodal pair, proved the worst)"
    assert said["replace", "prv"] == "one data point replaced (as a removal and an addition)"
    assert privacy_cost.describe_relation("replace", "rdp") == said["replace", "pld"]
    assert privacy_cost.describe_relation("replace", "autodp") == said["replace", "prv"]
    assert privacy_cost.describe_relation("add_or_remove", "x") == "one data point added or removed"


# --- Accountants among themselves -----------------------------------------------------------------


@pytest.mark.parametrize("q, sigma, steps", [(0.01, 1.2705333, 1000), (0.1, 2.0027528, 100)])
def test_a_tighter_accountant_is_never_above_a_looser_one(q, sigma, steps):
    event = SampledGaussian(q, sigma, steps)
    for relation in privacy_cost.NEIGHBOURING_RELATIONS:
        eps = {
            name: privacy_cost.epsilon(
                event, delta=DELTA, accountant=name, neighbouring_relation=relation
            )
            for name in privacy_cost.ACCOUNTANTS
        }
        assert eps["pld"] < min(eps["prv"], eps["rdp"], eps["autodp"])
        if relation == "replace":  # the worst pair, by Renyi too; the others' bound is generic
            assert eps["rdp"] < eps["prv"]
        if relation == "add_or_remove":
            assert eps["prv"] < eps["rdp"]
            assert eps["prv"] - accountants.PRV_EPS_ERROR == pytest.approx(eps["pld"], abs=3e-4)
            assert eps["rdp"] == pytest.approx(eps["autodp"], rel=5e-3)


@pytest.mark.parametrize("relation", privacy_cost.NEIGHBOURING_RELATIONS)
@pytest.mark.parametrize("accountant", ["pld", "rdp", "autodp"])
def test_calibrate_then_account(accountant, relation):
    sigma = sigma_for(0.1, 100, 1.5, accountant, relation=relation)
    options = {"delta": DELTA, "accountant": accountant, "neighbouring_relation": relation}
    spent = privacy_cost.epsilon(SampledGaussian(0.1, sigma, 100), **options)
    assert spent <= 1.5 and spent == pytest.approx(1.5, rel=1e-6)


@pytest.mark.parametrize("relation", privacy_cost.NEIGHBOURING_RELATIONS)
@pytest.mark.parametrize(
    "accountant, q, steps, epsilon",
    [
        ("pld", 0.01, 1000, 1.0),
        ("pld", 0.05, 200, 0.6),
        ("rdp", 0.1, 100, 2.0),
        ("rdp", 0.02, 900, 0.7),
    ],
)
def test_a_sigma_rounded_up_keeps_the_promise(accountant, q, steps, epsilon, relation):
    """A run may be named by a few digits of its noise, as long as they are rounded up."""
    sigma = sigma_for(q, steps, epsilon, accountant, relation=relation)
    for digits in (3, 6, 8):
        rounded = math.ceil(sigma * 10**digits) / 10**digits
        event = SampledGaussian(q, rounded, steps)
        options = {"accountant": accountant, "neighbouring_relation": relation}
        assert sigma <= rounded and privacy_cost.epsilon(event, delta=DELTA, **options) <= epsilon
    less = SampledGaussian(q, math.floor(sigma * 1e3) / 1e3, steps)
    assert privacy_cost.epsilon(less, delta=DELTA, **options) > epsilon  # rounding down breaks it


@pytest.mark.parametrize("accountant", privacy_cost.ACCOUNTANTS)
def test_epsilon_and_delta_are_inverse(accountant):
    event = SampledGaussian(0.1, 3.0, 50)
    eps = privacy_cost.epsilon(
        event, delta=1e-4, accountant=accountant, neighbouring_relation="add_or_remove"
    )
    assert privacy_cost.delta(
        event, epsilon=eps, accountant=accountant, neighbouring_relation="add_or_remove"
    ) == pytest.approx(1e-4, rel=2e-3)


def check_monotone(event, accountant):
    q, sigma, steps = event.sampling_probability, event.noise_multiplier, event.steps

    def spent(*changed, relation="add_or_remove"):
        return privacy_cost.epsilon(
            SampledGaussian(*changed),
            delta=DELTA,
            accountant=accountant,
            neighbouring_relation=relation,
        )

    full = spent(q, sigma, steps)
    assert spent(q, 1.1 * sigma, steps) <= full <= spent(q, sigma, steps + 10)
    assert spent(q, sigma, steps, relation="replace") >= full


@settings(max_examples=20, deadline=None)
@given(
    event=st.builds(SampledGaussian, st.floats(1e-3, 1), st.floats(0.5, 20), st.integers(1, 500)),
)
def test_monotone(event):
    check_monotone(event, "rdp")


@pytest.mark.parametrize("event", [(0.02, 0.9, 100), (0.3, 3.0, 20), (1.0, 5.0, 10)])
def test_monotone_by_pld(event):
    check_monotone(SampledGaussian(*event), "pld")


# --- Edges ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("accountant", privacy_cost.ACCOUNTANTS)
def test_edges_of_the_event(accountant):
    def spent(*event):
        return privacy_cost.epsilon(
            SampledGaussian(*event),
            delta=DELTA,
            accountant=accountant,
            neighbouring_relation="add_or_remove",
        )

    assert spent(0.1, 1.0, 0) == 0 == spent(0.0, 1.0, 100)
    assert spent(0.1, 0.0, 1) == math.inf
    assert 0 < spent(1.0, 30.0, 10) < 1
    assert privacy_cost.noise_multiplier(
        epsilon=1,
        delta=DELTA,
        sampling_probability=0,
        steps=10,
        accountant=accountant,
        neighbouring_relation="add_or_remove",
    ) == pytest.approx(0)


NONE = SampledGaussian(1, 1, 0)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: SampledGaussian(1.5, 1, 1), "sampling_probability=1.5: must be in [0, 1]"),
        (lambda: SampledGaussian(0.1, -1, 1), "noise_multiplier=-1: must be finite"),
        (lambda: SampledGaussian(0.1, math.nan, 1), "noise_multiplier=nan"),
        (lambda: SampledGaussian(0.1, 1, 2.5), "steps=2.5: must be a whole number"),
        (
            lambda: privacy_cost.epsilon([], delta=0, neighbouring_relation="add_or_remove"),
            "delta=0: must be in (0, 1)",
        ),
        (
            lambda: privacy_cost.epsilon([], delta=1.0, neighbouring_relation="add_or_remove"),
            "delta=1.0: must be in (0, 1)",
        ),
        (
            lambda: privacy_cost.epsilon(
                [], delta=0.1, accountant="gdp", neighbouring_relation="add_or_remove"
            ),
            "accountant='gdp': must be one of pld",
        ),
        (
            lambda: privacy_cost.epsilon([], delta=0.1, neighbouring_relation="swap"),
            "neighbouring_relation='swap': must be one of add_or_remove, replace",
        ),
        (lambda: sigma_for(0.1, 10, 0), "epsilon=0: must be positive, at most 10000"),
        (lambda: sigma_for(0.1, 10, 10_001), "epsilon=10001: must be positive, at most 10000"),
        (lambda: sigma_for(0.1, 10, 1, delta=0), "delta=0: must be in (0, 1)"),
        (lambda: sigma_for(1.1, 0, 1), "sampling_probability=1.1: must be in [0, 1]"),
        (lambda: sigma_for(0.1, 10, 1, "gdp"), "accountant='gdp': must be one of pld, rdp"),
        (lambda: sigma_for(0.1, 10, 1, relation="swap"), "neighbouring_relation='swap': must be"),
        (
            lambda: privacy_cost.delta([], epsilon=-1, neighbouring_relation="add_or_remove"),
            "epsilon=-1: must be at least 0",
        ),
        (
            lambda: privacy_cost.epsilon_and_accountant(
                [], delta=2, neighbouring_relation="add_or_remove"
            ),
            "delta=2: must be in (0, 1)",
        ),
        (
            lambda: privacy_cost.epsilon(
                [NONE], delta=0.1, group=-1, neighbouring_relation="add_or_remove"
            ),
            "group=-1: must be a whole number,",
        ),
        (
            lambda: privacy_cost.epsilon(
                [NONE], delta=0.1, group=1.5, neighbouring_relation="add_or_remove"
            ),
            "group=1.5: must be a whole",
        ),
        (
            lambda: privacy_cost.epsilon(
                [NONE], delta=0.1, group=(1, 2), neighbouring_relation="add_or_remove"
            ),
            "groups=2: must be as many as",
        ),
        (lambda: clopper_pearson_upper(3, 2), "count=3: must be in [0, 2]"),
        (lambda: BoundedRate(1.2), "rate=1.2: must be in [0, 1]"),
    ],
)
def test_mistakes_are_named_in_one_line(call, message):
    with pytest.raises(ValueError) as caught:
        call()
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_guarantee_says_everything():
    text = str(
        Guarantee(
            epsilon=0.2753,
            delta=DELTA,
            unit="one secret in one turn",
            neighbouring_relation="replace",
            accountant="pld",
            kind="Bayesian confidentiality",
            gamma=BoundedRate.measured(20, 200),
            delta2=BoundedRate(0.0),
        )
    )
    for part in (
        "(0.2753, 8e-05) Bayesian confidentiality",
        "unit: one secret in one turn",
        "one data point replaced",
        "accountant: pld",
        "gamma = 0.1 (measured: 20 of 200, 95 % upper bound 0.142)",
        "delta2 = 0 (assumed)",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("steps", "shown"),
    [
        (math.inf, "inf"),
        (10**400, "inf"),
        (1e300, "1e+300"),
        (math.nan, "nan"),
        (2.5, "2.5"),
        (-1, "-1"),
    ],
)
def test_steps_that_cannot_be_counted_are_refused(steps, shown):
    whole = f"steps={shown}: must be a whole number, at least 0"
    with pytest.raises(ValueError, match=re.escape(whole)):
        SampledGaussian(sampling_probability=0.1, noise_multiplier=1.0, steps=steps)
    with pytest.raises(ValueError, match=re.escape(whole)):
        privacy_cost.noise_multiplier(
            epsilon=1,
            delta=1e-5,
            sampling_probability=0.1,
            steps=steps,
            neighbouring_relation="add_or_remove",
        )


@pytest.mark.parametrize("field", ["sampling_probability", "noise_multiplier", "steps"])
@pytest.mark.parametrize("true", [True, np.True_])
def test_true_is_no_number(field, true):
    fields = {"sampling_probability": 0.1, "noise_multiplier": 1.0, "steps": 3}
    with pytest.raises(ValueError, match=f"{field}=True: must be .* neither True nor False"):
        SampledGaussian(**fields | {field: true})


@pytest.mark.parametrize("name", ["epsilon", "delta"])
def test_a_budget_is_a_number(name):
    budget = {"epsilon": 1.0, "delta": 1e-5, "neighbouring_relation": "replace"} | {name: True}
    with pytest.raises(ValueError, match=f"{name}=True: must be"):
        privacy_cost.noise_multiplier(**budget, sampling_probability=0.1, steps=3)
