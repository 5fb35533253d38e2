"""Each score is what its paper says; all of them find a memoriser, and none finds what is fresh."""

import zlib

import numpy as np
import pytest
import torch

from crtlib.attacks import membership, membership_scores
from crtlib.attacks.attack import Subject
from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.screening import policy_changes, preparation, regex_policies
from crtlib.text import customersim, data_points, tokenizer
from crtlib.training import schedules

SPEC = ModelSpec("lstm", vocab_size=12, embedding=6, hidden=6)


def test_min_k_plus_plus_by_its_definition():
    """Token by token from the whole next-token law, in float64."""
    model = build_model(SPEC, seed=1)
    sequence = [1, 5, 2, 7, 7, 3, 0, 4, 9, 11, 2]
    with torch.no_grad():
        law = torch.log_softmax(model(torch.tensor([sequence[:-1]]))[0].double(), -1).numpy()
    p = np.exp(law)
    mean = (p * law).sum(1)
    deviation = np.sqrt((p * law**2).sum(1) - mean**2)
    own = law[np.arange(10), sequence[1:]]
    expected = (own - mean) / deviation
    found = membership.scoring.map_token_distributions(
        model, [sequence], membership_scores._standardise_logprobs
    )
    assert np.allclose(found[0][0], own, atol=1e-6)
    assert np.allclose(found[1][0], expected, atol=1e-4)
    reading = membership_scores.TextLogprobs(texts=("x",), logprobs=found[0], standard=found[1])
    assert membership_scores.min_k_plus_plus(reading)[0] == pytest.approx(
        -np.sort(expected)[:2].mean(), 1e-4
    )


def test_a_token_that_is_excluded_or_certain_is_no_nan():
    law = torch.log_softmax(torch.tensor([[0.0, -np.inf, 0.0], [0.0, -np.inf, -np.inf]]), -1)
    own, standard = membership_scores._standardise_logprobs(law, torch.tensor([0, 0]))
    assert torch.isfinite(own).all() and torch.isfinite(standard).all()


def test_rmia_counts_whom_a_sentence_beats():
    reading = membership_scores.TextLogprobs(
        texts=("a", "b"),
        logprobs=[np.array([-1.0, -1]), np.array([-4.0, -2])],
        standard=[],
        reference=[np.array([-2.0, -2]), np.array([-3.0, -3])],  # gains of 1 and 0
        population=np.array([-1.0, 0.0, 0.5, 2.0]),
    )
    assert membership_scores.rmia(reading).tolist() == [-0.75, -0.5]
    assert membership_scores.loss_less_reference(reading).tolist() == [-1, 0]
    with pytest.raises(ValueError, match="population=None"):
        membership_scores.rmia(
            membership_scores.TextLogprobs(texts=(), logprobs=[], standard=[], reference=[])
        )
    with pytest.raises(ValueError, match="reference=None"):
        membership_scores.loss_less_reference(
            membership_scores.TextLogprobs(texts=("a",), logprobs=[np.ones(1)], standard=[])
        )


def test_zlib_discounts_what_repeats_itself():
    texts = ("ab" * 30, "the quick brown fox jumps over a lazy dog and an emu")
    reading = membership_scores.TextLogprobs(texts=texts, logprobs=[-np.ones(4)] * 2, standard=[])
    assert membership_scores.zlib_ratio(reading)[0] == 1 / len(zlib.compress(texts[0].encode()))
    assert membership_scores.zlib_ratio(reading)[0] > membership_scores.zlib_ratio(reading)[1]


@pytest.fixture(scope="module")
def subjects(learned):
    """One LSTM before and after it learned text of which half of the secrets were missed; the
    reference has learned from other people, so it knows what such values look like."""
    pi = policy_changes.with_misses(regex_policies.oracle_policy, 0.5, 0)
    points, others, more = (
        data_points.make_points(customersim.simulate_corpus(60, seed), unit="turn")
        for seed in range(3)
    )
    bpe = tokenizer.train_bpe([p.text for p in points if not p.secrets], vocab_size=400)
    spec = ModelSpec("lstm", vocab_size=bpe.vocab_size, embedding=32, hidden=64)
    phases = schedules.sgd_phases(epochs=30, batch_size=16, learning_rate=1e-2)

    def half_read(text, seed):
        prepared = preparation.prepare_points(
            text, pi(text), regex_policies.oracle_policy(text), dedup="none"
        )
        model = build_model(spec, seed)
        texts = sorted({p.text for p in prepared.all if p.secrets or "<MASK>" in p.text})
        learned(model, phases, {"public": bpe.encode(texts)}, seed=seed)
        return model, tuple(prepared.all)

    model, read = half_read(points, 0)
    reference, _ = half_read(more, 1)
    return [
        Subject(
            model=m, tokenizer=bpe, points=points, read=read, others=others, canaries=(), seed=0,
            reference=reference,
        )
        for m in (build_model(spec, 0), model)
    ]  # fmt: skip


def test_every_score_finds_what_was_read_and_nothing_else(subjects):
    before, after = ({m: v for m, _, v in membership_scores.measure_scores(s)} for s in subjects)
    for score in membership_scores.SCORES_BESIDE_LOSS:
        name = f"mia_{score.name}"
        for view in ("", "missed_", "redacted_"):
            metric = f"{name}_{view}accuracy"
            assert abs(before[metric] - 0.5) <= 3.5 * before[f"{metric}_null"], metric
        metric = f"{name}_redacted_accuracy"
        assert abs(after[metric] - 0.5) < 3.5 * after[f"{metric}_null"], metric
        metric = f"{name}_missed_accuracy"
        assert after[metric] > 0.5 + 4 * after[f"{metric}_null"] and after[metric] > 0.6, metric


def test_without_a_reference_its_scores_are_left_out(subjects):
    subject = subjects[0]
    bare = Subject(**{**subject.__dict__, "reference": None})
    names = {metric for metric, _, _ in membership_scores.measure_scores(bare)}
    assert not any("rmia" in name or "reference" in name for name in names)
    nobody = Subject(**{**bare.__dict__, "others": ()})
    assert (
        membership_scores.measure_scores(nobody) == []
        and membership.probe_of_subject(nobody).members == ()
    )
