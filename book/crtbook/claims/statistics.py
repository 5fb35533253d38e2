"""How a claim is judged: the one place for seeds, pairing, chance, equivalence and families.

>>> below = judge_mean([0.8, 0.9, 0.85], side="below", line=1.0)
>>> apart = judge_mean([0.8, 1.3, 0.9], side="below", line=1.0)
>>> decide_verdict(below, seeds=3), decide_verdict(apart, seeds=3)
('agrees', 'not decided')
>>> decide_verdict(judge_mean([0.8], side="below", line=1.0), seeds=3)  # one seed decides nothing
'not decided'
>>> decide_verdict(judge_mean([1.02, 1.03, 1.04], side="close", line=1.1), seeds=3)
'agrees'
>>> holm_adjust([0.01, 0.04, 0.03])
[0.03, 0.06, 0.06]

Each row has two one-sided p-values: ``p_true`` under the hypothesis that the claim is false, and
``p_false`` under the hypothesis that it is true. A row agrees where ``p_true`` is at most ``ALPHA``
after Holm's correction over its family, the rows of one claim; it differs where ``p_false`` is. So
the probability that any row of a claim wrongly agrees is at most ``ALPHA``, and so is the
probability that any wrongly differs.

Seeds are added to a row that is open, and looking again makes errors more likely. So a row that was
looked at more than once is judged by a test that may be repeated at any time: means of pairs that
are near normal by :func:`repeated_look_mean_p_value`, shares by
:func:`repeated_look_share_p_value`. Everything else is judged only by the seeds of its first look
(``seeds_at_first_look``), and only if all its seeds together, by the same test, have the same
verdict (:func:`keep_confirmed`).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame
from scipy import special, stats

from crtbook import search
from crtbook.claims.dates import dated
from crtlib.intervals import clopper_pearson

AGREES, PART, DIFFERS = "agrees", "in part", "differs"
OPEN, UNDECIDABLE, INCOMPARABLE = "not decided", "not decidable here", "not comparable"
REMARK, CONSTRUCTION = "remark", "by construction"
VERDICTS = (AGREES, PART, DIFFERS, OPEN, UNDECIDABLE, INCOMPARABLE, CONSTRUCTION, REMARK)

ALPHA = 0.025
MIN_SEEDS = 3
"""The least number of runs whose spread can be trusted."""
MIN_SEEDS_FOR_REPEATED_LOOKS = 5
"""The least number of seeds for a test that may be looked at again."""
MIN_DIFFERENT_VALUES = 2
"""Runs that all give the same number have no spread to judge their mean by, unless nothing in it
depends on the seed."""
MAX_SEEDS = 100
"""A row is not decidable here if even this many seeds would be unlikely to decide it, supposing
that the mean lies at the end of its interval that is farther from the line. Then it lies on its
line, or its corpus is too small for the attack. The observed mean cannot be used for this: it is as
uncertain itself."""
MAX_LOG_DEVIATION = 0.5
"""Values above 0 whose logarithms have a larger deviation are not near normal."""
RARE_SHARE = 0.1
"""What happens "sometimes" happens in more than this share of the runs; what "never" happens, in
less."""
MAX_SETTLED_GAIN = 0.01
"""A curve has settled when its last third lowers the best perplexity by at most this share. A curve
that still falls has settled too if the best trial of ``search.LONGER`` times its epochs, run with
the same seeds, ends lower by at most this share on average: at one epsilon more epochs mean more
noise, so a curve that still falls may end lower than a longer one."""
TARGET_POWER = 0.8
"""The probability with which the seeds that a row is said to need would decide it."""
CLOSE_RATIO = 1.1
"""A perplexity is close to another when it is at most this many times as large. This is our choice,
since the papers say "close" and "almost the same" without a number. The boxes of the headlines
judge by 1.05 and 1.25 as well."""
CHANCE_EXPOSURE_BITS = 1 / math.log(2)
"""The mean exposure of a canary about which a model knows nothing; it is then exponential."""
MARGINS_ABOVE_CHANCE = {"exposure": 1.0, "accuracy": 0.02, "group": 0.05}
"""At chance means: at most this much above it. One bit is the answer to one question with yes or
no; 0.02 is two more correct answers in a hundred than a coin gives; groups add up what twenty
sentences reveal, and their chance band is that much wider."""
MARGIN_SHARE_OF_GAIN = 0.12
"""Only a share ``gamma`` of all secrets can be told apart, so no attack is right more often than
1 / (2 - gamma). An accuracy over all secrets is at chance within this share of the possible gain:
0.02 at a ``gamma`` of 0.5, where the margin was set, and 0.003 at 0.1."""


def list_margins() -> dict[str, float]:
    """Every number that was chosen, by the name of what it belongs to."""
    return {
        "level": ALPHA,
        "close": CLOSE_RATIO,
        **MARGINS_ABOVE_CHANCE,
        "gain": MARGIN_SHARE_OF_GAIN,
        "rare": RARE_SHARE,
        "settled": MAX_SETTLED_GAIN,
        "longer": search.LONGER,
        "skewed": MAX_LOG_DEVIATION,
        "seeds": MIN_SEEDS,
        "fewest": MIN_SEEDS_FOR_REPEATED_LOOKS,
        "equal": MIN_DIFFERENT_VALUES,
        "most": MAX_SEEDS,
    }


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What numbers show about a claim. Distances are in standard deviations of one seed."""

    ours: str = ""
    """The number as it is printed."""
    rule: str = ""
    """What the numbers must do, in words."""
    why: str = ""
    """What the verdict is based on beside the rule."""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    """The number and its 95 % interval."""
    p_true: float = 1.0
    """The p-value of such numbers if the claim were false."""
    p_false: float = 1.0
    """The p-value of such numbers if the claim were true."""
    p_worse: float = 1.0
    """The p-value of such numbers if the claim were true completely, not only in part."""
    p_nowhere: float = 1.0
    """The p-value of such numbers if the claim were true nowhere: small where at least one point
    confirms it."""
    worse_is_part: bool = False
    """Whether the claim is right in part as soon as it is shown not to be true completely, as what
    lies above chance is until it is shown to lie above the margin."""
    seeds: int = 0
    """The number of seeds that were judged."""
    seeds_of_interval: int = 0
    """The number of seeds, or pairs of runs, on which the printed interval is based."""
    epochs: int = 0
    """For runs that are too short to refute, how many epochs they have."""
    margins: tuple[str, ...] = ()
    """The names of the margins by which it was judged; each of them has a date."""
    judges: frozenset[str] = frozenset()
    """The names of the functions that judged it; each of them has a date."""
    deviations_to_line: float = math.nan
    """The distance to the line that would decide."""
    most_deviations_to_line: float = math.nan
    """The same distance from the end of the interval that is farther from the line."""
    share_with_number: float = 1.0
    """The share of the runs that give a number at all."""
    seeds_to_decide: float = 0
    """The number of seeds that would be likely to decide (:func:`seeds_needed`); 0 if unknown."""
    fewest_seeds_to_decide: float = 0
    """The same at the farther end of the interval."""
    settled: bool = True
    """Whether no longer training of an arm could change what it shows."""
    exact: bool = False
    """Whether it is a calculation or a count, which needs no family."""
    comparable: bool = True
    """Whether the paper's number and ours, or the two arms, can be compared."""
    first_seeds: int = 0
    """The number of first seeds that alone can decide the row; 0 where all its seeds do."""
    by_all_seeds: "Evidence | None" = None
    """For a row that was judged by the seeds of its first look: the same test of all its seeds."""


