"""The engine against its definition: autograd on one example at a time."""

import copy
import itertools
import warnings
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from crtlib.models import interface
from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.training import clipping, gradient_entries, gradient_recorder, layer_rules, micro_batch
from crtlib.training.noise import add_noise
from tests.training import by_loop, opacus_engine

SMALL = {
    "lstm": ModelSpec("lstm", 23, embedding=6, hidden=8),
    "lstm-tied": ModelSpec("lstm", 23, hidden=8, tied=True),
    "lstm-2": ModelSpec("lstm", 23, embedding=6, hidden=8, layers=2),
    "gru": ModelSpec("gru", 23, embedding=6, hidden=8),
    "gpt2-tied": ModelSpec("gpt2", 23, hidden=16, layers=2, heads=2, context=16),
    "gpt2-untied": ModelSpec("gpt2", 23, hidden=16, layers=2, heads=2, context=16, tied=False),
    "gemma2": ModelSpec("gemma2", 23, hidden=16, layers=2, heads=2, context=16),
    "bert": ModelSpec("bert", 23, hidden=16, layers=2, heads=2, context=16),
}


def model_of(name, dtype=torch.float32):
    model = build_model(SMALL[name], seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():  # no parameter at zero or one, where mistakes hide
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator))
    return model.to(dtype)


