"""LSTM and GRU layers as one node of the graph each, with the backward pass written out.

The per-example gradients of a recurrent layer need the gradient of every gate at every step, which
``nn.LSTM`` does not expose; here it is a by-product of one backward pass.

>>> Lstm(3, 4)(torch.ones(2, 5, 3)).shape
torch.Size([2, 5, 4])
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LayerState = tuple[Tensor, ...]
"""What a recurrence carries from step to step, each (batch, hidden): its output, and the cell of an
LSTM."""
GradientPairs = list[tuple[Tensor, Tensor]]
GradientSink = Callable[[GradientPairs], None]
SIGMOID_BACKWARD, TANH_BACKWARD = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward
FUSED_DEVICE_KINDS = frozenset({"cuda"})
"""Kinds of device whose kernel for a complete recurrence (cuDNN) gives the gradient of its
gates."""
BACKWARD_CHUNK_NUMBERS = 2**17
"""Numbers that a backward pass prepares at once, for as many steps as they cover: few operators if
the steps are small, and nothing that leaves the cache if they are large."""


class _RecurrentScan(torch.autograd.Function):
    """A recurrence over time as one node of the graph, with its backward pass written out.

    ``sink``, if any, is called in the backward pass with each pair (inputs, gradient of the
    pre-activations) that makes up a weight's gradient; the weights themselves then get none.
    """

    @staticmethod
    def forward(ctx, cell, sink, x, *weights):
        with torch.no_grad():
            out, saved = cell.scan(x, cell.initial)
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
        # The first pair is for the input; autograd takes its gradient, so no inference tensor.
        dx = pairs[0][1] @ ctx.cell.weights()[0].detach()[:, : ctx.cell.inputs]
        if ctx.sink is not None:
            ctx.sink(pairs)
            return None, None, dx, *([None] * len(ctx.cell.weights()))
        grads = []
        for a, g in pairs:  # both (batch, time, ·)
            a, g = a.flatten(0, 1), g.flatten(0, 1)
            grads += [g.T @ a, g.sum(0)]
        return None, None, dx, *grads


class RecurrentLayer(nn.Module):
    """Base class of the LSTM and GRU layers. The clipping engine sets ``self.sink`` for one step.

    A layer names its weights and their ``shapes``: (weight, bias) of each linear map, in the order
    of the pairs from ``scan_backward``.

    ``run(x, state)``: the outputs (batch, time, hidden) from ``state``, and the state after the
    last step, by torch's own kernel.

    ``scan(x, state)``: the outputs, and what ``scan_backward`` needs. Torch does not expose the
    gates, but those of all steps at once follow from the outputs.

    ``scan_backward(x, grad, saved)``: the pairs (inputs, gradient of the pre-activations) of each
    linear map, (batch, time, ·). It runs in inference mode, in which its many small operators cost
    a tenth less.

    ``fused(x, sink)``: the forward pass in torch's own kernel, whose backward pass gives what
    ``sink`` needs. The kernel is fed the pre-activations through an identity, so the gradient of
    its input is that of the gates.
    """

    run: Callable[[Tensor, LayerState | None], tuple[Tensor, LayerState]]
    scan: Callable[[Tensor, LayerState | None], tuple[Tensor, Any]]
    scan_backward: Callable[[Tensor, Tensor, Any], GradientPairs]
    fused: Callable[[Tensor, GradientSink], Tensor]

    def __init__(self, inputs: int, hidden: int, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.inputs, self.size = inputs, hidden
        for name, shape in shapes.items():
            weight = nn.Parameter(torch.empty(shape))
            setattr(self, name, nn.init.uniform_(weight, -(hidden**-0.5), hidden**-0.5))
        self.sink: GradientSink | None = None
        self.initial: LayerState | None = None
        self.saved: Any = None

    @contextlib.contextmanager
    def carrying(self, state: LayerState) -> Iterator[None]:
        """While active, ``forward`` starts from ``state``, each (batch, hidden), instead of zeros.

        No gradient flows into ``state``. Its rows are those of the forward pass, the longest
        example first (:mod:`crtlib.training.clipping`).
        """
        self.initial = tuple(x.detach() for x in state)
        try:
            yield
        finally:
            self.initial = self.saved = None

    def weights(self) -> list[nn.Parameter]:
        """The weights, in the order in which the layer names them."""
        return list(self.parameters())

    def forward(self, x: Tensor) -> Tensor:  # (batch, time, inputs) -> (batch, time, hidden)
        with torch.autocast(x.device.type, enabled=False):  # a long recurrence needs precision
            x = x.to(next(self.parameters()).dtype)
            fused = x.device.type in FUSED_DEVICE_KINDS
            if self.initial is None and (fused or not torch.is_grad_enabled()):
                return self.fused(x, self.sink) if fused and self.sink else self.run(x, None)[0]
            return _RecurrentScan.apply(self, self.sink, x, *self.weights())

    def _before(self, out: Tensor, state: LayerState | None) -> Tensor:
        """The output before each step and after the last, (time + 1, batch, hidden)."""
        first = out.new_zeros(len(out), self.size) if state is None else state[0]
        return torch.cat([first[None], out.transpose(0, 1)])


class Lstm(RecurrentLayer):
    """One LSTM layer with the results of ``nn.LSTM``, as one linear map of ``[x_t, h_{t-1}]``.

    Rows of ``weight`` (4 hidden, inputs + hidden) are the gates in the order o, i, f, g: one
    sigmoid serves the first three, and the last three share the gradient of the cell.
    """

    weight: nn.Parameter
    bias: nn.Parameter

    def __init__(self, inputs: int, hidden: int) -> None:
        gates = 4 * hidden
        super().__init__(inputs, hidden, weight=(gates, inputs + hidden), bias=(gates,))

    def fused(self, x: Tensor, sink: GradientSink) -> Tensor:
        n, weight = self.size, self.weight.detach().roll(-self.size, 0)  # torch: i, f, g, o
        w_x, w_h = weight.split([self.inputs, n], dim=1)
        gates, out, before = _feed_preactivations(
            torch.lstm, x, w_x, self.bias.detach().roll(-n, 0), w_h, states=2
        )
        inputs = torch.cat([x.detach(), before], dim=2)
        gates.register_hook(lambda grad: sink([(inputs, grad.roll(n, 2))]))
        return out

    def run(self, x: Tensor, state: LayerState | None) -> tuple[Tensor, LayerState]:
        weight, bias = self.weight.roll(-self.size, 0), self.bias.roll(-self.size, 0)
        w_x, w_h = weight.split([self.inputs, self.size], dim=1)
        return _run_torch_kernel(
            torch.lstm, x, [w_x, w_h, bias, torch.zeros_like(bias)], state, states=2
        )

    def scan(self, x: Tensor, state: LayerState | None) -> tuple[Tensor, Any]:
        n = self.size
        w_x, w_h = self.weight.split([self.inputs, n], dim=1)
        out, _ = self.run(x, state)
        before = self._before(out, state)
        gates = _gate_inputs_by_time(x, w_x, self.bias)  # (time, batch, 4 hidden)
        gates.flatten(0, 1).addmm_(before[:-1].flatten(0, 1), w_h.T)
        gates[..., : 3 * n].sigmoid_(), gates[..., 3 * n :].tanh_()
        _, i, f, g = gates.split(n, dim=2)
        cells = torch.empty_like(before)  # [t] is the cell before step t
        cells[0] = 0 if state is None else state[1]
        torch.mul(i, g, out=cells[1:])
        for new_cell, cell, forget in _unbind_steps(cells[1:], cells[:-1], f):
            new_cell.addcmul_(cell, forget)
        return out, (gates, cells, cells[1:].tanh(), before)

    def state_after(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The output and cell (batch, hidden) of each row after ``lengths`` (batch,) of its inputs,
        in the last forward pass; available only inside :meth:`carrying`."""
        _, cells, _, out = self.saved  # [t] is before step t
        rows = torch.arange(len(lengths), device=out.device)
        lengths = lengths.to(out.device, non_blocking=True)
        return out[lengths, rows], cells[lengths, rows]

    def scan_backward(self, x: Tensor, grad: Tensor, saved: Any) -> GradientPairs:
        # A step is c = f c0 + i g and h = o tanh(c), from the cell c0 and the output before it.
        # Let dh be the gradient of h, and dc that of c from the steps after it alone. By the chain
        # rule each of the five gradients that a step hands on is dh times one number, the slope
        # through h, and dc times another:
        #   of the pre-activation of o   dh tanh(c) o (1 - o)
        #   of that of i                (dc + dh o (1 - tanh(c)^2)) g i (1 - i)
        #   of that of f                (dc + dh o (1 - tanh(c)^2)) c0 f (1 - f)
        #   of that of g                (dc + dh o (1 - tanh(c)^2)) i (1 - g^2)
        #   of c0                       (dc + dh o (1 - tanh(c)^2)) f
        # The gradient of the output before the step is that of the four gates times their weights.
        # All slopes of a chunk of steps are made at once; only the sums go from step to step.
        gates, cells, tanhs, out = saved
        time, batch, n = tanhs.shape
        w_h = self.weight[:, self.inputs :]  # (4 n, n)
        d_all = gates.new_empty(batch, time, 5, n)  # by o, i, f, g and the cell before each step
        d_out = F.pad(grad.transpose(0, 1), (0, 0, 0, 0, 1, 0))  # [t] is before step t
        d_cell = torch.zeros_like(cells[0, :, None])  # (batch, 1, n), after the last step
        for steps in _step_chunks(gates):
            o, i, f, g = (gate[steps] for gate in gates.split(n, dim=2))  # each (steps, batch, n)
            tanh = tanhs[steps]
            i_slope = SIGMOID_BACKWARD(g, i)
            f_slope = SIGMOID_BACKWARD(cells[:-1][steps], f)
            g_slope = TANH_BACKWARD(i, g)
            cell_slopes = torch.stack([i_slope, f_slope, g_slope, f], dim=2)
            out_slopes = TANH_BACKWARD(o, tanh)[:, :, None] * cell_slopes  # through the cell
            out_slopes = torch.cat([SIGMOID_BACKWARD(tanh, o)[:, :, None], out_slopes], dim=2)
            d_steps = d_all.transpose(0, 1)[steps]  # (steps, batch, 5, n), written in place
            for (
                d_out_before,  # (batch, n)
                d_out_after,  # (batch, 1, n)
                d_step,  # (batch, 5, n), of which the next three are parts
                d_through_cell,  # (batch, 4, n): i, f, g and the cell before
                d_cell_before,  # (batch, 1, n)
                d_gates,  # (batch, 4 n)
                out_slope,  # (batch, 5, n)
                cell_slope,  # (batch, 4, n)
            ) in _unbind_steps(
                d_out[:-1][steps],
                d_out[1:][steps, :, None],
                d_steps,
                d_steps[:, :, 1:],
                d_steps[:, :, 4:],
                d_steps[:, :, :4].flatten(2),
                out_slopes,
                cell_slopes,
                backwards=True,
            ):
                torch.mul(d_out_after, out_slope, out=d_step)
                d_through_cell.addcmul_(d_cell, cell_slope)
                d_cell = d_cell_before
                d_out_before.addmm_(d_gates, w_h)
        inputs = torch.cat([x, out[:-1].transpose(0, 1)], dim=2)  # (batch, time, inputs + hidden)
        return [(inputs, d_all[:, :, :4].flatten(2))]


