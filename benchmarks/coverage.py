"""How often the bounds of the three rates hold: labels drawn again and again from labelled text.

    CRTLIB_DATA=... python benchmarks/coverage.py [DRAWS]

The population are the dialogues of CustomerSim and of Schema-Guided Dialogue (the part "dev"), all
of whose secrets are labelled, so that the true rate of a policy is known. A draw takes some
dialogues at random, as people would who label, and asks whether the bound that the labels give is
at least the truth. Three bounds: "one a user", the library's (:mod:`crtlib.screening.rates`), whose
truth is the rate of a secret met by drawing a user and then one of his secrets; "occurrences", the
bound of Clopper and Pearson over all secrets as if they were independent; "Korn and Graubard"
(1998), the same at the sample size that an estimated design effect leaves. The truth of the last
two is the share of all secrets. Nominal is 97.5 %, for each rate alone.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import t as student

from crtbook import tables
from crtbook.redraws import upper_bounds
from crtlib.screening import policy_changes, rates, regex_policies, tagger
from crtlib.screening.policy import Policy
from crtlib.screening.rate_values import RATE_NAMES
from crtlib.screening.secret_outcomes import SecretOutcome
from crtlib.text import corpora, customersim, data_points
from crtlib.text.records import Point

ALPHA = 0.025
SIZES = (30, 100, 300, 600)


@dataclass(frozen=True)
class Population:
    """Of each dialogue: how many secrets it holds and how many of them fail."""

    secrets: np.ndarray
    failures: np.ndarray

    def truth(self, bound: str) -> float:
        """The rate that a bound speaks of."""
        has = self.secrets > 0
        if bound == "one a user":
            return float((self.failures[has] / self.secrets[has]).mean())
        return float(self.failures.sum() / self.secrets.sum())


def population(judged: Sequence[SecretOutcome], users: Sequence[str], name: str) -> Population:
    """What befell the secrets of each user, and of those who have none."""
    place = {user: k for k, user in enumerate(dict.fromkeys(users))}
    secrets, failures = np.zeros(len(place), int), np.zeros(len(place), int)
    for j in judged:
        secrets[place[j.cluster]] += 1
        failures[place[j.cluster]] += bool(getattr(j, name))
    return Population(secrets, failures)


def korn_graubard(secrets: np.ndarray, failures: np.ndarray) -> np.ndarray:
    """Upper bounds from (draws, dialogues) counts, by the design effect of each draw."""
    n, x = secrets.sum(1), failures.sum(1)
    d = (secrets > 0).sum(1)
    p = x / np.maximum(n, 1)
    spread = ((failures - p[:, None] * secrets) ** 2).sum(1) * d / np.maximum(d - 1, 1)
    independent = n * p * (1 - p)
    effect = np.where(independent > 0, spread / np.maximum(independent, 1e-12), 1.0)
    left = n / np.maximum(effect, 1e-12)
    ratio = student.ppf(1 - ALPHA, np.maximum(n - 1, 1)) / student.ppf(
        1 - ALPHA, np.maximum(d - 1, 1)
    )
    size = np.minimum(left * ratio**2, n)
    return upper_bounds(p * size, size, 1 - ALPHA)


def coverage(some: Population, dialogues: int, draws: int, seed: int) -> list[dict]:
    """One row for each bound: how often it is at least the truth, over ``draws`` draws."""
    rng = np.random.default_rng([seed, dialogues])
    n = len(some.secrets)
    drawn = np.array([rng.choice(n, dialogues, replace=False) for _ in range(draws)])
    secrets, failures = some.secrets[drawn], some.failures[drawn]
    has = secrets > 0
    one = has & (rng.random(drawn.shape) * np.maximum(secrets, 1) < failures)
    uppers = {
        "one a user": upper_bounds(one.sum(1), has.sum(1), 1 - ALPHA),
        "occurrences": upper_bounds(failures.sum(1), secrets.sum(1), 1 - ALPHA),
        "Korn and Graubard": korn_graubard(secrets, failures),
    }
    return [
        {
            "bound": bound,
            "dialogues": dialogues,
            "draws": draws,
            "judged": float(has.sum(1).mean()),
            "truth": some.truth(bound),
            "coverage": float((each >= some.truth(bound)).mean()),
            "median_upper": float(np.median(each)),
        }
        for bound, each in uppers.items()
    ]


def policies_of(corpus: str, teachers: Sequence[Point]) -> dict[str, tuple[Policy, Policy]]:
    """pi and pi_c: expressions, a tagger, and one that was taught little."""
    regex = regex_policies.corpus_regex_policy(corpus)
    if corpus == "customersim":  # which misses nothing there
        regex = policy_changes.with_misses(regex, 0.05, 0, per="value")
    users = sorted({p.user for p in teachers})
    few = set(users[: len(users) // 5])
    made = tagger.train_tagger(teachers, seed=0)
    weak = tagger.train_tagger([p for p in teachers if p.user in few], seed=0, epochs=4)
    return {
        "regex": (regex, regex),
        "tagger": (tagger.tagger_policy(made), tagger.conservative_tagger_policy(made)),
        "weak tagger": (tagger.tagger_policy(weak), tagger.conservative_tagger_policy(weak)),
    }


def points_of(corpus: str) -> tuple[list[Point], list[Point]]:
    """Points that teach, and the population that judges: other people."""
    if corpus == "customersim":
        parts = (
            customersim.simulate_corpus(100, 1, "rich"),
            customersim.simulate_corpus(2_000, 2, "rich"),
        )
        return [list(data_points.make_points(part, unit="turn")) for part in parts]
    points = data_points.make_points(corpora.load_corpus(corpus, "dev"), unit="turn")
    teachers = set(sorted({p.user for p in points})[::12])
    return (
        [p for p in points if p.user in teachers],
        [p for p in points if p.user not in teachers],
    )


def table(draws: int) -> pd.DataFrame:
    """Every corpus, policy, rate, number of dialogues and bound."""
    rows = []
    for corpus in ("customersim", "schema_guided"):
        teachers, points = points_of(corpus)
        users = [p.user for p in points]
        for name, (pi, pi_c) in policies_of(corpus, teachers).items():
            judged = rates.RateCounter(pi, pi_c).add(points)
            for rate in RATE_NAMES:
                some = population(judged, users, rate)
                told = {"corpus": corpus, "policy": name, "rate": rate}
                rows += [told | row for n in SIZES for row in coverage(some, n, draws, 0)]
            print(corpus, name, flush=True)
    return pd.DataFrame(rows)


def main() -> None:
    draws = int(sys.argv[1]) if sys.argv[1:] else 10_000
    made, origin = tables.measure_with_provenance(lambda: table(draws), profile="coverage")
    tables.write_table(made.assign(seed=0, **origin), tables.FOLDER / "coverage.parquet")
    wide = made.pivot_table("coverage", ["corpus", "policy", "rate", "bound"], "dialogues")
    print(wide.to_string(float_format=lambda x: f"{100 * x:.1f}"))


if __name__ == "__main__":
    main()
