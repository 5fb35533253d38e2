"""A model from its shape, or from a folder or a hub.

>>> from crtlib.models.spec import ModelSpec
>>> type(build(ModelSpec("lstm", vocab_size=10, embedding=4, hidden=4), 0)).__name__
'RecurrentLM'
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import nn

from crtlib.models.interface import RecurrentLM, head, hidden
from crtlib.models.spec import ModelSpec


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
