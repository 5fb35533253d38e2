"""Gradient entries: the parts of each example's gradient, with their norms and clipped sums.

A weight's gradient is a sum over positions of outer products, ``sum_t r_t c_t'``, of the inputs of
its layer and the gradients of its outputs. If these are kept, they give each example's squared
norm, ``sum_ts (r_t r_s)(c_t c_s)``, and the clipped sum. There is a rule for each kind of layer,
hooks collect what the rules give, and :mod:`crtlib.training.clipping` is the entry point.

If positions cancel, such a sum is nothing but rounding, of either sign. So it comes with a bound on
its rounding, and :class:`crtlib.training.gradient_recorder.GradientRecorder` charges it.

>>> rows, columns = torch.ones(1, 3, 2), torch.ones(1, 3, 5)  # (batch, time, ·)
>>> entry = OuterProductGrad(nn.Parameter(torch.zeros(2, 5)), rows, columns)
>>> float(entry.square().value)  # ten numbers, each a sum of three ones
90.0
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from crtlib.training.devices import is_on_host

DIRECT_COST_IN_MULTIPLY_ADDS = 80
"""Storing, squaring and summing one number of a per-example gradient takes about as long as this
many multiply-adds. If the Gram matrices need more than that, the product is formed instead."""
GPU_DIRECT_COST_IN_MULTIPLY_ADDS = {torch.float32: 120, torch.bfloat16: 700, torch.float16: 700}
"""The same on a GPU, by the type of the factors. This is an ESTIMATE, not yet measured, from the
data sheet of an H100: twelve bytes are moved for each number (written, read for the norm, read for
the sum) at 3.3 TB/s, against 67 (float32, never TF32 here) or 400 (bfloat16) TFLOP/s."""
MAX_STACKED_INPUT_NUMBERS = 2**23
"""The size of a layer's input up to which a GPU takes no longer for the work than for its launch:
layers of one shape are then recorded together."""

ALL_EXAMPLES = slice(None)
BLOCK_ROUNDINGS = 384
"""Roundings of one number on its way through a matrix product: see :func:`product_roundings`."""
MAX_NUMBERS_AT_ONCE = 2**16
"""The most numbers whose norm is taken in one go: a CPU adds up every eighth square in turn, and
the norm of forty million equal numbers comes out two hundredths short."""
MAX_GRAM_TOKENS = 512
"""The most tokens of a text for which an embedding's norm is taken from their Gram matrix. At 1,024
a CPU takes 20 to 90 times as long for it as for sums by token (a GPU was not measured), and for
50,000 tokens it needs ten gigabytes."""


class ScratchBuffer(threading.local):
    """Memory that one step needs until its end, reused from step to step on a CPU.

    The operating system hands out large blocks in fresh pages, at about the cost of the work that
    fills them; a GPU's allocator has its own store. What was taken is overwritten after ``reset``.
    """

    def __init__(self) -> None:
        self.buffer, self.used, self.wanted = torch.empty(0), 0, 0

    def reset(self) -> None:
        """Begin a step, with as much memory as the last one wanted."""
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


SCRATCH = ScratchBuffer()


class UnknownLayer(ValueError):
    """The engine cannot take per-example gradients of some trainable parameter."""


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters by name; a shared one appears once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def clip_factors(norms: Tensor, clip_norm: float) -> Tensor:
    """min(1, clip_norm / norm): 1 for a gradient of zero, 0 where the norm is not finite."""
    factors = (clip_norm / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp_max(1)
    return factors.nan_to_num(0, posinf=math.inf)  # for an infinite norm it is 0 already


def fill_missing_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Fill each missing ``.grad`` with zeros, in one piece of memory per type."""
    missing: dict[torch.dtype, list[nn.Parameter]] = {}
    for p in parameters:
        if p.grad is None:
            missing.setdefault(p.dtype, []).append(p)
    for same_type in missing.values():
        sizes = [p.numel() for p in same_type]
        pieces = same_type[0].new_zeros(sum(sizes)).split(sizes)
        for p, zeros in zip(same_type, pieces, strict=True):
            p.grad = zeros.view(p.shape)


