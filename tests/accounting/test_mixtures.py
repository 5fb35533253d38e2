"""Groups of sampled points: golden numbers, a second route for each, and brackets that hold."""

import math

import mpmath
import numpy as np
import pytest
from scipy import optimize, stats

from crtlib.accounting import ledger, mixtures
from crtlib.accounting.events import SampledGaussian

PRIORS = (1e-3, 1e-2, 0.1, 0.5)
# One round, in nats: probabilities, sigma, KL forward, backward, of the replace pair.
KL = [
    ([0.01], 1.0, 8.3812207651e-05, 8.1889769141e-05, 2.2841130623e-04),
    ([0.1], 0.5, 5.7979593633e-02, 3.1876585774e-02, 9.7007869039e-02),
    ([0.02] * 5, 1.0, 7.8615242816e-03, 6.6774842449e-03, 2.0199331884e-02),
    ([0.005] * 20, 0.8, 1.5453690620e-02, 1.1455424345e-02, 3.3509453191e-02),
    ([0.001] * 75, 1.0, 4.5752136137e-03, 3.9797458988e-03, 1.1784251725e-02),
    ([0.01] * 75, 2.0, 7.8407814653e-02, 6.5088922901e-02, 2.4272973354e-01),
]
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
    return float(mixtures.kl(mixtures.counts(p, [0, len(p)]), sigma, direction=direction)[0])


def composed(p, sigma, steps, **options):
    return mixtures.compose(mixtures.poisson_binomial(p), sigma, steps, **options)


# --- The law of the count -------------------------------------------------------------------------


def test_ragged_groups_have_the_law_of_each_alone():
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 60, 5000)  # several blocks, and groups without a point
    p = rng.uniform(0, 0.02, sizes.sum())
    starts = np.concatenate([[0], np.cumsum(sizes)])
    groups = mixtures.counts(p, starts)
    seen = np.zeros(len(sizes), dtype=int)
    for rows, pmf, tail in groups.blocks:
        seen[rows] += 1
        assert np.abs(pmf.sum(axis=1) - 1).max() < 1e-13 and tail.max() < 1e-30
        for i in (0, len(rows) // 2, len(rows) - 1):
            law = np.ones(1)
            for q in p[starts[rows[i]] : starts[rows[i] + 1]]:
                law = np.convolve(law, [1 - q, q])
            law = np.pad(law, (0, max(0, pmf.shape[1] - len(law))))[: pmf.shape[1]]
            np.testing.assert_allclose(pmf[i], law, rtol=1e-12)
    assert (seen == 1).all() and len(groups.blocks) > 1


def test_what_is_cut_off_is_charged():
    """The bound on the tail is above the tail, and a law cut short loses what it says."""
    for n, q in ((200, 0.01), (1000, 0.05)):
        (_, pmf, tail), *_ = mixtures.counts([q] * n, [0, n]).blocks
        top = pmf.shape[1] - 1
        assert top < n
        assert stats.binom.sf(top, n, q) <= tail[0] <= 1e-30
        np.testing.assert_allclose(pmf[0], stats.binom.pmf(range(top + 1), n, q), rtol=1e-11)


# --- One round ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", KL)
def test_golden_divergences(case):
    p, sigma, *expected = case
    found = [one(p, sigma, direction) for direction in mixtures.DIRECTIONS]
    assert found == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("p, sigma", [([0.02] * 3, 1.0), ([0.3, 1e-4], 0.25), ([1e-6], 4.0)])
def test_divergences_against_thirty_digits(p, sigma):
    mpmath.mp.dps = 30
    law = [mpmath.mpf(1)]
    for q in map(mpmath.mpf, p):
        law = [(1 - q) * a + q * b for a, b in zip([*law, 0], [0, *law], strict=True)]

    def density(x, weights=law):
        return sum(w * mpmath.npdf(x, k, sigma) for k, w in enumerate(weights))

    def divergence(f, g):
        def term(x):
            return f(x) * mpmath.log(f(x) / g(x))

        ends = np.arange(-14, 14 + len(p) / sigma, 2.0) * sigma
        return float(mpmath.quad(term, list(map(mpmath.mpf, ends))))

    def without(x):
        return mpmath.npdf(x, 0, sigma)

    expected = [
        divergence(density, without),
        divergence(without, density),
        divergence(density, lambda x: density(-x)),
    ]
    found = [one(p, sigma, direction) for direction in mixtures.DIRECTIONS]
    assert found == pytest.approx(expected, rel=1e-11)


def test_certain_points_are_a_shifted_gaussian():
    """Where every point is drawn the divergence is n^2 / 2 sigma^2, also far beyond e^700."""
    for n, sigma in ((3, 0.1), (100, 1.0)):
        for direction, factor in (("forward", 1), ("backward", 1), ("replace", 4)):
            value = one([1.0] * n, sigma, direction)
            assert value == pytest.approx(factor * n**2 / (2 * sigma**2), rel=1e-9)


def test_the_forward_direction_is_the_worse_one():
    rng = np.random.default_rng(1)
    for _ in range(20):
        p = rng.uniform(0, 0.2, rng.integers(1, 30))
        sigma = rng.uniform(0.4, 5)
        forward, backward, replace = (one(p, sigma, d) for d in mixtures.DIRECTIONS)
        assert backward <= forward <= replace / 1.5


# --- Many rounds ----------------------------------------------------------------------------------


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
        pair = mixtures.compose(stats.binom.pmf(range(k + 1), k, q), sigma, steps)
        low, high = pair.delta(k)
        assert low <= high <= low * (1 + 1e-4) and high == pytest.approx(at_k, rel=1e-4)
        low, high = pair.epsilon(8e-5)
        assert low <= high < low + 1e-4 and high == pytest.approx(at_delta, abs=5e-3)


def test_one_round_against_its_thresholds():
    """The bracket holds the hockey-stick divergence and the best test."""
    p, sigma = [0.02] * 5, 1.0
    law = mixtures.poisson_binomial(p)

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
    theirs = ledger.epsilon(SampledGaussian(q, sigma, steps), delta=8e-5)
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
        pair = mixtures.compose(pmf, 1.0, 100)
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
    law = mixtures.poisson_binomial(p)
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

    law = mixtures.poisson_binomial([0.001] * 75)[:8]
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


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: mixtures.counts([1.2], [0, 1]), r"probabilities: one is 1.2: must be in"),
        (lambda: mixtures.counts([math.nan], [0, 1]), r"probabilities: one is nan"),
        (lambda: one([0.1], 0.0), r"sigma=0.0: must be positive"),
        (lambda: one([0.1], 1.0, "up"), r"direction='up': must be one of forward"),
        (lambda: composed([0.1], 1.0, 1.5), r"steps=1.5: must be a whole number"),
        (lambda: mixtures.compose([0.5, 0.4], 1.0, 1), r"pmf: adds up to 0.9"),
        (lambda: composed([0.1], 1.0, 1).blow_up(2), r"c=2: must be in"),
        (lambda: composed([0.1], 1.0, 1).epsilon(0), r"delta=0: must be in"),
    ],
)
def test_refusals(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_epsilons_beyond_the_range_of_exp_keep_their_order():
    loud = composed([0.5] * 400, 3.0, 20)
    assert loud.delta(30_000)[0] > 0.99 and loud.delta(53_000)[0] == 0
    low, high = loud.epsilon(8e-5)
    assert low <= high <= low * 1.001
