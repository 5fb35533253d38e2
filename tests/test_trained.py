"""A model that the cache of the tests gives back is the one that was trained."""

import torch

from crtlib.models.construction import build_model
from tests import trained
from tests.training.test_loop import PARTS, SPEC, private


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_the_same_is_trained_once_and_anything_else_anew(tmp_path, monkeypatch):
    calls, honest = [], trained.train_model

    def train(*args, **options):
        calls.append(options)
        return honest(*args, **options)

    monkeypatch.setattr(trained, "train_model", train)
    fresh = honest(build_model(SPEC, 0), [private()], PARTS, seed=0).model
    for _ in range(2):
        assert same(
            trained.learned(tmp_path, build_model(SPEC, 0), [private()], PARTS, seed=0), fresh
        )
    assert len(calls) == 1
    other = {**PARTS, "private": PARTS["private"][:-1]}
    trained.learned(tmp_path, build_model(SPEC, 1), [private()], PARTS, seed=0)
    trained.learned(tmp_path, build_model(SPEC, 0), [private()], other, seed=0)
    trained.learned(tmp_path, build_model(SPEC, 0), [private(steps=2)], PARTS, seed=0)
    trained.learned(tmp_path, build_model(SPEC, 0), [private()], PARTS, seed=1)
    assert len(calls) == 5 and len(list(tmp_path.glob("*/*.pt"))) == 5
    monkeypatch.setattr(trained, "source", lambda: "later")
    trained.learned(tmp_path, build_model(SPEC, 0), [private()], PARTS, seed=0)
    assert len(calls) == 6 and len(list(tmp_path.glob("*/*.pt"))) == 1
