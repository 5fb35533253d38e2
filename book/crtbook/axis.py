"""One axis for all methods: what is proved, what an audit shows, what attacks reach, what it costs.

>>> from crtbook.study import Desk
>>> study = AxisStudy(method="dpsgd", model="lstm", gamma=0.5, seed=0, dialogues=30, heldout=10,
...                   epochs=1, canaries=2, embedding=8, hidden=8, noise_multiplier=2.0)
>>> rows = {metric: value for metric, _, _, value in study.run(Desk())}
>>> rows["audited"] <= rows["proved_swap"], rows["proved_add_or_remove"] < rows["proved_replace"]
(True, True)

Each run trains one method on the same dialogues. The attacker scores each secret of the training
text against a fresh one on the same carrier, with every score there is. A coin decides which of the
two was read, so correct guesses are an audit in one run (Steinke et al. 2023). This audit changes
one value into another; what is proved against that is ``proved_swap``.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pandas as pd
from pandas import DataFrame
from torch import nn

from crtbook import audits, utility
from crtbook.leakage import plan_secret_protection
from crtbook.runs import CrtStudy
from crtbook.study import Desk, Row, make_rows
from crtbook.tables import STUDIES
from crtbook.tight import compose
from crtlib.accounting import group_mixtures, secret_protection
from crtlib.accounting.events import SampledGaussian
from crtlib.attacks import exposure, membership, membership_scores, one_run_bound
from crtlib.attacks.attack import Subject
from crtlib.models.construction import build_model
from crtlib.studies import study_data, study_run
from crtlib.studies.study_run import TrainedStudy
from crtlib.text.tokenizer import BpeTokenizer
from crtlib.training.loop import train_model
from crtlib.training.methods import PublicConstants
from crtlib.values import OpenProbability, PositiveFloat, checked_dataclass

REFERENCE = 10_000
"""Seeds of the reference models: they read other people's dialogues with half of the secrets."""


@dataclass(frozen=True)
class Arm:
    """A method of the axis. ``gamma`` is that of its policy; None means that of the settings.
    ``like`` names the methods of the recorded search whose constants it takes; its own if empty."""

    name: str
    label: str
    method: str
    gamma: float | None = None
    like: Sequence[str] = ()


ARMS = tuple(Arm(**arm) for arm in STUDIES["arms"])
"""From no protection to full protection; at gamma = 1 a policy redacts nothing."""


@checked_dataclass
class AxisStudy(CrtStudy):
    """A run of :class:`CrtStudy`, or of weighted training, with every attack and an audit.

    ``prior`` and ``posterior`` are what weighted training promises for each labelled value.
    ``scale`` is its C, with which greedy bounding takes one example of a value and the LP the same
    weight.
    """

    prior: OpenProbability = 1e-3
    posterior: OpenProbability = 0.1
    scale: PositiveFloat = 2.0

    def __post_init__(self) -> None:
        if not self.training_method.weighs:
            CrtStudy.__post_init__(self)

    def run(self, desk: Desk) -> list[Row]:
        """Train; return what is proved, audited and attacked, and the costs."""
        data = study_data.prepare_data(self)
        if self.training_method.weighs:
            fitted, proved = _train_weighted(self, data, desk)
        else:
            fitted = study_run.fit_study(
                self, prepared=data, checkpoint=desk.checkpoint, device=desk.device
            )
            proved = _prove_run(self, fitted)
        fitted.run.model.to("cpu")
        subject = _make_subject(self, data, fitted)
        metrics = {f"proved_{name}": epsilon for name, (epsilon, _) in proved.items()}
        metrics["audited"] = _audit_in_one_run(subject, proved["swap"][1])
        utilities = study_run.measure_utility(fitted.run.model, data.tokenizer, data.test)
        metrics |= {f"test_{name}": number for name, number in utilities.items()}
        measurements = make_rows(metrics, self.epochs)
        for attack in (
            membership.MEMBERSHIP_ATTACK,
            exposure.EXPOSURE_ATTACK,
            membership_scores.MEMBERSHIP_SCORES_ATTACK,
        ):
            measurements += [
                (name, self.epochs, item, x) for name, item, x in attack.measure(subject)
            ]
        return measurements


Proved = dict[str, tuple[float, float]]
"""Epsilon and delta of one secret by relation: the secret is added or removed with its point,
replaced by its mask, or replaced by another value ("swap")."""


