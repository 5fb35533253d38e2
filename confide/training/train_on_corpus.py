"""Train on your own corpus: screen it, train, attack the model, and state what is promised.

>>> import tempfile
>>> from pathlib import Path
>>> from crtlib.text import customersim, jsonl
>>> folder = Path(tempfile.mkdtemp())
>>> jsonl.write_jsonl(customersim.simulate_corpus(20, 0, "paper"), folder / "dialogues.jsonl")
>>> trained = train(folder / "dialogues.jsonl", unit="turn", method="sgd", epochs=1)
>>> trained.promise
'no guarantee: this method adds no noise'
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from confide import recipes, spending, text_registry
from confide.recipes import Recipe, SecretPlanRecipe
from confide.release import file_sources, void_reasons
from confide.reports import model_card
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
    secret_plans,
    study_of_text,
    training_facts,
    training_record,
    training_summary,
)
from confide.training.odometer_run import OdometerRun
from confide.training.training_facts import CardWriter, TrainingFacts
from confide.training.training_record import TrainingResult, make_work_folder, work_folder
from crtlib import files, outputs
from crtlib.accounting import privacy_cost
from crtlib.accounting.events import SampledGaussian, WeightedGaussian
from crtlib.accounting.secret_protection import ProtectionPlan
from crtlib.attacks import run_audit
from crtlib.checks import plain_name
from crtlib.files import StrPath
from crtlib.models import interface, model_folder, pretrained
from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.options import InvalidOption
from crtlib.screening import policy_digests, policy_names
from crtlib.screening.policy_changes import describe_planted_misses
from crtlib.studies import crt_study, study_data, study_run
from crtlib.studies.crt_study import CrtStudy
from crtlib.studies.study_data import PreparedData
from crtlib.studies.study_run import TrainedStudy
from crtlib.text import corpora, screened_folder, templates
from crtlib.text.records import Corpus, Dialogue, Point
from crtlib.text.tokenizer import BpeTokenizer, adapt_tokenizer, train_bpe
from crtlib.training import methods, parallel, schedules
from crtlib.training.checkpoints import OtherRunError
from crtlib.training.devices import device_by_name
from crtlib.training.loop import Step, Training
from crtlib.training.phases import Phase, PrivacyEvent
from crtlib.training.run_state import OptimizerFactory, TrainingRun

PLAN_CLIP_NORM = 0.1
"""The norm to which each point's gradient is clipped in a training with a plan."""

FIELDS_OF_THE_CORPUS = frozenset({"corpus", "dialogues", "split"})
"""Fields of a study that an experiment on one's own corpus cannot set."""

UNFINISHED_FILES = ("unfinished.pt", "unfinished.run", "unfinished.json")
"""Files of an unfinished training, in the folder beside its model: the checkpoint, the name of its
run, and its options."""
OPTIONS_OF_ANY_RUN = frozenset({"corpus", "out", "odometer", "memory", "workers"})
"""Options that may change when a training resumes: where things are, and how fast it runs."""


@dataclass(frozen=True)
class PendingTraining:
    """A training that is ready to begin: everything that can be refused beforehand was checked."""

    begin: Callable[..., tuple[Training, Any]]
    """Makes the training, and the object that ``finish`` is given."""
    odometer_fields: dict[str, Any]
    """What its line in the odometer states."""
    protects: bool
    """Whether its noise protects every point."""
    finish: Callable[[Any, OdometerRun], TrainingResult]
    """Makes the result of the training, after its last step."""
    tokenizer: BpeTokenizer
    """The tokenizer that texts are read with."""
    shape: Callable[[Any], ModelSpec | None]
    """Returns the shape of a model that started from random weights, given what ``finish`` is
    given."""
    template: str | None = None
    """The template (Jinja) by which turns become text."""
    conditions: Callable[[OdometerRun, Sequence[SampledGaussian]], TrainingFacts] | None = None
    """Returns what its promise will assume, before the first step."""
    void_before: Callable[[spending.SpentBudget, Sequence[PrivacyEvent]], str | None] | None = None
    """Returns why its certificate would be void, given what was spent before it and all events that
    it will have. Only for a training whose noise is of no use without a certificate."""


