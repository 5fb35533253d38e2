"""Messages that stand twice: what they decide about others, and what a secret in one tells."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crtlib.screening import deduplication, policy_changes, preparation, rates, regex_policies
from crtlib.screening.deduplication import TextCounts, hash_point_text
from crtlib.screening.policy import Policy, stable_under_masking
from crtlib.screening.preparation import prepare_points
from crtlib.screening.redaction import redact
from crtlib.text.records import MASK, Point, Secret

WORDS = ["ada", "bob", "it is", "7", "thanks", f"{MASK}"]


def _flag(*wanted):
    """Flags each of the words, wherever it stands."""

    def flag(points):
        for p in points:
            yield [
                Secret("x", i, i + len(w))
                for i in range(len(p.text))
                for w in wanted
                if p.text.startswith(w, i)
            ]

    return Policy("+".join(wanted) or "silent", flag)


def drawn(coin, n):
    """Short texts of few words, so that most stand twice; each names its speaker's secret."""
    texts = (" ".join(coin.choices(WORDS, k=coin.randint(1, 3))) for _ in range(n))
    return [Point(f"p{i}", f"u{coin.randint(0, 3)}", text) for i, text in enumerate(texts)]


def parts(points, pi, pi_c, duplicates, scope="all"):
    made = prepare_points(points, pi(points), pi_c(points), dedup=scope, duplicates=duplicates)
    return Counter(p.text for p in made.public), Counter(p.text for p in made.private)


def is_private(point, pi, pi_c):
    return bool(pi([point])[0] or pi_c([point])[0] or MASK in point.text)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    pi=st.sampled_from([(), ("ada",), ("ada", "7"), ("bob",)]),
    pi_c=st.sampled_from([(), ("bob",), ("ada", "bob")]),
    gamma=st.sampled_from([0.0, 0.5]),
    duplicates=st.sampled_from(preparation.CERTIFIABLE_TREATMENTS),
    scope=st.sampled_from(["all", "flagged"]),
)
def test_one_message_decides_about_no_other(seed, pi, pi_c, gamma, duplicates, scope):
    """What one private message may change, whichever others repeat it: one private point."""
    coin = random.Random(seed)
    pi, pi_c = policy_changes.with_misses(_flag(*pi), gamma, 0), _flag(*pi_c)
    points = drawn(coin, coin.randint(2, 12))
    k = coin.randrange(len(points))
    (other,) = drawn(coin, 1)
    changed = [*points[:k], replace(other, id=points[k].id), *points[k + 1 :]]
    if not (is_private(points[k], pi, pi_c) and is_private(changed[k], pi, pi_c)):
        return
    (public, private), (public2, private2) = (
        parts(world, pi, pi_c, duplicates, scope) for world in (points, changed)
    )
    assert public == public2
    assert private.total() == private2.total()
    assert (private - private2).total() <= 1


def test_dropped_copies_of_private_points_change_their_number():
    """With "drop", once the default, a found secret in a repeated message is seen in the number."""
    points = [Point("0", "ann", "it is ada"), Point("1", "bob", "it is ada")]
    changed = [Point("0", "ann", f"it is {MASK}"), points[1]]
    pi = _flag("ada")
    sizes = {
        form: [parts(world, pi, pi, form)[1].total() for world in (points, changed)]
        for form in ("drop", *preparation.CERTIFIABLE_TREATMENTS)
    }
    assert sizes == {"drop": [1, 2], "mask": [2, 2], "mask_private": [2, 2]}


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    pi=st.sampled_from([(), ("ada",), ("ada", "7"), ("bob",), ("it is", "ada")]),
    pi_c=st.sampled_from([(), ("bob",), ("ada", "bob", "7")]),
    gamma=st.sampled_from([0.0, 0.5]),
    duplicates=st.sampled_from(preparation.CERTIFIABLE_TREATMENTS),
)
def test_a_secret_without_a_trace_changes_nothing(seed, pi, pi_c, gamma, duplicates):
    """Of each secret that counts neither as a trace nor as public: both worlds read the same, in
    the same order."""
    coin = random.Random(seed)
    pi, pi_c = policy_changes.with_misses(_flag(*pi), gamma, 0), _flag(*pi_c)
    points = [
        replace(p, secrets=tuple(Secret("x", i, i + 3) for i in _starts(p.text, ("ada", "bob"))))
        for p in drawn(coin, coin.randint(2, 12))
    ]
    counter = rates.RateCounter(pi, pi_c, texts=TextCounts(points))
    counter.add([replace(p, dialogue_id=p.id) for p in points])
    made = prepare_points(points, pi(points), pi_c(points), duplicates=duplicates)
    rows = iter(counter.outcomes)
    for k, p in enumerate(points):
        for s in p.secrets:
            row = next(rows)
            same = [t for t in p.secrets if p.text[t.start : t.end] == p.text[s.start : s.end]]
            changed = [*points[:k], redact(p, same), *points[k + 1 :]]
            again = prepare_points(changed, pi(changed), pi_c(changed), duplicates=duplicates)
            if not (row.trace or row.public):
                assert [q.text for q in again.public] == [q.text for q in made.public]
                assert [q.text for q in again.private] == [q.text for q in made.private]


