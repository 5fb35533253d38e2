"""The book: what one backward pass leaves behind, and per-example norms and sums made from it.

A weight's gradient is a sum over positions of outer products, ``sum_t r_t c_t'``, of the inputs of
its layer and the gradients of its outputs. Kept, they give each example's squared norm,
``sum_ts (r_t r_s)(c_t c_s)``, and the clipped sum. :mod:`crtlib.training.clipping` is the way in.

>>> rows, columns = torch.ones(1, 3, 2), torch.ones(1, 3, 5)  # (batch, time, ·)
>>> entry = Outer(nn.Parameter(torch.zeros(2, 5)), rows, columns)
>>> float(entry.square())  # ten numbers, each a sum of three ones
90.0
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crtlib.models import interface
from crtlib.models.recurrent import Recurrent

DIRECT_COST = 80
"""Storing, squaring and summing one number of a per-example gradient takes about as long as this
many multiply-adds: when the Gram matrices need more than that, the product is formed instead."""


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
    return torch.where(norms.isfinite(), factors, 0)


# --------------------------------------------------------------------------- entries
def _matmul(a: Tensor, b: Tensor) -> Tensor:
    """Batched product with sums in float32 at least, also of bfloat16 factors."""
    if a.dtype in (torch.bfloat16, torch.float16):
        if a.is_cuda:
            return torch.bmm(a, b, out_dtype=torch.float32)
        a, b = a.float(), b.float()
    return torch.bmm(a, b)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of each example, (B, ...) x (B, ...) -> (B,)."""
    return (a * b).flatten(1).sum(1)


class Outer:
    """A matrix's gradient of each example as a sum over positions of outer products.

    ``rows`` (b, T, R) and ``columns`` (b, T, C) for a parameter (R, C). If ``bias`` (R,) is given,
    column C belongs to it, and zeros may follow. ``span``: the examples that it holds (all).
    """

    def __init__(self, parameter, rows, columns, *, bias=None, span=slice(None)) -> None:
        self.parameter, self.bias, self.span = parameter, bias, span
        self.rows, self.columns = rows, columns.to(rows.dtype)

    def square(self) -> Tensor:
        """Squared norm of each example's gradient, with the bias: the ghost norm."""
        return _dot(_matmul(self.rows, self.rows.mT), _matmul(self.columns, self.columns.mT))

    def matrix_columns(self) -> Tensor:
        return self.columns[..., : self.parameter.shape[1]]

    def leave_out(self, examples: Tensor) -> None:
        """Make the gradients of these examples zero, (B,) bool."""
        here = examples[self.span, None, None]
        self.rows, self.columns = self.rows.masked_fill(here, 0), self.columns.masked_fill(here, 0)

    def add(self, factors: Tensor | None) -> None:
        """Add the sum over examples, each times its factor, to ``.grad``."""
        rows, columns = self.rows, self.columns
        pairs = [(rows, columns)]
        if factors is not None:
            factors = factors[self.span, None, None]
            if rows.shape[2] < columns.shape[2]:  # scale the narrower
                pairs = [(part, columns) for part in _parts(rows * factors, rows.dtype)]
            else:
                pairs = [(rows, part) for part in _parts(columns * factors, rows.dtype)]
        grad = self.parameter.grad
        for rows, columns in pairs:
            if rows.transpose(0, 1).is_contiguous():  # of a recurrence: time first
                rows, columns = rows.transpose(0, 1), columns.transpose(0, 1)
            rows, columns = rows.flatten(0, 1).mT, columns.flatten(0, 1)
            if self.bias is None and rows.dtype == grad.dtype:
                grad.addmm_(rows, columns)
                continue
            product = _matmul(rows[None], columns[None])[0]
            if self.bias is not None:
                self.bias.grad.add_(product[:, grad.shape[1]])
            grad.add_(product[:, : grad.shape[1]])


