"""What the figures of CRT, their search and their verdicts may be asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from crtbook.schema import Counts, Follows, Group, Shares, nothing, same
from crtbook.sections.base import (
    SIMULATED,
    Corpora,
    CorpusName,
    Dialogues,
    MethodName,
    PolicyName,
    Runs,
    divided,
    section,
    sized,
)
from crtlib.experiments.value import Count, Open, Positive, Share, Whole, Word, value
from crtlib.training import methods

Model = Literal["lstm", "gpt2", "pretrained"]


class Epochs(dict[str, int]):
    """Epochs by method; a method that is not named takes those of CRT."""

    def __missing__(self, method: str) -> int:
        return self["crt"]


def _epochs(given: dict[str, int]) -> Epochs:
    if "crt" not in given:
        raise ValueError("crt: is missing")
    return Epochs(given)


EpochsByMethod = Annotated[dict[MethodName, Count], AfterValidator(_epochs)]


@value
class LstmShape(Group):
    embedding: Count = Field(description="width of the token embedding")
    hidden: Count = Field(description="width of the state")
    epochs: EpochsByMethod = Field(description="epochs by method; one not named takes those of crt")


@value
class Gpt2Shape(Group):
    hidden: Count = Field(description="width of the residual stream")
    layers: Count = Field(description="blocks")
    heads: Count = Field(description="attention heads; they divide hidden")
    context: Count = Field(description="tokens at most")
    epochs: EpochsByMethod = Field(description="epochs by method; one not named takes those of crt")

    @model_validator(mode="after")
    def _rule(self) -> Self:
        divided(self.heads, self.hidden)
        return self


@value
class PretrainedShape(Group):
    """A model that has read the internet brings its own sizes."""

    init: Word = Field(description="smollm2, or a causal model of transformers by hub id or folder")
    lora: Whole = Field(description="rank of adapters, which alone learn; 0: all weights do")
    context: Count = Field(description="tokens at most")
    precision: Literal["float32", "bfloat16"] = Field(description="of products")
    epochs: EpochsByMethod = Field(description="epochs by method; one not named takes those of crt")


@value
class CrtShapes(Group):
    lstm: LstmShape = Field(description="the recurrent model")
    gpt2: Gpt2Shape = Field(description="the transformer")
    pretrained: PretrainedShape = Field(description="one that was trained elsewhere")


@value
class CrtData(Group):
    """What a corpus is split into and screened by, and what runs on it."""

    dialogues: Dialogues = Field(description="dialogues to train on; by default as the section's")
    heldout: Count = Field(description="dialogues of the validation and of the test set, each")
    labelled: Whole = Field(0, description="dialogues that teach the policy tagger, and only that")
    policy: PolicyName = Field(description="redacts: pi of the paper")
    conservative: PolicyName = Field(description="decides what else is private: pi_c of the paper")
    vocab_size: Count = Field(description="tokens of the vocabulary")
    canaries: Whole = Field(10, description="secrets that are planted and attacked")
    copies: Whole = Field(20, description="how often each of them is said")
    models: tuple[Model, ...] = Field(description="of models, those that run on it; by default all")
    methods: tuple[MethodName, ...] = Field(
        description="of methods, those that run on it; by default all"
    )
    ablations: tuple[MethodName, ...] = Field(
        description="of ablations, those that run on it; by default all"
    )

    @model_validator(mode="after")
    def _rule(self) -> Self:
        if bool(self.labelled) != ("tagger" in (self.policy, self.conservative)):
            must = "0, as no policy is tagger" if self.labelled else "above 0, as tagger learns"
            raise ValueError(f"labelled={self.labelled}: must be {must}")
        return self


@value
class TuningData(CrtData):
    trials: Count = Field(description="draws of the search")
    pub_passes: Counts = Field(description="public passes that a draw chooses from")


@value
class Grid(Runs):
    """What the sweep of the figures and that of the search share."""

    FOLLOWS: ClassVar[Follows] = {
        f"data.*.{name}": (name, same) for name in ("dialogues", "models", "methods", "ablations")
    }

    corpora: Corpora = Field(description="what is read; data has an entry for each")
    methods: Annotated[tuple[MethodName, ...], Field(min_length=1)] = Field(
        description="ways to train, such as sgd, dpsgd, selective, crt"
    )
    ablations: tuple[MethodName, ...] = Field(
        description="methods with a part left out, such as dedup, crt_sigma0"
    )
    models: Annotated[tuple[Model, ...], Field(min_length=1)] = Field(description="what is trained")
    dialogues: Dialogues = Field(description="dialogues to train on, of each corpus")
    epsilon: Positive = Field(description="budget of DP-SGD, epsilon'")
    delta: Open = Field(description="total delta of the guarantee")
    shapes: CrtShapes = Field(description="sizes of the models, such as shapes.lstm.hidden")
    data: Mapping[CorpusName, CrtData] = Field(
        description="parts of each corpus, such as data.customersim.heldout"
    )

    @model_validator(mode="after")
    def _rule(self) -> Self:
        sized(self.corpora, self.data)
        return self

    def idle(self) -> Iterable[str]:
        yield from (f"data.{corpus}.*" for corpus in self.data if corpus not in self.corpora)
        for model in self.shapes:
            if model not in self.models:
                yield f"shapes.{model}.*"
            named, run = self.shapes[model].epochs, self._run(model)
            read = {name if name in named else "crt" for name in run}
            yield from (f"shapes.{model}.epochs.{name}" for name in named if name not in read)

    def _run(self, model: str) -> set[str]:
        """The methods that are asked for and can train a model."""
        asked = (methods.by_name(name) for name in (*self.methods, *self.ablations))
        return {method.name for method in asked if model in (method.models or (model,))}


@section("crt")
@value
class Crt(Grid):
    FOLLOWS: ClassVar[Follows] = {**Grid.FOLLOWS, "ablation_gammas": ("gammas", nothing)}

    gammas: Shares = Field(description="miss rates of the redaction policy")
    ablation_gammas: tuple[Share, ...] = Field(
        description="of ablations; none where gammas alone are given"
    )
    seeds: Count = Field(description="runs of each kind, from seed 0 on")


@section("claims")
@value
class Claims(Crt):
    BASE: ClassVar[str] = "crt"

    gamma: Share = Field(description="miss rate at which perplexities are compared")


@section("utility")
@value
class Utility(Crt):
    BASE: ClassVar[str] = "crt"

    gamma: Share = Field(description="miss rate at which perplexities are compared")
    choice_seeds: Count = Field(description="runs of each choice that CRT leaves open")
    public: CorpusName = Field(description="public corpus of the public start")
    public_epochs: Count = Field(description="epochs on the public corpus")

    def idle(self) -> Iterable[str]:
        chosen = {f"data.{SIMULATED}.*", "shapes.lstm.*"}  # of these are the choices, in any case
        return (pattern for pattern in Crt.idle(self) if pattern not in chosen)

    def _run(self, model: str) -> set[str]:
        return Crt._run(self, model) | ({"crt"} if model == "lstm" else {"sgd", "dpsgd", "crt"})


@section("axis")
@value
class Axis(Runs):
    dialogues: Dialogues = Field(description="dialogues to train on")
    heldout: Count = Field(description="dialogues of the validation and of the test set, each")
    hidden: Count = Field(description="width of the LSTM")
    epochs: Count = Field(description="epochs of every method")
    seeds: Count = Field(description="runs of each kind, from seed 0 on")
    trials: Annotated[int, Field(ge=16)] = Field(description="white-box games of each method")
    gamma: Share = Field(description="miss rate of the redaction policy")
    epsilon: Positive = Field(description="budget of DP-SGD, epsilon'")
    delta: Open = Field(description="delta of every guarantee")
    prior: Open = Field(description="chance of naming a secret without the model")
    posterior: Open = Field(description="chance that LP-weighted training promises at most")


@section("tuning")
@value
class Tuning(Grid):
    BASE: ClassVar[str] = "crt"

    gamma: Share = Field(description="miss rate of the redaction policy")
    public: CorpusName = Field(description="public corpus of the public start")
    public_epochs: Count = Field(description="epochs on the public corpus")
    public_trials: Count = Field(description="draws of the search from a public start")
    data: Mapping[CorpusName, TuningData] = Field(
        description="parts of each corpus, and the length of its search"
    )
