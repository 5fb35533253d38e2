"""Language models behind one small interface, so that training and attacks never ask which kind.

:func:`hidden` and :func:`head` are all that training needs; :func:`token_logprobs` is the one
scoring path that every attack reads; :func:`start` and :func:`step` walk a trie of prefixes.

>>> model = build(ModelSpec("lstm", vocab_size=7, embedding=4, hidden=5), seed=0)
>>> [scores.shape for scores in token_logprobs(model, [[1, 2, 3], [4]])]
[(2,), (0,)]
>>> state, logprobs = start(model, [1, 2])
>>> bool(abs(logprobs[0, 3] - token_logprobs(model, [[1, 2, 3]])[0][1]) < 1e-6)
True
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crtlib.models.recurrent import Gru, Lstm
from crtlib.models.spec import ModelSpec


class RecurrentLM(nn.Module):
    """Embedding, recurrent layers, linear head."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        cell = {"lstm": Lstm, "gru": Gru}[spec.kind]
        sizes = [spec.embedding or spec.hidden] + [spec.hidden] * spec.layers
        self.embedding = nn.Embedding(spec.vocab_size, sizes[0])
        self.layers = nn.ModuleList(cell(a, b) for a, b in itertools.pairwise(sizes))
        self.head = nn.Linear(spec.hidden, spec.vocab_size)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.head.weight, -0.1, 0.1)
        nn.init.zeros_(self.head.bias)
        if spec.tied:
            self.head.weight = self.embedding.weight

    def features(self, ids: Tensor) -> Tensor:
        """(batch, time) token ids -> (batch, time, hidden)."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, time) token ids -> (batch, time, vocabulary) logits."""
        return self.head(self.features(ids))


# --------------------------------------------------------------------------- the interface
@dataclass(frozen=True)
class Head:
    """The output layer: ``logits = cap(h @ weight.T + bias)``, ``cap`` a scaled tanh or nothing."""

    weight: nn.Parameter  # (vocabulary, hidden)
    bias: nn.Parameter | None = None
    softcap: float | None = None

    def logits(self, h: Tensor) -> Tensor:
        """(..., hidden) -> (..., vocabulary)."""
        z = F.linear(h, self.weight, self.bias)
        return z if self.softcap is None else (z / self.softcap).tanh() * self.softcap


def head(model: nn.Module) -> Head:
    """The output layer of any model of this library."""
    if isinstance(model, RecurrentLM):
        return Head(model.head.weight, model.head.bias)
    layer = model.get_output_embeddings()
    softcap = getattr(model.config, "final_logit_softcapping", None)
    return Head(layer.weight, getattr(layer, "bias", None), softcap)


def hidden(model: nn.Module, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
    """What the head reads: ids (B, T) -> (B, T, hidden).

    ``lengths`` (B,) hides padding from models that look ahead (BERT); the others need no mask.
    """
    if isinstance(model, RecurrentLM):
        return model.features(ids)
    batch, time = ids.shape
    if time > context(model):
        raise ValueError(f"sequence of {time} tokens: must be at most {context(model)}")
    # One row of positions for each example, or the position table would see a batch of one.
    positions = torch.arange(time, device=ids.device).repeat(batch, 1)
    if is_causal(model):
        base = model.base_model
        return base(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state
    mask = None if lengths is None else (positions < lengths.clamp_min(1)[:, None]).long()
    out = model.base_model(
        input_ids=ids,
        position_ids=positions,
        token_type_ids=torch.zeros_like(ids),
        attention_mask=mask,
    )
    return model.cls.predictions.transform(out.last_hidden_state)


def context(model: nn.Module) -> int | None:
    """The longest sequence that the model reads; ``None``: no limit."""
    return None if isinstance(model, RecurrentLM) else model.config.max_position_embeddings


def is_causal(model: nn.Module) -> bool:
    """Whether it predicts the next token (and not a masked one)."""
    return isinstance(model, RecurrentLM) or model.config.model_type != "bert"


def _check_causal(model: nn.Module) -> None:
    if not is_causal(model):
        raise ValueError("model: must be causal, as a masked model gives no next-token scores")


# --------------------------------------------------------------------------- scores
def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
