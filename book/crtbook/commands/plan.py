"""``crtbook plan``: the runs that would decide what is open, cells of the headlines first."""

import json

from crtlib.options import CommandResult


def plan() -> CommandResult:
    """Rank the runs that open claims wait for, by what they decide in an hour of one core: rows of
    headlines first, then all rows.

    Example: crtbook plan
    """
    from crtbook.claims import ledger

    table = ledger.plan_open_rows()
    lines = [
        f"{len(ids):3d} rows ({cells} of headlines)  {hours:4.1f} CPU h  {command}\n"
        f"{'':20}{', '.join(ids)}"
        for command, hours, ids, cells in table[["command", "hours", "ids", "cells"]]
        .to_numpy()
        .tolist()
    ]
    alike = table.command.str.replace(r" --set seeds=\d+$", "", regex=True)
    hours = table.hours.groupby(alike).max().sum()  # more seeds hold the fewer ones
    total = f"{table.rows.sum()} rows are open; {hours:.0f} CPU h would run all of it"
    return CommandResult({"runs": json.loads(table.to_json(orient="records"))}, [*lines, "", total])
