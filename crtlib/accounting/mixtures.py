"""A group of sampled points against its absence: N(how many were drawn, sigma^2) and N(0, sigma^2).

One round of DP-SGD takes each point ``i`` with its own probability ``p_i``. What a round shows of
the points that hold a secret is no more than this pair does: a Gaussian mixture whose weights are
a Poisson-binomial law, against the Gaussian without them (in units of the clipping norm).

>>> group = counts([0.02] * 5, [0, 5])
>>> round(float(kl(group, sigma=1.0)[0]), 12)
0.007861524282
>>> low, high = compose(poisson_binomial([0.01]), sigma=1.0, steps=1000).blow_up(0.01)
>>> round(low, 5), round(high, 5)
(0.02914, 0.02914)

``kl`` is exact and takes 100,000 secrets at once; ``compose`` is tight, for one secret at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import fft, optimize, special

from crtlib.accounting.losses import ULP, Array, Pair, above, crossings, discounted, power

Direction = Literal["forward", "backward", "replace"]
DIRECTIONS = ("forward", "backward", "replace")
ROWS = 2048  # secrets of one block: their table stays in the cache
LOG_TAIL = -75.0  # counts whose probability is below e^-75 are left out, and charged
REACH, STEP = 9.5, 0.5  # of the integration grid, in sigma
Bins = tuple[Array, Array, Array, float]  # edges of the loss, masses of P and Q, their error
WRAP = 1e-13  # mass that may leave the window of a convolution; it is charged


@dataclass(frozen=True)
class Counts:
    """Poisson-binomial laws of many groups, in blocks of similar length.

    A block is ``(rows, pmf, tail)``: the numbers of its groups, ``pmf[i, k]`` the probability
    that k points are drawn, (len(rows), K + 1), and ``tail`` a bound on that of more than K.
    """

    blocks: tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...]
    sizes: np.ndarray  # points of each group

    def __len__(self) -> int:
        return len(self.sizes)


def counts(probabilities: ArrayLike, indptr: ArrayLike) -> Counts:
    """The laws of the groups ``probabilities[indptr[j]:indptr[j + 1]]`` (a CSR matrix' fields).

    Counts k whose Chernoff bound e^(k - load) (load / k)^k is below e^(-75 - load) are left out.
    Raises ValueError for a probability outside [0, 1].
    """
    p = np.asarray(probabilities, dtype=float)
    starts = np.asarray(indptr, dtype=np.int64)
    for worst in (p.min(), p.max()) if p.size else ():
        if not 0 <= worst <= 1:
            raise ValueError(f"probabilities: one is {worst}: must be in [0, 1]")
    sizes = np.diff(starts)
    loads = np.diff(np.concatenate([[0.0], np.cumsum(p)])[starts])
    longest = _longest(loads, sizes)
    blocks = []
    order = np.lexsort((-sizes, longest))
    for rows in np.split(order, range(ROWS, len(order), ROWS)) if len(order) else ():
        rows = rows[np.argsort(-sizes[rows], kind="stable")]
        top = int(longest[rows].max())
        pmf = np.zeros((len(rows), top + 1))
        pmf[:, 0] = 1.0
        active = len(rows) - np.searchsorted(sizes[rows][::-1], np.arange(sizes[rows[0]]), "right")
        for d, n in enumerate(active):  # the d-th point of each of the n groups that have one
            q = p[starts[rows[:n]] + d, None]
            drawn = pmf[:n, :-1] * q
            pmf[:n] *= 1 - q
            pmf[:n, 1:] += drawn
        tail = np.asarray(np.exp(_log_chernoff(top + 1, loads[rows])))
        blocks.append((rows, pmf, np.where(sizes[rows] <= top, 0.0, tail)))
    return Counts(tuple(blocks), sizes)


def poisson_binomial(probabilities: Sequence[float] | Array) -> Array:
    """The law of how many of one group's points are drawn, ``(K + 1,)``: one row of `counts`.

    >>> poisson_binomial([0.5, 0.5]).tolist()
    [0.25, 0.5, 0.25]
    """
    law: Array = counts(probabilities, [0, len(probabilities)]).blocks[0][1][0]
    return law


def _log_chernoff(k: ArrayLike, load: ArrayLike) -> Array:
    """The log of a bound on P[count >= k], for k > load."""
    k, load = np.asarray(k, dtype=float), np.asarray(load, dtype=float)
    with np.errstate(divide="ignore"):
        return np.where(k > load, k - load + k * np.log(load / k), 0.0)


def _longest(loads: Array, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each group the largest count that is kept: bisection on the Chernoff bound."""
    low, high = np.floor(loads), np.maximum(sizes, 1).astype(float)
    while (high - low > 1).any():
        k = np.ceil((low + high) / 2)
        enough = _log_chernoff(k + 1, loads) <= LOG_TAIL - loads
        low, high = np.where(enough, low, np.minimum(k, high)), np.where(enough, k, high)
    return high.astype(np.int64)


def kl(groups: Counts, sigma: float, *, direction: Direction = "forward") -> Array:
    """KL divergence of one round in nats, of every group, ``(groups,)``.

    "forward" is with against without the group, "backward" without against with, "replace" the
    mixture against its mirror image (each gradient u replaced by -u, the worst replacement).
    ``sigma`` is the noise multiplier. Rounding is below 1e-12 relative; what is left out of the
    laws is added as a bound.
    """
    _check(sigma, direction, DIRECTIONS)
    out = np.zeros(len(groups))
    for rows, pmf, tail in groups.blocks:
        top = pmf.shape[1] - 1
        if top:
            # log L is analytic to pi sigma^2 off the real line: sums converge as e^(-40) here.
            step = STEP * sigma * min(1.0, sigma)
            left = 0.0 if direction == "replace" else -REACH * sigma  # an even integrand, 0 at 0
            x = np.arange(left, top + REACH * sigma, step)
            out[rows] = _kl_block(pmf, x, sigma, direction) * step
        # t: convexity, the entropy of "in the tail or not", and log(q / p) <= -log pmf_0
        n = (2 if direction == "replace" else 1) * groups.sizes[rows]
        entropy = special.entr(tail) + special.entr(1 - tail)
        bound = tail * n**2 / (2 * sigma**2) + entropy if direction != "backward" else 0.0
        if direction != "forward":
            bound = bound + np.divide(tail, pmf[:, 0], out=np.zeros_like(tail), where=tail > 0)
        out[rows] += bound
    return out


def _check(sigma: float, direction: str, directions: Sequence[str]) -> None:
    if not 0 < sigma < math.inf:
        raise ValueError(f"sigma={sigma}: must be positive and finite")
    if direction not in directions:
        raise ValueError(f"direction={direction!r}: must be one of {', '.join(directions)}")


def _kl_block(pmf: Array, x: Array, sigma: float, direction: str) -> Array:
    log_q = -((x / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi))
    u, loss, p = _ratio(pmf, x, sigma, log_q)
    if direction == "replace":
        _, mirrored, p_mirrored = _ratio(pmf, -x, sigma, log_q)
        return np.asarray(((p - p_mirrored) * (loss - mirrored)).sum(axis=1))
    q = np.exp(log_q)
    near = np.abs(u) < 1e-3  # where the differences below would cancel
    s = u[near]
    if direction == "forward":
        terms = p * loss - p + q
        series = s * s * (1 / 2 - s * (1 / 6 - s * (1 / 12 - s * (1 / 20 - s / 30))))
    else:
        terms = p - q - q * loss
        series = s * s * (1 / 2 - s * (1 / 3 - s * (1 / 4 - s * (1 / 5 - s / 6))))
    terms[near] = series * np.broadcast_to(q, u.shape)[near]
    return np.asarray(terms.sum(axis=1))


def _ratio(pmf: Array, x: Array, sigma: float, log_q: Array) -> tuple[Array, Array, Array]:
    """``p / q - 1``, its ``log1p`` and ``p`` at ``x``, each (groups, len(x)), p the mixture."""
    k = np.arange(pmf.shape[1])[:, None]
    exponent = (k * x - k**2 / 2) / sigma**2  # (K + 1, x)
    u = pmf[:, 1:] @ np.expm1(np.minimum(exponent[1:], 600))
    hard = (exponent.max(axis=0) > 600) | (u.min(axis=0) < -0.99)  # e^600, or 1 + u cancels
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.log1p(u)
    p = np.exp(log_q) * (1 + u)
    if hard.any():
        log_p = np.full((len(pmf), int(hard.sum())), -np.inf)
        with np.errstate(divide="ignore"):
            logs = np.log(pmf)
        for i in range(len(k)):
            log_p = np.logaddexp(log_p, logs[:, i, None] + exponent[i, hard])
        loss[:, hard] = log_p
        p[:, hard] = np.exp(log_p + log_q[hard])
    return u, loss, p


Bracket = tuple[float, float]
"""``(lower, upper)``: the lower is that of a test that exists, the upper that of a worse pair."""


@dataclass(frozen=True, eq=False)
class Composed:
    """``steps`` independent rounds of a pair of laws (P, Q), bracketed from both sides.

    Upper: a discrete pair that is worse than the true one, with P-mass ``mass`` at ``losses``
    (ascending, nats) and ``infinity`` where Q has none. Lower: the tests "the loss, rounded down
    round by round, is at least ``tests``", with their ``power`` under P, their ``level`` under Q
    and ``tilted`` = e^tests level. ``error`` bounds what the numerics may do to one sum.
    """

    losses: np.ndarray
    mass: np.ndarray
    infinity: float
    tests: np.ndarray
    power: np.ndarray
    level: np.ndarray
    tilted: np.ndarray
    error: float

    def delta(self, epsilon: float) -> Bracket:
        """The hockey-stick divergence of P from Q at e^epsilon."""
        return self._lower(epsilon), self._upper(epsilon)

    def _upper(self, epsilon: float) -> float:
        gain = -np.expm1(np.minimum(epsilon - self.losses, 0))
        return min(1.0, self.infinity + float(self.mass @ gain) + self.error)

    def _lower(self, epsilon: float) -> float:
        excess = epsilon - self.tests
        lower = self.power - np.exp(np.minimum(excess, 700)) * self.tilted
        # Elsewhere e^excess is cut off.
        return max(0.0, float(lower.max(where=excess < 700, initial=0.0)) - 2 * self.error)

    def epsilon(self, delta: float) -> Bracket:
        """The least epsilon >= 0 at ``delta``; infinite where the window does not reach it."""
        if not 0 < delta < 1:
            raise ValueError(f"delta={delta}: must be in (0, 1)")
        ends = []
        for side, least in enumerate((self._lower, self._upper)):
            low, high = 0.0, max(0.0, float(self.losses[-1]))
            if least(high) > delta:
                low, high = high, math.inf
            elif least(low) <= delta:
                high = low
            else:
                for _ in range(40):
                    middle = (low + high) / 2
                    low, high = (middle, high) if least(middle) > delta else (low, middle)
            ends.append((low, high)[side])
        return ends[0], ends[1]

    def blow_up(self, c: float) -> Bracket:
        """B_c(P, Q) = sup {P(E): Q(E) <= c}: the best chance of whom chance c without the data.

        Upper: min over e^loss of delta(loss) + c e^loss, which is its dual. Lower: the best test.
        """
        if not 0 <= c <= 1:
            raise ValueError(f"c={c}: must be in [0, 1]")
        spacing = self.losses[1] - self.losses[0]
        sticks = above(self.mass) - discounted(self.mass, spacing)  # delta(losses)
        upper = float((sticks + c * np.exp(np.minimum(self.losses, 700))).min())
        level = np.maximum.accumulate(self.level[::-1]) + self.error
        lower = float(np.interp(c, level, self.power[::-1], left=0.0)) - self.error
        return max(c, lower), min(1.0, upper + self.infinity + 2 * self.error)


def compose(
    pmf: Sequence[float] | Array,
    sigma: float,
    steps: int,
    *,
    direction: Direction = "forward",
    points: int = 2**18,
) -> Composed:
    """``steps`` rounds of the pair N(count, sigma^2), N(0, sigma^2), count distributed as ``pmf``.

    "forward": P is the mixture and Q the Gaussian; "backward" the reverse; "replace": Q is the
    mixture's mirror image, the worst replacement of the group. The real line is cut
    where the loss log(dP/dQ), which is monotone, crosses a grid, and the bins get their exact
    masses. Upper: each bin's mass goes to its two ends so that both P and Q keep it ("connect the
    dots", Doroshenko et al. 2022), a pair from which the true one can be simulated. Lower: a test
    that knows the bins alone. About ``points`` grid points are used; more narrow the bracket.

    Charged to the bracket: what leaves the window (Chernoff's bound) and the rounding of the
    Fourier transforms (Higham 2002, Theorem 24.2, times ``steps``) and of the bins' masses.

    Raises ValueError for a pmf that is none, or sigma, steps outside their range.
    """
    _check(sigma, direction, DIRECTIONS)
    if steps < 1 or steps != int(steps):
        raise ValueError(f"steps={steps}: must be a whole number, at least 1")
    law, lost = _law(pmf)
    bins = _mirrored_bins if direction == "replace" else _bins
    losses, p, q, slack = bins(law, sigma, steps, points)
    if direction == "backward":
        losses, p, q = -losses[::-1], q[::-1], p[::-1]
    spacing = float(losses[-1] - losses[0]) / (len(losses) - 1)
    mass, infinity = _connect_the_dots(losses, p, q)
    # A test counts a bin with its lower end, and q e^end <= p but for the first bin, without one.
    ends = losses[0] + spacing * np.arange(-1, len(losses))
    tilted = np.exp(np.minimum(np.log(np.maximum(q, 1e-290)) + ends, 700))
    tilted[1:] = np.where(q > 1e-290, np.minimum(tilted, p), p)[1:]

    low, total, rounding = _convolved({"mass": mass, "p": p, "q": q, "tilted": tilted}, steps)
    grid = steps * losses[0] + spacing * (low + np.arange(len(total["mass"])))
    tests = grid - steps * spacing
    tail = discounted(total["tilted"], spacing)
    level = np.where(tests > 0, np.exp(-np.maximum(tests, 0)) * tail, above(total["q"]))
    return Composed(
        grid,
        total["mass"],
        infinity=-math.expm1(steps * math.log1p(-min(infinity, 1 - 1e-16))),
        tests=tests,
        power=above(total["p"]),
        level=level,
        tilted=tail,
        error=rounding + 6 * WRAP + steps * (lost + slack),
    )


def _law(pmf: Sequence[float] | Array) -> tuple[Array, float]:
    """The probabilities up to the last that is not 0, at least two, and what they lack of 1."""
    law = np.asarray(pmf, dtype=float)
    law = law[: int(np.flatnonzero(law)[-1]) + 1] if law.any() else law[:0]
    lost = abs(1 - float(law.sum()))
    if not (law.size and (law >= 0).all() and lost < 1e-9):
        raise ValueError(f"pmf: adds up to {float(law.sum())}: must be probabilities that sum to 1")
    if len(law) == 1:  # never sampled, the two laws are one: as if once in 10^300 rounds
        law = np.array([1.0, 1e-300])
    return law, lost


def _convolved(laws: dict[str, Array], steps: int) -> tuple[int, dict[str, Array], float]:
    """The sums of ``steps`` draws of each law on one window: its first index, the masses there by
    name, and a bound on the rounding of one sum of them."""
    reach = [_reach(laws[name], steps) for name in ("mass", "p", "q")]
    low, high = min(r[0] for r in reach), max(r[1] for r in reach)
    n = 1 << int(max(high - low, len(laws["q"]))).bit_length()  # at least high - low + 1
    window = (low + np.arange(n)) % n
    total, rounding, log_n = {}, 0.0, math.log2(n)
    for name, one in laws.items():
        whole = fft.irfft(power(fft.rfft(one, n), steps), n)
        norms = steps * (log_n + 1) * np.linalg.norm(one) + log_n * np.linalg.norm(whole)
        rounding = max(rounding, math.sqrt(n) * 8 * ULP * float(norms))
        total[name] = np.maximum(whole[window], 0)
    return low, total, rounding


def _bins(pmf: Array, sigma: float, steps: int, points: int) -> Bins:
    """Edges of the loss, equally spaced, and the exact masses of P and Q between them.

    ``losses (n,)``; ``p``, ``q (n + 1,)`` with the tails first and last; and a bound on what
    rounding did to the masses.
    """
    k = np.arange(len(pmf))
    with np.errstate(divide="ignore"):
        log_pmf = np.log(pmf)
    drawn = partial(_drawn, log_pmf, sigma)
    high = _cut(pmf, sigma, WRAP / steps)
    x = np.linspace(-REACH * sigma, high, 1 + math.ceil((high / sigma + REACH) * 8))
    some, _ = drawn(x)
    loss = np.logaddexp(log_pmf[0], some)
    spacing = _spacing(x, loss, sigma, steps, points)

    n = 2 + math.ceil((loss[-1] - loss[0]) / spacing)
    losses = loss[0] + spacing * np.arange(n)
    # log(e^loss - pmf_0), the start of which would cancel if it were formed from loss[0]
    start = np.log1p(np.exp(some[0] - log_pmf[0])) if pmf[0] else 0.0
    gain = start + spacing * np.arange(n)
    with np.errstate(divide="ignore"):
        target = log_pmf[0] + gain + np.log(-np.expm1(-gain)) if pmf[0] else losses
    edges = np.interp(target, some, x)
    for _ in range(30):  # Newton, on a convex function with a slope of at least 1 / sigma^2
        value, slope = drawn(edges)
        move = (value - target) / slope
        edges -= move
        if np.abs(move[1:]).max() <= 1e-13 * (1 + sigma):
            break
    edges[0] = x[0]
    each, least = _between((edges[:, None] - k) / sigma)
    slack = 8 * ULP * float((least @ (pmf + (k == 0))).sum())
    return losses, each @ pmf, each[:, 0], slack


def _drawn(log_pmf: Array, sigma: float, x: Array) -> tuple[Array, Array]:
    """Log of the part of dP/dQ where some point is drawn, and its slope in x."""
    k = np.arange(1, len(log_pmf))
    terms = log_pmf[1:] + (x[:, None] * k - k**2 / 2) / sigma**2
    top = terms.max(axis=1)
    e = np.exp(terms - top[:, None])
    return top + np.log(e.sum(axis=1)), (e @ k) / e.sum(axis=1) / sigma**2


def _cut(pmf: Array, sigma: float, mass: float) -> float:
    """Where at most ``mass`` of P is left beyond, to 0.001 sigma: bisection."""
    k = np.arange(len(pmf))
    low, high = 0.0, float(k[-1] + REACH * sigma)
    while high - low > 1e-3 * sigma:
        middle = (low + high) / 2
        beyond = float(pmf @ special.ndtr((k - middle) / sigma))
        low, high = (middle, high) if beyond > mass else (low, middle)
    return high


def _spacing(x: Array, loss: Array, sigma: float, steps: int, points: int) -> float:
    """Of the grid of losses: its ``points`` span the loss and nearly all of the sum of rounds."""
    dx = (x[1] - x[0]) / sigma / math.sqrt(2 * math.pi)
    window = 0.0
    for log_weight, sign in ((loss, 1), (0.0, -1)):  # moments of the loss under P and under Q
        w = dx * np.exp(log_weight - (x / sigma) ** 2 / 2)
        mean = (w @ loss) / w.sum()
        spread = math.sqrt(steps * (w @ (loss - mean) ** 2) / w.sum())
        window += sign * steps * mean + 9 * spread
    return float(max(window, loss[-1] - loss[0], 1e-12) / points)


def _between(z: Array) -> tuple[Array, Array]:
    """Masses of N(0, 1) between ascending ``z (n, K + 1)``, tails first and last, ``(n + 1, K +
    1)``, and the lesser of the two tails at each."""
    below, over = special.ndtr(z), special.ndtr(-z)
    inside = np.where(z[1:] > 0, over[:-1] - over[1:], below[1:] - below[:-1])
    return np.concatenate([below[:1], inside, over[-1:]]), np.minimum(below, over)


def _mirrored_bins(pmf: Array, sigma: float, steps: int, points: int) -> Bins:
    """As `_bins`, for the mixture against its mirror image; the grid is symmetric about 0."""
    pair = Pair(tuple(pmf.tolist()), sigma, "replace")
    k = np.arange(len(pmf))
    high = float(k[-1]) - float(special.ndtri(WRAP / steps)) * sigma
    x = np.linspace(-high, high, 1 + 2 * math.ceil(8 * high / sigma))
    loss = pair.loss(x)
    w = np.exp(-(((x[:, None] - k) / sigma) ** 2) / 2) @ pmf
    mean = float(w @ loss / w.sum())
    spread = math.sqrt(steps * float(w @ (loss - mean) ** 2 / w.sum()))
    spacing = max(2 * (steps * mean + 9 * spread), 2 * loss[-1], 1e-12) / points
    top = max(1, math.floor(loss[-1] / spacing))
    losses = spacing * np.arange(-top, top + 1)
    edges = crossings(pair, losses, -high, high)
    masses, slack = [], 0.0
    for sign in (1, -1):
        each, least = _between((edges[:, None] - sign * k) / sigma)
        masses.append(each @ pmf)
        slack += 8 * ULP * float((least @ pmf).sum())
    return losses, masses[0], masses[1], slack


def _connect_the_dots(losses: Array, p: Array, q: Array) -> tuple[Array, float]:
    """P's masses on ``losses`` of a pair at least as distinguishable, and P's mass at infinity."""
    spacing = float(losses[-1] - losses[0]) / (len(losses) - 1)
    e = np.exp(np.minimum(losses, 700))
    upper = np.clip((p[1:-1] - q[1:-1] * e[:-1]) / -math.expm1(-spacing), 0, p[1:-1])
    mass = np.zeros(len(losses))
    mass[0] = p[0]  # the loss there is lower still
    mass[1:] += upper
    mass[:-1] += p[1:-1] - upper
    finite = min(q[-1] * e[-1], p[-1])
    mass[-1] += finite
    return mass, float(p[-1] - finite)


def _reach(law: Array, steps: int) -> tuple[int, int]:
    """Indices between which the sum of ``steps`` draws lies but for WRAP each side (Chernoff)."""
    keep = np.flatnonzero(law)
    weights, ends = law[keep], []
    coarse = keep // max(1, len(law) // 1024)
    blocks = np.flatnonzero(np.diff(coarse, prepend=-1))
    few, where = np.add.reduceat(weights, blocks), keep[blocks]
    for side in (-1, 1):

        def bound(
            log_t: float, weights: Array, index: NDArray[np.int64], side: int = side
        ) -> float:
            t = math.exp(log_t)
            moment = float(special.logsumexp(side * t * index, b=weights))
            return (steps * moment - math.log(WRAP)) / t

        with np.errstate(over="ignore"):  # infinite there, and not the least
            best = optimize.minimize_scalar(
                lambda log_t, bound=bound: bound(log_t, few, where),
                bounds=(-25, 3),
                method="bounded",
                options={"maxiter": 40},
            )
        ends.append(side * math.ceil(bound(float(best.x), weights, keep)))
    return max(ends[0], 0), min(ends[1], steps * (len(law) - 1))
