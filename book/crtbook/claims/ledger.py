"""One ledger for three papers: each claim in its own words, our number beside it, the verdict.

>>> claims = read("claims")
>>> len({claim["id"] for claim in claims}) == len(claims) >= 90
True
>>> {claim["paper"] for claim in claims} == set(PAPERS)
True

``claims.yml`` holds what the papers say and which measure answers it; every number and verdict is
made by :func:`ledger`, from recorded tables or by calculation. ``errata.yml`` holds where a paper
contradicts itself, another version of itself, or arithmetic; its calculations are made here too.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

import pandas as pd
import yaml

from crtbook import tables
from crtbook.claims import crt, hush, others, report, theory
from crtbook.claims.rules import VERDICTS, Outcome
from crtlib.text import corpora

PAPERS = {
    "crt": "CRT (NAACL 2022)",
    "crt_acl": "CRT (ACL submission)",
    "report": "Leakage report (2021)",
    "hush": "Hush! (2025)",
    "ours": "a hypothesis of our own",
}
COLUMNS = ["verdict", "paper", "where", "words", "number", "ours", "value", "low", "high", "corpus",
           "model", "edition", "source", "rule", "why", "chapter", "id"]  # fmt: skip
MEASURES = {**report.MEASURES, **theory.MEASURES, **hush.MEASURES, **others.MEASURES}


def read(name: str) -> list[dict[str, Any]]:
    """The entries of ``claims``, ``errata`` or ``figures``, as their file holds them."""
    path = resources.files("crtbook.claims") / f"{name}.yml"
    entries: list[dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return entries


def _answers(measure: list[Any]) -> list[Outcome]:
    name, options = measure[0], dict(measure[1]) if len(measure) > 1 else {}
    if name in crt.MEASURES:
        return crt.MEASURES[name](crt.editions(), **options)
    return MEASURES[name](**options)


def _rows(claim: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    facts = {name: claim.get(name, "") for name in ("paper", "where", "words", "number", "chapter")}
    found = _answers(claim["measure"])
    if not found:
        found = [Outcome(verdict="cannot be told here", why="no recorded run has this arm")]
    for k, one in enumerate(found):
        yield facts | vars(one) | {"id": f"{claim['id']}.{k}" if len(found) > 1 else claim["id"]}


@functools.cache
def _ledger() -> pd.DataFrame:
    return pd.DataFrame([row for claim in read("claims") for row in _rows(claim)])[COLUMNS]


def ledger() -> pd.DataFrame:
    """A row a claim, edition, corpus and model, with its verdict (one of ``VERDICTS``). It takes a
    minute, most of which goes into accounting; it is made once."""
    return _ledger().copy()


def counts(table: pd.DataFrame) -> pd.DataFrame:
    """How many rows of each paper have which verdict."""
    out = pd.crosstab(table.paper.map(PAPERS), table.verdict)
    return out.reindex(columns=list(VERDICTS), fill_value=0).rename_axis(None, axis=1)


def errata() -> pd.DataFrame:
    """Where the papers contradict themselves or arithmetic: what is printed, the calculation."""
    rows = []
    for entry in read("errata"):
        made = _answers(entry["measure"])[0] if "measure" in entry else None
        rows.append(
            {
                "paper": PAPERS[entry["paper"]],
                "where": entry["where"],
                "printed": entry["printed"],
                "calculation": made.ours if made else entry["against"],
                "so": entry["so"],
            }
        )
    return pd.DataFrame(rows)


# --------------------------------------------------------------------------- one line a figure
SIZE = "at the paper's size"


def labelled(corpus: str) -> str:
    """A corpus as people are shown it; one that only a paper has is as it is."""
    return corpora.known()[corpus].label if corpus in corpora.known() else corpus


def status(figure: Mapping[str, Any], corpus: str) -> str:
    """At which size a figure of a paper is shown here on one of its corpora: computed from the
    recorded tables that ``figures.yml`` names."""
    if figure.get("exact"):
        return "exact"
    found = [t for name in figure["tables"] if (t := tables.edition(name)) is not None]
    if not found:
        return "not recorded"
    here = [t[t.corpus == corpus] for t in found]
    runs = pd.concat([t for t in here if len(t)]) if any(len(t) for t in here) else None
    if runs is None:
        names = sorted({labelled(c) for t in found for c in t.corpus})
        return f"other corpus ({', '.join(names)})"
    large = runs[(runs.dialogues >= figure["dialogues"]) & (runs.hidden >= figure["hidden"])]
    if large.empty:
        return "smaller"
    points = [set(zip(t.method, t.gamma, strict=True)) for t in (runs, large)]
    return SIZE if points[0] == points[1] else f"{SIZE}, in part ({len(points[1])} points)"


def badges() -> list[str]:
    """One line a figure or table of a paper, for the readme."""
    lines = []
    for figure in read("figures"):
        each = {corpus: status(figure, corpus) for corpus in figure["corpora"]}
        if len(set(each.values())) == 1:
            said = next(iter(each.values()))
        else:
            said = "; ".join(f"{labelled(corpus)}: {what}" for corpus, what in each.items())
        lines.append(f"| {PAPERS[figure['paper']]} | {figure['name']} | {said} |")
    return ["| paper | figure or table | here |", "|---|---|---|", *lines]
