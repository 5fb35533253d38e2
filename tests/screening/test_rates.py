"""The three rates of the theorem: what they count, their bounds, and who may judge."""

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from crtlib.intervals import clopper_pearson_upper, exchangeable_rate
from crtlib.screening import detection_recall, policy_changes, rates, regex_policies, tagger
from crtlib.screening.policy import Policy
from crtlib.screening.preparation import prepare_points
from crtlib.screening.rate_values import (
    RATE_NAMES,
    UNKNOWN_RATE,
    PolicyRates,
    Rate,
    assumed_rate,
    percent_rounded_up,
    rate_upper_bound,
    rates_from_json,
)
from crtlib.screening.redaction import redact
from crtlib.screening.secret_outcomes import SecretOutcome, draw_order, first_per_cluster
from crtlib.text import canaries, customersim, data_points
from crtlib.text.records import MASK, Point, Secret

CORPUS = customersim.simulate_corpus(60, 0)
POINTS = data_points.make_points(CORPUS, unit="turn")


def flagging(name, spans_of):
    return Policy(name, lambda points: [spans_of(p) for p in points], reads_labels=True)


def halves(p):
    """It flags half of each secret that still stands, wherever it stands."""
    return tuple(Secret("x", s.start, (s.start + s.end) // 2) for s in p.secrets)


def greedy(p):
    """It takes the character after each secret along, and finds nothing where none stands."""
    return tuple(Secret("x", s.start, min(s.end + 1, len(p.text))) for s in p.secrets)


def points(*said, user="u{}"):
    """What stands in brackets is a secret."""
    made = []
    for i, text in enumerate(said):
        before, _, rest = text.partition("[")
        secret, _, after = rest.partition("]")
        span = (Secret("id", len(before), len(before) + len(secret)),) if secret else ()
        made.append(Point(f"d{i}/0", user.format(i), before + secret + after, span))
    return made


def test_a_value_after_control_characters_leaves_a_trace_where_the_policy_passes_it_over():
    """Fault: places were counted without the bells, so the second Lindner was blacked out where the
    number is, which is masked anyway: no trace was seen."""
    bells = "\a" * len("5551234 ")
    number = len("Lindner ") + len(bells)
    masked = (Secret("id", 0, len("Lindner")), Secret("id", number, number + len("5551234")))
    (point,) = points(f"[Lindner] {bells}5551234 Lindner")
    counter = rates.RateCounter(
        flagging("both", lambda p: masked),
        regex_policies.everything_policy,
        find_values_in_whole_point=True,
    )
    (judged,) = counter.add([replace(point, dialogue_id="d0")])
    assert (judged.miss, judged.trace) == (True, True)


# --------------------------------------------------------------------------- what is counted
def test_each_labelled_spelling_of_a_short_value_is_looked_for():
    """Fault: a value too short to be compared was looked for as its first label has it, so that the
    last "LI" counted as no miss and left no trace."""
    first = (Secret("name", 5, 7), Secret("name", 9, 11))
    point = Point("d", "u", "I am Li. LI it is: LI", first, dialogue_id="d")
    counter = rates.RateCounter(
        flagging("labels", lambda p: first if MASK not in p.text else ()),
        regex_policies.everything_policy,
        find_values_in_whole_point=True,
    )
    assert {(judged.miss, judged.trace) for judged in counter.add([point])} == {(True, True)}


def test_recall_is_neither_gamma_nor_delta2():
    """A policy that flags half of each secret, or a neighbour: recall is wrong on both sides."""
    some = points(*(f"my pin is [{n}] now" for n in range(1000, 1100)))
    half, wide = flagging("half", halves), flagging("greedy", greedy)
    found = rates.measure_rates(some, half, half)
    assert detection_recall.recall_by_kind(some, half(some)).loc["all", "caught"] == 0
    assert (found.miss.failures, found.trace.failures, found.public.failures) == (100, 100, 0)
    found = rates.measure_rates(some, wide, wide)
    assert detection_recall.recall_by_kind(some, wide(some)).loc["all", "recall"] == 1
    assert (found.miss.failures, found.trace.failures, found.public.failures) == (0, 100, 0)
    assert found.gamma == 1.0
    silent = rates.measure_rates(some, regex_policies.none_policy, regex_policies.none_policy)
    assert (silent.miss.failures, silent.trace.failures, silent.public.failures) == (100, 100, 100)


def test_a_space_between_two_spans_is_no_miss_and_leaves_a_trace():
    some = points("I am [Ada Lovelace]")
    words = flagging(
        "words", lambda p: (Secret("n", 5, 8), Secret("n", 9, 17)) if "Ada" in p.text else ()
    )
    found = rates.measure_rates(some, words, regex_policies.none_policy)
    assert (found.miss.failures, found.trace.failures, found.public.failures) == (0, 1, 0)


def test_a_policy_that_reads_the_context_is_judged_on_the_neighbour():
    """It finds the pin only behind a name: masking the name lets the pin go."""
    said = Point("0", "u", "Ada 7351", (Secret("name", 0, 3),))

    def spans(p):
        name = (Secret("name", 0, 3),) if p.text.startswith("Ada") else ()
        return (*name, Secret("pin", 4, 8)) if name else ()

    found = rates.measure_rates([said], flagging("context", spans), regex_policies.none_policy)
    assert (found.miss.failures, found.trace.failures) == (0, 1)


def test_what_a_policy_flags_beside_the_secret_leaves_no_trace():
    """It is redacted in the neighbour as well, as the policy speaks of it there."""
    both = flagging("both", lambda p: (*p.secrets, Secret("x", len(p.text) - 2, len(p.text))))
    (point,) = points("pin [77] ok")
    assert rates.measure_rates([point], both, both).trace.failures == 0
    only = flagging("only", lambda p: (Secret("x", 0, 3), *p.secrets))
    assert rates.measure_rates([point], only, only).trace.failures == 0


def test_a_point_that_holds_a_mask_already_is_not_public():
    some = points(f"{MASK} said [7351]")
    assert (
        rates.measure_rates(
            some, regex_policies.none_policy, regex_policies.none_policy
        ).public.failures
        == 0
    )


TARGETS = [p for p in POINTS if p.secrets]


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(TARGETS), st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 5), st.data())
def test_without_a_trace_both_worlds_prepare_alike_and_without_public_no_secret_is(
    point, gamma, seed, data
):
    """What Theorem 8.3 needs of the two events, checked on what training would read."""
    base = data.draw(st.sampled_from(["regex", "oracle", "half"]))
    pi = {
        "regex": regex_policies.corpus_regex_policy(),
        "oracle": regex_policies.oracle_policy,
        "half": flagging("half", halves),
    }
    pi = policy_changes.with_misses(pi[base], gamma, seed)
    pi_c = data.draw(
        st.sampled_from(
            [
                regex_policies.none_policy,
                regex_policies.corpus_regex_policy(),
                regex_policies.everything_policy,
            ]
        )
    )
    judged = rates.RateCounter(pi, pi_c, seed=seed).add([point])
    for secret, j in zip(point.secrets, judged, strict=True):
        worlds = [point], [redact(point, [secret])]
        ours, theirs = (prepare_points(w, pi(w), pi_c(w), dedup="none") for w in worlds)
        if not j.trace:
            assert [p.text for p in ours.private] == [p.text for p in theirs.private]
            assert ours.public == theirs.public == ()
        elif not j.public:
            assert ours.public == theirs.public == ()
            assert len(ours.private) == len(theirs.private) == 1
        assert j.public == bool(ours.public)
        if j.miss:
            assert j.trace


