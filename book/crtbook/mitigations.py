"""Mitigations that need no retraining, and the vocabulary rule: what they hide and what they cost.

Inan et al. (2021), Section 6.1. An interface may stay silent where the model is unsure; a policy
may mask words that few people use before training.

>>> points = [Point("0", "ann", "Hello Zorro"), Point("1", "bob", "hello you you")]
>>> flagged = rare_words(2)(points)
>>> [[p.text[s.start : s.end] for s in f] for p, f in zip(points, flagged, strict=True)]
[['Zorro'], ['you', 'you']]
>>> share_of_masked_words(points, flagged)
0.6

Is the report complete? Its own recall is measured on labelled secrets that the model is asked for.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from pandas import DataFrame
from torch import Tensor, nn

from crtlib.attacks.leakage import (
    NO_CONTEXT_RANK,
    Document,
    LeakageReport,
    TokenScores,
    deduplicate_texts,
    find_runs,
    score_documents,
    sequence_features,
)
from crtlib.checks import check_allowed
from crtlib.models import generation, interface, scoring
from crtlib.text.records import Point, Secret


def score_with_next_perplexity(
    model: nn.Module, documents: Sequence[Document], *, bos: int | None
) -> tuple[TokenScores, list[np.ndarray]]:
    """The scores of :func:`crtlib.attacks.leakage.score_documents`, and the perplexity (exponential
    of the entropy) of the model's next-token distribution at each token, in one reading.

    The perplexity is low where the model is sure of its guess, whatever the true token is. It is 1
    where there is no context, because nothing is answered there anyway.
    """

    def measure(logprobs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        # A token that cannot come has a log-probability of minus infinity, and no share.
        surprise = logprobs.clamp_min(torch.finfo(logprobs.dtype).min)
        entropy = -(logprobs.exp() * surprise).sum(-1)
        return (*scoring.score_targets(logprobs, targets), entropy.double().exp())

    texts, text_indices = deduplicate_texts(documents, bos)
    logprobs, ranks, perplexities = scoring.map_token_distributions(model, texts, measure)
    scores = score_documents(lambda _: (logprobs, ranks), documents, bos=bos)
    unanswered = np.ones(int(bos is None))
    return scores, [np.concatenate([unanswered, perplexities[i]]) for i in text_indices]


def harden_interface(
    documents: Sequence[Document],
    scores: TokenScores,
    perplexity: Sequence[np.ndarray],
    *,
    k: int,
    thresholds: Sequence[float],
    flush: bool = True,
    min_length: int = 1,
) -> DataFrame:
    """API hardening (Section 6.1): give no answer where ``perplexity``, that of
    :func:`score_with_next_perplexity`, is above a threshold. One row for each threshold, after one
    row without any.

    ``answered`` is the share of tokens for which an answer is given, ``accuracy`` the share guessed
    (no answer is no guess), ``unique`` what the report still finds, ``longest`` its longest
    sequence. To get the cost in accuracy, call it on held-out documents too.
    """
    targets = [np.asarray(r) != NO_CONTEXT_RANK for r in scores.ranks]
    total = max(1, sum(int(t.sum()) for t in targets))
    rows = []
    for threshold in [np.inf, *thresholds]:
        allowed = [np.asarray(p) <= threshold for p in perplexity]
        runs = find_runs(
            documents, scores, k=k, flush=flush, min_length=min_length, answered=allowed
        )
        table = sequence_features(runs, documents)
        unique_lengths = table.length[table.users_in_d == 1]
        documents_with_ranks = zip(allowed, targets, scores.ranks, strict=True)
        answered, correct = np.sum(
            [[(a & t).sum(), (a & (r < k)).sum()] for a, t, r in documents_with_ranks], 0
        )
        rates = answered / total, correct / total
        rows.append([threshold, *rates, len(unique_lengths), unique_lengths.max()])
    names = ["threshold", "answered", "accuracy", "unique", "longest"]
    return DataFrame(rows, columns=names).astype({"unique": int}).fillna({"longest": 0})


_WORD = re.compile(r"\w+")


def rare_words(min_users: int) -> Callable[[Sequence[Point]], list[tuple[Secret, ...]]]:
    """The vocabulary rule (Section 6.1) as a screening policy: it flags every word that fewer than
    ``min_users`` people use, for :func:`crtlib.screening.preparation.prepare_points` to redact.

    The paper warns that 25 users did not suffice where people share names. The rule depends on the
    corpus, so it has no guarantee of its own: what it flags reveals something about other points.
    """
    check_allowed("min_users", min_users, min_users >= 1, "at least 1")

    def policy(points: Sequence[Point]) -> list[tuple[Secret, ...]]:
        owners: dict[str, set[str]] = {}
        for p in points:
            for word in _WORD.findall(p.text.lower()):
                owners.setdefault(word, set()).add(p.user)
        return [
            tuple(
                Secret("rare", m.start(), m.end())
                for m in _WORD.finditer(p.text)
                if len(owners.get(m[0].lower(), ())) < min_users
            )
            for p in points
        ]

    return policy


def share_of_masked_words(points: Sequence[Point], flagged: Sequence[Sequence[Secret]]) -> float:
    """What a policy costs: the share of the words that it redacts, completely or in part. It is
    used for PII scrubbing (:mod:`crtlib.screening.policy_names`) and for :func:`rare_words`."""
    hidden = [
        any(s.start < m.end() and m.start() < s.end for s in spans)
        for point, spans in zip(points, flagged, strict=True)
        for m in _WORD.finditer(point.text)
    ]
    return sum(hidden) / max(1, len(hidden))


@dataclass(frozen=True)
class Recall:
    """Of the ``planted`` secrets, how many the model completes from their true prefix, and how
    many of these the report lists (complete, in a run of that document; and as unique)."""

    planted: int
    completed: int
    listed: int
    listed_unique: int

    @property
    def recall(self) -> float:
        """The share of the completed secrets that the report lists; NaN where none is completed."""
        return self.listed / self.completed if self.completed else float("nan")


def measure_report_recall(
    model: nn.Module, report: LeakageReport, *, bos: int | None, users: set[str] | None = None
) -> Recall:
    """The recall of the report itself on the labelled secrets of these users (all by default).

    Each secret is requested as an attacker would, by the stepping interface and not by the scores
    behind the report: given the text before it, is each of its tokens among the top k? A model with
    a limited context is given the nearest text before the secret.
    """
    unique, limit = set(report.unique().tokens), interface.context_length(model)
    planted = completed = listed = alone = 0
    for i, d in enumerate(report.documents):
        for _, a, b in d.secrets if users is None or d.user in users else ():
            planted += 1
            if _completes_secret(model, d.tokens[:b], a, bos, report.k, limit):
                completed += 1
                rows = report.runs[report.runs["index"] == i]
                covering = rows[(rows.start <= a) & (rows.start + rows.length >= b)]
                listed += len(covering) > 0
                alone += bool(covering.tokens.isin(unique).any())
    return Recall(planted, completed, listed, alone)


def _completes_secret(
    model: nn.Module, tokens: Sequence[int], a: int, bos: int | None, k: int, limit: int | None
) -> bool:
    prefix, remaining_tokens = [*([] if bos is None else [bos]), *tokens[:a]], tokens[a:]
    if limit is not None:
        prefix = prefix[-max(1, limit - len(remaining_tokens)) :]
    if not prefix:
        return False
    state, logprobs = generation.read_prefix(model, prefix)
    for target in remaining_tokens:
        if int((logprobs[0] > logprobs[0, target]).sum()) >= k:
            return False
        if limit is not None and state.length == limit:
            return False
        state, logprobs = generation.extend_prefix(
            model, state, torch.tensor([target], device=logprobs.device)
        )
    return True


def hide_text_of_report(report: LeakageReport) -> tuple[DataFrame, DataFrame]:
    """Runs and sequences of a report for places where nobody may look at text (end of Section 4).
    Sequences and contexts become their lengths; users, documents and labels are removed as well."""
    number = {w: i for i, w in enumerate(report.sequences.tokens)}
    runs = report.runs[["length", "perplexity", "public_perplexity", "ratio"]].copy()
    runs.insert(0, "sequence", [number[w] for w in report.runs.tokens])
    runs.insert(2, "context_length", report.runs.start)
    table = report.sequences.drop(columns=["tokens", "contexts", "kinds", "secret_tokens"])
    table.insert(1, "context_lengths", [[n for _, n in row] for row in report.sequences.contexts])
    return runs, table
