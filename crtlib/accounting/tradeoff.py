"""The trade-off between two errors: what any test between two worlds must accept (f-DP).

>>> phase = SampledGaussian(0.01, noise_multiplier=1.27053328, steps=1000)
>>> curve = tradeoff(phase, [0.01, 0.1, 0.5])
>>> curve.lower.round(3).tolist()
[0.965, 0.78, 0.305]
>>> bool((curve.upper - curve.lower < 1e-2).all())
True

Type I: to say "it was in the text" where it was not; type II: to miss it where it was (Dong, Roth
and Su 2022). A curve near 1 - type I is that of a coin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crtlib.accounting import ledger, mixtures
from crtlib.accounting.events import Events, SampledGaussian
from crtlib.accounting.ledger import Group
from crtlib.accounting.losses import Array
from crtlib.checks import check

POINTS = 600  # epsilons at which the profile is read
FARTHEST = 30.0


@dataclass(frozen=True, eq=False)
class Tradeoff:
    """``lower``: no test has a smaller type II error at this ``type_i``. ``upper``: a test of the
    worst pair has this one; None where several events are composed, or a policy may redact."""

    type_i: Array
    lower: Array
    upper: Array | None


def tradeoff(
    events: Events,
    type_i: Sequence[float] | Array,
    *,
    neighbouring_relation: str = "replace",
    group: Group = 1,
    trace_rate: float = 1.0,
    public_rate: float = 0.0,
) -> Tradeoff:
    """The trade-off curve of composed events, at the type I errors ``type_i`` in [0, 1].

    ``lower`` is max over epsilon of 1 - delta - e^epsilon type_i and e^-epsilon (1 - delta -
    type_i) (Wasserman and Zhou 2010), delta(epsilon) from the accountant "pld": always on the
    safe side. For adding or removing, it holds for both directions. With a ``trace_rate`` below 1
    or a ``public_rate`` it is the curve of a secret that may have been redacted: each (epsilon,
    delta) becomes that of Theorem 8.3.
    """
    at = np.asarray(type_i, dtype=float)
    for worst in (at.min(), at.max()) if at.size else ():
        check("type_i", float(worst), 0 <= worst <= 1, "in [0, 1]")
    check("trace_rate", trace_rate, 0 <= trace_rate <= 1, "in [0, 1]")
    check("public_rate", public_rate, 0 <= public_rate <= 1, "in [0, 1]")
    curve = ledger.profile(events, "pld", neighbouring_relation, group)
    end = min(curve.answer(1e-9).value, FARTHEST)
    epsilons = np.linspace(0, end + 1e-3, POINTS)
    deltas = np.max(curve.curves(epsilons), axis=0)[:, None]
    deltas = trace_rate * deltas + public_rate
    grown = 1 + trace_rate * np.expm1(epsilons)[:, None]
    lines = np.maximum(1 - deltas - grown * at, (1 - deltas - at) / grown)
    lower = np.maximum(0.0, lines.max(axis=0))
    upper = None
    clear = trace_rate == 1 and public_rate == 0
    if isinstance(events, SampledGaussian) and isinstance(group, int) and clear:
        upper = np.maximum(_tested(events, at, neighbouring_relation, group), lower)
    return Tradeoff(at, lower, upper)


def _tested(event: SampledGaussian, at: Array, relation: str, group: int) -> Array:
    """The type II error of tests that exist, in the direction where they are better."""
    if not (event.steps and event.sampling_probability and group):
        return 1 - at
    if not event.noise_multiplier:
        return np.zeros_like(at)
    law = mixtures.poisson_binomial([event.sampling_probability] * group)
    ways: tuple[mixtures.Direction, ...] = ("replace",)
    if relation == "add_or_remove":
        ways = "forward", "backward"
    power = np.zeros_like(at)
    for way in ways:
        pair = mixtures.compose(law, event.noise_multiplier, int(event.steps), direction=way)
        power = np.maximum(power, [pair.blow_up(a)[0] for a in at.tolist()])
    return 1 - power
