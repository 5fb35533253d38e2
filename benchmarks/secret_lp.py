"""The linear program of secret protection at the paper's size, and the noise that follows.

    python benchmarks/secret_lp.py [--scale 0.1] [--budget 5] [--json FILE]

The paper protects 100,000 words of arXiv abstracts, each in 50 to 100 of them; here such words are
drawn at random, with posteriors uniform in [0.05, 0.95]. Prior, batch size and steps are ours (the
published text lost its constants). ``--scale 1`` is the full size. One thread; CPU seconds. The
file has the worst gap, all seconds and the peak, and of the last plan what is kept and its noise;
``rows`` has each plan.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import time
from importlib import metadata
from pathlib import Path

import numpy as np
from scipy import sparse

from crtlib import files
from crtlib.accounting import posteriors, secret_lp
from crtlib.accounting.secrets import TARGETS, noise_multiplier, sampling_probabilities

PRIOR, STEPS, BATCH = 1e-3, 2000, 4096


def synthetic(scale: float, seed: int = 0) -> tuple[sparse.csr_array, np.ndarray]:
    """``incidence (secrets, examples)`` without examples that hold no secret, and posteriors."""
    rng = np.random.default_rng(seed)
    secrets, examples = round(100_000 * scale), round(1_490_000 * scale)
    sizes = rng.integers(50, 101, secrets)
    rows = np.repeat(np.arange(secrets, dtype=np.int32), sizes)
    columns = rng.integers(0, examples, sizes.sum(), dtype=np.int32)
    held = sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(secrets, examples))
    held.data[:] = 1.0  # an example drawn twice holds the secret once
    used = np.bincount(held.indices, minlength=examples) > 0
    return held[:, used], rng.uniform(0.05, 0.95, secrets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size")
    parser.add_argument("--budget", type=float, nargs="*", default=[5.0], help="C of equation 1")
    parser.add_argument("--targets", choices=TARGETS, nargs="*", default=["linear", "sqrt"])
    parser.add_argument("--solver", choices=secret_lp.SOLVERS, default="auto")
    parser.add_argument("--json", type=Path, help="also write the table here")
    args = parser.parse_args()
    held, posterior = synthetic(args.scale)
    allowed = posteriors.divergence(PRIOR, posterior)
    batch = BATCH * args.scale
    whole = np.full(held.shape[1], batch / held.shape[1])
    before = noise_multiplier(held, whole, PRIOR, posterior, steps=STEPS)
    print(f"{held.shape[0]} secrets, {held.shape[1]} examples, {held.nnz} incidences", flush=True)
    rows = []
    for targets in args.targets:
        for scale in args.budget:
            started = time.process_time()
            budgets = scale * allowed ** TARGETS[targets]
            found = secret_lp.solve(held, budgets, solver=args.solver)
            solved = time.process_time()
            q, certain = sampling_probabilities(found.weights, batch)
            sigma = noise_multiplier(held, q, PRIOR, posterior, steps=STEPS)
            rows.append(
                {
                    "targets": targets,
                    "budget": scale,
                    "solver": found.solver,
                    "gap": float(f"{found.gap:.3g}"),
                    "worst_overload": float((held @ found.weights / budgets).max() - 1),
                    "kept": round(found.value / held.shape[1], 6),
                    "certain_examples": certain,
                    "noise_multiplier": round(sigma, 6),
                    "noise_multiplier_without": round(before, 6),
                    "seconds": round(solved - started, 2),
                    "noise_seconds": round(time.process_time() - solved, 2),
                    "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    told = {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, one thread",
        "versions": {n: metadata.version(n) for n in ("numpy", "scipy", "ortools")},
        "date": datetime.date.today().isoformat(),
        "secrets": held.shape[0],
        "examples": held.shape[1],
        "incidences": held.nnz,
        "prior": PRIOR,
        "posterior": "uniform in [0.05, 0.95]",
        "steps": STEPS,
        "batch_size": batch,
        "gap": max(row["gap"] for row in rows),
        "seconds": round(sum(row["seconds"] + row["noise_seconds"] for row in rows), 2),
        **{name: rows[-1][name] for name in ("peak_mb", "kept", "noise_multiplier")},
        "rows": rows,
    }
    if args.json:
        files.write_text(args.json, json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
