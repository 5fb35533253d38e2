"""Teaching a screening policy as one call, judged on people who did not teach it.

>>> import tempfile
>>> from crtlib.text import customersim, records
>>> home = Path(tempfile.mkdtemp())
>>> records.write_jsonl(customersim.simulate(30, 0), home / "c.jsonl")
>>> taught = make(home / "c.jsonl", home / "tagger", epochs=2)
>>> taught.rates["pi"].trace.of
9
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from confide.screening.corpus import count_texts
from confide.text.labels import Task, facts, judging, points, points_of, unread
from crtlib import outputs
from crtlib.checks import check
from crtlib.files import Named
from crtlib.screening import rates
from crtlib.screening.policy import (
    Shift,
    shift,
    teaching,
)
from crtlib.screening.redaction import TextCounts
from crtlib.screening.tagger import Tagger, conservative, fit, redacting, save
from crtlib.text import corpora, records


@dataclass(frozen=True)
class Taught:
    """A tagger, and what its policies ``pi`` and ``pi_c`` do on people who did not teach it.

    ``rates`` has each policy as pi and as its own pi_c: what it would be alone. ``shift`` is how
    unlike the judging text is to the teaching one: what to compare the shift of other text with.
    """

    tagger: Tagger
    rates: dict[str, rates.Rates]
    shift: Shift
    summary: dict[str, Any]

    def text(self) -> str:
        """The summary for a terminal."""
        lines = []
        for name, found in self.rates.items():
            told, points = self.summary[name], self.summary["judged_points"]
            lines += [
                f"{name} ({told['policy']}) on {points} held-out points, of which it flags "
                f"{told['flagged_points']}",
                f"{found.table()}\n",
            ]
        lines.append(f"of the held-out text {self.shift}: its numbers are for text like this")
        return "\n".join(lines)


def make(
    corpus: Named,
    out: Named,
    *,
    labels: Named | Sequence[Named] = (),
    unit: str = "turn",
    heldout: float = 0.3,
    epochs: int | None = None,
    backbone: str | None = None,
    threshold: float = 0.3,
    seed: int = 0,
    force: bool = False,
    progress: bool = False,
) -> Taught | None:
    """Teach a tagger and write it, with its summary, into the private folder ``out``; None where it
    is there already, made of the same.

    ``labels``: one or more folders of ``crtlib label``. Their teaching parts teach, but for what
    people said who judge, and the judging part of the first one judges; without them the labels
    that the corpus came with, of which a share ``heldout`` of the users judges. ``epochs``,
    ``backbone`` and ``threshold`` are those of :func:`crtlib.screening.tagger.fit`. Raises
    ``ValueError`` where nothing is labelled.
    """
    check("heldout", heldout, 0 < heldout < 1, "in (0, 1)")
    folders = [labels] if isinstance(labels, str | os.PathLike) else list(labels)
    inputs = {"corpus": corpus} | {f"labels {k}": folder for k, folder in enumerate(folders, 1)}
    fitted: dict[str, Any] = {"backbone": backbone, "threshold": threshold, "seed": seed}
    options = {"unit": unit, "heldout": heldout, "epochs": epochs, **fitted}
    recipe: dict[str, Any] = {"command": "tagger", "options": options, "inputs": inputs}
    if outputs.up_to_date(out, **recipe):
        return None
    outputs.check_folder(out, inputs=list(inputs.values()), force=force)
    judged = 1
    by: rates.Cluster = "user"
    left: list[Task] = []
    if not folders:
        every = records.points(corpora.load(corpus), unit=unit)
        users = sorted({p.user for p in every})
        drawn = np.random.default_rng(seed).permutation(users)[: round(heldout * len(users))]
        apart = set(drawn.tolist())  # nobody is on both sides
        taught = [p for p in every if p.user not in apart]
        others = [p for p in every if p.user in apart]
        texts = TextCounts(every)
    else:
        about = facts(folders[0])
        by = about["by"]
        known = json.dumps([options, outputs.hashed(inputs)])
        name = hashlib.sha256(known.encode()).hexdigest()
        for which in (name, f"{name} pi_c"):  # each is judged alone
            judged = judging(folders[0], pi=which, pi_c=which, corpus=about["corpus"])
        others = list(points(corpus, folders[0], part="judge", unit=unit))
        left = unread(folders[0])
        texts = count_texts(corpus, unit)
        apart = {rates.whose(p, by) for p in others}
        sets = [points(corpus, x, part="teach", unit=unit) for x in folders]
        taught = [p for some in sets for p in some if rates.whose(p, by) not in apart]
        if not any(p.secrets for p in taught):
            raise ValueError(
                f"--labels: none of the {len(taught)} turns that teach holds a secret; draw more "
                "with 'crtlib label sample --teach'"
            )
    made = fit(taught, epochs=epochs, progress=progress, **fitted)
    epochs = epochs or made.net.epochs
    summary: dict[str, Any] = {"corpus": Path(corpus).name, "unit": unit, "epochs": epochs}
    summary |= {**fitted, "taught_points": len(taught), "judged_points": len(others)}
    found: dict[str, rates.Rates] = {}
    for key, policy in {"pi": redacting(made), "pi_c": conservative(made)}.items():
        flags = policy(others)
        drawn_labels = bool(folders)
        counter = rates.RateCounter(
            policy, policy, cluster=by, texts=texts, find_values=drawn_labels
        )
        counter.add(others, flags=flags, cautious_flags=flags)
        counter.add_unread(points_of(left))
        found[key] = counter.rates(judged=judged)
        summary[key] = {
            "policy": policy.name,
            "rates": found[key].to_json(),
            "labels": found[key].labels_json(),
            "flagged_points": sum(map(bool, flags)),
        }
    unlike = shift(others, teaching(taught))
    summary["shift"] = asdict(unlike)
    with outputs.staged(out, force=force, **recipe) as part:
        save(made, part)
        (part / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return Taught(made, found, unlike, summary)
