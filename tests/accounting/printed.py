"""CRT's statements of one secret as the paper prints them, to hold against finite mechanisms."""

import math

from crtlib.accounting.confidentiality import amplify_by_miss_rate
from crtlib.checks import check_allowed


def confidentiality_redacted(
    epsilon: float, *, delta: float, detected: bool
) -> tuple[float, float]:
    """Proposition 5, one secret: epsilon becomes 0 where the policy detects it; delta stays."""
    return (0.0 if detected else float(epsilon)), delta


def crt_confidentiality(
    epsilon: float, *, delta: float, detected: bool, caught: bool
) -> tuple[float, float]:
    """Theorem 8.1: a secret that is redacted, or missed but ``caught`` by the conservative policy.

    Missed by both, it is trained on without noise: (inf, delta).
    """
    return (0.0 if detected else epsilon if caught else math.inf), delta


def crt_bayesian(
    epsilon: float, *, delta: float, gamma: float, delta2: float, one_directional: bool = False
) -> tuple[float, float]:
    """Theorem 8.3: (log(1 + gamma (e^epsilon - 1)), gamma delta + delta2), in both directions.

    ``delta2`` is the probability that both policies miss, so it is at most gamma.
    ``one_directional`` gives the tighter pair that holds for D against D' only.
    """
    check_allowed("delta2", delta2, 0 <= delta2 <= 1, "in [0, 1]")
    amplified, spent = amplify_by_miss_rate(epsilon, delta=delta, gamma=gamma)
    if not one_directional:
        return amplified, spent + delta2
    check_allowed("delta2", delta2, delta2 <= gamma, f"at most gamma={gamma}")
    weight = gamma - delta2  # 1 - gamma + weight e^eps = 1 - delta2 + weight (e^eps - 1)
    if epsilon < 700:
        value = math.log1p(weight * math.expm1(epsilon) - delta2) if delta2 < 1 else 0.0
    else:
        value = epsilon + math.log(weight) if weight else 0.0
    return max(0.0, value), weight * delta + delta2
