"""Ranks through the trie are those of brute force; chance is what chance is."""

import numpy as np
import pytest
import torch

from crtlib.attacks import exposure
from crtlib.models import scoring
from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.text import canaries, tokenizer

LETTERS = [3, 5, 7, 8]
SPECS = {
    "lstm": ModelSpec("lstm", vocab_size=12, embedding=8, hidden=16),
    "gpt2": ModelSpec("gpt2", vocab_size=12, hidden=16, layers=2, heads=2, context=32),
}


@pytest.mark.parametrize("kind", SPECS)
def test_trie_equals_brute_force(kind, monkeypatch):
    model = build_model(SPECS[kind], seed=1)
    monkeypatch.setattr(exposure, "STATES_AT_ONCE", 20)  # several blocks at each depth
    fast = exposure.all_string_logprobs(model, [1, 2], LETTERS, 4)
    grid = np.stack(np.meshgrid(*[LETTERS] * 4, indexing="ij"), -1).reshape(-1, 4)
    exact = scoring.token_logprobs(model.double(), [[1, 2, *row] for row in grid.tolist()])
    brute = np.array([scores[1:].sum() for scores in exact])
    np.testing.assert_allclose(fast, brute, atol=1e-5)
    model.float()
    every = np.stack(np.meshgrid(*[range(4)] * 4, indexing="ij"), -1).reshape(-1, 4)
    found = exposure.rank_secrets(model, [1, 2], LETTERS, every)
    assert (found == [1 + (brute > b).sum() for b in brute]).all()


def test_near_ties_are_settled_in_float64():
    """Logits that differ by about 1e-9: float32 cannot order the letters, the rank still does."""
    model = build_model(SPECS["lstm"], seed=2)
    with torch.no_grad():
        model.head.weight.mul_(1e-8)
        model.head.bias.zero_()
    assert len(np.unique(exposure.all_string_logprobs(model, [1], LETTERS, 2))) < 4
    secrets = np.stack(np.meshgrid(*[range(4)] * 2, indexing="ij"), -1).reshape(-1, 2)
    assert sorted(exposure.rank_secrets(model, [1], LETTERS, secrets)) == list(range(1, 17))


def test_a_coarse_float32_score_widens_the_margin(monkeypatch):
    """Scores that are wrong by 1e-3 must not decide a rank."""
    model = build_model(SPECS["lstm"], seed=1)
    every = np.stack(np.meshgrid(*[range(4)] * 3, indexing="ij"), -1).reshape(-1, 3)
    right = exposure.rank_secrets(model, [1, 2], LETTERS, every)
    scores = exposure.all_string_logprobs
    noise = np.random.default_rng(0).uniform(-1e-3, 1e-3, 64)
    monkeypatch.setattr(exposure, "all_string_logprobs", lambda *a: scores(*a) + noise)
    assert (exposure.rank_secrets(model, [1, 2], LETTERS, every) == right).all()


def test_exposure_of_random_secrets_is_inside_the_chance_band():
    """An untrained model ranks a random canary uniformly: mean exposure 1/ln 2 bits."""
    bpe = tokenizer.train_bpe(["USR: My ID is"], vocab_size=280)
    spec = ModelSpec("lstm", vocab_size=bpe.vocab_size, embedding=8, hidden=8)
    scores = exposure.canary_exposure(build_model(spec, 0), bpe, canaries.make_canaries(40, seed=0))
    assert abs(scores.mean() - 1 / np.log(2)) < 4 * scores.std() / np.sqrt(40)


def test_chance_band_narrows_with_seeds_and_widens_with_points():
    one = exposure.exposure_chance_band(canaries=10)
    assert 4.1 < one.mean < 4.4
    five = exposure.exposure_chance_band(canaries=10, seeds=5)
    family = exposure.exposure_chance_band(canaries=10, seeds=5, points=20)
    assert five.high - five.low < one.high - one.low
    assert family.low < five.low < five.high < family.high
    mean = exposure.exposure_chance_band(canaries=10, statistic="mean")
    assert abs(mean.mean - 1 / np.log(2)) < 0.02


def test_impossible_ranks_are_refused():
    with pytest.raises(ValueError, match=r"rank=0..0: must be in \[1, 10\]"):
        exposure.exposure_from_rank(0, 10)
