"""Groups of sampled points: golden numbers, a second route for each, and brackets that hold."""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from crtlib.accounting import group_mixtures

# One round, in nats: probabilities, sigma, KL forward, backward, of the replace pair.
KL = [
    ([0.01], 1.0, 8.3812207651e-05, 8.1889769141e-05, 2.2841130623e-04),
    ([0.1], 0.5, 5.7979593633e-02, 3.1876585774e-02, 9.7007869039e-02),
    ([0.02] * 5, 1.0, 7.8615242816e-03, 6.6774842449e-03, 2.0199331884e-02),
    ([0.005] * 20, 0.8, 1.5453690620e-02, 1.1455424345e-02, 3.3509453191e-02),
    ([0.001] * 75, 1.0, 4.5752136137e-03, 3.9797458988e-03, 1.1784251725e-02),
    ([0.01] * 75, 2.0, 7.8407814653e-02, 6.5088922901e-02, 2.4272973354e-01),
]


def one(p, sigma, direction="forward"):
    return float(
        group_mixtures.mixture_kl(
            group_mixtures.group_count_laws(p, [0, len(p)]), sigma, direction=direction
        )[0]
    )


# --- The law of the count -------------------------------------------------------------------------


def test_ragged_groups_have_the_law_of_each_alone():
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 60, 5000)  # several blocks, and groups without a point
    p = rng.uniform(0, 0.02, sizes.sum())
    starts = np.concatenate([[0], np.cumsum(sizes)])
    groups = group_mixtures.group_count_laws(p, starts)
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
        (_, pmf, tail), *_ = group_mixtures.group_count_laws([q] * n, [0, n]).blocks
        top = pmf.shape[1] - 1
        assert top < n
        assert stats.binom.sf(top, n, q) <= tail[0] <= 1e-30
        np.testing.assert_allclose(pmf[0], stats.binom.pmf(range(top + 1), n, q), rtol=1e-11)


# --- One round ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", KL)
def test_golden_divergences(case):
    p, sigma, *expected = case
    found = [one(p, sigma, direction) for direction in group_mixtures.DIVERGENCE_DIRECTIONS]
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
    found = [one(p, sigma, direction) for direction in group_mixtures.DIVERGENCE_DIRECTIONS]
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
        forward, backward, replace = (
            one(p, sigma, d) for d in group_mixtures.DIVERGENCE_DIRECTIONS
        )
        assert backward <= forward <= replace / 1.5


@pytest.mark.parametrize(
    "call, said",
    [
        (
            lambda: group_mixtures.group_count_laws([1.2], [0, 1]),
            r"probabilities: one is 1.2: must be in",
        ),
        (lambda: group_mixtures.group_count_laws([math.nan], [0, 1]), r"probabilities: one is nan"),
        (lambda: one([0.1], 0.0), r"sigma=0.0: must be positive"),
        (lambda: one([0.1], 1.0, "up"), r"direction='up': must be one of forward"),
    ],
)
def test_refusals(call, said):
    with pytest.raises(ValueError, match=said):
        call()
