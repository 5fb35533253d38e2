"""Write the leakage report for people: one web page that needs no network, Parquet and JSON.

Text is left out unless it is requested, and so is every number that could replace it
(:mod:`confide.reports.leakage_tables`). So a redacted report holds only bins and bands of counts,
and a report in clear is a private file.

>>> import numpy as np
>>> from crtlib.attacks.leakage import Document, TokenScores, sequence_features, find_runs
>>> texts = (Document("ann", "a", [0, 1, 2]),)
>>> scores = TokenScores([np.log([1, 0.5, 0.5])], [np.array([9, 0, 0])])
>>> runs = find_runs(texts, scores, k=1)
>>> report = LeakageReport(
...     texts, scores, runs, sequence_features(runs, texts), 1, True, 1, 0, 0, False, 1.0
... )
>>> cover = ReportCover(model="demo", corpus="demo.jsonl", unit="turn")
>>> "<title>Leakage report: demo</title>" in render_leakage_page(report, cover)
True
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confide.reports import html
from confide.reports.bands import LEAST_REPORTED_COUNT, band_in_words
from confide.reports.leakage_tables import (
    REACHED_RATIO_FIELD,
    ReportCover,
    TokenDecoder,
    group_runs,
    group_sequences,
    run_table,
    sequence_records,
    sequence_table,
    summarise_report,
)
from crtlib.attacks.leakage import LeakageReport
from crtlib.files import StrPath

REPORT_FILES = ("report.html", "report.json", "runs.parquet", "sequences.parquet")
"""The files of a report: readable by all if it is redacted, else by its owner only."""
MAX_PAGE_ROWS = 2000
"""The most sequences on the page, the most worrying first; the Parquet files hold all of them."""


def render_leakage_page(
    report: LeakageReport,
    cover: ReportCover,
    *,
    decode: TokenDecoder | None = None,
    rows: int = MAX_PAGE_ROWS,
) -> str:
    """The whole page as text. With ``decode`` it shows sequences in clear; without, only bins and
    bands of counts, and nothing about any single sequence."""
    exact = decode is not None
    facts = summarise_report(report, cover, exact=exact)
    values: dict[str, Any] = {
        "report": report,
        "cover": cover,
        "facts": facts,
        "ratio": facts["leakage_epsilon" if exact else REACHED_RATIO_FIELD],
        "few": LEAST_REPORTED_COUNT,
        "date": datetime.date.today().isoformat(),  # only here, as tables and JSON are compared
        "revealed": exact,
        "bins": group_sequences(report, cover, exact=exact).to_dict("records"),
        "in_words": band_in_words,
    }
    if decode is not None:
        sequences = sequence_table(report, decode)
        switches = {"compared": report.compared, "labelled": bool(sequences.secret_tokens.any())}
        values |= {"rows": rows, "every": len(sequences), "switches": html.embed_json(switches),
                   "data": html.embed_json(sequence_records(sequences.head(rows)))}  # fmt: skip
    return html.render_template("leakage.html.j2", **values)


def write_report_files(
    report: LeakageReport,
    folder: StrPath,
    cover: ReportCover,
    *,
    decode: TokenDecoder | None = None,
    rows: int = MAX_PAGE_ROWS,
    facts: Mapping[str, Any] | None = None,
) -> Path:
    """Write ``report.html``, ``report.json``, ``runs.parquet`` and ``sequences.parquet``. Returns
    the path of the page.

    ``facts`` are added to the summary in JSON. With ``decode`` (the tokenizer's) all four files
    contain text in clear, unless only lengths may be shown; without it they contain no text and no
    number about a single sequence.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    decode = None if cover.lengths_only else decode
    content: dict = {"summary": summarise_report(report, cover, exact=decode is not None)}
    content["summary"] |= facts or {}
    if decode:
        table, run_rows = sequence_table(report, decode), run_table(report, decode)
        content |= {"shown": min(rows, len(table)), "sequences": sequence_records(table.head(rows))}
    else:
        table, run_rows = group_sequences(report, cover), group_runs(report)
        content |= {"groups": table.to_dict("records")}
    for name, frame in (("sequences", table), ("runs", run_rows)):
        frame.to_parquet(folder / f"{name}.parquet", index=False)
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    (folder / "report.json").write_text(text, encoding="utf-8")
    file = folder / "report.html"
    file.write_text(render_leakage_page(report, cover, decode=decode, rows=rows), encoding="utf-8")
    return file