class Gru(RecurrentLayer):
    """One GRU layer with the results of ``nn.GRU``: gates r, z, n, and one map each for x and h.

    The reset gate multiplies only the recurrent part of n. So the two maps see different gradients,
    and cannot be joined into one as in :class:`Lstm`.
    """

    weight_h: nn.Parameter
    bias_h: nn.Parameter
    weight_x: nn.Parameter
    bias_x: nn.Parameter

    def __init__(self, inputs: int, hidden: int) -> None:
        gates = 3 * hidden
        input_shapes = {"weight_x": (gates, inputs), "bias_x": (gates,)}
        super().__init__(inputs, hidden, **input_shapes, weight_h=(gates, hidden), bias_h=(gates,))

    def fused(self, x: Tensor, sink: GradientSink) -> Tensor:
        n = self.size
        w_x, b_x, w_h, b_h = (w.detach() for w in self.weights())
        recurrent_weights = w_h, torch.zeros_like(b_x), b_h
        gates, out, before = _feed_preactivations(
            torch.gru, x, w_x, b_x, *recurrent_weights, states=1
        )
        x = x.detach()
        reset = F.linear(before, w_h[:n], b_h[:n]).add_(gates.detach()[..., :n]).sigmoid_()

        def pairs(grad: Tensor) -> None:
            hidden_grad = torch.cat([grad[..., : 2 * n], grad[..., 2 * n :] * reset], dim=2)
            sink([(x, grad), (before, hidden_grad)])

        gates.register_hook(pairs)
        return out

    def run(self, x: Tensor, state: LayerState | None) -> tuple[Tensor, LayerState]:
        w_x, b_x, w_h, b_h = self.weights()
        return _run_torch_kernel(torch.gru, x, [w_x, w_h, b_x, b_h], state, states=1)

    def scan(self, x: Tensor, state: LayerState | None) -> tuple[Tensor, Any]:
        n = self.size
        out, _ = self.run(x, state)
        before = self._before(out, state)
        gates = _gate_inputs_by_time(x, self.weight_x, self.bias_x)  # (time, batch, 3 hidden)
        from_hidden = F.linear(before[:-1], self.weight_h, self.bias_h)
        hidden_gates, to_reset = from_hidden.split([2 * n, n], dim=2)
        gates[..., : 2 * n].add_(hidden_gates).sigmoid_()
        gates[..., 2 * n :].addcmul_(gates[..., :n], to_reset).tanh_()
        return out, (gates, to_reset, before)

    def scan_backward(self, x: Tensor, grad: Tensor, saved: Any) -> GradientPairs:
        # A step is new = tanh(n_x + r n_h) and h = (1 - z) new + z h0. h0 is the output before it,
        # n_x comes from the input and n_h from h0. Each gradient that the step hands on is that
        # of h times a slope: of n_x (1 - z)(1 - new^2), of n_h the same times r, and so on. For
        # h0 there is z and, with the weights, what r, z and n_h get.
        gates, to_reset, out = saved  # r, z, new (time, batch, 3 n); n_h; [t] is before step t
        n = self.size
        time, batch, _ = gates.shape
        # For each step the gradients of n_x, r, z, n_h, and of h0 through z.
        d_all = gates.new_empty(batch, time, 5, n)
        d_out = F.pad(grad.transpose(0, 1), (0, 0, 0, 0, 1, 0))  # [t] is before step t
        for steps in _step_chunks(gates):
            r, z, new = (gate[steps] for gate in gates.split(n, dim=2))  # each (steps, batch, n)
            new_slope = (1 - z) * (1 - new * new)
            r_slope = new_slope * to_reset[steps] * (r * (1 - r))
            z_slope = (out[:-1][steps] - new) * (z * (1 - z))
            slopes = torch.stack([new_slope, r_slope, z_slope, new_slope * r, z], dim=2)
            d_steps = d_all.transpose(0, 1)[steps]  # (steps, batch, 5, n), written in place
            for (
                d_out_before,  # (batch, n)
                d_out_after,  # (batch, 1, n)
                d_step,  # (batch, 5, n), of which the next two are parts
                d_hidden_gates,  # (batch, 3 n): r, z, n_h
                d_through_update,  # (batch, n)
                slope,  # (batch, 5, n)
            ) in _unbind_steps(
                d_out[:-1][steps],
                d_out[1:][steps, :, None],
                d_steps,
                d_steps[:, :, 1:4].flatten(2),
                d_steps[:, :, 4],
                slopes,
                backwards=True,
            ):
                torch.mul(d_out_after, slope, out=d_step)
                d_out_before.add_(d_through_update).addmm_(d_hidden_gates, self.weight_h)
        d_x = d_all[:, :, [1, 2, 0]].flatten(2)
        return [(x, d_x), (out[:-1].transpose(0, 1), d_all[:, :, 1:4].flatten(2))]


