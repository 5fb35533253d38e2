"""``crtlib audit``: what one training shows at the least, against what was proved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def audit(
    run: Annotated[Path, typer.Argument(help="Folder of crtlib train --canaries N --copies 1.")],
    corpus: Annotated[Path, typer.Option(help="The text that it was trained on.")],
    out: Annotated[Path, typer.Option(help="Folder for audit.json.")],
    guesses: Annotated[
        int | None, typer.Option(help="Canaries to guess on; default: tries five numbers.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of the lower bound, in (0, 1).")] = 0.95,
    seed: Annotated[int | None, typer.Option(help="Of coins and controls; default: drawn.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier audit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Audit one training with many invented secrets, each planted once.

    Beside each planted secret a control is drawn that was not; the attacker names which of the two
    was read. Ends with 4 where more is shown than the proof allows.

    Example: crtlib audit run --corpus dialogues.jsonl --out audit
    """
    from crtlib.attacks import run_audit

    found = run_audit.audit(
        run, corpus, out, guesses=guesses, confidence=confidence, seed=seed, force=force
    )
    if as_json:
        summary = {"schema": "crtlib/audit/1", "ok": found.consistent, **found.to_json()}
        print(json.dumps(summary, allow_nan=False))
    else:
        print(found)
    return 0 if found.consistent else 4
