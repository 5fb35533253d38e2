"""The book: what one backward pass leaves behind, and per-example norms and sums made from it.

A weight's gradient is a sum over positions of outer products, ``sum_t r_t c_t'``, of the inputs of
its layer and the gradients of its outputs. Kept, they give each example's squared norm,
``sum_ts (r_t r_s)(c_t c_s)``, and the clipped sum. There is a rule for each kind of layer, hooks
collect what they give, and :mod:`crtlib.training.clipping` is the way in.

>>> rows, columns = torch.ones(1, 3, 2), torch.ones(1, 3, 5)  # (batch, time, ·)
>>> entry = Outer(nn.Parameter(torch.zeros(2, 5)), rows, columns)
>>> float(entry.square())  # ten numbers, each a sum of three ones
90.0

A rule for each kind of layer: its input and the gradient of its output become entries.

>>> import torch
>>> layer, x, grad = nn.Linear(3, 2), torch.ones(1, 4, 3), torch.ones(1, 4, 2)
>>> entries = RULES[name_of(layer)](layer, x, grad)
>>> [(type(entry).__name__, round(float(entry.square()), 4)) for entry in entries]
[('Whole', 32.0), ('Outer', 96.0)]

Hooks that fill the book during one forward and one backward pass of a model.

>>> from crtlib.models.networks import build
>>> from crtlib.models.networks import ModelSpec
>>> model = build(ModelSpec("lstm", vocab_size=9, embedding=4, hidden=5), seed=0)
>>> book = Book(model, batch=1)
>>> with book.recording(model):
...     h = networks.hidden(model, torch.tensor([[1, 2, 3]]))
>>> book.backward(h, torch.ones_like(h))
>>> [len(book.entries[p]) for p in model.parameters()]  # the head is not part of this pass
[1, 1, 1, 0, 0]
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crtlib.models import networks
from crtlib.models.networks import Recurrent
from crtlib.training.devices import exact, near

DIRECT_COST = 80
"""Storing, squaring and summing one number of a per-example gradient takes about as long as this
many multiply-adds: when the Gram matrices need more than that, the product is formed instead."""
DIRECT_COST_OF_A_GPU = {torch.float32: 120, torch.bfloat16: 700, torch.float16: 700}
"""The same by the type of the factors, an ESTIMATE that nobody has measured yet, from the printed
figures of an H100: twelve bytes are moved for each number (written, read for the norm, read for the
sum) at 3.3 TB/s, and 67 (float32, never TF32 here) or 400 (bfloat16) TFLOP/s go by meanwhile."""
STACKED = 2**23
"""Numbers of a layer's input up to which a GPU takes no longer to work than to be asked: layers of
one shape then enter the book together."""


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


def zeroed(parameters: Iterable[nn.Parameter]) -> None:
    """Make zeros of the ``.grad`` that are missing: of each type in one piece of memory."""
    missing: dict[torch.dtype, list[nn.Parameter]] = {}
    for p in parameters:
        if p.grad is None:
            missing.setdefault(p.dtype, []).append(p)
    for these in missing.values():
        sizes = [p.numel() for p in these]
        for p, zeros in zip(these, these[0].new_zeros(sum(sizes)).split(sizes), strict=True):
            p.grad = zeros.view(p.shape)


def gradient(parameter: nn.Parameter) -> Tensor:
    """The ``.grad`` that sums are added to: :mod:`crtlib.training.clipping` has made it."""
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

    def _scaled(self, columns: Tensor, factors: Tensor | None) -> list[tuple[Tensor, Tensor]]:
        """Rows and columns, one of them times the factors (b, 1, 1), in as many pairs as that takes
        to be exact."""
        rows = self.rows
        if factors is None:
            return [(rows, columns)]
        if rows.shape[2] < columns.shape[2]:  # scale the narrower
            return [(part, columns) for part in _parts(rows * factors, rows.dtype)]
        return [(rows, part) for part in _parts(columns * factors, rows.dtype)]

    def _add(self, grad: Tensor, columns: Tensor, factors: Tensor | None) -> None:
        for pair in self._scaled(columns, factors):
            left, right = pair[0].flatten(0, 1).mT, pair[1].flatten(0, 1)
            if left.dtype == grad.dtype:
                grad.addmm_(left, right)
            else:
                grad.add_(_matmul(left[None], right[None])[0])

    def sums(self, layers: int, factors: Tensor) -> Iterator[Tensor]:
        """(layers, R, C), in parts, of the examples of so many layers, one after the other."""
        for pair in self._scaled(self.columns, factors[:, None, None]):
            rows, columns = (x.reshape(layers, -1, x.shape[2]) for x in pair)
            yield _matmul(rows.mT, columns)


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

    def sums(self, layers: int, factors: Tensor) -> Iterator[Tensor]:
        """As of :class:`Outer`: (layers, *shape)."""
        factors = factors.view(layers, 1, -1).to(self.grads.dtype)
        sums = torch.bmm(factors, self.grads.view(layers, factors.shape[2], -1))
        yield sums.view(layers, *self.grads.shape[1:])


class Stack:
    """An entry of several parameters of one shape, which share it with no other entry: it holds the
    examples of one after those of the other, (k * B, ...)."""

    span = ALL

    def __init__(self, parameters: list[nn.Parameter], entry: Any) -> None:
        self.parameters, self.entry, self.parameter = parameters, entry, parameters[0]

    def square(self) -> Tensor:
        """As of :class:`Outer`, the sum over all parameters."""
        squares: Tensor = self.entry.square()
        return squares.view(len(self.parameters), -1).sum(0)

    def leave_out(self, examples: Tensor) -> None:
        """As of :class:`Outer`, with the examples of every parameter, (k * B,)."""
        self.entry.leave_out(examples)

    def add(self, factors: Tensor) -> None:
        """As of :meth:`leave_out`."""
        grads = [gradient(p) for p in self.parameters]
        for sums in self.entry.sums(len(grads), factors):
            torch._foreach_add_(grads, [*sums])


Entry = Outer | Lookup | Whole


def wide(x: Tensor) -> torch.dtype:
    """The type of norms and sums: float32 at least."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def cross(a: Entry, b: Entry) -> Tensor:
    """Inner products of two entries of one parameter, for the examples that ``b`` holds.

    A parameter that is used twice (an embedding tied to the head) has the sum of its entries as
    gradient: its squared norm needs twice this, or a clipped example can exceed the bound.
    """
    if isinstance(b, Lookup):
        a, b = b, a
    if isinstance(a, Lookup) and not isinstance(b, Lookup):
        ids, grads = a.ids[b.span], a.grads[b.span]  # (b, T), (b, T, d)
        if isinstance(b, Whole):
            return _dot(b.grads.gather(1, ids[..., None].expand_as(grads)), grads)
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


