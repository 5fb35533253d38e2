"""Teach a screening policy in one call, and judge it on people who did not teach it.

>>> import tempfile
>>> from crtlib.text import customersim, jsonl
>>> home = Path(tempfile.mkdtemp())
>>> jsonl.write_jsonl(customersim.simulate_corpus(30, 0), home / "c.jsonl")
>>> taught = teach_tagger(home / "c.jsonl", home / "tagger", epochs=2)
>>> taught.rates["pi"].trace.judged_secrets
9
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from confide import text_registry
from confide.labels.adjudication import list_unread_tasks
from confide.labels.judged_turns import read_labelled_points, record_judged_pair
from confide.labels.label_tasks import (
    SECONDS_PER_TURN,
    LabelTask,
    points_of_tasks,
    read_label_facts,
)
from confide.screening.dialogue_batches import count_texts
from crtlib import outputs
from crtlib.arguments import argument_error
from crtlib.checks import check_allowed
from crtlib.files import StrPath
from crtlib.screening import rates
from crtlib.screening.deduplication import TextCounts
from crtlib.screening.int8_layers import check_exact_products
from crtlib.screening.rate_values import ClusterUnit, PolicyRates
from crtlib.screening.secret_outcomes import cluster_of
from crtlib.screening.tagger import (
    INT8_NEEDS_BACKBONE,
    Tagger,
    conservative_tagger_policy,
    save_tagger,
    tagger_policy,
    train_tagger,
)
from crtlib.screening.taught_text import Shift, digest_teaching_points, measure_shift
from crtlib.screening.word_scorers import default_backbone, load_encoder
from crtlib.text import corpora, data_points
from crtlib.text.records import Point

FROM_NOTHING = "none"
"""The backbone of a tagger that starts from nothing, even if an encoder is installed."""
LEAST_OF_A_KIND = 10
"""The least number of secrets of a kind for a learning curve to say something about it."""


@dataclass(frozen=True)
class TaughtTagger:
    """A tagger, and how its policies ``pi`` and ``pi_c`` do on people who did not teach it.

    ``rates`` has each policy as pi and as its own pi_c, as if it were used alone. ``shift`` is how
    much the judging text differs from the teaching text; compare the shift of other text with it.
    """

    tagger: Tagger
    rates: dict[str, PolicyRates]
    shift: Shift
    summary: dict[str, Any]

    def text(self) -> str:
        """The summary for a terminal."""
        lines = []
        for name, counted in self.rates.items():
            facts = self.summary[name]
            points = self.summary["judged_points"] - counted.left_out_points
            lines += [
                f"{name} ({facts['policy']}) on {points} held-out points of people who did not "
                "teach it, of which it flags "
                f"{facts['flagged_points']}",
                f"{counted.table()}\n",
            ]
        lines += describe_learning_curve(self.summary.get("curve", ()))
        lines.append(f"of the held-out text {self.shift}: its numbers are for text like this")
        return "\n".join(lines)


def teach_tagger(
    corpus: StrPath,
    out: StrPath,
    *,
    labels: StrPath | Sequence[StrPath] = (),
    unit: str = "turn",
    judging_share: float = 0.3,
    epochs: int | None = None,
    backbone: str | None = None,
    threshold: float = 0.3,
    int8: bool = False,
    curve: bool = False,
    seed: int = 0,
    force: bool = False,
    progress: bool = False,
) -> TaughtTagger | None:
    """Teach a tagger and write it, with its summary, into the private folder ``out``. Returns None
    if the same tagger is already there.

    ``labels``: one or more folders of ``crtlib label``. Their teaching parts teach, without turns
    of people who judge, and the judging part of the first folder judges. Without folders, the
    labels that the corpus came with are used, and a ``judging_share`` of the users judges.
    ``epochs``, ``backbone``, ``threshold`` and ``int8`` are those of
    :func:`crtlib.screening.tagger.train_tagger`. The default ``backbone`` is the encoder that is
    installed, if any; "none" uses none. ``curve``: also report by kind what reading has taught
    (:func:`measure_learning_curve`). Raises ``ValueError`` if nothing is labelled.
    """
    backbone = None if backbone == FROM_NOTHING else backbone or default_backbone()
    check_allowed("judging_share", judging_share, 0 < judging_share < 1, "in (0, 1)")
    folders = [labels] if isinstance(labels, str | os.PathLike) else list(labels)
    inputs = {"corpus": corpus} | {f"labels {k}": folder for k, folder in enumerate(folders, 1)}
    if int8 and not backbone:
        raise ValueError(INT8_NEEDS_BACKBONE)
    if int8:
        check_exact_products()
    fitted: dict[str, Any] = {"backbone": backbone, "threshold": threshold, "seed": seed}
    fitted |= {"int8": True} if int8 else {}
    options = {"unit": unit, "heldout": judging_share, "epochs": epochs, **fitted}
    options |= {"curve": True} if curve else {}
    recipe: dict[str, Any] = {"command": "tagger", "options": options, "inputs": inputs}
    if outputs.is_up_to_date(out, **recipe):
        return None
    outputs.check_output_folder(out, inputs=list(inputs.values()), force=force)
    if folders:
        facts = read_label_facts(folders[0])
        asked_for = json.dumps([options, outputs.hash_inputs(inputs)])
        name = hashlib.sha256(asked_for.encode()).hexdigest()
        texts = _read_labelled_texts(corpus, folders, facts, unit, name, backbone)
    else:
        texts = _split_labelled_corpus(corpus, unit, judging_share, seed)
    tagger = train_tagger(texts.teaching, epochs=epochs, progress=progress, **fitted)
    epochs = epochs or tagger.net.epochs
    summary: dict[str, Any] = {"corpus": Path(corpus).name, "unit": unit, "epochs": epochs}
    summary |= {
        **fitted,
        "taught_points": len(texts.teaching),
        "judged_points": len(texts.judging),
    }
    counted: dict[str, PolicyRates] = {}
    policies = {"pi": tagger_policy(tagger), "pi_c": conservative_tagger_policy(tagger)}
    for key, policy in policies.items():
        flags = policy(texts.judging)
        counter = rates.RateCounter(
            policy,
            policy,
            cluster=texts.by,
            texts=texts.counts,
            find_values_in_whole_point=bool(folders),
        )
        counter.add(texts.judging, flags=flags, conservative_flags=flags)
        counter.add_unread(points_of_tasks(texts.unread))
        counted[key] = counter.rates(policy_pairs=texts.policy_pairs)
        summary[key] = {
            "policy": policy.name,
            "rates": counted[key].to_json(),
            "labels": counted[key].labels_json(),
            "flagged_points": sum(
                bool(spans) and not any(t.was_taught_by(p) for t in policy.taught_by)
                for p, spans in zip(texts.judging, flags, strict=True)
            ),
        }
    shift = measure_shift(texts.judging, digest_teaching_points(texts.teaching))
    summary["shift"] = asdict(shift)
    if curve:
        summary["curve"] = measure_learning_curve(texts.teaching, texts.by, epochs=epochs, **fitted)
    with outputs.staged_folder(out, force=force, **recipe) as part:
        save_tagger(tagger, part)
        (part / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return TaughtTagger(tagger, counted, shift, summary)


@dataclass(frozen=True)
class _LabelledTexts:
    """The labelled points that teach a tagger, and those of other people that judge it."""

    teaching: Sequence[Point] = field(repr=False)
    judging: Sequence[Point] = field(repr=False)
    counts: TextCounts = field(repr=False)
    """How often each text occurs."""
    by: ClusterUnit = field(default="user", repr=False)
    """Whose points judge together."""
    unread: Sequence[LabelTask] = field(default=(), repr=False)
    """Turns that were drawn to judge and that nobody read."""
    policy_pairs: int = 1
    """How many pairs of policies these labels have judged, with this tagger's."""


