"""A model that lets one text of a batch decide about others is refused before it has read any."""

import contextlib

import pytest
import torch
import transformers
from torch import nn

from crtlib.models import interface, pretrained
from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.training import loop, probe, schedules
from crtlib.training.gradient_entries import clip_factors, trainable_parameters
from crtlib.training.probe import refuse_mixing
from crtlib.training.schedules import DpSgdConstants

VOCABULARY = 97
PRIVATE = DpSgdConstants(
    sampling_probability=0.5, noise_multiplier=1.0, clip_norm=1.0, normaliser=4.0, learning_rate=0.1
)
TINY = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 24, "max_position_embeddings": 64, "head_dim": 4,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "num_experts": 4,
    "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4,
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 12, "hidden_dropout": 0.0, "attention_dropout": 0.0,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "dropout": 0.0,
    "activation_dropout": 0.0, "layerdrop": 0.0, "ffn_dim": 24, "word_embed_proj_dim": 16,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "rotary_dim": 4,
    "resid_dropout": 0.0, "embed_dropout": 0.0, "embedding_dropout": 0.0,
}  # fmt: skip
MORE = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    "granite": {"logits_scaling": 8.0},
    "granitemoe": {"logits_scaling": 4.0},
    "cohere": {"logit_scale": 0.25},
    "cohere2": {"logit_scale": 0.25},
    "mpt": {"d_model": 16, "n_heads": 4, "n_layers": 2, "max_seq_len": 64},
    "deepseek_v3": {"num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8,
                    "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4, "n_group": 1,
                    "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1,
                    "n_routed_experts": 4},
    "glm": {"head_dim": 4},
}  # fmt: skip
SPARSE = {
    "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
    "v_head_dim": 4, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
    "n_routed_experts": 4, "first_k_dense_replace": 1, "index_topk": 24, "index_n_heads": 2,
    "index_head_dim": 8, "max_position_embeddings": 128,
}  # fmt: skip
"""Attention to the best 24 positions."""
FIT = ["gpt2", "llama", "mixtral", "gemma2", "cohere", "granite", "biogpt", "phi3"]
BY_NIGHT = [
    "gpt_neo", "gptj", "gpt_neox", "gpt_bigcode", "opt", "bloom", "falcon", "mistral", "qwen2",
    "qwen2_moe", "qwen3", "qwen3_moe", "phi", "gemma", "gemma3_text", "olmo", "olmo2", "olmoe",
    "stablelm", "starcoder2", "cohere2", "granitemoe", "glm", "nemotron", "smollm3", "codegen",
]  # fmt: skip


def tiny(kind, **changes):
    """A random model of an architecture of transformers, in float32."""
    make = transformers.CONFIG_MAPPING[kind]
    known = set(make().to_dict()) | set(make.attribute_map)
    given = {k: v for k, v in TINY.items() if k in known} | MORE.get(kind, {}) | changes
    if "layer_types" in known and getattr(make(), "layer_types", None):
        given.setdefault("layer_types", list(dict.fromkeys(make().layer_types))[:2] * 2)
        given["layer_types"] = given["layer_types"][:2]
    config = make(**given)
    config._attn_implementation = config._experts_implementation = "eager"
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config)


def clipped_sum_by_autograd(model, texts, clip_norm):
    """The sum of clipped gradients by autograd, each text alone, by the model's own logits."""
    total = [torch.zeros_like(p) for p in trainable_parameters(model).values()]
    for text in texts:
        grads = probe._gradient_by_autograd(model, text)
        norm = torch.stack([g.double().square().sum() for g in grads]).sum().sqrt()
        factor = clip_factors(norm, clip_norm).float()
        total = [t + factor * g for t, g in zip(total, grads, strict=True)]
    return total


def apart(model):
    """How far the clipped sum of a batch is from brute force, in clip norms."""
    with probe.with_perturbed_weights(model):
        texts = probe.random_texts(model, probe.SHORT_TEXT_TOKENS)
        first, clip_norm = probe._clipped_sum_of_batch(model, texts)
        return probe.distance_in_clip_norms(
            first, clipped_sum_by_autograd(model, texts, clip_norm), clip_norm
        )


