"""What a person asks of a guarantee: a user, a value said often, a missed secret, a guess.

>>> phase = SampledGaussian(1 / 90, noise_multiplier=1.063, steps=360)
>>> round(missed_secret(phase, delta=1e-6), 2)  # a secret that the policy passed over
1.93
>>> round(100 * right_guess(advantage(phase, copies=1, trace_rate=0.055, public_rate=0.0092)), 1)
50.9

An adversary who must say whether a secret stood in its message or was blacked out tosses a coin
without the model and is right in 50 cases of 100; :func:`right_guess` is how often at most with
it. (epsilon, delta) bounds such guesses on average. It does not bound what somebody believes after
one look at the model, so no function here returns a belief.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import scipy

from crtlib.accounting import ledger
from crtlib.accounting.accountants import Profile
from crtlib.accounting.events import Events, SampledGaussian
from crtlib.accounting.ledger import Group
from crtlib.accounting.losses import Array
from crtlib.checks import check, check_delta, check_whole

POINTS = 1200  # at which a profile is read, to be made a polygon
EXACT = 6  # groups up to this size are accounted finely, larger ones quickly
LEAST = 1e-4  # the delta down to which it is read, as a share of the delta that is asked


def missed_secret(
    events: Events, *, delta: float, accountant: str = "pld", neighbouring_relation: str = "replace"
) -> float:
    """epsilon of a secret that the policy passed over: that of its data point."""
    relation = neighbouring_relation
    return ledger.epsilon(
        events, delta=delta, accountant=accountant, neighbouring_relation=relation
    )


def user(
    events: Events, *, points: int, delta: float, neighbouring_relation: str = "replace"
) -> float:
    """epsilon of a person with so many data points, all of them exchanged: that of a group."""
    check_whole("points", points, 0)
    relation = neighbouring_relation
    return ledger.epsilon(events, delta=delta, group=points, neighbouring_relation=relation)


def advantage(
    events: Events,
    *,
    copies: int,
    trace_rate: float,
    public_rate: float = 0.0,
    neighbouring_relation: str = "replace",
    group: Group = 1,
) -> float:
    """What a guess may gain over a coin, for a value said in ``copies`` points, or a person with
    so many secrets, if each leaves a trace with probability ``trace_rate`` at most and is public
    with ``public_rate``: min(1, A(copies trace_rate) + copies public_rate).

    With j of them in clear the total variation distance is at most T_j. However the misses depend
    on each other, their number J has a mean of copies trace_rate at most, and E[T_J] is at most
    A(E[J]) for the least concave A above T_0, ..., T_copies (Jensen). The distance of a mixture
    from a fixed law is at most the mean of the distances. ``group``: how many points one value
    stands for in all events or in each, as in :func:`crtlib.accounting.ledger.epsilon`.
    """
    _check_copies(copies, trace_rate, public_rate)
    every = (events,) if isinstance(events, SampledGaussian) else tuple(events)
    sizes = (group,) * len(every) if isinstance(group, int) else tuple(group)
    far = [
        _distance(every, tuple(j * size for size in sizes), neighbouring_relation)
        for j in range(1, copies + 1)
    ]
    distances = np.maximum.accumulate([0.0, *far])
    bound = concave_majorant(distances.tolist(), copies * trace_rate)
    return min(1.0, bound + copies * public_rate)


@lru_cache(maxsize=4096)
def _distance(events: tuple[SampledGaussian, ...], group: tuple[int, ...], relation: str) -> float:
    """A bound on the total variation distance of a group in clear; of a large one, to 1e-3."""
    curve = ledger.profile(events, "pld", relation, group, coarse=max(group, default=0) > EXACT)
    return curve.delta(0.0)


def concave_majorant(values: Sequence[float], at: float) -> float:
    """The least concave function above ``values`` at 0, 1, ...: its value at ``at``.

    >>> concave_majorant([0, 0, 1], 0.5)
    0.25
    """
    points = np.array(values, dtype=float)
    index = np.arange(len(points))
    low, high = points[index <= at], points[index > at]
    best = float(points[int(at)]) if at == int(at) else -math.inf
    for i, below in enumerate(low):  # the best chord over ``at``
        for j, above in enumerate(high, len(low)):
            best = max(best, float(below + (above - below) * (at - i) / (j - i)))
    return best


def right_guess(advantage: float) -> float:
    """How often who must tell two worlds apart is right, a coin choosing the world: half of what
    the total variation distance leaves. Times 100 it is "of 100 guesses".

    >>> right_guess(0.2)
    0.6
    """
    check("advantage", advantage, 0 <= advantage <= 1, "in [0, 1]")
    return (1 + advantage) / 2


def value_guess(epsilon: float, *, delta: float, prior: float) -> float:
    """How often the value of a passed-over secret is guessed that has ``prior`` without the model.

    e^epsilon prior + delta, with the epsilon of a *missed* secret: which values a policy misses
    depends on the value, so redaction at random may not be counted here.

    >>> round(value_guess(1.0, delta=1e-6, prior=0.01), 6)
    0.027184
    """
    check("epsilon", epsilon, epsilon >= 0, "at least 0")
    check("prior", prior, 0 < prior <= 1, "in (0, 1]")
    return min(1.0, math.exp(min(epsilon + math.log(prior), 0.0)) + delta)


def repeated_value(
    events: Events,
    *,
    copies: int,
    trace_rate: float,
    delta: float,
    neighbouring_relation: str = "replace",
) -> float:
    """epsilon of a value said in ``copies`` points, however its misses depend on each other.

    Each copy is in clear with probability ``trace_rate`` at most. The hockey-stick divergence is
    convex in the law of how many are, so its worst law is a corner of those with this mean: it
    has two values, mostly none and j. Of each corner the bound of :class:`Mixture` is taken.
    ``copies`` = 1 is Proposition 6.
    """
    _check_copies(copies, trace_rate, 0.0)
    check_delta(delta)
    mean = copies * trace_rate
    if mean == 0:
        return 0.0
    curves = _polygons(events, copies, delta, neighbouring_relation)
    worst = 0.0
    for i in range(math.floor(mean) + 1):
        for j in range(math.ceil(mean), copies + 1):
            weight = (mean - i) / (j - i) if j > i else 1.0
            law = {i: 1 - weight} | {j: weight}
            worst = max(worst, Mixture(law, curves).epsilon(delta))
    return worst


def repeated_value_independent(
    events: Events,
    *,
    copies: int,
    trace_rate: float,
    delta: float,
    neighbouring_relation: str = "replace",
) -> float:
    """epsilon of a value said in ``copies`` points **if its misses are independent**.

    Then Binomial(copies, trace_rate) are in clear. This is an assumption: a policy that misses a
    value in one sentence is likelier to miss it in the next. :func:`repeated_value` does without.
    """
    _check_copies(copies, trace_rate, 0.0)
    check_delta(delta)
    if not copies or trace_rate == 0:
        return 0.0
    curves = _polygons(events, copies, delta, neighbouring_relation)
    weights = np.asarray(scipy.stats.binom.pmf(range(copies + 1), copies, trace_rate))
    law = dict(enumerate(weights.tolist()))
    return Mixture(law, curves).epsilon(delta)


def _check_copies(copies: int, trace_rate: float, public_rate: float) -> None:
    check_whole("copies", copies, 0)
    check("trace_rate", trace_rate, 0 <= trace_rate <= 1, "in [0, 1]")
    check("public_rate", public_rate, 0 <= public_rate <= 1, "in [0, 1]")


Polygon = tuple[Array, Array]  # c and an upper bound of H_c(P || Q): convex, from (0, 1) on


def _polygons(events: Events, copies: int, delta: float, relation: str) -> dict[int, Polygon]:
    groups = range(1, copies + 1)
    return {k: polygon(ledger.profile(events, "pld", relation, k), delta) for k in groups}


def polygon(curve: Profile, delta: float) -> Polygon:
    """H_c(P || Q) of a group against none in both directions, for all c: read at many c, and the
    lower convex hull of that. The true function is convex and below the points, so below the hull.
    """
    end = min(curve.renyi.epsilon(delta * LEAST), 600.0) + 1e-3  # a bound, so far enough
    epsilons = np.linspace(0, end, POINTS)
    ways = curve.curves(epsilons)
    forward, backward = ways[0], ways[-1]
    up = np.exp(epsilons)
    # H_c(P || Q) = 1 - c + c H_{1/c}(Q || P)
    c = np.concatenate([[0.0], 1 / up[::-1], up[1:]])
    h = np.concatenate([[1.0], (1 - 1 / up + backward / up)[::-1], forward[1:]])
    h[len(up)] = min(forward[0], backward[0])
    h = np.minimum(h, 1.0)
    keep = _lower_hull(c, h)
    return c[keep], h[keep]


def _lower_hull(x: Array, y: Array) -> list[int]:
    """The indices of the lower convex hull of points in order of x (Andrew's chain)."""
    hull: list[int] = []
    for i in range(len(x)):
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (y[b] - y[a]) * (x[i] - x[a]) < (y[i] - y[a]) * (x[b] - x[a]):
                break
            hull.pop()
        hull.append(i)
    return hull


class Mixture:
    """c -> H_c(sum_k w_k P_k || P_0), bounded by those of each P_k.

    It is the least of sum w_k h_k(c_k) over all c_k >= 0 with w_0 + sum w_k c_k = c, as the weight
    w_0 of P_0 itself cancels. The h_k are convex polygons, so their sides are taken from the
    steepest one on until c is spent. Where w_0 is more than c the divergence is 1 - c.
    """

    def __init__(self, law: dict[int, float], curves: dict[int, Polygon]) -> None:
        here = [k for k, weight in law.items() if k and weight > 0]
        self._none = law.get(0, 0.0)
        self._all = math.fsum(law[k] for k in here)
        cost = np.concatenate([law[k] * np.diff(curves[k][0]) for k in here])
        gain = np.concatenate([-law[k] * np.diff(curves[k][1]) for k in here])
        order = np.argsort(-gain / cost, kind="stable")
        self._spent = np.concatenate([[0.0], np.cumsum(cost[order])])
        self._won = np.concatenate([[0.0], np.cumsum(gain[order])])

    def __call__(self, c: float) -> float:
        if c <= self._none:
            return max(0.0, 1 - c)
        won = float(np.interp(c - self._none, self._spent, self._won))
        return max(0.0, self._all - won) * (1 + 1e-12)

    def delta(self, epsilon: float) -> float:
        """Of both directions, as H_a(P_0 || P) = 1 - a + a H_{1/a}(P || P_0)."""
        a = math.exp(epsilon)
        return max(self(a), 1 - a + a * self(1 / a))

    def epsilon(self, delta: float) -> float:
        """The least epsilon >= 0 at ``delta``, to 1e-9, on the safe side."""
        low, high = 0.0, 1.0
        if self.delta(0.0) <= delta:
            return 0.0
        while self.delta(high) > delta:
            low, high = high, 2 * high
            if high > 600:
                return math.inf
        while high - low > 1e-9 * (1 + high):
            middle = (low + high) / 2
            low, high = (middle, high) if self.delta(middle) > delta else (low, middle)
        return high
