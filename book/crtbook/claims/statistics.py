"""How a claim is judged: the one place for seeds, pairing, chance, equivalence and families.

>>> below = mean([0.8, 0.9, 0.85], side="below", line=1.0)
>>> verdict(below, seeds=3), verdict(mean([0.8, 1.3, 0.9], side="below", line=1.0), seeds=3)
('agrees', 'not decided')
>>> verdict(mean([0.8], side="below", line=1.0), seeds=3)  # one seed decides nothing
'not decided'
>>> verdict(mean([1.02, 1.03, 1.04], side="close", line=1.1), seeds=3)
'agrees'
>>> holm([0.01, 0.04, 0.03])
[0.03, 0.06, 0.06]

Each row has two one-sided p-values: ``p_true``, were the claim false, and ``p_false``, were it
true. A row agrees where the first is at most ``ALPHA`` after Holm's correction over its family, the
rows of one claim, and differs where the second is: that any row of a claim wrongly agrees has a
probability of at most ``ALPHA``, and so has that any wrongly differs.

Seeds are added to a row that is open, and who looks again errs more often. So a row that was looked
at more than once is judged by a test that may be looked at whenever one likes: means of pairs that
are near normal by :func:`always_above`, shares by :func:`always_rate`. All else is judged by the
seeds of its first look alone (``first``).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame
from scipy import special, stats

from crtlib.intervals import clopper_pearson

AGREES, PART, DIFFERS = "agrees", "in part", "differs"
OPEN, UNDECIDABLE, INCOMPARABLE = "not decided", "not decidable here", "not comparable"
REMARK, CONSTRUCTION = "remark", "by construction"
VERDICTS = (AGREES, PART, DIFFERS, OPEN, UNDECIDABLE, INCOMPARABLE, CONSTRUCTION, REMARK)

ALPHA = 0.025
SEEDS = 3
"""Fewer runs have no spread that could be trusted."""
FEWEST = 5
"""Fewer seeds are too few for a test that may be looked at again."""
MOST = 100
"""A row is not decidable here where even so many seeds would be unlikely to decide it, although the
mean lay at the end of its interval that is farther from the line: it lies on its line, or its
corpus is too small for the attack. The mean that was seen does not say so: it is as uncertain."""
SKEWED = 0.5
"""Values above 0 whose logarithms have a larger deviation are not near normal."""
RARE = 0.1
"""What happens "sometimes" happens in more than so large a share of the runs; what "never" happens,
in less."""
SETTLED = 0.01
"""A curve has settled when its last third lowers the best perplexity by no larger a share."""
LONGER = 2
"""An arm whose curve still falls has settled too where its search tried so many times its epochs,
with rates drawn for them, and the best of those trials is lower by at most ``SETTLED``: at one
epsilon more epochs are more noise, so that a curve which still falls may end lower than a longer
one does."""
POWER = 0.8
"""How likely the seeds that a row is said to need would decide it."""
CLOSE = 1.1
"""A perplexity is close to another when it is at most so many times as large. As much lies between
the best and the median trial of non-private training in the recorded searches (a test counts it):
closer than that, a gap is as small as what another draw of the learning rate makes."""
BITS = 1 / math.log(2)
"""The mean exposure of a canary of which a model knows nothing: exposure is then exponential."""
MARGIN = {"exposure": 1.0, "accuracy": 0.02, "group": 0.05}
"""At chance means: at most so much above it. One bit is the answer to one question with yes or no;
0.02 are two more right answers in a hundred than a coin gives; groups add up what twenty sentences
give away, and their chance band is that much wider."""
GAIN = 0.12
"""Of all secrets a share ``gamma`` can be told apart, so no attack is right more often than
1 / (2 - gamma). Their accuracy is at chance within this share of what is there to gain: 0.02 at a
``gamma`` of 0.5, where the margin was set, and 0.003 at 0.1."""


def margins() -> dict[str, float]:
    """Every number that was chosen, by what it is of."""
    return {
        "level": ALPHA, "close": CLOSE, "exposure": MARGIN["exposure"],
        "accuracy": MARGIN["accuracy"], "group": MARGIN["group"], "gain": GAIN, "rare": RARE,
        "settled": SETTLED, "longer": LONGER, "skewed": SKEWED, "seeds": SEEDS, "fewest": FEWEST,
        "most": MOST,
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What numbers say of a claim. ``exact``: a calculation or a count, which needs no family;
    ``part``: some points bear the claim out and others do not; ``p_worse``: were the claim not
    true in part only; ``effect``: how far the line is that would decide, in standard deviations of
    one seed, and ``farthest`` from the end of the interval that is farther from it; ``share``: of
    the runs, those that give a number at all; ``needed``: so many seeds would be likely to decide
    (:func:`seeds_needed`), and ``least`` at the farther end; 0 where that is not known; ``pairs``:
    so many seeds, or pairs of runs, the number rests on."""

    ours: str = ""
    rule: str = ""
    why: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    p_true: float = 1.0
    p_false: float = 1.0
    p_worse: float = 1.0
    seeds: int = 0
    pairs: int = 0
    effect: float = math.nan
    farthest: float = math.nan
    share: float = 1.0
    needed: float = 0
    least: float = 0
    exact: bool = False
    part: bool = False
    comparable: bool = True


