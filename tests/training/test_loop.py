"""The sampler that runs is the one that is accounted, and a killed run goes on bit for bit."""

import copy
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from crtlib.accounting.events import SampledGaussian
from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.training import loop, memory, phases, run_state, schedules
from crtlib.training.loop import train_model
from crtlib.training.noise import draw_uniforms

SPEC = ModelSpec("lstm", vocab_size=20, embedding=6, hidden=8)
PARTS = {
    "public": [[1, 2, 3, 4], [2, 3], [4, 5, 6, 7, 8]] * 4,
    "private": [[1, 9, 9, 2], [3, 8, 7], [5, 5, 5, 5, 5]] * 5,
}


def private(**changes):
    fields = {
        "epoch": 1,
        "sampling_probability": 0.3,
        "steps": 4,
        "noise_multiplier": 1.0,
        "clip_norm": 0.1,
        "normaliser": 5.0,
        "learning_rate": 0.01,
    }
    return phases.PrivatePhase(**fields | changes)


def schedule(epochs=3):
    constants = schedules.DpSgdConstants(
        sampling_probability=0.3,
        noise_multiplier=1.0,
        clip_norm=0.1,
        normaliser=5.0,
        learning_rate=0.01,
    )
    return schedules.crt_phases(
        epochs=epochs,
        pub_passes=2,
        public_batch_size=4,
        public_learning_rate=0.01,
        private=constants,
    )


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_the_sampler_is_poisson_with_the_probability_of_the_event():
    n, phase = 300, private(sampling_probability=0.2, steps=2000)
    drawn = np.zeros((phase.steps, n), dtype=bool)
    for t, batch in enumerate(phase.batches(torch.ones(n), torch.Generator().manual_seed(0))):
        drawn[t, batch] = True
    event = phase.event()
    assert event == SampledGaussian(0.2, 1.0, 2000)
    each = stats.binom(event.steps, event.sampling_probability)
    counts = drawn.sum(0)
    assert each.ppf(1e-5) <= counts.min() and counts.max() <= each.ppf(1 - 1e-5)
    # Batch sizes spread like a binomial: a shuffled loader or fixed sizes would have variance 0.
    sizes = drawn.sum(1)
    assert abs(sizes.var() / (n * 0.2 * 0.8) - 1) < 5 * np.sqrt(2 / event.steps)
    # One point's presence says nothing of another's, nor of its own in the next step.
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]) < 5 / np.sqrt(event.steps)
    assert abs(np.corrcoef(drawn[1:, 0], drawn[:-1, 0])[0, 1]) < 5 / np.sqrt(event.steps)


def test_public_batches_cover_every_point_once_a_pass_with_little_padding():
    lengths = torch.randint(5, 60, (103,), generator=torch.Generator().manual_seed(0))
    phase = phases.PublicPhase(1, "all", 3, 10, 0.1)
    batches = list(phase.batches(lengths, torch.Generator().manual_seed(1)))
    seen = torch.cat(batches)
    assert sorted(seen.tolist()) == sorted([*range(103)] * 3)
    padded = sum(len(b) * int(lengths[b].max()) for b in batches)
    assert padded < 1.3 * 3 * int(lengths.sum())
    assert seen[:103].tolist() != seen[103:206].tolist()


def test_an_empty_batch_still_adds_noise_and_counts():
    model = build_model(SPEC, 0)
    before = flat(model)
    phase = private(sampling_probability=1e-12, steps=3, clip_norm=0.5, learning_rate=1.0)
    batches = [*phase.batches(torch.ones(15), torch.Generator().manual_seed(0))]
    assert [len(batch) for batch in batches] == [0, 0, 0]
    run = train_model(model, [phase], PARTS, seed=0, optimizer="sgd")
    noise = (flat(model) - before) * phase.normaliser
    assert run.events == [SampledGaussian(1e-12, 1.0, 3)]
    expected = phase.noise_multiplier * phase.clip_norm * np.sqrt(3)
    assert abs(noise.std().item() / expected - 1) < 5 / np.sqrt(2 * len(noise))


def test_the_normaliser_does_not_depend_on_the_data():
    """Twice the points in each batch: twice the noiseless update, not the same one."""
    phase = private(sampling_probability=1.0, steps=1, noise_multiplier=0.0, learning_rate=1.0)
    moved = []
    for copies in (1, 2):
        model = build_model(SPEC, 0)
        before = flat(model)
        parts = {"private": PARTS["private"] * copies}
        train_model(model, [phase], parts, seed=0, optimizer="sgd")
        moved.append(flat(model) - before)
    torch.testing.assert_close(moved[1], 2 * moved[0], rtol=1e-4, atol=1e-7)


