"""The ledger for a page and for a terminal: the verdict first, the rest beside it.

>>> row = {"verdict": "differs", "paper": "crt", "where": "5.4", "words": "a <MASK>", "number": "1",
...        "ours": "2", "corpus": "", "model": "", "edition": "exact", "rule": "", "why": "",
...        "run": "", "hours": None, "chapter": "canary", "source": "", "since": "", "id": "x"}
>>> shown = render_ledger(pd.DataFrame([row]))
>>> "a &lt;MASK&gt;" in shown, "<MASK>" in shown
(True, False)
"""

import pandas as pd

from crtbook.claims.claim import PAPERS


def render_ledger(table: pd.DataFrame) -> str:
    """Two columns, which fit on a telephone: the verdict, and everything it is based on."""
    from crtbook.figures.theme import render_page  # heavy, and no terminal needs it

    return render_page("ledger.html.j2", rows=table.to_dict("records"), papers=PAPERS)


def render_headlines(table: pd.DataFrame) -> str:
    """A box for each paper: its sentence, all cells that show it, and what would change it."""
    from crtbook.claims import headlines  # heavy, and no terminal needs it
    from crtbook.figures.theme import render_page

    return render_page("headlines.html.j2", boxes=headlines.make_boxes(table), papers=PAPERS)


def format_rows_in_full(table: pd.DataFrame) -> str:
    """All that is known about each row, one line for each fact, for a terminal."""
    rows = table.drop(columns=["value", "low", "high"]).to_dict("records")
    return "\n\n".join("\n".join(f"{n:8} {v}" for n, v in row.items() if v) for row in rows)


def format_rows_as_lines(table: pd.DataFrame) -> str:
    """One line for each row, for a terminal."""
    return "\n".join(
        f"{row.verdict:19}  {row.id:22}  {row.ours or row.why!s}" for row in table.itertuples()
    )
