"""Counting token sequences in a corpus: totals and distinct users, streamed.

    python benchmarks/counting.py [--quick] [--json FILE]

The corpus is made on the fly (Zipf word frequencies, sentences of 4 to 30 tokens) and is never
held in memory, so that the peak is that of the counting; making it is timed apart. Times are CPU
seconds of one thread, but for the wall clock of counting and making together. The sequences
are cut from its first sentences, so that each occurs. The totals of a sample of sentences are
compared with those of Aho-Corasick where ``pyahocorasick`` is installed, else with a plain loop.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import os
import platform
import resource
import time
from importlib import metadata
from pathlib import Path

import numpy as np

from crtlib import files
from crtlib.text import counting

VOCABULARY, USERS = 10_000, 100_000


def corpus(sentences: int, seed: int = 0):
    """Sentences as arrays of token ids, one after another."""
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, VOCABULARY + 1)
    cumulative = np.cumsum(share / share.sum())
    while sentences > 0:
        n = min(sentences, 10_000)
        ends = np.cumsum(rng.integers(4, 31, size=n))
        tokens = np.searchsorted(cumulative, rng.random(ends[-1])).astype(np.int64)
        yield from np.split(tokens, ends[:-1])
        sentences -= n


def owners(sentences: int):
    return (k * 7919 % USERS for k in range(sentences))


def wanted(n: int, seed: int = 1) -> list[tuple[int, ...]]:
    """``n`` distinct pieces of 1 to 24 tokens."""
    rng = np.random.default_rng(seed)
    found: dict[tuple[int, ...], None] = {}
    for sentence in corpus(10 * n):
        start = int(rng.integers(len(sentence)))
        found[tuple(sentence[start : start + int(rng.integers(1, 25))].tolist())] = None
        if len(found) == n:
            break
    return list(found)


def oracle(pieces, documents) -> tuple[str, np.ndarray]:
    """Totals by another route, and its name."""
    total = np.zeros(len(pieces), dtype=np.int64)
    try:
        import ahocorasick
    except ImportError:
        lengths = sorted({len(p) for p in pieces})
        place = {p: i for i, p in enumerate(pieces)}
        seen: collections.Counter = collections.Counter()
        for document in documents:
            row = tuple(document.tolist())
            seen.update(row[i : i + n] for n in lengths for i in range(len(row) - n + 1))
        for piece, i in place.items():
            total[i] = seen[piece]
        return "plain loop", total
    automaton = ahocorasick.Automaton()
    for i, piece in enumerate(pieces):  # one private letter for each token
        automaton.add_word("".join(chr(0x10000 + t) for t in piece), i)
    automaton.make_automaton()
    for document in documents:
        for _, i in automaton.iter("".join(chr(0x10000 + t) for t in document.tolist())):
            total[i] += 1
    return "pyahocorasick", total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a twentieth of the sentences")
    parser.add_argument("--sentences", type=int, default=1_500_000)
    parser.add_argument("--sequences", type=int, default=10_000)
    parser.add_argument("--json", type=Path, help="also write the result here")
    args = parser.parse_args()
    sentences = args.sentences // (20 if args.quick else 1)
    pieces = wanted(args.sequences)
    started = time.process_time()
    tokens = sum(len(s) for s in corpus(sentences))
    making = time.process_time() - started
    started, wall = time.process_time(), time.perf_counter()
    counts = counting.count(pieces, corpus(sentences), owners(sentences))
    seconds = time.process_time() - started - making
    wall = time.perf_counter() - wall
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sample = min(sentences, 50_000)
    started = time.process_time()
    name, true = oracle(pieces, corpus(sample))
    checking = time.process_time() - started
    ours = counting.count(pieces, corpus(sample), owners(sample)).total
    told = {
        "sentences": sentences,
        "tokens": tokens,
        "sequences": len(pieces),
        "cpu_s": round(seconds, 2),
        "wall_s_with_making": round(wall, 2),
        "peak_memory_mib": round(peak / 2**20),
        "occurrences": int(counts.total.sum()),
        "checked_sentences": sample,
        "oracle": name,
        "oracle_cpu_s": round(checking, 2),
        "wrong_totals": int((ours != true).sum()),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, one thread",
        "versions": {n: metadata.version(n) for n in ("numpy",)},
        "date": datetime.date.today().isoformat(),
    }
    print(json.dumps(told, indent=1))
    if args.json:
        files.write_text(args.json, json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
