"""The examples of one micro-batch as the engines read them.

>>> from crtlib.models.build import build
>>> from crtlib.models.spec import ModelSpec
>>> model = build(ModelSpec("lstm", vocab_size=9, embedding=4, hidden=5), seed=0)
>>> tokens, lengths = torch.tensor([[5, 6, 0], [1, 2, 3]]), torch.tensor([2, 3])
>>> examples = Examples.make(model, tokens, lengths, None, "mean")
>>> examples.inputs.tolist(), examples.targets.tolist()  # the longest first
([[1, 2], [5, 0]], [[2, 3], [6, 0]])
>>> examples.restored(torch.tensor([30, 20]))[0].tolist()
[20, 30]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from crtlib.models import interface
from crtlib.training.bookkeeping import trainable
from crtlib.training.devices import sent

Reduction = Literal["mean", "sum"]
IGNORED = -100
"""Target of a position that has none (the convention of ``torch`` and ``transformers``)."""


@dataclass(frozen=True)
class Examples:
    """Examples sorted by length (the longest first), so that the head can skip padding."""

    inputs: Tensor  # (B, T) token ids, 0 where padded
    targets: Tensor  # (B, T) token ids, 0 where there is none
    weights: Tensor  # (B, T) weight of each target in its example's loss
    lengths: Tensor  # (B,) inputs that are not padding
    extents: list[int]  # lengths, on the host
    order: Tensor | None  # (B,) the place of each example in the caller's batch, if they moved

    @staticmethod
    def make(
        model: nn.Module,
        tokens: Tensor,
        lengths: Tensor,
        targets: Tensor | None,
        reduction: Reduction,
    ) -> Examples:
        """Refuse what cannot be, and make the missing ``.grad``: zeros.

        ``lengths`` are read, so they should lie on the host wherever ``tokens`` are.
        """
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction={reduction!r}: must be mean or sum")
        if tokens.ndim != 2 or lengths.shape != tokens.shape[:1]:
            raise ValueError(
                f"tokens {tuple(tokens.shape)}, lengths {tuple(lengths.shape)}: "
                "must be (batch, time) and (batch,)"
            )
        for p in trainable(model).values():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        if targets is None and not interface.is_causal(model):
            raise ValueError("targets=None: must be given for a masked language model")
        kind = torch.promote_types(interface.head(model).weight.dtype, torch.float32)
        sizes = lengths.tolist()
        if targets is None and sizes and sizes == len(sizes) * [tokens.shape[1]] and sizes[0] > 1:
            return _blocks(tokens, lengths, kind, reduction)
        return _sorted(tokens, lengths.cpu(), targets, kind, reduction)

    def restored(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Each (B,) in the caller's order."""
        if self.order is None:
            return values
        back = self.order.argsort()
        return tuple(x[back] for x in values)


def _blocks(tokens: Tensor, lengths: Tensor, kind: torch.dtype, reduction: Reduction) -> Examples:
    """All of one length, as of a text cut into blocks: nothing moves and nothing is padding."""
    batch, time = len(tokens), tokens.shape[1] - 1
    share = 1 / time if reduction == "mean" else 1
    weights = torch.full((batch, time), share, dtype=kind, device=tokens.device)
    lengths = sent(lengths - 1, tokens.device)
    return Examples(tokens[:, :-1], tokens[:, 1:], weights, lengths, batch * [time], None)


def _sorted(
    tokens: Tensor,
    lengths: Tensor,
    targets: Tensor | None,
    kind: torch.dtype,
    reduction: Reduction,
) -> Examples:
    """``lengths`` are on the host."""
    lengths, order = lengths.sort(descending=True, stable=True)
    order = sent(order, tokens.device)
    tokens = tokens[order]
    masked = targets is not None
    if targets is None:
        lengths = (lengths - 1).clamp_min(0)
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
    else:
        inputs, targets = tokens, targets[order]
    extents = lengths.tolist()
    width = extents[0] if extents else 0
    if width > inputs.shape[1]:
        raise ValueError(f"lengths up to {width}: must be at most the width of tokens")
    inputs, targets = inputs[:, :width], targets[:, :width]
    lengths = sent(lengths, tokens.device)
    real = torch.arange(width, device=tokens.device) < lengths[:, None]
    counted = real & (targets != IGNORED) if masked else real
    weights = counted.to(kind)
    if reduction == "mean":
        weights = weights / weights.sum(1, keepdim=True).clamp_min(1)
    inputs, targets = inputs * real, targets * counted
    if width == 0:  # no example has a target: nothing to learn, and nothing to run
        return Examples(inputs[:0], targets[:0], weights[:0], lengths[:0], [], order)
    return Examples(inputs, targets, weights, lengths, extents, order)
