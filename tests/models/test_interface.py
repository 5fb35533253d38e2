"""Recurrences against torch, scores against plain forward passes, tries against scores."""

import numpy as np
import pytest
import torch
from torch import nn

from crtlib.models import generation, interface, scoring
from crtlib.models.construction import build_model
from crtlib.models.pretrained import load_pretrained
from crtlib.models.recurrent import Gru, Lstm
from crtlib.models.specs import ModelSpec
from tests.models import torch_weights

SPECS = {
    "lstm": ModelSpec("lstm", 31, embedding=6, hidden=8),
    "lstm-2": ModelSpec("lstm", 31, embedding=6, hidden=8, layers=2),
    "gru": ModelSpec("gru", 31, embedding=6, hidden=8),
    "gpt2": ModelSpec("gpt2", 31, hidden=16, layers=2, heads=2, context=20),
    "gemma2": ModelSpec("gemma2", 31, hidden=16, layers=2, heads=2, context=20),
}


def model_of(name):
    model = build_model(SPECS[name], seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator))
    return model


def naive(model, sequence):
    """Scores of one sequence by the model's own forward pass."""
    out = model(torch.tensor([sequence]))
    logprobs = torch.log_softmax(getattr(out, "logits", out)[0].double(), -1)
    return logprobs[:-1].gather(1, torch.tensor(sequence[1:])[:, None])[:, 0].detach().numpy()


@pytest.mark.parametrize(("ours", "theirs"), [(Lstm, nn.LSTM), (Gru, nn.GRU)])
def test_recurrence_has_the_numbers_and_gradients_of_torch(ours, theirs):
    torch.manual_seed(0)
    mine, reference = ours(5, 7).double(), theirs(5, 7, batch_first=True).double()
    torch_weights.copy(mine, reference)
    x = torch.randn(3, 6, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 6, 7, dtype=torch.float64)
    expected = reference(x)[0]
    torch.testing.assert_close(mine(x), expected, rtol=1e-12, atol=1e-12)
    (expected * weight).sum().backward()
    x_grad, x.grad = x.grad, None
    (mine(x) * weight).sum().backward()
    torch.testing.assert_close(x.grad, x_grad, rtol=1e-12, atol=1e-12)
    # Gradients map to each other as the weights do.
    grads = ours(5, 7).double()
    with torch.no_grad():
        for p in reference.parameters():
            p.copy_(p.grad)
        if theirs is nn.LSTM:  # one bias has the gradient of either of theirs
            reference.bias_hh_l0.zero_()
    torch_weights.copy(grads, reference)
    for p, q in zip(mine.parameters(), grads.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q, rtol=1e-11, atol=1e-11)
    assert torch.autograd.gradcheck(
        ours(2, 3).double(), torch.randn(2, 3, 2).double().requires_grad_()
    )


@pytest.mark.parametrize("name", [*SPECS, "bert"])
def test_build_is_deterministic_and_leaves_global_randomness_alone(name):
    spec = SPECS.get(name) or ModelSpec("bert", 31, hidden=16, layers=2, heads=2, context=20)
    state = torch.random.get_rng_state()
    first, second, other = (build_model(spec, seed) for seed in (3, 3, 4))
    assert torch.equal(state, torch.random.get_rng_state())
    pairs = list(zip(first.parameters(), second.parameters(), strict=True))
    assert all(torch.equal(p, q) for p, q in pairs)
    assert any(
        not torch.equal(p, q) for p, q in zip(first.parameters(), other.parameters(), strict=True)
    )


def test_tied_means_one_parameter():
    for kind, sizes in (("lstm", {}), ("gpt2", {}), ("gemma2", {}), ("bert", {})):
        for tied in (True, False):
            model = build_model(ModelSpec(kind, 31, hidden=16, heads=2, tied=tied, **sizes), 0)
            names = [n for n, p in model.named_parameters() if p.shape == (31, 16)]
            assert len(names) == (1 if tied else 2), (kind, tied, names)


@pytest.mark.parametrize("name", SPECS)
def test_scores_are_those_of_one_forward_pass_each_in_the_order_given(name, monkeypatch):
    model = model_of(name)
    generator = np.random.default_rng(0)
    sequences = [generator.integers(0, 31, n).tolist() for n in (5, 0, 20, 1, 2, 9, 5)]
    for batch_tokens in (1, 30, 10_000):
        monkeypatch.setattr(scoring, "MAX_BATCH_TOKENS", batch_tokens)
        scores, _ = scoring.token_scores(model, sequences)
        assert [len(s) for s in scores] == [max(0, len(s) - 1) for s in sequences]
        for sequence, got in zip(sequences, scores, strict=True):
            if len(sequence) > 1:
                np.testing.assert_allclose(got, naive(model, sequence), atol=2e-5)
    assert model.training


