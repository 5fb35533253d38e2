"""The texts of a run as a model reads them: in pieces that fit, and whose each piece is.

>>> fitting([[1, 2, 3, 4, 5, 6], [7, 8]], [0, 1], 2, "split")
([[1, 2, 3], [3, 4, 5], [5, 6], [7, 8]], [0, 0, 0, 1])
>>> fitting([[1, 2, 3, 4]], [0], 2, "cut")
([[1, 2, 3]], [0])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torch import nn

from crtlib.experiments.data import Data
from crtlib.models import interface
from crtlib.text.records import Point

if TYPE_CHECKING:
    from crtlib.experiments.crt import CrtStudy

Tokens = list[list[int]]


def parts(
    study: CrtStudy, d: Data, model: nn.Module
) -> tuple[dict[str, Tokens], dict[str, list[int]] | None]:
    """The public and the private part as tokens, and the owners of the private ones, where a unit
    owns several: a user, or a point longer than the model's context.

    Raises ``ValueError`` where no point is private and the method trains with noise.
    """
    public = d.tokenizer.encode(p.text for p in d.prepared.public)
    private = d.tokenizer.encode(p.text for p in d.prepared.private)
    if study.how.private and not private:
        raise ValueError(
            f"policy={study.policy!r}: no point is private, "
            "so there is nothing to train on with noise"
        )
    owners = users(d.prepared.private) if study.how.by_user else [*range(len(private))]
    whole, limit = len(private), _longest(study, model)
    if limit is not None:
        public, _ = fitting(public, range(len(public)), limit, study.long)
        private, owners = fitting(private, owners, limit, study.long)
    together = study.how.by_user or len(private) > whole
    return {"public": public, "private": private}, {"private": owners} if together else None


def _longest(study: CrtStudy, model: nn.Module) -> int | None:
    """Tokens that the model is asked to read at once; None: as many as there are."""
    limit = interface.context(model)
    if isinstance(model, interface.RecurrentLM) or not study.brings_vocabulary:
        return limit
    return study.context if limit is None else min(limit, study.context)


def fitting(
    rows: Sequence[list[int]], owners: Iterable[int], limit: int, long: str
) -> tuple[Tokens, list[int]]:
    """Each text in pieces of ``limit`` tokens to read and one more to predict, and whose each
    piece is; "cut" keeps the first piece. Every token but the first is predicted once."""
    pieces, whose = [], []
    for row, owner in zip(rows, owners, strict=True):
        starts = range(0, max(1, len(row) - 1), limit) if long == "split" else (0,)
        pieces += [row[a : a + limit + 1] for a in starts]
        whose += [owner] * len(starts)
    return pieces, whose


def users(points: Sequence[Point]) -> list[int]:
    """Whose each point is, users counted from 0. Raises ``ValueError`` where a point has none."""
    if any(not p.user for p in points):
        raise ValueError("method='user_dpsgd': a point has no user; say whose each dialogue is")
    number = {user: k for k, user in enumerate(dict.fromkeys(p.user for p in points))}
    return [number[p.user] for p in points]
