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
from crtbook.claims.claim import Claim, load_claims, load_claims_file, load_terms
from crtbook.claims.statistics import AGREES, OPEN
from crtbook.figures.theme import corpus_name, model_name  # heavy; only a page calls this

FEWEST = 3
"""The least number of cells that say something about another cell."""


def predict_new_cell(values: Sequence[float]) -> tuple[float, float, float] | None:
    """The mean over the cells, and what a new corpus or model may show in 95 of 100 cases. It uses
    Student's t over the cells, whose own errors are small beside the differences between them. None
    for fewer than ``FEWEST`` cells."""
    if len(values) < FEWEST:
        return None
    n, mean = len(values), float(np.mean(values))
    wide = float(np.std(values, ddof=1)) * math.sqrt(1 + 1 / n)
    off = float(special.stdtrit(n - 1, 0.975)) * wide
    return mean, mean - off, mean + off


def select_cells(headline: Mapping[str, Any], table: DataFrame) -> DataFrame:
    """The rows of the ledger that show a headline, the largest first; ``size`` is dialogues."""
    claim = table.id.str.replace(r"\.\d+$", "", regex=True)
    source = claim.map(headline["claims"])
    rows = table[claim.isin(headline["claims"]) & table.value.notna()]
    rows = rows[rows.source.str.partition(": ")[2] == source[rows.index]]
    size = rows.edition.str.extract(r"^(\d+) dialogues")[0].astype(int)
    return rows.assign(size=size).sort_values("size", ascending=False, kind="stable")


def check_robustness(
    headline: Mapping[str, Any], sources: measures.Sources
) -> list[tuple[str, str]]:
    """The verdict of the largest cell as it is judged, and by each of the other analyses."""
    by_id = {claim.id: claim for claim in load_claims()}
    (name, metric), *_ = headline["claims"].items()
    analyses: dict[str, dict[str, Any]] = {"as it is judged": {}, **headline["analyses"]}
    out = []
    for words, change in analyses.items():
        claim: Claim = by_id[name].model_copy(update={"metric": metric} | change)
        table = ledger.judge_claims([claim], {t: sources[t] for t in claim.tables if t in sources})
        size = table.edition.str.extract(r"^(\d+) dialogues")[0].astype(float)
        out.append((words, str(table.verdict.iloc[int(size.argmax())])))
    return out


def make_box(
    headline: Mapping[str, Any], table: DataFrame, robustness: Sequence[Any]
) -> dict[str, Any]:
    """All that the box of a headline shows, for its template: places from 0 to 100 along one axis.
    ``robustness`` is what :func:`check_robustness` returned."""
    rows, log = select_cells(headline, table), bool(headline.get("log") or headline.get("ratio"))
    ratio = bool(headline.get("ratio"))
    scale = np.log if ratio else np.asarray
    values = scale(rows.value.to_numpy(float))
    next_ = predict_new_cell(values[(rows.verdict != OPEN).to_numpy()].tolist())
    number = headline["paper_number"]
    claim = next(c for c in load_claims() if c.id in headline["claims"])
    line = float(claim.line)
    band = (math.log(1 / line), math.log(line)) if ratio else (line, line)
    ends = [*values, *band, *(next_ or ()), *([float(number)] if number else ())]
    ends += [float(e) for e in scale(rows[["low", "high"]].dropna().to_numpy(float)).ravel()]
    low, high = min(ends), max(ends)
    low, high = low - 0.04 * (high - low), high + 0.04 * (high - low)

    def place(x: float) -> float:
        return round(float(100 * (x - low) / (high - low)), 1)

    def words(x: float) -> str:
        return f"{math.exp(x):.3g}" if log else f"{x:.3g}"

    def row(name: str, value: float, ends: Sequence[float], kind: str) -> dict[str, Any]:
        interval = f" [{words(ends[0])}, {words(ends[1])}]" if len(ends) else ""
        places = [place(e) for e in ends]
        return {"name": name, "at": place(value), "ends": places, "kind": kind,
                "told": words(value) + interval}  # fmt: skip

    lines = [row("the paper", float(number), (), "paper")] if number else []
    for cell, value in zip(rows.to_dict("records"), values, strict=True):
        where = f"{corpus_name(cell['corpus'])}, {model_name(cell['model'])}"
        bounds = np.array([cell["low"], cell["high"]], dtype=float)
        interval = () if np.isnan(bounds).any() else tuple(scale(bounds))
        name = f"{where}, {cell['size']:,} {headline.get('texts', 'dialogues')}"
        lines.append(row(name, float(value), interval, cell["verdict"]))
    if next_:
        name = "a corpus or model like those that are decided, in 95 of 100 cases"
        lines.append(row(name, next_[0], next_[1:], "next"))
    waiting = rows[rows.run != ""]
    next_runs = map(ledger.format_run, waiting.run, waiting.hours)
    same = [word for _, word in robustness].count(robustness[0][1])
    return {
        "paper": headline["paper"],
        "quote": headline["quote"],
        "axis": headline["axis"],
        "rows": lines,
        "band": [place(b) for b in band],
        "line": f"{1 / line:.3g} to {line:g}" if ratio else words(line),
        "since": rows.since.max(),
        "few": "" if next_ else "Too few cells are decided to say what another one may show.",
        "why": "; ".join(sorted({why for why in rows.why if "the runs differ from" in why})),
        "words": _describe_three_kinds(headline, table, rows),
        "robust": f"{robustness[0][1]} in {same} of {len(robustness)} analyses",
        "analyses": [f"{name}: {verdict}" for name, verdict in robustness],
        "change": next(iter(next_runs), ledger.price_of_run(headline["run"])),
        "first": str(rows.id.iloc[0]),
    }