@pytest.mark.parametrize("name", SPECS)
def test_the_rank_of_a_token_counts_the_likelier_ones(name):
    model = model_of(name)
    sequences = [np.random.default_rng(k).integers(0, 31, n).tolist() for k, n in ((0, 9), (1, 4))]
    sequences += [np.random.default_rng(2).integers(0, 31, 33).tolist()]  # beyond GPT-2's context
    logprobs, ranks = scoring.token_scores(model, sequences)
    again = scoring.token_logprobs(model, sequences)
    for sequence, own, rank, scored in zip(sequences, logprobs, ranks, again, strict=True):
        np.testing.assert_array_equal(own, scored)
        assert rank.shape == own.shape and rank.dtype == np.int64
        for t in range(1, min(len(sequence), 20)):
            after = generation.read_prefix(model.eval(), sequence[:t])[1][0]
            assert rank[t - 1] == int((after > after[sequence[t]]).sum())


def test_a_sequence_beyond_the_context_is_read_in_windows():
    model = model_of("gpt2")
    sequence = np.random.default_rng(1).integers(0, 31, 47).tolist()
    short = sequence[:8]
    long, other = scoring.token_logprobs(model, [sequence, short])
    np.testing.assert_allclose(long[:19], naive(model, sequence[:20]), atol=2e-5)
    np.testing.assert_allclose(long[19:29], naive(model, sequence[10:30])[9:], atol=2e-5)
    np.testing.assert_allclose(long[29:39], naive(model, sequence[20:40])[9:], atol=2e-5)
    np.testing.assert_allclose(long[39:], naive(model, sequence[27:])[12:], atol=2e-5)
    np.testing.assert_allclose(other, naive(model, short), atol=2e-5)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_of_a_trie_are_the_scores_of_whole_sequences(name, dtype):
    model = model_of(name).to(dtype)
    prefix, letters = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], torch.tensor([7, 8, 9])
    state, logprobs = generation.read_prefix(model, prefix)
    assert logprobs.shape == (1, 31) and logprobs.dtype == dtype
    totals, texts = torch.zeros(1, dtype=dtype), [[]]
    for _ in range(3):
        totals = (totals[:, None] + logprobs[:, letters]).flatten()
        texts = [[*text, int(a)] for text in texts for a in letters]
        parents = torch.arange(len(logprobs)).repeat_interleave(3)
        kept = state
        state, logprobs = generation.extend_prefix(
            model, state.select(parents), letters.repeat(len(logprobs))
        )
    assert kept.length == state.length - 1  # the old state is still there, unchanged
    again, _ = generation.extend_prefix(model, kept.select(parents), letters.repeat(9))
    assert all(
        torch.equal(a, b) for x, y in zip(again.layers, state.layers, strict=True)
        for a, b in zip(x, y, strict=True)
    )  # fmt: skip
    whole = scoring.token_logprobs(model, [[*prefix, *text] for text in texts])
    expected = [s[len(prefix) - 1 :].sum() for s in whole]
    np.testing.assert_allclose(totals, expected, atol=1e-4 if dtype == torch.float32 else 1e-10)


def test_load_reads_safetensors_only_and_checks_the_head(tmp_path):
    model = model_of("gpt2")
    model.save_pretrained(tmp_path / "safe")
    loaded = load_pretrained(tmp_path / "safe")
    assert not loaded.training
    sequence = [1, 2, 3, 4, 5]
    for a, b in zip(*(scoring.token_logprobs(m, [sequence]) for m in (model, loaded)), strict=True):
        np.testing.assert_array_equal(a, b)
    unsafe = tmp_path / "unsafe"
    model.config.save_pretrained(unsafe)
    torch.save(model.state_dict(), unsafe / "pytorch_model.bin")
    with pytest.raises(ValueError, match="holds pickled weights; save it as safetensors"):
        load_pretrained(unsafe)


def test_mistakes_are_named():
    for fields, message in (
        ({"kind": "rnn"}, "kind='rnn': must be one of lstm"),
        ({"kind": "lstm", "hidden": 0}, "hidden=0: must be at least 1"),
        ({"kind": "gpt2", "hidden": 10, "heads": 4}, "heads=4: must divide hidden=10"),
        ({"kind": "lstm", "hidden": 8, "embedding": 4, "tied": True}, "embedding=4: must be 8"),
    ):
        with pytest.raises(ValueError, match=message):
            ModelSpec(vocab_size=9, **fields)
    model = model_of("gpt2")
    with pytest.raises(ValueError, match="sequence of 21 tokens: must be at most 20"):
        interface.hidden_states(model, torch.zeros(1, 21, dtype=torch.long))
    with pytest.raises(ValueError, match="prefix of 21 tokens"):
        generation.read_prefix(model, [0] * 21)
    bert = build_model(ModelSpec("bert", 31, hidden=16, heads=2), 0)
    with pytest.raises(ValueError, match="must be causal"):
        scoring.token_logprobs(bert, [[1, 2]])