def gradient_buffer(parameter: nn.Parameter) -> Tensor:
    """The ``.grad`` that sums are added to; :mod:`crtlib.training.clipping` has created it."""
    assert parameter.grad is not None
    return parameter.grad


# --------------------------------------------------------------------------- entries


def _batched_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Batched product with sums at least in float32, even for bfloat16 factors."""
    if a.dtype in (torch.bfloat16, torch.float16):
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a, b)


def cast_for_exact_sums(x: Tensor) -> Tensor:
    """Return ``x`` in a type whose products :func:`_batched_matmul` sums in float32: a CPU rounds
    sums of bfloat16 factors, and a norm would be off by more than the bound on clipping allows."""
    return x if x.is_cuda else x.to(accumulation_dtype(x))


# --------------------------------------------------------------------------- rounding
class BoundedSum(NamedTuple):
    """A sum for each example (b,). Rounding has moved it by at most ``share * size``, where
    ``size`` (b,) measures what was added up."""

    value: Tensor
    size: Tensor
    share: float


def product_roundings(length: int) -> float:
    """The units of rounding by which a sum of n = ``length`` products in a matrix product may be
    off, divided by the sum of their sizes: ``min(n, 384 + n / 16)``.

    ``n`` is enough in any order of addition (Higham 2002, section 3.1), so up to 400 this is
    certain. Beyond that it is certain if the library adds blocks of at most 384, or several numbers
    at once, as CPU libraries and the tensor cores of GPUs do. If it adds one number after the
    other, the result is at least ``9.7 sqrt(n)``, which independent roundings exceed with a chance
    of ``2 exp(-9.7**2 / 2) < 1e-20`` (Higham and Mary 2019, theorem 2.4).
    """
    return min(length, BLOCK_ROUNDINGS + length / 16)


def _rounding_share(factors: Tensor, sums: Tensor, *roundings: float) -> float:
    """The share of the size of a sum that these roundings may move. One rounding is half of the
    distance between two numbers, or all of it if a tensor core, which truncates, sums products of
    shorter factors."""
    eps = torch.finfo(sums.dtype).eps
    return 1.01 * sum(roundings) * (eps / 2 if factors.dtype == sums.dtype else eps)


def _inner_products(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of each example, (B, ...) x (B, ...) -> (B,), added up in float64, so that
    its error depends on no length, and so on no other example of the batch."""
    return (a * b).flatten(1).sum(1, dtype=torch.float64)


