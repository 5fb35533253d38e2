"""``crtlib screen``: deduplicate, redact and split a corpus (Algorithm 1)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def screen(
    corpus: Annotated[Path, typer.Argument(help="Dialogues, one JSON object a line.")],
    out: Annotated[
        Path, typer.Option(help="Folder for public.jsonl, private.jsonl, summary.json.")
    ],
    unit: Annotated[str, typer.Option(help="Data point: turn or dialogue.")],
    policy: Annotated[
        str, typer.Option(help="Redaction policy pi; several, joined by +.")
    ] = "regex:customersim",
    conservative: Annotated[str, typer.Option(help="Conservative policy pi_c.")] = "everything",
    gamma: Annotated[float, typer.Option(help="Share of pi's finds to miss on purpose.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the misses.")] = 0,
    dedup: Annotated[str, typer.Option(help="Scope: all (Algorithm 1), flagged, none.")] = "all",
    dedup_by: Annotated[str, typer.Option(help="Duplicates are: exact, bloom or near.")] = "exact",
    duplicates: Annotated[str, typer.Option(help="Second occurrences: mask or drop.")] = "mask",
) -> None:
    """Deduplicate, redact and split a corpus into public and private points (Algorithm 1).

    Policies: regex:CORPUS, regex:FILE.toml, list:FILE, oracle, everything, cautious, presidio,
    tagger:FOLDER (from crtlib tagger), ner:MODEL and flair:MODEL; tagger, ner and flair also as
    tagger_conservative:FOLDER, which flags all that is not surely plain. The defaults here are the
    cautious ones (everything is private, duplicates become masks, as in Algorithm 1), as the files
    are for any use; crtlib train is about the trade-off, so it uses pi as pi_c too and drops
    duplicates.

    Example: crtlib screen dialogues.jsonl --unit turn --policy regex:customersim --out screened
    """
    from crtlib.screening import screen
    from crtlib.text import corpora

    screened = screen.screen(
        corpora.load(corpus),
        policy=policy,
        conservative=conservative,
        unit=unit,
        gamma=gamma,
        seed=seed,
        dedup=dedup,  # type: ignore[arg-type]  # refused there where it is none of them
        dedup_by=dedup_by,  # type: ignore[arg-type]
        duplicates=duplicates,  # type: ignore[arg-type]
        name=corpus.name,
    )
    screen.write(screened, out)
    print(screened.text())
