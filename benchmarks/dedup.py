"""Which points repeat an earlier one: throughput and memory of the exact, Bloom and near patterns.

    python benchmarks/dedup.py [--quick] [--json FILE]

The sentences are made on the fly: twelve random words each, a third of them a repetition. Times
are CPU seconds of one thread; memory is what the peak of a fresh process grows by, the list of
texts itself not counted. "sha1 set" is a plain loop over SHA-1 hashes, for comparison; "near"
is timed on ``--near`` sentences. The load average says how busy the machine was beside this.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import multiprocessing
import os
import platform
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path

METHODS = ("exact", "sha1 set", "bloom", "near")


def sentences(n: int) -> list[str]:
    import numpy as np

    rng = np.random.default_rng(0)
    words = np.array(["".join(w) for w in rng.choice(list("abcdefghijklmnop"), (5000, 5))])
    unique = n - n // 3
    texts = []
    for start in range(0, unique, 10_000):
        rows = words[rng.integers(5000, size=(min(10_000, unique - start), 12))]
        texts += [" ".join(row) for row in rows]
    return texts + [texts[i] for i in rng.integers(unique, size=n - unique).tolist()]


def sha1_set(points) -> list[bool]:
    seen: set[bytes] = set()
    repeated = []
    for point in points:
        digest = hashlib.sha1(point.text.encode()).digest()
        repeated.append(digest in seen)
        seen.add(digest)
    return repeated


def peak() -> int:
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def row(method: str, n: int) -> dict:
    """One method, in a process of its own."""
    from crtlib.screening import dedup
    from crtlib.text.records import Point

    points = [Point("", "", text) for text in sentences(n)]
    expected = n // 3

    def pattern(some):
        return sha1_set(some) if method == "sha1 set" else dedup.pattern(some, method)

    pattern(points[:10])  # imports what it needs
    before, started = peak(), time.process_time()
    found = sum(pattern(points))
    seconds = time.process_time() - started
    return {
        "method": method,
        "sentences": n,
        "cpu_s": round(seconds, 2),
        "sentences_per_s": round(n / seconds),
        "bytes_per_sentence": round((peak() - before) / n),
        "repetitions": expected,
        "found": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the sentences")
    parser.add_argument("--sentences", type=int, default=1_000_000)
    parser.add_argument("--near", type=int, default=50_000, help="sentences for the near pattern")
    parser.add_argument("--json", type=Path, help="also write the table here")
    args = parser.parse_args()
    rows = []
    for method in METHODS:
        n = (args.near if method == "near" else args.sentences) // (10 if args.quick else 1)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            rows.append(pool.submit(row, method, n).result())
        print(json.dumps(rows[-1]), flush=True)
    if args.json:
        from crtlib import files

        told = {
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
            "one thread",
            "versions": {p: metadata.version(p) for p in ("pyarrow", "rbloom", "datasketch")},
            "date": datetime.date.today().isoformat(),
            "load_average": [round(x, 1) for x in os.getloadavg()],
            "rows": rows,
        }
        files.write_text(args.json, json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
