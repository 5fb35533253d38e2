"""Which causal models of `transformers` train here, and how exactly: the page of architectures.

    python benchmarks/architectures.py [NAME ...] [--json FILE] [--page FILE]

Each architecture is built tiny, with random weights, in float64. It is tried as a training tries it
(:func:`crtlib.training.probe.refuse_mixing`). If it is let through, four texts of different lengths
are clipped at the median of their norms, and the sum is compared with brute force: the gradient of
the model's own logits on each text alone, by autograd, clipped by hand. So with all weights, and
with LoRA of rank 2 on all linear layers.

Each one is a process of its own, with limits of time and memory; what would have more than
``MAX_PARAMETERS`` is not built. Four CPU minutes for all.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from crtlib.models import pretrained
from crtlib.training import clipping, probe
from crtlib.training.gradient_entries import trainable_parameters

ARCHITECTURES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
MAX_PARAMETERS = 4_000_000
MAX_CPU_SECONDS, MAX_ADDED_BYTES = 20, 4 << 30
CONTEXT = 64
PROBE_TOKENS = 24
"""Of the longest text that is tried; longer ones take as long again."""
TEXT_TOKENS = (5, 12, 9, 7)
VOCABULARY = 97
ONE_PASS, SEVERAL_PASSES = "one pass", "one text after the other"

WIDTHS = {
    "vocab_size": VOCABULARY, "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size": 32, "n_embd": 32, "d_model": 32, "embedding_size": 32, "embed_dim": 32,
    "emb_dim": 32, "word_embed_proj_dim": 32, "attention_hidden_size": 32, "lru_width": 32,
    "conv_dim": 32, "block_dim": 32, "axial_norm_dim": 32, "decoder_hidden_size": 32,
    "intermediate_size": 48, "n_inner": 48, "ffn_dim": 48, "d_ff": 48, "ffn_hidden_size": 48,
    "decoder_ffn_dim": 48, "encoder_ffn_dim": 48, "dff": 48, "dim_ff": 48, "d_inner": 48,
    "feed_forward_size": 48, "block_ff_dim": 48, "intermediate_size_mlp": 48,
    "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24,
    "expert_ffn_hidden_size": 24, "shared_intermediate_size": 24, "hidden_size_per_layer_input": 8,
}  # fmt: skip
HEADS = {
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_attention_heads": 4, "num_decoder_attention_heads": 4,
    "num_encoder_attention_heads": 4, "num_key_value_heads": 2, "n_head_kv": 2, "num_kv_heads": 2,
    "head_dim": 8, "kv_channels": 8, "d_kv": 8, "dim_head": 8, "rotary_dim": 8, "d_head": 8,
    "query_pre_attn_scalar": 8, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "index_n_heads": 2, "index_head_dim": 8,
    "index_topk": 128, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "mamba_n_heads": 8, "mamba_d_head": 8,
    "n_mamba_heads": 2,
}  # fmt: skip
DEPTHS = {
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "decoder_layers": 2,
    "encoder_layers": 1, "num_decoder_layers": 2, "num_encoder_layers": 1,
    "num_kv_shared_layers": 0, "num_nextn_predict_layers": 0, "mtp_num_hidden_layers": 0,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "moe_topk": 2, "moe_k": 2, "n_group": 1, "topk_group": 1,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "laurel_rank": 4,
}  # fmt: skip
STATES = {
    "state_size": 8, "ssm_state_size": 8, "mamba_d_state": 8, "d_state": 8, "time_step_rank": 4,
    "mamba_dt_rank": 4, "mamba_n_groups": 1, "linear_conv_kernel_dim": 4, "conv_L_cache": 3,
    "expand": 2, "chunk_size": 8, "mamba_chunk_size": 8,
}  # fmt: skip
LENGTHS = {
    "max_position_embeddings": CONTEXT, "n_positions": CONTEXT, "n_ctx": CONTEXT,
    "max_seq_len": CONTEXT, "max_target_positions": CONTEXT, "max_source_positions": CONTEXT,
    "sliding_window": 4, "attention_window": 4, "window_size": 4, "attention_window_size": 4,
}  # fmt: skip
TOKENS = {"pad_token_id": 0, "pad_token": 0, "bos_token_id": 1, "eos_token_id": 2,
          "decoder_start_token_id": 1, "is_decoder": True}  # fmt: skip
SIZES = WIDTHS | HEADS | DEPTHS | STATES | LENGTHS | TOKENS
"""Sizes by their names in all configurations; each takes those that it knows."""
SIZES_OF = {
    "apertus": {"hidden_act": "xielu"},
    "bamba": {"attn_layer_indices": [1]},
    "codegen": {"rotary_dim": 4},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gemma3n_text": {"altup_num_inputs": 2, "activation_sparsity_pattern": [0.0, 0.0],
                     "intermediate_size": [48, 48]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 4},
    "granite": {"logits_scaling": 8.0},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
              "expert_layer_offset": 1, "use_mamba_kernels": False},
    "mamba2": {"num_heads": 8, "n_groups": 1},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "attention_window_size": 8},
}  # fmt: skip
"""What an architecture needs besides."""


# --------------------------------------------------------------------------- building
def tiny_settings(kind: Any, more: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a tiny model of this configuration class, without dropout."""
    usual = kind()
    known = set(usual.to_dict()) | set(usual.attribute_map)
    given = {name: size for name, size in SIZES.items() if name in known}
    for name in known:
        if "drop" in name and isinstance(getattr(usual, name, None), float):
            given[name] = 0.0
    if "kv_lora_rank" in known:  # all heads read one latent
        given["num_key_value_heads"] = given["num_attention_heads"]
    layer_types = usual.attribute_map.get("layer_types", "layer_types")
    computed = isinstance(getattr(kind, layer_types, None), property)
    if getattr(usual, layer_types, None) and not computed:
        given["layer_types"] = (list(dict.fromkeys(usual.layer_types)) * 2)[:2]
    for name in usual.sub_configs:
        if (part := getattr(usual, name, None)) is not None:
            given[name] = tiny_settings(type(part), {})
    return given | dict(more)


