"""Prepare the training of a study on a corpus, and make its result after the last step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from confide import text_registry
from confide.recipes import Recipe
from confide.screening.judged_policies import (
    PolicyPair,
    count_corpus_labels,
    judge_policies,
    without_bounds_if_from_file,
)
from confide.screening.screened_rates import stored_rates
from confide.text import registry_units
from confide.training import (
    odometer_run,
    record_sources,
    study_of_text,
    training_record,
    training_summary,
)
from confide.training.odometer_run import OdometerRun
from confide.training.pending_training import PendingTraining
from confide.training.training_facts import TrainingFacts
from confide.training.training_record import TrainingResult
from crtlib.accounting import privacy_cost
from crtlib.arguments import argument_error
from crtlib.attacks import run_audit
from crtlib.files import StrPath
from crtlib.models import pretrained
from crtlib.screening import policy_digests, policy_names
from crtlib.screening.policy_changes import describe_planted_misses
from crtlib.studies import crt_study, study_data, study_run
from crtlib.studies.crt_study import CrtStudy
from crtlib.studies.study_data import PreparedData
from crtlib.studies.study_run import TrainedStudy
from crtlib.text import corpora, screened_folder, templates
from crtlib.text.records import Corpus, Dialogue
from crtlib.training import methods, schedules
from crtlib.training.phases import Phase

FIELDS_OF_THE_CORPUS = frozenset({"corpus", "dialogues", "split"})
"""Fields of a study that an experiment on one's own corpus cannot set."""


def prepare_study_training(
    recipe: Recipe, device: str, fixed: TrainingFacts, evaluation: StrPath | None = None
) -> PendingTraining:
    """Prepare the training of a study on the corpus of a recipe.

    Args:
        recipe: The corpus, and how to train on it.
        device: Where the model trains.
        fixed: Fields of :class:`CrtStudy` that no recipe has, for experiments.
        evaluation: A corpus to measure the model on; then none of the recipe's text is held out.

    Returns:
        The training; nothing was written yet, and nothing spent.

    Raises:
        ValueError: For what cannot be trained on, and if the corpus and ``evaluation`` share
            conversations, people or messages.
    """
    # A recipe for another package's method has these options too, but is no LanguageRecipe.
    options: Any = recipe
    settings = _study_settings(recipe, device, fixed)
    if evaluation is not None:
        settings["heldout"] = 0
        if text_registry.count_shared_units(recipe.corpus, evaluation):
            raise ValueError(
                f"evaluation={str(evaluation)!r}: must be text that is not trained on, but has "
                f"conversations, people or messages of {recipe.corpus}; leave them out"
            )
    study = study_of_text.build_study(recipe.corpus, **settings)
    other_text = None
    lines = list[str]()
    if evaluation is not None:
        other_text, line = leave_out_what_is_read(
            corpora.load_corpus(evaluation), recipe.corpus, study.unit
        )
        lines = [line]
    digests = {
        name: policy_digests.policy_digest(name) for name in (study.policy, study.conservative)
    }
    prepared = _prepare_data(study, other_text)  # refuses before anything is written
    study = study_of_text.choose_hyperparameters_by_size(study, prepared, settings)
    if options.canaries == "auto":
        study = replace(study, canaries=_canaries_for_power(study.ready(), options.power))
        prepared = _prepare_data(study, other_text)
        study = study_of_text.choose_hyperparameters_by_size(study, prepared, settings)
    prepared = attach_label_rates(study, prepared, getattr(options, "labels", None))
    ready = study.ready()
    study_of_text.refuse_idle_options(recipe, ready, prepared)
    return PendingTraining(
        begin=partial(
            study_run.begin_study, study, prepared=prepared, device=device, before=True,
            gradient_checkpointing=options.gradient_checkpointing,
        ),
        odometer_fields=odometer_run.odometer_fields(ready, prepared),
        protects=odometer_run.has_bound_for_missed(ready),
        finish=partial(_finish_training, ready, digests, lines),
        tokenizer=prepared.tokenizer,
        shape=lambda fitted: fitted.spec,
        template=prepared.template.source,
        conditions=partial(training_record.conditions_before_training, ready, prepared),
    )  # fmt: skip