def verdict(e: Evidence, *, seeds: int = SEEDS) -> str:
    """The verdict of one row; its p-values are those of :func:`in_family` where it has one."""
    if not e.comparable:
        return INCOMPARABLE
    if not e.exact and e.seeds < seeds:
        return OPEN
    true, false = e.p_true <= ALPHA, e.p_false <= ALPHA
    if true == false:
        open_ = UNDECIDABLE if e.least > MOST else OPEN
        return PART if true or e.part else open_
    if true:
        return PART if e.p_worse <= ALPHA else AGREES
    return DIFFERS


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given."""
    adjusted, most = [0.0] * len(p), 0.0
    for rank, k in enumerate(np.argsort(p, kind="stable")):
        most = max(most, min(1.0, (len(p) - rank) * p[k]))
        adjusted[k] = most
    return adjusted


def in_family(rows: Sequence[Evidence], *, seeds: int = SEEDS) -> list[Evidence]:
    """Rows with the p-values that hold for all of them together; what is exact or has too few
    ``seeds`` asks nothing of the others."""
    out = list(rows)
    asked = [k for k, e in enumerate(rows) if not e.exact and e.comparable and e.seeds >= seeds]
    each = [holm([getattr(rows[k], p) for k in asked]) for p in ("p_true", "p_false", "p_worse")]
    for k, true, false, worse in zip(asked, *each, strict=True):
        needed, least = (
            np.ceil(seeds_needed(effect, of=len(asked)) / rows[k].share)
            for effect in (rows[k].effect, rows[k].farthest)
        )
        out[k] = replace(
            rows[k], p_true=true, p_false=false, p_worse=worse, needed=needed, least=least
        )
    return out


def seeds_needed(effect: float, *, of: int = 1) -> float:
    """How many seeds would decide a row of a family of ``of`` with a chance of ``POWER``, by
    Student's t, were the mean and the spread as they were seen: infinite above ``MOST``, 0 where
    the ``effect`` is not known.

    >>> seeds_needed(1.0), seeds_needed(1.0, of=7), seeds_needed(0.1), seeds_needed(math.nan)
    (10, 16, inf, 0)
    """
    if math.isnan(effect):
        return 0
    n = np.arange(SEEDS, MOST + 1)
    ends = special.stdtrit(n - 1, 1 - ALPHA / of) + special.stdtrit(n - 1, POWER)
    enough = n[ends <= effect * np.sqrt(n)]
    return int(enough[0]) if len(enough) else math.inf


def _apart(gap: float, values: Sequence[float]) -> float:
    """A distance in standard deviations of one seed; unknown of fewer than ``SEEDS``."""
    spread = float(np.std(values, ddof=1)) if len(values) >= SEEDS else math.nan
    return gap / spread if spread else math.nan


# --- means over seeds -----------------------------------------------------------------------------
def half(std: Any, seeds: Any) -> Any:
    """Half the 95 % interval of a mean over ``seeds``, by Student's t; 0 for one seed.

    >>> [round(float(half(1.0, n)), 2) for n in (1, 3)]
    [0.0, 2.48]
    """
    wide = special.stdtrit(np.maximum(np.subtract(seeds, 1), 1), 0.975) * std / np.sqrt(seeds)
    return np.where(np.greater(seeds, 1), wide, 0)


def interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Mean and 95 % t-interval over seeds; none for fewer than ``SEEDS``."""
    mean = float(np.mean(values)) if len(values) else math.nan
    if len(values) < SEEDS:
        return mean, None, None
    off = float(half(np.std(values, ddof=1), len(values)))
    return mean, mean - off, mean + off


