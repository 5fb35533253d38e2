"""The losses of Hush!'s Figure 1 on a whole corpus: a masked model that has first read other
documents, as the paper's was pre-trained, and then reads those with secret words, with noise.

The documents are split once, the same for all seeds: those that the model reads before, those for
validation and test, and those it is trained on. A seed draws promises, batches and noise.

The first weights depend on rounding, and so on the processor: two engines that differ only in
rounding reached test losses of 4.35 and 4.62 nats after 1,875 steps. So all arms of a seed are run
on one machine.

>>> cut = cut_documents([str(i) for i in range(20)], before=6, heldout=3)
>>> [len(part) for part in cut], len(set().union(*cut))
([6, 3, 3, 8], 20)
"""

from __future__ import annotations

import functools
import math
from collections import namedtuple
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame
from torch import nn

from crtbook.secrets import Incidence, InvariantPhase, MaskedPhase, find_split, measure_loss
from crtbook.study import Desk, Row, make_rows
from crtbook.word_plans import (
    WordIndex,
    WordPlanStudy,
    hold_words,
    index_words,
    rank_words,
    secret_ranks,
)
from crtlib.accounting import secret_protection
from crtlib.accounting.events import WeightedGaussian
from crtlib.accounting.secret_guesses import check_promises
from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.text import corpora
from crtlib.text.tokenizer import BpeTokenizer, train_bpe
from crtlib.training.loop import train_model
from crtlib.values import NonNegativeInt, PositiveFloat, PositiveInt, checked_dataclass

CutDocuments = namedtuple("CutDocuments", ["before", "valid", "test", "train"])
"""Different documents, each in one part only."""
TokenArrays = list[NDArray[np.int32]]
ENCODED_AT_ONCE = 4096
"""Documents encoded at a time: an abstract takes 20 KB while it is encoded."""


def cut_documents(documents: Sequence[str], *, before: int, heldout: int) -> CutDocuments:
    """Shuffle and split the documents, always in the same way. Raises ValueError if a part would
    be empty."""
    bounds = np.cumsum([0, before, heldout, heldout])
    if bounds[-1] >= len(documents):
        raise ValueError(
            f"before={before}, heldout={heldout}: leave nothing of {len(documents)} documents"
        )
    order = np.random.default_rng(0).permutation(len(documents))
    parts = np.split(order, bounds[1:])
    return CutDocuments(*([documents[i] for i in part] for part in parts))


