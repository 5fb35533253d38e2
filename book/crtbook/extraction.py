"""Verbatim extraction: which training sequences a model continues word by word (Hush!, 5.2).

>>> from crtlib.models.networks import build
>>> from crtlib.models.networks import ModelSpec
>>> model = build(ModelSpec("lstm", vocab_size=7, embedding=4, hidden=5), seed=0)
>>> first, second = continuation(model, [[1, 2], [3, 4]], length=3).tolist()
>>> sequences = [[1, 2, *first], [3, 4, *second], [3, 4, 6, 6, 6]]
>>> extracted(model, sequences, prefix=2, suffix=3).tolist()
[True, True, False]
>>> kinds(model, model, sequences, prefix=2, suffix=3).tolist()  # it needs no such sequence
['generalised', 'generalised', 'kept']
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from crtlib.checks import check
from crtlib.models import scoring

AT_ONCE = 512  # prefixes that are continued together
KINDS = ("kept", "generalised", "memorised")


def continuation(model: nn.Module, prefixes: Sequence[Sequence[int]], *, length: int) -> np.ndarray:
    """The ``length`` tokens that greedy decoding adds to each prefix, ``(prefixes, length)``.

    All prefixes have the same number of tokens. The model is read as it is, without dropout.
    """
    check("length", length, length >= 1, "at least 1")
    out = np.zeros((len(prefixes), length), dtype=np.int64)
    for first in range(0, len(prefixes), AT_ONCE):
        block = slice(first, first + AT_ONCE)
        state, logprobs = scoring.start(model, torch.as_tensor(prefixes[block]))
        for t in range(length):
            guess = logprobs.argmax(1)
            out[block, t] = guess.cpu().numpy()
            if t + 1 < length:
                state, logprobs = scoring.step(model, state, guess)
    return out


def extracted(
    model: nn.Module, sequences: Sequence[Sequence[int]], *, prefix: int, suffix: int
) -> np.ndarray:
    """Whether each sequence is extractable: its first ``prefix`` tokens, continued greedily, give
    its next ``suffix`` tokens, ``(sequences,)`` of bool (Hush!, Definition 5.1).

    Raises ValueError for a sequence that is shorter
    than both together; what comes after is not read.
    """
    check("prefix", prefix, prefix >= 1, "at least 1")
    check("suffix", suffix, suffix >= 1, "at least 1")
    shortest = min(map(len, sequences), default=prefix + suffix)
    if shortest < prefix + suffix:
        raise ValueError(
            f"sequences: one has {shortest} tokens: must be at least {prefix}+{suffix}"
        )
    guessed = continuation(model, [s[:prefix] for s in sequences], length=suffix)
    truth = np.array([s[prefix : prefix + suffix] for s in sequences]).reshape(guessed.shape)
    return np.asarray((guessed == truth).all(axis=1))


def kinds(
    model: nn.Module,
    without: nn.Module,
    sequences: Sequence[Sequence[int]],
    *,
    prefix: int,
    suffix: int,
) -> np.ndarray:
    """What became of each training sequence of ``model``, ``(sequences,)`` of ``KINDS``.

    "kept": not extractable. "generalised": the model ``without``, trained in the same way on all
    but these sequences, produces it too, so that it need not have been remembered. "memorised":
    only the model that has read it does (counterfactual memorisation, Zhang et al. 2023).
    """
    ours = extracted(model, sequences, prefix=prefix, suffix=suffix)
    theirs = extracted(without, sequences, prefix=prefix, suffix=suffix)
    return np.array(KINDS)[np.where(ours, np.where(theirs, 1, 2), 0)]
