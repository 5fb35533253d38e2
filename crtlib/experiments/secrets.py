"""The experiments of Hush!: frozen settings, each of which makes rows of the long table.

A setting is a value (JSON-safe, hashable) with a ``seed`` and a method ``measure(device) -> rows``.

>>> lines = ["the cat sat", "the dog sat", "a dog ran"]
>>> held = secret_words(lines, first=1, count=2, prior=0.01, posteriors=(0.1, 0.9), seed=0)
>>> held.secrets.tolist(), held.examples.tolist()  # "dog" and "sat" come after "the", by letters
(['sat', 'the'], ['0', '1'])
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd

from crtlib.accounting import incidence, mixtures
from crtlib.accounting import secrets as secrets_module
from crtlib.accounting.secrets import Plan, guarantees, tight_posterior
from crtlib.attacks import extraction
from crtlib.checks import check
from crtlib.experiments import store as store_studies
from crtlib.models import scoring
from crtlib.models.build import build
from crtlib.models.spec import ModelSpec
from crtlib.text import corpora, customersim, tokenizer, units
from crtlib.training import masked_lm
from crtlib.training.loop import train
from crtlib.training.methods import Private, dpsgd

CUSTOMERSIM = "customersim"


def collect(
    runs: Iterable,
    store: store_studies.Store,
    *,
    profile: str = "custom",
    device: str = "cpu",
    progress: bool = True,
) -> pd.DataFrame:
    """Measure what the store does not hold yet, one run after the other, each recorded atomically;
    the long table of all of ``runs``, with their class in the column ``run_kind``."""
    return store_studies.collect(
        {key(run): run for run in runs},
        lambda _, run: run.measure(device),
        store,
        describe=lambda run: {"run_kind": type(run).__name__, **asdict(run)},
        profile=profile,
        device=device,
        progress=progress,
    )


def key(run) -> str:
    """The hash that names a run: of its class, its fields and the corpus that it reads."""
    told = json.dumps(
        [store_studies.STORE_VERSION, type(run).__name__, asdict(run)], sort_keys=True
    )
    if getattr(run, "corpus", CUSTOMERSIM) != CUSTOMERSIM:
        told += corpora.fingerprint(run.corpus, split(run.corpus))
    return hashlib.sha256(told.encode()).hexdigest()[:24]


def first_available(names: Sequence[str]) -> str:
    """The first of these corpora that is there; CustomerSim, which is made, always is."""
    for name in names:
        if name == CUSTOMERSIM or corpora.available(name, split(name)):
            return name
    raise ValueError(f"corpora={', '.join(names)}: none is available")


def split(name: str) -> str:
    """The first split of a corpus that is there; the parts of :func:`texts` are our own."""
    return next((s for s in ("train", "valid", "test") if corpora.available(name, s)), "train")


@dataclass(frozen=True)
class Texts:
    """Different texts, each in one part only; the vocabulary is learned from ``public``."""

    public: tuple[str, ...]
    train: tuple[str, ...]
    valid: tuple[str, ...]
    test: tuple[str, ...]


@functools.lru_cache(maxsize=8)
def texts(corpus: str, dialogues: int, seed: int) -> Texts:
    """A corpus' turns (sentences where nobody speaks), without repetitions, shuffled by ``seed``
    and cut 15 : 65 : 10 : 10. A paragraph (WikiText) or an abstract (arXiv) is a dialogue."""
    if corpus == CUSTOMERSIM:
        read = customersim.simulate(dialogues, seed, variety="rich")
    else:
        read = corpora.load(corpus, split(corpus), limit=dialogues)
    points = units.points(read, unit="turn")
    if not read.dialogues[0].turns[0].speaker:
        points = units.sentences(points)
    found = sorted({p.text for p in points if len(p.text) > 15})
    found = [found[i] for i in np.random.default_rng(seed).permutation(len(found))]
    ends = (np.array([0, 0.15, 0.8, 0.9, 1]) * len(found)).astype(int)
    return Texts(*(tuple(found[a:b]) for a, b in itertools.pairwise(ends)))


def secret_words(
    lines: Sequence[str], *, first: int, count: int, prior: float, posteriors: tuple, seed: int
) -> incidence.Incidence:
    """Words as secrets, as in Section 5.1: sorted by how many texts hold them, the ``count`` from
    rank ``first`` on. Each is promised a uniform posterior between the two ``posteriors``;
    ``examples`` are the numbers of the lines that hold a secret, as strings."""
    held = [set(re.findall(r"[a-z]+", line.lower())) for line in lines]
    often = Counter(word for words in held for word in words)
    ranked = sorted(often, key=lambda word: (-often[word], word))[first : first + count]
    if len(ranked) < count:
        raise ValueError(f"first={first}, count={count}: the text has {len(often)} words")
    drawn = np.random.default_rng([seed, 3]).uniform(*posteriors, size=count)
    promise = dict(zip(ranked, drawn.tolist(), strict=True))
    pairs = [(str(i), w, promise[w]) for i, words in enumerate(held) for w in sorted(words)
             if w in promise]  # fmt: skip
    table = pd.DataFrame(pairs, columns=["example", "secret", "r"])
    return incidence.from_table(table, prior=prior, posterior=None)


@dataclass(frozen=True, kw_only=True)
class MaskedRun:
    """One plan and one model. ``scale=None``: no preprocessing, every example weighs the same.
    ``noisy=False`` trains on the same samples without noise (and promises nothing)."""

    seed: int
    targets: str
    scale: float | None
    noisy: bool
    corpus: str = CUSTOMERSIM
    dialogues: int = 300
    first: int = 200
    secrets: int = 150
    prior: float = 0.01
    posterior_low: float = 0.1
    posterior_high: float = 0.9
    vocab_size: int = 400
    hidden: int = 32
    layers: int = 2
    heads: int = 2
    context: int = 64
    steps: int = 30
    batch_size: int = 64
    clip_norm: float = 0.1
    learning_rate: float = 1e-3

    def measure(self, device: str = "cpu") -> list[store_studies.Row]:
        """Kept examples, noise, the worst ratio of accounted to promised, and both losses."""
        made, held = plan(replace(self, noisy=True, learning_rate=1e-3))  # read once for all
        text = texts(self.corpus, self.dialogues, self.seed)
        bpe = _vocabulary(text.public, self.vocab_size)
        kept = [text.train[int(i)] for i in held.examples]
        lines = [ids[: self.context] for ids in bpe.encode(kept)]
        shape = ModelSpec(
            "bert", bpe.vocab_size, hidden=self.hidden, layers=self.layers, heads=self.heads,
            context=self.context,
        )  # fmt: skip
        phase = masked_lm.MaskedPhase(
            epoch=1,
            sampling_probability=tuple(made.probabilities.tolist()),
            steps=self.steps,
            noise_multiplier=made.noise_multiplier if self.noisy else 0.0,
            clip_norm=self.clip_norm,
            normaliser=self.batch_size,
            learning_rate=self.learning_rate,
            mask=bpe.mask,
            vocab_size=bpe.vocab_size,
        )
        model = build(shape, self.seed).to(device)
        run = train(model, [phase], {"private": lines}, seed=self.seed)
        accounted = guarantees(run.events, held.matrix, prior=held.prior)[0]
        facts = {
            "kept": made.kept,
            "kept_examples": float((made.weights > 0.5).mean()),
            "noise_multiplier": phase.noise_multiplier,
            "needed": made.noise_multiplier,
            "worst": float((accounted / held.posterior).max()),
            "examples": len(lines),
        }
        for part in ("valid", "test"):
            cut = [ids[: self.context] for ids in bpe.encode(getattr(text, part))]
            facts[part] = masked_lm.loss(run.model, cut, mask=bpe.mask, seed=0)
        return [(name, 0, 0, float(value)) for name, value in facts.items()]


@functools.lru_cache(maxsize=64)
def plan(run: MaskedRun) -> tuple[Plan, incidence.Incidence]:
    """How to train, and who holds what."""
    held = secret_words(
        texts(run.corpus, run.dialogues, run.seed).train,
        first=run.first,
        count=run.secrets,
        prior=run.prior,
        posteriors=(run.posterior_low, run.posterior_high),
        seed=run.seed,
    )
    made = secrets_module.plan(
        held.matrix,
        held.prior,
        held.posterior,
        steps=run.steps,
        batch_size=run.batch_size,
        scale=math.inf if run.scale is None else run.scale,
        targets=run.targets,
    )
    return made, held


@functools.lru_cache(maxsize=8)
def _vocabulary(public: tuple[str, ...], size: int) -> tokenizer.Bpe:
    return tokenizer.train_bpe(public, vocab_size=size)


def chosen(table: pd.DataFrame) -> pd.DataFrame:
    """One row a cell of Figure 1 and seed: at the learning rate whose mean validation loss over the
    seeds is least. Every cell has had the same rates to choose from."""
    cell = ["targets", "scale", "noisy"]
    names = ["run", *cell, "learning_rate", "seed"]
    wide = table.assign(scale=table.scale.astype(float).fillna(math.inf))
    wide = wide.pivot_table(index=names, columns="metric", values="value").reset_index()
    mean = wide.groupby([*cell, "learning_rate"]).valid.mean().reset_index()
    best = mean.loc[mean.groupby(cell).valid.idxmin(), [*cell, "learning_rate"]]
    return wide.merge(best)


@dataclass(frozen=True, kw_only=True)
class ExtractionRun:
    """DP-SGD on a causal model, twice: on all texts, and on all but the ``probes``."""

    seed: int
    noise_multiplier: float
    corpus: str = CUSTOMERSIM
    dialogues: int = 40
    probes: int = 40
    others: int = 80
    prefix: int = 12
    suffix: int = 4
    kind: str = "gemma2"
    vocab_size: int = 320
    hidden: int = 32
    layers: int = 2
    heads: int = 4
    epochs: int = 30
    sampling_probability: float = 0.2
    clip_norm: float = 1.0
    learning_rate: float = 1e-2

    def phases(self):
        """The same schedule for both models; sums are divided by the expected batch of all."""
        return dpsgd(
            epochs=self.epochs,
            private=Private(
                sampling_probability=self.sampling_probability,
                noise_multiplier=self.noise_multiplier,
                clip_norm=self.clip_norm,
                normaliser=self.sampling_probability * (self.probes + self.others),
                learning_rate=self.learning_rate,
            ),
        )

    def posterior(self, prior: float) -> float:
        """The most that guessing one example can succeed, of one that ``prior`` guesses without
        the model: the upper end of the tight bound, for the rounds of ``phases``."""
        if self.noise_multiplier == 0:
            return 1.0
        steps = sum(p.steps for p in self.phases())
        law = mixtures.poisson_binomial([self.sampling_probability])
        return tight_posterior(law, self.noise_multiplier, steps, prior)[1]

    def measure(self, device: str = "cpu") -> list[store_studies.Row]:
        """Validation loss of the model of all texts, and how many probes are of which kind."""
        text = texts(self.corpus, self.dialogues, self.seed)
        bpe, length = _vocabulary(text.public, self.vocab_size), self.prefix + self.suffix
        read, valid = (
            list(dict.fromkeys(tuple(i[:length]) for i in bpe.encode(part) if len(i) >= length))
            for part in (text.train, text.valid)
        )
        check("others", self.others, self.probes + self.others <= len(read), f"less: {len(read)}")
        probes, rest = read[: self.probes], read[self.probes : self.probes + self.others]
        shape = ModelSpec(
            self.kind, bpe.vocab_size, hidden=self.hidden, layers=self.layers, heads=self.heads,
            context=length,
        )  # fmt: skip
        both = []
        for part in ([*probes, *rest], rest):
            model = build(shape, self.seed).to(device)
            both.append(train(model, self.phases(), {"private": part}, seed=self.seed))
        ours, theirs = (run.model.eval() for run in both)
        found = extraction.kinds(ours, theirs, probes, prefix=self.prefix, suffix=self.suffix)
        counts = {kind: float((found == kind).sum()) for kind in extraction.KINDS}
        scores = np.concatenate(scoring.token_logprobs(ours, valid))
        size = sum(p.numel() for p in ours.parameters())
        facts = counts | {"loss": -scores.mean(), "parameters": size}
        facts |= {"steps": sum(e.steps for e in both[0].events)}
        return [(name, 0, 0, float(value)) for name, value in facts.items()]