def batch_of(model, seed=3, batch=6, width=12):
    """Padded with rubbish, of unequal lengths, one too short to have a target, tokens repeated."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 23, (batch, width), generator=generator)
    tokens[0] = 7
    tokens[1, ::2] = 4
    lengths = torch.tensor([width, 5, width, 2, 1, 9])[:batch]
    tokens[torch.arange(width) >= lengths[:, None]] = 10**6
    if interface.is_causal(model):
        return {"tokens": tokens, "lengths": lengths}
    hide = torch.rand(tokens.shape, generator=generator) < 0.4
    targets = torch.where(hide, tokens, micro_batch.IGNORE_INDEX)
    return {"tokens": tokens.masked_fill(hide, 3), "lengths": lengths, "targets": targets}


def grads_of(model, run):
    model.zero_grad(set_to_none=True)
    result = run(model)
    return result, {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}


def clip_at(clip_norm, batch):
    def run(engine):
        by = {"loop": by_loop, "opacus": opacus_engine}.get(engine, clipping)

        def summed(model):
            if engine != "units":
                return by.add_clipped_gradients(model, **batch, clip_norm=clip_norm)
            with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # as if no layer were known
                patch.setattr(layer_rules, "LAYER_RULES", {})
                patch.setattr(gradient_recorder, "RecurrentLayer", ())
                return by.add_clipped_gradients(model, **batch, clip_norm=clip_norm)

        return summed

    return run


def total_norm(grads):
    return float(torch.sqrt(sum(g.double().square().sum() for g in grads.values())))


def distance(a, b):
    """Relative to the norm of ``b``."""
    return total_norm({n: a[n] - b[n] for n in b}) / total_norm(b)


@pytest.mark.parametrize(("name", "reduction", "direct"), list(itertools.product(
    SMALL, ("mean", "sum"), (0, 64, 10**9))))  # fmt: skip
def test_clipped_sum_is_that_of_a_loop(name, reduction, direct, monkeypatch):
    """By ghost norms alone, by direct products alone, and by the rule that chooses."""
    monkeypatch.setattr(gradient_entries, "DIRECT_COST_IN_MULTIPLY_ADDS", direct)
    model = model_of(name)
    batch = batch_of(model)

    def run(engine, clip_norm):
        by = by_loop if engine == "loop" else clipping
        return lambda m: by.add_clipped_gradients(
            m, **batch, clip_norm=clip_norm, reduction=reduction
        )

    norms = run("loop", 1.0)(model).norms
    clip_norm = 0.5 * float(norms[norms > 0].min())  # every example is clipped
    expected, reference = grads_of(model, run("loop", clip_norm))
    got, grads = grads_of(model, run("bookkeeping", clip_norm))
    torch.testing.assert_close(got.losses, expected.losses, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got.norms, expected.norms, rtol=1e-5, atol=1e-7)
    assert distance(grads, reference) < 1e-5
    for name_, grad in grads.items():
        if reference[name_].norm() > 1e-3 * clip_norm:
            assert distance({name_: grad}, {name_: reference[name_]}) < 1e-4, name_
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("name", SMALL)
def test_clipped_example_does_not_exceed_the_bound(name):
    model = model_of(name)
    batch = batch_of(model)
    for i in (0, 1, 2, 5):
        one = {k: v[i : i + 1] for k, v in batch.items()}
        for clip_norm in (1e-2, 0.1):
            result, grads = grads_of(
                model,
                lambda m, one=one, c=clip_norm: clipping.add_clipped_gradients(
                    m, **one, clip_norm=c
                ),
            )
            assert result.norms[0] > clip_norm
            assert total_norm(grads) <= clip_norm * (1 + 1e-6)
            assert total_norm(grads) >= clip_norm * (1 - 1e-5)


@pytest.mark.parametrize("name", SMALL)
def test_gradients_below_the_bound_are_left_alone_and_equal_the_plain_sum(name):
    model = model_of(name)
    batch = batch_of(model)
    for reduction in ("mean", "sum"):
        clipped, ours = grads_of(
            model,
            lambda m, r=reduction: clipping.add_clipped_gradients(
                m, **batch, clip_norm=1e6, reduction=r
            ),
        )
        losses, plain = grads_of(
            model, lambda m, r=reduction: clipping.add_unclipped_gradients(m, **batch, reduction=r)
        )
        torch.testing.assert_close(losses, clipped.losses)
        assert distance(ours, plain) < 1e-5


@pytest.mark.parametrize("name", ["lstm", "gpt2-tied"])
def test_plain_sum_is_the_gradient_of_the_cross_entropy(name):
    model = model_of(name)
    batch = batch_of(model)
    _, ours = grads_of(
        model, lambda m: clipping.add_unclipped_gradients(m, **batch, reduction="sum")
    )
    tokens, lengths = batch["tokens"], batch["lengths"]
    targets = tokens[:, 1:].clone()
    targets[torch.arange(1, 12) >= lengths[:, None]] = micro_batch.IGNORE_INDEX

    def run(m):
        out = m(tokens[:, :-1].clamp_max(22))
        logits = getattr(out, "logits", out)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        loss.backward()

    assert distance(ours, grads_of(model, run)[1]) < 1e-5


@pytest.mark.parametrize("name", ["lstm", "gpt2-tied"])
def test_microbatches_add_up_to_the_batch(name):
    model = model_of(name)
    batch = batch_of(model)
    whole, expected = grads_of(
        model, lambda m: clipping.add_clipped_gradients(m, **batch, clip_norm=0.1)
    )

    def run(m):
        parts = [
            clipping.add_clipped_gradients(m, **{k: v[s] for k, v in batch.items()}, clip_norm=0.1)
            for s in (slice(0, 1), slice(1, 4), slice(4, 4), slice(4, 6))
        ]
        return torch.cat([p.norms for p in parts])

    norms, grads = grads_of(model, run)
    torch.testing.assert_close(norms, whole.norms)
    assert distance(grads, expected) < 1e-6


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", ["lstm", "gpt2-tied"])
def test_blocks_of_one_length_give_what_padded_ones_give(name, reduction):
    model = model_of(name)
    tokens, lengths = batch_of(model)["tokens"][:3:2, :12], torch.tensor([12, 12])
    padded = torch.cat([tokens, torch.full((2, 1), 10**6)], 1)
    for run in (
        partial(clipping.add_clipped_gradients, clip_norm=0.1),
        clipping.add_unclipped_gradients,
    ):
        results = [
            grads_of(model, lambda m: run(m, rows, lengths, reduction=reduction))  # noqa: B023
            for rows in (tokens, padded)
        ]
        (got, grads), (expected, reference) = results
        torch.testing.assert_close(got, expected)
        assert distance(grads, reference) < 1e-6


def test_blocks_of_the_head_do_not_change_the_sum(monkeypatch):
    model = model_of("gpt2-tied")
    batch = batch_of(model)
    run = lambda m: clipping.add_clipped_gradients(m, **batch, clip_norm=0.1)  # noqa: E731
    expected, reference = grads_of(model, run)
    for name, value in (("MIN_POSITIONS_PER_BLOCK", 1), ("MAX_LOGITS_PER_BLOCK", 1)):
        monkeypatch.setattr(clipping, name, value)
        got, grads = grads_of(model, run)
        torch.testing.assert_close(got.norms, expected.norms)
        assert distance(grads, reference) < 1e-6


@pytest.mark.parametrize("name", ["gpt2-tied", "lstm-tied", "bert"])
def test_the_head_reads_the_positions_that_have_a_target_alone(name, monkeypatch):
    """Of a masked model, or of a conversation whose last turn counts, they are few."""
    model = model_of(name, torch.float64)
    batch = batch_of(model)
    batch["lengths"] = batch["lengths"].clamp_max(11)
    tokens = batch["tokens"].clamp_max(22)
    asked = torch.zeros(tokens.shape, dtype=torch.bool)
    asked[0, [2, 9]] = asked[2, 10] = asked[1, 0] = asked[5, [1, 3, 8]] = True
    batch |= {"tokens": tokens, "targets": tokens.masked_fill(~asked, micro_batch.IGNORE_INDEX)}
    run = lambda m: clipping.add_clipped_gradients(m, **batch, clip_norm=0.1)  # noqa: E731
    read, honest = [], clipping._cross_entropy_and_gradient

    def head(x, *rest):
        read.append(len(x))
        return honest(x, *rest)

    monkeypatch.setattr(clipping, "_cross_entropy_and_gradient", head)
    some, grads = grads_of(model, run)
    assert sum(read) <= 3 * len(tokens)  # of 66
    every = lambda batch: micro_batch.HeadPositions(  # noqa: E731
        batch.targets, batch.weights, batch.extents
    )
    monkeypatch.setattr(micro_batch.SortedExamples, "head_positions", every)
    whole, reference = grads_of(model, run)
    assert sum(read) > 40
    for ours, theirs in zip(some, whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert distance(grads, reference) < 1e-12
    batch["targets"] = torch.full_like(tokens, micro_batch.IGNORE_INDEX)
    monkeypatch.undo()
    none, grads = grads_of(model, run)
    assert not none.losses.any() and none.norms.max() < 1e-100 and not total_norm(grads)


@pytest.mark.parametrize("name", ["gpt2-tied", "gpt2-untied", "lstm", "lstm-tied", "bert"])
def test_the_head_of_a_long_example_is_a_product_and_of_a_short_one_a_ghost(name, monkeypatch):
    """Norms are those of either way alone, also where one batch takes both."""
    model = model_of(name, torch.float64)
    head, batch = interface.output_head(model).weight, batch_of(model)
    monkeypatch.setattr(clipping, "MIN_POSITIONS_PER_BLOCK", 1)  # a block for each length
    turn = 6 if name != "bert" else 3
    found = []
    for until in (0, 99, turn):
        kinds = []

        def add(recorder, entry, kinds=kinds, honest=gradient_recorder.GradientRecorder.add):
            if entry.parameter is head and not isinstance(entry, gradient_entries.EmbeddingGrad):
                kinds.append(type(entry).__name__)
            honest(recorder, entry)

        with monkeypatch.context() as patch:
            for module in (gradient_entries, clipping):
                patch.setattr(
                    module, "max_ghost_positions", lambda weight, like, until=until: until
                )
            patch.setattr(gradient_recorder.GradientRecorder, "add", add)
            clip = lambda m: clipping.add_clipped_gradients(m, **batch, clip_norm=0.01)  # noqa: E731
            found.append((*grads_of(model, clip), set(kinds)))
    whole, ghost, both = found
    assert [kinds for *_, kinds in found] == [
        {"DenseGrad"},
        {"OuterProductGrad"},
        {"DenseGrad", "OuterProductGrad"},
    ]
    for result, grads, _ in (ghost, both):
        torch.testing.assert_close(result.norms, whole[0].norms, rtol=1e-12, atol=1e-12)
        assert distance(grads, whole[1]) < 1e-12


@pytest.mark.parametrize("name", ["gpt2-tied", "gpt2-untied", "lstm", "lstm-tied"])
def test_a_long_text_has_the_norm_that_autograd_gives(name, monkeypatch):
    """By the rule itself, at lengths on both sides of where the head turns to products."""
    monkeypatch.setitem(SMALL, name, replace(SMALL[name], context=64))
    monkeypatch.setattr(clipping, "MIN_POSITIONS_PER_BLOCK", 1)
    model, generator = model_of(name), torch.Generator().manual_seed(0)
    head = interface.output_head(model).weight
    lengths = torch.tensor([57, 9, 57, 19, 48])
    assert 18 < gradient_entries.max_ghost_positions(head, head) < 47
    tokens = torch.randint(0, 23, (5, 57), generator=generator)
    tokens[0] = tokens[2, 0]  # of a tied head, cross terms are large
    batch = {"tokens": tokens, "lengths": lengths}
    expected, reference = grads_of(model, clip_at(0.01, batch)("loop"))
    got, grads = grads_of(model, clip_at(0.01, batch)("bookkeeping"))
    torch.testing.assert_close(got.norms, expected.norms, rtol=2e-6, atol=0)
    assert distance(grads, reference) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_long_text_has_the_norm_of_its_gram_matrix(dtype, monkeypatch):
    """Taken token by token: the Gram matrix of 50,000 would need ten gigabytes."""
    torch.manual_seed(0)
    ids, grads = torch.randint(0, 7, (3, 50)), torch.randn(3, 50, 4, dtype=dtype)
    entry = gradient_entries.EmbeddingGrad(nn.Parameter(torch.zeros(7, 4)), ids, grads)
    gram = entry.square()
    monkeypatch.setattr(gradient_entries, "MAX_GRAM_TOKENS", 49)
    monkeypatch.setattr(gradient_entries, "_batched_matmul", None)
    by_token = entry.square()
    torch.testing.assert_close(by_token.value, gram.value, rtol=1e-6, atol=0)
    assert torch.equal(by_token.size, gram.size) and by_token.share == gram.share


def test_same_result_twice_and_no_trace_left_in_the_model():
    model = model_of("gpt2-tied")
    batch = batch_of(model)
    run = lambda m: clipping.add_clipped_gradients(m, **batch, clip_norm=0.1)  # noqa: E731
    _, first = grads_of(model, run)
    _, second = grads_of(model, run)
    assert all(torch.equal(first[n], second[n]) for n in first)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_inside_no_grad_nothing_is_lost():
    model = model_of("gpt2-tied")
    batch = batch_of(model)
    for run in (
        clip_at(0.1, batch)("bookkeeping"),
        lambda m: clipping.add_unclipped_gradients(m, **batch),
    ):
        _, expected = grads_of(model, run)
        with torch.no_grad():
            _, grads = grads_of(model, run)
        assert all(torch.equal(grads[n], expected[n]) for n in grads)
        assert float(torch.tensor(1e-39) * 1) > 0  # denormal numbers are as they were


@pytest.mark.parametrize("name", ["lstm", "gpt2-tied"])
def test_empty_batch_adds_nothing_and_leaves_zeros(name):
    model = model_of(name)
    for tokens, lengths in (
        (torch.zeros(0, 5, dtype=torch.long), torch.zeros(0, dtype=torch.long)),
        (torch.zeros(0, 0, dtype=torch.long), torch.zeros(0, dtype=torch.long)),
        (torch.zeros(2, 5, dtype=torch.long), torch.tensor([1, 0])),
    ):
        result, grads = grads_of(
            model,
            lambda m, t=tokens, n=lengths: clipping.add_clipped_gradients(m, t, n, clip_norm=1.0),
        )
        assert result.norms.tolist() == [0.0] * len(tokens)
        assert grads and all(g.abs().max() == 0 for g in grads.values())


def test_frozen_parameters_get_no_gradient_and_do_not_count():
    for name, frozen in (
        ("lstm", ("embedding", "head.bias")),
        ("lstm", ("head", "layers")),
        ("gpt2-untied", ("wte", "wpe", "lm_head", "h.0", "bias")),
        ("gpt2-tied", ("ln_", "attn")),
    ):
        model = model_of(name)
        for n, p in model.named_parameters():
            p.requires_grad_(not any(f in n for f in frozen))
        batch = batch_of(model)
        run = clip_at(0.01, batch)
        expected, reference = grads_of(model, run("loop"))
        got, grads = grads_of(model, run("bookkeeping"))
        torch.testing.assert_close(got.norms, expected.norms, rtol=1e-5, atol=1e-7)
        assert distance(grads, reference) < 1e-5
        assert all(p.grad is None for p in model.parameters() if not p.requires_grad)


class Adapter(nn.Module):
    """LoRA (Hu et al. 2022): a frozen layer, and a product of two thin ones that learns."""

    def __init__(self, layer, inputs, outputs, rank=2):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(inputs, rank, bias=False)
        self.up = nn.Linear(rank, outputs, bias=False)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


def test_adapters_on_a_frozen_transformer():
    model = model_of("gpt2-tied").requires_grad_(False)
    torch.manual_seed(0)
    for block in model.transformer.h:
        block.attn.c_attn = Adapter(block.attn.c_attn, 16, 48)
        block.mlp.c_fc = Adapter(block.mlp.c_fc, 16, 64)
    batch = batch_of(model)
    expected, reference = grads_of(model, clip_at(0.01, batch)("loop"))
    got, grads = grads_of(model, clip_at(0.01, batch)("bookkeeping"))
    assert len(grads) == 8
    torch.testing.assert_close(got.norms, expected.norms, rtol=1e-5, atol=1e-7)
    assert distance(grads, reference) < 1e-5


def test_norms_of_every_kind():
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    model = model_of("lstm")
    torch.manual_seed(0)
    model.layers.extend(
        [nn.RMSNorm(8), nn.Linear(8, 8, bias=False), nn.LayerNorm(8, bias=False), LlamaRMSNorm(8)]
    )
    batch = batch_of(model)
    expected, reference = grads_of(model, clip_at(0.01, batch)("loop"))
    got, grads = grads_of(model, clip_at(0.01, batch)("bookkeeping"))
    torch.testing.assert_close(got.norms, expected.norms, rtol=1e-5, atol=1e-7)
    assert distance(grads, reference) < 1e-5


class Bilinear(nn.Module):
    """A layer with a parameter of its own, which no rule covers."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(size) + 0.1)

    def forward(self, x):
        return x @ self.weight


