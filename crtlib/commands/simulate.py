"""``crtlib simulate``: customer-service dialogues whose secrets are known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from crtlib.commands import Force


def simulate(
    dialogues: Annotated[int, typer.Option(help="How many dialogues.")],
    out: Annotated[Path, typer.Option(help="The JSONL file to write; .jsonl.gz packs it.")],
    seed: Annotated[int, typer.Option(help="Another seed, another split of the same world.")] = 0,
    variety: Annotated[str, typer.Option(help="paper (61 public turns) or rich.")] = "paper",
    force: Force = False,
) -> dict[str, Any]:
    """Simulate customer-service dialogues, with the place and kind of every secret."""
    from tqdm import tqdm

    from crtlib import outputs
    from crtlib.checks import check
    from crtlib.text import customersim, jsonl

    check("dialogues", dialogues, 1 <= dialogues <= 10**8, "at least 1 and at most 100,000,000")
    outputs.check_file(out, force=force)
    stream = customersim.stream(dialogues, seed, variety)
    # Dialogue by dialogue, so that memory does not grow; no bar where nobody watches.
    jsonl.write_jsonl(tqdm(stream, total=dialogues, unit="dialogue", disable=None), out)
    print(f"{out}: {dialogues} dialogues, variety {variety}, seed {seed}")
    return {"file": out, "dialogues": dialogues, "variety": variety, "seed": seed}
