"""A rule for each kind of layer that turns its input and output gradient into entries.

>>> import torch
>>> layer, x, grad = nn.Linear(3, 2), torch.ones(1, 4, 3), torch.ones(1, 4, 2)
>>> entries = LAYER_RULES[layer_class_name(layer)](layer, x, grad)
>>> [(type(entry).__name__, round(float(entry.square().value), 4)) for entry in entries]
[('DenseGrad', 32.0), ('OuterProductGrad', 96.0)]
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from crtlib.training.gradient_entries import (
    DenseGrad,
    EmbeddingGrad,
    GradientEntry,
    accumulation_dtype,
    choose_matrix_entry,
    gradient_buffer,
)

# The layers belong to other libraries, some without types: a rule reads what its layers have.
LayerRule = Callable[[Any, Tensor, Tensor], Iterator[GradientEntry]]

TRANSFORMERS_MODELS_PREFIX = "transformers.models."
# Attributes of layers that apply dropout by a function, not by a dropout layer.
DROPOUT_ATTRIBUTES = (
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "hidden_dropout",
    "layerdrop",
)


def _linear_entries(layer: Any, x: Tensor, grad: Tensor) -> Iterator[GradientEntry]:
    x, grad = x.reshape(len(x), -1, x.shape[-1]), grad.reshape(len(grad), -1, grad.shape[-1])
    if layer.bias is not None and layer.bias.requires_grad:
        yield DenseGrad(layer.bias, grad.sum(1, dtype=accumulation_dtype(grad)))
    if layer.weight.requires_grad:
        # transformers' Conv1D keeps its weight transposed
        flip = layer.weight.shape[0] != grad.shape[2] or type(layer).__name__ == "Conv1D"
        rows, columns = (x.to(grad.dtype), grad) if flip else (grad, x)
        yield choose_matrix_entry(layer.weight, rows, columns)


def embedding_entries(layer: Any, ids: Tensor, grad: Tensor) -> Iterator[GradientEntry]:
    grad = grad.reshape(len(grad), -1, grad.shape[-1])
    scale = getattr(layer, "embed_scale", None)  # Gemma's: the output is a multiple of the row
    if scale is not None:
        grad = grad * scale.to(grad.dtype)
    ids = ids.reshape(len(ids), -1)
    if layer.padding_idx is not None:
        grad = grad * (ids != layer.padding_idx)[..., None]
    yield EmbeddingGrad(layer.weight, ids, grad)


def _layer_norm_entries(layer: Any, x: Tensor, grad: Tensor) -> Iterator[GradientEntry]:
    bias = getattr(layer, "bias", None)
    if bias is not None and bias.requires_grad:
        yield DenseGrad(bias, _sum_over_positions(grad, bias))
    if layer.weight is not None and layer.weight.requires_grad:
        shape = getattr(layer, "normalized_shape", layer.weight.shape)
        epsilon = norm_layer_epsilon(layer) or 0.0
        normal = F.layer_norm(x.to(accumulation_dtype(x)), shape, eps=epsilon)
        yield DenseGrad(layer.weight, _sum_over_positions(grad * normal, layer.weight))


def _rms_norm_entries(layer: Any, x: Tensor, grad: Tensor) -> Iterator[GradientEntry]:
    # Gemma multiplies by 1 + weight, the others by the weight: the gradient is the same.
    normal = F.rms_norm(
        x.to(accumulation_dtype(x)), layer.weight.shape, eps=norm_layer_epsilon(layer)
    )
    yield DenseGrad(layer.weight, _sum_over_positions(grad * normal, layer.weight))


def norm_layer_epsilon(layer: Any) -> float | None:
    return getattr(layer, "eps", None) or getattr(layer, "variance_epsilon", None)


def _sum_over_positions(grad: Tensor, parameter: nn.Parameter) -> Tensor:
    """Sum over all positions: (B, ..., *shape) -> (B, *shape)."""
    return grad.reshape(len(grad), -1, *parameter.shape).sum(1, dtype=accumulation_dtype(grad))


# By exact name: a subclass may compute something else.
LAYER_RULES: dict[str, LayerRule] = {
    "torch.nn.modules.linear.Linear": _linear_entries,
    "transformers.pytorch_utils.Conv1D": _linear_entries,
    "torch.nn.modules.sparse.Embedding": embedding_entries,
    TRANSFORMERS_MODELS_PREFIX
    + "gemma2.modeling_gemma2.Gemma2TextScaledWordEmbedding": embedding_entries,
    TRANSFORMERS_MODELS_PREFIX
    + "gemma3.modeling_gemma3.Gemma3TextScaledWordEmbedding": embedding_entries,
    "torch.nn.modules.normalization.LayerNorm": _layer_norm_entries,
    "torch.nn.modules.normalization.RMSNorm": _rms_norm_entries,
    TRANSFORMERS_MODELS_PREFIX + "llama.modeling_llama.LlamaRMSNorm": _rms_norm_entries,
    TRANSFORMERS_MODELS_PREFIX + "mistral.modeling_mistral.MistralRMSNorm": _rms_norm_entries,
    TRANSFORMERS_MODELS_PREFIX + "phi3.modeling_phi3.Phi3RMSNorm": _rms_norm_entries,
    TRANSFORMERS_MODELS_PREFIX + "qwen2.modeling_qwen2.Qwen2RMSNorm": _rms_norm_entries,
    TRANSFORMERS_MODELS_PREFIX + "qwen3.modeling_qwen3.Qwen3RMSNorm": _rms_norm_entries,
    TRANSFORMERS_MODELS_PREFIX + "gemma2.modeling_gemma2.Gemma2RMSNorm": _rms_norm_entries,
    TRANSFORMERS_MODELS_PREFIX + "gemma3.modeling_gemma3.Gemma3RMSNorm": _rms_norm_entries,
}


def layer_class_name(layer: nn.Module) -> str:
    """The full name of a layer's class."""
    return f"{type(layer).__module__}.{type(layer).__qualname__}"


