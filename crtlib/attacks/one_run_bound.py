"""What an attack on one training proves: a lower bound on epsilon, with a confidence.

An accountant bounds what a model can leak at most; an audit shows what it leaks at least. The coin
must decide between what the guarantee is about, or another claim is tested: for CRT, the canary
against ``<MASK>`` in its place, not against its absence.

>>> round(one_run_lower_bound(1000, guesses=100, correct=100), 4)
3.493
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from scipy import optimize, special

from crtlib.checks import check_allowed

AUDIT_CONFIDENCE = 0.95
"""The default confidence of an audit's lower bound."""


def one_run_lower_bound(
    examples: int,
    *,
    guesses: int,
    correct: int,
    delta: float = 0.0,
    confidence: float = AUDIT_CONFIDENCE,
) -> float:
    """A lower bound on epsilon from a single run (Steinke, Nasr and Jagielski 2023).

    A fair coin for each of the ``examples`` decided whether it was in the training data. The
    attacker guessed the coins of some of them and left the rest open. Under (epsilon, delta) the
    chance of this many right guesses is at most P[Bin(guesses, e^eps / (1 + e^eps)) >= correct]
    plus a term for delta.

    Args:
        examples: The number of coins.
        guesses: The number of coins that were guessed.
        correct: The number of right guesses.
        delta: The delta of the claim that is tested.
        confidence: The confidence of the bound, over the coins.

    Returns:
        The epsilon at which that chance becomes 1 - ``confidence``; 0 if nothing is shown.

    Raises:
        ValueError: For impossible counts, and for arguments outside their range.

    Guarantee:
        For a training that is (epsilon, delta)-DP for each of the examples, the bound exceeds
        epsilon with a chance of at most 1 - ``confidence``. Test:
        ``tests/attacks/test_audit.py::test_both_hold_for_randomised_response``.
    """
    check_allowed("delta", delta, 0 <= delta < 1, "in [0, 1)")
    if not 0 <= correct <= guesses <= examples or examples < 1:
        raise ValueError(
            f"correct={correct}, guesses={guesses}: must be 0 <= correct <= guesses <= "
            f"examples={examples}, examples >= 1"
        )
    check_allowed("confidence", confidence, 0 < confidence < 1, "in (0, 1)")

    def excess(epsilon: float) -> float:
        chance = bound_guess_chance(
            examples, guesses=guesses, correct=correct, delta=delta, epsilon=epsilon
        )
        return chance - (1 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    return float(optimize.brentq(excess, 0.0, 50.0, xtol=1e-10))


def bound_guess_chance(
    examples: int, *, guesses: int, correct: int, delta: float, epsilon: float
) -> float:
    """An upper bound on the chance of at least ``correct`` right guesses under (epsilon, delta):
    see :func:`one_run_lower_bound`."""
    cdf = scipy.stats.binom.cdf(np.arange(-1, correct), guesses, special.expit(epsilon))
    i = np.arange(1, correct + 1)
    spread = ((cdf[-1] - cdf[correct - i]) / i).max(initial=0.0)
    beta = scipy.stats.binom.sf(correct - 1, guesses, special.expit(epsilon))
    return float(beta + 2 * examples * delta * spread)


# --------------------------------------------------------------------------- one run
class RefutedEpsilon(NamedTuple):
    """The ``epsilon`` that one training refutes. A coin decided for each canary whether it was in;
    the attacker guessed the coins of ``guesses`` canaries and was right ``correct`` times."""

    epsilon: float
    guesses: int
    correct: int


def guess_counts(canaries: int, guesses: int | None) -> list[int]:
    """How many of the canaries are guessed on: ``guesses``, or five numbers to try if None."""
    counts = [max(2, canaries // divisor) for divisor in (20, 10, 5, 2, 1)]
    return counts if guesses is None else [guesses]


def audit_one_run(
    scores: np.ndarray,
    included: np.ndarray,
    *,
    delta: float,
    confidence: float = AUDIT_CONFIDENCE,
    guesses: int | None = None,
) -> RefutedEpsilon:
    """Audit one training with many single-copy canaries (:func:`one_run_lower_bound`).

    ``scores`` are high if the attacker thinks that a canary was in; ``included`` are the fair
    coins, of bool, that decided this before training. Half of the ``guesses`` are "in", for the
    highest scores, the other half "out", for the lowest; the middle is left open. None tries a
    twentieth, a tenth, a fifth, a half and all of the canaries, and divides the error among the
    five. Raises ``ValueError`` if the sizes differ.
    """
    scores, included = np.asarray(scores, dtype=float), np.asarray(included, dtype=bool)
    m = len(scores)
    if scores.shape != included.shape or scores.ndim != 1 or not m:
        raise ValueError(
            f"included: has shape {included.shape}: must be one coin per score, ({m},)"
        )
    order = np.argsort(scores, kind="stable")
    counts = guess_counts(m, guesses)
    bounds = []
    for count in counts:
        check_allowed("guesses", count, 0 < count <= m, f"in [1, {m}]")
        low, high = order[: count // 2], order[m - (count - count // 2) :]
        correct = int(included[high].sum() + (~included[low]).sum())
        epsilon = one_run_lower_bound(
            m, guesses=count, correct=correct, delta=delta,
            confidence=1 - (1 - confidence) / len(counts),
        )  # fmt: skip
        bounds.append(RefutedEpsilon(epsilon=epsilon, guesses=count, correct=correct))
    return max(bounds, key=lambda bound: bound.epsilon)