def train(what: Recipe | StrPath, /, **options: Any) -> Any:
    """Train on a corpus according to a recipe, attack the model, and state what it promises.

    Args:
        what: A recipe (:mod:`confide.recipes`), or a corpus; then ``options`` has the recipe's
            fields.
        options: Arguments of :class:`Session`, including fields of the recipe.

    Returns:
        A :class:`TrainingResult`; None in every process but the leader.

    Raises:
        ValueError: For what cannot be trained on; then nothing is written and nothing is spent.

    Guarantee:
        The result is that of taking all steps of a :class:`Session` with these arguments: the same
        weights bit for bit, and the same certificate field by field. Test:
        ``tests/test_session.py::test_a_session_is_the_training_of_the_command``.
    """
    with Session(what, **options) as session:
        session.take_all()
        return session.close()


def train_for_command(what: Recipe | StrPath, /, **options: Any) -> Any:
    """:func:`train` for the command line, where no code of the user runs in the process.

    Guarantee:
        Only the command's certificate names no script. A script that calls :func:`train` may have
        hooked layers or optimizers before, or supplied code that a step runs. Test:
        ``tests/test_session.py::test_a_script_is_named_whoever_takes_the_steps``.
    """
    with Session(what, **options) as session:
        if session.odometer:
            session.odometer.script = None
        session.take_all()
        return session.close()


