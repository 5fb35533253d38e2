"""A probability for each point (weighted DP-SGD): what runs is what is accounted."""

import math
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from scipy import sparse, stats

from crtbook import tight
from crtbook.secrets import MaskedPhase
from crtlib.accounting import secret_protection
from crtlib.models.construction import build_model
from crtlib.training import phases, schedules
from crtlib.training.loop import train_model
from crtlib.training.phases import PrivatePhase
from crtlib.training.selective import SelectivePhase
from crtlib.training.steps import set_private_gradient
from tests.training.test_loop import PARTS, SPEC, flat

HELD = sparse.csr_array([[1, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 0], [0, 1, 0, 0]])
POSTERIOR = (0.3572905727, 0.3939942833, 0.1405737778, 0.2510016204)


def phase(**changes):
    fields = {
        "epoch": 1,
        "sampling_probability": (0.5,) * len(PARTS["private"]),
        "steps": 4,
        "noise_multiplier": 1.0,
        "clip_norm": 0.1,
        "normaliser": 5.0,
        "learning_rate": 0.01,
    }
    return phases.PrivatePhase(**fields | changes)


def plan():
    return secret_protection.plan_protection(
        HELD,
        0.01,
        POSTERIOR,
        steps=100,
        batch_size=1,
        scale=1.0,
        budget_growth="linear",
        neighbouring_relation="reference",
    )


@pytest.mark.parametrize("generator", [torch.Generator().manual_seed(0), "secure"])
def test_each_point_is_sampled_with_its_own_probability(generator):
    p = np.random.default_rng(0).uniform(0, 0.3, 300)
    p[:2] = 0, 1
    made = phase(sampling_probability=tuple(p), steps=2000)
    drawn = np.zeros((made.steps, len(p)), dtype=bool)
    for t, batch in enumerate(made.batches(torch.ones(len(p)), generator)):
        drawn[t, batch] = True
    event = made.event()
    each = stats.binom(event.steps, np.array(event.sampling_probabilities))
    counts = drawn.sum(0)
    assert (each.ppf(1e-6) <= counts).all() and (counts <= each.ppf(1 - 1e-6)).all()
    assert counts[0] == 0 and counts[1] == made.steps
    sizes = drawn.sum(1)  # a Poisson-binomial, not a fixed size
    assert abs(sizes.var() / (p * (1 - p)).sum() - 1) < 5 * np.sqrt(2 / made.steps)


def test_the_count_of_a_group_has_the_accounted_law():
    """What the guarantee rests on: how many of a secret's points a batch holds."""
    p = np.random.default_rng(1).uniform(0, 0.2, 12)
    made = phase(sampling_probability=tuple(p), steps=20_000)
    counts = [len(b) for b in made.batches(torch.ones(12), torch.Generator().manual_seed(3))]
    from crtlib.accounting import group_mixtures

    law = group_mixtures.poisson_binomial(p)
    seen = np.bincount(counts, minlength=len(law))[:6]
    sd = np.sqrt(made.steps * law[:6] * (1 - law[:6]))
    assert (np.abs(seen - made.steps * law[:6]) < 5 * sd + 1).all()


def noise_has_the_accounted_deviation():
    """Of a step on every point, that on the same points without noise taken away."""
    everything = (1.0,) * len(PARTS["private"])
    ends = []
    for sigma in (0.0, 2.0):
        made = phase(
            sampling_probability=everything, steps=1, noise_multiplier=sigma, learning_rate=1.0
        )
        model = build_model(SPEC, 0)
        before = flat(model)
        run = train_model(model, [made], PARTS, seed=0, optimizer="sgd")
        ends.append(flat(model) - before)
    assert run.events == [made.event()] and run.updates == {"private": 1}
    noise = (ends[1] - ends[0]) * made.normaliser
    expected = run.events[0].noise_multiplier * made.clip_norm
    assert abs(noise.std().item() / expected - 1) < 5 / np.sqrt(2 * len(noise))


def test_training_adds_the_accounted_noise():
    noise_has_the_accounted_deviation()


def test_planted_fault_half_the_noise_is_caught(monkeypatch):
    honest = phases.PrivatePhase.updates

    def updates(self, *what):
        return honest(replace(self, noise_multiplier=self.noise_multiplier / 2), *what)

    monkeypatch.setattr(phases.PrivatePhase, "updates", updates)
    with pytest.raises(AssertionError):
        noise_has_the_accounted_deviation()


def test_the_phases_of_a_plan_keep_its_promises():
    made = plan()
    for epochs in (1, 3):
        schedule = schedules.weighted_phases(made, epochs=epochs, clip_norm=0.1, learning_rate=0.1)
        assert sum(p.steps for p in schedule) == made.steps and schedule[0].normaliser == 1
        bound, spent = secret_protection.secret_guess_bounds(
            (p.event() for p in schedule), HELD, prior=0.01, neighbouring_relation="reference"
        )
        assert (bound <= np.array(POSTERIOR) * (1 + 1e-9)).all()
        assert bound[made.binding[0]] == pytest.approx(POSTERIOR[1], rel=1e-8)
        each = [g.posterior_kl for g in tight.account_secrets(made, range(4), tight=False)]
        assert bound.tolist() == pytest.approx(each, rel=1e-9)
        less = [replace(p, noise_multiplier=p.noise_multiplier / 2) for p in schedule]
        broken, more = secret_protection.secret_guess_bounds(
            (p.event() for p in less), HELD, prior=0.01, neighbouring_relation="reference"
        )
        assert (more > spent).all() and (broken > np.array(POSTERIOR)).any()