@checked_dataclass
class FineTunedStudy(WordPlanStudy):
    """One plan and one model of BERT's kind. Its vocabulary and its first weights are learned from
    ``before`` other documents, which are public; then it takes ``steps`` of the plan.

    ``noisy=False`` takes the same samples without noise (and promises nothing). Documents are cut
    off after ``context`` tokens.
    """

    noisy: bool = True
    heldout: PositiveInt = 20
    before: PositiveInt = 60
    before_epochs: NonNegativeInt = 1
    before_rate: PositiveFloat = 2e-3
    before_batch: PositiveInt = 32
    vocab_size: PositiveInt = 300
    hidden: PositiveInt = 128
    layers: PositiveInt = 2
    heads: PositiveInt = 2
    context: PositiveInt = 64
    clip_norm: PositiveFloat = 0.1
    learning_rate: PositiveFloat = 1e-3

    def cost(self) -> float:
        """CPU seconds, without those for the first weights, which a process learns once."""
        width = self.layers * (self.hidden / 128) ** 2 + self.vocab_size / 8000
        return 20 + 2.7e-5 * self.steps * self.batch_size * self.context * width

    def memory(self) -> float:
        """GiB: the documents, their index and their tokens."""
        return super().memory() + self.dialogues / 4e5

    def run(self, desk: Desk) -> list[Row]:
        """Losses before and after, what is kept, the noise, and the worst accounted/promised ratio.

        ``start_test`` is the loss of the first weights, ``unigram_test`` that of word counts from
        the training documents.
        """
        shared: dict[str, Any] = {"noisy": True, "learning_rate": 1e-3, "clip_norm": 0.1}
        plan, holders = _plan_study(replace(self, **shared))
        tokens = _encode_documents(self.corpus, self.dialogues, self.before, self.heldout,
                                   self.vocab_size, self.context)  # fmt: skip
        bpe, train_tokens = tokens.bpe, [tokens.train[int(i)] for i in holders.examples]
        model, start = _learn_first_weights(replace(
            self, **shared, seed=0, targets="linear", scale=None, steps=1, batch_size=1
        ))  # fmt: skip
        learned = self.build(bpe.vocab_size)
        learned.load_state_dict(model.state_dict())
        phase = MaskedPhase(
            epoch=1,
            sampling_probability=tuple(plan.probabilities.tolist()),
            steps=self.steps,
            noise_multiplier=plan.noise_multiplier if self.noisy else 0.0,
            clip_norm=self.clip_norm,
            normaliser=self.batch_size,
            learning_rate=self.learning_rate,
            mask=bpe.mask,
            vocab_size=bpe.vocab_size,
        )
        learned.to(desk.device)
        run = train_model(
            learned, [phase], {"private": train_tokens}, seed=self.seed, checkpoint=desk.checkpoint
        )
        rounds = [event for event in run.events if isinstance(event, WeightedGaussian)]
        accounted = secret_protection.secret_guess_bounds(
            rounds, holders.matrix, prior=holders.prior, neighbouring_relation="reference"
        )[0]
        metrics = {
            "kept": plan.kept_share,
            "kept_examples": float((plan.weights > 0.5).mean()),
            "noise_multiplier": phase.noise_multiplier,
            "needed": plan.noise_multiplier,
            "worst": float((accounted / holders.posterior).max()),
            "examples": len(train_tokens),
            "secrets_held": len(holders.secrets),
        }
        metrics |= {f"start_{name}": value for name, value in start.items()}
        for name, sequences in (("valid", tokens.valid), ("test", tokens.test)):
            metrics[name] = measure_loss(run.model, sequences, mask=bpe.mask, seed=0)
        counts = np.bincount(np.concatenate(train_tokens), minlength=bpe.vocab_size) + 1
        test_tokens = np.concatenate([ids[1:-1] for ids in tokens.test])
        metrics["unigram_test"] = -np.log(counts / counts.sum())[test_tokens].mean()
        return make_rows(metrics)

    def build(self, vocab_size: int) -> nn.Module:
        """The model, whose weights follow from the seed 0: they are public."""
        shape = {n: getattr(self, n) for n in ("hidden", "layers", "heads", "context")}
        return build_model(ModelSpec("bert", vocab_size, **shape), 0)


_Tokens = namedtuple("_Tokens", ["bpe", "before", "valid", "test", "train"])


@functools.lru_cache(maxsize=1)
def _load_documents(corpus: str, dialogues: int, before: int, heldout: int) -> CutDocuments:
    loaded = corpora.load_corpus(corpus, find_split(corpus), limit=dialogues)
    documents = list(dict.fromkeys(turn.text for turn in loaded.turns()))
    return cut_documents(documents, before=before, heldout=heldout)


@functools.lru_cache(maxsize=1)
def _encode_documents(
    corpus: str, dialogues: int, before: int, heldout: int, vocab_size: int, context: int
) -> _Tokens:
    documents = _load_documents(corpus, dialogues, before, heldout)
    bpe: BpeTokenizer = train_bpe(documents.before, vocab_size=vocab_size)

    def cut(texts: Sequence[str]) -> TokenArrays:
        blocks = (texts[a : a + ENCODED_AT_ONCE] for a in range(0, len(texts), ENCODED_AT_ONCE))
        return [np.array(i[:context], np.int32) for block in blocks for i in bpe.encode(block)]

    return _Tokens(bpe, *map(cut, documents))


@functools.lru_cache(maxsize=1)
def _index_and_rank_words(
    corpus: str, dialogues: int, before: int, heldout: int, words: str
) -> tuple[WordIndex, NDArray[np.int64]]:
    index = index_words(_load_documents(corpus, dialogues, before, heldout).train, words)
    return index, rank_words(index)


