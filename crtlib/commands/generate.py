"""``crtlib generate``: text of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def generate(
    model: Annotated[Path, typer.Argument(help="Folder of crtlib train, or of transformers.")],
    prompt: Annotated[str, typer.Option(help="Beginning of the text; -: from standard input.")],
    max_tokens: Annotated[int, typer.Option(help="Tokens to write at most.")] = 200,
    temperature: Annotated[float, typer.Option(help="0: always the likeliest token.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Share of probability to draw from.")] = 1.0,
    n: Annotated[int, typer.Option(help="Texts to write.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Default: from the operating system.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write text with a model: it stops by itself, or after --max-tokens.

    Example: crtlib generate model --prompt "USR: hello" --n 3
    """
    import sys

    from crtlib.models import writing

    texts = writing.generate(
        model,
        sys.stdin.read() if prompt == "-" else prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        n=n,
        seed=seed,
    )
    if as_json:
        print(json.dumps({"schema": "crtlib/generate/1", "ok": True, "texts": texts}))
        return
    for text in texts:
        print(text)