# --------------------------------------------------------------------------- the bound
@pytest.mark.parametrize(("count", "of"), [(0, 1), (0, 60), (3, 60), (59, 60), (13, 400)])
@pytest.mark.parametrize("pairs", [1, 3])
def test_the_bound_is_the_rate_at_which_so_few_are_as_rare_as_alpha(count, of, pairs):
    """P[at most count of of] = alpha at the bound, alpha = 0.05 / (2 pairs), by the tail itself."""
    some = points(*(f"[{n}]" if n >= count else f"x[{n}]" for n in range(of)))
    finds = flagging(
        "not after x", lambda p: p.secrets if p.secrets and p.secrets[0].start == 0 else ()
    )
    found = rates.measure_rates(some, finds, regex_policies.none_policy, policy_pairs=pairs)
    assert found.alpha == 0.05 / (2 * pairs)
    assert (found.miss.failures, found.miss.judged_secrets, found.miss.rate) == (
        count,
        of,
        count / of,
    )
    assert found.public.failures == count
    assert binom.cdf(count, of, found.miss.upper_bound) == pytest.approx(found.alpha, rel=1e-6)


def test_labels_needed_are_those_of_the_table():
    """Without a failure n = ln a / ln(1 - r): 72 for 5 %, 183 for 2 %, 368 for 1 %."""
    for n, r in ((72, 0.05), (183, 0.02), (368, 0.01), (736, 0.005)):
        for users, holds in ((n, True), (n - 1, False)):
            some = points(*(f"[{k}]" for k in range(users)))
            assert (
                rates.measure_rates(
                    some, regex_policies.oracle_policy, regex_policies.none_policy
                ).gamma
                <= r
            ) == holds
        assert n == math.ceil(math.log(0.025) / math.log1p(-r))