UNTIED = {name: replace(SMALL[name], tied=False) for name in ("lstm", "gru", "gpt2-tied", "gemma2")}


@pytest.mark.parametrize(("name", "engine"), [
    *itertools.product(UNTIED, ("bookkeeping", "units")),
    ("lstm", "opacus"), ("gpt2-tied", "opacus"),
])  # fmt: skip
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e36])
def test_example_whose_gradient_is_not_finite_is_left_out(name, engine, value, monkeypatch):
    """The others' sum is as if it were not there: one overflow must not void the noise."""
    monkeypatch.setitem(SMALL, "untied", UNTIED[name])
    model, direct = model_of("untied"), gradient_entries.DIRECT_COST_IN_MULTIPLY_ADDS
    batch = batch_of(model)
    batch["tokens"][batch["tokens"] == 22] = 21
    batch["tokens"][2, 1:4] = 22
    embedding = model.get_input_embeddings() if name not in ("lstm", "gru") else model.embedding
    with torch.no_grad():
        embedding.weight[22] = value
    finite = torch.arange(6) != 2
    others = {k: v[finite] for k, v in batch.items()}
    expected, reference = grads_of(model, clip_at(0.01, others)("loop"))
    assert expected.norms.isfinite().all() and all(g.isfinite().all() for g in reference.values())
    for cost in (0, direct, 10**9) if engine == "bookkeeping" else (direct,):
        monkeypatch.setattr(gradient_entries, "DIRECT_COST_IN_MULTIPLY_ADDS", cost)
        got, grads = grads_of(model, clip_at(0.01, batch)(engine))
        if value == 1e36 and got.norms[2].isfinite():
            continue  # this kind of model squashes it
        assert got.norms.isfinite().tolist() == finite.tolist()
        torch.testing.assert_close(got.norms[finite], expected.norms, rtol=1e-5, atol=1e-6)
        assert distance(grads, reference) < 1e-5


