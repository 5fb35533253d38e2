"""The runs of Hush!: masked language models on text with word-secrets, and extraction.

>>> lines = ["the cat sat", "the dog sat", "a dog ran"]
>>> holders = secret_words(lines, first=1, count=2, prior=0.01, posteriors=(0.1, 0.9), seed=0)
>>> holders.secrets.tolist(), holders.examples.tolist()  # "dog" comes first, by letters
(['sat', 'the'], ['0', '1'])
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
from pandas import DataFrame

from crtbook import extraction, incidence, masked_lm, runs
from crtbook.study import Desk, Row, Study, rows
from crtbook.tight import tight_posterior
from crtlib.accounting import secrets
from crtlib.checks import check
from crtlib.experiments import crt
from crtlib.models.networks import ModelSpec, build
from crtlib.models.scoring import token_logprobs
from crtlib.options import Count, NotNegative, Open, Positive, Share, Whole, Word, value
from crtlib.text import corpora, records
from crtlib.text.records import MASK
from crtlib.text.tokenizer import Bpe, train_bpe
from crtlib.training.loop import train
from crtlib.training.methods import Private, dpsgd
from crtlib.training.phases import Phase

# --- text -----------------------------------------------------------------------------------------


def first_available(names: Sequence[str]) -> str:
    """The first of these corpora that is there; CustomerSim, which is made, always is."""
    for name in names:
        if corpora.available(name, split(name)):
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
    if draw := corpora.source(corpus).draw:
        whole = draw(dialogues, seed, "rich")
    else:
        whole = corpora.load(corpus, split(corpus), limit=dialogues)
    points = records.points(whole, unit="turn")
    if not whole.dialogues[0].turns[0].speaker:
        points = masked_lm.sentences(points)
    lines = sorted({p.text for p in points if len(p.text) > 15})
    lines = [lines[i] for i in np.random.default_rng(seed).permutation(len(lines))]
    ends = (np.array([0, 0.15, 0.8, 0.9, 1]) * len(lines)).astype(int)
    return Texts(*(tuple(lines[a:b]) for a, b in itertools.pairwise(ends)))


def secret_words(
    lines: Sequence[str],
    *,
    first: int,
    count: int,
    prior: float,
    posteriors: tuple[float, float],
    seed: int,
) -> incidence.Incidence:
    """Words as secrets, as in Section 5.1: sorted by how many texts hold them, the ``count`` from
    rank ``first`` on. Each is promised a uniform posterior between the two ``posteriors``;
    ``examples`` are the numbers of the lines that hold a secret, as strings."""
    each = [set(re.findall(r"[a-z]+", line.lower())) for line in lines]
    often = Counter(word for words in each for word in words)
    ranked = sorted(often, key=lambda word: (-often[word], word))[first : first + count]
    if len(ranked) < count:
        raise ValueError(f"first={first}, count={count}: the text has {len(often)} words")
    limits = np.random.default_rng([seed, 3]).uniform(*posteriors, size=count)
    promise = dict(zip(ranked, limits.tolist(), strict=True))
    pairs = [(str(i), w, promise[w]) for i, words in enumerate(each) for w in sorted(words)
             if w in promise]  # fmt: skip
    table = DataFrame(pairs, columns=["example", "secret", "r"])
    return incidence.of_pairs(table, prior=prior)


def without(line: str, words: Collection[str]) -> str:
    """A line with ``<MASK>`` for each of these words: what stays as it is, whatever they are.

    >>> without("The cat, the CAT!", {"cat"})
    'The <MASK>, the <MASK>!'
    """
    return re.sub("[A-Za-z]+", lambda m: MASK if m[0].lower() in words else m[0], line)


@value
class TextStudy(Study):
    """A run on the :func:`texts` of a corpus."""

    corpus: Word = crt.DEFAULT

    def reads(self) -> Iterable[str]:
        """The fingerprint of its corpus."""
        yield corpora.fingerprint(self.corpus, split(self.corpus))

    def lacks(self) -> str | None:
        """The corpus that is not here."""
        here = corpora.available(self.corpus, split(self.corpus))
        return None if here else runs.lacking(self.corpus)


# --- Section 5.1: a masked language model on text with word-secrets -------------------------------


@value
class MaskedStudy(TextStudy):
    """One plan and one model. ``scale=None``: no preprocessing, every example weighs the same.
    ``noisy=False`` trains on the same samples without noise (and promises nothing). ``simulated``
    is how many times as large the batch and the data are pretended to be: the noise is divided by
    it, and ``worst`` says what that breaks.
    ``predicate`` "word": but for its secret words a text stays as it is; what is left when they
    are masked is then the same for all adjacent datasets, and is read first, without noise."""

    kind: ClassVar[str] = "masked"
    LATER: ClassVar[frozenset[str]] = frozenset({"simulated", "predicate"})

    targets: Literal["linear", "sqrt"]
    scale: Positive | None
    noisy: bool
    dialogues: Count = 300
    first: Whole = 200
    secrets: Count = 150
    prior: Open = 0.01
    posterior_low: Open = 0.1
    posterior_high: Open = 0.9
    vocab_size: Count = 400
    hidden: Count = 32
    layers: Count = 2
    heads: Count = 2
    context: Count = 64
    steps: Count = 30
    batch_size: Count = 64
    clip_norm: Positive = 0.1
    learning_rate: Positive = 1e-3
    simulated: Count = 1
    predicate: Literal["anything", "word"] = "anything"

    def cost(self) -> float:
        """CPU seconds."""
        width = self.layers * self.hidden / 32 + self.vocab_size / 400
        phases = 1 + (self.predicate == "word")
        return 1 + 1e-4 * phases * self.steps * self.batch_size * self.context / 32 * width

    def phase(self, plan: secrets.Plan, bpe: Bpe) -> masked_lm.MaskedPhase:
        """All steps of a plan, on text of this vocabulary."""
        return masked_lm.MaskedPhase(
            epoch=1,
            sampling_probability=tuple(plan.probabilities.tolist()),
            steps=self.steps,
            noise_multiplier=plan.noise_multiplier / self.simulated if self.noisy else 0.0,
            clip_norm=self.clip_norm,
            normaliser=self.batch_size,
            learning_rate=self.learning_rate,
            mask=bpe.mask,
            vocab_size=bpe.vocab_size,
        )

    def run(self, desk: Desk) -> list[Row]:
        """Kept examples, noise, the worst ratio of accounted to promised, and both losses."""
        same = {"simulated": 1, "predicate": "anything", "learning_rate": 1e-3, "noisy": True}
        plan, holders = masked_plan(replace(self, **same))  # once for all
        text = texts(self.corpus, self.dialogues, self.seed)
        bpe = _vocabulary(text.public, self.vocab_size)
        shape = {n: getattr(self, n) for n in ("hidden", "layers", "heads", "context")}
        model = build(ModelSpec("bert", bpe.vocab_size, **shape), self.seed)

        def cut(lines: Iterable[str]) -> list[list[int]]:
            return [ids[: self.context] for ids in bpe.encode(lines)]

        read = [text.train[int(i)] for i in holders.examples]
        phases: list[Phase] = [self.phase(plan, bpe)]
        parts = {"private": cut(read)}
        if self.predicate == "word":
            parts["public"] = cut(without(line, holders.secrets.tolist()) for line in read)
            phases.insert(0, masked_lm.invariant(phases[0], len(read)))
        model.to(desk.device)
        run = train(model, phases, parts, seed=self.seed, checkpoint=desk.checkpoint)
        accounted = secrets.guarantees(run.events, holders.matrix, prior=holders.prior)[0]
        facts = {
            "kept": plan.kept,
            "kept_examples": float((plan.weights > 0.5).mean()),
            "noise_multiplier": phases[-1].noise_multiplier,
            "needed": plan.noise_multiplier,
            "worst": float((accounted / holders.posterior).max()),
            "examples": len(read),
        }
        for part in ("valid", "test"):
            facts[part] = masked_lm.loss(run.model, cut(getattr(text, part)), mask=bpe.mask, seed=0)
        return rows(facts)


@value
class UnigramStudy(TextStudy):
    """How often each token stands in the training texts of :class:`MaskedStudy`, and nothing of
    its place: a model whose loss is not below this one's has learned nothing that is compared."""

    kind: ClassVar[str] = "unigram"

    dialogues: Count = 300
    vocab_size: Count = 400

    def run(self, desk: Desk) -> list[Row]:
        """The loss on the test texts, in nats a token, with one added to every count."""
        text = texts(self.corpus, self.dialogues, self.seed)
        bpe = _vocabulary(text.public, self.vocab_size)
        read, test = (
            [i for ids in bpe.encode(part) for i in ids[1:-1]] for part in (text.train, text.test)
        )
        counts = np.bincount(read, minlength=bpe.vocab_size) + 1
        return rows({"test": -np.log(counts / counts.sum())[test].mean()})