def _split_labelled_corpus(
    corpus: StrPath, unit: str, judging_share: float, seed: int
) -> _LabelledTexts:
    """The labels that a corpus came with; a share of its users, drawn at random, judges."""
    every = data_points.make_points(corpora.load_corpus(corpus), unit=unit)
    users = sorted({p.user for p in every})
    drawn = np.random.default_rng(seed).permutation(users)[: round(judging_share * len(users))]
    judging_people = set(drawn.tolist())  # nobody is on both sides
    return _LabelledTexts(
        teaching=[p for p in every if p.user not in judging_people],
        judging=[p for p in every if p.user in judging_people],
        counts=TextCounts(every),
    )


def _read_labelled_texts(
    corpus: StrPath,
    folders: Sequence[StrPath],
    facts: Mapping[str, Any],
    unit: str,
    name: str,
    backbone: str | None,
) -> _LabelledTexts:
    """Read the labels in folders, and note in the first that it judges a tagger.

    Args:
        corpus: The text.
        folders: The judging part of the first judges; the teaching parts of all teach, without
            turns of people who judge.
        facts: The facts of the first folder.
        unit: What one point is.
        name: What the two policies of the tagger are called where judged pairs are listed.
        backbone: The encoder of the tagger; it is loaded before the labels count as judging.

    Raises:
        ValueError: If no turn that teaches holds a secret.
    """
    by = facts["by"]
    judging = list(read_labelled_points(corpus, folders[0], part="judge", unit=unit))
    unread = list_unread_tasks(folders[0])
    counts = count_texts(corpus, unit)
    judging_people = {cluster_of(p, by) for p in judging}
    teaching = [
        point
        for labels_folder in folders
        for point in read_labelled_points(corpus, labels_folder, part="teach", unit=unit)
        if cluster_of(point, by) not in judging_people
    ]
    if not any(p.secrets for p in teaching):
        raise argument_error(
            "labels",
            f"none of the {len(teaching)} turns that teach holds a secret; draw more with "
            "'crtlib label sample --teach'",
        )
    if backbone:
        load_encoder(backbone)
    text_registry.register_text(corpus)  # after all refusals, which must not count as judging
    policy_pairs = 1
    for policy_name in (name, f"{name} pi_c"):  # each is judged alone
        policy_pairs = record_judged_pair(
            folders[0], pi=policy_name, pi_c=policy_name, corpus_sha256=facts["corpus"]
        )
    return _LabelledTexts(teaching, judging, counts, by, unread, policy_pairs)