def ghost_until(weight: Tensor, like: Tensor) -> float:
    """Positions up to which a matrix's ghost norm is cheaper than the product of each example, of
    factors like these."""
    cost = DIRECT_COST if near(like) else DIRECT_COST_OF_A_GPU.get(like.dtype, DIRECT_COST)
    return math.sqrt(cost * weight.numel() / sum(weight.shape))


def outer(parameter: nn.Parameter, rows: Tensor, columns: Tensor, span: slice = ALL) -> Entry:
    """Ghost norm or direct product, whichever is cheaper for this shape."""
    if rows.shape[1] <= ghost_until(parameter, rows):
        return Outer(parameter, rows, columns, span=span)
    rows = summable(rows).mT
    columns = columns.to(rows.dtype)
    if wide(rows) != rows.dtype:
        return Whole(parameter, _matmul(rows, columns), span=span)
    out = KEPT.take((len(rows), *parameter.shape), rows)
    return Whole(parameter, torch.bmm(rows, columns, out=out), span=span)


# The layers belong to other libraries, some without types: a rule reads what its kind has.
Rule = Callable[[Any, Tensor, Tensor], Iterator[Entry]]


def _linear(layer: Any, x: Tensor, grad: Tensor) -> Iterator[Entry]:
    x, grad = x.reshape(len(x), -1, x.shape[-1]), grad.reshape(len(grad), -1, grad.shape[-1])
    if layer.bias is not None and layer.bias.requires_grad:
        yield Whole(layer.bias, grad.sum(1, dtype=wide(grad)))
    if layer.weight.requires_grad:
        # transformers' Conv1D keeps its weight transposed
        flip = layer.weight.shape[0] != grad.shape[2] or type(layer).__name__ == "Conv1D"
        rows, columns = (x.to(grad.dtype), grad) if flip else (grad, x)
        yield outer(layer.weight, rows, columns)


