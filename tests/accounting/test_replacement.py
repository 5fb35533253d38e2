"""The antipodal pair is the worst replacement: the theorem's own steps, and a search for worse.

P = sum_w p_w N(g_w), Q = sum_w p_w N(g'_w), w the drawn points of a group, g_w and g'_w the sums
of clipped gradients before and after. The theorem: no hockey stick H_a(P || Q), for any a > 0, is
above that of the means +|w| and -|w| on the line.
"""

import itertools

import numpy as np
import pytest
from scipy import integrate, optimize, stats


def line(weights, sizes, sigma, a):
    """H_a of the antipodal pair: its loss grows, so the best event is a half-line."""

    def gap(x):
        p = weights @ stats.norm.pdf(x, sizes, sigma)
        return p - a * (weights @ stats.norm.pdf(x, -sizes, sigma))

    reach = 14 * sigma + sizes.max()
    if gap(reach) <= 0:
        return 0.0
    edge = optimize.brentq(gap, -reach, reach) if gap(-reach) < 0 else -reach
    return weights @ stats.norm.sf(edge, sizes, sigma) - a * (
        weights @ stats.norm.sf(edge, -sizes, sigma)
    )


def plane(weights, before, after, sigma, a, points=161):
    """H_a in the plane; ``before``, ``after`` are means, (w, 2).

    Row by row: the positive parts of a line end where its gap crosses 0 (found by interpolation,
    whose error counts in second order), and their integrals are normal probabilities. The rows
    are summed by the trapezoidal rule.
    """
    reach = 9 * sigma + max(np.abs(before).max(), np.abs(after).max())
    x, y = (np.linspace(-reach, reach, n) for n in (4 * points, points))
    means = np.concatenate([before, after])
    factors = np.concatenate([weights, -a * weights])
    rows = factors * stats.norm.pdf(y[:, None], means[:, 1], sigma)  # (y, 2 w)
    gap = rows @ stats.norm.pdf(x, means[:, :1], sigma)
    below = rows @ stats.norm.cdf(x, means[:, :1], sigma)
    left, right = gap[:, :-1], gap[:, 1:]
    total = np.diff(below, axis=1)[(left > 0) & (right > 0)].sum()
    i, j = np.nonzero((left > 0) != (right > 0))
    edge = x[j] + (x[1] - x[0]) * left[i, j] / (left[i, j] - right[i, j])
    at = (rows[i] * stats.norm.cdf(edge[:, None], means[:, 0], sigma)).sum(axis=1)
    rising = right[i, j] > 0
    total += np.where(rising, below[i, j + 1] - at, at - below[i, j]).sum()
    return total * (y[1] - y[0])


def clipped(rng, shape):
    """Random vectors of length at most one; most of them of length one."""
    angle = rng.uniform(0, 2 * np.pi, shape)
    length = np.minimum(1, rng.uniform(0.5, 1.5, shape))
    return np.stack([length * np.cos(angle), length * np.sin(angle)], axis=-1)


