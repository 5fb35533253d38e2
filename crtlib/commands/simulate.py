"""``crtlib simulate``: customer-service dialogues whose secrets are known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from crtlib.commands import Force
from crtlib.options import Answer, opt


def simulate(
    dialogues: Annotated[int, opt("Number of dialogues.")],
    out: Annotated[Path, opt("A file of JSON lines (.jsonl, .jsonl.gz), or a folder.", "place")],
    seed: Annotated[int, opt("Another seed, another split of the same world.")] = 0,
    variety: Annotated[str, opt("Variety: paper (61 public turns) or rich.")] = "paper",
    force: Force = False,
) -> Answer:
    """Simulate customer-service dialogues, with the place and kind of every secret."""
    from tqdm import tqdm

    from crtlib.checks import check
    from crtlib.text import customersim, folders

    check("dialogues", dialogues, 1 <= dialogues <= 10**8, "at least 1 and at most 100,000,000")
    write = folders.writer(out, force=force)
    options: dict[str, Any] = {"dialogues": dialogues, "seed": seed, "variety": variety}
    # Dialogue by dialogue, so that memory does not grow; no bar where nobody watches.
    stream = tqdm(customersim.stream(dialogues, seed, variety), total=dialogues, disable=None)
    write(stream, command="simulate", options=options, simulated=True, policy="regex:customersim")
    line = f"{out}: {dialogues} dialogues, variety {variety}, seed {seed}"
    return Answer({"file": out, **options}, [line])