@pytest.mark.parametrize("engine", ["bookkeeping", "units", "opacus"])
@pytest.mark.parametrize("name", ["lstm", "lstm-tied", "gpt2-tied"])
def test_where_every_gradient_overflows_nothing_is_added(name, engine):
    model = model_of(name)
    with torch.no_grad():
        interface.output_head(model).weight.fill_(float("inf"))
    batch = {k: v[[0, 1, 2, 5]] for k, v in batch_of(model).items()}
    result, grads = grads_of(model, clip_at(0.1, batch)(engine))
    assert not result.norms.isfinite().any()
    assert all(g.abs().max() == 0 for g in grads.values())


def test_unknown_layer_is_named_and_takes_the_slow_correct_path():
    model = model_of("lstm")
    model.layers.append(Bilinear(8))
    batch = batch_of(model)
    with pytest.warns(UserWarning, match=r"'layers\.1': no rule for .*Bilinear"):
        _, grads = grads_of(
            model, lambda m: clipping.add_clipped_gradients(m, **batch, clip_norm=0.01)
        )
    _, expected = grads_of(
        model, lambda m: by_loop.add_clipped_gradients(m, **batch, clip_norm=0.01)
    )
    assert distance(grads, expected) < 1e-6
    assert grads["layers.1.weight"].abs().max() > 0


