"""CPU seconds at n, 2n and 4n of what reads text: no command has a quadratic door.

    python benchmarks/scaling.py [WORD]      # of jobs whose name has the word

The jobs of screening are those of tests/screening/test_scaling.py, which fails above 2.3 for each
doubling; here are reports, plans, accounting and simulation besides.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from crtlib.accounting import confidentiality, secrets
from crtlib.accounting.incidence import read
from crtlib.attacks import leakage
from crtlib.models.build import build
from crtlib.models.spec import ModelSpec
from crtlib.reports import leakage as pages
from crtlib.text import customersim, units
from crtlib.text.tokenizer import train_bpe
from tests.screening import test_scaling as screening

BPE = train_bpe(["hello, how may I help you?"], vocab_size=280)
MODEL = build(ModelSpec("lstm", BPE.vocab_size, embedding=8, hidden=8), 0)


def incidence(n):
    """A table of n pairs, as a file."""
    rng = np.random.default_rng(0)
    rows = {(int(a), int(b)) for a, b in rng.integers(0, n, (n, 2))}
    path = Path(tempfile.mkdtemp()) / "table.csv"
    path.write_text("example,secret\n" + "".join(f"{a},{b}\n" for a, b in sorted(rows)))
    return path


def plan(path):
    table = read(path, prior=0.001, posterior=0.05)
    secrets.plan(table.matrix, table.prior, table.posterior, scale=5.0, steps=10, batch_size=5)


def report(points):
    found = leakage.leakage(MODEL, BPE, points, k=3)
    pages.write(found, tempfile.mkdtemp(), pages.Cover("m", "c", "turn"))


def account(steps):
    confidentiality.account(
        noise_multiplier=2.0, delta=1e-5, batch_size=10, points=1000, epochs=steps / 100
    )


JOBS = screening.JOBS | {
    "simulate, dialogues": (lambda n: n, lambda n: customersim.simulate(n, 0, "paper"), 500),
    "report, turns": (
        lambda n: units.points(customersim.simulate(n, 0, "paper"), unit="turn"), report, 60
    ),
    "protect, pairs": (incidence, plan, 4_000),
    "account, steps": (lambda n: n, account, 1_000),
}  # fmt: skip


def main():
    print(f"{'CPU seconds at':>34}      n       n      2n      4n   4n/n")
    for name, (make, job, n) in JOBS.items():
        if not all(word in name for word in sys.argv[1:]):
            continue
        if job is screening.tagged:
            job = screening.tagged()
        job(make(400 if "protect" in name else 2))  # imports and caches
        n = n // 2
        times = []
        for size in (n, 2 * n, 4 * n):
            given = make(size)
            times.append(min(screening.seconds(job, given) for _ in range(5)))
        print(f"{name:>34}  {n:>7,}  " + "  ".join(f"{t:6.3f}" for t in times),
              f" {times[2] / times[0]:5.1f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
