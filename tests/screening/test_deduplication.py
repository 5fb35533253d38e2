"""The duplicate patterns against brute force, and what a filter may and may not get wrong."""

import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crtlib.screening import deduplication, regex_policies
from crtlib.screening.preparation import prepare_points
from crtlib.text.records import MASK, Point


def points(texts):
    return [Point(str(i), "u", text) for i, text in enumerate(texts)]


def repeated(texts):
    return [text in texts[:i] for i, text in enumerate(texts)]


def shingles(text, size):
    return {text[i : i + size] for i in range(max(len(text) - size, 0) + 1)}


def similarity(a, b, size=5):
    a, b = shingles(a, size), shingles(b, size)
    return len(a & b) / len(a | b)


def sentences(n, seed=0):
    """``n`` sentences of twelve random words: none is near to another."""
    rng = random.Random(seed)
    return [" ".join("".join(rng.choices("abcdefgh", k=6)) for _ in range(12)) for _ in range(n)]


texts = st.lists(st.text(st.sampled_from("ab é\n"), max_size=3), max_size=30)


@settings(max_examples=60, deadline=None)
@given(texts)
def test_exact_and_an_almost_exact_filter_equal_brute_force(said):
    assert deduplication.mark_repeats(points(said)) == repeated(said)
    assert deduplication.mark_repeats(points(said), "bloom", error_rate=1e-12) == repeated(said)


@settings(max_examples=30, deadline=None)
@given(texts)
def test_near_at_threshold_one_marks_equal_sets_only(said):
    found = deduplication.mark_repeats(points(said), "near", threshold=1.0)
    every = [shingles(text, 5) for text in said]
    assert found == [own in every[:i] for i, own in enumerate(every)]


def test_a_bloom_filter_overlooks_nothing_and_errs_at_its_rate():
    said = sentences(4000)
    said += said[:1000]
    found = deduplication.mark_repeats(points(said), "bloom", error_rate=0.05)
    assert all(found[4000:])
    assert 0 < sum(found[:4000]) < 1.3 * 0.05 * 4000  # the filter is full only at the end
    tight = deduplication.mark_repeats(points(said), "bloom", error_rate=1e-9)
    assert tight == deduplication.mark_repeats(points(said))


def test_a_false_positive_becomes_a_mask_and_never_a_public_point():
    said = points(sentences(500))
    found = deduplication.mark_repeats(said, "bloom", error_rate=0.3)
    prepared = prepare_points(said, None, None, pattern=found)
    assert sum(found) > 0 and prepared.duplicates == sum(found)
    assert {p.text for p in prepared.private} == {MASK}
    assert len(prepared.all) == len(said)
    # the scope of what is flagged leaves alone what no policy speaks on
    labels = regex_policies.oracle_policy(said)
    assert prepare_points(said, None, labels, dedup="flagged", pattern=found).duplicates == 0


def test_near_finds_edited_copies_and_nothing_below_the_threshold():
    rng = random.Random(1)
    said = sentences(300)
    copies = []
    for text in said[:200]:
        at = rng.randrange(9, len(text) - 9)
        copies.append(
            text[:at] + "X" + text[at + 1 :]
        )  # similarity about 0.88: five shingles of 79 differ
    found = deduplication.mark_repeats(points(said + copies), "near")
    assert not any(found[:300])
    assert sum(found[300:]) >= 198  # LSH may overlook a pair close to the threshold
    kept = [t for t, f in zip(said + copies, found, strict=True) if not f]
    for text, marked in zip(copies, found[300:], strict=True):
        assert not marked or max(similarity(text, other) for other in kept) >= 0.8
    assert not any(deduplication.mark_repeats(points(said + copies), "near", threshold=0.95))


def test_near_texts_are_compared_with_what_is_kept_not_with_what_is_marked():
    base = sentences(1)[0]
    steps = [base[:k] + "X" * k + base[2 * k :] if k else base for k in range(0, 40, 4)]
    found = deduplication.mark_repeats(points(steps), "near", threshold=0.7)
    first = next(i for i in range(1, len(steps)) if similarity(base, steps[i]) < 0.7)
    assert first > 1 and all(found[1:first]) and not found[first]


def variants(n, copies, seed=0):
    """``n`` texts of one template, 0.55 alike, and copies of some, 0.87 alike."""
    rng = random.Random(seed)
    parcel = "your parcel with the number {} was given to our courier and will be at {} by noon"
    said = [parcel.format(rng.randrange(10**9, 10**10), rng.randrange(10**9)) for _ in range(n)]
    return said, [f"{said[k][:-12]}" for k in rng.sample(range(n), copies)]


def overlooked(**limits):
    """The share of 400 near copies that is not found among 3,000 variants of one template."""
    said, copies = variants(3000, 400)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(deduplication, name, value)
        found = deduplication.mark_repeats(points(said + copies), "near")
    assert not any(found[:3000])
    return 1 - sum(found[3000:]) / 400


def test_of_many_variants_of_a_template_near_copies_are_found_among_few_candidates():
    # Up to MAX_FULLY_COMPARED_TEXTS all candidates are compared.
    assert overlooked(MAX_CANDIDATES_PER_TEXT=1) == 0
    assert overlooked(MAX_FULLY_COMPARED_TEXTS=1000, MAX_CANDIDATES_PER_TEXT=50) <= 0.01
    assert overlooked(MAX_FULLY_COMPARED_TEXTS=1000, MAX_CANDIDATES_PER_TEXT=1) > 0.01


def test_a_candidate_that_is_near_is_never_refused_by_its_parities():
    """At a threshold of 0.1 each pair is a candidate, with a probability of 1 - 1e-6."""
    rng, near = random.Random(3), []
    for size in (10, 100, 1000, 8000):
        text = "".join(rng.choices("abcdefgh ", k=size))
        for cut in range(0, size - 5, max(1, size // 40)):
            said = [text, text[cut:]]
            near.append(similarity(*said) >= 0.1)
            assert deduplication.mark_repeats(points(said), "near", threshold=0.1) == [
                False,
                near[-1],
            ]
    assert 0.7 < sum(near) / len(near) < 0.95


@pytest.mark.parametrize("method", ["bloom", "near"])
def test_the_pattern_is_the_same_in_another_process(method):
    code = (
        "from crtlib.screening import deduplication; from crtlib.text.records import Point\n"
        "texts = [' '.join(str(i**k % 97) for k in range(2, 20)) for i in range(300)]\n"
        "points = [Point('', 'u', text) for text in texts]\n"
        f"print(deduplication.mark_repeats(points, {method!r}, error_rate=0.2, threshold=0.3))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    (only,) = told
    assert "True" in only and "False" in only


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "fuzzy"}, "method='fuzzy': must be one of exact, bloom, near"),
        ({"error_rate": 0}, r"error_rate=0: must be in \(0, 1\)"),
        ({"threshold": 1.5}, r"threshold=1.5: must be in \[0.1, 1\]"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        deduplication.mark_repeats(points(["a"]), **options)


@pytest.mark.parametrize("package, method", [("rbloom", "bloom"), ("datasketch", "near")])
def test_a_missing_package_is_named(package, method, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=f"needs {package}, pip install 'crtlib"):
        deduplication.mark_repeats(points(["a"]), method)


@pytest.mark.parametrize("method", ["exact", "bloom", "near"])
def test_no_points_no_pattern(method):
    assert deduplication.mark_repeats([], method) == []
