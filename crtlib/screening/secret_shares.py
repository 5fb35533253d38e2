"""The share of all secrets that fail, with a bound, where a drawn message may hold several.

The rates of :mod:`crtlib.screening.rates` take one secret from each message that holds any. Where
messages with many secrets fail more often, the share of all secrets is larger.

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
"""A message counts once for each secret that it holds, and at most this many times."""
_BETS = np.geomspace(1 / 200, 1, 40)
"""The sizes of the bets against a rate that is tried."""


@dataclass(frozen=True)
class ShareOfSecrets:
    """The ``share`` of all secrets that fail, with at most ``cap`` counted for each message, and
    its ``upper`` bound, which is too low with a probability of at most ``alpha``."""

    share: float
    upper: float
    cap: int
    alpha: float


def bound_share_of_secrets(
    counts_of_messages: Sequence[tuple[int, int]], *, alpha: float, unread: int = 0
) -> ShareOfSecrets:
    """The share of all secrets that fail, and an upper bound on it.

    Let a message hold n secrets, f of which fail. The bound is on E[w f/n] / E[w], with
    w = min(n, cap): the probability that a secret fails if it is drawn from all those in such
    messages. A rate r is excluded if the mean over some t of the products of
    1 - t w/cap (f/n - r)/(1 - r) reaches 1/alpha. If the share is at least r, each factor has a
    mean of at most one, so by Markov's inequality this happens with a probability of at most alpha
    (Waudby-Smith and Ramdas 2024, section 4). The cap is the least of ``CAPS`` that no message
    exceeds, or else the largest; all caps share alpha.

    Args:
        counts_of_messages: (failing, all) secrets of each message that was drawn and holds any,
            each message from a different person.
        alpha: The probability with which the bound may be too low.
        unread: Messages that were drawn but not read: each counts as one with ``cap`` secrets, all
            of which fail.

    Returns:
        The share, its bound (1 where nothing was drawn), the cap and alpha.

    Guarantee:
        The bound covers the share with probability 1 - alpha if the messages were drawn
        independently, however many secrets a message holds and however they fail together. Test:
        ``tests/screening/test_secret_shares.py::test_the_bound_covers_the_share_of_all_secrets``.
    """
    failing, secrets = np.array([*counts_of_messages] or [(0, 0)], dtype=float).T
    max_secrets = secrets.max()
    cap = next((cap for cap in CAPS if max_secrets <= cap), CAPS[-1])
    rows = secrets > 0
    weight = np.concatenate([np.minimum(secrets[rows], cap), np.full(unread, cap)]) / cap
    fails = np.concatenate([failing[rows] / secrets[rows], np.ones(unread)])
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
