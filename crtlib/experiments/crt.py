"""Experiments as frozen, hashable values: everything that decides what a run measures.

>>> a = Experiment(method="crt", model="lstm", gamma=0.1, seed=0, noise_multiplier=2.0)
>>> b = Experiment(method="sgd", model="lstm", gamma=0.1, seed=0, noise_multiplier=2.0)
>>> a.key == replace(a, seed=1).key, b.canonical().noise_multiplier
(False, 0.0)
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from dataclasses import asdict, dataclass, fields, replace

from crtlib.experiments import store
from crtlib.experiments.settings import check
from crtlib.models.build import fingerprint
from crtlib.models.spec import ModelSpec
from crtlib.screening import by_name
from crtlib.text import corpora
from crtlib.training import methods
from crtlib.training.phases import Phase

SIMULATED = "customersim"
"""The corpus that is made, not read; others are named in ``corpora``, or the path of a file."""


SELECTIVE_NOISE = 0.7
"""Noise multiplier of S-DP: that of the dialogue results its authors released. With a policy that
misses there is no epsilon that one could calibrate it to."""
PRIVATE_SEGMENTS = {"turn": 8, "dialogue": 128}
"""The most private segments that a point may have (S-DP)."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One training run and its measurements; every field is JSON-safe and part of its hash.

    ``gamma`` is the miss rate given to the redaction policy ``policy``; ``conservative`` decides
    what else is private. ``epsilon`` and ``delta`` are the target of DP-SGD (epsilon' of the
    paper), from which ``noise_multiplier`` is calibrated before the run: see :func:`calibrate`.
    ``sampling_probability``, ``epochs`` and ``normaliser`` are public constants.

    ``labelled`` dialogues, apart from all others, teach the policy "tagger". ``init`` is "random";
    the name of a public corpus on which the model is trained first, ``init_epochs`` times; or a
    pre-trained GPT-2, by hub id or folder, which brings its own shape and vocabulary.
    """

    method: str
    model: str
    gamma: float
    seed: int
    # data
    corpus: str = SIMULATED
    variety: str = "paper"
    dialogues: int = 300
    heldout: int = 200
    unit: str = "turn"
    policy: str = "regex"
    conservative: str = "regex"
    labelled: int = 0
    per: str = "occurrence"
    duplicates: str = "drop"
    dedup: str = "all"
    canaries: int = 10
    copies: int = 20
    vocab_size: int = 512
    # model
    embedding: int = 64
    hidden: int = 64
    layers: int = 1
    heads: int = 4
    context: int = 256
    init: str = "random"
    init_epochs: int = 0
    # training
    epochs: int = 8
    batch_size: int = 32
    learning_rate: float = 1e-2
    pub_passes: int = 10
    private_learning_rate: float = 5e-3
    sampling_probability: float = 0.1
    clip_norm: float = 0.1
    normaliser: float = 256.0
    # guarantee
    epsilon: float = 3.0
    delta: float = 8e-5
    accountant: str = "pld"
    neighbouring_relation: str = "add_or_remove"
    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        names = ("method", "model", "gamma", "seed", "epsilon", "delta", "dialogues", "heldout")
        names += ("variety", "unit", "policy", "conservative", "per", "duplicates", "dedup")
        names += ("canaries", "copies", "epochs", "accountant", "neighbouring_relation")
        names += ("labelled", "init_epochs")
        check(**{name: getattr(self, name) for name in names})
        for f in fields(self):  # 3 and 3.0 are one experiment, so they must be one key
            value = getattr(self, f.name)
            if f.type.startswith("float") and value is not None:
                object.__setattr__(self, f.name, float(value))

    @property
    def private(self) -> bool:
        """True where a part of the training is DP-SGD."""
        return self.method in ("dpsgd", "selective", "crt", "crt_sigma0")

    @property
    def reads_raw(self) -> bool:
        """True where training text keeps its secrets, and the model never sees ``<MASK>``."""
        return self.method in ("dpsgd", "selective")

    @property
    def deduplicates(self) -> bool:
        """True where second occurrences are taken out before training."""
        return self.method in ("dedup", "crt", "crt_sigma0")

    @property
    def learned(self) -> bool:
        """True where a policy learned from labels: it is judged on held-out ones."""
        return any(by_name.learned(name) for name in (self.policy, self.conservative))

    @property
    def brings_vocabulary(self) -> bool:
        """True where ``init`` is a pre-trained model, which comes with its tokenizer."""
        return self.init != "random" and self.init not in corpora.HOMES

    def canonical(self) -> Experiment:
        """The same run with the fields that it does not read set to fixed values.

        So DP-SGD, which trains on raw text and knows no gamma, is one cell for all gammas.
        """
        base = {f.name: f.default for f in fields(self)}
        unread: dict = {}
        if not self.private:
            names = ("private_learning_rate", "sampling_probability", "clip_norm", "normaliser")
            names += ("epsilon", "delta", "accountant", "neighbouring_relation", "pub_passes")
            unread = {n: base[n] for n in names} | {"noise_multiplier": 0.0}
        if self.method == "dpsgd":
            unread = {n: base[n] for n in ("batch_size", "learning_rate", "pub_passes")}
            unread |= {"gamma": 0.0, "per": base["per"]}
            if not self.learned:
                unread["policy"] = base["policy"]
        if self.method == "selective":
            names = ("sampling_probability", "normaliser", "epsilon", "accountant")
            names += ("neighbouring_relation", "pub_passes")
            unread = {n: base[n] for n in names}
            if self.noise_multiplier is None:
                unread["noise_multiplier"] = SELECTIVE_NOISE
        if self.method == "crt_sigma0":
            names = ("epsilon", "delta", "accountant", "neighbouring_relation")
            unread = {n: base[n] for n in names} | {"noise_multiplier": 0.0}
        if not self.deduplicates:
            unread |= {"dedup": "none", "duplicates": base["duplicates"]}
        if not self.learned:
            unread["labelled"] = 0
        if self.init == "random":
            unread["init_epochs"] = 0
        elif self.init_epochs < 1 and not self.brings_vocabulary:
            raise ValueError(f"init={self.init!r}: a corpus; needs init_epochs of at least 1")
        if self.init == self.corpus:
            raise ValueError(f"init={self.init!r}: is the private corpus itself, must be public")
        if self.method == "selective" and self.model != "lstm":
            raise ValueError(f"model={self.model!r}: S-DP protects the state of an lstm, only")
        return replace(self, **unread)

    @property
    def key(self) -> str:
        """Hash that names the result: equal for equal runs, whatever the order of the fields."""
        told = json.dumps([store.STORE_VERSION, asdict(self.canonical())], sort_keys=True)
        if self.corpus != SIMULATED:  # files are known by their content
            told += corpora.fingerprint(self.corpus)
        if self.init in corpora.HOMES:
            told += corpora.fingerprint(self.init)
        elif self.init != "random":
            told += fingerprint(self.init)
        for name in (self.policy, self.conservative):
            if ":" in name:
                told += fingerprint(name.partition(":")[2])
        return hashlib.sha256(told.encode()).hexdigest()[:24]

    def shape(self) -> ModelSpec:
        """The model's shape, without its vocabulary."""
        names = ("embedding", "hidden", "layers", "heads", "context")
        return ModelSpec(
            kind=self.model, vocab_size=self.vocab_size, **{n: getattr(self, n) for n in names}
        )