def test_one_secret_of_each_user_counts_and_every_one_of_them_may():
    """However many secrets a user has; over seeds each is taken equally often."""
    text = "1 2 3 4"
    many = tuple(Secret("id", i, i + 1) for i in (0, 2, 4, 6))
    some = [Point(f"d/{i}", "ann", text, many) for i in range(2)]
    some.append(Point("e/0", "bob", "9", (Secret("id", 0, 1),)))
    found = rates.measure_rates(some, regex_policies.none_policy, regex_policies.none_policy)
    assert (found.miss.judged_secrets, found.secrets, found.miss.labelled_counts) == (2, 9, (9, 9))
    taken = Counter()
    for seed in range(4000):
        judged = rates.RateCounter(
            regex_policies.none_policy, regex_policies.none_policy, seed=seed
        ).add(some)
        where = [(p.id, s.start) for p in some for s in p.secrets]
        chosen = {id(j) for j in first_per_cluster(judged)}
        taken.update(w for w, j in zip(where, judged, strict=True) if id(j) in chosen)
    assert taken.pop(("e/0", 0)) == 4000
    assert len(taken) == 8
    assert all(abs(n - 500) < 5 * (4000 / 8 * 7 / 8) ** 0.5 for n in taken.values())


def test_dialogues_are_the_clusters_where_they_were_drawn_or_no_user_is_known():
    secret = (Secret("id", 0, 1),)
    some = [Point(f"{d}/{i}", "ann", "7", secret, dialogue_id=d) for d in "ab" for i in range(3)]
    assert (
        rates.measure_rates(
            some, regex_policies.none_policy, regex_policies.none_policy
        ).miss.judged_secrets
        == 1
    )
    assert (
        rates.measure_rates(
            some, regex_policies.none_policy, regex_policies.none_policy, cluster="dialogue"
        ).miss.judged_secrets
        == 2
    )
    nobody = [replace(p, user="") for p in some]
    assert (
        rates.measure_rates(
            nobody, regex_policies.none_policy, regex_policies.none_policy
        ).miss.judged_secrets
        == 2
    )
    with pytest.raises(ValueError, match="a point has no dialogue_id"):
        rates.measure_rates(
            [replace(p, dialogue_id="") for p in nobody],
            regex_policies.none_policy,
            regex_policies.none_policy,
        )


def test_kinds_have_bounds_of_their_own():
    found = rates.measure_rates(
        POINTS,
        policy_changes.with_misses(regex_policies.corpus_regex_policy(), 0.2, 0),
        regex_policies.none_policy,
    )
    assert set(found.by_kind) == {s.kind for p in POINTS for s in p.secrets}
    for kind, three in found.by_kind.items():
        users = {p.user for p in POINTS if any(s.kind == kind for s in p.secrets)}
        assert three["miss"].judged_secrets == len(users)
    assert found.trace.judged_secrets == len({p.user for p in POINTS if p.secrets}) == 60


