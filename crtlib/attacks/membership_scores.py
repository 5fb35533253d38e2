"""Scores of membership beyond the loss: zlib, Min-K%++, a reference model, RMIA."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from torch import Tensor, nn

from crtlib.attacks.attack import Attack, AttackRow, Subject, register_attack
from crtlib.attacks.membership import (
    MEMBERSHIP_ATTACK,
    member_views,
    probe_of_subject,
    statistic_with_null,
    subtract_reference_scores,
    summarise_membership,
)
from crtlib.models import scoring
from crtlib.text.tokenizer import BpeTokenizer

# --------------------------------------------------------------------------- other scores
MIN_K_SHARE = 0.2
"""The share of a sentence's tokens, those with the lowest scores, that count for Min-K%++."""
MAX_POPULATION_SENTENCES = 500
"""The most sentences, read by no model, with which each sentence is compared in RMIA."""


@dataclass(frozen=True, kw_only=True, repr=False)
class TextLogprobs:
    """Everything that a score may use about some texts, one entry per text.

    ``logprobs`` are the log-probabilities of the tokens (t,) in nats. ``standard`` is the same,
    less the mean under the model's own next-token law, divided by that law's standard deviation.
    ``reference`` are the log-probabilities (t,) by a model that has read none of the secrets.
    ``population`` (z,) is the mean log-probability per token, less that by the reference, of
    sentences that neither has read.
    """

    texts: tuple[str, ...] = field(repr=False)
    logprobs: list[np.ndarray]
    standard: list[np.ndarray]
    reference: list[np.ndarray] | None = None
    population: np.ndarray | None = None


class MembershipScore(NamedTuple):
    """A number for each text in a :class:`TextLogprobs`, ``(texts,)``, lower if it was read."""

    name: str
    label: str
    of: Callable[[TextLogprobs], np.ndarray]
    needs_reference: bool = False


def mean_loss(reading: TextLogprobs) -> np.ndarray:
    """The mean negative log-likelihood per token, in nats (Yeom et al. 2018)."""
    return -_mean_per_text(reading.logprobs)


def zlib_ratio(reading: TextLogprobs) -> np.ndarray:
    """The loss divided by the number of bytes to which zlib compresses the text (Carlini et al.
    2021): text that is likely because it repeats itself is discounted."""
    sizes = np.array([len(zlib.compress(text.encode())) for text in reading.texts])
    return mean_loss(reading) / sizes


def min_k_plus_plus(reading: TextLogprobs) -> np.ndarray:
    """Min-K%++ (Zhang et al. 2024): minus the mean ``standard`` score of the ``MIN_K_SHARE`` of
    tokens that are least likely, compared with all tokens that the model weighed in their place."""
    lowest = [np.sort(z)[: max(1, round(MIN_K_SHARE * len(z)))] for z in reading.standard]
    return -_mean_per_text(lowest)


def loss_less_reference(reading: TextLogprobs) -> np.ndarray:
    """The loss less the loss of the reference: :func:`subtract_reference_scores`."""
    return subtract_reference_scores(
        mean_loss(reading), -_mean_per_text(_require_reference(reading))
    )


def rmia(reading: TextLogprobs) -> np.ndarray:
    """Robust membership inference (Zarifzadeh et al. 2024), offline, with one reference, threshold
    1 and likelihoods per token: minus the share of the population whose gain over the reference the
    text reaches. With one population for all texts it ranks them like
    :func:`loss_less_reference`, except for ties. What it adds is a scale that is the same for every
    model.
    """
    if reading.population is None:
        raise ValueError("population=None: must be given for RMIA")
    gains = -loss_less_reference(reading)
    return -(gains[:, None] >= reading.population).mean(axis=1)


MEMBERSHIP_SCORES = (
    MembershipScore(name="loss", label="loss", of=mean_loss),
    MembershipScore(name="zlib", label="loss / zlib", of=zlib_ratio),
    MembershipScore(name="min_k_plus_plus", label="Min-K%++", of=min_k_plus_plus),
    MembershipScore(
        name="reference", label="loss - reference", of=loss_less_reference, needs_reference=True
    ),
    MembershipScore(name="rmia", label="RMIA", of=rmia, needs_reference=True),
)
SCORES_BESIDE_LOSS = MEMBERSHIP_SCORES[1:]
"""All scores but the loss, which the first attack uses."""


def _mean_per_text(values: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([x.mean() for x in values])


def _require_reference(reading: TextLogprobs) -> list[np.ndarray]:
    if reading.reference is None:
        raise ValueError("reference=None: must be given for this score")
    return reading.reference


def _standardise_logprobs(logprobs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    target_logprobs = logprobs.gather(1, targets[:, None])[:, 0].double()
    finite = logprobs.clamp_min(-100)  # e^-100 weighs nothing
    weights = finite.exp()
    mean = (weights * finite).sum(1).double()
    variance = (weights * (finite - mean[:, None].to(finite.dtype)).square()).sum(1).double()
    return target_logprobs, (target_logprobs - mean) / variance.clamp_min(1e-12).sqrt()


def read_texts(
    model: nn.Module,
    tokenizer: BpeTokenizer,
    texts: Sequence[str],
    *,
    reference: nn.Module | None = None,
    population: Sequence[str] = (),
) -> TextLogprobs:
    """Score the texts, with their ends, by the model and by the ``reference`` if there is one; then
    a ``population`` is needed too."""
    sequences = tokenizer.encode(texts)
    logprobs, standard = scoring.map_token_distributions(model, sequences, _standardise_logprobs)
    reference_logprobs = gains = None
    if reference is not None:
        reference_logprobs = scoring.token_logprobs(reference, sequences)
        population_sequences = tokenizer.encode(population)
        pairs = [
            _mean_per_text(scoring.token_logprobs(m, population_sequences))
            for m in (model, reference)
        ]
        gains = pairs[0] - pairs[1]
    return TextLogprobs(
        texts=tuple(texts),
        logprobs=logprobs,
        standard=standard,
        reference=reference_logprobs,
        population=gains,
    )


def measure_scores(subject: Subject) -> list[AttackRow]:
    """Measure ``mia_SCORE_accuracy`` for every score but the loss, on all members, on the missed
    and on the redacted ones, each with its null deviation. Scores that need a reference model are
    left out without one.
    """
    probe = probe_of_subject(subject)
    if not probe.members:
        return []
    reading = read_texts(
        subject.model,
        subject.tokenizer,
        probe.members + probe.nonmembers,
        reference=subject.reference,
        population=[p.text for p in subject.others if p.secrets][:MAX_POPULATION_SENTENCES],
    )
    n, rows = len(probe.members), []
    for score in SCORES_BESIDE_LOSS:
        if score.needs_reference and subject.reference is None:
            continue
        values = score.of(reading)
        for view, mask in member_views(probe).items():
            name = f"mia_{score.name}_{'' if view == 'all' else view + '_'}accuracy"
            rows += statistic_with_null(name, values[:n][mask], values[n:][mask])
    return [(metric, 0, value) for metric, value in rows]


MEMBERSHIP_SCORES_ATTACK = register_attack(
    Attack(
        name="membership_scores",
        label="Membership inference by other scores",
        statistic=MEMBERSHIP_ATTACK.statistic,
        measure=measure_scores,
        summary=functools.partial(
            summarise_membership,
            metric_prefixes=tuple(f"mia_{score.name}_" for score in SCORES_BESIDE_LOSS),
        ),
    )
)
