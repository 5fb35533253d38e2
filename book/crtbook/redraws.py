"""Draw labels repeatedly from people about whom everything is known: how often two statements hold.

>>> people = missed_whole(np.array([20] * 10 + [1] * 190), 0.05, seed=0)
>>> row = simulate_draws([people], 50, draws=2_000, seed=0, epsilon=0.5, delta=8e-5).iloc[0]
>>> [bool(x) for x in (row.covered >= 0.95, row["mean"] <= 1.05, row.spent <= 1.05)]
[True, True, True]

Two plausible rules are counted beside them, and are wrong: one counts every secret of a person as a
label, the other uses (k + 1) / (n + 1) for (epsilon, delta).
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import betaincinv

from crtbook import exchangeable
from crtlib.accounting.privacy_loss import Array

CHUNK = 500
"""Draws at a time."""


@dataclass(frozen=True)
class People:
    """For each person, the number of secrets (at least one) and how many of them leave a trace."""

    secrets: Array
    failures: Array


def missed_whole(secrets: Array, rate: float, *, seed: int, most: bool = False) -> People:
    """People whose failures come together: for a share ``rate`` of the people every secret fails,
    for the others none. With ``most`` they are the people with most secrets, else random ones."""
    order = np.argsort(-secrets, kind="stable") if most else None
    order = np.random.default_rng(seed).permutation(len(secrets)) if order is None else order
    failures = np.zeros_like(secrets)
    chosen = order[: round(rate * len(secrets))]
    failures[chosen] = secrets[chosen]
    return People(secrets, failures)


def upper_bounds(count: Array, of: Array, confidence: float = 0.95) -> Array:
    """The upper bounds of Clopper and Pearson; counts and totals need not be whole numbers."""
    bound = betaincinv(count + 1, np.maximum(of - count, 1e-12), confidence)
    return np.where(count >= of, 1.0, bound)


def simulate_draws(
    worlds: Iterable[People], read: int, *, draws: int, seed: int, epsilon: float, delta: float
) -> pd.DataFrame:
    """Simulate draws: one row for each of ``worlds``, all with the same number of people, of whom
    ``read`` are drawn.

    ``truth`` is the failure rate of a random person's secret. ``covered`` is the share of the
    ``draws`` in which the 95 % bound is at least that, ``covered_each`` the same where every secret
    counts. ``mean`` is the mean over the draws of the others' rate divided by (k + 1) / (read + 1),
    which must not exceed 1; ``mean_each`` again counts every secret. ``spent`` is the mean of the
    others' delta divided by ``delta``, where Gaussian noise follows from k by the factor for this
    number of people, ``spent_naive`` the same without the factor. Columns that end in ``error`` are
    standard errors.
    """
    rows, worlds = [], list(worlds)
    people, counts = len(worlds[0].secrets), np.arange(1, read + 2) / (read + 1)
    factor = exchangeable.rate_factor(read, epsilon=epsilon, delta=delta, population=people)
    shifts = [
        exchangeable.largest_sensitivity(np.minimum(1, f * counts), epsilon=epsilon, delta=delta)
        for f in (factor, 1.0)
    ]
    rng = np.random.default_rng(seed)
    drawn_people = np.concatenate([
        rng.random((min(CHUNK, draws - k), people)).argpartition(read, axis=1)[:, :read]
        for k in range(0, draws, CHUNK)
    ])  # fmt: skip
    for world in worlds:
        shares = world.failures / world.secrets
        k = (rng.random(drawn_people.shape) < shares[drawn_people]).sum(axis=1)
        rate_of_rest = (shares.sum() - shares[drawn_people].sum(axis=1)) / (people - read)
        secrets_read, failed = (
            x[drawn_people].sum(axis=1) for x in (world.secrets, world.failures)
        )
        truth = float(shares.mean())
        rate_of_each = float(world.failures.sum() / world.secrets.sum())
        spent, naive = (exchangeable.delta_at(s[k], rate_of_rest, epsilon) / delta for s in shifts)
        mean_ratio = rate_of_rest / counts[k]
        rows.append({
            "truth": truth,
            "covered": (upper_bounds(k, np.full_like(k, read)) >= truth).mean(),
            "covered_each": (upper_bounds(failed, secrets_read) >= rate_of_each).mean(),
            "mean": mean_ratio.mean(),
            "mean_each": (rate_of_rest * (secrets_read + 1) / (failed + 1)).mean(),
            "spent": spent.mean(),
            "spent_naive": naive.mean(),
            "mean_error": mean_ratio.std() / draws**0.5,
            "spent_error": spent.std() / draws**0.5,
        })  # fmt: skip
    return pd.DataFrame(rows)