@pytest.mark.parametrize("name", ["lstm", "gpt2-tied", "bert"])
def test_the_slow_path_is_that_of_the_loop(name):
    model = model_of(name)
    batch = batch_of(model)
    expected, reference = grads_of(model, clip_at(0.1, batch)("loop"))
    got, grads = grads_of(model, clip_at(0.1, batch)("units"))
    torch.testing.assert_close(got.losses, expected.losses, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got.norms, expected.norms, rtol=1e-5, atol=1e-7)
    assert distance(grads, reference) < 1e-5


def test_parameter_used_outside_of_its_layer_is_not_left_unclipped():
    class Sly(nn.Linear):
        pass

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x):
            return self.inner(x) + nn.functional.linear(x, self.inner.weight)

    model = model_of("lstm")
    model.layers.append(Wrapped())
    batch = batch_of(model)
    with pytest.warns(UserWarning, match=r"inner\.weight': is used outside"):
        _, grads = grads_of(
            model, lambda m: clipping.add_clipped_gradients(m, **batch, clip_norm=0.01)
        )
    _, expected = grads_of(
        model, lambda m: by_loop.add_clipped_gradients(m, **batch, clip_norm=0.01)
    )
    assert distance(grads, expected) < 1e-6
    model.layers[1] = Sly(8, 8)  # a subclass may compute something else
    with pytest.warns(UserWarning, match="no rule for .*Sly"):
        clipping.add_clipped_gradients(model, **batch, clip_norm=0.01)