def test_without_noise_nothing_is_promised_of_a_sampled_secret():
    p = (0.0, 0.5, 0.0, 0.5)
    bound, spent = secret_protection.secret_guess_bounds(
        phase(sampling_probability=p, noise_multiplier=0.0).event(),
        HELD,
        prior=0.01,
        neighbouring_relation="reference",
    )
    assert bound.tolist() == [1, 1, pytest.approx(0.01), 1] and spent[0] == math.inf


def public(**changes):
    fields = {"epoch": 1, "part": "public", "passes": 2, "batch_size": 3, "learning_rate": 0.1}
    return phases.PublicPhase(**fields | changes)


def test_public_batches_cover_the_points_once_a_pass_and_hold_what_is_alike():
    """Of each draw of four batches the shortest points are in one, the next in another, ..."""
    lengths = torch.arange(30).flip(0)
    batches = list(public().batches(lengths, torch.Generator().manual_seed(0)))
    again = list(public().batches(lengths, torch.Generator().manual_seed(0)))
    assert [len(b) for b in batches] == 20 * [3]
    assert all(torch.equal(a, b) for a, b in zip(batches, again, strict=True))
    ranks = [lengths[b].tolist() for b in batches]
    for one_pass in (ranks[:10], ranks[10:]):
        assert sorted(chain(*one_pass)) == list(range(30))
        for draw in (one_pass[:4], one_pass[4:8], one_pass[8:]):
            assert list(chain(*sorted(draw))) == sorted(chain(*draw))
    assert ranks[:10] != ranks[10:] and ranks[:4] != sorted(ranks[:4])
    assert sorted(chain(*ranks[:4])) != list(range(12))  # drawn at random, not by length
    assert [len(b) for b in public(passes=1).batches(lengths[:7], torch.Generator())].count(1) == 1


def test_each_phase_says_what_it_costs_how_fast_it_learns_and_what_an_update_was():
    model, batch = (
        build_model(SPEC, 0),
        phases.collate_micro_batches(PARTS["private"], range(4), torch.device("cpu")),
    )
    generator = torch.Generator().manual_seed(0)
    (update,) = public().updates(model, batch, generator)
    assert (update.kind, update.non_finite) == ("public", 0) and 0 < update.loss < 10
    learned = flat(model)  # .grad was set and nothing else
    assert (
        torch.equal(learned, flat(build_model(SPEC, 0))) and model.head.weight.grad.abs().sum() > 0
    )
    assert public().event() is None and public().learning_rates() == {"public": 0.1}
    made = phase(sampling_probability=0.25)
    assert tuple(made.updates(model, batch, generator)) == (("private", 0, None),)
    assert made.event() == phases.SampledGaussian(0.25, 1.0, 4)
    assert made.learning_rates() == {"private": 0.01}
    assert made.adds_noise and not public().adds_noise
    assert list(made.examples(batch, generator)) == batch
    with torch.no_grad():
        model.head.weight.fill_(math.inf)
    assert next(made.updates(model, batch, generator)).non_finite == 4
    each = phase(sampling_probability=np.array([0.5, 1.0]))
    assert each == phase(sampling_probability=(0.5, 1.0))
    assert each.event() == phases.WeightedGaussian((0.5, 1.0), 1.0, 4)
    assert len({*map(len, made.batches(torch.ones(50), generator))}) > 1


