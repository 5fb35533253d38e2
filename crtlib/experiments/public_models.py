"""Public models to compare a model with: of other text, and of the same text without its people.

Inan et al. (2021), Section 5: the ratio of perplexities needs a model that cannot know.

>>> from crtlib.models.spec import ModelSpec
>>> from crtlib.text import tokenizer
>>> points = [Point("0", "ann", "the code is 7"), Point("1", "bob", "hello you")]
>>> bpe = tokenizer.train_bpe([p.text for p in points], vocab_size=270)
>>> learn = trainer(ModelSpec("gru", vocab_size=bpe.vocab_size, hidden=4), bpe, seed=0)
>>> type(leave_users_out(learn, points, {"ann"})).__name__
'RecurrentLM'
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from crtlib.models.build import build
from crtlib.models.spec import ModelSpec
from crtlib.text.records import Point
from crtlib.text.tokenizer import Bpe
from crtlib.training import methods
from crtlib.training.loop import train
from crtlib.training.phases import Phase

TrainModel = Callable[[Sequence[Point]], nn.Module]
"""Trains a model on these points and no others."""


def trainer(
    shape: ModelSpec,
    tokenizer: Bpe,
    *,
    phases: Sequence[Phase] | None = None,
    seed: int,
    device: str = "cpu",
) -> TrainModel:
    """How to train a model of this shape on any points: eight epochs of SGD unless ``phases`` say
    otherwise. ``trainer(...)(other_points)`` is a public model from other text in one call."""
    plan = methods.sgd(epochs=8, batch_size=32, learning_rate=1e-2) if phases is None else phases
    part = "private" if any(p.part == "private" for p in plan) else "public"

    def train_model(points: Sequence[Point]) -> nn.Module:
        parts = {"public": [], "private": []} | {part: tokenizer.encode(p.text for p in points)}
        return train(build(shape, seed).to(device), plan, parts, seed=seed).model

    return train_model


def leave_users_out(train_model: TrainModel, points: Sequence[Point], users: set[str]) -> nn.Module:
    """The paper's second kind of public model: trained anew without all data of these users
    (as a rule :meth:`crtlib.attacks.leakage.Leakage.owners`), so public to them and to nobody else."""
    unknown = users - {p.user for p in points}
    if unknown:
        raise ValueError(f"users: {len(unknown)} of {len(users)} have no point in the corpus")
    rest = [p for p in points if p.user not in users]
    if not rest:
        raise ValueError(f"users: all {len(users)} are left out, nobody remains to train on")
    return train_model(rest)