@functools.lru_cache(maxsize=64)
def masked_plan(study: MaskedStudy) -> tuple[secrets.Plan, incidence.Incidence]:
    """How to train, and who holds what."""
    holders = secret_words(
        texts(study.corpus, study.dialogues, study.seed).train,
        first=study.first,
        count=study.secrets,
        prior=study.prior,
        posteriors=(study.posterior_low, study.posterior_high),
        seed=study.seed,
    )
    plan = secrets.plan(
        holders.matrix,
        holders.prior,
        holders.posterior,
        steps=study.steps,
        batch_size=study.batch_size,
        scale=math.inf if study.scale is None else study.scale,
        targets=study.targets,
    )
    return plan, holders


RULES = {"linear": ("linear", "auto"), "greedy": ("linear", "greedy"), "sqrt": ("sqrt", "auto")}
"""Whom to keep: the program with both rules of the budget, and contribution bounding."""


def planned(base: MaskedStudy, *, scales: Sequence[float], seeds: int) -> DataFrame:
    """What each of ``RULES`` keeps at each C of ``scales``, and the noise ``needed``; nothing is
    trained. A row a rule (``targets``), ``scale`` and ``seed``."""
    rows = []
    for seed, (rule, how) in itertools.product(range(seeds), RULES.items()):
        held = masked_plan(replace(base, seed=seed))[1]
        made = secrets.sweep(
            held.matrix, held.prior, held.posterior, scales=scales, steps=base.steps,
            batch_size=base.batch_size, targets=how[0], solver=how[1],
        )  # fmt: skip
        made = made[["scale", "kept"]].assign(needed=made.noise_multiplier)
        rows.append(made.assign(targets=rule, seed=seed, noisy=True))
    return pd.concat(rows, ignore_index=True)