def test_sensitivity_of_a_step_is_one_clip_norm():
    """Take one point away: the noiseless sum moves by at most C / normaliser."""
    phase = private(sampling_probability=1.0, steps=1, noise_multiplier=0.0, learning_rate=1.0)
    ends = []
    for points in (PARTS["private"], PARTS["private"][1:]):
        model = build_model(SPEC, 0)
        train_model(model, [phase], {"private": points}, seed=0, optimizer="sgd")
        ends.append(flat(model))
    assert (ends[0] - ends[1]).norm() <= phase.clip_norm / phase.normaliser * (1 + 1e-4)


def batches_of(monkeypatch, **options):
    """The points that a run reads, step by step."""
    seen = []
    honest = phases.collate_micro_batches
    monkeypatch.setattr(
        loop,
        "collate_micro_batches",
        lambda rows, picked, where, **how: (
            seen.append(picked) or honest(rows, picked, where, **how)
        ),
    )
    changes = {k: options.pop(k) for k in ("noise_multiplier",) if k in options}
    model = build_model(SPEC, 0)
    train_model(model, [private(**changes)], PARTS, seed=1, **options)
    monkeypatch.setattr(loop, "collate_micro_batches", honest)
    return seen, flat(model)


def test_noise_and_order_have_generators_of_their_own(monkeypatch):
    """Other noise, the same batches: one shared generator would move them."""
    batches, end = batches_of(monkeypatch)
    again, same = batches_of(monkeypatch)
    quiet, other = batches_of(monkeypatch, noise_multiplier=0.0)
    assert batches == again == quiet
    assert torch.equal(end, same) and not torch.equal(end, other)


def test_secure_randomness_repeats_neither_batches_nor_noise(monkeypatch):
    """The seed is printed with a run; who knows it must not know the batches."""
    runs = [batches_of(monkeypatch, secure=True) for _ in range(3)]
    assert len({str(batches) for batches, _ in runs}) > 1
    assert not torch.equal(runs[0][1], runs[1][1])
    drawn = draw_uniforms(20_000, "secure")
    assert drawn.min() >= 0 and drawn.max() < 1 and abs(drawn.mean() - 0.5) < 0.015


def test_secure_noise_alone_does_not_repeat():
    """Every point in every batch, so that nothing but the noise can differ."""
    ends = []
    for _ in range(2):
        model = build_model(SPEC, 0)
        train_model(model, [private(sampling_probability=1.0)], PARTS, seed=1, secure=True)
        ends.append(flat(model))
    assert (ends[0] != ends[1]).float().mean() > 0.99


def test_secure_runs_resume(tmp_path):
    """One that was killed after its last step enters itself, too: it is not over."""
    options = {"seed": 0, "secure": True, "checkpoint": tmp_path / "state.pt"}
    entered, expected = [], []
    for resumed in (False, True):
        run = train_model(build_model(SPEC, 0), schedule(2), PARTS, **options,
                    on_start=lambda *told: entered.append(told))  # fmt: skip
        expected.append((run.events, resumed))
        assert entered == expected
        steps = schedules.combine_phase_events(schedule(2)).steps
        assert sum(e.steps for e in run.events) == steps


def test_a_secure_phase_that_is_run_again_is_counted_again(tmp_path):
    """Its second draws are fresh, and what the first ones led to may have been seen."""

    def dies(epoch, model):
        if epoch == 2:
            raise KeyboardInterrupt
        return {}

    for secure, times in ((True, 2), (False, 1)):
        options = {"seed": 0, "secure": secure, "checkpoint": tmp_path / f"{secure}.pt"}
        with pytest.raises(KeyboardInterrupt):
            train_model(build_model(SPEC, 0), schedule(2), PARTS, on_epoch=dies, **options)
        run = train_model(build_model(SPEC, 0), schedule(2), PARTS, **options)
        one = schedule(1)[1].event()
        assert run.events == [one] * (1 + times)


def test_updates_are_counted_by_kind():
    run = train_model(build_model(SPEC, 0), schedule(2), PARTS, seed=0)
    assert run.updates == {
        "public": 2 * 2 * 3,
        "private": schedules.combine_phase_events(schedule(2)).steps,
    }


def test_points_beyond_the_context_are_refused_before_the_first_step():
    spec = ModelSpec("gpt2", vocab_size=20, hidden=8, layers=1, heads=2, context=6)
    with pytest.raises(ValueError, match="context=6: the longest point has 9 tokens"):
        train_model(build_model(spec, 0), [private()], {"private": [[1] * 9, [2, 3]]}, seed=0)


