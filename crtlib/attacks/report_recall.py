"""Is the report complete? Its own recall, on labelled secrets that the model is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from crtlib.attacks.leakage import Leakage
from crtlib.models import interface, scoring


@dataclass(frozen=True)
class Recall:
    """Of the ``planted`` secrets, how many the model completes from their true prefix, and how
    many of these the report lists (whole, in a run of that document; and as unique)."""

    planted: int
    completed: int
    listed: int
    listed_unique: int

    @property
    def recall(self) -> float:
        """Share of the completed secrets that the report lists; NaN where none is completed."""
        return self.listed / self.completed if self.completed else float("nan")


def report_recall(
    model: nn.Module, report: Leakage, *, bos: int | None, users: set[str] | None = None
) -> Recall:
    """Recall of the report itself on the labelled secrets of these users (all by default).

    Each secret is asked for as an attacker would, by the stepping interface and not by the scores
    behind the report: given the text before it, is each of its tokens among the top k? For a model
    with a limited context the nearest text before the secret is given.
    """
    unique = set(report.unique().tokens)
    where = {i: rows for i, rows in report.runs.groupby("index")[["start", "length", "tokens"]]}
    limit = interface.context(model)
    planted = completed = listed = alone = 0
    for i, d in enumerate(report.documents):
        for _, a, b in d.secrets if users is None or d.user in users else ():
            planted += 1
            if not _completes(model, d.tokens[:b], a, bos, report.k, limit):
                continue
            completed += 1
            rows = where.get(i)
            if rows is None:
                continue
            over = rows[(rows.start <= a) & (rows.start + rows.length >= b)]
            listed += len(over) > 0
            alone += bool(over.tokens.isin(unique).any())
    return Recall(planted, completed, listed, alone)


def _completes(
    model: nn.Module, tokens: Sequence[int], a: int, bos: int | None, k: int, limit: int | None
) -> bool:
    prefix, rest = [*([] if bos is None else [bos]), *tokens[:a]], tokens[a:]
    if limit is not None:
        prefix = prefix[-max(1, limit - len(rest)) :]
    if not prefix:
        return False
    state, logprobs = scoring.start(model, prefix)
    for target in rest:
        if int((logprobs[0] > logprobs[0, target]).sum()) >= k:
            return False
        if limit is not None and state.length == limit:
            return False
        state, logprobs = scoring.step(model, state, torch.tensor([target], device=logprobs.device))
    return True
