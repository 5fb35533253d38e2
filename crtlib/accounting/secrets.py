"""Secret protection (Hush!, 2025): what a round shows of a secret, and plans that bound it.

A group of sampled points against its absence: N(how many were drawn, sigma^2) and N(0, sigma^2).

One round of DP-SGD takes each point ``i`` with its own probability ``p_i``. What a round shows of
the points that hold a secret is no more than this pair does: a Gaussian mixture whose weights are
a Poisson-binomial law, against the Gaussian without them (in units of the clipping norm).

>>> group = counts([0.02] * 5, [0, 5])
>>> round(float(mixture_kl(group, sigma=1.0)[0]), 12)
0.007861524282

``mixture_kl`` is exact and takes 100,000 secrets at once.

From a divergence to the best guess of a secret, and back (Hush!, Lemma 3.2).

>>> round(float(divergence(0.01, 0.3572905727)), 9)  # the nats that raise a guess to 0.357
1.0
>>> [round(float(posterior(1.0, 0.01, kind=kind)), 4) for kind in DIVERGENCES]
[0.3573, 0.1095, 1.0, 0.0267]

With D(P || Q) at most that of two coins, Bern(posterior) from Bern(prior), who guesses with
probability ``prior`` under Q does so with at most ``posterior`` under P. Which laws P and Q have
to be compared is :data:`crtlib.accounting.secrets.RELATIONS`.

Which examples to keep: as much weight as each secret's budget allows (Hush!, equation 1).

>>> a, b, c, d = [0, 1, 2], [2, 3], [0], [1]  # the examples that hold each of four secrets
>>> rows = np.repeat([0, 1, 2, 3], [3, 2, 1, 1])
>>> held = sparse.csr_array((np.ones(7), (rows, a + b + c + d)))
>>> found = solve(held, [1, 1.15, 0.25, 0.6])
>>> found.weights.round(6).tolist(), round(found.gap, 9)
([0.25, 0.6, 0.15, 1.0], 0.0)

Whatever a solver returns is repaired until every budget holds, and its loss is certified by a
bound that trusts no solver.

Secret protection: no secret may be guessed more often than promised (Hush!, 2025).

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
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, sparse, special

from crtlib.accounting.composition import Array
from crtlib.accounting.ledger import WeightedGaussian
from crtlib.checks import check, check_choice, check_whole

Direction = Literal["forward", "backward", "replace"]
DIRECTIONS = ("forward", "backward", "replace")
ROWS = 2048  # secrets of one block: their table stays in the cache
LOG_TAIL = -75.0  # counts whose probability is below e^-75 are left out, and charged
REACH, STEP = 9.5, 0.5  # of the integration grid, in sigma


@dataclass(frozen=True)
class Counts:
    """Poisson-binomial laws of many groups, in blocks of similar length.

    A block is ``(rows, pmf, tail)``: the numbers of its groups, ``pmf[i, k]`` the probability
    that k points are drawn, (len(rows), K + 1), and ``tail`` a bound on that of more than K.
    """

    blocks: tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...]
    sizes: np.ndarray  # points of each group

    def __len__(self) -> int:
        return len(self.sizes)


def counts(probabilities: ArrayLike, indptr: ArrayLike) -> Counts:
    """The laws of the groups ``probabilities[indptr[j]:indptr[j + 1]]`` (a CSR matrix' fields).

    Counts k whose Chernoff bound e^(k - load) (load / k)^k is below e^(-75 - load) are left out.
    Raises ValueError for a probability outside [0, 1].
    """
    p = np.asarray(probabilities, dtype=float)
    starts = np.asarray(indptr, dtype=np.int64)
    for worst in (p.min(), p.max()) if p.size else ():
        if not 0 <= worst <= 1:
            raise ValueError(f"probabilities: one is {worst}: must be in [0, 1]")
    sizes = np.diff(starts)
    loads = np.diff(np.concatenate([[0.0], np.cumsum(p)])[starts])
    longest = _longest(loads, sizes)
    blocks = []
    order = np.lexsort((-sizes, longest))
    for rows in np.split(order, range(ROWS, len(order), ROWS)) if len(order) else ():
        rows = rows[np.argsort(-sizes[rows], kind="stable")]
        top = int(longest[rows].max())
        pmf = np.zeros((len(rows), top + 1))
        pmf[:, 0] = 1.0
        active = len(rows) - np.searchsorted(sizes[rows][::-1], np.arange(sizes[rows[0]]), "right")
        for d, n in enumerate(active):  # the d-th point of each of the n groups that have one
            q = p[starts[rows[:n]] + d, None]
            drawn = pmf[:n, :-1] * q
            pmf[:n] *= 1 - q
            pmf[:n, 1:] += drawn
        tail = np.asarray(np.exp(_log_chernoff(top + 1, loads[rows])))
        blocks.append((rows, pmf, np.where(sizes[rows] <= top, 0.0, tail)))
    return Counts(tuple(blocks), sizes)


def poisson_binomial(probabilities: Sequence[float] | Array) -> Array:
    """The law of how many of one group's points are drawn, ``(K + 1,)``: one row of `counts`.

    >>> poisson_binomial([0.5, 0.5]).tolist()
    [0.25, 0.5, 0.25]
    """
    law: Array = counts(probabilities, [0, len(probabilities)]).blocks[0][1][0]
    return law


def _log_chernoff(k: ArrayLike, load: ArrayLike) -> Array:
    """The log of a bound on P[count >= k], for k > load."""
    k, load = np.asarray(k, dtype=float), np.asarray(load, dtype=float)
    with np.errstate(divide="ignore"):
        return np.where(k > load, k - load + k * np.log(load / k), 0.0)


def _longest(loads: Array, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each group the largest count that is kept: bisection on the Chernoff bound."""
    low, high = np.floor(loads), np.maximum(sizes, 1).astype(float)
    while (high - low > 1).any():
        k = np.ceil((low + high) / 2)
        enough = _log_chernoff(k + 1, loads) <= LOG_TAIL - loads
        low, high = np.where(enough, low, np.minimum(k, high)), np.where(enough, k, high)
    return high.astype(np.int64)


def mixture_kl(groups: Counts, sigma: float, *, direction: Direction = "forward") -> Array:
    """KL divergence of one round in nats, of every group, ``(groups,)``.

    "forward" is with against without the group, "backward" without against with, "replace" the
    mixture against its mirror image (each gradient u replaced by -u, the worst replacement).
    ``sigma`` is the noise multiplier. Rounding is below 1e-12 relative; what is left out of the
    laws is added as a bound.
    """
    check("sigma", sigma, 0 < sigma < math.inf, "positive and finite")
    check_choice("direction", direction, DIRECTIONS)
    out = np.zeros(len(groups))
    for rows, pmf, tail in groups.blocks:
        top = pmf.shape[1] - 1
        if top:
            # log L is analytic to pi sigma^2 off the real line: sums converge as e^(-40) here.
            step = STEP * sigma * min(1.0, sigma)
            left = 0.0 if direction == "replace" else -REACH * sigma  # an even integrand, 0 at 0
            x = np.arange(left, top + REACH * sigma, step)
            out[rows] = _kl_block(pmf, x, sigma, direction) * step
        # t: convexity, the entropy of "in the tail or not", and log(q / p) <= -log pmf_0
        n = (2 if direction == "replace" else 1) * groups.sizes[rows]
        entropy = special.entr(tail) + special.entr(1 - tail)
        bound = tail * n**2 / (2 * sigma**2) + entropy if direction != "backward" else 0.0
        if direction != "forward":
            bound = bound + np.divide(tail, pmf[:, 0], out=np.zeros_like(tail), where=tail > 0)
        out[rows] += bound
    return out


def _kl_block(pmf: Array, x: Array, sigma: float, direction: str) -> Array:
    log_q = -((x / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi))
    u, loss, p = _ratio(pmf, x, sigma, log_q)
    if direction == "replace":
        _, mirrored, p_mirrored = _ratio(pmf, -x, sigma, log_q)
        return np.asarray(((p - p_mirrored) * (loss - mirrored)).sum(axis=1))
    q = np.exp(log_q)
    near = np.abs(u) < 1e-3  # where the differences below would cancel
    s = u[near]
    if direction == "forward":
        terms = p * loss - p + q
        series = s * s * (1 / 2 - s * (1 / 6 - s * (1 / 12 - s * (1 / 20 - s / 30))))
    else:
        terms = p - q - q * loss
        series = s * s * (1 / 2 - s * (1 / 3 - s * (1 / 4 - s * (1 / 5 - s / 6))))
    terms[near] = series * np.broadcast_to(q, u.shape)[near]
    return np.asarray(terms.sum(axis=1))


def _ratio(pmf: Array, x: Array, sigma: float, log_q: Array) -> tuple[Array, Array, Array]:
    """``p / q - 1``, its ``log1p`` and ``p`` at ``x``, each (groups, len(x)), p the mixture."""
    k = np.arange(pmf.shape[1])[:, None]
    exponent = (k * x - k**2 / 2) / sigma**2  # (K + 1, x)
    u = pmf[:, 1:] @ np.expm1(np.minimum(exponent[1:], 600))
    hard = (exponent.max(axis=0) > 600) | (u.min(axis=0) < -0.99)  # e^600, or 1 + u cancels
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.log1p(u)
    p = np.exp(log_q) * (1 + u)
    if hard.any():
        log_p = np.full((len(pmf), int(hard.sum())), -np.inf)
        with np.errstate(divide="ignore"):
            logs = np.log(pmf)
        for i in range(len(k)):
            log_p = np.logaddexp(log_p, logs[:, i, None] + exponent[i, hard])
        loss[:, hard] = log_p
        p[:, hard] = np.exp(log_p + log_q[hard])
    return u, loss, p


DIVERGENCES = ("kl", "chi2", "tv", "pure")


def divergence(prior: ArrayLike, posterior: ArrayLike) -> Array:
    """The largest KL divergence D(Bern(posterior) || Bern(prior)), nats, that keeps the promise.

    Arrays broadcast. Raises ValueError
    unless 0 < prior < posterior < 1.

    >>> round(float(divergence(0.001, 0.1)), 12)
    0.366593004807
    """
    p, r = promised(prior, posterior)
    return np.asarray(special.rel_entr(r, p) + special.rel_entr(1 - r, 1 - p))


def posterior(divergence: ArrayLike, prior: ArrayLike, *, kind: str = "kl") -> Array:
    """The best success probability at a divergence: the other way round, at most 1. ``kind``: "kl"
    (nats), "chi2", "tv" or "pure" (epsilon).

    >>> round(float(posterior(1.0, 0.01)), 10)
    0.3572905727
    """
    c, p = np.broadcast_arrays(np.asarray(divergence, float), np.asarray(prior, float))
    check_choice("kind", kind, DIVERGENCES)
    check_each("prior", p, (p > 0) & (p < 1), "in (0, 1)")
    check_each("divergence", c, c >= 0, "at least 0")
    if kind == "chi2":
        return np.asarray(np.minimum(1, p + np.sqrt(c * p * (1 - p))))
    if kind == "tv":
        return np.asarray(np.minimum(1, p + c))
    if kind == "pure":
        return np.asarray(special.expit(special.logit(p) + c))
    low, high = p.copy(), np.ones_like(p)  # kl(r || p) grows in r; the safe end is returned
    for _ in range(60):
        middle = (low + high) / 2
        one, two = special.rel_entr(middle, p), special.rel_entr(1 - middle, 1 - p)
        over = one + two > c + 2.0**-51 * (2 + np.abs(one) + np.abs(two))  # beyond rounding
        low, high = np.where(over, low, middle), np.where(over, middle, high)
    return np.where(c >= -np.log(p) * (1 - 1e-15), 1.0, np.where(c == 0, p, high))


def promised(prior: ArrayLike, posterior: ArrayLike) -> tuple[Array, Array]:
    """Both as arrays of one shape. Raises ValueError unless 0 < prior < posterior < 1."""
    p, r = np.broadcast_arrays(np.asarray(prior, float), np.asarray(posterior, float))
    check_each("prior", p, (p > 0) & (p < 1), "in (0, 1)")
    check_each("posterior", r, (r > 0) & (r < 1), "in (0, 1)")
    check_each("posterior", r, r > p, "above the prior")
    return p, r


def check_each(name: str, values: Array, allowed: NDArray[np.bool_], rule: str) -> None:
    if not np.all(allowed):
        check(name, float(values[~allowed].flat[0]) if values.ndim else float(values), False, rule)


SOLVERS = ("auto", "highs", "pdlp", "greedy")
SMALL = 20_000  # incidences up to which the exact solver takes half a second
BEARABLE = 100_000  # up to which it takes ten: where the first-order solver is not installed
FILLS = 40


@dataclass(frozen=True, eq=False)
class Weights:
    """A feasible ``weights (examples,)`` in [0, 1], the ``prices (secrets,)`` of the budgets, and
    ``bound``: no feasible weights add up to more."""

    weights: np.ndarray
    prices: np.ndarray
    bound: float
    solver: str

    @property
    def value(self) -> float:
        """The sum of the weights."""
        return float(self.weights.sum())

    @property
    def gap(self) -> float:
        """At most this share is lost against the optimum."""
        return max(0.0, 1 - self.value / self.bound) if self.bound > 0 else 0.0


def solve(incidence: sparse.csr_array, budgets: ArrayLike, *, solver: str = "auto") -> Weights:
    """Maximise sum(w) subject to incidence @ w <= budgets and 0 <= w <= 1.

    ``incidence (secrets, examples)`` is 1 where the example holds the secret. ``solver``: "highs"
    (SciPy, exact), "pdlp" (ortools, first-order, for millions of incidences), or "auto": highs
    where it is as fast (or bearable, and ortools is absent), else pdlp. "greedy" is the baseline,
    contribution bounding: examples whole or not at all, those with the fewest secrets first, while
    no secret has too many.

    Raises ValueError for budgets that are not positive, RuntimeError where a solver gives up.
    """
    a = sparse.csr_array(incidence, dtype=float)
    b = np.asarray(budgets, dtype=float)
    if b.shape != (a.shape[0],):
        raise ValueError(f"budgets: {b.size} for {a.shape[0]} secrets: must be one a secret")
    if not (np.isfinite(b) & (b > 0)).all():
        raise ValueError("budgets: one is not positive and finite: must be")
    if solver not in SOLVERS:
        raise ValueError(f"solver={solver!r}: must be one of {', '.join(SOLVERS)}")
    if solver == "greedy":
        return Weights(_greedy(a, b), np.zeros(a.shape[0]), float(a.shape[1]), solver)
    if solver == "auto":
        exact = SMALL if find_spec("ortools") else BEARABLE
        solver = "highs" if a.nnz <= exact else "pdlp"
    slack = np.diff(a.indptr) <= b  # a budget that no weights can exceed
    tight = a[~slack]
    weights, prices = np.ones(a.shape[1]), np.zeros(a.shape[0])
    if tight.shape[0]:
        w, y = (_highs if solver == "highs" else _pdlp)(tight, b[~slack])
        prices[~slack] = np.maximum(y, 0)
        weights = _repaired(tight, b[~slack], np.clip(w, 0, 1), prices[~slack])
    # Weak duality: b'y + sum(max(0, 1 - A'y)) bounds the value of every feasible w, for any y >= 0.
    bound = float(b @ prices + np.maximum(0, 1 - a.T @ prices).sum())
    return Weights(weights, prices, bound, solver)


def _greedy(a, b) -> np.ndarray:
    columns, room, weights = a.tocsc(), b * (1 + 1e-12), np.zeros(a.shape[1])
    for k in np.argsort(np.diff(columns.indptr), kind="stable"):
        own = columns.indices[columns.indptr[k] : columns.indptr[k + 1]]
        if (room[own] >= 1).all():
            room[own] -= 1
            weights[k] = 1
    return weights


def _highs(a, b) -> tuple[np.ndarray, np.ndarray]:
    found = optimize.linprog(-np.ones(a.shape[1]), A_ub=a, b_ub=b, bounds=(0, 1), method="highs")
    if found.status != 0:
        raise RuntimeError(f"solver='highs': {found.message}")
    return found.x, -found.ineqlin.marginals


def _pdlp(a, b) -> tuple[np.ndarray, np.ndarray]:
    try:
        from ortools.pdlp import solve_log_pb2, solvers_pb2
        from ortools.pdlp.python import pdlp
    except ImportError as error:
        raise ValueError("solver='pdlp': needs the package ortools, which is absent") from error
    program = pdlp.QuadraticProgram()
    program.resize_and_initialize(a.shape[1], a.shape[0])
    program.objective_vector = -np.ones(a.shape[1])
    program.constraint_matrix = sparse.csc_matrix(a)
    program.constraint_lower_bounds = np.full(a.shape[0], -np.inf)
    program.constraint_upper_bounds = b
    program.variable_lower_bounds = np.zeros(a.shape[1])
    program.variable_upper_bounds = np.ones(a.shape[1])
    options = solvers_pb2.PrimalDualHybridGradientParams()
    options.termination_criteria.simple_optimality_criteria.eps_optimal_relative = 1e-4
    options.termination_criteria.simple_optimality_criteria.eps_optimal_absolute = 1e-4
    options.termination_criteria.time_sec_limit = 1200
    found = pdlp.primal_dual_hybrid_gradient(program, options)
    reason = found.solve_log.termination_reason
    if reason != solve_log_pb2.TERMINATION_REASON_OPTIMAL:
        name = solve_log_pb2.TerminationReason.Name(reason)
        raise RuntimeError(f"solver='pdlp': stopped with {name}")
    return np.asarray(found.primal_solution), -np.asarray(found.dual_solution)


def _repaired(a, b, w, prices) -> np.ndarray:
    """``w`` made feasible, then raised wherever there is room, the most worthwhile first."""
    columns = a.tocsc()
    held = np.flatnonzero(np.diff(columns.indptr))
    starts = columns.indptr[held]

    def of_examples(values, reduce, otherwise):  # over the secrets of each example
        out = np.full(a.shape[1], otherwise)
        out[held] = reduce.reduceat(values[columns.indices], starts)
        return out

    def feasible(w):
        over = a @ w / b
        return w / of_examples(np.where(over > 1, over * (1 + 1e-12), 1.0), np.maximum, 1.0)

    w = np.where(np.diff(columns.indptr) > 0, feasible(w), 1.0)
    gain = np.maximum(1e-3, 1 - columns.T @ prices)  # what a unit of weight adds
    for k in range(FILLS):
        room = np.maximum(0, b * (1 - 1e-12) - a @ w)
        free = of_examples(room, np.minimum, 0.0) > 1e-6  # the others would only dilute the shares
        wanted = (1 - w) * free * (gain if k < FILLS // 2 else 1)
        asked = a @ wanted
        granted = np.minimum(1, np.divide(room, asked, out=np.ones_like(b), where=asked > 0))
        raised = wanted * of_examples(granted, np.minimum, 1.0)
        w = np.minimum(1, w + raised)
        if raised.sum() <= 1e-7 * w.sum():
            break
    return feasible(w)


RELATIONS: dict[str, tuple[Direction, ...]] = {
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


def _counts(incidence: sparse.csr_array, probabilities: ArrayLike) -> Counts:
    return counts(np.asarray(probabilities)[incidence.indices], incidence.indptr)


def _kl(groups: Counts, sigma: float, relation: str) -> Array:
    each = [mixture_kl(groups, sigma, direction=d) for d in RELATIONS[relation]]
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

        def fails(s: float, screened: Counts = screened, few: Index = few) -> bool:
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
    optimum = solve(held, budgets, solver=solver)
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