# --------------------------------------------------------------------------- who may judge
def test_canaries_never_count():
    planted = data_points.make_points(
        canaries.insert_canaries(CORPUS, canaries.make_canaries(10, seed=3), copies=20, seed=3),
        unit="turn",
    )
    only = flagging("ids", lambda p: tuple(s for s in p.secrets if s.kind == "id"))
    assert rates.measure_rates(planted, only, only) == rates.measure_rates(POINTS, only, only)
    alone = [p for p in planted if p.user.startswith(canaries.CANARY_USER_PREFIX)]
    assert rates.measure_rates(alone, only, only).miss.origin == "unknown"


def test_who_taught_a_policy_does_not_judge_it_in_whatever_unit():
    users = sorted({p.user for p in POINTS})[:20]
    teachers = [p for p in POINTS if p.user in users]
    learned = tagger.train_tagger(teachers, seed=0, epochs=1)
    pi, pi_c = tagger.tagger_policy(learned), tagger.conservative_tagger_policy(learned)
    assert pi.learned and not regex_policies.corpus_regex_policy().learned
    found = rates.measure_rates(POINTS, pi, pi_c)
    assert found.miss.judged_secrets == 40
    assert (found.left_out_points, found.left_out_clusters) == (len(teachers), 20)
    for policy in (
        policy_changes.union_policy(regex_policies.corpus_regex_policy(), pi),
        policy_changes.with_misses(pi, 0.1, 0),
    ):
        assert (
            policy.learned
            and rates.measure_rates(POINTS, policy, regex_policies.none_policy).miss.judged_secrets
            == 40
        )
    dialogues = data_points.make_points(CORPUS, unit="dialogue")
    assert rates.measure_rates(dialogues, pi, pi_c).miss.judged_secrets == 40
    assert rates.measure_rates(teachers, pi, pi_c).miss == Rate(0, 0, 1.0, "unknown")


def test_flags_that_are_known_already_are_not_asked_for_again():
    calls = Counter()

    def count(p):
        calls[p.text] += 1
        return p.secrets

    pi = flagging("counting", count)
    fresh = rates.measure_rates(POINTS, pi, pi)
    calls.clear()
    known = rates.measure_rates(POINTS, pi, pi, flags=pi(POINTS), conservative_flags=pi(POINTS))
    copies = Counter(p.text for p in POINTS)
    unique = next(p.text for p in POINTS if not p.secrets and copies[p.text] == 1)
    assert known == fresh and calls[unique] == 2


def test_batches_add_up_to_the_whole_and_the_seed_draws_the_secret():
    pi = policy_changes.with_misses(regex_policies.corpus_regex_policy(), 0.3, 0)
    made = rates.RateCounter(pi, regex_policies.none_policy, seed=3)
    for batch in (POINTS[:50], POINTS[50:]):
        made.add(batch)
    whole = rates.RateCounter(pi, regex_policies.none_policy, seed=3)
    assert made.outcomes == whole.add(POINTS) and made.rates() == whole.rates()
    assert made.rates().points == len(POINTS)
    assert (
        made.outcomes[0].order
        != rates.RateCounter(pi, regex_policies.none_policy).add(POINTS)[0].order
    )


# --------------------------------------------------------------------------- without labels
def test_without_labels_nothing_is_known_but_of_the_policy_that_flags_everything():
    bare = [Point(p.id, p.user, p.text) for p in POINTS]
    found = rates.measure_rates(
        bare, regex_policies.corpus_regex_policy(), regex_policies.corpus_regex_policy()
    )
    assert found.miss == found.trace == found.public == Rate(0, 0, 1.0, "unknown")
    assert (found.gamma, found.delta2) == (1.0, 1.0)
    found = rates.measure_rates(
        bare, regex_policies.corpus_regex_policy(), regex_policies.everything_policy
    )
    assert (found.gamma, found.delta2, found.public.origin) == (1.0, 0.0, "policy")
    both = policy_changes.union_policy(
        regex_policies.corpus_regex_policy(), regex_policies.everything_policy
    )
    assert rates.measure_rates(bare, regex_policies.corpus_regex_policy(), both).delta2 == 0.0
    dialled = policy_changes.with_misses(regex_policies.everything_policy, 0.1, 0)
    assert rates.measure_rates(bare, regex_policies.corpus_regex_policy(), dialled).delta2 == 1.0
    assert (
        rates.measure_rates(
            POINTS, regex_policies.everything_policy, regex_policies.none_policy
        ).gamma
        == 0.0
    )


