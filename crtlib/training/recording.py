"""Hooks that fill the book during one forward and one backward pass of a model.

>>> from crtlib.models.build import build
>>> from crtlib.models.spec import ModelSpec
>>> model = build(ModelSpec("lstm", vocab_size=9, embedding=4, hidden=5), seed=0)
>>> book = Book(model, batch=1)
>>> with book.recording(model):
...     h = interface.hidden(model, torch.tensor([[1, 2, 3]]))
>>> book.backward(h, torch.ones_like(h))
>>> [len(book.entries[p]) for p in model.parameters()]  # the head is not part of this pass
[1, 1, 1, 0, 0]
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from crtlib.models import interface
from crtlib.models.recurrent import Recurrent
from crtlib.training.bookkeeping import (
    ALL,
    Entry,
    Outer,
    UnknownLayer,
    Whole,
    cross,
    outer,
    trainable,
)
from crtlib.training.layers import RULES, Rule, flattened, input_of, name_of
from crtlib.training.rounding import exact


class Book:
    """Entries of each parameter, filled during one forward and one backward pass.

    ``again``: what the layers compute now was computed before, and forgotten to save memory
    (gradient checkpointing): it has to come out the same, and is not entered twice.
    """

    def __init__(self, model: nn.Module, batch: int) -> None:
        self.batch = batch
        self.parameters = trainable(model)
        self.entries: dict[nn.Parameter, list[Entry]] = {p: [] for p in self.parameters.values()}
        self.squares: list[tuple[slice, Tensor]] = []
        self.flattened = flattened(model)
        self.again = False

    def add(self, entry: Entry) -> None:
        """Enter it, and count its norm and its cross terms with earlier entries."""
        earlier = self.entries[entry.parameter]
        with exact:
            self.squares.append((entry.span, entry.square()))
            for other in earlier:
                a, b = (entry, other) if isinstance(other, Outer) else (other, entry)
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
        # A GPU waits here once, which takes less than to sift all entries where there is nothing.
        if none.any():  # a gradient that is not finite: 0 times infinity would be no number
            for entries in self.entries.values():
                for entry in entries:
                    entry.leave_out(none)
        with exact:
            for entries in self.entries.values():
                for entry in entries:
                    entry.add(factors)

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
        head = {id(interface.head(model).weight), id(interface.head(model).bias)}
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
            x = self._by_example(module, input_of(module, args, kwargs))
            if len(x) != self.batch:
                raise UnknownLayer(f"parameter {name!r}: its input has {len(x)} rows, not one "
                                   "for each example")  # fmt: skip
            if not out.requires_grad:
                out.requires_grad_()
            out.register_hook(lambda grad: self._record(rule, module, x, grad))

        return before, after

    def _record(self, rule: Rule, module: nn.Module, x: Tensor, grad: Tensor) -> None:
        for entry in rule(module, x, self._by_example(module, grad.detach())):
            self.add(entry)

    def _by_example(self, module: nn.Module, x: Tensor) -> Tensor:
        return x.view(self.batch, -1, x.shape[-1]) if module in self.flattened else x

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
            for name, p in self.parameters.items():
                if p.grad is not None:
                    raise UnknownLayer(f"parameter {name!r}: is used outside of its own layer")
        finally:
            for name, p in self.parameters.items():
                p.grad = kept[name]
