"""The status of each item of the papers (``map.yml``), its page, and the sentence that counts them.

Nobody types a status. It follows from what an item names: its function, the tests of that
function, its claim in the ledger, and the figure of the paper (``figures.yml``) against whose size
it is held.
"""

import collections
import functools
import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import teaching
from crtbook import tables
from crtbook.claims import ledger
from crtbook.claims.claim import Claim, load_claims, load_claims_file
from crtbook.claims.statistics import INCOMPARABLE, MIN_SEEDS, OPEN, UNDECIDABLE

BOOK = Path(__file__).resolve().parent
UNDECIDED = {OPEN, UNDECIDABLE, INCOMPARABLE}
SECTIONS = {
    "crt": "CRT (NAACL 2022, and its ACL submission)",
    "report": "The training-data leakage report (2021)",
    "hush": "Hush! (2025)",
    "design": "The companion itself",
}
OWN = "design"
"""The section of what is ours, which no sentence about the papers counts."""
TOY = 0.1
LONG = 0.5
"""A figure whose deciding runs have less than this share of the paper's epochs is shown in part."""
MEANS = {
    "works": "it is here, a test names it, and where it is a claim, recorded runs decide it",
    "partly": "a part of it is here, no test names it, recorded runs do not decide its claim, or "
    "they have less than half of the paper's epochs",
    "toy": f"the runs that decide it have less than a tenth of the paper's dialogues or width, or "
    f"no size has {MIN_SEEDS} seeds",
    "absent": "it is not here",
    "n/a": "nothing to build",
}
"""What :func:`judge_item` returns for an item, in the order of the sentence that counts them."""


def resolve_name(dotted: str) -> object:
    """The object that a dotted name stands for: a module, or something in one."""
    module, _, name = dotted.rpartition(".")
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError:
        return getattr(resolve_name(module), name)


@functools.cache
def _claims_by_id() -> dict[str, Claim]:
    return {claim.id: claim for claim in load_claims()}


def is_tested(row: dict[str, Any]) -> bool:
    """Whether the tests of an item name its function, in any case, or plant the worlds of the claim
    that calls it."""
    name = row.get("function", "").rpartition(".")[2]
    if not name or ("claim" in row and _claims_by_id()[row["claim"]].call == name):
        return "test" in row
    text = (BOOK.parent / row["test"]).read_text("utf-8")
    return re.search(rf"\b{name}\b", text, re.IGNORECASE) is not None


# --------------------------------------------------------------------------- what was run
@functools.cache
def _figures_by_id() -> dict[str, dict[str, Any]]:
    return {figure["id"]: figure for figure in load_claims_file("figures")}


@functools.cache
def _ledger_with_sizes() -> pd.DataFrame:
    """The ledger, with the claim of each row and the texts, width and seeds of its runs; where
    its arms differ, the smaller."""
    table = ledger.load_ledger()
    columns = {"dialogues": r"([\d, ]+) (?:dialogues|paragraphs|abstracts)",
               "hidden": r"([\d, ]+) wide",
               "seeds": r"(\d+) seeds?$"}  # fmt: skip
    sizes = {
        name: table.edition.str.extract(pattern)[0].map(_least_number)
        for name, pattern in columns.items()
    }
    return table.assign(claim=table.id.str.replace(r"\.\d+$", "", regex=True), **sizes)


def _least_number(listed: str | float) -> float:
    """The least of "60, 100"; missing where nothing is listed."""
    numbers = re.findall(r"\d+", listed) if isinstance(listed, str) else []
    return min(map(float, numbers), default=np.nan)


def find_rows(row: dict[str, Any]) -> pd.DataFrame:
    """The ledger's rows of an item's claim, on the item's corpus where it names one."""
    table = _ledger_with_sizes()
    rows = table[table.claim == row.get("claim", "")]
    return rows[rows.corpus == row["corpus"]] if "corpus" in row else rows


@functools.cache
def _runs_of_figure(name: str) -> pd.DataFrame:
    """The recorded runs of a figure, with the CPU seconds that each took, and its ``model``."""
    figure = _figures_by_id()[name]
    recorded = [t for part in figure["tables"] if (t := tables.find_recorded(part)) is not None]
    columns = ["run", "seconds", "cpu_seconds", "model"]
    each = pd.concat([t.reindex(columns=columns).drop_duplicates("run") for t in recorded])
    each = each.drop_duplicates("run").set_index("run")
    runs, cost = ledger.runs_of_figure(figure), each.cpu_seconds.fillna(each.seconds)
    return runs.assign(cost=runs.run.map(cost), model=runs.run.map(each.model))


def find_runs(row: dict[str, Any]) -> pd.DataFrame:
    """The recorded runs of an item's figure: on the item's corpus and by its method where it names
    one, and of the models that its claim is about."""
    runs = _runs_of_figure(row["shows"])
    for column in ("corpus", "method"):
        runs = runs[runs[column] == row[column]] if column in row else runs
    models = {word for listed in find_rows(row).model for word in re.findall(r"\w+", listed)}
    of_claim = runs[runs.model.isin(models)]
    return of_claim if len(of_claim) else runs