def build(name: str) -> nn.Module:
    """A random model in float64, in training, with no vector of ones or zeros."""
    kind = transformers.CONFIG_MAPPING[name]
    config = kind(**tiny_settings(kind, SIZES_OF.get(name, {})))
    config._attn_implementation = config._experts_implementation = "eager"
    if (n := pretrained.count_config_parameters(config)) > MAX_PARAMETERS:
        raise ValueError(f"{n:,} parameters")
    torch.manual_seed(0)
    model: nn.Module = transformers.AutoModelForCausalLM.from_config(config).double().train()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(0.05 * torch.randn_like(p))
    model(input_ids=torch.arange(3, 9)[None], use_cache=False)
    return model


def with_adapters(model: nn.Module) -> nn.Module:
    """The model with adapters that change what it says."""
    adapted = pretrained.with_lora(model, 2, seed=1).double()
    torch.manual_seed(1)
    with torch.no_grad():
        for name, p in adapted.named_parameters():
            if "lora_B" in name:
                p.add_(0.1 * torch.randn_like(p))
    return adapted


# --------------------------------------------------------------------------- comparing
def texts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, VOCABULARY, (n,), generator=generator) for n in TEXT_TOKENS]


def gradient_by_autograd(model: nn.Module, text: Tensor) -> list[Tensor]:
    """Of the mean loss of a text that is read alone."""
    logits = model(input_ids=text[None], use_cache=False).logits[0]
    learned = list(trainable_parameters(model).values())
    loss = F.cross_entropy(logits[:-1], text[1:])
    return [*torch.autograd.grad(loss, learned, allow_unused=True, materialize_grads=True)]


def distance_from_brute_force(model: nn.Module) -> tuple[str, float]:
    """In how many backward passes the clipped sum is made, and how far it is from that of one text
    at a time, in clip norms."""
    gradients = [gradient_by_autograd(model, text) for text in texts()]
    norms = torch.stack([torch.stack([g.square().sum() for g in one]).sum().sqrt()
                         for one in gradients])  # fmt: skip
    clip_norm = float(norms.median())
    factors = (clip_norm / norms).clamp(max=1)
    expected = [sum(f * g for f, g in zip(factors, of_texts, strict=True))
                for of_texts in zip(*gradients, strict=True)]  # fmt: skip
    tokens, lengths = probe.pad_texts(texts())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        clipping.add_clipped_gradients(model, tokens, lengths, clip_norm=clip_norm)
    slow = any("one example at a time" in str(w.message) for w in said)
    got = probe.gradients_or_zeros(model)
    distance = probe.distance_in_clip_norms(got, expected, clip_norm)
    return SEVERAL_PASSES if slow else ONE_PASS, distance


