"""Clopper-Pearson is what its definition says, and covers as often as it promises."""

import numpy as np
import pytest
from scipy import stats

from crtlib.intervals import clopper_pearson, clopper_pearson_upper, labels_needed


@pytest.mark.parametrize(("count", "of"), [(0, 1), (0, 200), (3, 50), (20, 200), (5, 5)])
def test_both_ends_agree_with_another_implementation(count, of):
    for confidence in (0.9, 0.99):
        exact = stats.binomtest(count, of).proportion_ci(confidence, method="exact")
        assert clopper_pearson(count, of, confidence=confidence) == pytest.approx(exact, abs=1e-9)
        one_sided = stats.binomtest(count, of, alternative="less")
        high = one_sided.proportion_ci(confidence, method="exact").high
        assert clopper_pearson_upper(count, of, confidence=confidence) == pytest.approx(high)


def test_no_case_bounds_nothing():
    assert clopper_pearson(0, 0) == (0, 1) and clopper_pearson_upper(0, 0) == 1


def test_the_interval_covers_at_least_as_often_as_it_says():
    for rate in (0.01, 0.2, 0.5):
        counts = np.arange(41)
        covered = [low <= rate <= high for low, high in (clopper_pearson(k, 40) for k in counts)]
        assert stats.binom.pmf(counts, 40, rate)[covered].sum() >= 0.95


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: clopper_pearson_upper(3, 2), r"count=3: must be in \[0, 2\]"),
        (lambda: clopper_pearson(-1, 2), "count=-1"),
        (lambda: clopper_pearson(1, 2, confidence=1), "confidence=1: must be in"),
        (lambda: clopper_pearson_upper(1, 2, confidence=float("nan")), "confidence=nan"),
        (lambda: labels_needed(0.0), "rate=0.0"),
    ],
)
def test_impossible_counts_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
