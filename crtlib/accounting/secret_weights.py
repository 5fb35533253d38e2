"""Which examples to keep: as much weight as each secret's budget allows (Hush!, equation 1).

Whatever a solver returns is repaired until every budget holds, and its loss is certified by a
bound that trusts no solver.

>>> a, b, c, d = [0, 1, 2], [2, 3], [0], [1]  # the examples that hold each of four secrets
>>> rows = np.repeat([0, 1, 2, 3], [3, 2, 1, 1])
>>> held = sparse.csr_array((np.ones(7), (rows, a + b + c + d)))
>>> found = maximise_weights(held, [1, 1.15, 0.25, 0.6])
>>> found.weights.round(6).tolist(), round(found.gap, 9)
([0.25, 0.6, 0.15, 1.0], 0.0)
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, sparse

WEIGHT_SOLVERS = ("auto", "highs", "pdlp", "greedy")
MAX_QUICK_INCIDENCES = 20_000  # incidences up to which the exact solver takes half a second
MAX_BEARABLE_INCIDENCES = (
    100_000  # up to which it takes ten seconds: used if the first-order solver is not installed
)
REPAIR_ROUNDS = 40


@dataclass(frozen=True, eq=False)
class ExampleWeights:
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
        """An upper bound on the share that is lost against the optimum."""
        return max(0.0, 1 - self.value / self.bound) if self.bound > 0 else 0.0


def maximise_weights(
    incidence: sparse.csr_array, budgets: ArrayLike, *, solver: str = "auto"
) -> ExampleWeights:
    """Maximise sum(w) subject to incidence @ w <= budgets and 0 <= w <= 1.

    ``incidence (secrets, examples)`` is 1 where the example holds the secret. ``solver``: "highs"
    (SciPy, exact), "pdlp" (ortools, first-order, for millions of incidences), or "auto": highs if
    it is as fast, or if it is bearable and ortools is absent; else pdlp. "greedy" is the baseline,
    contribution bounding: each example is kept in full or not at all, those with the fewest secrets
    first, as long as no secret exceeds its budget.

    Raises ValueError for budgets that are not positive, RuntimeError if a solver gives up.
    """
    a = sparse.csr_array(incidence, dtype=float)
    b = np.asarray(budgets, dtype=float)
    if b.shape != (a.shape[0],):
        raise ValueError(f"budgets: {b.size} for {a.shape[0]} secrets: must be one per secret")
    if not (np.isfinite(b) & (b > 0)).all():
        raise ValueError("budgets: must all be positive and finite")
    if solver not in WEIGHT_SOLVERS:
        raise ValueError(f"solver={solver!r}: must be one of {', '.join(WEIGHT_SOLVERS)}")
    if solver == "greedy":
        return ExampleWeights(
            _weigh_greedily(a, b), np.zeros(a.shape[0]), float(a.shape[1]), solver
        )
    if solver == "auto":
        exact = MAX_QUICK_INCIDENCES if find_spec("ortools") else MAX_BEARABLE_INCIDENCES
        solver = "highs" if a.nnz <= exact else "pdlp"
    is_slack = np.diff(a.indptr) <= b  # a budget that no weights can exceed
    tight_rows = a[~is_slack]
    weights, prices = np.ones(a.shape[1]), np.zeros(a.shape[0])
    if tight_rows.shape[0]:
        w, y = (_solve_by_highs if solver == "highs" else _solve_by_pdlp)(tight_rows, b[~is_slack])
        prices[~is_slack] = np.maximum(y, 0)
        weights = _repair_weights(tight_rows, b[~is_slack], np.clip(w, 0, 1), prices[~is_slack])
    # Weak duality: b'y + sum(max(0, 1 - A'y)) bounds the value of every feasible w, for any y >= 0.
    bound = float(b @ prices + np.maximum(0, 1 - a.T @ prices).sum())
    return ExampleWeights(weights, prices, bound, solver)


def _weigh_greedily(a, b) -> np.ndarray:
    columns, remaining, weights = a.tocsc(), b * (1 + 1e-12), np.zeros(a.shape[1])
    for k in np.argsort(np.diff(columns.indptr), kind="stable"):
        secrets_of_example = columns.indices[columns.indptr[k] : columns.indptr[k + 1]]
        if (remaining[secrets_of_example] >= 1).all():
            remaining[secrets_of_example] -= 1
            weights[k] = 1
    return weights


def _solve_by_highs(a, b) -> tuple[np.ndarray, np.ndarray]:
    solution = optimize.linprog(-np.ones(a.shape[1]), A_ub=a, b_ub=b, bounds=(0, 1), method="highs")
    if solution.status != 0:
        raise RuntimeError(f"solver='highs': {solution.message}")
    return solution.x, -solution.ineqlin.marginals


def _solve_by_pdlp(a, b) -> tuple[np.ndarray, np.ndarray]:
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
    solution = pdlp.primal_dual_hybrid_gradient(program, options)
    reason = solution.solve_log.termination_reason
    if reason != solve_log_pb2.TERMINATION_REASON_OPTIMAL:
        name = solve_log_pb2.TerminationReason.Name(reason)
        raise RuntimeError(f"solver='pdlp': stopped with {name}")
    return np.asarray(solution.primal_solution), -np.asarray(solution.dual_solution)


def _repair_weights(a, b, w, prices) -> np.ndarray:
    """Make ``w`` feasible, then raise it wherever there is room, the most worthwhile first."""
    columns = a.tocsc()
    nonempty = np.flatnonzero(np.diff(columns.indptr))
    starts = columns.indptr[nonempty]

    def reduce_over_secrets(values, reduce, otherwise):  # over the secrets of each example
        reduced = np.full(a.shape[1], otherwise)
        reduced[nonempty] = reduce.reduceat(values[columns.indices], starts)
        return reduced

    def feasible(w):
        overrun = a @ w / b
        divisors = np.where(overrun > 1, overrun * (1 + 1e-12), 1.0)
        return w / reduce_over_secrets(divisors, np.maximum, 1.0)

    w = np.where(np.diff(columns.indptr) > 0, feasible(w), 1.0)
    gain = np.maximum(1e-3, 1 - columns.T @ prices)  # what a unit of weight adds
    for k in range(REPAIR_ROUNDS):
        remaining = np.maximum(0, b * (1 - 1e-12) - a @ w)
        # Examples without room would only dilute the shares of the others.
        has_room = reduce_over_secrets(remaining, np.minimum, 0.0) > 1e-6
        desired = (1 - w) * has_room * (gain if k < REPAIR_ROUNDS // 2 else 1)
        requested = a @ desired
        shares = np.divide(remaining, requested, out=np.ones_like(b), where=requested > 0)
        raised = desired * reduce_over_secrets(np.minimum(1, shares), np.minimum, 1.0)
        w = np.minimum(1, w + raised)
        if raised.sum() <= 1e-7 * w.sum():
            break
    return feasible(w)
