"""The ledger for a page and for a terminal: the verdict first, the rest beside it.

>>> row = {"verdict": "differs", "paper": "crt", "where": "5.4", "words": "a <MASK>", "number": "1",
...        "ours": "2", "corpus": "", "model": "", "edition": "exact", "rule": "", "why": "",
...        "run": "", "chapter": "canary", "source": "", "id": "x"}
>>> "a &lt;MASK&gt;" in html(pd.DataFrame([row])), "<MASK>" in html(pd.DataFrame([row]))
(True, False)
"""

from collections.abc import Hashable
from html import escape
from typing import Any

import pandas as pd

from crtbook.claims.claim import PAPERS

TINT = {"agrees": "#00795a33", "in part": "#b97f0033", "differs": "#d55e0040"}
STYLE = (
    "<style>.ledger{width:100%;table-layout:fixed;border-collapse:collapse;text-align:left}"
    ".ledger td{vertical-align:top;padding:.4em .5em;border-top:1px solid #8a94a060;"
    "overflow-wrap:anywhere;text-align:left}.ledger td:first-child{width:6.2em;font-weight:600}"
    ".ledger small{display:block}</style>"
)


def html(table: pd.DataFrame) -> str:
    """Two columns, which a telephone shows whole: the verdict, and all that it rests on."""
    rows = "".join(_row(row) for row in table.to_dict("records"))
    return f'{STYLE}<table class="ledger"><tbody>{rows}</tbody></table>'


def _row(row: dict[Hashable, Any]) -> str:
    said = {name: escape(str(value)) for name, value in row.items()}
    printed = f" ({said['number']})" if said["number"] else ""
    on = ", ".join(part for part in (said["corpus"], said["model"], said["edition"]) if part)
    lines = [
        f"“{said['words']}”{printed}",
        f"<small>{said['id']} · {PAPERS[str(row['paper'])]}, {said['where']} · "
        f'<a href="{said["chapter"]}.html">{said["chapter"].replace("_", " ")}</a></small>',
        f"<b>{said['ours']}</b>" + (f" <small>{on}</small>" if on else ""),
    ]
    if said["why"]:
        lines.append(f"<small>{said['why']}</small>")
    if said["run"]:
        lines.append(f"<small>would decide: {said['run']}</small>")
    tint = TINT.get(str(row["verdict"]), "#8a94a030")
    return f'<tr><td style="background:{tint}">{said["verdict"]}</td><td>{"".join(lines)}</td></tr>'


def whole(table: pd.DataFrame) -> str:
    """All that is known of each row, a line a fact, for a terminal."""
    facts = table.drop(columns=["value", "low", "high"]).to_dict("records")
    return "\n\n".join("\n".join(f"{n:8} {v}" for n, v in row.items() if v) for row in facts)


def text(table: pd.DataFrame) -> str:
    """A line a row for a terminal."""
    return "\n".join(
        f"{row.verdict:19}  {row.id:22}  {row.ours or row.why!s}" for row in table.itertuples()
    )