def test_layer_used_twice():
    model = model_of("lstm")
    layer = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh())
    model.layers.extend([layer, layer])
    batch = batch_of(model)
    expected, reference = grads_of(
        model, lambda m: by_loop.add_clipped_gradients(m, **batch, clip_norm=0.01)
    )
    got, grads = grads_of(
        model, lambda m: clipping.add_clipped_gradients(m, **batch, clip_norm=0.01)
    )
    torch.testing.assert_close(got.norms, expected.norms, rtol=1e-5, atol=1e-7)
    assert distance(grads, reference) < 1e-5


def test_float64_and_bfloat16():
    for name in ("lstm", "gpt2-tied"):
        model = model_of(name, torch.float64)
        batch = batch_of(model)
        run = clip_at(0.01, batch)
        expected, reference = grads_of(model, run("loop"))
        got, grads = grads_of(model, run("bookkeeping"))
        torch.testing.assert_close(got.norms, expected.norms, rtol=1e-12, atol=1e-12)
        assert distance(grads, reference) < 1e-12
        model.float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed, grads = grads_of(model, run("bookkeeping"))
        assert mixed.norms.dtype == torch.float32
        assert distance(grads, {n: g.float() for n, g in reference.items()}) < 0.05
        # The bound holds for the numbers that are summed, not only up to their rounding.
        one = {k: v[:1] for k, v in batch.items()}
        with torch.autocast("cpu", dtype=torch.bfloat16):
            _, grads = grads_of(
                model, lambda m, one=one: clipping.add_clipped_gradients(m, **one, clip_norm=0.01)
            )
        assert total_norm(grads) <= 0.01 * (1 + 1e-5)


def test_what_a_gpu_rounds_is_added_as_a_second_part():
    """Rounded once, a clipped gradient could be longer than the bound by a part in 256."""
    x = torch.randn(500, generator=torch.Generator().manual_seed(0))
    parts = gradient_entries._decompose_in_dtype(x, torch.bfloat16)
    assert [part.dtype for part in parts] == [torch.bfloat16] * 2
    torch.testing.assert_close(sum(part.float() for part in parts), x, rtol=2**-15, atol=0)
    assert gradient_entries._decompose_in_dtype(x, torch.float32)[0] is x


