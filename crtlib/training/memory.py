"""How many tokens a model reads at once, so that a pass fits into memory.

>>> from crtlib.models.build import build
>>> from crtlib.models.spec import ModelSpec
>>> tokens_at_once(build(ModelSpec("lstm", vocab_size=9, embedding=4, hidden=5), seed=0), memory=1)
4096
"""

from __future__ import annotations

import os

import torch
from torch import nn

from crtlib.checks import check
from crtlib.models import interface
from crtlib.training.devices import near
from crtlib.training.phases import TOKENS_AT_ONCE
from crtlib.training.state import device_of

LEAST = 64
TOKENS_AT_ONCE_OF_A_GPU = 2**18
"""As :data:`crtlib.training.phases.TOKENS_AT_ONCE`, with which a GPU would wait for its host."""
SHARE = 0.25
"""Of the free memory, where nobody names a bound."""


def tokens_at_once(model: nn.Module, memory: float | None = None) -> int:
    """At most ``TOKENS_AT_ONCE``, on a GPU more, and fewer where the activations that one pass
    keeps would take more than ``memory`` GiB (default: a quarter of what is free on its device).

    An estimate: each weight matrix keeps its input and the gradient of its output, the head two
    rows of the vocabulary if it learns, else a part of one; half as much again for what autograd
    keeps between them.
    """
    if memory is not None:
        check("memory", memory, memory > 0, "positive")
    free = _free(device_of(model)) * SHARE if memory is None else memory * 2**30
    head = interface.head(model).weight
    widths = sum(sum(p.shape) for p in model.parameters() if p.ndim == 2 and p is not head)
    vocabulary = len(head) * (2 if head.requires_grad else 0.5)
    each = 4 * (1.5 * widths + vocabulary)
    most = TOKENS_AT_ONCE if near(head) else TOKENS_AT_ONCE_OF_A_GPU
    return int(max(LEAST, min(most, free / each)))


def _free(device: torch.device) -> float:
    """Bytes."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
