"""Linear layers in 8-bit integers, for an encoder that should answer faster.

Each output has a scale for its weights, and each token has one for its inputs, so no other token
and no other text decides how one is rounded. (The dynamic quantisation of ONNX Runtime and of torch
uses one scale for everything that is read at once.) Sums of integers are exact in whatever order
they are added.

>>> layer = nn.Linear(2, 1, bias=False)
>>> _ = nn.init.constant_(layer.weight, 0.5)
>>> Int8Linear(layer)(torch.tensor([[[3.0, 1.0]], [[0.0, 0.0]]])).round(decimals=2).tolist()
[[[2.0]], [[0.0]]]
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

LARGEST_LEVEL = 127
"""The largest 8-bit integer whose negative is an 8-bit integer as well."""
SMALLEST_SCALE = 1e-30
"""The scale of numbers that are all zero."""


class Int8Linear(nn.Module):
    """A trained linear layer in 8-bit integers: (..., inputs) float32 -> (..., outputs) float32.

    Guarantee:
        Its answer for a token depends on that token alone. Test:
        ``tests/screening/test_tagger.py::test_an_encoder_of_int8_says_the_same_in_any_company``.
    """

    weight: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        learned = layer.weight.detach()
        scale = (learned.abs().amax(1) / LARGEST_LEVEL).clamp_min(SMALLEST_SCALE)
        bias = torch.zeros(len(learned)) if layer.bias is None else layer.bias.detach().clone()
        self.register_buffer("weight", (learned / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Multiply inputs, as multiples of 1/127 of the largest input of their token, by weights,
        as multiples of 1/127 of the largest weight of their output."""
        rows = inputs.reshape(-1, inputs.shape[-1])
        largest = torch.maximum(rows.amax(1, keepdim=True), rows.amin(1, keepdim=True).neg_())
        scale = largest.div_(LARGEST_LEVEL).clamp_min_(SMALLEST_SCALE)
        sums = torch._int_mm((rows / scale).round_().to(torch.int8), self.weight.t())
        outputs = torch.addcmul(self.bias, sums.to(torch.float32).mul_(scale), self.scale)
        return outputs.view(*inputs.shape[:-1], -1)


def check_exact_products() -> None:
    """Raise ``ValueError`` where torch's int8 products are not exact on this processor. Without
    instructions made for them, they may be cut at 16 bits."""
    largest_levels = torch.full((1, 64), LARGEST_LEVEL, dtype=torch.int8)
    try:
        exact = int(torch._int_mm(largest_levels, largest_levels.t())) == 64 * LARGEST_LEVEL**2
    except (AttributeError, RuntimeError):
        exact = False
    if not exact:
        raise ValueError("int8=True: torch has no exact products of int8 on this processor")


def put_linear_layers_in_int8(net: nn.Module) -> None:
    """Replace each linear layer below ``net`` by one in 8-bit integers. Raises ``ValueError`` as
    :func:`check_exact_products` does."""
    check_exact_products()
    for name, layer in list(net.named_children()):
        if isinstance(layer, nn.Linear):
            setattr(net, name, Int8Linear(layer))
        else:
            put_linear_layers_in_int8(layer)
