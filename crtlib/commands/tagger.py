"""``crtlib tagger``: teach a screening policy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def tagger(
    corpus: Annotated[Path, typer.Argument(help="Labelled dialogues, one JSON object a line.")],
    out: Annotated[Path, typer.Option(help="Folder for the tagger and summary.json.")],
    unit: Annotated[str, typer.Option(help="Data point: turn or dialogue.")] = "turn",
    heldout: Annotated[float, typer.Option(help="Share of users to judge it on.")] = 0.3,
    epochs: Annotated[int, typer.Option(help="Epochs.", min=1)] = 14,
    seed: Annotated[int, typer.Option(help="Seed of the split and of training.", min=0)] = 0,
) -> None:
    """Train a screening policy on labelled dialogues, and say what it misses on held-out ones.

    Example: crtlib tagger labelled.jsonl --out tagger
    """
    from crtlib.screening import teach
    from crtlib.text import corpora

    taught = teach.teach(
        corpora.load(corpus),
        unit=unit,
        heldout=heldout,
        epochs=epochs,
        seed=seed,
        name=corpus.name,
        progress=sys.stderr.isatty(),
    )
    teach.write(taught, out)
    print(taught.text())
