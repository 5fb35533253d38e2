"""The page of architectures is made anew: what trains in one pass, what one by one, what is
refused, and how far the clipped sums are from brute force."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "book" / "architectures.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\S+)` \| `\w+` \| ([a-z ]+) \| ([a-z ]+) \|$", re.MULTILINE)
EXPECTED = {name: (whole, lora) for name, whole, lora in ROW.findall(PAGE)}
MAX_DISTANCE = 1e-6
"""In clip norms."""
NOT_BUILT = {*re.search(r"CPU seconds: ([^.]+)\.", PAGE)[1].split(", ")}
CELLS = {"one pass": "one pass", "one text after the other": "one by one"}


def test_the_page_is_of_more_than_a_hundred_architectures():
    assert len(EXPECTED) > 100
    assert {cell for cells in EXPECTED.values() for cell in cells} == {*CELLS.values(), "refused"}


@pytest.mark.nightly
def test_every_architecture_is_exact_or_refused_in_one_line(tmp_path):
    """All that can be built of the causal models of ``transformers``, with all weights and LoRA."""
    if transformers.__version__ not in PAGE:
        pytest.skip("the page is of another version of transformers")
    command = [sys.executable, "benchmarks/architectures.py", "--json", str(tmp_path / "rows.json")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row for row in rows if "ended" in row] == []
    found = {}
    for row in rows:
        if "unbuilt" in row:
            continue
        for kind in ("whole", "lora"):
            tried = row[kind]
            if "refused" in tried:
                assert re.match(r"(model|lora_targets='all-linear'): .*[^\n]$", tried["refused"]), (
                    row
                )
            else:
                assert tried["distance"] <= MAX_DISTANCE, row
        found[row["name"]] = tuple(
            CELLS.get(row[kind].get("passes"), "refused") for kind in ("whole", "lora")
        )
    assert len(found) > 100
    # What takes 20 CPU seconds on one machine takes fewer on another.
    slow = {row["name"] for row in rows if "CPU seconds" in row.get("unbuilt", "")}
    built = {name: cells for name, cells in found.items() if name not in NOT_BUILT}
    assert built == {name: cells for name, cells in EXPECTED.items() if name not in slow}
