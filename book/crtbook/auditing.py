"""Games that audit a guarantee: lower bounds of epsilon from what an attack got right.

>>> round(epsilon_lower_bound(900, 1000, 100, 1000), 4)
1.9897

A game is played many times with the canary and without it. The least leakage that explains the
scores, for one release of N(1, 1) or N(0, 1), whose epsilon at 0.01 is 2.318:

>>> def step(canary, seed):
...     return np.random.default_rng(seed).normal(canary)
>>> found = audit(*play(step, games=2000, seed=0), delta=0.01)
>>> 1 < found.epsilon < 2.318
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from crtlib.checks import check
from crtlib.intervals import clopper_pearson


def epsilon_lower_bound(
    true_positives: int,
    members: int,
    false_positives: int,
    nonmembers: int,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
) -> float:
    """Largest epsilon that independent guesses refute: TPR <= e^epsilon FPR + delta, and the same
    for TNR and FNR (Jagielski et al. 2020; Nasr et al. 2021).

    Each rate has a two-sided Clopper-Pearson interval; both inequalities use the same two ends, so
    the whole is wrong with probability 1 - ``confidence`` at most. The guesses must come from
    independent runs, and the threshold must not have been chosen on them.
    """
    check("delta", delta, 0 <= delta < 1, "in [0, 1)")
    check("members", members, members >= 1, "at least 1")
    check("nonmembers", nonmembers, nonmembers >= 1, "at least 1")
    tpr, _ = clopper_pearson(true_positives, members, confidence=confidence)
    _, fpr = clopper_pearson(false_positives, nonmembers, confidence=confidence)
    ratios = [(tpr - delta) / fpr, (1 - fpr - delta) / (1 - tpr)]
    return float(np.log(max(1.0, *ratios)))


def accuracy_bound(epsilon: float, *, delta: float) -> float:
    """The best accuracy that (epsilon, delta) leaves to a membership attack on a fair coin:
    (e^epsilon + delta) / (1 + e^epsilon)."""
    check("delta", delta, 0 <= delta < 1, "in [0, 1)")
    check("epsilon", epsilon, epsilon >= 0, "at least 0")
    return float(special.expit(epsilon) + delta * special.expit(-epsilon))


@dataclass(frozen=True, kw_only=True)
class Audited:
    """``epsilon`` that the games refute at ``delta`` with this ``confidence``: the true one is at
    least that. A score above ``threshold`` was called "the canary was in it"."""

    epsilon: float
    delta: float
    confidence: float
    threshold: float
    true_positives: int
    members: int
    false_positives: int
    nonmembers: int


def play(
    step: Callable[[bool, int], float], *, games: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Scores of ``games`` games with the canary and of as many without it, ``(games,)`` each.

    ``step(canary, seed)`` trains once, with a seed of its own, and gives the attacker's score: high
    where the canary was in the data. Each call must be independent of the others.
    """
    check("games", games, games >= 1, "at least 1")
    seeds = np.random.SeedSequence(seed).generate_state(2 * games)
    scores = np.array([step(k < games, int(s)) for k, s in enumerate(seeds)], dtype=float)
    return scores[:games], scores[games:]


def audit(
    inside: np.ndarray,
    outside: np.ndarray,
    *,
    delta: float,
    confidence: float = 0.95,
    tuning: float = 0.25,
) -> Audited:
    """The audit of scores with the canary and without it, ``(n,)`` and ``(m,)``, each of a game of
    its own.

    The threshold is chosen on the first share ``tuning`` of either, and judged on the rest, so the
    bound is wrong with probability 1 - ``confidence`` at most (:func:`epsilon_lower_bound`). Any
    score gives a valid bound; that of a likelihood ratio (:func:`log_ratio`) the largest.
    """
    check("tuning", tuning, 0 < tuning < 1, "in (0, 1)")
    sides = [np.asarray(side, dtype=float) for side in (inside, outside)]
    cuts = [max(1, round(tuning * len(side))) for side in sides]
    if min(len(side) - cut for side, cut in zip(sides, cuts, strict=True)) < 1:
        sizes = f"{len(sides[0])} and {len(sides[1])}"
        raise ValueError(f"scores: {sizes}: must be at least 2 with and without the canary")
    known, judged = zip(*(np.split(s, [c]) for s, c in zip(sides, cuts, strict=True)), strict=True)

    def bound(sides: Sequence[np.ndarray], threshold: float) -> tuple[float, list[int]]:
        numbers = [n for s in sides for n in (int((s > threshold).sum()), len(s))]
        return epsilon_lower_bound(*numbers, delta=delta, confidence=confidence), numbers

    shares = special.expit(np.linspace(-7, 7, 43))  # the best thresholds lie in the tails
    candidates = np.unique(np.quantile(np.concatenate(known), shares))
    best = max(candidates.tolist(), key=lambda threshold: bound(known, threshold)[0])
    epsilon, (tp, members, fp, nonmembers) = bound(judged, best)
    return Audited(
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        threshold=best,
        true_positives=tp,
        members=members,
        false_positives=fp,
        nonmembers=nonmembers,
    )


Law = tuple[np.ndarray, np.ndarray]
"""Values ``(k,)`` and their probabilities ``(k,)``."""


def log_ratio(releases: np.ndarray, *, inside: Law, outside: Law, sigma: float) -> np.ndarray:
    """Log-likelihood ratio of releases X + N(0, sigma^2) in both worlds, summed over the first
    axis: ``(steps, games)`` gives ``(games,)``.

    X follows the law ``inside`` where the canary is in the data and ``outside`` where it is not, in
    every step independently: for DP-SGD the number of copies drawn times their gradient, in clip
    norms along the canary's direction. No other score of the releases proves more (Neyman and
    Pearson); without noise it is not defined, so ``sigma`` is that which was declared.
    """
    check("sigma", sigma, sigma > 0, "positive")

    def loglik(law: Law) -> np.ndarray:
        values, probabilities = law
        exponent = -((releases[..., None] - values) ** 2) / (2 * sigma**2)
        return special.logsumexp(exponent, b=probabilities, axis=-1)

    return np.asarray((loglik(inside) - loglik(outside)).sum(axis=0))
