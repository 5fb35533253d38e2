"""Tables for people: names in words, one column for each miss rate, readable numbers.

>>> rows = pd.DataFrame({"model": ["lstm"] * 4, "method": ["crt", "crt", "dpsgd", "dpsgd"],
...                      "gamma": [0.0, 0.1] * 2, "bits": ["<3", "4.7", "16.8", "16.8"]})
>>> wide = pivot_by_gamma(rows, "bits")
>>> wide.columns.tolist(), wide.loc["LSTM"].loc["DP-SGD"].tolist()
(['γ = 0', 'γ = 0.1'], ['16.8', '″'])
>>> "&lt;3" in render_table(wide).to_html()
True
>>> [format_number(x) for x in (1291.4, 8e-5, 5.5e20)]
['1,291', '8·10⁻⁵', '5.5·10²⁰']
>>> rewrite_numbers("(1.000, 8e-05) at 3.674e+04 points")
'(1.000, 8·10⁻⁵) at 36,740 points'
>>> render_folded_table(wide, "all runs").startswith("<details><summary>all runs</summary>")
True
"""

import html
import math
import re
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import pandas as pd
from pandas import DataFrame
from pandas.io.formats.style import Styler

from crtbook.figures.theme import corpus_name, method_looks, model_name

SAME = "″"
"""Shown where a method without a miss rate has the number of the column before."""
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def format_number(value: float, digits: int = 3) -> str:
    """A number as people write it: thousands with commas, very small and large ones with a power
    of ten, a dash for a missing one."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else "∞" if value > 0 else "-∞"
    if value and not 10 ** -min(digits + 1, 4) <= abs(value) < 1e9:
        head, power = f"{value:.{digits - 1}e}".split("e")
        return f"{float(head):g}·10{str(int(power)).translate(RAISED)}"
    short = f"{value:.{digits}g}"
    return f"{value:,.0f}" if abs(value) >= 1000 or "e" in short else short


def use_readable_names(table: DataFrame) -> DataFrame:
    """``table`` with readable names in its columns model, method and corpus."""
    words = {}
    if "method" in table:
        labels = {name: look.label for name, look in method_looks(table).items()}
        words["method"] = table.method.map(labels)
    for column, name in (("model", model_name), ("corpus", corpus_name)):
        if column in table:
            words[column] = table[column].map(name)
    return table.assign(**words)


def _sort_rows(table: DataFrame, by: Sequence[str]) -> DataFrame:
    """The rows sorted by these columns, methods in their order, with readable names."""
    order = list(method_looks(table))
    ordered = table.assign(order=table.method.map(order.index))
    return use_readable_names(ordered.sort_values([*by, "order"], kind="stable"))


def pivot_by_gamma(
    table: DataFrame, value: str, rows: Sequence[str] = ("model", "method")
) -> DataFrame:
    """One row for each of ``rows`` (methods in their order), one column for each gamma. A method
    with the same text at every gamma shows it once."""
    ordered = _sort_rows(table, [name for name in rows if name != "method"])
    wide = ordered.pivot_table(
        index=list(rows), columns="gamma", values=value, aggfunc="first", sort=False
    )
    wide = wide.reindex(columns=sorted(wide.columns)).fillna("–").astype(str)
    for row, texts in wide.iterrows():
        present = texts[texts != "–"]
        if present.nunique() == 1:
            wide.loc[row, present.index[1:]] = SAME
    wide.columns = pd.Index([f"γ = {gamma:g}" for gamma in wide.columns])
    return wide


def format_plus_minus(table: DataFrame, name: str, digits: int = 2) -> pd.Series:
    """The columns ``name_mean`` and ``name_std`` as "1.50 ± 0.20"; one seed has only the mean.

    >>> rows = DataFrame({"ppl_mean": [1.5, 2], "ppl_std": [0.2, math.nan]})
    >>> format_plus_minus(rows, "ppl").tolist()
    ['1.50\\xa0±\\xa00.20', '2.00']
    """
    mean, spread = (
        table[f"{name}_{kind}"].astype(float).map(f"{{:.{digits}f}}".format)
        for kind in ("mean", "std")
    )
    return (mean + "\u00a0±\u00a0" + spread).where(spread != "nan", mean)


def count_seeds(points: DataFrame) -> DataFrame:
    """The number of seeds of each model and method at each gamma, with readable names. ``points``
    is :func:`crtbook.utility.count_recorded_seeds`, which may be empty."""
    long = points.melt(ignore_index=False, value_name="seeds").reset_index()
    return pivot_by_gamma(long, "seeds") if len(points.columns) else points


def tabulate_verdicts(summary: DataFrame, metrics: Mapping[str, str]) -> DataFrame:
    """One row for each model and method, one column for each of ``metrics`` (name: readable name).
    A cell has a dot for each gamma, filled where the mean lies above the band of chance, hollow
    within it, and the lowest and highest mean in per cent. ``summary`` has the columns metric,
    model, method, gamma, mean and verdict.

    >>> rows = DataFrame({"metric": "auc", "model": "lstm", "method": "sgd",
    ...     "gamma": [0, 0.1], "mean": [0.5, 0.62], "verdict": ["inside", "above"]})
    >>> tabulate_verdicts(rows, {"auc": "area"}).iloc[0].tolist()
    ['○● 50–62']
    """

    def format_cell(cell: DataFrame) -> str:
        ends = dict.fromkeys(f"{100 * x:.0f}" for x in cell["mean"].agg(["min", "max"]))
        dots = "".join(cell.sort_values("gamma").verdict.map(DOTS))
        return f"{dots} {'–'.join(ends)}"

    rows = summary[summary.metric.isin(metrics) & summary["mean"].notna()]
    keys = ["model", "method", "metric"]
    cells = DataFrame(
        [(*key, format_cell(cell)) for key, cell in rows.groupby(keys)], columns=[*keys, "text"]
    )
    wide = _sort_rows(cells, ["model"]).pivot_table(
        index=keys[:2], columns="metric", values="text", aggfunc="first", sort=False
    )
    wide = wide[[m for m in metrics if m in wide]].rename(columns=dict(metrics)).fillna("–")
    return wide.rename_axis(columns=None)


DOTS = {"above": "●", "inside": "○", "below": "▽"}
"""How a table marks a mean above the band of chance, inside it, and below it."""


UNSAID = re.compile(r"\b(?:nan|not defined|0 of 0)\b|^None$")
"""What a sentence of the book must never contain: that nothing was measured, as if it had been."""


def keep_for_text(*lacking: str, **values: Any) -> None:
    """Keep values under these names for the text of a notebook, which shows them with ``glue``.

    A sentence around a number reads just as well when nothing was measured: "of 0 occurrences 0, a
    recall of not defined". So a value that is missing, NaN or empty, or states this in words, is
    refused here, unless ``lacking`` names it: then its sentence is written for that case, too.

    Raises:
        ValueError: names the value.
    """
    from myst_nb import glue  # slow to import, and only a notebook calls this

    for name, value in values.items():
        if name not in lacking and is_unsaid(value):
            raise ValueError(f"{name}={value!r}: must be something that was measured")
        glue(name, value, display=False)


def is_unsaid(value: Any) -> bool:
    """Whether a value for a sentence holds no measurement.

    >>> [is_unsaid(v) for v in (math.nan, None, [], "0 of 0", "not defined", 0, "None of 40")]
    [True, True, True, True, True, False, False]
    """
    if isinstance(value, str):
        return not value or bool(UNSAID.search(value))
    if value is None or (isinstance(value, Real) and math.isnan(value)):
        return True
    return hasattr(value, "__len__") and len(value) == 0


def rewrite_numbers(text: str) -> str:
    """A sentence with its numbers as people write them: no ``8e-05``."""
    return re.sub(
        r"(?<![\w.])\d+(?:\.\d+)?e[+-]\d+\b", lambda m: format_number(float(m[0]), 4), text
    )


def _format_cell(value: Any) -> str:
    if pd.api.types.is_bool(value):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{value:,}"
    return format_number(float(value)) if isinstance(value, Real) else str(value)


def render_table(table: DataFrame, caption: str = "") -> Styler:
    """A table for a page: every text is escaped, every number is as :func:`format_number` writes
    it, and there is one row of headers. Chain ``.format`` for a column that needs other digits."""
    if table.index.nlevels == table.columns.nlevels == 1 and table.columns.name is None:
        header: Any = table.index.name
        table = table.rename_axis(index=None, columns=header)
    styled = table.style.format(_format_cell, escape="html").format_index(
        _format_cell, escape="html"
    )
    styled = styled.format_index(_format_cell, escape="html", axis="columns")
    return styled.set_caption(html.escape(caption)) if caption else styled


def render_folded_table(table: DataFrame, summary: str, caption: str = "") -> str:
    """A table as HTML that stays closed until a reader opens it under the words ``summary``."""
    inside = render_table(table, caption).to_html()
    return f"<details><summary>{html.escape(summary)}</summary>{inside}</details>"