def _describe_three_kinds(
    headline: Mapping[str, Any], table: DataFrame, rows: DataFrame
) -> dict[str, str]:
    """What is checked by calculation, what is seen again on the paper's own corpus, and what on
    others; and the size of the largest runs beside the paper's."""
    proofs = table[table.id.isin(headline["proved"])].verdict
    own = rows.corpus.isin(headline["ours"])
    figure = next(f for f in load_claims_file("figures") if f["id"] == headline["figure"])
    texts = headline.get("texts", "dialogues")
    largest = rows.edition.iloc[0].rpartition(", ")[0].replace("dialogues", texts)
    largest = re.sub(r"\d{4,}", lambda number: f"{int(number[0]):,}", largest)
    epochs = ", ".join(f"{n} epochs of {m}" for m, n in figure["epochs"].items()
                       if m in headline.get("methods", ()))  # fmt: skip
    paper = f"{figure['dialogues']:,} {texts}, {figure['hidden']} wide"
    if "noise" in headline:
        epsilon = find_largest_epsilon(headline["noise"])
        largest, paper = f"{largest}, ε = {epsilon:.3g}", f"{paper}, {headline['paper_noise']}"
    return {
        "proved": f"{(proofs == AGREES).sum()} of {len(proofs)} hold",
        "reproduced": _count_in_words(rows[own]) or "its corpus is not here",
        "replicated": _count_in_words(rows[~own]) or "on no other corpus",
        "size": f"{largest}; the paper has {', '.join(filter(None, (paper, epochs)))}",
    }


def find_largest_epsilon(arm: str) -> float:
    """The largest epsilon at which the recorded runs of the leakage report have this ``arm``."""
    rows = measures.select_rows(measures.load_sources()["leakage"], load_terms()["arms"][arm])
    return float(rows[rows.metric == "epsilon"].value.max())


def _count_in_words(rows: DataFrame) -> str:
    """The verdicts of some cells, in words."""
    return ", ".join(f"{n} {verdict}" for verdict, n in rows.verdict.value_counts().items())


def check_robustness_of_all(sources: measures.Sources) -> dict[str, list[tuple[str, str]]]:
    """The results of :func:`check_robustness` for each paper."""
    return {
        headline["paper"]: check_robustness(headline, sources)
        for headline in load_claims_file("headlines")
    }


def make_boxes(table: DataFrame) -> list[dict[str, Any]]:
    """The boxes of all papers, from the ledger ``table``, which keeps what was analysed."""
    robustness = table.attrs.get("robust") or check_robustness_of_all(measures.load_sources())
    return [
        make_box(headline, table, robustness[headline["paper"]])
        for headline in load_claims_file("headlines")
    ]
