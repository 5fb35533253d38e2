"""Every promise is kept: golden numbers, independent routes, and what a plan must never do."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from scipy import sparse

from crtbook import theorems
from crtbook.tight import account_secrets as of_secrets
from crtbook.tight import noise_multiplier as tight_noise
from crtbook.tight import tight_posterior
from crtlib.accounting import group_mixtures, renyi, secret_guesses
from crtlib.accounting.events import WeightedGaussian
from crtlib.accounting.privacy_loss import GaussianMixturePair
from crtlib.accounting.secret_protection import (
    BUDGET_EXPONENTS,
    PROMISE_DIRECTIONS,
    noise_multiplier_for_promises,
    plan_protection,
    probabilities_from_weights,
    secret_guess_bounds,
    secret_kl_divergences,
    sweep_scales,
)

KL = [  # prior, posterior, divergence
    (0.001, 0.01, 0.0140665137652),
    (0.001, 0.1, 0.366593004807),
    (0.001, 0.5, 2.7612307091),
    (0.01, 0.02, 0.00391361957646),
    (0.01, 0.1, 0.144479347476),
    (0.01, 0.5, 1.61446308036),
    (0.1, 0.2, 0.0444030075869),
    (0.1, 0.5, 0.510825623766),
    (0.5, 0.75, 0.130812035941),
    (1e-6, 0.5, 6.21460859842),
]
PRIORS = (0.001, 0.01, 0.1, 0.5)
POSTERIOR = {  # divergence: the posterior at PRIORS
    0.01: (0.0081621113, 0.0270350064, 0.144950435, 0.5705925703),
    0.1: (0.0374760055, 0.0805145238, 0.2568664017, 0.7197946262),
    1.0: (0.2211376605, 0.3572905727, 0.6892172265, 1),
    2.0: (0.3859871672, 0.581030923, 0.951123759, 1),
    5.0: (0.7968609166, 1, 1, 1),
}
NOISE = [  # group, sampling probability, prior, posterior, sigma by KL, sigma tight
    (75, 1e-3, 0.01, 0.02, 26.816843, 8.7710),
    (75, 1e-3, 0.01, 0.1, 4.467662, 2.3937),
    (75, 1e-3, 0.01, 0.5, 1.479737, 1.2078),
    (75, 1e-3, 0.001, 0.1, 2.856145, 1.4928),
    (75, 1e-3, 0.1, 0.5, 2.446714, 1.9735),
    (75, 1e-4, 0.01, 0.1, 0.733628, 0.5778),
    (1, 1e-3, 0.01, 0.1, 0.377998, 0.3441),
]
GOLDEN = sparse.csr_array([[1, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 0], [0, 1, 0, 0]])
GOLDEN_POSTERIOR = (0.3572905727, 0.3939942833, 0.1405737778, 0.2510016204)


def golden(**changes):
    options = {"steps": 100, "batch_size": 1, "scale": 1.0, "budget_growth": "linear",
               "neighbouring_relation": "reference"} | changes  # fmt: skip
    return plan_protection(GOLDEN, 0.01, GOLDEN_POSTERIOR, **options)


def instance(secrets=400, examples=3000, seed=0):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(20, 120, secrets)
    rows = np.repeat(np.arange(secrets), sizes)
    columns = np.concatenate([rng.choice(examples, n, replace=False) for n in sizes])
    held = sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(secrets, examples))
    return held, rng.uniform(0.05, 0.5, secrets)


# --- Lemma 3.2 ------------------------------------------------------------------------------------


def test_golden_divergences_and_back():
    p, r, c = np.array(KL).T
    np.testing.assert_allclose(secret_guesses.allowed_divergence(p, r), c, rtol=1e-10)
    for c, row in POSTERIOR.items():
        np.testing.assert_allclose(
            secret_guesses.posterior_from_divergence(c, PRIORS), row, rtol=2e-9
        )


def test_a_posterior_is_never_below_the_exact_one():
    """Against forty digits: at the posterior the divergence is at least what was spent."""
    mpmath.mp.dps = 40
    rng = np.random.default_rng(2)
    for c, p in zip(10 ** rng.uniform(-9, 1, 200), 10 ** rng.uniform(-7, -0.1, 200), strict=True):
        r, prior = mpmath.mpf(float(secret_guesses.posterior_from_divergence(c, p))), mpmath.mpf(p)
        if r < 1:
            spent = r * mpmath.log(r / prior) + (1 - r) * mpmath.log((1 - r) / (1 - prior))
            assert spent >= c
            assert spent <= c + 1e-14 * (1 + c)


@pytest.mark.parametrize("kind", secret_guesses.DIVERGENCE_KINDS)
def test_posterior_inverts_divergence(kind):
    p, r, _ = np.array(KL).T
    c = {
        "kl": secret_guesses.allowed_divergence(p, r),
        "chi2": (r - p) ** 2 / (p * (1 - p)),
        "tv": r - p,
        "pure": np.log(r / (1 - r)) - np.log(p / (1 - p)),
    }[kind]
    np.testing.assert_allclose(
        secret_guesses.posterior_from_divergence(c, p, kind=kind), r, rtol=1e-9
    )
    assert (secret_guesses.posterior_from_divergence(c * 1.01, p, kind=kind) > r).all()
    assert secret_guesses.posterior_from_divergence(0.0, 0.3, kind=kind) == pytest.approx(
        0.3, rel=1e-12
    )
    # Above by definition: the f-divergence of two coins.
    f = {
        "kl": lambda a, b: a * math.log(a / b),
        "chi2": lambda a, b: (a - b) ** 2 / b,
        "tv": lambda a, b: abs(a - b) / 2,
    }
    if kind in f:
        direct = [f[kind](a, b) + f[kind](1 - a, 1 - b) for a, b in zip(r, p, strict=True)]
        np.testing.assert_allclose(c, direct, rtol=1e-9)
    else:  # the likelihood of a right guess grows by e^epsilon against a wrong one
        np.testing.assert_allclose(r, p * np.exp(c) / (1 + p * np.expm1(c)), rtol=1e-9)


def test_kl_of_a_reconstruction_bounds_its_success():
    """An adversary with k equally likely candidates, who sees a Gaussian, against the bound."""
    rng = np.random.default_rng(0)
    k, n = 10, 20_000
    for shift in (0.5, 2.0):  # each candidate moves its own coordinate; the reference is 0
        seen = rng.normal(size=(n, k))
        truth = rng.integers(k, size=n)
        seen[np.arange(n), truth] += shift
        success = (seen.argmax(axis=1) == truth).mean()
        bound = float(secret_guesses.posterior_from_divergence(shift**2 / 2, 1 / k))
        assert 1.5 / k < success < bound
        best = tight_posterior(
            np.array([0.0, 1.0]), 1 / shift, 1, 1 / k, neighbouring_relation="reference"
        )[1]
        assert success < best + 4 * math.sqrt(0.25 / n) and best < bound


# --- Sampling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1.5, 2, 4])
def test_lemma_3_2_by_renyi_is_its_definition(order):
    law, sigma, a = group_mixtures.poisson_binomial([0.2] * 5), 4.0, mpmath.mpf(order)

    def term(x):
        ratio = sum(p * mpmath.exp((2 * x * n - n**2) / (2 * sigma**2)) for n, p in enumerate(law))
        return ratio**a * mpmath.npdf(x, 0, sigma)

    spent = mpmath.log(mpmath.quad(term, [-60, -20, 0, 20, 60])) / (a - 1)
    mine = renyi.renyi_divergences(GaussianMixturePair(tuple(law), sigma, "forward"), [order])[0]
    assert mine == pytest.approx(float(spent), rel=1e-6)
    r = theorems.posterior_by_renyi([mine], [order], 0.01)
    coins = r**order * 0.01 ** (1 - order) + (1 - r) ** order * 0.99 ** (1 - order)
    assert math.log(coins) / (order - 1) == pytest.approx(mine, rel=1e-6)


@pytest.mark.parametrize(
    ("divergences", "orders", "prior", "said"),
    [
        ([1.0], [1.0], 0.1, "orders=1.0: must be above 1"),
        ([-1.0], [2.0], 0.1, "divergences=-1.0: must be at least 0"),
        ([1.0], [2.0], 1.0, "prior=1.0: must be in"),
    ],
)
def test_what_is_no_renyi_divergence_is_refused(divergences, orders, prior, said):
    with pytest.raises(ValueError, match=said):
        theorems.posterior_by_renyi(divergences, orders, prior)


def test_sampling_probabilities():
    p, certain = probabilities_from_weights(np.array([0.25, 0.6, 0.15, 1.0]), 1)
    assert p.tolist() == pytest.approx([0.125, 0.3, 0.075, 0.5]) and certain == 0
    p, certain = probabilities_from_weights(np.array([1.0, 0.2, 0.1, 0.0]), 2)
    assert p.tolist() == pytest.approx([1.0, 2 / 3, 1 / 3, 0.0]) and certain == 1
    p, certain = probabilities_from_weights(np.array([1.0, 1.0, 0.0]), 2)
    assert p.tolist() == [1.0, 1.0, 0.0]
    with pytest.raises(ValueError, match="batch_size=3: must be at most 2, the examples kept"):
        probabilities_from_weights(np.array([1.0, 1.0, 0.0]), 3)


# --- Noise ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n, q, prior, posterior, sigma, tight", NOISE)
def test_golden_noise(n, q, prior, posterior, sigma, tight):
    held = sparse.csr_array(np.ones((1, n)))
    found = noise_multiplier_for_promises(
        held, np.full(n, q), prior, posterior, steps=1000, neighbouring_relation="reference"
    )
    assert found == pytest.approx(sigma, abs=1e-6)
    law = group_mixtures.poisson_binomial([q] * n)  # the tight one lies between these two
    at = [
        tight_posterior(law, s, 1000, prior, neighbouring_relation="reference")
        for s in (tight * 0.997, tight * 1.001)
    ]
    assert at[1][1] <= posterior <= at[0][0]


def test_noise_is_the_least_that_keeps_every_promise():
    """Screening must not lose a secret: all are checked, and a little less noise breaks one."""
    held, posterior = instance(1000, 3000)
    q = np.random.default_rng(1).uniform(0, 0.02, 3000)
    for relation in PROMISE_DIRECTIONS:
        sigma = noise_multiplier_for_promises(
            held, q, 0.01, posterior, steps=200, neighbouring_relation=relation
        )
        allowed = secret_guesses.allowed_divergence(0.01, posterior)
        assert (
            200 * secret_kl_divergences(held, q, sigma, neighbouring_relation=relation) <= allowed
        ).all()
        assert (
            200 * secret_kl_divergences(held, q, sigma * (1 - 1e-9), neighbouring_relation=relation)
            > allowed
        ).any()


def test_neighbouring_relations_are_ordered():
    sigmas = [
        golden(neighbouring_relation=relation).noise_multiplier
        for relation in ("reference", "add_or_remove", "replace")
    ]
    assert sigmas == pytest.approx([3.811242500, 3.811242500, 7.561815447], abs=2e-9)


# --- Algorithm 2 ----------------------------------------------------------------------------------


def test_golden_plan():
    made = golden()
    np.testing.assert_allclose(made.weights, [0.25, 0.6, 0.15, 1.0], atol=1e-8)
    np.testing.assert_allclose(made.probabilities, [0.125, 0.3, 0.075, 0.5], atol=1e-8)
    assert made.binding.tolist() == [1] and made.gap < 1e-9
    assert made.kept_share == pytest.approx(0.5)
    each = of_secrets(made, range(4))
    assert [g.load for g in each] == pytest.approx([0.5, 0.575, 0.125, 0.3], abs=1e-8)
    allowed = secret_guesses.allowed_divergence(0.01, GOLDEN_POSTERIOR)
    pairs = zip(each, allowed, strict=True)
    ratios = [float(secret_guesses.allowed_divergence(0.01, g.posterior_kl)) / c for g, c in pairs]
    assert ratios == pytest.approx([0.878272, 1, 0.220851, 0.524988], abs=2e-6)
    for g in each:
        assert g.posterior_tight < g.posterior_kl <= g.promised * (1 + 1e-9)
        said = str(g)
        for part in (
            "promised: 0.",
            "prior 0.01",
            "3.81124",
            "100 rounds",
            "neighbours: reference",
        ):
            assert part in said


def test_a_plan_tells_in_numbers_what_it_does():
    made = golden()
    assert made.summary() == {
        "secrets": 4, "examples": 4, "steps": 100, "batch_size": 1.0, "targets": "linear",
        "scale": 1.0, "neighbouring_relation": "reference", "accounting": "kl",
        "noise_multiplier": made.noise_multiplier, "kept_weight": pytest.approx(2.0),
        "kept": made.kept_share, "gap": made.gap, "in_every_batch": 0,
    }  # fmt: skip
    tables = made.tables(list("abcd"), [9, 8, 7, 6])
    weights, rows = tables["weights"].to_dict("list"), tables["secrets"].to_dict("list")
    assert weights == {
        "example": list("abcd"), "weight": made.weights.tolist(),
        "sampling_probability": made.probabilities.tolist(),
    }  # fmt: skip
    each = of_secrets(made, range(4), tight=False)
    assert rows == {
        "secret": [9, 8, 7, 6], "examples": [3, 2, 1, 1],
        "load": pytest.approx([g.load for g in each]), "prior": 4 * [0.01],
        "allowed_posterior": list(GOLDEN_POSTERIOR),
        "posterior_kl": pytest.approx([g.posterior_kl for g in each], rel=1e-9),
    }  # fmt: skip
    assert [g.secret for g in of_secrets(made, [2, 0], tight=False)] == ["2", "0"]
    (one,) = of_secrets(made, [1], names=list("wxyz"), tight=False)
    assert (one.secret, one.examples, one.steps) == ("x", 2, 100)
    assert (one.prior, one.promised) == (0.01, GOLDEN_POSTERIOR[1])
    assert one.noise_multiplier == made.noise_multiplier and one.posterior_tight is None
    assert one.posterior == one.posterior_kl and one.neighbouring_relation == "reference"
    other = golden(neighbouring_relation="replace")
    assert other.tables("abcd", "wxyz")["secrets"].posterior_kl.max() <= max(GOLDEN_POSTERIOR)
    (one,) = of_secrets(other, [1], tight=False)
    assert one.posterior_kl == pytest.approx(GOLDEN_POSTERIOR[1], rel=1e-8)
    assert replace(made, bound=2.5).gap == pytest.approx(0.2) and replace(made, bound=1).gap == 0


def test_plans_are_compared_a_row_each():
    options = {"steps": 100, "batch_size": 1, "budget_growth": "linear",
               "neighbouring_relation": "reference"}  # fmt: skip
    table = sweep_scales(GOLDEN, 0.01, GOLDEN_POSTERIOR, scales=(1.0, math.inf), **options)
    plans = [golden(), golden(scale=math.inf)]
    names = ["targets", "scale", "kept", "noise_multiplier", "gap", "in_every_batch"]
    assert list(table) == [*names, "binding"]
    for (_, row), made in zip(table.iterrows(), plans, strict=True):
        assert row[names].tolist() == [made.summary()[name] for name in names]
        assert row.binding == len(made.binding)
    assert plans[1].weights.tolist() == 4 * [1.0] and plans[0].kept_share < plans[1].kept_share == 1


def test_what_was_done_is_charged_round_by_round():
    p, prior = (0.125, 0.3, 0.075, 0.5), 0.01
    events = WeightedGaussian(p, 4.0, 60), WeightedGaussian((0.1,) * 4, 5.0, 40)
    for relation in PROMISE_DIRECTIONS:
        told = {"neighbouring_relation": relation}
        each = [
            e.steps
            * secret_kl_divergences(GOLDEN, e.sampling_probabilities, e.noise_multiplier, **told)
            for e in events
        ]
        bound, spent = secret_guess_bounds(events, GOLDEN, prior=prior, **told)
        assert spent.tolist() == pytest.approx((each[0] + each[1]).tolist(), rel=1e-12)
        assert bound.tolist() == secret_guesses.posterior_from_divergence(spent, prior).tolist()
        assert (
            secret_guess_bounds(events[0], GOLDEN, prior=prior, **told)[1].tolist()
            == each[0].tolist()
        )
    assert secret_guess_bounds(events, GOLDEN, prior=prior, neighbouring_relation="reference")[
        1
    ].tolist() == pytest.approx(
        secret_guess_bounds(events, GOLDEN, prior=prior, neighbouring_relation="reference")[
            1
        ].tolist()
    )
    bare = WeightedGaussian((0.0, 0.0, 0.1, 0.0), 0.0, 1), events[1]
    bound, spent = secret_guess_bounds(bare, GOLDEN, prior=prior, neighbouring_relation="reference")
    assert bound[:2].tolist() == [1, 1] and np.isinf(spent).tolist() == [True, True, False, False]
    assert (
        bound[2]
        == secret_guess_bounds(events[1], GOLDEN, prior=prior, neighbouring_relation="reference")[
            0
        ][2]
        < 0.03
    )
    with pytest.raises(ValueError, match="incidence: has 4 points, the phase 2"):
        secret_guess_bounds(
            WeightedGaussian((0.1, 0.2), 1.0, 1),
            GOLDEN,
            prior=prior,
            neighbouring_relation="reference",
        )


@pytest.mark.parametrize(
    "targets, tight, many", [("linear", False, 80), ("sqrt", False, 80), ("sqrt", True, 8)]
)
def test_every_secret_keeps_its_promise(targets, tight, many):
    held, posterior = instance(many, 600)
    made = plan_protection(
        held,
        0.01,
        posterior,
        steps=200,
        batch_size=15,
        scale=12.0,
        budget_growth=targets,
        neighbouring_relation="reference",
    )
    if tight:
        noise = tight_noise(
            held,
            made.probabilities,
            0.01,
            posterior,
            steps=200,
            accounting="tight",
            neighbouring_relation="reference",
        )
        assert noise < made.noise_multiplier
        made = replace(made, noise_multiplier=noise)
    assert made.probabilities.sum() == pytest.approx(15) and made.gap < 1e-8
    power = BUDGET_EXPONENTS[targets]
    assert (
        held @ made.weights
        <= 12 * secret_guesses.allowed_divergence(0.01, posterior) ** power + 1e-9
    ).all()
    for j, g in enumerate(of_secrets(made, range(many), tight=tight)):
        assert g.posterior <= posterior[j] * (1 + 1e-9)
        assert g.examples == np.diff(held.indptr)[j]


def test_budgets_by_the_square_root_keep_more_with_less_noise():
    """An ablation of ours, on one synthetic instance: fewer copies, and those well chosen."""
    held, posterior = instance()
    options = {"steps": 200, "batch_size": 15, "neighbouring_relation": "reference"}
    whole = plan_protection(held, 0.01, posterior, scale=1e6, **options)
    assert whole.kept_share == 1 and whole.noise_multiplier > 20
    linear = plan_protection(held, 0.01, posterior, scale=20.0, budget_growth="linear", **options)
    root = plan_protection(held, 0.01, posterior, scale=20.0, **options)
    assert linear.noise_multiplier < whole.noise_multiplier / 3
    assert root.kept_share > linear.kept_share and root.noise_multiplier < linear.noise_multiplier


def test_a_plan_does_not_depend_on_how_the_incidence_is_written():
    """Counted twice, or in another order, a secret is held once."""
    rows, columns = GOLDEN.nonzero()
    twice = np.concatenate([rows, rows])[::-1], np.concatenate([columns, columns])[::-1]
    again = sparse.coo_array((np.full(14, 3.0), twice), shape=(4, 4))
    made = plan_protection(
        again,
        0.01,
        GOLDEN_POSTERIOR,
        steps=100,
        batch_size=1,
        scale=1.0,
        budget_growth="linear",
        neighbouring_relation="reference",
    )
    np.testing.assert_array_equal(made.probabilities, golden().probabilities)
    assert made.noise_multiplier == golden().noise_multiplier


def test_planted_fault_group_counted_as_one_example():
    """Accounting each example by itself, as for DP of a point, would promise too much."""
    made = golden()
    whole = (
        100
        * secret_kl_divergences(
            GOLDEN, made.probabilities, made.noise_multiplier, neighbouring_relation="reference"
        )[1]
    )
    single = max(
        100
        * float(
            group_mixtures.mixture_kl(
                group_mixtures.group_count_laws([q], [0, 1]), made.noise_multiplier
            )[0]
        )
        for q in made.probabilities
    )
    assert single < 0.9 * whole


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"batch_size": 5}, "batch_size=5: must be at most 4"),
        ({"batch_size": 0}, "batch_size=0: must be positive"),
        ({"steps": 0}, "steps=0: must be a whole number"),
        ({"scale": math.nan}, "scale=nan: must be positive"),
        ({"budget_growth": "cube"}, "budget_growth='cube': must be one of linear, sqrt"),
        (
            {"neighbouring_relation": "both"},
            "neighbouring_relation='both': must be one of reference",
        ),
    ],
)
def test_refused_plans(changes, said):
    with pytest.raises(ValueError, match=said):
        golden(**changes)


@pytest.mark.parametrize(
    "prior, posterior, said",
    [
        (0.0, 0.5, "prior=0.0: must be in"),
        (0.2, 1.0, "posterior=1.0: must be in"),
        (0.2, 0.1, "posterior=0.1: must be above the prior"),
        (math.nan, 0.1, "prior=nan: must be in"),
        ([0.01, 0.01, 0.01, 0.5], 0.4, "posterior=0.4: must be above the prior"),
    ],
)
def test_refused_promises(prior, posterior, said):
    with pytest.raises(ValueError, match=said):
        plan_protection(
            GOLDEN,
            prior,
            posterior,
            steps=1,
            batch_size=1,
            scale=1.0,
            neighbouring_relation="reference",
        )


def test_a_secret_in_no_example_is_refused():
    empty = sparse.csr_array([[1, 0], [0, 0]])
    with pytest.raises(ValueError, match="secrets without an example=1: must be 0"):
        plan_protection(
            empty, 0.01, 0.1, steps=1, batch_size=1, scale=1.0, neighbouring_relation="reference"
        )


def test_of_equally_held_secrets_the_strictest_promise_binds():
    made = plan_protection(
        sparse.csr_array(np.eye(3)),
        0.01,
        [0.5, 0.05, 0.3],
        steps=100,
        batch_size=1,
        scale=math.inf,
        neighbouring_relation="reference",
    )
    assert made.binding.tolist() == [1]
