"""The weights are feasible, and the certificate holds whatever the solver returned."""

import sys

import numpy as np
import pytest
from scipy import optimize, sparse

from crtlib.accounting import secret_weights


def instance(secrets=60, examples=300, seed=0):
    rng = np.random.default_rng(seed)
    held = rng.random((secrets, examples)) < rng.uniform(0.02, 0.3, (secrets, 1))
    held[:, 0] = True
    return sparse.csr_array(held.astype(float)), rng.uniform(0.5, 12, secrets)


def test_golden_optimum():
    rows, columns = [0, 0, 0, 1, 1, 2, 3], [0, 1, 2, 2, 3, 0, 1]
    held = sparse.csr_array((np.ones(7), (rows, columns)))
    for solver, digits in (("highs", 1e-9), ("pdlp", 1e-3)):
        pytest.importorskip(
            "ortools", reason="the package ortools is not installed"
        ) if solver == "pdlp" else None
        found = secret_weights.maximise_weights(held, [1, 1.15, 0.25, 0.6], solver=solver)
        np.testing.assert_allclose(found.weights, [0.25, 0.6, 0.15, 1.0], atol=digits)
        assert found.value == pytest.approx(2.0, abs=digits) and 2.0 <= found.bound <= 2 + digits


@pytest.mark.parametrize("solver", ["highs", "pdlp"])
@pytest.mark.parametrize("seed", [0, 1])
def test_weights_are_feasible_and_certified(solver, seed):
    pytest.importorskip(
        "ortools", reason="the package ortools is not installed"
    ) if solver == "pdlp" else None
    a, b = instance(seed=seed)
    found = secret_weights.maximise_weights(a, b, solver=solver)
    assert (a @ found.weights <= b * (1 + 1e-12)).all()
    assert (found.weights >= 0).all() and (found.weights <= 1).all()
    dense = optimize.linprog(-np.ones(300), A_ub=a.toarray(), b_ub=b, bounds=(0, 1))
    assert found.value <= -dense.fun * (1 + 1e-9) and found.bound >= -dense.fun * (1 - 1e-9)
    assert found.gap <= (1e-9 if solver == "highs" else 1e-3)


def test_a_lying_solver_is_repaired_and_found_out(monkeypatch):
    """Whatever comes back, the weights keep the budgets and the bound stays above the optimum."""
    a, b = instance()
    best = secret_weights.maximise_weights(a, b)
    rng = np.random.default_rng(0)
    lies = [
        (np.ones(300), np.zeros(60)),
        (np.zeros(300), np.full(60, 5.0)),
        (rng.uniform(-1, 3, 300), rng.normal(size=60)),
    ]
    for w, y in lies:
        monkeypatch.setattr(
            secret_weights, "_solve_by_highs", lambda a, b, w=w, y=y: (w, y[: a.shape[0]])
        )
        found = secret_weights.maximise_weights(a, b)
        assert (a @ found.weights <= b * (1 + 1e-12)).all()
        assert ((found.weights >= 0) & (found.weights <= 1)).all()
        assert found.bound >= best.value * (1 - 1e-9) and found.gap > 0.01
        assert 0 < found.value <= best.bound * (1 + 1e-9)


def test_the_filling_leaves_no_room(monkeypatch):
    """After a solver that says nothing, hardly a weight can be raised alone."""
    a, b = instance()
    monkeypatch.setattr(
        secret_weights, "_solve_by_highs", lambda a, b: (np.zeros(300), np.zeros(a.shape[0]))
    )
    w = secret_weights.maximise_weights(a, b).weights
    room = np.where(a.toarray() > 0, (b - a @ w)[:, None], np.inf).min(axis=0)
    assert np.minimum(room, 1 - w).max() < 1e-3


def test_a_solver_that_gives_up_is_not_believed(monkeypatch):
    """On a time limit HiGHS hands back zeros: the status says so, and is read."""
    a, b = instance()
    honest = optimize.linprog
    monkeypatch.setattr(
        secret_weights.optimize, "linprog", lambda *x, **y: honest(*x, **y, options={"maxiter": 1})
    )
    with pytest.raises(RuntimeError, match="solver='highs': "):
        secret_weights.maximise_weights(a, b)


def test_pdlp_says_when_it_stopped_early():
    pytest.importorskip("ortools", reason="the package ortools is not installed")
    a, b = instance()
    with pytest.raises(RuntimeError, match=r"solver='pdlp': stopped with TERMINATION_REASON"):
        secret_weights._solve_by_pdlp(a * np.nan, b)


def test_the_solver_that_is_fast_is_chosen(monkeypatch):
    pytest.importorskip("ortools", reason="the package ortools is not installed")
    a, b = instance()
    assert (
        a.nnz < secret_weights.MAX_QUICK_INCIDENCES
        and secret_weights.maximise_weights(a, b).solver == "highs"
    )
    monkeypatch.setattr(secret_weights, "MAX_QUICK_INCIDENCES", a.nnz - 1)
    first_order = secret_weights.maximise_weights(a, b)
    assert first_order.solver == "pdlp" and first_order.gap < 1e-3
    monkeypatch.setattr(secret_weights, "find_spec", lambda name: None)
    assert secret_weights.maximise_weights(a, b).solver == "highs"


def test_budgets_without_effect_keep_everything():
    a, _ = instance()
    found = secret_weights.maximise_weights(a, np.diff(a.indptr) + 1.0)
    assert (found.weights == 1).all() and found.gap == 0


def test_refusals(monkeypatch):
    a, b = instance()
    with pytest.raises(ValueError, match="budgets: 59 for 60 secrets"):
        secret_weights.maximise_weights(a, b[1:])
    for bad in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="budgets: must all be positive and finite"):
            secret_weights.maximise_weights(a, np.where(np.arange(60) == 3, bad, b))
    with pytest.raises(ValueError, match="solver='simplex': must be one of auto, highs, pdlp"):
        secret_weights.maximise_weights(a, b, solver="simplex")
    monkeypatch.setitem(sys.modules, "ortools.pdlp", None)
    with pytest.raises(ValueError, match="solver='pdlp': needs the package ortools"):
        secret_weights.maximise_weights(a, b, solver="pdlp")