class OuterProductGrad:
    """The gradients of a matrix, one per example, as sums over positions of outer products.

    ``rows`` (b, T, R) and ``columns`` (b, T, C) for a parameter (R, C). ``bias``: a bias of shape
    (R,) whose gradient also comes from ``rows``, and its column (b, T, 1). ``span``: the examples
    that this entry holds (default: all).
    """

    size: Tensor
    """The sum of the lengths of what is added up, (b,); set by :meth:`square`."""

    def __init__(
        self,
        parameter: nn.Parameter,
        rows: Tensor,
        columns: Tensor,
        *,
        bias: tuple[nn.Parameter, Tensor] | None = None,
        span: slice = ALL_EXAMPLES,
    ) -> None:
        self.parameter, self.bias, self.span = parameter, None, span
        self.rows = cast_for_exact_sums(rows)
        self.columns = columns.to(self.rows.dtype)
        if bias is not None:
            self.bias, self.column = bias[0], bias[1].to(self.rows.dtype)

    def square(self) -> BoundedSum:
        """The squared norm of each example's gradient, with the bias: the ghost norm.

        By Cauchy and Schwarz an inner product is off by at most ``k u |r_t| |r_s|``, so that the
        sum of their products is off by at most ``k u (sum_t |r_t| |c_t|)**2``. That sum of lengths,
        which comes from the diagonals of the Gram matrices, is kept as ``size``.

        Guarantee:
            What is charged to an example follows from its own numbers and from the shape of the
            weight, never from the length of other examples. Test:
            ``tests/training/test_rounding.py::
            test_what_is_charged_depends_on_no_other_example``.
        """
        gram = _batched_matmul(self.columns, self.columns.mT)
        if self.bias is not None:
            gram += _batched_matmul(self.column, self.column.mT)
        rows = _batched_matmul(self.rows, self.rows.mT)
        products = rows * gram
        width, height = self.rows.shape[2], self.columns.shape[2] + 1
        share = _matrix_share(self.rows, width, self.columns.shape[2])
        # What underflows in a sum of n products is at most n times the least number. This is added
        # to the squares on the diagonals, so that a tiny row is not hidden by a huge column.
        smallest = torch.finfo(rows.dtype).tiny / share
        lengths = products.diagonal(dim1=1, dim2=2)
        lengths = lengths.add(gram.diagonal(dim1=1, dim2=2), alpha=smallest * width)
        lengths = lengths.add_(rows.diagonal(dim1=1, dim2=2), alpha=smallest * height)
        self.size = lengths.sqrt_().sum(1)
        square = products.flatten(1).sum(1, dtype=torch.float64).clamp_min_(0)
        return BoundedSum(square, self.size.square(), share)

    def leave_out(self, examples: Tensor) -> None:
        """Make the gradients of these examples zero, (B,) bool."""
        is_left_out = examples[self.span, None, None]
        self.rows = self.rows.masked_fill(is_left_out, 0)
        self.columns = self.columns.masked_fill(is_left_out, 0)

    def add(self, factors: Tensor | None) -> None:
        """Add the sum over examples, each times its factor, to ``.grad``."""
        if factors is not None:
            factors = factors[self.span, None, None]
        self._add(gradient_buffer(self.parameter), self.columns, factors)
        if self.bias is not None:
            self._add(gradient_buffer(self.bias)[:, None], self.column, factors)

    def _scaled(self, columns: Tensor, factors: Tensor | None) -> list[tuple[Tensor, Tensor]]:
        """Rows and columns, one of them times the factors (b, 1, 1), in as many pairs as it takes
        to be exact."""
        rows = self.rows
        if factors is None:
            return [(rows, columns)]
        if rows.shape[2] < columns.shape[2]:  # scale the narrower
            row_summands = _decompose_in_dtype(rows * factors, rows.dtype)
            return [(summand, columns) for summand in row_summands]
        column_summands = _decompose_in_dtype(columns * factors, rows.dtype)
        return [(rows, summand) for summand in column_summands]

    def _add(self, grad: Tensor, columns: Tensor, factors: Tensor | None) -> None:
        for pair in self._scaled(columns, factors):
            left, right = pair[0].flatten(0, 1).mT, pair[1].flatten(0, 1)
            if left.dtype == grad.dtype:
                grad.addmm_(left, right)
            else:
                grad.add_(_batched_matmul(left[None], right[None])[0])

    def sums(self, layers: int, factors: Tensor) -> Iterator[Tensor]:
        """Yield the sums (layers, R, C), in parts, of examples that belong to ``layers`` layers,
        one after the other."""
        for pair in self._scaled(self.columns, factors[:, None, None]):
            rows, columns = (x.reshape(layers, -1, x.shape[2]) for x in pair)
            yield _batched_matmul(rows.mT, columns)