def _study_settings(recipe: Recipe, device: str, fixed: TrainingFacts) -> dict[str, Any]:
    """The fields of the study that the recipe or the caller sets. Raises ValueError for fields that
    both set, and for fields that the corpus decides."""
    ablated = {"method"} if fixed.get("method") in ("dedup", "crt_sigma0") else set()
    if in_both := sorted({*dict(recipe)} & {*fixed} - ablated):
        raise ValueError(f"study={in_both[0]!r}: is an option of the training; give it as one")
    may_be_fixed = {f.name for f in fields(CrtStudy)} - FIELDS_OF_THE_CORPUS
    if wrong := sorted({*fixed} - may_be_fixed):
        raise ValueError(
            f"study={wrong[0]!r}: must be a field of CrtStudy, but not one that the corpus decides "
            f"({', '.join(sorted(FIELDS_OF_THE_CORPUS))})"
        )
    return study_of_text.study_fields(recipe, device) | dict(fixed)


def leave_out_what_is_read(text: Corpus, corpus: StrPath, unit: str) -> tuple[Corpus, str]:
    """Leave out of an evaluation what is trained on.

    Args:
        text: The evaluation.
        corpus: What is trained on.
        unit: If it is "turn", messages are left out that anybody writes in the corpus; otherwise,
            conversations all of whose messages are in the corpus.

    Returns:
        The rest of the evaluation, and a line that says how much was left out.

    Raises:
        ValueError: If nothing is left.

    Guarantee:
        What is measured on the rest concerns text that is not trained on, and what the rest still
        has in common with the corpus is counted. Test:
        ``tests/test_session.py::test_what_an_evaluation_has_in_common_is_left_out_and_said``.
    """
    messages = sum(len(dialogue.turns) for dialogue in text.dialogues)
    read = registry_units.find_said_messages(
        corpus, {t.text for dialogue in text.dialogues for t in dialogue.turns}
    )
    kept_dialogues: list[Dialogue] = []
    for dialogue in text.dialogues:
        new = tuple(t for t in dialogue.turns if t.text not in read)
        if new:
            turns = new if unit == "turn" else dialogue.turns
            kept_dialogues.append(replace(dialogue, turns=turns))
    if not kept_dialogues:
        raise ValueError(
            f"evaluation={text.name!r}: must be text that is not trained on, but each of its "
            f"messages is also in {corpus}"
        )
    kept_messages = sum(len(dialogue.turns) for dialogue in kept_dialogues)
    common = sum(t.text in read for dialogue in kept_dialogues for t in dialogue.turns)
    line = (
        f"other text: {kept_messages:,} messages; {messages - kept_messages:,} more are left out, "
        "as the corpus"
    )
    if unit == "turn":
        line += " has them word for word"
    else:
        line += f" has their whole conversations word for word; of the rest it has {common:,}"
    return replace(text, dialogues=tuple(kept_dialogues)), line


def _canaries_for_power(study: CrtStudy, power: float) -> int:
    """How many canaries an audit of a point's noise needs for this power."""
    event = schedules.combine_phase_events(crt_study.schedule_phases(study))
    if event is None or not event.noise_multiplier:
        return run_audit.MIN_AUDIT_CANARIES
    spent = partial(
        privacy_cost.epsilon, delta=study.delta, accountant=study.accountant,
        neighbouring_relation="replace",
    )  # fmt: skip
    half_noise = replace(event, noise_multiplier=event.noise_multiplier / 2)
    return run_audit.count_canaries_needed(
        spent(event), spent(half_noise), delta=study.delta, power=power
    )


def _prepare_data(study: CrtStudy, evaluation: Corpus | None) -> PreparedData:
    """The text as it is trained on and released: the vocabulary comes from public points, and rates
    that are known for a screened folder are used."""
    return study_data.prepare_data(
        study, public_words=True, known=stored_rates(study.corpus), evaluation=evaluation
    )


def attach_label_rates(
    study: CrtStudy, prepared: PreparedData, labels: StrPath | None
) -> PreparedData:
    """Attach to what a run reads the rates at which its policies fail.

    Args:
        study: The study, whose policies are judged.
        prepared: What the run reads.
        labels: A folder of labels that judges the policies. Without one, the labels that the corpus
            came with judge them; for a screened folder, ``prepared`` has the rates already.

    Raises:
        ValueError: For labels that have nothing to judge, since the method redacts nothing or the
            corpus is screened already.
    """
    reads_raw = study.training_method.reads_raw
    is_screened = screened_folder.is_screened_folder(study.corpus)
    if labels is None and is_screened:
        return prepared
    names = (study.policy, study.conservative)
    miss_setting = describe_planted_misses(study.gamma, study.per, study.seed)
    if study.template != "speaker":
        miss_setting += ", own words"
    pair = PolicyPair(
        (prepared.policy, prepared.conservative_policy), names, study.unit, miss_setting
    )
    if labels is None and reads_raw:
        return replace(prepared, known=without_bounds_if_from_file(prepared.rates, names))
    if labels is None:
        corpus_sha256 = text_registry.register_text(study.corpus)
        return replace(prepared, known=count_corpus_labels(prepared.counter, corpus_sha256, pair))
    if reads_raw:
        raise argument_error("labels", f"{study.method} redacts nothing that they could judge")
    if is_screened:
        raise argument_error(
            "labels", "the corpus is screened already; give them to 'crtlib screen'"
        )
    write = templates.make_point_writer(prepared.template)
    counter, label_facts = judge_policies(
        study.corpus, labels, pair, texts=prepared.texts, write=write
    )
    rates = counter.rates(policy_pairs=label_facts["judged"])
    return replace(prepared, known=rates, labels=label_facts)


