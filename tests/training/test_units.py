"""A unit of several texts (a user, a text beyond the context) is drawn and clipped as one."""

from dataclasses import replace

import pytest
import torch
from scipy import sparse

from crtlib.accounting import secret_weights
from crtlib.accounting.events import SampledGaussian
from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.studies import study_data, study_run
from crtlib.studies.crt_study import CrtStudy
from crtlib.training import clipping, loop
from crtlib.training.phases import PrivatePhase, collate_micro_batches
from crtlib.training.steps import MultiTextUnit, set_private_gradient

SPEC = ModelSpec("lstm", vocab_size=20, embedding=6, hidden=8)
TEXTS = [[1, 2, 3, 4], [5, 6, 7], [8, 9, 1, 2, 3], [4, 4], [7, 2, 9]]
CPU = torch.device("cpu")


def gradient(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def step(units, clip_norm=0.05):
    """The sum of a private step without noise over units of texts."""
    model = build_model(SPEC, 0)
    batch = [
        collate_micro_batches(TEXTS, u, CPU)[0]
        if len(u) == 1
        else MultiTextUnit(collate_micro_batches(TEXTS, u, CPU))
        for u in units
    ]
    options = {"clip_norm": clip_norm, "noise_multiplier": 0.0, "normaliser": 1.0}
    set_private_gradient(model, batch, **options, noise=torch.Generator())
    return gradient(model)


def test_one_unit_moves_the_sum_by_the_clip_norm_at_most_however_many_texts_it_has():
    without = step([[3]])
    assert abs(float((step([[0, 1, 2, 4], [3]]) - without).norm()) - 0.05) < 1e-6
    assert float((step([[0], [1], [2], [4], [3]]) - without).norm()) > 0.1  # four units do


def test_a_unit_has_the_gradient_of_its_mean_loss_and_one_text_is_clipped_as_ever():
    model = build_model(SPEC, 0)
    clipping.add_clipped_unit_gradient(
        model, collate_micro_batches(TEXTS, [0, 1, 2], CPU), clip_norm=1e6
    )
    ours, model = gradient(model), build_model(SPEC, 0)
    losses = sum(
        clipping.add_unclipped_gradients(
            model, *collate_micro_batches(TEXTS, [k], CPU)[0], reduction="sum"
        )[0]
        for k in range(3)
    )
    targets = sum(len(TEXTS[k]) - 1 for k in range(3))
    torch.testing.assert_close(ours, gradient(model) / targets)
    assert losses > 0
    alone, model = step([[0]]), build_model(SPEC, 0)
    norm = clipping.add_clipped_unit_gradient(
        model, collate_micro_batches(TEXTS, [0], CPU), clip_norm=0.05
    ).norms
    torch.testing.assert_close(gradient(model), alone)
    assert float(norm) > 0.05


def test_what_the_gradient_held_before_a_unit_stays_in_the_sum():
    model, alone = build_model(SPEC, 0), []
    for unit in ([0, 1], [2]):
        model.zero_grad()
        clipping.add_clipped_unit_gradient(
            model, collate_micro_batches(TEXTS, unit, CPU), clip_norm=0.5
        )
        alone.append(gradient(model).clone())
    clipping.add_clipped_unit_gradient(
        model, collate_micro_batches(TEXTS, [0, 1], CPU), clip_norm=0.5
    )
    assert torch.allclose(gradient(model), alone[0] + alone[1], atol=1e-6)


def test_poisson_draws_units_and_an_overflow_of_one_text_leaves_its_whole_unit_out(monkeypatch):
    seen = []
    monkeypatch.setattr(
        PrivatePhase, "batches", lambda self, lengths, g: seen.append(lengths) or [lengths[:0]] * 3
    )
    phase = PrivatePhase(1, 0.5, 3, 1.0, 0.1, 2.0, 1e-3)
    loop.train_model(
        build_model(SPEC, 0),
        [phase],
        {"private": TEXTS},
        owners={"private": [0, 0, 1, 2, 1]},
        seed=0,
    )
    assert seen[0].tolist() == [2, 2, 1]  # three units, with so many texts
    with pytest.raises(ValueError, match="owners: must have a number 0, 1"):
        loop.train_model(
            build_model(SPEC, 0), [phase], {"private": TEXTS}, owners={"private": [0, 2]}, seed=0
        )
    model = build_model(SPEC, 0)
    model.embedding.weight.data[2] = float("nan")
    norm = clipping.add_clipped_unit_gradient(
        model, collate_micro_batches(TEXTS, [0, 1], CPU), clip_norm=1.0
    ).norms
    assert not norm.isfinite() and not gradient(model).any()


STUDY = CrtStudy(method="user_dpsgd", model="lstm", gamma=0.0, seed=0, dialogues=24, heldout=10,
                 epochs=1, canaries=0, embedding=8, hidden=8, sampling_probability=0.5,
                 noise_multiplier=2.0)  # fmt: skip


def test_user_level_dpsgd_promises_for_users_what_dpsgd_promises_for_points():
    fitted = study_run.fit_study(STUDY)
    users = {p.user for p in fitted.data.points}
    assert len(users) < len(fitted.data.points)
    assert fitted.run.events == [SampledGaussian(0.5, 2.0, 2)]
    promise = fitted.guarantee(STUDY)
    point = study_run.fit_study(replace(STUDY, method="dpsgd"))
    assert promise.epsilon == point.guarantee(replace(STUDY, method="dpsgd")).epsilon
    assert "one user, with all their points" in str(promise)


def test_just_fine_tune_twice_reads_redacted_text_first_and_raw_text_with_noise():
    study = replace(STUDY, method="jft", policy="oracle", noise_multiplier=2.0)
    d = study_data.prepare_data(study)
    assert "<MASK>" in "".join(p.text for p in d.prepared.public)
    assert [p.text for p in d.prepared.private] == [p.text for p in d.points]
    assert not any(p.secrets for p in d.prepared.public)
    fitted = study_run.fit_study(study, prepared=d)
    assert [(p.part, p.event() is None) for p in fitted.schedule] == [
        ("public", True),
        ("private", False),
    ]
    assert fitted.guarantee(study).epsilon == float("inf")  # counted: its bound is not zero
    terms = {"noise_delta": 8e-5, "unit": "turn", "accountant": "pld", "public": "",
             "neighbouring_relation": "replace"}  # fmt: skip
    certain = study_data.BoundedRate(0.0)
    promise = study.training_method.promise(
        fitted.run.events, study_run.GuaranteeTerms(gamma=certain, delta2=certain, **terms)
    )
    assert 0 < promise.epsilon < 20 and "redacted spans" in promise.unit


def test_greedy_bounding_keeps_every_budget_with_whole_examples_and_less_than_the_lp():
    held = sparse.random_array((30, 200), density=0.05, rng=0).tocsr() > 0
    budgets = [3.4] * 30
    greedy = secret_weights.maximise_weights(held, budgets, solver="greedy")
    assert set(greedy.weights) <= {0.0, 1.0} and (held @ greedy.weights <= 3).all()
    best = secret_weights.maximise_weights(held, budgets)
    assert 0 < greedy.value <= best.value <= best.bound * (1 + 1e-9) <= greedy.bound


def test_a_text_beyond_the_context_moves_the_model_as_far_as_one_point():
    """Its pieces are clipped together: apart, each would add a gradient of the clipping norm."""
    study = CrtStudy(
        method="dpsgd", model="gpt2", gamma=0.0, seed=0, dialogues=8, heldout=4, canaries=0,
        unit="dialogue", context=8, embedding=8, hidden=8, heads=1, epochs=1, optimizer="sgd",
        conservative="everything", dedup="none", policy="regex",
        sampling_probability=1.0, normaliser=1.0, private_learning_rate=1.0, clip_norm=1e-3,
        noise_multiplier=1e-9,
    )  # fmt: skip
    d = study_data.prepare_data(study)
    longest = max(d.prepared.private, key=lambda p: len(p.text))
    alone = replace(d, prepared=replace(d.prepared, private=(longest,), public=()))
    assert len(d.tokenizer.encode([longest.text])[0]) > 4 * study.context
    fitted = study_run.fit_study(study, prepared=alone)
    before, after = build_model(fitted.spec, study.seed).parameters(), fitted.run.model.parameters()
    squares = [(b - a).double().square().sum() for a, b in zip(before, after, strict=True)]
    assert sum(event.steps for event in fitted.run.events) == 1
    assert torch.sqrt(sum(squares)).item() == pytest.approx(study.clip_norm, rel=1e-3)
