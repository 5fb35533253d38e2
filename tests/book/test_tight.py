"""The best guess of a secret: golden numbers, a second route for each, and brackets that hold."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize, sparse, stats

from crtbook import tight
from crtbook.theorems import renyi_posterior
from crtbook.tight import SecretGuarantee, noise_multiplier, tight_posterior
from crtlib.accounting import group_mixtures, privacy_cost, secret_guesses
from crtlib.accounting.events import SampledGaussian

PRIORS = (1e-3, 1e-2, 0.1, 0.5)
# 1,000 rounds: the blow-up at PRIORS.
BLOW_UP = [
    ([0.01], 1.0, "forward", (0.004068, 0.029139, 0.194201, 0.656873)),
    ([0.01], 1.0, "backward", (0.0033245, 0.0260276, 0.1874857, 0.658577)),
    ([0.001] * 75, 1.0, "forward", (0.4742953, 0.7406625, 0.9473186, 0.9975876)),
    ([0.001] * 75, 1.0, "backward", (0.3860057, 0.7003486, 0.949864, 0.9987393)),
    ([0.01] * 75, 5.0, "forward", (0.9529012, 0.9923711, 0.9997254, 0.9999988)),
]
GROUPS = [  # q, steps, sigma; k: delta at epsilon = k, epsilon at delta = 8e-5
    (0.01, 1000, 1.27053328, {2: (2.4112e-4, 2.204), 10: (1.71288e-2, 15.65)}),
    (0.1, 100, 3.43699666, {2: (2.48462e-4, 2.205), 5: (2.06177e-3, 6.545)}),
]


def one(p, sigma, direction="forward"):
    return float(
        group_mixtures.mixture_kl(
            group_mixtures.group_count_laws(p, [0, len(p)]), sigma, direction=direction
        )[0]
    )


def composed(p, sigma, steps, **options):
    return tight.compose(group_mixtures.poisson_binomial(p), sigma, steps, **options)


@pytest.mark.parametrize("p, sigma, direction, expected", BLOW_UP)
def test_golden_blow_up(p, sigma, direction, expected):
    pair = composed(p, sigma, 1000, direction=direction)
    for c, value in zip(PRIORS, expected, strict=True):
        low, high = pair.blow_up(c)
        assert low <= high < low + 2e-6
        digits = 1e-6 if len(p) == 1 else 1.5e-7
        assert low - digits <= value <= high + digits


@pytest.mark.parametrize("q, steps, sigma, rows", GROUPS)
def test_golden_groups(q, steps, sigma, rows):
    for k, (at_k, at_delta) in rows.items():
        pair = tight.compose(stats.binom.pmf(range(k + 1), k, q), sigma, steps)
        low, high = pair.delta(k)
        assert low <= high <= low * (1 + 1e-4) and high == pytest.approx(at_k, rel=1e-4)
        low, high = pair.epsilon(8e-5)
        assert low <= high < low + 1e-4 and high == pytest.approx(at_delta, abs=5e-3)


def test_one_round_against_its_thresholds():
    """The bracket holds the hockey-stick divergence and the best test."""
    p, sigma = [0.02] * 5, 1.0
    law = group_mixtures.poisson_binomial(p)

    def ratio(x):
        return sum(w * math.exp(k * x - k * k / 2) for k, w in enumerate(law))

    pair, back = composed(p, sigma, 1), composed(p, sigma, 1, direction="backward")
    for epsilon in (0.0, 0.05):
        # dP/dQ grows in x, so both directions are attained by a threshold
        for sign, bracket in ((1, pair), (-1, back)):
            edge = optimize.brentq(lambda x, e=sign * epsilon: ratio(x) - math.exp(e), -9, 20)
            p_mass = sum(w * stats.norm.cdf(sign * (k - edge)) for k, w in enumerate(law))
            q_mass = stats.norm.cdf(-sign * edge)
            masses = (p_mass, q_mass) if sign > 0 else (q_mass, p_mass)
            exact = masses[0] - math.exp(epsilon) * masses[1]
            low, high = bracket.delta(epsilon)
            assert low <= exact <= high < low + 1e-6
    for c in (0.01, 0.3):  # the best test is a threshold on x
        x = stats.norm.isf(c)
        exact = sum(w * stats.norm.sf(x - k) for k, w in enumerate(law))
        low, high = pair.blow_up(c)
        assert low <= exact <= high < low + 1e-6


def test_a_gaussian_drawn_every_round():
    """Nothing is sampled, so T rounds are one shift by sqrt(T) / sigma."""
    pair = composed([1.0], 10.0, 100)
    for c in PRIORS:
        exact = stats.norm.sf(stats.norm.isf(c) - 1)
        low, high = pair.blow_up(c)
        assert low <= exact <= high < low + 1e-5
    exact = stats.norm.sf(0.5) - math.e * stats.norm.sf(1.5)
    low, high = pair.delta(1.0)
    assert low <= exact <= high < low + 1e-5


def test_single_points_agree_with_the_ledger():
    """dp-accounting is sound there: above the lower end, and within its own slack of the upper."""
    q, sigma, steps = 0.01, 1.27053328, 1000
    sides = [composed([q], sigma, steps, direction=d) for d in ("forward", "backward")]
    low, high = (max(s.epsilon(8e-5)[end] for s in sides) for end in (0, 1))
    theirs = privacy_cost.epsilon(
        SampledGaussian(q, sigma, steps), delta=8e-5, neighbouring_relation="add_or_remove"
    )
    assert low <= high < low + 1e-5 and low <= theirs <= high + 1e-4 and high <= theirs + 1e-6


def test_replacing_a_certain_point_is_a_gaussian_twice_as_far():
    pair = composed([1.0], 10.0, 100, direction="replace")
    for c in PRIORS:
        exact = stats.norm.sf(stats.norm.isf(c) - 2)
        low, high = pair.blow_up(c)
        assert low <= exact <= high < low + 1e-5
    exact = stats.norm.sf(-0.5) - math.e * stats.norm.sf(1.5)
    low, high = pair.delta(1.0)
    assert low <= exact <= high < low + 1e-5


def test_replacement_is_bracketed_like_dp_accountings_pair():
    from dp_accounting.pld import privacy_loss_distribution as pld

    theirs = pld.from_gaussian_mechanism(
        1.27053328,
        value_discretization_interval=1e-4,
        sampling_prob=0.01,
        neighboring_relation=pld.NeighborRel.REPLACE_ONE,
    ).self_compose(1000)
    pair = composed([0.01], 1.27053328, 1000, direction="replace")
    for delta in (1e-2, 1e-3, 8e-5):
        low, high = pair.epsilon(delta)
        value = theirs.get_epsilon_for_delta(delta)
        assert low <= value * (1 + 1e-6) and high == pytest.approx(value, rel=5e-5)


def test_the_chain_of_a_replaced_group():
    """KL of the bracket's own law is that of the exact quadrature."""
    p, sigma = [0.02] * 5, 1.0
    pair = composed(p, sigma, 1, direction="replace")
    divergence = float(pair.mass @ pair.losses)
    assert divergence == pytest.approx(one(p, sigma, "replace"), rel=1e-4)