def _parts(x: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """``x`` as a sum of tensors of ``dtype``: rounded factors would let a sum exceed the bound."""
    coarse = x.to(dtype)
    return [coarse] if dtype == x.dtype else [coarse, (x - coarse).to(dtype)]


class Lookup:
    """An embedding's gradient: ``ids`` (B, T) say which rows get ``grads`` (B, T, d)."""

    span = slice(None)

    def __init__(self, parameter, ids, grads) -> None:
        self.parameter, self.ids, self.grads = parameter, ids, grads.to(wide(grads))

    def square(self) -> Tensor:
        same = self.ids[:, :, None] == self.ids[:, None, :]
        return _dot(_matmul(self.grads, self.grads.mT), same)

    def leave_out(self, examples: Tensor) -> None:
        """As of :class:`Outer`."""
        self.grads = self.grads.masked_fill(examples[:, None, None], 0)

    def add(self, factors: Tensor) -> None:
        scaled = self.grads * factors[:, None, None].to(self.grads.dtype)
        grad, ids, scaled = self.parameter.grad, self.ids.flatten(), scaled.flatten(0, 1)
        if grad.is_cuda:  # there index_add_ sums in any order
            table = torch.ops.aten.embedding_dense_backward(scaled, ids, len(grad), -1, False)
            grad.add_(table)
        else:
            grad.index_add_(0, ids, scaled.to(grad.dtype))


class Whole:
    """The gradient of each example itself, (B, *shape)."""

    def __init__(self, parameter, grads, *, span=slice(None)) -> None:
        self.parameter, self.span, self.grads = parameter, span, grads.to(wide(grads))

    def square(self) -> Tensor:
        return torch.linalg.vector_norm(self.grads.flatten(1), dim=1).square()

    def leave_out(self, examples: Tensor) -> None:
        """As of :class:`Outer`."""
        here = examples[self.span].view(-1, *[1] * (self.grads.ndim - 1))
        self.grads = self.grads.masked_fill(here, 0)

    def add(self, factors: Tensor) -> None:
        grads = self.grads.flatten(1)
        factors = factors[self.span] if factors is not None else grads.new_ones(len(grads))
        self.parameter.grad.view(-1).addmv_(grads.T, factors.to(grads.dtype))


Entry = Outer | Lookup | Whole


def wide(x: Tensor) -> torch.dtype:
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
        columns = b.matrix_columns()
        return _dot(_matmul(columns, grads.to(columns.dtype).mT), picked)
    if isinstance(a, Lookup) and isinstance(b, Lookup):
        same = a.ids[:, :, None] == b.ids[:, None, :]
        return _dot(_matmul(a.grads, b.grads.mT), same)
    if isinstance(a, Whole) and isinstance(b, Whole):
        return _dot(a.grads, b.grads)
    plain = a.span == b.span and getattr(a, "bias", None) is getattr(b, "bias", None) is None
    if isinstance(a, Outer) and isinstance(b, Outer) and plain:
        return _dot(_matmul(a.rows, b.rows.mT), _matmul(a.columns, b.columns.mT))
    raise UnknownLayer(f"parameter of shape {tuple(a.parameter.shape)}: shared in an unknown way")


# --------------------------------------------------------------------------- layers
def _linear(layer, x: Tensor, grad: Tensor) -> Iterator[Entry]:
    x, grad = x.reshape(len(x), -1, x.shape[-1]), grad.reshape(len(grad), -1, grad.shape[-1])
    if layer.bias is not None and layer.bias.requires_grad:
        yield Whole(layer.bias, grad.sum(1, dtype=wide(grad)))
    if layer.weight.requires_grad:
        # transformers' Conv1D keeps its weight transposed
        flip = layer.weight.shape[0] != grad.shape[2] or type(layer).__name__ == "Conv1D"
        rows, columns = (x.to(grad.dtype), grad) if flip else (grad, x)
        yield _outer(layer.weight, rows, columns)


def _outer(parameter: nn.Parameter, rows: Tensor, columns: Tensor) -> Entry:
    """Ghost norm or direct product, whichever is cheaper for this shape."""
    time, size = rows.shape[1], rows.shape[2] + columns.shape[2]
    if time * time * size <= DIRECT_COST * parameter.numel():
        return Outer(parameter, rows, columns)
    rows, columns = rows.mT, columns.to(rows.dtype)
    if wide(rows) != rows.dtype:
        return Whole(parameter, _matmul(rows, columns))
    out = KEPT.take((len(rows), *parameter.shape), rows)
    return Whole(parameter, torch.bmm(rows, columns, out=out))


def _embedding(layer: nn.Embedding, ids: Tensor, grad: Tensor) -> Iterator[Entry]:
    grad = grad.reshape(len(grad), -1, grad.shape[-1])
    scale = getattr(layer, "embed_scale", None)  # Gemma's: the output is a multiple of the row
    if scale is not None:
        grad = grad * scale.to(grad.dtype)
    ids = ids.reshape(len(ids), -1)
    if layer.padding_idx is not None:
        grad = grad * (ids != layer.padding_idx)[..., None]
    yield Lookup(layer.weight, ids, grad)


def _layer_norm(layer: nn.LayerNorm, x: Tensor, grad: Tensor) -> Iterator[Entry]:
    if layer.bias is not None and layer.bias.requires_grad:
        yield Whole(layer.bias, _positions(grad, layer.bias))
    if layer.weight is not None and layer.weight.requires_grad:
        normal = F.layer_norm(x.to(wide(x)), layer.normalized_shape, eps=layer.eps)
        yield Whole(layer.weight, _positions(grad * normal, layer.weight))


def _rms_norm(layer, x: Tensor, grad: Tensor) -> Iterator[Entry]:
    eps = getattr(layer, "eps", None) or getattr(layer, "variance_epsilon", None)
    normal = F.rms_norm(x.to(wide(x)), layer.weight.shape, eps=eps)
    yield Whole(layer.weight, _positions(grad * normal, layer.weight))


def _positions(grad: Tensor, parameter: nn.Parameter) -> Tensor:
    """Sum over all positions: (B, ..., *shape) -> (B, *shape)."""
    return grad.reshape(len(grad), -1, *parameter.shape).sum(1, dtype=wide(grad))


# By exact name: a subclass may compute something else.
LAYERS: dict[str, Callable[..., Iterator[Entry]]] = {
    "torch.nn.modules.linear.Linear": _linear,
    "transformers.pytorch_utils.Conv1D": _linear,
    "torch.nn.modules.sparse.Embedding": _embedding,
    "transformers.models.gemma2.modeling_gemma2.Gemma2TextScaledWordEmbedding": _embedding,
    "torch.nn.modules.normalization.LayerNorm": _layer_norm,
    "torch.nn.modules.normalization.RMSNorm": _rms_norm,
    "transformers.models.llama.modeling_llama.LlamaRMSNorm": _rms_norm,
    "transformers.models.gemma2.modeling_gemma2.Gemma2RMSNorm": _rms_norm,
}


def _name(layer: nn.Module) -> str:
    return f"{type(layer).__module__}.{type(layer).__qualname__}"


# --------------------------------------------------------------------------- the book
class Book:
    """Entries of each parameter, filled during one forward and one backward pass."""

    def __init__(self, model: nn.Module, batch: int) -> None:
        self.batch = batch
        self.parameters = trainable(model)
        self.entries: dict[nn.Parameter, list[Entry]] = {p: [] for p in self.parameters.values()}
        self.squares: list[tuple[slice, Tensor]] = []

    def add(self, entry: Entry) -> None:
        """Enter it, and count its norm and its cross terms with earlier entries."""
        earlier = self.entries[entry.parameter]
        self.squares.append((entry.span, entry.square()))
        for other in earlier:
            a, b = (entry, other) if isinstance(other, Outer) else (other, entry)
            if a.span == b.span or slice(None) in (a.span, b.span):
                self.squares.append((b.span, 2 * cross(a, b)))
        earlier.append(entry)

    def norms(self) -> Tensor:
        """Norm of each example's whole gradient, (B,), in float32 at least."""
        first = self.squares[0][1]
        total = torch.zeros(self.batch, dtype=torch.float64, device=first.device)
        for span, square in self.squares:
            total[span] += square
        return total.clamp_min(0).sqrt().to(first.dtype)

    def add_clipped(self, factors: Tensor) -> None:
        """Add the sum over examples, each times its factor; where that is 0, nothing at all."""
        none = factors == 0
        if none.any():  # a gradient that is not finite: 0 times infinity would be no number
            for entries in self.entries.values():
                for entry in entries:
                    entry.leave_out(none)
        for entries in self.entries.values():
            for entry in entries:
                entry.add(factors)

    @contextlib.contextmanager
    def recording(self, model: nn.Module) -> Iterator[None]:
        """While active, layers work with frozen weights and register for their output gradient.

        Frozen, so that autograd does not spend a third of the backward pass on weight gradients
        that would mix the examples.
        """
        handles = []
        owners = [
            (name, m) for name, m in model.named_modules()
            if any(p.requires_grad for p in m.parameters(recurse=False))
        ]  # fmt: skip
        head = {id(interface.head(model).weight), id(interface.head(model).bias)}
        try:
            for name, module in owners:
                own = [p for p in module.parameters(recurse=False) if p.requires_grad]
                if isinstance(module, Recurrent):
                    module.sink = self._recurrent_sink(module)
                elif _name(module) in LAYERS:
                    before, after = self._hooks(name, module, own)
                    handles.append(module.register_forward_pre_hook(before))
                    handles.append(
                        module.register_forward_hook(after, with_kwargs=True, always_call=True)
                    )
                elif not all(id(p) in head for p in own):
                    raise UnknownLayer(f"parameter {name!r}: no rule for {_name(module)}")
            yield
        finally:
            for handle in handles:
                handle.remove()
            for _, module in owners:
                if isinstance(module, Recurrent):
                    module.sink = None

    def _hooks(self, name: str, module: nn.Module, own: list[nn.Parameter]):
        rule = LAYERS[_name(module)]

        def before(_module, _args) -> None:
            for p in own:
                p.requires_grad_(False)

        def after(_module, args, kwargs, out) -> None:
            for p in own:
                p.requires_grad_(True)
            if out is None:  # the layer raised
                return
            x = (*args, *kwargs.values())[0].detach()
            if len(x) != self.batch:
                raise UnknownLayer(f"parameter {name!r}: its input has {len(x)} rows, not one "
                                   "for each example")  # fmt: skip
            if not out.requires_grad:
                out.requires_grad_()
            out.register_hook(lambda grad: self._record(rule, module, x, grad))

        return before, after

    def _record(self, rule, module: nn.Module, x: Tensor, grad: Tensor) -> None:
        for entry in rule(module, x, grad.detach()):
            self.add(entry)

    def _recurrent_sink(self, module: Recurrent):
        weights = module.weights()

        def sink(pairs: list[tuple[Tensor, Tensor]]) -> None:
            for (x, grad), weight, bias in zip(pairs, weights[::2], weights[1::2], strict=True):
                if weight.requires_grad:
                    self.add(_outer(weight, grad, x))
                if bias.requires_grad:
                    self.add(Whole(bias, grad.sum(1)))

        return sink

    def backward(self, h: Tensor, d_h: Tensor) -> None:
        """Run it; refuse if a parameter was used outside of the layer that owns it."""
        kept = {name: p.grad for name, p in self.parameters.items()}
        for p in self.parameters.values():
            p.grad = None
        try:
            h.backward(d_h)
            for name, p in self.parameters.items():
                if p.grad is not None:
                    raise UnknownLayer(f"parameter {name!r}: is used outside of its own layer")
        finally:
            for name, p in self.parameters.items():
                p.grad = kept[name]
