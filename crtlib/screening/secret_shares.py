"""Of all secrets, not of one a message: a bound where what was drawn holds several secrets.

The rates of :mod:`crtlib.screening.rates` take one secret of each message that holds any. Where a
message with many secrets fails more often, the share of all secrets is larger.

>>> one_each = [(0, 1)] * 90 + [(1, 1)] * 10
>>> signatures = one_each + [(8, 8)] * 10
>>> [round(bound_share_of_secrets(drawn, alpha=0.025).share, 3) for drawn in (one_each, signatures)]
[0.1, 0.5]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CAPS = (1, 2, 4, 8, 20)
"""A message counts as often as it holds secrets, and at most so often."""
_BETS = np.geomspace(1 / 200, 1, 40)
"""Shares of what is staked, each against the rate that is tried."""


@dataclass(frozen=True)
class ShareOfSecrets:
    """The ``share`` of secrets that fail, each counted, of a message at most ``cap``; and its upper
    bound, which is too low with a chance of ``alpha``."""

    share: float
    upper: float
    cap: int
    alpha: float


def bound_share_of_secrets(
    drawn: Sequence[tuple[int, int]], *, alpha: float, unread: int = 0
) -> ShareOfSecrets:
    """The share of all secrets that fail, and a bound that is too low with a chance of ``alpha``.

    Let a message hold n secrets of which f fail. What is bounded is E[w f/n] / E[w], with
    w = min(n, cap): the chance that a secret fails that is drawn of all those in such messages. A
    rate r is excluded where the mean over some t of the products of 1 - t w/cap (f/n - r)/(1 - r)
    reaches 1/alpha: if the share is at least r, each factor has a mean of at most one, and by
    Markov's inequality that has a chance of at most alpha (Waudby-Smith and Ramdas 2024, section
    4). The least of ``CAPS`` that no message passes is taken, or the largest; all share alpha.

    Args:
        drawn: (failing, all) secrets of each message that was drawn and holds any, each of
            somebody else.
        alpha: The probability with which the bound may be too low.
        unread: Messages that were drawn and not read: each as one that holds ``cap`` that fail.

    Returns:
        The share, its bound (1 where nothing was drawn), the cap and alpha.

    Guarantee:
        The bound covers the share with 1 - alpha, however many secrets a message holds and however
        they fail together, if the messages were drawn independently. Test:
        ``tests/screening/test_secret_shares.py::test_the_bound_covers_the_share_of_all_secrets``.
    """
    failing, held = np.array([*drawn] or [(0, 0)], dtype=float).T
    most = held.max()
    cap = next((cap for cap in CAPS if most <= cap), CAPS[-1])
    rows = held > 0
    weight = np.concatenate([np.minimum(held[rows], cap), np.full(unread, cap)]) / cap
    fails = np.concatenate([failing[rows] / held[rows], np.ones(unread)])
    if not len(weight):
        return ShareOfSecrets(0.0, 1.0, cap, alpha)
    share = float(weight @ fails / weight.sum())
    threshold = np.log(len(CAPS) / alpha)

    def excluded(rate: float) -> bool:
        gains = weight * (fails - rate) / (1 - rate)
        factors = np.maximum(1 - np.multiply.outer(_BETS, gains), 0)
        with np.errstate(divide="ignore"):
            products = np.log(factors).sum(1)
        return bool(np.logaddexp.reduce(products) - np.log(len(_BETS)) >= threshold)

    low, high = share, 1.0
    while high - low > 1e-5:
        middle = (low + high) / 2
        low, high = (low, middle) if excluded(middle) else (middle, high)
    return ShareOfSecrets(share, high, cap, alpha)
