"""Algorithm 1 on D and on D' (one secret replaced by <MASK>): what the guarantee rests on."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crtlib.screening import (
    deduplication,
    detection_recall,
    policy_changes,
    policy_names,
    regex_policies,
)
from crtlib.screening.policy import as_policy
from crtlib.screening.preparation import prepare_points
from crtlib.screening.redaction import redact
from crtlib.text import customersim, data_points
from crtlib.text.records import MASK, Point, Secret

CORPUS = customersim.simulate_corpus(30, 0, "paper")
POINTS = data_points.make_points(CORPUS, unit="turn")
PATTERNS = {  # the filter is made so small that it marks some unique points as well
    "exact": deduplication.mark_repeats(POINTS),
    "bloom": deduplication.mark_repeats(POINTS, "bloom", error_rate=0.1),
    "near": deduplication.mark_repeats(POINTS, "near", threshold=0.6),
}
TARGETS = [(i, s) for i, p in enumerate(POINTS) for s in p.secrets]


def masked(points, i, secret):
    """D': the secret's span in point ``i`` replaced by the mask."""
    changed = list(points)
    changed[i] = redact(points[i], [secret])
    return tuple(changed)


def first_halves(points):
    """A policy that sees where every secret begins and not where it ends."""
    return [
        tuple(Secret(s.kind, s.start, (s.start + s.end) // 2) for s in p.secrets) for p in points
    ]


first_halves.name = "first halves"


@settings(max_examples=120, deadline=None)
@given(
    target=st.sampled_from(TARGETS),
    gamma=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 10),
    scope=st.sampled_from(["all", "flagged", "none"]),
    method=st.sampled_from(sorted(PATTERNS)),
    duplicates=st.sampled_from(["mask", "drop"]),
    base=st.sampled_from(["regex", "oracle", "halves"]),
)
def test_neighbours_stay_neighbours(target, gamma, seed, scope, method, duplicates, base):
    """Equal where pi catches x (Proposition 5); otherwise the same length and one difference."""
    i, secret = target
    policy = policy_names.policy_by_name("oracle" if base == "halves" else base, "customersim")
    pi = policy_changes.with_misses(first_halves if base == "halves" else policy, gamma, seed)
    pattern = PATTERNS[method]
    options = {"dedup": scope, "duplicates": duplicates, "pattern": pattern}
    neighbour = masked(POINTS, i, secret)
    ours = prepare_points(POINTS, pi(POINTS), policy(POINTS), **options)
    theirs = prepare_points(neighbour, pi(neighbour), policy(neighbour), **options)
    assert [p.text for p in ours.public] == [p.text for p in theirs.public]
    assert len(ours.private) == len(theirs.private)
    differ = [
        (a.text, b.text)
        for a, b in zip(ours.private, theirs.private, strict=True)
        if a.text != b.text
    ]
    marks = [s for s in pi(POINTS)[i] if s.start <= secret.start < s.end]
    seen = max((s.end for s in marks), default=secret.start)
    if seen >= secret.end or (pattern[i] and scope != "none"):
        assert differ == []
    else:
        assert len(differ) == 1
        assert POINTS[i].text[seen : secret.end] in differ[0][0]
        assert differ[0][1].count(MASK) == differ[0][0].count(MASK) + (not marks)


def test_dedup_before_redaction_breaks_group_confidentiality_on_templates():
    """THE counterexample to Proposition 7: both secrets are caught, yet the outputs differ
    where the duplicate pattern is computed anew on D'; with one public pattern they agree."""
    texts = ("ssn A", "ssn B")
    points = tuple(Point(str(i), "u", t, (Secret("ssn", 4, 5),)) for i, t in enumerate(texts))
    neighbour = tuple(redact(p, p.secrets) for p in points)
    oracle = regex_policies.oracle_policy
    flags, again = oracle(points), oracle(neighbour)
    ours = [p.text for p in prepare_points(points, flags, flags).private]
    assert ours == ["ssn <MASK>", "ssn <MASK>"]
    assert [p.text for p in prepare_points(neighbour, again, again).private] == ["ssn <MASK>", MASK]
    pattern = deduplication.mark_repeats(points)
    repaired = prepare_points(neighbour, again, again, pattern=pattern)
    assert [p.text for p in repaired.private] == ours


def test_every_point_with_a_mask_is_private_even_a_raw_one():
    points = (Point("0", "u", f"I saw {MASK} there"), Point("1", "u", "plain"))
    prepared = prepare_points(points, None, None)
    assert [p.id for p in prepared.private] == ["0"]
    assert [p.id for p in prepared.public] == ["1"]


