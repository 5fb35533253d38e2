"""Trainers of ``transformers`` and TRL that take the steps of a session and write a release.

A script changes two lines, the import and the argument for privacy::

    from confide.hf import SFTTrainer  # was: from trl import SFTTrainer

    trainer = SFTTrainer(
        model="HuggingFaceTB/SmolLM2-135M-Instruct",
        args=SFTConfig("model", num_train_epochs=3, per_device_train_batch_size=64),
        train_dataset=rows,
        peft_config=LoraConfig(r=8, target_modules="all-linear"),
        confide={"epsilon": 3},  # new
    )
    trainer.train()
    trainer.certify("certificate.html")

What a Trainer does around its steps is unchanged: callbacks, trackers, learning rate schedules,
evaluation. The steps themselves are taken by the session
(:class:`confide.training.train_on_corpus.Session`): batches are Poisson samples, and each step
computes, clips, noises and applies the gradient in one go. The Trainer's own loss, which divides by
the batch, is therefore never computed on text that is trained on, and no log reveals it.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import torch
import transformers
from transformers.trainer_utils import TrainOutput

from confide import recipes
from confide.recipes import Recipe
from confide.release import certify, file_sources
from confide.text import registry_units
from confide.training import study_of_text
from confide.training.train_on_corpus import Session
from confide.training.training_record import TrainingResult, make_work_folder
from crtlib.checks import printable
from crtlib.files import StrPath
from crtlib.models import pretrained
from crtlib.studies.study_data import HELDOUT_SHARE
from crtlib.text import corpora, jsonl
from crtlib.text.records import Dialogue, Turn
from crtlib.training import methods, parallel
from crtlib.training.loop import Step

RECIPE_FIELD_OF_ARGUMENT = {
    "num_train_epochs": "epochs",
    "learning_rate": "learning_rate",
    "max_grad_norm": "clip_norm",
    "seed": "seed",
}
"""Arguments of a Trainer that a recipe reads, and the recipe's names for them. A Trainer does not
distinguish its defaults from choices, so its defaults apply too."""

HOOKED = "the layers of the model are hooked"
ONLY_VALUE_OF_ARGUMENT: dict[str, tuple[tuple[Any, ...], str]] = {
    "packing": ((False,), "a packed row holds several points, which would be clipped as one"),
    "padding_free": ((False,), "rows that are joined cannot be clipped one by one"),
    "max_steps": ((-1,), "noise is computed for whole epochs; give num_train_epochs"),
    "load_best_model_at_end": (
        (False,), "the best one would be chosen on text that no noise protects"),
    "auto_find_batch_size": (
        (False,), "a sample is cut into parts that fit into memory, which changes no result"),
    "train_sampling_strategy": (("random",), "private batches are Poisson samples"),
    "label_smoothing_factor": ((0.0,), "the loss is that of the next token"),
    "neftune_noise_alpha": ((None,), "its noise is not a stream of the run"),
    "chat_template_path": ((None,), "the template is that of the model"),
    "eos_token": ((None,), "the tokenizer is that of the model"),
    "pad_token": ((None,), "the tokenizer is that of the model"),
    "dataset_text_field": (("text",), "name the column so"),
    "model_init_kwargs": ((None, {}), "weights are float32"),
    "assistant_only_loss": ((False,), "the loss is that of all tokens of a row"),
    "truncation_mode": (("keep_start",), "a row that is too long ends earlier"),
    "include_num_input_tokens_seen": (
        ("no", False), "how many tokens were read would reveal the size of a sample"),
    "skip_memory_metrics": (
        (True,), "how much memory a step takes would reveal the longest row of a sample"),
    "loss_type": ((None, "nll"), "the loss is that of the next token"),
    "torch_compile": ((False,), HOOKED),
    "use_liger_kernel": ((False,), HOOKED),
    "activation_offloading": ((False,), HOOKED),
    "deepspeed": ((None,), "processes come from torchrun, each with the whole model"),
    "fsdp": ((None, "", [], {}, False), "processes come from torchrun, each with the whole model"),
    "fp16": ((False,), "sums would overflow"),
    "push_to_hub": ((False,), "push the folder that was written, once its certificate holds"),
    "lr_scheduler_type": (
        ("linear", "cosine", "cosine_with_restarts", "polynomial", "constant",
         "constant_with_warmup", "inverse_sqrt", "cosine_with_min_lr",
         "cosine_warmup_with_min_lr", "warmup_stable_decay"),
        "a rate would depend on text that no noise protects"),
    "optim": (("adamw_torch", "adamw_torch_fused"), "the optimizer is Adam"),
}  # fmt: skip
"""Arguments of a Trainer that cannot be honoured: the values they may have, and why no others."""

UNREAD_PARAMETERS = (
    "data_collator", "compute_loss_func", "optimizers", "optimizer_cls_and_kwargs", "model_init",
    "formatting_func", "quantization_config", "preprocess_logits_for_metrics",
)  # fmt: skip
"""Parameters of a Trainer that would decide what a step reads or does; the session decides that."""

OVERRIDDEN_METHODS = (
    "training_step", "compute_loss", "get_train_dataloader", "get_batch_samples",
    "create_optimizer", "create_scheduler", "create_optimizer_and_scheduler",
)  # fmt: skip
"""Methods of a Trainer that would decide the same, so a subclass may not override them."""

SAID_BY_PARAMETER = {
    "out": "args.output_dir", "init": "model", "corpus": "train_dataset", "device": "args.use_cpu",
}  # fmt: skip
"""Fields of a recipe that a Trainer takes from elsewhere, and from where."""

LORA_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "lora_dropout": (0.0,), "bias": ("none",), "use_rslora": (False,), "use_dora": (False,),
    "modules_to_save": (None,), "layers_to_transform": (None,), "rank_pattern": ({},),
    "alpha_pattern": ({},), "fan_in_fan_out": (False,), "init_lora_weights": (True,),
}  # fmt: skip
"""Settings of adapters that a recipe does not have, and the values they must have."""

PRIVATE_LOGS = (
    "loss", "train_loss", "grad_norm", "num_tokens", "total_flos",
    "train_runtime", "train_samples_per_second", "train_steps_per_second",
)  # fmt: skip
"""What a Trainer would log that depends on the text it has read, directly or not: a step takes
longer for a longer row."""

HELD_OUT_LINE = (
    f"train_dataset: about {2 * HELDOUT_SHARE:.0%} of its people (rows, where there is no column "
    "'user') are held out to measure on, by a coin toss for each; with an "
    "eval_dataset all are trained on"
)

logger = logging.getLogger(__name__)

ROWS_FILE, EVALUATION_FILE, TEMPLATE_FILE = "rows.jsonl", "evaluation.jsonl", "joined.j2"
"""The files that a Dataset becomes in the private folder."""

JOINED_TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
"""Joins a prompt and its completion, both strings, into one text."""


# --------------------------------------------------------------------------- the trainers
if TYPE_CHECKING:
    _TrainerBehind = Any
else:
    _TrainerBehind = object


class SessionTrainer(_TrainerBehind):
    """A mixin in front of a Trainer that replaces its steps by those of a session.

    Args:
        model: A hub id or a folder; or a model of ``transformers`` as it was loaded from one.
        args: ``output_dir`` is the folder of the release; ``output_dir.work`` beside it holds what
            is private. ``per_device_train_batch_size`` times ``gradient_accumulation_steps`` times
            the number of processes is the number of points in a batch (for a private batch, the
            expected number). ``max_grad_norm`` is the norm to which each point's gradient is
            clipped. Also read are ``RECIPE_FIELD_OF_ARGUMENT``, ``weight_decay``, ``bf16`` and the
            schedule.
        train_dataset: A corpus (a folder or a file), screened or not; or a ``datasets.Dataset``
            with ``text``, ``messages``, or ``prompt`` and ``completion``, and optionally ``user``.
        confide: Further fields of the recipe (:mod:`confide.recipes`), such as ``{"epsilon": 3}``.
            They take precedence over ``args``. Rows of a Dataset are trained on by "dpsgd" unless
            a method is named.
        eval_dataset: Other texts in one of the same forms. The session measures on them as well,
            and then holds out none of the others. No noise protects them, and none may be in the
            corpus.
        peft_config: A plain ``LoraConfig``, of which rank, alpha and target modules are read.

    Raises:
        ValueError: One line with the reason, for what cannot be honoured
            (``ONLY_VALUE_OF_ARGUMENT``, ``UNREAD_PARAMETERS``, ``OVERRIDDEN_METHODS``,
            ``SAID_BY_PARAMETER``) or trained on; nothing is spent.

    Guarantee:
        Values that are logged or sent to a tracker depend on private text only through the noised
        weights: the loss is that of public steps, and no training time is reported. Whoever sees
        when a line appears can still see how long a step took. Test:
        ``tests/test_hf.py::test_nothing_private_is_logged``.
    """

    def __init__(
        self,
        model: Any,
        args: Any = None,
        *,
        train_dataset: Any,
        confide: Mapping[str, Any] | None = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        peft_config: Any = None,
        **trainer_options: Any,
    ) -> None:
        args = copy.copy(self._default_arguments() if args is None else args)
        _refuse_arguments(args, trainer_options)
        self._refuse_overridden_methods()
        if isinstance(eval_dataset, Mapping):
            raise ValueError("eval_dataset: must be one data set; join those of a dict")
        _refuse_other_texts("train_dataset", train_dataset)
        if eval_dataset is not None:
            _refuse_other_texts("eval_dataset", eval_dataset)
        _refuse_other_settings(confide)
        completions_alone = _learns_completions_alone(train_dataset, args)
        given_options = dict(confide or {})
        name = _name_of_model(model, processing_class)
        options = _recipe_of_arguments(args, name) | _recipe_of_adapters(peft_config)
        work_folder = make_work_folder(args.output_dir)
        evaluation = eval_dataset
        try:
            if isinstance(train_dataset, datasets.Dataset):
                options |= _recipe_of_rows(train_dataset, work_folder)
            else:
                options["corpus"] = train_dataset
            if isinstance(eval_dataset, datasets.Dataset):
                evaluation = _write_rows(eval_dataset, work_folder / EVALUATION_FILE)
            if evaluation is not None:
                unit = (options | given_options).get("unit", "turn")
                _refuse_trained_messages(evaluation, options["corpus"], unit)
            self.session = Session(
                _recipe_of_options(options | given_options, given_options, args),
                evaluation=evaluation,
                completions_alone=completions_alone,
                optimizer=_optimizer_of_arguments(args),
            )
        except BaseException:
            _remove_rows(work_folder)
            raise
        try:
            if not isinstance(model, str | Path):
                _refuse_other_weights(model, self.session.model, name)
            self.optimizer: Any = None
            self._first_rate = args.learning_rate  # even if a callback changes the arguments
            self._steps: Iterator[Step] | None = None
            self._losses: list[torch.Tensor] = []
            self.result: TrainingResult | None = None
            # What the Trainer itself writes is not part of the release.
            args.output_dir, args.save_strategy = str(work_folder / "trainer"), "no"
            args.gradient_accumulation_steps, args.max_grad_norm, args.weight_decay = 1, 0.0, 0.0
            args.bf16 = args.activation_checkpointing = args.gradient_checkpointing = False
            if parallel.process_group().is_leader:
                self.session.save_tokenizer(work_folder / "tokenizer")
            parallel.process_group().wait()
            tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(
                work_folder / "tokenizer"
            )
            measured = None if evaluation is None else _as_dataset(self.session.evaluation_tokens())
            super().__init__(
                model=self.session.model,
                args=args,
                train_dataset=_as_dataset([[0, 0]]),  # a placeholder that is never read
                eval_dataset=measured,
                processing_class=tokenizer,
                data_collator=transformers.DataCollatorForSeq2Seq(tokenizer),
                **trainer_options,
            )
            self._measured: Any = self.eval_dataset
            trained: Any = self.session.model  # keeps accelerate from wrapping it
            trained._is_accelerate_prepared = True
            self.session.training.try_model_again()  # TRL replaces the model's forward
        except BaseException:
            self.session.__exit__()
            _remove_rows(work_folder)
            raise

    @staticmethod
    def _default_arguments() -> Any:
        return transformers.TrainingArguments("trainer_output")

    def _refuse_overridden_methods(self) -> None:
        base_class = next(kind for kind in type(self).__mro__ if kind.__module__ == __name__)
        for name in OVERRIDDEN_METHODS:
            method = getattr(self, name)
            if getattr(method, "__func__", method) is not getattr(base_class, name):
                raise ValueError(
                    f"{name}: must not be overridden; the session decides what a step does. A "
                    "loss of your own is step(losses) of a confide.Session"
                )

    # ----------------------------------------------------------------- steps
    def get_train_dataloader(self) -> Any:
        """A loader that yields the session's steps, one epoch at a time."""
        return _StepsOfEpoch(self)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Step], num_batches: int, device: Any
    ) -> tuple[list[Step], None]:
        """The next step, and None for its number of tokens."""
        return [*itertools.islice(epoch_iterator, 1)], None

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Take the step at the learning rate that the schedule sets."""
        rate = self.lr_scheduler.get_last_lr()[0] / self._first_rate
        loss = inputs(learning_rate_factor=rate)
        if loss is not None:
            self._losses.append(loss)
        return torch.zeros((), device=self.args.device)

    def create_optimizer(self, model: Any = None) -> Any:
        """An optimizer that changes no weight, as the session does that, but carries the scheduled
        learning rate."""
        if self.optimizer is None:
            placeholder = torch.nn.Parameter(torch.zeros((), device=self.args.device))
            self.optimizer = torch.optim.SGD([placeholder], lr=self.args.learning_rate)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """A schedule over the whole session, advanced by the steps that were taken already."""
        training = self.session.training
        schedule = super().create_scheduler(len(training), optimizer)
        for _ in range(len(training) - training.steps_left):
            self.optimizer.step()
            schedule.step()
        return schedule

    def _init_training_state(self, *args: Any, **options: Any) -> tuple[int, int]:
        """Start counting where a resumed session continues."""
        super()._init_training_state(*args, **options)
        training = self.session.training
        self.state.global_step = len(training) - training.steps_left
        return self.state.global_step // _steps_of_epoch(self.session), 0

    def train(
        self,
        resume_from_checkpoint: Any = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train, and write the release. A session that was interrupted resumes by itself; one that
        a callback stops is charged in full."""
        if trial is not None:
            raise ValueError("trial: must be None; each try would have to be charged")
        if not (resume_from_checkpoint is None or isinstance(resume_from_checkpoint, bool)):
            shown_value = printable(resume_from_checkpoint, quoted=True)
            raise ValueError(
                f"resume_from_checkpoint={shown_value}: must be None, True or False; an "
                "interrupted session goes on from its own state"
            )
        self._refuse_overridden_methods()
        if self.result is not None:
            raise ValueError(
                "train: this Trainer has written its release; another training needs a new Trainer"
            )
        steps_taken = len(self.session.training) - self.session.training.steps_left
        if resume_from_checkpoint is True and not steps_taken:
            raise ValueError(
                "resume_from_checkpoint=True: must be None or False; no session was cut short here"
            )
        if resume_from_checkpoint is False and steps_taken:
            raise ValueError(
                f"resume_from_checkpoint=False: must be None or True; {steps_taken} steps of this "
                "session are taken and charged, and it goes on after them"
            )
        if self.session.holds_people_out and parallel.process_group().is_leader:
            logger.warning(HELD_OUT_LINE)
        with self.session:
            output = super().train(ignore_keys_for_eval=ignore_keys_for_eval)
            steps_left = self.session.training.steps_left
            if self._steps is None:  # killed after all were taken: none was requested here
                self.session.training.try_model_again()
            self.result = self.session.close(early=steps_left > 0)
        metrics = {name: x for name, x in output.metrics.items() if name not in PRIVATE_LOGS}
        return TrainOutput(output.global_step, float("nan"), metrics)

    # ----------------------------------------------------------------- what is told
    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """The loader of the evaluation texts that the Trainer was made with, none of which is
        trained on. Raises ValueError for others, as the logs of an evaluation would reveal them.

        Guarantee:
            Test: ``tests/test_hf.py::test_an_evaluation_of_other_texts_is_refused``.
        """
        if (self.eval_dataset if eval_dataset is None else eval_dataset) is not self._measured:
            raise ValueError(
                "eval_dataset: must be the one that the Trainer was made with; what an evaluation "
                "logs would reveal texts that are trained on"
            )
        return super().get_eval_dataloader(eval_dataset)

    def num_examples(self, dataloader: Any) -> int:
        """The rounded number of points, which the release states too; the exact one is private."""
        return file_sources.round_down_points(self.session.training.points)

    def floating_point_ops(self, inputs: Any) -> int:
        """Always 0: a true count would reveal the size of a sample."""
        return 0

    def log(self, logs: dict[str, float], *arguments: Any, **options: Any) -> None:
        """Log only what is not private; the loss is the mean over the public steps since the last
        line, if there were any."""
        shown_logs = {n: x for n, x in logs.items() if n not in PRIVATE_LOGS}
        if "loss" in logs and self._losses:
            shown_logs["loss"] = float(torch.stack(self._losses).mean())
            self._losses.clear()
        super().log(shown_logs, *arguments, **options)

    # ----------------------------------------------------------------- the release
    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Do nothing, since :meth:`train` has already written the release. Raises ValueError before
        that, and for another folder."""
        release_folder = Path(self.session.recipe.out or "")
        if not parallel.process_group().is_leader:
            return
        if self.result is None:
            raise ValueError("save_model: the training is not over; there is no release yet")
        if output_dir is not None and Path(output_dir).resolve() != release_folder.resolve():
            hint = "copy that folder as it is"
            raise ValueError(f"save_model: the release is {release_folder}; {hint}")

    def certify(self, page: str | Path, **options: Any) -> dict[str, Any]:
        """Write the certificate of the release (:func:`confide.release.certify.write_certificate`);
        return {} in every process but the leader."""
        if not parallel.process_group().is_leader:
            return {}
        return certify.write_certificate(self.session.recipe.out or "", page, **options)


def _steps_of_epoch(session: Session) -> int:
    return max(1, -(-len(session) // session.training.phases[-1].epoch))


class _StepsOfEpoch:
    """The steps of a session, as a data loader for a Trainer."""

    def __init__(self, trainer: SessionTrainer) -> None:
        self._trainer, self._size = trainer, _steps_of_epoch(trainer.session)
        trainer.args.num_train_epochs = trainer.session.training.phases[-1].epoch

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Step]:
        trainer = self._trainer
        if trainer._steps is None:
            # A Trainer has changed settings since, such as which tokens begin and end a text.
            trainer.session.training.try_model_again()
            trainer._steps = iter(trainer.session)
        steps_taken = len(trainer.session) - trainer.session.training.steps_left
        yield from itertools.islice(trainer._steps, self._size - steps_taken % self._size)


class Trainer(SessionTrainer, transformers.Trainer):
    """``transformers.Trainer``, as a :class:`SessionTrainer`."""


def __getattr__(name: str) -> Any:
    if name != "SFTTrainer":
        raise AttributeError(f"module 'confide.hf' has no attribute {name!r}")
    try:
        import trl
    except ImportError:
        raise ImportError("confide.hf.SFTTrainer: needs trl; pip install trl") from None

    class SFTTrainer(SessionTrainer, trl.SFTTrainer):
        """TRL's ``SFTTrainer``, as a :class:`SessionTrainer`."""

        @staticmethod
        def _default_arguments() -> Any:
            return trl.SFTConfig("trainer_output")

        def _send_telemetry(self) -> None:
            """Do nothing. TRL would tell the hub what kind of model each trainer has and where."""

    globals()[name] = SFTTrainer
    return SFTTrainer