def _decompose_in_dtype(x: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Write ``x`` as a sum of tensors of ``dtype``: rounded factors would let a sum exceed the
    bound."""
    coarse = x.to(dtype)
    return [coarse] if dtype == x.dtype else [coarse, (x - coarse).to(dtype)]


class EmbeddingGrad:
    """An embedding's gradient: ``ids`` (B, T) state which rows get ``grads`` (B, T, d)."""

    span = ALL_EXAMPLES
    size: Tensor

    def __init__(self, parameter: nn.Parameter, ids: Tensor, grads: Tensor) -> None:
        self.parameter, self.ids, self.grads = parameter, ids, grads.to(accumulation_dtype(grads))

    def square(self) -> BoundedSum:
        """As in :class:`OuterProductGrad`: a token that is repeated adds to one row."""
        self.size = torch.linalg.vector_norm(self.grads, dim=2).sum(1)
        if self.ids.shape[1] > MAX_GRAM_TOKENS:
            square = self._square_by_token()
        else:
            same_token = self.ids[:, :, None] == self.ids[:, None, :]
            gram = _batched_matmul(self.grads, self.grads.mT)
            square = _inner_products(gram, same_token).clamp_min_(0)
        share = _gram_share(self.grads, self.grads.shape[2])
        return BoundedSum(square, self.size.square(), share)

    def _square_by_token(self) -> Tensor:
        """The squared norms, (B,), from each example's rows, added up in float64. Time and memory
        grow with the tokens of a text, not with the pairs of tokens."""
        examples, vocabulary = len(self.ids), len(self.parameter)
        first = torch.arange(0, examples * vocabulary, vocabulary, device=self.ids.device)
        rows, row_of_token = (self.ids + first[:, None]).unique(return_inverse=True)
        grads = self.grads.double().flatten(0, 1)
        sums = torch.ops.aten.embedding_dense_backward(
            grads, row_of_token.flatten(), len(rows), -1, False
        )
        squares = grads.new_zeros(examples)
        return squares.index_add_(0, rows // vocabulary, sums.square().sum(1))

    def leave_out(self, examples: Tensor) -> None:
        """As in :class:`OuterProductGrad`."""
        self.grads = self.grads.masked_fill(examples[:, None, None], 0)

    def add(self, factors: Tensor | None) -> None:
        """As in :class:`OuterProductGrad`."""
        scaled = self.grads
        if factors is not None:
            scaled = scaled * factors[:, None, None].to(scaled.dtype)
        grad, ids, scaled = (
            gradient_buffer(self.parameter),
            self.ids.flatten(),
            scaled.flatten(0, 1),
        )
        if not is_on_host(grad):  # on a GPU, index_add_ sums in any order
            table = torch.ops.aten.embedding_dense_backward(scaled, ids, len(grad), -1, False)
            grad.add_(table)
        else:
            grad.index_add_(0, ids, scaled.to(grad.dtype))


class DenseGrad:
    """The gradients of the examples themselves, (B, *shape).

    ``charged``: for gradients that are sums of outer products, the size and the share of
    :meth:`OuterProductGrad.square`. They are charged like that entry, although less of them may be
    rounding: which of the two is made depends on the longest text of the batch, and what an example
    adds must not.
    """

    size: Tensor

    def __init__(
        self,
        parameter: nn.Parameter,
        grads: Tensor,
        *,
        span: slice = ALL_EXAMPLES,
        charged: tuple[Tensor, float] | None = None,
    ) -> None:
        self.parameter, self.span, self.grads = parameter, span, grads.to(accumulation_dtype(grads))
        self.charged = charged

    def square(self) -> BoundedSum:
        """As in :class:`OuterProductGrad`, but from the numbers that are added themselves: nothing
        cancels, and the error is a share of the square, whatever the positions did."""
        self.size = _dense_norms(self.grads)
        square = self.size.square()
        if self.charged is None:
            return BoundedSum(square, square, _dense_share(self.grads))
        lengths, share = self.charged
        return BoundedSum(square, lengths.square(), share)

    def leave_out(self, examples: Tensor) -> None:
        """As in :class:`OuterProductGrad`."""
        is_left_out = examples[self.span].view(-1, *[1] * (self.grads.ndim - 1))
        self.grads = self.grads.masked_fill(is_left_out, 0)

    def add(self, factors: Tensor | None) -> None:
        """As in :class:`OuterProductGrad`."""
        grads = self.grads.flatten(1)
        factors = factors[self.span] if factors is not None else grads.new_ones(len(grads))
        gradient_buffer(self.parameter).view(-1).addmv_(grads.T, factors.to(grads.dtype))

    def sums(self, layers: int, factors: Tensor) -> Iterator[Tensor]:
        """As in :class:`OuterProductGrad`: (layers, *shape)."""
        factors = factors.view(layers, 1, -1).to(self.grads.dtype)
        sums = torch.bmm(factors, self.grads.view(layers, factors.shape[2], -1))
        yield sums.view(layers, *self.grads.shape[1:])


class StackedGrad:
    """One entry for k parameters of one shape, none of which has another entry: it holds the
    examples of the first parameter, then those of the next, (k * B, ...)."""

    span = ALL_EXAMPLES

    def __init__(self, parameters: list[nn.Parameter], entry: Any) -> None:
        self.parameters, self.entry, self.parameter = parameters, entry, parameters[0]

    def square(self) -> BoundedSum:
        """As in :class:`OuterProductGrad`, summed over all parameters."""
        squares, sizes, share = self.entry.square()
        value = squares.view(len(self.parameters), -1).sum(0)
        if sizes is squares:
            return BoundedSum(value, value, share)
        return BoundedSum(value, sizes.view(len(self.parameters), -1).sum(0), share)

    def leave_out(self, examples: Tensor) -> None:
        """As in :class:`OuterProductGrad`, with the examples of every parameter, (k * B,)."""
        self.entry.leave_out(examples)

    def add(self, factors: Tensor) -> None:
        """As in :class:`OuterProductGrad`, with factors like the examples of :meth:`leave_out`."""
        grads = [gradient_buffer(p) for p in self.parameters]
        for sums in self.entry.sums(len(grads), factors):
            torch._foreach_add_(grads, [*sums])


GradientEntry = OuterProductGrad | EmbeddingGrad | DenseGrad


def accumulation_dtype(x: Tensor) -> torch.dtype:
    """The type of norms and sums: at least float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _dense_norms(grads: Tensor) -> Tensor:
    """The norm of each gradient (b, ...), (b,)."""
    if grads.ndim > 2 and grads[0].numel() > MAX_NUMBERS_AT_ONCE:
        grads = torch.linalg.vector_norm(grads.flatten(1, -2), dim=-1)
    norms: Tensor = torch.linalg.vector_norm(grads.flatten(1), dim=1)
    return norms


def _dense_share(grads: Tensor) -> float:
    """The share of itself by which the square of :func:`_dense_norms` may be off. A CPU keeps eight
    sums, each of every eighth square; the tree of sums on a GPU is no worse."""
    count, width = grads[0].numel(), grads.shape[-1]
    lengths = [count] if count <= MAX_NUMBERS_AT_ONCE else [width, count // width]
    return _rounding_share(grads, grads, *(16 + length / 8 for length in lengths))


def _gram_share(gram: Tensor, width: int) -> float:
    """The share by which a sum over a Gram matrix (b, T, S) may be off. The sum is in float64, the
    vectors have ``width`` numbers, and each number of the matrix is multiplied by an exact one."""
    return _rounding_share(gram, gram, product_roundings(width), 1)


def _matrix_share(factors: Tensor, height: int, width: int) -> float:
    """The share by which a sum, in float64, of products of the numbers of two Gram matrices may be
    off. Their vectors have ``height`` and ``width`` numbers, and there may be a bias."""
    sums = torch.empty((), dtype=accumulation_dtype(factors))
    roundings = product_roundings(height), product_roundings(width + 1), 1
    return _rounding_share(factors, sums, *roundings)


def cross_inner_products(a: GradientEntry, b: GradientEntry) -> BoundedSum:
    """The inner products of two entries of one parameter, for the examples that ``b`` holds. The
    squares of both must have been taken before.

    The gradient of a parameter that is used twice (an embedding tied to the head) is the sum of its
    entries: its squared norm needs twice this, or a clipped example could exceed the bound.

    If an example's gradients are ``sum_t r_t c_t'`` over T positions and ``sum_s p_s q_s'`` over S,
    their inner product is ``sum_ts (r_t p_s)(c_t q_s)``, from two matrices of inner products
    (T, S). In an embedding ``r_t`` is 1 at the row of token t and 0 elsewhere, so that ``r_t p_s``
    is one number of ``p_s``, and for two embeddings 1 if both tokens are the same.
    """
    embedding, other = (b, a) if isinstance(b, EmbeddingGrad) else (a, b)
    if isinstance(embedding, EmbeddingGrad):
        if isinstance(other, EmbeddingGrad):
            gram = _batched_matmul(embedding.grads, other.grads.mT)  # (b, T, S)
            is_same_token = embedding.ids[:, :, None] == other.ids[:, None, :]  # (b, T, S)
            value = _inner_products(gram, is_same_token)
            share = _gram_share(gram, embedding.grads.shape[2])
            return BoundedSum(value, embedding.size * other.size, share)
        ids, grads = embedding.ids[other.span], embedding.grads[other.span]  # (b, T), (b, T, d)
        size = embedding.size[other.span] * other.size
        if isinstance(other, DenseGrad):
            rows_of_tokens = other.grads.gather(1, ids[..., None].expand_as(grads))  # (b, T, d)
            value = _inner_products(rows_of_tokens, grads)
            return _with_dense_rounding(value, size, _gram_share(grads, 0), other)
        columns_of_tokens = ids[:, None, :].expand(-1, other.rows.shape[1], -1)  # (b, S, T)
        numbers_of_tokens = other.rows.gather(2, columns_of_tokens)  # (b, S, T)
        # In the wider of both types: rounded grads would not be those that are added.
        gram = _batched_matmul(other.columns.to(grads.dtype), grads.mT)  # (b, S, T)
        value = _inner_products(gram, numbers_of_tokens)
        return BoundedSum(value, size, _gram_share(gram, grads.shape[2]))
    if isinstance(a, DenseGrad) and isinstance(b, DenseGrad):
        value = _inner_products(a.grads, b.grads)
        share = _gram_share(a.grads, 0)
        return _with_dense_rounding(value, a.size * b.size, share, a, b)
    are_plain = a.span == b.span and getattr(a, "bias", None) is getattr(b, "bias", None) is None
    if isinstance(a, OuterProductGrad) and isinstance(b, OuterProductGrad) and are_plain:
        row_gram = _batched_matmul(a.rows, b.rows.mT)  # (b, T, S)
        value = _inner_products(row_gram, _batched_matmul(a.columns, b.columns.mT))
        share = _matrix_share(a.rows, a.rows.shape[2], a.columns.shape[2])
        return BoundedSum(value, a.size * b.size, share)
    raise UnknownLayer(f"parameter of shape {tuple(a.parameter.shape)}: shared in an unknown way")


def _with_dense_rounding(
    value: Tensor, size: Tensor, share: float, *entries: DenseGrad
) -> BoundedSum:
    """Return the sum with the rounding of the squares of these entries added to its own: positions
    have already cancelled within an entry, but entries may still cancel each other."""
    for entry in entries:
        dense_share = _dense_share(entry.grads)
        size, share = size * (share / dense_share) + entry.size.square(), dense_share
    return BoundedSum(value, size, share)


def max_ghost_positions(weight: Tensor, like: Tensor) -> float:
    """The number of positions up to which a matrix's ghost norm is cheaper than forming the product
    of each example, for factors like ``like``."""
    cost = (
        DIRECT_COST_IN_MULTIPLY_ADDS
        if is_on_host(like)
        else GPU_DIRECT_COST_IN_MULTIPLY_ADDS.get(like.dtype, DIRECT_COST_IN_MULTIPLY_ADDS)
    )
    return math.sqrt(cost * weight.numel() / sum(weight.shape))


def choose_matrix_entry(
    parameter: nn.Parameter, rows: Tensor, columns: Tensor, span: slice = ALL_EXAMPLES
) -> GradientEntry:
    """Return an entry with ghost norm or with direct products, whichever is cheaper for this
    shape."""
    if rows.shape[1] <= max_ghost_positions(parameter, rows):
        return OuterProductGrad(parameter, rows, columns, span=span)
    rows = cast_for_exact_sums(rows)
    columns, dtype = columns.to(rows.dtype), accumulation_dtype(rows)
    lengths = [torch.linalg.vector_norm(x, dim=2, dtype=dtype) for x in (rows, columns)]
    charged = (lengths[0] * lengths[1]).sum(1), _matrix_share(rows, *parameter.shape)
    if dtype != rows.dtype:
        gradients = _batched_matmul(rows.mT, columns)
    else:
        out = SCRATCH.take((len(rows), *parameter.shape), rows)
        gradients = torch.bmm(rows.mT, columns, out=out)
    return DenseGrad(parameter, gradients, span=span, charged=charged)
