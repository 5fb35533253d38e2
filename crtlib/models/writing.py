"""Text of a model, token by token: of any model of this library, recurrent ones too.

>>> import tempfile
>>> from crtlib.models import folder as model_folder
>>> from crtlib.models.build import build
>>> from crtlib.models.spec import ModelSpec
>>> from crtlib.text.tokenizer import train_bpe
>>> bpe = train_bpe(["hello"], vocab_size=270)
>>> spec = ModelSpec("lstm", bpe.vocab_size, embedding=4, hidden=4)
>>> folder = tempfile.mkdtemp()
>>> _ = model_folder.save(build(spec, 0), bpe, spec, folder)
>>> len(generate(folder, "hello", max_tokens=3, n=2, seed=0))
2
"""

from __future__ import annotations

import os

import torch

from crtlib.checks import check
from crtlib.files import Named
from crtlib.models import folder as model_folder
from crtlib.models import scoring
from crtlib.text.tokenizer import Bpe


def generate(
    folder: Named,
    prompt: str,
    *,
    max_tokens: int = 200,
    temperature: float = 1.0,
    top_p: float = 1.0,
    n: int = 1,
    seed: int | None = None,
) -> list[str]:
    """``n`` continuations of ``prompt`` by the model of a folder, without the prompt.

    Each ends where the model says so, or after ``max_tokens``. ``temperature`` 0 takes the
    likeliest token; ``top_p`` draws from the likeliest ones that have this share of probability
    together. ``seed=None``: from the operating system.
    """
    check("max_tokens", max_tokens, max_tokens >= 1, "at least 1")
    check("temperature", temperature, 0 <= temperature < float("inf"), "finite and at least 0")
    check("top_p", top_p, 0 < top_p <= 1, "in (0, 1]")
    check("n", n, n >= 1, "at least 1")
    if prompt != prompt.encode("utf-8", "ignore").decode():
        raise ValueError("prompt: holds bytes that are not UTF-8")
    model, tokenizer = model_folder.load(os.fspath(folder))
    if isinstance(tokenizer, Bpe):
        start, ends = tokenizer.encode_prefix(prompt), {tokenizer.eos}
    else:
        start = tokenizer(prompt).input_ids
        ends = {tokenizer.eos_token_id} - {None}
    if not start:
        raise ValueError("prompt: is empty, and the model has no token that begins a text")
    generator = torch.Generator()
    generator.seed() if seed is None else generator.manual_seed(seed)
    state, logprobs = scoring.start(model.eval(), start)
    rows = torch.zeros(n, dtype=torch.long)
    state, logprobs = state.select(rows), logprobs[rows]
    texts: list[list[int]] = [[] for _ in range(n)]
    limit, over = scoring.context(model), [False] * n
    for _ in range(max_tokens):
        if temperature == 0:
            drawn = logprobs.argmax(1)
        else:
            chances, order = torch.softmax(logprobs / temperature, 1).sort(1, descending=True)
            chances = chances.masked_fill(chances.cumsum(1) - chances >= top_p, 0)
            drawn = order.gather(1, torch.multinomial(chances, 1, generator=generator))[:, 0]
        for k, token in enumerate(drawn.tolist()):
            over[k] |= token in ends
            if not over[k]:
                texts[k].append(token)
        if all(over) or (limit is not None and state.length >= limit):
            break
        state, logprobs = scoring.step(model, state, drawn)
    return [str(tokenizer.decode(row)) for row in texts]
