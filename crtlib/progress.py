"""Progress bars on a terminal; elsewhere, such as in a log, a line every half a minute.

>>> bar_options(False)
{'disable': True}
"""

from __future__ import annotations

import sys
from typing import Any

SECONDS_PER_LINE = 30
"""The time between two lines where there is no terminal; work that ends before prints none."""
_LINE = "{desc}: {n_fmt} of {total_fmt} {unit}, {elapsed}, {remaining} left\n"
_LINE_WITHOUT_END = "{desc}: {n_fmt}{unit}, {elapsed}\n"


def bar_options(shown: bool, *, total: int | None = None) -> dict[str, Any]:
    """The options of tqdm for a bar of ``total`` steps: its own defaults on a terminal, complete
    lines elsewhere, and no bar at all unless it is ``shown``."""
    if not shown:
        return {"disable": True}
    if sys.stderr and sys.stderr.isatty():
        return {"total": total}
    seconds = float(SECONDS_PER_LINE)
    return {
        "total": total,
        "delay": seconds,
        "mininterval": seconds,
        "maxinterval": seconds,
        "miniters": 1,
        "bar_format": _LINE if total else _LINE_WITHOUT_END,
    }
