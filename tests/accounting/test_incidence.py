"""Tables of who holds which secret, and the command that plans from them."""

import json
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from crtlib import __main__ as cli
from crtlib.accounting import incidence
from crtlib.accounting.events import WeightedGaussian
from crtlib.accounting.secrets import guarantees, plan, sweep

PAIRS = ["1,a", "2,a", "3,a", "3,b", "4,b", "1,c", "2,d"]
POSTERIOR = {"a": 0.3572905727, "b": 0.3939942833, "c": 0.1405737778, "d": 0.2510016204}
OPTIONS = ["--steps", 100, "--batch-size", 1, "--targets", "linear", "--scale", 1]
PROMISE = ["--prior", 0.01, "--posterior", 0.3]


@pytest.fixture
def run(monkeypatch, capsys):
    def call(*args):
        monkeypatch.setattr(sys, "argv", ["crtlib", "protect", *map(str, args)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return call


def rows(*lines, header="example,secret"):
    return "\n".join([header, *lines]) + "\n"


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_golden_plan_from_a_file(run, tmp_path, suffix):
    file, out = tmp_path / f"pairs{suffix}", tmp_path / "plan"
    table = pd.DataFrame([p.split(",") for p in PAIRS], columns=["example", "secret"])
    table["r"] = table.secret.map(POSTERIOR)
    if suffix == ".csv":
        table.to_csv(file, index=False)
    else:
        table.astype({"example": int}).to_parquet(file)
    code, said, _ = run(file, "--prior", 0.01, *OPTIONS, "--out", out)
    assert code == 0
    assert "noise_multiplier  3.81124" in said and "binding, 1 of 4" in said
    assert "secret 1: guessed with probability at most 0.394 (promised: 0.394)" in said
    assert sorted(p.name for p in out.iterdir()) == [
        "crtlib.json",
        "plan.json",
        f"secrets{suffix}",
        f"weights{suffix}",
    ]
    read = pd.read_csv if suffix == ".csv" else pd.read_parquet
    weights, secrets = read(out / f"weights{suffix}"), read(out / f"secrets{suffix}")
    np.testing.assert_allclose(weights.weight, [0.25, 0.6, 0.15, 1.0], atol=1e-8)
    assert weights.example.astype(str).tolist() == ["1", "2", "3", "4"]
    assert (secrets.posterior_kl <= secrets.promised * (1 + 1e-9)).all()
    # What was written is enough to train and to account: the guarantee follows from it alone.
    made = json.loads((out / "plan.json").read_text())
    event = WeightedGaussian(
        tuple(weights.sampling_probability), made["noise_multiplier"], made["rounds"]
    )
    matrix = incidence.from_table(table.drop(columns="r"), prior=0.01, posterior=0.5).matrix
    bound, _ = guarantees(event, matrix, prior=0.01)
    assert bound.tolist() == pytest.approx(secrets.posterior_kl.tolist(), rel=1e-9)


def test_names_are_shown_only_when_asked(run, tmp_path):
    file = tmp_path / "pairs.csv"
    file.write_text(rows(*(p.replace(",a", ",hunter2") for p in PAIRS)))
    for flags, shown in (([], False), (["--show-secrets"], True)):
        code, said, _ = run(file, *PROMISE, *OPTIONS, *flags)
        assert code == 0 and ("hunter2" in said) == shown


def test_tight_accounting_needs_less_noise(run, tmp_path):
    file = tmp_path / "pairs.csv"
    file.write_text(rows(*PAIRS))
    found = []
    for accounting in ("kl", "tight"):
        out = tmp_path / accounting
        code, _, _ = run(file, *PROMISE, *OPTIONS, "--accounting", accounting, "--out", out)
        assert code == 0
        found.append(json.loads((out / "plan.json").read_text())["noise_multiplier"])
    assert found[1] < 0.9 * found[0]


def test_without_a_folder_the_plan_is_beside_the_file(run, tmp_path):
    file = tmp_path / "pairs.csv"
    file.write_text(rows(*PAIRS))
    code, said, _ = run(file, *PROMISE, *OPTIONS)
    assert code == 0 and f"{tmp_path / 'pairs-plan'}: weights.csv" in said
    assert len(pd.read_csv(tmp_path / "pairs-plan" / "weights.csv")) == 4


def test_constants_are_compared(run, tmp_path):
    file = tmp_path / "pairs.csv"
    file.write_text(rows(*PAIRS))
    given = ["--steps", 100, "--batch-size", 1, "--scale", 0.2, "--scale", 0.5, "--scale", "inf"]
    code, said, _ = run(file, *PROMISE, *given)
    assert code == 0 and not (tmp_path / "pairs-plan").exists()
    held = incidence.read(file, prior=0.01, posterior=0.3)
    table = sweep(held.matrix, 0.01, 0.3, scales=[0.2, 0.5, np.inf], steps=100, batch_size=1)
    assert table.kept.is_monotonic_increasing and table.kept.iloc[-1] == 1
    assert table.noise_multiplier.iloc[0] < table.noise_multiplier.iloc[-1]
    assert all(f"{sigma:.4g}" in said for sigma in table.noise_multiplier)


def test_a_pair_given_twice_counts_once_and_order_does_not_matter():
    table = pd.DataFrame([p.split(",") for p in PAIRS], columns=["example", "secret"])
    once = incidence.from_table(table, prior=0.01, posterior=0.2)
    twice = incidence.from_table(pd.concat([table, table]), prior=0.01, posterior=0.2)
    assert (once.matrix != twice.matrix).nnz == 0
    expected = sparse.csr_array([[1, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 0], [0, 1, 0, 0]])
    assert (once.matrix != expected).nnz == 0 and twice.secrets.tolist() == list("abcd")


def test_each_secret_keeps_its_own_promise():
    table = pd.DataFrame({"example": [1, 1, 2], "secret": ["x", "y", "x"]})
    table["p"], table["r"] = [0.1, 0.2, 0.1], [0.3, 0.4, 0.3]
    held = incidence.from_table(table, prior=None, posterior=None)
    assert held.prior.tolist() == [0.1, 0.2] and held.posterior.tolist() == [0.3, 0.4]
    made = plan(held.matrix, held.prior, held.posterior, steps=10, batch_size=1, scale=1e3)
    assert all(g.posterior <= g.promised * (1 + 1e-9) for g in made.guarantees([0, 1]))


FULL = "example,secret,p,r"
BAD = [
    ("", PROMISE, "No columns to parse"),
    (rows(), PROMISE, "rows=0: must be at least 1"),
    (rows("1,a", header="example,user"), PROMISE, "columns=example,user: must be example,secret"),
    (rows("1,a,x", header="example,secret,x"), PROMISE, "columns=example,secret,x: must be"),
    (rows("1,a", ",hunter2"), PROMISE, "example: row 2 is empty: each secret is in an example"),
    (rows("1,a", "2,"), PROMISE, "secret: row 2 is empty"),
    (rows("1,a,nan,0.5", header=FULL), [], "p: row 1 has no number in (0, 1)"),
    (rows("1,a,0.1,", header=FULL), [], "r: row 1 has no number in (0, 1)"),
    (rows("1,a,0.1,0.5", "2,a,0.1,0.6", header=FULL), [], "r: row 2 differs from an earlier row"),
    (rows("1,a,0.1,0.5", "2,b,0.5,0.5", header=FULL), [], "r: row 2 has none above its p"),
    (rows("1,a,0,0.5", header=FULL), [], "p: row 1 has no number in (0, 1)"),
    (rows("1,a,0.5,1.5", header=FULL), [], "r: row 1 has no number in (0, 1)"),
    (rows(*PAIRS), ["--prior", 0.3, "--posterior", 0.1], "posterior=0.1: must be above the prior"),
    (rows(*PAIRS), ["--prior", "nan", "--posterior", 0.1], "prior=nan: must be in (0, 1)"),
    (rows(*PAIRS), ["--posterior", 0.1], "prior: must be given, there is no column p"),
    (rows(*PAIRS), [*PROMISE, "--batch-size", 5], "batch_size=5.0: must be at most"),
    (rows(*PAIRS), [*PROMISE, "--scale", 0], "scale=0.0: must be positive"),
    (rows(*PAIRS), [*PROMISE, "--steps", 0], "steps=0: must be at least 1"),
]


@pytest.mark.parametrize("text, options, said", BAD)
def test_bad_input_is_one_line_and_writes_nothing(run, tmp_path, text, options, said):
    file, out = tmp_path / "pairs.csv", tmp_path / "out"
    file.write_text(text)
    words = [*OPTIONS, *options]  # what is given again replaces
    given = dict(zip(words[::2], words[1::2], strict=True))
    code, printed, err = run(file, *(w for pair in given.items() for w in pair), "--out", out)
    assert code == 2 and printed == "" and not out.exists()
    assert err.startswith("crtlib: error: ") and err.count("\n") == 1 and said in err
    assert "hunter2" not in err


def test_files_that_are_no_tables(run, tmp_path):
    wrong = tmp_path / "pairs.txt"
    wrong.write_text("x")
    broken = tmp_path / "pairs.parquet"
    broken.write_bytes(b"PAR1 not really")
    for file in (wrong, broken, tmp_path / "absent.csv"):
        code, _, err = run(file, *PROMISE, *OPTIONS, "--out", tmp_path / "out")
        assert code == 2 and err.count("\n") == 1 and file.name in err
        assert not (tmp_path / "out").exists()
