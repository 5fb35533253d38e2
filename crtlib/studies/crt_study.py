"""The settings of one run of CRT, or of a method that it is compared with.

>>> from crtlib.studies.study_data import prepare_data
>>> from crtlib.studies.study_run import fit_study
>>> from crtlib.studies.study_run import measure_study
>>> from crtlib.studies.study_run import split_long_texts
>>> from crtlib.text.records import MASK
>>> study = CrtStudy(method="sgd", model="lstm", gamma=0.0, seed=0, dialogues=20, heldout=10,
...                  epochs=1, canaries=0, embedding=8, hidden=8)
>>> rows = measure_study(study, fit_study(study))
>>> sorted(metric for metric, epoch, item, value in rows if metric.startswith("test_"))
['test_acc', 'test_acc_words', 'test_ppl', 'test_ppl_words']
>>> replace(study, noise_multiplier=2.0).ready() == study.ready()  # it adds no noise
True
>>> data = prepare_data(replace(study, method="crt", canaries=10))
>>> public_text = "".join(p.text for p in data.prepared.public)
>>> len(data.canaries), data.misses("pi").failures, MASK in public_text
(10, 0, False)
>>> pieces, owners = split_long_texts([[1, 2, 3, 4, 5, 6], [7, 8]], [0, 1], 2, "split")
>>> pieces.tolist(), owners
([[1, 2, 3], [3, 4, 5], [5, 6], [7, 8]], [0, 0, 0, 1])
>>> split_long_texts([[1, 2, 3, 4]], [0], 2, "cut")[0].tolist()
[[1, 2, 3]]
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from crtlib.accounting import privacy_cost
from crtlib.models.specs import ModelSpec
from crtlib.screening import policy_names
from crtlib.text import corpora, screened_folder, templates
from crtlib.training import methods, schedules
from crtlib.training.methods import Method, PublicConstants
from crtlib.training.phases import Phase
from crtlib.values import (
    NonEmptyStr,
    NonNegativeFloat,
    NonNegativeInt,
    OpenProbability,
    PositiveFloat,
    PositiveInt,
    Probability,
    checked_dataclass,
)

DEFAULT_CORPUS = "customersim"
"""The corpus if none is named. It is simulated, so every machine has it."""

TUNING_SEED = 1000
"""The seed of the search, for its corpus, canaries and initialisation; no figure uses it."""

MAX_PRIVATE_SEGMENTS = {"turn": 8, "dialogue": 128, "user": 128}
"""The most private segments that a point may have (S-DP)."""

MAX_PUBLIC_DIALOGUES = 1000
"""The most dialogues of a public corpus that initialise a model."""

TokenIdLists = list[list[int]]
BoolMask = NDArray[np.bool_]
StudyRow = tuple[str, int, int, float]
"""``(metric, epoch, item, value)``; ``item`` numbers canaries, and is 0 if there is only one."""

UTILITY_METRICS = ("ppl", "ppl_words", "acc", "acc_words")


@checked_dataclass
class CrtStudy:
    """One training run and its measurements.

    ``gamma`` is the miss rate given to the redaction policy ``policy``; ``conservative`` decides
    what else is private. ``epsilon`` and ``delta`` are the target of DP-SGD (epsilon' of the
    paper), from which ``noise_multiplier`` is calibrated before the run (:meth:`ready`).
    ``sampling_probability``, ``epochs`` and ``normaliser`` are public constants.

    ``dialogues`` are trained on, ``heldout`` more are for validation and as many for testing;
    ``labelled`` others teach the policy "tagger". ``search_block`` dialogues of a named corpus are
    read by the search for hyperparameters alone (0: as many as this run reads). ``context`` is in
    tokens, ``normaliser`` in points. ``init`` is "random"; the name of a public corpus on which the
    model is trained first, ``init_epochs`` times; or a pre-trained causal model, by hub id, by
    folder or as "smollm2", which brings its own shape and vocabulary (``model`` is then
    "pretrained"). ``lora`` is the rank of adapters, which are then all that learns (0: everything
    does), ``lora_alpha`` their scale (0: twice the rank). ``precision`` is that of products;
    weights, norms and sums stay in float32.

    A text of more than ``context`` tokens is read in pieces that are clipped together (``long``
    "split"), or cut. ``template`` defines how turns become text (:mod:`crtlib.text.templates`).
    ``audited``: the canaries are those of an audit (:mod:`crtlib.attacks.run_audit`), which pi
    passes over. ``split`` "order" shuffles the people of a corpus and cuts their dialogues into
    parts of the numbers above. "coin" assigns each person independently to validation, testing (a
    tenth each, nobody if ``heldout`` is 0) or training; ``dialogues`` is then the total number.
    ``coin`` is what the misses of ``gamma`` are drawn from
    (:func:`crtlib.screening.policy_changes.with_misses`).

    ``duplicates`` "drop", ``coin`` "point" and ``split`` "order" are those of the recorded studies.
    With each of them, one message decides about others, so nothing may be promised about a training
    that uses one.
    """

    seed: NonNegativeInt
    method: NonEmptyStr
    model: Literal["lstm", "gru", "gpt2", "gemma2", "pretrained"]
    gamma: Probability
    # data
    corpus: NonEmptyStr = DEFAULT_CORPUS
    variety: Literal["paper", "rich"] = "paper"
    dialogues: PositiveInt = 300
    heldout: NonNegativeInt = 200
    search_block: NonNegativeInt = 0
    split: Literal["order", "coin"] = "order"
    unit: Literal["turn", "dialogue", "user"] = "turn"
    policy: NonEmptyStr = "regex"
    conservative: NonEmptyStr = "regex"
    labelled: NonNegativeInt = 0
    per: Literal["occurrence", "value"] = "occurrence"
    coin: Literal["text", "point"] = "point"
    duplicates: Literal["mask_private", "mask", "drop"] = "drop"
    dedup: Literal["all", "flagged", "none"] = "all"
    canaries: NonNegativeInt = 10
    copies: NonNegativeInt = 20
    audited: bool = False
    vocab_size: PositiveInt = 512
    template: NonEmptyStr = "speaker"
    # model
    embedding: PositiveInt = 64
    hidden: PositiveInt = 64
    layers: PositiveInt = 1
    heads: PositiveInt = 4
    context: PositiveInt = 256
    long: Literal["split", "cut"] = "split"
    init: NonEmptyStr = "random"
    init_epochs: NonNegativeInt = 0
    lora: NonNegativeInt = 0
    lora_alpha: NonNegativeFloat = 0.0
    lora_targets: NonEmptyStr = "all-linear"
    precision: Literal["float32", "bfloat16"] = "float32"
    # training
    epochs: PositiveInt = 8
    batch_size: PositiveInt = 32
    learning_rate: PositiveFloat = 1e-2
    pub_passes: PositiveInt = 10
    private_learning_rate: PositiveFloat = 5e-3
    sampling_probability: Probability = 0.1
    clip_norm: PositiveFloat = 0.1
    normaliser: PositiveFloat = 256.0
    optimizer: Literal["adam", "sgd"] = "adam"
    # guarantee
    epsilon: PositiveFloat = 3.0
    delta: OpenProbability = 8e-5
    accountant: Literal["pld", "rdp", "prv", "autodp"] = "pld"
    neighbouring_relation: Literal["add_or_remove", "replace"] = "add_or_remove"
    noise_multiplier: NonNegativeFloat | None = None

    def __post_init__(self) -> None:
        self._refuse_method()
        self._refuse_start()
        self._refuse_text_form()

    def _refuse_method(self) -> None:
        """Refuse a method that cannot train this model, and canaries that no audit can read."""
        method = self.training_method
        if method.weighs or not method.trains:
            raise ValueError(f"method={self.method!r}: cannot be used in these studies")
        if method.models and self.model not in method.models:
            raise ValueError(
                f"model={self.model!r}: {method.label} protects the state of an "
                f"{' or '.join(method.models)}, only"
            )
        if self.audited and self.copies != 1:
            raise ValueError(f"copies={self.copies}: must be 1 where canaries are audited")

    def _refuse_start(self) -> None:
        """Refuse initial weights that are private or that do not fit the model."""
        if self.init == self.corpus:
            raise ValueError(f"init={self.init!r}: is the private corpus itself, must be public")
        starts_from_corpus = self.init != "random" and not self.brings_vocabulary
        if starts_from_corpus and self.init_epochs < 1:
            raise ValueError(f"init={self.init!r}: a corpus; needs init_epochs of at least 1")
        if self.model == "pretrained" and not self.brings_vocabulary:
            raise ValueError("model='pretrained': init must name a pre-trained model")
        if self.lora and not self.brings_vocabulary:
            raise ValueError(f"lora={self.lora}: adapters need a pre-trained model (init)")

    def _refuse_text_form(self) -> None:
        """Refuse a template that the model cannot keep, or that needs speakers that the corpus does
        not name."""
        template = self.template
        if self.recurrent and template not in templates.CANDIDATE_TEMPLATES:
            raise ValueError(f"template={template!r}: works with a transformer only")
        if (
            template != "speaker"
            and screened_folder.is_screened_folder(self.corpus)
            and not screened_folder.holds_roles(self.corpus)
        ):
            raise ValueError(
                f"template={template!r}: {self.corpus} does not say who spoke, as it was screened "
                "by an earlier version; screen the corpus again"
            )

    @property
    def recurrent(self) -> bool:
        """Whether the model is one of this library's that read token by token."""
        return self.model in ("lstm", "gru")

    @property
    def training_method(self) -> Method:
        """The study's method."""
        return methods.method_by_name(self.method)

    @property
    def repeats_are_hidden(self) -> bool:
        """Whether second occurrences of a text are masked or left out before training."""
        return self.training_method.deduplicates and self.dedup != "none"

    @property
    def learned(self) -> bool:
        """Whether a policy learned from labels; if so, it is judged on held-out ones."""
        return any(policy_names.is_learned(name) for name in (self.policy, self.conservative))

    @property
    def brings_vocabulary(self) -> bool:
        """Whether ``init`` is a pre-trained model, which comes with its tokenizer."""
        return self.init != "random" and not is_corpus(self.init)

    @property
    def screening(self) -> dict[str, Any] | None:
        """The summary of the screening, if the corpus was screened before, else None."""
        return (
            screened_folder.read_screening_summary(self.corpus)
            if screened_folder.is_screened_folder(self.corpus)
            else None
        )

    def ready(self) -> Self:
        """The same run with the fields that it does not read set to fixed values, and
        ``noise_multiplier`` calibrated.

        So DP-SGD, which trains on raw text and ignores gamma, is one study for all gammas.
        """
        method = self.training_method
        every = frozenset[str]().union(*(m.reads for m in methods.METHODS.values()))
        fixed: dict[str, Any] = {f.name: f.default for f in fields(self)}
        fixed |= {"gamma": 0.0, "dedup": "none"}
        unread = {n: fixed[n] for n in every - method.reads if n in fixed}
        if self.learned:
            unread.pop("policy", None)  # the text that taught it is held out for every method
        else:
            unread["labelled"] = 0
        if self.init == "random":
            unread["init_epochs"] = 0
        study = replace(self, **unread)
        if study.noise_multiplier is None or method.noise == 0:
            study = replace(study, noise_multiplier=_noise_multiplier_of(study))
        return study

    def shape(self) -> ModelSpec:
        """The model's shape, without its vocabulary."""
        names = ("embedding", "hidden", "layers", "heads", "context", "vocab_size")
        return ModelSpec(kind=self.model, **{n: getattr(self, n) for n in names})


def _noise_multiplier_of(study: CrtStudy) -> float:
    """The noise multiplier of a study: fixed by its method, or the least that keeps epsilon and
    delta."""
    noise = study.training_method.noise
    if noise != "calibrated":
        return noise
    event = schedules.combine_phase_events(schedule_phases(replace(study, noise_multiplier=1.0)))
    assert event is not None
    sigma = privacy_cost.noise_multiplier(
        epsilon=study.epsilon,
        delta=study.delta,
        sampling_probability=study.sampling_probability,
        steps=event.steps,
        accountant=study.accountant,
        neighbouring_relation=study.neighbouring_relation,
    )
    # Rounded up: a little more noise than needed, and the same study with a finer accountant.
    return math.ceil(sigma * 1e4) / 1e4


def schedule_phases(study: CrtStudy, *, has_public: bool = True) -> list[Phase]:
    """The phases of a run, from public constants only."""
    segments = MAX_PRIVATE_SEGMENTS[study.unit]
    return study.training_method.phases(
        PublicConstants.of(study, private_segments=segments, has_public=has_public)
    )


def is_corpus(name: str) -> bool:
    """Whether this names a corpus, not a file, a folder or a model on a hub."""
    return name in corpora.available_corpora()
