"""The answers of the exercises, computed: numbers from the library, functions by running them.

>>> round(RECIPES["ex-canary-mean"](), 2)
1.44
>>> callable(RECIPES["ex-canary-value"])
True
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

from crtlib import intervals
from crtlib.accounting import confidentiality, secret_guesses
from crtlib.attacks import one_run_bound
from crtlib.screening.redaction import redact
from crtlib.text.records import MASK, Point, Secret

DELTA = 8e-5
"""The delta of CRT's figures."""


def _refuted_epsilon() -> float:
    """The epsilon that 280 correct guesses of 400 refute, one-sided at 95 %."""
    share = 1 - intervals.clopper_pearson_upper(120, 400)
    return math.log(share / (1 - share))


def _first_decisive_games() -> int:
    """The first number of games at which 60 % correct excludes a half, two-sided at 95 %."""
    counts = (n for n in range(10, 1000, 5) if intervals.clopper_pearson(3 * n // 5, n)[0] > 0.5)
    return next(counts)


def _leaves_no_trace(policy: Callable[[str], Iterable[tuple[int, int]]]) -> str:
    """What is wrong with a policy of text -> spans that must never leave a trace; "" if nothing is.

    The point with its secret and the point with a mask in its place must redact to the same text.
    """
    cases = (
        ("USR: I live at 290 Mill Road, Cambridge.", "290 Mill Road"),
        ("USR: Send it to 7 Elm Street please.", "7 Elm Street"),
        ("USR: My flat is 12 in the old house.", "12"),
    )

    def redacted(text: str) -> str:
        spans = tuple(Secret("secret", *span) for span in policy(text))
        return redact(Point("0", "0", text), spans).text

    for text, secret in cases:
        if secret in redacted(text):
            return f"it misses the secret of {text!r}"
        if redacted(text) != redacted(text.replace(secret, MASK)):
            return f"it leaves a trace of {text!r}: with the secret masked it makes another text"
    if policy("USR: Hello there."):
        return "it flags 'USR: Hello there.', which holds no digit and no mask"
    return ""


RECIPES: dict[str, Callable[..., Any]] = {
    # differential privacy from zero, a language model in one hour
    "ex-dp-coin": lambda: math.e / (1 + math.e),
    "ex-dp-prior": lambda: math.e / (99 + math.e),
    "ex-dp-hundred": lambda: 0.1 * math.sqrt(200 * math.log(1e6)) + 10 * math.expm1(0.1),
    "ex-dp-family": lambda: 1e-5 * sum(math.exp(0.5 * j) for j in range(3)),
    "ex-dp-empty": lambda: 0.99**200,
    "ex-lm-perplexity": lambda: math.exp(sum(map(math.log, (1, 2, 4, 32))) / 4),
    "ex-lm-greedy": lambda: 0.4 * 0.9,
    # confidentially redacted training
    "ex-labels": lambda: intervals.labels_needed(0.1),
    "ex-own-check": lambda: intervals.labels_needed(0.03, 0.975),
    "ex-copies": lambda: 1 - 0.9**20,
    "ex-recall": lambda: intervals.clopper_pearson_upper(20, 200),
    "ex-lw-clean": lambda: next(n for n in range(999) if intervals.exchangeable_rate(0, n) <= 0.01),
    "ex-lw-best": lambda: 50 * (1 + intervals.exchangeable_rate(2, 199, policy_pairs=4)),
    "ex-group": lambda: DELTA * sum(math.exp(j) for j in range(10)),
    "ex-canary-mean": lambda: 1 / math.log(2),
    "ex-canary-value": lambda: 0.1 * math.log2(10**6) + 0.9 / math.log(2),
    "ex-mia-kinds": lambda: 3.0,
    "ex-utility-kind": lambda: 1.0,
    "ex-pit-order": lambda: 2,
    "ex-pre-most": lambda: math.log2(1001),
    "ex-axis-audit": lambda: min(
        m
        for m in range(10, 500, 10)
        if one_run_bound.one_run_lower_bound(m, guesses=m, correct=round(0.6 * m)) > 0
    ),
    "ex-claims-seeds": lambda: (2 / 0.1) ** 2,
    "ex-claims-family": lambda: 20 * 0.05 / 2,
    "ex-engine-cross": lambda: math.sqrt(2),
    "ex-engine-shape": lambda: 256 * 1024 / (256 + 1024),
    # secret protection
    "ex-rb-nat": lambda: float(secret_guesses.posterior_from_divergence(1.0, 0.01)),
    "ex-rb-void": lambda: -math.log(0.1),
    "ex-sp-replace": lambda: 2.0,
    # the leakage report
    "ex-leakage-verbatim": lambda: 0.0,
    # functions of the student's, and what takes more than a line
    "ex-dp-audit": _refuted_epsilon,
    "ex-sp-games": _first_decisive_games,
    "ex-screening-trace": _leaves_no_trace,
}
"""For each exercise, the function that computes its answer or judges a student's function."""

EXAM: dict[str, Callable[..., float]] = {
    "coin": lambda p: math.log(p / (1 - p)),
    "laplace": lambda epsilon, t: math.exp(-epsilon * t),
    "shame": lambda n, delta: n * delta,
    "empty": lambda n, q: (1 - q) ** n,
    "labels": lambda missed, labelled: intervals.clopper_pearson_upper(missed, labelled),
    "amplified": lambda epsilon, gamma: confidentiality.amplify_by_miss_rate(
        epsilon, delta=0.0, gamma=gamma
    )[0],
    "exposure": lambda rank: math.log2(10**6 / rank),
    "luck": lambda canaries, bits: 1 - (1 - 2.0**-bits) ** canaries,
    "copies": lambda copies, gamma: 1 - (1 - gamma) ** copies,
    "guess": lambda epsilon, candidates: float(
        secret_guesses.posterior_from_divergence(epsilon, 1 / candidates, kind="pure")
    ),
}
"""The answer to each question of the exam (``book/teaching/exam.yml``), from its numbers."""
