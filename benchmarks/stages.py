"""CPU seconds and peak memory of each stage of the path, by the number of dialogues.

    python benchmarks/stages.py [--sizes 1000,10000] [--stages simulate,ingest,screen]

Each command runs in a fork of this process, so that it pays for no imports; what a later stage
reads, an earlier one has written. The exponent is that between the two largest sizes: 1 is linear.
Memory is the most that the process held, with the libraries. ``--stages`` takes the first few.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.kills.__main__ import _command, start

REGEX = ("--policy", "regex:customersim", "--conservative", "everything")
STAGES = {
    "simulate": ("simulate", "--dialogues", "{home}", "--out", "{out}/d.jsonl"),
    "ingest": ("ingest", "{out}/d.jsonl", "--yes", "--out", "{out}/corpus"),
    "screen": ("screen", "{out}/corpus", *REGEX, "--out", "{out}/screened"),
    "train": ("train", "{out}/screened", "--epochs", 1, "--out", "{out}/model"),
    "report": ("report", "{out}/model", "--corpus", "{out}/screened", "--out", "{out}/report"),
}


def spent(stage: str, dialogues: int, folder: Path) -> tuple[float, float]:
    """CPU seconds and megabytes of one command; exits where it fails."""
    args = [str(a).replace("{home}", str(dialogues)) for a in STAGES[stage]]
    _, status, usage = os.wait4(start(_command(*args), folder, folder), 0)
    if status:
        sys.exit(f"{stage}, {dialogues} dialogues: {(folder / 'log').read_text()[-500:]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="1000,10000", help="dialogues, comma-separated")
    parser.add_argument("--stages", default=",".join(STAGES), help="the first few, comma-separated")
    options = parser.parse_args()
    sizes, rows = sorted(map(int, options.sizes.split(","))), {}
    for size in sizes:
        with tempfile.TemporaryDirectory() as place:
            for stage in options.stages.split(","):
                rows[stage, size] = spent(stage, size, Path(place))
                print(f"{stage:>10} {size:>9,}  {rows[stage, size][0]:9.2f} s  "
                      f"{rows[stage, size][1]:7.0f} MB", flush=True)  # fmt: skip
    for stage in options.stages.split(",") if len(sizes) > 1 else []:
        few, many = (rows[stage, size][0] for size in sizes[-2:])
        print(f"{stage:>10} exponent {math.log(many / few) / math.log(sizes[-1] / sizes[-2]):.2f}")


if __name__ == "__main__":
    main()