def test_the_cross_term_of_a_tied_embedding_is_taken_in_the_wider_type():
    """As on a GPU, where the columns of the head are in half precision."""
    p, generator = nn.Parameter(torch.zeros(7, 5)), torch.Generator().manual_seed(0)
    rows, columns, grads = (
        torch.randn(shape, generator=generator) for shape in ((2, 3, 7), (2, 3, 5), (2, 3, 5))
    )
    ids, columns = torch.tensor([[1, 2, 1], [0, 6, 3]]), columns.bfloat16()
    head = gradient_entries.OuterProductGrad(p, rows, columns)
    head.square()
    head.columns = columns
    embedding = gradient_entries.EmbeddingGrad(p, ids, grads)
    embedding.square()
    got = gradient_entries.cross_inner_products(embedding, head).value
    table = torch.zeros(2, 7, 5).scatter_add_(1, ids[..., None].expand(-1, -1, 5), grads)
    expected = (table * torch.einsum("btr,btc->brc", rows, columns.float())).sum((1, 2))
    torch.testing.assert_close(got.float(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", SMALL)
def test_on_a_gpu(name, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # it would round gradients
    model = model_of(name).cuda()
    batch = {k: v.cuda() for k, v in batch_of(model).items()}
    expected, reference = grads_of(model, clip_at(0.01, batch)("loop"))
    got, grads = grads_of(model, clip_at(0.01, batch)("bookkeeping"))
    torch.testing.assert_close(got.norms, expected.norms, rtol=1e-5, atol=1e-6)
    assert distance(grads, reference) < 1e-5
    one = {k: v[:1] for k, v in batch.items()}
    with torch.autocast("cuda", dtype=torch.bfloat16):
        mixed, grads = grads_of(model, clip_at(0.01, batch)("bookkeeping"))
        _, single = grads_of(model, clip_at(0.01, one)("bookkeeping"))
    assert mixed.norms.dtype == torch.float32
    assert distance(grads, reference) < 0.1
    assert total_norm(single) <= 0.01 * (1 + 1e-5)
    generator = torch.Generator("cuda").manual_seed(0)
    add_noise(list(model.parameters()), std=1.0, generator=generator)


def test_tiny_probabilities_have_a_finite_exact_loss():
    model = model_of("lstm")
    with torch.no_grad():
        model.head.bias[7] = 200.0
    batch = {"tokens": torch.tensor([[7, 3, 7, 5]]), "lengths": torch.tensor([4])}
    got = clipping.add_clipped_gradients(model, **batch, clip_norm=1.0)
    expected = by_loop.add_clipped_gradients(model, **batch, clip_norm=1.0)
    assert got.losses.isfinite().all() and got.losses[0] > 100
    torch.testing.assert_close(got.losses, expected.losses)


def test_noise_has_the_variance_asked_for_and_its_own_generator():
    model = model_of("lstm")
    state = torch.random.get_rng_state()
    for generator in (torch.Generator().manual_seed(5), "secure"):
        big = nn.Parameter(torch.zeros(300, 1000))
        odd = nn.Parameter(torch.zeros(7))
        add_noise([big, odd], std=0.3, generator=generator)
        # The standard error of the standard deviation of 300,000 normals is 0.13 percent.
        assert abs(float(big.grad.std()) / 0.3 - 1) < 0.01
        assert abs(float(big.grad.mean())) < 0.3 * 5 / 300_000**0.5
        assert abs(float((big.grad.abs() > 0.6).float().mean()) - 0.0455) < 0.003
        assert odd.grad.unique().numel() == 7
        before = big.grad.clone()
        add_noise([big], std=0.0, generator=generator)
        assert torch.equal(big.grad, before)
    assert torch.equal(state, torch.random.get_rng_state())
    runs = []
    for _ in range(2):
        model.zero_grad()
        add_noise(list(model.parameters()), std=1.0, generator=torch.Generator().manual_seed(9))
        runs.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("name", ["lstm", "lstm-tied", "lstm-2", "gru", "gpt2-tied", "gpt2-untied"])
def test_opacus_gives_the_same_sums(name):
    model = model_of(name).eval()
    batch = batch_of(model)
    run = clip_at(0.01, batch)
    expected, reference = grads_of(model, run("opacus"))
    got, grads = grads_of(model, run("bookkeeping"))
    torch.testing.assert_close(got.losses, expected.losses, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got.norms, expected.norms, rtol=1e-5, atol=1e-6)
    assert distance(grads, reference) < 1e-5
    assert not model.training and not any(hasattr(p, "grad_sample") for p in model.parameters())
    assert not any(m._forward_hooks or m._backward_hooks for m in model.modules())


def test_a_private_run_has_the_loss_curve_of_opacus_own_optimizer():
    """Ten steps of a tied GPT-2 by Opacus' wrapped model and optimizer, and by us, same noise."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    clip_norm, sigma, rate = 0.5, 0.7, 0.5
    ours, theirs = model_of("gpt2-tied"), model_of("gpt2-tied")
    batches = [batch_of(ours, seed=s) for s in range(10)]
    curves = []

    noise, curve = torch.Generator().manual_seed(4), []
    for batch in batches:
        ours.zero_grad()
        curve.append(
            clipping.add_clipped_gradients(ours, **batch, clip_norm=clip_norm).losses.sum()
        )
        add_noise(list(ours.parameters()), std=sigma * clip_norm, generator=noise)
        with torch.no_grad():
            for p in ours.parameters():
                p.sub_(rate * p.grad / 6)
    curves.append(torch.stack(curve))

    wrapped = GradSampleModule(Logits(theirs), loss_reduction="sum")
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=rate / 6),
        noise_multiplier=sigma,
        max_grad_norm=clip_norm,
        expected_batch_size=None,
        loss_reduction="sum",
        generator=torch.Generator().manual_seed(4),
    )
    curve = []
    for batch in batches:
        optimizer.zero_grad()
        lengths = batch["lengths"] - 1
        targets = batch["tokens"][:, 1:].clamp_max(22)
        weights = (torch.arange(targets.shape[1]) < lengths[:, None]) / lengths.clamp_min(1)[
            :, None
        ]
        logits = wrapped(batch["tokens"][:, :-1].clamp_max(22)).transpose(1, 2)
        nll = nn.functional.cross_entropy(logits, targets, reduction="none")
        loss = (nll * weights).sum()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch on hooks of layers that read token ids
            loss.backward()
        optimizer.step()
        curve.append(loss.detach())
    curves.append(torch.stack(curve))
    torch.testing.assert_close(curves[0], curves[1], rtol=1e-4, atol=1e-4)
    assert (curves[0][0] - curves[0][-1]).abs() > 0.1  # it moved


class Logits(nn.Module):
    """For Opacus: position ids of the batch's own size."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model.lm_head(interface.hidden_states(self.model, ids))


@pytest.mark.parametrize("name", ["gemma2", "bert"])
def test_what_opacus_cannot_take_is_refused_by_us_in_one_line(name):
    model = model_of(name)
    with pytest.raises(ValueError, match="opacus: "):
        opacus_engine.add_clipped_gradients(model, **batch_of(model), clip_norm=1.0)
    assert all(p.grad is None or p.grad.abs().max() == 0 for p in model.parameters())


def test_mistakes_are_named():
    model = model_of("lstm")
    batch = batch_of(model)
    for change, message in (
        ({"clip_norm": 0.0}, r"clip_norm=0\.0: must be at least"),
        ({"clip_norm": float("nan")}, "clip_norm=nan"),
        ({"reduction": "max"}, "reduction='max': must be one of mean, sum"),
        ({"lengths": torch.tensor([99] * 6)}, "lengths up to"),
        ({"lengths": torch.tensor([3])}, "tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            clipping.add_clipped_gradients(model, **({**batch, "clip_norm": 1.0} | change))
    with pytest.raises(ValueError, match="std=-1"):
        add_noise([], std=-1.0, generator=torch.Generator())
    bert = model_of("bert")
    with pytest.raises(ValueError, match="targets=None"):
        clipping.add_unclipped_gradients(bert, batch["tokens"], batch["lengths"])
    assert copy.deepcopy(model)  # the engine leaves nothing that cannot be copied
