"""Tables for people: names in words, one column for each miss rate, numbers as they are read.

>>> rows = pd.DataFrame({"model": ["lstm"] * 4, "method": ["crt", "crt", "dpsgd", "dpsgd"],
...                      "gamma": [0.0, 0.1] * 2, "bits": ["<3", "4.7", "16.8", "16.8"]})
>>> wide = by_gamma(rows, "bits")
>>> wide.columns.tolist(), wide.loc["LSTM"].loc["DP-SGD"].tolist()
(['γ = 0', 'γ = 0.1'], ['16.8', '″'])
>>> "&lt;3" in show(wide).to_html(), number(1291.4), number(8e-5), number(0.25)
(True, '1,291', '8·10⁻⁵', '0.25')
"""

from __future__ import annotations

import html
from typing import Any

import pandas as pd
from pandas.io.formats.style import Styler

from crtlib.figures.theme import corpus_name, method_looks, model_name

SAME = "″"
"""Stands where a method that knows no miss rate has the number of the column before."""
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, digits: int = 3) -> str:
    """A number as people write it: thousands with commas, tiny ones with a power of ten."""
    if value and abs(value) < 10 ** -(digits + 1):
        head, power = f"{value:.{digits - 1}e}".split("e")
        return f"{float(head):g}·10{str(int(power)).translate(RAISED)}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def named(table: pd.DataFrame) -> pd.DataFrame:
    """``table`` with the names that people read in its columns model, method and corpus."""
    words = {}
    if "method" in table:
        labels = {name: look.label for name, look in method_looks(table).items()}
        words["method"] = table.method.map(labels)
    for column, name in (("model", model_name), ("corpus", corpus_name)):
        if column in table:
            words[column] = table[column].map(name)
    return table.assign(**words)


def by_gamma(table: pd.DataFrame, value: str) -> pd.DataFrame:
    """One row for each model and method, one column for each gamma; a method whose text is the
    same at every gamma says it once."""
    order = list(method_looks(table))
    rows = table.assign(order=table.method.map(order.index)).sort_values(["model", "order"])
    rows = named(rows)
    wide = rows.pivot_table(
        index=["model", "method"], columns="gamma", values=value, aggfunc="first", sort=False
    )
    wide = wide.reindex(columns=sorted(wide.columns)).fillna("–").astype(str)
    for row in wide.index:
        texts = [text for text in wide.loc[row] if text != "–"]
        if len(texts) > 1 and len(set(texts)) == 1:
            again = [k for k, text in enumerate(wide.loc[row]) if text != "–"][1:]
            wide.loc[row, wide.columns[again]] = SAME
    wide.columns = pd.Index([f"γ = {gamma:g}" for gamma in wide.columns])
    return wide


def show(table: pd.DataFrame, caption: str = "") -> Styler:
    """A table for a page: every text escaped, every number as :func:`number` writes it."""
    forms: dict[Any, Any] = {
        c: number for c in table.columns if pd.api.types.is_float_dtype(table[c])
    }
    shown = table.style.format(forms, escape="html").format_index(escape="html")
    shown = shown.format_index(escape="html", axis="columns")
    return shown.set_caption(html.escape(caption)) if caption else shown
