"""What the chapters that compute or screen may be asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from crtbook.schema import Group, Positives, Settings, Shares
from crtbook.sections.base import (
    Accountant,
    Corpora,
    CorpusName,
    Dialogues,
    Runs,
    section,
)
from crtlib.experiments.value import Count, Open, Positive, Whole, value


@section("own_data")
@value
class OwnData(Settings):
    texts: Corpora = Field(description="corpora, of which the first that is found here is read")
    dialogues: Dialogues = Field(description="dialogues that we treat as our own")
    judging: Count = Field(description="turns that are read to judge the policies")
    teaching: Count = Field(description="turns that are read to teach a tagger")
    epochs: Count = Field(description="how often the tagger reads them")
    epsilon: Positive = Field(description="budget of the private phase, epsilon'")
    seed: Whole = Field(description="draws columns, labels and weights")


@section("customersim")
@value
class CustomerSim(Settings):
    dialogues: Dialogues = Field(description="dialogues to simulate")
    seed: Whole = Field(description="draws people, secrets and turns")


@section("pretrained")
@value
class Pretrained(Settings):
    dialogues: Dialogues = Field(description="public dialogues that a small model reads")
    copies: Count = Field(description="how often one fact stands among them")
    seed: Whole = Field(description="draws dialogues and weights")


@section("dp_from_zero")
@value
class DpFromZero(Settings):
    seed: Whole = Field(description="draws every experiment")
    trials: Count = Field(description="how often each experiment is repeated")
    epsilon: Positive = Field(description="the promise that most examples keep")
    delta: Open = Field(description="the chance that a promise may fail")


@section("language_models")
@value
class LanguageModels(Settings):
    seed: Whole = Field(description="draws dialogues, weights and samples")
    dialogues: Dialogues = Field(description="dialogues that the models read")
    epochs: Count = Field(description="how often they read them")


@section("lab_attack")
@value
class LabAttack(Settings):
    class_seed: Whole = Field(description="the class of the lab; 0 is for practice")


@section("lab_defence")
@value
class LabDefence(Settings):
    class_seed: Whole = Field(description="the class whose text the plan is tried on")


@section("amplification")
@value
class Amplification(Settings):
    gammas: Shares = Field(description="miss rates of the redaction policy")
    epsilons: Positives = Field(description="budgets of DP-SGD, epsilon'")
    delta: Open = Field(description="total delta of the guarantee")
    accountant: Accountant = Field(description="what counts the privacy loss")


@value
class EngineShape(Group):
    vocab_size: Count = Field(description="tokens of the vocabulary")
    hidden: Count = Field(description="width of embedding and state")
    batch: Count = Field(description="texts a step")
    length: Count = Field(description="tokens a text")


@value
class EngineShapes(Group):
    lstm: EngineShape = Field(description="the model whose steps are timed")


@section("engine")
@value
class Engine(Settings):
    seed: Whole = Field(description="draws weights, texts and noise")
    trials: Count = Field(description="timed steps of each kind")
    shapes: EngineShapes = Field(description="the timed model, such as shapes.lstm.hidden")


@section("pitfalls")
@value
class Pitfalls(Settings):
    dialogues: Dialogues = Field(description="simulated dialogues in which secrets are missed")
    trials: Count = Field(description="games in each world of an audit, and sampled secrets")
    epsilon: Positive = Field(description="budget of the private phase, epsilon'")
    delta: Open = Field(description="total delta of the guarantee")


@section("reconstruction_bounds")
@value
class ReconstructionBounds(Settings):
    seed: Whole = Field(description="draws the games")
    trials: Annotated[int, Field(ge=100)] = Field(description="games at each noise multiplier")
    prior: Open = Field(description="chance of naming the secret without the model")


@value
class ScreeningData(Group):
    policy: Literal["regex", "tagger"] = Field(description="the policy of the experiments")
    labelled: Count = Field(description="dialogues that teach the tagger")
    heldout: Count = Field(description="dialogues of each of the two parts that judge")


@section("screening")
@value
class Screening(Runs):
    dialogues: Dialogues = Field(description="simulated dialogues that are screened")
    seed: Whole = Field(description="draws dialogues, parts and misses")
    epsilon: Positive = Field(description="budget of the private phase, epsilon'")
    delta: Open = Field(description="total delta of the guarantee")
    data: Mapping[CorpusName, ScreeningData] = Field(
        description="the corpora and their parts, such as data.customersim.labelled"
    )
