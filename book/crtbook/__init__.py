"""The companion: studies of the papers, sweeps and their store, recorded tables, claims, figures.

>>> from crtbook import tables
>>> "tuning" in tables.list_table_names()
True
"""

from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def load_data_file(name: str) -> Any:
    """Load a data file of this package, such as ``studies`` or ``claims/terms``."""
    return read_yaml((FOLDER / f"{name}.yml").read_text("utf-8"))


def read_yaml(text: str) -> Any:
    """Parse YAML, with the parser in C where there is one: it takes a seventh of the time."""
    import yaml  # a command that only prints its help needs none

    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
