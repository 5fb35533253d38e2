"""Settings that follow from the size of a model and of its text, where nobody names them.

A model that has read the internet is not trained at the rate of one that has read nothing.

>>> usual(50_000, adapters=False).learning_rate, usual(134_500_000, adapters=False).learning_rate
(0.01, 2e-05)
>>> usual(134_500_000, adapters=True)
Usual(learning_rate=0.0002, private_learning_rate=0.0005, epochs=4, batch_size=512)
>>> delta(46_080), batch(512, 46_080), batch(512, 700)
(1e-06, 512, 70)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from crtlib.experiments.crt import CrtStudy
from crtlib.models import pretrained
from crtlib.models.build import build

STEPS = 10
"""Batches an epoch at the least, so that a small corpus is not read in one step."""


@dataclass(frozen=True)
class Usual:
    """Learning rates (Adam) of public and private steps, epochs, points of a batch."""

    learning_rate: float
    private_learning_rate: float
    epochs: int
    batch_size: int


def usual(parameters: int, *, adapters: bool) -> Usual:
    """By the number of parameters, and whether adapters alone are trained."""
    if adapters:
        return Usual(2e-4, 5e-4, 4, 512)
    if parameters < 5_000_000:
        return Usual(1e-2, 5e-3, 8, 64)
    return Usual(1e-3, 1e-3, 4, 256) if parameters < 50_000_000 else Usual(2e-5, 1e-4, 4, 512)


def parameters(study: CrtStudy) -> int:
    """How many parameters its model has; of a pre-trained one from its configuration alone."""
    if not study.brings_vocabulary:
        return sum(p.numel() for p in build(study.shape(), 0).parameters())
    return pretrained.parameters(pretrained.config_of(pretrained.place(study.init)))


def batch(wanted: int, points: int) -> int:
    """Points of a batch: as wanted, but no more than a tenth of all."""
    return max(1, min(wanted, points // STEPS))


def delta(points: int) -> float:
    """The largest power of ten that is at most a tenth of one over the private points."""
    return float(f"1e-{math.ceil(math.log10(10 * max(1, points)))}")
