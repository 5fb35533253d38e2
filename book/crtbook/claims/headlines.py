"""One box for each paper: its main sentence, all cells of it, and what would change it.

>>> predict_new_cell([0.5, 0.1, 0.1, 0.3, 0.9])[0]
0.38
>>> predict_new_cell([0.5, 0.1]) is None  # two cells say nothing of a third
True
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pandas import DataFrame
from scipy import special

from crtbook.claims import ledger, measures
from crtbook.claims.claim import Claim, load_claims, load_claims_file
from crtbook.claims.statistics import AGREES, OPEN, UNDECIDABLE
from crtbook.figures.theme import corpus_name, model_name  # heavy; only a page calls this
from crtlib.intervals import clopper_pearson

FEWEST = 3
"""The least number of corpora that say something about another one."""
TOO_FEW_CORPORA = "Too few corpora have runs to say what another one may show."


def predict_new_cell(values: Sequence[float]) -> tuple[float, float, float] | None:
    """The mean over the cells, and what a new corpus or model may show in 95 of 100 cases. It uses
    Student's t over the cells, whose own errors are small beside the differences between them. None
    for fewer than ``FEWEST`` values."""
    if len(values) < FEWEST:
        return None
    n, mean = len(values), float(np.mean(values))
    spread = float(np.std(values, ddof=1)) * math.sqrt(1 + 1 / n)
    half_width = float(special.stdtrit(n - 1, 0.975)) * spread
    return mean, mean - half_width, mean + half_width


def select_cells(headline: Mapping[str, Any], table: DataFrame) -> DataFrame:
    """The rows of the ledger that show a headline, the largest first; ``size`` is in texts."""
    claim = table.id.str.replace(r"\.\d+$", "", regex=True)
    source = claim.map(headline["claims"])
    rows = table[claim.isin(headline["claims"]) & table.value.notna()]
    rows = rows[rows.source.str.partition(": ")[2] == source[rows.index]]
    size = measures.size_of_edition(rows.edition).astype(int)
    return rows.assign(size=size).sort_values("size", ascending=False, kind="stable")


def select_largest_cells(cells: DataFrame) -> DataFrame:
    """Of the cells of a headline the largest of each corpus and model, whatever its verdict.
    Smaller cells of a corpus, or of another version of its text, say little more."""
    texts = cells.corpus.map(measures.name_without_version)
    return cells.assign(text=texts).drop_duplicates(["text", "model"])


def check_robustness(
    headline: Mapping[str, Any], sources: measures.Sources
) -> dict[str, list[tuple[str, str]]]:
    """For each cell of a headline (its corpus, model and size), the name and the verdict of each
    other analysis of the same sentence; one that does not judge the cell is left out."""
    claims_by_id = {claim.id: claim for claim in load_claims()}
    verdicts: dict[str, list[tuple[str, str]]] = {}
    for analysis, change in headline["analyses"].items():
        for name, metric in headline["claims"].items():
            claim: Claim = claims_by_id[name].model_copy(update={"metric": metric} | change)
            claim_sources = {t: sources[t] for t in claim.tables if t in sources}
            table = ledger.judge_claims([claim], claim_sources)
            for row in table[table.value.notna()].to_dict("records"):
                verdicts.setdefault(name_cell(row), []).append((analysis, row["verdict"]))
    return verdicts


def name_cell(row: Mapping[Any, Any]) -> str:
    """A cell for people: its corpus, its model and its size."""
    size = str(row["edition"]).partition(",")[0]
    size = re.sub(r"\d{4,}", lambda number: f"{int(number[0]):,}", size)
    model, _, width = str(row["model"]).partition(" ")
    model = f"{model_name(model)} {width} wide" if width else model_name(model)
    return f"{corpus_name(row['corpus'])}, {model}, {size}"


def describe_robustness(verdict: str, analyses: Sequence[tuple[str, str]]) -> str:
    """How many other analyses give a cell's verdict, and what those say that do not.

    >>> describe_robustness("agrees", [("margin 1.05", "in part"), ("margin 1.25", "agrees")])
    '1 of 2 other analyses agrees as well (margin 1.05: in part)'
    """
    agreeing = [name for name, other_verdict in analyses if other_verdict == verdict]
    verb = f"{'is' if len(agreeing) == 1 else 'are'} {verdict}"
    verb = {"agrees": "agree", "differs": "differ"}.get(verdict, verb)
    verb += "s" * (verdict in ("agrees", "differs") and len(agreeing) == 1)
    dissenting = "; ".join(
        f"{name}: {other_verdict}" for name, other_verdict in analyses if other_verdict != verdict
    )
    summary = f"{len(agreeing)} of {len(analyses)} other analyses {verb} as well"
    return f"{summary} ({dissenting})" if dissenting else summary


def ratio_of_totals(
    left: int, right: int, left_runs: int = 1, right_runs: int = 1
) -> tuple[float, float, float]:
    """The ratio of two Poisson counts a run with its exact 95 % interval, from the share of the
    first in both; infinite where the second is 0.

    >>> [round(x, 1) for x in ratio_of_totals(930, 4)]
    [232.5, 90.5, 855.1]
    >>> round(ratio_of_totals(930, 8, left_runs=20, right_runs=40)[0], 1)
    232.5
    """
    share_interval = clopper_pearson(left, left + right)
    low, high = (share / (1 - share) if share < 1 else math.inf for share in share_interval)
    runs = right_runs / left_runs
    return (left / right * runs if right else math.inf), low * runs, high * runs


def count_totals(rows: DataFrame, sources: measures.Sources) -> dict[str, list[int]]:
    """For each row, what the runs of its left arm count together, what those of its right arm do,
    and how many runs each has."""
    claims_by_id, totals = {claim.id: claim for claim in load_claims()}, {}
    for row in rows.to_dict("records"):
        claim = claims_by_id[re.sub(r"\.\d+$", "", row["id"])]
        name, _, metric = row["source"].partition(": ")
        cell = measures.select_rows(sources[name], {"corpus": row["corpus"], "model": row["model"]})
        arms = [
            measures.value_per_seed(cell, arm, metric, snapshot, claim.reduce)
            for arm, snapshot in ((claim.left, claim.at), (claim.right, claim.right_at))
        ]
        totals[row["id"]] = [*(int(arm.sum()) for arm in arms), *map(len, arms)]
    return totals


def make_box(
    headline: Mapping[str, Any],
    table: DataFrame,
    robustness: Mapping[str, Sequence[tuple[str, str]]],
    totals: Mapping[str, Sequence[int]],
) -> dict[str, Any]:
    """All that the box of a headline shows, for its template: places from 0 to 100 along one axis.
    ``robustness`` is what :func:`check_robustness` returned, ``totals`` what :func:`count_totals`
    did, for a headline that shows them.

    A ratio stands at its logarithm along the axis, and is written as it is."""
    cells = select_cells(headline, table)
    is_endless = cells.value.isna()  # none: all of these have a value
    if headline.get("totals"):
        ratios = [ratio_of_totals(*totals[cell_id]) for cell_id in cells.id]
        cells[["value", "low", "high"]] = np.reshape(ratios, (-1, 3))
        # A ratio to zero is endless: it is shown as "at least" the low end of its interval.
        is_endless = np.isinf(cells.value)
        cells.loc[is_endless, "value"] = cells.low[is_endless]
        cells.loc[np.isinf(cells.high), "high"] = cells.low[np.isinf(cells.high)]
    is_ratio = bool(headline.get("totals") or headline.get("ratio"))
    to_axis = np.log if is_ratio else np.asarray
    values = to_axis(cells.value.to_numpy(float))
    largest = select_largest_cells(cells)
    is_largest = cells.id.isin(largest.id)
    with_interval = largest[largest.low.notna()]
    prediction = (
        predict_new_cell(values[cells.id.isin(with_interval.id).to_numpy()].tolist())
        if with_interval.text.nunique() >= FEWEST
        else None
    )
    paper_number = headline["paper_number"]
    claims_by_id = {claim.id: claim for claim in load_claims()}
    claim = claims_by_id[next(iter(headline["claims"]))]
    line = float(claim.line)
    if headline.get("ratio"):
        line = math.log(line)

    # The axis reaches from the least to the largest of all that it shows, and a margin further.
    shown = [*values, line, *(prediction or ())]
    if paper_number:
        shown.append(float(paper_number))
    shown += to_axis(cells[["low", "high"]].dropna().to_numpy(float)).ravel().tolist()
    margin = 0.04 * (max(shown) - min(shown))
    axis_start, axis_end = min(shown) - margin, max(shown) + margin
    is_above = claim.side == "above"
    band = (line, axis_end) if is_above else (axis_start, line)

    def place(x: float) -> float:
        return round(float(100 * (x - axis_start) / (axis_end - axis_start)), 1)

    def format_number(x: float) -> str:
        return f"{math.exp(x):.3g}" if is_ratio else f"{x:.3g}"

    def make_row(
        name: str,
        value: float,
        interval: Sequence[float],
        kind: str,
        note: str = "",
        is_least: bool = False,
    ) -> dict[str, Any]:
        text = "at least " * is_least + format_number(value)
        if len(interval) and not is_least:
            text += f" [{format_number(interval[0])}, {format_number(interval[1])}]"
        places = [place(end) for end in interval]
        return {"name": name, "at": place(value), "ends": places, "kind": kind, "note": note,
                "told": text}  # fmt: skip

    rows = [make_row("the paper", float(paper_number), (), "paper")] if paper_number else []
    rows_of_cells = []
    for cell, value, is_least in zip(cells.to_dict("records"), values, is_endless, strict=True):
        bounds = np.array([cell["low"], cell["high"]], dtype=float)
        interval = () if np.isnan(bounds).any() else tuple(to_axis(bounds))
        is_decided = cell["verdict"] not in (OPEN, UNDECIDABLE)
        note = describe_note(cell, claims_by_id) if is_decided else cell["why"]
        row = make_row(name_cell(cell), float(value), interval, cell["verdict"], note,
                       is_least=bool(is_least))  # fmt: skip
        rows_of_cells.append(row)
    rows += [row for row, shown in zip(rows_of_cells, is_largest, strict=True) if shown]
    smaller = [row for row, shown in zip(rows_of_cells, is_largest, strict=True) if not shown]
    if prediction:
        name = "another corpus or model, in 95 of 100 cases"
        rows.append(make_row(name, prediction[0], prediction[1:], "next"))
    cells_with_a_run = cells[cells.run != ""]
    next_runs = map(ledger.format_run, cells_with_a_run.run, cells_with_a_run.hours)
    cell_names = [*map(name_cell, cells.to_dict("records"))]
    return {
        "paper": headline["paper"],
        "quote": headline["quote"],
        "axis": headline["axis"],
        "rows": rows,
        "smaller": smaller,
        "band": [place(end) for end in band],
        "line": f"{'above' if is_above else 'below'} {format_number(line)}",
        "since": cells.since.max(),
        "few": "" if prediction else TOO_FEW_CORPORA,
        "words": _describe_three_kinds(headline, table, cells),
        "kept": _count_kept(cells, [robustness.get(name, ()) for name in cell_names]),
        "robust": [
            f"{name}: {describe_robustness(verdict, robustness[name])}"
            for name, verdict in zip(cell_names, cells.verdict, strict=True)
            if name in robustness
        ],
        "change": next(iter(next_runs), ledger.price_of_run(headline["run"])),
        "first": str(cells.id.iloc[0]),
    }


def _count_kept(cells: DataFrame, analyses: Sequence[Sequence[tuple[str, str]]]) -> str:
    """In how many of all other analyses a cell keeps its verdict."""
    kept = [
        other_verdict == verdict
        for verdict, analyses_of_cell in zip(cells.verdict, analyses, strict=True)
        for _, other_verdict in analyses_of_cell
    ]
    return f"{sum(kept)} of {len(kept)}"


def describe_note(cell: Mapping[Any, Any], claims_by_id: Mapping[str, Claim]) -> str:
    """What a decided cell must say beside its verdict: what was found where the claim beside it
    differs, or that its text is shorter than the paper's."""
    finding = claims_by_id[re.sub(r"\.\d+$", "", cell["id"])].found.partition(":")[0]
    return next(
        (
            part
            for part in cell["why"].split("; ")
            if (finding and part.startswith(finding)) or "of the paper's" in part
        ),
        "",
    )


