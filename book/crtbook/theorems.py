"""CRT's definitions and theorems as formulas, and bounds for groups, for readers who check them.

What a run promises is computed by :mod:`crtlib.accounting.confidentiality` and
:mod:`crtlib.accounting.guess_bounds`, which call none of these functions.

>>> crt_group(1.0, delta=0.0, missed=3)
(3.0, 0.0)
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from crtbook.tight import Composed, compose
from crtlib.accounting import group_mixtures, renyi, secret_protection
from crtlib.accounting.accountants import NEIGHBOURING_RELATIONS
from crtlib.accounting.events import SampledGaussian
from crtlib.accounting.privacy_cost import privacy_profile
from crtlib.accounting.privacy_loss import Array, GaussianMixturePair
from crtlib.accounting.secret_guesses import check_array
from crtlib.checks import check_allowed, check_choice, check_delta, check_whole_number


def hockey_stick(p: Sequence[float], q: Sequence[float], *, epsilon: float) -> float:
    """sup_S P[S] - e^epsilon Q[S] for two finite laws: the least delta of Definition 1, one way.

    ``p`` and ``q`` hold the probabilities of the same outcomes. The law of a random secret
    (Definition 4) is the mixture over its values, so it needs no function of its own.
    """
    p_law, q_law = np.asarray(p, dtype=float), np.asarray(q, dtype=float)
    if p_law.shape != q_law.shape:
        raise ValueError(
            f"q: has shape {q_law.shape}, p has {p_law.shape}: must list the same outcomes"
        )
    for name, law in (("p", p_law), ("q", q_law)):
        total = float(law.sum())
        sums = bool((law >= 0).all()) and abs(total - 1) < 1e-9
        check_allowed(f"sum of {name}", total, sums, "1, of probabilities that are at least 0")
    possible = q_law > 0
    gain = np.maximum(p_law[possible] - _exp_or_infinity(epsilon) * q_law[possible], 0).sum()
    return float(gain + p_law[~possible].sum())


def indistinguishability(p: Sequence[float], q: Sequence[float], *, epsilon: float) -> float:
    """The least delta at which two finite laws are (epsilon, delta)-indistinguishable.

    Definition 1 compares "a pair", so this is the larger of both directions, which Definitions 2
    to 4 mean: D must be as hard to tell from D' as D' from D.

    >>> round(indistinguishability([0.5, 0.5], [0.2, 0.8], epsilon=0.5), 4)
    0.1703
    """
    return max(hockey_stick(p, q, epsilon=epsilon), hockey_stick(q, p, epsilon=epsilon))


def group_naive(
    epsilons: Sequence[float], *, delta: float, tight: bool = True
) -> tuple[float, float]:
    """Proposition 5 for a group: the sum of the epsilons of the k points whose secret was MISSED.

    ``tight`` gives the delta that the paper's proof reaches before its last line,
    delta * sum_{j<k} e^(eps_1 + ... + eps_j), in the best order; otherwise the paper's
    k e^(eps_1 + ... + eps_k) delta. A delta of 1 or more (or inf) promises nothing.
    """
    eps = np.sort(np.asarray(epsilons, dtype=float))
    if not eps.size:
        return 0.0, 0.0
    check_allowed("epsilons", float(eps[0]), eps[0] >= 0, "at least 0")
    total = float(eps.sum())
    if tight:
        log_factor = float(np.logaddexp.reduce(np.concatenate([[0.0], np.cumsum(eps[:-1])])))
    else:
        log_factor = math.log(eps.size) + total
    return total, _exp_or_infinity(log_factor + math.log(delta)) if delta > 0 else 0.0


def group_delta(
    event: SampledGaussian,
    *,
    group: int,
    epsilon: float,
    neighbouring_relation: str,
) -> tuple[float, float]:
    """A lower and an upper bound of delta at ``epsilon`` for a group of data points (Definition 3).

    ``group`` counts the distinct points whose secret the policy misses. A step draws
    Binomial(group, q) of them, so it shows at most N(count, sigma^2) against N(0, sigma^2), or for
    "replace" against N(-count, sigma^2). This is composed over all steps (:mod:`crtbook.tight`) and
    gives far less than :func:`group_naive`. Both bounds are tight: the lower one is that of an
    actual test. For several events, use
    :func:`crtlib.accounting.privacy_cost.delta` with its ``group``.
    """
    check_allowed("epsilon", epsilon, epsilon >= 0, "at least 0")
    return _bracket_group(
        event, group, "delta", epsilon, neighbouring_relation=neighbouring_relation
    )


def group_epsilon(
    event: SampledGaussian,
    *,
    group: int,
    delta: float,
    neighbouring_relation: str,
) -> tuple[float, float]:
    """A lower and an upper bound of epsilon at a FIXED ``delta``; otherwise as `group_delta`.

    >>> phase = SampledGaussian(0.01, noise_multiplier=1.27053328, steps=1000)  # epsilon 1
    >>> low, high = group_epsilon(
    ...     phase, group=2, delta=8e-5, neighbouring_relation="add_or_remove"
    ... )
    >>> f"{low:.3f} to {high:.3f}"  # not 2: that has a larger delta
    '2.204 to 2.204'
    """
    check_delta(delta)
    return _bracket_group(
        event, group, "epsilon", delta, neighbouring_relation=neighbouring_relation
    )


def _bracket_group(
    event: SampledGaussian,
    group: int,
    quantity: str,
    argument: float,
    *,
    neighbouring_relation: str,
) -> tuple[float, float]:
    check_whole_number("group", group, 0)
    check_choice("neighbouring_relation", neighbouring_relation, NEIGHBOURING_RELATIONS)
    check_allowed(
        "noise_multiplier", event.noise_multiplier, event.noise_multiplier > 0, "positive"
    )
    if not group or not event.steps or not event.sampling_probability:
        return 0.0, 0.0
    compositions = _compose_group(event, int(group), neighbouring_relation=neighbouring_relation)
    brackets = [getattr(composed, quantity)(argument) for composed in compositions]
    curve = privacy_profile(
        event, "pld", neighbouring_relation=neighbouring_relation, group=int(group)
    )
    proved = curve.delta(argument) if quantity == "delta" else curve(argument)
    return max(low for low, _ in brackets), min(proved, max(high for _, high in brackets))


@lru_cache(maxsize=2)  # each holds some ten million numbers
def _compose_group(
    event: SampledGaussian, group: int, *, neighbouring_relation: str
) -> tuple[Composed, ...]:
    """The group against its absence and the reverse, or against its worst replacement."""
    law = group_mixtures.poisson_binomial([event.sampling_probability] * group)
    sigma, steps = event.noise_multiplier, int(event.steps)
    directions = secret_protection.PROMISE_DIRECTIONS[neighbouring_relation]
    return tuple(compose(law, sigma, steps, direction=direction) for direction in directions)


def crt_group(
    epsilon: float, *, delta: float, missed: int, tight: bool = True
) -> tuple[float, float]:
    """Theorem 8.2 for ``missed``, the number of distinct data points whose secret pi MISSES.

    (The paper writes "detects"; Proposition 5, which it applies, counts the missed ones.) The
    conservative policy must catch the whole group, and neighbours are taken after deduplication.
    """
    check_whole_number("missed", missed, 0)
    return group_naive([epsilon] * int(missed), delta=delta, tight=tight)


def _exp_or_infinity(x: float) -> float:
    return math.exp(x) if x < 709 else math.inf


def renyi_posterior(law: Array, sigma: float, steps: int, prior: float) -> float:
    """Lemma 3.2 by the best of many Renyi orders, for a secret whose count has this law, against
    the reference. It is as cheap as KL, and below it at small priors.

    >>> law = group_mixtures.poisson_binomial([0.2] * 5)
    >>> kl = 20 * float(
    ...     group_mixtures.mixture_kl(group_mixtures.group_count_laws([0.2] * 5, [0, 5]), 4.0)[0]
    ... )
    >>> from crtlib.accounting.secret_guesses import posterior_from_divergence
    >>> from crtbook.tight import tight_posterior
    >>> best = tight_posterior(law, 4.0, 20, 0.01, neighbouring_relation="reference")[1]
    >>> bounds = [
    ...     float(posterior_from_divergence(kl, 0.01)),
    ...     renyi_posterior(law, 4.0, 20, 0.01),
    ...     best,
    ... ]
    >>> [round(r, 3) for r in bounds]  # by KL, by Renyi, and the tight one
    [0.262, 0.173, 0.121]
    """
    divergences = renyi.renyi_divergences(
        GaussianMixturePair(tuple(law.tolist()), sigma, "forward"), renyi.RENYI_ORDERS
    )
    return posterior_by_renyi(steps * divergences, renyi.RENYI_ORDERS, prior)


def posterior_by_renyi(divergences: ArrayLike, orders: ArrayLike, prior: float) -> float:
    """The best success probability at Renyi ``divergences`` in nats, one for each of the ``orders``
    above 1: the least that any order gives. Infinite divergences allow everything.

    >>> round(posterior_by_renyi([1.0, 1.0], [1.0001, 2.0], 0.01), 3)  # order 1 is KL
    0.14
    """
    c, a = np.broadcast_arrays(np.asarray(divergences, float), np.asarray(orders, float))
    check_array("orders", a, a > 1, "above 1")
    check_array("divergences", c, c >= 0, "at least 0")
    check_allowed("prior", prior, 0 < prior < 1, "in (0, 1)")
    low, high = np.full(c.shape, prior), np.ones(c.shape)  # it grows in r; return the safe end
    for _ in range(60):
        r = np.minimum((low + high) / 2, 1 - 2.0**-53)
        hit_term = a * np.log(r) + (1 - a) * np.log(prior)
        miss_term = a * np.log1p(-r) + (1 - a) * np.log1p(-prior)
        too_large = np.logaddexp(hit_term, miss_term) > (a - 1) * c * (1 + 1e-12)
        low, high = np.where(too_large, low, r), np.where(too_large, r, high)
    return float(np.where(c >= -np.log(prior) * (1 - 1e-15), 1.0, high).min())
