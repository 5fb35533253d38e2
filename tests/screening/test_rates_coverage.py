"""The bound of the rates holds as often as it says, however alike one user's secrets are."""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

from crtbook import tables
from crtlib.screening import policy_changes, rates, regex_policies
from crtlib.screening.rate_values import RATE_NAMES
from crtlib.screening.secret_outcomes import SecretOutcome, first_per_cluster
from crtlib.text import customersim, data_points
from crtlib.text.records import Point, Secret

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "coverage.py"
spec = importlib.util.spec_from_file_location("coverage_benchmark", SCRIPT)
coverage = importlib.util.module_from_spec(spec)
spec.loader.exec_module(coverage)

NOMINAL = 0.975


def least(draws):
    """Below this a coverage of 97.5 % is not seen by chance (4 standard errors)."""
    return NOMINAL - 4 * (NOMINAL * (1 - NOMINAL) / draws) ** 0.5


@pytest.mark.parametrize("rate", RATE_NAMES)
def test_it_holds_on_simulated_people_whose_values_are_missed_wherever_they_stand(rate):
    points = data_points.make_points(customersim.simulate_corpus(1_000, 5, "rich"), unit="turn")
    pi = policy_changes.with_misses(regex_policies.corpus_regex_policy(), 0.05, 1, per="value")
    judged = rates.RateCounter(pi, pi).add(points)
    some = coverage.population(judged, [p.user for p in points], rate)
    assert 0.01 < some.truth("one a user") < 0.2
    for dialogues in (30, 100, 300):
        (ours, *_) = coverage.coverage(some, dialogues, 1_500, seed=0)
        assert ours["bound"] == "one a user" and ours["coverage"] >= least(1_500)


def test_it_holds_where_users_are_missed_whole_and_the_others_fail():
    """Half of the failures are users of whom all twenty secrets are missed: one in a hundred."""
    rng = np.random.default_rng(0)
    secrets = np.where(rng.random(4_000) < 0.1, 20, 1)
    whole = rng.random(4_000) < 0.01
    some = coverage.Population(secrets, np.where(whole, secrets, 0))
    rows = {r["bound"]: r["coverage"] for r in coverage.coverage(some, 300, 2_000, seed=1)}
    assert rows["one a user"] >= least(2_000)
    assert rows["occurrences"] < 0.93
    assert rows["Korn and Graubard"] < least(2_000)


def test_the_simulation_takes_secrets_as_the_library_does():
    """Over seeds, one of each user fails as often as the share of that user's secrets."""
    rng = np.random.default_rng(3)
    points = [
        Point(f"d{u}/{i}", f"u{u}", "7" if rng.random() < u / 10 else "x", (Secret("id", 0, 1),))
        for u in range(10)
        for i in range(5)
    ]
    pi = regex_policies.corpus_regex_policy("wikitext2")
    judged = rates.RateCounter(pi, pi).add(points)
    some = coverage.population(judged, [p.user for p in points], "miss")
    means = []
    for seed in range(1_500):
        found = first_per_cluster(rates.RateCounter(pi, pi, seed=seed).add(points))
        means.append(sum(j.miss for j in found))
    share = some.failures / some.secrets
    spread = (share * (1 - share)).sum() ** 0.5
    assert np.mean(means) == pytest.approx(share.sum(), abs=4 * spread / 1_500**0.5)


def test_bounds_of_the_comparison_are_right_where_both_must_agree():
    """Dialogues of one secret each: no clusters, so Korn and Graubard is Clopper and Pearson."""
    failures = (np.arange(200) < 7).astype(int)[None]
    ones = np.ones((1, 200), int)
    assert coverage.korn_graubard(ones, failures)[0] == pytest.approx(
        coverage.upper_bounds(np.array([7]), np.array([200]), NOMINAL)[0], rel=0.01
    )
    upper = coverage.upper_bounds(np.array([7, 200]), np.array([200, 200]), NOMINAL)
    assert upper[0] == pytest.approx(
        rates._count_rate("miss", _judged(7, 200), 1 - NOMINAL).upper_bound
    )
    assert upper[1] == 1.0


def _judged(failures, of):
    some = ("1 to 4", "first third", "Latin")
    return [
        SecretOutcome(str(k), "id", bytes([k]), k < failures, False, False, some) for k in range(of)
    ]


def test_the_recorded_table_holds_what_it_promises():
    table = tables.load_recorded("coverage")
    ours = table[table.bound == "one a user"]
    assert set(ours.corpus) == {"customersim", "schema_guided"}
    assert set(ours.dialogues) == set(coverage.SIZES) and set(ours.rate) == set(RATE_NAMES)
    assert (ours.coverage >= ours.draws.map(least)).all()
    assert {"profile", "device", "versions", "date", "seconds", "seed"} <= set(table)


def test_the_page_shows_the_recorded_table():
    lowest = (
        tables.load_recorded("coverage").groupby(["dialogues", "bound"]).coverage.min().unstack()
    )
    page = (SCRIPT.parents[1] / "book" / "guarantees.md").read_text(encoding="utf-8")
    for size, row in lowest.iterrows():
        shown = [
            f"{100 * row[b]:.2f} %" for b in ("one a user", "occurrences", "Korn and Graubard")
        ]
        assert f"| {size} | {' | '.join(shown)} |" in page


@pytest.mark.skipif(
    not os.path.isdir(os.path.join(os.environ.get("CRTLIB_DATA", ""), "sgd")),
    reason="CRTLIB_DATA is unset or has no folder sgd",
)
def test_it_holds_on_dialogues_that_people_wrote():
    from crtlib.text import corpora

    points = data_points.make_points(
        corpora.load_corpus("schema_guided", "dev", limit=800), unit="turn"
    )
    pi = regex_policies.corpus_regex_policy("schema_guided")
    judged = rates.RateCounter(pi, pi).add(points)
    for rate in RATE_NAMES:
        some = coverage.population(judged, [p.user for p in points], rate)
        (ours, *_) = coverage.coverage(some, 100, 1_500, seed=0)
        assert ours["coverage"] >= least(1_500)
