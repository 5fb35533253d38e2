"""Intervals and bands: Clopper-Pearson, the labels that are needed, and the scores of chance.

>>> low, high = clopper_pearson(0, 100)  # of 100 secrets none was reconstructed
>>> low, round(high, 4), round(clopper_pearson_upper(0, 100), 4)
(0.0, 0.0362, 0.0295)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

from scipy import special

from crtlib.checks import check_allowed, check_whole_number


def clopper_pearson_upper(count: int, of: int, *, confidence: float = 0.95) -> float:
    """One-sided Clopper-Pearson upper bound on a rate, after ``count`` in ``of`` independent cases.

    For misses of a policy, 0 of 200 gives 0.01487, and 8e-5 (CRT's delta) takes 37,446 secrets
    without a miss.

    Args:
        count: The cases in which it happened.
        of: All cases. Without any case (0 of 0) nothing is bounded: 1.
        confidence: The probability over the sample with which the bound holds.

    Returns:
        The bound, in (0, 1].

    Raises:
        ValueError: For impossible counts.

    Guarantee:
        With probability ``confidence`` over the sample the true rate is at most this. Test:
        ``tests/test_intervals.py::test_the_interval_covers_at_least_as_often_as_it_says``.

    >>> round(clopper_pearson_upper(0, 200), 5), clopper_pearson_upper(0, 0)
    (0.01487, 1.0)
    """
    check_allowed("count", count, 0 <= count <= of, f"in [0, {of}], the number of cases")
    check_allowed("confidence", confidence, 0 < confidence < 1, "in (0, 1)")
    if count == of:
        return 1.0
    return float(special.betaincinv(count + 1, of - count, confidence))


def clopper_pearson(count: int, of: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Two-sided Clopper-Pearson interval of a rate, after ``count`` in ``of`` independent cases.

    Each end is a one-sided bound at (1 + ``confidence``) / 2. Without any case it is (0, 1).
    """
    check_allowed("confidence", confidence, 0 < confidence < 1, "in (0, 1)")
    side = (1 + confidence) / 2
    high = clopper_pearson_upper(count, of, confidence=side)
    return (float(special.betaincinv(count, of - count + 1, 1 - side)) if count else 0.0), high


def exchangeable_rate(count: int, of: int, *, policy_pairs: int = 1) -> float:
    """A rate without a confidence level, after ``count`` in ``of`` units drawn at random.

    Args:
        count: Units that fail.
        of: Units that were drawn and judged.
        policy_pairs: Pairs of policies among which somebody may choose by such rates; each is
            charged.

    Returns:
        The rate, at most 1; a rate of 1 promises nothing.

    Guarantee:
        On average over the draw it is at least the rate among the other units, which nobody read.
        Test:
        ``tests/release/test_rows_of_a_certificate.py::test_the_average_over_the_draw_of_the_labels``.

    >>> round(exchangeable_rate(0, 100), 4), exchangeable_rate(3, 99, policy_pairs=2)
    (0.0099, 0.08)
    """
    check_allowed("count", count, 0 <= count <= of, f"in [0, {of}], the number of cases")
    check_whole_number("policy_pairs", policy_pairs, 1)
    return min(1.0, policy_pairs * (count + 1) / (of + 1))


def labels_needed(rate: float, confidence: float = 0.95) -> int:
    """How many labelled secrets, none of them missed, show that a miss rate is at most ``rate``.

    >>> labels_needed(8e-5)
    37446
    """
    check_allowed("rate", rate, 0 < rate < 1, "in (0, 1)")
    check_allowed("confidence", confidence, 0 < confidence < 1, "in (0, 1)")
    return math.ceil(math.log1p(-confidence) / math.log1p(-rate))


@dataclass(frozen=True)
class ChanceBand:
    """The score of a model that knows nothing: its mean, and the central interval from low to
    high."""

    mean: float
    low: float
    high: float
    level: float


def to_decimal(value: float) -> Decimal:
    """The decimal of a float as JSON writes it."""
    return Decimal(repr(float(value)))


def round_up_to_figures(value: float | Decimal, figures: int = 3) -> Decimal:
    """The least decimal with ``figures`` significant figures that is not below ``value``."""
    number = value if isinstance(value, Decimal) else to_decimal(value)
    if not number:
        return Decimal(0)
    step = Decimal(1).scaleb(number.adjusted() - figures + 1)
    return number.quantize(step, rounding=ROUND_CEILING)


def count_of(number: int, one: str, more: str) -> str:
    """A number of things with its noun, or the words that follow it.

    >>> count_of(1, "label decides", "labels decide"), count_of(1200, "turn", "turns")
    ('1 label decides', '1,200 turns')
    """
    return f"{number:,} {one if number == 1 else more}"


def at_most(value: float, figures: int = 4) -> str:
    """A bound as people read it, with ``figures`` significant figures, rounded up.

    Guarantee:
        Never below ``value``. Test: ``tests/reports/test_printed_numbers.py::
        test_what_a_person_reads_is_never_below_the_bound``.

    >>> at_most(2.99992), at_most(8e-5), at_most(0.0562), at_most(123456.0), at_most(float("inf"))
    ('3', '8e-05', '0.0562', '1.235e+05', 'inf')
    """
    finite = math.isfinite(value)
    return f"{float(round_up_to_figures(value, figures)) if finite else value:.{figures}g}"
