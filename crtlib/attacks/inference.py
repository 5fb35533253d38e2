"""Inference and reconstruction of a secret in its context (Lukas et al. 2023).

The attacker has a sentence of the training text with its secret masked. *Inference*: the attacker
knows that the secret is one of ``CANDIDATES_PER_QUESTION`` values, and names the one that makes the
sentence likeliest. *Reconstruction*: the attacker has no list, and lets the model continue greedily
from the text before the secret.

>>> from crtlib.attacks.attack import ATTACKS
>>> ATTACKS["pii"].label
'Inference and reconstruction in context'
>>> right_answer_shares(np.array([[1.0, 2.0, 3.0], [5.0, 4.0, 4.5], [2.0, 2.0, 7.0]])).tolist()
[1.0, 0.0, 0.5]

**Chance.** The other candidates are values of the same kind that nobody's training text holds, each
used for one sentence only; only values that occur once in all the points are used. Whatever the
model, if it has not read the secret, each of the k values is equally likely to be named, and
sentences are independent: right answers are Binomial(n, 1/k). Any other candidate would then be
reconstructed as often as the true value, so the others show how often luck does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy
from torch import nn

from crtlib.attacks.attack import (
    CELL_COLUMNS,
    Attack,
    AttackRow,
    Subject,
    mean_and_std,
    register_attack,
    repeat_at_every_gamma,
)
from crtlib.attacks.membership import (
    draw_secret_per_point,
    fresh_values,
    remaining_secrets,
    secret_value,
    unrepeated_secrets,
)
from crtlib.checks import check_allowed
from crtlib.intervals import clopper_pearson_upper
from crtlib.models import scoring
from crtlib.text.records import Point, Secret
from crtlib.text.tokenizer import BpeTokenizer

CANDIDATES_PER_QUESTION = 10
MAX_QUESTIONS = 500
"""The most sentences that are asked about."""

QUESTION_COUNT_METRICS = {
    "pii_inference": "pii_questions",
    "pii_missed_inference": "pii_missed_questions",
    "pii_reconstruction": "pii_questions",
}
"""For each share, the metric that counts what it is a share of."""


@dataclass(frozen=True, repr=False)
class InferenceQuestion:
    """One sentence with each candidate in the secret's place, the true one first; ``missed`` is
    whether the model has read the true one."""

    candidates: tuple[Point, ...]
    missed: bool


def pose_questions(
    points: Sequence[Point],
    read: Sequence[Point],
    others: Sequence[Point],
    *,
    seed: int,
    candidates: int = CANDIDATES_PER_QUESTION,
) -> list[InferenceQuestion]:
    """Make as many questions as the fresh values of ``others`` allow, at most ``MAX_QUESTIONS``, in
    random order.

    The arguments are as in :func:`crtlib.attacks.membership.build_probe`. Raises ``ValueError`` for
    fewer than two candidates.
    """
    check_allowed("candidates", candidates, candidates >= 2, "at least 2")
    rng = np.random.default_rng([seed, 5])
    is_unrepeated, is_missed = unrepeated_secrets(points, others), remaining_secrets(read)
    unused_values = fresh_values(others, is_unrepeated, rng)
    questions: list[InferenceQuestion] = []
    for p, s in draw_secret_per_point(points, is_unrepeated, rng):
        if len(unused_values[s.kind]) < candidates - 1 or len(questions) == MAX_QUESTIONS:
            continue
        values = [secret_value(p, s)] + [unused_values[s.kind].pop() for _ in range(candidates - 1)]
        texts = tuple(_replace_secret(p, s, value) for value in values)
        questions.append(InferenceQuestion(texts, is_missed(p, s)))
    return questions


def _replace_secret(point: Point, s: Secret, value: str) -> Point:
    text = point.text[: s.start] + value + point.text[s.end :]
    return Point(point.id, point.user, text, (Secret(s.kind, s.start, s.start + len(value)),))


def answer_questions(
    model: nn.Module, tokenizer: BpeTokenizer, questions: Sequence[InferenceQuestion]
) -> tuple[np.ndarray, np.ndarray]:
    """For every candidate of every question, (questions, candidates): the negative log-likelihood
    of the whole sentence in nats, and whether greedy decoding from the text before it gives it."""
    sentences = [p for question in questions for p in question.candidates]
    sequences, flags = tokenizer.encode_marked(sentences)
    logprobs, ranks = scoring.token_scores(model, sequences)
    losses = np.array([-x.sum() for x in logprobs])
    decoded = [bool((r[np.array(f[1:])] == 0).all()) for r, f in zip(ranks, flags, strict=True)]
    shape = (len(questions), -1)
    return losses.reshape(shape), np.array(decoded).reshape(shape)


def right_answer_shares(losses: np.ndarray) -> np.ndarray:
    """Whether the first of the candidates (questions, k) is the likeliest, (questions,); if several
    are, the share that a random guess among them gets right."""
    is_best = losses == losses.min(axis=1, keepdims=True)
    return is_best[:, 0] / is_best.sum(axis=1)


def measure_inference(subject: Subject) -> list[AttackRow]:
    """Measure ``pii_inference``, the share of secrets that are named; ``pii_missed_inference``, the
    same share among those that the model has read; ``pii_reconstruction``, the share that is
    reconstructed; ``pii_reconstruction_null``, the share of other candidates that is; and how many
    questions were asked."""
    questions = pose_questions(subject.points, subject.read, subject.others, seed=subject.seed)
    rows: list[AttackRow] = [("pii_questions", 0, float(len(questions)))]
    if not questions:
        return rows
    losses, decoded = answer_questions(subject.model, subject.tokenizer, questions)
    right_shares = right_answer_shares(losses)
    is_missed = np.array([question.missed for question in questions])
    values = {"candidates": losses.shape[1], "inference": right_shares.mean()}
    values |= {"missed_questions": is_missed.sum()}
    if is_missed.any():
        values |= {"missed_inference": right_shares[is_missed].mean()}
    values |= {"reconstruction": decoded[:, 0].mean()}
    values |= {"reconstruction_null": decoded[:, 1:].mean()}
    return rows + [(f"pii_{name}", 0, float(value)) for name, value in values.items()]


def summarise_inference(table: pd.DataFrame) -> pd.DataFrame:
    """Summarise in one row per (metric, model, method, gamma): mean and spread over seeds, and the
    band in which all numbers of that metric lie with probability 95 % if no secret was learned.

    The band of reconstruction comes from the other candidates: the upper bound on their rate is
    what luck may give, so it errs on the side of chance.
    """
    runs = table[table.metric.str.startswith("pii_")].pivot_table(
        index=[*CELL_COLUMNS, "seed"], columns="metric", values="value"
    )
    summaries = []
    for metric, count in QUESTION_COUNT_METRICS.items():
        if metric not in runs:
            continue
        answered_runs = runs.dropna(subset=metric)
        grouped = answered_runs.groupby(CELL_COLUMNS)
        rows, total = mean_and_std(grouped[metric]), grouped[count].sum()
        tail = (1 - 0.95 ** (1 / max(1, len(rows)))) / 2
        if metric == "pii_reconstruction":
            other_candidates = answered_runs[count] * (answered_runs.pii_candidates - 1)
            lucky = answered_runs.pii_reconstruction_null * other_candidates
            lucky_totals = lucky.groupby(CELL_COLUMNS).sum().round()
            other_totals = other_candidates.groupby(CELL_COLUMNS).sum()
            chance = [
                clopper_pearson_upper(int(a), int(b))
                for a, b in zip(lucky_totals, other_totals, strict=True)
            ]
            rows["low"] = 0.0
        else:
            chance = (1 / grouped.pii_candidates.mean()).tolist()
            rows["low"] = scipy.stats.binom.ppf(tail, total, chance) / total
        rows["high"] = scipy.stats.binom.ppf(1 - tail, total, chance) / total
        summaries.append(rows.reset_index().assign(metric=metric))
    if not summaries:
        return pd.DataFrame(
            columns=["metric", *CELL_COLUMNS, "mean", "std", "seeds", "low", "high"]
        )
    return repeat_at_every_gamma(pd.concat(summaries), sort_columns=["metric", *CELL_COLUMNS])


INFERENCE_ATTACK = register_attack(
    Attack(
        name="pii",
        label="Inference and reconstruction in context",
        statistic="secrets named (share)",
        measure=measure_inference,
        summary=summarise_inference,
    )
)
