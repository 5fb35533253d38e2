"""``crtlib convert``: a known corpus as JSONL."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def convert(
    name: Annotated[str, typer.Argument(help="multiwoz, schema_guided, ..., or hub:owner/name.")],
    out: Annotated[Path, typer.Option(help="The JSONL file to write; .jsonl.gz packs it.")],
    split: Annotated[str, typer.Option(help="As the corpus names it.")] = "train",
    folder: Annotated[
        Path | None, typer.Option(help="Instead of the corpus' own under $CRTLIB_DATA.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many dialogues.")] = None,
) -> None:
    """Write a known corpus as JSONL, the form that every other command reads."""
    from collections import Counter

    from crtlib.text import jsonl
    from crtlib.text.corpora import load

    corpus = load(name, split, folder=folder, limit=limit)
    jsonl.write_jsonl(corpus, out)
    turns = list(corpus.turns())
    private = sum(bool(turn.secrets) for turn in turns)
    print(f"{out}: {len(corpus)} dialogues, {len(turns)} turns, {private} of them with a secret")
    kinds = Counter(secret.kind for turn in turns for secret in turn.secrets)
    for kind, count in sorted(kinds.items()):
        print(f"{kind:>12} {count}")
    for reason, count in corpus.skipped:
        print(f"left out: {count} ({reason})")
