"""Audits and reports of a model are entered, so that its certificate states how many were made,
and shows the audit or report that found most.

If somebody could repeat an audit until it gave a small number, and show only that one, it would
show nothing. The coins of an audit follow from its training
(:func:`crtlib.attacks.run_audit.audit_training`). Whatever can still be chosen, such as its
references or the options of a report, makes another attack, which counts.

>>> import tempfile
>>> ledger = Path(tempfile.mkdtemp()) / "registry.sqlite"
>>> enter_attack([ledger], "audit", "m" * 64, "first", None)  # it has begun
>>> enter_attack([ledger], "audit", "m" * 64, "first", 0.5)
>>> enter_attack([ledger], "audit", "m" * 64, "second", 0.25)
>>> list_attacks([ledger], "audit", "m" * 64)
{'first': 0.5, 'second': 0.25}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from confide import text_registry
from confide.odometer_lines import LEDGER_FILE, has_lines, open_connection, open_transaction

AttackKind = Literal["audit", "report"]
ENTER_ATTACK_SQL = """
INSERT INTO attacks VALUES (?, ?, ?, ?)
ON CONFLICT (kind, model, name) DO UPDATE SET found = coalesce(excluded.found, found)
"""
HAS_ATTACKS_SQL = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'attacks'"
ATTACKS_SQL = "SELECT name, found FROM attacks WHERE kind = ? AND model = ? ORDER BY rowid"


def find_ledgers(
    record: Mapping[str, Any] | None, odometer_folder: Path | None = None
) -> list[Path]:
    """The ledgers in which attacks on a training's model are entered: this user's registry, and the
    odometer of its text, if it exists: ``odometer_folder``, or else the one that its ``record``
    names."""
    folder = odometer_folder or (record or {}).get("odometer", {}).get("folder")
    odometers = [] if folder is None else [Path(folder) / LEDGER_FILE]
    return [
        text_registry.Registry(text_registry.registry_folder()).path,
        *(path for path in odometers if path.is_file()),
    ]


def name_report(options: Mapping[str, Any], text: str) -> str:
    """The name of a report with these options on the text with this hash; it begins with the
    hash."""
    return f"{text} {hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()}"


def refuse_damaged_ledgers(ledgers: Sequence[Path]) -> None:
    """Raise, before an attack takes hours, what :func:`enter_attack` would raise at its end."""
    for ledger in ledgers:
        with open_transaction(ledger) as base:
            base.execute(ATTACKS_SQL, ("", "")).fetchall()


def enter_attack(
    ledgers: Sequence[Path], kind: AttackKind, model: str, name: str, found: float | None
) -> None:
    """Enter an attack on the model whose numbers have this hash.

    Args:
        ledgers: The ledgers to enter it in.
        kind: "audit" or "report".
        model: The hash of the numbers in the model, whatever file they are in.
        name: Identifies what was attacked and how; the same name again is not another attack.
        found: What it found; None: nothing yet, as it is only beginning.
    """
    for ledger in ledgers:
        with open_transaction(ledger) as base:
            base.execute(ENTER_ATTACK_SQL, (kind, model, name, found))


def list_attacks(ledgers: Sequence[Path], kind: AttackKind, model: str) -> dict[str, float | None]:
    """All attacks of a kind on the model that any of the ``ledgers`` lists, with what each found;
    None for one that was stopped."""
    found_by_name: dict[str, float | None] = {}
    for ledger in filter(Path.is_file, ledgers):
        with open_connection(ledger) as base:
            if has_lines(base, ledger) and base.execute(HAS_ATTACKS_SQL).fetchone():
                for name, found in base.execute(ATTACKS_SQL, (kind, model)):
                    found_by_name[name] = found if found is not None else found_by_name.get(name)
    return found_by_name