@pytest.mark.parametrize("kind", FIT)
def test_an_architecture_that_keeps_texts_apart_is_let_through(kind):
    model = tiny(kind)
    refuse_mixing(model, max_text_tokens=48)
    assert apart(model) < 1e-5


@pytest.mark.parametrize("kind", BY_NIGHT)
def test_more_architectures_are_let_through(kind):
    test_an_architecture_that_keeps_texts_apart_is_let_through(kind)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        pytest.param(
            "ctrl",
            r"^model: a CTRLLMHeadModel cannot be read and clipped here \(RuntimeError\)$",
            marks=pytest.mark.nightly,
        ),
        ("bert", r"^model: a BertLMHeadModel looks ahead in layer 'bert\.encoder\.layer\.0'"),
    ],
)
def test_what_cannot_be_tried_is_refused_in_one_line(kind, said):
    """A CTRL changes its embeddings in place; a BERT that predicts the next token looks ahead.
    Once: that BERT was taken for one that fills masks."""
    more = {"n_embd": 16, "dff": 24, "n_layer": 1, "n_head": 2} if kind == "ctrl" else {}
    with pytest.raises(ValueError, match=said):
        refuse_mixing(tiny(kind, **more), max_text_tokens=24)


@pytest.mark.parametrize(("kind", "scale"), [("llama", 1.0), ("cohere", 0.25), ("granite", 0.125)])
def test_a_head_has_the_scale_of_its_model(kind, scale):
    """Once (to 0.3): Cohere and Granite were trained on the loss of a model without it."""
    model = tiny(kind)
    head, texts = interface.output_head(model), torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        exact = model(input_ids=texts, use_cache=False).logits
        ours = head.logits(interface.hidden_states(model, texts))
    assert head.scale == scale
    assert torch.allclose(ours, exact, atol=1e-6)


def test_a_draw_for_layers_that_are_never_dropped_is_let_through():
    """Older OPTs draw a number a layer to compare it with a rate of zero."""
    model = tiny("opt", num_hidden_layers=1)
    layer = model.model.decoder.layers[0]
    layer.register_forward_pre_hook(lambda *_: torch.rand([]) and None)
    refuse_mixing(model, max_text_tokens=24)


def test_what_is_charged_for_rounding_is_no_mixing():
    """Once: a GPT-2 of this size was refused from 64 tokens on, as the charge followed the longest
    text."""
    spec = ModelSpec("gpt2", vocab_size=2000, hidden=256, layers=1, heads=4, context=128)
    refuse_mixing(build_model(spec, seed=0), max_text_tokens=128)


def in_single_precision(model):
    return next(model.parameters()).dtype == torch.float32


def test_what_vanishes_in_double_precision_is_rounding():
    """Of the 30 layers of SmolLM2 a batch of short texts is 1.2e-4 clip norms from its texts alone,
    and 1e-15 in double precision. Once: on some processors it was refused as a model that mixes."""
    model = tiny("llama")
    before = [(x, x.data_ptr(), x.clone()) for x in (*model.parameters(), *model.buffers())]
    distances = {True: 5e-4, False: 1e-12}
    by = probe.distance_beyond_rounding(model, lambda: distances[in_single_precision(model)], 1e-4)
    assert by == 1e-12
    after = [*model.parameters(), *model.buffers()]
    assert all(x is y and x.data_ptr() == at for (x, at, _), y in zip(before, after, strict=True))
    assert all(torch.equal(x, values) for x, _, values in before)


@pytest.mark.parametrize(
    ("single", "double"),
    [
        pytest.param(5e-4, 5e-4, id="an effect in both"),
        pytest.param(0.1, 1e-12, id="more than rounding, as an expert that another text moved"),
    ],
)
def test_what_is_more_than_rounding_stays(single, double):
    model = tiny("llama")
    distances = {True: single, False: double}
    by = probe.distance_beyond_rounding(model, lambda: distances[in_single_precision(model)], 1e-4)
    assert by == single


def test_a_model_that_no_double_can_read_keeps_its_distance():
    model = tiny("llama")

    def distance():
        if not in_single_precision(model):
            raise RuntimeError("kernel: float16 or bfloat16")
        return 5e-4

    assert probe.distance_beyond_rounding(model, distance, 1e-4) == 5e-4
    assert in_single_precision(model)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "granite"])
