"""``crtlib tagger``: teach a screening policy."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from crtlib.commands import On, Workers
from crtlib.options import Answer, opt


def tagger(
    corpus: Annotated[Path, opt("Corpus folder or JSONL.", "place", argument="CORPUS")],
    out: Annotated[Path, opt("Folder for the tagger and summary.json.", "place")],
    labels: Annotated[
        Path | None, opt("Folder of crtlib label: one part teaches, the other judges.")
    ] = None,
    unit: Annotated[str, opt("Data point: turn or dialogue.")] = "turn",
    heldout: Annotated[float, opt("Share of users to judge it on, without --labels.")] = 0.3,
    epochs: Annotated[int, opt("Epochs.", ge=1)] = 14,
    seed: Annotated[int, opt("Seed of the split and of training.", ge=0)] = 0,
    workers: Workers = 1,
    executor: On = "processes:",
    force: Annotated[bool, opt("Replace a tagger that exists.", "place")] = False,
) -> Answer:
    """Train a screening policy on labelled text, and say what it misses on other people's.

    Example: crtlib tagger corpus --labels labels --out tagger
    """
    from crtlib.experiments import executors
    from crtlib.screening import teach

    with executors.pool(executor, workers) as pool:
        taught = teach.make(
            corpus,
            out,
            labels=labels,
            unit=unit,
            heldout=heldout,
            epochs=epochs,
            seed=seed,
            force=force,
            executor=pool,
            progress=sys.stderr.isatty(),
        )
    facts = json.loads((out / "summary.json").read_bytes())
    return Answer(facts, [taught.text() if taught else f"{out}: up to date"])
