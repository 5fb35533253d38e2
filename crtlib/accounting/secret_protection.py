"""Secret protection: no secret may be guessed more often than promised (Hush!, 2025).

Each secret has a ``prior``, the best chance of guessing it without the model, and a
``posterior``, the chance of a right guess that training must not exceed. Each example gets a weight
and, from that, a sampling probability; the noise is the least that keeps every promise:

>>> held = sparse.csr_array([[1, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 0], [0, 1, 0, 0]])
>>> posterior = [0.3572905727, 0.3939942833, 0.1405737778, 0.2510016204]
>>> plan = plan_protection(
...     held, 0.01, posterior, steps=100, batch_size=1, scale=1.0,
...     budget_growth="linear", neighbouring_relation="reference",
... )
>>> plan.weights.round(6).tolist(), round(plan.noise_multiplier, 6), plan.binding.tolist()
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

from crtlib.accounting.events import WeightedGaussian
from crtlib.accounting.group_mixtures import (
    DivergenceDirection,
    GroupCountLaws,
    group_count_laws,
    mixture_kl,
)
from crtlib.accounting.privacy_loss import Array
from crtlib.accounting.secret_guesses import (
    allowed_divergence,
    check_promises,
    posterior_from_divergence,
)
from crtlib.accounting.secret_weights import maximise_weights
from crtlib.checks import check_allowed, check_choice, check_whole_number

PROMISE_DIRECTIONS: dict[str, tuple[DivergenceDirection, ...]] = {
    "reference": ("forward",),
    "add_or_remove": ("forward", "backward"),
    "replace": ("replace",),
}
"""For each relation, the directions in which the divergence of two laws must keep a promise.

Definition 3.1 fixes candidate inputs that differ only in one secret. The training data is one of
them, and none has a probability above the prior. "reference" compares the output law P of each
candidate with ONE fixed law Q: training with the secret's examples zeroed. That suffices, whatever
replaces what. The laws of (candidate, output) under P and under Q have the divergence
E_candidate D(P || Q); post-processing to "the guess is right" does not raise it; and under Q, which
knows nothing about the candidate, a guess succeeds with at most the prior. So only
N(count, sigma^2) against N(0, sigma^2) is needed: one clip norm apart, and only in this direction.

