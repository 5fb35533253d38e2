"""Generate text token by token, with any model of this library, recurrent ones included.

>>> import tempfile
>>> from crtlib.models import model_folder
>>> from crtlib.models.construction import build_model
>>> from crtlib.models.specs import ModelSpec
>>> from crtlib.text.tokenizer import train_bpe
>>> bpe = train_bpe(["hello"], vocab_size=270)
>>> spec = ModelSpec("lstm", bpe.vocab_size, embedding=4, hidden=4)
>>> folder = tempfile.mkdtemp()
>>> _ = model_folder.save_model(build_model(spec, 0), bpe, spec, folder)
>>> len(generate_text(folder, "hello", max_tokens=3, n=2, seed=0))
2
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from crtlib.checks import check_allowed
from crtlib.files import StrPath
from crtlib.models import model_folder
from crtlib.models.interface import context_length, device_of, layers_below_head, output_head
from crtlib.models.recurrent_lm import RecurrentLM
from crtlib.models.scoring import check_causal, head_logprobs
from crtlib.text.tokenizer import BpeTokenizer

MAX_CONTINUATIONS = 10_000
"""The most continuations of one prompt that are drawn at once."""
MIN_TEMPERATURE = 1e-6
"""The least temperature above 0: dividing by a smaller one exceeds what floats can hold."""


@dataclass(frozen=True)
class PrefixState:
    """What a model remembers of the first ``length`` tokens, for a batch of prefixes.

    ``layers`` holds a tuple of tensors for each layer, all with the batch first: output and cell
    for a recurrent layer, keys and values for an attention layer.
    """

    length: int
    layers: tuple[tuple[Tensor, ...], ...]

    def select(self, rows: Tensor) -> PrefixState:
        """The states of these rows; a row may appear many times (to expand a trie)."""
        return PrefixState(
            self.length, tuple(tuple(x.index_select(0, rows) for x in xs) for xs in self.layers)
        )


def read_prefix(model: nn.Module, prefix: Sequence[int] | Tensor) -> tuple[PrefixState, Tensor]:
    """Read one prefix (L,) or a batch of them (B, L); return the state, and the log-probabilities
    (B, V) of the next token. The model is used as it is: call ``model.eval()`` if it has
    dropout."""
    ids = torch.as_tensor(prefix, dtype=torch.long, device=device_of(model))
    return _read_tokens(model, None, ids[None] if ids.ndim == 1 else ids)


def extend_prefix(model: nn.Module, state: PrefixState, ids: Tensor) -> tuple[PrefixState, Tensor]:
    """Feed one token (B,) to each prefix; return the new state, and the log-probabilities (B, V) of
    the next token.

    ``state`` itself stays valid. Works in the precision of the model, float32 or float64.
    """
    return _read_tokens(model, state, ids[:, None])


@torch.no_grad()
def _read_tokens(
    model: nn.Module, state: PrefixState | None, ids: Tensor
) -> tuple[PrefixState, Tensor]:
    check_causal(model)
    batch, time = ids.shape
    tokens_before = state.length if state else 0
    limit = context_length(model)
    if time == 0 or (limit is not None and tokens_before + time > limit):
        total = tokens_before + time
        raise ValueError(f"prefix of {total} tokens: must have 1 to {limit or 'any'}")
    if isinstance(model, RecurrentLM):
        x, layers = model.embedding(ids), []
        for i, layer in enumerate(model.layers):
            x, memory = layer.run(x, state.layers[i] if state else None)  # type: ignore[operator]
            layers.append(memory)
        hidden = x[:, -1]
    else:
        from transformers import DynamicCache

        cache = DynamicCache(state.layers) if state else DynamicCache()
        positions = torch.arange(tokens_before, tokens_before + time, device=ids.device)
        positions = positions.repeat(batch, 1)
        hidden = layers_below_head(model)(
            input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True
        ).last_hidden_state[:, -1]
        layers = [(layer.keys, layer.values) for layer in cache.layers]  # type: ignore[union-attr]
    state = PrefixState(tokens_before + time, tuple(layers))
    return state, head_logprobs(output_head(model), hidden)


def generate_text(
    folder: StrPath,
    prompt: str,
    *,
    max_tokens: int = 200,
    temperature: float = 1.0,
    top_p: float = 1.0,
    n: int = 1,
    seed: int | None = None,
) -> list[str]:
    """``n`` continuations of ``prompt`` by the model in a folder, without the prompt.

    Each ends where the model ends it, or after ``max_tokens``. ``temperature`` 0 takes the
    likeliest token; ``top_p`` draws from the likeliest tokens that together have this share of the
    probability. ``seed=None`` takes a seed from the operating system.

    Raises ``ValueError`` for a value that is not allowed, and for a model whose scores are not
    numbers because its training diverged.
    """
    check_allowed("max_tokens", max_tokens, max_tokens >= 1, "at least 1")
    warm = temperature == 0 or MIN_TEMPERATURE <= temperature < float("inf")
    check_allowed("temperature", temperature, warm, f"0, or finite and at least {MIN_TEMPERATURE}")
    check_allowed("top_p", top_p, 0 < top_p <= 1, "in (0, 1]")
    check_allowed("n", n, 1 <= n <= MAX_CONTINUATIONS, f"1 to {MAX_CONTINUATIONS}")
    if prompt != prompt.encode("utf-8", "ignore").decode():
        raise ValueError("prompt: holds bytes that are not UTF-8")
    model, tokenizer = model_folder.load_model(os.fspath(folder))
    if isinstance(tokenizer, BpeTokenizer):
        prefix, end_tokens = tokenizer.encode_prefix(prompt), {tokenizer.eos}
    else:
        prefix = tokenizer(prompt).input_ids
        end_tokens = {tokenizer.eos_token_id} - {None}
    if not prefix:
        raise ValueError("prompt: is empty, and the model has no token that begins a text")
    generator = torch.Generator()
    generator.seed() if seed is None else generator.manual_seed(seed)
    state, logprobs = read_prefix(model.eval(), prefix)
    if logprobs.isnan().any():
        raise ValueError(f"{folder}: its weights are not finite, or give results that are not")
    rows = torch.zeros(n, dtype=torch.long)
    state, logprobs = state.select(rows), logprobs[rows]
    texts: list[list[int]] = [[] for _ in range(n)]
    limit, has_ended = context_length(model), [False] * n
    for _ in range(max_tokens):
        if temperature == 0:
            tokens = logprobs.argmax(1)
        else:
            chances, order = torch.softmax(logprobs / temperature, 1).sort(1, descending=True)
            chances = chances.masked_fill(chances.cumsum(1) - chances >= top_p, 0)
            tokens = order.gather(1, torch.multinomial(chances, 1, generator=generator))[:, 0]
        for k, token in enumerate(tokens.tolist()):
            has_ended[k] |= token in end_tokens
            if not has_ended[k]:
                texts[k].append(token)
        if all(has_ended) or (limit is not None and state.length >= limit):
            break
        state, logprobs = extend_prefix(model, state, tokens)
    return [str(tokenizer.decode(row)) for row in texts]
