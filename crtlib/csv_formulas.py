"""Cells of CSV files that no spreadsheet takes for a formula."""

from __future__ import annotations

import re
import unicodedata
from typing import Any


def escape_csv_formula(cell: Any) -> Any:
    """A cell of a CSV file, changed so that no spreadsheet takes it for a formula, not even one in
    full-width letters or after a line end or an invisible mark.

    >>> [escape_csv_formula(cell) for cell in ("=1+1", "plain", "\\n＝1+1", 7)]
    ["'=1+1", 'plain', "'\\n＝1+1", 7]
    """
    compared = unicodedata.normalize("NFKC", cell) if isinstance(cell, str) else ""
    return f"'{cell}" if re.match(r"\W*?[=+@\t\r-]", compared) else cell
