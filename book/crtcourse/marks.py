"""Marks: points for each task, and a hint where few were earned.

>>> marks = Marks({"one": 60, "two": 40})
>>> marks.add("one", 1.0, "never shown"), marks.add("two", 0.25, "look at the units")
(None, None)
>>> marks.total, marks.hints
(70.0, ['two: look at the units'])
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Marks:
    """``of`` is what each task is worth; ``earned`` and ``hints`` grow as tasks are judged."""

    of: Mapping[str, float]
    earned: dict[str, float] = field(default_factory=dict)
    hints: list[str] = field(default_factory=list)

    def add(self, task: str, share: float, hint: str, *, least: float = 0.0) -> None:
        """Credit a share of a task's points, from ``least`` to 1; below one half the student reads
        why."""
        self.earned[task] = round(self.of[task] * min(1.0, max(least, share)), 1)
        if share < 0.5:
            self.hints.append(f"{task}: {hint}")

    @property
    def total(self) -> float:
        """All points, of 100."""
        return round(max(0.0, sum(self.earned.values())), 1)


def clipped(x: float) -> float:
    """Into [0, 1]."""
    return float(min(1.0, max(0.0, x)))


def share(found: Collection[str], of: Collection[str]) -> float:
    """How many of them."""
    return len(found) / len(of)


def number(x: Any) -> float:
    """A finite number of a submission; ``ValueError`` for anything else."""
    if isinstance(x, bool) or not isinstance(x, (int, float)) or not math.isfinite(x):
        raise ValueError(f"{x!r}: must be a finite number")
    return float(x)


def numbers(xs: Any, count: int) -> np.ndarray | None:
    """A list of ``count`` numbers, or None where it is empty: that task was not tried."""
    if not isinstance(xs, Sequence) or isinstance(xs, str):
        raise ValueError("must be a list of numbers")
    if not xs:
        return None
    if len(xs) != count:
        raise ValueError(f"has {len(xs)} numbers, must have {count}")
    return np.array([number(x) for x in xs])
