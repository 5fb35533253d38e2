"""Every architecture of today: its clipped sums are those of one example at a time.

Tiny random models of ``transformers``, whole and with LoRA adapters of ``peft``. Run this file with
``-s`` to see the table.
"""

import warnings

import pytest
import torch
import transformers
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from crtlib.models import generation, interface, pretrained, scoring
from crtlib.models.construction import build_model
from crtlib.training import clipping, devices, gradient_entries, layer_rules
from tests.training.test_clipping import SMALL, batch_of, clip_at, distance, grads_of, total_norm

NO_IDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
BASE = {
    "vocab_size": 23,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "attention_dropout": 0.0,
    **NO_IDS,
}
GATED = BASE | {"num_key_value_heads": 2, "intermediate_size": 24}  # grouped queries, gated MLP
PLAIN = BASE | {"intermediate_size": 24}
CONFIGS = {
    "llama": lambda **k: transformers.LlamaConfig(**GATED, **k),
    "llama-biases": lambda **k: transformers.LlamaConfig(
        **GATED, attention_bias=True, mlp_bias=True, **k
    ),
    "mistral": lambda **k: transformers.MistralConfig(**GATED, head_dim=4, sliding_window=4, **k),
    "qwen2": lambda **k: transformers.Qwen2Config(**GATED, **k),
    "qwen3": lambda **k: transformers.Qwen3Config(**GATED, head_dim=8, **k),
    "gemma2": lambda **k: transformers.Gemma2Config(
        **GATED, head_dim=8, sliding_window=4, attn_implementation="eager", **k
    ),
    "gemma3": lambda **k: transformers.Gemma3TextConfig(
        **GATED, head_dim=8, sliding_window=4, **k
    ),
    "phi": lambda **k: transformers.PhiConfig(**PLAIN, **k),
    "phi3": lambda **k: transformers.Phi3Config(**GATED, **k),
    "gpt-neox": lambda **k: transformers.GPTNeoXConfig(**PLAIN, **k),
    "bloom": lambda **k: transformers.BloomConfig(
        vocab_size=23, hidden_size=16, n_layer=2, n_head=4, **NO_IDS, **k
    ),
    "gpt2": lambda **k: transformers.GPT2Config(
        vocab_size=23, n_embd=16, n_layer=2, n_head=4, n_positions=32, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, **NO_IDS, **k,
    ),
}  # fmt: skip


def model_of(name, *, tied=True, lora=()):
    """In training mode, and no parameter at zero or one, where mistakes hide."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = CONFIGS[name](tie_word_embeddings=tied)
        model = transformers.AutoModelForCausalLM.from_config(config)
        if lora:
            peft = pytest.importorskip("peft", reason="the package peft is not installed")
            options = {"r": 2, "lora_alpha": 6, "target_modules": list(lora)}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # on how GPT-2 keeps its weights
                model = peft.get_peft_model(model, peft.LoraConfig(**options))
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.3 * torch.randn(p.shape))
    return model.train()


def compare(model, *, low=None):
    """Distances of clipped sum and norms from the loop's, where every example is clipped."""
    batch = batch_of(model)
    norms = clip_at(1.0, batch)("loop")(model).norms
    clip_norm = 0.5 * float(norms[norms > 0].min())
    expected, reference = grads_of(model, clip_at(clip_norm, batch)("loop"))
    with torch.autocast("cpu", dtype=low, enabled=low is not None):
        got, grads = grads_of(model, clip_at(clip_norm, batch)("bookkeeping"))
        for i in (0, 1, 5):
            one = {k: v[i : i + 1] for k, v in batch.items()}
            _, single = grads_of(model, clip_at(clip_norm, one)("bookkeeping"))
            assert total_norm(single) <= clip_norm * (1 + 1e-5)
    return distance(grads, reference), float(
        ((got.norms - expected.norms) / norms.max()).abs().max()
    )


def targets_of(name):
    """All linear layers inside of a model, but not its head."""
    model, head = model_of(name), interface.output_head(model_of(name)).weight.shape
    kinds = (nn.Linear, transformers.pytorch_utils.Conv1D)
    names = {n.rpartition(".")[2] for n, m in model.named_modules() if isinstance(m, kinds)}
    assert head[0] == 23
    return sorted(names - {"lm_head", "embed_out"})


