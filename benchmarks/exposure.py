"""Exact canary exposure: the prefix trie against scoring every sequence in full.

    python benchmarks/exposure.py [--sample N] [--json FILE]

Times are CPU seconds of one thread. The full scoring of 10^6 sequences is extrapolated from
``--sample`` of them, batched by the library's own scoring path. Ranks of 200 random secrets are
compared with those of the same trie in float64 throughout; "certified" is the time of the ranks
of ten secrets, trie and float64 re-scoring included. Random weights are a hard case for it: a
trained model spreads its scores more, so that fewer come near to one another.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path

import numpy as np
import torch
from dp_step import machine

from crtlib import files
from crtlib.attacks import exposure
from crtlib.models import interface, scoring
from crtlib.models.build import build
from crtlib.models.spec import ModelSpec

SHAPES = {
    "lstm-10k": ModelSpec("lstm", vocab_size=10_000, embedding=200, hidden=200),
    "lstm-2k": ModelSpec("lstm", vocab_size=2_000, embedding=200, hidden=200),
    "gpt2-4x256": ModelSpec("gpt2", vocab_size=4_000, hidden=256, layers=4, context=64),
}
PREFIX = [11, 12, 13, 14, 15, 16]
DIGITS = list(range(20, 30))
LENGTH = 6


def seconds(function, *args):
    started = time.process_time()
    value = function(*args)
    return time.process_time() - started, value


def row(name: str, sample: int) -> dict:
    model = build(SHAPES[name], 0)
    with torch.no_grad():  # spread the scores: an untrained model is nearly uniform
        interface.head(model).weight.mul_(20)
    rng = np.random.default_rng(0)
    chosen = rng.integers(10, size=(200, LENGTH))
    trie, scores = seconds(exposure.all_logprobs, model, PREFIX, DIGITS, LENGTH)
    certified, _ = seconds(exposure.ranks, model, PREFIX, DIGITS, chosen[:10])
    ranks = exposure.ranks(model, PREFIX, DIGITS, chosen)
    some = np.array(DIGITS)[rng.integers(10, size=(sample, LENGTH))].tolist()
    batched, _ = seconds(scoring.token_logprobs, model, [PREFIX + digits for digits in some])
    exact = exposure.all_logprobs(copy.deepcopy(model).double(), PREFIX, DIGITS, LENGTH)
    index = chosen @ 10 ** np.arange(LENGTH - 1, -1, -1)
    true = np.array([1 + int((exact > exact[i]).sum()) for i in index])
    single = np.array([1 + int((scores > scores[i]).sum()) for i in index])
    whole = batched * 10**LENGTH / sample
    return {
        "model": name,
        "trie_s": round(trie, 2),
        "certified_s": round(certified, 2),
        "sequences_s_extrapolated": round(whole, 1),
        "ratio": round(whole / trie, 1),
        "secrets": len(chosen),
        "wrong_in_float32": int((single != true).sum()),
        "wrong_certified": int((ranks != true).sum()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=20_000, help="sequences scored in full")
    parser.add_argument("--json", type=Path, help="also write the table here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in SHAPES:
        rows.append(row(name, args.sample))
        print(json.dumps(rows[-1]), flush=True)
    if args.json:
        where = machine("cpu") | {"sampled_sequences": args.sample, "rows": rows}
        files.write_text(args.json, json.dumps(where, indent=1) + "\n")


if __name__ == "__main__":
    main()