# --------------------------------------------------------------------------- arguments
def _as_dataset(tokens: Sequence[Sequence[int]]) -> datasets.Dataset:
    """Tokenized texts as a Dataset; the collator pads labels with a value that no loss counts."""
    return datasets.Dataset.from_dict({"input_ids": tokens, "labels": tokens})


def _refuse_arguments(args: Any, trainer_options: Mapping[str, Any]) -> None:
    processes = parallel.count_launched_processes()
    if processes > parallel.process_group().size:
        raise ValueError(
            f"torchrun: started {processes} processes, which must train together: make the "
            "arguments and the Trainer inside "
            "'with crtlib.training.parallel.join_process_group():'"
        )
    for name, (allowed, reason) in ONLY_VALUE_OF_ARGUMENT.items():
        value = getattr(args, name, allowed[0])
        value = getattr(value, "value", value)  # if it is an enumeration
        if value not in allowed:
            allowed_texts = [a for a in allowed if isinstance(a, str) and a] or [allowed[0]]
            rule = " or ".join(map(repr, allowed_texts))
            raise ValueError(f"{name}={value!r}: must be {rule}; {reason}")
    for name in UNREAD_PARAMETERS:
        if trainer_options.get(name) not in (None, (None, None)):
            raise ValueError(f"{name}: must be left out; the session decides what a step does")
    if args.num_train_epochs != int(args.num_train_epochs):
        raise ValueError(f"num_train_epochs={args.num_train_epochs}: must be a whole number")