def _describe_three_kinds(
    headline: Mapping[str, Any], table: DataFrame, rows: DataFrame
) -> dict[str, str]:
    """What is checked by calculation, what is seen again on the paper's own corpus, and what on
    others; and the size of the largest runs beside the paper's."""
    proofs = table[table.id.isin(headline["proved"])].verdict
    figure = next(f for f in load_claims_file("figures") if f["id"] == headline["figure"])
    papers_texts = {*map(measures.name_without_version, figure["corpora"])}
    is_own_corpus = rows.corpus.map(measures.name_without_version).isin(papers_texts)
    largest = rows.edition.iloc[0].rpartition(", ")[0]
    largest = re.sub(r"\d{4,}", lambda number: f"{int(number[0]):,}", largest)
    epochs = ", ".join(f"{n} epochs of {m}" for m, n in figure["epochs"].items()
                       if m in headline.get("methods", ()))  # fmt: skip
    texts = f"{figure['dialogues']:,} {figure.get('unit', 'dialogues')}"
    papers_size = (texts, f"{figure['hidden']} wide", headline.get("paper_noise", ""), epochs)
    return {
        "proved": f"{(proofs == AGREES).sum()} of {len(proofs)} holds"[
            : None if len(proofs) == 1 else -1
        ],
        "reproduced": _count_in_words(rows[is_own_corpus]) or "its corpus is not here",
        "replicated": _count_in_words(rows[~is_own_corpus]) or "on no other corpus",
        "size": f"{largest}; the paper has {', '.join(filter(None, papers_size))}",
    }


