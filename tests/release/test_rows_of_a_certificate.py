"""Each number of one certificate against a formula that stands here, written from the theorems.

All steps read every point (q = 1), so that they compose to one Gaussian, whose profile has a closed
form: with noise of sigma C, replacing g points moves the sum by 2 g C at the most, leaving them out
by g C, and steps add the squares of what they move over their noise. Nothing here asks the
accountants, and no number was printed before.
"""

import math
from dataclasses import replace
from statistics import NormalDist

import pytest
from scipy import optimize, stats

from confide import odometer_lines, spending
from confide.promise_kinds import BAYESIAN_KIND
from confide.release import (
    certifiable_run,
    certificate_parts,
    certify,
    file_sources,
    rate_bounds,
    source_fold,
)
from crtlib.accounting.events import SampledGaussian
from crtlib.intervals import round_up_to_figures
from crtlib.screening import rates
from crtlib.screening.policy import Policy
from crtlib.screening.rate_values import (
    RATE_NAMES,
    PolicyRates,
    Rate,
    rate_upper_bound,
    rates_from_json,
)
from crtlib.screening.secret_shares import ShareOfSecrets
from crtlib.text.records import MASK, Point, Secret

DELTA = 1e-5
PHI = NormalDist().cdf
TEXT, ANOTHER = "c" * 64, "d" * 64
TRIALS = 2
ONE, TWO = SampledGaussian(1.0, 25.0, 1), SampledGaussian(1.0, 30.0, 2)
S, T = file_sources.Screening("5" * 64, 0.06, 0.011), file_sources.Screening("6" * 64, 0.04, 0.007)
HOLDS = {"turn": 5, "dialogue": 2}
"""How many of each one person holds in the text of the certificate."""


# --------------------------------------------------------------------------- the formulas
def moved(events, relation="replace"):
    """Of steps with (noise multiplier, how many of them, points of one unit): how far apart the
    two worlds are, over the noise of all together."""
    each = 2 if relation == "replace" else 1
    return math.sqrt(sum(steps * (each * group / sigma) ** 2 for sigma, steps, group in events))


def delta_of(epsilon, mu):
    """The profile of a Gaussian whose mean moves by mu deviations (Balle and Wang 2018)."""
    return PHI(mu / 2 - epsilon / mu) - math.exp(epsilon) * PHI(-mu / 2 - epsilon / mu)


def epsilon_of(delta, mu):
    if delta_of(0.0, mu) <= delta:
        return 0.0
    return optimize.brentq(lambda e: delta_of(e, mu) - delta, 0.0, 60.0, xtol=1e-12)


def distance(mu):
    """The total variation distance of two Gaussians."""
    return 2 * PHI(mu / 2) - 1


def amplified(gamma, delta2, mu):
    """Theorem 8.3 at DELTA, and delta2 in full."""
    inner = epsilon_of(DELTA / gamma, mu)
    return math.log(1 + gamma * (math.exp(inner) - 1)), DELTA + delta2


def right(copies, gamma, delta2, mu):
    """How often a guess is right about so many secrets: of j that are passed over the distance is
    that of a move j times as far, which is concave in j; their mean number is copies gamma."""
    at = copies * gamma
    low = min(math.floor(at), copies - 1)
    ends = [distance(j * mu) for j in (low, low + 1)]
    mean = ends[0] + (ends[1] - ends[0]) * (at - low)
    return (1 + min(1.0, mean + copies * delta2)) / 2


def upper(count, of, alpha):
    """The rate at which so few failures have a chance of alpha (Clopper and Pearson 1934)."""
    if count == of:
        return 1.0
    return optimize.brentq(lambda p: stats.binom.cdf(count, of, p) - alpha, 1e-12, 1 - 1e-12,
                           xtol=1e-14)  # fmt: skip


def close(found, exact):
    """Not below the truth, and at most what the accountants may charge above."""
    assert exact * (1 - 1e-9) <= found <= exact * (1 + 2e-3) + 1e-12, (found, exact)
    return True


# --------------------------------------------------------------------------- the certificate
def line(run, **changes):
    facts = {
        "entry": run * 64, "previous": None, "time": "", "corpus": TEXT, "run": run,
        "state": "finished", "unit": "turn", "method": "crt", "relation": "replace",
        "events": (), "screening": run * 64, "gamma": 0.0, "delta2": 0.0, "holds": {},
        "repeats_counted": True, "hides_copies": False, "void": (),
    }  # fmt: skip
    return odometer_lines.OdometerEntry(**{**facts, **changes})


