"""Tables of who holds which secret, and what is planned from them."""

import io

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from crtlib.accounting import incidence
from crtlib.accounting.events import WeightedGaussian
from crtlib.accounting.secrets import guarantees, plan, sweep

PAIRS = ["1,a", "2,a", "3,a", "3,b", "4,b", "1,c", "2,d"]
POSTERIOR = {"a": 0.3572905727, "b": 0.3939942833, "c": 0.1405737778, "d": 0.2510016204}
OPTIONS = {"steps": 100, "batch_size": 1}


def held(*lines, header="example,secret", prior=0.01, posterior=0.3):
    text = io.StringIO("\n".join([header, *lines]) + "\n")
    table = pd.read_csv(text, dtype=str, keep_default_na=False)
    return incidence.from_table(table, prior=prior, posterior=posterior)


@pytest.mark.parametrize("kind", [str, int])
def test_golden_plan_from_a_table(kind):
    table = pd.DataFrame([p.split(",") for p in PAIRS], columns=["example", "secret"])
    table["r"] = table.secret.map(POSTERIOR)
    table = table.astype({"example": kind})
    found = incidence.from_table(table, prior=0.01, posterior=None)
    made = plan(found.matrix, found.prior, found.posterior, scale=1, targets="linear", **OPTIONS)
    assert made.noise_multiplier == pytest.approx(3.81124, abs=1e-5) and len(made.binding) == 1
    said = str(made.guarantees(made.binding)[0])
    assert said.startswith("secret 1: guessed with probability at most 0.394 (promised: 0.394)")
    rows = made.tables(found.examples, found.secrets)
    weights, secrets = rows["weights"], rows["secrets"]
    np.testing.assert_allclose(weights.weight, [0.25, 0.6, 0.15, 1.0], atol=1e-8)
    assert weights.example.astype(str).tolist() == ["1", "2", "3", "4"]
    assert (secrets.posterior_kl <= secrets.promised * (1 + 1e-9)).all()
    # The tables are enough to train and to account: the guarantee follows from them alone.
    event = WeightedGaussian(tuple(weights.sampling_probability), made.noise_multiplier, made.steps)
    bound, _ = guarantees(event, found.matrix, prior=0.01)
    assert bound.tolist() == pytest.approx(secrets.posterior_kl.tolist(), rel=1e-9)


def test_tight_accounting_needs_less_noise():
    found = held(*PAIRS)
    promises = (found.matrix, found.prior, found.posterior)
    kl, tight = (
        plan(*promises, scale=1, targets="linear", accounting=name, **OPTIONS).noise_multiplier
        for name in ("kl", "tight")
    )
    assert tight < 0.9 * kl


def test_constants_are_compared():
    found = held(*PAIRS)
    table = sweep(found.matrix, 0.01, 0.3, scales=[0.2, 0.5, np.inf], **OPTIONS)
    assert table.kept.is_monotonic_increasing and table.kept.iloc[-1] == 1
    assert table.noise_multiplier.iloc[0] < table.noise_multiplier.iloc[-1]


def test_a_pair_given_twice_counts_once_and_order_does_not_matter():
    once, twice = held(*PAIRS), held(*PAIRS, *PAIRS)
    assert (once.matrix != twice.matrix).nnz == 0
    expected = sparse.csr_array([[1, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 0], [0, 1, 0, 0]])
    assert (once.matrix != expected).nnz == 0 and twice.secrets.tolist() == list("abcd")


def test_each_secret_keeps_its_own_promise():
    table = pd.DataFrame({"example": [1, 1, 2], "secret": ["x", "y", "x"]})
    table["p"], table["r"] = [0.1, 0.2, 0.1], [0.3, 0.4, 0.3]
    found = incidence.from_table(table, prior=None, posterior=None)
    assert found.prior.tolist() == [0.1, 0.2] and found.posterior.tolist() == [0.3, 0.4]
    made = plan(found.matrix, found.prior, found.posterior, steps=10, batch_size=1, scale=1e3)
    assert all(g.posterior <= g.promised * (1 + 1e-9) for g in made.guarantees([0, 1]))


FULL = "example,secret,p,r"


@pytest.mark.parametrize(
    ("rows", "how", "said"),
    [
        ([], {}, "rows=0: must be at least 1"),
        (["1,a"], {"header": "example,user"}, "columns=example,user: must be example,secret"),
        (["1,a,x"], {"header": "example,secret,x"}, "columns=example,secret,x: must be"),
        (["1,a", ",hunter2"], {}, "example: row 2 is empty: each secret is in an example"),
        (["1,a", "2,"], {}, "secret: row 2 is empty"),
        (["1,a,nan,0.5"], {"header": FULL}, "p: row 1 has no number in (0, 1)"),
        (["1,a,0.1,"], {"header": FULL}, "r: row 1 has no number in (0, 1)"),
        (["1,a,0.1,0.5", "2,a,0.1,0.6"], {"header": FULL}, "r: row 2 differs from an earlier row"),
        (["1,a,0.1,0.5", "2,b,0.5,0.5"], {"header": FULL}, "r: row 2 has none above its p"),
        (["1,a,0,0.5"], {"header": FULL}, "p: row 1 has no number in (0, 1)"),
        (["1,a,0.5,1.5"], {"header": FULL}, "r: row 1 has no number in (0, 1)"),
        (PAIRS, {"prior": 0.3, "posterior": 0.1}, "posterior=0.1: must be above the prior"),
        (PAIRS, {"prior": np.nan}, "prior=nan: must be in (0, 1)"),
        (PAIRS, {"prior": None}, "prior: must be given, there is no column p"),
    ],
)
def test_a_bad_table_is_refused_without_a_secret_in_the_message(rows, how, said):
    with pytest.raises(ValueError) as refused:
        held(*rows, **how)
    assert said in str(refused.value) and "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("batch_size", 5, "batch_size=5: must be at most"),
        ("scale", 0, "scale=0: must be positive"),
    ],
)
def test_a_budget_that_cannot_be_is_refused(name, value, said):
    with pytest.raises(ValueError, match=said):
        plan(held(*PAIRS).matrix, 0.01, 0.3, **{**OPTIONS, "scale": 1, name: value})
