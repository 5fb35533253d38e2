"""Write the recorded ledger of claims, and the readme's table of figures, as the recorded tables
have them: ``python book/badges.py``. Tests hold both in step."""

from __future__ import annotations

import re
from pathlib import Path

from crtbook import tables
from crtbook.claims import ledger

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCK = re.compile(r"(<!-- figures: [^>]*-->\n).*?(<!-- end of figures -->)", re.DOTALL)


def renewed(text: str) -> str:
    """The readme with today's table."""
    lines = "\n".join(ledger.badges())
    return BLOCK.sub(lambda found: f"{found[1]}\n{lines}\n\n{found[2]}", text)


if __name__ == "__main__":
    table = ledger.computed()
    table.attrs["of"] = ledger.digest()
    tables.record(table, Path(str(ledger.FOLDER / ledger.RECORDED)))
    README.write_text(renewed(README.read_text(encoding="utf-8")), encoding="utf-8")
