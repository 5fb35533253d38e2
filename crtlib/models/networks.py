"""Language models: their shape, our recurrent layers, and what training asks of any of them.

The shape of a model, as a value.

>>> ModelSpec("lstm", vocab_size=10).hidden
200

LSTM and GRU layers as one node of the graph each, with the backward pass written out.

The per-example gradients of a recurrent layer need the gradient of every gate at every step,
which ``nn.LSTM`` keeps to itself; here it is a by-product of one backward pass.

>>> Lstm(3, 4)(torch.ones(2, 5, 3)).shape
torch.Size([2, 5, 4])

Language models behind one small interface, so that training and attacks never ask which kind.

:func:`hidden` and :func:`head` are all that training needs, of our recurrent models and of the
causal ones of ``transformers``, also wrapped by ``peft``; :mod:`crtlib.models.scoring` reads them
as well.

>>> model = RecurrentLM(ModelSpec("lstm", vocab_size=7, embedding=4, hidden=5))
>>> h = hidden(model, torch.tensor([[1, 2, 3]]))
>>> h.shape, head(model).logits(h).shape
(torch.Size([1, 3, 5]), torch.Size([1, 3, 7]))

A model from its shape.

>>> from crtlib.models.networks import ModelSpec
>>> type(build(ModelSpec("lstm", vocab_size=10, embedding=4, hidden=4), 0)).__name__
'RecurrentLM'
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crtlib.checks import check, check_choice
from crtlib.draws import drawing

KINDS = ("lstm", "gru", "gpt2", "gemma2", "bert")


@dataclass(frozen=True)
class ModelSpec:
    """The shape of a model: JSON-safe, so that it can name a run.

    ``embedding`` is read by the recurrent kinds only (``None``: as ``hidden``); ``heads`` and
    ``context`` by transformers only; ``tied=None`` means tied for transformers, untied otherwise.
    """

    kind: str
    vocab_size: int
    embedding: int | None = None
    hidden: int = 200
    layers: int = 1
    heads: int = 4
    context: int = 128
    tied: bool | None = None

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)
        for name in ("vocab_size", "hidden", "layers", "heads", "context"):
            check(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        if not self.recurrent and self.hidden % self.heads:
            raise ValueError(f"heads={self.heads}: must divide hidden={self.hidden}")
        if self.recurrent and self.tied and self.embedding not in (None, self.hidden):
            raise ValueError(f"embedding={self.embedding}: must be {self.hidden}, as it is tied")

    @property
    def recurrent(self) -> bool:
        """Whether it is one of ours (LSTM, GRU) and not a transformer."""
        return self.kind in ("lstm", "gru")


State = tuple[Tensor, ...]
"""What a recurrence carries on, each (batch, hidden): its output, and the cell of an LSTM."""
Pairs = list[tuple[Tensor, Tensor]]
Sink = Callable[[Pairs], None]
BACK_SIGMOID, BACK_TANH = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward
FUSED = frozenset({"cuda"})
"""Kinds of device whose kernel for a whole recurrence (cuDNN) gives the gradient of its gates."""
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
    """What LSTM and GRU share. ``self.sink`` is set by the clipping engine for one step.

    A layer names its weights and their ``shapes``: (weight, bias) of each linear map, in the order
    of the pairs of ``scan_backward``.

    ``run(x, state)``: outputs (batch, time, hidden) from ``state``, and the state after the last
    step, by torch's own kernel.

    ``scan(x, state)``: the outputs, and what ``scan_backward`` needs: torch keeps it to itself, but
    the gates of all steps at once follow from the outputs.

    ``scan_backward(x, grad, saved)``: the pairs (inputs, gradient of the pre-activations) of each
    linear map, (batch, time, ·), in inference mode, as its many small operators then cost a tenth
    less.

    ``fused(x, sink)``: the forward pass in torch's own kernel, whose backward pass gives what
    ``sink`` needs. It is fed the pre-activations through an identity, so the gradient of its input
    is that of the gates.
    """

    run: Callable[[Tensor, State | None], tuple[Tensor, State]]
    scan: Callable[[Tensor, State | None], tuple[Tensor, Any]]
    scan_backward: Callable[[Tensor, Tensor, Any], Pairs]
    fused: Callable[[Tensor, Sink], Tensor]

    def __init__(self, inputs: int, hidden: int, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.inputs, self.size = inputs, hidden
        for name, shape in shapes.items():
            weight = nn.Parameter(torch.empty(shape))
            setattr(self, name, nn.init.uniform_(weight, -(hidden**-0.5), hidden**-0.5))
        self.sink: Sink | None = None
        self.initial: State | None = None
        self.saved: Any = None

    @contextlib.contextmanager
    def carrying(self, state: State) -> Iterator[None]:
        """While active, ``forward`` starts from ``state``, each (batch, hidden), instead of zeros.

        No gradient flows into it. Rows are those of the forward pass, the longest example
        first (:mod:`crtlib.training.clipping`).
        """
        self.initial = tuple(x.detach() for x in state)
        try:
            yield
        finally:
            self.initial = self.saved = None

    def weights(self) -> list[nn.Parameter]:
        """In the order in which the layer names them."""
        return list(self.parameters())

    def forward(self, x: Tensor) -> Tensor:  # (batch, time, inputs) -> (batch, time, hidden)
        with torch.autocast(x.device.type, enabled=False):  # a long recurrence wants precision
            x = x.to(next(self.parameters()).dtype)
            fused = x.device.type in FUSED
            if self.initial is None and (fused or not torch.is_grad_enabled()):
                return self.fused(x, self.sink) if fused and self.sink else self.run(x, None)[0]
            return _Scan.apply(self, self.sink, x, *self.weights())

    def _before(self, out: Tensor, state: State | None) -> Tensor:
        """The output before each step and after the last, (time + 1, batch, hidden)."""
        first = out.new_zeros(len(out), self.size) if state is None else state[0]
        return torch.cat([first[None], out.transpose(0, 1)])


class Lstm(Recurrent):
    """One LSTM layer, the numbers of ``nn.LSTM``, as one linear map of ``[x_t, h_{t-1}]``.

    Rows of ``weight`` (4 hidden, inputs + hidden) are the gates in the order o, i, f, g: one
    sigmoid serves the first three, and the last three share the gradient of the cell.
    """

    weight: nn.Parameter
    bias: nn.Parameter

    def __init__(self, inputs: int, hidden: int) -> None:
        gates = 4 * hidden
        super().__init__(inputs, hidden, weight=(gates, inputs + hidden), bias=(gates,))

    def fused(self, x: Tensor, sink: Sink) -> Tensor:
        n, weight = self.size, self.weight.detach().roll(-self.size, 0)  # torch: i, f, g, o
        w_x, w_h = weight.split([self.inputs, n], dim=1)
        gates, out, before = _fed(torch.lstm, x, w_x, self.bias.detach().roll(-n, 0), w_h, states=2)
        inputs = torch.cat([x.detach(), before], dim=2)
        gates.register_hook(lambda grad: sink([(inputs, grad.roll(n, 2))]))
        return out

    def run(self, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        weight, bias = self.weight.roll(-self.size, 0), self.bias.roll(-self.size, 0)
        w_x, w_h = weight.split([self.inputs, self.size], dim=1)
        return _kernel(torch.lstm, x, [w_x, w_h, bias, torch.zeros_like(bias)], state, states=2)

    def scan(self, x: Tensor, state: State | None) -> tuple[Tensor, Any]:
        n = self.size
        w_x, w_h = self.weight.split([self.inputs, n], dim=1)
        out, _ = self.run(x, state)
        before = self._before(out, state)
        gates = _by_time(x, w_x, self.bias)  # (time, batch, 4 hidden)
        gates.flatten(0, 1).addmm_(before[:-1].flatten(0, 1), w_h.T)
        gates[..., : 3 * n].sigmoid_(), gates[..., 3 * n :].tanh_()
        _, i, f, g = gates.split(n, dim=2)
        cells = torch.empty_like(before)  # [t] is the cell before step t
        cells[0] = 0 if state is None else state[1]
        torch.mul(i, g, out=cells[1:])
        for new, cell, forget in _by_step(cells[1:], cells[:-1], f):
            new.addcmul_(cell, forget)
        return out, (gates, cells, cells[1:].tanh(), before)

    def state_after(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Output and cell (batch, hidden) of each row after ``lengths`` (batch,) of its inputs, in
        the last forward pass; only inside :meth:`carrying`."""
        _, cells, _, out = self.saved  # [t] is before step t
        rows = torch.arange(len(lengths), device=out.device)
        lengths = lengths.to(out.device, non_blocking=True)
        return out[lengths, rows], cells[lengths, rows]

    def scan_backward(self, x: Tensor, grad: Tensor, saved: Any) -> Pairs:
        gates, cells, tanhs, out = saved
        time, batch, n = tanhs.shape
        w_h = self.weight[:, self.inputs :]
        d_all = gates.new_empty(batch, time, 5, n)  # of each step by o, i, f, g and the cell before
        d_out = F.pad(grad.transpose(0, 1), (0, 0, 0, 0, 1, 0))  # [t] is before step t
        d_cell = torch.zeros_like(cells[0, :, None])
        for steps in _several(gates):
            o, i, f, g = (x[steps] for x in gates.split(n, dim=2))
            tanh = tanhs[steps]
            by_gates = BACK_SIGMOID(g, i), BACK_SIGMOID(cells[:-1][steps], f), BACK_TANH(i, g)
            by_cell = torch.stack([*by_gates, f], dim=2)
            by_out = BACK_TANH(o, tanh)[:, :, None] * by_cell  # through the cell
            by_out = torch.cat([BACK_SIGMOID(tanh, o)[:, :, None], by_out], dim=2)
            each = d_all.transpose(0, 1)[steps]
            parts = each, each[:, :, 1:], each[:, :, 4:], each[:, :, :4].flatten(2)
            around = d_out[:-1][steps], d_out[1:][steps, :, None]
            for earlier, d, whole, rest, carry, flat, out_slope, cell_slope in _by_step(
                *around, *parts, by_out, by_cell, backwards=True
            ):
                torch.mul(d, out_slope, out=whole)
                rest.addcmul_(d_cell, cell_slope)
                d_cell = carry
                earlier.addmm_(flat, w_h)
        inputs = torch.cat([x, out[:-1].transpose(0, 1)], dim=2)  # (batch, time, inputs + hidden)
        return [(inputs, d_all[:, :, :4].flatten(2))]


