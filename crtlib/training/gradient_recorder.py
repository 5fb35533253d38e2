"""Hooks that record each layer's input and output gradient in one forward and backward pass.

>>> from crtlib.models.construction import build_model
>>> from crtlib.models.specs import ModelSpec
>>> model = build_model(ModelSpec("lstm", vocab_size=9, embedding=4, hidden=5), seed=0)
>>> recorder = GradientRecorder(model, batch=1)
>>> with recorder.recording(model):
...     h = interface.hidden_states(model, torch.tensor([[1, 2, 3]]))
>>> recorder.backward(h, torch.ones_like(h))
>>> [len(recorder.entries[p]) for p in model.parameters()]  # the head is not part of this pass
[1, 1, 1, 0, 0]
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from crtlib.models import interface
from crtlib.models.recurrent import RecurrentLayer
from crtlib.training.devices import is_on_host
from crtlib.training.gradient_entries import (
    ALL_EXAMPLES,
    MAX_STACKED_INPUT_NUMBERS,
    BoundedSum,
    DenseGrad,
    StackedGrad,
    UnknownLayer,
    choose_matrix_entry,
    cross_inner_products,
    trainable_parameters,
)
from crtlib.training.layer_rules import (
    LAYER_RULES,
    LayerRule,
    embedding_entries,
    find_layer_rule,
    layer_class_name,
    norm_layer_epsilon,
)
from crtlib.training.matmul_precision import float32_matmul

UNCHARGED_SHARE = 2e-3
"""The share of a squared norm up to which its rounding is not charged, so that ordinary gradients
are clipped by the number that was computed. This is the worst case; ordinary ones are off by
1e-6."""
UNCHARGED_DENSE_SHARE = 6e-4
"""The same share for a gradient that was formed, in whose square nothing can cancel."""


class GradientRecorder:
    """Gradient entries of each parameter, recorded in one forward and one backward pass.

    ``is_recomputing``: the layers are computing again what was discarded to save memory (gradient
    checkpointing). The result has to be the same, and is not recorded twice.
    """

    def __init__(self, model: nn.Module, batch: int) -> None:
        self.batch = batch
        self.parameters = trainable_parameters(model)
        self.entries: dict[nn.Parameter, list[Any]] = {p: [] for p in self.parameters.values()}
        self.squares: list[tuple[slice, BoundedSum]] = []
        self.is_recomputing = False
        head = interface.output_head(model)
        self.uses = Counter(p for p in (head.weight, head.bias) if p is not None)
        self.waiting: dict[Any, list[tuple[nn.Module, Tensor, Tensor]]] = {}
        self.has_large_inputs = False

    def add(self, entry: Any) -> None:
        """Record an entry, with its squared norm, and its cross terms with earlier entries of the
        same parameter."""
        earlier_entries = self.entries[entry.parameter]
        with float32_matmul:
            self.squares.append((entry.span, entry.square()))
            for earlier_entry in earlier_entries:
                a, b = entry, earlier_entry
                if earlier_entry.span == ALL_EXAMPLES:
                    a, b = earlier_entry, entry
                if a.span == b.span or ALL_EXAMPLES in (a.span, b.span):
                    cross, size, share = cross_inner_products(a, b)
                    self.squares.append((b.span, BoundedSum(2 * cross, size, 2 * share)))
        earlier_entries.append(entry)

    def norms(self) -> Tensor:
        """The norm of each example's gradient over all trainable parameters.

        Returns:
            (B,), at least in float32.

        Guarantee:
            The true norm is at most ``1 + 1.3e-3`` times the result, even if positions or entries
            cancel: what rounding may have hidden (:class:`BoundedSum`) is added if it is more than
            ``UNCHARGED_SHARE`` of the square. Test:
            ``tests/training/test_rounding.py::test_what_cancels_is_clipped``.
        """
        first = self.squares[0][1].size
        total = torch.zeros(self.batch, dtype=torch.float64, device=first.device)
        hidden = torch.zeros_like(total)
        for span, (square, size, share) in self.squares:
            total[span].add_(square)  # not +=, which copies the sum onto itself
            if size is not square or share > UNCHARGED_DENSE_SHARE:
                hidden[span].add_(size, alpha=share)
        total.clamp_min_(0)
        total = torch.where(hidden > UNCHARGED_SHARE * total, total + hidden, total)
        return total.sqrt().to(first.dtype)

    def add_clipped(self, factors: Tensor) -> None:
        """Add the sum over examples, each times its factor; an example with factor 0 adds nothing
        at all, even if it is not finite."""
        left_out = factors == 0
        # On a GPU, masking small entries in vain takes less time than waiting to know whether there
        # is anything to mask; masking large ones takes more.
        masks = not (is_on_host(left_out) or self.has_large_inputs) or bool(left_out.any())
        repeat = functools.cache(lambda x, layers: x.repeat(layers) if layers > 1 else x)
        with float32_matmul:
            for entry in itertools.chain(*self.entries.values()):
                layers = len(entry.parameters) if isinstance(entry, StackedGrad) else 1
                if masks:  # 0 times a gradient that is not finite would be NaN
                    entry.leave_out(repeat(left_out, layers))
                entry.add(repeat(factors, layers))

    @contextlib.contextmanager
    def recording(self, model: nn.Module) -> Iterator[None]:
        """While active, layers run with frozen weights, and hooks record their inputs and output
        gradients. Leave it only after the backward pass, which may recompute some layers.

        The weights are frozen so that autograd does not spend a third of the backward pass on
        weight gradients that would mix the examples.
        """
        handles = []
        owners = [
            (name, module, learning) for name, module in model.named_modules()
            if (learning := [p for p in module.parameters(recurse=False) if p.requires_grad])
        ]  # fmt: skip
        head = {id(interface.output_head(model).weight), id(interface.output_head(model).bias)}
        try:
            for name, module, learning in owners:
                if isinstance(module, RecurrentLayer):
                    module.sink = self._recurrent_sink(module)
                elif rule := find_layer_rule(module):
                    before_forward, after_forward = self._hooks(name, module, learning, rule)
                    handles += [
                        module.register_forward_pre_hook(before_forward),
                        module.register_forward_hook(
                            after_forward, with_kwargs=True, always_call=True
                        ),
                    ]
                elif not all(id(p) in head for p in learning):
                    raise UnknownLayer(
                        f"parameter {name!r}: no rule for {layer_class_name(module)}"
                    )
            yield
        finally:
            for handle in handles:
                handle.remove()
            for _, module, _ in owners:
                if isinstance(module, RecurrentLayer):
                    module.sink = None

    def _hooks(
        self, name: str, module: nn.Module, learning: list[nn.Parameter], rule: LayerRule
    ) -> tuple[Callable[..., None], Callable[..., None]]:
        """Return what is called before and after the forward pass of a layer."""

        def before_forward(_module: nn.Module, _args: tuple[Any, ...]) -> None:
            for p in learning:
                p.requires_grad_(False)

        def after_forward(
            _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor | None
        ) -> None:
            for p in learning:
                p.requires_grad_(True)
            if output is None:  # the layer raised
                return
            if self.is_recomputing:
                output.requires_grad_()
                return
            self.uses.update(learning)
            x = (*args, *kwargs.values())[0].detach()
            if len(x) != self.batch:
                raise UnknownLayer(f"parameter {name!r}: its input has {len(x)} rows, not one "
                                   "for each example")  # fmt: skip
            if not output.requires_grad:
                output.requires_grad_()
            output.register_hook(lambda grad: self._record(rule, module, x, grad))

        return before_forward, after_forward

    def _record(self, rule: LayerRule, module: nn.Module, x: Tensor, grad: Tensor) -> None:
        """Add the entries of a layer now. Small layers on a GPU wait until the backward pass is
        over, and are then added together with the others of their kind and shape."""
        grad, parameters = grad.detach(), [*module.parameters(recurse=False)]
        small = not is_on_host(x) and x.numel() <= MAX_STACKED_INPUT_NUMBERS
        small &= layer_class_name(module) in LAYER_RULES  # else the rule holds for this layer only
        self.has_large_inputs |= not small
        if small and rule is not embedding_entries and all(self.uses[p] == 1 for p in parameters):
            kind = (
                layer_class_name(module),
                norm_layer_epsilon(module),
                *((p.shape, p.requires_grad) for p in parameters),
            )
            sizes = x.shape, x.dtype, grad.shape, grad.dtype
            self.waiting.setdefault((rule, kind, sizes), []).append((module, x, grad))
        else:
            self._add_entries(rule, [(module, x, grad)])

    def _add_entries(
        self, rule: LayerRule, records: list[tuple[nn.Module, Tensor, Tensor]]
    ) -> None:
        """Add the entries of one layer, or of several of one kind and shape together."""
        layers, inputs, grads = zip(*records, strict=True)
        x, grad = (
            torch.cat(tensors) if len(tensors) > 1 else tensors[0] for tensors in (inputs, grads)
        )
        for entry in rule(layers[0], x, grad):
            if len(layers) > 1:
                name = next(n for n, p in layers[0].named_parameters() if p is entry.parameter)
                self.add(StackedGrad([getattr(layer, name) for layer in layers], entry))
            else:
                self.add(entry)

    def _recurrent_sink(
        self, module: RecurrentLayer
    ) -> Callable[[list[tuple[Tensor, Tensor]]], None]:
        weights = module.weights()

        def sink(pairs: list[tuple[Tensor, Tensor]]) -> None:
            for (x, grad), weight, bias in zip(pairs, weights[::2], weights[1::2], strict=True):
                if weight.requires_grad:
                    self.add(choose_matrix_entry(weight, grad, x))
                if bias.requires_grad:
                    self.add(DenseGrad(bias, grad.sum(1)))

        return sink

    def backward(self, hidden: Tensor, d_h: Tensor) -> None:
        """Run the backward pass from ``hidden``, whose gradient is ``d_h``. Raises UnknownLayer if
        a parameter was used outside of the layer that owns it."""
        grads_before = {name: p.grad for name, p in self.parameters.items()}
        for p in self.parameters.values():
            p.grad = None
        try:
            torch.autograd.backward([hidden], [d_h])
            while self.waiting:  # autograd no longer keeps what is copied here
                (rule, *_), records = self.waiting.popitem()
                self._add_entries(rule, records)
            for name, p in self.parameters.items():
                if p.grad is not None:
                    raise UnknownLayer(f"parameter {name!r}: is used outside of its own layer")
        finally:
            for name, p in self.parameters.items():
                p.grad = grads_before[name]
