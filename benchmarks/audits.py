"""What is proved of every private method, what a white-box game shows, and at half of the noise.

    python benchmarks/audits.py [--games N] [--out FILE]

Records :func:`crtbook.audits.table`, which the page "How to read a guarantee" shows.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import pandas as pd

from crtbook import audits, tables

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "crtlib" / "experiments" / "recorded" / "audits.parquet"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", type=int, default=16_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    rows = []
    for each in audits.AUDITS:
        started, cpu = time.perf_counter(), time.process_time()
        row = audits.table([each.name], games=args.games, seed=args.seed)
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
        origin = tables.provenance(
            profile="audits", device="cpu", seconds=seconds, cpu_seconds=cpu_seconds
        )
        rows.append(row.assign(seed=args.seed, **origin))
        print(row.to_string(index=False, header=not rows[1:]), flush=True)
    tables.record(pd.concat(rows, ignore_index=True), args.out)


if __name__ == "__main__":
    main()
