"""How many tokens a model reads at once, so that a pass fits into memory.

>>> from crtlib.models.construction import build_model
>>> from crtlib.models.specs import ModelSpec
>>> tokens_at_once(
...     build_model(ModelSpec("lstm", vocab_size=9, embedding=4, hidden=5), seed=0), memory=1
... )
4096
"""

from __future__ import annotations

import os

import torch
from torch import nn

from crtlib.checks import check_allowed
from crtlib.models import interface
from crtlib.models.interface import device_of
from crtlib.training.devices import is_on_host
from crtlib.training.gradient_entries import max_ghost_positions, trainable_parameters
from crtlib.training.phases import (
    TOKENS_AT_ONCE,
)

MIN_TOKENS_AT_ONCE = 64
GPU_TOKENS_AT_ONCE = 2**18
"""As :data:`crtlib.training.phases.TOKENS_AT_ONCE`, with which a GPU would wait for its host."""
FREE_MEMORY_SHARE = 0.25
"""Of the free memory, where nobody names a bound."""


def tokens_at_once(model: nn.Module, memory: float | None = None, longest: int = 0) -> int:
    """At most ``TOKENS_AT_ONCE``, on a GPU more, and fewer where the activations that one pass
    keeps would take more than ``memory`` GiB (default: a quarter of what is free on its device).

    An estimate: each weight matrix keeps its input and the gradient of its output, the head two
    rows of the vocabulary if it learns, else a part of one; half as much again for what autograd
    keeps between them. A matrix whose gradient of each example is formed, of texts up to
    ``longest``, takes most where that begins to pay: there it is shared by the fewest tokens.
    """
    if memory is not None:
        check_allowed("memory", memory, memory > 0, "positive")
    device = device_of(model)
    if memory is not None:
        free = memory * 2**30
    elif device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0] * FREE_MEMORY_SHARE
    else:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * FREE_MEMORY_SHARE
    head = interface.output_head(model).weight
    widths = sum(sum(p.shape) for p in model.parameters() if p.ndim == 2 and p is not head)
    vocabulary = len(head) * (2 if head.requires_grad else 0.5)
    learns = [
        (p, max_ghost_positions(p, p)) for p in trainable_parameters(model).values() if p.ndim == 2
    ]
    direct = sum(p.numel() / turn for p, turn in learns if longest > turn)
    each = 4 * (1.5 * widths + vocabulary + direct)
    most = TOKENS_AT_ONCE if is_on_host(head) else GPU_TOKENS_AT_ONCE
    return int(max(MIN_TOKENS_AT_ONCE, min(most, free / each)))