class Session:
    """A training on a corpus, according to a recipe: opened, taken step by step, and closed.

    ::

        with Session("talk.jsonl", init="gpt2", epsilon=3, out="model") as session:
            for step in session:  # public batches, and Poisson samples of what is private
                step()
            print(session.close().promise)

    Opening a session refuses everything that can be refused, and spends nothing. Before its first
    step the run is entered in the odometer of the corpus (:mod:`confide.odometer`), with all that
    it may spend. A session that is abandoned before it is closed counts in full and leaves no
    model; it resumes from the folder ``OUT.work`` beside the model when the same script runs again.

    :meth:`close` attacks the model, states what it promises and writes it. A ``with`` block that
    ends after the last step closes the session itself; one that ends before the last step warns how
    many are left. An exception closes nothing.

    Batches, and a key for the noise of each step, come from the operating system. If the noise is
    to be repeatable they follow from the seed, which is right for an experiment and wrong for a
    release. With several processes (:mod:`crtlib.training.parallel`) all of them open the session,
    but only the first enters the run, attacks the model, states the promise and writes.

    Args:
        what: A recipe (:mod:`confide.recipes`), or a corpus; then ``recipe_fields`` has the rest.
        card: Makes the model's README.md from ``TrainingResult.facts``. It is given no exact
            measure: "perplexity" is an interval and "bits_per_character" is None.
        progress: Show a bar on a terminal.
        study: Fields of :class:`CrtStudy` that no recipe has, for experiments.
        evaluation: A corpus to measure perplexity on; then none of the text is held out. It may
            share with the corpus no conversation, person or message by which the registry
            recognizes a text. Other messages, or whole conversations, that are also in the corpus
            are left out and counted.
        completions_alone: Count only the last turn of each conversation in the loss. The promise
            still covers the whole conversation, since the rest is read.
        optimizer: Makes an optimizer from the list of trainable parameters. It is called once for
            public and once for private steps, and the phases set the learning rates. The optimizer
            must start from a fresh state, as moments hold what an earlier training read. Default:
            Adam.
        recipe_fields: Fields of the recipe.

    Raises:
        ValueError: For what cannot be trained on; then nothing is written and nothing is spent.

    Guarantee:
        The odometer holds the run before its first step. If a script opened the session, the
        certificate assumes that the script taught the model nothing else, and names its SHA-256. It
        does so whoever took the steps, since the script may have supplied an optimizer or changed
        the model before them. If several scripts took steps in turn, all are named. If one ended
        the session early, the certificate declares the step. Tests:
        ``tests/test_session.py::test_the_odometer_knows_of_a_step_before_it``,
        ``tests/test_session.py::test_a_script_is_named_and_what_is_assumed_of_it``,
        ``tests/test_session.py::test_a_script_is_named_whoever_takes_the_steps``,
        ``tests/test_session.py::test_what_is_left_early_is_charged_in_full``.
    """

    def __init__(
        self,
        what: Recipe | StrPath,
        /,
        *,
        card: CardWriter | None = None,
        progress: bool = False,
        study: TrainingFacts | None = None,
        evaluation: StrPath | None = None,
        completions_alone: bool = False,
        optimizer: OptimizerFactory | None = None,
        **recipe_fields: Any,
    ) -> None:
        recipe = (
            what
            if isinstance(what, Recipe)
            else recipes.make_recipe({"corpus": what, **recipe_fields})
        )
        if recipe.workers is not None:
            torch.set_num_threads(recipe.workers)
        device = device_by_name(recipe.device)
        if ":" in device and parallel.process_group().size > 1:  # each takes the device of its rank
            raise ValueError(f"device={device!r}: must be auto, cpu or cuda for several processes")
        if study and "core_hours" in recipe.model_fields_set:
            raise InvalidOption("core_hours", "chooses the model, and study is given")
        if not study and not isinstance(recipe, SecretPlanRecipe):
            recipe = study_of_text.resolve_model(
                recipe, device, holds_people_out=evaluation is None
            )
        self._inputs = {
            name: path for name in ("corpus", "plan") if (path := getattr(recipe, name, None))
        }
        if evaluation is not None:
            self._inputs["evaluation"] = Path(evaluation)
        self._hashes = outputs.hash_inputs(self._inputs)
        study_data.clear_corpus_caches()
        _check_output(recipe, self._inputs.values())
        if isinstance(recipe, SecretPlanRecipe):
            if evaluation is not None or completions_alone:
                name = "completions_alone" if evaluation is None else "evaluation"
                raise ValueError(f"{name}: must be left out with a plan")
            self._job = _prepare_plan(recipe, device)
        else:
            self._job = _prepare_study(recipe, device, study or {}, evaluation)
        self.recipe, self._card, self._device = recipe, card, device
        self._open_resources, self._is_closed = contextlib.ExitStack(), False
        self.result: TrainingResult | None = None
        try:
            options: dict[str, Any] = {"optimizer": optimizer} if optimizer else {}
            if completions_alone:
                if not study_of_text.says_who_spoke(recipe.corpus):
                    raise ValueError(
                        f"completions_alone: {recipe.corpus} does not say who spoke, as it was "
                        "screened by an earlier version; screen the corpus again"
                    )
                options["completions_alone"] = True
            self._open(progress, options)
        except BaseException:
            self._open_resources.close()
            raise

    def _open(self, progress: bool, options: Mapping[str, Any]) -> None:
        """Claim the model's folder, open the odometer, and make the training."""
        recipe, job = self.recipe, self._job
        work = None if recipe.out is None else make_work_folder(recipe.out)
        secure = not getattr(recipe, "repeatable_noise", False)
        checkpoint, mark, _ = (work / name if work else None for name in UNFINISHED_FILES)
        self.odometer: OdometerRun | None = None
        if parallel.process_group().is_leader:
            if work:
                self._open_resources.callback(_remove_if_empty, work)
                refusal = f"--out: {work} is in use by another training"  # two would share one run
                self._open_resources.enter_context(files.lock_folder(work, refusal))
            self.odometer = odometer_run.open_odometer(
                recipe.corpus, job.odometer_fields, init=recipe.init, protects=job.protects,
                odometer_folder=recipe.odometer, secure=secure, trials=getattr(recipe, "trials", 1),
                conditions=job.conditions,
            )  # fmt: skip
            self.odometer.mark, self.odometer.options = mark, recipe.model_dump(mode="json")
            self.odometer.script = file_sources.script_source()
            outputs.check_inputs_unchanged(self._inputs, self._hashes)  # before anything is spent
        try:
            self.training, self._result_in_progress = job.begin(
                checkpoint=checkpoint, secure=secure, memory_gib=recipe.memory, progress=progress,
                on_start=self.odometer.start if self.odometer else None, **options,
            )  # fmt: skip
        except OtherRunError:
            if work is None:
                raise
            raise ValueError(_describe_other_run(work, recipe)) from None
        if self.odometer and self.training.is_resumed:
            run = self.training.run
            ahead = self.training.charges[len(run.events) :]
            run.events += self.odometer.unseen_events(run.events, ahead, run.receipt)
        if self.odometer and secure and job.void_before:
            spent = self.odometer.spent_before_start(resumed=self.training.is_resumed)
            if void := job.void_before(spent, self.training.charges):
                raise ValueError(
                    f"--plan: a certificate would be void: {void} Where nobody ever saw the model "
                    "of an earlier run, strike that (crtlib account --strike) and train into "
                    "another --out; for an experiment, about which nothing is promised, use "
                    "--repeatable-noise"
                )

    @property
    def model(self) -> nn.Module:
        """The model; nothing else may change it until the session is closed."""
        return self.training.model

    @property
    def tokenizer(self) -> BpeTokenizer:
        """The tokenizer that texts are read with."""
        return self._job.tokenizer

    @property
    def holds_people_out(self) -> bool:
        """Whether people of the text are held out to measure on."""
        return "evaluation" not in self._inputs and "plan" not in self._inputs

    def evaluation_tokens(self) -> list[list[int]]:
        """The texts that perplexity is measured on, as the model reads them, each once."""
        return self.tokenizer.encode(p.text for p in self._result_in_progress.data.test)

    def save_tokenizer(self, folder: Path) -> None:
        """Write the tokenizer and the texts' template in the format of ``transformers``."""
        longest = interface.context_length(self.model)
        model_folder.save_fast_tokenizer(self.tokenizer, folder, self._job.template, longest)

    def __len__(self) -> int:
        """The number of steps in all, even if the session resumes from a checkpoint."""
        return len(self.training)

    def __iter__(self) -> Iterator[Step]:
        """Iterate over the steps; each must be called (:class:`crtlib.training.loop.Training`)."""
        return iter(self.training)

    def take_all(self) -> None:
        """Take all steps; between them no code of the user runs, except a custom optimizer's."""
        self.training.take_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        ended_by_itself = error[:1] == (None,)
        try:
            if ended_by_itself and not self._is_closed:
                self._close_or_warn()
        finally:
            self._open_resources.close()

    def _close_or_warn(self) -> None:
        left = self.training.steps_left
        if not left:
            self.close()
        elif left < len(self):
            again = "the same call goes on; " if self.recipe.out is not None else ""
            warnings.warn(
                f"session: {left} of {len(self)} steps are left, all of them charged, and no model "
                f"is written; {again}close(early=True) inside of the block ends a session early",
                stacklevel=3,
            )

    def close(self, *, early: bool = False) -> TrainingResult | None:
        """Attack the model, state what it promises, and write it.

        Args:
            early: Skip the steps that are left; they are charged as if they had been taken.

        Returns:
            What came of the training, also as ``result``; None in every process but the leader.

        Raises:
            ValueError: If steps are left and ``early`` is not set, or if it is set before any step;
                the session then stays open.
        """
        if early:
            left = self.training.steps_left
            if left == len(self):
                raise ValueError("training: no step was taken; there is nothing to end")
            self.training.stop()
            if self.odometer and left:
                self.odometer.stopped = file_sources.StoppedSource(len(self) - left, len(self))
        else:
            self.training.finish()
        self._is_closed = True
        with self._open_resources:
            if self.odometer is None:
                return None
            recipe, meter, job = self.recipe, self.odometer, self._job
            if recipe.out is not None:  # before anything else is given the model
                saved = self._open_resources.enter_context(
                    training_record.saved_model(
                        self.model, recipe.out, init=recipe.init, tokenizer=job.tokenizer,
                        spec=job.shape(self._result_in_progress), template=job.template,
                    )
                )  # fmt: skip
            trained = _attach_promise(job.finish(self._result_in_progress, meter), recipe, meter)
            self.training.refuse_changes_since_the_end()
            outputs.check_inputs_unchanged(self._inputs, self._hashes)
            if recipe.out is None:
                meter.finish(None, training_record.conditions_of_result(trained, meter))
            else:
                training_record.write_training(
                    trained, saved, recipe.out, self._hashes, meter, self._card, self._device
                )
                _remove_checkpoint(recipe.out)
            self.result = trained
            return trained


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # if it holds a checkpoint or results
        folder.rmdir()


