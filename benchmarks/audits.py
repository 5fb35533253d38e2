"""What is proved of every private method, and what a white-box game shows, with all of the declared
noise and with less.

    python benchmarks/audits.py

Records :func:`crtbook.audits.audit_methods`, which the page "How to read a guarantee" shows.
"""

from functools import partial

import pandas as pd

from crtbook import audits, tables

if __name__ == "__main__":
    rows = []
    for each in audits.AUDITS:
        games = 120_000 if each.name == "crt" else 48_000
        made = partial(audits.audit_methods, [each.name], games=games)
        row, origin = tables.measure_with_provenance(made, profile="audits")
        rows.append(row.assign(seed=0, **origin))
        print(row.to_string(index=False, header=not rows[1:]), flush=True)
    tables.write_table(pd.concat(rows, ignore_index=True), tables.FOLDER / "audits.parquet")
