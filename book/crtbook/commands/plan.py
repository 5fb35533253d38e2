"""``crtbook plan``: the runs that would decide what is open, cells of the headlines first."""

import json

from crtlib.options import CommandResult


def plan() -> CommandResult:
    """Rank the runs that open claims wait for, by what they decide in an hour of one core: rows of
    headlines first, then all rows.

    Example: crtbook plan
    """
    from crtbook.claims import ledger

    table = ledger.planned()
    lines = [
        f"{len(ids):3d} rows ({cells} of headlines)  {hours:4.1f} CPU h  {command}\n"
        f"{'':20}{', '.join(ids)}"
        for command, hours, ids, cells in table[["command", "hours", "ids", "cells"]]
        .to_numpy()
        .tolist()
    ]
    total = f"{table.rows.sum()} rows are open; {table.hours.sum():.1f} CPU h are planned"
    return CommandResult({"runs": json.loads(table.to_json(orient="records"))}, [*lines, "", total])