FOURTH, UNPROTECTED = (
    # Persons, behind the same searches as this model, whose rates were bounded less well then.
    line("4", unit="user", events=(SampledGaussian(1.0, 60.0, 1),), gamma=0.12, delta2=0.02,
         screening="own"),
    # Without protection: it composes with nothing.
    line("7", method="sgd", events=None, gamma=1.0, delta2=1.0),
)  # fmt: skip
LINES = (
    # Messages of the same text, of which a person holds four there; chosen among three. Of smaller
    # points a rate bounds nothing here: each secret leaves a trace, though none was public.
    line("1", events=(SampledGaussian(1.0, 200.0, 1),), trials=3, gamma=0.03,
         about={"user": {"turn": 4}}),
    # Messages of another text of the same people, which may have been cut in another way: a person
    # holds three there, and five here. It was started and never finished.
    line("2", corpus=ANOTHER, events=(SampledGaussian(1.0, 150.0, 2),), gamma=0.02,
         about={"user": {"turn": 3}}, state="started"),
    # Conversations of the same text; it does not say how many a person holds.
    line("3", unit="dialogue", events=(SampledGaussian(1.0, 80.0, 1),), gamma=0.01),
    FOURTH,
    UNPROTECTED,
)  # fmt: skip
PERSONS = (
    line("5", unit="user", events=(SampledGaussian(1.0, 200.0, 1),), trials=3, gamma=0.03,
         delta2=0.004),
    line("6", unit="user", events=(SampledGaussian(1.0, 80.0, 1),), gamma=0.01, delta2=0.002),
    FOURTH,
    UNPROTECTED,
)  # fmt: skip
"""Persons throughout: the rates of each screening add."""
OWN = [(25.0, 1 * TRIALS, 1), (30.0, 2 * TRIALS, 1)]
ALONE = 0.06 + 0.04, 0.011 + 0.007
SPENT = {
    "smaller points": (
        LINES, [(200.0, 3, 4), (150.0, 2, 5), (80.0, 1, 2), (60.0, 1, 1)], (1.0, 0.02),
    ),
    "persons": (
        PERSONS, [(200.0, 3, 1), (80.0, 1, 1), (60.0, 1, 1)],
        (0.03 + 0.01 + 0.12, 0.004 + 0.002 + 0.02),
    ),
    "nothing": ((), [], ALONE),
}  # fmt: skip
"""Lines of earlier runs, their steps with the points of one person, and gamma and delta2 of all.
Of two screenings in one release both rates add; of one behind which two models were trained the
larger bound counts."""


def record(**changes):
    one = Rate(0, 0, S.trace, "assumed"), Rate(0, 0, S.public, "assumed")
    found = PolicyRates(one[0], *one)
    return {
        "schema": "crtlib/run/2", "key": "00" * 32, "software": {}, "unit": "user",
        "model": {"sha256": "0" * 64, "base": None}, "method": {"name": "crt", "label": "CRT"},
        "corpus": {"name": "talk", "sha256": TEXT, "turns": 1, "users": 1, "users_are": "column",
                   "from": None, "to": None},
        "protects_all": True, "accountant": "pld", "delta": DELTA, "randomness": "seed",
        "phases": [], "rates": found.to_json(), "labels": None, "policies": {},
        "oracle_on_real_text": False, "treated_as_public": [], "odometer": {},
        "searched": {"trials": TRIALS}, "canaries": {"planted": 0, "copies": 0}, **changes,
    }  # fmt: skip


def trained(relation="replace", lines=LINES, screenings=(S, T)):
    """A release of two runs behind a screening each, with what was spent before it."""
    first, second = screenings
    holds = tuple(HOLDS.items())
    sources = [
        file_sources.NoisedSource("a", "user", relation, (ONE,), first, holds, False),
        file_sources.NoisedSource("b", "user", relation, (TWO,), second, holds, False),
        *(file_sources.ScreenedSource("public steps", one) for one in screenings if one),
    ]
    fold = source_fold.combine_sources(sources)
    assert not fold.void
    fold = replace(fold, screening=fold.screening and "own")
    spent = replace(spending.sum_spending(lines), recut_texts={"user": {ANOTHER}})
    return certifiable_run.CertifiableRun(certify.Path("m"), record(), fold, spent)


