"""The two kinds of update: an ordinary gradient, and "clip, noise, divide" (Abadi et al. 2016).

Every phase computes its gradients here, so there is one place where private points turn into a
released gradient, whatever the phase does to its batches first.

>>> import torch
>>> from crtlib.models.construction import build_model
>>> from crtlib.models.specs import ModelSpec
>>> model = build_model(ModelSpec("lstm", vocab_size=9, embedding=4, hidden=5), seed=0)
>>> batch = [(torch.tensor([[1, 2, 3]]), torch.tensor([3]))]
>>> options = {"clip_norm": 0.1, "noise_multiplier": 0.0, "normaliser": 1.0}
>>> int(set_private_gradient(model, batch, **options, noise=torch.Generator()))  # none overflowed
0
>>> norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
>>> bool(abs(norm - 0.1) < 1e-6)
True
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from crtlib.training import clipping, own_losses
from crtlib.training.gradient_entries import gradient_buffer, trainable_parameters
from crtlib.training.micro_batch import IGNORE_INDEX
from crtlib.training.noise import RandomSource, add_noise
from crtlib.training.own_losses import Losses
from crtlib.training.parallel import process_group

UpdateKind = Literal["public", "private"]

LogicalBatch = list[tuple[Tensor, ...]]
"""Micro-batches ``(tokens (B, L), lengths (B,))`` of one logical batch; empty if it has no points.
For a phase that reads flags, ``(tokens, lengths, flags (B, L))``. If points have owners, each owner
of several points is one :class:`MultiTextUnit`."""


class MultiTextUnit(NamedTuple):
    """One unit of several texts that are clipped together, as micro-batches that hold no other
    texts."""

    pieces: list[tuple[Tensor, Tensor]]


class PendingUpdate(NamedTuple):
    """One update that waits in ``.grad``: its kind, how many examples were left out because the
    norm of their gradient was not finite, and the loss if the update is public. Both numbers stay
    on the device, so reading one means waiting for it."""

    kind: UpdateKind
    non_finite: Tensor | int = 0
    loss: Tensor | None = None


def set_public_gradient(
    model: nn.Module, batch: Iterable[tuple[Tensor, ...]], losses: Losses | None = None
) -> Tensor | None:
    """Set ``.grad`` to the gradient of the mean token loss of ``batch``, or of the mean of its
    examples' ``losses``, and return that mean.

    ``batch`` yields micro-batches ``(tokens (B, L), lengths (B,))``, or with targets (B, L) as a
    third item (:func:`crtlib.training.clipping.add_clipped_gradients`). With several processes,
    each is given its share of the batch and returns the mean over that share. Without any target
    the gradient is zero (None if there is no micro-batch either), and the loss is None.
    """
    parameters = _clear_gradients(model)
    count, sums = 0, []  # counts targets, or examples if each has a loss of its own
    for tokens, lengths, *if_targets in batch:
        targets = if_targets[0] if if_targets else None
        if losses is None:
            row_losses = clipping.add_unclipped_gradients(
                model, tokens, lengths, targets=targets, reduction="sum"
            )
            has_target = lengths - 1 if targets is None else targets != IGNORE_INDEX
            count += int(has_target.sum())
        else:
            row_losses = own_losses.add_gradients_of_losses(model, tokens, lengths, losses)
            count += len(tokens)
        sums.append(row_losses.sum())
    process_group().sum_gradients(parameters)
    count_of_all = process_group().total(count)
    if count_of_all <= 0:
        return None
    _divide_gradients(parameters, count_of_all)
    return torch.stack(sums).sum() / count if count else None


def set_private_gradient(
    model: nn.Module,
    batch: Iterable[tuple[Tensor, ...]],
    *,
    clip_norm: float,
    noise_multiplier: float,
    normaliser: float,
    noise: RandomSource,
    losses: Losses | None = None,
) -> Tensor | int:
    """Set ``.grad`` to (sum of clipped gradients + noise) / ``normaliser``.

    With several processes, each is given its share of the batch. The first adds the noise, once, to
    its own sum, before all sums are added up.

    Args:
        model: Its trainable parameters get a gradient; what was in ``.grad`` is discarded.
        batch: Micro-batches, ``(tokens (B, L), lengths (B,))`` or with targets (B, L) as a third
            item (:func:`crtlib.training.clipping.add_clipped_gradients`), or units. It may be a
            generator: each item is clipped before the next is requested, and the noise is drawn
            after the last. It may be empty: then ``.grad`` is noise alone.
        clip_norm: The largest norm that the gradient of an example, or of a unit, keeps.
        noise_multiplier: The standard deviation of the noise divided by ``clip_norm``.
        normaliser: Divides the noisy sum: the expected batch size, fixed in advance.
        noise: Where the noise is drawn from (:func:`crtlib.training.noise.add_noise`).
        losses: Returns the loss of each example of a micro-batch
            (:mod:`crtlib.training.own_losses`); the loss of a unit is the mean over its texts.
            None: the mean loss per token.

    Returns:
        How many examples of ``batch`` had a gradient without a finite norm; they count as zero.

    Raises:
        ValueError: For a model that cannot be clipped example by example (see
            ``add_clipped_gradients``), and for noise that is negative or not finite.

    Guarantee:
        One example moves the sum by at most ``clip_norm`` (:func:`crtlib.training.clipping.
        add_clipped_gradients` states what rounding may add), and every number of every trainable
        parameter gets noise. Tests:
        ``tests/training/test_noise_of_a_step.py::test_noise_of_every_number_is_the_accounted_one``,
        ``tests/training/test_clipping.py::test_clipped_example_does_not_exceed_the_bound``.
    """
    parameters = _clear_gradients(model)
    non_finite: Tensor | int = 0
    for rows in batch:
        if isinstance(rows, MultiTextUnit):
            if losses is None:
                unit = clipping.add_clipped_unit_gradient(model, rows.pieces, clip_norm=clip_norm)
            else:
                unit = own_losses.add_clipped_unit_gradient_of_losses(
                    model, rows.pieces, losses, clip_norm=clip_norm
                )
            norm = unit.norms
            non_finite = non_finite + (~norm.isfinite()).long()
            continue
        tokens, lengths, *targets = rows
        if losses is None:
            norms = clipping.add_clipped_gradients(
                model, tokens, lengths, clip_norm=clip_norm, targets=targets[0] if targets else None
            ).norms
        else:
            norms = own_losses.add_clipped_gradients_of_losses(
                model, tokens, lengths, losses, clip_norm=clip_norm
            ).norms
        non_finite = non_finite + (~norms.isfinite()).sum()
    if process_group().is_leader:
        add_noise(parameters, std=noise_multiplier * clip_norm, generator=noise)
    process_group().sum_gradients(parameters)
    _divide_gradients(parameters, normaliser)
    return non_finite


def _clear_gradients(model: nn.Module) -> list[nn.Parameter]:
    """Clear ``.grad`` of the trainable parameters, and return them."""
    parameters = list(trainable_parameters(model).values())
    for p in parameters:
        p.grad = None
    return parameters


def _divide_gradients(parameters: list[nn.Parameter], divisor: float) -> None:
    torch._foreach_div_([gradient_buffer(p) for p in parameters], divisor)
