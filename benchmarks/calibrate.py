"""Noise for 100,000 secrets at once, against dp-accounting one secret at a time.

    python benchmarks/calibrate.py [--scale 0.1] [--sample 3] [--json FILE]

The secrets are those of ``benchmarks/secret_lp.py``, every example kept. "calibrate" is the whole
search for the least noise, each secret verified at the end; "kl" one evaluation of all secrets at
that noise. dp-accounting builds the privacy loss distribution of its mixture of Gaussians for a
few of the secrets, at the same noise, and its mean is compared. One thread; CPU seconds, and for
the search also those on the wall, of a machine that others may be using; the best of three.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import time
from importlib import metadata
from pathlib import Path

import numpy as np
from secret_lp import BATCH, PRIOR, STEPS, synthetic

from crtlib import files
from crtlib.accounting import mixtures, posteriors, secrets


def best(function, times: int = 3):
    """The least ``(CPU, wall)`` seconds of a few calls, and what the function returns."""
    took = []
    for _ in range(times):
        cpu, wall = time.process_time(), time.perf_counter()
        value = function()
        took.append((time.process_time() - cpu, time.perf_counter() - wall))
    return (min(t[0] for t in took), min(t[1] for t in took)), value


def theirs(law: np.ndarray, sigma: float, interval: float) -> float:
    """The KL divergence of one round as dp-accounting has it: the mean of its distribution."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    law = law[law > 1e-15]
    pair = pld.from_mixture_gaussian_mechanism(
        sigma,
        list(range(len(law))),
        list(law / law.sum()),
        value_discretization_interval=interval,
    )
    pmf = pair._pmf_remove.to_dense_pmf()
    losses = (pmf._lower_loss + np.arange(pmf.size)) * pmf._discretization
    return float(pmf._probs @ losses)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the 100,000 secrets")
    parser.add_argument("--sample", type=int, default=3, help="secrets for dp-accounting")
    parser.add_argument("--interval", type=float, default=1e-3, help="its discretisation")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    held, posterior = synthetic(args.scale)
    q = np.full(held.shape[1], BATCH * args.scale / held.shape[1])
    (calibrated, wall), sigma = best(
        lambda: secrets.noise_multiplier(held, q, PRIOR, posterior, steps=STEPS)
    )
    (counted, _), groups = best(lambda: mixtures.counts(q[held.indices], held.indptr))
    (evaluated, _), ours = best(lambda: mixtures.kl(groups, sigma))
    allowed = posteriors.divergence(PRIOR, posterior) / STEPS
    sample = np.random.default_rng(0).choice(held.shape[0], args.sample, replace=False)
    errors, each = [], []
    for j in sample:
        law = mixtures.poisson_binomial(q[held.indices[held.indptr[j] : held.indptr[j + 1]]])
        begun = time.process_time()
        errors.append(theirs(law, sigma, args.interval) / ours[j] - 1)
        each.append(time.process_time() - begun)
    told = {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, one thread",
        "versions": {n: metadata.version(n) for n in ("numpy", "scipy", "dp-accounting")},
        "date": datetime.date.today().isoformat(),
        "secrets": held.shape[0],
        "incidences": held.nnz,
        "noise_multiplier": round(sigma, 9),
        "worst_ratio": float((ours / allowed).max()),
        "calibrate_s": round(calibrated, 2),
        "calibrate_wall_s": round(wall, 2),
        "counts_s": round(counted, 2),
        "kl_s": round(evaluated, 2),
        "dp_accounting_s_per_secret": round(float(np.mean(each)), 2),
        "dp_accounting_hours_for_all_extrapolated": round(
            float(np.mean(each)) * held.shape[0] / 3600, 1
        ),
        "dp_accounting_interval": args.interval,
        "dp_accounting_relative_difference": [float(f"{e:.2g}") for e in errors],
    }
    print(json.dumps(told, indent=1))
    if args.json:
        files.write_text(args.json, json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
