"""CPU seconds and peak memory of each stage of the path, by the number of dialogues.

    python benchmarks/stages.py [--sizes 1000,10000,100000] [--json FILE] [--stages simulate,ingest]

Each command runs in a fork of this process, so that it pays for no imports; what a later stage
reads, an earlier one has written. The exponent is that between the two largest sizes: 1 is linear.
Memory is the most that the process held, with the libraries. ``--stages`` takes the first few.

``peer`` is what one would write or pick instead, on the same file: for ``ingest``, ``datasets``
reads the JSON Lines and writes Parquet (and neither checks nor joins anything); for ``screen``, the
same regular expressions one after the other over each message (flagged by one policy, and nothing
prepared for training). Training has its peers in ``dp_step.py``, the report's counting and exposure
in ``counting.py`` and ``exposure.py``; nobody else simulates or certifies.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import math
import os
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import datasets

from crtlib import files
from crtlib.screening.policies import _SHAPES as SHAPES
from tests.kills.__main__ import _command, start

REGEX = ("--policy", "regex:customersim", "--conservative", "everything")
STAGES = {
    "simulate": ("simulate", "--dialogues", "{home}", "--out", "{out}/d.jsonl"),
    "ingest": ("ingest", "{out}/d.jsonl", "--yes", "--out", "{out}/corpus"),
    "screen": ("screen", "{out}/corpus", *REGEX, "--out", "{out}/screened"),
    "train": ("train", "{out}/screened", "--epochs", 1, "--out", "{out}/model"),
    "certify": ("certify", "{out}/model", "--out", "{out}/certificate.html"),
    "report": ("report", "{out}/model", "--corpus", "{out}/screened", "--out", "{out}/report"),
}

IMPORTED = (
    *("crtlib.text.customersim", "crtlib.text.ingest", "crtlib.reports.screening"),
    *("crtlib.experiments.own", "crtlib.experiments.plans", "crtlib.reports.model_card"),
    *("crtlib.release.certify", "crtlib.reports.leakage", "torch._dynamo"),
)
"""What commands import when they are called; torch's is for the first optimizer."""


def read_with_datasets(_: Path, folder: Path) -> None:
    """JSON Lines to Parquet."""
    datasets.disable_progress_bars()
    rows = datasets.load_dataset(
        "json", data_files=str(folder / "d.jsonl"), split="train", cache_dir=str(folder / "cache")
    )
    rows.to_parquet(folder / "d.parquet")


def search_with_re(_: Path, folder: Path) -> None:
    """The spans of every kind in every message, as JSON Lines."""
    patterns = {kind: re.compile(pattern) for kind, pattern in SHAPES["customersim"].items()}
    with (folder / "d.jsonl").open() as dialogues, (folder / "spans.jsonl").open("w") as out:
        for line in dialogues:
            for turn in json.loads(line)["turns"]:
                spans = [
                    (kind, *match.span())
                    for kind, pattern in patterns.items()
                    for match in pattern.finditer(turn["text"])
                ]
                out.write(json.dumps(spans) + "\n")


PEERS = {"ingest": read_with_datasets, "screen": search_with_re}


def spent(name: str, job, home: Path, folder: Path) -> dict:
    """CPU seconds and megabytes of one job; exits where it fails."""
    _, status, usage = os.wait4(start(job, home, folder), 0)
    if status:
        sys.exit(f"{name}: {(folder / 'log').read_text()[-500:]}")
    return {
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_mb": round(usage.ru_maxrss / 1024),
    }


def measure(size: int, stages: list[str]) -> list[dict]:
    """The rows of one size, printed as they come."""
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for stage in stages:
            words = [str(a).replace("{home}", str(size)) for a in STAGES[stage]]
            jobs = {"crtlib": _command(*words)}
            jobs |= {"peer": PEERS[stage]} if stage in PEERS else {}
            for who, job in jobs.items():
                row = {"stage": stage, "who": who, "dialogues": size}
                row |= spent(f"{stage}, {size} dialogues", job, folder, folder)
                rows.append(row)
                print(f"{stage:>10} {who:>7} {size:>9,}  {row['cpu_seconds']:9.2f} s  "
                      f"{row['peak_mb']:7,} MB", flush=True)  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="1000,10000", help="dialogues, comma-separated")
    parser.add_argument("--stages", default=",".join(STAGES), help="the first few, comma-separated")
    parser.add_argument("--json", type=Path, help="write the table here")
    options = parser.parse_args()
    for name in IMPORTED:
        importlib.import_module(name)
    sizes, stages = sorted(map(int, options.sizes.split(","))), options.stages.split(",")
    rows = [row for size in sizes for row in measure(size, stages)]
    taken = {(r["stage"], r["who"], r["dialogues"]): r["cpu_seconds"] for r in rows}
    exponents = {}
    for stage in stages if len(sizes) > 1 else []:
        few, many = (taken[stage, "crtlib", size] for size in sizes[-2:])
        exponents[stage] = round(math.log(many / few) / math.log(sizes[-1] / sizes[-2]), 2)
        peer = taken.get((stage, "peer", sizes[-1]))
        ratio = f", {many / peer:.1f} times the peer" if peer else ""
        print(f"{stage:>10} exponent {exponents[stage]:.2f}{ratio}")
    if options.json:
        table = {"cores": os.cpu_count(), "date": datetime.date.today().isoformat()}
        table |= {"exponents": exponents, "rows": rows}
        files.write_text(options.json, json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
