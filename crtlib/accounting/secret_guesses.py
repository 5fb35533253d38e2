"""From a divergence to the best guess of a secret, and back (Hush!, Lemma 3.2).

If D(P || Q) is at most the divergence of the coin Bern(posterior) from Bern(prior), a guess that is
right with probability ``prior`` under Q is right with at most ``posterior`` under P. The laws P and
Q to compare are in :data:`crtlib.accounting.secret_protection.PROMISE_DIRECTIONS`.

>>> round(float(allowed_divergence(0.01, 0.3572905727)), 9)  # the nats that raise a guess to 0.357
1.0
>>> [round(float(posterior_from_divergence(1.0, 0.01, kind=kind)), 4) for kind in DIVERGENCE_KINDS]
[0.3573, 0.1095, 1.0, 0.0267]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from crtlib.accounting.privacy_loss import Array
from crtlib.checks import check_allowed, check_choice

DIVERGENCE_KINDS = ("kl", "chi2", "tv", "pure")


def allowed_divergence(prior: ArrayLike, posterior: ArrayLike) -> Array:
    """The largest KL divergence that keeps the promise, D(Bern(posterior) || Bern(prior)), in nats.

    Arrays broadcast. Raises ValueError unless 0 < prior < posterior < 1.

    >>> round(float(allowed_divergence(0.001, 0.1)), 12)
    0.366593004807
    """
    p, r = check_promises(prior, posterior)
    return np.asarray(special.rel_entr(r, p) + special.rel_entr(1 - r, 1 - p))


def posterior_from_divergence(
    divergence: ArrayLike, prior: ArrayLike, *, kind: str = "kl"
) -> Array:
    """The best chance of a right guess at a divergence, at most 1: the inverse of
    :func:`allowed_divergence`. ``kind``: "kl" (nats), "chi2", "tv" or "pure" (epsilon).

    >>> round(float(posterior_from_divergence(1.0, 0.01)), 10)
    0.3572905727
    """
    divergences, p = np.broadcast_arrays(np.asarray(divergence, float), np.asarray(prior, float))
    check_choice("kind", kind, DIVERGENCE_KINDS)
    check_array("prior", p, (p > 0) & (p < 1), "in (0, 1)")
    check_array("divergence", divergences, divergences >= 0, "at least 0")
    if kind == "chi2":
        return np.asarray(np.minimum(1, p + np.sqrt(divergences * p * (1 - p))))
    if kind == "tv":
        return np.asarray(np.minimum(1, p + divergences))
    if kind == "pure":
        return np.asarray(special.expit(special.logit(p) + divergences))
    low, high = p.copy(), np.ones_like(p)  # kl(r || p) grows in r; the safe end is returned
    for _ in range(60):
        middle = (low + high) / 2
        hit_term, miss_term = special.rel_entr(middle, p), special.rel_entr(1 - middle, 1 - p)
        rounding = 2.0**-51 * (2 + np.abs(hit_term) + np.abs(miss_term))
        exceeds = hit_term + miss_term > divergences + rounding
        low, high = np.where(exceeds, low, middle), np.where(exceeds, middle, high)
    return np.where(
        divergences >= -np.log(p) * (1 - 1e-15), 1.0, np.where(divergences == 0, p, high)
    )


def check_promises(prior: ArrayLike, posterior: ArrayLike) -> tuple[Array, Array]:
    """Return both as arrays of one shape. Raises ValueError unless 0 < prior < posterior < 1."""
    p, r = np.broadcast_arrays(np.asarray(prior, float), np.asarray(posterior, float))
    check_array("prior", p, (p > 0) & (p < 1), "in (0, 1)")
    check_array("posterior", r, (r > 0) & (r < 1), "in (0, 1)")
    check_array("posterior", r, r > p, "above the prior")
    return p, r


def check_array(name: str, values: Array, allowed: NDArray[np.bool_], rule: str) -> None:
    if not np.all(allowed):
        check_allowed(
            name, float(values[~allowed].flat[0]) if values.ndim else float(values), False, rule
        )
