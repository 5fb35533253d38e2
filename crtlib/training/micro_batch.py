"""The examples of one micro-batch as the engines read them.

>>> from crtlib.models.construction import build_model
>>> from crtlib.models.specs import ModelSpec
>>> model = build_model(ModelSpec("lstm", vocab_size=9, embedding=4, hidden=5), seed=0)
>>> tokens, lengths = torch.tensor([[5, 6, 0], [1, 2, 3]]), torch.tensor([2, 3])
>>> examples = SortedExamples.make(model, tokens, lengths, None, "mean")
>>> examples.inputs.tolist(), examples.targets.tolist()  # the longest first
([[1, 2], [5, 0]], [[2, 3], [6, 0]])
>>> examples.restored(torch.tensor([30, 20]))[0].tolist()
[20, 30]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from crtlib import checks
from crtlib.models import interface
from crtlib.training.devices import is_on_host, send_to_device
from crtlib.training.gradient_entries import (
    accumulation_dtype,
    fill_missing_gradients,
    trainable_parameters,
)

LossReduction = Literal["mean", "sum"]
IGNORE_INDEX = -100
"""Target of a position that has none (the convention of ``torch`` and ``transformers``)."""


@dataclass(frozen=True)
class HeadPositions:
    """The positions that the head reads. In a masked model, or if only the last turn counts, few
    positions have a target, and the head reads only those.

    An example's positions with a target come first, then others of weight zero.
    """

    targets: Tensor = field(repr=False)  # (B, T') token ids, 0 where there is none
    weights: Tensor  # (B, T') weight of each target in its example's loss
    extents: list[int]  # (B,) the most that an example or any after it has
    places: Tensor | None = None  # (B, T') where they are in the text; None: its first T'

    def gather(self, h: Tensor) -> Tensor:
        """Select these positions, (B, T', d), from all positions of the texts, (B, T, d)."""
        if self.places is None:
            return h
        return h.gather(1, self.places[..., None].expand(-1, -1, h.shape[2]))

    def scatter(self, grads: Tensor, hidden: Tensor) -> Tensor:
        """Put ``grads`` (B, T', d) at their places in the shape of ``hidden`` (B, T, d), else 0."""
        if self.places is None:
            return grads
        places = self.places[..., None].expand_as(grads)
        return torch.zeros_like(hidden).scatter_(1, places, grads)


@dataclass(frozen=True)
class SortedExamples:
    """Examples sorted by length (the longest first), so that the head can skip padding."""

    inputs: Tensor = field(repr=False)  # (B, T) token ids, 0 where padded
    targets: Tensor = field(repr=False)  # (B, T) token ids, 0 where there is none
    weights: Tensor  # (B, T) weight of each target in its example's loss
    lengths: Tensor  # (B,) inputs that are not padding
    extents: list[int]  # lengths, on the host
    order: Tensor  # (B,) the place of each example in the caller's batch

    @staticmethod
    def make(
        model: nn.Module,
        tokens: Tensor,
        lengths: Tensor,
        targets: Tensor | None,
        reduction: LossReduction,
    ) -> SortedExamples:
        """Sort and cut the examples of a micro-batch, and fill each missing ``.grad`` with zeros.
        Raises ValueError for shapes that do not fit, and for a masked model without targets.

        ``lengths`` are read, so they should be on the host, wherever ``tokens`` are.
        """
        checks.check_choice("reduction", reduction, ("mean", "sum"))
        if tokens.ndim != 2 or lengths.shape != tokens.shape[:1]:
            raise ValueError(
                f"tokens {tuple(tokens.shape)}, lengths {tuple(lengths.shape)}: "
                "must be (batch, time) and (batch,)"
            )
        fill_missing_gradients(trainable_parameters(model).values())
        if targets is None and not interface.is_causal(model):
            raise ValueError("targets=None: must be given for a masked language model")
        lengths, order = lengths.cpu().sort(descending=True, stable=True)
        order = send_to_device(order, tokens.device)
        tokens = tokens[order]
        has_targets = targets is not None
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
        lengths = send_to_device(lengths, tokens.device)
        is_real = torch.arange(width, device=tokens.device) < lengths[:, None]
        is_target = is_real & (targets != IGNORE_INDEX) if has_targets else is_real
        weights = is_target.to(accumulation_dtype(interface.output_head(model).weight))
        if reduction == "mean":
            weights = weights / weights.sum(1, keepdim=True).clamp_min(1)
        inputs, targets = inputs * is_real, targets * is_target
        if width == 0:  # no example has a target: nothing to learn, and nothing to run
            return SortedExamples(inputs[:0], targets[:0], weights[:0], lengths[:0], [], order)
        return SortedExamples(inputs, targets, weights, lengths, extents, order)

    def head_positions(self) -> HeadPositions:
        """The positions that have a target; on a GPU all positions, because counting those with a
        target would mean waiting for it."""
        if not is_on_host(self.targets) or not len(self.inputs):
            return HeadPositions(self.targets, self.weights, self.extents)
        has_target = self.weights > 0
        counts = has_target.sum(1)
        max_targets = int(counts.max())
        if max_targets == self.inputs.shape[1]:
            return HeadPositions(self.targets, self.weights, self.extents)
        places = has_target.int().argsort(dim=1, descending=True, stable=True)[:, :max_targets]
        extents = counts.flip(0).cummax(0).values.flip(0).tolist()
        return HeadPositions(
            self.targets.gather(1, places), self.weights.gather(1, places), extents, places
        )

    def restored(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Each (B,) in the caller's order."""
        inverse_order = self.order.argsort()
        return tuple(x[inverse_order] for x in values)