def test_a_group_that_is_never_drawn_shows_nothing():
    for pmf in ([1.0], [1.0, 0.0]):
        pair = tight.compose(pmf, 1.0, 100)
        assert pair.delta(0.0)[1] < 1e-11 and pair.epsilon(1e-6) == (0.0, 0.0)
        assert pair.blow_up(0.1) == pytest.approx((0.1, 0.1), abs=1e-9)
    assert one([0.0, 0.0], 1.0) == 0


def test_more_points_narrow_the_bracket_and_coarse_ones_still_hold():
    p, sigma, steps = [0.001] * 75, 1.0, 1000
    widths = []
    for points in (2**11, 2**14):
        low, high = composed(p, sigma, steps, points=points).blow_up(0.01)
        assert low <= 0.7406625 <= high
        widths.append(high - low)
    assert widths[1] < widths[0] / 10


def test_dp_accountings_mixture_without_dots_is_below_the_truth():
    """Why groups are accounted here: one round of five points, and its delta is 5 % too small."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    p = [0.02] * 5
    law = group_mixtures.poisson_binomial(p)
    theirs = pld.from_mixture_gaussian_mechanism(
        1.0,
        list(range(len(law))),
        list(law),
        value_discretization_interval=2e-2,
        use_connect_dots=False,
    )
    low, high = composed(p, 1.0, 1).delta(0.3)
    edge = 2.00930781  # where the mixture is e^0.3 times the Gaussian
    exact = sum(w * stats.norm.sf(edge - k) for k, w in enumerate(law))
    exact -= math.exp(0.3) * stats.norm.sf(edge)
    assert low <= high < low + 1e-6 and exact == pytest.approx(low, rel=1e-4)
    assert theirs._pmf_remove.get_delta_for_epsilon(0.3) < 0.95 * low


def test_a_tilted_sum_is_not_one_in_dp_accounting():
    """The paper's symptom: sum of p e^-loss, at most 1, explodes when a group is composed."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    law = group_mixtures.poisson_binomial([0.001] * 75)[:8]
    theirs = pld.from_mixture_gaussian_mechanism(
        1.0, list(range(len(law))), list(law / law.sum()), value_discretization_interval=1e-2
    ).self_compose(1000)
    pmf = theirs._pmf_remove.to_dense_pmf()
    losses = (pmf._lower_loss + np.arange(pmf.size)) * pmf._discretization
    tilted = np.abs(pmf._probs) @ np.exp(np.minimum(-losses, 600))
    assert tilted > 1e3
    # Here the same sum is the test's level, which is 1 for the test that always says yes.
    pair = composed([0.001] * 75, 1.0, 1000)
    assert pair.level[0] == pytest.approx(1, abs=1e-9)


