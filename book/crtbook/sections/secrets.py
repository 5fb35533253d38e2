"""What the chapters on Hush! may be asked."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from crtbook.schema import Counts, Group, NotNegatives, Positives
from crtbook.sections.base import Corpora, Dialogues, Runs, divided, section
from crtlib.experiments.value import Count, Open, Whole, Word, value


@value
class MaskedModel(Group):
    hidden: Count = Field(description="width of the residual stream")
    layers: Count = Field(description="blocks")
    heads: Count = Field(description="attention heads; they divide hidden")
    vocab_size: Count = Field(description="tokens of the vocabulary")
    context: Count = Field(description="tokens at most")
    init: Word = Field("random", description="random, or a BERT by hub id or folder, of its shape")

    @model_validator(mode="after")
    def _rule(self) -> Self:
        divided(self.heads, self.hidden)
        return self


@value
class SecretData(Group):
    dialogues: Dialogues = Field(description="dialogues, paragraphs or abstracts to read")
    first: Whole = Field(description="words more frequent than the first secret")
    secrets: Count = Field(description="words that are secrets")


@value
class SecretTraining(Group):
    steps: Count = Field(description="optimizer steps")
    batch_size: Count = Field(description="expected texts a step")


@section("secret_protection")
@value
class SecretProtection(Runs):
    texts: Corpora = Field(description="corpora, of which the first that is found here is read")
    seeds: Count = Field(description="runs of each kind, from seed 0 on")
    trials: Count = Field(description="reconstruction games of each kind")
    prior: Open = Field(description="chance of naming a secret without the model")
    scales: Positives = Field(description="constants C of preprocessing")
    learning_rates: Positives = Field(description="learning rates that every arm chooses from")
    model: MaskedModel = Field(description="the masked model, such as model.hidden")
    data: SecretData = Field(description="texts and secrets, such as data.secrets")
    training: SecretTraining = Field(description="the schedule, such as training.steps")


@value
class CausalModel(Group):
    layers: Count = Field(description="blocks")
    heads: Count = Field(description="attention heads; they divide each width")
    vocab_size: Count = Field(description="tokens of the vocabulary")


@value
class ExtractionData(Group):
    dialogues: Dialogues = Field(description="dialogues, paragraphs or abstracts to read")
    probes: Count = Field(description="sequences that one model reads and the other does not")
    others: Count = Field(description="sequences that both models read")


@value
class ExtractionTraining(Group):
    epochs: Count = Field(description="epochs of training")


@section("extraction")
@value
class Extraction(Runs):
    texts: Corpora = Field(description="corpora, of which the first that is found here is read")
    seeds: Count = Field(description="runs of each kind, from seed 0 on")
    prior: Open = Field(description="chance of naming a text without the model")
    noise_multipliers: NotNegatives = Field(description="of DP-SGD; 0 is one of them")
    hidden: Counts = Field(description="widths of the models")
    model: CausalModel = Field(description="the causal model, such as model.layers")
    data: ExtractionData = Field(description="texts and probes, such as data.probes")
    training: ExtractionTraining = Field(description="the schedule, such as training.epochs")

    @model_validator(mode="after")
    def _rule(self) -> Self:
        if min(self.noise_multipliers) > 0 or max(self.noise_multipliers) == 0:
            given = list(self.noise_multipliers)
            raise ValueError(f"noise_multipliers={given}: must hold 0 and one above 0")
        for width in self.hidden:
            divided(self.model.heads, width)
        return self