def _count_in_words(rows: DataFrame) -> str:
    """The verdicts of some cells, in words."""
    cells = rows.verdict.value_counts().items()
    return ", ".join(f"{verdict} in {n} cell{'s'[: n != 1]}" for verdict, n in cells)


def count_totals_of_all(
    table: DataFrame, sources: measures.Sources
) -> dict[str, dict[str, list[int]]]:
    """The results of :func:`count_totals` for each paper whose box shows them."""
    return {
        headline["paper"]: count_totals(select_cells(headline, table), sources)
        for headline in load_claims_file("headlines")
        if headline.get("totals")
    }


def check_robustness_of_all(
    sources: measures.Sources,
) -> dict[str, dict[str, list[tuple[str, str]]]]:
    """The results of :func:`check_robustness` for each paper."""
    return {
        headline["paper"]: check_robustness(headline, sources)
        for headline in load_claims_file("headlines")
    }


def make_boxes(table: DataFrame) -> list[dict[str, Any]]:
    """The boxes of all papers, from the ledger ``table``, which keeps what was analysed."""
    robustness = table.attrs.get("robust") or check_robustness_of_all(measures.load_sources())
    totals = table.attrs.get("totals") or count_totals_of_all(table, measures.load_sources())
    return [
        make_box(headline, table, robustness[headline["paper"]], totals.get(headline["paper"], {}))
        for headline in load_claims_file("headlines")
    ]
