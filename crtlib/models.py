"""Language models behind one small interface, so that training and attacks never ask which kind.

:func:`hidden` and :func:`head` are all that training needs; :func:`token_logprobs` is the one
scoring path that every attack reads; :func:`start` and :func:`step` walk a trie of prefixes.

>>> model = build(ModelSpec("lstm", vocab_size=7, embedding=4, hidden=5), seed=0)
>>> [scores.shape for scores in token_logprobs(model, [[1, 2, 3], [4]])]
[(2,), (0,)]
>>> state, logprobs = start(model, [1, 2])
>>> bool(abs(logprobs[0, 3] - token_logprobs(model, [[1, 2, 3]])[0][1]) < 1e-6)
True
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crtlib.recurrent import Gru, Lstm

KINDS = ("lstm", "gru", "gpt2", "gemma2", "bert")


@dataclass(frozen=True)
class ModelSpec:
    """The shape of a model: JSON-safe, so that it can name a run.

    ``embedding`` is read by the recurrent kinds only (``None``: as ``hidden``); ``heads`` and
    ``context`` by transformers only; ``tied=None`` means tied for transformers, untied otherwise.
    """

    kind: str
    vocab_size: int
    embedding: int | None = None
    hidden: int = 200
    layers: int = 1
    heads: int = 4
    context: int = 128
    tied: bool | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r}: must be one of {', '.join(KINDS)}")
        for name in ("vocab_size", "hidden", "layers", "heads", "context"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if not self.recurrent and self.hidden % self.heads:
            raise ValueError(f"heads={self.heads}: must divide hidden={self.hidden}")
        if self.recurrent and self.tied and self.embedding not in (None, self.hidden):
            raise ValueError(f"embedding={self.embedding}: must be {self.hidden}, as it is tied")

    @property
    def recurrent(self) -> bool:
        """Whether it is one of ours (LSTM, GRU) and not a transformer."""
        return self.kind in ("lstm", "gru")


class RecurrentLM(nn.Module):
    """Embedding, recurrent layers, linear head."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        cell = {"lstm": Lstm, "gru": Gru}[spec.kind]
        sizes = [spec.embedding or spec.hidden] + [spec.hidden] * spec.layers
        self.embedding = nn.Embedding(spec.vocab_size, sizes[0])
        self.layers = nn.ModuleList(cell(a, b) for a, b in itertools.pairwise(sizes))
        self.head = nn.Linear(spec.hidden, spec.vocab_size)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.head.weight, -0.1, 0.1)
        nn.init.zeros_(self.head.bias)
        if spec.tied:
            self.head.weight = self.embedding.weight

    def features(self, ids: Tensor) -> Tensor:
        """(batch, time) token ids -> (batch, time, hidden)."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, time) token ids -> (batch, time, vocabulary) logits."""
        return self.head(self.features(ids))


# --------------------------------------------------------------------------- building
def build(spec: ModelSpec, seed: int) -> nn.Module:
    """A fresh model on the CPU, the same for the same ``seed``; global randomness is untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return RecurrentLM(spec) if spec.recurrent else _transformer(spec)


def _transformer(spec: ModelSpec) -> nn.Module:
    import transformers

    tied = spec.tied is not False
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    common = {"vocab_size": spec.vocab_size, "tie_word_embeddings": tied, **ids}
    if spec.kind == "gpt2":
        config = transformers.GPT2Config(
            n_embd=spec.hidden,
            n_layer=spec.layers,
            n_head=spec.heads,
            n_positions=spec.context,
            activation_function="gelu_pytorch_tanh",  # the same function as gelu_new, in one piece
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            **common,
        )
        return transformers.GPT2LMHeadModel(config)
    common |= {
        "hidden_size": spec.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "intermediate_size": 4 * spec.hidden,
        "max_position_embeddings": spec.context,
    }
    if spec.kind == "bert":
        drop = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return transformers.BertForMaskedLM(transformers.BertConfig(**common, **drop))
    config = transformers.Gemma2Config(
        head_dim=spec.hidden // spec.heads,
        query_pre_attn_scalar=spec.hidden // spec.heads,
        num_key_value_heads=max(d for d in (1, 2) if spec.heads % d == 0),
        sliding_window=max(1, spec.context // 2),
        attn_implementation="eager",  # the other kernels have no cap on attention logits
        **common,
    )
    return transformers.Gemma2ForCausalLM(config)


def load(name_or_folder: str | Path) -> nn.Module:
    """A causal model of the Hugging Face hub, or of a local folder; safetensors files only.

    Raises ``ValueError`` if its logits are not a linear map of its last hidden state (with an
    optional soft cap): the fused loss and the scores would not be those of the model.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        str(name_or_folder), use_safetensors=True, trust_remote_code=False
    ).eval()
    probe = torch.arange(4)[None]
    with torch.no_grad():
        ours, theirs = head(model).logits(hidden(model, probe)), model(input_ids=probe).logits
    if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3):
        raise ValueError(f"model={str(name_or_folder)!r}: its head is not a plain linear map")
    return model