def _prepare_study(
    recipe: Recipe, device: str, fixed: TrainingFacts, evaluation: StrPath | None = None
) -> PendingTraining:
    """Prepare the training of a study, in which some fields are ``fixed``. It is measured on the
    text of ``evaluation``, if given."""
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
    other_text, lines = None, list[str]()
    if evaluation is not None:
        other_text, line = _leave_out_what_is_read(
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
        finish=partial(_finish_study, ready, digests, lines),
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


def _finish_study(
    study: CrtStudy,
    digests: Mapping[str, str],
    lines: Sequence[str],
    fitted: TrainedStudy,
    meter: OdometerRun,
) -> TrainingResult:
    """Attack the model of a study and make the result, with ``lines`` at the end of its text.
    Raises MachineError if a policy no longer matches its digest."""
    policy_digests.check_policies_unchanged(digests, digests.values())
    rows, guarantee = study_run.measure_study(study, fitted), fitted.guarantee(study)
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


def _leave_out_what_is_read(text: Corpus, corpus: StrPath, unit: str) -> tuple[Corpus, str]:
    """Leave out of an evaluation what is trained on, and describe in a line how much that was. If
    the unit is a turn, messages are left out that anybody writes in the corpus; otherwise,
    conversations all of whose messages are in the corpus. Raises ValueError if nothing is left.

    Guarantee:
        What is measured on the rest concerns text that is not trained on, and what the rest still
        has in common with the corpus is counted. Test:
        ``tests/test_session.py::test_what_an_evaluation_has_in_common_is_left_out_and_said``.
    """
    messages = sum(len(d.turns) for d in text.dialogues)
    read = registry_units.find_said_messages(
        corpus, {t.text for d in text.dialogues for t in d.turns}
    )
    kept: list[Dialogue] = []
    for d in text.dialogues:
        new = tuple(t for t in d.turns if t.text not in read)
        if new:
            kept.append(replace(d, turns=new if unit == "turn" else d.turns))
    if not kept:
        raise ValueError(
            f"evaluation={text.name!r}: must be text that is not trained on, but each of its "
            f"messages is also in {corpus}"
        )
    kept_messages = sum(len(d.turns) for d in kept)
    common = sum(t.text in read for d in kept for t in d.turns)
    line = (
        f"other text: {kept_messages:,} messages; {messages - kept_messages:,} more are left out, "
        "as the corpus"
    )
    if unit == "turn":
        line += " has them word for word"
    else:
        line += f" has their whole conversations word for word; of the rest it has {common:,}"
    return replace(text, dialogues=tuple(kept)), line


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


def _settings_in_force(study: CrtStudy, phases: Sequence[Phase]) -> dict[str, Any]:
    """The settings that had an effect. Those that neither the method nor its ``phases`` read are
    left out; for a screened folder, the settings are those by which it was screened.

    Guarantee:
        What is released names only the search, deduplication and rates by which the text was read
        and learned. Tests: ``tests/reports/test_model_cards.py::
        test_a_card_has_the_settings_that_were_in_force``, ``tests/reports/test_model_cards.py::
        test_no_file_of_a_release_names_a_setting_that_nothing_reads``.
    """
    method, screening = study.training_method, study.screening
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
    if study.split == "coin":  # holds out two tenths; not of a simulation
        idle |= {"heldout", "variety"}
    of_screening: dict[str, Any] = {}
    if screening is not None:
        of_screening = {n: screening[n] for n in ("policy", "conservative", "gamma", "dedup")}
        idle |= {"labelled", "per", "coin", "duplicates"}  # its page tells how copies were treated
    return {n: v for n, v in (_portable_settings(study) | of_screening).items() if n not in idle}


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


def _prepare_plan(recipe: SecretPlanRecipe, device: str) -> PendingTraining:
    """Prepare a training with a plan from ``crtlib protect``: on all of the text, with noise
    counted by secret.

    Since its noise is counted for secrets and not for points, certificates of other runs treat it
    as a run without protection. The vocabulary is that of ``init``, or single bytes: a point in
    which the plan knows no secret may still hold one that its policy missed.
    """
    if parallel.count_launched_processes() > 1:
        raise ValueError("--plan: must be trained in one process, without torchrun")
    if recipe.trials > 1:
        raise InvalidOption(
            "trials", "must be 1, as a plan's promise covers only one training", str(recipe.trials)
        )
    text = corpora.load_corpus(recipe.corpus)
    plan, summary, points = secret_plans.read_secret_plan(recipe.plan, recipe.corpus, text)
    if recipe.init != "random":
        tokenizer, spec = adapt_tokenizer(pretrained.resolve_model_path(recipe.init)), None
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
        finish=partial(_finish_plan, planned),
        tokenizer=tokenizer,
        shape=lambda _: spec,
        void_before=void_before,
    )