def _gate_inputs_by_time(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """What each gate gets from the input, (time, batch, gates): products are faster in this
    order."""
    return F.linear(x.transpose(0, 1).contiguous(), weight, bias)


def _unbind_steps(*parts: Tensor, backwards: bool = False) -> Iterator[tuple[Tensor, ...]]:
    """The parts of each step, from tensors whose first dimension is time."""
    steps = zip(*map(torch.unbind, parts), strict=True)
    return iter(list(steps)[::-1]) if backwards else steps


def _step_chunks(gates: Tensor) -> Iterator[slice]:
    """All steps of (time, batch, ·), the last first, in chunks that fit into the cache."""
    several = max(1, BACKWARD_CHUNK_NUMBERS // max(1, 2 * gates.shape[1:].numel()))
    for end in range(len(gates), 0, -several):
        yield slice(max(0, end - several), end)


# --------------------------------------------------------------------------- torch's kernels
def _run_torch_kernel(
    run: Callable[..., Any],
    x: Tensor,
    weights: list[Tensor],
    state: LayerState | None,
    *,
    states: int,
) -> tuple[Tensor, LayerState]:
    """Run ``torch.lstm`` or ``torch.gru`` for one layer: (batch, time, hidden), and the last
    state."""
    start = state or [x.new_zeros(len(x), weights[1].shape[1])] * states
    if not x.numel():  # no text, or no step
        return x.new_zeros(*x.shape[:2], start[0].shape[1]), tuple(start)
    start = [h[None] for h in start]
    # has_biases, num_layers, dropout, train (keep what backward needs), bidirectional, batch_first
    options = len(weights) == 4, 1, 0.0, True, False, True
    out, *last_state = run(x, start if states == 2 else start[0], weights, *options)
    return out, tuple(h[0] for h in last_state)


def _feed_preactivations(
    run: Callable[..., Any],
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *recurrent_weights: Tensor,
    states: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the pre-activations from the input and feed them to a kernel through an identity.
    Return them, the outputs, and the output before each step, which is zero before the first."""
    gates = F.linear(x, weight, bias)
    if torch.is_grad_enabled() and not gates.requires_grad:  # if nothing before it learns
        gates.requires_grad_()
    identity = torch.eye(gates.shape[2], dtype=gates.dtype, device=gates.device)
    out, _ = _run_torch_kernel(run, gates, [identity, *recurrent_weights], None, states=states)
    return gates, out, F.pad(out.detach()[:, :-1], (0, 0, 1, 0))
