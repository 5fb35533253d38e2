"""Per-example clipping with one backward pass, at almost the cost of ordinary training.

DP-SGD (Abadi et al. 2016) needs the norm of every example's gradient. A weight's gradient is a sum
of outer products over positions, ``sum_t r_t c_t'``, whose factors one backward pass computes
anyway: the inputs of the layer and the gradients of its outputs. If they are kept ("book-keeping",
Bu et al. 2023), they give the norms, ``sum_ts (r_t r_s)(c_t c_s)`` (the ghost norm, Li et al.
2022), and then the clipped sum, without a second backward pass and without the gradients of single
examples.

>>> from crtlib.models.construction import build_model
>>> from crtlib.models.specs import ModelSpec
>>> model = build_model(ModelSpec("lstm", vocab_size=9, embedding=4, hidden=5), seed=0)
>>> tokens, lengths = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]]), torch.tensor([4, 2])
>>> norms = add_clipped_gradients(model, tokens, lengths, clip_norm=0.01).norms
>>> total = sum(p.grad.square().sum() for p in model.parameters()).sqrt()
>>> bool((norms > 0.01).all()), bool(total <= 0.02)
(True, True)
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crtlib import checks
from crtlib.models import interface
from crtlib.training.devices import is_on_host
from crtlib.training.gradient_entries import (
    SCRATCH,
    DenseGrad,
    GradientEntry,
    OuterProductGrad,
    UnknownLayer,
    cast_for_exact_sums,
    choose_matrix_entry,
    clip_factors,
    gradient_buffer,
    max_ghost_positions,
    trainable_parameters,
)
from crtlib.training.gradient_recorder import GradientRecorder
from crtlib.training.layer_rules import refuse_unfit_layers
from crtlib.training.micro_batch import IGNORE_INDEX, LossReduction, SortedExamples

MIN_POSITIONS_PER_BLOCK, MAX_LOGITS_PER_BLOCK = 512, 2**26


class LossesAndNorms(NamedTuple):
    """Each example's loss, and the norm of its gradient before clipping; both (B,).

    An example whose norm is not finite was left out of the sum.
    """

    losses: Tensor
    norms: Tensor


# --------------------------------------------------------------------------- one backward
def add_clipped_gradients(
    model: nn.Module,
    tokens: Tensor,
    lengths: Tensor,
    *,
    clip_norm: float,
    targets: Tensor | None = None,
    reduction: LossReduction = "mean",
) -> LossesAndNorms:
    """ADD ``sum_i min(1, clip_norm / |g_i|) g_i`` to ``.grad`` of every trainable parameter.

    If ``|g_i|`` is not finite the factor is 0, because not even the noise would hide an overflow.
    If the positions of an example cancel so far that float32 cannot resolve the norm of the rest,
    ``|g_i|`` is an upper bound on it. As the function adds to ``.grad``, a logical batch larger
    than memory takes several calls. With an unknown layer, examples are clipped one after the
    other, as by :func:`add_clipped_unit_gradient`, with a warning that names the parameter. Each
    example is clipped as in Abadi et al. 2016, Algorithm 1.

    Args:
        model: A model that predicts next tokens or, with ``targets``, the tokens given there.
        tokens: (B, L), padded with anything. B may be 0: nothing is added then, but ``.grad`` holds
            zeros, never ``None``.
        lengths: (B,): how many tokens of each row are read. If the tokens are on a GPU, lengths on
            the host avoid a wait.
        clip_norm: The largest norm, C.
        targets: (B, L), the token at each place, ``-100`` for none (masked language models).
        reduction: Whether an example's loss is the "mean" or the "sum" over its targets.

    Returns:
        Each example's loss, and its gradient's norm before clipping, both (B,).

    Raises:
        ValueError: For a layer that mixes the examples of a batch or applies dropout, which is
            named (:func:`crtlib.training.layer_rules.refuse_unfit_layers`), and for a clip norm
            that float32 cannot hold.

    Guarantee:
        The norm of what an example adds is at most ``1 + 1.3e-3`` clip norms. The excess is what
        the worst rounding of its norm may hide before it is charged
        (:data:`crtlib.training.gradient_recorder.UNCHARGED_SHARE`). In measurements the norm is
        within 1e-6 of the clip norm for ordinary gradients, and below it if they cancel. Tests:
        ``tests/training/test_clipping.py::test_clipped_example_does_not_exceed_the_bound``,
        ``tests/training/test_rounding.py::test_what_cancels_is_clipped``.
    """
    checks.check_clip_norm(clip_norm)
    refuse_unfit_layers(model)
    batch = SortedExamples.make(model, tokens, lengths, targets, reduction)
    if len(batch.inputs) == 0:
        zeros = torch.zeros(len(tokens), device=tokens.device)
        return LossesAndNorms(zeros, zeros.clone())
    try:
        return LossesAndNorms(*batch.restored(*_add_clipped_in_one_pass(model, batch, clip_norm)))
    except UnknownLayer as error:
        warnings.warn(f"{error}; clipping one example at a time (slow)", stacklevel=2)
    columns = (x.split(1) for x in (tokens, lengths, targets) if x is not None)
    units = [
        add_clipped_unit_gradient(model, [example], clip_norm=clip_norm, reduction=reduction)
        for example in zip(*columns, strict=True)
    ]
    losses, norms = map(torch.stack, zip(*units, strict=True))
    return LossesAndNorms(losses, norms.to(losses.dtype))


def add_unclipped_gradients(
    model: nn.Module,
    tokens: Tensor,
    lengths: Tensor,
    *,
    targets: Tensor | None = None,
    reduction: LossReduction = "mean",
) -> Tensor:
    """ADD the gradient of the SUM of the examples' losses to ``.grad``; return the losses (B,).

    It runs the kernels of :func:`add_clipped_gradients`, without clipping. The gradient of the mean
    loss per token is that of ``reduction="sum"`` divided by the number of targets.
    """
    batch = SortedExamples.make(model, tokens, lengths, targets, reduction)
    if len(batch.inputs) == 0:
        return torch.zeros(len(tokens), device=tokens.device)
    with torch.enable_grad():
        hidden = interface.hidden_states(model, batch.inputs, batch.lengths)
    with without_autograd_and_autocast(hidden) as autocast_dtype:
        losses, d_h = _backpropagate_head(
            interface.output_head(model),
            hidden.detach(),
            batch,
            autocast_dtype,
            lambda entry: entry.add(None),
            keeps_entries=False,
        )
        if hidden.requires_grad:
            torch.autograd.backward([hidden], [d_h])
    return batch.restored(losses)[0]


def add_clipped_unit_gradient(
    model: nn.Module,
    pieces: Iterable[tuple[Tensor, ...]],
    *,
    clip_norm: float,
    reduction: LossReduction = "mean",
) -> LossesAndNorms:
    """ADD the clipped gradient of ONE unit of several texts to ``.grad``: a user, or a text longer
    than the model's context. Returns its loss, and its norm before clipping, both scalars.

    ``pieces`` are micro-batches ``(tokens (B, L), lengths (B,))`` of the unit's texts, with targets
    as a third item where :func:`add_clipped_gradients` needs them. The unit's loss is the mean (or
    the sum) over all their targets, so a text in two pieces weighs as much as one in one piece.
    Each micro-batch takes one ordinary backward pass, so layers of any kind will do. If the norm is
    not finite, nothing is added. The norm is taken in float64 from the unit's summed gradient, so
    whatever cancels has cancelled by then.
    """

    def backpropagate() -> tuple[Tensor, int]:
        loss, target_count = torch.zeros(()), 0
        for tokens, lengths, *if_targets in pieces:
            targets = if_targets[0] if if_targets else None
            losses = add_unclipped_gradients(
                model, tokens, lengths, targets=targets, reduction="sum"
            )
            loss = loss + losses.sum()
            if targets is None:
                target_count += int((lengths - 1).clamp_min(0).sum())
            else:
                positions = torch.arange(targets.shape[1], device=targets.device)
                is_real = positions < lengths.to(targets.device)[:, None]
                target_count += int(((targets != IGNORE_INDEX) & is_real).sum())
        return loss, max(1, target_count) if reduction == "mean" else 1

    return add_clipped_by_autograd(model, backpropagate, clip_norm=clip_norm)


def add_clipped_by_autograd(
    model: nn.Module, backpropagate: Callable[[], tuple[Tensor, int]], *, clip_norm: float
) -> LossesAndNorms:
    """ADD the clipped gradient of ONE unit to ``.grad``; return its loss and norm, both scalars.

    ``backpropagate`` adds a multiple of the unclipped gradient to ``.grad``. It returns the same
    multiple of the loss, and the number that divides both. If the norm is not finite, nothing is
    added.
    """
    checks.check_clip_norm(clip_norm)
    refuse_unfit_layers(model)
    parameters = list(trainable_parameters(model).values())
    sums = [p.grad for p in parameters]
    try:
        for p in parameters:
            p.grad = torch.zeros_like(p)
        loss, divisor = backpropagate()
        grads = [gradient_buffer(p) / divisor for p in parameters]
    finally:
        for p, total in zip(parameters, sums, strict=True):
            p.grad = torch.zeros_like(p) if total is None else total
    norm = torch.stack([g.double().square().sum() for g in grads]).sum().sqrt()
    factor = clip_factors(norm, clip_norm)
    if factor > 0:  # 0 times infinity would be NaN
        for p, g in zip(parameters, grads, strict=True):
            gradient_buffer(p).add_(g * factor.to(g.dtype))
    return LossesAndNorms(loss / divisor, norm)


def _add_clipped_in_one_pass(
    model: nn.Module, batch: SortedExamples, clip_norm: float
) -> tuple[Tensor, Tensor]:
    recorder = GradientRecorder(model, len(batch.inputs))
    with torch.enable_grad(), recorder.recording(model):
        hidden = interface.hidden_states(model, batch.inputs, batch.lengths)
        recorder.is_recomputing = True
        with without_autograd_and_autocast(hidden) as autocast_dtype:
            losses, d_h = _backpropagate_head(
                interface.output_head(model),
                hidden.detach(),
                batch,
                autocast_dtype,
                recorder.add,
                keeps_entries=True,
            )
            if hidden.requires_grad:
                recorder.backward(hidden, d_h)
            norms = recorder.norms()
            recorder.add_clipped(clip_factors(norms, clip_norm))
    return losses, norms


@contextlib.contextmanager
def without_autograd_and_autocast(x: Tensor) -> Iterator[torch.dtype | None]:
    """Turn autograd and autocast off; yield the type autocast used for products, if it was on.

    Norms and sums are taken at least in float32, whatever the precision of the model's products.
    """
    SCRATCH.reset()
    device = x.device.type
    low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    # Products of tiny probabilities are denormal, which slows a CPU down fourfold and more.
    flushed = bool(np.float32(1e-39) * np.float32(1) == 0)  # this thread's mode; torch hides it
    torch.set_flush_denormal(True)
    try:
        with torch.autocast(device, enabled=False), torch.no_grad():
            yield low
    finally:
        torch.set_flush_denormal(flushed)


def _backpropagate_head(
    head: interface.Head,
    hidden: Tensor,
    batch: SortedExamples,
    autocast_dtype: torch.dtype | None,
    add_entry: Callable[[GradientEntry], None],
    *,
    keeps_entries: bool,
) -> tuple[Tensor, Tensor]:
    """Compute logits, log-softmax, loss and its gradient in one pass over blocks of positions.

    Returns the losses (B,) and the gradient of ``hidden`` (B, T, d). ``add_entry`` gets the head's
    gradient entries, while their block is in the cache. With ``keeps_entries`` it keeps them, so
    what they hold must outlive the next block.

    A position with hidden state h (d), target y and weight w in its example's loss has the logits
    ``z = W h + b`` (V), the probabilities ``p = softmax(z)``, and the loss ``-w log p_y``. Let e be
    1 at y and 0 elsewhere. The gradient is ``w (p - e)`` (V) of z and of b, ``w W'(p - e)`` (d) of
    h, and the outer product ``(p - e)(w h)'`` (V, d) of W: w multiplies vectors of d numbers, never
    of V. Scale and cap of the head are part of ``p - e`` here.
    """
    positions = batch.head_positions()
    head_inputs = positions.gather(hidden)  # (B, T', d)
    weight = head.weight.detach().to(autocast_dtype or head.weight.dtype)  # (V, d)
    bias = None if head.bias is None else head.bias.detach().to(weight.dtype)  # (V,)
    loss_dtype = positions.weights.dtype
    losses = torch.zeros(len(head_inputs), dtype=loss_dtype, device=head_inputs.device)
    d_head_inputs = torch.zeros_like(head_inputs)
    learning_weight, learning_bias = (
        p if p is not None and p.requires_grad else None for p in (head.weight, head.bias)
    )
    if learning_weight is None and learning_bias is None:
        keeps_entries = False  # there are none

    # A block is a slice of the examples, with as many positions of each as its longest one has.
    # With bfloat16 there are two more copies, which should stay in the cache.
    max_logits = (
        MAX_LOGITS_PER_BLOCK
        if weight.dtype == loss_dtype or weight.is_cuda
        else MAX_LOGITS_PER_BLOCK // 16
    )
    blocks = list(_split_by_length(positions.extents, len(weight), max_logits))
    extents = [positions.extents[block.start] for block in blocks]
    sizes = [
        (block.stop - block.start) * extent for block, extent in zip(blocks, extents, strict=True)
    ]
    # On a CPU the gradients of logits are kept in the type in which they will be summed.
    like = cast_for_exact_sums(weight[:0])
    # For a ghost norm the factors of a block are kept; else the product of each example is formed
    # at once, and the next block may overwrite them.
    ghost_limit = max_ghost_positions(head.weight, like)
    are_kept = [keeps_entries and extent <= ghost_limit for extent in extents]
    kept_size = sum(size for size, is_kept in zip(sizes, are_kept, strict=True) if is_kept)
    overwritten_size = max(
        (size for size, is_kept in zip(sizes, are_kept, strict=True) if not is_kept), default=0
    )
    store = SCRATCH.take((kept_size + overwritten_size, len(weight)), like)

    for block, extent, size, is_kept in zip(blocks, extents, sizes, are_kept, strict=True):
        # "flat": the positions of all examples of the block, one after the other.
        flat_inputs = head_inputs[block, :extent].flatten(0, 1).to(weight.dtype)  # (size, d)
        loss_weights = positions.weights[block, :extent].flatten()
        targets = positions.targets[block, :extent].flatten()
        block_store = store[:size]
        if is_kept:
            store = store[size:]
        nll, flat_logit_grads = _cross_entropy_and_gradient(
            flat_inputs, weight, bias, targets, head, loss_dtype, block_store
        )  # (size,), and p - e (size, V)
        losses[block] = (nll * loss_weights).unflatten(0, (-1, extent)).sum(1)
        flat_scales = loss_weights[:, None].to(flat_inputs.dtype)  # w (size, 1)
        flat_input_grads = flat_logit_grads.to(weight.dtype) @ weight  # (size, d), without w
        flat_scaled_inputs = flat_inputs * flat_scales  # w h (size, d)
        logit_grads, input_grads, scaled_inputs, scales = (
            x.unflatten(0, (-1, extent))  # (examples of the block, extent, ·)
            for x in (flat_logit_grads, flat_input_grads, flat_scaled_inputs, flat_scales)
        )
        torch.mul(input_grads, scales, out=d_head_inputs[block, :extent])
        if learning_weight is not None and (is_kept or not keeps_entries):
            bias_column = None if learning_bias is None else (learning_bias, scales)
            add_entry(
                OuterProductGrad(
                    learning_weight, logit_grads, scaled_inputs, bias=bias_column, span=block
                )
            )
            continue
        if learning_weight is not None:
            add_entry(choose_matrix_entry(learning_weight, logit_grads, scaled_inputs, block))
        if learning_bias is not None:
            bias_grads = torch.bmm(logit_grads.mT, scales.to(logit_grads.dtype))[..., 0]
            add_entry(DenseGrad(learning_bias, bias_grads, span=block))
    return losses, positions.scatter(d_head_inputs, hidden)


def _cross_entropy_and_gradient(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    head: interface.Head,
    dtype: torch.dtype,
    out: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the cross entropy of each row (N,) in ``dtype`` and, in ``out``, its gradient with
    respect to the output (N, V) of the head's linear map, before scale and cap. ``weight`` and
    ``bias`` are those of ``head``, in the precision of products."""
    softcap, scale = head.softcap, head.scale
    into = out if out.dtype == x.dtype else None
    if bias is None:
        z = torch.mm(x, weight.T, out=into)
    else:
        z = torch.addmm(bias, x, weight.T, out=into)
    if scale != 1:
        z.mul_(scale)
    if softcap is not None:
        z.div_(softcap).tanh_().mul_(softcap)
    slope = None if softcap is None else 1 - (z / softcap).square_()
    column = targets[:, None]
    if not is_on_host(z):  # looking for what underflows would wait for the device
        p = torch.log_softmax(z, 1, dtype=dtype)
        nll = -p.gather(1, column)[:, 0]
        p.exp_()
    else:  # in place, because fresh memory costs more than arithmetic
        p = torch.softmax(z, 1, dtype=dtype, out=out if out.dtype == dtype else None)
        target_p = p.gather(1, column)
        nll = -target_p.log()[:, 0]
        rare = (target_p[:, 0] < 1e-30).nonzero()[:, 0]
        if len(rare):  # log p of a p that underflows
            z = F.linear(
                x[rare].to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
            )
            z = z if scale == 1 else z * scale
            z = z if softcap is None else (z / softcap).tanh() * softcap
            nll[rare] = F.cross_entropy(z, targets[rare], reduction="none")
    p.scatter_add_(1, column, p.new_full((), -1.0).expand_as(column))
    if slope is not None:
        p.mul_(slope)
    if scale != 1:
        p.mul_(scale)
    return nll, p if p.data_ptr() == out.data_ptr() else out.copy_(p)


def _split_by_length(extents: Sequence[int], vocabulary: int, max_logits: int) -> Iterator[slice]:
    """Yield runs of examples of similar extent, largest first, so that little padding is computed.

    With fewer than ``MIN_POSITIONS_PER_BLOCK`` positions in a run, products would be too small to
    be efficient; with more than ``max_logits`` logits, they would take too much memory.
    """
    first = 0
    for i, extent in enumerate(extents):
        rows, longest = (i - first) * extents[first], extents[first]
        is_full = (rows + longest) * vocabulary > max_logits
        if extent == 0 or (
            rows and (is_full or (rows >= MIN_POSITIONS_PER_BLOCK and extent < 0.9 * longest))
        ):
            if rows:
                yield slice(first, i)
            first = i
        if extent == 0:
            return
    yield slice(first, len(extents))