def test_micro_batches_are_filled_with_what_is_alike_and_padded_with_zeros():
    points, cpu = [[1, 2, 3], [9, 9], [4], [5, 6]], torch.device("cpu")

    def made(at_once):
        batch = phases.collate_micro_batches(points, [0, 2, 3], cpu, at_once)
        return [(tokens.tolist(), lengths.tolist()) for tokens, lengths in batch]

    alone = [([[4]], [1]), ([[5, 6]], [2]), ([[1, 2, 3]], [3])]
    assert made(1) == alone
    assert made(2) == made(5) == [([[4, 0], [5, 6]], [1, 2]), alone[2]]
    assert made(6) == [([[4, 0, 0], [5, 6, 0], [1, 2, 3]], [1, 2, 3])]
    assert phases.collate_micro_batches(points, [], cpu) == []
    ((tokens, _),) = phases.collate_micro_batches([[1] * 129] * 32, range(32), cpu)
    assert tokens.dtype == torch.long and tokens.shape == (32, 129)  # 4096 targets at once
    assert len(phases.collate_micro_batches([[1] * 129] * 33, range(33), cpu)) == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: public(passes=0), "passes=0: must be positive"),
        (lambda: public(batch_size=0), "batch_size=0: must be positive"),
        (lambda: public(learning_rate=0), "learning_rate=0: must be positive"),
        (lambda: phase(steps=0), "steps=0: must be positive"),
        (lambda: phase(clip_norm=0), "clip_norm=0: must be at least 1e-6"),
        (lambda: phase(normaliser=0), "normaliser=0: must be positive"),
        (lambda: phase(learning_rate=0), "learning_rate=0: must be positive"),
        (lambda: phase(sampling_probability=0), r"sampling_probability=0: must be in \(0, 1\]"),
        (lambda: phase(sampling_probability=1.5), r"sampling_probability=1.5: must be in \(0, 1\]"),
        (lambda: phase(sampling_probability=(1.5,)), r"sampling_probability=1.5: must be in \[0"),
    ],
)
def test_a_phase_that_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_refusals():
    for bad in (-0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match=r"sampling_probability=.*: must be in"):
            phase(sampling_probability=(0.1, bad))
    with pytest.raises(ValueError, match=r"noise_multiplier=-1.0: must be"):
        phase(noise_multiplier=-1.0)
    with pytest.raises(ValueError, match="sampling_probability: 2 values for 15 points"):
        short = phase(sampling_probability=(0.1, 0.2))
        train_model(build_model(SPEC, 0), [short], PARTS, seed=0)
    with pytest.raises(ValueError, match="incidence: has 4 points, the phase 15"):
        secret_protection.secret_guess_bounds(
            phase().event(), HELD, prior=0.01, neighbouring_relation="reference"
        )
    with pytest.raises(ValueError, match="epochs=0: must be in 1 to 100"):
        schedules.weighted_phases(plan(), epochs=0, clip_norm=0.1, learning_rate=0.1)


def test_a_weighted_run_goes_on_from_its_checkpoint(tmp_path):
    phase = phases.PrivatePhase(
        epoch=1,
        sampling_probability=tuple(np.linspace(0.2, 0.9, len(PARTS["private"]))),
        steps=2,
        noise_multiplier=1.0,
        clip_norm=0.1,
        normaliser=4.0,
        learning_rate=1e-3,
    )
    schedule = [replace(phase, epoch=e) for e in (1, 2)]
    whole = train_model(build_model(SPEC, 0), schedule, PARTS, seed=0)
    file = tmp_path / "run.pt"

    def dies(epoch, _):
        if epoch == 2:
            raise KeyboardInterrupt
        return {}

    with pytest.raises(KeyboardInterrupt):
        train_model(build_model(SPEC, 0), schedule, PARTS, seed=0, checkpoint=file, on_epoch=dies)
    again = train_model(build_model(SPEC, 0), schedule, PARTS, seed=0, checkpoint=file)
    assert again.events == whole.events and len(again.events) == 2
    assert torch.equal(flat(again.model), flat(whole.model))


def test_padding_is_cut_where_another_pass_costs_less():
    """A model reads fewer tokens, and the gradient is that of one pass, but for rounding."""
    points = [[1 + k % 7] * n for k, n in enumerate((3, 400, 390, 40, 44, 60, 5, 398))]
    cpu = torch.device("cpu")
    (whole,), cut = (
        phases.collate_micro_batches(points, range(8), cpu, as_few_as_possible=few)
        for few in (True, False)
    )
    assert whole[0].numel() == 8 * 400 and [len(t) for t, _ in cut] == [5, 3]
    assert sum(t.numel() for t, _ in cut) == 5 * 60 + 3 * 400
    assert sorted(n for _, lengths in cut for n in lengths.tolist()) == whole[1].tolist()
    model = build_model(SPEC, 0)
    grads = []
    for batch in ([whole], cut):
        set_private_gradient(
            model, batch, clip_norm=0.1, noise_multiplier=0.0, normaliser=8.0,
            noise=torch.Generator(),
        )  # fmt: skip
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-8)


def test_batches_of_phases_that_draw_in_each_pass_are_not_cut():
    assert MaskedPhase.draws_numbers and SelectivePhase.draws_numbers
    assert not (phases.PublicPhase.draws_numbers or phases.PrivatePhase.draws_numbers)
    points, seen = {"private": [[5] * n for n in (2, 600, 2, 600, 2, 600)]}, []

    class Watching(phases.PrivatePhase):
        def examples(self, batch, noise):
            seen.append(len(batch))
            return iter(batch)

    class Drawing(Watching):
        draws_numbers = True

    for kind in (Watching, Drawing):
        made = kind(**{**phase().__dict__, "sampling_probability": 1.0, "steps": 1})
        train_model(build_model(SPEC, 0), [made], points, seed=0)
    assert seen == [2, 1]


def test_a_clipping_norm_that_float32_cannot_hold_is_refused():
    """Once: with such a norm a clipped gradient was 1.3 times as long as it."""
    with pytest.raises(ValueError, match="clip_norm=3e-35: must be at least 1e-6"):
        PrivatePhase(1, 0.5, 1, 1.0, 3e-35, 1.0, 0.1)