@pytest.mark.parametrize("relation", ["replace", "add_or_remove"])
@pytest.mark.parametrize("earlier", ["smaller points", "persons"])
def test_epsilon_and_delta_of_a_secret_and_of_one_that_was_passed_over(relation, earlier):
    lines, steps, (gamma, delta2) = SPENT[earlier]
    made = certificate_parts.collect_certificate_parts(
        trained(relation, lines), secrets_per_person=()
    )
    mu, alone = moved(OWN + steps, relation), moved(OWN, relation)
    guarantee, before = made["guarantee"], made["spent_before"]
    whole = trained(relation, lines).promise()
    own = replace(trained(relation), spent=None).promise()
    pairs = (
        (guarantee["missed"], whole.missed_bound(), (epsilon_of(DELTA, mu), DELTA)),
        (guarantee["secret"], whole.random_secret_bound(), amplified(gamma, delta2, mu)),
        (before["alone"], own.random_secret_bound(), amplified(*ALONE, alone)),
    )
    for printed, found, exact in pairs:
        assert close(found[0], exact[0]) and close(found[1], exact[1])
        assert (printed["epsilon"], printed["delta"]) == tuple(
            float(round_up_to_figures(x)) for x in found
        )
    assert before["gamma"] == pytest.approx(gamma, rel=1e-12)
    assert before["delta2"] == pytest.approx(delta2, rel=1e-12)
    assert (before["runs"], before["unprotected"]) == (len(steps), 1)
    assert (guarantee["kind"], guarantee["relation"]) == (BAYESIAN_KIND, relation)


@pytest.mark.parametrize("relation", ["replace", "add_or_remove"])
@pytest.mark.parametrize("earlier", [*SPENT])
def test_right_guesses_and_values_are_for_replacing_whatever_the_relation(relation, earlier):
    lines, steps, (gamma, delta2) = SPENT[earlier]
    promise = trained(relation, lines).promise()
    mu = moved(OWN + steps)
    copies = (2, 5, 9)
    rows = promise.right_guesses(copies)
    exact = [
        ("random", 1, right(1, gamma, delta2, mu)),
        ("missed", 1, right(1, 1.0, 0.0, mu)),
        ("public", 1, 1.0),
        *(("user", k, right(k, gamma, delta2, mu)) for k in copies),
    ]
    assert [row[:2] for row in rows] == [row[:2] for row in exact]
    assert all(close(row[2], one[2]) for row, one in zip(rows, exact, strict=True))
    values = [(p, math.exp(epsilon_of(DELTA, mu)) * p + DELTA) for p in (1e-6, 1e-3)]
    guesses = promise.value_guesses()
    assert [p for p, _ in guesses] == [p for p, _ in values]
    assert all(close(got, one) for (_, got), (_, one) in zip(guesses, values, strict=True))
    if relation == "replace":  # else the certificate is void, and has no such rows
        made = certificate_parts.collect_certificate_parts(
            trained(relation, lines), secrets_per_person=copies
        )
        printed = [(row["who"], row["copies"], row["at_most"]) for row in made["right_guess"]]
        assert printed == [(who, k, min(1.0, float(round_up_to_figures(p)))) for who, k, p in rows]
        printed = [(row["prior"], row["at_most"]) for row in made["value_guess"]]
        assert printed == [(p, float(round_up_to_figures(q))) for p, q in guesses]


def test_any_one_person_where_nothing_was_redacted():
    made, mu = trained(lines=LINES[-1:], screenings=(None, None)), moved(OWN)
    rows = made.promise().right_guesses((3,))
    assert [row[:2] for row in rows] == [("missed", 1), ("user", 3)]
    assert close(rows[0][2], (1 + distance(mu)) / 2) and close(rows[1][2], right(3, 1.0, 0.0, mu))
    parts = certificate_parts.collect_certificate_parts(made, secrets_per_person=())
    assert parts["guarantee"]["kind"] == "dp"
    assert parts["guarantee"]["secret"] == parts["guarantee"]["missed"]
    assert close(made.promise().random_secret_bound()[0], epsilon_of(DELTA, mu))


def test_the_average_over_the_draw_of_the_labels():
    """(count + 1) / (of + 1) for each pair that was judged, of this model's own search."""
    judged, trace, public = 2, (3, 80), (0, 80)
    alpha = 0.05 / (2 * judged)
    bounds = [Rate(k, n, rate_upper_bound(k, n, alpha=alpha), "one_per_cluster")
              for k, n in (trace, public)]  # fmt: skip
    exact = [upper(k, n, alpha) for k, n in (trace, public)]
    assert [rate.upper_bound for rate in bounds] == pytest.approx(exact, rel=1e-9)
    own = file_sources.Screening("5" * 64, *(rate.upper_bound for rate in bounds))
    run = file_sources.NoisedSource("a", "turn", "replace", (ONE,), own)
    fold = source_fold.combine_sources([run, file_sources.ScreenedSource("public steps", own)])
    told = {"sha256": "e" * 64, "drawn": "at_random", "others": 40, "judged": judged, "alpha": 0.05}
    told["cluster"] = "user"
    content = record(rates=PolicyRates(bounds[0], *bounds).to_json(), labels=told, unit="turn")
    content["searched"] = {"trials": 1}
    made = certifiable_run.CertifiableRun(
        certify.Path("m"), content, fold, spending.SpentBudget(())
    )
    rows = {
        row["who"]: row["at_most"]
        for row in certificate_parts.collect_certificate_parts(made, secrets_per_person=())[
            "right_guess"
        ]
    }
    mu = moved([(25.0, 1, 1)])
    mean = [judged * (k + 1) / (n + 1) for k, n in (trace, public)]
    for who, shares in (("other", mean), ("random", exact)):
        truth = right(1, *shares, mu)
        assert truth * (1 - 1e-9) <= rows[who] <= truth * 1.004, who


