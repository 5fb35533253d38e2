"""What a mask covers; walks along two sorted lists of spans say what a look at every pair says."""

import itertools

from hypothesis import assume, given
from hypothesis import strategies as st

from crtlib.screening.redaction import (
    cut_around_masks,
    find_missed_secrets,
    merge_spans,
    overlapping_pairs,
    redact,
)
from crtlib.text.records import MASK, Point, Secret

SPANS = st.lists(st.integers(0, 20), max_size=8, unique=True).map(
    lambda cuts: [
        Secret("abc"[a % 3], a, b)
        for a, b in zip(sorted(cuts)[::2], sorted(cuts)[1::2], strict=False)
    ]
)


def characters(spans):
    return {i for s in spans for i in range(s.start, s.end)}


@given(SPANS, SPANS)
def test_overlaps_are_the_pairs_that_share_a_character(first, second):
    assert list(overlapping_pairs(first, second)) == [
        (a, b) for a in first for b in second if characters([a]) & characters([b])
    ]


@given(SPANS, SPANS)
def test_missed_are_those_with_a_character_in_clear(secrets, spans):
    covered, point = characters(spans), Point("0", "u", "x" * 21, tuple(secrets))
    assert find_missed_secrets(point, spans) == tuple(
        s for s in secrets if characters([s]) - covered
    )


@given(SPANS, SPANS)
def test_a_union_covers_what_its_parts_cover_and_nothing_touches(first, second):
    union = merge_spans([first, second])
    assert characters(union) == characters(first) | characters(second)
    assert all(a.end < b.start for a, b in itertools.pairwise(union))
    for s in union:
        ranked = [f for f in first if characters([f]) <= characters([s])]
        assert s.kind == (ranked[0].kind if ranked else second[0].kind) or not ranked


@given(SPANS)
def test_nothing_is_flagged_in_a_mask(spans):
    text = f"ab{MASK}cd{MASK}efgh"
    masks = {i for i in range(len(text)) if 2 <= i < 8 or 10 <= i < 16}
    assert characters(cut_around_masks(text, spans)) == characters(spans) - masks


@given(SPANS, st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted))
def test_the_turns_own_words_are_found_again_among_the_masks(flags, own):
    assume(own[0] < own[1])
    text = "abcdefghijklmnopqrst"
    point = Point("0", "u", text, (), (tuple(own),))
    done = redact(point, flags)
    a, b = done.spoken_spans[0] if flags else point.spoken_spans[0]
    inside = {i for i in range(*own)}
    clear = "".join(c for i, c in enumerate(text) if i in inside - characters(flags))
    assert done.text[a:b].replace(MASK, "") == clear
    assert done.text[a:b].count(MASK) == len(
        {m for m in merge_spans([flags]) if characters([m]) & inside}
    )


def test_a_span_inside_of_another_uncovers_nothing():
    """Two detectors may flag a number and its first digits."""
    point = Point("0", "u", "call 555 123 4567 now", (Secret("phone", 5, 17),))
    for inner in ((5, 8), (9, 12), (13, 17)):
        spans = [Secret("phone", 5, 17), Secret("digits", *inner)]
        for order in (spans, spans[::-1]):
            done = redact(point, order)
            assert done.text == f"call {MASK} now" and done.secrets == ()
