"""What the two chapters on the leakage report may be asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from crtbook.schema import Counts, Follows, Group, Positives, same
from crtbook.sections.base import (
    SIMULATED,
    Corpora,
    CorpusName,
    Dialogues,
    Runs,
    section,
    sized,
)
from crtlib.experiments.value import Count, NotNegative, Open, Positive, Share, Whole, value


@value
class LeakageShape(Group):
    """A recurrent model, the public text that it starts from, and how it is trained."""

    model: Literal["lstm", "gru"] = Field(description="cell")
    embedding: Count = Field(description="width of the token embedding")
    hidden: Count = Field(description="width of the state")
    layers: Count = Field(1, description="cells on top of each other")
    vocab_size: Count = Field(description="tokens of the vocabulary")
    public: Count = Field(description="public dialogues, of other people")
    public_epochs: Count = Field(description="epochs on public text")
    epochs: Count = Field(description="epochs of training")
    snapshots: Counts = Field(description="epochs after which the report is made")
    batch_size: Count = Field(description="points a step, without noise")

    @model_validator(mode="after")
    def _snapshots(self) -> Self:
        if late := [epoch for epoch in self.snapshots if epoch > self.epochs]:
            raise ValueError(f"snapshots={late}: must be at most epochs={self.epochs}")
        return self


@value
class PrivateShape(LeakageShape):
    sampling_probability: Share = Field(description="of a point, at a private step")
    noise_multiplier: NotNegative = Field(description="standard deviation of the noise over C")
    private_learning_rate: Positive = Field(description="learning rate of private steps")


@value
class MethodsShape(PrivateShape):
    dialogues: Dialogues = Field(description="dialogues to train on; by default as the section's")


@value
class TrainingShape(LeakageShape):
    learning_rate: Positive = Field(description="learning rate")


@value
class ReportShapes(Group):
    table: PrivateShape = Field(description="the models of Table 2")
    methods: MethodsShape = Field(description="the models of the table of methods")


@value
class TrainingShapes(Group):
    lstm: TrainingShape = Field(description="the models of Figure 5")


@value
class LeakageData(Group):
    dialogues: Dialogues = Field(description="dialogues to train on; by default as the section's")


@value
class Leakage(Runs):
    """What both chapters on the leakage report read."""

    FOLLOWS: ClassVar[Follows] = {"data.*.dialogues": ("dialogues", same)}

    corpora: Corpora = Field(description="what is read, customersim first")
    dialogues: Dialogues = Field(description="dialogues to train on")
    heldout: Count = Field(description="dialogues of the validation and of the test set, each")
    copies: Whole = Field(description="how often each planted text is said")
    seeds: Count = Field(description="runs of each kind, from seed 0 on")
    data: Mapping[CorpusName, LeakageData] = Field(
        description="sizes by corpus, such as data.schema_guided.dialogues"
    )

    @model_validator(mode="after")
    def _rule(self) -> Self:
        if self.corpora[0] != SIMULATED:
            raise ValueError(f"corpora={list(self.corpora)}: must begin with {SIMULATED}")
        sized(self.corpora, self.data)
        return self

    def idle(self) -> Iterable[str]:
        return (f"data.{corpus}.*" for corpus in self.data if corpus not in self.corpora)


@section("leakage_report")
@value
class LeakageReport(Leakage):
    FOLLOWS: ClassVar[Follows] = {
        **Leakage.FOLLOWS,
        "shapes.methods.dialogues": ("dialogues", same),
    }

    canaries: Whole = Field(description="users with a planted secret of their own")
    gamma: Share = Field(description="miss rate of the redaction policy")
    threshold: Positive = Field(description="perplexity ratio that counts as leaked")
    delta: Open = Field(description="delta of every guarantee")
    prior: Open = Field(description="chance of naming a secret without the model")
    posterior: Open = Field(description="chance that LP-weighted training promises at most")
    shapes: ReportShapes = Field(description="the models, such as shapes.table.hidden")


@section("leakage_training")
@value
class LeakageTraining(Leakage):
    bots: Whole = Field(description="users who say one long sentence again and again")
    min_users: Count = Field(description="a word of fewer users is rare, and masked")
    thresholds: Positives = Field(description="perplexity ratios of the curves")
    shapes: TrainingShapes = Field(description="the model, such as shapes.lstm.hidden")
