"""Teaching a screening policy as one call, judged on people who did not teach it.

>>> from crtlib.text import customersim
>>> taught = teach(customersim.simulate(30, 0), epochs=2)
>>> taught.summary["taught_points"] + taught.summary["judged_points"] == sum(
...     len(d.turns) for d in customersim.simulate(30, 0).dialogues
... )
True
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
import pandas as pd

from crtlib import outputs
from crtlib.checks import check
from crtlib.screening import rates, recall, tagger
from crtlib.screening.policy import Labels, Policy, Shift, shift
from crtlib.text import corpora, label_import, units
from crtlib.text import labels as labels_module
from crtlib.text.records import Corpus, Point


@dataclass(frozen=True)
class Taught:
    """A tagger, and what its policies ``pi`` and ``pi_c`` do on people who did not teach it.

    ``rates`` has each policy as pi and as its own pi_c: what it would be alone. ``shift`` is how
    unlike the judging text is to the teaching one: what to compare the shift of other text with.
    """

    tagger: tagger.Tagger
    rates: dict[str, rates.Rates]
    recall: dict[str, pd.DataFrame]
    shift: Shift
    summary: dict[str, Any]

    def text(self) -> str:
        """The summary for a terminal."""
        lines = []
        for name, table in self.recall.items():
            told = self.summary[name]
            lines += [
                f"{name} ({told['policy']}) on {self.summary['judged_points']} held-out points",
                table.to_string(float_format=lambda x: f"{x:.4g}"),
                f"flagged points: {told['flagged_points']} of {self.summary['judged_points']}",
                f"secrets whose mask changes other labels: {told['labels_changed_by_a_mask']} of "
                f"{told['secrets']}",
                self.rates[name].table(),
                "",
            ]
        lines.append(f"of the held-out text {self.shift}: its numbers are for text like this")
        return "\n".join(lines)


def split(
    points: Sequence[Point], heldout: float, seed: int
) -> tuple[tuple[Point, ...], tuple[Point, ...]]:
    """Points that teach and points that judge; nobody is on both sides."""
    check("heldout", heldout, 0 < heldout < 1, "in (0, 1)")
    users = sorted({p.user for p in points})
    drawn = np.random.default_rng(seed).permutation(users)[: round(heldout * len(users))]
    judges = set(drawn.tolist())
    taught = tuple(p for p in points if p.user not in judges)
    return taught, tuple(p for p in points if p.user in judges)


def teach(
    source: Corpus | Sequence[Point],
    *,
    unit: str = "turn",
    heldout: float = 0.3,
    epochs: int | None = None,
    backbone: str | None = None,
    threshold: float = 0.3,
    seed: int = 0,
    judges: Sequence[Point] | None = None,
    judged: int = 1,
    cluster: rates.Cluster = "user",
    name: str = "",
    progress: bool = False,
) -> Taught:
    """Train a tagger on labelled dialogues, or on points that are cut already.

    A share ``heldout`` of the users judges it; with ``judges``, labelled points of other people,
    all of ``source`` teaches. ``judged`` and ``cluster`` are those of
    :func:`crtlib.screening.rates.rates`; ``epochs``, ``backbone`` and ``threshold`` those of
    :func:`crtlib.screening.tagger.fit`. Raises ``ValueError`` where nothing is labelled.
    """
    points = units.points(source, unit=unit) if isinstance(source, Corpus) else tuple(source)
    pair = split(points, heldout, seed) if judges is None else (points, tuple(judges))
    taught, others = pair
    made = tagger.fit(
        taught,
        seed=seed,
        epochs=epochs,
        backbone=backbone,
        threshold=threshold,
        progress=progress,
    )
    pairs = {"pi": tagger.redacting(made), "pi_c": tagger.conservative(made)}
    labels = {key: policy(others) for key, policy in pairs.items()}
    tables = {k: recall.recall(others, spans, confidence=0.975) for k, spans in labels.items()}
    found = {
        k: rates.rates(
            others,
            pairs[k],
            pairs[k],
            flags=labels[k],
            cautious_flags=labels[k],
            cluster=cluster,
            judged=judged,
        )
        for k in pairs
    }
    summary: dict[str, Any] = {
        "corpus": name or (source.name if isinstance(source, Corpus) else ""),
        "unit": unit,
        "seed": seed,
        "epochs": epochs or made.net.epochs,
        "backbone": backbone,
        "threshold": threshold,
        "taught_points": len(taught),
        "judged_points": len(others),
    }
    for key, policy in pairs.items():
        summary[key] = _summary(policy, others, labels[key], tables[key], found[key])
    unlike = shift(others, pairs["pi"].taught_by[0])
    return Taught(made, found, tables, unlike, summary | {"shift": asdict(unlike)})


def _summary(
    policy: Policy,
    judged: Sequence[Point],
    labels: Labels,
    table: pd.DataFrame,
    found: rates.Rates,
) -> dict[str, Any]:
    changed, secrets = recall.label_stability(policy, judged)
    return {
        "policy": policy.name,
        "recall": json.loads(table.to_json(orient="index") or "{}"),
        "rates": found.to_json(),
        "labels": found.labels_json(),
        "flagged_points": sum(map(bool, labels)),
        "labels_changed_by_a_mask": changed,
        "secrets": secrets,
    }


def make(
    corpus: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
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
    that the corpus came with, split by user.
    """
    folders = [labels] if isinstance(labels, str | os.PathLike) else list(labels)
    inputs = {"corpus": corpus} | {f"labels {k}": folder for k, folder in enumerate(folders, 1)}
    options = {"unit": unit, "heldout": heldout, "epochs": epochs, "backbone": backbone}
    options |= {"threshold": threshold, "seed": seed}
    recipe: dict[str, Any] = {"command": "tagger", "options": options, "inputs": inputs}
    if outputs.up_to_date(out, **recipe):
        return None
    outputs.check_folder(out, inputs=list(inputs.values()), force=force)
    how: dict[str, Any] = {name: options[name] for name in options if name != "heldout"}
    how |= {"progress": progress}
    if not folders:
        source: Corpus | Sequence[Point] = corpora.load(corpus)
    else:
        about, known = (
            labels_module.about(folders[0]),
            json.dumps([options, outputs.hashed(inputs)]),
        )
        name = hashlib.sha256(known.encode()).hexdigest()
        uses = [
            label_import.judging(folders[0], pi=which, pi_c=which, corpus=about["corpus"])
            for which in (name, f"{name} pi_c")  # each is judged alone
        ]
        judges = label_import.points(corpus, folders[0], part="judge", unit=unit)
        apart = {rates.whose(p, about["by"]) for p in judges}
        sets = [label_import.points(corpus, x, part="teach", unit=unit) for x in folders]
        source = [p for some in sets for p in some if rates.whose(p, about["by"]) not in apart]
        if not any(p.secrets for p in source):
            raise ValueError(
                f"--labels: none of the {len(source)} turns that teach holds a secret; draw more "
                "with 'crtlib label sample --teach'"
            )
        how |= {"judges": judges, "judged": uses[-1], "cluster": about["by"]}
    taught = teach(source, heldout=heldout, name=Path(corpus).name, **how)
    with outputs.staged(out, force=force, **recipe) as part:
        tagger.save(taught.tagger, part)
        summary = json.dumps(taught.summary, indent=1) + "\n"
        (part / "summary.json").write_text(summary, encoding="utf-8")
    return taught
