"""What an attack on one training proves: a lower bound of epsilon, with confidence.

An accountant says what a model can leak at the most; an audit, what it leaks at the least. The coin
must flip what the guarantee is about: for CRT the canary against ``<MASK>`` in its place, not
against its absence, or another claim is tested.

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
"""Of the lower bound of an audit, where nobody says another."""


def one_run_lower_bound(
    examples: int,
    *,
    guesses: int,
    correct: int,
    delta: float = 0.0,
    confidence: float = AUDIT_CONFIDENCE,
) -> float:
    """Lower bound of epsilon from a single run (Steinke, Nasr and Jagielski 2023).

    Each of ``examples`` was in the training data by a fair coin of its own; the attacker named the
    coin of some of them and left the rest open. Under (epsilon, delta) the chance of as many right
    answers is at most P[Bin(guesses, e^eps / (1 + e^eps)) >= correct] plus a term for delta.

    Args:
        examples: Coins.
        guesses: Coins that were named.
        correct: Of these, rightly.
        delta: Of the claim that is tested.
        confidence: Over the coins.

    Returns:
        The epsilon at which that chance becomes 1 - ``confidence``: 0 where nothing is shown.

    Raises:
        ValueError: For counts that cannot be, and for arguments outside their range.

    Guarantee:
        A training that is (epsilon, delta)-DP for each of the examples is said to have more with a
        chance of at most 1 - ``confidence``. Test:
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
        reached = bound_guess_chance(
            examples, guesses=guesses, correct=correct, delta=delta, epsilon=epsilon
        )
        return reached - (1 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    return float(optimize.brentq(excess, 0.0, 50.0, xtol=1e-10))


def bound_guess_chance(
    examples: int, *, guesses: int, correct: int, delta: float, epsilon: float
) -> float:
    """A bound on the chance of so many right guesses under (epsilon, delta): see
    :func:`one_run_lower_bound`."""
    below = scipy.stats.binom.cdf(np.arange(-1, correct), guesses, special.expit(epsilon))
    i = np.arange(1, correct + 1)
    spread = ((below[-1] - below[correct - i]) / i).max(initial=0.0)
    beta = scipy.stats.binom.sf(correct - 1, guesses, special.expit(epsilon))
    return float(beta + 2 * examples * delta * spread)


# --------------------------------------------------------------------------- one run
class RefutedEpsilon(NamedTuple):
    """The ``epsilon`` that one training refutes: of its canaries, each in by a coin of its own, the
    attacker named the coins of ``guesses`` and was ``correct`` so many times."""

    epsilon: float
    guesses: int
    correct: int


def guess_counts(canaries: int, guesses: int | None) -> list[int]:
    """How many of the canaries are guessed on: so many, or five numbers."""
    tries = [max(2, canaries // part) for part in (20, 10, 5, 2, 1)]
    return tries if guesses is None else [guesses]


def audit_one_run(
    scores: np.ndarray,
    included: np.ndarray,
    *,
    delta: float,
    confidence: float = AUDIT_CONFIDENCE,
    guesses: int | None = None,
) -> RefutedEpsilon:
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
    tries = guess_counts(m, guesses)
    out = []
    for tried in tries:
        check_allowed("guesses", tried, 0 < tried <= m, f"in [1, {m}]")
        low, high = order[: tried // 2], order[m - (tried - tried // 2) :]
        correct = int(included[high].sum() + (~included[low]).sum())
        epsilon = one_run_lower_bound(
            m, guesses=tried, correct=correct, delta=delta,
            confidence=1 - (1 - confidence) / len(tries),
        )  # fmt: skip
        out.append(RefutedEpsilon(epsilon=epsilon, guesses=tried, correct=correct))
    return max(out, key=lambda one: one.epsilon)