@dated
def decide_verdict(evidence: Evidence, *, seeds: int = MIN_SEEDS) -> str:
    """The verdict of one row. If it has a family, its p-values must be those of
    :func:`correct_in_family`."""
    if not evidence.comparable:
        return INCOMPARABLE
    if not evidence.exact and evidence.seeds < seeds:
        return OPEN
    is_true, is_false = evidence.p_true <= ALPHA, evidence.p_false <= ALPHA
    if is_true == is_false:
        open_ = UNDECIDABLE if evidence.fewest_seeds_to_decide > MAX_SEEDS else OPEN
        return PART if is_true or (evidence.worse_is_part and evidence.p_worse <= ALPHA) else open_
    if is_true:
        return PART if evidence.p_worse <= ALPHA else AGREES
    return PART if evidence.p_nowhere <= ALPHA else DIFFERS


@dated
def holm_adjust(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given."""
    adjusted, largest = [0.0] * len(p), 0.0
    for rank, k in enumerate(np.argsort(p, kind="stable")):
        largest = max(largest, min(1.0, (len(p) - rank) * p[k]))
        adjusted[k] = largest
    return adjusted


def correct_in_family(rows: Sequence[Evidence], *, seeds: int = MIN_SEEDS) -> list[Evidence]:
    """The rows with p-values that hold for all of them together, and without what the seeds of a
    first look show alone (:func:`keep_confirmed`). Rows that are exact or have fewer than ``seeds``
    seeds do not count in the correction."""
    first = _correct_by_holm(rows, seeds=seeds)
    if all(e.by_all_seeds is None for e in rows):
        return first
    corrected_by_all = _correct_by_holm([e.by_all_seeds or e for e in rows], seeds=seeds)
    return [
        e if e.by_all_seeds is None else keep_confirmed(e, by_all, seeds=seeds)
        for e, by_all in zip(first, corrected_by_all, strict=True)
    ]


@dated
def keep_confirmed(first: Evidence, by_all_seeds: Evidence, *, seeds: int = MIN_SEEDS) -> Evidence:
    """What the seeds of a ``first`` look decide, if all seeds (``by_all_seeds``) have the same
    verdict by the same test; otherwise it decides nothing. Both are corrected in their family."""
    verdict, verdict_by_all = (decide_verdict(e, seeds=seeds) for e in (first, by_all_seeds))
    if verdict in (OPEN, UNDECIDABLE, INCOMPARABLE, verdict_by_all):
        return first
    p = min(by_all_seeds.p_true, by_all_seeds.p_false)
    stated = (
        verdict_by_all
        if verdict_by_all not in (OPEN, UNDECIDABLE)
        else f"not decided (p = {p:.2g})"
    )
    reason = f"by the first seeds alone: {verdict}; by all of them: {stated}"
    return replace(
        first,
        p_true=1.0,
        p_false=1.0,
        p_worse=1.0,
        first_seeds=first.first_seeds or first.seeds,
        why="; ".join(filter(None, (first.why, reason))),
    )


@dated
def _correct_by_holm(rows: Sequence[Evidence], *, seeds: int) -> list[Evidence]:
    corrected = list(rows)
    family_rows = [
        k for k, e in enumerate(rows) if not e.exact and e.comparable and e.seeds >= seeds
    ]
    adjusted = [
        holm_adjust([getattr(rows[k], p) for k in family_rows])
        for p in ("p_true", "p_false", "p_worse", "p_nowhere")
    ]
    for k, p_true, p_false, p_worse, p_nowhere in zip(family_rows, *adjusted, strict=True):
        needed, fewest = (
            np.ceil(seeds_needed(effect, of=len(family_rows)) / rows[k].share_with_number)
            for effect in (rows[k].deviations_to_line, rows[k].most_deviations_to_line)
        )
        corrected[k] = replace(
            rows[k],
            p_true=p_true,
            p_false=p_false,
            p_worse=p_worse,
            p_nowhere=p_nowhere,
            seeds_to_decide=needed,
            fewest_seeds_to_decide=fewest,
        )
    return corrected


def seeds_needed(effect: float, *, of: int = 1) -> float:
    """How many seeds would decide a row in a family of ``of`` with a chance of ``TARGET_POWER``, by
    Student's t, if the mean and the spread were those observed: infinite above ``MAX_SEEDS``, 0
    where the ``effect`` is not known.

    >>> seeds_needed(1.0), seeds_needed(1.0, of=7), seeds_needed(0.1), seeds_needed(math.nan)
    (10, 16, inf, 0)
    """
    if math.isnan(effect):
        return 0
    n = np.arange(MIN_SEEDS, MAX_SEEDS + 1)
    needed_deviations = special.stdtrit(n - 1, 1 - ALPHA / of) + special.stdtrit(
        n - 1, TARGET_POWER
    )
    sufficient = n[needed_deviations <= effect * np.sqrt(n)]
    return int(sufficient[0]) if len(sufficient) else math.inf


def _distance_in_deviations(gap: float, values: Sequence[float]) -> float:
    """A distance in standard deviations of one seed; NaN for fewer than ``MIN_SEEDS`` values."""
    spread = float(np.std(values, ddof=1)) if len(values) >= MIN_SEEDS else math.nan
    return gap / spread if spread else math.nan


# --- means over seeds -----------------------------------------------------------------------------
def confidence_half_width(std: Any, seeds: Any) -> Any:
    """Half the 95 % interval of a mean over ``seeds``, by Student's t; 0 for one seed.

    >>> [round(float(confidence_half_width(1.0, n)), 2) for n in (1, 3)]
    [0.0, 2.48]
    """
    half_width = special.stdtrit(np.maximum(np.subtract(seeds, 1), 1), 0.975) * std / np.sqrt(seeds)
    return np.where(np.greater(seeds, 1), half_width, 0)


def confidence_interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Mean and 95 % t-interval over seeds; no interval for fewer than ``MIN_SEEDS``."""
    mean = float(np.mean(values)) if len(values) else math.nan
    if len(values) < MIN_SEEDS:
        return mean, None, None
    half_width = float(confidence_half_width(np.std(values, ddof=1), len(values)))
    return mean, mean - half_width, mean + half_width


@dated
def mean_above_p_value(values: Sequence[float], line: float) -> float:
    """p-value for a mean over seeds above ``line``, if it were at most that (Student's t); 1 where
    all values are equal, as they then say nothing about their spread.

    >>> round(mean_above_p_value([0.8, 0.9, 0.85], 0.0), 4), mean_above_p_value([1, 1, 1], 0.0)
    (0.0006, 1.0)
    """
    x = np.asarray(values, dtype=float)
    if len({*values}) < MIN_DIFFERENT_VALUES:
        return 1.0
    gap, error = float(x.mean() - line), float(x.std(ddof=1) / np.sqrt(len(x)))
    return float(special.stdtr(len(x) - 1, -gap / error))


# --- looking again --------------------------------------------------------------------------------
EFFECT_VARIANCES = 1 / special.chdtri(1, 1 - (np.arange(100) + 0.5) / 100)
"""Variances of an effect in deviations of one seed, equally likely: together a Cauchy law."""


@dated
def repeated_look_mean_p_value(values: Sequence[float], line: float) -> float:
    """p-value for a mean above ``line``, if it were at most that, valid however often one looks: it
    uses the largest e-value of a t-test mixed over effects, from ``MIN_SEEDS_FOR_REPEATED_LOOKS``
    seeds on.

    >>> repeated_look_mean_p_value([1.2, 1.3, 1.25, 1.22, 1.28], 1.0) < 0.01
    True

    Guarantee: for normal values, and for skewed ones that :func:`is_near_normal` accepts, at most
    one row in forty is wrong however often it is looked at; a test that looks after each seed
    (``test_who_looks_after_each_seed``) fails where that is false.
    """
    x, least_p = np.asarray(values, dtype=float), 1.0
    for n in range(MIN_SEEDS_FOR_REPEATED_LOOKS, len(x) + 1):
        first = x[:n]
        spread, gap = float(first.std(ddof=1)), float(first.mean() - line)
        if gap > 0 and len(np.unique(first)) >= MIN_SEEDS:
            t2, variance_factors = n * (gap / spread) ** 2, 1 + n * EFFECT_VARIANCES
            mixed = (
                n * np.log((1 + t2 / (n - 1)) / (1 + t2 / (n - 1) / variance_factors))
                - np.log(variance_factors)
            ) / 2
            least_p = min(
                least_p,
                float(np.exp(-special.logsumexp(mixed) + math.log(len(variance_factors)))) / 2,
            )
    return least_p


@dated
def is_near_normal(values: Sequence[float]) -> bool:
    """Whether an e-value of a t-test is valid for such values: at least three different ones, and
    no long tail to one side (Shapiro and Wilk's test; for values above 0 the deviation of their
    logarithms).

    >>> is_near_normal([1.2, 1.3, 1.25, 1.22, 1.28]), is_near_normal([0, 0, 0, 0, 1])
    (True, False)
    """
    x = np.asarray(values, dtype=float)
    if len(np.unique(x)) < MIN_SEEDS:
        return False
    has_long_tail = x.min() > 0 and np.log(x).std(ddof=1) > MAX_LOG_DEVIATION
    return not has_long_tail and float(stats.shapiro(x).pvalue) > 0.01


@dated
def repeated_look_share_p_value(counts: Sequence[int], totals: Sequence[int], line: float) -> float:
    """p-value for a share above ``line``, if it were at most that, valid however often one looks:
    it uses the largest e-value of a binomial count, with all larger shares equally likely.

    >>> repeated_look_share_p_value([9, 8, 9], [10, 10, 10], 0.5) < 0.001
    True
    """
    cumulative_hits, n = np.cumsum(counts), np.cumsum(totals)
    log_mixture = special.betaln(cumulative_hits + 1, n - cumulative_hits + 1)
    log_mixture += np.log(
        special.betaincc(cumulative_hits + 1, n - cumulative_hits + 1, line)
    ) - math.log1p(-line)
    e = (
        log_mixture
        - special.xlogy(cumulative_hits, line)
        - special.xlog1py(n - cumulative_hits, -line)
    )
    return float(min(1.0, np.exp(-e.max())))


@dated
def _p_value_for_looks(
    values: Sequence[float], line: float, seeds_at_first_look: int, *, all_seeds: bool
) -> float:
    """p-value for a mean above ``line``, by the test that the number of looks allows:
    ``seeds_at_first_look`` seeds were there at the first one. A test for one look reads these, or
    ``all_seeds``."""
    if (
        len(values) >= MIN_SEEDS_FOR_REPEATED_LOOKS
        and len(values) > seeds_at_first_look
        and is_near_normal(values)
    ):
        return repeated_look_mean_p_value(values, line)
    return mean_above_p_value(values if all_seeds else values[:seeds_at_first_look], line)


INTERVAL = ("value", "low", "high")


def format_interval(value: float, low: float | None, high: float | None, unit: str = "") -> str:
    """A number with its interval, as it is printed: to two digits of half the interval, and with at
    most three digits of the largest of them.

    >>> cells = (0.00824, -0.0274, 0.0439), (1.0577, 1.0506, 1.0649), (1234.5, 1100.0, 1369.0)
    >>> tuple(format_interval(*cell) for cell in cells)
    ('0.008 [-0.027, 0.044]', '1.06 [1.05, 1.06]', '1,230 [1,100, 1,370]')
    """
    if low is None or high is None or not 0 < high - low < math.inf:
        interval = "" if low is None else f" [{low:.3g}, {high:.3g}]"
        return f"{value:.3g}{interval} {unit}".strip()
    half_exponent, largest_exponent = (
        math.floor(math.log10(x)) for x in ((high - low) / 2, max(-low, high, abs(value)))
    )
    digits = min(1 - half_exponent, 2 - largest_exponent)
    number, *ends = (f"{round(x, digits) + 0:,.{max(0, digits)}f}" for x in (value, low, high))
    return f"{number} [{', '.join(ends)}] {unit}".strip()


@dated
def judge_mean(
    values: Sequence[float],
    *,
    side: str,
    line: float,
    unit: str = "",
    seeds_at_first_look: int = MAX_SEEDS,
    all_seeds: bool = False,
) -> Evidence:
    """Judge the claim that a mean over seeds is "above" or "below" ``line``. "close" means
    equivalence, from 1/``line`` to ``line`` for a ratio; "none" means at most ``line`` from 0,
    either way; "same or below" means below the ``line``, and only true in part where it is above 1.
    ``seeds_at_first_look`` is the number of seeds when the row was looked at for the first time;
    with ``all_seeds`` a test for one look reads the others as well."""
    value, low, high = confidence_interval(values)
    equal = len(values) >= MIN_SEEDS and len({*values}) < MIN_DIFFERENT_VALUES
    if equal:
        low = high = None
    reverse = [-x for x in values]

    def beyond(end: float, *, up: bool) -> float:
        return _p_value_for_looks(
            values if up else reverse,
            end if up else -end,
            seeds_at_first_look,
            all_seeds=all_seeds,
        )

    p_worse = 1.0
    if side in ("close", "none"):
        line_ends = (1 / line, line) if side == "close" else (-line, line)
        p_true = max(beyond(line_ends[0], up=True), beyond(line_ends[1], up=False))
        p_false = min(beyond(line_ends[1], up=True), beyond(line_ends[0], up=False))
        where_text = f"between {line_ends[0]:.3g} and {line_ends[1]:.3g}"
    else:
        line_ends = (line, line)
        p_true, p_false = beyond(line, up=side == "above"), beyond(line, up=side != "above")
        where_text = f"{'above' if side == 'above' else 'below'} {line:g}"
        if side == "same or below":
            p_worse = beyond(1.0, up=True)
            where_text += "; in part where it lies above 1"
    gaps = [abs(value - end) for end in line_ends]
    half_width = 0.0 if high is None else high - value
    reasons = [f"all {len(values)} seeds give the same number, so their spread is unknown"] * equal
    if side in ("close", "none") and p_false <= ALPHA:
        is_above = value > line_ends[1]
        reasons.append(f"it lies {'above' if is_above else 'below'} {line_ends[is_above]:.3g}")
    return Evidence(
        ours=format_interval(value, low, high, unit),
        rule=f"the 95 % interval over {len(values)} seeds must lie {where_text}"
        + _describe_looks(values, seeds_at_first_look),
        why="; ".join(reasons),
        first_seeds=count_first_seeds(values, seeds_at_first_look),
        value=value,
        low=low,
        high=high,
        p_true=p_true,
        p_false=p_false,
        p_worse=p_worse,
        seeds=len(values),
        seeds_of_interval=len(values),
        margins=("close",) * (line == CLOSE_RATIO)
        + ("equal",) * equal
        + _margins_of_looks(len(values), seeds_at_first_look),
        deviations_to_line=_distance_in_deviations(min(gaps), values),
        most_deviations_to_line=_distance_in_deviations(max(gaps) + half_width, values),
    )


def _margins_of_looks(seeds: int, seeds_at_first_look: int) -> tuple[str, ...]:
    """The names of the rules for a row that was looked at again; none at its first look."""
    return ("fewest", "skewed") if seeds > seeds_at_first_look else ()


def count_first_seeds(values: Sequence[float], seeds_at_first_look: int) -> int:
    """How many of the seeds, the first ones, can alone decide a mean: 0 where all can, as at a
    first look, or by e-values."""
    by_e_values = len(values) >= MIN_SEEDS_FOR_REPEATED_LOOKS and is_near_normal(values)
    return 0 if len(values) <= seeds_at_first_look or by_e_values else seeds_at_first_look


def _describe_looks(values: Sequence[float], seeds_at_first_look: int) -> str:
    """How a row that was looked at again is judged, in words."""
    if len(values) <= seeds_at_first_look:
        return ""
    first_seeds = count_first_seeds(values, seeds_at_first_look)
    judged_by = f"by the first {first_seeds} seeds" if first_seeds else "by e-values"
    return f"; looked at more than once: {judged_by}"


# --- attacks --------------------------------------------------------------------------------------
@dated
def chance_level(kind: str) -> float:
    """The value for a model that knows nothing."""
    return CHANCE_EXPOSURE_BITS if kind == "exposure" else 0.5


Numbers = np.ndarray | pd.Series


@dated
def leak_p_value(kind: str, values: Numbers, spread: Numbers, margin: float = 0.0) -> float:
    """p-value of what an attack finds at one point, if it finds at most ``margin`` more than
    chance. ``values`` has, for each seed, a mean exposure or an accuracy; ``spread`` is the number
    of canaries, or the deviation that the attack has when the sides are exchanged."""
    if kind == "exposure":  # a sum of exponentials, each longer by the margin: Gamma's law
        total_bits = max(0.0, float(((values - margin) * spread).sum()))
        return float(special.gammaincc(spread.sum(), total_bits / CHANCE_EXPOSURE_BITS))
    error = _error_by_chance(spread)
    return float(special.ndtr(-(values.mean() - 0.5 - margin) / error)) if error else 1.0


def signal_per_seed(p: float, seeds: int) -> float:
    """What one seed adds to a p-value, in standard deviations of one seed; 0 if nothing."""
    return max(0.0, -float(special.ndtri(p))) / math.sqrt(seeds)


@dated
def chance_margin(kind: str, share_missed: float | None = None) -> float:
    """How far above chance still counts as at chance. An accuracy over all secrets, of which the
    policy missed the share ``share_missed``, has a share of what an attack could gain:
    1 / (2 - share), less one half.

    >>> [round(chance_margin("accuracy", share), 4) for share in (0.5, 0.1)]
    [0.02, 0.0032]
    >>> chance_margin("accuracy")  # over missed secrets only
    0.02
    """
    if kind != "accuracy" or not share_missed:
        return MARGINS_ABOVE_CHANCE[kind]
    return MARGIN_SHARE_OF_GAIN * (1 / (2 - share_missed) - 0.5)


@dated
def attack_works(kind: str, points: DataFrame) -> bool:
    """Whether an attack finds more than the margin at one of these points, of models that protect
    nothing: else it says nothing about one that does."""
    p_values = [leak_p_value(kind, p.value, p.spread, p.margin.max()) for p in _by_gamma(points)]
    return len(p_values) * min(p_values, default=1.0) <= ALPHA


@dated
def attack_is_idle(kind: str, points: DataFrame) -> bool:
    """Whether an attack is shown to be at chance, within the margin, at each of these points, of
    models that protect nothing."""
    return not points.empty and all(
        len(p) >= MIN_SEEDS
        and mean_above_p_value((-p.value).tolist(), -chance_level(kind) - p.margin.max()) <= ALPHA
        for p in _by_gamma(points)
    )


def attack_power(kind: str, points: DataFrame) -> tuple[float, float]:
    """What one seed adds to the evidence that an attack works, in standard deviations of one seed:
    at the best of these points, and at the better end of its interval; NaN without points."""
    signals = [(math.nan, math.nan)]
    for p in _by_gamma(points):
        p_value = leak_p_value(kind, p.value, p.spread, p.margin.max())
        ends = (p_value, float(special.ndtr(special.ndtri(p_value) - 1.96)))
        observed, better = (signal_per_seed(end, len(p)) for end in ends)
        signals.append((observed, better))
    return max(signals, key=lambda signal: np.nan_to_num(signal[1], nan=-1.0))


@dated
def _by_gamma(points: DataFrame) -> list[DataFrame]:
    return [p for _, p in points.groupby("gamma")]


@dated
def _select_points_with_enough_seeds(
    points: DataFrame, seeds: int
) -> tuple[dict[Any, DataFrame], list[str]]:
    """The points that have enough seeds, by their miss rate, and in words how many do not."""
    points_by_gamma = {g: p for g, p in points.groupby("gamma") if len(p) >= seeds}
    short_points = points.gamma.nunique() - len(points_by_gamma)
    sentence = (
        f"{short_points} of {short_points + len(points_by_gamma)} points have fewer than "
        f"{seeds} seeds"
    )
    return points_by_gamma, [sentence] * bool(short_points)


@dated
def _points_at_first_look(points: DataFrame, seeds: int) -> DataFrame:
    return points[points.seed.isin(sorted(points.seed.unique())[:seeds])]


@dated
def judge_leak_everywhere(
    kind: str,
    points: DataFrame,
    *,
    seeds: int = MIN_SEEDS,
    seeds_at_first_look: int = MAX_SEEDS,
    all_seeds: bool = False,
) -> Evidence:
    """Judge the claim that an attack finds something at each point, and over all points more than
    the margin. ``points`` has gamma, seed, value and spread, as for :func:`leak_p_value`, and
    margin. The claim differs where a point is shown to be at chance, within the margin, and is
    right in part where another one is shown to be above chance."""
    first_look_points = points if all_seeds else _points_at_first_look(points, seeds_at_first_look)
    points_by_gamma, short_notes = _select_points_with_enough_seeds(first_look_points, seeds)
    p_values = [leak_p_value(kind, p.value, p.spread) for p in points_by_gamma.values()]
    p_over_all = _leak_p_value_over_all(kind, points_by_gamma.values())
    k = len(points_by_gamma)
    lines = {g: chance_level(kind) + float(p.margin.max()) for g, p in points_by_gamma.items()}
    p_at_chance = {
        g: min(1.0, k * mean_above_p_value((-p.value).tolist(), -lines[g]))
        for g, p in points_by_gamma.items()
    }
    p_false = min(p_at_chance.values(), default=1.0)
    fewest = int(first_look_points.groupby("gamma").seed.nunique().min())
    signals = [
        signal_per_seed(max(p, p_over_all), len(e))
        for p, e in zip(p_values, points_by_gamma.values(), strict=True)
    ]
    below_line = [
        _distance_in_deviations(lines[g] - p.value.mean(), p.value.tolist())
        for g, p in points_by_gamma.items()
    ]
    better = [signal_per_seed(special.ndtr(special.ndtri(max(p, p_over_all)) - 1.96), len(e))
              for p, e in zip(p_values, points_by_gamma.values(), strict=True)]  # fmt: skip
    looked_again = points.seed.nunique() > seeds_at_first_look
    judged_seeds = f"the first {fewest} of {points.seed.nunique()}" if looked_again else f"{fewest}"
    return Evidence(
        **_describe_points(kind, points, "idxmin", by_law=True),
        rule=f"every point must be above chance, and their mean by more than"
        f" {_describe_margin(points)} (the law of chance, over {judged_seeds} seeds)",
        why="; ".join(
            [
                *short_notes,
                *(f"at chance at γ = {g:g}" for g, p in p_at_chance.items() if p <= ALPHA),
            ]
        ),
        deviations_to_line=max(min(signals, default=0.0), max(below_line, default=0.0)),
        most_deviations_to_line=max(min(better, default=0.0), max(below_line, default=0.0)),
        p_true=1.0 if short_notes else max(p_over_all, *p_values),
        p_false=p_false,
        p_nowhere=min([1.0, *(k * p for p in p_values)]),
        seeds=fewest if short_notes and p_false > ALPHA else seeds,
        first_seeds=fewest if looked_again else 0,
        margins=_margins_of_chance(kind, points, seeds_at_first_look),
    )


@dated
def _leak_p_value_over_all(kind: str, points_by_gamma: Iterable[DataFrame]) -> float:
    """p-value of what an attack finds over all points, if it finds at most their mean margin more
    than chance. The points of a seed may deviate together, so they count as one."""
    points = [*points_by_gamma]
    if not points:
        return 1.0
    per_seed = pd.concat(points).groupby("seed")[["value", "spread", "margin"]].mean()
    return leak_p_value(kind, per_seed.value, per_seed.spread, per_seed.margin.mean())


@dated
def judge_no_leak(
    kind: str, points: DataFrame, works: bool, *, idle: bool = False, seeds: int = MIN_SEEDS,
    power: tuple[float, float] = (math.nan, math.nan), seeds_at_first_look: int = MAX_SEEDS,
    all_seeds: bool = False,
) -> Evidence:  # fmt: skip
    """Judge the claim that an attack which ``works`` elsewhere finds nothing: equivalence with
    chance, for each seed's mean over all points. It differs where a point is above its margin, or
    the seeds' means over all points are above theirs (half of the error each). It is right in part
    where a point is above chance by its law, or the means are, and none is shown to be above the
    margin. An attack that is ``idle``, at chance even without protection, compares nothing; for one
    that is neither, ``power`` is what a seed adds to its signal there (:func:`attack_power`)."""
    first_look_points = points if all_seeds else _points_at_first_look(points, seeds_at_first_look)
    gamma_values = points.pivot_table(index="seed", columns="gamma", values="value").dropna()
    margin_by_gamma = points.groupby("gamma").margin.max()
    mean_margin = float(margin_by_gamma[gamma_values.columns].mean())
    line = chance_level(kind) + mean_margin
    seed_means = gamma_values.mean(axis=1).tolist()
    points_by_gamma, short_notes = _select_points_with_enough_seeds(first_look_points, seeds)

    def beyond(values: list[float], end: float) -> float:
        return _p_value_for_looks(values, end, seeds_at_first_look, all_seeds=all_seeds)

    def combine_p_values(p_of_points: list[float], end: float) -> float:
        p_of_means = beyond(seed_means, end) if len(seed_means) >= seeds else 1.0
        return min([1.0, 2 * p_of_means, *(2 * len(p_of_points) * p for p in p_of_points)])

    above_chance = [leak_p_value(kind, p.value, p.spread) for p in points_by_gamma.values()]
    above_margin = [
        mean_above_p_value(p.value.tolist(), chance_level(kind) + margin_by_gamma[g])
        for g, p in points_by_gamma.items()
    ]
    p_above_chance = combine_p_values(above_chance, chance_level(kind))
    p_above_margin = combine_p_values(above_margin, line)
    p_true = beyond([-x for x in seed_means], -line) if works else 1.0
    reasons = []
    if idle:
        reasons.append("the attack is at chance on non-private training, too")
    elif not works:
        reasons.append("the attack is not shown to find more on non-private training either")
    leaks = p_above_chance <= ALPHA
    value, _, high = confidence_interval(seed_means)
    gap = abs(line - value)
    half_width = 0.0 if high is None else high - value
    has_means = works and bool(seed_means)
    return Evidence(
        **_describe_points(kind, points, "idxmax"),
        rule=f"over all points at most {_describe_margin(points)}"
        f" above chance (the means of {len(seed_means)} seeds), neither the means nor any point may"
        " be above chance, and the attack must find more than the margin on non-private training;"
        f" it differs where a point or the means are above the margin"
        f"{_describe_looks(seed_means, seeds_at_first_look)}",
        why="; ".join([*reasons, *short_notes]),
        p_true=p_true,
        p_false=p_above_margin,
        p_worse=p_above_chance,
        worse_is_part=True,
        seeds=max(len(gamma_values), seeds if leaks else 0),
        first_seeds=count_first_seeds(seed_means, seeds_at_first_look),
        deviations_to_line=_distance_in_deviations(gap, seed_means) if has_means else power[0],
        most_deviations_to_line=_distance_in_deviations(gap + half_width, seed_means)
        if has_means
        else power[1],
        comparable=not idle or leaks,
        margins=_margins_of_chance(kind, points, seeds_at_first_look),
    )


def _describe_margin(points: DataFrame) -> str:
    """The mean of the margins of some points, with the least and the largest where they differ."""
    margin_by_gamma = points.groupby("gamma").margin.max()
    mean = f"{margin_by_gamma.mean():.2g}"
    if margin_by_gamma.nunique() < 2:
        return mean
    ordered = [*margin_by_gamma.sort_values().items()]
    smallest, largest = (
        f"{margin:.2g} at γ = {gamma:g}" for gamma, margin in (ordered[0], ordered[-1])
    )
    return f"{mean} (a point: from {smallest} to {largest})"


def describe_excess(evidence: Evidence) -> list[str]:
    """What of "at chance" is refuted, in words, by the p-values of a corrected row."""
    p_by_excess = {"above chance": evidence.p_worse, "above the margin": evidence.p_false}
    if not evidence.worse_is_part:
        return []
    return [f"{excess} (p = {p:.1g})" for excess, p in p_by_excess.items() if p <= ALPHA]


def _margins_of_chance(kind: str, points: DataFrame, seeds_at_first_look: int) -> tuple[str, ...]:
    """The names of the margins that define chance."""
    of_gain = ("gain",) if (points.margin != MARGINS_ABOVE_CHANCE[kind]).any() else ()
    return (kind, *of_gain, *_margins_of_looks(points.seed.nunique(), seeds_at_first_look))


def _describe_points(
    kind: str, points: DataFrame, end: str, *, by_law: bool = False
) -> dict[str, Any]:
    """The range of the points in words, and the interval of the least or the largest: Student's
    over seeds; for an accuracy that is judged ``by_law``, that of the law of chance."""
    means = points.groupby("gamma").value.mean()
    end_points = points[points.gamma == getattr(means, end)()]
    range_text = f"{means.min():.3g}" + (f" to {means.max():.3g}" if len(means) > 1 else "")
    unit = "bits, the mean canary" if kind == "exposure" else "right guesses"
    number = f"{len(means)} point{'s'[: len(means) > 1]}"
    text = f"{range_text} {unit} (chance: {chance_level(kind):.3g}), {number}"
    value, low, high = confidence_interval(end_points.value.tolist())
    if by_law and kind != "exposure":
        half_width = 1.96 * _error_by_chance(end_points.spread)
        low, high = value - half_width, value + half_width
    return {
        "ours": text,
        "seeds_of_interval": end_points.seed.nunique(),
        **dict(zip(INTERVAL, (value, low, high), strict=True)),
    }


@dated
def _error_by_chance(spread: Numbers) -> float:
    """The standard deviation of a mean over seeds, from the deviation of each by chance."""
    return float(np.sqrt(np.square(spread).sum())) / len(spread)


# --- counts and calculations ----------------------------------------------------------------------
@dated
def judge_share(
    counts: Sequence[int],
    totals: Sequence[int],
    *,
    side: str,
    line: float,
    seeds_at_first_look: int = MAX_SEEDS,
) -> Evidence:
    """Judge the claim that a share is at or "above", or "below" ``line``; a line of 1 allows no
    exception at all. ``counts`` and ``totals`` have one number for each seed."""
    hit_count, n, is_repeated_look = sum(counts), sum(totals), len(counts) > seeds_at_first_look
    low, high = clopper_pearson(hit_count, n)
    if line == 1:
        p_above, p_below = float(hit_count < n), float(hit_count == n)
    elif is_repeated_look:
        misses = [a - b for a, b in zip(totals, counts, strict=True)]
        p_above, p_below = (
            repeated_look_share_p_value(counts, totals, line),
            repeated_look_share_p_value(misses, totals, 1 - line),
        )
    else:
        p_above, p_below = (
            float(stats.binomtest(hit_count, n, line, alternative=alternative).pvalue)
            for alternative in ("greater", "less")
        )
    rule = f"the 95 % interval of {hit_count} of {n} must lie {side} {line:g}"
    rule += "; looked at more than once: by e-values" * is_repeated_look
    return Evidence(
        ours=f"{hit_count} of {n}, {hit_count / n:.1%} [{low:.1%}, {high:.1%}]",
        rule=f"none of {n} may be missed" if line == 1 else rule,
        value=hit_count / n,
        low=low,
        high=high,
        p_true=p_above if side == "above" else p_below,
        p_false=p_below if side == "above" else p_above,
        seeds=len(counts),
        seeds_of_interval=len(counts),
        margins=_margins_of_looks(len(counts), seeds_at_first_look),
    )


@dated
def judge_occurrence(
    values: Sequence[float], *, zero: bool, seeds_at_first_look: int = MAX_SEEDS
) -> Evidence:
    """Judge the claim that a count is above 0 sometimes, or never: in more, or in less, than
    ``RARE_SHARE`` of the runs."""
    occurs = [int(v != 0) for v in values]
    evidence = judge_share(
        occurs,
        [1] * len(occurs),
        side="below" if zero else "above",
        line=RARE_SHARE,
        seeds_at_first_look=seeds_at_first_look,
    )
    largest_note = f", at most {max(values):g}" * any(occurs)
    return replace(
        evidence,
        ours=f"above 0 in {sum(occurs)} of {len(occurs)} runs{largest_note}",
        margins=("rare", *evidence.margins),
    )


@dated
def judge_worst_case(
    values: Sequence[float], *, line: float, seeds_at_first_look: int = MAX_SEEDS
) -> Evidence:
    """Judge the claim that the worst of all runs lies at or below ``line``. One run above it
    refutes that. None above it confirms that fewer runs than ``RARE_SHARE`` would be, once there
    are enough."""
    is_above = [float(v > line) for v in values]
    evidence = judge_occurrence(is_above, zero=True, seeds_at_first_look=seeds_at_first_look)
    return replace(
        evidence,
        ours=f"at most {max(values):.3g} in {len(values)} runs",
        rule=f"no run may lie above {line:g}, and fewer than {RARE_SHARE:g} of all runs would",
        value=max(values),
        low=None,
        high=None,
        p_true=1.0 if any(is_above) else evidence.p_true,
        p_false=0.0 if any(is_above) else 1.0,
    )


@dated
def judge_calculation(
    value: float | tuple[float, float], sentence: str, *, side: str, line: float | str
) -> Evidence:
    """Judge a claim that a calculation confirms or refutes: its value is at "most" or at "least"
    the ``line``, or "rounds" to what is printed. A value that is only known to lie between two
    numbers decides where both give the same answer."""
    low, high = value if isinstance(value, tuple) else (value, value)
    if side == "rounds":
        digits = -int(Decimal(str(line)).as_tuple().exponent)
        are_right = [f"{end:.{max(digits, 0)}f}" == str(line) for end in (low, high)]
        rule = f"must round to the printed {line}"
    else:
        are_right = [end <= float(line) if side == "most" else end >= float(line)
                     for end in (low, high)]  # fmt: skip
        rule = f"must be at {side} {float(line):g}"
    return Evidence(
        ours=sentence or f"{value:.4g}",
        rule=rule,
        value=low if low == high else None,
        why="" if low == high else "it is known to lie between these two numbers only",
        p_true=float(not all(are_right)),
        p_false=float(any(are_right)),
        exact=True,
    )