def test_flagged_scope_keeps_harmless_repetitions():
    points = tuple(
        Point(str(i), "u", t) for i, t in enumerate(["bye", "bye", "id 7", "id 7", "bye"])
    )

    digits = [tuple(Secret("id", 3, 4) for _ in range("7" in p.text)) for p in points]
    everywhere = prepare_points(points, digits, digits, dedup="all", duplicates="drop")
    flagged = prepare_points(points, digits, digits, dedup="flagged", duplicates="drop")
    assert [p.text for p in everywhere.public] == ["bye"]
    assert [p.text for p in flagged.public] == ["bye"] * 3
    assert len(everywhere.private) == len(flagged.private) == 1
    assert (everywhere.duplicates, flagged.duplicates) == (3, 1)


def test_redact_merges_touching_spans_and_moves_labels():
    point = Point("0", "u", "ab cd ef", (Secret("x", 0, 2), Secret("y", 6, 8)))
    done = redact(point, [Secret("p", 0, 2), Secret("q", 2, 5)])
    assert done.text == f"{MASK} ef"
    assert [done.text[s.start : s.end] for s in done.secrets] == ["ef"]


def test_what_a_mask_leaves_of_a_secret_is_a_missed_secret():
    point = Point(
        "0", "u", "call 555 123 4567 or Ada", (Secret("phone", 5, 17), Secret("n", 21, 24))
    )
    done = redact(point, [Secret("x", 8, 13)])
    assert done.text == f"call 555{MASK}4567 or Ada"
    assert [done.text[s.start : s.end] for s in done.secrets] == ["555", "4567", "Ada"]

    half = [(Secret("x", 0, 13), Secret("y", 13, 14)), (Secret("phone", 5, 17),)]
    prepared = prepare_points((point, replace(point, id="1", text="x" * 24)), half, None)
    assert prepared.missed_secrets == 3  # the end of the number, and the name twice
    assert [len(p.secrets) for p in prepared.private] == [2, 1]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_missed_secrets_are_those_that_recall_does_not_count(data):
    spans = st.lists(st.integers(0, 12), min_size=2, max_size=6, unique=True).map(sorted)
    secrets, marks = (
        tuple(Secret(kind, a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=False))
        for kind, cuts in (("s", data.draw(spans)), ("f", data.draw(spans)))
    )
    point = Point("0", "u", "abcdefghijkl", secrets)
    prepared = prepare_points([point], [marks], None, dedup="none")
    table = detection_recall.recall_by_kind([point], [marks])
    assert prepared.missed_secrets == table.secrets["all"] - table.caught["all"]
    (done,) = prepared.all
    covered = {i for s in marks for i in range(s.start, s.end)}
    clear = "".join(c for i, c in enumerate(point.text) if i not in covered)
    assert done.text.replace(MASK, "") == clear
    labelled = [point.text[i] for s in secrets for i in range(s.start, s.end) if i not in covered]
    assert "".join(done.text[s.start : s.end] for s in done.secrets) == "".join(labelled)


@pytest.mark.parametrize("spans", [(10, 999), (-4, -1)])
def test_spans_outside_the_text_are_refused(spans):
    wild = [(SimpleNamespace(kind="x", start=spans[0], end=spans[1]),) for _ in POINTS]
    for flags, conservative_flags, name in (
        (wild, None, "flags"),
        (None, wild, "conservative_flags"),
    ):
        with pytest.raises(ValueError, match=f"^{name}: point"):
            prepare_points(POINTS, flags, conservative_flags)
    with pytest.raises(ValueError, match=r"^flags: 0 answers for"):
        prepare_points(POINTS, [], None)


def test_what_a_failing_policy_says_is_not_repeated():
    def fails(points):
        raise RuntimeError(points[0].text)

    with pytest.raises(ValueError, match="failed with RuntimeError") as caught:
        as_policy(fails)(POINTS)
    assert POINTS[0].text not in str(caught.value) and caught.value.__suppress_context__


def test_everything_makes_the_public_part_empty():
    prepared = prepare_points(
        POINTS,
        regex_policies.corpus_regex_policy()(POINTS),
        regex_policies.everything_policy(POINTS),
    )
    assert prepared.public == ()
    assert len(prepared.private) == len(POINTS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dedup": "some"}, "dedup='some': must be one of all, flagged, none"),
        ({"duplicates": "x"}, "duplicates='x': must be one of mask_private, mask, drop"),
        ({"pattern": [True]}, "pattern: has 1 entries for"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        prepare_points(POINTS, None, None, **options)
    with pytest.raises(ValueError, match="corpus is empty"):
        prepare_points((), None, None)
