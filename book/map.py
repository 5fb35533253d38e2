"""Write the page that maps each item of the papers to where it is here: ``python book/map.py``. Its
source is ``map.yml``; a test resolves every name in it and holds the page in step."""

import functools
import importlib
import re
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from crtbook.claims import ledger
from crtbook.claims.claim import entries, read
from crtbook.claims.statistics import INCOMPARABLE, OPEN, UNDECIDABLE

BOOK = Path(__file__).resolve().parent
SECTIONS = {
    "crt": "CRT (NAACL 2022, and its ACL submission)",
    "report": "The training-data leakage report (2021)",
    "hush": "Hush! (2025)",
    "design": "The companion itself",
}
MEANS = {
    "works": "it is here, a test names it, and where it is a claim, recorded runs decide it",
    "partly": "a part of it is here, no test names it, or recorded runs do not decide its claim",
    "toy": "its largest recorded run has less than a tenth of the paper's dialogues or width",
    "absent": "it is not here",
    "n/a": "nothing to build",
}
TOY = 0.1

HEAD = (
    "Every definition, theorem, algorithm, figure, table and stated result: the function that has "
    "it, the tests that name that function, the chapter that shows it, and the row of the ledger "
    "({doc}`chapters/claims`) with its number. Each name is resolved by a test, and each status is "
    "counted from the recorded runs and the ledger: nobody types one."
)


def items() -> list[dict[str, Any]]:
    """The rows of the map."""
    rows: list[dict[str, Any]] = yaml.safe_load((BOOK / "map.yml").read_text("utf-8"))
    return rows


def resolved(dotted: str) -> object:
    """What a dotted name stands for: a module, or something in one."""
    module, _, name = dotted.rpartition(".")
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError:
        return getattr(resolved(module), name)


def tested(row: dict[str, Any]) -> bool:
    """Whether the tests of an item name its function, in whatever case, or plant the worlds of the
    claim that calls it."""
    name = row.get("function", "").rpartition(".")[2]
    calls = {claim.id: claim.call for claim in read()}
    if not name or calls.get(row.get("claim", "")) == name:
        return "test" in row
    text = (BOOK.parent / row["test"]).read_text("utf-8")
    return re.search(rf"\b{name}\b", text, re.IGNORECASE) is not None


@functools.cache
def _verdicts() -> dict[str, set[str]]:
    table = ledger.ledger()
    names = table.id.str.replace(r"\.\d+$", "", regex=True)
    return {str(name): set(rows.verdict) for name, rows in table.groupby(names)}


@functools.cache
def _shares() -> dict[str, dict[str, float]]:
    """The share of the paper's dialogues, width and epochs that a figure's largest runs have."""
    figures = {f["id"]: f for f in entries("figures") if not f.get("exact")}
    runs = {name: ledger.shown(figure) for name, figure in figures.items()}
    return {n: ledger.largest(f, runs[n])[0] for n, f in figures.items() if len(runs[n])}


def status(row: dict[str, Any]) -> tuple[str, str]:
    """The status of an item, and why it is not better."""
    for name, word in (("nothing", "n/a"), ("absent", "absent")):
        if name in row:
            return word, row[name]
    share = _shares().get(row.get("shows", ""), {"dialogues": 1.0, "hidden": 1.0})
    least = min(("dialogues", "hidden"), key=lambda name: share[name])
    if share[least] < TOY:
        what = {"dialogues": "dialogues", "hidden": "width"}[least]
        return "toy", f"{share[least]:.1g} of the paper's {what}"
    if "lacks" in row:
        return "partly", row["lacks"]
    if not tested(row):
        return "partly", "its test does not name it"
    if "claim" in row and _verdicts()[row["claim"]] <= {OPEN, UNDECIDABLE, INCOMPARABLE}:
        return "partly", f"the claim is {' or '.join(sorted(_verdicts()[row['claim']]))}"
    return "works", ""


def line(row: dict[str, Any]) -> str:
    """One item of the page."""
    parts = [f"`{row['function'].removeprefix('crtlib.')}`"] if "function" in row else []
    parts += [f"`{row['test']}`"] if "test" in row else []
    parts += [f"{{doc}}`chapters/{row['chapter']}`"] if "chapter" in row else []
    parts += [f"claim `{row['claim']}`"] if "claim" in row else []
    word, why = status(row)
    why = f" ({why})" if why else ""
    item = row["item"].replace("`", "").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
    return f"{row['n']}. **{word}**{why}: {item}" + (f"<br>{', '.join(parts)}" if parts else "")


def page() -> str:
    """The page in MyST."""
    rows = items()
    count = Counter(status(row)[0] for row in rows)
    lines = ["# Where each item of the papers is", ""]
    lines += [HEAD, ""]
    lines += [f"- **{name}** ({count[name]} of {len(rows)}): {MEANS[name]}" for name in MEANS]
    for paper, title in SECTIONS.items():
        lines += ["", f"## {title}", ""]
        lines += [line(row) for row in rows if row["paper"] == paper]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (BOOK / "map.md").write_text(page(), "utf-8")
