"""The same clipped sums by Opacus (Yousefpour et al. 2021): a second opinion on our engine.

Recurrent models are mirrored in Opacus' own layers, which share the weights' values; transformers
are wrapped as they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crtlib.models import interface, recurrent_lm
from crtlib.models.recurrent import Lstm, RecurrentLayer
from crtlib.training import clipping
from crtlib.training.gradient_entries import clip_factors, gradient_buffer
from crtlib.training.layer_rules import refuse_unfit_layers
from crtlib.training.matmul_precision import float32_matmul
from crtlib.training.micro_batch import SortedExamples


class Mirror(nn.Module):
    """The model as Opacus can take it: ids (B, T) and lengths (B,) -> logits (B, T, V).

    ``give_back`` maps per-example gradients of the mirror to those of the model's parameters.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.give_back: list[tuple[nn.Parameter, Callable[[], Tensor]]] = []
        self.of_recurrent: list[nn.Module] | None = None
        if not isinstance(model, recurrent_lm.RecurrentLM):
            self.model, self.softcap = model, interface.output_head(model).softcap
            self._same(model)
            return
        self.embedding, self.head = model.embedding, model.head
        self.of_recurrent = [self._mirrored(layer) for layer in model.layers]
        self.layers = nn.ModuleList(self.of_recurrent)
        self._same(model.embedding, model.head)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """(B, T) ids and (B,) lengths -> (B, T, V) logits."""
        if self.of_recurrent is not None:
            x = self.embedding(ids)
            for layer in self.of_recurrent:
                x, _ = layer(x)
            logits: Tensor = self.head(x)
            return logits
        output = interface.unwrap_model(self.model).get_output_embeddings()
        logits = output(interface.hidden_states(self.model, ids, lengths))
        return logits if self.softcap is None else (logits / self.softcap).tanh() * self.softcap

    def _same(self, *modules: nn.Module) -> None:
        parameters = [p for m in modules for p in m.parameters() if p.requires_grad]
        self.give_back += [(p, partial(_sample, p)) for p in dict.fromkeys(parameters)]

    def _mirrored(self, layer: nn.Module) -> nn.Module:
        from opacus.layers import DPGRU, DPLSTM

        assert isinstance(layer, RecurrentLayer)
        lstm = isinstance(layer, Lstm)
        theirs: Any = (DPLSTM if lstm else DPGRU)(layer.inputs, layer.size, batch_first=True)
        theirs.to(next(layer.parameters()))
        x, h = theirs.cells[0].ih, theirs.cells[0].hh
        ours = layer.weights()
        if lstm:  # one matrix and one bias for us, two of each for them
            with torch.no_grad():
                w_x, w_h = _to_theirs(ours[0]).split([layer.inputs, layer.size], dim=1)
                x.weight.copy_(w_x), h.weight.copy_(w_h), x.bias.copy_(_to_theirs(ours[1]))
                h.bias.zero_().requires_grad_(False)
            pairs = [(ours[0], (x.weight, h.weight)), (ours[1], (x.bias,))]
            given = [(q, partial(_to_ours, *parts)) for q, parts in pairs]
        else:
            weights = (x.weight, x.bias, h.weight, h.bias)
            with torch.no_grad():
                for p, q in zip(weights, ours, strict=True):
                    p.copy_(q)
            given = [(q, partial(_sample, p)) for p, q in zip(weights, ours, strict=True)]
        self.give_back += [(q, grads) for q, grads in given if q.requires_grad]
        return cast(nn.Module, theirs)


def _sample(parameter: Any) -> Tensor:
    """The gradients (B, *shape) that Opacus has left there."""
    return cast(Tensor, parameter.grad_sample)


def _to_theirs(ours: Tensor) -> Tensor:
    """Gates in the order of ``nn.LSTM``."""
    o, i, f, g = ours.chunk(4)
    return torch.cat([i, f, g, o])


def _to_ours(*parts: Any) -> Tensor:
    """Their gradients of these parameters side by side, with the gates in our order."""
    i, f, g, o = torch.cat([_sample(p) for p in parts], dim=-1).chunk(4, dim=1)
    return torch.cat([o, i, f, g], dim=1)


def add_clipped_gradients(
    model: nn.Module,
    tokens: Tensor,
    lengths: Tensor,
    *,
    clip_norm: float,
    targets: Tensor | None = None,
) -> clipping.LossesAndNorms:
    """As :func:`crtlib.training.clipping.add_clipped_gradients`.

    Opacus keeps every example's whole gradient: memory grows as batch times parameters.
    """
    from opacus.grad_sample import GradSampleModule

    refuse_unfit_layers(model)
    batch = SortedExamples.make(model, tokens, lengths, targets, "mean")
    training = {module: module.training for module in model.modules()}
    before = {p: p.grad for p in model.parameters()}
    mirror, wrapped = Mirror(model).train(), None  # Opacus records in training mode only
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch on full backward hooks of integer inputs
        try:
            refuse_unfit_layers(mirror)
            for p in before:
                p.grad = None
            wrapped = GradSampleModule(mirror, loss_reduction="sum")
            logits = wrapped(batch.inputs, batch.lengths).transpose(1, 2)
            nll = F.cross_entropy(logits, batch.targets, reduction="none")
            losses = (nll * batch.weights).sum(1)
            losses.sum().backward()
            grads = [(p, grad()) for p, grad in mirror.give_back]
        except NotImplementedError as error:
            raise ValueError(f"opacus: {error}") from None
        finally:
            if wrapped is not None:
                wrapped.cleanup()
            for module in mirror.modules():
                vars(module).pop("activations", None)
            for module, mode in training.items():
                module.training = mode
            for p, grad in before.items():
                p.grad = grad
    if any(g is None for _, g in grads):
        raise ValueError("opacus: some parameters have no rule there")
    with torch.no_grad():
        norms = torch.stack([g.flatten(1).norm(dim=1) for _, g in grads], 1).norm(dim=1)
        factors = clip_factors(norms, clip_norm)
        with float32_matmul:
            for p, g in grads:
                g[factors == 0] = 0  # 0 times infinity would be no number
                gradient_buffer(p).add_(torch.einsum("b,b...->...", factors, g))
    return clipping.LossesAndNorms(*batch.restored(losses.detach(), norms))
