"""A training that is ready to begin, whatever its method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from confide import spending
from confide.training.odometer_run import OdometerRun
from confide.training.training_facts import TrainingFacts
from confide.training.training_record import TrainingResult
from crtlib.accounting.events import SampledGaussian
from crtlib.models.specs import ModelSpec
from crtlib.text.tokenizer import BpeTokenizer
from crtlib.training.loop import Training
from crtlib.training.phases import PrivacyEvent


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
