"""A model from its shape and seed, whoever builds another at the same time."""

from concurrent.futures import ThreadPoolExecutor

import torch

from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec


def test_threads_that_build_at_once_draw_the_same_weights():
    """Weights are drawn from torch's one generator, which every thread shares."""
    spec = ModelSpec("lstm", 500, hidden=64)
    with ThreadPoolExecutor(4) as threads:
        first, *others = threads.map(
            lambda _: list(build_model(spec, seed=3).parameters()), range(40)
        )
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
