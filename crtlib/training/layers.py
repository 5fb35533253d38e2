"""A rule for each kind of layer: its input and the gradient of its output become entries.

>>> import torch
>>> layer, x, grad = nn.Linear(3, 2), torch.ones(1, 4, 3), torch.ones(1, 4, 2)
>>> entries = RULES[name_of(layer)](layer, x, grad)
>>> [(type(entry).__name__, round(float(entry.square()), 4)) for entry in entries]
[('Whole', 32.0), ('Outer', 96.0)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from crtlib.training.bookkeeping import Entry, Lookup, Whole, outer, wide

# The layers belong to other libraries, some without types: a rule reads what its kind has.
Rule = Callable[[Any, Tensor, Tensor], Iterator[Entry]]


def _linear(layer: Any, x: Tensor, grad: Tensor) -> Iterator[Entry]:
    x, grad = x.reshape(len(x), -1, x.shape[-1]), grad.reshape(len(grad), -1, grad.shape[-1])
    if layer.bias is not None and layer.bias.requires_grad:
        yield Whole(layer.bias, grad.sum(1, dtype=wide(grad)))
    if layer.weight.requires_grad:
        # transformers' Conv1D keeps its weight transposed
        flip = layer.weight.shape[0] != grad.shape[2] or type(layer).__name__ == "Conv1D"
        rows, columns = (x.to(grad.dtype), grad) if flip else (grad, x)
        yield outer(layer.weight, rows, columns)


def _embedding(layer: Any, ids: Tensor, grad: Tensor) -> Iterator[Entry]:
    grad = grad.reshape(len(grad), -1, grad.shape[-1])
    scale = getattr(layer, "embed_scale", None)  # Gemma's: the output is a multiple of the row
    if scale is not None:
        grad = grad * scale.to(grad.dtype)
    ids = ids.reshape(len(ids), -1)
    if layer.padding_idx is not None:
        grad = grad * (ids != layer.padding_idx)[..., None]
    yield Lookup(layer.weight, ids, grad)


def _layer_norm(layer: Any, x: Tensor, grad: Tensor) -> Iterator[Entry]:
    if layer.bias is not None and layer.bias.requires_grad:
        yield Whole(layer.bias, _positions(grad, layer.bias))
    if layer.weight is not None and layer.weight.requires_grad:
        normal = F.layer_norm(x.to(wide(x)), layer.normalized_shape, eps=layer.eps)
        yield Whole(layer.weight, _positions(grad * normal, layer.weight))


def _rms_norm(layer: Any, x: Tensor, grad: Tensor) -> Iterator[Entry]:
    # Gemma multiplies by 1 + weight, the others by the weight: the gradient is the same.
    eps = getattr(layer, "eps", None) or getattr(layer, "variance_epsilon", None)
    normal = F.rms_norm(x.to(wide(x)), layer.weight.shape, eps=eps)
    yield Whole(layer.weight, _positions(grad * normal, layer.weight))


def _positions(grad: Tensor, parameter: nn.Parameter) -> Tensor:
    """Sum over all positions: (B, ..., *shape) -> (B, *shape)."""
    return grad.reshape(len(grad), -1, *parameter.shape).sum(1, dtype=wide(grad))


# By exact name: a subclass may compute something else.
MODELS = "transformers.models."
OPT_POSITIONS = MODELS + "opt.modeling_opt.OPTLearnedPositionalEmbedding"
OPT_BLOCK = MODELS + "opt.modeling_opt.OPTDecoderLayer"
RULES: dict[str, Rule] = {
    "torch.nn.modules.linear.Linear": _linear,
    "transformers.pytorch_utils.Conv1D": _linear,
    "torch.nn.modules.sparse.Embedding": _embedding,
    MODELS + "gemma2.modeling_gemma2.Gemma2TextScaledWordEmbedding": _embedding,
    MODELS + "gemma3.modeling_gemma3.Gemma3TextScaledWordEmbedding": _embedding,
    OPT_POSITIONS: _embedding,
    "torch.nn.modules.normalization.LayerNorm": _layer_norm,
    "torch.nn.modules.normalization.RMSNorm": _rms_norm,
    MODELS + "llama.modeling_llama.LlamaRMSNorm": _rms_norm,
    MODELS + "mistral.modeling_mistral.MistralRMSNorm": _rms_norm,
    MODELS + "phi3.modeling_phi3.Phi3RMSNorm": _rms_norm,
    MODELS + "qwen2.modeling_qwen2.Qwen2RMSNorm": _rms_norm,
    MODELS + "qwen3.modeling_qwen3.Qwen3RMSNorm": _rms_norm,
    MODELS + "gemma2.modeling_gemma2.Gemma2RMSNorm": _rms_norm,
    MODELS + "gemma3.modeling_gemma3.Gemma3RMSNorm": _rms_norm,
}


def name_of(layer: nn.Module) -> str:
    """The full name of its class."""
    return f"{type(layer).__module__}.{type(layer).__qualname__}"


def input_of(layer: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """What a layer's rule has to know of the arguments of its forward pass."""
    if name_of(layer) == OPT_POSITIONS:  # the first is a mask, and rows are counted from an offset
        x: Tensor = kwargs["position_ids"] + layer.offset
    else:
        x = (*args, *kwargs.values())[0]
    return x.detach()


def flattened(model: nn.Module) -> set[nn.Module]:
    """The layers that see a batch as (examples * positions, features), by the code of their model:
    what a row is cannot be known from shapes. Those of OPT, with the adapters inside of them."""
    blocks: list[Any] = [m for m in model.modules() if name_of(m) == OPT_BLOCK]
    parts = [part for m in blocks for part in (m.final_layer_norm, m.fc1, m.fc2)]
    return {layer for part in parts for layer in part.modules()}


# Of layers that drop out by a function, and not by a layer of its own.
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout", "hidden_dropout", "layerdrop")


def refuse_unfit(model: nn.Module) -> None:
    """Raise ValueError, by name, for what no clipping makes right.

    A layer with statistics of its batch mixes the examples, and keeps what no noise was added to.
    Dropout is refused while it is active: its randomness is no stream of the run, so that no run
    could go on from its checkpoint, and no second engine could check the first.
    """
    for name, module in model.named_modules():
        if not module.training:
            continue
        instance = isinstance(module, nn.modules.instancenorm._InstanceNorm)
        if isinstance(module, nn.modules.batchnorm._NormBase) and (
            module.track_running_stats or not instance
        ):
            raise ValueError(
                f"model: layer {name!r} is a {type(module).__name__}, which mixes the examples of "
                "a batch: must be another norm"
            )
        rates = [vars(module).get(key) for key in DROPOUTS]
        if isinstance(module, nn.modules.dropout._DropoutNd):
            rates.append(module.p)
        if any(isinstance(rate, float) and rate > 0 for rate in rates):
            raise ValueError(f"model: layer {name!r} drops out: must be built with dropout 0")
