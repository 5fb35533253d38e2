"""LSTM and GRU layers as one node of the graph each, with the backward pass written out.

The per-example gradients of a recurrent layer need the gradient of every gate at every step,
which ``nn.LSTM`` keeps to itself; here it is a by-product of one backward pass.

>>> layer, theirs = Lstm(3, 4), nn.LSTM(3, 4, batch_first=True)
>>> layer.copy_from(theirs)
>>> x = torch.ones(2, 5, 3)
>>> bool(torch.allclose(layer(x), theirs(x)[0], atol=1e-6))
True
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crtlib.models.compiled import Product, steps_of

Sink = Callable[[list[tuple[Tensor, Tensor]]], None]
SIGMOID_BACKWARD = torch.ops.aten.sigmoid_backward.grad_input
TANH_BACKWARD = torch.ops.aten.tanh_backward.grad_input
FUSED = frozenset({"cuda"})
"""Kinds of device with one kernel for a whole recurrence (cuDNN); elsewhere a scan is faster."""
CACHED = 2**17
"""Numbers that a backward pass prepares at once, for as many steps as that is: few operators where
the steps are small, and nothing that leaves the cache where they are large."""


class _Scan(torch.autograd.Function):
    """A recurrence over time as one node of the graph, with its backward pass written out.

    ``sink``, if any, is called in the backward pass with each pair (inputs, gradient of the
    pre-activations) that makes up a weight's gradient; the weights themselves then get none.
    """

    @staticmethod
    def forward(ctx, cell, sink, x, *weights):
        with torch.no_grad():
            out, _, saved = cell.scan(x, cell.initial)
        if cell.initial is not None:
            cell.saved = saved
        ctx.cell, ctx.sink, ctx.saved = cell, sink, saved
        ctx.save_for_backward(x, *weights)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, *_ = ctx.saved_tensors
        with torch.inference_mode():
            pairs = ctx.cell.scan_backward(x, grad, ctx.saved)
        # The first pair is that of the input, whose gradient is autograd's: no inference tensor.
        dx = pairs[0][1] @ ctx.cell.weights()[0].detach()[:, : ctx.cell.inputs]
        if ctx.sink is not None:
            ctx.sink(pairs)
            return None, None, dx, *([None] * len(ctx.cell.weights()))
        grads = []
        for a, g in pairs:  # both (batch, time, ·)
            a, g = a.flatten(0, 1), g.flatten(0, 1)
            grads += [g.T @ a, g.sum(0)]
        return None, None, dx, *grads


class Recurrent(nn.Module):
    """What LSTM and GRU share. ``self.sink`` is set by the clipping engine for one step."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.inputs, self.size = inputs, hidden
        self.sink: Sink | None = None
        self.initial: tuple[Tensor, ...] | None = None
        self.saved: Any = None

    def weights(self) -> list[nn.Parameter]:
        """(weight, bias) of each linear map, in the order of the pairs of ``scan_backward``."""
        raise NotImplementedError

    @contextlib.contextmanager
    def carrying(self, state: tuple[Tensor, ...]) -> Iterator[None]:
        """While active, ``forward`` starts from ``state``, each (batch, hidden), instead of zeros.

        No gradient flows into it. Rows are those of the forward pass, the longest example
        first (:mod:`crtlib.training.clipping`).
        """
        self.initial = tuple(x.detach() for x in state)
        try:
            yield
        finally:
            self.initial = self.saved = None

    def _reset(self) -> None:
        for p in self.parameters():
            nn.init.uniform_(p, -(self.size**-0.5), self.size**-0.5)

    def forward(self, x: Tensor) -> Tensor:  # (batch, time, inputs) -> (batch, time, hidden)
        with torch.autocast(x.device.type, enabled=False):  # a long recurrence wants precision
            x = x.to(next(self.parameters()).dtype)
            if x.device.type in FUSED and self.initial is None:
                return self.fused(x)
            return _Scan.apply(self, self.sink, x, *self.weights())

    def scan(self, x: Tensor, state: tuple[Tensor, ...] | None):
        """Outputs (batch, time, hidden) from ``state``, the state after the last step, and what
        ``scan_backward`` needs.

        In inference mode, as its many small operators then cost a tenth less; what leaves it and
        may meet autograd is made outside.
        """
        out = x.new_empty(x.shape[1] + 1, len(x), self.size)  # [t] is the output before step t
        with torch.inference_mode():
            saved, more = self._steps(x, state, out)
        return out[1:].transpose(0, 1), (out[-1], *(last.clone() for last in more)), saved

    def _steps(self, x: Tensor, state: tuple[Tensor, ...] | None, out: Tensor):
        """Fill ``out``; what the backward pass needs, and what else than the output is carried."""
        raise NotImplementedError

    def fused(self, x: Tensor) -> Tensor:
        """The forward pass in torch's own kernel, whose backward pass gives what ``sink`` needs.

        It is fed the pre-activations through an identity, so the gradient of its input is that of
        the gates; without a sink it is fed ``x``, and autograd sees the weights.
        """
        raise NotImplementedError


