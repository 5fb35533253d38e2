"""Secret protection: no secret may be guessed more often than promised (Hush!, 2025).

Each secret has a ``prior``, the best chance of guessing it without the model, and a ``posterior``
that training must not exceed. Examples get weights, weights sampling probabilities, and the noise
is the least that keeps every promise:

>>> held = sparse.csr_array([[1, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 0], [0, 1, 0, 0]])
>>> posterior = [0.3572905727, 0.3939942833, 0.1405737778, 0.2510016204]
>>> made = plan(held, 0.01, posterior, steps=100, batch_size=1, scale=1.0, targets="linear")
>>> made.weights.round(6).tolist(), round(made.noise_multiplier, 6), made.binding.tolist()
([0.25, 0.6, 0.15, 1.0], 3.811242, [1])
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from crtlib.accounting import mixtures, secret_lp
from crtlib.accounting.events import WeightedGaussian
from crtlib.accounting.losses import Array
from crtlib.accounting.posteriors import divergence, posterior, promised
from crtlib.checks import check, check_choice, check_whole

RELATIONS: dict[str, tuple[mixtures.Direction, ...]] = {
    "reference": ("forward",),
    "add_or_remove": ("forward", "backward"),
    "replace": ("replace",),
}
"""The directions of the pair of laws that must meet a promise.

