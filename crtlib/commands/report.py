"""``crtlib report``: what a model completes of its training text, by user."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from crtlib.commands import Workers, pool
from crtlib.options import Answer, opt


def report(
    model: Annotated[
        Path,
        opt("Folder of a model of crtlib train or transformers.", "place", argument="MODEL"),
    ],
    corpus: Annotated[Path, opt("The training dialogues: folder or JSONL.", "place")],
    out: Annotated[Path, opt("Folder for report.html, .json and Parquet.", "place")],
    top_k: Annotated[int, opt("Guesses that an attacker sees; 1: tab attack.")] = 3,
    public: Annotated[Path | None, opt("Folder of a public model.", "place")] = None,
    unit: Annotated[str | None, opt("One text: turn or dialogue. [as trained, or turn]")] = None,
    reveal: Annotated[bool, opt("Write text in clear.")] = False,
    lengths_only: Annotated[bool, opt("Lengths and counts, no users, no labels.")] = False,
    min_length: Annotated[int, opt("Tokens of the shortest run to count.")] = 1,
    threshold: Annotated[float | None, opt("Ratio t of metric 2.")] = None,
    verbatim: Annotated[bool, opt("Drop runs at the end of a text, as printed.")] = False,
    template: Annotated[
        str | None,
        opt(
            "How turns became text: chat, plain, speaker or FILE.j2. [as trained, the "
            "tokenizer's, or what the model reads most easily]"
        ),
    ] = None,
    prefix_scan: Annotated[bool, opt("Read each text after every known beginning.")] = False,
    workers: Workers = 1,
    force: Annotated[
        bool,
        opt("Replace results that exist, or write one of several reports of a model.", "place"),
    ] = False,
) -> Answer:
    """What a model completes of its training text, by user (Inan et al. 2021); text redacted."""
    import sys

    import torch

    from crtlib.reports import leakage

    with pool(workers) as executor:
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
            executor=executor,
        )
    if warning := summary.get("warning"):
        print(f"warning: {warning}", file=sys.stderr)
    shown = {k: "-" if v is None else v for k, v in summary.items() if k != "warning"}
    lines = [f"{name:>40}  {value}" for name, value in shown.items()]
    return Answer({"page": page, **summary}, [*lines, str(page)])
