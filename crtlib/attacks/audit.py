"""What an attack proves: lower bounds of epsilon, with confidence, from what it got right.

A ledger says what a model can leak at the most; an audit, what it leaks at the least. The coin must
flip what the guarantee is about: for CRT the canary against ``<MASK>`` in its place, not against
its absence, or another claim is tested.

>>> round(epsilon_lower_bound(900, 1000, 100, 1000), 4)
1.9897
>>> round(one_run_lower_bound(1000, guesses=100, correct=100), 4)
3.493
>>> low, high = clopper_pearson(0, 100)  # Hush: of 100 secrets none was reconstructed
>>> low, round(high, 3)
(0.0, 0.036)
"""

from __future__ import annotations

import numpy as np
from scipy import optimize, special, stats

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
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence}: must be in (0, 1)")

    def excess(epsilon: float) -> float:
        below = stats.binom.cdf(np.arange(-1, correct), guesses, special.expit(epsilon))
        i = np.arange(1, correct + 1)
        spread = ((below[-1] - below[correct - i]) / i).max(initial=0.0)
        beta = stats.binom.sf(correct - 1, guesses, special.expit(epsilon))
        return beta + 2 * examples * delta * spread - (1 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    return float(optimize.brentq(excess, 0.0, 50.0, xtol=1e-10))


def accuracy_bound(epsilon: float, *, delta: float) -> float:
    """The best accuracy that (epsilon, delta) leaves to a membership attack on a fair coin:
    (e^epsilon + delta) / (1 + e^epsilon)."""
    _check_delta(delta)
    if epsilon < 0:
        raise ValueError(f"epsilon={epsilon}: must be at least 0")
    return float(special.expit(epsilon) + delta * special.expit(-epsilon))


def _check_delta(delta: float) -> None:
    if not 0 <= delta < 1:
        raise ValueError(f"delta={delta}: must be in [0, 1)")
