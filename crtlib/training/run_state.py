"""The state of a run between two phases, in memory and as a checkpoint.

>>> model = nn.Linear(2, 2)
>>> state = TrainingState.begin(model, seed=0, secure=False, optimizer="sgd")
>>> sorted(state.generators), sorted(state.optimizers)
(['noise', 'poisson', 'public order'], ['private', 'public'])
>>> len({g.initial_seed() for g in state.generators.values()})  # streams of their own
3
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from crtlib.accounting.events import SampledGaussian, WeightedGaussian
from crtlib.models.interface import device_of
from crtlib.training.gradient_entries import trainable_parameters
from crtlib.training.noise import SECURE, RandomSource
from crtlib.training.parallel import process_group
from crtlib.training.phases import BatchOrder, PrivacyEvent
from crtlib.training.steps import UpdateKind
from crtlib.training.weight_seal import refuse_learned_state

RandomStream = BatchOrder | Literal["noise"]
RANDOM_STREAMS: tuple[RandomStream, ...] = ("public order", "poisson", "noise")
EVENT_CLASSES = {kind.__name__: kind for kind in (SampledGaussian, WeightedGaussian)}
OptimizerName = Literal["adam", "sgd"]
OptimizerFactory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
OPTIMIZER_CLASSES = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


@dataclass
class TrainingRun:
    """What a training leaves: the model, what was done to private points (``events``), what
    ``on_epoch`` measured (``history``), the seconds of training, the number of ``updates`` by kind,
    and how many ``processes`` trained together.

    ``non_finite`` counts the gradients of private examples whose norm was not finite, and which
    therefore moved nothing. It is a number about private points that no guarantee covers: it is for
    whoever runs the training, not for publication.
    """

    model: nn.Module
    events: list[PrivacyEvent] = field(default_factory=list)
    history: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    updates: Counter[UpdateKind] = field(default_factory=Counter)
    non_finite: int = 0
    processes: int = 1
    receipt: str = ""
    """What ``on_start`` of :class:`crtlib.training.loop.Training` returned when the steps that are
    in a checkpoint began."""

    def facts(self) -> dict[str, Any]:
        """What a checkpoint stores about the run, as JSON values."""
        return {
            "events": [{"type": type(event).__name__, **asdict(event)} for event in self.events],
            "history": self.history,
            "updates": dict(self.updates),
            "seconds": self.seconds,
        }


@dataclass
class TrainingState:
    """All that the next phase depends on: the run so far, optimizers and generators.
    ``optimizer_name`` identifies the kind of optimizer; ``non_finite`` counts the left-out examples
    of the current phase, on the device."""

    run: TrainingRun
    optimizers: dict[UpdateKind, torch.optim.Optimizer]
    generators: dict[RandomStream, RandomSource]
    optimizer_name: str
    non_finite: Tensor | int = 0

    @classmethod
    def begin(
        cls,
        model: nn.Module,
        *,
        seed: int,
        secure: bool,
        optimizer: OptimizerName | OptimizerFactory,
    ) -> TrainingState:
        """The state before the first phase. The options are those of
        :class:`crtlib.training.loop.Training`.

        Raises ValueError for an optimizer that does not step exactly the trainable parameters or
        that has learned something, and for one optimizer used for both kinds of update.
        """
        learning = list(trainable_parameters(model).values())
        kinds: tuple[UpdateKind, ...] = ("public", "private")
        if isinstance(optimizer, str):
            # One kernel for all parameters: a third of the time or less for a small transformer.
            make = partial(OPTIMIZER_CLASSES[optimizer], lr=1.0, fused=True)
            optimizers = {kind: make(learning) for kind in kinds}
            name: str = optimizer
        else:
            optimizers = {kind: optimizer(learning) for kind in kinds}
            name = _describe_optimizer(optimizers["private"], learning)
            if optimizers["public"] is optimizers["private"]:
                raise ValueError(
                    "optimizer: must make one for each kind of step, but made the same one twice"
                )
            _refuse_two_passes(optimizer, learning)
            for made_optimizer in optimizers.values():
                refuse_learned_state(made_optimizer)
        run = TrainingRun(model, processes=process_group().size)
        streams = make_random_streams(seed, device_of(model), secure=secure)
        return cls(run, optimizers, streams, name)


def _describe_optimizer(optimizer: Any, learning: list[nn.Parameter]) -> str:
    """The optimizer's class and settings. Raises ValueError for an optimizer that does not step
    exactly the trainable parameters, and for one whose step needs a function that computes the loss
    again."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            f"optimizer: made a {type(optimizer).__name__}, must make a torch.optim.Optimizer"
        )
    first_parameter = list(inspect.signature(optimizer.step).parameters.values())[:1]
    if any(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in first_parameter):
        raise ValueError(
            f"optimizer: a {type(optimizer).__name__} would read the sample again in each step, "
            "must step by the gradient alone"
        )
    stepped = [id(p) for group in optimizer.param_groups for p in group["params"]]
    if sorted(stepped) != sorted(map(id, learning)):
        raise ValueError("optimizer: must step each trainable parameter once, and no other")
    groups = [
        {k: v for k, v in group.items() if k not in ("params", "lr")} | {"of": len(group["params"])}
        for group in optimizer.param_groups
    ]
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__} {groups}"


def _refuse_two_passes(optimizer: OptimizerFactory, learning: list[nn.Parameter]) -> None:
    """Refuse, before anything is charged, an optimizer that needs a closure although its signature
    does not say so, as in sharpness-aware minimisation. To find out, one that is made only for this
    takes a step without gradients."""
    if any(p.grad is not None for p in learning):
        return
    trial = optimizer(learning)
    try:
        trial.step()
    except Exception as error:
        if "closure" not in f"{type(error).__name__} {error}".lower():
            return  # some fail because there is no gradient to divide by
        raise ValueError(
            f"optimizer: a {type(trial).__name__} would read the sample again in each step, "
            "must step by the gradient alone"
        ) from error


def make_random_streams(
    seed: int, device: torch.device, *, secure: bool = False
) -> dict[RandomStream, RandomSource]:
    """Make generators from one seed for the order of public batches, for Poisson samples and for
    noise. They are independent of each other and of other uses of the seed. With ``secure``, the
    last two draw from the operating system. Batches are drawn on the CPU, so they are the same
    wherever the model is."""
    streams: dict[RandomStream, RandomSource] = {}
    for k, name in enumerate(RANDOM_STREAMS):
        if secure and name != "public order":
            streams[name] = SECURE
            continue
        stream_seed = int(np.random.SeedSequence([seed, 7, k]).generate_state(1, np.uint64)[0] >> 1)
        generator = torch.Generator(device if name == "noise" else "cpu")
        streams[name] = generator.manual_seed(stream_seed)
    return streams