def _refuse_other_texts(name: str, texts: Any) -> None:
    """Refuse anything but a Dataset or the path of a corpus."""
    if not isinstance(texts, str | Path | datasets.Dataset):
        raise ValueError(
            f"{name}: is a {type(texts).__name__}, must be a datasets.Dataset, whose length is "
            "known, or the folder or file of a corpus"
        )


def _refuse_other_settings(settings: Any) -> None:
    """Refuse anything but a dict, and fields that a Trainer takes from elsewhere."""
    if settings is not None and not isinstance(settings, Mapping):
        shown_value = printable(settings, quoted=True)
        raise ValueError(f'confide={shown_value}: must be a dict, such as {{"epsilon": 3}}')
    for name, parameter in SAID_BY_PARAMETER.items():
        if name in (settings or {}):
            raise ValueError(f"confide: {name!r} must be left out; {parameter} sets it")


def _recipe_of_arguments(args: Any, model: str) -> dict[str, Any]:
    recipe_fields = {
        field: getattr(args, argument) for argument, field in RECIPE_FIELD_OF_ARGUMENT.items()
    }
    size = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    recipe_fields |= {"batch_size": size, "epochs": int(args.num_train_epochs), "init": model}
    recipe_fields |= {"dtype": "bfloat16" if args.bf16 else "float32", "device": args.device.type}
    recomputes = (
        getattr(args, f"{kind}_checkpointing", False) for kind in ("gradient", "activation")
    )
    recipe_fields |= {"gradient_checkpointing": any(recomputes)}
    recipe_fields |= {"out": Path(args.output_dir), "private_learning_rate": args.learning_rate}
    if longest := getattr(args, "max_length", None):
        config = pretrained.load_model_config(pretrained.resolve_model_path(model))
        limit = getattr(config, "max_position_embeddings", None) or longest
        recipe_fields |= {"context": min(longest, limit), "long": "cut"}
    return recipe_fields


