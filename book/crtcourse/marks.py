"""Marks: points for each task, and a hint where few were earned.

>>> marks = Marks({"one": 60, "two": 40})
>>> marks.add("one", 1.0, "never shown"), marks.add("two", lambda: 1 / 0, "look at the units")
(None, None)
>>> marks.total, marks.hints
(60.0, ['two: not graded: division by zero'])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


def reason(error: Exception) -> str:
    """An error in one short line that prints anywhere."""
    said = str(error) or type(error).__name__
    return printable(f"{said[:200]}: is missing" if isinstance(error, KeyError) else said[:200])


def printable(text: str) -> str:
    """The text without what no table can hold: ends of lines, controls, halves of characters."""
    return "".join(c if c.isprintable() else "?" for c in text)


@dataclass
class Marks:
    """``of`` is what each task is worth; ``earned`` and ``hints`` grow as tasks are judged."""

    of: Mapping[str, float]
    earned: dict[str, float] = field(default_factory=dict)
    hints: list[str] = field(default_factory=list)

    def add(
        self, task: str, share: float | Callable[[], float], hint: str, *, least: float = 0.0
    ) -> None:
        """Credit a share of a task's points, from ``least`` to 1; below one half the student reads
        why. A share that cannot be computed is 0."""
        try:
            value = share() if callable(share) else share
        except TimeoutError:
            raise
        except Exception as error:  # whatever a submission holds, the other tasks are marked
            value, hint = 0.0, f"not graded: {reason(error)}"
        self.earned[task] = round(self.of[task] * min(1.0, max(least, value)), 1)
        if value < 0.5:
            self.hints.append(f"{task}: {hint}")

    @property
    def total(self) -> float:
        """All points."""
        return round(max(0.0, sum(self.earned.values())), 1)


def clipped(x: float) -> float:
    """Into [0, 1]."""
    return float(min(1.0, max(0.0, x)))


def number(x: Any) -> float:
    """A finite number of a submission; ``ValueError`` for anything else."""
    if isinstance(x, bool) or not isinstance(x, (int, float)) or not math.isfinite(x):
        raise ValueError(f"{x!r:.40}: must be a finite number")
    return float(x)


def numbers(xs: Any, count: int) -> np.ndarray:
    """A list of ``count`` finite numbers; ``ValueError`` for anything else."""
    if not isinstance(xs, list) or len(xs) != count:
        raise ValueError(f"must be a list of {count} numbers")
    return np.array([number(x) for x in xs])
