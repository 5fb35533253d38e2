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
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Sink = Callable[[list[tuple[Tensor, Tensor]]], None]
SIGMOID_BACKWARD = torch.ops.aten.sigmoid_backward.grad_input
TANH_BACKWARD = torch.ops.aten.tanh_backward.grad_input


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
        dx, pairs = ctx.cell.scan_backward(x, grad, ctx.saved)
        if ctx.sink is not None:
            ctx.sink(pairs)
            return None, None, dx, *([None] * len(ctx.cell.weights()))
        grads = []
        for a, g in pairs:  # both (batch, time, ·), stored time first
            a, g = a.transpose(0, 1).flatten(0, 1), g.transpose(0, 1).flatten(0, 1)
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
            return _Scan.apply(self, self.sink, x, *self.weights())


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

    def scan(self, x: Tensor, state: tuple[Tensor, ...] | None):
        n = self.size
        w_x, w_h = self.weight.split([self.inputs, n], dim=1)
        gates = F.linear(x.transpose(0, 1), w_x, self.bias)  # (time, batch, 4 hidden)
        time, batch, _ = gates.shape
        cells = gates.new_empty(time + 1, batch, n)  # [t] is the cell before step t
        tanhs = gates.new_empty(time, batch, n)
        out = gates.new_empty(time + 1, batch, n)  # [t] is the output before step t
        if state is None:
            out[0].zero_(), cells[0].zero_()
        else:
            out[0].copy_(state[0]), cells[0].copy_(state[1])
        w_h, outs, cell = w_h.T, out.unbind(), cells.unbind()
        for t, (gate, tanh) in enumerate(zip(gates.unbind(), tanhs.unbind(), strict=True)):
            gate.addmm_(outs[t], w_h)
            gate[:, : 3 * n].sigmoid_()
            gate[:, 3 * n :].tanh_()
            o, i, f, g = gate.split(n, dim=1)
            torch.mul(f, cell[t], out=cell[t + 1]).addcmul_(i, g)
            torch.tanh(cell[t + 1], out=tanh)
            torch.mul(o, tanh, out=outs[t + 1])
        return out[1:].transpose(0, 1), (out[-1], cells[-1]), (gates, cells, tanhs, out)

    def state_after(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Output and cell (batch, hidden) of each row after ``lengths`` (batch,) of its inputs, in
        the last forward pass; only inside :meth:`carrying`."""
        _, cells, _, out = self.saved  # [t] is before step t
        rows = torch.arange(len(lengths), device=out.device)
        return out[lengths, rows], cells[lengths, rows]

    def scan_backward(self, x: Tensor, grad: Tensor, saved):
        gates, cells, tanhs, out = saved
        n = self.size
        w_x, w_h = self.weight.detach().split([self.inputs, n], dim=1)
        d_gates = torch.empty_like(gates)
        d_out = grad.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        d_cell, work = torch.zeros_like(cells[0]), torch.empty_like(gates[0])
        w_o, w_i, w_f, w_g = work.split(n, dim=1)
        dg, do, gate, tanh = d_gates.unbind(), d_out.unbind(), gates.unbind(), tanhs.unbind()
        cell = cells.unbind()
        for t in range(len(do) - 1, -1, -1):
            if t + 1 < len(do):
                do[t].addmm_(dg[t + 1], w_h)
            o, i, f, g = gate[t].split(n, dim=1)
            torch.mul(do[t], o, out=w_o)
            d_cell.add_(TANH_BACKWARD(w_o, tanh[t], grad_input=w_i))
            torch.mul(do[t], tanh[t], out=w_o)
            torch.mul(d_cell, g, out=w_i)
            torch.mul(d_cell, cell[t], out=w_f)
            torch.mul(d_cell, i, out=w_g)
            d_cell.mul_(f)
            SIGMOID_BACKWARD(work[:, : 3 * n], gate[t][:, : 3 * n], grad_input=dg[t][:, : 3 * n])
            TANH_BACKWARD(w_g, g, grad_input=dg[t][:, 3 * n :])
        inputs = torch.cat([x.transpose(0, 1), out[:-1]], dim=2)  # (time, batch, inputs + hidden)
        d_x = (d_gates @ w_x).transpose(0, 1)
        return d_x, [(inputs.transpose(0, 1), d_gates.transpose(0, 1))]


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

    def scan(self, x: Tensor, state: tuple[Tensor, ...] | None):
        n = self.size
        gates = F.linear(x.transpose(0, 1), self.weight_x, self.bias_x)  # (time, batch, 3 hidden)
        time, batch, _ = gates.shape
        out = gates.new_empty(time + 1, batch, n)
        out[0] = 0 if state is None else state[0]
        recurrent = gates.new_empty(time, batch, n)  # what the reset gate multiplies
        for t, gate in enumerate(gates.unbind()):
            from_h = torch.addmm(self.bias_h, out[t], self.weight_h.T)
            gate[:, : 2 * n].add_(from_h[:, : 2 * n]).sigmoid_()
            r, z, new = gate.split(n, dim=1)
            recurrent[t] = from_h[:, 2 * n :]
            new.addcmul_(r, recurrent[t]).tanh_()
            torch.lerp(new, out[t], z, out=out[t + 1])
        return out[1:].transpose(0, 1), (out[-1],), (gates, recurrent, out)

    def scan_backward(self, x: Tensor, grad: Tensor, saved):
        gates, recurrent, out = saved
        n = self.size
        weight_x, weight_h = self.weight_x.detach(), self.weight_h.detach()
        d_x_gates, d_h_gates = torch.empty_like(gates), torch.empty_like(gates)
        d_out = grad.transpose(0, 1)
        carry = torch.zeros_like(out[0])
        for t in range(len(gates) - 1, -1, -1):
            d = d_out[t] + carry
            r, z, new = gates[t].split(n, dim=1)
            d_new = d * (1 - z) * (1 - new * new)
            d_r = d_new * recurrent[t] * r * (1 - r)
            d_z = d * (out[t] - new) * z * (1 - z)
            torch.cat([d_r, d_z, d_new], dim=1, out=d_x_gates[t])
            torch.cat([d_r, d_z, d_new * r], dim=1, out=d_h_gates[t])
            carry = torch.addmm(d * z, d_h_gates[t], weight_h)
        pairs = [(x, d_x_gates.transpose(0, 1)), (out[:-1].transpose(0, 1),
                 d_h_gates.transpose(0, 1))]  # fmt: skip
        return (d_x_gates @ weight_x).transpose(0, 1), pairs
