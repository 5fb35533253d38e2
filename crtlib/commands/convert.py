"""``crtlib convert``: a known corpus as JSONL."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from crtlib.commands import As, Force


def convert(
    name: Annotated[str, typer.Argument(help="multiwoz, schema_guided, ..., or hub:owner/name.")],
    out: Annotated[Path, typer.Option(help="The JSONL file (.jsonl.gz packs it), or the folder.")],
    split: Annotated[str, typer.Option(help="As the corpus names it.")] = "train",
    folder: Annotated[
        Path | None, typer.Option(help="Instead of the corpus' own under $CRTLIB_DATA.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many dialogues.")] = None,
    form: As = "jsonl",
    force: Force = False,
) -> dict[str, Any]:
    """Write a known corpus as JSONL, or as a folder with a card; every other command reads both."""
    from collections import Counter

    from crtlib.text import folder as corpus_folder
    from crtlib.text.corpora import load, source

    inputs = [Path(name)] + ([] if folder is None else [folder])
    inputs = [path for path in inputs if path.exists()]
    corpus_folder.check_as(form, out, inputs=inputs, force=force)
    corpus = load(name, split, folder=folder, limit=limit)
    options = {"name": Path(name).name, "split": split, "limit": limit}
    corpus_folder.save_as(
        form, corpus.dialogues, out, command="convert", options=options, split=split,
        simulated=source(name).draw is not None, force=force,
    )  # fmt: skip
    turns = list(corpus.turns())
    private = sum(bool(turn.secrets) for turn in turns)
    print(f"{out}: {len(corpus)} dialogues, {len(turns)} turns, {private} of them with a secret")
    kinds = Counter(secret.kind for turn in turns for secret in turn.secrets)
    for kind, count in sorted(kinds.items()):
        print(f"{kind:>12} {count}")
    for reason, count in corpus.skipped:
        print(f"left out: {count} ({reason})")
    counts = {"dialogues": len(corpus), "turns": len(turns), "turns_with_a_secret": private}
    return {"file": out, **counts, "kinds": kinds, "left_out": dict(corpus.skipped)}
