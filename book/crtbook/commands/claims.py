"""``crtbook claims``: what holds up of the three papers, from the recorded tables."""

import json

import pandas as pd

from crtlib.options import CommandResult


def claims(paper: str | None = None, row: str | None = None, errata: bool = False) -> CommandResult:
    """List every claim of the three papers, with our number, its interval and the verdict.

    Example: crtbook claims --paper hush

    Options:
        --paper: List the claims of one paper only: crt, crt_acl, report, hush or ours.
        --row: Show one row, or all rows of one claim, by its id: what made them, and the rule.
        --errata: List instead where the papers contradict themselves.
    """
    from crtbook.claims import ledger, page
    from crtbook.claims.claim import PAPERS
    from crtlib.checks import check_choice

    if paper is not None:
        check_choice("paper", paper, tuple(PAPERS))
    if row is not None and errata:
        raise ValueError(f"row={row!r}: cannot be combined with --errata: errata have no id")
    table: pd.DataFrame = ledger.tabulate_errata() if errata else ledger.load_ledger()
    if paper is not None:
        table = table.loc[table.paper == (PAPERS[paper] if errata else paper)]
    if row is not None:
        table = table[(table.id == row) | (table.id.str.rpartition(".")[0] == row)]
        if table.empty:
            raise ValueError(f"row={row!r}: must be an id of a row or claim of the ledger")
        return CommandResult(
            {"rows": json.loads(table.to_json(orient="records"))}, [page.format_rows_in_full(table)]
        )
    if errata:
        lines = [f"{r.where}: {r.printed}\n  {r.calculation}: {r.so}\n" for r in table.itertuples()]
    else:
        lines = [page.format_rows_as_lines(table), "", ledger.count_verdicts(table).to_string()]
    return CommandResult({"rows": json.loads(table.to_json(orient="records"))}, lines)
