"""The book: what one backward pass leaves behind, and per-example norms and sums made from it.

A weight's gradient is a sum over positions of outer products, ``sum_t r_t c_t'``, of the inputs of
its layer and the gradients of its outputs. Kept, they give each example's squared norm,
``sum_ts (r_t r_s)(c_t c_s)``, and the clipped sum. :mod:`crtlib.training.layers` has a rule for
each kind of layer, :mod:`crtlib.training.recording` collects what they give, and
:mod:`crtlib.training.clipping` is the way in.

>>> rows, columns = torch.ones(1, 3, 2), torch.ones(1, 3, 5)  # (batch, time, ·)
>>> entry = Outer(nn.Parameter(torch.zeros(2, 5)), rows, columns)
>>> float(entry.square())  # ten numbers, each a sum of three ones
90.0
"""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor, nn

from crtlib.training.devices import near

DIRECT_COST = 80
"""Storing, squaring and summing one number of a per-example gradient takes about as long as this
many multiply-adds: when the Gram matrices need more than that, the product is formed instead."""
DIRECT_COST_OF_A_GPU = {torch.float32: 120, torch.bfloat16: 700, torch.float16: 700}
"""The same by the type of the factors, an ESTIMATE that nobody has measured yet, from the printed
figures of an H100: twelve bytes are moved for each number (written, read for the norm, read for the
sum) at 3.3 TB/s, and 67 (float32, never TF32 here) or 400 (bfloat16) TFLOP/s go by meanwhile."""


class Kept(threading.local):
    """Memory for what one step needs until its end, the same from step to step on a CPU.

    The operating system hands out large memory in fresh pages, at about the cost of the work that
    fills them; a GPU's allocator has its own store. What was taken is overwritten after ``reset``.
    """

    def __init__(self) -> None:
        self.buffer, self.used, self.wanted = torch.empty(0), 0, 0

    def reset(self) -> None:
        """Begin a step; the last one's wishes decide the size."""
        if self.wanted > len(self.buffer):
            self.buffer = torch.empty(0)  # free the old one first
            self.buffer = torch.empty(self.wanted)
        self.used = self.wanted = 0

    def release(self) -> None:
        """Give the memory back."""
        self.buffer, self.used, self.wanted = torch.empty(0), 0, 0

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialised tensor of this shape, with the type and the device of ``like``."""
        size = math.prod(shape)
        if like.device.type != "cpu" or like.dtype != self.buffer.dtype:
            return like.new_empty(shape)
        self.wanted += size
        if self.used + size > len(self.buffer):
            return like.new_empty(shape)
        self.used += size
        return self.buffer[self.used - size : self.used].view(shape)


KEPT = Kept()


class UnknownLayer(ValueError):
    """The engine cannot take per-example gradients of some trainable parameter."""


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that learn, by name; a shared one once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def clip_factors(norms: Tensor, clip_norm: float) -> Tensor:
    """min(1, clip_norm / norm): 1 for a gradient of zero, 0 where the norm is not finite."""
    factors = (clip_norm / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp_max(1)
    return factors.nan_to_num(0, posinf=math.inf)  # of an infinite norm it is 0 already


def gradient(parameter: nn.Parameter) -> Tensor:
    """The ``.grad`` that sums are added to: :mod:`crtlib.training.examples` has made it."""
    assert parameter.grad is not None
    return parameter.grad


# --------------------------------------------------------------------------- entries
ALL = slice(None)


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    """Batched product with sums in float32 at least, also of bfloat16 factors."""
    if a.dtype in (torch.bfloat16, torch.float16):
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a, b)


def summable(x: Tensor) -> Tensor:
    """``x`` in a type whose products :func:`_matmul` sums in float32: a CPU rounds the sums of
    bfloat16 factors, so that a norm would be off by more than the clipping norm forgives."""
    return x if x.is_cuda else x.to(wide(x))


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of each example, (B, ...) x (B, ...) -> (B,)."""
    return (a * b).flatten(1).sum(1)


class Outer:
    """A matrix's gradient of each example as a sum over positions of outer products.

    ``rows`` (b, T, R) and ``columns`` (b, T, C) for a parameter (R, C). ``bias``: one of shape (R,)
    that ``rows`` give a gradient to, and its column (b, T, 1). ``span``: the examples that it holds
    (all).
    """

    def __init__(
        self,
        parameter: nn.Parameter,
        rows: Tensor,
        columns: Tensor,
        *,
        bias: tuple[nn.Parameter, Tensor] | None = None,
        span: slice = ALL,
    ) -> None:
        self.parameter, self.bias, self.span = parameter, None, span
        self.rows = summable(rows)
        self.columns = columns.to(self.rows.dtype)
        if bias is not None:
            self.bias, self.column = bias[0], bias[1].to(self.rows.dtype)

    def square(self) -> Tensor:
        """Squared norm of each example's gradient, with the bias: the ghost norm."""
        gram = _matmul(self.columns, self.columns.mT)
        if self.bias is not None:
            gram += _matmul(self.column, self.column.mT)
        return _dot(_matmul(self.rows, self.rows.mT), gram)

    def leave_out(self, examples: Tensor) -> None:
        """Make the gradients of these examples zero, (B,) bool."""
        here = examples[self.span, None, None]
        self.rows, self.columns = self.rows.masked_fill(here, 0), self.columns.masked_fill(here, 0)

    def add(self, factors: Tensor | None) -> None:
        """Add the sum over examples, each times its factor, to ``.grad``."""
        if factors is not None:
            factors = factors[self.span, None, None]
        self._add(gradient(self.parameter), self.columns, factors)
        if self.bias is not None:
            self._add(gradient(self.bias)[:, None], self.column, factors)

    def _add(self, grad: Tensor, columns: Tensor, factors: Tensor | None) -> None:
        rows = self.rows
        pairs = [(rows, columns)]
        if factors is not None:
            if rows.shape[2] < columns.shape[2]:  # scale the narrower
                pairs = [(part, columns) for part in _parts(rows * factors, rows.dtype)]
            else:
                pairs = [(rows, part) for part in _parts(columns * factors, rows.dtype)]
        for rows, columns in pairs:
            rows, columns = rows.flatten(0, 1).mT, columns.flatten(0, 1)
            if rows.dtype == grad.dtype:
                grad.addmm_(rows, columns)
            else:
                grad.add_(_matmul(rows[None], columns[None])[0])