def measure_learning_curve(
    teaching: Sequence[Point], by: ClusterUnit, *, seed: int, **fitted: Any
) -> list[dict[str, Any]]:
    """Measure how many secrets of each kind are missed by taggers taught by a quarter and by half
    of the teaching people. They are tested on the other half, so no judging label is used.

    Args:
        teaching: Points that teach, with the readers' marks.
        by: What must not be on both sides: a "user" or a "dialogue".
        seed: The seed of the split and of training.
        fitted: Further arguments of :func:`crtlib.screening.tagger.train_tagger`.

    Returns:
        For each size, ``turns`` and by kind (missed, of) over all secrets. Empty if a part holds no
        secret.
    """
    people = sorted({cluster_of(p, by) for p in teaching})
    order = [people[k] for k in np.random.default_rng([seed, 1]).permutation(len(people))]
    middle = len(order) // 2
    judging = [p for p in teaching if cluster_of(p, by) in set(order[middle:])]
    rows: list[dict[str, Any]] = []
    for size in (middle // 2, middle):
        part = [p for p in teaching if cluster_of(p, by) in set(order[:size])]
        if not any(p.secrets for p in part) or not any(p.secrets for p in judging):
            return []
        flags = tagger_policy(train_tagger(part, seed=seed, **fitted))(judging)
        kinds: dict[str, list[int]] = {}
        for point, spans in zip(judging, flags, strict=True):
            covered = {at for span in spans for at in range(span.start, span.end)}
            for secret in point.secrets:
                missed, of = kinds.get(secret.kind, [0, 0])
                is_missed = not covered.issuperset(range(secret.start, secret.end))
                kinds[secret.kind] = [missed + is_missed, of + 1]
        rows.append({"turns": len(part), "kinds": kinds})
    return rows


def describe_learning_curve(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each kind: what was missed with a quarter and with half of the teaching people,
    and about what would be missed after another hour of reading if the trend (a power of the number
    of turns) continues."""
    if not rows:
        return []
    (first, n1), (last, n2) = ((row["kinds"], row["turns"]) for row in rows)
    more = round(3600 / SECONDS_PER_TURN)
    lines = [f"by kind, missed of {n1:,}, then {n2:,} turns that teach, on people apart from them:"]
    for kind in sorted(last):
        (m1, of), (m2, _) = first[kind], last[kind]
        line = f"  {kind:<20} {m1} of {of}, then {m2}"
        if of < LEAST_OF_A_KIND:
            line += ": too few to say"
        elif 0 < m2 < m1:
            slope = math.log(m2 / m1) / math.log(n2 / n1)
            rate = m2 / of * ((2 * n2 + more) / n2) ** slope
            line += f"; an hour more ({more} turns) on top of all: about {100 * rate:.0f} %"
        elif m2:
            line += ": more reading has not helped"
        lines.append(line)
    return lines
