"""Prepare a training with a plan that protects secrets, and make its result afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from confide import spending
from confide.recipes import SecretPlanRecipe
from confide.release import file_sources, void_reasons
from confide.training import secret_plans, training_facts, training_record, training_summary
from confide.training.odometer_run import OdometerRun
from confide.training.pending_training import PendingTraining
from confide.training.training_facts import TrainingFacts
from confide.training.training_record import TrainingResult
from crtlib import outputs
from crtlib.accounting.events import WeightedGaussian
from crtlib.accounting.secret_protection import ProtectionPlan
from crtlib.arguments import argument_error
from crtlib.checks import plain_name
from crtlib.models import pretrained
from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.options import InvalidOption
from crtlib.text import corpora
from crtlib.text.records import Corpus, Point
from crtlib.text.tokenizer import BpeTokenizer, adapt_tokenizer, train_bpe
from crtlib.training import methods, parallel, schedules
from crtlib.training.loop import Training
from crtlib.training.phases import PrivacyEvent
from crtlib.training.run_state import TrainingRun

PLAN_CLIP_NORM = 0.1
"""The norm to which each point's gradient is clipped in a training with a plan."""


@dataclass(frozen=True)
class _PlannedTraining:
    """What a training with a plan from ``crtlib protect`` reads."""

    recipe: SecretPlanRecipe
    text: Corpus
    plan: ProtectionPlan
    summary: Mapping[str, Any]
    """The content of ``plan.json``, and which policy found the secrets."""
    points: Sequence[Point]
    tokenizer: BpeTokenizer
    spec: ModelSpec | None
    """The shape of the model, if it starts from random weights."""

    @property
    def has_tagger(self) -> bool:
        """Whether labelled text taught the policy that found the secrets."""
        return training_facts.names_a_tagger(self.summary["policy"])


def prepare_plan_training(recipe: SecretPlanRecipe, device: str) -> PendingTraining:
    """Prepare a training with a plan from ``crtlib protect``: on all of the text, with noise
    counted by secret.

    Since its noise is counted for secrets and not for points, certificates of other runs treat it
    as a run without protection. The vocabulary is that of ``init``, or single bytes: a point in
    which the plan knows no secret may still hold one that its policy missed.

    Raises:
        ValueError: With several processes or trials, and for a plan that is not of this corpus.
    """
    if parallel.count_launched_processes() > 1:
        raise argument_error("plan", "must be trained in one process, without torchrun")
    if recipe.trials > 1:
        raise InvalidOption(
            "trials", "must be 1, as a plan's promise covers only one training", str(recipe.trials)
        )
    text = corpora.load_corpus(recipe.corpus)
    plan, summary, points = secret_plans.read_secret_plan(recipe.plan, recipe.corpus, text)
    if recipe.init != "random":
        tokenizer = adapt_tokenizer(pretrained.resolve_model_path(recipe.init))
        spec = None
        net: nn.Module = pretrained.load_with_added_tokens(
            pretrained.resolve_model_path(recipe.init), tokenizer
        )
    else:
        tokenizer = train_bpe([], vocab_size=512)
        shape: Any = {"embedding": recipe.width, "hidden": recipe.width, "context": recipe.context}
        spec = ModelSpec(recipe.model, tokenizer.vocab_size, **shape)
        net = build_model(spec, recipe.seed)
    is_chosen = "epochs" in recipe.model_fields_set
    phases = schedules.weighted_phases(
        plan, epochs=recipe.epochs if is_chosen else min(recipe.epochs, plan.steps),
        clip_norm=PLAN_CLIP_NORM, learning_rate=recipe.private_learning_rate,
    )  # fmt: skip

    def begin(**options: Any) -> tuple[Training, TrainingRun]:
        rows = {"private": tokenizer.encode_flat(p.text for p in points)}
        training = Training(net.to(device), phases, rows, seed=recipe.seed, **options)
        return training, training.run

    def void_before(spent: spending.SpentBudget, events: Sequence[PrivacyEvent]) -> str | None:
        secrets = secret_plans.account_secrets(events, plan, recipe.plan)
        keeps = bool((secrets.posterior <= secrets.promised).all())
        return void_reasons.reason_before_plan(spent, keeps=keeps)

    planned = _PlannedTraining(recipe, text, plan, summary, points, tokenizer, spec)
    return PendingTraining(
        begin=begin,
        odometer_fields={
            "unit": summary["unit"],
            "method": methods.LP_WEIGHTED.name,
            "holds": {},
            "gamma": 1.0,
            "screening": corpora.hash_corpus(recipe.corpus),
            "delta2": 1.0,
            "relation": plan.neighbouring_relation,
        },
        protects=False,
        finish=partial(_finish_training, planned),
        tokenizer=tokenizer,
        shape=lambda _: spec,
        void_before=void_before,
    )