def _prove_run(study: AxisStudy, fitted: TrainedStudy) -> Proved:
    events = cast(list[SampledGaussian], fitted.run.events)  # weighted runs: _prove_weighted
    if not events or not all(event.noise_multiplier for event in events):
        return {name: (math.inf, study.delta) for name in ("add_or_remove", "replace", "swap")}
    epsilon_of_steps = functools.partial(
        utility.epsilon_after_steps,
        study.method,
        sampling_probability=events[0].sampling_probability,
        noise_multiplier=events[0].noise_multiplier,
        steps=sum(event.steps for event in events),
        gamma=study.gamma,
        delta=study.delta,
    )
    delta, epsilon = study.delta, epsilon_of_steps(neighbouring_relation="replace")
    swap = epsilon, delta
    if study.method == "crt":  # from one value to its mask, and from the mask to the other value
        swap_delta = (1 + math.exp(epsilon)) * delta if epsilon < 300 else 1.0
        swap = (2 * epsilon, swap_delta) if swap_delta < 1 else (math.inf, delta)
    removal = epsilon_of_steps(neighbouring_relation="add_or_remove")
    return {"add_or_remove": (removal, delta), "replace": (epsilon, delta), "swap": swap}


def _train_weighted(
    study: AxisStudy, data: study_data.PreparedData, desk: Desk
) -> tuple[TrainedStudy, Proved]:
    """Weighted training (Hush!): it is public which point holds which labelled value."""
    plan = plan_secret_protection(study, data.points, study.scale)
    phases = study.training_method.phases(PublicConstants.of(study, plan=plan))
    spec = replace(study.shape(), vocab_size=data.tokenizer.vocab_size)
    run = train_model(
        build_model(spec, study.seed).to(desk.device),
        phases,
        {"private": data.tokenizer.encode(p.text for p in data.points)},
        seed=study.seed,
        checkpoint=desk.checkpoint,
    )
    return TrainedStudy(run, data, phases, spec), _prove_weighted(plan, study.delta)


def _prove_weighted(plan: secret_protection.ProtectionPlan, delta: float) -> Proved:
    """Prove the plan for the secret that is drawn most. Each rank of its examples has the largest
    probability of any secret at this rank, so its count is stochastically the largest."""
    rows = np.split(plan.probabilities[plan.incidence.indices], plan.incidence.indptr[1:-1])
    longest = max(map(len, rows))
    padded = [np.pad(np.sort(row)[::-1], (0, longest - len(row))) for row in rows]
    law = group_mixtures.poisson_binomial(np.max(padded, axis=0).tolist())

    def worst_of(*directions: Any) -> tuple[float, float]:
        compositions = [compose(law, plan.noise_multiplier, plan.steps, direction=w)
                for w in directions]  # fmt: skip
        return max(composed.epsilon(delta)[1] for composed in compositions), delta

    reference, swap = worst_of("forward", "backward"), worst_of("replace")
    return {"add_or_remove": reference, "replace": swap, "swap": swap}


@functools.lru_cache(maxsize=2)
def _train_reference(study: CrtStudy, tokenizer: BpeTokenizer) -> nn.Module:
    """A model with this tokenizer that has read other people's text with half the secrets."""
    other_study = replace(study, seed=study.seed + REFERENCE)
    return study_run.fit_study(
        other_study, prepared=replace(study_data.prepare_data(other_study), tokenizer=tokenizer)
    ).run.model


def _make_subject(study: AxisStudy, data: study_data.PreparedData, fitted: TrainedStudy) -> Subject:
    """The trained model, and a reference with its tokenizer that has read other people's text."""
    names = ("corpus", "dialogues", "heldout", "embedding", "hidden", "epochs", "seed", "canaries",
             "copies", "vocab_size", "unit")  # fmt: skip
    shared_fields: dict[str, Any] = {name: getattr(study, name) for name in names}
    reference_study = CrtStudy(method="sgd", model=study.model, gamma=0.5, **shared_fields)
    return Subject(
        model=fitted.run.model,
        tokenizer=data.tokenizer,
        points=data.points,
        read=data.points if study.training_method.weighs else data.read,
        others=data.others,
        canaries=data.canaries,
        seed=study.seed,
        reference=_train_reference(reference_study, data.tokenizer),
    )