def test_a_share_of_all_secrets_goes_when_its_labels_judge_more_policies():
    """Its bound holds for as many pairs as were judged when it was counted, and follows from no
    count."""
    every = ShareOfSecrets(0.2, 0.3, 4, 0.025)
    one = Rate(3, 80, rate_upper_bound(3, 80, alpha=0.025), "one_per_cluster")
    found = PolicyRates(*[replace(one, all_secrets=every)] * 3)
    told = {"sha256": "e" * 64, "drawn": "at_random", "judged": 1, "alpha": 0.05}
    content = record(rates=found.to_json(), labels=told)
    made = replace(trained(), record=content, spent=None)
    for judged, kept in ((1, True), (2, False)):
        now = rate_bounds.with_current_label_counts(made, {"judged": judged}).record["rates"]
        assert all(("all_secrets" in now[name]) == kept for name in RATE_NAMES)
        assert (now["trace"]["upper"] > one.upper_bound) != kept


# --------------------------------------------------------------------------- the rates
NUMBER = "555-1234"


def said(text, who):
    """A point in which every number is labelled."""
    starts = [k for k in range(len(text)) if text.startswith(NUMBER, k)]
    spans = tuple(Secret("phone", k, k + len(NUMBER)) for k in starts)
    return Point(f"p{who}", f"u{who}", text, spans)


def spans_of(text, words):
    """Where these words stand."""
    places = [
        (k, k + len(word)) for word in words for k in range(len(text)) if text.startswith(word, k)
    ]
    return [Secret("x", start, end) for start, end in sorted(places)]


def finds(points):
    """It flags a number after "is", and no other; and "thanks" where a number stands."""
    out = []
    for p in points:
        after = [Secret("x", s.start + 3, s.end) for s in spans_of(p.text, [f"is {NUMBER}"])]
        beside = spans_of(p.text, ["thanks"] if NUMBER in p.text else [])
        out.append(after + beside)
    return out


def doubts(points):
    """It flags "call"."""
    return [spans_of(p.text, ["call"]) for p in points]


SAID = [
    *[f"it is {NUMBER}"] * 9,  # found whole
    *[f"it is {NUMBER} thanks"] * 3,  # found, and what was beside it is flagged no more: a trace
    *[f"call {NUMBER}"] * 4,  # passed over, and learned with noise
    *[f"use {NUMBER}"] * 2,  # passed over by both
    *[f"it is {NUMBER} , use {NUMBER}"] * 5,  # one secret, of which the second place is left
]


def test_three_rates_of_points_that_were_counted_by_hand():
    points = [said(f"{text} , said {k}", k) for k, text in enumerate(SAID)]
    judged = 3
    found = rates.measure_rates(points, Policy("a", finds), Policy("b", doubts, own_words=True),
                        policy_pairs=judged)  # fmt: skip
    assert found.trace.labelled_counts == (3 + 4 + 2 + 10, 28)
    assert found.public.labelled_counts == (2, 28)
    assert found.miss.labelled_counts == (4 + 2 + 10, 28)
    assert (found.trace.failures, found.trace.judged_secrets) == (3 + 4 + 2 + 5, 23)
    assert found.public.failures == 2
    alpha = 0.05 / (2 * judged)
    assert found.gamma == pytest.approx(upper(14, 23, alpha), rel=1e-9)
    assert found.delta2 == pytest.approx(upper(2, 23, alpha), rel=1e-9)
    assert MASK not in "".join(SAID)  # it would be no public point
    twice = rates.measure_rates([said(text, k) for k, text in enumerate(SAID)], Policy("a", finds),
                        Policy("b", doubts, own_words=True))  # fmt: skip
    assert twice.trace.labelled_counts == (28, 28)  # each message stands twice
    later = rates_from_json(found.to_json(), policy_pairs=7)
    assert later.gamma == pytest.approx(upper(14, 23, 0.05 / 14), rel=1e-9)


def test_a_bound_by_two_readers_is_the_sum_of_two():
    exact = upper(4, 90, 0.0125) + upper(1, 60, 0.0125)
    assert rate_upper_bound(4, 90, (1, 60), alpha=0.025) == pytest.approx(exact, rel=1e-9)