@pytest.mark.parametrize("stop_at", [1, 2])
def test_resume_is_bit_identical(tmp_path, stop_at):
    seen = []

    def whole_epoch(epoch, model):
        return {"norm": flat(model).norm().item()}

    def dies(epoch, model):
        seen.append(epoch)
        if epoch == stop_at + 1:
            raise KeyboardInterrupt
        return whole_epoch(epoch, model)

    straight = build_model(SPEC, 0)
    options = {"seed": 5, "optimizer": "adam"}
    want = train_model(straight, schedule(), PARTS, on_epoch=whole_epoch, **options)
    file = tmp_path / "state.pt"
    broken = build_model(SPEC, 0)
    with pytest.raises(KeyboardInterrupt):
        train_model(broken, schedule(), PARTS, on_epoch=dies, checkpoint=file, **options)
    again = build_model(SPEC, 0)
    seen.clear()
    have = train_model(again, schedule(), PARTS, on_epoch=whole_epoch, checkpoint=file, **options)
    assert torch.equal(flat(straight), flat(again))
    assert (have.events, have.history) == (want.events, want.history)
    assert sum(e.steps for e in have.events) == schedules.combine_phase_events(schedule()).steps


@pytest.mark.parametrize("kept", [0, 100, 0.5])
def test_a_damaged_checkpoint_is_named(tmp_path, kept):
    file = tmp_path / "state.pt"
    train_model(build_model(SPEC, 0), schedule(1), PARTS, seed=0, checkpoint=file)
    whole = file.read_bytes()
    file.write_bytes(whole[: kept if isinstance(kept, int) else int(kept * len(whole))])
    with pytest.raises(ValueError, match=f"checkpoint='{file}': is damaged"):
        train_model(build_model(SPEC, 0), schedule(1), PARTS, seed=0, checkpoint=file)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    file = tmp_path / "state.pt"
    train_model(build_model(SPEC, 0), schedule(1), PARTS, seed=0, checkpoint=file)
    with pytest.raises(ValueError, match="belongs to another run"):
        train_model(build_model(SPEC, 0), schedule(1), PARTS, seed=1, checkpoint=file)
    shapes = [
        ModelSpec("gpt2", vocab_size=20, hidden=8, layers=1, heads=h, context=16) for h in (2, 4)
    ]
    heads = tmp_path / "heads.pt"
    train_model(build_model(shapes[0], 0), schedule(1), PARTS, seed=0, checkpoint=heads)
    with pytest.raises(ValueError, match="belongs to another run"):
        train_model(build_model(shapes[1], 0), schedule(1), PARTS, seed=0, checkpoint=heads)
    other = copy.deepcopy(PARTS)
    other["private"][0][1] += 1
    with pytest.raises(ValueError, match="belongs to another run"):
        train_model(build_model(SPEC, 0), schedule(1), other, seed=0, checkpoint=file)


@pytest.mark.parametrize("content", [{"weights": [1.0]}, [1, 2], torch.zeros(3)])
def test_a_file_that_is_no_checkpoint_is_named(tmp_path, content):
    """A torch file of another kind: it must be neither read nor replaced."""
    file = tmp_path / "state.pt"
    torch.save(content, file)
    before = file.read_bytes()
    with pytest.raises(
        ValueError, match=f"checkpoint='{file}': is not a checkpoint of this version"
    ):
        train_model(build_model(SPEC, 0), schedule(1), PARTS, seed=0, checkpoint=file)
    assert file.read_bytes() == before


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    file = tmp_path / "state.pt"
    torch.save({"identity": Evil()}, file)
    with pytest.raises(ValueError, match="is damaged"):
        train_model(build_model(SPEC, 0), schedule(1), PARTS, seed=0, checkpoint=file)
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_is_readable_by_its_owner_alone(tmp_path):
    """It holds the model before training is over, and the state of the noise."""
    file = tmp_path / "state.pt"
    file.touch(mode=0o644)
    file.unlink()
    umask = os.umask(0)
    try:
        train_model(build_model(SPEC, 0), schedule(1), PARTS, seed=0, checkpoint=file)
    finally:
        os.umask(umask)
    assert file.stat().st_mode & 0o777 == 0o600


def test_gradients_that_are_not_finite_move_nothing_and_are_counted():
    """Token 19 overflows; its two points are in every batch of two steps."""
    parts = {"private": [[1, 19, 2], [3, 8, 7], [5, 19, 5]]}
    phase = private(sampling_probability=1.0, steps=2, noise_multiplier=0.0)
    ends = []
    for points in (parts["private"], parts["private"][1:2]):
        model = build_model(SPEC, 0)
        with torch.no_grad():
            model.embedding.weight[19] = torch.inf
        run = train_model(model, [phase], {"private": points}, seed=0, optimizer="sgd")
        ends.append(flat(model))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-6, atol=0)
    again = train_model(model, [phase], parts, seed=0)
    assert (run.non_finite, again.non_finite) == (0, 4)


