"""What an attack proves: lower bounds of epsilon, with confidence, from what it got right.

A ledger says what a model can leak at the most; an audit, what it leaks at the least. The coin must
flip what the guarantee is about: for CRT the canary against ``<MASK>`` in its place, not against
its absence, or another claim is tested.

>>> round(epsilon_lower_bound(900, 1000, 100, 1000), 4)
1.9897
>>> round(one_run_lower_bound(1000, guesses=100, correct=100), 4)
3.493

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
import scipy
from scipy import optimize, special

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
    _check_delta(delta)
    check("members", members, members >= 1, "at least 1")
    check("nonmembers", nonmembers, nonmembers >= 1, "at least 1")
    tpr, _ = clopper_pearson(true_positives, members, confidence=confidence)
    _, fpr = clopper_pearson(false_positives, nonmembers, confidence=confidence)
    ratios = [(tpr - delta) / fpr, (1 - fpr - delta) / (1 - tpr)]
    return float(np.log(max(1.0, *ratios)))


def one_run_lower_bound(
    examples: int, *, guesses: int, correct: int, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """Lower bound of epsilon from a single run (Steinke, Nasr and Jagielski 2023).

    Each of ``examples`` was in the training data by a fair coin of its own; the attacker named the
    coin of ``guesses`` of them and left the rest open, and was ``correct`` so many times. Under
    (epsilon, delta) the chance of as many is at most P[Bin(guesses, e^eps / (1 + e^eps)) >=
    correct] plus a term for delta; returned is the epsilon at which it becomes 1 - ``confidence``.
    """
    _check_delta(delta)
    if not 0 <= correct <= guesses <= examples or examples < 1:
        raise ValueError(
            f"correct={correct}, guesses={guesses}: must be 0 <= correct <= guesses <= "
            f"examples={examples}, examples >= 1"
        )
    check("confidence", confidence, 0 < confidence < 1, "in (0, 1)")

    def excess(epsilon: float) -> float:
        below = scipy.stats.binom.cdf(np.arange(-1, correct), guesses, special.expit(epsilon))
        i = np.arange(1, correct + 1)
        spread = ((below[-1] - below[correct - i]) / i).max(initial=0.0)
        beta = scipy.stats.binom.sf(correct - 1, guesses, special.expit(epsilon))
        return beta + 2 * examples * delta * spread - (1 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    return float(optimize.brentq(excess, 0.0, 50.0, xtol=1e-10))


def accuracy_bound(epsilon: float, *, delta: float) -> float:
    """The best accuracy that (epsilon, delta) leaves to a membership attack on a fair coin:
    (e^epsilon + delta) / (1 + e^epsilon)."""
    _check_delta(delta)
    check("epsilon", epsilon, epsilon >= 0, "at least 0")
    return float(special.expit(epsilon) + delta * special.expit(-epsilon))


# --------------------------------------------------------------------------- games
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
    known, judged = (
        [side[part] for side, part in zip(sides, parts, strict=True)]
        for parts in ([slice(c) for c in cuts], [slice(c, None) for c in cuts])
    )

    def counts(sides: Sequence[np.ndarray], threshold: float) -> tuple[int, int, int, int]:
        above = [int((side > threshold).sum()) for side in sides]
        return above[0], len(sides[0]), above[1], len(sides[1])

    def bound(sides: Sequence[np.ndarray], threshold: float) -> float:
        numbers = counts(sides, threshold)
        return epsilon_lower_bound(*numbers, delta=delta, confidence=confidence)

    shares = special.expit(np.linspace(-7, 7, 43))  # the best thresholds lie in the tails
    candidates = np.unique(np.quantile(np.concatenate(known), shares))
    best = max(candidates.tolist(), key=lambda threshold: bound(known, threshold))
    tp, members, fp, nonmembers = counts(judged, best)
    return Audited(
        epsilon=bound(judged, best),
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

    return (loglik(inside) - loglik(outside)).sum(axis=0)


# --------------------------------------------------------------------------- one run
@dataclass(frozen=True, kw_only=True)
class OneRun:
    """The ``epsilon`` that one training refutes: of ``examples`` canaries, each in by a coin of its
    own, the attacker named the coins of ``guesses`` and was ``correct`` so many times."""

    epsilon: float
    delta: float
    confidence: float
    examples: int
    guesses: int
    correct: int


def one_run(
    scores: np.ndarray,
    included: np.ndarray,
    *,
    delta: float,
    confidence: float = 0.95,
    guesses: int | None = None,
) -> OneRun:
    """Audit of one training with many single-copy canaries (:func:`one_run_lower_bound`).

    ``scores`` are high where the attacker thinks that a canary was in; ``included`` are the fair
    coins, of bool, that said so before training. The half of the ``guesses`` with the highest
    scores is called in, that with the lowest out, and the middle is left open. None tries a
    twentieth, a tenth, a fifth, a half and all of the canaries and divides the error among the
    five. Raises ``ValueError`` for sizes that differ.
    """
    scores, included = np.asarray(scores, dtype=float), np.asarray(included, dtype=bool)
    m = len(scores)
    if scores.shape != included.shape or scores.ndim != 1 or not m:
        raise ValueError(f"included: has shape {included.shape}: must be one coin a score, ({m},)")
    order = np.argsort(scores, kind="stable")
    tries = [guesses] if guesses is not None else [max(2, m // part) for part in (20, 10, 5, 2, 1)]
    out = []
    for tried in tries:
        check("guesses", tried, 0 < tried <= m, f"in [1, {m}]")
        low, high = order[: tried // 2], order[m - (tried - tried // 2) :]
        correct = int(included[high].sum() + (~included[low]).sum())
        epsilon = one_run_lower_bound(
            m,
            guesses=tried,
            correct=correct,
            delta=delta,
            confidence=1 - (1 - confidence) / len(tries),
        )
        out.append(
            OneRun(
                epsilon=epsilon,
                delta=delta,
                confidence=confidence,
                examples=m,
                guesses=tried,
                correct=correct,
            )
        )
    return max(out, key=lambda one: one.epsilon)


def _check_delta(delta: float) -> None:
    check("delta", delta, 0 <= delta < 1, "in [0, 1)")
