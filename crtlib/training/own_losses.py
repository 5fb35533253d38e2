"""Custom losses, one per example, in steps with and without noise.

The engine of :mod:`crtlib.training.clipping` knows the cross entropy of the next token, and makes
logits and their gradient in one pass. Any other loss is a function of the model and of a
micro-batch as ``transformers`` reads it. The gradients of each example are then recorded at the
layers that the function calls; the output layer is treated like all others.

>>> from crtlib.models.construction import build_model
>>> from crtlib.models.specs import ModelSpec
>>> spec = ModelSpec("gpt2", vocab_size=9, hidden=8, layers=1, heads=2, context=8)
>>> model = build_model(spec, seed=0)
>>> def z_loss(model, batch):  # (B,): keeps the logits of a row small; padding is no token of it
...     inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
...     squares = model(**inputs).logits.logsumexp(-1).square() * batch["attention_mask"]
...     return squares.sum(1) / batch["attention_mask"].sum(1)
>>> refuse_mixing_losses(model, z_loss, max_text_tokens=8)
>>> def weighed_by_the_batch(model, batch):
...     each = z_loss(model, batch)
...     return each * each.mean()
>>> refuse_mixing_losses(model, weighed_by_the_batch, max_text_tokens=8)  # doctest: +ELLIPSIS
Traceback (most recent call last):
...
ValueError: losses: the other rows of a batch change what one adds, by ... clip norms: ...
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from crtlib import checks
from crtlib.models import interface
from crtlib.training import clipping, probe
from crtlib.training.clipping import LossesAndNorms
from crtlib.training.devices import is_host, send_to_device
from crtlib.training.gradient_entries import (
    UnknownLayer,
    clip_factors,
    fill_missing_gradients,
    trainable_parameters,
)
from crtlib.training.gradient_recorder import GradientRecorder
from crtlib.training.layer_rules import refuse_unfit_layers
from crtlib.training.micro_batch import IGNORE_INDEX

MicroBatch = Mapping[str, Tensor]
Losses = Callable[[nn.Module, MicroBatch], Tensor]
"""A function from the model and a micro-batch of B rows to the loss of each row, (B,), with a
graph."""


def make_micro_batch(tokens: Tensor, lengths: Tensor) -> dict[str, Tensor]:
    """Return rows (B, T) as models of ``transformers`` read them. Each row has its own positions:
    otherwise the table of positions would see a batch of one."""
    positions = torch.arange(tokens.shape[1], device=tokens.device).repeat(len(tokens), 1)
    is_real = positions < send_to_device(lengths, tokens.device)[:, None]
    return {
        "input_ids": tokens * is_real,
        "attention_mask": is_real.long(),
        "position_ids": positions,
        "labels": tokens.masked_fill(~is_real, IGNORE_INDEX),
    }


def add_gradients_of_losses(
    model: nn.Module, tokens: Tensor, lengths: Tensor, losses: Losses
) -> Tensor:
    """ADD the gradient of the SUM of the rows' losses to ``.grad``; return the losses (B,)."""
    fill_missing_gradients(trainable_parameters(model).values())
    if not len(tokens):
        return torch.zeros(0, device=tokens.device)
    with torch.enable_grad():
        row_losses = _losses_of_rows(model, losses, make_micro_batch(tokens, lengths))
        row_losses.sum().backward()
    return row_losses.detach()


def add_clipped_gradients_of_losses(
    model: nn.Module, tokens: Tensor, lengths: Tensor, losses: Losses, *, clip_norm: float
) -> LossesAndNorms:
    """ADD the sum of the clipped gradients of the rows' losses to ``.grad``, as
    :func:`crtlib.training.clipping.add_clipped_gradients` does for the loss of the next token.

    Raises ValueError for losses that are not one per row, or that read a trainable parameter
    outside of the model. With an unknown layer, rows are clipped one after the other, with a
    warning that names the layer.

    Guarantee:
        What is added is the sum of what each row adds alone, to within 1e-4 clip norms, for losses
        that :func:`refuse_mixing_losses` lets through. Test:
        ``tests/training/test_own_losses.py::test_losses_are_clipped_row_by_row``.
    """
    checks.check_clip_norm(clip_norm)
    refuse_unfit_layers(model)
    fill_missing_gradients(trainable_parameters(model).values())
    if not len(tokens):
        return LossesAndNorms(*torch.zeros(2, 0, device=tokens.device))
    try:
        batch = make_micro_batch(tokens, lengths)
        return _add_clipped_losses_in_one_pass(model, losses, batch, clip_norm)
    except UnknownLayer as error:
        warnings.warn(f"{error}; clipping one example at a time (slow)", stacklevel=2)
    rows = zip(tokens.split(1), lengths.split(1), strict=True)
    units = [
        add_clipped_unit_gradient_of_losses(
            model, [(row[:, : int(length)], length)], losses, clip_norm=clip_norm
        )
        for row, length in rows
    ]
    row_losses, norms = map(torch.stack, zip(*units, strict=True))
    return LossesAndNorms(row_losses, norms.to(row_losses.dtype))