def pretrained(name_or_folder: str | Path, *, vocab_size: int) -> tuple[nn.Module, ModelSpec]:
    """A GPT-2 of the hub or of a local folder, ready to train: no dropout, and room for the tokens
    that were added to its vocabulary, whose embeddings start at the mean of the others.

    The spec builds the same shape again (:func:`build`). Raises ``ValueError`` for another
    architecture, or a vocabulary smaller than the model's.
    """
    found = load(name_or_folder)
    config = found.config
    if config.model_type != "gpt2":
        raise ValueError(f"init={str(name_or_folder)!r}: is a {config.model_type}, must be a gpt2")
    rows = found.get_input_embeddings().weight.detach()
    if vocab_size < len(rows):
        raise ValueError(f"vocab_size={vocab_size}: must be at least the model's {len(rows)}")
    grown = torch.cat([rows, rows.mean(0).expand(vocab_size - len(rows), -1)])
    spec = ModelSpec(
        kind="gpt2",
        vocab_size=vocab_size,
        hidden=config.n_embd,
        layers=config.n_layer,
        heads=config.n_head,
        context=config.n_positions,
    )
    model = build(spec, 0)
    state = found.state_dict() | {"transformer.wte.weight": grown, "lm_head.weight": grown}
    model.load_state_dict(state)
    return model, spec


def fingerprint(name_or_folder: str | Path) -> str:
    """What tells one starting point from another: the files of a folder, or the hub's name."""
    folder, digest = Path(name_or_folder), hashlib.sha256(str(name_or_folder).encode())
    if folder.is_dir():
        digest = hashlib.sha256()
        for path in sorted(p for p in folder.iterdir() if p.suffix in (".json", ".safetensors")):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


# --------------------------------------------------------------------------- the interface
@dataclass(frozen=True)
class Head:
    """The output layer: ``logits = cap(h @ weight.T + bias)``, ``cap`` a scaled tanh or nothing."""

    weight: nn.Parameter  # (vocabulary, hidden)
    bias: nn.Parameter | None = None
    softcap: float | None = None

    def logits(self, h: Tensor) -> Tensor:
        """(..., hidden) -> (..., vocabulary)."""
        z = F.linear(h, self.weight, self.bias)
        return z if self.softcap is None else (z / self.softcap).tanh() * self.softcap


def head(model: nn.Module) -> Head:
    """The output layer of any model of this library."""
    if isinstance(model, RecurrentLM):
        return Head(model.head.weight, model.head.bias)
    layer = model.get_output_embeddings()
    softcap = getattr(model.config, "final_logit_softcapping", None)
    return Head(layer.weight, getattr(layer, "bias", None), softcap)


