"""Per-example clipping with one backward pass, at almost the price of ordinary training.

DP-SGD (Abadi et al. 2016) needs the norm of every example's gradient. A weight's gradient is a sum
over positions of outer products, ``sum_t r_t c_t'``, of what one backward pass computes anyway: the
inputs of the layer and the gradients of its outputs. Kept ("book-keeping", Bu et al. 2023), they
give the norms, ``sum_ts (r_t r_s)(c_t c_s)`` (the ghost norm, Li et al. 2022), and then the clipped
sum, without a second backward pass and without the gradients of single examples.

>>> from crtlib.models.networks import build
>>> from crtlib.models.networks import ModelSpec
>>> model = build(ModelSpec("lstm", vocab_size=9, embedding=4, hidden=5), seed=0)
>>> tokens, lengths = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]]), torch.tensor([4, 2])
>>> norms = clipped_sum(model, tokens, lengths, clip_norm=0.01).norms
>>> total = sum(p.grad.square().sum() for p in model.parameters()).sqrt()
>>> bool((norms > 0.01).all()), bool(total <= 0.02)
(True, True)

The examples of one micro-batch as the engines read them.

>>> from crtlib.models.networks import build
>>> from crtlib.models.networks import ModelSpec
>>> model = build(ModelSpec("lstm", vocab_size=9, embedding=4, hidden=5), seed=0)
>>> tokens, lengths = torch.tensor([[5, 6, 0], [1, 2, 3]]), torch.tensor([2, 3])
>>> examples = Examples.make(model, tokens, lengths, None, "mean")
>>> examples.inputs.tolist(), examples.targets.tolist()  # the longest first
([[1, 2], [5, 0]], [[2, 3], [6, 0]])
>>> examples.restored(torch.tensor([30, 20]))[0].tolist()
[20, 30]
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crtlib import checks
from crtlib.models import networks
from crtlib.training.bookkeeping import (
    KEPT,
    Book,
    Entry,
    Outer,
    UnknownLayer,
    Whole,
    clip_factors,
    ghost_until,
    gradient,
    outer,
    refuse_unfit,
    summable,
    trainable,
    wide,
    zeroed,
)
from crtlib.training.devices import near, sent

ROWS_AT_LEAST, CELLS_AT_MOST = 512, 2**26


class Clipped(NamedTuple):
    """Of each example: its loss, and the norm of its gradient before clipping; both (B,).

    An example whose norm is no finite number was left out of the sum.
    """

    losses: Tensor
    norms: Tensor


# --------------------------------------------------------------------------- one backward
def clipped_sum(
    model: nn.Module,
    tokens: Tensor,
    lengths: Tensor,
    *,
    clip_norm: float,
    targets: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Clipped:
    """ADD ``sum_i min(1, clip_norm / |g_i|) g_i`` to ``.grad`` of every trainable parameter.

    Where ``|g_i|`` is no finite number the factor is 0: not even the noise would hide an overflow.
    ``tokens`` (B, L) are padded with anything beyond ``lengths`` (B,), which are read: where tokens
    are on a GPU, lengths on the host spare it a wait. Without ``targets`` the model predicts each
    next token; with ``targets`` (B, L), the token there, ``-100`` for none (masked language
    models). An example's loss is the mean or the sum over its targets.
    As it adds, a logical batch larger than memory is several calls; an empty batch adds nothing
    (but leaves zeros, never ``None``, in ``.grad``).

    Raises ValueError, by name, for a model that mixes the examples of a batch or drops out
    (:func:`crtlib.training.bookkeeping.refuse_unfit`).
    A layer that is not known makes it clip one example after the other, as :func:`unit_sum` does,
    with a warning that names the parameter.
    """
    checks.check_clip_norm(clip_norm)
    refuse_unfit(model)
    batch = Examples.make(model, tokens, lengths, targets, reduction)
    if len(batch.inputs) == 0:
        zeros = torch.zeros(len(tokens), device=tokens.device)
        return Clipped(zeros, zeros.clone())
    try:
        return Clipped(*batch.restored(*_bookkeeping(model, batch, clip_norm)))
    except UnknownLayer as error:
        warnings.warn(f"{error}; clipping one example after the other (slow)", stacklevel=2)
    columns = (x.split(1) for x in (tokens, lengths, targets) if x is not None)
    units = [
        unit_sum(model, [one], clip_norm=clip_norm, reduction=reduction)
        for one in zip(*columns, strict=True)
    ]
    losses, norms = map(torch.stack, zip(*units, strict=True))
    return Clipped(losses, norms.to(losses.dtype))


def plain_sum(
    model: nn.Module,
    tokens: Tensor,
    lengths: Tensor,
    *,
    targets: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """ADD the gradient of the SUM over examples of their losses to ``.grad``; the losses (B,).

    The same kernels as :func:`clipped_sum`, without clipping. The gradient of the mean loss per
    token is that of ``reduction="sum"`` divided by the number of targets.
    """
    batch = Examples.make(model, tokens, lengths, targets, reduction)
    if len(batch.inputs) == 0:
        return torch.zeros(len(tokens), device=tokens.device)
    with torch.enable_grad():
        h = networks.hidden(model, batch.inputs, batch.lengths)
    with _precise(h) as low:
        losses, d_h = _head_and_loss(
            networks.head(model), h.detach(), batch, low, lambda entry: entry.add(None), keep=False
        )
        if h.requires_grad:
            torch.autograd.backward([h], [d_h])
    return batch.restored(losses)[0]


def unit_sum(
    model: nn.Module,
    pieces: Iterable[tuple[Tensor, ...]],
    *,
    clip_norm: float,
    reduction: Reduction = "mean",
) -> Clipped:
    """ADD the clipped gradient of ONE unit of several texts to ``.grad``: a user, or a text longer
    than the model's context. Returns its loss, and its norm before clipping, both scalars.

    ``pieces`` are micro-batches ``(tokens (B, L), lengths (B,))`` of the unit's texts, with targets
    as a third where :func:`clipped_sum` needs them; its loss is the mean (or the sum) over all
    their targets, so a text in two pieces weighs as much as one in one piece.
    One ordinary backward pass a micro-batch, so layers of any kind will do. Where the norm is no
    finite number nothing is added.
    """
    checks.check_clip_norm(clip_norm)
    refuse_unfit(model)
    parameters = list(trainable(model).values())
    sums = [p.grad for p in parameters]
    try:
        for p in parameters:
            p.grad = torch.zeros_like(p)
        loss, targets = torch.zeros(()), 0
        for tokens, lengths, *given in pieces:
            own = given[0] if given else None
            loss = loss + plain_sum(model, tokens, lengths, targets=own, reduction="sum").sum()
            if own is None:
                targets += int((lengths - 1).clamp_min(0).sum())
            else:
                real = (
                    torch.arange(own.shape[1], device=own.device) < lengths.to(own.device)[:, None]
                )
                targets += int(((own != IGNORED) & real).sum())
        share = max(1, targets) if reduction == "mean" else 1
        grads = [gradient(p) / share for p in parameters]
    finally:
        for p, total in zip(parameters, sums, strict=True):
            p.grad = torch.zeros_like(p) if total is None else total
    norm = torch.stack([g.double().square().sum() for g in grads]).sum().sqrt()
    factor = clip_factors(norm, clip_norm)
    if factor > 0:  # 0 times infinity would be no number
        for p, g in zip(parameters, grads, strict=True):
            gradient(p).add_(g * factor.to(g.dtype))
    return Clipped(loss / share, norm)


def _bookkeeping(model: nn.Module, batch: Examples, clip_norm: float) -> tuple[Tensor, Tensor]:
    book = Book(model, len(batch.inputs))
    with torch.enable_grad(), book.recording(model):
        h = networks.hidden(model, batch.inputs, batch.lengths)
        book.again = True
        with _precise(h) as low:
            losses, d_h = _head_and_loss(
                networks.head(model), h.detach(), batch, low, book.add, keep=True
            )
            if h.requires_grad:
                book.backward(h, d_h)
            norms = book.norms()
            book.add_clipped(clip_factors(norms, clip_norm))
    return losses, norms


@contextlib.contextmanager
def _precise(x: Tensor) -> Iterator[torch.dtype | None]:
    """Turn autograd and autocast off; yield the type autocast used for products, if it was on.

    Norms and sums are taken in float32 at least, whatever the precision of the model's products.
    """
    KEPT.reset()
    device = x.device.type
    low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    # Products of tiny probabilities are denormal, which slows a CPU down fourfold and more.
    flushed = bool(np.float32(1e-39) * np.float32(1) == 0)  # this thread's mode; torch cannot say
    torch.set_flush_denormal(True)
    try:
        with torch.autocast(device, enabled=False), torch.no_grad():
            yield low
    finally:
        torch.set_flush_denormal(flushed)


def _head_and_loss(
    head: networks.Head,
    h: Tensor,
    batch: Examples,
    low: torch.dtype | None,
    enter: Callable[[Entry], None],
    *,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """Logits, log-softmax, loss and its gradient in one pass over blocks of positions.

    Returns the losses (B,) and the gradient (B, T, d) of ``h``; ``enter`` is given the head's
    entries of the book, while their block is in the cache. ``keep``: they outlive the next block.
    """
    weight = head.weight.detach().to(low or head.weight.dtype)
    bias = None if head.bias is None else head.bias.detach().to(weight.dtype)
    dtype = batch.weights.dtype
    losses = torch.zeros(len(h), dtype=dtype, device=h.device)
    d_h = torch.zeros_like(h)
    learns = [p if p is not None and p.requires_grad else None for p in (head.weight, head.bias)]
    keep = keep and any(p is not None for p in learns)  # of a frozen head nothing is asked later
    # Of bfloat16 there are two more copies, which shall stay in the cache.
    cells = CELLS_AT_MOST if weight.dtype == dtype or weight.is_cuda else CELLS_AT_MOST // 16
    blocks = list(_blocks(batch.extents, len(weight), cells))
    sizes = [(rows.stop - rows.start) * batch.extents[rows.start] for rows in blocks]
    # On a CPU the gradients of logits are kept as they will be summed.
    like = summable(weight[:0])
    # A product of each example is made at once; for a ghost norm its factors are kept.
    stay = [keep and batch.extents[r.start] <= ghost_until(head.weight, like) for r in blocks]
    each = list(zip(blocks, sizes, stay, strict=True))
    most = max((size for _, size, stays in each if not stays), default=0)
    store = KEPT.take((sum(size for _, size, stays in each if stays) + most, len(weight)), like)
    for rows, size, stays in each:
        time = batch.extents[rows.start]
        x = h[rows, :time].flatten(0, 1).to(weight.dtype)
        w, targets = batch.weights[rows, :time].flatten(), batch.targets[rows, :time].flatten()
        out, store = store[:size], store[size:] if stays else store
        nll, d = _softmax(x, weight, bias, targets, head, dtype, out)
        losses[rows] = (nll * w).unflatten(0, (-1, time)).sum(1)
        # The gradient of the logits is w * d; w goes to the narrow side.
        w = w[:, None].to(x.dtype)
        parts = (d.to(weight.dtype) @ weight, d, x * w, w)
        of_h, d, x, w = (part.unflatten(0, (-1, time)) for part in parts)
        torch.mul(of_h, w, out=d_h[rows, :time])
        p, q = learns
        if p is not None and (stays or not keep):
            enter(Outer(p, d, x, bias=None if q is None else (q, w), span=rows))
            continue
        if p is not None:
            enter(outer(p, d, x, rows))
        if q is not None:
            enter(Whole(q, torch.bmm(d.mT, w.to(d.dtype))[..., 0], span=rows))
    return losses, d_h


def _softmax(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    head: networks.Head,
    dtype: torch.dtype,
    out: Tensor,
) -> tuple[Tensor, Tensor]:
    """Cross entropy of each row (N,) in ``dtype``; its gradient by what the head's linear map gives
    (N, V), before its scale and cap, in ``out``. ``weight`` and ``bias`` are those of ``head``, as
    precise as products are."""
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
    if not near(z):  # nobody may look for what underflows
        p = torch.log_softmax(z, 1, dtype=dtype)
        nll = -p.gather(1, column)[:, 0]
        p.exp_()
    else:  # in place, as fresh memory costs more than arithmetic
        p = torch.softmax(z, 1, dtype=dtype, out=out if out.dtype == dtype else None)
        chosen = p.gather(1, column)
        nll = -chosen.log()[:, 0]
        rare = (chosen[:, 0] < 1e-30).nonzero()[:, 0]
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


def _blocks(extents: Sequence[int], vocabulary: int, cells: int) -> Iterator[slice]:
    """Runs of examples of similar extent (sorted downwards), so that little padding is computed.

    A run has at least ``ROWS_AT_LEAST`` positions, or products are too small to be efficient, and
    at most ``cells`` logits, or they take too much memory.
    """
    first = 0
    for i, extent in enumerate(extents):
        rows, longest = (i - first) * extents[first], extents[first]
        full = (rows + longest) * vocabulary > cells
        if extent == 0 or (rows and (full or (rows >= ROWS_AT_LEAST and extent < 0.9 * longest))):
            if rows:
                yield slice(first, i)
            first = i
        if extent == 0:
            return
    yield slice(first, len(extents))


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
    order: Tensor  # (B,) the place of each example in the caller's batch

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
        checks.check_choice("reduction", reduction, ("mean", "sum"))
        if tokens.ndim != 2 or lengths.shape != tokens.shape[:1]:
            raise ValueError(
                f"tokens {tuple(tokens.shape)}, lengths {tuple(lengths.shape)}: "
                "must be (batch, time) and (batch,)"
            )
        zeroed(trainable(model).values())
        if targets is None and not networks.is_causal(model):
            raise ValueError("targets=None: must be given for a masked language model")
        lengths, order = lengths.cpu().sort(descending=True, stable=True)
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
        weights = counted.to(wide(networks.head(model).weight))
        if reduction == "mean":
            weights = weights / weights.sum(1, keepdim=True).clamp_min(1)
        inputs, targets = inputs * real, targets * counted
        if width == 0:  # no example has a target: nothing to learn, and nothing to run
            return Examples(inputs[:0], targets[:0], weights[:0], lengths[:0], [], order)
        return Examples(inputs, targets, weights, lengths, extents, order)

    def restored(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Each (B,) in the caller's order."""
        back = self.order.argsort()
        return tuple(x[back] for x in values)
