"""``crtlib convert``: a known corpus as JSONL."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from crtlib.commands import Force
from crtlib.options import Answer, opt


def convert(
    name: Annotated[
        str, opt("Corpus: customersim, multiwoz, schema_guided, wikitext2, ...", argument="NAME")
    ],
    out: Annotated[Path, opt("A file of JSON lines (.jsonl, .jsonl.gz), or a folder.", "place")],
    split: Annotated[str, opt("Split, as the corpus names it.")] = "train",
    folder: Annotated[
        Path | None, opt("Instead of the corpus' own under $CRTLIB_DATA.", "place")
    ] = None,
    limit: Annotated[int | None, opt("At most so many dialogues.")] = None,
    force: Force = False,
) -> Answer:
    """Write a known corpus as JSONL, or as a folder with a card; every other command reads both."""
    from collections import Counter

    from crtlib.text import folders
    from crtlib.text.corpora import known, load, source

    if name not in known() and Path(name).exists():
        raise ValueError(f"NAME: {name} is a text of your own, which every command reads; convert "
                         f"takes {', '.join(known())}")  # fmt: skip
    write = folders.writer(out, inputs=[] if folder is None else [folder], force=force)
    corpus = load(name, split, folder=folder, limit=limit)
    options = {"name": name, "split": split, "limit": limit}
    write(
        corpus.dialogues, command="convert", options=options, split=split,
        simulated=source(name).draw is not None,
    )  # fmt: skip
    turns = list(corpus.turns())
    private = sum(bool(turn.secrets) for turn in turns)
    kinds = Counter(secret.kind for turn in turns for secret in turn.secrets)
    counts = {"dialogues": len(corpus), "turns": len(turns), "turns_with_a_secret": private}
    return Answer(
        {"file": out, **counts, "kinds": kinds, "left_out": dict(corpus.skipped)},
        [
            f"{out}: {len(corpus)} dialogues, {len(turns)} turns, {private} of them with a secret",
            *(f"{kind:>12} {count}" for kind, count in sorted(kinds.items())),
            *(f"left out: {count} ({reason})" for reason, count in corpus.skipped),
        ],
    )
