"""Every number that a private step releases has the noise that is accounted, and noise of its own.

A step is repeated many times through ``train``; what it adds to each parameter is measured tensor
by tensor to 1 %, row by row (also rows whose gradient is zero: tokens that no text holds), and
number by number. The clipped sum is at most a thousandth of the noise, so it needs no subtraction.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from crtbook.secrets import MaskedPhase
from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.training.loop import train_model
from crtlib.training.noise import add_noise
from crtlib.training.phases import PrivatePhase
from crtlib.training.selective import SelectivePhase

REPEATS = 500
SPECS = {
    "lstm": ModelSpec("lstm", 256, embedding=16, hidden=64),
    "lstm-tied": ModelSpec("lstm", 256, hidden=64, tied=True),
    "gpt2": ModelSpec("gpt2", 256, hidden=256, layers=1, heads=2, context=8, tied=False),
}
POINTS = [[1, 9, 9, 2], [3, 8, 7], [5, 5, 4, 5, 5]]  # of 256 tokens
SIGMA, CLIP_NORM, RATE = 1000.0, 1e-3, 1e-4
SHARED = {
    "epoch": 1,
    "steps": 1,
    "noise_multiplier": SIGMA,
    "clip_norm": CLIP_NORM,
    "normaliser": 2.5,
    "learning_rate": RATE,
}
PHASES = {
    "one probability": PrivatePhase(sampling_probability=0.5, **SHARED),
    "one for each point": PrivatePhase(sampling_probability=(0.0, 0.5, 1.0), **SHARED),
    "masked": MaskedPhase(sampling_probability=1.0, vocab_size=256, **SHARED),
    "selective": SelectivePhase(
        epoch=1,
        batch_size=3,
        private_segments=1,
        noise_multiplier=SIGMA,
        clip_norm=CLIP_NORM,
        hidden_clip=None,
        public_learning_rate=RATE,
        private_learning_rate=RATE,
    ),
}


def moves(phase, model, *, secure=False, repeats=REPEATS):
    """What each step adds to each parameter, over its accounted deviation: by name, mean square
    (of its shape) and the first and the last 16 numbers of every step, (repeats, 32)."""
    divisor = getattr(phase, "normaliser", None) or phase.batch_size
    unit = RATE * SIGMA * CLIP_NORM / divisor
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    squares = {n: torch.zeros_like(p) for n, p in before.items()}
    samples = {n: [] for n in before}

    def look(epoch, model):
        for n, p in model.named_parameters():
            move = (p.detach() - before[n]) / unit
            squares[n].addcmul_(move, move)
            samples[n].append(torch.cat([move.flatten()[:16], move.flatten()[-16:]]))
            before[n].copy_(p.detach())
        return {}

    train_model(
        model,
        [replace(phase, epoch=k) for k in range(repeats)],
        {"private": POINTS},
        private_tokens={"private": [[True] * len(p) for p in POINTS]},
        seed=0,
        secure=secure,
        optimizer="sgd",
        on_epoch=look,
    )
    return {n: (squares[n] / repeats, torch.stack(samples[n])) for n in before}


def check(measured, repeats=REPEATS):
    """The accounted deviation, to 1 % in each tensor and as far as chance allows in each row and
    each number; and no number's noise is that of another, or of the step before."""
    for name, (square, _) in measured.items():
        numbers = square.numel() * repeats
        assert 5 / np.sqrt(2 * numbers) < 0.0101, f"{name}: too few numbers to see 1 %"
        assert abs(square.mean().sqrt() - 1) < 0.01, name
        rows = square.flatten(1).mean(1) if square.ndim > 1 else square
        bound = 6 / np.sqrt(2 * repeats * square.numel() / len(rows))
        assert (rows.sqrt() - 1).abs().max() < bound, f"a row of {name}"
        assert (square.sqrt() - 1).abs().max() < 6 / np.sqrt(2 * repeats), f"a number of {name}"
    samples = torch.cat([sample for _, sample in measured.values()], 1)  # (repeats, numbers)
    assert samples.mean(0).abs().max() < 6 / np.sqrt(repeats), "noise that is off centre"
    twins = torch.corrcoef(samples.T).fill_diagonal_(0)
    assert twins.abs().max() < 6 / np.sqrt(repeats), "two numbers share their noise"
    after = (samples[1:] * samples[:-1]).mean(0)
    assert after.abs().max() < 6 / np.sqrt(repeats), "a step repeats the noise of another"


@pytest.mark.parametrize(
    ("kind", "name"),
    [*((kind, "lstm") for kind in PHASES), ("one probability", "lstm-tied"), ("masked", "gpt2")],
)
def test_noise_of_every_number_is_the_accounted_one(kind, name):
    check(moves(PHASES[kind], build_model(SPECS[name], 0)))


def test_secure_noise_is_as_good():
    check(moves(PHASES["one probability"], build_model(SPECS["lstm"], 0), secure=True))


def test_noise_of_a_released_state_is_the_accounted_one():
    """Every unit of every row of the output or cell that leaves a private segment."""
    phase = replace(PHASES["selective"], hidden_clip=0.5)
    generator, x = torch.Generator().manual_seed(0), torch.rand(8, 32)
    rows = torch.stack([phase.released(x, generator) for _ in range(REPEATS)]) / (SIGMA * 0.5)
    check({"state": (rows.square().mean(0), rows.flatten(1)[:, :64])})


def test_noise_of_a_large_tensor_does_not_repeat_itself():
    """It is drawn in pieces."""
    large = torch.nn.Parameter(torch.zeros(4, 2**16))
    for generator in (torch.Generator().manual_seed(0), "secure"):
        large.grad = None
        add_noise([large], std=2.0, generator=generator)
        assert (large.grad.std(1) / 2 - 1).abs().max() < 0.01
        assert torch.corrcoef(large.grad).fill_diagonal_(0).abs().max() < 6 / 2**8


@pytest.mark.parametrize("generator", ["secure", "seeded"])
def test_every_tensor_of_many_has_its_noise(generator):
    """A transformer has hundreds: of each the deviation is the one that is asked for, to 1 %."""
    many = [torch.nn.Parameter(torch.zeros(2**16)) for _ in range(40)]
    seeded = torch.Generator().manual_seed(0)
    add_noise(many, std=2.0, generator=seeded if generator == "seeded" else "secure")
    assert all(abs(p.grad.std() / 2 - 1) < 0.0145 for p in many)  # 5 deviations of a deviation
    whole = torch.cat([p.grad for p in many])
    assert abs(whole.std() / 2 - 1) < 0.0022
