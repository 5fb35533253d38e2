"""The random generator of PyTorch, which all threads share: only one of them draws at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

TORCH_RNG_LOCK = threading.Lock()


@contextlib.contextmanager
def seeded_torch_rng(seed: int) -> Iterator[None]:
    """Seed torch's own generator inside, and restore it afterwards. Layers can draw their first
    weights from no other generator.

    >>> with seeded_torch_rng(0):
    ...     first = torch.rand(2)
    >>> with seeded_torch_rng(0):
    ...     torch.equal(first, torch.rand(2))
    True
    """
    with TORCH_RNG_LOCK, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
