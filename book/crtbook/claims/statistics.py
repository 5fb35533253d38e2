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
VERDICTS = (AGREES, PART, DIFFERS, OPEN, UNDECIDABLE, INCOMPARABLE)

ALPHA = 0.025
SEEDS = 3
"""Fewer runs have no spread that could be trusted."""
MOST = 100
"""Where, at the spread and the mean that were seen, even so many seeds would decide nothing, a row
is not decidable here: it lies on its line, or its corpus is too small for the attack."""
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


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What numbers say of a claim. ``exact``: a calculation or a count, which needs no family;
    ``part``: some points bear the claim out and others do not; ``effect``: how far the line is
    that would decide, in standard deviations of one seed; ``share``: of the runs, those that give
    a number at all; ``needed``: so many seeds would be likely to decide (:func:`seeds_needed`),
    0 where that is not known."""

    ours: str = ""
    rule: str = ""
    why: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    p_true: float = 1.0
    p_false: float = 1.0
    seeds: int = 0
    effect: float = math.nan
    share: float = 1.0
    needed: float = 0
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
        open_ = UNDECIDABLE if e.needed > MOST else OPEN
        return PART if true or e.part else open_
    return AGREES if true else DIFFERS


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
    true, false = (holm([getattr(rows[k], p) for k in asked]) for p in ("p_true", "p_false"))
    for k, t, f in zip(asked, true, false, strict=True):
        needed = np.ceil(seeds_needed(rows[k].effect, of=len(asked)) / rows[k].share)
        out[k] = replace(rows[k], p_true=t, p_false=f, needed=needed)
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


INTERVAL = ("value", "low", "high")


def span(value: float, low: float | None, high: float | None, unit: str = "") -> str:
    """A number with its interval, as it is printed."""
    ends = "" if low is None else f" [{low:.3g}, {high:.3g}]"
    return f"{value:.3g}{ends} {unit}".strip()


def mean(values: Sequence[float], *, side: str, line: float, unit: str = "") -> Evidence:
    """The claim that a mean over seeds is "above" or "below" ``line``, or "close": equivalence,
    from 1/``line`` to ``line`` for a ratio; "none": no more than ``line`` from 0, either way."""
    value, low, high = interval(values)
    reverse = [-x for x in values]
    if side in ("above", "below"):
        p_above, p_below = above(values, line), above(reverse, -line)
        true, false = (p_above, p_below) if side == "above" else (p_below, p_above)
        where, ends = f"{side} {line:g}", (line, line)
    else:
        ends = (1 / line, line) if side == "close" else (-line, line)
        true = max(above(values, ends[0]), above(reverse, -ends[1]))
        false = min(above(values, ends[1]), above(reverse, -ends[0]))
        where = f"between {ends[0]:.3g} and {ends[1]:.3g}"
    return Evidence(
        ours=span(value, low, high, unit),
        rule=f"the 95 % interval over {len(values)} seeds must lie {where}",
        value=value,
        low=low,
        high=high,
        p_true=true,
        p_false=false,
        seeds=len(values),
        effect=_apart(min(abs(value - end) for end in ends), values),
    )


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


def leaks(kind: str, points: DataFrame, *, seeds: int = SEEDS) -> Evidence:
    """The claim that an attack finds something at each point. ``points``: gamma, seed, value and
    spread, as :func:`leak` has them. It differs where a point is at chance, within the margin."""
    each, found, short = _enough(kind, points, seeds)
    line, k = chance(kind) + MARGIN[kind], len(each)
    calm = {g: min(1.0, k * above((-p.value).tolist(), -line)) for g, p in each.items()}
    least = min(calm.values(), default=1.0)
    some = sum(p <= ALPHA / k for p in found)
    fewest = int(points.groupby("gamma").seed.nunique().min())
    above_chance = [signal(p, len(e)) for p, e in zip(found, each.values(), strict=True)]
    below_line = [_apart(line - p.value.mean(), p.value.tolist()) for p in each.values()]
    return Evidence(
        **_described(kind, points, "idxmin"),
        rule="every point must be above chance (its law, over seeds)",
        why="; ".join(
            [*short, *(f"at chance at γ = {g:g}" for g, p in calm.items() if p <= ALPHA)]
        ),
        effect=max(min(above_chance, default=0.0), max(below_line, default=0.0)),
        p_true=1.0 if short else max(found),
        p_false=least,
        part=not short and 0 < some < k,
        seeds=fewest if short and least > ALPHA else seeds,
    )


def calm(
    kind: str, points: DataFrame, works: bool, *, idle: bool = False, figure: int = 1,
    seeds: int = SEEDS, power: float = math.nan,
) -> Evidence:  # fmt: skip
    """The claim that an attack which ``works`` elsewhere finds nothing: equivalence with chance, of
    each seed's mean over all points. It differs where a point is above chance, of the ``figure``'s
    number of points. An attack that is ``idle``, at chance without protection too, compares
    nothing; of one that is neither, ``power`` is what a seed adds to its signal there."""
    wide = points.pivot_table(index="seed", columns="gamma", values="value").dropna()
    line, means = chance(kind) + MARGIN[kind], wide.mean(axis=1).tolist()
    _, found, short = _enough(kind, points, seeds)
    p_false = min([1.0, *(max(figure, len(found)) * p for p in found)])
    p_true = above([-x for x in means], -line) if works else 1.0
    why = "is at chance on non-private training, too"
    why = why if idle else "finds nothing on non-private training either"
    whys = [] if works else [f"the attack {why}"]
    whys += [f"above chance (p = {p_false:.1g})"] if p_false <= ALPHA else []
    return Evidence(
        **_described(kind, points, "idxmax"),
        rule=f"over all points at most {MARGIN[kind]:g} above chance, none above chance by its law,"
        " and the attack must work on non-private training",
        why="; ".join([*whys, *short]),
        p_true=p_true,
        p_false=p_false,
        seeds=max(len(wide), seeds if p_false <= ALPHA else 0),
        effect=_apart(abs(line - float(np.mean(means))), means) if works and means else power,
        comparable=works or not idle or p_false <= ALPHA,
    )


def _described(kind: str, points: DataFrame, end: str) -> dict[str, Any]:
    """The range of the points in words, and the interval of the least or the largest."""
    means = points.groupby("gamma").value.mean()
    at = points[points.gamma == getattr(means, end)()]
    words = f"{means.min():.3g}" + (f" to {means.max():.3g}" if len(means) > 1 else "")
    unit = "bits, the mean canary" if kind == "exposure" else "right guesses"
    number = f"{len(means)} point{'s'[: len(means) > 1]}"
    ours = f"{words} {unit} (chance: {chance(kind):.3g}), {number}"
    return {"ours": ours, **dict(zip(INTERVAL, interval(at.value.tolist()), strict=True))}


# --- counts and calculations ----------------------------------------------------------------------
def rate(count: int, of: int, *, side: str, line: float, seeds: int) -> Evidence:
    """The claim that a share lies at or "above", or "below" ``line``; a line of 1 asks for no
    exception at all."""
    low, high = clopper_pearson(count, of)
    more = stats.binomtest(count, of, line, alternative="greater").pvalue
    less = stats.binomtest(count, of, line, alternative="less").pvalue
    true, false = (more, less) if side == "above" else (less, more)
    if line == 1:
        true, false = float(count < of), float(count == of)
    return Evidence(
        ours=f"{count} of {of}, {count / of:.1%} [{low:.1%}, {high:.1%}]",
        rule=f"none of {of} may be missed"
        if line == 1
        else f"the 95 % interval of {count} of {of} must lie {side} {line:g}",
        value=count / of,
        low=low,
        high=high,
        p_true=true,
        p_false=false,
        seeds=seeds,
    )


def event(values: Sequence[float], *, zero: bool) -> Evidence:
    """The claim that a count is 0, or is not, in every run."""
    right = sum((v == 0) == zero for v in values)
    return Evidence(
        ours=f"{', '.join(f'{v:g}' for v in values)} in {len(values)} runs",
        rule=f"must be {'0' if zero else 'above 0'} in every run",
        value=float(np.mean(values)),
        p_true=float(right < len(values)),
        p_false=float(right > 0),
        part=0 < right < len(values),
        seeds=len(values),
    )


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
