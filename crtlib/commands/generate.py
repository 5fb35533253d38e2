"""``crtlib generate``: text of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from crtlib.options import Answer, opt


def generate(
    model: Annotated[
        Path, opt("Folder of crtlib train, or of transformers.", "place", argument="MODEL")
    ],
    prompt: Annotated[str, opt("Beginning of the text; -: from standard input.")],
    max_tokens: Annotated[int, opt("Tokens to write at most.")] = 200,
    temperature: Annotated[float, opt("Temperature; 0: always the likeliest token.")] = 1.0,
    top_p: Annotated[float, opt("Share of probability to draw from.")] = 1.0,
    n: Annotated[int, opt("Texts to write.")] = 1,
    seed: Annotated[int | None, opt("Seed. [from the operating system]")] = None,
) -> Answer:
    """Write text with a model: it stops by itself, or after --max-tokens.

    Example: crtlib generate model --prompt "USR: hello" --n 3
    """
    import sys

    from crtlib.models import scoring

    texts = scoring.generate(
        model,
        sys.stdin.read() if prompt == "-" else prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        n=n,
        seed=seed,
    )
    return Answer({"texts": texts}, texts)
