"""From messages to a model, stage by stage: ``python benchmarks/stages.py 50000 500000``.

Simulated messages of about 45 characters become a JSONL file, and are taken in, drawn from for
labels, screened by regular expressions and trained on, each by the command that a user would call,
in a process of its own. Printed are CPU seconds (its own and those of its workers) and the most
memory that a process held.

A training takes as long as its epochs; ``--stages`` leaves it out.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

TURNS_PER_DIALOGUE = 9.33
POLICY = "regex:customersim"
STAGES = {
    "simulate": "simulate --dialogues {dialogues} --out {folder}/messages.jsonl",
    "ingest": "ingest {folder}/messages.jsonl --out {folder}/corpus",
    "label": "label sample {folder}/corpus --secrets 400 --out {folder}/labels --seed 1",
    "screen": f"screen {{folder}}/corpus --policy {POLICY} --out {{folder}}/screened",
    "train": "train {folder}/screened --epochs 1 --width 64 --workers 1 --out {folder}/model",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("messages", type=int, nargs="+")
    parser.add_argument("--stages", default="simulate,ingest,label,screen,train")
    args = parser.parse_args()
    stages = args.stages.split(",")
    if unknown := set(stages) - set(STAGES):
        parser.error(f"--stages: {', '.join(sorted(unknown))}; must be of {', '.join(STAGES)}")
    print(f"crtlib {version('crtlib')}, {os.cpu_count()} cores, one process")
    for messages in args.messages:
        with tempfile.TemporaryDirectory() as folder:
            dialogues = round(messages / TURNS_PER_DIALOGUE)
            for stage in stages:
                command = STAGES[stage].format(dialogues=dialogues, folder=folder)
                seconds, gigabytes, said = measure_command(command.split(), Path(folder))
                print(
                    f"{messages:>9,}  {stage:9} {seconds:8.1f} CPU s  {gigabytes:5.2f} GB  {said}",
                    flush=True,
                )
    return 0


def measure_command(command: list[str], folder: Path) -> tuple[float, float, str]:
    """CPU seconds, gigabytes that were held at most, and the last line of a command of crtlib."""
    log = folder / "log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "crtlib", *command], stdout=stream, stderr=subprocess.STDOUT
        )
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    lines = log.read_text().splitlines() or [""]
    if process.returncode:
        sys.exit(f"{' '.join(command)}: exit {process.returncode}: {lines[-1]}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20, lines[-1][:60]


if __name__ == "__main__":
    sys.exit(main())
