"""What is proved of every private method, and what a white-box game shows, with all of the declared
noise and with less.

    python benchmarks/audits.py

Records :func:`crtbook.audits.table`, which the page "How to read a guarantee" shows.
"""

from __future__ import annotations

import time
from pathlib import Path

import pandas as pd

from crtbook import audits, tables

if __name__ == "__main__":
    rows = []
    for each in audits.AUDITS:
        started, cpu = time.perf_counter(), time.process_time()
        row = audits.table([each.name], games=120_000 if each.name == "crt" else 48_000)
        origin = tables.provenance(
            profile="audits",
            device="cpu",
            seconds=time.perf_counter() - started,
            cpu_seconds=time.process_time() - cpu,
        )
        rows.append(row.assign(seed=0, **origin))
        print(row.to_string(index=False, header=not rows[1:]), flush=True)
    tables.record(pd.concat(rows, ignore_index=True), Path(str(tables.FOLDER)) / "audits.parquet")