def above(values: Sequence[float], line: float) -> float:
    """p-value of a mean over seeds above ``line``, were it at most that (Student's t)."""
    x = np.asarray(values, dtype=float)
    if len(x) < 2:
        return 1.0
    gap, error = float(x.mean() - line), float(x.std(ddof=1) / np.sqrt(len(x)))
    if error == 0:
        return float(gap <= 0)
    return float(special.stdtr(len(x) - 1, -gap / error))


# --- looking again --------------------------------------------------------------------------------
EFFECTS = 1 / special.chdtri(1, 1 - (np.arange(100) + 0.5) / 100)
"""Variances of an effect in deviations of one seed, equally likely: together Cauchy's law."""


def always_above(values: Sequence[float], line: float) -> float:
    """p-value of a mean above ``line``, were it at most that, which holds however often one looks:
    the largest e-value from ``FEWEST`` seeds on, of a t-test mixed over effects.

    >>> always_above([1.2, 1.3, 1.25, 1.22, 1.28], 1.0) < 0.01
    True

    Guarantee: of normal values and of skewed ones that :func:`near_normal` lets through, at most
    one row in forty is wrong however often it is looked at; a test that looks after each seed
    (``test_who_looks_after_each_seed``) fails where that is false.
    """
    x, least = np.asarray(values, dtype=float), 1.0
    for n in range(FEWEST, len(x) + 1):
        seen = x[:n]
        spread, gap = float(seen.std(ddof=1)), float(seen.mean() - line)
        if gap > 0 and len(np.unique(seen)) >= SEEDS:
            t2, wide = n * (gap / spread) ** 2, 1 + n * EFFECTS
            mixed = (n * np.log((1 + t2 / (n - 1)) / (1 + t2 / (n - 1) / wide)) - np.log(wide)) / 2
            least = min(least, float(np.exp(-special.logsumexp(mixed) + math.log(len(wide)))) / 2)
    return least


def near_normal(values: Sequence[float]) -> bool:
    """Whether an e-value of a t-test holds for such values: at least three that differ, and no long
    tail to one side (Shapiro and Wilk's test; of values above 0 the deviation of the logarithms).

    >>> near_normal([1.2, 1.3, 1.25, 1.22, 1.28]), near_normal([0, 0, 0, 0, 1])
    (True, False)
    """
    x = np.asarray(values, dtype=float)
    if len(np.unique(x)) < SEEDS:
        return False
    long = x.min() > 0 and np.log(x).std(ddof=1) > SKEWED
    return not long and float(stats.shapiro(x).pvalue) > 0.01


def always_rate(counts: Sequence[int], of: Sequence[int], line: float) -> float:
    """p-value of a share above ``line``, were it at most that, which holds however often one looks:
    the largest e-value of a binomial count, all larger shares equally likely.

    >>> always_rate([9, 8, 9], [10, 10, 10], 0.5) < 0.001
    True
    """
    hits, n = np.cumsum(counts), np.cumsum(of)
    larger = special.betaln(hits + 1, n - hits + 1)
    larger += np.log(special.betaincc(hits + 1, n - hits + 1, line)) - math.log1p(-line)
    e = larger - special.xlogy(hits, line) - special.xlog1py(n - hits, -line)
    return float(min(1.0, np.exp(-e.max())))


def _tail(values: Sequence[float], line: float, first: int) -> float:
    """p-value of a mean above ``line`` by the test that the number of looks allows: ``first`` seeds
    were there at the first one."""
    if len(values) >= FEWEST and len(values) > first and near_normal(values):
        return always_above(values, line)
    return above(values[:first], line)


INTERVAL = ("value", "low", "high")


