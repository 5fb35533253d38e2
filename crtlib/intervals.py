"""Intervals and bands: Clopper-Pearson, labels needed, and where chance lies.

>>> success_interval(0, 10)[0]
0.0
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import stats
from scipy.stats import beta

from crtlib.checks import check


def miss_rate_upper(misses: int, secrets: int, *, confidence: float = 0.95) -> float:
    """Clopper-Pearson one-sided upper bound of a miss rate, from independent labelled secrets.

    With probability ``confidence`` over the labelled sample the true rate is at most this: 0 of
    200 gives 0.01487, and 8e-5 (the paper's delta) takes 37,446 secrets without a miss.
    """
    if not 0 <= misses <= secrets:
        raise ValueError(f"misses={misses}: must be in [0, {secrets}], the number of secrets")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence}: must be in (0, 1)")
    if misses == secrets:
        return 1.0
    return float(beta.ppf(confidence, misses + 1, secrets - misses))


def miss_rate_upper_bound(misses: int, n: int, confidence: float = 0.95) -> float:
    """One-sided Clopper-Pearson upper bound on a miss rate after ``misses`` in ``n`` labels.

    >>> round(miss_rate_upper_bound(0, 200), 5)
    0.01487
    """
    check("n", n, n >= 1, "at least 1")
    return miss_rate_upper(misses, n, confidence=confidence)


def labels_needed(rate: float, confidence: float = 0.95) -> int:
    """How many labelled secrets, none of them missed, certify a miss rate of at most ``rate``.

    >>> labels_needed(8e-5)
    37446
    """
    check("rate", rate, 0 < rate < 1, "in (0, 1)")
    check("confidence", confidence, 0 < confidence < 1, "in (0, 1)")
    return math.ceil(math.log1p(-confidence) / math.log1p(-rate))


def success_interval(
    successes: int, trials: int, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Two-sided Clopper-Pearson interval of a success probability.

    For Hush: the attacker chooses among k candidates drawn with equal chance; the lower end must
    not be above the promised reconstruction probability r.
    """
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"successes={successes}: must be in [0, trials={trials}], trials >= 1")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence}: must be in (0, 1)")
    interval = stats.binomtest(successes, trials).proportion_ci(confidence, method="exact")
    return float(interval.low), float(interval.high)


@dataclass(frozen=True)
class Band:
    """What a model that knows nothing scores: mean, and the central interval from low to high."""

    mean: float
    low: float
    high: float
    level: float