def test_adapters_are_tried_as_well(kind):
    model = pretrained.with_lora(tiny(kind), 2, seed=0)
    refuse_mixing(model, max_text_tokens=48)
    assert apart(model) < 1e-5


# --------------------------------------------------------------------------- what is refused
def longrope(kind="phi3"):
    """Beyond 32 tokens all texts of a pass take the long factors (Phi-3, Phi-3.5, Phi-4-mini)."""
    factors = {"short_factor": [1.0, 1.0], "long_factor": [4.0, 8.0]}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32}
    return tiny(kind, rope_parameters=rope | factors, original_max_position_embeddings=32)


def bidirectional():
    return tiny("gemma3_text", use_bidirectional_attention=True)


def batch_norm():
    model = tiny("llama")
    inner = model.model.layers[0].mlp
    inner.norm = nn.BatchNorm1d(16)
    plain = inner.forward
    inner.forward = lambda x: inner.norm(plain(x).mT).mT
    return model


def jitter():
    return tiny("phimoe", router_jitter_noise=0.5, input_jitter_noise=0.5)


def by_longest(model):
    """Positions that are scaled by the longest text of the batch."""
    layer = model.model.embed_tokens
    layer.register_forward_hook(lambda _, ids, out: out * (1 + ids[0].shape[1] / 100))
    return model


def normalised(model):
    """A normalisation across the examples, deep inside."""
    layer = model.model.layers[1].self_attn.o_proj
    layer.register_forward_hook(lambda _, x, out: out - out.mean(0, keepdim=True))
    return model


def noisy(model):
    """A router that draws."""
    layer = model.model.layers[0].mlp
    layer.register_forward_pre_hook(lambda _, x: (x[0] * (1 + 0.01 * torch.randn_like(x[0])),))
    return model


def rarely_noisy(model):
    """A router that draws, and whose draws have an effect near ties only."""
    layer = model.model.layers[0].mlp
    layer.register_forward_hook(lambda _, x, out: out + 0 * torch.rand_like(out))
    return model


def looks_back(model):
    """Attention over padding in one layer: each token sees the mean of all that follow it."""
    layer = model.model.layers[1]
    layer.register_forward_pre_hook(
        lambda _, x, kw: ((x[0] + 0.1 * x[0].mean(1, keepdim=True),), kw), with_kwargs=True
    )
    return model


def product(model):
    """Adapters that start at zero, and mix the examples by a product of what they say."""
    for name, layer in model.named_modules():
        if "lora_B" in name and isinstance(layer, nn.Linear):
            layer.register_forward_hook(lambda _, x, out: out + 10 * out * out.mean(0))
    return model


def scaled(model):
    """A head that multiplies where no name of ours says so."""
    plain = model.forward

    def forward(*given, **named):
        out = plain(*given, **named)
        out.logits = out.logits * 0.5
        return out

    model.forward = forward
    return model


def keeps(model):
    """A layer that keeps a mean of what it reads, for later."""
    layer = model.model.layers[0]
    layer.register_buffer("seen", torch.zeros(()))
    layer.register_forward_hook(lambda layer, _, out: layer.seen.add_(out.detach().mean()) and None)
    return model


def test_what_is_kept_of_a_text_in_a_saved_buffer_is_refused():
    """Once: a mean of the texts was saved beside the weights, without noise."""
    with pytest.raises(ValueError, match=r"keeps something of what it reads in '.*seen'"):
        refuse_mixing(keeps(tiny("llama")), max_text_tokens=24)


def positions_of_a_largest_norm():
    """Rows of the table of positions, up to the longest text, become shorter as it is read."""
    model = tiny("gpt2")
    model.transformer.wpe.max_norm = 0.05
    return model


def keeps_in_a_weight(learns):
    model = tiny("llama")
    layer = model.model.layers[0]
    layer.seen = torch.nn.Parameter(torch.zeros(()), requires_grad=learns)
    layer.register_forward_hook(
        lambda layer, _, out: layer.seen.data.add_(out.detach().mean()) and None
    )
    return model


