"""``crtbook claims``: what holds up of the three papers, from the recorded tables."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def claims(
    paper: Annotated[
        str | None, typer.Option(help="Only this one: crt, crt_acl, report, hush or ours.")
    ] = None,
    errata: Annotated[
        bool, typer.Option("--errata", help="Where the papers contradict themselves, instead.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """Every claim of the three papers, our number beside it with its interval, and the verdict.

    Example: crtbook claims --paper hush
    """
    from crtbook.claims import ledger, page
    from crtlib.checks import check_choice

    if paper is not None:
        check_choice("paper", paper, tuple(ledger.PAPERS))
    table = ledger.errata() if errata else ledger.ledger()
    if paper is not None:
        name = ledger.PAPERS[paper] if errata else paper
        table = table[table.paper == name]
    if as_json:
        print(json.dumps(json.loads(table.to_json(orient="records")), ensure_ascii=False))
        return
    if errata:
        print("\n\n".join(f"{r.where}: {r.printed}\n  {r.calculation}: {r.so}"
                          for r in table.itertuples()))  # fmt: skip
        return
    print(page.text(table))
    print(f"\n{ledger.counts(table).to_string()}")
