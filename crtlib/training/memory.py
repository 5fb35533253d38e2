"""The number of tokens that a model reads at once, so that a pass fits into memory.

>>> from crtlib.models.construction import build_model
>>> from crtlib.models.specs import ModelSpec
>>> tokens_at_once(
...     build_model(ModelSpec("lstm", vocab_size=9, embedding=4, hidden=5), seed=0), memory_gib=1
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
from crtlib.training.phases import TOKENS_AT_ONCE

MIN_TOKENS_AT_ONCE = 64
GPU_TOKENS_AT_ONCE = 2**18
"""Like :data:`crtlib.training.phases.TOKENS_AT_ONCE`, which would make a GPU wait for its host."""
FREE_MEMORY_SHARE = 0.25
"""The share of the free memory that one pass may take, if no limit is given."""


def tokens_at_once(
    model: nn.Module, memory_gib: float | None = None, longest_text_tokens: int = 0
) -> int:
    """The number of tokens to read at once: ``TOKENS_AT_ONCE``, or ``GPU_TOKENS_AT_ONCE`` on a GPU,
    or fewer if the activations that one pass keeps would take more than ``memory_gib`` GiB
    (default: a quarter of what is free on the model's device).

    The bytes per token are an estimate. Each weight matrix keeps its input and the gradient of its
    output, and half as much again is for what autograd keeps between them; the head keeps two rows
    of the vocabulary if it learns, else a part of one. If some text is so long that a matrix's
    gradient of each example is formed, the shortest such texts take the most memory, because the
    fewest tokens then share each such gradient.
    """
    if memory_gib is not None:
        check_allowed("memory_gib", memory_gib, memory_gib > 0, "positive")
    device = device_of(model)
    if memory_gib is not None:
        free_bytes = memory_gib * 2**30
    elif device.type == "cuda":
        free_bytes = torch.cuda.mem_get_info(device)[0] * FREE_MEMORY_SHARE
    else:
        free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * FREE_MEMORY_SHARE
    head = interface.output_head(model).weight
    widths = sum(sum(p.shape) for p in model.parameters() if p.ndim == 2 and p is not head)
    vocabulary = len(head) * (2 if head.requires_grad else 0.5)
    ghost_limits = [
        (p, max_ghost_positions(p, p)) for p in trainable_parameters(model).values() if p.ndim == 2
    ]
    formed = sum(p.numel() / limit for p, limit in ghost_limits if longest_text_tokens > limit)
    bytes_per_token = 4 * (1.5 * widths + vocabulary + formed)
    max_tokens = TOKENS_AT_ONCE if is_on_host(head) else GPU_TOKENS_AT_ONCE
    return int(max(MIN_TOKENS_AT_ONCE, min(max_tokens, free_bytes / bytes_per_token)))