def _embedding(layer: Any, ids: Tensor, grad: Tensor) -> Iterator[Entry]:
    grad = grad.reshape(len(grad), -1, grad.shape[-1])
    scale = getattr(layer, "embed_scale", None)  # Gemma's: the output is a multiple of the row
    if scale is not None:
        grad = grad * scale.to(grad.dtype)
    ids = ids.reshape(len(ids), -1)
    if layer.padding_idx is not None:
        grad = grad * (ids != layer.padding_idx)[..., None]
    yield Lookup(layer.weight, ids, grad)


def _layer_norm(layer: Any, x: Tensor, grad: Tensor) -> Iterator[Entry]:
    if layer.bias is not None and layer.bias.requires_grad:
        yield Whole(layer.bias, _positions(grad, layer.bias))
    if layer.weight is not None and layer.weight.requires_grad:
        normal = F.layer_norm(x.to(wide(x)), layer.normalized_shape, eps=layer.eps)
        yield Whole(layer.weight, _positions(grad * normal, layer.weight))


def _rms_norm(layer: Any, x: Tensor, grad: Tensor) -> Iterator[Entry]:
    # Gemma multiplies by 1 + weight, the others by the weight: the gradient is the same.
    normal = F.rms_norm(x.to(wide(x)), layer.weight.shape, eps=_epsilon(layer))
    yield Whole(layer.weight, _positions(grad * normal, layer.weight))


def _epsilon(layer: Any) -> float | None:
    return getattr(layer, "eps", None) or getattr(layer, "variance_epsilon", None)


def _positions(grad: Tensor, parameter: nn.Parameter) -> Tensor:
    """Sum over all positions: (B, ..., *shape) -> (B, *shape)."""
    return grad.reshape(len(grad), -1, *parameter.shape).sum(1, dtype=wide(grad))


# By exact name: a subclass may compute something else.
MODELS = "transformers.models."
RULES: dict[str, Rule] = {
    "torch.nn.modules.linear.Linear": _linear,
    "transformers.pytorch_utils.Conv1D": _linear,
    "torch.nn.modules.sparse.Embedding": _embedding,
    MODELS + "gemma2.modeling_gemma2.Gemma2TextScaledWordEmbedding": _embedding,
    MODELS + "gemma3.modeling_gemma3.Gemma3TextScaledWordEmbedding": _embedding,
    "torch.nn.modules.normalization.LayerNorm": _layer_norm,
    "torch.nn.modules.normalization.RMSNorm": _rms_norm,
    MODELS + "llama.modeling_llama.LlamaRMSNorm": _rms_norm,
    MODELS + "mistral.modeling_mistral.MistralRMSNorm": _rms_norm,
    MODELS + "phi3.modeling_phi3.Phi3RMSNorm": _rms_norm,
    MODELS + "qwen2.modeling_qwen2.Qwen2RMSNorm": _rms_norm,
    MODELS + "qwen3.modeling_qwen3.Qwen3RMSNorm": _rms_norm,
    MODELS + "gemma2.modeling_gemma2.Gemma2RMSNorm": _rms_norm,
    MODELS + "gemma3.modeling_gemma3.Gemma3RMSNorm": _rms_norm,
}


def name_of(layer: nn.Module) -> str:
    """The full name of its class."""
    return f"{type(layer).__module__}.{type(layer).__qualname__}"


