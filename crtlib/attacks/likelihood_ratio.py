"""The likelihood-ratio attack with shadow models that have not read a text (Carlini et al. 2022).

>>> shadows = np.array([[-9.0, -4.0], [-11.0, -4.2], [-10.0, -3.8], [-10.0, -4.0]])
>>> score(np.array([-8.0, -2.0]), shadows).round(1).tolist()  # likelier than it is by itself
[2.9, 4.4]
"""

from __future__ import annotations

import numpy as np


def score(logprobs: np.ndarray, shadows: np.ndarray) -> np.ndarray:
    """How many deviations of its shadows a text's log-probability (texts,) lies above their mean,
    of shadows (models, texts). A normal law of each text, offline: no shadow has read one. With few
    shadows the deviations are drawn towards the middle one of all texts."""
    k, spread = len(shadows), shadows.var(axis=0, ddof=1)
    pooled = (4 * np.median(spread) + (k - 1) * spread) / (k + 3)
    return np.asarray((logprobs - shadows.mean(axis=0)) / np.sqrt(pooled + 1e-12))
