"""A training taken step by step, and the loop that takes all of its steps.

A phase holds only public constants. The same object makes both the batches and the event that is
accounted, so the sampler that ran is the one that is paid for.

>>> import torch
>>> from crtlib.models.construction import build_model
>>> from crtlib.models.specs import ModelSpec
>>> from crtlib.training.phases import PrivatePhase
>>> phase = PrivatePhase(
...     epoch=1, sampling_probability=0.5, steps=3, noise_multiplier=1.0, clip_norm=0.1,
...     normaliser=2.0, learning_rate=1e-3,
... )
>>> generator = torch.Generator().manual_seed(0)
>>> [len(batch) for batch in phase.batches(torch.ones(3), generator)]  # an empty one counts
[1, 0, 2]
>>> model = build_model(ModelSpec("lstm", vocab_size=9, embedding=4, hidden=5), seed=0)
>>> train_model(model, [phase], {"private": [[1, 2], [3, 4, 5], [6]]}, seed=0).events
[SampledGaussian(sampling_probability=0.5, noise_multiplier=1.0, steps=3)]
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from crtlib.checks import check_allowed
from crtlib.files import StrPath
from crtlib.models import interface
from crtlib.models.interface import device_of
from crtlib.progress import bar_options
from crtlib.ragged_array import RaggedArray
from crtlib.training.checkpoints import Checkpoint, hash_run_inputs
from crtlib.training.devices import is_host
from crtlib.training.gradient_entries import trainable_parameters
from crtlib.training.matmul_precision import tf32_matmul
from crtlib.training.memory import tokens_at_once
from crtlib.training.micro_batch import IGNORE_INDEX
from crtlib.training.own_losses import Losses, refuse_mixing_losses
from crtlib.training.parallel import process_group
from crtlib.training.phases import (
    Phase,
    PrivacyEvent,
    TokenFlags,
    TokenSequences,
    collate_micro_batches,
    is_plain_phase,
)
from crtlib.training.probe import refuse_mixing
from crtlib.training.run_state import (
    OptimizerFactory,
    OptimizerName,
    TrainingRun,
    TrainingState,
)
from crtlib.training.steps import LogicalBatch, MultiTextUnit
from crtlib.training.weight_seal import (
    OptimizerSeal,
    ReadingSeal,
    SettingsSeal,
    WeightSeal,
    sums_of_saved_tensors,
)


# --------------------------------------------------------------------------- a step
class Step:
    """A step on one logical batch of a phase: public points, or a Poisson sample, which may be
    empty.

    Calling the step takes it. The first step of a phase charges the phase. Then the batch is drawn,
    and the gradient is computed, clipped, noised and given to the optimizer in one call, so that no
    other code sees it. Nothing that a private step shows depends on its sample, not even on the
    sample's size.

    ``number`` counts from 1 and includes the steps before a checkpoint. ``private`` is whether
    noise is added to what the step learns. ``loss`` is the batch's mean loss, a scalar without a
    graph, once a public step was taken, else None.
    """

    def __init__(
        self, training: Training, phase: Phase, number: int, batches: Iterator[LogicalBatch]
    ) -> None:
        self.number, self.private = number, phase.adds_noise
        self.taken = False
        self.loss: Tensor | None = None
        self._begun = False
        self._training, self._phase, self._batches = training, phase, batches

    def __repr__(self) -> str:
        return f"Step({self.number}, {'private' if self.private else 'public'})"

    def __call__(
        self, losses: Losses | None = None, *, learning_rate_factor: float = 1.0
    ) -> Tensor | None:
        """Take the step.

        Args:
            losses: A function of the model and a micro-batch as ``transformers`` reads it
                (``input_ids``, ``attention_mask``, ``position_ids`` and ``labels``, (B, T) each;
                labels are not shifted). It returns the loss of each row, (B,), with a graph, in
                private and in public steps. None: in a private step, each example's mean loss per
                token; in a public step, the batch's mean loss per token. A new function is tried
                before the step (:meth:`Training.try_losses`), so define it once.
            learning_rate_factor: Multiplies the learning rate of the phase. Compute a schedule from
                ``number``, so that a training resumed from a checkpoint keeps to it.

        Returns:
            The ``loss`` of a public step; None for a private one, because its loss is private.

        Raises:
            ValueError: For a step that was taken before, that failed, that is not the current one,
                that another thread is taking, or that a forked process calls; for a model that
                other code has changed since the last step; and for losses that are not one per
                row, that mix the rows of a batch, or that train something besides the model.

        Guarantee:
            A step that is accounted once is taken once: two threads would both read a batch, and a
            fork would continue as a second training. Tests: ``tests/training/test_own_loop.py::
            test_a_step_is_taken_by_one_thread``, ``tests/training/test_own_loop.py::
            test_a_fork_takes_no_step``.
        """
        check_allowed(
            "learning_rate_factor",
            learning_rate_factor,
            0 <= learning_rate_factor < math.inf,
            "finite, at least 0",
        )
        if os.getpid() != self._training.process:
            raise ValueError(
                f"{self!r}: belongs to a training in the process that this one was forked from; "
                "begin it where its steps are taken"
            )
        if not self._training.taking.acquire(blocking=False):
            raise ValueError(
                f"{self!r}: is already being taken, by another thread or from inside its own loss "
                "function"
            )
        try:
            return self._take(losses, learning_rate_factor)
        finally:
            self._training.taking.release()

    def _take(self, losses: Losses | None, learning_rate_factor: float) -> Tensor | None:
        """Check model and optimizers, charge the phase if it begins here, and learn from the
        batch."""
        if self._begun or self._training.current is not self:
            raise ValueError(
                f"{self!r}: can be taken only once, and before the next one is requested"
            )
        self._training.check_before_step(self._phase, losses)
        self._begun = True
        state = self._training.state
        with self._training.charged_step():
            started = time.perf_counter()
            for kind, rate in self._phase.learning_rates().items():
                for group in state.optimizers[kind].param_groups:
                    group["lr"] = rate * learning_rate_factor
            self._learn(state, losses)
        self.taken = True
        state.run.seconds += time.perf_counter() - started
        return self.loss

    def _learn(self, state: TrainingState, losses: Losses | None) -> None:
        """Draw the batch and make all of its updates.

        Guarantee:
            A layer that changes a weight while it reads, as an embedding with ``max_norm`` does, is
            refused, because no noise is added to that change. Test:
            ``tests/training/test_own_loop.py::
            test_a_weight_that_a_step_writes_as_it_reads_is_refused``.
        """
        phase: Any = self._phase
        if_own_losses = () if losses is None else (losses,)  # not every phase takes them
        noise = state.generators["noise"]
        batch = next(self._batches, None)
        if batch is None:
            raise ValueError(
                f"{self!r}: has no batch; a {type(phase).__name__} must draw one per step"
            )
        weights = list(state.run.model.parameters())
        versions = [p._version for p in weights]
        for update in phase.updates(state.run.model, batch, noise, *if_own_losses):
            if versions != [p._version for p in weights]:
                raise ValueError("model: a weight was changed by what a step read, without noise")
            state.optimizers[update.kind].step()
            versions = [p._version for p in weights]
            state.run.updates[update.kind] += 1
            state.non_finite = state.non_finite + update.non_finite
            self.loss = update.loss
        for p in trainable_parameters(state.run.model).values():
            p.grad = None


# --------------------------------------------------------------------------- a training
class Training:
    """A training that is taken step by step: its phases in order, on a model that is changed in
    place, on the device where the model is.

    Iterating yields each :class:`Step` once; each must be taken before the next is requested. A
    phase ends, and is written to the checkpoint, when the step after its last one is requested or
    :meth:`finish` is called. :func:`train_model` takes all steps in one call.

    Args:
        model: The model.
        phases: What is done, in order. They hold only public constants.
        parts: "public" and "private" token sequences; "all" is both. They are kept as one array of
            four bytes per token. To save memory, pass a :class:`~crtlib.ragged_array.RaggedArray`,
            which is not copied.
        seed: The seed of the order of public batches and, unless ``secure``, of all other draws.
        private_tokens: Whether each token is private, in the shape of ``parts``, for phases that
            read such flags.
        loss_mask: Whether the prediction of each token enters the loss, in the shape of ``parts``;
            default: all enter.
        owners: For each part, the unit (0, 1, ...) that each of its points belongs to. Poisson
            phases then draw units and clip what each owns as one gradient, so their guarantee is
            one for units.
        secure: Take Poisson draws from the operating system's cryptographic generator, and noise
            from a fresh key of it in each step. Otherwise they follow from ``seed``, so a run can
            be repeated: right for experiments, WRONG for a release, because anyone who knows the
            seed knows the batches and can subtract the noise. A secure phase that was cut short is
            run again with fresh draws. As somebody may have seen the result of the first ones, its
            event is counted each time that it begins, if there is a ``checkpoint``, so
            ``TrainingRun.events`` can hold more than the schedule.
        optimizer: "adam", "sgd", or a function that makes one from the list of trainable
            parameters. Public and private updates have one each, so that Adam's moments of one
            never scale the other's steps; the phases set their learning rates. An optimizer must
            start with nothing learned, and only steps may change its state and its settings.
        precision: The precision of matrix products. With "bfloat16", weights, norms, sums and noise
            stay in float32. A ``secure`` training that adds noise takes "float32" alone: how
            bfloat16 rounds what one text adds depends on the length of the others, and over many
            texts that adds up to more than a clip norm. On a GPU, a model's float32 products use
            TF32 (:mod:`crtlib.training.matmul_precision`).
        memory_gib: The memory in GiB that one pass may take; default: a quarter of what is free.
            Larger batches are read in parts, which changes results only by rounding.
        max_text_tokens: The most tokens that are read at once, a public constant; default: as many
            as are read of the longest point. A point may have one token more, the last, which is
            only predicted. If a phase adds noise, the model is first tried on random texts up to
            this length (:func:`crtlib.training.probe.refuse_mixing`).
        on_epoch: Called with epoch and model after the last phase of each epoch; returns its
            measurements, for ``TrainingRun.history``. It should measure on other points: the loss
            on private points is itself private.
        checkpoint: A file with model, optimizers, generators and events, readable only by its
            owner, that is replaced atomically after every phase. If it exists, training resumes
            from it, and unless ``secure`` the result is bit-identical to an uninterrupted run. A
            checkpoint of another run is refused.
        on_start: Called with all events that the run will have, and whether a checkpoint was found.
            What it returns is kept in the checkpoint, as ``TrainingRun.receipt``.
            The call comes in the first step, after every check that may refuse the training and
            before a text is read; or, if no step is left, when the steps are requested.
        progress: Show a bar on a terminal: steps, the time left, and the loss of public steps.

    With several processes (:mod:`crtlib.training.parallel`), all create the training with the same
    arguments. Only the first one calls ``on_start``, writes the checkpoint, which all must be able
    to read, and shows a bar.

    Raises:
        ValueError: For a phase whose part is missing or empty, or that cannot work with the model
            or in several processes, and for points longer than ``max_text_tokens`` or the model's
            context; during iteration, for a step that was skipped, and for a model that was changed
            between steps.

    Guarantee:
        If other code runs before the first step or between two steps, any change that it makes to a
        parameter is refused, at the latest when the phase ends (:class:`WeightSeal`), so the final
        weights are those that the phases made. A hook, layer or forward that was added or replaced
        after the model was tried (:meth:`try_model_again`) is refused too, and so is an attribute
        or a setting that was changed. What a script learns elsewhere from the same text is not
        detected. No text is longer than what the model was tried on. Tests:
        ``tests/training/test_probe.py::test_no_text_is_longer_than_what_was_tried``,
        ``tests/training/test_own_loop.py::test_a_changed_weight_is_refused``,
        ``tests/training/test_own_loop.py::
        test_a_weight_that_was_changed_before_the_first_step_is_refused``,
        ``tests/training/test_own_loop.py::test_a_hook_of_a_script_is_refused``.

        No rounding of the model's products makes what other texts add depend on one text by more
        than float32 does. Test: ``tests/training/test_own_loop.py::
        test_no_noise_is_promised_for_products_in_bfloat16``.
    """

    def __init__(
        self,
        model: nn.Module,
        phases: Sequence[Phase],
        parts: Mapping[str, TokenSequences],
        *,
        seed: int,
        private_tokens: Mapping[str, TokenFlags] | None = None,
        loss_mask: Mapping[str, TokenFlags] | None = None,
        owners: Mapping[str, Sequence[int]] | None = None,
        secure: bool = False,
        optimizer: OptimizerName | OptimizerFactory = "adam",
        precision: Literal["float32", "bfloat16"] = "float32",
        memory_gib: float | None = None,
        max_text_tokens: int | None = None,
        on_epoch: Callable[[int, nn.Module], dict[str, float]] | None = None,
        checkpoint: StrPath | None = None,
        on_start: Callable[[list[PrivacyEvent], bool], str | None] | None = None,
        progress: bool = False,
    ) -> None:
        self.process, self.taking = os.getpid(), threading.Lock()
        self.phases, self.secure, self.precision = phases, secure, precision
        self.on_epoch, self.on_start, self.progress = on_epoch, on_start, progress
        parts_read = {phase.part for phase in phases}
        self._parts = _flatten_parts(parts, parts_read, "int32")
        self._private_tokens = _flatten_parts(private_tokens or {}, parts_read, "bool")
        self._loss_mask = _flatten_parts(loss_mask or {}, parts_read, "bool")
        self._units = {
            part: _group_points_by_owner(part, self._parts, ids)
            for part, ids in (owners or {}).items()
        }
        _check_phases(model, phases, self._parts, self._private_tokens)
        if secure and self._adds_noise and precision != "float32":
            raise ValueError(
                f"precision={precision!r}: must be 'float32' where a secure training adds noise; "
                "rounded more, one text moves what the others add"
            )
        _check_owners(phases, self._parts, self._units)
        if self._loss_mask:
            _check_loss_mask(phases, self._parts, self._loss_mask)
        self._longest_text_tokens = _longest_text_tokens(phases, self._parts)
        read_at_once = max(1, self._longest_text_tokens - interface.is_causal(model))
        self._max_text_tokens = max_text_tokens or read_at_once
        if read_at_once > self._max_text_tokens:
            raise ValueError(
                f"max_text_tokens={max_text_tokens}: the longest point has "
                f"{self._longest_text_tokens} tokens; use shorter points, or at least "
                f"{read_at_once}"
            )
        self._try_reading(model)
        self.state = TrainingState.begin(model, seed=seed, secure=secure, optimizer=optimizer)
        self._file: Checkpoint | None = None
        self.phases_done = 0
        if checkpoint or process_group().size > 1:
            options: dict[str, Any] = {"seed": seed, "secure": secure}
            options |= {"optimizer": self.state.optimizer_name}
            options |= {"owners": self._units} if self._units else {}
            options |= {"precision": precision} if precision != "float32" else {}
            options |= {"processes": process_group().size} if process_group().size > 1 else {}
            identity = hash_run_inputs(
                model, phases, self._parts, self._private_tokens, self._loss_mask, options
            )
            self._file = Checkpoint(checkpoint, identity)
            self.phases_done = self._file.restore(self.state)
            process_group().check_agreement(f"{identity}{self.phases_done:08x}")
        self._device = device_of(model)
        self._tokens_at_once = tokens_at_once(model, memory_gib, self._longest_text_tokens)
        self._steps_of_phase = [p.count_batches(len(self._parts[p.part])) for p in phases]
        self._steps: Generator[Step] | None = None
        self.current: Step | None = None
        self._watched = True
        self._has_own_optimizer = not isinstance(optimizer, str)
        self._changed_tensors: Tensor | int = 0  # of the model, outside of steps
        self._changed_states: Tensor | int = 0  # of the optimizers, outside of steps
        self._tried_losses: list[Losses] = []
        self._sums_at_end: dict[str, Tensor] = {}
        self._last_charged_phase = -1  # -1: none yet
        self._frozen_seal = WeightSeal.of(model, bits_of="frozen")
        self._settings_seal = SettingsSeal.of(model)
        self._seal_model()

    @property
    def run(self) -> TrainingRun:
        """The result so far."""
        return self.state.run

    @property
    def model(self) -> nn.Module:
        """The model, which no other code may change until the training is finished."""
        return self.state.run.model

    @property
    def points(self) -> int:
        """The number of points in both parts together, which is private if one of the parts is."""
        return sum(len(self._parts.get(part, ())) for part in ("public", "private"))

    @property
    def is_resumed(self) -> bool:
        """Whether the training resumes from a checkpoint."""
        return bool(self.phases_done or self.run.events)

    @property
    def charges(self) -> list[PrivacyEvent]:
        """All events of the whole run: those that were charged, then those of phases still to come.
        Valid only before the first step and after the last."""
        ahead = [e for p in self.phases[self.phases_done :] if (e := p.event()) is not None]
        return [*self.run.events, *ahead]

    def __len__(self) -> int:
        """The number of steps from first to last, including those before a checkpoint."""
        return sum(self._steps_of_phase)

    @property
    def steps_left(self) -> int:
        """The number of steps that were not taken."""
        return len(self) - self._steps_taken

    @property
    def _steps_of_finished_phases(self) -> int:
        return sum(self._steps_of_phase[: self.phases_done])

    @property
    def _steps_taken(self) -> int:
        if self.current is None:
            return self._steps_of_finished_phases
        steps_begun = self.current.number - (not self.current.taken)
        return max(self._steps_of_finished_phases, steps_begun)

    def __iter__(self) -> Iterator[Step]:
        if self._steps is not None:
            raise ValueError(
                "training: its steps can be iterated only once; begin another training"
            )
        self._steps = self._run_phases()
        return self._steps

    @property
    def _adds_noise(self) -> bool:
        return any(phase.adds_noise for phase in self.phases)

    def _try_reading(self, model: nn.Module) -> None:
        """Try the model with its current hooks; from now on it may read texts only with these."""
        seal_before = ReadingSeal.of(model)
        if self._adds_noise:
            refuse_mixing(
                model,
                max_text_tokens=self._max_text_tokens,
                progress=self.progress and process_group().is_leader,
            )
        self._reading_seal = ReadingSeal.of(model).without_what_reading_changes(seal_before)

    def try_model_again(self) -> None:
        """Try the model again, with what was hooked to it since the training was created, as a
        Trainer or a logger does. Raises ValueError if the texts of a batch now change what one of
        them adds (:func:`crtlib.training.probe.refuse_mixing`), and once iteration has begun."""
        if self._steps is not None:
            raise ValueError("training: has begun; hook the model before its first step")
        self._check_weights()
        self._try_reading(self.model)
        self._seal_model()  # its weights were moved a little, and back

    def try_losses(self, losses: Losses, phase: Phase | None = None) -> None:
        """Try a custom loss function on random tokens, and then the model again, because the
        function may have hooked it while reading, as ``transformers`` does for hidden states.

        A step does this with each loss function that is new to the training. If later steps use
        other functions, try those before the first step, which is charged.

        Raises:
            ValueError: For losses that ``phase`` (default: any phase of the training) does not
                take, that mix the rows of a batch (:func:`crtlib.training.own_losses
                .refuse_mixing_losses`), or that hook the model so that it mixes texts.

        Guarantee:
            Losses that the first step refuses, in a public phase too, are refused before anything
            is charged. Test: ``tests/training/test_own_losses.py::
            test_losses_that_hook_the_model_are_tried_before_anything_is_charged``.
        """
        tried_phases = self.phases if phase is None else [phase]
        for tried_phase in tried_phases:
            if not is_plain_phase(tried_phase):
                raise ValueError(f"losses: must be left out in a {type(tried_phase).__name__}")
        if self._loss_mask:
            raise ValueError("losses: must be left out where there is a loss_mask")
        if not self._adds_noise or losses in self._tried_losses:
            return
        limit = interface.context_length(self.model)
        if limit is not None and self._longest_text_tokens > limit:
            raise ValueError(
                f"losses: read every token of a point, and the longest has "
                f"{self._longest_text_tokens}; must be at most {limit}, the model's context"
            )
        self._check_weights()
        try:
            with self._step_settings():
                refuse_mixing_losses(self.model, losses, max_text_tokens=self._max_text_tokens + 1)
        finally:
            self._seal_model()  # it moves the weights a little, and back
        self._try_reading(self.model)
        self._seal_model()
        self._tried_losses.append(losses)

    def check_before_step(self, phase: Phase, losses: Losses | None) -> None:
        """Refuse a model or an optimizer that was changed since the last step, and losses that are
        new to the training and do not fit it. Nothing is charged yet."""
        self._check_model()
        self._check_optimizers()
        if losses is not None:
            self.try_losses(losses, phase)

    @contextlib.contextmanager
    def charged_step(self) -> Iterator[None]:
        """A context for what a step reads and learns: the phase is charged before, the training's
        own settings hold within, and the model is sealed after a step that did not fail."""
        self._charge_phase()
        self.model.train()  # as it was tried, whatever mode a script has left
        with self._step_settings():
            yield
        self._seal_model()

    def take_all(self) -> TrainingRun:
        """Take all steps and return the run. As only the training's own code runs between them, and
        ``on_epoch``, which is watched itself, the bits of the weights are watched again only after
        the last step.

        Guarantee:
            Test: ``tests/training/test_own_loop.py::
            test_a_weight_that_was_changed_after_all_steps_is_refused``.
        """
        self._check_weights()
        self._check_optimizers()
        self._watched = False
        for step in self:
            step()
        self._watched = True
        if self._adds_noise and self._has_own_optimizer:
            refuse_mixing(self.model, max_text_tokens=self._max_text_tokens)
        self._seal_model()
        return self.run

    def finish(self) -> TrainingRun:
        """End the last phase, after its last step, and return the run. Raises ValueError if steps
        are left."""
        if self.steps_left:
            raise ValueError(f"training: {self.steps_left} steps are left; take them first")
        for step in self._steps or self:
            raise ValueError(f"{step!r}: is left; take it first")
        self._check_model_fully()  # a change may have come after the last phase had ended
        self._settings_seal.restore()
        self._sums_at_end = sums_of_saved_tensors(self.model)
        return self.run

    def stop(self) -> TrainingRun:
        """End the training early and return the run. Steps that were not taken are charged as if
        they had run, as every phase is charged in full when it begins. Raises ValueError before the
        first step."""
        if self.current is None or self._steps is None or self._last_charged_phase < 0:
            raise ValueError("training: no step was taken; there is nothing to end")
        if self._steps_taken > self._steps_of_finished_phases:
            self._end_phase(self.phases[self.phases_done])
            self.phases_done += 1
        self._steps.close()
        uncharged = self.phases[max(self.phases_done, self._last_charged_phase + 1) :]
        self.run.events.extend(event for p in uncharged if (event := p.event()) is not None)
        self.phases_done = len(self.phases)
        self._check_model_fully()
        self._settings_seal.restore()
        self._sums_at_end = sums_of_saved_tensors(self.model)
        return self.run

    def refuse_changes_since_the_end(self) -> None:
        """Raise ValueError if a tensor of the model is another one than when the training ended, as
        where something that measured the model has trained it. Gradients that it left are removed.
        """
        for p in self.model.parameters():
            p.grad = None
        sums_now = sums_of_saved_tensors(self.model)
        for name in self._sums_at_end.keys() | sums_now.keys():
            sum_at_end = self._sums_at_end.get(name)
            sum_now = sums_now.get(name)
            if sum_at_end is None or sum_now is None or not torch.equal(sum_at_end, sum_now):
                raise ValueError(
                    f"model: {name!r} was changed after the last step, while the model was measured"
                )

    def _run_phases(self) -> Generator[Step]:
        run, state, file = self.run, self.state, self._file
        if not any(self._steps_of_phase[self.phases_done :]):  # killed after all were taken
            self._announce_all_charges()
        self._check_weights()
        run.model.train()
        number = self._steps_of_finished_phases
        bar = tqdm(
            initial=number, desc="training", unit="step",
            **bar_options(self.progress and process_group().is_leader, total=len(self)),
        )  # fmt: skip
        for k, phase in enumerate(self.phases[self.phases_done :], start=self.phases_done):
            batches = self._batches(phase)
            for _ in range(self._steps_of_phase[k]):
                number += 1
                self.current = step = Step(self, phase, number, batches)
                yield step
                if not step.taken:
                    raise ValueError(f"{step!r}: was skipped; an empty sample is a step too")
                if step.loss is not None and not bar.disable:
                    bar.set_postfix_str(f"loss {float(step.loss):.2f}", refresh=False)
                bar.update()
            started = time.perf_counter()
            self._end_phase(phase)
            run.seconds += time.perf_counter() - started
            if self.on_epoch and (
                k + 1 == len(self.phases) or self.phases[k + 1].epoch != phase.epoch
            ):
                seal = WeightSeal.of(run.model, bits_of="learning")
                measured = self.on_epoch(phase.epoch, run.model)
                run.model.train()
                seal.refuse_visible_changes()
                if int(seal.count_changed()):
                    raise ValueError("on_epoch: changed a weight; it must only measure")
                run.history.append({"epoch": phase.epoch, **measured})
            self.phases_done = k + 1
            if file:
                file.save(state, k + 1)
        bar.close()

    def _charge_phase(self) -> None:
        """Charge the current phase in full, before its first step reads a text. Before the first
        phase, tell ``on_start`` what the whole run may cost."""
        if self._last_charged_phase == self.phases_done:
            return
        if self._last_charged_phase < 0:
            self._announce_all_charges()
        self._last_charged_phase = self.phases_done
        if (event := self.phases[self.phases_done].event()) is not None:
            self.run.events.append(event)
            if self.secure and self._file:  # charged before it runs: see ``secure``
                self._file.save(self.state, self.phases_done)

    def _announce_all_charges(self) -> None:
        """Tell ``on_start`` what the whole run may cost, even if no step is left to be taken."""
        if self.on_start and process_group().is_leader:
            self.run.receipt = self.on_start(self.charges, self.is_resumed) or ""

    def _batches(self, phase: Phase) -> Iterator[LogicalBatch]:
        """Yield all batches of a phase, cut into micro-batches."""
        points = self._parts[phase.part]
        private_tokens = self._private_tokens.get(phase.part, ())
        loss_mask = self._loss_mask.get(phase.part)
        units = self._units.get(phase.part) if phase.order == "poisson" else None
        collate = partial(
            collate_micro_batches,
            at_once=self._tokens_at_once,
            as_few_as_possible=phase.draws_numbers or phase.reads_flags,
        )
        host = torch.device("cpu")  # where flags and masks stay; they are cut like their tokens

        def cut_points(picked: Sequence[int]) -> LogicalBatch:
            batch = collate(points, picked, self._device)
            if loss_mask is None:
                return batch
            return [
                _with_targets(tokens, lengths, mask)
                for (tokens, lengths), (mask, _) in zip(
                    batch, collate(loss_mask, picked, host), strict=True
                )
            ]

        sizes = points.lengths if units is None else [len(unit) for unit in units]
        lengths = torch.as_tensor(sizes)
        index_batches = phase.batches(lengths, self.state.generators[phase.order])
        for indices in process_group().broadcast_batches(index_batches):
            picked = process_group().share(indices.tolist(), key=lambda k: int(lengths[k]))
            units_of_several: list[Any] = []  # each takes the place of a micro-batch
            if units is not None:
                groups = [units[k] for k in picked]
                picked = [group[0] for group in groups if len(group) == 1]
                pieces = [cut_points(g) for g in groups if len(g) > 1]
                # Without flags, so each piece is a pair.
                units_of_several = [MultiTextUnit(cast(Any, rows)) for rows in pieces]
            batch = [*cut_points(picked), *units_of_several]
            if phase.reads_flags:
                flags = collate(private_tokens, picked, host)
                batch = [(*rows, flag) for rows, (flag, _) in zip(batch, flags, strict=True)]
            yield batch

    # ----------------------------------------------------------------- around a step
    @contextlib.contextmanager
    def _step_settings(self) -> Iterator[None]:
        """Run a step in the training's own precision and with autograd, whatever the code around it
        has set.

        Guarantee:
            A step learns from the weights that the last one left. Autocast keeps its rounded copies
            of weights until its outermost context ends, so an autocast around all steps would feed
            each of them the weights of the first. Test:
            ``tests/training/test_own_loop.py::test_a_step_in_bfloat16_reads_the_weights_that_it_finds``.
        """
        low = self.precision == "bfloat16"
        torch.clear_autocast_cache()
        with (
            torch.inference_mode(False),
            tf32_matmul(self._device),
            torch.autocast(self._device.type, torch.bfloat16, low),
        ):
            yield

    def _seal_model(self) -> None:
        self._seal = WeightSeal.of(self.model, bits_of="learning" if self._watched else None)
        if self._watched:
            self._optimizer_seal = OptimizerSeal.of(self.state.optimizers.values())

    def _check_model(self) -> None:
        """Check the weights, and what is hooked to the model. Called before each step."""
        self._check_weights()
        if self._adds_noise:
            self._reading_seal.refuse_changed_reading(self.model)

    def _check_weights(self) -> None:
        """Refuse a model whose tensors were changed outside of a step. Called before anything reads
        the model, or moves its weights and seals it again. On a GPU a changed value is only counted
        here, and refused when the phase ends, so that no step waits for the device."""
        self._seal.refuse_visible_changes()
        if self._watched:
            self._changed_tensors = self._changed_tensors + self._seal.count_changed()
            if is_host(self._device):
                self._raise_if_values_changed()

    def _raise_if_values_changed(self) -> None:
        """Raise ValueError if a change was counted; on a GPU this waits for the device."""
        if int(self._changed_tensors):
            raise ValueError("model: a weight was changed outside of a step")
        if int(self._changed_states):
            raise ValueError("optimizer: its state was changed outside of a step")

    def _check_optimizers(self) -> None:
        """Refuse optimizers whose settings or learned state were changed outside of a step. Called
        before each step, which moves the weights by that state; not after the last step."""
        if self._watched:
            self._optimizer_seal.refuse_changed_settings()
            self._changed_states = self._changed_states + self._optimizer_seal.count_changed()
            if is_host(self._device):
                self._raise_if_values_changed()

    def _check_model_fully(self) -> None:
        """Check weights, hooks and the tensors that no step changes, and raise ValueError if any
        change was counted. Called after the last step of a phase, and before the model is handed
        over."""
        self._check_model()
        if self._watched:
            if self._adds_noise:  # else a layer may keep averages of what it reads
                self._changed_tensors = self._changed_tensors + self._frozen_seal.count_changed()
            self._raise_if_values_changed()

    def _end_phase(self, phase: Phase) -> None:
        """Read what the phase has left on the device: the only time that a phase waits for it. Try
        the model once more after private steps between which other code ran, as that may have
        changed functions that no seal of the model's own objects shows.

        Guarantee:
            Test: ``tests/training/test_own_loop.py::
            test_a_function_that_is_changed_between_steps_is_found_when_the_phase_ends``.
        """
        self._check_model_fully()
        if self._watched and phase.adds_noise:
            refuse_mixing(self.model, max_text_tokens=self._max_text_tokens)
            self._seal_model()  # its weights were moved a little, and back
        self.run.non_finite += process_group().total(int(self.state.non_finite))
        self.state.non_finite = 0


def train_model(
    model: nn.Module,
    phases: Sequence[Phase],
    parts: Mapping[str, TokenSequences],
    **options: Any,
) -> TrainingRun:
    """Create a :class:`Training` with these arguments, take all its steps, and return the run."""
    return Training(model, phases, parts, **options).take_all()


def _flatten_parts(
    parts: Mapping[str, TokenSequences | TokenFlags],
    parts_read: Collection[str],
    dtype: Literal["int32", "bool"],
) -> dict[str, RaggedArray]:
    """Return each part as one array and, if a phase reads it, the part "all": the public part
    followed by the private one."""
    flat = {part: RaggedArray.of(rows, dtype) for part, rows in parts.items()}
    if "all" in parts_read and flat:
        flat["all"] = RaggedArray.joined([flat[p] for p in ("public", "private") if p in flat])
    return flat


def _longest_text_tokens(phases: Sequence[Phase], parts: Mapping[str, RaggedArray]) -> int:
    """The number of tokens in the longest point that a phase reads."""
    return max((int(parts[p.part].lengths.max(initial=0)) for p in phases), default=0)


def _check_phases(
    model: nn.Module,
    phases: Sequence[Phase],
    parts: Mapping[str, RaggedArray],
    private_tokens: Mapping[str, RaggedArray],
) -> None:
    """Refuse, before the first step, what cannot be trained."""
    for phase in phases:
        points = parts.get(phase.part, ())
        if not points:
            raise ValueError(f"part={phase.part!r}: {type(phase).__name__} has no points to read")
        if process_group().size > 1 and not is_plain_phase(phase):
            raise ValueError(
                f"processes={process_group().size}: must be 1 for a {type(phase).__name__}"
            )
        phase.check(model, points, private_tokens.get(phase.part, ()))
    longest, limit = _longest_text_tokens(phases, parts), interface.context_length(model)
    if limit is not None and longest - 1 > limit:
        raise ValueError(
            f"context={limit}: the longest point has {longest} tokens; use shorter points "
            "(unit=turn) or a model with a longer context"
        )


def _check_owners(
    phases: Sequence[Phase],
    parts: Mapping[str, TokenSequences],
    units: Mapping[str, Sequence[Sequence[int]]],
) -> None:
    """Refuse a Poisson phase that draws from "all" if only single parts have owners: it would clip
    each text of a unit by itself."""
    for phase in phases:
        mixes = phase.part == "all" and phase.order == "poisson" and "all" not in units
        if owned := sorted(part for part in units if mixes and parts.get(part)):
            raise ValueError(
                f"owners: has the part {owned[0]!r}, must have 'all', from which a "
                f"{type(phase).__name__} draws"
            )


def _check_loss_mask(
    phases: Sequence[Phase], parts: Mapping[str, RaggedArray], loss_mask: Mapping[str, RaggedArray]
) -> None:
    """Refuse a mask without exactly one value for each token, and phases that read no mask."""
    for phase in phases:
        if not is_plain_phase(phase):
            raise ValueError(f"loss_mask: must be left out with a {type(phase).__name__}")
    for part, rows in parts.items():
        mask_lengths = loss_mask[part].lengths if part in loss_mask else ()
        if not np.array_equal(rows.lengths, mask_lengths):
            raise ValueError(f"loss_mask: must have a value for each token of the part {part!r}")


def _with_targets(tokens: Tensor, lengths: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """Return the inputs (B, T - 1), their lengths, and the targets: the next tokens that are in the
    loss, else ``IGNORE_INDEX``."""
    targets = tokens[:, 1:].masked_fill(~mask[:, 1:].bool().to(tokens.device), IGNORE_INDEX)
    return tokens[:, :-1], (lengths - 1).clamp_min(0), targets


def _group_points_by_owner(
    part: str, parts: Mapping[str, RaggedArray], owners: Sequence[int]
) -> list[list[int]]:
    """The indices of each owner's points."""
    if len(owners) != len(parts.get(part, ())) or sorted(set(owners)) != [*range(len(set(owners)))]:
        raise ValueError(
            f"owners: must have a number 0, 1, ... for each point of the part {part!r}"
        )
    units: list[list[int]] = [[] for _ in set(owners)]
    for k, owner in enumerate(owners):
        units[owner].append(k)
    return units
