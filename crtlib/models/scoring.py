"""What a model says of text, token by token, and the text that it writes.

Log-probabilities of tokens, and a model that is asked step by step.

>>> from crtlib.models.networks import build
>>> from crtlib.models.networks import ModelSpec
>>> model = build(ModelSpec("lstm", vocab_size=10, embedding=4, hidden=4), 0)
>>> [x.shape for x in token_logprobs(model, [[1, 2, 3]])]
[(2,)]

Text of a model, token by token: of any model of this library, recurrent ones too.

>>> import tempfile
>>> from crtlib.models import folder as model_folder
>>> from crtlib.models.networks import build
>>> from crtlib.models.networks import ModelSpec
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from crtlib.checks import check
from crtlib.files import Named
from crtlib.models import folder as model_folder
from crtlib.models.networks import (
    Head,
    RecurrentLM,
    context,
    core,
    device_of,
    head,
    hidden,
    is_causal,
)
from crtlib.text.tokenizer import Bpe

AT_ONCE = 16_384
"""Padded tokens that are read together, at most."""


def _logprobs(layer: Head, h: Tensor) -> Tensor:
    """Log-softmax in float32 at least."""
    z = layer.logits(h)
    return torch.log_softmax(z, -1, dtype=torch.promote_types(z.dtype, torch.float32))


def token_logprobs(model: nn.Module, sequences: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """``log p(token_t | tokens before)`` for ``t = 1 .. L - 1`` of each sequence, float64.

    The first half of :func:`token_scores`.
    """
    return token_scores(model, sequences)[0]


def token_scores(
    model: nn.Module,
    sequences: Sequence[Sequence[int]],
    *,
    device: torch.device | str | None = None,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """``log p(token_t | tokens before)`` (float64) and how many tokens the model holds likelier
    than ``token_t`` (int64; 0: its top-1 guess was right), for ``t = 1 .. L - 1`` of each sequence.

    Read as by :func:`over_tokens`. ``device``: move the model there.
    """
    if device is not None:
        model.to(device)

    def measure(logprobs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        own = logprobs.gather(1, targets[:, None])
        likelier = (logprobs > own).sum(1)  # a model that diverged (nan) is never right
        likelier = likelier.masked_fill(own[:, 0].isnan(), logprobs.shape[1])
        return own[:, 0].double(), likelier

    logprobs, ranks = over_tokens(model, sequences, measure)
    return logprobs, ranks


@torch.no_grad()
def over_tokens(
    model: nn.Module,
    sequences: Sequence[Sequence[int]],
    measure: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
) -> list[list[np.ndarray]]:
    """What ``measure`` makes of each next-token distribution, for ``t = 1 .. L - 1`` of each
    sequence: it takes log-probabilities (n, V) and the true tokens (n,) and gives tensors (n,).

    Sequences are read as :func:`batches` puts them together and returned in their own order, one
    list for each tensor. One longer than the model's context is read in windows that overlap by
    half, each token scored by the first window that holds it.
    """
    _check_causal(model)
    limit = context(model)
    if limit is not None and any(len(s) > limit for s in sequences):
        return _windowed(model, sequences, measure, limit)
    training, layer, device = model.training, head(model), device_of(model)
    model.eval()
    nothing = measure(torch.empty(0, len(layer.weight)), torch.empty(0, dtype=torch.long))
    out = [[x.numpy()] * len(sequences) for x in nothing]
    # Rows of logits at once: about 16 million numbers, so memory does not grow with the batch.
    rows = max(1, 2**24 // len(layer.weight))
    for here in batches(sequences):
        longest = len(sequences[here[0]])
        lengths = torch.tensor([len(sequences[i]) for i in here])
        padded = np.zeros((len(here), longest), dtype=np.int64)
        for row, i in zip(padded, here, strict=True):
            row[: len(sequences[i])] = sequences[i]
        real = (torch.arange(1, longest) < lengths[:, None]).to(device)
        tokens = torch.from_numpy(padded).to(device)
        h, targets = hidden(model, tokens[:, :-1])[real], tokens[:, 1:][real]
        pieces = zip(h.split(rows), targets.split(rows), strict=True)
        parts = zip(*[measure(_logprobs(layer, a), b) for a, b in pieces], strict=True)
        cuts = np.cumsum(lengths.numpy() - 1)[:-1]
        for values, part in zip(out, parts, strict=True):
            for i, x in zip(here, np.split(torch.cat(part).cpu().numpy(), cuts), strict=True):
                values[i] = x
    model.train(training)
    return out


Scorer = Callable[[Sequence[Sequence[int]]], tuple[list[np.ndarray], list[np.ndarray]]]
"""What scores texts as :func:`token_scores` does, here or elsewhere."""


def _check_causal(model: nn.Module) -> None:
    if not is_causal(model):
        raise ValueError("model: must be causal, as a masked model gives no next-token scores")


def batches(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    """Which sequences are read together, by their places: the longest first, those of one token,
    which predict nothing, nowhere."""
    order = sorted((i for i, s in enumerate(sequences) if len(s) > 1),
                   key=lambda i: -len(sequences[i]))  # fmt: skip
    lots = []
    while order:
        count = max(1, AT_ONCE // len(sequences[order[0]]))
        lots.append(order[:count])
        order = order[count:]
    return lots


def _windowed(model, sequences, measure, limit: int) -> list[list[np.ndarray]]:
    stride = max(1, limit // 2)
    windows, owners = [], []
    for i, s in enumerate(sequences):
        last = max(0, len(s) - limit)
        for first in [*range(0, last, stride), last]:
            windows.append(s[first : first + limit])
            owners.append((i, first))
    found = over_tokens(model, windows, measure)
    out = [[np.empty(max(0, len(s) - 1), v[0].dtype) for s in sequences] for v in found]
    for values, scores in zip(out, found, strict=True):
        # Backwards, so that a token keeps the score of the earliest window that holds it.
        for (i, first), part in reversed(list(zip(owners, scores, strict=True))):
            values[i][first : first + len(part)] = part
    return out


@dataclass(frozen=True)
class State:
    """What a model remembers of ``length`` tokens, for a batch of prefixes.

    ``layers`` holds a tuple of tensors for each layer, all with the batch first: output and cell
    of a recurrent layer, keys and values of an attention layer.
    """

    length: int
    layers: tuple[tuple[Tensor, ...], ...]

    def select(self, rows: Tensor) -> State:
        """The states of these rows; a row may appear many times (to expand a trie)."""
        return State(
            self.length, tuple(tuple(x.index_select(0, rows) for x in xs) for xs in self.layers)
        )


def start(model: nn.Module, prefix: Sequence[int] | Tensor) -> tuple[State, Tensor]:
    """Read one prefix (L,) or a batch of them (B, L): its state, and the log-probabilities (B, V)
    of the next token. The model is read as it is: call ``model.eval()`` if it has dropout."""
    ids = torch.as_tensor(prefix, dtype=torch.long, device=device_of(model))
    return _advance(model, None, ids[None] if ids.ndim == 1 else ids)


def step(model: nn.Module, state: State, ids: Tensor) -> tuple[State, Tensor]:
    """Feed one token (B,) to each prefix: the new state, and log-probabilities (B, V) of the next.

    ``state`` itself stays valid. Works in the precision of the model, float32 or float64.
    """
    return _advance(model, state, ids[:, None])


@torch.no_grad()
def _advance(model: nn.Module, state: State | None, ids: Tensor) -> tuple[State, Tensor]:
    _check_causal(model)
    batch, time = ids.shape
    before = state.length if state else 0
    limit = context(model)
    if time == 0 or (limit is not None and before + time > limit):
        raise ValueError(f"prefix of {before + time} tokens: must have 1 to {limit or 'any'}")
    if isinstance(model, RecurrentLM):
        x, layers = model.embedding(ids), []
        for i, layer in enumerate(model.layers):
            x, memory = layer.run(x, state.layers[i] if state else None)  # type: ignore[operator]
            layers.append(memory)
        h = x[:, -1]
    else:
        from transformers import DynamicCache

        cache = DynamicCache(state.layers) if state else DynamicCache()
        positions = torch.arange(before, before + time, device=ids.device).repeat(batch, 1)
        h = (
            core(model)
            .base_model(
                input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True
            )
            .last_hidden_state[:, -1]
        )
        layers = [(layer.keys, layer.values) for layer in cache.layers]  # type: ignore[union-attr]
    return State(before + time, tuple(layers)), _logprobs(head(model), h)


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
        prefix, ends = tokenizer.encode_prefix(prompt), {tokenizer.eos}
    else:
        prefix = tokenizer(prompt).input_ids
        ends = {tokenizer.eos_token_id} - {None}
    if not prefix:
        raise ValueError("prompt: is empty, and the model has no token that begins a text")
    generator = torch.Generator()
    generator.seed() if seed is None else generator.manual_seed(seed)
    state, logprobs = start(model.eval(), prefix)
    rows = torch.zeros(n, dtype=torch.long)
    state, logprobs = state.select(rows), logprobs[rows]
    texts: list[list[int]] = [[] for _ in range(n)]
    limit, over = context(model), [False] * n
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
        state, logprobs = step(model, state, drawn)
    return [str(tokenizer.decode(row)) for row in texts]
