"""The shape of a model, as a value.

>>> ModelSpec("lstm", vocab_size=10).hidden
200
"""

from __future__ import annotations

from dataclasses import dataclass

from crtlib.checks import check_allowed, check_choice

MODEL_KINDS = ("lstm", "gru", "gpt2", "gemma2", "bert")


@dataclass(frozen=True)
class ModelSpec:
    """The shape of a model: JSON-safe, so that it can name a run.

    Only the recurrent kinds read ``embedding`` (None: the same as ``hidden``); only transformers
    read ``heads`` and ``context``. ``tied=None`` means tied for transformers, untied otherwise.
    """

    kind: str
    vocab_size: int
    embedding: int | None = None
    hidden: int = 200
    layers: int = 1
    heads: int = 4
    context: int = 128
    tied: bool | None = None

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, MODEL_KINDS)
        for name in ("vocab_size", "hidden", "layers", "heads", "context"):
            check_allowed(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        if not self.recurrent and self.hidden % self.heads:
            raise ValueError(f"heads={self.heads}: must divide hidden={self.hidden}")
        if self.recurrent and self.tied and self.embedding not in (None, self.hidden):
            raise ValueError(f"embedding={self.embedding}: must be {self.hidden}, as it is tied")

    @property
    def recurrent(self) -> bool:
        """Whether the model is one of ours (LSTM, GRU) and not a transformer."""
        return self.kind in ("lstm", "gru")