def _finish_plan(planned: _PlannedTraining, run: TrainingRun, meter: OdometerRun) -> TrainingResult:
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
        record=_plan_record(planned, run, plan_facts, meter),
        secrets=secrets,
        keeps_promises=keeps_promises,
        sources=_plan_sources(planned, plan_facts, meter),
    )


def _plan_record(
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


def _plan_sources(
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


def _prepare_data(study: CrtStudy, evaluation: Corpus | None) -> PreparedData:
    """The text as it is trained on and released: the vocabulary comes from public points, and rates
    that are known for a screened folder are used."""
    return study_data.prepare_data(
        study, public_words=True, known=stored_rates(study.corpus), evaluation=evaluation
    )


def attach_label_rates(
    study: CrtStudy, prepared: PreparedData, labels: StrPath | None
) -> PreparedData:
    """What a run reads, with the rates of its policies as judged by a folder of labels, or without
    one by the labels that the corpus came with."""
    reads_raw = study.training_method.reads_raw
    is_screened = screened_folder.is_screened_folder(study.corpus)
    if labels is None and is_screened:
        return prepared
    both = (study.policy, study.conservative)
    miss_setting = describe_planted_misses(study.gamma, study.per, study.seed)
    if study.template != "speaker":
        miss_setting += ", own words"
    pair = PolicyPair(
        (prepared.policy, prepared.conservative_policy), both, study.unit, miss_setting
    )
    if labels is None:
        rates = without_bounds_if_from_file(prepared.rates, both) if reads_raw else (
            count_corpus_labels(
                prepared.counter, text_registry.register_text(study.corpus), pair
            )
        )  # fmt: skip
        return replace(prepared, known=rates)
    if reads_raw:
        raise ValueError(f"--labels: {study.method} redacts nothing that they could judge")
    if is_screened:
        raise ValueError("--labels: the corpus is screened already; give them to 'crtlib screen'")
    write = templates.make_point_writer(prepared.template)
    counter, label_facts = judge_policies(
        study.corpus, labels, pair, texts=prepared.texts, write=write
    )
    rates = counter.rates(policy_pairs=label_facts["judged"])
    return replace(prepared, known=rates, labels=label_facts)


def _check_output(recipe: Recipe, inputs: Iterable[StrPath]) -> None:
    """Refuse, before training, an output folder that holds something or cannot be written, and one
    that holds the odometer, whose key would leave with the model, or is inside of it."""
    out, meter = recipe.out, recipe.odometer
    if out is None:
        return
    places = [Path(p).resolve() for p in (out, meter or out)]
    if meter and any(a in (b, *b.parents) for a, b in (places, places[::-1])):
        raise ValueError(f"--odometer: {meter} must lie outside of --out, {out}")
    if (outputs.find_marker(out) or {}).get("command") == "train":
        _remove_checkpoint(out)  # of a training that was killed when done
        raise ValueError(f"--out: {out} is a finished model; train into another folder")
    if outputs.check_output_folder(out, inputs=inputs, force=None).exists():
        files.check_writable(out)


def _describe_other_run(work: Path, recipe: Recipe) -> str:
    """Why an unfinished training cannot resume: which options differ from those it began with, as
    far as these are known, and what can be done."""
    file = odometer_run.options_file(work / UNFINISHED_FILES[1])
    begun = json.loads(files.read_text(file)) if file.is_file() else {}
    now = recipe.model_dump(mode="json")
    others = [
        f"{name} {begun[name]}, not {now.get(name)}"
        for name in begun
        if name not in OPTIONS_OF_ANY_RUN and begun[name] != now.get(name)
    ]
    told = f"with {' and '.join(others)}" if others else "of another text, model or device"
    return (
        f"--out: {work} belongs to another run, which was begun {told}; use the same options to go "
        "on, or another --out to begin again (what was begun counts in full)"
    )


def _remove_checkpoint(out: Path) -> None:
    for name in UNFINISHED_FILES:
        (work_folder(out) / name).unlink(missing_ok=True)


def _attach_promise(result: TrainingResult, recipe: Recipe, meter: OdometerRun) -> TrainingResult:
    """The result of a training by any method, with what its certificate states now, in words.

    Guarantee:
        These words, which appear in ``guarantee.txt``, on the model's card and in the last line,
        give the numbers of the certificate: ``tests/release/test_one_number.py``.
    """
    method = methods.method_by_name(meter.facts["method"])
    facts = {
        **result.facts,
        "name": recipe.out.name if recipe.out else "",
        "method": {"name": method.name, "label": method.label},
    }
    certificate = training_record.preview_certificate(replace(result, facts=facts), meter)
    promise, holds = model_card.describe_promise(certificate), certificate["verdict"] == "holds"
    facts |= {"promise": promise, "kind": certificate["guarantee"]["kind"] if holds else None}
    lines = [*result.lines, promise]
    return replace(result, promise=promise, holds=holds, facts=facts, lines=lines)
