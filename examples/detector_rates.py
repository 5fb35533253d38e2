"""How often your own detector misses a secret: the three rates of CRT, with their bounds.

    python examples/detector_rates.py

People ask about the miss rate; a guarantee depends on the other two. `trace`: training could tell
that the secret is there (gamma). `public`: the secret would be trained on without noise (delta2).
Only one secret of each user is counted, because two secrets of one user are not independent.
"""

import re

import crtlib
from crtlib.screening.policy import Policy
from crtlib.screening.rates import measure_rates

points = crtlib.points(crtlib.simulate(400, seed=3), "turn")  # the simulator labelled them

CODES = re.compile(r"\b[A-Z0-9]*\d[A-Z0-9]*\b")
NAMES = re.compile(CODES.pattern + r"|[A-Z]\w+( [A-Z]\w+)+")  # addresses have small words between


def detector(name: str, pattern: re.Pattern[str]) -> Policy:
    """A policy is a function from points to spans: sorted, disjoint, inside their texts."""
    return Policy(
        name,
        lambda points: [
            [crtlib.Secret("number", *m.span()) for m in pattern.finditer(p.text)] for p in points
        ],
    )


conservative_policy = crtlib.policy("cautious")
for policy in (detector("codes", CODES), detector("+ names", NAMES)):
    found = measure_rates(points, policy, conservative_policy)
    for name in ("miss", "trace", "public"):
        rate = getattr(found, name)
        counts = f"{rate.failures:3} of {rate.judged_secrets}"
        print(f"{policy.name:>8} {name:>7}: {counts}, at most {rate.upper_bound:.2%}")
