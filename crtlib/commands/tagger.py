"""``crtlib tagger``: teach a screening policy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from crtlib.commands import On, Workers


def tagger(
    corpus: Annotated[Path, typer.Argument(help="Corpus folder or JSONL, or a URL.")],
    out: Annotated[Path, typer.Option(help="Folder for the tagger and summary.json, or a URL.")],
    labels: Annotated[
        Path | None,
        typer.Option(help="Folder of crtlib label: one part teaches, the other judges."),
    ] = None,
    unit: Annotated[str, typer.Option(help="Data point: turn or dialogue.")] = "turn",
    heldout: Annotated[
        float, typer.Option(help="Share of users to judge it on, without --labels.")
    ] = 0.3,
    epochs: Annotated[int, typer.Option(help="Epochs.", min=1)] = 14,
    seed: Annotated[int, typer.Option(help="Seed of the split and of training.", min=0)] = 0,
    workers: Workers = 1,
    executor: On = "processes:",
    force: Annotated[bool, typer.Option("--force", help="Replace a tagger that exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
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
    if as_json:
        print((out / "summary.json").read_text(encoding="utf-8"), end="")
    else:
        print(taught.text() if taught else f"{out}: up to date")
