"""S-DP: where sequences are cut, where noise is added, and what that cannot promise."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from crtlib.accounting.events import SampledGaussian
from crtlib.accounting.guarantees import BoundedRate
from crtlib.accounting.selective_privacy import selective_guarantee
from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.training import clipping, memory, schedules, selective, steps
from crtlib.training.loop import train_model
from crtlib.training.noise import draw_normals
from crtlib.training.phases import PublicPhase
from tests.training import by_loop

SPEC = ModelSpec("lstm", vocab_size=20, embedding=6, hidden=8)
# No private segment, two, one at the start, one at the end, one token, no public target, mixed.
POINTS = {
    "private": [
        ([1, 2, 3, 4, 5], [0, 0, 0, 0, 0]),
        ([1, 9, 9, 2, 3, 4, 8, 5, 6], [0, 1, 1, 0, 0, 0, 1, 0, 0]),
        ([9, 2, 3, 4], [1, 0, 0, 0]),
        ([1, 2, 3, 7, 7], [0, 0, 0, 1, 1]),
        ([5], [0]),
        ([6], [1]),
        ([9, 9, 9], [1, 1, 1]),
        ([1, 9, 2, 9, 3, 4, 4, 4], [0, 1, 0, 1, 0, 0, 0, 0]),
    ]
}
PARTS = {name: [ids for ids, _ in rows] for name, rows in POINTS.items()}
FLAGS = {name: [[bool(f) for f in marks] for _, marks in rows] for name, rows in POINTS.items()}


def phase(**changes):
    fields = {
        "epoch": 1,
        "batch_size": 8,
        "private_segments": 2,
        "noise_multiplier": 0.0,
        "clip_norm": 0.05,
        "hidden_clip": 0.3,
        "public_learning_rate": 0.5,
        "private_learning_rate": 0.25,
    }
    return selective.SelectivePhase(**fields | changes)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def trained(*phases, parts=PARTS, private_tokens=FLAGS, **options):
    model = build_model(SPEC, 0)
    options = {"seed": 0, "optimizer": "sgd"} | options
    run = train_model(model, phases, parts, private_tokens=private_tokens, **options)
    return flat(model), run


# --------------------------------------------------------------------------- segments
@pytest.mark.parametrize(
    ("labels", "text", "pairs"),
    [
        ("001100", "abcdef", [("a", "b"), ("bcd", "cde"), ("e", "f")]),
        ("1100", "abcd", [("", ""), ("ab", "bc"), ("c", "d")]),
        ("01100010", "abcdefgh", [("", ""), ("abc", "bcd"), ("de", "ef"), ("fg", "gh")]),
        ("0010100", "abcdefg", [("a", "b"), ("bcde", "cdef"), ("f", "g")]),
        ("0001", "abcd", [("ab", "bc"), ("c", "d")]),
        ("0000", "abcd", [("abc", "bcd")]),
    ],
)
def test_segments_are_those_of_the_reference(labels, text, pairs):
    cuts = selective.split_into_segments([label == "1" for label in labels])
    have = [(text[i:j], text[i + 1 : j + 1] if j > i else "") for i, j in cuts]
    assert have == pairs


@given(st.lists(st.booleans(), max_size=30))
def test_every_private_token_is_read_and_predicted_in_private_segments_alone(private):
    cuts = selective.split_into_segments(private)
    at = 0
    for t, (i, j) in enumerate(cuts):
        assert i == at and (j > i or t == 0)
        at = j
        for position in range(i, j):
            touched = private[position] or private[position + 1]
            assert touched == (t % 2 == 1)
    assert at == max(0, len(private) - 1)


# --------------------------------------------------------------------------- the update
def definition(model, constants, rows):
    """One batch without noise, by autograd with ``nn.LSTM`` on one sequence at a time."""
    layer, net = model.layers[0], nn.LSTM(SPEC.embedding, SPEC.hidden, batch_first=True)
    parameters = list(model.parameters())
    states = [(torch.zeros(1, 1, SPEC.hidden), torch.zeros(1, 1, SPEC.hidden)) for _ in rows]
    for t in range(9):
        sums, count = [torch.zeros_like(p) for p in parameters], 0
        for r, (ids, marks) in enumerate(rows):
            cuts = selective.split_into_segments(marks)
            if t >= len(cuts) or cuts[t][0] == cuts[t][1]:
                continue
            i, j = cuts[t]
            weights = layer.weight.split(SPEC.hidden)
            o, i_, f, g = weights
            w = torch.cat([i_, f, g, o])
            o, i_, f, g = layer.bias.split(SPEC.hidden)
            net_weights = {
                "weight_ih_l0": w[:, : SPEC.embedding],
                "weight_hh_l0": w[:, SPEC.embedding :],
                "bias_ih_l0": torch.cat([i_, f, g, o]),
                "bias_hh_l0": torch.zeros(4 * SPEC.hidden),
            }
            x = model.embedding(torch.tensor([ids[i:j]]))
            out, left = torch.func.functional_call(net, net_weights, (x, states[r]))
            nll = nn.functional.cross_entropy(
                model.head(out[0]), torch.tensor(ids[i + 1 : j + 1]), reduction="none"
            )
            loss = nll.mean() if t % 2 else nll.sum()
            grads = torch.autograd.grad(loss, parameters)
            factor = 1.0
            if t % 2:
                norm = torch.stack([g.square().sum() for g in grads]).sum().sqrt()
                factor = min(1.0, constants.clip_norm / float(norm))
                clip, left = constants.hidden_clip, [x.detach() for x in left]
                left = [
                    torch.zeros_like(x) if clip is None else x * min(1, clip / float(x.norm()))
                    for x in left
                ]
            count += j - i
            states[r] = tuple(x.detach() for x in left)
            sums = [s + factor * g for s, g in zip(sums, grads, strict=True)]
        if count == 0:
            continue
        rate = constants.private_learning_rate if t % 2 else constants.public_learning_rate
        with torch.no_grad():
            for p, s in zip(parameters, sums, strict=True):
                p -= rate * s / (constants.batch_size if t % 2 else count)


@pytest.mark.parametrize("hidden_clip", [0.3, 1e6, None])
@pytest.mark.parametrize("tokens_at_once", [4096, 12])
def test_a_batch_is_that_of_the_definition(hidden_clip, tokens_at_once, monkeypatch):
    """Segments of unequal number and length, in one micro-batch and in several."""
    monkeypatch.setattr(memory, "tokens_at_once", lambda *_: tokens_at_once)
    constants = phase(hidden_clip=hidden_clip)
    have, run = trained(constants)
    model = build_model(SPEC, 0)
    start = flat(model)
    rows = list(zip(PARTS["private"], FLAGS["private"], strict=True))
    definition(model, constants, rows)
    assert (flat(model) - start).norm() > 0.1
    torch.testing.assert_close(have, flat(model), rtol=1e-4, atol=1e-6)
    assert run.updates == {"public": 3, "private": 2}


def test_clipping_bites_in_the_definition():
    """Else the comparison above would prove little."""
    assert not torch.allclose(trained(phase())[0], trained(phase(clip_norm=10.0))[0], atol=1e-4)
    assert not torch.allclose(trained(phase())[0], trained(phase(hidden_clip=9.0))[0], atol=1e-6)


def test_clipped_sum_with_a_state_is_that_of_a_loop():
    model = build_model(SPEC, 0)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 20, (4, 7), generator=generator)
    lengths, layer = torch.tensor([7, 5, 5, 2]), model.layers[0]
    state = tuple(torch.randn(4, SPEC.hidden, generator=generator) for _ in range(2))
    ends = []
    for engine in ("bookkeeping", "loop"):
        model.zero_grad(set_to_none=True)
        blocks = [slice(0, 4)] if engine == "bookkeeping" else [slice(i, i + 1) for i in range(4)]
        norms = []
        for rows in blocks:
            with layer.carrying(tuple(x[rows] for x in state)):
                by = by_loop if engine == "loop" else clipping
                some = by.add_clipped_gradients(model, tokens[rows], lengths[rows], clip_norm=0.3)
                norms += some.norms.tolist()
        ends.append((norms, torch.cat([p.grad.flatten() for p in model.parameters()])))
    torch.testing.assert_close(ends[0][0], ends[1][0], rtol=1e-5, atol=0)
    torch.testing.assert_close(ends[0][1], ends[1][1], rtol=1e-4, atol=1e-6)
    assert layer.initial is layer.saved is None


def test_public_text_alone_is_ordinary_training():
    flags = {"private": [[False] * len(ids) for ids in PARTS["private"]]}
    have, run = trained(phase(private_segments=0), private_tokens=flags)
    want, _ = trained(PublicPhase(1, "all", 1, 8, 0.5))
    torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-7)
    assert run.updates == {"public": 1}
    assert sum(e.steps for e in run.events) == 0


# --------------------------------------------------------------------------- noise
def update_noise(sigma=2.0):
    """Standard deviation of what noise adds to one private update, over sigma times the clip.

    Every first position is private and there is no second segment, so it is one update.
    """
    parts, flags = {"private": [[1, 9, 9, 2]] * 40}, {"private": [[True] * 4] * 40}
    ends = [
        trained(
            phase(noise_multiplier=s, private_segments=1, batch_size=40, private_learning_rate=1.0),
            parts=parts,
            private_tokens=flags,
        )[0]
        for s in (0.0, sigma)
    ]
    noise = (ends[1] - ends[0]) * 40
    return noise.std().item() / (sigma * phase().clip_norm), len(noise)


def released_noise(sigma=2.0):
    constants = phase(noise_multiplier=sigma, hidden_clip=0.3)
    x = torch.randn(500, 8, generator=torch.Generator().manual_seed(0))
    x[0] = 0.001  # below the clip, so left as it is
    clipped = phase(hidden_clip=0.3).released(x, torch.Generator())
    noise = constants.released(x, torch.Generator().manual_seed(1)) - clipped
    return noise.std().item() / (sigma * 0.3), noise.numel(), x, clipped


def check_noise():
    for ratio, n in (update_noise(), released_noise()[:2]):
        assert abs(ratio - 1) < 5 / np.sqrt(2 * n)


def test_noise_has_the_accounted_deviation():
    check_noise()


def test_a_released_state_is_clipped():
    *_, x, clipped = released_noise()
    assert clipped.norm(dim=1).max() <= 0.3 * (1 + 1e-6)
    assert torch.equal(clipped[0], x[0])
    torch.testing.assert_close(clipped[1], x[1] / x[1].norm() * 0.3)
    assert torch.equal(phase(hidden_clip=None).released(x, "secure"), torch.zeros_like(x))
    secure = phase(hidden_clip=0.3, noise_multiplier=1.0).released(x, "secure")
    assert secure.shape == x.shape and not torch.equal(secure, clipped)


def test_each_state_that_leaves_a_private_segment_is_released(monkeypatch):
    """Output and cell of each row of each private segment, and of no other."""
    rows, honest = [], selective.SelectivePhase.released
    monkeypatch.setattr(
        selective.SelectivePhase,
        "released",
        lambda self, x, noise: rows.append(len(x)) or honest(self, x, noise),
    )
    trained(phase(noise_multiplier=1.0))
    assert sum(rows) == 2 * sum(
        len(selective.split_into_segments(f)) // 2 for f in FLAGS["private"]
    )


def unnoised_update(patch):
    patch.setattr(steps, "add_noise", lambda parameters, *, std, generator: None)


def unnoised_state(patch):
    patch.setattr(selective, "draw_normals", lambda like, generator: torch.zeros_like(like))


def half_the_noise(patch):
    honest = draw_normals
    patch.setattr(selective, "draw_normals", lambda like, generator: honest(like, generator) / 2)


@pytest.mark.parametrize("fault", [unnoised_update, unnoised_state, half_the_noise])
def test_planted_faults_are_caught(fault, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check_noise()


def test_the_private_tokens_reach_nothing_but_through_noise():
    """Other private tokens, of another number: with the private updates and the states taken
    away, training is the same."""
    quiet = phase(hidden_clip=None, private_learning_rate=1e-30)
    other = {"private": [list(row) for row in PARTS["private"]]}
    flags = {"private": [list(row) for row in FLAGS["private"]]}
    other["private"][1] = [1, 7, 2, 3, 4, 11, 12, 13, 5, 6]
    flags["private"][1] = [bool(f) for f in [0, 1, 0, 0, 0, 1, 1, 1, 0, 0]]
    a, b = trained(quiet)[0], trained(quiet, parts=other, private_tokens=flags)[0]
    torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    loud = phase(hidden_clip=None)
    c, d = trained(loud)[0], trained(loud, parts=other, private_tokens=flags)[0]
    assert not torch.allclose(c, d, atol=1e-5)


# --------------------------------------------------------------------------- accounting
def test_the_event_counts_what_a_point_takes_part_in(monkeypatch):
    """Each point is in one batch of a pass, so in at most ``steps`` mechanisms."""
    constants = phase(batch_size=3, noise_multiplier=1.0)
    part, event = np.zeros(50, dtype=int), constants.event()
    for batch in constants.batches(torch.ones(50), torch.Generator().manual_seed(0)):
        assert len(batch) <= 3
        part[batch.numpy()] += 1
    assert (part == 1).all()
    assert event == SampledGaussian(1.0, 1.0, 6)
    assert phase(hidden_clip=None).event().steps == 2
    most = max(len(selective.split_into_segments(f)) // 2 for f in FLAGS["private"])
    assert most == selective.max_private_segments(FLAGS["private"]) == constants.private_segments
    _, run = trained(constants, phase(epoch=2, noise_multiplier=1.0))
    assert (
        schedules.combine_phase_events([constants, phase(epoch=2, noise_multiplier=1.0)]).steps
        == 12
    )
    assert sum(e.steps for e in run.events) == 12


def test_batches_do_not_depend_on_lengths():
    draws = [
        list(phase(batch_size=3).batches(lengths, torch.Generator().manual_seed(0)))
        for lengths in (torch.ones(20), torch.arange(20))
    ]
    assert all(torch.equal(a, b) for a, b in zip(*draws, strict=True))
    assert torch.cat(draws[0]).tolist() != sorted(torch.cat(draws[0]).tolist())


def test_a_guarantee_needs_a_perfect_policy():
    event = SampledGaussian(1.0, 20.0, 24)
    options = {"delta": 8e-5, "unit": "turn", "neighbouring_relation": "replace"}
    perfect = selective_guarantee(event, gamma=BoundedRate(0.0), **options)
    # Twice the clip apart, 24 times: one Gaussian mechanism, whose profile is known.
    mu = 2 * math.sqrt(24) / 20
    normal = torch.distributions.Normal(0, 1)
    cdf = lambda x: float(normal.cdf(torch.tensor(x, dtype=torch.float64)))  # noqa: E731
    e = perfect.epsilon
    assert abs(cdf(mu / 2 - e / mu) - math.exp(e) * cdf(-mu / 2 - e / mu) - 8e-5) < 1e-6
    assert "one turn" in str(perfect) and "assumed" in str(perfect)
    measured = selective_guarantee(event, gamma=BoundedRate.measured(0, 200), **options)
    assert measured.epsilon == math.inf  # no miss in 200 does not make a policy perfect
    assert selective_guarantee(event, gamma=BoundedRate(0.01), **options).epsilon == math.inf
    noiseless = SampledGaussian(1.0, 0.0, 24)
    assert selective_guarantee(noiseless, gamma=BoundedRate(0.0), **options).epsilon == math.inf


# --------------------------------------------------------------------------- runs
def test_resume_is_bit_identical(tmp_path):
    schedule = [phase(epoch=e, noise_multiplier=1.0) for e in (1, 2, 3)]

    def dies(epoch, model):
        if epoch == 2:
            raise KeyboardInterrupt
        return {}

    options = {"optimizer": "adam", "seed": 3}
    want, straight = trained(*schedule, **options)
    file = tmp_path / "state.pt"
    with pytest.raises(KeyboardInterrupt):
        trained(*schedule, checkpoint=file, on_epoch=dies, **options)
    have, run = trained(*schedule, checkpoint=file, **options)
    assert torch.equal(want, have)
    assert (run.events, run.updates) == (straight.events, straight.updates)
    other = {"private": [[not f for f in row] for row in FLAGS["private"]]}
    with pytest.raises(ValueError, match="belongs to another run"):
        trained(*schedule, private_tokens=other, checkpoint=file, **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_multiplier": -1.0}, "noise_multiplier=-1.0: must be finite and at least 0"),
        ({"clip_norm": 0.0}, "clip_norm=0.0: must be at least 1e-6, and finite"),
        ({"hidden_clip": 0.0}, "hidden_clip=0.0: must be positive"),
        ({"batch_size": 0}, "batch_size=0: must be finite and positive"),
    ],
)
def test_bad_constants_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        phase(**changes)


def test_bad_input_is_refused_before_the_first_step():
    with pytest.raises(ValueError, match="private_segments=1: a point has 2; allow as many"):
        trained(phase(private_segments=1))
    with pytest.raises(
        ValueError, match="private_tokens: must have a flag for each token of the 8"
    ):
        trained(phase(), private_tokens=None)
    for kind, layers in (("gru", 1), ("lstm", 2), ("gpt2", 1)):
        spec = ModelSpec(kind, vocab_size=20, hidden=8, layers=layers, heads=2, context=16)
        with pytest.raises(ValueError, match="model: must be an lstm of one layer"):
            train_model(build_model(spec, 0), [phase()], PARTS, private_tokens=FLAGS, seed=0)