class Lstm(Recurrent):
    """One LSTM layer, the numbers of ``nn.LSTM``, as one linear map of ``[x_t, h_{t-1}]``.

    Rows of ``weight`` (4 hidden, inputs + hidden) are the gates in the order o, i, f, g: one
    sigmoid serves the first three, and the last three share the gradient of the cell.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(inputs, hidden)
        self.weight = nn.Parameter(torch.empty(4 * hidden, inputs + hidden))
        self.bias = nn.Parameter(torch.empty(4 * hidden))
        self._reset()

    def weights(self) -> list[nn.Parameter]:
        return [self.weight, self.bias]

    @torch.no_grad()
    def copy_from(self, other: nn.LSTM) -> None:
        """Take the weights of the first layer of ``other`` (its two biases are summed)."""
        i, f, g, o = torch.cat([other.weight_ih_l0, other.weight_hh_l0], dim=1).chunk(4)
        self.weight.copy_(torch.cat([o, i, f, g]))
        i, f, g, o = (other.bias_ih_l0 + other.bias_hh_l0).chunk(4)
        self.bias.copy_(torch.cat([o, i, f, g]))

    def fused(self, x: Tensor) -> Tensor:
        n, sink = self.size, self.sink
        w_x, w_h = self.weight.roll(-n, 0).split([self.inputs, n], dim=1)  # torch: i, f, g, o
        bias = self.bias.roll(-n, 0)
        if sink is None:
            return _kernel(torch.lstm, x, [w_x, w_h, bias, torch.zeros_like(bias)], states=2)
        gates = _watched(F.linear(x, w_x.detach(), bias.detach()))
        out = _kernel(torch.lstm, gates, [_identity(gates), w_h.detach()], states=2)
        inputs = torch.cat([x.detach(), _before(out)], dim=2)
        gates.register_hook(lambda grad: sink([(inputs, grad.roll(n, 2))]))
        return out

    def _steps(self, x: Tensor, state: tuple[Tensor, ...] | None, out: Tensor):
        n = self.size
        w_x, w_h = self.weight.split([self.inputs, n], dim=1)
        gates = _by_time(x, w_x, self.bias)  # (time, batch, 4 hidden)
        cells = torch.empty_like(out)  # [t] is the cell before step t
        tanhs = torch.empty_like(out[1:])
        if state is None:
            out[0].zero_(), cells[0].zero_()
        else:
            out[0].copy_(state[0]), cells[0].copy_(state[1])
        parts = gates, cells[:-1], cells[1:], tanhs, out[1:]
        by_operators = functools.partial(_lstm_by_operators, gates, cells, tanhs, out)
        _recur(_lstm, parts, Product(gates, out[:-1], w_h.T.contiguous()), by_operators)
        return (gates, cells, tanhs, out), [cells[-1]]

    def state_after(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Output and cell (batch, hidden) of each row after ``lengths`` (batch,) of its inputs, in
        the last forward pass; only inside :meth:`carrying`."""
        _, cells, _, out = self.saved  # [t] is before step t
        rows = torch.arange(len(lengths), device=out.device)
        lengths = lengths.to(out.device, non_blocking=True)
        return out[lengths, rows], cells[lengths, rows]

    def scan_backward(self, x: Tensor, grad: Tensor, saved):
        gates, cells, tanhs, out = saved
        time, batch, n = tanhs.shape
        w_h = self.weight[:, self.inputs :]
        d_gates = gates.new_empty(batch, time, 4 * n)
        d_out = grad.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        d_cell = torch.zeros_like(cells[0])
        parts = gates, cells[:-1], tanhs, d_out, d_cell.expand_as(d_out), d_gates.transpose(0, 1)
        by_operators = functools.partial(
            _lstm_backward_by_operators, gates, cells, tanhs, d_out, d_cell, d_gates
        )
        later = Product(d_out[:-1], d_gates.transpose(0, 1)[1:], w_h)
        _recur(_lstm_backward, parts, later, by_operators, backwards=True)
        inputs = torch.cat([x, out[:-1].transpose(0, 1)], dim=2)  # (batch, time, inputs + hidden)
        return [(inputs, d_gates)]


