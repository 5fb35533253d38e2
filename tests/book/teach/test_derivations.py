"""The numeric exercises, derived a second time from their texts: nothing of the course or of the
accountants is used here."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from crtcourse.exercises import check, load_exercises
from crtlib.text import canaries, customersim


def root(f, low, high):
    """Where a rising function crosses 0."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) < 0 else (low, middle)
    return low


def tail(n, least, p):
    """The chance of at least so many of n."""
    return sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(least, n + 1))


def first(numbers, good):
    return next(n for n in numbers if good(n))


def kl(r, p):
    return r * math.log(r / p) + (1 - r) * math.log((1 - r) / (1 - p))


def chain(epsilon, delta, people):
    return sum(delta * math.exp(k * epsilon) for k in range(people))


def likeliest():
    texts = {a + b: 0.6 * 0.5 for a, b in itertools.product("A", "CD")} | {"BE": 0.4 * 0.9}
    return max(texts.values())


def band():
    """The root of all secrets over addresses."""
    dialogues = customersim.simulate_corpus(3000, 5).dialogues
    kinds = Counter(s.kind for d in dialogues for t in d.turns for s in t.secrets)
    return math.sqrt(kinds.total() / kinds["address"])


def other_order():
    def prepared(texts):
        redacted = [text.replace("0042", "<MASK>") for text in texts]
        return [t if t not in redacted[:k] else "<MASK>" for k, t in enumerate(redacted)]

    worlds = (["my pin is 7351", "my pin is 0042"], ["my pin is <MASK>", "my pin is 0042"])
    return sum(a != b for a, b in zip(*map(prepared, worlds), strict=True))


def printed():
    """The recall of Algorithm 1 as it is printed, of a model that guesses all but the first token:
    a run is taken where a wrong guess follows it, and a canary is the end of its turn."""
    listed = 0
    for number in canaries.make_canaries(10, seed=0):
        runs, run = [], ""
        for token, right in zip(
            canaries.canary_prefix() + number, [False, *[True] * 99], strict=False
        ):
            if right:
                run += token
            elif run:
                runs, run = [*runs, run], ""
        listed += any(number in found for found in runs)
    return listed / 10


BITS = np.log2(10**6 / np.arange(1, 10**6 + 1)).mean()
DERIVED = {
    "ex-dp-coin": lambda: root(lambda p: p / (1 - p) - math.e, 0, 1 - 1e-9),
    "ex-dp-prior": lambda: 0.01 * math.e / (0.01 * math.e + 0.99),
    "ex-dp-hundred": lambda: (
        math.sqrt(2 * 100 * math.log(1e6)) * 0.1 + 100 * 0.1 * (math.exp(0.1) - 1)
    ),
    "ex-dp-family": lambda: chain(0.5, 1e-5, 3),
    "ex-dp-empty": lambda: math.prod([0.99] * 200),
    "ex-dp-audit": lambda: root(lambda e: tail(400, 280, 1 / (1 + math.exp(-e))) - 0.05, 0, 3),
    "ex-lm-perplexity": lambda: math.prod((1, 1 / 2, 1 / 4, 1 / 32)) ** (-1 / 4),
    "ex-lm-greedy": likeliest,
    "ex-labels": lambda: first(range(1000), lambda n: 0.9**n <= 0.05),
    "ex-own-check": lambda: first(range(1000), lambda n: 0.97**n <= 0.025),
    "ex-copies": lambda: tail(20, 1, 0.1),
    "ex-recall": lambda: root(lambda p: tail(200, 21, p) - 0.95, 0, 1),
    "ex-group": lambda: chain(1.0, 8e-5, 10),
    "ex-canary-mean": lambda: BITS,
    "ex-canary-value": lambda: 0.1 * math.log2(10**6) + 0.9 * BITS,
    "ex-mia-kinds": band,
    "ex-utility-kind": lambda: root(lambda g: math.log(1 + g * (math.e**2 - 1)) - 2, 0, 2),
    "ex-pit-order": other_order,
    "ex-pre-most": lambda: math.log(1001) / math.log(2),
    "ex-axis-audit": lambda: first(
        range(10, 500, 10), lambda m: tail(m, round(0.6 * m), 0.5) < 0.05
    ),
    "ex-claims-seeds": lambda: first(range(2, 1000), lambda n: 2 / math.sqrt(n) <= 0.1),
    "ex-claims-family": lambda: sum(0.05 / 2 for _ in range(20)),
    "ex-engine-cross": lambda: max(
        abs(math.cos(a) + math.sin(a)) for a in np.linspace(0, math.pi, 10001)
    ),
    "ex-engine-shape": lambda: root(lambda t: t * t * (256 + 1024) - t * 256 * 1024, 1, 1e4),
    "ex-leakage-verbatim": printed,
    "ex-lw-clean": lambda: first(range(1000), lambda n: Fraction(1, n + 1) <= Fraction(1, 100)),
    "ex-lw-best": lambda: 100 * (0.5 + 0.5 * sum((2 + 1) / (199 + 1) for _ in range(4))),
    "ex-rb-nat": lambda: root(lambda r: kl(r, 0.01) - 1, 0.01, 1 - 1e-9),
    "ex-rb-void": lambda: kl(1 - 1e-12, 0.1),
    "ex-sp-games": lambda: first(range(10, 500, 5), lambda n: tail(n, 3 * n // 5, 0.5) < 0.025),
    "ex-sp-replace": lambda: abs(1 - -1) / abs(1 - 0),  # gradients of the clip norm: u, -u, 0
}


def test_every_number_is_derived_twice():
    assert {e.id for e in load_exercises().values() if e.kind == "number"} == {*DERIVED}


@pytest.mark.parametrize("name", DERIVED)
def test_the_second_derivation_is_accepted(name):
    assert check(name, DERIVED[name]())
