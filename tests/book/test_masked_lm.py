"""Masked language models: what is hidden, what one example may change, what the loss is."""

import numpy as np
import pytest
import torch

from crtbook import secrets as masked_lm
from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.training import micro_batch
from crtlib.training.loop import train_model

SPEC = ModelSpec("bert", vocab_size=30, hidden=8, heads=2, context=16)
GENERATOR = torch.Generator()


def test_hidden_tokens_are_those_asked_for_in_the_proportions_of_bert():
    tokens = torch.full((400, 52), 5)
    lengths = torch.full((400,), 52)
    lengths[0] = 10
    inputs, targets = masked_lm.hide_tokens(
        tokens, lengths, mask=2, vocab_size=30, generator=GENERATOR.manual_seed(0)
    )
    asked = targets != micro_batch.IGNORE_INDEX
    assert not asked[:, 0].any() and not asked[1:, -1].any() and not asked[0, 9:].any()
    assert (inputs[~asked] == 5).all() and (targets[asked] == 5).all()
    n = int(asked.sum())
    assert abs(n / (399 * 50 + 8) - 0.15) < 4 * np.sqrt(0.15 * 0.85 / 20_000)
    assert abs((inputs[asked] == 2).sum() / n - (0.8 + 0.1 / 30)) < 4 * np.sqrt(0.16 / n)
    assert abs((inputs[asked] == 5).sum() / n - (0.1 + 0.1 / 30)) < 4 * np.sqrt(0.09 / n)


def phase(**changes):
    given = {"epoch": 1, "sampling_probability": (1.0,) * 4, "steps": 1, "noise_multiplier": 0.0}
    given |= {"clip_norm": 0.01, "normaliser": 1.0, "learning_rate": 1.0, "mask": 2}
    return masked_lm.MaskedPhase(**given | {"vocab_size": 30} | changes)


def moved(made, sequences):
    model = build_model(SPEC, 0)
    before = [p.detach().clone() for p in model.parameters()]
    train_model(model, [made], {"private": sequences}, seed=0, optimizer="sgd")
    both = zip(model.parameters(), before, strict=True)
    return torch.cat([(p.detach() - b).flatten() for p, b in both])


def test_step_moves_by_the_clipping_norm_of_each_example_and_by_the_accounted_noise():
    sequences = [[0, *range(3 + i, 11 + i), 1] for i in range(4)]
    clipped = moved(phase(), sequences)
    assert 0 < clipped.norm() <= 4 * 0.01 * (1 + 1e-5)
    one = moved(phase(sampling_probability=(1.0, 0.0, 0.0, 0.0)), sequences)
    assert one.norm() <= 0.01 * (1 + 1e-5)
    noise = moved(phase(noise_multiplier=300.0), sequences) - clipped
    assert abs(noise.std() / 3.0 - 1) < 5 / np.sqrt(2 * len(noise))
    assert phase(noise_multiplier=300.0).event().noise_multiplier == 300.0


def test_training_lowers_the_loss_of_what_can_be_predicted():
    sequences = [[0, 3, 4, 3, 4, 3, 4, 3, 4, 1], [0, 5, 6, 5, 6, 5, 6, 5, 6, 1]] * 8
    model = build_model(SPEC, 0)
    before = masked_lm.measure_loss(model, sequences, mask=2, seed=1)
    steps = phase(
        sampling_probability=(1.0,) * 16,
        steps=60,
        clip_norm=1.0,
        normaliser=16.0,
        learning_rate=0.02,
    )
    train_model(model, [steps], {"private": sequences}, seed=0)
    after = masked_lm.measure_loss(model, sequences, mask=2, seed=1)
    assert abs(before - np.log(30)) < 0.2 and after < 1.6
    assert masked_lm.measure_loss(model, sequences, mask=2, seed=1) == after


def test_bad_input_is_named():
    tokens, lengths = torch.zeros(1, 4, dtype=torch.long), torch.tensor([4])
    with pytest.raises(ValueError, match=r"share=0: must be in \(0, 1\]"):
        masked_lm.hide_tokens(tokens, lengths, mask=2, vocab_size=9, generator=GENERATOR, share=0)
    causal = build_model(ModelSpec("lstm", 9, hidden=4), 0)
    with pytest.raises(ValueError, match="model: must be a masked"):
        masked_lm.measure_loss(causal, [[0, 1]], mask=2, seed=0)