def _recipe_of_adapters(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    if type(config).__name__ != "LoraConfig":
        raise ValueError(f"peft_config: is a {type(config).__name__}, must be a LoraConfig")
    for name, allowed in LORA_DEFAULTS.items():
        if (value := getattr(config, name, allowed[0])) not in allowed and value:
            raise ValueError(f"peft_config: {name}={value!r} must be {allowed[0]!r}")
    layers = config.target_modules or "all-linear"
    layer_names = layers if isinstance(layers, str) else ",".join(sorted(layers))
    return {"lora": config.r, "lora_alpha": float(config.lora_alpha), "lora_targets": layer_names}


def _optimizer_of_arguments(args: Any) -> Any:
    """A factory of AdamW with these arguments; None if they are the defaults, which describe the
    session's own Adam."""
    settings = (args.adam_beta1, args.adam_beta2), args.adam_epsilon, args.weight_decay
    if settings == ((0.9, 0.999), 1e-8, 0.0):
        return None
    betas, eps, decay = settings
    return partial(torch.optim.AdamW, lr=1.0, betas=betas, eps=eps, weight_decay=decay, fused=True)


def _readable(options: Mapping[str, Any], explicit: Mapping[str, Any]) -> dict[str, Any]:
    """Of the options that a Trainer sets, those that the method's recipe reads; and all options in
    ``explicit``, which were given explicitly."""
    method = str(options.get("method", "crt"))
    fields = recipes.recipe_for_method(method).model_fields
    read_options = {n: x for n, x in options.items() if n in fields or n in explicit}
    if read_options.get("lora"):
        return read_options
    return {n: x for n, x in read_options.items() if not n.startswith("lora")}


def _recipe_of_options(
    options: Mapping[str, Any], explicit: Mapping[str, Any], args: Any
) -> Recipe:
    """The recipe that options make, of which those in ``explicit`` were given explicitly. Raises
    ``ValueError`` for arguments of a Trainer that its method cannot honour."""
    readable = _readable(options, explicit)
    if "clip_norm" not in readable and args.max_grad_norm not in (0.0, 1.0, None):
        raise ValueError(
            f"max_grad_norm={args.max_grad_norm}: must be left out; method "
            f"{readable['method']} clips no gradient"
        )
    recipe = recipes.make_recipe(readable)
    if args.bf16 and methods.method_by_name(recipe.method).noise:
        raise ValueError(
            f"bf16=True: must be False where noise is added: {study_of_text.WHY_FLOAT32}"
        )
    # A value that a Trainer sets although nobody chose it may have no effect.
    chosen_fields = recipe.model_fields_set - ({"learning_rate", "batch_size"} - explicit.keys())
    return type(recipe).model_construct(_fields_set=chosen_fields, **dict(recipe))


# --------------------------------------------------------------------------- model and text
def _name_of_model(model: Any, tokenizer: Any) -> str:
    """The hub id or folder that the model comes from. A model made in memory is refused, since
    nobody could say what it has read."""
    name = str(model) if isinstance(model, str | Path) else model.config._name_or_path
    if not name:
        raise ValueError("model: was made in memory; save it, and give the folder")
    if tokenizer is not None and tokenizer.name_or_path not in ("", name):
        raise ValueError(
            f"processing_class: is that of {tokenizer.name_or_path}, must be the model's, {name}"
        )
    return name


def _refuse_other_weights(
    given_model: torch.nn.Module, own_model: torch.nn.Module, name: str
) -> None:
    """Refuse a model whose weights differ from those at the place it claims to come from."""
    own_weights = {n.replace("base_model.model.", "").replace(".base_layer", ""): p.detach()
            for n, p in own_model.named_parameters()}  # fmt: skip
    for n, p in given_model.named_parameters():
        own_weight = own_weights.get(n)
        if own_weight is not None:
            own_weight = (own_weight[: len(p)] if p.ndim else own_weight).to(p.dtype)
        if own_weight is None or not torch.equal(own_weight.cpu(), p.detach().cpu()):
            raise ValueError(
                f"model: {n} is not that of {name}; save the model, and give its folder"
            )


def _recipe_of_rows(rows: datasets.Dataset, aside: Path) -> dict[str, Any]:
    """Options for a corpus made of rows, each of which is a point: method, unit, template, path."""
    options: dict[str, Any] = {"method": "dpsgd", "unit": "dialogue"}
    if "messages" not in rows.column_names:
        options["template"] = "plain"
        if "prompt" in rows.column_names and isinstance(rows[0]["prompt"], str):
            if parallel.process_group().is_leader:
                (aside / TEMPLATE_FILE).write_text(JOINED_TEMPLATE, encoding="utf-8")
            options["template"] = str(aside / TEMPLATE_FILE)
        elif "prompt" in rows.column_names:
            del options["template"]
    return options | {"corpus": _write_rows(rows, aside / ROWS_FILE)}


def _learns_completions_alone(rows: Any, args: Any) -> bool:
    """Whether only completions count in the loss, as TRL's ``completion_only_loss`` says: for rows
    with a completion, unless turned off; for a corpus, only if requested, and then the completion
    is the last turn of each conversation."""
    is_requested = getattr(args, "completion_only_loss", False)
    if not isinstance(rows, datasets.Dataset):
        return bool(is_requested)
    pairs = "completion" in rows.column_names
    if is_requested and not pairs:
        raise ValueError(
            "completion_only_loss=True: must be None; rows have no prompt and completion"
        )
    if not pairs or is_requested is False:
        return False
    for completion in rows["completion"]:
        if not isinstance(completion, str) and len(completion) != 1:
            raise ValueError("train_dataset: a completion must be a text or one message")
    return True


def _refuse_trained_messages(evaluation: StrPath, corpus: StrPath, unit: str) -> None:
    """Refuse an evaluation with messages that are trained on. They would be left out, and the loss
    and the speed that a Trainer logs for an evaluation would reveal that.

    Guarantee:
        No message of an evaluation is left out. Test: ``tests/test_hf.py::
        test_an_evaluation_that_the_corpus_says_is_refused``.
    """
    dialogues = corpora.read_dialogues(evaluation)
    messages = [[turn.text for turn in dialogue.turns] for dialogue in dialogues]
    said = registry_units.find_said_messages(corpus, itertools.chain.from_iterable(messages))
    is_left_out = any if unit == "turn" else all
    if any(is_left_out(text in said for text in texts) for texts in messages):
        raise ValueError(
            "eval_dataset: has messages that are also in train_dataset; leave them out, as what an "
            "evaluation logs would reveal them"
        )


def _write_rows(rows: datasets.Dataset, path: Path) -> Path:
    """Write a Dataset as a corpus with one conversation per row; equal rows give an equal file."""
    if parallel.process_group().is_leader:
        jsonl.write_jsonl(map(_dialogue_of_row, itertools.count(), rows), path)
        path.chmod(0o600)
    parallel.process_group().wait()
    return path


def _remove_rows(aside: Path) -> None:
    """Remove the files of rows on which no training has begun."""
    if not (aside / f"{ROWS_FILE}.odometer").exists():
        for name in (ROWS_FILE, EVALUATION_FILE, TEMPLATE_FILE):
            (aside / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        aside.rmdir()


def _dialogue_of_row(number: int, row: Mapping[str, Any]) -> Dialogue:
    name = f"row-{number}"
    turns = tuple(Turn(role, text) for role, text in _messages_of_row(row))
    user = row.get("user")
    return Dialogue(name, "" if user is None else str(user), turns)


def _messages_of_row(row: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    if row.get("messages") is not None:
        messages = row["messages"]
    elif row.get("prompt") is not None and row.get("completion") is not None:
        prompt, completion = row["prompt"], row["completion"]
        if isinstance(prompt, str):
            return [("user", prompt), ("assistant", completion)]
        messages = [*prompt, *completion]
    elif row.get("text") is not None:
        return [("", row["text"])]
    else:
        raise ValueError(
            "train_dataset: must have text, messages, or prompt and completion in each row"
        )
    return [(message["role"], message["content"]) for message in messages]
