"""Torch's own generator, which all threads share: one of them draws at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

LOCK = threading.Lock()


@contextlib.contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Torch's own generator from ``seed`` on, as it was afterwards. Layers draw their first
    weights from no other.

    >>> with drawing(0):
    ...     first = torch.rand(2)
    >>> with drawing(0):
    ...     torch.equal(first, torch.rand(2))
    True
    """
    with LOCK, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