@pytest.mark.parametrize("kind", ["tied", "untied", "lora", "bf16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_clipped_sum_is_that_of_a_loop_by_the_fast_rule(name, kind):
    lora = targets_of(name) if kind == "lora" else ()
    model = model_of(name, tied=kind != "untied", lora=lora)
    same = (
        interface.output_head(model).weight
        is interface.unwrap_model(model).get_input_embeddings().weight
    )
    assert same == (kind != "untied")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the slow path would warn
        error, worst = compare(model, low=torch.bfloat16 if kind == "bf16" else None)
    print(f"\n{name:14} {kind:8} sum {error:.1e}  norms {worst:.1e}", end="")
    assert (error < 0.1 and worst < 0.05) if kind == "bf16" else (error < 1e-5 and worst < 1e-5)
    if kind == "lora":
        learning = [n for n, p in model.named_parameters() if p.requires_grad]
        assert learning and all("lora_" in n for n in learning)
        assert all(p.grad is None for p in model.parameters() if not p.requires_grad)


@pytest.mark.parametrize(("name", "kind"), [
    ("llama", "tied"), ("gemma3", "untied"), ("phi", "tied"), ("llama", "lora"), ("gpt2", "lora"),
])  # fmt: skip
def test_on_a_gpu_layers_of_one_shape_are_clipped_together(name, kind, monkeypatch):
    monkeypatch.setattr(devices, "HOST_DEVICE_TYPES", frozenset())
    monkeypatch.setattr(gradient_entries, "DIRECT_COST_IN_MULTIPLY_ADDS", 10**9)
    stacks, honest = [], gradient_entries.StackedGrad.add
    monkeypatch.setattr(
        gradient_entries.StackedGrad,
        "add",
        lambda stack, f: (stacks.append(stack), honest(stack, f)),
    )
    model = model_of(name, tied=kind == "tied", lora=targets_of(name) if kind == "lora" else ())
    error, worst = compare(model)
    assert error < 1e-5 and worst < 1e-5 and stacks


NORMS = (nn.LayerNorm, LlamaRMSNorm, Gemma2RMSNorm)


@pytest.mark.parametrize("kind", ["whole", "lora", "bf16"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_clipped_sums_are_the_same_when_blocks_are_computed_again(name, kind):
    calls, results = [], []
    for again in (False, True):
        model = model_of(name, lora=targets_of(name) if kind == "lora" else ())
        if again:
            pretrained.with_gradient_checkpointing(model)
        block = next(m for m in model.modules() if isinstance(m, GradientCheckpointingLayer))
        inside = next(m for m in block.modules() if isinstance(m, NORMS))
        inside.register_forward_pre_hook(lambda *_: calls.append(1))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "bf16"):
            done, grads = grads_of(model, clip_at(0.5, batch_of(model))("bookkeeping"))
            plain = grads_of(model, lambda m: clipping.add_unclipped_gradients(m, **batch_of(m)))[1]
        results.append((done.losses, done.norms, *grads.values(), *plain.values()))
    assert len(calls) == 2 + 4, "both backward passes compute the block again"
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


def test_a_recurrent_model_has_no_blocks_to_compute_again():
    with pytest.raises(ValueError, match="gradient_checkpointing: needs a transformer"):
        pretrained.with_gradient_checkpointing(build_model(SMALL["lstm"], 0))


@pytest.mark.parametrize("name", CONFIGS)
def test_hidden_states_and_head_give_the_models_own_logits(name):
    model = model_of(name).eval()
    ids = torch.randint(0, 23, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours = interface.output_head(model).logits(interface.hidden_states(model, ids))
        torch.testing.assert_close(ours, model(input_ids=ids).logits, rtol=1e-4, atol=1e-4)
    limit = None if name == "bloom" else 32
    assert interface.context_length(model) == limit and interface.is_causal(model)


def test_the_length_that_mpt_reads_has_another_name():
    config = transformers.MptConfig(d_model=8, n_heads=2, n_layers=1, vocab_size=23, max_seq_len=16)
    assert interface.context_length(transformers.MptForCausalLM(config)) == 16


@pytest.mark.parametrize("name", ["llama", "bloom", "gemma3"])
def test_a_model_with_adapters_is_scored_token_by_token_as_in_one_piece(name):
    model = model_of(name, lora=targets_of(name)).eval()
    row = torch.randint(0, 23, (9,), generator=torch.Generator().manual_seed(0)).tolist()
    whole = scoring.token_logprobs(model, [row])[0]
    state, logprobs = generation.read_prefix(model, row[:1])
    for t, token in enumerate(row[1:]):
        assert abs(float(logprobs[0, token]) - whole[t]) < 1e-4
        state, logprobs = generation.extend_prefix(model, state, torch.tensor([token]))


def test_an_adapter_on_embeddings_takes_the_slow_path_with_one_warning():
    model = model_of("llama", lora=["embed_tokens", "q_proj"])
    batch = batch_of(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            _, grads = grads_of(model, clip_at(0.01, batch)("bookkeeping"))
    assert len(caught) == 1 and "clipping one example at a time" in str(caught[0].message)
    _, reference = grads_of(model, clip_at(0.01, batch)("loop"))
    assert distance(grads, reference) < 1e-6


def test_an_adapter_on_the_head_is_refused():
    model = model_of("llama", tied=False, lora=["lm_head", "q_proj"])
    with pytest.raises(ValueError, match=r"its output layer is a Linear: must be nn\.Linear"):
        clipping.add_clipped_gradients(model, **batch_of(model_of("llama")), clip_norm=1.0)


class Norm(nn.BatchNorm1d):
    """Over features, which come last here."""

    def forward(self, x):
        return super().forward(x.mT).mT


def test_a_batch_norm_is_refused_by_name():
    """It mixes the examples, and keeps statistics of them that no noise is added to."""
    model = build_model(SMALL["lstm"], 0).train()
    model.layers.append(Norm(8))
    with pytest.raises(ValueError, match=r"layer 'layers\.1' is a Norm, which mixes"):
        clipping.add_clipped_gradients(model, **batch_of(model_of("llama")), clip_norm=1.0)


def test_active_dropout_is_refused_by_name():
    model = build_model(SMALL["lstm"], 0).train()
    model.layers.append(nn.Dropout(0.1))
    batch = batch_of(model)
    with pytest.raises(ValueError, match=r"layer 'layers\.1' applies dropout: must be built with"):
        clipping.add_clipped_gradients(model, **batch, clip_norm=1.0)
    clipping.add_clipped_gradients(model.eval(), **batch, clip_norm=1.0)  # asleep
    config = CONFIGS["llama"]()
    config.attention_dropout = 0.1  # by a function, not by a layer
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    with pytest.raises(ValueError, match=r"layer 'model\.layers\.0\.self_attn' applies dropout"):
        clipping.add_clipped_gradients(model, **batch, clip_norm=1.0)


PROVED = {
    "olmo2": {}, "olmo3": {"sliding_window": 4}, "smollm3": {},
    "glm": {"head_dim": 4}, "glm4": {"head_dim": 4}, "gemma": {"head_dim": 8}, "nemotron": {},
    "exaone4": {"sliding_window": 4}, "seed_oss": {"head_dim": 8}, "arcee": {},
    "helium": {"head_dim": 4}, "cohere": {}, "granite": {}, "olmo": {},
    "stablelm": {}, "starcoder2": {}, "ernie4_5": {},
    "hunyuan_v1_dense": {"head_dim": 8},
}  # fmt: skip
"""Architectures some of whose layers have no rule by name, and what else they are made with."""


def model_by_type(name):
    """A tiny one, with no parameter at zero or one."""
    more = {"layer_types": ["full_attention"] * 2} if name in ("olmo3", "exaone4") else {}
    dropout = {"residual_dropout": 0.0, "embedding_dropout": 0.0, "hidden_dropout": 0.0}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = transformers.AutoConfig.for_model(name, **GATED, **PROVED[name], **more, **dropout)
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1 * torch.randn(p.shape))
    return model.train()


@pytest.mark.parametrize("name", PROVED)
def test_a_rule_that_is_proved_makes_one_pass(name):
    model = model_by_type(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the slow path would warn
        error, worst = compare(model)
    assert error < 1e-5 and worst < 1e-5


def layer_of_transformers(kind, *args):
    """As if ``transformers`` had a layer of this class in one of its models."""
    kind.__module__ = "transformers.models.tried"
    layer = kind(*args)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    return layer


class Exponential(nn.Module):
    """At a weight of one it computes what an RMSNorm does, and has its gradient."""

    def __init__(self, size):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), 1e-6

    def forward(self, x):
        return nn.functional.rms_norm(x, self.weight.shape, eps=self.eps) * (self.weight - 1).exp()


class OtherEpsilon(Exponential):
    def forward(self, x):
        return nn.functional.rms_norm(x, self.weight.shape, self.weight, 0.1)


class Saturated(nn.Linear):
    def forward(self, x):
        return super().forward(x).clamp(-20, 20)


class Scaled(nn.Embedding):
    def forward(self, ids):
        return 3 * super().forward(ids)


class Usual(Exponential):
    def forward(self, x):
        return nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


@pytest.mark.parametrize(
    ("kind", "size"),
    [(Exponential, (8,)), (OtherEpsilon, (8,)), (Saturated, (8, 8)), (Scaled, (9, 8))],
)
def test_a_layer_that_computes_otherwise_has_no_rule(kind, size):
    assert layer_rules.find_layer_rule(layer_of_transformers(kind, *size)) is None


def test_a_rule_is_proved_on_each_layer_and_for_models_of_transformers_alone():
    usual, other = (layer_of_transformers(Usual, 8) for _ in range(2))
    assert layer_rules.find_layer_rule(usual) is layer_rules._rms_norm_entries
    other.register_forward_hook(lambda layer, args, out: 2 * out)
    assert layer_rules.find_layer_rule(other) is None
    assert usual.weight.grad is None and bool((usual.weight == 1).all())
    Usual.__module__ = "somebody.else"
    assert layer_rules.find_layer_rule(Usual(8)) is None
