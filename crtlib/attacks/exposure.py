"""Canary exposure: the exact rank of a secret among all values that it could have had.

CRT, Definition 9 (Carlini et al. 2019): exposure = log2 |R| - log2 rank; rank 1 is the likeliest.

>>> round(float(exposure_from_rank(1, 10**6)), 6), float(exposure_from_rank(10**6, 10**6))
(19.931569, 0.0)
>>> band = exposure_chance_band(canaries=10, level=0.9)
>>> round(band.mean, 1), round(band.low, 1), round(band.high, 1)
(4.2, 1.9, 7.6)
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from crtlib.attacks.attack import (
    CELL_COLUMNS,
    Attack,
    AttackRow,
    Subject,
    register_attack,
    summarise_over_seeds,
)
from crtlib.checks import check_allowed, check_choice
from crtlib.intervals import ChanceBand
from crtlib.models import generation, scoring
from crtlib.text import canaries as planted
from crtlib.text.canaries import CANARY_SPACE_SIZE
from crtlib.text.tokenizer import BpeTokenizer

STATES_AT_ONCE = 500
"""The prefix states that a CPU expands together. Their keys and values stay in its cache, which
makes GPT-2 more than twice as fast as with blocks of 10,000. A GPU takes forty times as many."""
TIE_MARGIN_NATS = 1e-5
"""Scores this close to the secret's are compared again in float64; widened if not enough."""


SAMPLED_CANARIES = 1000
MIN_PARAMETERS_TO_SAMPLE = 50_000_000
"""The number of parameters above which the rank is sampled on a CPU; the metric is then called
``exposure_sampled``."""


def exposure_from_rank(rank: np.ndarray | int, space: int) -> np.ndarray:
    """The exposure of Definition 9, in bits, for a 1-based ``rank`` among ``space`` candidates."""
    rank = np.asarray(rank)
    if rank.min() < 1 or rank.max() > space:
        raise ValueError(f"rank={rank.min()}..{rank.max()}: must be in [1, {space}]")
    return np.log2(space) - np.log2(rank)


def all_string_logprobs(
    model: nn.Module, prefix: Sequence[int], alphabet: Sequence[int], length: int
) -> np.ndarray:
    """The log-probability of every string over ``alphabet`` of this ``length`` after ``prefix``.

    Returns ``(len(alphabet) ** length,)``, in lexicographic order. A prefix trie shares the work:
    six digits take 111,111 states instead of a million sequences.
    """
    letters = torch.as_tensor(list(alphabet), device=next(model.parameters()).device)
    state, logprobs = generation.read_prefix(model, prefix)
    return (
        _expand_prefix_trie(model, state, logprobs[:, letters], letters, length - 1).cpu().numpy()
    )


