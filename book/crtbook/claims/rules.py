"""How a claim is judged: rules that a number can fail, each with the reason for its threshold.

>>> lower([0.8, 0.9, 0.85], 1.0).verdict, lower([0.8, 1.3, 0.9], 1.0).verdict
('agrees', 'cannot be told here')
>>> printed(0.11539, "0.12").verdict, printed(0.11067, "0.12").verdict
('agrees', 'differs')
>>> share(200, of=200, least=1.0).low > 0.98, share(1303, of=1469, least=0.9).verdict
(True, 'cannot be told here')

A verdict is one of ``VERDICTS``. The intervals are at 95 %: Student's t over runs, which needs
three of them; Clopper and Pearson's for counts. Nothing is judged by a mean alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

import numpy as np
from scipy import special

from crtlib.intervals import clopper_pearson

AGREES = "agrees"
PART = "in part"
DIFFERS = "differs"
UNTOLD = "cannot be told here"
INCOMPARABLE = "not comparable"
VERDICTS = (AGREES, PART, DIFFERS, UNTOLD, INCOMPARABLE)

CLOSE = 1.1
"""A perplexity is close to another when it is at most so many times as large. As much lies between
the best and the median trial of non-private training in the recorded searches (a test counts it):
closer than that, a gap is as small as what another draw of the learning rate makes."""
RUNS = 3
"""Fewer runs have no spread that could be trusted."""
BIT = 1.0
"""An exposure is almost 0 when it is at most one bit: one question with yes or no for an answer."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What our numbers say of a claim: ``ours`` in words, ``value`` with its interval where there
    is one, the ``rule`` that judged it, and ``why`` where the verdict needs it."""

    verdict: str
    ours: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    rule: str = ""
    why: str = ""
    source: str = ""
    edition: str = ""
    corpus: str = ""
    model: str = ""


def calculated(outcome: Outcome) -> list[Outcome]:
    """The one outcome of a claim that a calculation decides."""
    return [replace(outcome, source="calculated", edition="exact")]


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % t-interval; infinite for fewer than ``RUNS`` values."""
    x = np.asarray(values, dtype=float)
    if len(x) < RUNS:
        return float(x.mean()) if len(x) else float("nan"), -np.inf, np.inf
    half = float(special.stdtrit(len(x) - 1, 0.975) * x.std(ddof=1) / np.sqrt(len(x)))
    return float(x.mean()), float(x.mean() - half), float(x.mean() + half)


def lower(values: Sequence[float], line: float, *, unit: str = "") -> Outcome:
    """The claim that a mean is below ``line``."""
    return _sided(values, line, "below", unit)


def higher(values: Sequence[float], line: float, *, unit: str = "") -> Outcome:
    """The claim that a mean is above ``line``."""
    return _sided(values, line, "above", unit)


def _sided(values: Sequence[float], line: float, side: str, unit: str) -> Outcome:
    mean, low, high = interval(values)
    wide = not np.isfinite(low)
    below, above = high < line, low > line
    right, wrong = (below, above) if side == "below" else (above, below)
    verdict = AGREES if right else DIFFERS if wrong else UNTOLD
    why = f"{len(values)} runs, fewer than {RUNS}" if wide else ""
    if verdict == UNTOLD and not wide:
        why = f"the interval holds {line:g}"
    return Outcome(
        verdict=verdict,
        ours=span(mean, low, high, unit),
        value=mean,
        low=None if wide else low,
        high=None if wide else high,
        rule=f"the 95 % interval over {len(values)} runs must lie {side} {line:g}",
        why=why,
    )


def span(mean: float, low: float, high: float, unit: str = "") -> str:
    """A number with its interval, as it is printed."""
    ends = f" [{low:.3g}, {high:.3g}]" if np.isfinite(low) else ""
    return f"{mean:.3g}{ends} {unit}".strip()


def share(count: int, *, of: int, least: float) -> Outcome:
    """The claim that a share is at least ``least``; a printed 1 asks for no exception at all."""
    low, high = clopper_pearson(count, of)
    if high < least or (least == 1 and count < of):
        verdict = DIFFERS
    else:
        verdict = AGREES if low >= least or (least == 1 and count == of) else UNTOLD
    return Outcome(
        verdict=verdict,
        ours=f"{count / of:.1%} [{low:.1%}, {high:.1%}]",
        value=count / of,
        low=low,
        high=high,
        rule=f"the 95 % interval of {count} of {of} must lie at or above {least:g}"
        if least < 1
        else f"none of {of} may be missed",
        why=f"the interval holds {least:g}" if verdict == UNTOLD else "",
    )


def printed(value: float, text: str) -> Outcome:
    """The claim that a calculation gives the printed number, to the digits that are printed."""
    digits = -int(Decimal(text).as_tuple().exponent)
    agrees = f"{value:.{max(digits, 0)}f}" == text
    return Outcome(
        verdict=AGREES if agrees else DIFFERS,
        ours=f"{value:.{max(digits, 0) + 2}f}",
        value=value,
        rule=f"must round to the printed {text}",
    )


def holds(condition: bool, ours: str, rule: str, value: float | None = None) -> Outcome:
    """A claim that a calculation bears out or refutes."""
    return Outcome(verdict=AGREES if condition else DIFFERS, ours=ours, value=value, rule=rule)


def all_of(outcomes: Iterable[Outcome], ours: str = "") -> Outcome:
    """A claim of several parts: in part, where some agree and others do not."""
    parts = list(outcomes)
    verdicts = {part.verdict for part in parts}
    if len(verdicts) == 1:
        (verdict,) = verdicts
    elif AGREES in verdicts or PART in verdicts:
        verdict = PART
    else:
        verdict = DIFFERS if DIFFERS in verdicts else UNTOLD
    why = "; ".join(dict.fromkeys(part.why for part in parts if part.why))
    joined = ours or "; ".join(part.ours for part in parts)
    return Outcome(verdict=verdict, ours=joined, rule=parts[0].rule, why=why)


def absent(reason: str) -> Outcome:
    """Nothing here gives the number."""
    return Outcome(verdict=UNTOLD, why=reason, rule="some recorded run must give the number")


def another_level(ours: str, reason: str) -> Outcome:
    """A level of another corpus or model: only relations between levels can be compared."""
    return Outcome(
        verdict=INCOMPARABLE,
        ours=ours,
        rule="a level is compared on the paper's own corpus, and only there",
        why=reason,
    )