def is_measured(claim: Claim) -> bool:
    """Whether the runs of trained models or counted texts decide a claim."""
    return claim.measure != "calculation" and claim.kind == "claim"


SIZE = ["corpus", "dialogues", "hidden"]


def tabulate_sizes(row: dict[str, Any]) -> pd.DataFrame:
    """Each size at which an item was run, the largest last: its shares of the paper's ``dialogues``
    and ``width``, the ``least`` of the two, and its ``seeds``.

    ``counts`` marks the sizes that may give the item its status, and ``decides`` those of which a
    row is decided. If runs decide the item's claim, these are the sizes of its rows in the ledger,
    with the ``run`` that an open row waits for. Otherwise they are the sizes of the figure's runs.
    """
    figure, runs = _figures_by_id()[row["shows"]], find_runs(row)
    seeds = runs.groupby([*SIZE, "method"], dropna=False).seed.nunique()
    sizes = seeds.groupby(SIZE, dropna=False).min().rename("seeds").reset_index()
    if "claim" in row and is_measured(_claims_by_id()[row["claim"]]):
        of_claim = find_rows(row).assign(counts=True)
        of_claim = of_claim.assign(decides=~of_claim.verdict.isin(UNDECIDED))
        kept = [*SIZE, "seeds", "counts", "decides", "run", "hours"]
        sizes = pd.concat([sizes.assign(counts=False, decides=False), of_claim[kept]])
    else:
        sizes = sizes.assign(counts=True, decides=True, run="", hours=np.nan)
    width = sizes.hidden.astype(float) / figure.get("hidden", np.nan)
    sizes = sizes.assign(
        unit=figure.get("unit", "dialogues"),
        share_of_dialogues=(sizes.dialogues / figure.get("dialogues", np.nan)).clip(upper=1.0),
        share_of_width=width.fillna(1.0).clip(upper=1.0),  # no model is trained, or none is stated
    )
    sizes = sizes.assign(
        share_of_dialogues=sizes.share_of_dialogues.fillna(1.0),  # the paper states no number
    )
    sizes = sizes.assign(least=sizes[["share_of_dialogues", "share_of_width"]].min(axis=1))
    return sizes.sort_values(["least", "counts", "seeds"], ignore_index=True)


def choose_size(sizes: pd.DataFrame) -> pd.Series | None:
    """The size that an item is held against: the largest that decides with enough seeds; where none
    decides, the largest with enough seeds; where no size has these, none."""
    enough = sizes[sizes.counts & (sizes.seeds >= MIN_SEEDS)]
    of = enough[enough.decides] if enough.decides.any() else enough
    return of.iloc[-1] if len(of) else None


def share_of_epochs(row: dict[str, Any], size: pd.Series) -> float:
    """The least share of the paper's epochs that a figure's runs of this size have."""
    epochs = _figures_by_id()[row["shows"]]["epochs"]
    runs = find_runs(row)
    same = runs[runs.dialogues == size.dialogues]
    same = same if pd.isna(size.hidden) else same[same.hidden == size.hidden]
    return float((same.epochs / same.method.map(epochs).fillna(1)).min())


# --------------------------------------------------------------------------- what it would take
def describe_price(row: dict[str, Any], sizes: pd.DataFrame) -> str:
    """What it would take to make more of a toy, in core hours.

    Where a row of the ledger at a larger size is open, the run that would decide it. Otherwise
    three seeds of the figure's runs at a tenth of the paper's dialogues and width or more. This is
    scaled up from the CPU time of the largest that are recorded, of each model that the claim is
    about, in proportion to dialogues and width; the epochs stay. As a wider model costs more than
    that, it is the least.
    """
    larger = sizes[(sizes.least >= TOY) & sizes.hours.notna()]
    if len(larger):
        run = larger.loc[larger.hours.idxmin()]
        return f"it would take {_format_hours(run.hours)}: `{run.run}`"
    figure, runs, seconds = _figures_by_id()[row["shows"]], find_runs(row), 0.0
    models = runs.model.unique() if "claim" in row else [None]
    for model in models:
        of_model = runs if pd.isna(model) else runs[runs.model == model]
        largest = of_model[of_model.dialogues == of_model.dialogues.max()]
        largest = largest[largest.hidden.isna() | (largest.hidden == largest.hidden.max())]
        factor = max(1.0, TOY * figure.get("dialogues", 0) / largest.dialogues.iloc[0])
        if "hidden" in figure:
            factor *= max(1.0, TOY * figure["hidden"] / largest.hidden.iloc[0])
        seconds += factor * largest.cost.sum() / largest.seed.nunique()
    hours = _format_hours(MIN_SEEDS * seconds / 3600)
    return f"it would take {MIN_SEEDS} seeds at a tenth or more, at least {hours}"