"replace" is Lemma 3.2 as the paper states it, for pairs of candidates. The worst pair has opposite
gradients, two clip norms apart (the theorem on replacement in the book's chapter on amplification);
this needs about twice the noise of "reference". "add_or_remove" requires both directions of
"reference"."""

BUDGET_EXPONENTS = {"linear": 1.0, "sqrt": 0.5}
"""How a secret's budget of weight grows with the divergence that its promise allows."""
IndexArray = NDArray[np.int64]
MIN_PLANNED_NOISE_MULTIPLIER = 0.05  # no less noise is ever planned
SECRETS_SEARCHED_FIRST = 256  # secrets that a search looks at before all are verified


def probabilities_from_weights(weights: np.ndarray, batch_size: float) -> tuple[np.ndarray, int]:
    """Return ``p_i = w_i batch_size / sum(w)``, ``(examples,)``, and how many were cut to 1.

    The excess goes to the other examples in proportion, so that the expected batch size stays
    ``batch_size``. Raises ValueError if fewer examples than that have a positive weight.
    """
    w = np.asarray(weights, dtype=float)
    check_allowed("batch_size", batch_size, 0 < batch_size < math.inf, "positive and finite")
    usable = int((w > 0).sum())
    check_allowed(
        "batch_size", batch_size, batch_size <= usable, f"at most {usable}, the examples kept"
    )
    is_certain = np.zeros(len(w), dtype=bool)
    while True:
        remaining = batch_size - is_certain.sum()
        p = np.where(is_certain, 1.0, w * (remaining / max(w[~is_certain].sum(), 1e-300)))
        if (p <= 1).all():
            return p, int(is_certain.sum())
        is_certain |= p > 1


def secret_kl_divergences(
    incidence: sparse.csr_array,
    probabilities: ArrayLike,
    noise_multiplier: float,
    *,
    neighbouring_relation: str,
) -> Array:
    """The KL divergence of one step for every secret, in nats, ``(secrets,)``. T steps cost T
    times as much, even if later rounds depend on earlier ones."""
    check_choice("neighbouring_relation", neighbouring_relation, tuple(PROMISE_DIRECTIONS))
    return _worst_direction_kl(
        _secret_count_laws(incidence, probabilities), noise_multiplier,
        neighbouring_relation=neighbouring_relation,
    )  # fmt: skip


def _secret_count_laws(incidence: sparse.csr_array, probabilities: ArrayLike) -> GroupCountLaws:
    return group_count_laws(np.asarray(probabilities)[incidence.indices], incidence.indptr)


def _worst_direction_kl(
    groups: GroupCountLaws, sigma: float, *, neighbouring_relation: str
) -> Array:
    directions = PROMISE_DIRECTIONS[neighbouring_relation]
    divergences = [mixture_kl(groups, sigma, direction=direction) for direction in directions]
    return np.asarray(np.max(divergences, axis=0))


def noise_multiplier_for_promises(
    incidence: sparse.csr_array,
    probabilities: np.ndarray,
    prior: ArrayLike,
    posterior: ArrayLike,
    *,
    steps: int,
    neighbouring_relation: str,
) -> float:
    """The least noise (to 1e-11, on the safe side) with which every secret keeps its promise
    (Hush!, Algorithm 2).

    Args:
        incidence: ``(secrets, examples)``, non-zero where the example holds the secret.
        probabilities: ``(examples,)``: the probability of each example in each step.
        prior: The chance of a right guess without the model; one number, or one per secret.
        posterior: What that chance may become; one number, or one per secret.
        steps: The number of noisy steps.
        neighbouring_relation: "reference", "replace" or "add_or_remove".

    Returns:
        The standard deviation of the noise divided by the clip norm, at least
        ``MIN_PLANNED_NOISE_MULTIPLIER``.

    Raises:
        ValueError: For an unknown relation, and for impossible promises.

    Guarantee:
        For every secret, steps times the KL divergence of one step is at most
        ``allowed_divergence(prior, posterior)``. Test: ``tests/accounting/
        test_secret_protection.py::test_noise_is_the_least_that_keeps_every_promise``.
    """
    check_choice("neighbouring_relation", neighbouring_relation, tuple(PROMISE_DIRECTIONS))
    check_whole_number("steps", steps, 1)
    p, r = check_promises(np.broadcast_to(prior, incidence.shape[:1]), posterior)
    allowed = allowed_divergence(p, r) / steps
    groups = _secret_count_laws(incidence, probabilities)
    if not len(allowed):
        return MIN_PLANNED_NOISE_MULTIPLIER
    relation = {"neighbouring_relation": neighbouring_relation}
    searched, sigma = np.zeros(0, dtype=int), 1.0
    while True:  # some secrets are searched; all are verified, and those that fail join
        ratios = _worst_direction_kl(groups, sigma, **relation) / allowed
        if len(searched) and ratios.max() <= 1:
            return sigma
        searched = np.union1d(searched, np.argsort(-ratios, kind="stable")[:SECRETS_SEARCHED_FIRST])
        searched_laws = _secret_count_laws(incidence[searched], probabilities)

        def fails(
            sigma: float, laws: GroupCountLaws = searched_laws, searched: IndexArray = searched
        ) -> bool:
            divergences = _worst_direction_kl(laws, sigma, **relation)
            return bool((divergences / allowed[searched]).max() > 1)

        high = sigma
        while fails(high):
            high *= 2
        low = high / 2
        while low > MIN_PLANNED_NOISE_MULTIPLIER and not fails(low):
            low, high = low / 2, low
        if low <= MIN_PLANNED_NOISE_MULTIPLIER and not fails(MIN_PLANNED_NOISE_MULTIPLIER):
            low = high = MIN_PLANNED_NOISE_MULTIPLIER
        while high > low * (1 + 1e-11):
            middle = (low + high) / 2
            low, high = (middle, high) if fails(middle) else (low, middle)
        sigma = high


@dataclass(frozen=True, eq=False)
class ProtectionPlan:
    """How to train: sampling ``probabilities (examples,)`` and noise that keep every promise.

    ``bound`` is a certified upper bound on the sum of any ``weights`` within the budgets;
    ``binding`` are the secrets whose KL divergence is nearest to (or furthest above) what is
    allowed.
    """

    incidence: sparse.csr_array
    prior: np.ndarray
    allowed_posterior: np.ndarray
    weights: np.ndarray
    bound: float
    probabilities: np.ndarray
    certain_examples: int  # examples that are in every batch
    noise_multiplier: float
    binding: np.ndarray
    steps: int
    batch_size: float
    scale: float
    budget_growth: str
    neighbouring_relation: str

    @property
    def kept_share(self) -> float:
        """The share of the examples' weight that is kept."""
        return float(self.weights.mean())

    @property
    def gap(self) -> float:
        """An upper bound on the share of weight that could still be gained within the budgets."""
        return max(0.0, 1 - float(self.weights.sum()) / self.bound)

    def summary(self) -> dict[str, object]:
        """The plan in plain values, by the names that files have."""
        return {
            "secrets": len(self.prior),
            "examples": len(self.weights),
            "steps": self.steps,
            "batch_size": self.batch_size,
            "targets": self.budget_growth,
            "scale": self.scale,
            "neighbouring_relation": self.neighbouring_relation,
            "accounting": "kl",
            "noise_multiplier": self.noise_multiplier,
            "kept_weight": float(self.weights.sum()),
            "kept": self.kept_share,
            "gap": self.gap,
            "in_every_batch": self.certain_examples,
        }

    def tables(
        self, examples: Sequence[object], secrets: Sequence[object]
    ) -> dict[str, pd.DataFrame]:
        """Return ``weights``, one row per example, and ``secrets``, with what KL accounts for
        each."""
        incidence = self.incidence
        divergences = self.steps * secret_kl_divergences(
            incidence,
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
            "examples": np.diff(incidence.indptr),
            "load": incidence @ self.probabilities,
            "prior": self.prior,
            "allowed_posterior": self.allowed_posterior,
            "posterior_kl": posterior_from_divergence(divergences, self.prior),
        }
        return {"weights": pd.DataFrame(weights), "secrets": pd.DataFrame(rows)}


def plan_protection(
    incidence: sparse.csr_array,
    prior: ArrayLike,
    posterior: ArrayLike,
    *,
    steps: int,
    batch_size: float,
    scale: float,
    neighbouring_relation: str,
    budget_growth: str = "sqrt",
    solver: str = "auto",
) -> ProtectionPlan:
    """Weights, sampling probabilities and noise for DP-SGD (Hush!, Algorithm 2).

    Args:
        incidence: ``(secrets, examples)``, non-zero where the example holds the secret.
        prior: The chance of a right guess without the model; one number, or one per secret.
        posterior: What that chance may become; one number, or one per secret.
        steps: The number of noisy steps.
        batch_size: The expected number of examples in a batch.
        scale: The total weight of a secret's examples may be this times its allowed divergence c,
            or the square root of c (``budget_growth``). Infinite keeps every example: no
            preprocessing.
        neighbouring_relation: "reference", "replace" or "add_or_remove"
            (:data:`PROMISE_DIRECTIONS`).
        budget_growth: Whether budgets are "linear" in c, as in the paper, or in its square root
            ("sqrt", not in the paper: the divergence of a step grows with the square of the load,
            so this keeps more with less noise).
        solver: The solver of the linear program; its answer is repaired and certified.

    Returns:
        The plan. It depends only on public data: who holds what, and the promises.

    Raises:
        ValueError: For impossible promises, budgets or batches.

    Guarantee:
        With these probabilities and this noise, every secret is guessed with a chance of at most
        its ``posterior``. Test:
        ``tests/accounting/test_secret_protection.py::test_every_secret_keeps_its_promise``.
    """
    binary_incidence = sparse.csr_array(incidence, copy=True).astype(float)
    binary_incidence.sum_duplicates()
    binary_incidence.eliminate_zeros()
    binary_incidence.data[:] = 1.0
    p, r = check_promises(np.broadcast_to(prior, binary_incidence.shape[:1]), posterior)
    check_allowed("scale", scale, scale > 0, "positive")
    check_choice("budget_growth", budget_growth, tuple(BUDGET_EXPONENTS))
    sizes = np.diff(binary_incidence.indptr)
    empty = int((sizes == 0).sum())
    check_allowed("incidence: secrets without an example", empty, not empty, "0")
    exponent = BUDGET_EXPONENTS[budget_growth]
    budgets = np.minimum(scale * allowed_divergence(p, r) ** exponent, sizes)
    optimum = maximise_weights(binary_incidence, budgets, solver=solver)
    q, certain_count = probabilities_from_weights(optimum.weights, batch_size)
    relation: dict[str, Any] = {"neighbouring_relation": neighbouring_relation}
    sigma = noise_multiplier_for_promises(binary_incidence, q, p, r, steps=steps, **relation)
    ratios = (
        steps
        * secret_kl_divergences(binary_incidence, q, sigma, **relation)
        / allowed_divergence(p, r)
    )
    binding = np.flatnonzero(ratios >= ratios.max() * (1 - 1e-6))
    return ProtectionPlan(
        incidence=binary_incidence,
        prior=p,
        allowed_posterior=r,
        weights=optimum.weights,
        bound=optimum.bound,
        probabilities=q,
        certain_examples=certain_count,
        noise_multiplier=sigma,
        binding=binding[np.argsort(-ratios[binding], kind="stable")],
        steps=int(steps),
        batch_size=float(batch_size),
        scale=float(scale),
        budget_growth=budget_growth,
        neighbouring_relation=neighbouring_relation,
    )


def sweep_scales(
    incidence: sparse.csr_array,
    prior: ArrayLike,
    posterior: ArrayLike,
    *,
    scales: Sequence[float],
    **options: Any,
) -> pd.DataFrame:
    """A table of what each constant C in ``scales`` keeps and the noise it needs: one row per plan.

    ``options`` as for :func:`plan_protection`. The search costs no privacy, because plans read only
    public data.
    """
    return compare_plans(
        [plan_protection(incidence, prior, posterior, scale=s, **options) for s in scales]
    )


def compare_plans(plans: Sequence[ProtectionPlan]) -> pd.DataFrame:
    """A table of what each of these plans keeps and the noise it needs: one row per plan."""
    columns = ["targets", "scale", "kept", "noise_multiplier", "gap", "in_every_batch"]
    table = pd.DataFrame([plan.summary() for plan in plans])[columns]
    return table.assign(binding=[len(plan.binding) for plan in plans])


def secret_guess_bounds(
    events: WeightedGaussian | Iterable[WeightedGaussian],
    incidence: sparse.csr_array,
    *,
    prior,
    neighbouring_relation: str,
) -> tuple[np.ndarray, np.ndarray]:
    """How often each secret may be guessed after these events (Hush!, by KL divergences).

    Args:
        events: The events of a plan's phases; their divergences add up.
        incidence: ``(secrets, points)``, 1 where the point holds the secret.
        prior: The chance of a right guess without the model; one number, or one per secret.
        neighbouring_relation: "reference", "replace" or "add_or_remove".

    Returns:
        The KL bound on the chance of a right guess, and the KL divergence itself in nats, each
        ``(secrets,)``.

    Raises:
        ValueError: For a phase whose number of points is not that of ``incidence``.

    Guarantee:
        What was done is charged step by step; without noise, the bound for a sampled secret is 1.
        Tests:
        ``tests/training/test_phases.py::test_the_phases_of_a_plan_keep_its_promises``,
        ``tests/training/test_phases.py::
        test_without_noise_nothing_is_promised_of_a_sampled_secret``.
    """
    divergences = np.zeros(incidence.shape[0])
    for event in (events,) if isinstance(events, WeightedGaussian) else events:
        p = np.asarray(event.sampling_probabilities)
        if len(p) != incidence.shape[1]:
            raise ValueError(f"incidence: has {incidence.shape[1]} points, the phase {len(p)}")
        if event.noise_multiplier == 0:
            divergences[incidence @ p > 0] += math.inf
        else:
            divergences += event.steps * secret_kl_divergences(
                incidence, p, event.noise_multiplier, neighbouring_relation=neighbouring_relation
            )
    return posterior_from_divergence(divergences, prior), divergences
