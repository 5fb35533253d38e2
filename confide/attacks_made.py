"""Audits and reports that were made of a model: each is entered, so that a certificate says how
many were made, and which of them it shows.

Whoever may repeat an audit until a small number comes, and show that one alone, shows nothing. The
coins of an audit follow from its training (:func:`crtlib.attacks.run_audit.audit_training`); what
may still be chosen, as its references or the options of a report, makes another attack, and counts.

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
    """Where attacks on the model of a training are entered: the registry of this user, and the
    odometer of its text, as its ``record`` has it, or in another
    ``odometer_folder``, where there is one."""
    folder = odometer_folder or (record or {}).get("odometer", {}).get("folder")
    odometers = [] if folder is None else [Path(folder) / LEDGER_FILE]
    return [
        text_registry.Registry(text_registry.registry_home()).path,
        *(path for path in odometers if path.is_file()),
    ]


def name_report(options: Mapping[str, Any], text: str) -> str:
    """The name of a report with these options on the text with this hash, which it begins with."""
    return f"{text} {hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()}"


def refuse_damaged_ledgers(ledgers: Sequence[Path]) -> None:
    """Raises what :func:`enter_attack` would at the end of an attack, before it takes hours."""
    for ledger in ledgers:
        with open_transaction(ledger) as base:
            base.execute(ATTACKS_SQL, ("", "")).fetchall()


def enter_attack(
    ledgers: Sequence[Path], kind: AttackKind, model: str, name: str, found: float | None
) -> None:
    """Enter an attack on the model whose numbers have this hash.

    Args:
        ledgers: Where it is entered.
        kind: "audit" or "report".
        model: The hash of the numbers in the model, whatever file they are in.
        name: Of what was asked: who asks the same again makes no other attack.
        found: What it showed; None: nothing yet, as it only begins.
    """
    for ledger in ledgers:
        with open_transaction(ledger) as base:
            base.execute(ENTER_ATTACK_SQL, (kind, model, name, found))


def list_attacks(ledgers: Sequence[Path], kind: AttackKind, model: str) -> dict[str, float | None]:
    """All attacks of a kind on the model that one of the ``ledgers`` knows, and what each showed,
    which is None of one that was stopped."""
    every: dict[str, float | None] = {}
    for ledger in filter(Path.is_file, ledgers):
        with open_connection(ledger) as base:
            if has_lines(base, ledger) and base.execute(HAS_ATTACKS_SQL).fetchone():
                for name, found in base.execute(ATTACKS_SQL, (kind, model)):
                    every[name] = found if found is not None else every.get(name)
    return every
