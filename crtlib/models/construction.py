"""Build a model from its shape.

>>> from crtlib.models.specs import ModelSpec
>>> type(build_model(ModelSpec("lstm", vocab_size=10, embedding=4, hidden=4), 0)).__name__
'RecurrentLM'
"""

from __future__ import annotations

from torch import nn

from crtlib.models.recurrent_lm import RecurrentLM
from crtlib.models.specs import ModelSpec
from crtlib.torch_random import seeded_torch_rng


# --------------------------------------------------------------------------- building
def build_model(spec: ModelSpec, seed: int) -> nn.Module:
    """A fresh model on the CPU, the same for the same ``seed``; global generators stay as they
    are."""
    with seeded_torch_rng(seed):
        return RecurrentLM(spec) if spec.recurrent else _build_transformer(spec)


def _build_transformer(spec: ModelSpec) -> nn.Module:
    import transformers

    tied = spec.tied is not False
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    common_options = {"vocab_size": spec.vocab_size, "tie_word_embeddings": tied, **ids}
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
            **common_options,
        )
        return transformers.GPT2LMHeadModel(config)
    common_options |= {
        "hidden_size": spec.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "intermediate_size": 4 * spec.hidden,
        "max_position_embeddings": spec.context,
    }
    if spec.kind == "bert":
        drop = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return transformers.BertForMaskedLM(transformers.BertConfig(**common_options, **drop))
    config = transformers.Gemma2Config(
        head_dim=spec.hidden // spec.heads,
        query_pre_attn_scalar=spec.hidden // spec.heads,
        num_key_value_heads=max(d for d in (1, 2) if spec.heads % d == 0),
        sliding_window=max(1, spec.context // 2),
        attn_implementation="eager",  # the other kernels have no cap on attention logits
        **common_options,
    )
    return transformers.Gemma2ForCausalLM(config)
