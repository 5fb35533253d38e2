"""The companion: studies of the papers, their sweep and store, recorded tables, claims, figures.

>>> from crtbook import tables
>>> "tuning" in tables.names()
True
"""

from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def entries(name: str) -> Any:
    """What a file of data of this package holds, such as ``studies`` or ``claims/terms``."""
    import yaml  # no command that only helps reads one

    return yaml.safe_load((FOLDER / f"{name}.yml").read_text("utf-8"))
