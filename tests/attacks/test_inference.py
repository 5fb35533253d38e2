"""A secret in its context: chance is chance, a memoriser is found, and only in what it read."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from crtlib.attacks import inference
from crtlib.attacks.attack import Subject
from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.screening import policy_changes, preparation, regex_policies
from crtlib.text import customersim, data_points, tokenizer
from crtlib.text.records import Point, Secret
from crtlib.training import schedules
from crtlib.training.loop import train_model


@pytest.fixture(scope="module")
def subjects(learned):
    """An LSTM before and after it learned text of which half of the secrets were missed."""
    points = data_points.make_points(customersim.simulate_corpus(60, 0), unit="turn")
    others = data_points.make_points(customersim.simulate_corpus(120, 1), unit="turn")
    pi = policy_changes.with_misses(regex_policies.oracle_policy, 0.5, 0)
    prepared = preparation.prepare_points(
        points, pi(points), regex_policies.oracle_policy(points), dedup="none"
    )
    bpe = tokenizer.train_bpe([p.text for p in points if not p.secrets], vocab_size=400)
    spec = ModelSpec("lstm", vocab_size=bpe.vocab_size, embedding=32, hidden=64)
    texts = sorted({p.text for p in prepared.all if p.secrets or "<MASK>" in p.text})
    phases = schedules.sgd_phases(epochs=40, batch_size=16, learning_rate=1e-2)
    model = learned(build_model(spec, 0), phases, {"public": bpe.encode(texts)}, seed=0)
    return [
        Subject(
            model=m, tokenizer=bpe, points=points, read=tuple(prepared.all), others=others,
            canaries=(), seed=0,
        )
        for m in (build_model(spec, 0), model)
    ]  # fmt: skip


def test_no_value_is_asked_twice_and_all_wear_one_carrier(subjects):
    s = subjects[0]
    asked = inference.pose_questions(s.points, s.read, s.others, seed=0, candidates=5)
    assert len(asked) > 30 and 0.3 < np.mean([q.missed for q in asked]) < 0.7
    values = []
    for question in asked:
        pairs = [(p.text, p.secrets[0]) for p in question.candidates]
        values += [text[s.start : s.end] for text, s in pairs]
        bare = {text[: s.start] + text[s.end :] for text, s in pairs}
        assert len(question.candidates) == 5 and len(bare) == 1
    assert len(values) == len(set(values))
    true = {p.text for p in s.points}
    assert all(q.candidates[0].text in true for q in asked)


def test_a_memoriser_names_what_it_read(subjects):
    before, after = ({m: v for m, _, v in inference.measure_inference(s)} for s in subjects)
    n, missed = int(after["pii_questions"]), int(after["pii_missed_questions"])
    assert n > 15 and missed > 5 and after["pii_candidates"] == 10
    low, high = stats.binom.ppf([0.001, 0.999], n, 0.1) / n
    assert low <= before["pii_inference"] <= high and before["pii_reconstruction"] == 0
    assert after["pii_missed_inference"] > stats.binom.ppf(0.9999, missed, 0.1) / missed
    right = after["pii_inference"] * n - after["pii_missed_inference"] * missed
    assert right / (n - missed) <= stats.binom.ppf(0.999, n - missed, 0.1) / (n - missed)
    assert after["pii_reconstruction_null"] < 0.05


def test_reconstruction_is_greedy_decoding_of_the_secret_alone():
    bpe = tokenizer.train_bpe(["USR: it is"], vocab_size=270)
    spec = ModelSpec("lstm", vocab_size=bpe.vocab_size, embedding=16, hidden=32)
    texts = ["USR: it is 4711 now", "USR: it is 4712 now"]
    phases = schedules.sgd_phases(epochs=150, batch_size=4, learning_rate=2e-2)
    model = train_model(
        build_model(spec, 0), phases, {"public": bpe.encode(texts[:1])}, seed=0
    ).model
    span = (Secret("id", 11, 15),)
    points = tuple(Point(str(k), "u", text, span) for k, text in enumerate(texts))
    losses, given = inference.answer_questions(
        model, bpe, [inference.InferenceQuestion(points, True)]
    )
    assert given.tolist() == [[True, False]] and losses[0, 0] < losses[0, 1]


def rows(method, seed, right, *, n=100, given=0.0, luck=0.0):
    facts = {"questions": n, "candidates": 10, "inference": right, "missed_questions": 0,
             "reconstruction": given, "reconstruction_null": luck}  # fmt: skip
    return [
        {"model": "lstm", "method": method, "gamma": 0.1, "seed": seed, "item": 0,
         "metric": f"pii_{name}", "value": float(value)}
        for name, value in facts.items()
    ]  # fmt: skip


def test_the_band_is_that_of_guessing():
    runs = [rows(m, seed, x) for seed in (0, 1) for m, x in (("crt", 0.1), ("sgd", 0.5))]
    table = pd.DataFrame([row for run in runs for row in run])
    out = inference.summarise_inference(table).set_index(["metric", "method"])
    band = out.loc[("pii_inference", "crt")]
    tail = (1 - 0.95**0.5) / 2
    assert band.low == stats.binom.ppf(tail, 200, 0.1) / 200
    assert band.high == stats.binom.ppf(1 - tail, 200, 0.1) / 200
    assert band.low < 0.1 < band.high < out.loc[("pii_inference", "sgd"), "mean"]
    assert "pii_missed_inference" not in out.index.get_level_values(0)
    assert out.loc[("pii_reconstruction", "crt"), "high"] < 0.03  # none of 1,800 others was given
    lucky = pd.DataFrame(rows("crt", 0, 0.1, given=0.2, luck=0.2))
    assert (
        inference.summarise_inference(lucky).set_index("metric").loc["pii_reconstruction", "high"]
        > 0.25
    )


def test_small_corpora_and_wrong_numbers(subjects):
    s = subjects[0]
    nobody = Subject(**{**s.__dict__, "others": ()})
    assert inference.measure_inference(nobody) == [("pii_questions", 0, 0.0)]
    with pytest.raises(ValueError, match="candidates=1: must be at least 2"):
        inference.pose_questions(s.points, s.read, s.others, seed=0, candidates=1)
