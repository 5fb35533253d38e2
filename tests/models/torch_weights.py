"""Weights of torch's recurrent layers in ours."""

import torch
from torch import nn


@torch.no_grad()
def copy(layer, other):
    """Take the weights of the first layer of ``other``, an LSTM (its two biases are summed) or a
    GRU."""
    if isinstance(other, nn.GRU):
        theirs = (other.weight_ih_l0, other.bias_ih_l0, other.weight_hh_l0, other.bias_hh_l0)
        for mine, weight in zip(layer.weights(), theirs, strict=True):
            mine.copy_(weight)
        return
    i, f, g, o = torch.cat([other.weight_ih_l0, other.weight_hh_l0], dim=1).chunk(4)
    layer.weight.copy_(torch.cat([o, i, f, g]))
    i, f, g, o = (other.bias_ih_l0 + other.bias_hh_l0).chunk(4)
    layer.bias.copy_(torch.cat([o, i, f, g]))
