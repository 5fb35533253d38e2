"""The companion: studies of the papers, their sweep and store, recorded tables, claims, figures.

>>> from crtbook import tables
>>> "tuning" in tables.list_table_names()
True
"""

from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def load_data_file(name: str) -> Any:
    """What a file of data of this package holds, such as ``studies`` or ``claims/terms``."""
    return read_yaml((FOLDER / f"{name}.yml").read_text("utf-8"))


def read_yaml(text: str) -> Any:
    """What a text of YAML says, by the parser in C where there is one: a seventh of the time."""
    import yaml  # no command that only helps reads one

    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