def hidden(model: nn.Module, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
    """What the head reads: ids (B, T) -> (B, T, hidden).

    ``lengths`` (B,) hides padding from models that look ahead (BERT); the others need no mask.
    """
    if isinstance(model, RecurrentLM):
        return model.features(ids)
    batch, time = ids.shape
    if time > context(model):
        raise ValueError(f"sequence of {time} tokens: must be at most {context(model)}")
    # One row of positions for each example, or the position table would see a batch of one.
    positions = torch.arange(time, device=ids.device).repeat(batch, 1)
    if is_causal(model):
        base = model.base_model
        return base(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state
    mask = None if lengths is None else (positions < lengths.clamp_min(1)[:, None]).long()
    out = model.base_model(
        input_ids=ids,
        position_ids=positions,
        token_type_ids=torch.zeros_like(ids),
        attention_mask=mask,
    )
    return model.cls.predictions.transform(out.last_hidden_state)


def context(model: nn.Module) -> int | None:
    """The longest sequence that the model reads; ``None``: no limit."""
    return None if isinstance(model, RecurrentLM) else model.config.max_position_embeddings


def is_causal(model: nn.Module) -> bool:
    """Whether it predicts the next token (and not a masked one)."""
    return isinstance(model, RecurrentLM) or model.config.model_type != "bert"


def _check_causal(model: nn.Module) -> None:
    if not is_causal(model):
        raise ValueError("model: must be causal, as a masked model gives no next-token scores")


# --------------------------------------------------------------------------- scores
def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _logprobs(layer: Head, h: Tensor) -> Tensor:
    """Log-softmax in float32 at least."""
    z = layer.logits(h)
    return torch.log_softmax(z, -1, dtype=torch.promote_types(z.dtype, torch.float32))


def token_logprobs(
    model: nn.Module,
    sequences: Sequence[Sequence[int]],
    *,
    batch_tokens: int = 16_384,
    device: torch.device | str | None = None,
) -> list[np.ndarray]:
    """``log p(token_t | tokens before)`` for ``t = 1 .. L - 1`` of each sequence, float64.

    The first half of :func:`token_scores`.
    """
    return token_scores(model, sequences, batch_tokens=batch_tokens, device=device)[0]


def token_scores(
    model: nn.Module,
    sequences: Sequence[Sequence[int]],
    *,
    batch_tokens: int = 16_384,
    device: torch.device | str | None = None,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """``log p(token_t | tokens before)`` (float64) and how many tokens the model holds likelier
    than ``token_t`` (int64; 0: its top-1 guess was right), for ``t = 1 .. L - 1`` of each sequence.

    Read as by :func:`over_tokens`.
    """

    def measure(logprobs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        own = logprobs.gather(1, targets[:, None])
        likelier = (logprobs > own).sum(1)  # a model that diverged (nan) is never right
        likelier = likelier.masked_fill(own[:, 0].isnan(), logprobs.shape[1])
        return own[:, 0].double(), likelier

    logprobs, ranks = over_tokens(
        model, sequences, measure, batch_tokens=batch_tokens, device=device
    )
    return logprobs, ranks


@torch.no_grad()
def over_tokens(
    model: nn.Module,
    sequences: Sequence[Sequence[int]],
    measure: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
    *,
    batch_tokens: int = 16_384,
    device: torch.device | str | None = None,
) -> list[list[np.ndarray]]:
    """What ``measure`` makes of each next-token distribution, for ``t = 1 .. L - 1`` of each
    sequence: it takes log-probabilities (n, V) and the true tokens (n,) and gives tensors (n,).

    Sequences are batched by length (at most ``batch_tokens`` padded tokens at once) and returned
    in their own order, one list for each tensor. One longer than the model's context is read in
    windows that overlap by half, each token scored by the first window that holds it. ``device``:
    move the model there.
    """
    _check_causal(model)
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens={batch_tokens}: must be at least 1")
    if device is not None:
        model.to(device)
    limit = context(model)
    if limit is not None and any(len(s) > limit for s in sequences):
        return _windowed(model, sequences, measure, limit, batch_tokens)
    training, layer = model.training, head(model)
    model.eval()
    nothing = measure(torch.empty(0, len(layer.weight)), torch.empty(0, dtype=torch.long))
    out = [[x.numpy()] * len(sequences) for x in nothing]
    # Rows of logits at once: about 16 million numbers, so memory does not grow with the batch.
    rows = max(1, 2**24 // len(layer.weight))
    order = sorted((i for i, s in enumerate(sequences) if len(s) > 1),
                   key=lambda i: -len(sequences[i]))  # fmt: skip
    while order:
        longest = len(sequences[order[0]])
        count = max(1, batch_tokens // longest)
        here, order = order[:count], order[count:]
        lengths = torch.tensor([len(sequences[i]) for i in here])
        tokens = torch.zeros(len(here), longest, dtype=torch.long)
        for row, i in zip(tokens, here, strict=True):
            row[: len(sequences[i])] = torch.as_tensor(sequences[i])
        real = (torch.arange(1, longest) < lengths[:, None]).to(_device(model))
        tokens = tokens.to(_device(model))
        h, targets = hidden(model, tokens[:, :-1])[real], tokens[:, 1:][real]
        pieces = zip(h.split(rows), targets.split(rows), strict=True)
        parts = zip(*[measure(_logprobs(layer, a), b) for a, b in pieces], strict=True)
        cuts = np.cumsum(lengths.numpy() - 1)[:-1]
        for values, part in zip(out, parts, strict=True):
            for i, x in zip(here, np.split(torch.cat(part).cpu().numpy(), cuts), strict=True):
                values[i] = x
    model.train(training)
    return out


def _windowed(model, sequences, measure, limit: int, batch_tokens: int) -> list[list[np.ndarray]]:
    stride = max(1, limit // 2)
    windows, owners = [], []
    for i, s in enumerate(sequences):
        last = max(0, len(s) - limit)
        for first in [*range(0, last, stride), last]:
            windows.append(s[first : first + limit])
            owners.append((i, first))
    found = over_tokens(model, windows, measure, batch_tokens=batch_tokens)
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
    ids = torch.as_tensor(prefix, dtype=torch.long, device=_device(model))
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
            x, memory, _ = layer.scan(x, state.layers[i] if state else None)
            layers.append(memory)
        h = x[:, -1]
    else:
        from transformers import DynamicCache

        cache = DynamicCache(state.layers) if state else DynamicCache()
        positions = torch.arange(before, before + time, device=ids.device).repeat(batch, 1)
        h = model.base_model(
            input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True
        ).last_hidden_state[:, -1]
        layers = [(layer.keys, layer.values) for layer in cache.layers]
    return State(before + time, tuple(layers)), _logprobs(head(model), h)