@functools.cache
def _sigma(epsilon, delta, sampling_probability, steps, accountant, relation) -> float:
    from crtlib.accounting import ledger

    return ledger.noise_multiplier(
        epsilon=epsilon,
        delta=delta,
        sampling_probability=sampling_probability,
        steps=steps,
        accountant=accountant,
        neighbouring_relation=relation,
    )


def calibrate(experiment: Experiment) -> Experiment:
    """The canonical experiment with ``noise_multiplier`` filled in from epsilon and delta."""
    experiment = experiment.canonical()
    if experiment.noise_multiplier is not None:
        return experiment
    steps = methods.events(schedule(replace(experiment, noise_multiplier=1.0))).steps
    e = experiment
    sigma = _sigma(
        e.epsilon, e.delta, e.sampling_probability, steps, e.accountant, e.neighbouring_relation
    )
    # Rounded up: a little more noise than needed, and a name that survives a finer accountant.
    return replace(experiment, noise_multiplier=math.ceil(sigma * 1e4) / 1e4)


def schedule(e: Experiment, *, has_public: bool = True) -> list[Phase]:
    """The phases of an experiment: public constants only."""
    if not e.private:
        return methods.sgd(epochs=e.epochs, batch_size=e.batch_size, learning_rate=e.learning_rate)
    if e.method == "selective":
        return methods.selective(
            epochs=e.epochs,
            batch_size=e.batch_size,
            private_segments=PRIVATE_SEGMENTS[e.unit],
            noise_multiplier=e.noise_multiplier,
            clip_norm=e.clip_norm,
            hidden_clip=e.clip_norm,
            public_learning_rate=e.learning_rate,
            private_learning_rate=e.private_learning_rate,
        )
    private = methods.Private(
        sampling_probability=e.sampling_probability,
        noise_multiplier=e.noise_multiplier,
        clip_norm=e.clip_norm,
        normaliser=e.normaliser,
        learning_rate=e.private_learning_rate,
    )
    if e.method == "dpsgd":
        return methods.dpsgd(epochs=e.epochs, private=private)
    return methods.crt(
        epochs=e.epochs,
        pub_passes=e.pub_passes,
        public_batch_size=e.batch_size,
        public_learning_rate=e.learning_rate,
        private=private,
        has_public=has_public,
    )
