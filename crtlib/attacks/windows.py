"""A reference attack by windows: votes of many short passages in place of one mean (2601.02751).

>>> even, once = np.full(12, 0.1), np.array([-0.1] * 11 + [9.0])
>>> score([even, once]).round(2).tolist()  # one word that was learned is no sentence that was read
[1.0, 0.51]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SIZES = tuple(dict.fromkeys(np.geomspace(2, 40, 10).round().astype(int).tolist()))
"""Tokens of a window."""


def score(gains: Sequence[np.ndarray]) -> np.ndarray:
    """Of each text, by the log-probability of each token less that of a reference: the share of
    windows that the model finds likelier, averaged over ``SIZES``; a short text is one window."""
    return np.array([np.mean([_votes(gain, min(size, len(gain))) for size in SIZES])
                     for gain in gains])  # fmt: skip


def _votes(gain: np.ndarray, size: int) -> float:
    before = np.concatenate([[0.0], np.cumsum(gain)])
    return float((before[size:] > before[: len(before) - size]).mean())
