"""Scores for membership inference beyond the loss: zlib, Min-K%++, a reference model, RMIA.

Each gives a number of a sentence that is lower where the model has read it, and each is judged as
the loss is (:mod:`crtlib.attacks.membership`): on both sides of the same carriers, with a band.

>>> reading = Reading(
...     texts=("USR: I am Ada", "USR: aaaaaaaaaaaa"), logprobs=[np.array([-1.0, -3]), -np.ones(2)],
...     standard=[np.array([0.5, -1.0]), np.ones(2)],
... )
>>> {s.name: s.of(reading).round(3).tolist() for s in SCORES if not s.needs_reference}
{'loss': [2.0, 1.0], 'zlib': [0.095, 0.067], 'min_k_plus_plus': [1.0, -1.0]}
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from torch import Tensor, nn

from crtlib.attacks import membership
from crtlib.attacks.attack import Attack, Row, Subject, register
from crtlib.models import scoring
from crtlib.text.tokenizer import Bpe

SHARE = 0.2
"""Of the tokens of a sentence, those of least score count for Min-K%++."""
POPULATION = 500
"""At most so many sentences that no model has read compare with each one in RMIA."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What models make of some texts: all that a score may look at, one entry a text.

    ``logprobs`` of the tokens (t,) in nats; ``standard`` the same less their mean under the model's
    own next-token law, over its standard deviation; ``reference`` the log-probabilities (t,) by a
    model that has read none of the secrets; ``population`` (z,) the mean log-probability less that
    of the reference, a token, of sentences that neither has read.
    """

    texts: tuple[str, ...] = field(repr=False)
    logprobs: list[np.ndarray] = field(repr=False)
    standard: list[np.ndarray] = field(repr=False)
    reference: list[np.ndarray] | None = field(default=None, repr=False)
    population: np.ndarray | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Score:
    """A number of each text of a :class:`Reading`, ``(texts,)``, lower where it was read."""

    name: str
    label: str
    of: Callable[[Reading], np.ndarray]
    needs_reference: bool = False


def loss(reading: Reading) -> np.ndarray:
    """Mean negative log-likelihood of a token, in nats (Yeom et al. 2018)."""
    return -_means(reading.logprobs)


def zlib_ratio(reading: Reading) -> np.ndarray:
    """The loss over the number of bytes that zlib makes of the text (Carlini et al. 2021): what is
    likely because it repeats itself is discounted."""
    sizes = np.array([len(zlib.compress(text.encode())) for text in reading.texts])
    return loss(reading) / sizes


def min_k_plus_plus(reading: Reading) -> np.ndarray:
    """Min-K%++ (Zhang et al. 2024): the mean of the ``SHARE`` of tokens that are least likely
    against what the model thought of all tokens in their place."""
    lowest = [np.sort(z)[: max(1, round(SHARE * len(z)))] for z in reading.standard]
    return -_means(lowest)


def referenced(reading: Reading) -> np.ndarray:
    """The loss less that of the reference: :func:`crtlib.attacks.membership.calibrated`."""
    return membership.calibrated(loss(reading), -_means(_reference(reading)))


def rmia(reading: Reading) -> np.ndarray:
    """Robust membership inference (Zarifzadeh et al. 2024), offline, with one reference, threshold
    1 and likelihoods a token: minus the share of the population whose gain over the reference
    the text exceeds. With one population for all it ranks as the reference does, but for ties;
    what it adds is a scale that is the same for every model.
    """
    if reading.population is None:
        raise ValueError("population=None: must be given for RMIA")
    gains = -referenced(reading)
    return -(gains[:, None] >= reading.population).mean(axis=1)


SCORES = (
    Score(name="loss", label="loss", of=loss),
    Score(name="zlib", label="loss / zlib", of=zlib_ratio),
    Score(name="min_k_plus_plus", label="Min-K%++", of=min_k_plus_plus),
    Score(name="reference", label="loss - reference", of=referenced, needs_reference=True),
    Score(name="rmia", label="RMIA", of=rmia, needs_reference=True),
)


def _means(values: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([x.mean() for x in values])


def _reference(reading: Reading) -> list[np.ndarray]:
    if reading.reference is None:
        raise ValueError("reference=None: must be given for this score")
    return reading.reference


# --------------------------------------------------------------------------- reading
def _standardised(logprobs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    own = logprobs.gather(1, targets[:, None])[:, 0].double()
    finite = logprobs.clamp_min(-100)  # e^-100 weighs nothing
    weights = finite.exp()
    mean = (weights * finite).sum(1).double()
    variance = (weights * (finite - mean[:, None].to(finite.dtype)).square()).sum(1).double()
    return own, (own - mean) / variance.clamp_min(1e-12).sqrt()


def read(
    model: nn.Module,
    tokenizer: Bpe,
    texts: Sequence[str],
    *,
    reference: nn.Module | None = None,
    population: Sequence[str] = (),
) -> Reading:
    """Score the texts, with their ends, by the model and by the ``reference`` if there is one; it
    then also needs a ``population``."""
    sequences = tokenizer.encode(texts)
    logprobs, standard = scoring.over_tokens(model, sequences, _standardised)
    by_reference = gains = None
    if reference is not None:
        by_reference = scoring.token_logprobs(reference, sequences)
        others = tokenizer.encode(population)
        pairs = [_means(scoring.token_logprobs(m, others)) for m in (model, reference)]
        gains = pairs[0] - pairs[1]
    return Reading(
        texts=tuple(texts),
        logprobs=logprobs,
        standard=standard,
        reference=by_reference,
        population=gains,
    )


def measure(subject: Subject) -> list[Row]:
    """``mia_SCORE_accuracy`` of every score but the loss, on all members, on the missed and on the
    redacted ones, each with its null deviation. Without a reference model its scores are left out.
    """
    probe = membership.attacked(subject)
    if not probe.members:
        return []
    reading = read(
        subject.model,
        subject.tokenizer,
        probe.members + probe.nonmembers,
        reference=subject.reference,
        population=[p.text for p in subject.others if p.secrets][:POPULATION],
    )
    n, rows = len(probe.members), []
    for score in OFFERED:
        if score.needs_reference and subject.reference is None:
            continue
        values = score.of(reading)
        for view, mask in membership.views(probe).items():
            name = f"mia_{score.name}_{'' if view == 'all' else view + '_'}accuracy"
            rows += membership.judged(name, values[:n][mask], values[n:][mask])
    return [(metric, 0, value) for metric, value in rows]


OFFERED = SCORES[1:]
"""The loss is :mod:`crtlib.attacks.membership`'s own."""


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """:func:`crtlib.attacks.membership.summary` of these scores' metrics alone."""
    ours = tuple(f"mia_{score.name}_" for score in OFFERED)
    return membership.summary(table, ours=ours)


ATTACK = register(
    Attack(
        name="membership_scores",
        label="Membership inference by other scores",
        statistic="accuracy (share of right guesses)",
        measure=measure,
        summary=summary,
    )
)