def test_the_json_form_is_that_of_summary_and_certificate():
    found = rates.measure_rates(
        POINTS, regex_policies.corpus_regex_policy(), regex_policies.everything_policy
    ).to_json()
    assert set(found) == {"miss", "trace", "public", "by_kind"}
    assert found == json.loads(json.dumps(found, allow_nan=False))
    every = [found[n] for n in RATE_NAMES] + [
        r for k in found["by_kind"].values() for r in k.values()
    ]
    for rate in every:
        assert {"count", "of", "rate", "upper", "how"} <= set(rate) <= {*rate, "all"}
        assert rate["how"] in ("one_per_cluster", "assumed", "policy", "unknown")
    assert UNKNOWN_RATE.to_json() == {
        "count": 0, "of": 0, "rate": None, "upper": 1.0, "how": "unknown"
    }  # fmt: skip


def test_what_was_written_is_read_again():
    found = rates.measure_rates(
        POINTS,
        regex_policies.corpus_regex_policy(),
        regex_policies.everything_policy,
        policy_pairs=2,
    )
    again = rates_from_json(json.loads(json.dumps(found.to_json())), policy_pairs=2)
    assert again.by_kind == found.by_kind and len(found.by_kind) > 1
    assert (again.miss, again.trace, again.public) == (found.miss, found.trace, found.public)
    assert again.policy_pairs == 2 and rates_from_json(found.to_json()).policy_pairs == 1
    users = len({p.user for p in POINTS})
    assert found.labels_json() == {
        "cluster": "user", "turns": len(POINTS), "secrets": sum(len(p.secrets) for p in POINTS),
        "judged": 2, "alpha": 0.0125, "left_out": 0,
    }  # fmt: skip
    assert found.miss.judged_secrets == users and found.trace.labelled_counts[1] == sum(
        len(p.secrets) for p in POINTS
    )


def test_a_rate_is_said_in_words():
    assert str(UNKNOWN_RATE) == "unknown: no label shows a secret"
    assert str(assumed_rate(0.25)) == "at most 25.00 % (assumed)"
    assert str(Rate(0, 9, 0.0, "policy")) == "at most 0.00 % (policy)"
    assert str(Rate(1, 8, 0.52651, "one_per_cluster")) == "1 of 8 (12.50 %), at most 52.66 %"
    assert str(Rate(0, 8, 1.0, "one_per_cluster")) == "0 of 8 (0.00 %), at most 100.00 %"
    assert assumed_rate(0.1) == Rate(0, 0, 0.1, "assumed") and assumed_rate(1).upper_bound == 1
    assert assumed_rate(0).upper_bound == 0


def test_the_table_names_each_rate_and_what_it_counts():
    miss, trace = Rate(1, 8, 0.52651, "one_per_cluster"), Rate(8, 8, 1.0, "one_per_cluster")
    assert PolicyRates(miss, trace, UNKNOWN_RATE, cluster="dialogue").table().splitlines() == [
        "one secret a dialogue, 8 dialogues          count     of     rate   at most",
        "miss    secrets the search missed               1      8  12.50 %   52.66 %",
        "trace   the redacted point still differs        8      8 100.00 %  100.00 %",
        "public  a secret trained on without noise       0      0        -  100.00 %",
    ]


def test_the_table_fits_a_terminal_and_rounds_bounds_upwards():
    some = points(*(f"[{n}]" for n in range(400)))
    table = rates.measure_rates(
        some, regex_policies.oracle_policy, regex_policies.none_policy
    ).table()
    assert max(map(len, table.splitlines())) <= 80
    assert "0.92 %" in table  # 0.9180 %
    assert percent_rounded_up(0.03) == "3.00 %" and percent_rounded_up(1.0) == "100.00 %"


