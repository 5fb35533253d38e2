"""Write the recorded ledger of claims, and the table of figures in ``reproducing.md``, as the
recorded tables have them: ``python book/badges.py``. Tests hold both in step."""

import re
from pathlib import Path

from crtbook import tables
from crtbook.claims import ledger

PAGE = Path(__file__).resolve().parent / "reproducing.md"
BLOCK = re.compile(r"(<!-- figures: [^>]*-->\n).*?(<!-- end of figures -->)", re.DOTALL)


def renewed(text: str) -> str:
    """The page with today's table."""
    lines = "\n".join(ledger.badges())
    return BLOCK.sub(lambda found: f"{found[1]}\n{lines}\n\n{found[2]}", text)


if __name__ == "__main__":
    table = ledger.computed()
    table.attrs["of"] = ledger.digest()
    tables.record(table, ledger.FOLDER / ledger.RECORDED)
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")