@pytest.mark.parametrize("q, sigma", [(0.05, 0.6), (0.3, 1.0), (0.8, 2.0)])
@pytest.mark.parametrize("a", [0.3, 0.9, 1.0, 1.3, 4.0])
def test_no_angle_and_no_length_is_worse_for_one_record(q, sigma, a):
    weights = np.array([1 - q, q])
    worst = line(weights, np.array([0.0, 1.0]), sigma, a)
    for angle, r, s in itertools.product(np.linspace(0, np.pi, 5), (0.4, 1.0), (0.0, 0.7, 1.0)):
        before = np.array([[0, 0], [r, 0]])
        after = np.array([[0, 0], [s * np.cos(angle), s * np.sin(angle)]])
        found = plane(weights, before, after, sigma, a)
        assert found <= worst + 1e-6
        if angle == np.pi and r == s == 1:  # the search contains the worst pair, and finds it
            assert found == pytest.approx(worst, abs=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_no_group_of_three_is_worse(seed):
    rng = np.random.default_rng(seed)
    q, sigma, a = rng.uniform(0.02, 0.9, 3), rng.uniform(0.5, 2), np.exp(rng.uniform(-2, 2))
    draws = np.array(list(itertools.product((0, 1), repeat=3)))
    weights = np.prod(np.where(draws, q, 1 - q), axis=1)
    worst = line(weights, draws.sum(axis=1).astype(float), sigma, a)
    for _ in range(4):
        before, after = clipped(rng, 3), clipped(rng, 3)
        assert plane(weights, draws @ before, draws @ after, sigma, a) <= worst + 1e-6


def test_an_optimiser_finds_the_antipodal_pair_and_nothing_above_it():
    """Second route: maximise the hockey stick over both gradients, in the plane."""
    q, sigma, a = 0.3, 0.9, 1.4
    weights = np.array([1 - q, q])
    worst = line(weights, np.array([0.0, 1.0]), sigma, a)

    def negative(z):
        u, v = z[:2], z[2:]
        u, v = (w / max(1.0, np.linalg.norm(w)) for w in (u, v))
        zero = np.zeros(2)
        return -plane(weights, np.array([zero, u]), np.array([zero, v]), sigma, a, 61)

    for start in ([0.9, 0.1, 0.2, 0.9], [0.5, -0.5, 0.1, 0.3]):
        found = optimize.minimize(negative, start, method="Nelder-Mead", options={"maxfev": 250})
        assert -found.fun <= worst + 1e-6
        assert -found.fun == pytest.approx(worst, rel=1e-4)
        u, v = (w / np.linalg.norm(w) for w in (found.x[:2], found.x[2:]))
        assert u @ v < -0.98


@pytest.mark.parametrize("shape", ["half-plane", "disc", "stripe", "quarter"])
def test_the_step_of_neyman_and_pearson(shape):
    """For any event A with N(0)(A) = Phi(z): Phi(z - |v|/s) <= N(v)(A) <= Phi(z + |v|/s)."""
    rng = np.random.default_rng(3)
    s, noise = 0.8, rng.normal(size=(400_000, 2)) * 0.8
    events = {
        "half-plane": lambda x: x @ np.array([0.6, 0.8]) > 0.4,
        "disc": lambda x: np.linalg.norm(x - 0.3, axis=1) < 0.9,
        "stripe": lambda x: np.abs(x[:, 0] - 0.5) < 0.3,
        "quarter": lambda x: (x[:, 0] > 0) & (x[:, 1] > -0.2),
    }
    inside = events[shape]
    z = stats.norm.ppf(inside(noise).mean())
    for v in ([0.5, 0.0], [0.6, 0.8], [-0.7, 0.3]):
        moved = inside(noise + np.array(v)).mean()
        length = np.linalg.norm(v) / s
        assert stats.norm.cdf(z - length) - 4e-3 <= moved <= stats.norm.cdf(z + length) + 4e-3
    if shape == "half-plane":  # where it is an equality, and the theorem is tight
        moved = inside(noise + np.array([0.6, 0.8])).mean()
        assert moved == pytest.approx(stats.norm.cdf(z + 1 / s), abs=4e-3)


def test_the_half_line_attains_the_bound_of_the_proof():
    """sup_z sum_w p_w [Phi(z + |w|/s) - a Phi(z - |w|/s)] is H_a of the pair on the line."""
    weights, sizes, s, a = np.array([0.5, 0.3, 0.2]), np.array([0.0, 1.0, 2.0]), 1.1, 1.7
    z = np.linspace(-9, 9, 200_001)
    bound = sum(
        w * (stats.norm.cdf(z + k / s) - a * stats.norm.cdf(z - k / s))
        for w, k in zip(weights, sizes, strict=True)
    )
    exact = integrate.quad(
        lambda x: max(
            0.0,
            weights @ stats.norm.pdf(x, sizes, s) - a * (weights @ stats.norm.pdf(x, -sizes, s)),
        ),
        -12,
        14,
        limit=400,
    )[0]
    assert bound.max() == pytest.approx(exact, abs=1e-7)
    assert line(weights, sizes, s, a) == pytest.approx(exact, abs=1e-7)