def _expand_prefix_trie(
    model: nn.Module, state: generation.PrefixState, scores: Tensor, letters: Tensor, depth: int
) -> Tensor:
    """The scores of all continuations of the states. ``scores`` (states, letters) are those of the
    next letter, added to what came before."""
    if depth == 0:
        return scores.flatten()
    states, width = scores.shape
    blocks = []
    states_per_batch = STATES_AT_ONCE * (1 if letters.device.type == "cpu" else 40)
    rows_per_batch = max(1, states_per_batch // width)
    for first in range(0, states, rows_per_batch):
        rows = torch.arange(first, min(first + rows_per_batch, states), device=letters.device)
        parents = rows.repeat_interleave(width)
        child, logprobs = generation.extend_prefix(
            model, state.select(parents), letters.repeat(len(rows))
        )
        child_scores = scores[rows].flatten()[:, None] + logprobs[:, letters]
        blocks.append(_expand_prefix_trie(model, child, child_scores, letters, depth - 1))
    return torch.cat(blocks)


def rank_secrets(
    model: nn.Module, prefix: Sequence[int], alphabet: Sequence[int], secrets: np.ndarray
) -> np.ndarray:
    """The exact 1-based rank of each secret (rows of letter indices, ``(n, length)``) among all
    strings of its length: 1 + the number that are strictly more likely.

    Some float32 scores tie or nearly tie, so those within ``TIE_MARGIN_NATS`` of a secret's are
    scored again in float64. That also measures the float32 error. If it is more than a third of the
    margin, the margin is widened, so that the rank comes from the model and not from rounding.
    """
    secrets = np.asarray(secrets)
    width, length = len(alphabet), secrets.shape[1]
    scores = all_string_logprobs(model, prefix, alphabet, length).astype(np.float64)
    place_values = width ** np.arange(length - 1, -1, -1)
    index = secrets @ place_values
    exact = copy.deepcopy(model).double()
    letters = np.asarray(alphabet)
    margin = TIE_MARGIN_NATS
    while True:
        near_indices = [np.flatnonzero(np.abs(scores - scores[i]) <= margin) for i in index]
        candidates = np.unique(np.concatenate(near_indices))  # each once, even if near to several
        texts = letters[candidates[:, None] // place_values % width]
        rescored = scoring.token_logprobs(exact, [[*prefix, *text] for text in texts.tolist()])
        total = np.array([s[len(prefix) - 1 :].sum() for s in rescored])
        if np.abs(total - scores[candidates]).max() <= margin / 3:
            break
        margin *= 10
    ranks = []
    for i, close_indices in zip(index, near_indices, strict=True):
        likelier = (scores > scores[i]).sum() - (scores[close_indices] > scores[i]).sum()
        close_totals = total[np.searchsorted(candidates, close_indices)]
        likelier += (close_totals > total[np.searchsorted(candidates, i)]).sum()
        ranks.append(1 + int(likelier))
    return np.array(ranks)


def canary_exposure(
    model: nn.Module,
    tokenizer: BpeTokenizer,
    secrets: Sequence[str],
    *,
    carrier: str = planted.canary_prefix(),
) -> np.ndarray:
    """The exposure of each six-digit canary, in bits, ``(n,)``; ``carrier`` is the text before its
    digits, by default that of :mod:`crtlib.text.canaries`."""
    digits = np.array([[int(c) for c in s] for s in secrets])
    prefix = tokenizer.encode_prefix(carrier)
    return exposure_from_rank(
        rank_secrets(model, prefix, tokenizer.digits, digits), CANARY_SPACE_SIZE
    )


def sampled_exposure(
    model: nn.Module,
    tokenizer: BpeTokenizer,
    secrets: Sequence[str],
    *,
    seed: int,
    carrier: str = planted.canary_prefix(),
) -> np.ndarray:
    """The exposure of each canary, in bits, from its rank among :data:`SAMPLED_CANARIES`
    random others, ``(n,)``; ``carrier`` as in :func:`canary_exposure`.

    It is at most log2(SAMPLED_CANARIES + 1): the first among a thousand has 10 bits or more. The
    exact exposure needs 111,111 states, for which a large model takes hours on a CPU.
    """
    drawn_canaries = planted.make_canaries(SAMPLED_CANARIES + len(secrets), seed=seed)
    other_canaries = [text for text in drawn_canaries if text not in set(secrets)]
    texts = [*secrets, *other_canaries[:SAMPLED_CANARIES]]
    prefix = tokenizer.encode_prefix(carrier)
    digits = [[tokenizer.digits[int(c)] for c in text] for text in texts]
    logprobs = scoring.token_logprobs(model, [[*prefix, *text] for text in digits])
    scores = np.array([x[len(prefix) - 1 :].sum() for x in logprobs])
    secret_scores, other_scores = scores[: len(secrets), None], scores[len(secrets) :]
    share = (1 + (other_scores > secret_scores).sum(1)) / (1 + len(other_scores))
    return np.asarray(-np.log2(share))


def exposure_chance_band(
    *,
    canaries: int,
    seeds: int = 1,
    level: float = 0.95,
    statistic: str = "max",
    points: int = 1,
    draws: int = 200_000,
) -> ChanceBand:
    """The chance band of the mean over ``seeds`` runs of the "max" or "mean" exposure of
    ``canaries``.

    Under the null each rank is uniform on 1..10**6. ``points`` is the number of such means in one
    figure: the band is widened (Sidak) so that all lie inside with probability ``level``.
    """
    check_allowed("level", level, 0 < level < 1, "in (0, 1)")
    check_choice("statistic", statistic, ("max", "mean"))
    rng = np.random.default_rng(0)
    total = np.zeros(draws)
    for _ in range(seeds):
        bits = -np.log2(1 - rng.random((draws, canaries)))
        total += bits.max(axis=1) if statistic == "max" else bits.mean(axis=1)
    total = np.minimum(total / seeds, np.log2(10.0**6))
    tail = (1 - level ** (1 / points)) / 2
    low, high = np.quantile(total, [tail, 1 - tail])
    return ChanceBand(float(total.mean()), float(low), float(high), level)


def summarise_luckiest_canary(table: pd.DataFrame) -> pd.DataFrame:
    """The exposure of the luckiest canary, one row per (model, method, gamma): mean, spread, and
    the chance band for all rows at once (:func:`crtlib.attacks.attack.summarise_over_seeds`)."""
    rows = table[table.metric == "exposure"]
    planted_in_each = (
        int(rows.groupby([*CELL_COLUMNS, "seed"]).item.nunique().max()) if len(rows) else 1
    )

    def band(seeds: int, points: int) -> ChanceBand:
        return exposure_chance_band(canaries=planted_in_each, seeds=seeds, points=points)

    return summarise_over_seeds(rows, metric="exposure", items="max", band=band)


def _measure_exposure(subject: Subject) -> list[AttackRow]:
    if not subject.canaries:
        return []
    weights = [*subject.model.parameters()]
    audited, carrier = (subject.model, subject.tokenizer, subject.canaries), subject.carrier
    if sum(p.numel() for p in weights) > MIN_PARAMETERS_TO_SAMPLE and not weights[0].is_cuda:
        name = "exposure_sampled"
        bits = sampled_exposure(*audited, seed=10**6 + subject.seed, carrier=carrier)
    else:
        name, bits = "exposure", canary_exposure(*audited, carrier=carrier)
    return [(name, k, float(x)) for k, x in enumerate(bits)]


EXPOSURE_ATTACK = register_attack(
    Attack(
        name="exposure",
        label="Canary exposure",
        statistic="exposure of the luckiest canary (bits)",
        measure=_measure_exposure,
        summary=summarise_luckiest_canary,
    )
)