@functools.lru_cache(maxsize=8)
def _vocabulary(public: tuple[str, ...], size: int) -> Bpe:
    return train_bpe(public, vocab_size=size)


def _filled(table: DataFrame) -> DataFrame:
    """With an infinite C for no preprocessing, and the usual values of what came later."""
    full = table.assign(scale=table.scale.astype(float).fillna(math.inf))
    for name, usual in (("simulated", 1), ("predicate", "anything")):
        full[name] = full[name].fillna(usual) if name in full else usual
    return full


def as_promised(table: DataFrame) -> DataFrame:
    """The rows of Figure 1: whose noise is that of the promise, and whose predicate is always 1."""
    full = _filled(table)
    return table[(full.simulated == 1) & (full.predicate == "anything")]


def chosen(table: DataFrame) -> DataFrame:
    """One row a cell of Figure 1 and seed: at the learning rate whose mean validation loss over the
    seeds is least. Every cell has had the same rates to choose from."""
    cell = ["targets", "scale", "noisy", "simulated", "predicate"]
    names = ["run", *cell, "learning_rate", "seed"]
    wide = _filled(table).pivot_table(index=names, columns="metric", values="value").reset_index()
    mean = wide.groupby([*cell, "learning_rate"]).valid.mean().reset_index()
    best = mean.loc[mean.groupby(cell).valid.idxmin(), [*cell, "learning_rate"]]
    return wide.merge(best)