class Gru(Recurrent):
    """One GRU layer, the numbers of ``nn.GRU``: gates r, z, n, and a map each for x and h.

    The reset gate multiplies the recurrent part of n alone, so the two maps see different
    gradients and cannot be one, as they are in :class:`Lstm`.
    """

    weight_h: nn.Parameter
    bias_h: nn.Parameter
    weight_x: nn.Parameter
    bias_x: nn.Parameter

    def __init__(self, inputs: int, hidden: int) -> None:
        gates = 3 * hidden
        of_x = {"weight_x": (gates, inputs), "bias_x": (gates,)}
        super().__init__(inputs, hidden, **of_x, weight_h=(gates, hidden), bias_h=(gates,))

    def fused(self, x: Tensor, sink: Sink) -> Tensor:
        n = self.size
        w_x, b_x, w_h, b_h = (w.detach() for w in self.weights())
        rest = w_h, torch.zeros_like(b_x), b_h
        gates, out, before = _fed(torch.gru, x, w_x, b_x, *rest, states=1)
        x = x.detach()
        reset = F.linear(before, w_h[:n], b_h[:n]).add_(gates.detach()[..., :n]).sigmoid_()

        def pairs(grad: Tensor) -> None:
            from_h = torch.cat([grad[..., : 2 * n], grad[..., 2 * n :] * reset], dim=2)
            sink([(x, grad), (before, from_h)])

        gates.register_hook(pairs)
        return out

    def run(self, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        w_x, b_x, w_h, b_h = self.weights()
        return _kernel(torch.gru, x, [w_x, w_h, b_x, b_h], state, states=1)

    def scan(self, x: Tensor, state: State | None) -> tuple[Tensor, Any]:
        n = self.size
        out, _ = self.run(x, state)
        before = self._before(out, state)
        gates = _by_time(x, self.weight_x, self.bias_x)  # (time, batch, 3 hidden)
        of_h, to_reset = F.linear(before[:-1], self.weight_h, self.bias_h).split([2 * n, n], dim=2)
        gates[..., : 2 * n].add_(of_h).sigmoid_()
        gates[..., 2 * n :].addcmul_(gates[..., :n], to_reset).tanh_()
        return out, (gates, to_reset, before)

    def scan_backward(self, x: Tensor, grad: Tensor, saved: Any) -> Pairs:
        gates, recurrent, out = saved
        n = self.size
        time, batch, _ = gates.shape
        # For each step the gradients of n, r, z by x, of n by h (r and z are shared), and of h.
        d_all = gates.new_empty(batch, time, 5, n)
        d_out = F.pad(grad.transpose(0, 1), (0, 0, 0, 0, 1, 0))  # [t] is before step t
        for steps in _several(gates):
            r, z, new = (x[steps] for x in gates.split(n, dim=2))
            by_new = (1 - z) * (1 - new * new)
            by_r = by_new * recurrent[steps] * (r * (1 - r))
            by_z = (out[:-1][steps] - new) * (z * (1 - z))
            slopes = torch.stack([by_new, by_r, by_z, by_new * r, z], dim=2)
            d_some = d_all.transpose(0, 1)[steps]
            parts = d_out[:-1][steps], d_out[1:][steps, :, None], d_some
            for earlier, d, each, flat, carry, slope in _by_step(
                *parts, d_some[:, :, 1:4].flatten(2), d_some[:, :, 4], slopes, backwards=True
            ):
                torch.mul(d, slope, out=each)
                earlier.add_(carry).addmm_(flat, self.weight_h)
        d_x = d_all[:, :, [1, 2, 0]].flatten(2)
        return [(x, d_x), (out[:-1].transpose(0, 1), d_all[:, :, 1:4].flatten(2))]


def _by_time(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """What each gate gets of the input, (time, batch, gates): in order, products are faster."""
    return F.linear(x.transpose(0, 1).contiguous(), weight, bias)


def _by_step(*parts: Tensor, backwards: bool = False) -> Iterator[tuple[Tensor, ...]]:
    """The parts of each step, of tensors whose first dimension is time."""
    steps = zip(*map(torch.unbind, parts), strict=True)
    return iter(list(steps)[::-1]) if backwards else steps


def _several(gates: Tensor) -> Iterator[slice]:
    """All steps of (time, batch, ·), the last ones first, as many at once as stay in the cache."""
    several = max(1, CACHED // max(1, 2 * gates.shape[1:].numel()))
    for end in range(len(gates), 0, -several):
        yield slice(max(0, end - several), end)


# --------------------------------------------------------------------------- torch's kernels
def _kernel(
    run: Callable[..., Any],
    x: Tensor,
    weights: list[Tensor],
    state: State | None,
    *,
    states: int,
) -> tuple[Tensor, State]:
    """``torch.lstm`` or ``torch.gru`` of one layer: (batch, time, hidden), and the last state."""
    start = state or [x.new_zeros(len(x), weights[1].shape[1])] * states
    if not x.numel():  # no text, or no step
        return x.new_zeros(*x.shape[:2], start[0].shape[1]), tuple(start)
    start = [h[None] for h in start]
    # has_biases, num_layers, dropout, train (keep what backward needs), bidirectional, batch_first
    options = len(weights) == 4, 1, 0.0, True, False, True
    out, *after = run(x, start if states == 2 else start[0], weights, *options)
    return out, tuple(h[0] for h in after)


def _fed(
    run: Callable[..., Any], x: Tensor, weight: Tensor, bias: Tensor, *rest: Tensor, states: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Pre-activations by the input, fed through an identity; the outputs, and those before each
    step, zeros before the first."""
    gates = F.linear(x, weight, bias)
    if torch.is_grad_enabled() and not gates.requires_grad:  # nothing before it learns
        gates.requires_grad_()
    identity = torch.eye(gates.shape[2], dtype=gates.dtype, device=gates.device)
    out, _ = _kernel(run, gates, [identity, *rest], None, states=states)
    return gates, out, F.pad(out.detach()[:, :-1], (0, 0, 1, 0))


class RecurrentLM(nn.Module):
    """Embedding, recurrent layers, linear head."""

    embedding: nn.Embedding
    layers: nn.ModuleList
    head: nn.Linear

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        cell = {"lstm": Lstm, "gru": Gru}[spec.kind]
        sizes = [spec.embedding or spec.hidden] + [spec.hidden] * spec.layers
        self.embedding = nn.Embedding(spec.vocab_size, sizes[0])
        self.layers = nn.ModuleList(cell(a, b) for a, b in itertools.pairwise(sizes))
        self.head = nn.Linear(spec.hidden, spec.vocab_size)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.head.weight, -0.1, 0.1)
        nn.init.zeros_(self.head.bias)
        if spec.tied:
            self.head.weight = self.embedding.weight

    def features(self, ids: Tensor) -> Tensor:
        """(batch, time) token ids -> (batch, time, hidden)."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, time) token ids -> (batch, time, vocabulary) logits."""
        return self.head(self.features(ids))


# --------------------------------------------------------------------------- the interface
@dataclass(frozen=True)
class Head:
    """The output layer: ``logits = cap(scale (h @ weight.T + bias))``, ``cap`` a scaled tanh or
    nothing."""

    weight: nn.Parameter  # (vocabulary, hidden)
    bias: nn.Parameter | None = None
    softcap: float | None = None
    scale: float = 1.0

    def logits(self, h: Tensor) -> Tensor:
        """(..., hidden) -> (..., vocabulary)."""
        z = F.linear(h, self.weight, self.bias) * self.scale
        return z if self.softcap is None else (z / self.softcap).tanh() * self.softcap


def core(model: nn.Module) -> Any:
    """The model of ``transformers`` inside: of one that ``peft`` has wrapped, with its adapters."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def head(model: nn.Module) -> Head:
    """The output layer of any model of this library.

    Raises ValueError where it is no plain linear map (an adapter on it would be left out).
    """
    if isinstance(model, RecurrentLM):
        return Head(model.head.weight, model.head.bias)
    layer = core(model).get_output_embeddings()
    if type(layer) is not nn.Linear:
        raise ValueError(f"model: its output layer is a {type(layer).__name__}: must be nn.Linear")
    config = core(model).config
    softcap = getattr(config, "final_logit_softcapping", None)
    return Head(layer.weight, layer.bias, softcap, _logit_scale(config))


def _logit_scale(config: Any) -> float:
    """By what an architecture multiplies its logits: Cohere, Granite and Falcon H1 do. One that
    says so elsewhere is refused before it is trained (:mod:`crtlib.training.probe`)."""
    scale = 1.0
    for name in ("logit_scale", "lm_head_multiplier"):
        scale *= float(getattr(config, name, None) or 1.0)
    return scale / float(getattr(config, "logits_scaling", None) or 1.0)


def hidden(model: nn.Module, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
    """What the head reads: ids (B, T) -> (B, T, hidden).

    ``lengths`` (B,) hides padding from models that look ahead (BERT); the others need no mask.
    """
    if isinstance(model, RecurrentLM):
        return model.features(ids)
    batch, time = ids.shape
    limit = context(model)
    if limit is not None and time > limit:
        raise ValueError(f"sequence of {time} tokens: must be at most {limit}")
    whole = core(model)
    # One row of positions for each example, or the position table would see a batch of one.
    positions = torch.arange(time, device=ids.device).repeat(batch, 1)
    positions.unpacked = True  # type: ignore[attr-defined]
    _unpacked()
    if is_causal(model):
        base = whole.base_model
        return base(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state
    if lengths is not None:
        lengths = lengths.to(ids.device, non_blocking=True)
    mask = None if lengths is None else (positions < lengths.clamp_min(1)[:, None]).long()
    out = whole.base_model(
        input_ids=ids,
        position_ids=positions,
        token_type_ids=torch.zeros_like(ids),
        attention_mask=mask,
    )
    return whole.cls.predictions.transform(out.last_hidden_state)


@functools.cache
def _unpacked() -> None:
    """Tell ``transformers`` of positions that are of one text a row: it would look, and so wait for
    a GPU."""
    from transformers import masking_utils

    look = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda positions: (
        None if hasattr(positions, "unpacked") else look(positions)
    )


def context(model: nn.Module) -> int | None:
    """The longest sequence that the model reads; ``None``: no limit (also BLOOM's)."""
    if isinstance(model, RecurrentLM):
        return None
    return getattr(core(model).config, "max_position_embeddings", None)


def is_causal(model: nn.Module) -> bool:
    """Whether it predicts the next token (and not a masked one)."""
    return isinstance(model, RecurrentLM) or core(model).config.model_type != "bert"


def device_of(model: nn.Module) -> torch.device:
    """Where the model is. Raises ValueError for a model on several devices."""
    devices = sorted({str(p.device) for p in model.parameters()})
    if len(devices) != 1:
        raise ValueError(f"model: is on {' and '.join(devices)}: must be on one device")
    return torch.device(devices[0])


# --------------------------------------------------------------------------- building
def build(spec: ModelSpec, seed: int) -> nn.Module:
    """A fresh model on the CPU, the same for the same ``seed``; global randomness is untouched."""
    with drawing(seed):
        return RecurrentLM(spec) if spec.recurrent else _transformer(spec)


def _transformer(spec: ModelSpec) -> nn.Module:
    import transformers

    tied = spec.tied is not False
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    common = {"vocab_size": spec.vocab_size, "tie_word_embeddings": tied, **ids}
    if spec.kind == "gpt2":
        config = transformers.GPT2Config(
            n_embd=spec.hidden,
            n_layer=spec.layers,
            n_head=spec.heads,
            n_positions=spec.context,
            activation_function="gelu_pytorch_tanh",  # the same function as gelu_new, in one piece
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            **common,
        )
        return transformers.GPT2LMHeadModel(config)
    common |= {
        "hidden_size": spec.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "intermediate_size": 4 * spec.hidden,
        "max_position_embeddings": spec.context,
    }
    if spec.kind == "bert":
        drop = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return transformers.BertForMaskedLM(transformers.BertConfig(**common, **drop))
    config = transformers.Gemma2Config(
        head_dim=spec.hidden // spec.heads,
        query_pre_attn_scalar=spec.hidden // spec.heads,
        num_key_value_heads=max(d for d in (1, 2) if spec.heads % d == 0),
        sliding_window=max(1, spec.context // 2),
        attn_implementation="eager",  # the other kernels have no cap on attention logits
        **common,
    )
    return transformers.Gemma2ForCausalLM(config)
