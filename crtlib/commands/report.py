"""``crtlib report``: what a model completes of its training text, by user."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from crtlib.commands import Force, On, Workers


def report(
    model: Annotated[
        Path,
        typer.Argument(help="Folder, or URL, of a model of crtlib train or transformers."),
    ],
    corpus: Annotated[Path, typer.Option(help="The training dialogues: folder, JSONL, or URL.")],
    out: Annotated[Path, typer.Option(help="Folder for report.html, .json and Parquet, or a URL.")],
    top_k: Annotated[int, typer.Option(help="Guesses that an attacker sees; 1: tab attack.")] = 3,
    public: Annotated[Path | None, typer.Option(help="Folder of a public model.")] = None,
    unit: Annotated[
        str | None, typer.Option(help="One text: turn or dialogue; default: as trained, or turn.")
    ] = None,
    reveal: Annotated[bool, typer.Option("--reveal", help="Write text in clear.")] = False,
    lengths_only: Annotated[
        bool, typer.Option("--lengths-only", help="Lengths and counts, no users, no labels.")
    ] = False,
    min_length: Annotated[int, typer.Option(help="Tokens of the shortest run to count.")] = 1,
    threshold: Annotated[float | None, typer.Option(help="Ratio t of metric 2.")] = None,
    verbatim: Annotated[
        bool, typer.Option("--verbatim", help="Drop runs at the end of a text, as printed.")
    ] = False,
    template: Annotated[
        str | None,
        typer.Option(
            help="How turns became text: chat, plain, speaker or FILE.j2; default: as "
            "trained, the tokenizer's, or what the model reads most easily."
        ),
    ] = None,
    prefix_scan: Annotated[
        bool, typer.Option("--prefix-scan", help="Read each text after every known beginning.")
    ] = False,
    workers: Workers = 1,
    executor: On = "processes:",
    force: Force = False,
) -> dict[str, Any]:
    """What a model completes of its training text, by user (Inan et al. 2021); text redacted."""
    import sys

    import torch

    from crtlib.experiments import executors
    from crtlib.reports import leakage

    with executors.pool(executor, workers) as pool:
        page, summary = leakage.make(
            model,
            corpus,
            out,
            top_k=top_k,
            public=public,
            unit=unit,
            reveal=reveal,
            lengths_only=lengths_only,
            min_length=min_length,
            threshold=threshold,
            verbatim=verbatim,
            template=template,
            prefix_scan=prefix_scan,
            device="cuda" if torch.cuda.is_available() else "cpu",
            force=force,
            executor=pool,
        )
    if warning := summary.get("warning"):
        print(f"warning: {warning}", file=sys.stderr)
    for name, value in summary.items():
        if name == "warning":
            continue
        print(f"{name:>40}  {'-' if value is None else value}")
    print(page)
    return {"page": page, **summary}