def _finish_training(
    study: CrtStudy,
    digests: Mapping[str, str],
    lines: Sequence[str],
    fitted: TrainedStudy,
    meter: OdometerRun,
) -> TrainingResult:
    """Attack the model of a study and make the result of the training.

    Args:
        study: The study, ready to be trained.
        digests: The hashes of its policies, by name, as they were before the training.
        lines: Lines at the end of the result's text.
        fitted: The trained model, with what it read.
        meter: Its entry in the odometer.

    Raises:
        MachineError: If a policy no longer matches its digest.
    """
    policy_digests.check_policies_unchanged(digests, digests.values())
    rows = study_run.measure_study(study, fitted)
    guarantee = fitted.guarantee(study)
    settings = _settings_in_force(study, fitted.schedule)
    facts = training_summary.describe_study(study, fitted, rows) | {"settings": settings}
    return TrainingResult(
        run=fitted.run,
        facts=facts,
        lines=[*training_summary.summarise_training(study, fitted, rows, facts), *lines],
        settings=settings,
        sources=record_sources.collect_training_sources(study, fitted, meter),
        record=training_record.record_study(study, fitted, guarantee, meter),
        study=study,
        fitted=fitted,
        rows=rows,
    )


def _settings_in_force(study: CrtStudy, phases: Sequence[Phase]) -> dict[str, Any]:
    """The settings that had an effect. Those that neither the method nor its ``phases`` read are
    left out; for a screened folder, the settings are those by which it was screened.

    Guarantee:
        What is released names only the search, deduplication and rates by which the text was read
        and learned. Tests: ``tests/reports/test_model_cards.py::
        test_a_card_has_the_settings_that_were_in_force``, ``tests/reports/test_model_cards.py::
        test_no_file_of_a_release_names_a_setting_that_nothing_reads``.
    """
    method = study.training_method
    screening = study.screening
    of_methods = frozenset[str]().union(*(m.reads for m in methods.METHODS.values()))
    idle = set(of_methods - method.reads)
    if "policy" not in method.reads:
        idle |= {"conservative", "labelled", "coin"}
    if not method.deduplicates:
        idle |= {"dedup", "duplicates"}
    if not any("public" in phase.learning_rates() for phase in phases):
        idle |= {"batch_size", "learning_rate", "pub_passes"}
    if not method.noise:
        idle |= {"noise_multiplier"}
    if study.recurrent:
        idle |= {"context", "long", "heads"}
    if study.brings_vocabulary:
        idle |= {"embedding", "hidden", "layers", "heads", "vocab_size", "init_epochs"}
    if not study.canaries:
        idle |= {"copies", "audited"}
    if not study.lora:
        idle |= {"lora_alpha", "lora_targets"}
    if study.split == "coin":  # two tenths are held out, and the text is not simulated
        idle |= {"heldout", "search_block", "variety"}
    of_screening: dict[str, Any] = {}
    if screening is not None:
        names = ("policy", "conservative", "gamma", "dedup")
        of_screening = {name: screening[name] for name in names}
        idle |= {"labelled", "per", "coin", "duplicates"}  # its page tells how copies were treated
    settings = _portable_settings(study) | of_screening
    return {name: value for name, value in settings.items() if name not in idle}


def _portable_settings(study: CrtStudy) -> dict[str, Any]:
    """The fields of a study, without paths on this machine."""
    settings = asdict(study) | {"corpus": Path(study.corpus).name}
    if study.brings_vocabulary:
        settings["init"] = pretrained.base_model_name(study.init)
    if study.template not in templates.CANDIDATE_TEMPLATES:
        settings["template"] = "chat"  # that of the folder that is written
    for name in ("policy", "conservative"):
        settings[name] = policy_names.strip_paths(settings[name])
    return settings
