"""Tables of who holds which secret, and what is planned from them."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from crtbook import secrets as incidence
from crtbook import tight
from crtlib.accounting.events import WeightedGaussian
from crtlib.accounting.secret_protection import plan_protection, secret_guess_bounds, sweep_scales

PAIRS = ["1,a", "2,a", "3,a", "3,b", "4,b", "1,c", "2,d"]
POSTERIOR = {"a": 0.3572905727, "b": 0.3939942833, "c": 0.1405737778, "d": 0.2510016204}
OPTIONS = {"steps": 100, "batch_size": 1, "neighbouring_relation": "reference"}


def held(*lines):
    table = pd.DataFrame([line.split(",") for line in lines], columns=["example", "secret"])
    return incidence.incidence_of_pairs(table.assign(r=0.3), prior=0.01)


@pytest.mark.parametrize("kind", [str, int])
def test_golden_plan_from_a_table(kind):
    table = pd.DataFrame([p.split(",") for p in PAIRS], columns=["example", "secret"])
    table["r"] = table.secret.map(POSTERIOR)
    table = table.astype({"example": kind})
    found = incidence.incidence_of_pairs(table, prior=0.01)
    made = plan_protection(
        found.matrix, found.prior, found.posterior, scale=1, budget_growth="linear", **OPTIONS
    )
    assert made.noise_multiplier == pytest.approx(3.81124, abs=1e-5) and len(made.binding) == 1
    said = str(tight.account_secrets(made, made.binding, tight=False)[0])
    assert said.startswith("secret 1: guessed with probability at most 0.394 (promised: 0.394)")
    rows = made.tables(found.examples, found.secrets)
    weights, secrets = rows["weights"], rows["secrets"]
    np.testing.assert_allclose(weights.weight, [0.25, 0.6, 0.15, 1.0], atol=1e-8)
    assert weights.example.astype(str).tolist() == ["1", "2", "3", "4"]
    assert (secrets.posterior_kl <= secrets.allowed_posterior * (1 + 1e-9)).all()
    # The tables are enough to train and to account: the guarantee follows from them alone.
    event = WeightedGaussian(tuple(weights.sampling_probability), made.noise_multiplier, made.steps)
    bound, _ = secret_guess_bounds(
        event, found.matrix, prior=0.01, neighbouring_relation="reference"
    )
    assert bound.tolist() == pytest.approx(secrets.posterior_kl.tolist(), rel=1e-9)


def test_constants_are_compared():
    found = held(*PAIRS)
    table = sweep_scales(found.matrix, 0.01, 0.3, scales=[0.2, 0.5, np.inf], **OPTIONS)
    assert table.kept.is_monotonic_increasing and table.kept.iloc[-1] == 1
    assert table.noise_multiplier.iloc[0] < table.noise_multiplier.iloc[-1]


def test_the_matrix_has_the_order_of_first_rows():
    found = held(*PAIRS)
    expected = sparse.csr_array([[1, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 0], [0, 1, 0, 0]])
    assert (found.matrix != expected).nnz == 0 and found.secrets.tolist() == list("abcd")


def test_each_secret_keeps_its_own_promise():
    table = pd.DataFrame({"example": [1, 1, 2], "secret": ["x", "y", "x"]})
    table["r"] = [0.3, 0.4, 0.3]
    found = incidence.incidence_of_pairs(table, prior=0.1)
    assert found.prior.tolist() == [0.1, 0.1] and found.posterior.tolist() == [0.3, 0.4]
    made = plan_protection(
        found.matrix,
        found.prior,
        found.posterior,
        steps=10,
        batch_size=1,
        scale=1e3,
        neighbouring_relation="reference",
    )
    assert all(g.posterior <= g.promised * (1 + 1e-9) for g in tight.account_secrets(made, [0, 1]))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("batch_size", 5, "batch_size=5: must be at most"),
        ("scale", 0, "scale=0: must be positive"),
    ],
)
def test_a_budget_that_cannot_be_is_refused(name, value, said):
    with pytest.raises(ValueError, match=said):
        plan_protection(held(*PAIRS).matrix, 0.01, 0.3, **{**OPTIONS, "scale": 1, name: value})