def span(value: float, low: float | None, high: float | None, unit: str = "") -> str:
    """A number with its interval, as it is printed: to two digits of the interval's half, and to no
    more than three of the largest.

    >>> span(0.00824, -0.0274, 0.0439), span(1.0577, 1.0506, 1.0649), span(1234.5, 1100.0, 1369.0)
    ('0.008 [-0.027, 0.044]', '1.06 [1.05, 1.06]', '1,230 [1,100, 1,370]')
    """
    if low is None or high is None or not 0 < high - low < math.inf:
        known = "" if low is None else f" [{low:.3g}, {high:.3g}]"
        return f"{value:.3g}{known} {unit}".strip()
    of_half, of_largest = (
        math.floor(math.log10(x)) for x in ((high - low) / 2, max(-low, high, abs(value)))
    )
    digits = min(1 - of_half, 2 - of_largest)
    shown, *ends = (f"{round(x, digits) + 0:,.{max(0, digits)}f}" for x in (value, low, high))
    return f"{shown} [{', '.join(ends)}] {unit}".strip()


def mean(
    values: Sequence[float], *, side: str, line: float, unit: str = "", first: int = MOST
) -> Evidence:
    """The claim that a mean over seeds is "above" or "below" ``line``, or "close": equivalence,
    from 1/``line`` to ``line`` for a ratio; "none": no more than ``line`` from 0, either way.
    "same or below": below the ``line``, and true in part only where it is above 1. ``first``: the
    seeds that were there when the row was looked at for the first time."""
    value, low, high = interval(values)
    reverse = [-x for x in values]

    def beyond(end: float, *, up: bool) -> float:
        return _tail(values if up else reverse, end if up else -end, first)

    worse = 1.0
    if side in ("close", "none"):
        ends = (1 / line, line) if side == "close" else (-line, line)
        true = max(beyond(ends[0], up=True), beyond(ends[1], up=False))
        false = min(beyond(ends[1], up=True), beyond(ends[0], up=False))
        where = f"between {ends[0]:.3g} and {ends[1]:.3g}"
    else:
        ends = (line, line)
        true, false = beyond(line, up=side == "above"), beyond(line, up=side != "above")
        where = f"{'above' if side == 'above' else 'below'} {line:g}"
        if side == "same or below":
            worse = beyond(1.0, up=True)
            where += "; in part where it lies above 1"
    gaps = [abs(value - end) for end in ends]
    wide = 0.0 if high is None else high - value
    return Evidence(
        ours=span(value, low, high, unit),
        rule=f"the 95 % interval over {len(values)} seeds must lie {where}{_looked(values, first)}",
        value=value,
        low=low,
        high=high,
        p_true=true,
        p_false=false,
        p_worse=worse,
        seeds=len(values),
        pairs=len(values),
        effect=_apart(min(gaps), values),
        farthest=_apart(max(gaps) + wide, values),
    )


def _looked(values: Sequence[float], first: int) -> str:
    """How a row that was looked at again is judged, in words."""
    if len(values) <= first:
        return ""
    if len(values) >= FEWEST and near_normal(values):
        return "; looked at again: by e-values"
    return f"; looked at again: by the first {first} seeds"


# --- attacks --------------------------------------------------------------------------------------
def chance(kind: str) -> float:
    """Where a model that knows nothing lies."""
    return BITS if kind == "exposure" else 0.5


Numbers = np.ndarray | pd.Series


def leak(kind: str, values: Numbers, spread: Numbers) -> float:
    """p-value of what an attack finds at one point, were nothing learned. ``values``: one a seed, a
    mean exposure or an accuracy; ``spread``: the number of canaries, or the deviation that the
    attack has when the sides are exchanged."""
    if kind == "exposure":  # a sum of exponentials: Gamma's law
        return float(special.gammaincc(spread.sum(), float((values * spread).sum()) / BITS))
    error = float(np.sqrt(np.square(spread).sum())) / len(values)
    return float(special.ndtr(-(values.mean() - 0.5) / error)) if error else 1.0


def signal(p: float, seeds: int) -> float:
    """What one seed adds to a p-value, in standard deviations of one seed; 0 for none."""
    return max(0.0, -float(special.ndtri(p))) / math.sqrt(seeds)


def margin(kind: str, gamma: float, *, missed: bool = True) -> float:
    """How far above chance is still at chance. Of all secrets, not of the ``missed`` alone, it is a
    share of what an attack could gain: 1 / (2 - gamma), less one half.

    >>> [round(margin("accuracy", gamma, missed=False), 4) for gamma in (0.5, 0.1)]
    [0.02, 0.0032]
    """
    if missed or kind != "accuracy" or not gamma:
        return MARGIN[kind]
    return GAIN * (1 / (2 - gamma) - 0.5)


