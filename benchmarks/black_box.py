"""What real trainings show of their canaries: honest ones, and some with less noise.

    python benchmarks/black_box.py

Records :func:`crtbook.black_box.audit_all_trainings`; the page "How to read a guarantee" shows it.
"""

from crtbook import black_box, tables

if __name__ == "__main__":
    tables.write_table(black_box.audit_all_trainings(), tables.FOLDER / "black_box.parquet")
