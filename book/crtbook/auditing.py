"""What correct guesses prove: lower bounds of epsilon, and the score that proves the most.

>>> round(epsilon_lower_bound(900, 1000, 100, 1000), 4)
1.9897
"""

import numpy as np
from scipy import special

from crtlib.checks import check_allowed
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
    """The largest epsilon that independent guesses refute, by TPR <= e^epsilon FPR + delta and the
    same inequality for TNR and FNR (Jagielski et al. 2020; Nasr et al. 2021).

    Each rate has a two-sided Clopper-Pearson interval. Both inequalities use the same two ends, so
    the result is wrong with probability 1 - ``confidence`` at most. The guesses must come from
    independent runs, and the threshold must not have been chosen on them.
    """
    check_allowed("delta", delta, 0 <= delta < 1, "in [0, 1)")
    check_allowed("members", members, members >= 1, "at least 1")
    check_allowed("nonmembers", nonmembers, nonmembers >= 1, "at least 1")
    tpr, _ = clopper_pearson(true_positives, members, confidence=confidence)
    _, fpr = clopper_pearson(false_positives, nonmembers, confidence=confidence)
    ratios = [(tpr - delta) / fpr, (1 - fpr - delta) / (1 - tpr)]
    return float(np.log(max(1.0, *ratios)))


def accuracy_bound(epsilon: float, *, delta: float) -> float:
    """The best accuracy that (epsilon, delta) allows a membership attack on a fair coin:
    (e^epsilon + delta) / (1 + e^epsilon)."""
    check_allowed("delta", delta, 0 <= delta < 1, "in [0, 1)")
    check_allowed("epsilon", epsilon, epsilon >= 0, "at least 0")
    return float(special.expit(epsilon) + delta * special.expit(-epsilon))


Law = tuple[np.ndarray, np.ndarray]
"""Values ``(k,)`` and their probabilities ``(k,)``."""


def log_ratio(releases: np.ndarray, *, inside: Law, outside: Law, sigma: float) -> np.ndarray:
    """The log-likelihood ratio of releases X + N(0, sigma^2) between both worlds, summed over the
    first axis: ``(steps, games)`` gives ``(games,)``.

    X follows the law ``inside`` where the canary is in the data and ``outside`` where it is not,
    independently in every step. For DP-SGD X is the number of copies drawn times their gradient, in
    clip norms along the canary's direction. No other score of the releases proves more (Neyman and
    Pearson). Without noise the ratio is not defined, so ``sigma`` is the noise that was declared.
    """
    check_allowed("sigma", sigma, sigma > 0, "positive")

    def loglik(law: Law) -> np.ndarray:
        values, probabilities = law
        exponent = -((releases[..., None] - values) ** 2) / (2 * sigma**2)
        return special.logsumexp(exponent, b=probabilities, axis=-1)

    return np.asarray((loglik(inside) - loglik(outside)).sum(axis=0))