def _audit_in_one_run(subject: Subject, delta: float) -> float:
    """The largest lower bound of epsilon from any score in this one run, jointly at 95 %."""
    probe = membership.probe_of_subject(subject)
    if not probe.members:
        return 0.0
    reading = membership_scores.read_texts(
        subject.model,
        subject.tokenizer,
        probe.members + probe.nonmembers,
        reference=subject.reference,
        population=[p.text for p in subject.others if p.secrets][
            : membership_scores.MAX_POPULATION_SENTENCES
        ],
    )
    n = len(probe.members)
    coins = np.random.default_rng([subject.seed, 23]).random(n) < 0.5
    best_epsilon = 0.0
    for score in membership_scores.MEMBERSHIP_SCORES:
        values = score.of(reading)
        gaps = np.where(coins, 1, -1) * (values[n:] - values[:n])  # high: the first was read
        level = 1 - 0.05 / len(membership_scores.MEMBERSHIP_SCORES)
        audit = one_run_bound.audit_one_run(gaps, coins, delta=delta, confidence=level)
        best_epsilon = max(best_epsilon, audit.epsilon)
    return best_epsilon


# --------------------------------------------------------------------------- the table
BY: dict[str, str] = STUDIES["scores"]
"""The scores of membership inference, and their metrics."""


def summarise_arms(table: DataFrame) -> DataFrame:
    """One row for each arm, in the order of ``ARMS``. ``proved_*`` and ``audited`` are the largest
    over seeds, attacks and costs are means. ``strongest`` names the best score, and
    ``strongest_high`` the upper end of its chance band; ``works`` is whether the score is above."""
    bands = membership.summarise_membership(table.assign(method=_name_arms(table)))
    values_by_arm = table.assign(arm=_name_arms(table)).pivot_table(
        index=["arm", "seed"], columns="metric", values="value", aggfunc="max", dropna=False
    )
    rows = []
    for arm in (arm for arm in ARMS if arm.name in values_by_arm.index):
        runs_of_arm: Any = values_by_arm.loc[arm.name]
        row: dict[str, Any] = {"arm": arm.name, "label": arm.label, "seeds": len(runs_of_arm)}
        bounds = ["proved_add_or_remove", "proved_replace", "proved_swap", "audited"]
        row |= runs_of_arm[bounds].max()
        measured = ["exposure", "test_ppl_words", "test_acc_words", *BY.values()]
        row |= runs_of_arm.reindex(columns=measured).mean()
        row["strongest"] = max(BY, key=lambda name: row[BY[name]])
        metric = BY[row["strongest"]]
        row["accuracy"] = row[metric]
        band = bands[(bands.metric == metric) & (bands.method == arm.name)]
        row["strongest_high"] = float(band.high.max())
        row["works"] = row["accuracy"] > row["strongest_high"]
        rows.append(row)
    return DataFrame(rows)


def _name_arms(table: DataFrame) -> pd.Series:
    is_raw = (table.method == "sgd") & np.isclose(table.gamma, 1.0)
    names = {arm.method: arm.name for arm in ARMS if arm.gamma is None}
    return table.method.map(names).where(~is_raw, "raw")


def check_order(rows: DataFrame, games: DataFrame | None = None) -> DataFrame:
    """Check that proved >= audited >= chance for each arm, and for each white-box game
    (:func:`crtbook.audits.audit_methods`). Columns: ``of``, ``proved``, ``audited``, ``holds``.
    Nothing may be audited below 0, and the strongest attack not be below its chance band."""
    checks = DataFrame(
        {"of": rows.label, "kind": "one run", "proved": rows.proved_swap, "audited": rows.audited}
    )
    checks["low"] = rows.accuracy < 1 - rows.strongest_high
    if games is not None:
        white = {"of": games.label, "kind": "white box", "proved": games.proved,
                 "audited": games.audited}  # fmt: skip
        checks = pd.concat([checks, DataFrame(white)], ignore_index=True)
    low = checks.pop("low").eq(True)  # the games have no such band
    return checks.assign(holds=(checks.proved >= checks.audited) & (checks.audited >= 0) & ~low)


def play_games(*, trials: int) -> DataFrame:
    """The white-box games of the private methods at epsilon 3, ``trials`` each, with a confidence
    of .999, so that of five honest games hardly one shows too much. See :mod:`crtbook.audits`."""
    names = [audit.name for audit in audits.AUDITS if audit.name != "dpsgd_lora"]
    return audits.audit_methods(
        names, games=trials, epsilons=(3.0,), noises=(1.0,), confidence=0.999
    )
