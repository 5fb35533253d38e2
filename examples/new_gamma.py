"""Exposure of planted numbers when the redaction policy misses a share gamma of all secrets.

    python examples/new_gamma.py 0 0.07 0.2

This is Figure 3 of CRT at other points of its axis: one seed, 200 dialogues. The chapter Canaries
of the book draws the whole figure: papermill notebooks/canary.ipynb out.ipynb -p gammas '[0.07]'
"""

import sys
import tempfile
from pathlib import Path

import confide
import crtlib
from crtlib.text import jsonl

FIXED = {"canaries": 5, "copies": 50, "epochs": 8, "policy": "regex:customersim", "unit": "turn"}

if __name__ == "__main__":
    gammas = [float(word) for word in sys.argv[1:]] or [0.0, 0.2]
    print("gamma   redacted only   CRT        (bits, mean of five numbers; chance is about 1.4)")
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder, "talk.jsonl")
        jsonl.write_jsonl(crtlib.simulate(200, seed=0), corpus)
        for gamma in gammas:
            shown = []
            for method in ("sgd", "crt"):
                run = confide.train(str(corpus), method=method, gamma=gamma, **FIXED)
                bits = [value for metric, _, _, value in run.rows if metric == "exposure"]
                shown.append(sum(bits) / len(bits))
            print(f"{gamma:5.2f}   {shown[0]:13.2f}   {shown[1]:4.2f}", flush=True)
