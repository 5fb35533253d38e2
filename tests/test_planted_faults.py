"""Each classic mistake of private training, planted on purpose: the suite must notice.

A test that has never failed proves little. Here a guard (most are tests of other modules) passes
on the library as it is, and fails once the fault is in.
"""

import numpy as np
import pytest
import torch

from crtlib.models.build import build
from crtlib.training import bookkeeping, clipping, phases
from crtlib.training.loop import train
from crtlib.training.noise import add_noise
from tests.training import test_clipping
from tests.training import test_loop as test_train


# --------------------------------------------------------------------------- guards
def same_as_loop(name):
    """Norms and clipped sums are those of one example at a time."""
    with pytest.MonkeyPatch.context() as patch:
        test_clipping.test_clipped_sum_is_that_of_a_loop(name, "mean", 100, patch)


def bounded(name):
    test_clipping.test_clipped_example_does_not_exceed_the_bound(name)


def noise_has_the_accounted_deviation():
    """Of a step on many points, that on the same points without noise taken away."""
    parts = {"private": [[1, 9, 9, 2], [3, 8, 7]] * 20}
    ends = []
    for sigma in (0.0, 2.0):
        phase = test_train.private(
            sampling_probability=1.0, steps=1, noise_multiplier=sigma, learning_rate=1.0
        )
        model = build(test_train.SPEC, 0)
        train(model, [phase], parts, seed=0, optimizer="sgd")
        ends.append(test_train.flat(model))
    noise = (ends[1] - ends[0]) * phase.normaliser
    expected = phase.event().noise_multiplier * phase.clip_norm
    assert abs(noise.std().item() / expected - 1) < 5 / np.sqrt(2 * len(noise))


# --------------------------------------------------------------------------- faults
def cross_term_left_out(patch):
    patch.setattr(bookkeeping, "cross", lambda a, b: 0.0)


def shared_buffer_scaled_twice(patch):
    """Scale in place what several weights read: the input of queries, keys and values."""

    honest = bookkeeping.Outer.add

    def add(self, factors):
        self.columns.mul_(factors[self.span, None, None])
        honest(self, None)

    patch.setattr(bookkeeping.Outer, "add", add)


def layer_left_unclipped(patch):
    """Its gradient is summed, but does not count in the norm."""
    patch.setattr(bookkeeping.Whole, "square", lambda self: torch.zeros(len(self.grads)))


def bias_left_out_of_the_norm(patch):
    honest = bookkeeping.Outer.square

    def square(self):
        bias, self.bias = self.bias, None
        columns, self.columns = self.columns, self.matrix_columns()
        try:
            return honest(self)
        finally:
            self.bias, self.columns = bias, columns

    patch.setattr(bookkeeping.Outer, "square", square)


def batch_clipped_instead_of_examples(patch):
    def factors(norms, clip_norm):
        return (clip_norm / norms.square().sum().sqrt()).clamp_max(1).expand_as(norms)

    patch.setattr(clipping, "clip_factors", factors)


def step_with(patch, *, std=lambda phase, points: phase.noise_multiplier * phase.clip_norm,
              divisor=lambda phase, points: phase.normaliser):  # fmt: skip
    def step(self, model, batch, noise):
        for tokens, lengths in batch:
            clipping.clipped_sum(model, tokens, lengths, clip_norm=self.clip_norm)
        points = sum(len(lengths) for _, lengths in batch)
        parameters = list(model.parameters())
        add_noise(parameters, std=std(self, points), generator=noise)
        for p in parameters:
            p.grad.div_(divisor(self, points))
        return 0

    patch.setattr(phases.PrivatePhase, "step", step)


def noise_scaled_by_the_batch(patch):
    def std(phase, points):
        return phase.noise_multiplier * phase.clip_norm / max(points, 1)

    step_with(patch, std=std)


def normaliser_of_private_size(patch):
    step_with(patch, divisor=lambda phase, points: max(points, 1))


def empty_batch_skipped(patch):
    honest = phases.PrivatePhase.batches

    def batches(self, lengths, generator):
        return (batch for batch in honest(self, lengths, generator) if len(batch))

    patch.setattr(phases.PrivatePhase, "batches", batches)


def shuffled_loader_instead_of_poisson(patch):
    def batches(self, lengths, generator):
        size, done = int(self.sampling_probability * len(lengths)), 0
        while True:
            for batch in torch.randperm(len(lengths), generator=generator).split(size):
                if done == self.steps:
                    return
                done += 1
                yield batch

    patch.setattr(phases.PrivatePhase, "batches", batches)


FAULTS = [
    (cross_term_left_out, lambda: same_as_loop("gpt2-tied")),
    (cross_term_left_out, lambda: bounded("gpt2-tied")),
    (cross_term_left_out, lambda: bounded("lstm-tied")),
    (shared_buffer_scaled_twice, lambda: same_as_loop("bert")),
    (layer_left_unclipped, lambda: bounded("gpt2-untied")),
    (bias_left_out_of_the_norm, lambda: bounded("lstm")),
    (batch_clipped_instead_of_examples, lambda: same_as_loop("lstm")),
    (noise_scaled_by_the_batch, noise_has_the_accounted_deviation),
    (normaliser_of_private_size, test_train.test_the_normaliser_does_not_depend_on_the_data),
    (empty_batch_skipped, test_train.test_an_empty_batch_still_adds_noise_and_counts),
    (
        shuffled_loader_instead_of_poisson,
        test_train.test_the_sampler_is_poisson_with_the_probability_of_the_event,
    ),
]


@pytest.mark.parametrize(("plant", "guard"), FAULTS, ids=[plant.__name__ for plant, _ in FAULTS])
def test_planted_fault_is_caught(plant, guard, monkeypatch):
    guard()  # the library as it is
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        guard()


def test_planted_step_is_the_honest_one_but_for_its_fault(monkeypatch):
    """Otherwise the faults above might be caught for another reason."""
    step_with(monkeypatch)
    noise_has_the_accounted_deviation()
    test_train.test_the_normaliser_does_not_depend_on_the_data()
    test_train.test_an_empty_batch_still_adds_noise_and_counts()