# --- Section 5.2: what can be extracted -----------------------------------------------------------


@value
class ExtractionStudy(TextStudy):
    """DP-SGD on a causal model, twice: on all texts, and on all but the ``probes``. ``prefix`` and
    ``suffix`` are in tokens."""

    kind: ClassVar[str] = "extraction"

    noise_multiplier: NotNegative
    dialogues: Count = 40
    probes: Count = 40
    others: Count = 80
    prefix: Count = 12
    suffix: Count = 4
    model: Literal["lstm", "gru", "gpt2", "gemma2"] = "gemma2"
    vocab_size: Count = 320
    hidden: Count = 32
    layers: Count = 2
    heads: Count = 4
    epochs: Count = 30
    sampling_probability: Share = 0.2
    clip_norm: Positive = 1.0
    learning_rate: Positive = 1e-2

    def cost(self) -> float:
        """CPU seconds of both trainings."""
        width = self.layers * math.pow(self.hidden / 32, 1.5) + self.vocab_size / 300
        return 1 + 4e-4 * (self.probes + self.others) * self.epochs * width

    def phases(self) -> list[Phase]:
        """The same schedule for both models; sums are divided by the expected batch of all."""
        size = self.sampling_probability * (self.probes + self.others)
        names = ("sampling_probability", "noise_multiplier", "clip_norm", "learning_rate")
        given = {name: getattr(self, name) for name in names}
        return dpsgd(epochs=self.epochs, private=Private(normaliser=size, **given))

    def posterior(self, prior: float) -> float:
        """The most that guessing one example can succeed, of one that ``prior`` guesses without
        the model: the upper end of the tight bound, for the steps of ``phases``."""
        if self.noise_multiplier == 0:
            return 1.0
        steps = sum(event.steps for event in (p.event() for p in self.phases()) if event)
        law = secrets.poisson_binomial([self.sampling_probability])
        return float(tight_posterior(law, self.noise_multiplier, steps, prior)[1])

    def run(self, desk: Desk) -> list[Row]:
        """Validation loss of the model of all texts, and how many probes are of which kind."""
        text = texts(self.corpus, self.dialogues, self.seed)
        bpe, length = _vocabulary(text.public, self.vocab_size), self.prefix + self.suffix
        lines, valid = (
            list(dict.fromkeys(tuple(i[:length]) for i in bpe.encode(part) if len(i) >= length))
            for part in (text.train, text.valid)
        )
        check("others", self.others, self.probes + self.others <= len(lines), f"less: {len(lines)}")
        probes, rest = lines[: self.probes], lines[self.probes : self.probes + self.others]
        shape = {n: getattr(self, n) for n in ("hidden", "layers", "heads")}
        spec = ModelSpec(self.model, bpe.vocab_size, context=length, **shape)
        both = [
            train(
                build(spec, self.seed).to(desk.device), self.phases(), {"private": part},
                seed=self.seed, checkpoint=desk.part(name),
            )
            for name, part in (("all", [*probes, *rest]), ("rest", rest))
        ]  # fmt: skip
        ours, theirs = (run.model.eval() for run in both)
        kinds = extraction.kinds(ours, theirs, probes, prefix=self.prefix, suffix=self.suffix)
        counts = {kind: float((kinds == kind).sum()) for kind in extraction.KINDS}
        scores = np.concatenate(token_logprobs(ours, valid))
        size = sum(p.numel() for p in ours.parameters())
        facts = counts | {"loss": -scores.mean(), "parameters": size}
        facts |= {"steps": sum(event.steps for event in both[0].events)}
        return rows(facts)