def at_chance(kind: str, values: Sequence[float]) -> bool:
    """Whether a mean over seeds is shown to be within the margin of chance."""
    line = chance(kind) + MARGIN[kind]
    return len(values) >= SEEDS and above([-x for x in values], -line) <= ALPHA


def _enough(
    kind: str, points: DataFrame, seeds: int
) -> tuple[dict[Any, DataFrame], list[float], list[str]]:
    """The points that have enough seeds, their p-values, and how many have not, in words."""
    each = {g: p for g, p in points.groupby("gamma") if len(p) >= seeds}
    short = points.gamma.nunique() - len(each)
    words = f"{short} of {short + len(each)} points have fewer than {seeds} seeds"
    return each, [leak(kind, p.value, p.spread) for p in each.values()], [words] * bool(short)


def leaks(
    kind: str, points: DataFrame, *, seeds: int = SEEDS, first: int = MOST, missed: bool = True
) -> Evidence:
    """The claim that an attack finds something at each point. ``points``: gamma, seed, value and
    spread, as :func:`leak` has them. It differs where a point is at chance, within the margin."""
    early = points[points.seed.isin(sorted(points.seed.unique())[:first])]
    each, found, short = _enough(kind, early, seeds)
    lines, k = {g: chance(kind) + margin(kind, g, missed=missed) for g in each}, len(each)
    calm = {g: min(1.0, k * above((-p.value).tolist(), -lines[g])) for g, p in each.items()}
    least = min(calm.values(), default=1.0)
    some = sum(p <= ALPHA / k for p in found)
    fewest = int(early.groupby("gamma").seed.nunique().min())
    above_chance = [signal(p, len(e)) for p, e in zip(found, each.values(), strict=True)]
    below_line = [_apart(lines[g] - p.value.mean(), p.value.tolist()) for g, p in each.items()]
    better = [signal(special.ndtr(special.ndtri(p) - 1.96), len(e))
              for p, e in zip(found, each.values(), strict=True)]  # fmt: skip
    return Evidence(
        **_described(kind, points, "idxmin"),
        rule=f"every point must be above chance (its law, over {fewest} seeds)",
        why="; ".join(
            [*short, *(f"at chance at γ = {g:g}" for g, p in calm.items() if p <= ALPHA)]
        ),
        effect=max(min(above_chance, default=0.0), max(below_line, default=0.0)),
        farthest=max(min(better, default=0.0), max(below_line, default=0.0)),
        p_true=1.0 if short else max(found),
        p_false=least,
        part=not short and 0 < some < k,
        seeds=fewest if short and least > ALPHA else seeds,
    )


def calm(
    kind: str, points: DataFrame, works: bool, *, idle: bool = False, figure: int = 1,
    seeds: int = SEEDS, power: float = math.nan, first: int = MOST, missed: bool = True,
) -> Evidence:  # fmt: skip
    """The claim that an attack which ``works`` elsewhere finds nothing: equivalence with chance, of
    each seed's mean over all points. It differs where a point is above chance, of the ``figure``'s
    number of points, and in part where each such point lies within its margin. An attack that is
    ``idle``, at chance without protection too, compares
    nothing; of one that is neither, ``power`` is what a seed adds to its signal there."""
    early = points[points.seed.isin(sorted(points.seed.unique())[:first])]
    wide = points.pivot_table(index="seed", columns="gamma", values="value").dropna()
    at = [margin(kind, float(g), missed=missed) for g in wide.columns.to_numpy(float)]
    line, means = chance(kind) + float(np.mean(at)), wide.mean(axis=1).tolist()
    _, found, short = _enough(kind, early, seeds)
    p_false = min([1.0, *(max(figure, len(found)) * p for p in found)])
    p_true = _tail([-x for x in means], -line, first) if works else 1.0
    why = "is at chance on non-private training, too"
    why = why if idle else "finds nothing on non-private training either"
    whys = [] if works else [f"the attack {why}"]
    whys += [f"above chance (p = {p_false:.1g})"] if p_false <= ALPHA else []
    value, _, high = interval(means)
    gap, half_ = abs(line - value), 0.0 if high is None else high - value
    judged, leaks_ = works and bool(means), p_false <= ALPHA
    each = points.groupby("gamma").value.mean()
    above_chance = zip(each.index.to_numpy(float), each.to_numpy(float) - chance(kind), strict=True)
    little = all(v <= margin(kind, float(g), missed=missed) for g, v in above_chance)
    return Evidence(
        **_described(kind, points, "idxmax"),
        rule=f"over all points at most {line - chance(kind):.2g} above chance, none above chance by"
        f" its law, and the attack must work on non-private training{_looked(means, first)}",
        why="; ".join([*whys, *short]),
        p_true=p_true,
        p_false=1.0 if little else p_false,
        p_worse=p_false if little else 1.0,
        part=leaks_ and little,
        seeds=max(len(wide), seeds if leaks_ else 0),
        effect=_apart(gap, means) if judged else power,
        farthest=_apart(gap + half_, means) if judged else power,
        comparable=works or not idle or leaks_,
    )


