"""What training several seeds as one stacked model could save at most.

    python benchmarks/stacking.py

A step of a batch that is S times as large does the arithmetic of S steps in the operators of one,
and its weights are shared: no stacked model is faster. The ratio is S steps over that one.
"""

from __future__ import annotations

import statistics
import warnings

import torch
from dp_step import MODELS, stepper, timed

from crtlib.models.spec import ModelSpec

SHAPES = {
    "LSTM 64": MODELS["book-8"][0],
    "GPT-2, 2 x 64": ModelSpec("gpt2", 512, hidden=64, layers=2, heads=4, context=256),
}
TIME, ROUNDS = 30, 40


def saved(spec: ModelSpec, engine: str, batch: int, seeds: int) -> float:
    """The median over rounds."""
    for name, size in (("one", batch), ("all", batch * seeds)):
        MODELS[name] = (spec, TIME, size)
    one, all_ = (stepper(name, engine, "cpu", False) for name in ("one", "all"))
    ratios = []
    for _ in range(ROUNDS):
        one(), all_()  # not timed
        first = timed(one, "cpu")
        all_()
        ratios.append(seeds * first / timed(all_, "cpu"))
    return statistics.median(ratios)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"{'model':<15}{'batch':>6}{'seeds':>6}{'no DP':>8}{'DP':>8}")
    for label, spec in SHAPES.items():
        for batch in (8, 32):
            for seeds in (2, 5):
                both = [saved(spec, engine, batch, seeds) for engine in ("kernels", "ours")]
                print(f"{label:<15}{batch:>6}{seeds:>6}{both[0]:>8.2f}{both[1]:>8.2f}", flush=True)