@pytest.mark.parametrize(
    ("made", "place"),
    [(positions_of_a_largest_norm, "wpe.weight"), (lambda: keeps_in_a_weight(True), "seen"),
     (lambda: keeps_in_a_weight(False), "seen")],
)  # fmt: skip
def test_what_is_kept_of_a_text_in_a_weight_is_refused(made, place):
    """Once: the probe did not look at weights, and no noise was added to this one."""
    with pytest.raises(ValueError, match=rf"keeps something of what it reads in '.*{place}'"):
        refuse_mixing(made(), max_text_tokens=24)


MIXES = {
    "longrope": longrope,
    "attention over padding": bidirectional,
    "router jitter": jitter,
    "positions by the longest": lambda: by_longest(tiny("llama")),
    "a norm over the batch": lambda: normalised(tiny("llama")),
    "a router that draws": lambda: noisy(tiny("llama")),
    "a router whose draws rarely matter": lambda: rarely_noisy(tiny("llama")),
    "padding is seen in one layer": lambda: looks_back(tiny("llama")),
    "a scaled head": lambda: scaled(tiny("llama")),
    "adapters that start at zero": lambda: product(pretrained.with_lora(tiny("llama"), 2, seed=0)),
    "a norm over the batch, behind adapters": lambda: pretrained.with_lora(
        normalised(tiny("llama")), 2, seed=0
    ),
}


@pytest.mark.parametrize("name", MIXES)
def test_what_mixes_is_refused(name):
    with pytest.raises(ValueError, match=r"^model: a \w+ .*must ") as refused:
        refuse_mixing(MIXES[name](), max_text_tokens=48)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("kind", "targets"), [
    ("hy_v4", "all-linear"), ("deepseek_v32", "o_proj"), ("glm_moe_dsa", "o_proj"),
])  # fmt: skip
def test_what_mixes_long_texts_alone_is_refused(kind, targets):
    """The best positions of a batch are chosen among as many as its longest text has."""
    known = set(transformers.CONFIG_MAPPING[kind]().to_dict())
    model = tiny(kind, **{k: v for k, v in SPARSE.items() if k in known})
    model = pretrained.with_lora(model, 2, seed=0, targets=targets)
    with pytest.raises(ValueError, match=r"in a batch with one of 128 tokens, by .* clip norms"):
        refuse_mixing(model, max_text_tokens=128)


def test_sparse_attention_to_more_than_any_text_is_let_through():
    known = set(transformers.CONFIG_MAPPING["hy_v4"]().to_dict())
    model = tiny("hy_v4", **{k: v for k, v in SPARSE.items() if k in known} | {"index_topk": 64})
    refuse_mixing(pretrained.with_lora(model, 2, seed=0), max_text_tokens=48)


@pytest.mark.parametrize("kind", ["bert-generation", "roberta"])
def test_an_encoder_is_refused_as_a_model_for_next_tokens(kind):
    """Whatever its weights hide from texts that are tried: it would see padding."""
    with pytest.raises(ValueError, match=r"looks ahead in layer .* must be a causal model"):
        refuse_mixing(tiny(kind), max_text_tokens=48)


@pytest.mark.parametrize("kind", ["gpt2", "cpmant"])
def test_a_model_that_later_tokens_move_is_refused(kind):
    """A CPM-Ant is clipped one text after the other, so nothing else shows that it looks ahead."""
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2}
    if kind == "cpmant":
        sizes = {"dim_head": 4, "dim_ff": 24, "prompt_length": 4, "dropout_p": 0.0}
    model = tiny(kind, **sizes)
    if kind == "gpt2":
        model.transformer.h[0].register_forward_hook(lambda layer, x, y: y + y.mean(1, True))
    with pytest.raises(ValueError, match=r"looks ahead: later tokens move .* by \S+ of its size"):
        refuse_mixing(model, max_text_tokens=48)


def test_a_decoder_of_the_same_kind_is_let_through():
    refuse_mixing(tiny("bert-generation", is_decoder=True), max_text_tokens=48)


def test_batch_norm_is_refused_by_its_name():
    with pytest.raises(ValueError, match="BatchNorm1d, which mixes the examples"):
        refuse_mixing(batch_norm(), max_text_tokens=48)


def test_longrope_within_its_original_length_is_let_through():
    refuse_mixing(longrope(), max_text_tokens=32)