def _parts(x: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """``x`` as a sum of tensors of ``dtype``: rounded factors would let a sum exceed the bound."""
    coarse = x.to(dtype)
    return [coarse] if dtype == x.dtype else [coarse, (x - coarse).to(dtype)]


class Lookup:
    """An embedding's gradient: ``ids`` (B, T) say which rows get ``grads`` (B, T, d)."""

    span = ALL

    def __init__(self, parameter: nn.Parameter, ids: Tensor, grads: Tensor) -> None:
        self.parameter, self.ids, self.grads = parameter, ids, grads.to(wide(grads))

    def square(self) -> Tensor:
        """As of :class:`Outer`: a token that is repeated adds to one row."""
        same = self.ids[:, :, None] == self.ids[:, None, :]
        return _dot(_matmul(self.grads, self.grads.mT), same)

    def leave_out(self, examples: Tensor) -> None:
        """As of :class:`Outer`."""
        self.grads = self.grads.masked_fill(examples[:, None, None], 0)

    def add(self, factors: Tensor | None) -> None:
        """As of :class:`Outer`."""
        scaled = self.grads
        if factors is not None:
            scaled = scaled * factors[:, None, None].to(scaled.dtype)
        grad, ids, scaled = gradient(self.parameter), self.ids.flatten(), scaled.flatten(0, 1)
        if not near(grad):  # there index_add_ sums in any order
            table = torch.ops.aten.embedding_dense_backward(scaled, ids, len(grad), -1, False)
            grad.add_(table)
        else:
            grad.index_add_(0, ids, scaled.to(grad.dtype))


class Whole:
    """The gradient of each example itself, (B, *shape)."""

    def __init__(self, parameter: nn.Parameter, grads: Tensor, *, span: slice = ALL) -> None:
        self.parameter, self.span, self.grads = parameter, span, grads.to(wide(grads))

    def square(self) -> Tensor:
        """As of :class:`Outer`."""
        norms: Tensor = torch.linalg.vector_norm(self.grads.flatten(1), dim=1)
        return norms.square()

    def leave_out(self, examples: Tensor) -> None:
        """As of :class:`Outer`."""
        here = examples[self.span].view(-1, *[1] * (self.grads.ndim - 1))
        self.grads = self.grads.masked_fill(here, 0)

    def add(self, factors: Tensor | None) -> None:
        """As of :class:`Outer`."""
        grads = self.grads.flatten(1)
        factors = factors[self.span] if factors is not None else grads.new_ones(len(grads))
        gradient(self.parameter).view(-1).addmv_(grads.T, factors.to(grads.dtype))


Entry = Outer | Lookup | Whole


def wide(x: Tensor) -> torch.dtype:
    """The type of norms and sums: float32 at least."""
    return torch.promote_types(x.dtype, torch.float32)


def cross(a: Entry, b: Entry) -> Tensor:
    """Inner products of two entries of one parameter, for the examples that ``b`` holds.

    A parameter that is used twice (an embedding tied to the head) has the sum of its entries as
    gradient: its squared norm needs twice this, or a clipped example can exceed the bound.
    """
    if isinstance(a, Outer) and isinstance(b, Lookup):
        a, b = b, a
    if isinstance(a, Lookup) and isinstance(b, Outer):
        ids, grads = a.ids[b.span], a.grads[b.span]  # (b, T), (b, T, d)
        picked = b.rows.gather(2, ids[:, None, :].expand(-1, b.rows.shape[1], -1))
        # In the wider of both types: grads rounded would not be those that are added.
        return _dot(_matmul(b.columns.to(grads.dtype), grads.mT), picked)
    if isinstance(a, Lookup) and isinstance(b, Lookup):
        same = a.ids[:, :, None] == b.ids[:, None, :]
        return _dot(_matmul(a.grads, b.grads.mT), same)
    if isinstance(a, Whole) and isinstance(b, Whole):
        return _dot(a.grads, b.grads)
    plain = a.span == b.span and getattr(a, "bias", None) is getattr(b, "bias", None) is None
    if isinstance(a, Outer) and isinstance(b, Outer) and plain:
        return _dot(_matmul(a.rows, b.rows.mT), _matmul(a.columns, b.columns.mT))
    raise UnknownLayer(f"parameter of shape {tuple(a.parameter.shape)}: shared in an unknown way")


def outer(parameter: nn.Parameter, rows: Tensor, columns: Tensor) -> Entry:
    """Ghost norm or direct product, whichever is cheaper for this shape."""
    time, size = rows.shape[1], rows.shape[2] + columns.shape[2]
    cost = DIRECT_COST if near(rows) else DIRECT_COST_OF_A_GPU.get(rows.dtype, DIRECT_COST)
    if time * time * size <= cost * parameter.numel():
        return Outer(parameter, rows, columns)
    rows = summable(rows).mT
    columns = columns.to(rows.dtype)
    if wide(rows) != rows.dtype:
        return Whole(parameter, _matmul(rows, columns))
    out = KEPT.take((len(rows), *parameter.shape), rows)
    return Whole(parameter, torch.bmm(rows, columns, out=out))