def test_a_model_on_two_devices_is_refused():
    model = build_model(SPEC, 0)
    model.head.to("meta")
    with pytest.raises(ValueError, match="model: is on cpu and meta: must be on one device"):
        train_model(model, [private()], PARTS, seed=0)


def first_draws(generator):
    return torch.rand(64, generator=generator)


def test_streams_are_pairwise_different():
    """Noise, batches, public order and initialisation: one that repeats another's numbers would
    tell what it is added to, or who is in a batch."""
    seeds, draws = [], []
    for seed in range(5):
        generators = run_state.make_random_streams(seed, torch.device("cpu"))
        assert set(generators) == {"public order", "poisson", "noise"}
        initial = torch.Generator().manual_seed(seed)  # as in crtlib.models.interface
        for generator in (*generators.values(), initial):
            seeds.append(generator.initial_seed())
            draws.append(first_draws(generator))
    assert len(set(seeds)) == len(seeds) == 20
    assert torch.corrcoef(torch.stack(draws)).fill_diagonal_(0).abs().max() < 5 / np.sqrt(64)


def test_each_stream_is_used_for_its_own_purpose(monkeypatch):
    """The generators that the phases of a run are given, by what they are given for."""
    used = {}

    def spy(kind, name, purpose, position):
        honest = getattr(kind, name)

        def watched(*args):
            used.setdefault(purpose, set()).add(args[position].initial_seed())
            return honest(*args)

        monkeypatch.setattr(kind, name, watched)

    spy(phases.PublicPhase, "batches", "public order", 2)
    spy(phases.PrivatePhase, "batches", "poisson", 2)
    spy(phases.PrivatePhase, "updates", "noise", 3)
    train_model(build_model(SPEC, 0), schedule(2), PARTS, seed=3)
    generators = run_state.make_random_streams(3, torch.device("cpu"))
    assert used == {name: {g.initial_seed()} for name, g in generators.items()}


def test_micro_batches_change_no_result(monkeypatch):
    ends = []
    for tokens in (4096, 6):
        monkeypatch.setattr(memory, "tokens_at_once", lambda *_, n=tokens: n)
        model = build_model(SPEC, 0)
        train_model(model, schedule(2), PARTS, seed=3, optimizer="sgd")
        ends.append(flat(model))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling_probability": 0.0}, r"sampling_probability=0.0: must be in \(0, 1\]"),
        ({"sampling_probability": 1.5}, r"sampling_probability=1.5: must be in \(0, 1\]"),
        ({"noise_multiplier": -1.0}, "noise_multiplier=-1.0: must be finite and at least 0"),
        ({"clip_norm": 0.0}, "clip_norm=0.0: must be at least 1e-6"),
        ({"steps": 0}, "steps=0: must be positive"),
    ],
)
def test_bad_constants_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        private(**changes)


def test_an_empty_part_is_refused():
    with pytest.raises(ValueError, match="part='private': PrivatePhase has no points"):
        train_model(build_model(SPEC, 0), [private()], {"public": [[1, 2]]}, seed=0)


@pytest.mark.parametrize("part", ["public", "private"])
def test_counted_tokens_alone_are_learned(part):
    """The loss of a model of transformers with labels of -100 elsewhere: of a private step the mean
    of each row, of a public one that of the batch."""
    spec = ModelSpec("gpt2", 20, hidden=8, layers=1, heads=2, context=12)
    rows = [[1, 5, 6, 7, 2], [1, 8, 9, 2], [3, 4, 5]]
    marks = [[False, False, True, True, True], [False, False, True, True], [False] * 3]
    model = build_model(spec, 0).double()
    other = copy.deepcopy(model)
    still = {"noise_multiplier": 0.0, "clip_norm": 1e6, "normaliser": 1.0, "learning_rate": 1.0}
    phase = (
        phases.PublicPhase(1, "public", 1, 3, 1.0)
        if part == "public"
        else private(sampling_probability=1.0, steps=1, **still)
    )
    options = {"seed": 0, "optimizer": "sgd"}
    train_model(model, [phase], {part: rows}, loss_mask={part: marks}, **options)
    total, targets = 0, 0
    for row, mark in zip(rows, marks, strict=True):
        if any(mark):
            labels = torch.tensor([[t if m else -100 for t, m in zip(row, mark, strict=True)]])
            weight = sum(mark) if part == "public" else 1
            total = total + weight * other(input_ids=torch.tensor([row]), labels=labels).loss
            targets += weight if part == "public" else 0
    (total / (targets or 1)).backward()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.detach(), (q - q.grad).detach(), rtol=1e-5, atol=1e-7)
    with pytest.raises(
        ValueError, match=r"^loss_mask: must have a value for each token of the part"
    ):
        train_model(model, [phase], {part: rows}, loss_mask={part: marks[:2]}, **options)