def test_thousands_of_secrets_in_one_point_are_judged_by_the_one_that_counts():
    text = "7 " * 3000
    one = Point("d/0", "ann", text, tuple(Secret("id", 2 * i, 2 * i + 1) for i in range(3000)))
    found = rates.measure_rates([one], regex_policies.none_policy, regex_policies.none_policy)
    assert (found.trace.failures, found.trace.judged_secrets, found.trace.labelled_counts) == (
        1,
        1,
        None,
    )
    assert found.miss.labelled_counts == (3000, 3000)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: rates.measure_rates(
                POINTS, regex_policies.none_policy, regex_policies.none_policy, policy_pairs=0
            ),
            "policy_pairs=0: must be at least 1",
        ),
        (
            lambda: rates.measure_rates(
                POINTS, regex_policies.none_policy, regex_policies.none_policy, cluster="x"
            ),
            "cluster='x'",
        ),
        (lambda: assumed_rate(1.5), r"rate=1.5: must be in \[0, 1\]"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# Two readers.


def one(user, *, fails, sure=True, again=None, start=0, order=None):
    order = order or draw_order(0, user, start)
    traits = ("1 to 4", "", "")
    return SecretOutcome(user, "name", order, fails, fails, fails, traits, sure, again)


def test_a_mark_of_one_reader_counts_where_it_fails_and_nowhere_else():
    rows = [one(f"u{k}", fails=k < 3, sure=k % 2 == 0) for k in range(10)]  # 1 of the 3 is doubted
    counter = rates.RateCounter(regex_policies.none_policy, regex_policies.none_policy)
    trace = counter.rates(outcomes=rows).trace
    assert (trace.failures, trace.judged_secrets, trace.labelled_counts) == (3, 6, (3, 10))
    # What is taken of a user does not hide a failure behind a mark that nobody else saw.
    both = [
        one("u", fails=f, sure=s, start=k)
        for k, (f, s) in enumerate([(False, False), (True, True)])
    ]
    for some in (both, both[::-1]):
        trace = counter.rates(outcomes=some).trace
        assert (trace.failures, trace.judged_secrets) == (1, 1)


def test_what_the_first_reader_overlooked_is_added_to_the_bound():
    rows = [one(f"u{k}", fails=k < 3, again="found" if k < 40 else "") for k in range(100)]
    rows += [one(f"v{k}", fails=k < 2, again="new") for k in range(5)]
    rows += [one(f"w{k}", fails=False, sure=False, again="new") for k in range(9)]  # doubted
    counter = rates.RateCounter(regex_policies.none_policy, regex_policies.none_policy)
    trace = counter.rates(outcomes=rows).trace
    assert (trace.failures, trace.judged_secrets, trace.reread_counts) == (3, 100, (2, 45))
    parts = [clopper_pearson_upper(x, n, confidence=1 - 0.0125) for x, n in ((3, 100), (2, 45))]
    assert trace.upper_bound == pytest.approx(sum(parts))
    again = rates_from_json(
        json.loads(json.dumps(counter.rates(outcomes=rows).to_json())), policy_pairs=2
    )
    assert (
        again.trace == counter.rates(policy_pairs=2, outcomes=rows).trace
        and again.trace.upper_bound > trace.upper_bound
    )
    alone = [one("u", fails=False, again="")]
    assert (
        counter.rates(outcomes=alone).trace.upper_bound == 1
    )  # a second reader who found nothing bounds nothing


class World:
    """Turns with at most one secret, readers who overlook it (hard ones more often, as the policy
    misses hard ones more often), and who mark what is none in 2 % of the turns each."""

    def __init__(self, rng, n, *, hard, fails, overlooks, share, decided):
        has, is_hard = rng.random(n) < 0.6, rng.random(n) < hard
        seen = [has & (rng.random(n) >= np.where(is_hard, *each)) for each in overlooks]
        false = [rng.random(n) < 0.02 for _ in seen]
        draw = np.arange(n) < share * n
        first = seen[0] | false[0]
        twice = first | draw
        seen[1] &= twice
        # Three marks a turn may have: of the secret, and what either reader takes for one.
        self.marked = np.stack([seen[0] | seen[1], false[0], false[1] & twice], 1)
        self.fails = rng.random((n, 3)) < 0.5
        self.fails[:, 0] = rng.random(n) < np.where(is_hard, *fails)
        self.sure = np.zeros((n, 3), bool)
        self.sure[:, 0] = seen[0] & seen[1]
        if decided:
            self.sure[:, 0] = self.marked[:, 0]
            self.marked[:, 1:] = False
        stands = seen[1] & self.sure[:, 0]
        self.again = np.where(draw & ~first, "new", np.where(draw & stands, "found", ""))
        self.order = rng.random((n, 3))

    def counts(self):
        """What is counted, by arrays."""
        kept = self.marked & (self.sure | self.fails)
        at = np.where(kept, self.order, 2.0).argmin(1)
        fails = np.take_along_axis(self.fails, at[:, None], 1)[:, 0] & kept.any(1)
        new, found = self.again == "new", self.again == "found"
        rest = kept.any(1) & ~new
        new &= kept.any(1)
        return (fails & rest).sum(), rest.sum(), ((fails & new).sum(), new.sum() + found.sum())

    def rows(self):
        """The same as the counter has it."""
        rank = self.order.ravel().argsort().argsort().reshape(self.order.shape)
        return [
            one(f"u{k}", fails=bool(self.fails[k, i]), sure=bool(self.sure[k, i]),
                again=str(self.again[k]), order=int(rank[k, i]).to_bytes(4))
            for k, i in zip(*self.marked.nonzero(), strict=True)
        ]  # fmt: skip


SLIPS = {"hard": 0.2, "fails": (0.15, 0.01), "overlooks": ((0.3, 0.05), (0.3, 0.05))}
"""Each reader overlooks 10 % of the secrets; chances are of hard ones and of the others."""
HARDER = {"hard": 0.15, "fails": (0.5, 0.01), "overlooks": ((0.4, 0.05), (0.2, 0.05))}


def coverage(n=660, draws=2_000, **how):
    """How often the rate is within the bound that one reader, or two, give."""
    rng = np.random.default_rng(5)
    truth = how["hard"] * how["fails"][0] + (1 - how["hard"]) * how["fails"][1]
    two = one_reader = 0
    for _ in range(draws):
        count, of, again = World(rng, n, **how).counts()
        two += rate_upper_bound(count, of, again, alpha=0.025) >= truth
        one_reader += rate_upper_bound(count, of, alpha=0.025) >= truth
    return two / draws, one_reader / draws


@pytest.mark.parametrize("world", [SLIPS, HARDER], ids=["slips", "harder"])
@pytest.mark.parametrize(("share", "decided"), [(0.2, False), (0.2, True), (1, False), (1, True)])
def test_the_bound_by_two_readers_covers(world, share, decided):
    two, alone = coverage(**world, share=share, decided=decided)
    assert two >= 0.975
    if world is HARDER and decided:
        assert alone < 0.9  # without what the first overlooked it is too small


def test_the_counter_counts_as_the_simulation_does():
    rng = np.random.default_rng(1)
    for k in range(8):
        world = World(rng, 200, **(SLIPS, HARDER)[k % 2], share=0.3, decided=k % 4 < 2)
        found = rates._count_rate("trace", world.rows(), 0.025)
        assert (found.failures, found.judged_secrets, found.reread_counts) == world.counts()


def test_bounds_on_average_are_of_the_same_counts():
    pi = policy_changes.with_misses(regex_policies.oracle_policy, 0.3, seed=0)
    sure, mean = (
        rates.measure_rates(
            POINTS, pi, regex_policies.everything_policy, policy_pairs=2, origin=origin
        )
        for origin in ("one_per_cluster", "exchangeable")
    )
    assert (mean.trace.failures, mean.trace.judged_secrets) == (
        sure.trace.failures,
        sure.trace.judged_secrets,
    )
    assert mean.trace.upper_bound == exchangeable_rate(
        sure.trace.failures, sure.trace.judged_secrets, policy_pairs=2
    )
    assert str(mean.trace).endswith("on average") and mean.public == sure.public
    assert {r.origin for row in mean.by_kind.values() for r in row.values()} <= {
        "exchangeable", "policy"
    }  # fmt: skip
    with pytest.raises(ValueError, match="origin"):
        rates.measure_rates(POINTS, pi, regex_policies.none_policy, origin="assumed")