def _starts(text, words):
    return [i for i in range(len(text)) if text.startswith(words, i)]


def test_a_secret_in_a_repeated_message_is_a_trace_whichever_half_repeats():
    def said(i, text):
        start = text.find("ada")
        labels = (Secret("x", start, start + 3),) if start >= 0 else ()
        return Point(str(i), f"u{i}", text, labels)

    pi = _flag("ada")
    unique = [said(0, "it is ada"), said(1, "thanks")]
    twice = [said(0, "it is ada"), said(1, "it is ada")]
    masked = [said(0, "it is ada"), said(1, f"it is {MASK}")]
    for points, count in ((unique, 0), (twice, 2), (masked, 1)):
        assert rates.measure_rates(points, pi, pi).trace.failures == count
        assert rates.measure_rates(points, pi, pi, dedup="none").trace.failures == 0
    found = rates.measure_rates(unique, pi, pi, whole_text=[*unique, said(2, "it is ada")])
    assert found.trace.failures == 1
    certain = rates.measure_rates(
        twice, regex_policies.everything_policy, regex_policies.none_policy
    )
    assert (certain.trace.failures, certain.gamma) == (0, 0.0)  # all points read <MASK>, copies too


def test_texts_are_counted_as_they_are_deduplicated():
    """By what a policy is shown: the text, and where the turns' own words stand in it."""
    one = Point("0", "u", "USR: a\nUSR: ada", spoken_spans=((5, 6), (12, 15)))
    other = Point("1", "v", "USR: a\nUSR: ada", spoken_spans=((5, 15),))
    same = Point("2", "w", "USR: a\nUSR: ada", spoken_spans=((5, 6), (12, 15)))
    counts = TextCounts([one, other])
    assert not counts.stands_elsewhere(hash_point_text(one), here=True)
    counts.add([same])
    assert counts.stands_elsewhere(hash_point_text(one), here=True)
    assert not counts.stands_elsewhere(hash_point_text(other), here=True)
    assert deduplication.mark_repeats([one, other, same]) == [False, False, True]


# --------------------------------------------------------------------------- text alone
def test_a_policy_is_shown_no_id_and_no_user_unless_it_says_so():
    seen = []

    def flag(points):
        seen.extend((p.id, p.user, p.dialogue_id) for p in points)
        return [() for _ in points]

    points = [Point("d/0", "ann", "USR: hi", spoken_spans=((5, 7),), dialogue_id="d")]
    for own_words in (False, True):
        seen.clear()
        Policy("blind", flag, own_words=own_words)(points)
        assert seen == [("", "", "")]
    by_id = Policy("by_id", flag, reads_ids=True)
    for own_words in (False, True):
        seen.clear()
        replace(by_id, own_words=own_words)(points)
        assert seen == [("d/0", "ann", "d")]
    for made in (
        policy_changes.union_policy(by_id, regex_policies.none_policy),
        stable_under_masking(by_id),
        by_id,
    ):
        assert made.reads_ids


def test_the_dial_misses_the_same_in_every_copy_and_changes_no_other_label():
    pi = _flag("ada", "bob", "7")
    copies = [Point(str(i), f"u{i}", "ada or bob or 7") for i in range(50)]
    for seed in range(20):
        dial = policy_changes.with_misses(pi, 0.5, seed)
        assert not dial.reads_ids and len(set(dial(copies))) == 1
        (found,) = dial(copies[:1])
        masked = redact(copies[0], [Secret("x", 0, 3)])
        (again,) = dial([masked])
        kinds = [copies[0].text[s.start : s.end] for s in found if s.start]
        assert [masked.text[s.start : s.end] for s in again] == kinds
    texts = [Point(str(i), "u", f"my number is {i}") for i in range(2_000)]
    digits = Policy("digits", lambda points: [[Secret("n", 13, len(p.text))] for p in points])
    left = sum(not spans for spans in policy_changes.with_misses(digits, 0.3, 1)(texts))
    assert 530 < left < 670  # each value has a coin of its own


def test_the_dial_of_recorded_experiments_reads_ids():
    old = policy_changes.with_misses(_flag("ada"), 0.5, 0, coin="point")
    assert (
        old.reads_ids
        and not policy_changes.with_misses(_flag("ada"), 0.0, 0, coin="point").reads_ids
    )
    with pytest.raises(ValueError, match="coin='id': must be one of text, point"):
        policy_changes.with_misses(_flag("ada"), 0.5, 0, coin="id")


def test_masks_are_told_where_they_are_many():
    texts = ["ok"] * 6 + ["ada"] * 4
    points = [Point(str(k), "u", text) for k, text in enumerate(texts)]
    flags = [[Secret("x", 0, 3)] if text == "ada" else [] for text in texts]
    for duplicates, bare, left in (("mask", 9, 10), ("mask_private", 4, 5)):
        made = prepare_points(points, flags, flags, duplicates=duplicates)
        assert (made.bare_masks, len(made.all)) == (bare, left)
        (said,) = preparation.describe_bare_masks(bare, left, duplicates)
        assert said.startswith(f"{bare} of {left} points are a mask and nothing else")
    assert not preparation.describe_bare_masks(1, 10, "mask")
