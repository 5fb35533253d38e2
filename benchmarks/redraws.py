"""What a certificate says of labels, on three corpora whose failures come together, in the worst
case over rates.

    CRTLIB_DATA=... python benchmarks/redraws.py [DRAWS]

The people of CustomerSim, Schema-Guided Dialogue and MultiWOZ, and how many labelled secrets each
has; at each rate some are missed whole, drawn at random or those who say most. A draw reads some
people (:mod:`crtbook.redraws`).
"""

import sys
from collections import Counter

import numpy as np
import pandas as pd

from crtbook import redraws, tables
from crtlib.screening.secret_outcomes import cluster_of
from crtlib.text import corpora, customersim, data_points

SIZES = (30, 100, 300)
RATES = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5)


def secrets_of(corpus: str) -> np.ndarray:
    """Of each person who has one, how many labelled secrets."""
    if corpus == "customersim":
        part = customersim.simulate_corpus(2_000, 2, "rich")
    else:
        part = corpora.load_corpus(corpus, {"multiwoz": "train"}.get(corpus, "dev"))
    points = data_points.make_points(part, unit="turn")
    found = Counter({cluster_of(p, "user"): 0 for p in points})
    for p in points:
        found[cluster_of(p, "user")] += len(p.secrets)
    return np.array([n for n in found.values() if n])


def table(draws: int) -> pd.DataFrame:
    """Every corpus, number of people read, and rate."""
    parts = []
    for corpus in ("customersim", "schema_guided", "multiwoz"):
        secrets = secrets_of(corpus)
        for read in (n for n in SIZES if n < len(secrets)):
            cells = [(rate, most) for most in (False, True) for rate in RATES]
            worlds = [redraws.missed_whole(secrets, r, seed=0, most=m) for r, m in cells]
            made = redraws.simulate_draws(
                worlds, read, draws=draws, seed=0, epsilon=0.5, delta=8e-5
            )
            who = ["those who say most" if most else "at random" for _, most in cells]
            told = {"corpus": corpus, "people": len(secrets), "labels": read, "draws": draws}
            parts.append(made.assign(missed=who, **told))
        print(corpus, len(secrets), flush=True)
    return pd.concat(parts)


def main() -> None:
    draws = int(sys.argv[1]) if sys.argv[1:] else 10_000
    made, origin = tables.measure_with_provenance(lambda: table(draws), profile="redraws")
    tables.write_table(made.assign(seed=0, **origin), tables.FOLDER / "redraws.parquet")
    low = {"covered": "min", "covered_each": "min"}
    high = dict.fromkeys(("mean", "mean_each", "spent", "spent_naive"), "max")
    print(made.groupby(["corpus", "labels"]).agg(low | high).round(3).to_string())


if __name__ == "__main__":
    main()
