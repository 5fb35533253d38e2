"""The original CustomerSim (Shi et al., 2022): plain text, without labels and without customers.

Only tests read it: our simulator follows its agenda, and our expressions are judged on it.

>>> import json, pathlib, tempfile
>>> folder = pathlib.Path(tempfile.mkdtemp())
>>> line = json.dumps({"id": "dial-0.txt", "text": "SYS: Hello\\nUSR: I am Ada Lovelace."})
>>> _ = (folder / "valid.jsonl").write_text(line)
>>> [turn.speaker for turn in read(folder, "valid").turns()]
['SYS', 'USR']
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from crtlib.screening.policy import FlagFunction, as_policy
from crtlib.text import data_points, jsonl
from crtlib.text.records import Corpus, Dialogue, Secret, Turn

SPLITS = ("train", "valid", "test")


def _dialogue(record: Any) -> Dialogue | None:
    name, text = record["id"], record["text"]
    if name.startswith("canary"):
        return None
    turns = []
    for i, line in enumerate(text.rstrip("\n").split("\n")):
        speaker, colon, words = line.partition(": ")
        if not colon:
            raise ValueError(f"turn {i}: needs a speaker and a colon")
        turns.append(Turn(speaker, words))
    return Dialogue(name, name, tuple(turns))


def files(folder: str | os.PathLike, split: str) -> list[Path]:
    """The one file of a split, ``split.jsonl`` or ``split.jsonl.gz``."""
    if split not in SPLITS:
        raise ValueError(f"split={split!r}: must be one of {', '.join(SPLITS)}")
    path = Path(folder) / f"{split}.jsonl"
    return [path if path.exists() else path.with_suffix(".jsonl.gz")]


def read(folder: str | os.PathLike, split: str) -> Corpus:
    """A split, text verbatim, one line ``{"id", "text"}``.

    It has no labels, so no turn has secrets (:func:`annotate` attaches a policy's), and no
    customers, so every dialogue is a user of its own. The authors' ten canary lines in train are
    left out.
    """
    (path,) = files(folder, split)
    every = [_dialogue(record) for _, record in jsonl.read_json_objects(path)]
    dialogues = tuple(d for d in every if d)
    canaries = len(every) - len(dialogues)
    return Corpus("customersim-shi2021", dialogues, (("canary", canaries),) if canaries else ())


def annotate(corpus: Corpus, policy: FlagFunction) -> Corpus:
    """``corpus`` with the policy's spans, turn by turn, in place of its labels."""
    labels = iter(as_policy(policy)(data_points.make_points(corpus, unit="turn")))
    dialogues = []
    for d in corpus.dialogues:
        turns = []
        for turn in d.turns:
            shift = (
                len(turn.speaker) + 2 if turn.speaker else 0
            )  # the spans are those of the point "USR: text"
            moved = [Secret(s.kind, max(s.start - shift, 0), s.end - shift) for s in next(labels)]
            turns.append(replace(turn, secrets=tuple(s for s in moved if s.end > 0)))
        dialogues.append(replace(d, turns=tuple(turns)))
    return replace(corpus, dialogues=tuple(dialogues))
