"""Write the page that maps each item of the papers to where it is here: ``python book/map.py``. Its
source is ``map.yml``; a test resolves every name in it and holds the page in step."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

BOOK = Path(__file__).resolve().parent
SECTIONS = {
    "crt": "CRT (NAACL 2022, and its ACL submission)",
    "report": "The training-data leakage report (2021)",
    "hush": "Hush! (2025)",
    "design": "The companion itself",
}
MEANS = {
    "works": "it is here, runs, and is tested",
    "partly": "a part of it is here, or it has not been run as the paper did",
    "toy": "it runs, at a size from which nothing about the paper's level follows",
    "absent": "it is not here",
    "n/a": "nothing to build",
}


HEAD = (
    "Every definition, theorem, algorithm, figure, table and stated result: the function that has "
    "it, the tests of that function's file, the chapter that shows it, and the row of the ledger "
    "({doc}`chapters/claims`) with its number. Each name is resolved by a test."
)


def items() -> list[dict[str, Any]]:
    """The rows of the map."""
    rows: list[dict[str, Any]] = yaml.safe_load((BOOK / "map.yml").read_text(encoding="utf-8"))
    return rows


def resolved(dotted: str) -> object:
    """What a dotted name stands for: a module, or something in one."""
    module, _, name = dotted.rpartition(".")
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError:
        return getattr(resolved(module), name)


def line(row: dict[str, Any]) -> str:
    """One item of the page."""
    parts = [f"`{row['function'].removeprefix('crtlib.')}`"] if "function" in row else []
    parts += [f"`{row['test']}`"] if "test" in row else []
    parts += [f"{{doc}}`chapters/{row['chapter']}`"] if "chapter" in row else []
    parts += [f"claim `{row['claim']}`"] if "claim" in row else []
    why = f" ({row['why']})" if "why" in row else ""
    item = row["item"].replace("`", "").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
    return f"{row['n']}. **{row['status']}**{why}: {item}" + (
        f"<br>{', '.join(parts)}" if parts else ""
    )


def page() -> str:
    """The page in MyST."""
    rows = items()
    count = Counter(row["status"] for row in rows)
    lines = ["# Where each item of the papers is", ""]
    lines += [HEAD, ""]
    lines += [f"- **{name}** ({count[name]} of {len(rows)}): {MEANS[name]}" for name in MEANS]
    for paper, title in SECTIONS.items():
        lines += ["", f"## {title}", ""]
        lines += [line(row) for row in rows if row["paper"] == paper]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (BOOK / "map.md").write_text(page(), encoding="utf-8")
