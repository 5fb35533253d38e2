"""The language model with recurrent layers."""

from __future__ import annotations

import itertools

from torch import Tensor, nn

from crtlib.models.recurrent import Gru, Lstm
from crtlib.models.specs import ModelSpec


class RecurrentLM(nn.Module):
    """Embedding, recurrent layers, linear head."""

    embedding: nn.Embedding
    layers: nn.ModuleList
    head: nn.Linear

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