def add_clipped_unit_gradient_of_losses(
    model: nn.Module, pieces: Iterable[tuple[Tensor, Tensor]], losses: Losses, *, clip_norm: float
) -> LossesAndNorms:
    """ADD the clipped gradient of ONE unit of several texts to ``.grad``. Its loss is the mean of
    their losses. Returns that loss, and the norm before clipping, both scalars."""

    def backpropagate() -> tuple[Tensor, int]:
        loss, text_count = torch.zeros(()), 0
        for tokens, lengths in pieces:
            loss = loss + add_gradients_of_losses(model, tokens, lengths, losses).sum()
            text_count += len(tokens)
        return loss, max(1, text_count)

    return clipping.add_clipped_by_autograd(model, backpropagate, clip_norm=clip_norm)


def refuse_mixing_losses(
    model: nn.Module, losses: Losses, *, max_text_tokens: int | None = None
) -> None:
    """Refuse losses that draw at random, or in which a row's loss depends on another row.

    The function is tried like a model (:func:`crtlib.training.probe.refuse_mixing`): on random
    tokens, never a text, in a batch of short and one of long texts, with weights that are moved a
    little. The clipped sum of each batch is compared with itself, and with the sum of the clipped
    gradients of each row alone, by autograd. The model is left as it was.

    Raises:
        ValueError: One line that states what was seen, in clip norms.

    Guarantee:
        For losses that are let through, these batches add to the clipped sum what their rows add
        alone, to within ``probe.CPU_TOLERANCE`` clip norms (``GPU_TOLERANCE`` on a GPU), in the
        model's own precision or in double precision. This is tried, not proved: what a function
        does only with certain tokens, or keeps for a later call, is not found; a certificate
        assumes that there is no such thing. Test:
        ``tests/training/test_own_losses.py::test_losses_that_mix_are_refused``.
    """
    longest_tokens = probe.longest_tried_tokens(model, max_text_tokens)
    tolerance = probe.CPU_TOLERANCE if is_host(interface.device_of(model)) else probe.GPU_TOLERANCE
    short_lengths = [min(n, longest_tokens) for n in probe.SHORT_TEXT_TOKENS]
    lengths_by_batch = [short_lengths]
    if longest_tokens > max(short_lengths):
        lengths_by_batch.append(probe.long_text_tokens(longest_tokens))
    with probe.with_perturbed_weights(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the training itself warns that rows are clipped alone
        for text_lengths in lengths_by_batch:
            texts = probe.random_texts(model, text_lengths)
            tokens, lengths = probe.pad_texts(texts)
            _refuse_lasting_tensors(model, losses, make_micro_batch(tokens, lengths))
            _, norms = add_clipped_gradients_of_losses(
                model, tokens, lengths, losses, clip_norm=1.0
            )
            if not norms.isfinite().all():
                raise ValueError(
                    "losses: their gradients for random tokens overflow or are NaN: must be finite"
                )
            # First half are clipped, then none: clipping hides a factor in a gradient.
            for clip_norm in (float(norms.median()), 10 * float(norms.max())):
                _refuse_if_apart(model, losses, texts, max(clip_norm, 1e-3), tolerance)


def _refuse_lasting_tensors(model: nn.Module, losses: Losses, batch: MicroBatch) -> None:
    """Refuse losses that read a tensor outside of the model that an optimizer could move, whatever
    its type. Such a tensor is the same in two calls, unlike those that a layer makes as it
    reads."""
    with torch.enable_grad():
        first_leaves = [*_leaves(_losses_of_rows(model, losses, batch))]
        second_leaves = [*_leaves(_losses_of_rows(model, losses, batch))]
    lasting_ids = set(map(id, second_leaves)) - set(map(id, model.parameters()))
    for leaf in first_leaves:
        if id(leaf) in lasting_ids:
            raise ValueError(
                f"losses: read a tensor of shape {tuple(leaf.shape)} that learns outside of the "
                "model; must be part of it, or frozen"
            )


def _refuse_if_apart(
    model: nn.Module, losses: Losses, texts: Sequence[Tensor], clip_norm: float, tolerance: float
) -> None:
    """Raise ValueError if the clipped sum of these texts changes when it is taken again, or is not
    what the texts add alone."""
    generators_before = probe.generator_states(interface.device_of(model))
    first_sum, second_sum = (_clipped_sum(model, losses, [texts], clip_norm) for _ in range(2))
    has_drawn = probe.has_drawn(model, generators_before)
    if has_drawn or probe.distance_in_clip_norms(first_sum, second_sum, clip_norm) > tolerance:
        raise ValueError("losses: draw random numbers of their own: must be without noise")

    def measure_effect() -> float:
        together = _clipped_sum(model, losses, [texts], clip_norm)
        alone = _clipped_sum(model, losses, [[text] for text in texts], clip_norm)
        return probe.distance_in_clip_norms(together, alone, clip_norm)

    effect = probe.distance_beyond_rounding(model, measure_effect, tolerance)
    if effect > tolerance:
        raise ValueError(
            f"losses: the other rows of a batch change what one adds, by {effect:.2g} clip norms: "
            "the loss of a row must depend on that row alone"
        )


def _clipped_sum(
    model: nn.Module, losses: Losses, batches: Sequence[Sequence[Tensor]], clip_norm: float
) -> list[Tensor]:
    """The clipped sum over batches of texts; a batch of one text takes its gradient by autograd."""
    for parameter in trainable_parameters(model).values():
        parameter.grad = None
    for texts in batches:
        tokens, lengths = probe.pad_texts(texts)
        if len(texts) > 1:
            add_clipped_gradients_of_losses(model, tokens, lengths, losses, clip_norm=clip_norm)
        else:
            add_clipped_unit_gradient_of_losses(
                model, [(tokens, lengths)], losses, clip_norm=clip_norm
            )
    return probe.gradients_or_zeros(model)


def _losses_of_rows(model: nn.Module, losses: Losses, batch: MicroBatch) -> Tensor:
    """Call ``losses``, and check that it returns one loss per row, with a graph that ends in the
    model."""
    row_losses, row_count = losses(model, batch), len(batch["input_ids"])
    if not isinstance(row_losses, Tensor) or row_losses.shape != (row_count,):
        # The message does not give the number, which is private.
        raise ValueError(
            "losses: must be a tensor with one number for each row of input_ids, not of the batch"
        )
    if not row_losses.requires_grad:
        raise ValueError("losses: have no graph; must be what the model computes, not detached")
    parameter_ids = set(map(id, model.parameters()))
    for leaf in _leaves(row_losses):
        if isinstance(leaf, nn.Parameter) and id(leaf) not in parameter_ids:
            raise ValueError(
                f"losses: read a tensor of shape {tuple(leaf.shape)} that learns outside of the "
                "model; must be part of it, or frozen"
            )
    return row_losses


def _add_clipped_losses_in_one_pass(
    model: nn.Module, losses: Losses, batch: MicroBatch, clip_norm: float
) -> LossesAndNorms:
    recorder = GradientRecorder(model, len(batch["input_ids"]))
    with torch.enable_grad(), recorder.recording(model):
        row_losses = _losses_of_rows(model, losses, batch)
        recorder.is_recomputing = True
        with clipping.without_autograd_and_autocast(row_losses):
            recorder.backward(row_losses, torch.ones_like(row_losses))
            if not recorder.squares:
                raise UnknownLayer("losses: no layer of the model was recorded")
            norms = recorder.norms()
            recorder.add_clipped(clip_factors(norms, clip_norm))
    return LossesAndNorms(row_losses.detach(), norms)


def _leaves(output: Tensor) -> Iterator[Tensor]:
    """The tensors at which a backward pass from ``output`` ends."""
    visited, waiting = set(), [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting.extend(earlier_node for earlier_node, _ in node.next_functions)