Definition 3.1 fixes candidate inputs that differ in one secret alone; the training data is one of
them, none with more than the prior. "reference" compares each candidate's output P with that of
ONE fixed law Q, training with the secret's examples zeroed. That suffices, whatever replaces what:
(candidate, output) under P and under Q have the divergence E_candidate D(P || Q), post-processing
to "the guess is right" does not raise it, and under Q, which knows nothing of the candidate, a
guess succeeds with the prior at most. So only N(count, sigma^2) against N(0, sigma^2) is needed:
one clipping norm apart, and in this direction. "replace" is Lemma 3.2 as the paper states it, for
pairs of candidates: opposite gradients are the worst of them (the theorem on replacement in the
book's chapter on amplification), two clipping norms apart; it needs about twice the noise of the
reference. "add_or_remove" asks for both directions of the reference."""

TARGETS = {"linear": 1.0, "sqrt": 0.5}
Index = NDArray[np.int64]
LEAST = 0.05  # no less noise is ever planned
SCREENED = 256  # secrets that a search looks at before all are verified


def sampling_probabilities(weights: np.ndarray, batch_size: float) -> tuple[np.ndarray, int]:
    """``p_i = w_i batch_size / sum(w)``, ``(examples,)``, and how many had to be cut to 1.

    What is cut is given to the others in proportion, so that the expected batch stays
    ``batch_size``. Raises ValueError where fewer examples than that have a weight.
    """
    w = np.asarray(weights, dtype=float)
    check("batch_size", batch_size, 0 < batch_size < math.inf, "positive and finite")
    usable = int((w > 0).sum())
    check("batch_size", batch_size, batch_size <= usable, f"at most {usable}, the examples kept")
    certain = np.zeros(len(w), dtype=bool)
    while True:
        left = batch_size - certain.sum()
        p = np.where(certain, 1.0, w * (left / max(w[~certain].sum(), 1e-300)))
        if (p <= 1).all():
            return p, int(certain.sum())
        certain |= p > 1


def kl(
    incidence: sparse.csr_array,
    probabilities: ArrayLike,
    noise_multiplier: float,
    *,
    neighbouring_relation: str = "reference",
) -> Array:
    """KL divergence of one round in nats for every secret, ``(secrets,)``; T rounds cost T times
    as much, also where later rounds depend on earlier ones."""
    check_choice("neighbouring_relation", neighbouring_relation, tuple(RELATIONS))
    return _kl(_counts(incidence, probabilities), noise_multiplier, neighbouring_relation)


def _counts(incidence: sparse.csr_array, probabilities: ArrayLike) -> mixtures.Counts:
    return mixtures.counts(np.asarray(probabilities)[incidence.indices], incidence.indptr)


def _kl(groups: mixtures.Counts, sigma: float, relation: str) -> Array:
    each = [mixtures.kl(groups, sigma, direction=d) for d in RELATIONS[relation]]
    return np.asarray(np.max(each, axis=0))


def noise_multiplier(
    incidence: sparse.csr_array,
    probabilities: np.ndarray,
    prior: ArrayLike,
    posterior: ArrayLike,
    *,
    steps: int,
    neighbouring_relation: str = "reference",
) -> float:
    """The least noise (to 1e-11, on the safe side) with which every secret keeps its promise: steps
    times the KL divergence of one round is at most ``divergence(prior, posterior)``."""
    check_choice("neighbouring_relation", neighbouring_relation, tuple(RELATIONS))
    check_whole("steps", steps, 1)
    p, r = promised(np.broadcast_to(prior, incidence.shape[:1]), posterior)
    allowed = divergence(p, r) / steps
    groups = _counts(incidence, probabilities)
    if not len(allowed):
        return LEAST
    few, sigma = np.zeros(0, dtype=int), 1.0
    while True:  # few secrets are searched; all are verified, and those that fail join the few
        ratios = _kl(groups, sigma, neighbouring_relation) / allowed
        if len(few) and ratios.max() <= 1:
            return sigma
        few = np.union1d(few, np.argsort(-ratios, kind="stable")[:SCREENED])
        screened = _counts(incidence[few], probabilities)

        def fails(s: float, screened: mixtures.Counts = screened, few: Index = few) -> bool:
            return bool((_kl(screened, s, neighbouring_relation) / allowed[few]).max() > 1)

        high = sigma
        while fails(high):
            high *= 2
        low = high / 2
        while low > LEAST and not fails(low):
            low, high = low / 2, low
        if low <= LEAST and not fails(LEAST):
            low = high = LEAST
        while high > low * (1 + 1e-11):
            middle = (low + high) / 2
            low, high = (middle, high) if fails(middle) else (low, middle)
        sigma = high


@dataclass(frozen=True, eq=False)
class Plan:
    """How to train: sampling ``probabilities (examples,)`` and noise that keep every promise.

    ``bound`` is a certified bound on the sum of any ``weights`` within the budgets; ``binding``
    are the secrets whose KL divergence is nearest to (or furthest above) what is allowed.
    """

    incidence: sparse.csr_array
    prior: np.ndarray
    promised: np.ndarray
    weights: np.ndarray
    bound: float
    probabilities: np.ndarray
    certain: int  # examples that are in every batch
    noise_multiplier: float
    binding: np.ndarray
    steps: int
    batch_size: float
    scale: float
    targets: str
    neighbouring_relation: str

    @property
    def kept(self) -> float:
        """The share of the examples' weight that is kept."""
        return float(self.weights.mean())

    @property
    def gap(self) -> float:
        """At most this share of the weight could be gained within the same budgets."""
        return max(0.0, 1 - float(self.weights.sum()) / self.bound)

    def summary(self) -> dict[str, object]:
        """The plan in plain values."""
        return {
            "secrets": len(self.prior),
            "examples": len(self.weights),
            "rounds": self.steps,
            "batch_size": self.batch_size,
            "targets": self.targets,
            "scale": self.scale,
            "neighbouring_relation": self.neighbouring_relation,
            "accounting": "kl",
            "noise_multiplier": self.noise_multiplier,
            "kept_weight": float(self.weights.sum()),
            "kept": self.kept,
            "certified_gap": self.gap,
            "in_every_batch": self.certain,
        }

    def tables(
        self, examples: Sequence[object], secrets: Sequence[object]
    ) -> dict[str, pd.DataFrame]:
        """``weights``, one row an example, and ``secrets``, with what KL accounts for each."""
        held = self.incidence
        spent = self.steps * kl(
            held,
            self.probabilities,
            self.noise_multiplier,
            neighbouring_relation=self.neighbouring_relation,
        )
        weights = {
            "example": examples,
            "weight": self.weights,
            "sampling_probability": self.probabilities,
        }
        rows = {
            "secret": secrets,
            "examples": np.diff(held.indptr),
            "load": held @ self.probabilities,
            "prior": self.prior,
            "promised": self.promised,
            "posterior_kl": posterior(spent, self.prior),
        }
        return {"weights": pd.DataFrame(weights), "secrets": pd.DataFrame(rows)}


def plan(
    incidence: sparse.csr_array,
    prior: ArrayLike,
    posterior: ArrayLike,
    *,
    steps: int,
    batch_size: float,
    scale: float,
    targets: str = "sqrt",
    neighbouring_relation: str = "reference",
    solver: str = "auto",
) -> Plan:
    """Weights, sampling probabilities and noise for DP-SGD (Algorithm 2).

    ``incidence (secrets, examples)`` is non-zero where the example holds the secret; ``prior`` and
    ``posterior`` are one number or one a secret. A secret's examples may weigh ``scale`` times its
    divergence c ("linear", as in the paper) or its square root ("sqrt", ours: the divergence of a
    round grows with the square of the load, so this keeps more with less noise). An infinite
    ``scale`` keeps every example: no preprocessing. The plan depends on public data alone: who
    holds what, and the promises. Raises ValueError for promises, budgets or batches that cannot be.
    """
    held = sparse.csr_array(incidence, copy=True).astype(float)
    held.sum_duplicates()
    held.eliminate_zeros()
    held.data[:] = 1.0
    p, r = promised(np.broadcast_to(prior, held.shape[:1]), posterior)
    check("scale", scale, scale > 0, "positive")
    check_choice("targets", targets, tuple(TARGETS))
    sizes = np.diff(held.indptr)
    empty = int((sizes == 0).sum())
    check("incidence: secrets without an example", empty, not empty, "0")
    budgets = np.minimum(scale * divergence(p, r) ** TARGETS[targets], sizes)
    optimum = secret_lp.solve(held, budgets, solver=solver)
    q, certain = sampling_probabilities(optimum.weights, batch_size)
    how: dict[str, Any] = {"neighbouring_relation": neighbouring_relation}
    sigma = noise_multiplier(held, q, p, r, steps=steps, **how)
    ratios = steps * kl(held, q, sigma, **how) / divergence(p, r)
    binding = np.flatnonzero(ratios >= ratios.max() * (1 - 1e-6))
    return Plan(
        incidence=held,
        prior=p,
        promised=r,
        weights=optimum.weights,
        bound=optimum.bound,
        probabilities=q,
        certain=certain,
        noise_multiplier=sigma,
        binding=binding[np.argsort(-ratios[binding], kind="stable")],
        steps=int(steps),
        batch_size=float(batch_size),
        scale=float(scale),
        targets=targets,
        neighbouring_relation=neighbouring_relation,
    )


def sweep(
    incidence: sparse.csr_array,
    prior: ArrayLike,
    posterior: ArrayLike,
    *,
    scales: Sequence[float],
    **options: Any,
) -> pd.DataFrame:
    """What each constant C of ``scales`` keeps, and the noise that it needs: a plan a row.

    ``options`` as for :func:`plan`. The search costs no privacy: plans read public data alone.
    """
    return compared([plan(incidence, prior, posterior, scale=s, **options) for s in scales])


def compared(made: Sequence[Plan]) -> pd.DataFrame:
    """What each of these plans keeps, and the noise that it needs: a plan a row."""
    shown = ["targets", "scale", "kept", "noise_multiplier", "certified_gap", "in_every_batch"]
    table = pd.DataFrame([one.summary() for one in made])[shown]
    return table.assign(binding=[len(one.binding) for one in made])


def guarantees(
    events: WeightedGaussian | Iterable[WeightedGaussian],
    incidence: sparse.csr_array,
    *,
    prior,
    neighbouring_relation: str = "reference",
) -> tuple[np.ndarray, np.ndarray]:
    """From what was done: for every secret the bound on a guess by KL, and the KL divergence
    itself in nats, each ``(secrets,)``. ``incidence (secrets, points)`` is 1 where the point
    holds the secret. Divergences of phases add up; without noise a bound is 1."""
    spent = np.zeros(incidence.shape[0])
    for event in (events,) if isinstance(events, WeightedGaussian) else events:
        p = np.asarray(event.sampling_probabilities)
        if len(p) != incidence.shape[1]:
            raise ValueError(f"incidence: has {incidence.shape[1]} points, the phase {len(p)}")
        if event.noise_multiplier == 0:
            spent[incidence @ p > 0] += math.inf
        else:
            spent += event.steps * kl(
                incidence, p, event.noise_multiplier, neighbouring_relation=neighbouring_relation
            )
    return posterior(spent, prior), spent