def try_model(model: nn.Module) -> dict[str, Any]:
    """What a training would say of the model, and how exact it would be."""
    try:
        probe.refuse_mixing(model, max_text_tokens=PROBE_TOKENS)
        passes, distance = distance_from_brute_force(model)
    except ValueError as error:
        return {"refused": str(error)}
    return {"passes": passes, "distance": distance}


def rows_of_architecture(name: str) -> Iterator[dict[str, Any]]:
    """What is known of an architecture, more and more, so that whatever ends this process is told:
    at last ``unbuilt``, or ``whole`` and ``lora`` (:func:`try_model`)."""
    warnings.simplefilter("ignore")
    row: dict[str, Any] = {"name": name}
    yield row | {"unbuilt": "takes more memory than is allowed"}
    try:
        model = build(name)
    except Exception as error:
        yield row | {"unbuilt": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        return
    row["class"] = type(model).__name__
    yield row | {"ended": "while it was tried"}
    row["whole"] = try_model(model)
    try:
        yield row | {"lora": try_model(with_adapters(model))}
    except ValueError as error:
        yield row | {"lora": {"refused": str(error)}}


def row_of_fork(name: str) -> dict[str, Any]:
    """The row, made in a process of its own with limits of time and memory."""
    with tempfile.TemporaryFile("w+") as told:
        if not (child := os.fork()):
            held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, 2 * (held + MAX_ADDED_BYTES,))
            resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, 2 * MAX_CPU_SECONDS))
            try:
                for row in rows_of_architecture(name):
                    print(json.dumps(row), file=told, flush=True)
            except BaseException as error:
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == -signal.SIGXCPU:
            return {"name": name, "unbuilt": f"takes more than {MAX_CPU_SECONDS} CPU seconds"}
        told.seek(0)
        return json.loads(told.readlines()[-1])


# --------------------------------------------------------------------------- the page
TEMPLATE = Path(__file__).resolve().parents[1] / "book" / "templates" / "architectures.md.j2"
CELLS = {ONE_PASS: "one pass", SEVERAL_PASSES: "one by one"}


def cell(tried: Mapping[str, Any]) -> str:
    """How a table calls what :func:`try_model` found.

    >>> cell({"passes": ONE_PASS, "distance": 0.0}), cell({"refused": "model: ..."})
    ('one pass', 'refused')
    """
    return CELLS[tried["passes"]] if "passes" in tried else "refused"


def refusal_of_any(line: str, kind: str) -> str:
    """A refusal as it is of any class of models, of any weights, and with LoRA.

    >>> line = "model: a Bert draws in layer 'base_model.model.h.0', by 1.3e-02 clip norms"
    >>> refusal_of_any(line, "Bert")
    "model: a ... draws in layer 'h.0', by ... clip norms"
    """
    line = line.replace(kind, "...").replace("base_model.model.", "")
    return re.sub(r"by [\d.e+-]+ (clip norms|of its size)", r"by ... \1", line)


def page_of_rows(rows: list[dict[str, Any]]) -> str:
    """The page of architectures in Markdown."""
    built = [row for row in rows if "whole" in row]
    tried = {
        kind: [row[kind] for row in built if "passes" in row[kind]] for kind in ("whole", "lora")
    }
    said: dict[str, dict[str, None]] = {}
    for row in built:
        for kind in ("whole", "lora"):
            if line := row[kind].get("refused", ""):
                said.setdefault(refusal_of_any(line, row["class"]), {})[row["name"]] = None
    table = [
        f"| `{row['name']}` | `{row['class']}` | {cell(row['whole'])} | {cell(row['lora'])} |"
        for row in built
    ]
    farthest = max(t["distance"] for of in tried.values() for t in of)
    mantissa, exponent = f"{farthest:.0e}".split("e")
    template = jinja2.Template(TEMPLATE.read_text(encoding="utf-8"), keep_trailing_newline=True)
    return template.render(
        names=len(rows), version=transformers.__version__, built=len(built),
        trained=len(tried["whole"]), adapted=len(tried["lora"]),
        distance=rf"${mantissa} \cdot 10^{{{int(exponent)}}}$",
        table="\n".join(table),
        refusals="\n".join(f"- {', '.join(names)}: `{line}`" for line, names in said.items()),
        unbuilt=", ".join(row["name"] for row in rows if "whole" not in row),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="architectures; all by default")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--page", type=Path, help="write the page of these rows here")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    list(rows_of_architecture("llama"))  # so that no fork imports what all of them need
    rows = []
    for name in options.names or ARCHITECTURES:
        rows.append(row_of_fork(name))
        print(json.dumps(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if options.page:
        options.page.write_text(page_of_rows(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