def test_epsilons_beyond_the_range_of_exp_keep_their_order():
    loud = composed([0.5] * 400, 3.0, 20)
    assert loud.delta(30_000)[0] > 0.99 and loud.delta(53_000)[0] == 0
    low, high = loud.epsilon(8e-5)
    assert low <= high <= low * 1.001


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: composed([0.1], 0.0, 1), r"sigma=0.0: must be positive"),
        (
            lambda: composed([0.1], 1.0, 1, direction="up"),
            r"direction='up': must be one of forward",
        ),
        (lambda: composed([0.1], 1.0, 1.5), r"steps=1.5: must be a whole number"),
        (lambda: tight.compose([0.5, 0.4], 1.0, 1), r"pmf: adds up to 0.9"),
        (lambda: composed([0.1], 1.0, 1).blow_up(2), r"c=2: must be in"),
        (lambda: composed([0.1], 1.0, 1).epsilon(0), r"delta=0: must be in"),
        (
            lambda: noise_multiplier(
                sparse.csr_array([[1.0]]),
                np.ones(1),
                0.1,
                0.2,
                steps=1,
                accounting="pld",
                neighbouring_relation="reference",
            ),
            "accounting='pld': must be one of kl, tight",
        ),
    ],
)
def test_refusals(call, said):
    with pytest.raises(ValueError, match=said):
        call()


@pytest.mark.parametrize("prior", [1e-4, 0.01, 0.3])
@pytest.mark.parametrize("sigma", [1.0, 4.0, 16.0])
def test_renyi_is_never_below_the_tight_bound_and_better_than_kl_at_small_priors(prior, sigma):
    law = group_mixtures.poisson_binomial([0.2] * 5)
    by_renyi = renyi_posterior(law, sigma, 20, prior)
    spent = 20 * group_mixtures.mixture_kl(
        group_mixtures.group_count_laws([0.2] * 5, [0, 5]), sigma
    )
    by_kl = float(secret_guesses.posterior_from_divergence(spent, prior)[0])
    assert (
        tight_posterior(law, sigma, 20, prior, neighbouring_relation="reference")[0]
        <= by_renyi
        <= 1
    )
    assert by_renyi < by_kl or by_kl == 1 or prior == 0.3