class Gru(Recurrent):
    """One GRU layer, the numbers of ``nn.GRU``: gates r, z, n, and a map each for x and h.

    The reset gate multiplies the recurrent part of n alone, so the two maps see different
    gradients and cannot be one, as they are in :class:`Lstm`.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(inputs, hidden)
        self.weight_x = nn.Parameter(torch.empty(3 * hidden, inputs))
        self.bias_x = nn.Parameter(torch.empty(3 * hidden))
        self.weight_h = nn.Parameter(torch.empty(3 * hidden, hidden))
        self.bias_h = nn.Parameter(torch.empty(3 * hidden))
        self._reset()

    def weights(self) -> list[nn.Parameter]:
        return [self.weight_x, self.bias_x, self.weight_h, self.bias_h]

    @torch.no_grad()
    def copy_from(self, other: nn.GRU) -> None:
        """Take the weights of the first layer of ``other``."""
        theirs = (other.weight_ih_l0, other.bias_ih_l0, other.weight_hh_l0, other.bias_hh_l0)
        for mine, other_weight in zip(self.weights(), theirs, strict=True):
            mine.copy_(other_weight)

    def fused(self, x: Tensor) -> Tensor:
        n, sink, weights = self.size, self.sink, self.weights()
        if sink is None:
            w_x, b_x, w_h, b_h = weights
            return _kernel(torch.gru, x, [w_x, w_h, b_x, b_h], states=1)
        w_x, b_x, w_h, b_h = (w.detach() for w in weights)
        gates = _watched(F.linear(x, w_x, b_x))
        own = [_identity(gates), w_h, torch.zeros_like(b_x), b_h]
        out = _kernel(torch.gru, gates, own, states=1)
        x, before = x.detach(), _before(out)
        reset = F.linear(before, w_h[:n], b_h[:n]).add_(gates.detach()[..., :n]).sigmoid_()

        def pairs(grad: Tensor) -> None:
            from_h = torch.cat([grad[..., : 2 * n], grad[..., 2 * n :] * reset], dim=2)
            sink([(x, grad), (before, from_h)])

        gates.register_hook(pairs)
        return out

    def _steps(self, x: Tensor, state: tuple[Tensor, ...] | None, out: Tensor):
        gates = _by_time(x, self.weight_x, self.bias_x)  # (time, batch, 3 hidden)
        out[0] = 0 if state is None else state[0]
        recurrent = torch.empty_like(out[1:])  # what the reset gate multiplies
        bias = self.bias_h.expand_as(gates)
        from_h = self.bias_h.repeat(len(x), 1)  # of one step, which leaves it as it found it
        parts = gates, from_h.expand_as(gates), bias, recurrent, out[:-1], out[1:]
        by_operators = functools.partial(_gru_by_operators, gates, from_h, bias, recurrent, out)
        product = Product(from_h.expand_as(gates), out[:-1], self.weight_h.T.contiguous())
        _recur(_gru, parts, product, by_operators)
        return (gates, recurrent, out), []

    def scan_backward(self, x: Tensor, grad: Tensor, saved):
        gates, recurrent, out = saved
        n = self.size
        d_x_gates, d_h_gates = gates.new_empty(2, len(x), len(gates), 3 * n)
        d_out, carry = grad.contiguous().transpose(0, 1), torch.zeros_like(out[0])
        d_parts = d_x_gates.transpose(0, 1), d_h_gates.transpose(0, 1)
        parts = gates, recurrent, out[:-1], d_out, carry.expand_as(d_out), *d_parts
        by_operators = functools.partial(
            _gru_backward_by_operators, *parts[:4], carry, d_x_gates, d_h_gates
        )
        later = Product(parts[4][:-1], d_parts[1][1:], self.weight_h)
        _recur(_gru_backward, parts, later, by_operators, backwards=True)
        return [(x, d_x_gates), (out[:-1].transpose(0, 1), d_h_gates)]


def _by_time(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """What each gate gets of the input, (time, batch, gates): in order, products are faster."""
    return F.linear(x.transpose(0, 1).contiguous(), weight, bias)


# --------------------------------------------------------------------------- the rest of a step
# What a step does besides its matrix product, of one number each (:mod:`crtlib.models.compiled`).
def _lstm(o, i, f, g, cell, _next, _tanh, _out):
    o, i, f, g = o.sigmoid(), i.sigmoid(), f.sigmoid(), g.tanh()
    after = f * cell + i * g
    tanh = after.tanh()
    return o, i, f, g, None, after, tanh, o * tanh


def _lstm_backward(o, i, f, g, cell, tanh, d_out, d_cell, *_d_gates):
    d_cell = d_cell + d_out * (o * (1.0 - tanh * tanh))
    d_o = d_out * (tanh * (o * (1.0 - o)))
    d_i = d_cell * (g * (i * (1.0 - i)))
    d_f = d_cell * (cell * (f * (1.0 - f)))
    d_g = d_cell * (i * (1.0 - g * g))
    return *[None] * 7, d_cell * f, d_o, d_i, d_f, d_g


def _gru(r, z, new, h_r, h_z, h_new, b_r, b_z, b_new, _recurrent, before, _out):
    r, z = (r + h_r).sigmoid(), (z + h_z).sigmoid()
    new = (new + r * h_new).tanh()
    after = new + z * (before - new)
    return r, z, new, b_r, b_z, b_new, None, None, None, h_new, None, after


def _gru_backward(r, z, new, recurrent, before, d_out, carry, *_d_gates):
    d = d_out + carry
    d_new = d * (1.0 - z) * (1.0 - new * new)
    d_r = d_new * recurrent * (r * (1.0 - r))
    d_z = d * (before - new) * (z * (1.0 - z))
    return *[None] * 6, d * z, d_r, d_z, d_new, d_r, d_z, d_new * r


# The same in torch's operators, for other types, other devices and where nothing compiles.
Rest = Callable[[int], object]


def _recur(
    function: Callable[..., Any],
    parts: tuple[Tensor, ...],
    add: Product,
    by_operators: Callable[[], Rest],
    *,
    backwards: bool = False,
) -> None:
    """All steps, as :func:`crtlib.models.compiled.steps_of` says, or ``by_operators``."""
    if not parts[0].numel():  # no text, or no step
        return
    if steps := steps_of(function, *parts, add=add, backwards=backwards):
        steps()
        return
    rest, into, of = by_operators(), add.into.unbind(), add.of.unbind()
    times = range(len(parts[0]))
    for t in reversed(times) if backwards else times:
        if t < len(into):
            into[t].addmm_(of[t], add.matrix)
        rest(t)


def _lstm_by_operators(gates: Tensor, cells: Tensor, tanhs: Tensor, out: Tensor) -> Rest:
    n = tanhs.shape[2]
    open_ = gates[..., : 3 * n].unbind()
    o, i, f, g = map(torch.unbind, gates.split(n, dim=2))
    cell, tanh, after = map(torch.unbind, (cells, tanhs, out[1:]))

    def rest(t: int) -> None:
        open_[t].sigmoid_()
        g[t].tanh_()
        torch.mul(f[t], cell[t], out=cell[t + 1]).addcmul_(i[t], g[t])
        torch.tanh(cell[t + 1], out=tanh[t])
        torch.mul(o[t], tanh[t], out=after[t])

    return rest


def _lstm_backward_by_operators(
    gates: Tensor, cells: Tensor, tanhs: Tensor, d_out: Tensor, d_cell: Tensor, d_gates: Tensor
) -> Rest:
    time, batch, n = tanhs.shape
    wide = d_cell[None]
    d_each = d_gates.unflatten(2, (4, n)).permute(1, 2, 0, 3)  # (time, 4, batch, hidden)
    do, d_o, d_rest = d_out.unbind(), d_each[:, 0].unbind(), d_each[:, 1:].unbind()
    forget = gates[..., 2 * n : 3 * n].unbind()
    several = min(time, max(1, CACHED // (5 * batch * n)))
    store = gates.new_empty(several, 5, batch, n)
    slopes: dict[int, tuple[Tensor, ...]] = {}

    def rest(t: int) -> None:
        if t not in slopes:
            slopes.clear()
            steps = slice(t - t % several, t + 1)
            by = _lstm_slopes(gates[steps], cells[steps], tanhs[steps], store)
            slopes.update(zip(range(time)[steps], zip(*by, strict=True), strict=True))
        to_cell, of_o, of_rest = slopes[t]
        d_cell.addcmul_(do[t], to_cell)
        torch.mul(do[t], of_o, out=d_o[t])
        torch.mul(wide, of_rest, out=d_rest[t])
        d_cell.mul_(forget[t])

    return rest


def _lstm_slopes(gates: Tensor, cells: Tensor, tanhs: Tensor, store: Tensor):
    """Of each of a few steps: the derivative of the output by the cell and by o, and that of
    the cell by i, f and g, where o to g are before their sigmoid or tanh."""
    o, i, f, g = gates.split(tanhs.shape[2], dim=2)
    by_cell, by_o, by_i, by_f, by_g = store[: len(gates)].unbind(1)
    TANH_BACKWARD(o, tanhs, grad_input=by_cell)
    SIGMOID_BACKWARD(tanhs, o, grad_input=by_o)
    SIGMOID_BACKWARD(g, i, grad_input=by_i)
    SIGMOID_BACKWARD(cells, f, grad_input=by_f)
    TANH_BACKWARD(i, g, grad_input=by_g)
    return by_cell.unbind(), by_o.unbind(), store[: len(gates), 2:].unbind()


def _gru_by_operators(
    gates: Tensor, from_h: Tensor, bias: Tensor, recurrent: Tensor, out: Tensor
) -> Rest:
    n = recurrent.shape[2]
    open_, (r, z, new) = gates[..., : 2 * n].unbind(), map(torch.unbind, gates.split(n, dim=2))
    outs, recurrents = out.unbind(), recurrent.unbind()
    h_open, h_new = from_h.split([2 * n, n], dim=1)

    def rest(t: int) -> None:
        open_[t].add_(h_open).sigmoid_()
        recurrents[t].copy_(h_new)
        new[t].addcmul_(r[t], h_new).tanh_()
        torch.lerp(new[t], outs[t], z[t], out=outs[t + 1])
        from_h.copy_(bias[0])

    return rest


def _gru_backward_by_operators(gates, recurrent, before, d_out, carry, d_x, d_h) -> Rest:
    n = recurrent.shape[2]
    r, z, new = gates.split(n, dim=2)
    keep, flat, shut, change = 1 - z, 1 - new * new, 1 - r, before - new
    dx_r, dx_z, dx_new = (d.unbind(1) for d in d_x.split(n, dim=2))
    dh_new = d_h[..., 2 * n :].unbind(1)
    dx_open, dh_open = (d[..., : 2 * n].unbind(1) for d in (d_x, d_h))
    parts = (r, z, keep, flat, shut, change, recurrent, d_out)
    steps = list(zip(*map(torch.unbind, parts), strict=True))

    def rest(t: int) -> None:
        r, z, keep, flat, shut, change, from_h, d = steps[t]
        d = d + carry
        torch.mul(d, keep, out=dx_new[t]).mul_(flat)
        torch.mul(dx_new[t], from_h, out=dx_r[t]).mul_(r).mul_(shut)
        torch.mul(d, change, out=dx_z[t]).mul_(z).mul_(keep)
        dh_open[t].copy_(dx_open[t])
        torch.mul(dx_new[t], r, out=dh_new[t])
        torch.mul(d, z, out=carry)

    return rest


# --------------------------------------------------------------------------- torch's kernels
def _kernel(run: Callable[..., Any], x: Tensor, weights: list[Tensor], *, states: int) -> Tensor:
    """``torch.lstm`` or ``torch.gru`` of one layer from zeros: (batch, time, hidden)."""
    zeros = x.new_zeros(1, len(x), weights[1].shape[1])
    start = (zeros, zeros) if states == 2 else zeros
    # has_biases, num_layers, dropout, train (keep what backward needs), bidirectional, batch_first
    return run(x, start, weights, len(weights) == 4, 1, 0.0, True, False, True)[0]


def _identity(gates: Tensor) -> Tensor:
    return torch.eye(gates.shape[2], dtype=gates.dtype, device=gates.device)


def _watched(x: Tensor) -> Tensor:
    """With a gradient in the backward pass, also where nothing before it learns."""
    return x if x.requires_grad or not torch.is_grad_enabled() else x.requires_grad_()


def _before(out: Tensor) -> Tensor:
    """The output before each step, zeros before the first."""
    return F.pad(out.detach()[:, :-1], (0, 0, 1, 0))