def test_a_training_is_refused_before_its_first_step():
    started = []
    phases = schedules.dpsgd_phases(epochs=1, private=PRIVATE)
    with pytest.raises(ValueError, match="in a batch with one of 48 tokens"):
        loop.train_model(
            longrope(), phases, {"private": [[5, 6, 7]] * 8}, seed=0, max_text_tokens=48,
            on_start=lambda *_: started.append(1),
        )  # fmt: skip
    assert not started


@pytest.mark.parametrize(
    ("most", "said"),
    [
        (40, r"^max_text_tokens=40: the longest point has 49 tokens; .* at least 48$"),
        (None, "in a batch with one of 48 tokens"),
        (48, "in a batch with one of 48 tokens"),
    ],
    ids=["too few", "default", "named"],
)
def test_no_text_is_longer_than_what_was_tried(most, said):
    """Once: a model was tried on the length that was named, or on 256 tokens, and then read texts
    of any length, by whose company one text moved the sum by eight clip norms."""
    phases = schedules.dpsgd_phases(epochs=1, private=PRIVATE)
    rows = {"private": [[5, 6, 7]] * 7 + [[5, 6, 7] * 16 + [5]]}
    with pytest.raises(ValueError, match=said):
        loop.Training(longrope(), phases, rows, seed=0, max_text_tokens=most)
    loop.Training(longrope(), phases, {"private": [[5] * 33] * 8}, seed=0)  # reads 32 of each


@pytest.mark.parametrize(("longest", "refused"), [(32, False), (33, True)])
def test_the_last_token_that_is_read_is_tried(longest, refused):
    """Once: of the longest text, a training read one token more than the trial."""
    with pytest.raises(ValueError, match="33 tokens") if refused else contextlib.nullcontext():
        refuse_mixing(longrope(), max_text_tokens=longest)


@pytest.mark.parametrize("read", [12, 13])
def test_losses_are_tried_on_all_that_they_read(read):
    """Of a point, losses read the last token as well."""
    model = build_model(ModelSpec("gpt2", 20, hidden=8, layers=1, heads=2, context=12), seed=0)
    phases = schedules.dpsgd_phases(epochs=1, private=PRIVATE)
    training = loop.Training(model, phases, {"private": [[5] * read] * 8}, seed=0)
    tried = []

    def losses(model, batch):
        tried.append(batch["input_ids"].shape[1])
        inputs = {k: batch[k] for k in ("input_ids", "attention_mask", "position_ids")}
        return model(**inputs).logits.logsumexp(-1).mean(1)

    if read > 12:
        with pytest.raises(ValueError, match=r"^losses: read every token .* 13; .* most 12"):
            training.try_losses(losses)
    else:
        with contextlib.suppress(ValueError):  # it reads padding, too
            training.try_losses(losses)
        assert max(tried) == read


def test_a_model_is_left_as_it_was():
    model = pretrained.with_lora(tiny("qwen2_moe"), 2, seed=0).eval()
    first = next(iter(trainable_parameters(model).values()))
    first.grad = torch.ones_like(first)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.get_rng_state()
    refuse_mixing(model, max_text_tokens=48)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(first.grad, torch.ones_like(first)) and not model.training
    others = [p for p in trainable_parameters(model).values() if p is not first]
    assert all(p.grad is None for p in others)


def test_weights_of_a_training_are_those_without_a_probe(monkeypatch):
    def trained():
        model = build_model(ModelSpec("gpt2", VOCABULARY, hidden=8, heads=2, context=16), seed=0)
        phases = schedules.dpsgd_phases(epochs=1, private=PRIVATE)
        loop.train_model(model, phases, {"private": [[5, 6, 7]] * 8}, seed=0)
        return model.state_dict()

    with_probe = trained()
    monkeypatch.setattr(loop, "refuse_mixing", lambda *_, **__: None)
    without = trained()
    assert all(torch.equal(v, without[k]) for k, v in with_probe.items())


def test_a_model_whose_gradients_are_no_numbers_is_refused_in_one_line():
    model = tiny("llama")
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match=r"^model: its gradients for random tokens overflow"):
        refuse_mixing(model)


def test_too_little_memory_for_doubles_is_not_read_as_mixing():
    model = tiny("llama")

    def distance():
        if not in_single_precision(model):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return 5e-4

    with pytest.raises(torch.OutOfMemoryError):
        probe.distance_beyond_rounding(model, distance, 1e-4)
    assert in_single_precision(model)
