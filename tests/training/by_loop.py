"""The definition of a clipped sum: autograd on each example alone. The reference of every test."""

import torch
import torch.nn.functional as F

from crtlib.models import interface
from crtlib.training.clipping import LossesAndNorms
from crtlib.training.gradient_entries import (
    accumulation_dtype,
    clip_factors,
    gradient_buffer,
    trainable_parameters,
)
from crtlib.training.layer_rules import refuse_unfit_layers
from crtlib.training.micro_batch import SortedExamples


def add_clipped_gradients(model, tokens, lengths, *, clip_norm, targets=None, reduction="mean"):
    refuse_unfit_layers(model)
    batch = SortedExamples.make(model, tokens, lengths, targets, reduction)
    if not len(batch.inputs):
        return LossesAndNorms(torch.zeros(len(tokens)), torch.zeros(len(tokens)))
    parameters = list(trainable_parameters(model).values())
    losses, norms = [], []
    for i, extent in enumerate(batch.extents):
        one = slice(i, i + 1)
        if extent == 0:
            losses.append(batch.weights.new_zeros(()))
            norms.append(batch.weights.new_zeros(()))
            continue
        h = interface.hidden_states(model, batch.inputs[one, :extent], batch.lengths[one])
        logits = interface.output_head(model).logits(h)[0]
        nll = F.cross_entropy(
            logits.to(accumulation_dtype(logits)), batch.targets[i, :extent], reduction="none"
        )
        loss = (nll * batch.weights[i, :extent]).sum()
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        squares = [g.double().square().sum() for g in grads if g is not None]
        norm = torch.stack(squares).sum().sqrt().to(loss.dtype)
        factor = clip_factors(norm, clip_norm)
        for p, g in zip(parameters, grads, strict=True):
            if g is not None and factor > 0:  # 0 times infinity would be no number
                gradient_buffer(p).add_(g * factor)
        losses.append(loss.detach())
        norms.append(norm)
    return LossesAndNorms(*batch.restored(torch.stack(losses), torch.stack(norms)))