# Of layers that drop out by a function, and not by a layer of its own.
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout", "hidden_dropout", "layerdrop")


def refuse_unfit(model: nn.Module) -> None:
    """Raise ValueError, by name, for what no clipping makes right.

    A layer with statistics of its batch mixes the examples, and keeps what no noise was added to.
    Dropout is refused while it is active: its randomness is no stream of the run, so that no run
    could go on from its checkpoint, and no second engine could check the first.
    """
    for name, module in model.named_modules():
        if not module.training:
            continue
        instance = isinstance(module, nn.modules.instancenorm._InstanceNorm)
        if isinstance(module, nn.modules.batchnorm._NormBase) and (
            module.track_running_stats or not instance
        ):
            raise ValueError(
                f"model: layer {name!r} is a {type(module).__name__}, which mixes the examples of "
                "a batch: must be another norm"
            )
        rates = [vars(module).get(key) for key in DROPOUTS]
        if isinstance(module, nn.modules.dropout._DropoutNd):
            rates.append(module.p)
        if any(isinstance(rate, float) and rate > 0 for rate in rates):
            raise ValueError(f"model: layer {name!r} drops out: must be built with dropout 0")


class Book:
    """Entries of each parameter, filled during one forward and one backward pass.

    ``again``: what the layers compute now was computed before, and forgotten to save memory
    (gradient checkpointing): it has to come out the same, and is not entered twice.
    """

    def __init__(self, model: nn.Module, batch: int) -> None:
        self.batch = batch
        self.parameters = trainable(model)
        self.entries: dict[nn.Parameter, list[Any]] = {p: [] for p in self.parameters.values()}
        self.squares: list[tuple[slice, Tensor]] = []
        self.again = False
        head = networks.head(model)
        self.uses = Counter(p for p in (head.weight, head.bias) if p is not None)
        self.waiting: dict[Any, list[tuple[nn.Module, Tensor, Tensor]]] = {}
        self.large = False

    def add(self, entry: Any) -> None:
        """Enter it, and count its norm and its cross terms with earlier entries."""
        earlier = self.entries[entry.parameter]
        with exact:
            self.squares.append((entry.span, entry.square()))
            for other in earlier:
                a, b = (other, entry) if other.span == ALL else (entry, other)
                if a.span == b.span or ALL in (a.span, b.span):
                    self.squares.append((b.span, 2 * cross(a, b)))
        earlier.append(entry)

    def norms(self) -> Tensor:
        """Norm of each example's whole gradient, (B,), in float32 at least."""
        first = self.squares[0][1]
        total = torch.zeros(self.batch, dtype=torch.float64, device=first.device)
        for span, square in self.squares:
            total[span].add_(square)  # not +=, which copies the sum onto itself
        return total.clamp_min(0).sqrt().to(first.dtype)

    def add_clipped(self, factors: Tensor) -> None:
        """Add the sum over examples, each times its factor; where that is 0, nothing at all."""
        none = factors == 0
        # To sift small entries takes a GPU less than to be waited for; large ones, more.
        some = not (near(none) or self.large) or bool(none.any())
        of = functools.cache(lambda x, layers: x.repeat(layers) if layers > 1 else x)
        with exact:
            for entry in itertools.chain(*self.entries.values()):
                layers = len(entry.parameters) if isinstance(entry, Stack) else 1
                if some:  # a gradient that is not finite: 0 times infinity would be no number
                    entry.leave_out(of(none, layers))
                entry.add(of(factors, layers))

    @contextlib.contextmanager
    def recording(self, model: nn.Module) -> Iterator[None]:
        """While active, layers work with frozen weights and register for their output gradient;
        it ends after the backward pass, which may compute them :attr:`again`.

        Frozen, so that autograd does not spend a third of the backward pass on weight gradients
        that would mix the examples.
        """
        handles = []
        owners = [
            (name, module, own) for name, module in model.named_modules()
            if (own := [p for p in module.parameters(recurse=False) if p.requires_grad])
        ]  # fmt: skip
        head = {id(networks.head(model).weight), id(networks.head(model).bias)}
        try:
            for name, module, own in owners:
                if isinstance(module, Recurrent):
                    module.sink = self._recurrent_sink(module)
                elif name_of(module) in RULES:
                    before, after = self._hooks(name, module, own)
                    handles.append(module.register_forward_pre_hook(before))
                    handles.append(
                        module.register_forward_hook(after, with_kwargs=True, always_call=True)
                    )
                elif not all(id(p) in head for p in own):
                    raise UnknownLayer(f"parameter {name!r}: no rule for {name_of(module)}")
            yield
        finally:
            for handle in handles:
                handle.remove()
            for _, module, _ in owners:
                if isinstance(module, Recurrent):
                    module.sink = None

    def _hooks(
        self, name: str, module: nn.Module, own: list[nn.Parameter]
    ) -> tuple[Callable[..., None], Callable[..., None]]:
        rule = RULES[name_of(module)]

        def before(_module: nn.Module, _args: tuple[Any, ...]) -> None:
            for p in own:
                p.requires_grad_(False)

        def after(
            _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor | None
        ) -> None:
            for p in own:
                p.requires_grad_(True)
            if out is None:  # the layer raised
                return
            if self.again:
                out.requires_grad_()
                return
            self.uses.update(own)
            x = (*args, *kwargs.values())[0].detach()
            if len(x) != self.batch:
                raise UnknownLayer(f"parameter {name!r}: its input has {len(x)} rows, not one "
                                   "for each example")  # fmt: skip
            if not out.requires_grad:
                out.requires_grad_()
            out.register_hook(lambda grad: self._record(rule, module, x, grad))

        return before, after

    def _record(self, rule: Rule, module: nn.Module, x: Tensor, grad: Tensor) -> None:
        grad, own = grad.detach(), [*module.parameters(recurse=False)]
        small = not near(x) and x.numel() <= STACKED
        self.large |= not small
        if small and rule is not _embedding and all(self.uses[p] == 1 for p in own):
            kind = name_of(module), _epsilon(module), *((p.shape, p.requires_grad) for p in own)
            sizes = x.shape, x.dtype, grad.shape, grad.dtype
            self.waiting.setdefault((rule, kind, sizes), []).append((module, x, grad))
        else:
            self._enter(rule, [(module, x, grad)])

    def _enter(self, rule: Rule, records: list[tuple[nn.Module, Tensor, Tensor]]) -> None:
        """Entries of one layer, or of several of one kind and shape together."""
        layers, *both = zip(*records, strict=True)
        x, grad = (torch.cat(each) if len(each) > 1 else each[0] for each in both)
        for entry in rule(layers[0], x, grad):
            if len(layers) > 1:
                name = next(n for n, p in layers[0].named_parameters() if p is entry.parameter)
                self.add(Stack([getattr(layer, name) for layer in layers], entry))
            else:
                self.add(entry)

    def _recurrent_sink(self, module: Recurrent) -> Callable[[list[tuple[Tensor, Tensor]]], None]:
        weights = module.weights()

        def sink(pairs: list[tuple[Tensor, Tensor]]) -> None:
            for (x, grad), weight, bias in zip(pairs, weights[::2], weights[1::2], strict=True):
                if weight.requires_grad:
                    self.add(outer(weight, grad, x))
                if bias.requires_grad:
                    self.add(Whole(bias, grad.sum(1)))

        return sink

    def backward(self, h: Tensor, d_h: Tensor) -> None:
        """Run it; refuse if a parameter was used outside of the layer that owns it."""
        kept = {name: p.grad for name, p in self.parameters.items()}
        for p in self.parameters.values():
            p.grad = None
        try:
            torch.autograd.backward([h], [d_h])
            while self.waiting:  # what is copied here, autograd no longer keeps
                (rule, *_), records = self.waiting.popitem()
                self._enter(rule, records)
            for name, p in self.parameters.items():
                if p.grad is not None:
                    raise UnknownLayer(f"parameter {name!r}: is used outside of its own layer")
        finally:
            for name, p in self.parameters.items():
                p.grad = kept[name]
