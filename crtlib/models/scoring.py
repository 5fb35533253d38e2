"""The log-probabilities of tokens under a model.

>>> from crtlib.models.construction import build_model
>>> from crtlib.models.specs import ModelSpec
>>> model = build_model(ModelSpec("lstm", vocab_size=10, embedding=4, hidden=4), 0)
>>> [x.shape for x in token_logprobs(model, [[1, 2, 3]])]
[(2,)]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from crtlib.models.interface import (
    Head,
    context_length,
    device_of,
    hidden_states,
    is_causal,
    output_head,
)

MAX_BATCH_TOKENS = 16_384
"""The most padded tokens that are read together."""

SequenceScorer = Callable[[Sequence[Sequence[int]]], tuple[list[np.ndarray], list[np.ndarray]]]
"""A function that scores texts as :func:`token_scores` does, in this process or elsewhere."""


def head_logprobs(layer: Head, h: Tensor) -> Tensor:
    """The log-softmax of the logits, at least in float32."""
    z = layer.logits(h)
    return torch.log_softmax(z, -1, dtype=torch.promote_types(z.dtype, torch.float32))


def token_logprobs(model: nn.Module, sequences: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """``log p(token_t | tokens before)`` for ``t = 1 .. L - 1`` of each sequence, float64.

    The first half of :func:`token_scores`.
    """
    return token_scores(model, sequences)[0]


def token_scores(
    model: nn.Module,
    sequences: Sequence[Sequence[int]],
    *,
    device: torch.device | str | None = None,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """``log p(token_t | tokens before)`` (float64), and how many tokens the model finds likelier
    than ``token_t`` (int64; 0: its top-1 guess was right), for ``t = 1 .. L - 1`` of each sequence.

    Sequences are read as :func:`map_token_distributions` reads them. ``device``: move the model
    there.
    """
    if device is not None:
        model.to(device)

    logprobs, ranks = map_token_distributions(model, sequences, score_targets)
    return logprobs, ranks


def score_targets(logprobs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The log-probability of each target (n,), in float64, and how many tokens are likelier (n,),
    in int64. ``logprobs`` has shape (n, V), ``targets`` (n,)."""
    target_logprobs = logprobs.gather(1, targets[:, None])
    likelier = (logprobs > target_logprobs).sum(1, dtype=torch.int32)  # half the time of int64
    # A model that diverged (nan) is never right.
    likelier = likelier.masked_fill(target_logprobs[:, 0].isnan(), logprobs.shape[1])
    return target_logprobs[:, 0].double(), likelier.long()


@torch.no_grad()
def map_token_distributions(
    model: nn.Module,
    sequences: Sequence[Sequence[int]],
    measure: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
) -> list[list[np.ndarray]]:
    """Apply ``measure`` to each next-token distribution, for ``t = 1 .. L - 1`` of each sequence.
    It takes log-probabilities (n, V) and the true tokens (n,), and returns tensors (n,).

    Sequences are read in the groups of :func:`group_by_length`. The results are in the original
    order, one list for each tensor. A sequence longer than the model's context is read in windows
    that overlap by half, and each token is scored by the first window that holds it.
    """
    check_causal(model)
    limit = context_length(model)
    if limit is not None and any(len(s) > limit for s in sequences):
        return _map_in_windows(model, sequences, measure, limit)
    training, layer, device = model.training, output_head(model), device_of(model)
    model.eval()
    empty_results = measure(torch.empty(0, len(layer.weight)), torch.empty(0, dtype=torch.long))
    results = [[x.numpy()] * len(sequences) for x in empty_results]
    # Rows of logits at once: about 4 million numbers, which stay in the processor's cache.
    rows = max(1, 2**22 // len(layer.weight))
    for batch in group_by_length(sequences):
        longest = len(sequences[batch[0]])
        lengths = torch.tensor([len(sequences[i]) for i in batch])
        padded = np.zeros((len(batch), longest), dtype=np.int64)
        for row, i in zip(padded, batch, strict=True):
            row[: len(sequences[i])] = sequences[i]
        is_real = (torch.arange(1, longest) < lengths[:, None]).to(device)
        tokens = torch.from_numpy(padded).to(device)
        hidden, targets = hidden_states(model, tokens[:, :-1])[is_real], tokens[:, 1:][is_real]
        pieces = zip(hidden.split(rows), targets.split(rows), strict=True)
        parts = zip(*[measure(head_logprobs(layer, a), b) for a, b in pieces], strict=True)
        boundaries = np.cumsum(lengths.numpy() - 1)[:-1]
        for values, part in zip(results, parts, strict=True):
            by_sequence = np.split(torch.cat(part).cpu().numpy(), boundaries)
            for i, x in zip(batch, by_sequence, strict=True):
                values[i] = x
    model.train(training)
    return results


def check_causal(model: nn.Module) -> None:
    """Refuse a model that does not score the next token."""
    if not is_causal(model):
        raise ValueError("model: must be causal, as a masked model gives no next-token scores")


def group_by_length(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    """The groups of sequences that are read together, as lists of their places: the longest first,
    without sequences of one token, in which nothing is predicted."""
    order = sorted((i for i, s in enumerate(sequences) if len(s) > 1),
                   key=lambda i: -len(sequences[i]))  # fmt: skip
    batches = []
    while order:
        count = max(1, MAX_BATCH_TOKENS // len(sequences[order[0]]))
        batches.append(order[:count])
        order = order[count:]
    return batches


def _map_in_windows(model, sequences, measure, limit: int) -> list[list[np.ndarray]]:
    """:func:`map_token_distributions` where sequences are longer than ``limit``: in windows."""
    stride = max(1, limit // 2)
    windows, owners = [], []
    for i, s in enumerate(sequences):
        last = max(0, len(s) - limit)
        for first in [*range(0, last, stride), last]:
            windows.append(s[first : first + limit])
            owners.append((i, first))
    window_scores = map_token_distributions(model, windows, measure)
    results = [[np.empty(max(0, len(s) - 1), v[0].dtype) for s in sequences] for v in window_scores]
    for values, scores in zip(results, window_scores, strict=True):
        # Backwards, so that a token keeps the score of the earliest window that holds it.
        for (i, first), part in reversed(list(zip(owners, scores, strict=True))):
            values[i][first : first + len(part)] = part
    return results
