"""Language models behind one small interface, so training and attacks need not know their kind.

:func:`hidden_states` and :func:`output_head` are all that training needs from our recurrent models
and from causal models of ``transformers``, also if ``peft`` wraps them.
:mod:`crtlib.models.scoring` uses them as well.

>>> from crtlib.models.specs import ModelSpec
>>> model = RecurrentLM(ModelSpec("lstm", vocab_size=7, embedding=4, hidden=5))
>>> h = hidden_states(model, torch.tensor([[1, 2, 3]]))
>>> h.shape, output_head(model).logits(h).shape
(torch.Size([1, 3, 5]), torch.Size([1, 3, 7]))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crtlib.models.recurrent_lm import RecurrentLM
from crtlib.models.transformers_patches import skip_packing_check


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
        z = F.linear(h, self.weight, self.bias)
        if self.scale != 1.0:
            z = z * self.scale
        return z if self.softcap is None else (z / self.softcap).tanh() * self.softcap


def unwrap_model(model: nn.Module) -> Any:
    """The model of ``transformers`` inside one that ``peft`` has wrapped, with its adapters; any
    other model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def layers_below_head(model: nn.Module) -> Any:
    """The part of a ``transformers`` model that computes the input of its output layer.

    Raises ValueError if ``transformers`` does not state which part that is, as for Llama 4.
    """
    unwrapped = unwrap_model(model)
    if unwrapped.base_model is unwrapped:
        raise ValueError(
            f"model: is a {type(unwrapped).__name__}, for which transformers does not say what its "
            "output layer reads: must be a model whose base_model is not itself"
        )
    return unwrapped.base_model


def output_head(model: nn.Module) -> Head:
    """The output layer of any model of this library.

    Raises ValueError if it is not a plain linear map (an adapter on it would be left out).
    """
    if isinstance(model, RecurrentLM):
        return Head(model.head.weight, model.head.bias)
    layer = unwrap_model(model).get_output_embeddings()
    if type(layer) is not nn.Linear:
        raise ValueError(f"model: its output layer is a {type(layer).__name__}: must be nn.Linear")
    config = unwrap_model(model).config
    softcap = getattr(config, "final_logit_softcapping", None)
    return Head(layer.weight, layer.bias, softcap, _logit_scale(config))


def _logit_scale(config: Any) -> float:
    """The factor by which an architecture multiplies its logits, as Cohere, Granite and Falcon H1
    do. A model that states it elsewhere is refused before training
    (:mod:`crtlib.training.probe`)."""
    scale = 1.0
    for name in ("logit_scale", "lm_head_multiplier"):
        scale *= float(getattr(config, name, None) or 1.0)
    return scale / float(getattr(config, "logits_scaling", None) or 1.0)


def hidden_states(model: nn.Module, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
    """The input of the head: ids (B, T) -> (B, T, hidden).

    ``lengths`` (B,) hides padding from models that look ahead (BERT); the others need no mask.
    """
    if isinstance(model, RecurrentLM):
        return model.features(ids)
    batch, time = ids.shape
    limit = context_length(model)
    if limit is not None and time > limit:
        raise ValueError(f"sequence of {time} tokens: must be at most {limit}")
    unwrapped = unwrap_model(model)
    # One row of positions for each example, or the position table would see a batch of one.
    positions = torch.arange(time, device=ids.device).repeat(batch, 1)
    positions.unpacked = True  # type: ignore[attr-defined]
    skip_packing_check()
    base = layers_below_head(model)
    if is_causal(model):
        return base(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state
    if lengths is not None:
        lengths = lengths.to(ids.device, non_blocking=True)
    mask = None if lengths is None else (positions < lengths.clamp_min(1)[:, None]).long()
    base_output = base(
        input_ids=ids,
        position_ids=positions,
        token_type_ids=torch.zeros_like(ids),
        attention_mask=mask,
    )
    return unwrapped.cls.predictions.transform(base_output.last_hidden_state)


def context_length(model: nn.Module) -> int | None:
    """The length of the longest sequence that the model reads; None: no limit (as for BLOOM)."""
    if isinstance(model, RecurrentLM):
        return None
    config = unwrap_model(model).config
    # MPT makes its slopes for attention for this many tokens, under another name.
    return getattr(config, "max_position_embeddings", getattr(config, "max_seq_len", None))


def is_causal(model: nn.Module) -> bool:
    """Whether the model predicts the next token (and not a masked one)."""
    return not type(unwrap_model(model)).__name__.endswith("ForMaskedLM")


def device_of(model: nn.Module) -> torch.device:
    """The device of the model. Raises ValueError for a model on several devices."""
    devices = sorted({str(p.device) for p in model.parameters()})
    if len(devices) != 1:
        raise ValueError(f"model: is on {' and '.join(devices)}: must be on one device")
    return torch.device(devices[0])
