"""How much of a second worker a sweep of tiny studies uses: ``python benchmarks/workers.py [N]``.

200 studies of the leakage report on 20 dialogues, in a fresh store, with one worker and with two;
the efficiency is the wall time of one over twice that of two, and 1 where nothing is lost.
"""

import os
import sys
import tempfile
import time

from crtbook import spine
from crtbook.leakage import LeakageStudy
from crtbook.store import Store


def tiny(seed: int) -> LeakageStudy:
    return LeakageStudy(
        method="sgd", seed=seed, dialogues=20, heldout=4, public=12, public_epochs=1, epochs=6,
        snapshots=(6,), embedding=16, hidden=32,
    )  # fmt: skip


def wall(number: int, workers: int) -> float:
    """Seconds of a sweep."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        studies = [tiny(seed) for seed in range(number)]
        spine.sweep(studies, Store(folder), workers=workers, progress=False)
        return time.perf_counter() - started


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    one, two = wall(number, 1), wall(number, 2)
    print(f"{number} studies: {one:.1f} s with one worker, {two:.1f} s with two,", end=" ")
    print(f"efficiency {one / two / 2:.2f}, load {os.getloadavg()[0]:.1f}")
