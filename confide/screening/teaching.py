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
from crtlib.screening.policy import Policy
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
    """Teach a tagger and write it, with its summary, into a private folder.

    Args:
        corpus: The text, a file or a folder.
        out: The folder of the tagger.
        labels: One or more folders of ``crtlib label``. Their teaching parts teach, without turns
            of people who judge, and the judging part of the first folder judges. Without folders,
            the labels that the corpus came with are used.
        unit: What one point is: a "turn", a "dialogue" or a "user".
        judging_share: The share of the users that judges, if there are no folders; in (0, 1).
        epochs: Passes over the teaching points; None: as many as fit the kind of tagger.
        backbone: The encoder, by name or folder; None: the one that is installed, if any; "none":
            no encoder.
        threshold: The score, in (0, 1], from which on a word is flagged.
        int8: Put the trained encoder in 8-bit integers.
        curve: Also report by kind what reading has taught (:func:`measure_learning_curve`).
        seed: The seed of the split and of training.
        force: Replace the contents of ``out``.
        progress: Show a bar on a terminal.

    Returns:
        The tagger and its rates; None if the same tagger is already there.

    Raises:
        ValueError: If nothing is labelled.
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
        tagger_name = hashlib.sha256(asked_for.encode()).hexdigest()
        texts = _read_labelled_texts(corpus, folders, facts, unit, tagger_name, backbone)
    else:
        texts = _split_labelled_corpus(corpus, unit, judging_share, seed)
    tagger = train_tagger(texts.teaching, epochs=epochs, progress=progress, **fitted)
    epochs = epochs or tagger.net.epochs
    summary: dict[str, Any] = {
        "corpus": Path(corpus).name,
        "unit": unit,
        "epochs": epochs,
        **fitted,
        "taught_points": len(texts.teaching),
        "judged_points": len(texts.judging),
    }
    counted: dict[str, PolicyRates] = {}
    policies = {"pi": tagger_policy(tagger), "pi_c": conservative_tagger_policy(tagger)}
    for key, policy in policies.items():
        counted[key], flagged_points = _judge_alone(policy, texts, drawn=bool(folders))
        summary[key] = {
            "policy": policy.name,
            "rates": counted[key].to_json(),
            "labels": counted[key].labels_json(),
            "flagged_points": flagged_points,
        }
    shift = measure_shift(texts.judging, digest_teaching_points(texts.teaching))
    summary["shift"] = asdict(shift)
    if curve:
        summary["curve"] = measure_learning_curve(
            texts.teaching, texts.cluster, epochs=epochs, **fitted
        )
    with outputs.staged_folder(out, force=force, **recipe) as staged:
        save_tagger(tagger, staged)
        (staged / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return TaughtTagger(tagger, counted, shift, summary)


@dataclass(frozen=True)
class _LabelledTexts:
    """The labelled points that teach a tagger, and those of other people that judge it."""

    teaching: Sequence[Point] = field(repr=False)
    judging: Sequence[Point] = field(repr=False)
    counts: TextCounts = field(repr=False)
    """How often each text occurs."""
    cluster: ClusterUnit = field(default="user", repr=False)
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
    tagger_name: str,
    backbone: str | None,
) -> _LabelledTexts:
    """Read the labels in folders, and note in the first that it judges a tagger.

    Args:
        corpus: The text.
        folders: The judging part of the first judges; the teaching parts of all teach, without
            turns of people who judge.
        facts: The facts of the first folder.
        unit: What one point is.
        tagger_name: What the two policies of the tagger are called where judged pairs are listed.
        backbone: The encoder of the tagger; it is loaded before the labels count as judging.

    Raises:
        ValueError: If no turn that teaches holds a secret.
    """
    cluster = facts["by"]
    judging = list(read_labelled_points(corpus, folders[0], part="judge", unit=unit))
    unread = list_unread_tasks(folders[0])
    counts = count_texts(corpus, unit)
    judging_people = {cluster_of(p, cluster) for p in judging}
    teaching = [
        point
        for labels_folder in folders
        for point in read_labelled_points(corpus, labels_folder, part="teach", unit=unit)
        if cluster_of(point, cluster) not in judging_people
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
    for policy_name in (tagger_name, f"{tagger_name} pi_c"):  # each is judged alone
        policy_pairs = record_judged_pair(
            folders[0], pi=policy_name, pi_c=policy_name, corpus_sha256=facts["corpus"]
        )
    return _LabelledTexts(teaching, judging, counts, cluster, unread, policy_pairs)


def _judge_alone(policy: Policy, texts: _LabelledTexts, *, drawn: bool) -> tuple[PolicyRates, int]:
    """Judge a policy as pi and as its own pi_c.

    Args:
        policy: A policy of the tagger.
        texts: The labelled points.
        drawn: The labels are those of turns that were drawn and read.

    Returns:
        Its rates on the judging points, and how many of these it flags, without points of people
        who taught it.
    """
    flags = policy(texts.judging)
    counter = rates.RateCounter(
        policy,
        policy,
        cluster=texts.cluster,
        texts=texts.counts,
        find_values_in_whole_point=drawn,
    )
    counter.add(texts.judging, flags=flags, conservative_flags=flags)
    counter.add_unread(points_of_tasks(texts.unread))
    flagged_points = sum(
        bool(spans) and not any(teaching.was_taught_by(point) for teaching in policy.taught_by)
        for point, spans in zip(texts.judging, flags, strict=True)
    )
    return counter.rates(policy_pairs=texts.policy_pairs), flagged_points


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
        taught_points = [p for p in teaching if cluster_of(p, by) in set(order[:size])]
        if not any(p.secrets for p in taught_points) or not any(p.secrets for p in judging):
            return []
        flags = tagger_policy(train_tagger(taught_points, seed=seed, **fitted))(judging)
        kinds: dict[str, list[int]] = {}
        for point, spans in zip(judging, flags, strict=True):
            flagged_characters = {at for span in spans for at in range(span.start, span.end)}
            for secret in point.secrets:
                missed, judged = kinds.get(secret.kind, [0, 0])
                is_missed = not flagged_characters.issuperset(range(secret.start, secret.end))
                kinds[secret.kind] = [missed + is_missed, judged + 1]
        rows.append({"turns": len(taught_points), "kinds": kinds})
    return rows


def describe_learning_curve(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each kind: what was missed with a quarter and with half of the teaching people,
    and about what would be missed after another hour of reading if the trend (a power of the number
    of turns) continues."""
    if not rows:
        return []
    (first, first_turns), (last, last_turns) = ((row["kinds"], row["turns"]) for row in rows)
    more_turns = round(3600 / SECONDS_PER_TURN)
    lines = [
        f"by kind, missed of {first_turns:,}, then {last_turns:,} turns that teach, on people "
        "apart from them:"
    ]
    for kind in sorted(last):
        (first_missed, judged), (last_missed, _) = first[kind], last[kind]
        line = f"  {kind:<20} {first_missed} of {judged}, then {last_missed}"
        if judged < LEAST_OF_A_KIND:
            line += ": too few to say"
        elif 0 < last_missed < first_missed:
            slope = math.log(last_missed / first_missed) / math.log(last_turns / first_turns)
            growth = (2 * last_turns + more_turns) / last_turns
            share = last_missed / judged * growth**slope
            line += f"; an hour more ({more_turns} turns) on top of all: about {100 * share:.0f} %"
        elif last_missed:
            line += ": more reading has not helped"
        lines.append(line)
    return lines
