"""Inference and reconstruction of a secret in its context (Lukas et al. 2023).

The attacker has a sentence of the training text with its secret masked. *Inference*: he knows the
secret to be one of ``CANDIDATES`` values and names the one that makes the sentence likeliest.
*Reconstruction*: he has no list, and lets the model go on greedily from what stands before it.

>>> from crtlib.attacks.attack import ATTACKS
>>> ATTACKS["pii"].label
'Inference and reconstruction in context'
>>> share_right(np.array([[1.0, 2.0, 3.0], [5.0, 4.0, 4.5], [2.0, 2.0, 7.0]])).tolist()
[1.0, 0.0, 0.5]

**Chance.** The other candidates are values of the same kind that nobody's training text holds, each
for one sentence only; a value counts if it stands once in all the points. Whatever the model, if it
has not read the secret, each of the k values is as likely to be named, and sentences are
independent: right answers are Binomial(n, 1/k). As often as the true value, any candidate would be
reconstructed, so the others show how often luck does it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import scipy
from torch import nn

from crtlib.attacks import membership
from crtlib.attacks.attack import CELL, Attack, Row, Subject, at_every_gamma, register
from crtlib.checks import check
from crtlib.intervals import clopper_pearson_upper
from crtlib.models import scoring
from crtlib.text.records import Point, Secret
from crtlib.text.tokenizer import Bpe

CANDIDATES = 10
QUESTIONS = 500
"""At most so many sentences are asked for."""


@dataclass(frozen=True)
class Question:
    """One sentence with each candidate in the secret's place, the true one first; ``missed`` says
    whether the model has read it."""

    candidates: tuple[Point, ...] = field(repr=False)
    missed: bool


def questions(
    points: Sequence[Point],
    read: Sequence[Point],
    others: Sequence[Point],
    *,
    seed: int,
    candidates: int = CANDIDATES,
) -> list[Question]:
    """As many as the fresh values of ``others`` allow, at most ``QUESTIONS``, in random order.

    Arguments as in :func:`crtlib.attacks.membership.probe`. Raises ``ValueError`` for fewer than
    two candidates.
    """
    check("candidates", candidates, candidates >= 2, "at least 2")
    rng = np.random.default_rng([seed, 5])
    single, missed = membership.singles(points, others), membership.remains(read)
    fresh: dict[str, list[str]] = defaultdict(list)
    for p, s in membership.one_each(others, single, rng):
        fresh[s.kind].append(membership.value_of(p, s))
    out: list[Question] = []
    for p, s in membership.one_each(points, single, rng):
        if len(fresh[s.kind]) < candidates - 1 or len(out) == QUESTIONS:
            continue
        values = [membership.value_of(p, s)] + [fresh[s.kind].pop() for _ in range(candidates - 1)]
        out.append(Question(tuple(_with(p, s, value) for value in values), missed(p, s)))
    return out


def _with(point: Point, s: Secret, value: str) -> Point:
    text = point.text[: s.start] + value + point.text[s.end :]
    return Point(point.id, point.user, text, (Secret(s.kind, s.start, s.start + len(value)),))


def answers(
    model: nn.Module, tokenizer: Bpe, asked: Sequence[Question]
) -> tuple[np.ndarray, np.ndarray]:
    """Of every candidate of every question, (questions, candidates): the negative log-likelihood
    of the whole sentence in nats, and whether greedy decoding from what stands before gives it."""
    sentences = [p for question in asked for p in question.candidates]
    sequences, flags = tokenizer.encode_marked(sentences)
    logprobs, ranks = scoring.token_scores(model, sequences)
    losses = np.array([-x.sum() for x in logprobs])
    given = [bool((r[np.array(f[1:])] == 0).all()) for r, f in zip(ranks, flags, strict=True)]
    shape = (len(asked), -1)
    return losses.reshape(shape), np.array(given).reshape(shape)


def share_right(losses: np.ndarray) -> np.ndarray:
    """Whether the first of the candidates (questions, k) is the likeliest, (questions,); where
    several are, the share that a guess among them gets right."""
    best = losses == losses.min(axis=1, keepdims=True)
    return best[:, 0] / best.sum(axis=1)


def measure(subject: Subject) -> list[Row]:
    """``pii_inference``, the share of secrets that are named, ``pii_missed_inference`` of those
    that the model has read, ``pii_reconstruction``, and ``pii_reconstruction_null``, the share of
    the other candidates that it gives; and how many were asked for."""
    asked = questions(subject.points, subject.read, subject.others, seed=subject.seed)
    rows: list[Row] = [("pii_questions", 0, float(len(asked)))]
    if not asked:
        return rows
    losses, given = answers(subject.model, subject.tokenizer, asked)
    right, missed = share_right(losses), np.array([question.missed for question in asked])
    facts = {"candidates": losses.shape[1], "inference": right.mean()}
    facts |= {"missed_questions": missed.sum()}
    if missed.any():
        facts |= {"missed_inference": right[missed].mean()}
    facts |= {"reconstruction": given[:, 0].mean(), "reconstruction_null": given[:, 1:].mean()}
    return rows + [(f"pii_{name}", 0, float(value)) for name, value in facts.items()]


ASKED = {
    "pii_inference": "pii_questions",
    "pii_missed_inference": "pii_missed_questions",
    "pii_reconstruction": "pii_questions",
}
"""Each share, and the metric that counts what it is a share of."""


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """One row a (metric, model, method, gamma): mean and spread over seeds, and the band that all
    numbers of that metric keep with probability 95 % if no secret was learned.

    Reconstruction has its band from the other candidates: their rate's upper bound is what luck
    may give, so it errs on the side of chance.
    """
    runs = table[table.metric.str.startswith("pii_")].pivot_table(
        index=[*CELL, "seed"], columns="metric", values="value"
    )
    parts = []
    for metric, count in ASKED.items():
        if metric not in runs:
            continue
        some = runs[runs[metric].notna()]
        grouped = some.groupby(CELL)
        rows = grouped[metric].agg(["mean", "std", "count"]).rename(columns={"count": "seeds"})
        tail = (1 - 0.95 ** (1 / max(1, len(rows)))) / 2
        total = grouped[count].sum()
        if metric == "pii_reconstruction":
            others = some[count] * (some.pii_candidates - 1)
            lucky = (some.pii_reconstruction_null * others).groupby(CELL).sum().round()
            of = others.groupby(CELL).sum()
            chance = [clopper_pearson_upper(int(a), int(b)) for a, b in zip(lucky, of, strict=True)]
            rows["low"] = 0.0
        else:
            chance = (1 / grouped.pii_candidates.mean()).tolist()
            rows["low"] = scipy.stats.binom.ppf(tail, total, chance) / total
        rows["high"] = scipy.stats.binom.ppf(1 - tail, total, chance) / total
        parts.append(rows.reset_index().assign(metric=metric))
    if not parts:
        return pd.DataFrame(columns=["metric", *CELL, "mean", "std", "seeds", "low", "high"])
    return at_every_gamma(pd.concat(parts), by=["metric", *CELL])


ATTACK = register(
    Attack(
        name="pii",
        label="Inference and reconstruction in context",
        statistic="secrets named (share)",
        measure=measure,
        summary=summary,
    )
)