@functools.lru_cache(maxsize=8)
def _plan_study(study: FineTunedStudy) -> tuple[secret_protection.ProtectionPlan, Incidence]:
    """How to train, and which of the training documents holds which secret word."""
    index, ranked = _index_and_rank_words(
        study.corpus, study.dialogues, study.before, study.heldout, study.words
    )
    ranks = secret_ranks(index.frequencies()[ranked], study.band, study.first, study.secrets)
    secrets, incidence = ranked[ranks], hold_words(index, ranked[ranks])
    is_secret = np.zeros(len(index.words), bool)
    is_secret[secrets] = True
    column = np.repeat(np.arange(len(index.ends) - 1), np.diff(index.ends))
    examples = np.unique(column[is_secret[index.held]])
    promised = np.random.default_rng([study.seed, 3]).uniform(
        study.posterior_low, study.posterior_high, size=incidence.shape[0]
    )
    prior, posterior = check_promises(study.prior, promised)
    plan = secret_protection.plan_protection(
        incidence,
        prior,
        posterior,
        steps=study.steps,
        batch_size=study.batch_size,
        scale=math.inf if study.scale is None else study.scale,
        budget_growth=study.targets,
        neighbouring_relation="reference",
    )
    names = np.array([index.words[i] for i in secrets])
    return plan, Incidence(incidence, names, examples, prior, posterior)


@functools.lru_cache(maxsize=1)
def _learn_first_weights(study: FineTunedStudy) -> tuple[nn.Module, dict[str, float]]:
    """The model that has read the other documents, and its losses."""
    tokens = _encode_documents(study.corpus, study.dialogues, study.before, study.heldout,
                               study.vocab_size, study.context)  # fmt: skip
    size, bpe = len(tokens.before), tokens.bpe
    model = study.build(bpe.vocab_size)
    if study.before_epochs:
        phase = InvariantPhase(
            epoch=1,
            part="public",
            sampling_probability=min(1.0, study.before_batch / size),
            steps=math.ceil(study.before_epochs * size / study.before_batch),
            noise_multiplier=0.0,
            clip_norm=1.0,
            normaliser=study.before_batch,
            learning_rate=study.before_rate,
            mask=bpe.mask,
            vocab_size=bpe.vocab_size,
        )
        model = train_model(model, [phase], {"public": tokens.before}, seed=0).model
    heldout_parts = (("valid", tokens.valid), ("test", tokens.test))
    losses = {}
    for name, sequences in heldout_parts:
        losses[name] = measure_loss(model, sequences, mask=bpe.mask, seed=0)
    return model, losses


# --- what validation chooses ----------------------------------------------------------------------
ARM = ["targets", "scale", "noisy"]


def choose_rates(table: DataFrame) -> DataFrame:
    """For each arm (``ARM``), the learning rate with the least validation loss at the first seed,
    where every arm has run with all rates. An infinite ``scale`` means no preprocessing."""
    filled = table.assign(scale=table.scale.astype(float).fillna(math.inf))
    first = filled[(filled.metric == "valid") & (filled.seed == filled.seed.min())]
    chosen: DataFrame = first.loc[first.groupby(ARM).value.idxmin(), [*ARM, "learning_rate"]]
    return chosen.reset_index(drop=True)


def select_chosen_runs(table: DataFrame) -> DataFrame:
    """The rows of the runs at the rates of :func:`choose_rates`. ``best`` is whether the arm has
    the C with the least validation loss at the first seed, among the arms of its rule with a C.
    Raises ValueError where runs of a seed start from different weights."""
    start_counts = table[table.metric == "start_test"].groupby("seed").value.nunique()
    if (start_counts > 1).any():
        raise ValueError(
            f"table: runs of seed {start_counts.idxmax()} start from {start_counts.max()} "
            "different weights; all arms of a seed must be run on one machine"
        )
    filled = table.assign(scale=table.scale.astype(float).fillna(math.inf))
    at_chosen_rates = filled.merge(choose_rates(table))
    first = at_chosen_rates[
        (at_chosen_rates.metric == "valid") & (at_chosen_rates.seed == at_chosen_rates.seed.min())
    ]
    first = first[np.isfinite(first.scale)]
    best_arms = first.loc[first.groupby(["targets", "noisy"]).value.idxmin(), ARM].assign(best=True)
    marked = at_chosen_rates.merge(best_arms, how="left", on=ARM)
    return marked.assign(best=marked.best.eq(True))