def find_layer_rule(layer: nn.Module) -> LayerRule | None:
    """The rule for a layer, found by the name of its class. For another layer of a model of
    ``transformers``, it is a rule that gives what autograd gives (:func:`_is_rule_of`), tried once
    per layer. None: there is no rule, and the model is clipped one example after the other.

    Guarantee:
        A rule that passes this trial on a layer is right for that layer, on random numbers with
        random weights; besides, a training tries the whole model
        (:func:`crtlib.training.probe.refuse_mixing`). Test:
        ``tests/training/test_architectures.py::test_a_layer_that_computes_otherwise_has_no_rule``.
    """
    name = layer_class_name(layer)
    if name in LAYER_RULES:
        return LAYER_RULES[name]
    if not name.startswith(TRANSFORMERS_MODELS_PREFIX):
        return None  # the layer may compute anything
    if layer not in _PROVED_RULES:
        rules = (_linear_entries, embedding_entries, _rms_norm_entries, _layer_norm_entries)
        _PROVED_RULES[layer] = next((rule for rule in rules if _is_rule_of(rule, layer)), None)
    return _PROVED_RULES[layer]


_PROVED_RULES: weakref.WeakKeyDictionary[nn.Module, LayerRule | None] = weakref.WeakKeyDictionary()


def _is_rule_of(rule: LayerRule, layer: Any) -> bool:
    """Whether a rule gives the gradients that autograd gives, for two inputs of different length
    and size, with random weights instead of the layer's."""
    parameters = dict(layer.named_parameters())
    has_matrix = rule in (_linear_entries, embedding_entries)
    if [*layer.children()] or not {"weight"} <= parameters.keys() <= {"weight", "bias"}:
        return False
    if parameters["weight"].ndim != (2 if has_matrix else 1):
        return False
    generator = torch.Generator().manual_seed(0)
    weight, grads_before = parameters["weight"], {name: p.grad for name, p in parameters.items()}
    device = weight.device
    random_weights = {
        name: torch.randn(p.shape, generator=generator).to(weight).requires_grad_()
        for name, p in parameters.items()
    }
    try:
        with torch.autocast(device.type, enabled=False), torch.inference_mode(False):
            for length, size in ((3, 1.0), (5, 30.0)):
                if rule is embedding_entries:
                    x = torch.randint(len(weight), (1, length), generator=generator).to(device)
                else:
                    width = weight.shape[-1]
                    x = size * torch.randn(1, length, width, generator=generator).to(weight)
                with torch.enable_grad():
                    output = functional_call(layer, random_weights, (x,))
                    grad = torch.randn(output.shape, generator=generator).to(output)
                    expected = torch.autograd.grad(output, [*random_weights.values()], grad)
                for p in parameters.values():
                    p.grad = torch.zeros_like(p)
                with torch.no_grad():
                    for entry in rule(layer, x, grad):
                        entry.add(None)
                for p, expected_grad in zip(parameters.values(), expected, strict=True):
                    if p.requires_grad and not torch.allclose(
                        gradient_buffer(p),
                        expected_grad,
                        rtol=1e-4,
                        atol=1e-4 * float(expected_grad.abs().max()),
                    ):
                        return False
    except Exception:  # the layer takes another input, or lacks what the rule reads
        return False
    finally:
        for name, p in parameters.items():
            p.grad = grads_before[name]
    return True


def refuse_unfit_layers(model: nn.Module) -> None:
    """Raise ValueError, naming the layer, for layers that no clipping makes right.

    A layer with statistics of its batch mixes the examples, and keeps something that got no noise.
    Dropout is refused while it is active: its randomness is not a stream of the run, so no run
    could resume exactly from its checkpoint, and no second engine could check the first.
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
        rates = [vars(module).get(key) for key in DROPOUT_ATTRIBUTES]
        if isinstance(module, nn.modules.dropout._DropoutNd):
            rates.append(module.p)
        if any(isinstance(rate, float) and rate > 0 for rate in rates):
            raise ValueError(f"model: layer {name!r} applies dropout: must be built with dropout 0")