def _finish_training(
    planned: _PlannedTraining, run: TrainingRun, meter: OdometerRun
) -> TrainingResult:
    """Account for what was spent on each secret, and make the result of the training."""
    recipe = planned.recipe
    secrets = secret_plans.account_secrets(run.events, planned.plan, recipe.plan)
    keeps_promises = bool((secrets.posterior <= secrets.promised).all())
    worst = secrets.groupby(["prior", "promised"]).posterior.max().reset_index()
    guesses: list[list[float]] = worst[["prior", "posterior"]].to_numpy().tolist()
    plan_facts = {
        "sha256": outputs.hash_file(recipe.plan / "plan.json"),
        "kept": keeps_promises,
        "guesses": guesses,
    }
    return TrainingResult(
        run=run,
        facts={
            **training_summary.count_parameters(run.model),
            "secrets": len(secrets),
            "kept": keeps_promises,
        },
        settings={
            "method": methods.LP_WEIGHTED.name,
            "init": Path(recipe.init).name,
            "model": recipe.model,
            "seed": recipe.seed,
        },
        record=_build_record(planned, run, plan_facts, meter),
        secrets=secrets,
        keeps_promises=keeps_promises,
        sources=_collect_sources(planned, plan_facts, meter),
    )


def _build_record(
    planned: _PlannedTraining, run: TrainingRun, plan_facts: TrainingFacts, meter: OdometerRun
) -> dict[str, Any]:
    """The record of a training with a plan, for :func:`training_record.build_record`."""
    summary = planned.summary
    policy = {
        "name": summary["policy"],
        "taught_by": summary.get("taught_by", "unknown") if planned.has_tagger else None,
        "sha256": plan_facts["sha256"],
    }
    if people := summary.get("taught_people"):
        policy["people"] = people
    corpus = planned.recipe.corpus
    return {
        "corpus": training_record.describe_corpus(corpus, planned.text, meter.facts["corpus"]),
        "protects_all": True,
        "accountant": "KL divergence",
        "delta": 1.0,
        "phases": [
            {
                "kind": "private",
                "points": len(planned.points),
                "steps": event.steps,
                "noise_multiplier": event.noise_multiplier,
                "clip_norm": PLAN_CLIP_NORM,
            }
            for event in run.events
            if isinstance(event, WeightedGaussian)
        ],
        "plan": plan_facts,
        "rates": training_facts.RAW_TEXT_RATES.to_json(),
        "labels": None,
        "policies": {"pi": policy, "pi_c": policy},
        "oracle_on_real_text": False,
        "treated_as_public": [secret_plans.PUBLIC_KNOWLEDGE],
        "canaries": {"planted": 0, "copies": 0},
    }


def _collect_sources(
    planned: _PlannedTraining, plan_facts: TrainingFacts, meter: OdometerRun
) -> list[file_sources.FileSource]:
    """What the files of a training with a plan may know of the text."""
    summary = planned.summary
    relation: Any = planned.plan.neighbouring_relation
    guesses = tuple((prior, posterior) for prior, posterior in plan_facts["guesses"])
    brought = secret_plans.user_files_of_plan(summary)
    sources: list[file_sources.FileSource] = [
        file_sources.PlannedSource(
            meter.run, plan_facts["sha256"], relation, guesses, plan_facts["kept"],
            of_people=summary.get("by") == "user",
        ),
        file_sources.ConstantSource("settings and sizes"),
        *meter.origin(),
        *(file_sources.BroughtSource(plain_name(name)) for name in brought),
    ]  # fmt: skip
    if planned.has_tagger:
        sources.append(file_sources.TaughtSource(summary.get("taught_people")))
    return sources