def _format_hours(hours: float) -> str:
    """Core hours with two digits.

    >>> _format_hours(0.123), _format_hours(12345.6)
    ('0.12 core hours', '12,000 core hours')
    """
    return f"{float(f'{hours:.2g}'):,.10g} core hours"


# --------------------------------------------------------------------------- status
def judge_item(row: dict[str, Any]) -> tuple[str, str]:
    """The status of an item, and why it is no better."""
    for name, word in (("nothing", "n/a"), ("absent", "absent")):
        if name in row:
            return word, row[name]
    lacks = [row["lacks"]] if "lacks" in row else []
    size = None
    if "shows" in row:
        sizes = tabulate_sizes(row)
        size = choose_size(sizes)
        if size is None or size.least < TOY:
            words = [describe_toy(size, sizes), *lacks, describe_price(row, sizes)]
            return "toy", "; ".join(words)
    reasons = lacks
    if size is not None and (share := share_of_epochs(row, size)) < LONG:
        reasons = [*reasons, f"from {share:.0%} of the paper's epochs"]
    verdicts = {*find_rows(row).verdict}
    if "claim" in row and verdicts <= UNDECIDED:
        reasons = [*reasons, f"the claim is {' or '.join(sorted(verdicts))}"]
    if "lacks" not in row and not is_tested(row):
        reasons = [*reasons, "its test does not name it"]
    return ("partly", "; ".join(reasons)) if reasons else ("works", "")


def describe_toy(size: pd.Series | None, sizes: pd.DataFrame) -> str:
    """How small the runs are that decide an item, and that larger ones decide nothing."""
    largest = sizes.iloc[-1]
    if size is None:
        return f"{_format_share(largest)}, and no size has {MIN_SEEDS} seeds"
    words, count = _format_share(size), int(largest.seeds)
    if largest.least > size.least:
        number = _format_number(largest.least)
        where = "the paper's size" if largest.least == 1 else f"{number} of its size"
        seeds = "1 seed decides" if count == 1 else f"{count} seeds decide"
        words += f"; at {where} {seeds} nothing"
    return words


def _format_share(size: pd.Series) -> str:
    """The smaller share of a size, and of what it is."""
    unit = size.get("unit", "dialogues")
    of = unit if size.share_of_dialogues <= size.share_of_width else "width"
    return f"{_format_number(size.least)} of the paper's {of}"


def _format_number(share: float) -> str:
    """A share with one digit that counts.

    >>> _format_number(0.000046), _format_number(1.0)
    ('0.00005', '1')
    """
    return str(np.format_float_positional(float(f"{share:.1g}"), trim="-"))


# --------------------------------------------------------------------------- the page
WHERE = {
    "function": "`{}`",
    "test": "`{}`",
    "chapter": "{{doc}}`chapters/{}`",
    "claim": "claim `{}`",
}


@functools.cache
def judge_items() -> list[dict[str, Any]]:
    """Every item of ``map.yml``, with its ``status`` and ``why`` it is no better."""
    rows: list[dict[str, Any]] = teaching.load_yaml("map.yml")
    for row in rows:
        row["status"], row["why"] = judge_item(row)
    return rows


def count_statuses(rows: list[dict[str, Any]]) -> dict[str, int]:
    """How many of these items have each status."""
    counts = collections.Counter(row["status"] for row in rows)
    return {word: counts[word] for word in MEANS}


def render_map() -> str:
    """The page of all items."""
    rows = judge_items()
    for row in rows:
        names = {kind: row[kind].removeprefix("crtlib.") for kind in WHERE if kind in row}
        row["where"] = [WHERE[kind].format(name) for kind, name in names.items()]
    own = [row for row in rows if row["paper"] == OWN]
    papers = [row for row in rows if row["paper"] != OWN]
    return teaching.render_template(
        "map",
        rows=rows,
        counts=count_statuses(papers),
        papers=len(papers),
        own=len(own),
        OWN=OWN,
        MEANS=MEANS,
        SECTIONS=SECTIONS,
    )


COUNTED = re.compile(
    r"(\d+) figures, tables, theorems and claims, (\d+) are reproduced or computed here, (\d+) in "
    r"part, (\d+) only as toys, (\d+) not at all, and (\d+) ask for nothing to be built"
)
"""The sentence that counts the papers' items, where people read first."""
COUNTING = (BOOK.parent / "README.md", BOOK / "index.md")


def insert_counts(text: str) -> str:
    """A page with today's counts of the papers' items in its sentence; a page that has lost the
    sentence is refused."""
    counts = count_statuses([row for row in judge_items() if row["paper"] != OWN])
    sentence = (
        "{} figures, tables, theorems and claims, {} are reproduced or computed here, {} in part,"
        " {} only as toys, {} not at all, and {} ask for nothing to be built"
    ).format(sum(counts.values()), *counts.values())
    updated, times = COUNTED.subn(sentence, text)
    assert times == 1, "one sentence counts the papers' items"
    return updated
