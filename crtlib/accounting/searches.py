"""The price of a search: several trainings saw the text, and the best one is released.

>>> phase = SampledGaussian(0.01, noise_multiplier=1.27053328, steps=1000)  # epsilon 1, tight
>>> relation = {"neighbouring_relation": "add_or_remove"}
>>> [round(searched(phase, delta=8e-5, trials=n, **relation), 2) for n in (1, 5, 50)]
[1.13, 1.92, 2.45]

The number of trials has to be random for that (Papernot and Steinke 2022): drawn from a known law
before the first trial, and the same whatever the trials show. A search of a fixed size, stopped
when it looked good or not, is a composition of all its trainings: :func:`fixed`.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize

from crtlib.accounting import ledger
from crtlib.accounting.events import Events, SampledGaussian
from crtlib.accounting.losses import Array
from crtlib.accounting.renyi import to_delta, to_epsilon
from crtlib.checks import check, check_choice, check_delta, check_whole

LAWS = {"poisson": math.inf, "geometric": 1.0, "logarithmic": 0.0}
"""How the number of trials is drawn; the number is the shape of a truncated negative binomial."""


def searched(
    events: Events,
    *,
    delta: float,
    trials: float,
    law: str = "logarithmic",
    neighbouring_relation: str = "replace",
    group: int = 1,
) -> float:
    """epsilon of releasing the best of K trainings, each of which is ``events``; K has the mean
    ``trials`` and is drawn from ``law``.

    "logarithmic" and "geometric" are truncated negative binomial laws (Theorem 2), "poisson" may
    also say 0, and then nothing is released (Theorem 6). Which is cheapest depends on the event.
    The trials may differ in what they try (a learning rate), as long as each is accounted by
    ``events``. Whatever is said of the *other* trials, their losses too, is not covered.
    """
    check_delta(delta)
    check("trials", trials, 1 <= trials < math.inf, "at least 1")
    check_choice("law", law, tuple(LAWS))
    curve = ledger.profile(events, "rdp", neighbouring_relation, group).renyi
    orders, values = curve.orders, curve.values
    if law == "poisson":
        best = poisson(orders, values, trials)
    else:
        best = negative_binomial(orders, values, trials, shape=LAWS[law])
    return to_epsilon(orders, best, delta)


def fixed(
    events: Events,
    *,
    delta: float,
    trials: int,
    accountant: str = "pld",
    neighbouring_relation: str = "replace",
) -> float:
    """epsilon of ``trials`` trainings composed: whatever is done with any of them is covered."""
    check_whole("trials", trials, 1)
    every = [events] if isinstance(events, SampledGaussian) else list(events)
    return ledger.epsilon(
        every * int(trials),
        delta=delta,
        accountant=accountant,
        neighbouring_relation=neighbouring_relation,
    )


def poisson(orders: Array, values: Array, mean: float) -> Array:
    """Renyi divergences of the best of Poisson(``mean``) runs (Theorem 6).

    At order a a run that is (e, d)-private with e^e = 1 + 1 / (a - 1) costs mean d + log(mean) /
    (a - 1) more.
    """
    deltas = np.array([to_delta(orders, values, math.log1p(1 / (a - 1))) for a in orders.tolist()])
    return np.asarray(values + mean * deltas + math.log(mean) / (orders - 1))


def negative_binomial(orders: Array, values: Array, mean: float, *, shape: float) -> Array:
    """Renyi divergences of the best of K runs, K truncated negative binomial (Theorem 2)."""
    share = success_probability(mean, shape=shape)
    # any second order b is allowed: the least price is taken
    prices = (1 - 1 / orders) * values - math.log(share) / orders
    price = (1 + shape) * float(np.min(prices[np.isfinite(prices)], initial=math.inf))
    return np.asarray(values + price + math.log(mean) / (orders - 1))


def success_probability(mean: float, *, shape: float) -> float:
    """The parameter in (0, 1] at which the truncated negative binomial has this mean.

    >>> success_probability(5.0, shape=1.0)  # the geometric law
    0.2
    """
    if mean == 1:
        return 1.0
    if shape == 1:
        return 1 / mean

    def excess(log_g: float) -> float:
        g = math.exp(log_g)
        if shape == 0:
            value = -math.expm1(log_g) / (g * -log_g)
        else:
            value = shape * -math.expm1(log_g) / (g * -math.expm1(shape * log_g))
        return math.log(value / mean)

    root = optimize.brentq(excess, -math.log(mean) - 60.0, -1e-12, xtol=1e-14)
    return float(math.exp(root))
