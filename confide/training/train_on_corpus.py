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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from confide import recipes
from confide.recipes import Recipe, SecretPlanRecipe
from confide.release import file_sources
from confide.reports import model_card
from confide.training import (
    odometer_run,
    study_of_text,
    training_of_study,
    training_record,
    training_with_plan,
)
from confide.training.odometer_run import OdometerRun
from confide.training.training_facts import CardWriter, TrainingFacts
from confide.training.training_record import TrainingResult, make_work_folder, work_folder
from crtlib import files, outputs
from crtlib.arguments import argument, argument_error
from crtlib.files import StrPath
from crtlib.models import interface, model_folder
from crtlib.options import InvalidOption
from crtlib.studies import study_data
from crtlib.text.tokenizer import BpeTokenizer
from crtlib.training import methods, parallel
from crtlib.training.checkpoints import OtherRunError
from crtlib.training.devices import device_by_name
from crtlib.training.loop import Step
from crtlib.training.run_state import OptimizerFactory

UNFINISHED_FILES = ("unfinished.pt", "unfinished.run", "unfinished.json")
"""Files of an unfinished training, in the folder beside its model: the checkpoint, the name of its
run, and its options."""
OPTIONS_OF_ANY_RUN = frozenset({"corpus", "out", "odometer", "memory", "workers"})
"""Options that may change when a training resumes: where things are, and how fast it runs."""


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
        study: Fields of :class:`crtlib.studies.crt_study.CrtStudy` that no recipe has, for
            experiments.
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
            self._job = training_with_plan.prepare_plan_training(recipe, device)
        else:
            self._job = training_of_study.prepare_study_training(
                recipe, device, study or {}, evaluation
            )
        self.recipe, self._card, self._device = recipe, card, device
        self._open_resources = contextlib.ExitStack()
        self._is_closed = False
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
                # Two would share one run.
                refusal = f"{argument('out')}: {work} is in use by another training"
                self._open_resources.enter_context(files.lock_folder(work, refusal))
            self.odometer = odometer_run.open_odometer(
                recipe.corpus, job.odometer_fields, init=recipe.init, protects=job.protects,
                odometer_folder=recipe.odometer, secure=secure, trials=getattr(recipe, "trials", 1),
                conditions=job.conditions,
            )  # fmt: skip
            self.odometer.mark = mark
            self.odometer.options = recipe.model_dump(mode="json")
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
                raise argument_error(
                    "plan",
                    f"a certificate would be void: {void} Where nobody ever saw the model of an "
                    "earlier run, strike that (crtlib account --strike) and train into another "
                    f"{argument('out')}; for an experiment, about which nothing is promised, use "
                    f"{argument('repeatable_noise', True)}",
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
        """Close a session that has taken all steps; warn of the steps that are left of one that has
        taken some."""
        steps_left = self.training.steps_left
        if not steps_left:
            self.close()
        elif steps_left < len(self):
            how_to_resume = "the same call goes on; " if self.recipe.out is not None else ""
            warnings.warn(
                f"session: {steps_left} of {len(self)} steps are left, all of them charged, and no "
                f"model is written; {how_to_resume}close(early=True) inside of the block ends a "
                "session early",
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
            steps_left = self.training.steps_left
            if steps_left == len(self):
                raise ValueError("training: no step was taken; there is nothing to end")
            self.training.stop()
            if self.odometer and steps_left:
                steps_taken = len(self) - steps_left
                self.odometer.stopped = file_sources.StoppedSource(steps_taken, len(self))
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


def _check_output(recipe: Recipe, inputs: Iterable[StrPath]) -> None:
    """Refuse, before training, an output folder that holds something or cannot be written, and one
    that holds the odometer, whose key would leave with the model, or is inside of it."""
    out = recipe.out
    if out is None:
        return
    if recipe.odometer:
        model_place, odometer_place = out.resolve(), recipe.odometer.resolve()
        holds_odometer = model_place in (odometer_place, *odometer_place.parents)
        if holds_odometer or odometer_place in model_place.parents:
            outside = f"must lie outside of {argument('out')}, {out}"
            raise argument_error("odometer", f"{recipe.odometer} {outside}")
    if (outputs.find_marker(out) or {}).get("command") == "train":
        _remove_checkpoint(out)  # if the training was killed after it had written its model
        raise argument_error("out", f"{out} is a finished model; train into another folder")
    if outputs.check_output_folder(out, inputs=inputs, force=None).exists():
        files.check_writable(out)


def _describe_other_run(work: Path, recipe: Recipe) -> str:
    """Why an unfinished training cannot resume: which options differ from those it began with, as
    far as these are known, and what can be done."""
    options_path = odometer_run.options_file(work / UNFINISHED_FILES[1])
    begun = json.loads(files.read_text(options_path)) if options_path.is_file() else {}
    now = recipe.model_dump(mode="json")
    others = [
        f"{name} {begun[name]}, not {now.get(name)}"
        for name in begun
        if name not in OPTIONS_OF_ANY_RUN and begun[name] != now.get(name)
    ]
    difference = f"with {' and '.join(others)}" if others else "of another text, model or device"
    return (
        f"{argument('out')}: {work} belongs to another run, which was begun {difference}; use the "
        f"same options to go on, or another {argument('out')} to begin again (what was begun "
        "counts in full)"
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
    promise = model_card.describe_promise(certificate)
    holds = certificate["verdict"] == "holds"
    facts |= {"promise": promise, "kind": certificate["guarantee"]["kind"] if holds else None}
    lines = [*result.lines, promise]
    return replace(result, promise=promise, holds=holds, facts=facts, lines=lines)