def _described(kind: str, points: DataFrame, end: str) -> dict[str, Any]:
    """The range of the points in words, and the interval of the least or the largest."""
    means = points.groupby("gamma").value.mean()
    at = points[points.gamma == getattr(means, end)()]
    words = f"{means.min():.3g}" + (f" to {means.max():.3g}" if len(means) > 1 else "")
    unit = "bits, the mean canary" if kind == "exposure" else "right guesses"
    number = f"{len(means)} point{'s'[: len(means) > 1]}"
    ours = f"{words} {unit} (chance: {chance(kind):.3g}), {number}"
    return {
        "ours": ours,
        "pairs": points.seed.nunique(),
        **dict(zip(INTERVAL, interval(at.value.tolist()), strict=True)),
    }


# --- counts and calculations ----------------------------------------------------------------------
def rate(
    counts: Sequence[int], of: Sequence[int], *, side: str, line: float, first: int = MOST
) -> Evidence:
    """The claim that a share lies at or "above", or "below" ``line``; a line of 1 asks for no
    exception at all. ``counts`` and ``of``: of each seed."""
    hits, n, again = sum(counts), sum(of), len(counts) > first
    low, high = clopper_pearson(hits, n)
    if line == 1:
        more, less = float(hits < n), float(hits == n)
    elif again:
        misses = [a - b for a, b in zip(of, counts, strict=True)]
        more, less = always_rate(counts, of, line), always_rate(misses, of, 1 - line)
    else:
        more, less = (
            float(stats.binomtest(hits, n, line, alternative=way).pvalue)
            for way in ("greater", "less")
        )
    rule = f"the 95 % interval of {hits} of {n} must lie {side} {line:g}"
    rule += "; looked at again: by e-values" * again
    return Evidence(
        ours=f"{hits} of {n}, {hits / n:.1%} [{low:.1%}, {high:.1%}]",
        rule=f"none of {n} may be missed" if line == 1 else rule,
        value=hits / n,
        low=low,
        high=high,
        p_true=more if side == "above" else less,
        p_false=less if side == "above" else more,
        seeds=len(counts),
        pairs=len(counts),
    )


def event(values: Sequence[float], *, zero: bool, first: int = MOST) -> Evidence:
    """The claim that a count is above 0 sometimes, or never: in more, or in less, than ``RARE`` of
    the runs."""
    some = [int(v != 0) for v in values]
    told = rate(some, [1] * len(some), side="below" if zero else "above", line=RARE, first=first)
    most = f", at most {max(values):g}" * any(some)
    return replace(told, ours=f"above 0 in {sum(some)} of {len(some)} runs{most}")


def calculated(value: float, words: str, *, side: str, line: float | str) -> Evidence:
    """A claim that a calculation bears out or refutes: its value is at "most" or at "least" the
    ``line``, or "rounds" to what is printed."""
    if side == "rounds":
        digits = -int(Decimal(str(line)).as_tuple().exponent)
        right = f"{value:.{max(digits, 0)}f}" == str(line)
        rule = f"must round to the printed {line}"
    else:
        right = value <= float(line) if side == "most" else value >= float(line)
        rule = f"must be at {side} {float(line):g}"
    return Evidence(
        ours=words or f"{value:.4g}",
        rule=rule,
        value=value,
        p_true=float(not right),
        p_false=float(right),
        exact=True,
    )