def test_tight_accounting_finds_the_least_noise_and_never_more_than_kl():
    held = sparse.csr_array(np.ones((1, 75)))
    q = np.full(75, 1e-3)
    found = noise_multiplier(
        held, q, 0.01, 0.1, steps=1000, accounting="tight", neighbouring_relation="reference"
    )
    assert found == pytest.approx(2.3937, abs=3e-3)
    rng = np.random.default_rng(0)
    sizes = rng.integers(20, 120, 12)
    rows = np.repeat(np.arange(12), sizes)
    columns = np.concatenate([rng.choice(400, n, replace=False) for n in sizes])
    held = sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(12, 400))
    posterior = rng.uniform(0.05, 0.5, 12)
    q = np.full(400, 0.02)
    by_kl = noise_multiplier(held, q, 0.01, posterior, steps=200, neighbouring_relation="reference")
    some = noise_multiplier(
        held,
        q,
        0.01,
        posterior,
        steps=200,
        accounting="tight",
        tight=2,
        neighbouring_relation="reference",
    )
    every = noise_multiplier(
        held,
        q,
        0.01,
        posterior,
        steps=200,
        accounting="tight",
        tight=12,
        neighbouring_relation="reference",
    )
    assert every < some <= by_kl
    for j in range(12):
        law = group_mixtures.poisson_binomial(q[held.indices[held.indptr[j] : held.indptr[j + 1]]])
        assert (
            tight_posterior(law, every, 200, 0.01, neighbouring_relation="reference")[1]
            <= posterior[j]
        )


def test_replacement_by_the_worst_pair_takes_half_the_noise_of_kl():
    """The blow-up of the antipodal pair, which the theorem on replacement allows to be used."""
    held, q = sparse.csr_array(np.ones((1, 75))), np.full(75, 1e-3)
    options = {"steps": 1000, "neighbouring_relation": "replace"}
    by_kl = noise_multiplier(held, q, 0.01, 0.1, **options)
    least = noise_multiplier(held, q, 0.01, 0.1, accounting="tight", **options)
    assert 0.4 * by_kl < least < 0.55 * by_kl
    law = group_mixtures.poisson_binomial(q)
    low, high = tight_posterior(law, least, 1000, 0.01, neighbouring_relation="replace")
    assert low <= high <= 0.1 < 1.002 * low
    reference = tight_posterior(law, least, 1000, 0.01, neighbouring_relation="reference")
    assert reference[1] < low  # against one fixed law the secret keeps more


def test_who_guesses_between_opposite_gradients_stays_below_the_posterior():
    """A game: the secret's point pushes one way or the other; the best guess is simulated."""
    q, sigma, steps, games = 0.2, 1.5, 20, 40_000
    rng = np.random.default_rng(5)
    side = rng.random(games) < 0.1  # prior 0.1 for +1
    drawn = rng.random((games, steps)) < q
    seen = drawn * np.where(side, 1, -1)[:, None] + sigma * rng.normal(size=(games, steps))
    up, down = (np.logaddexp(np.log(1 - q), np.log(q) + (w * 2 * seen - 1) / (2 * sigma**2))
                for w in (1, -1))  # fmt: skip
    loss = (up - down).sum(axis=1)
    # blow-up: the best power on +1 of tests that say +1 with chance 0.1 where it is -1
    cut = np.quantile(loss[~side], 0.9)
    power = (loss[side] > cut).mean()
    low, high = tight_posterior(
        np.array([1 - q, q]), sigma, steps, 0.1, neighbouring_relation="replace"
    )
    assert abs(power - low) < 4 * np.sqrt(0.25 / side.sum()) and low <= high < low + 1e-3
    by_kl = secret_guesses.posterior_from_divergence(
        steps
        * group_mixtures.mixture_kl(
            group_mixtures.group_count_laws([q], [0, 1]), sigma, direction="replace"
        )[0],
        0.1,
    )
    assert high < by_kl


def test_a_guarantee_of_a_secret_is_printed_in_full():
    g = SecretGuarantee("x", 0.01, 0.3, 0.25, None, 7, 0.5, 3.811242, 100, "reference")
    said = (
        "secret x: guessed with probability at most {} (promised: 0.3), prior 0.01; "
        "unit: all its 7 examples, of which 0.5 are in a batch; "
        "100 rounds with noise multiplier 3.81124; "
        "accountant: KL divergence 0.25, blow-up function {}; neighbours: reference; "
        "treated as public: which examples hold which secret, the weights"
    )
    assert str(g) == said.format("0.25", "not computed")
    assert str(replace(g, posterior_tight=0.125)) == said.format("0.125", "0.125")
    assert replace(g, posterior_tight=0.5).posterior == 0.25
