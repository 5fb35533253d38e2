"""The two kinds of update: an ordinary gradient, and "clip, noise, divide" (Abadi et al. 2016).

Every phase takes its steps here, so there is one place where private points turn into a released
gradient, whatever a phase does to its batches before.

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
"""Micro-batches ``(tokens (B, L), lengths (B,))`` of one logical batch; empty for no points. For a
phase that reads flags, ``(tokens, lengths, flags (B, L))``. Where points have owners, a
:class:`MultiTextUnit` stands for each owner of several points."""


class MultiTextUnit(NamedTuple):
    """One unit of several texts that are clipped together, as micro-batches of its own."""

    pieces: list[tuple[Tensor, Tensor]]


class PendingUpdate(NamedTuple):
    """One update that waits in ``.grad``: its kind, how many examples were left out of it because
    the norm of their gradient was no finite number, and of a public one the loss. Both numbers stay
    on the device: to read one is to wait for it."""

    kind: UpdateKind
    non_finite: Tensor | int = 0
    loss: Tensor | None = None


def set_public_gradient(
    model: nn.Module, batch: Iterable[tuple[Tensor, ...]], losses: Losses | None = None
) -> Tensor | None:
    """Set ``.grad`` to the gradient of the mean token loss of ``batch``, or of the mean of its
    examples' ``losses``, and return that mean.

    ``batch`` gives micro-batches ``(tokens (B, L), lengths (B,))``, or with targets (B, L) as a
    third (:func:`crtlib.training.clipping.add_clipped_gradients`). Of several processes each is
    given its share, and returns the mean of that. Without any target the gradient is zero (None
    where there is no micro-batch either), and the loss is None.
    """
    parameters = _clear_gradients(model)
    count, sums = 0, []  # of targets, or of examples where they have losses of their own
    for tokens, lengths, *if_targets in batch:
        targets = if_targets[0] if if_targets else None
        if losses is None:
            row_losses = clipping.add_unclipped_gradients(
                model, tokens, lengths, targets=targets, reduction="sum"
            )
            counted = (lengths - 1).sum() if targets is None else (targets != IGNORE_INDEX).sum()
            count += int(counted)
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

    Of several processes each is given its share of the batch. The first adds the noise, once, to
    its own sum, before all sums are added up.

    Args:
        model: Its trainable parameters get a gradient; what stood in ``.grad`` is thrown away.
        batch: Micro-batches, ``(tokens (B, L), lengths (B,))`` or with targets (B, L) as a third
            (:func:`crtlib.training.clipping.add_clipped_gradients`), or units. It may be a
            generator: each is clipped before the next is asked for, and the noise is drawn after
            the last. It may be empty: then ``.grad`` is noise alone.
        clip_norm: The largest norm of an example's, or a unit's, gradient.
        noise_multiplier: The deviation of the noise over ``clip_norm``.
        normaliser: Divides the noisy sum: the expected batch size, fixed in advance.
        noise: Where the noise is drawn from (:func:`crtlib.training.noise.add_noise`).
        losses: Of a micro-batch the loss of each example (:mod:`crtlib.training.own_losses`), of a
            unit that of each of its texts, of which it is the mean; None: the mean of a token.

    Returns:
        How many examples of ``batch`` had a gradient without a finite norm; they count as zero.

    Raises:
        ValueError: For what cannot be clipped example by example, as ``add_clipped_gradients``
            says, and for noise that is negative or not finite.

    Guarantee:
        One example moves the sum by at most ``clip_norm`` (:func:`crtlib.training.clipping.
        add_clipped_gradients` says what rounding may add), and every number of every trainable
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
    """The parameters that learn, without what an earlier step left in ``.grad``."""
    parameters = list(trainable_parameters(model).values())
    for p in parameters:
        p.grad = None
    return parameters


def _divide_gradients(parameters: list[nn.Parameter], divisor: float) -> None:
    torch._foreach_div_([gradient_buffer(p) for p in parameters], divisor)
