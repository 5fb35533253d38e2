"""Hooks that fill the book during one forward and one backward pass of a model.

>>> from crtlib.models.construction import build_model
>>> from crtlib.models.specs import ModelSpec
>>> model = build_model(ModelSpec("lstm", vocab_size=9, embedding=4, hidden=5), seed=0)
>>> book = GradientRecorder(model, batch=1)
>>> with book.recording(model):
...     h = interface.hidden_states(model, torch.tensor([[1, 2, 3]]))
>>> book.backward(h, torch.ones_like(h))
>>> [len(book.entries[p]) for p in model.parameters()]  # the head is not part of this pass
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
"""Up to this share of a squared norm its rounding is not charged, so that ordinary gradients are
clipped by the number that was computed. That bounds the worst; ordinary ones are off by 1e-6."""
UNCHARGED_DENSE_SHARE = 6e-4
"""The same of the square of a gradient that was formed, in which nothing can cancel."""


class GradientRecorder:
    """Entries of each parameter, filled during one forward and one backward pass.

    ``again``: what the layers compute now was computed before, and forgotten to save memory
    (gradient checkpointing): it has to come out the same, and is not entered twice.
    """

    def __init__(self, model: nn.Module, batch: int) -> None:
        self.batch = batch
        self.parameters = trainable_parameters(model)
        self.entries: dict[nn.Parameter, list[Any]] = {p: [] for p in self.parameters.values()}
        self.squares: list[tuple[slice, BoundedSum]] = []
        self.again = False
        head = interface.output_head(model)
        self.uses = Counter(p for p in (head.weight, head.bias) if p is not None)
        self.waiting: dict[Any, list[tuple[nn.Module, Tensor, Tensor]]] = {}
        self.has_large_inputs = False

    def add(self, entry: Any) -> None:
        """Enter it, and count its norm and its cross terms with earlier entries."""
        earlier = self.entries[entry.parameter]
        with float32_matmul:
            self.squares.append((entry.span, entry.square()))
            for other in earlier:
                a, b = (other, entry) if other.span == ALL_EXAMPLES else (entry, other)
                if a.span == b.span or ALL_EXAMPLES in (a.span, b.span):
                    cross, size, share = cross_inner_products(a, b)
                    self.squares.append((b.span, BoundedSum(2 * cross, size, 2 * share)))
        earlier.append(entry)

    def norms(self) -> Tensor:
        """Norm of each example's whole gradient, over all parameters that learn.

        Returns:
            (B,), in float32 at least.

        Guarantee:
            The true norm is at most ``1 + 1.3e-3`` of it, also where positions or entries cancel:
            what rounding may have hidden (:class:`BoundedSum`) is added where it is more than
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
        """Add the sum over examples, each times its factor; where that is 0, nothing at all."""
        none = factors == 0
        # To sift small entries takes a GPU less than to be waited for; large ones, more.
        some = not (is_on_host(none) or self.has_large_inputs) or bool(none.any())
        of = functools.cache(lambda x, layers: x.repeat(layers) if layers > 1 else x)
        with float32_matmul:
            for entry in itertools.chain(*self.entries.values()):
                layers = len(entry.parameters) if isinstance(entry, StackedGrad) else 1
                if some:  # a gradient that is not finite: 0 times infinity would be no number
                    entry.leave_out(of(none, layers))
                entry.add(of(factors, layers))

    @contextlib.contextmanager
    def recording(self, model: nn.Module) -> Iterator[None]:
        """While active, layers work with frozen weights and register for their output gradient;
        it ends after the backward pass, which may compute them ``again``.

        Frozen, so that autograd does not spend a third of the backward pass on weight gradients
        that would mix the examples.
        """
        handles = []
        owners = [
            (name, module, own) for name, module in model.named_modules()
            if (own := [p for p in module.parameters(recurse=False) if p.requires_grad])
        ]  # fmt: skip
        head = {id(interface.output_head(model).weight), id(interface.output_head(model).bias)}
        try:
            for name, module, own in owners:
                if isinstance(module, RecurrentLayer):
                    module.sink = self._recurrent_sink(module)
                elif rule := find_layer_rule(module):
                    before, after = self._hooks(name, module, own, rule)
                    handles.append(module.register_forward_pre_hook(before))
                    handles.append(
                        module.register_forward_hook(after, with_kwargs=True, always_call=True)
                    )
                elif not all(id(p) in head for p in own):
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
        self, name: str, module: nn.Module, own: list[nn.Parameter], rule: LayerRule
    ) -> tuple[Callable[..., None], Callable[..., None]]:
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

    def _record(self, rule: LayerRule, module: nn.Module, x: Tensor, grad: Tensor) -> None:
        grad, own = grad.detach(), [*module.parameters(recurse=False)]
        small = not is_on_host(x) and x.numel() <= MAX_STACKED_INPUT_NUMBERS
        small &= layer_class_name(module) in LAYER_RULES  # else it was proved for itself alone
        self.has_large_inputs |= not small
        if small and rule is not embedding_entries and all(self.uses[p] == 1 for p in own):
            kind = (
                layer_class_name(module),
                norm_layer_epsilon(module),
                *((p.shape, p.requires_grad) for p in own),
            )
            sizes = x.shape, x.dtype, grad.shape, grad.dtype
            self.waiting.setdefault((rule, kind, sizes), []).append((module, x, grad))
        else:
            self._enter(rule, [(module, x, grad)])

    def _enter(self, rule: LayerRule, records: list[tuple[nn.Module, Tensor, Tensor]]) -> None:
        """Entries of one layer, or of several of one kind and shape together."""
        layers, *both = zip(*records, strict=True)
        x, grad = (torch.cat(each) if len(each) > 1 else each[0] for each in both)
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
