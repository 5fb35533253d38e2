"""A row of a source, and what is wrong with it: what the readers yield.

>>> TableRow(3, fault=Fault("no text", "is empty", column="body")).fault.column
'body'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a row is left out: ``reason`` is counted, ``says`` completes "row 3, column body ...".

    Neither quotes text. ``encoding``: another codec may help.
    """

    reason: str
    says: str
    column: str = ""
    encoding: bool = False


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row by its number, as its owner counts: its cells by column, or its fault."""

    number: int
    cells: Mapping[str, Any] = field(default_factory=dict)
    fault: Fault | None = None
