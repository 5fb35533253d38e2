"""The runs of Hush!: who holds which secret, masked language models on it, and extraction.

Words as secrets, and which example holds which secret, with what is promised of each:

>>> lines = ["the cat sat", "the dog sat", "a dog ran"]
>>> holders = secret_words(lines, first=1, count=2, prior=0.01, posteriors=(0.1, 0.9), seed=0)
>>> holders.secrets.tolist(), holders.examples.tolist()  # "dog" comes first, by letters
(['sat', 'the'], ['0', '1'])
>>> table = pd.DataFrame({"example": ["a", "b", "b"], "secret": ["x", "x", "y"], "r": 0.2})
>>> held = incidence_of_pairs(table, prior=0.01)
>>> held.secrets.tolist(), held.examples.tolist(), held.matrix.toarray().tolist()
(['x', 'y'], ['a', 'b'], [[1.0, 1.0], [0.0, 1.0]])

Masked language models: which tokens are hidden, and the loss on them.

>>> tokens, lengths = torch.tensor([[0, 5, 6, 7, 1]]), torch.tensor([5])
>>> inputs, targets = hide_tokens(tokens, lengths, mask=2, share=1.0, vocab_size=9,
...                               generator=torch.Generator().manual_seed(0))
>>> targets.tolist()  # the frame, first and last, is never asked for
[[-100, 5, 6, 7, -100]]
>>> bert = build_model(ModelSpec("bert", 9, hidden=8, heads=2), seed=0)
>>> loss = measure_loss(bert, [[0, 5, 6, 7, 1]] * 40, mask=2, seed=0)
>>> bool(abs(loss - 2.197) < 0.3)  # log 9: a guess
True

Verbatim extraction: which training sequences a model continues word by word (Section 5.2).

>>> model = build_model(ModelSpec("lstm", vocab_size=7, embedding=4, hidden=5), seed=0)
>>> first, second = continue_greedily(model, [[1, 2], [3, 4]], length=3).tolist()
>>> sequences = [[1, 2, *first], [3, 4, *second], [3, 4, 6, 6, 6]]
>>> find_extractable(model, sequences, prefix=2, suffix=3).tolist()
[True, True, False]
>>> # the other model, here the same, produces what it was never trained on
>>> classify_extractions(model, model, sequences, prefix=2, suffix=3).tolist()
['generalised', 'generalised', 'kept']
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import Counter, namedtuple
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from pandas import DataFrame
from scipy import sparse
from torch import Tensor, nn

from crtbook import runs
from crtbook.study import Desk, Row, Study, make_rows
from crtbook.tight import tight_posterior
from crtlib.accounting import group_mixtures, secret_protection
from crtlib.accounting.secret_guesses import check_promises
from crtlib.checks import check_allowed
from crtlib.models import generation, interface, scoring
from crtlib.models.construction import build_model
from crtlib.models.scoring import token_logprobs
from crtlib.models.specs import ModelSpec
from crtlib.studies import crt_study
from crtlib.text import corpora, data_points
from crtlib.text.records import MASK, Point, Secret
from crtlib.text.tokenizer import BpeTokenizer, train_bpe
from crtlib.training.devices import send_to_device
from crtlib.training.loop import train_model
from crtlib.training.micro_batch import IGNORE_INDEX
from crtlib.training.noise import RandomSource
from crtlib.training.phases import Phase, PrivatePhase, collate_micro_batches
from crtlib.training.schedules import DpSgdConstants, dpsgd_phases
from crtlib.training.steps import LogicalBatch
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

# --- who holds what -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Incidence:
    """Which example holds which secret: ``matrix (secrets, examples)`` of 0 and 1, the names of
    both in the order of their first rows, and ``prior``, ``posterior (secrets,)``."""

    matrix: sparse.csr_array
    secrets: np.ndarray
    examples: np.ndarray
    prior: np.ndarray
    posterior: np.ndarray


def incidence_of_pairs(table: pd.DataFrame, *, prior: float) -> Incidence:
    """The incidence of different pairs ``example``, ``secret``. Each secret is promised the
    posterior ``r`` of the first of its rows. Raises ValueError unless 0 < prior < r < 1."""
    secret, secrets = pd.factorize(table["secret"])
    example, examples = pd.factorize(table["example"])
    p, r = check_promises(
        prior, table["r"].to_numpy(float)[np.unique(secret, return_index=True)[1]]
    )
    shape = len(secrets), len(examples)
    matrix = sparse.csr_array((np.ones(len(table)), (secret, example)), shape=shape)
    return Incidence(matrix, np.asarray(secrets), np.asarray(examples), p, r)


def incidence_of_values(values: Sequence[Collection[str]]) -> sparse.csr_array:
    """``(secrets, examples)`` of 0 and 1. Each value that an example holds is a secret; secrets are
    in the order in which they are first met, those of one example by name.

    >>> incidence_of_values([{"x"}, {"y", "x"}, set()]).toarray().tolist()
    [[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
    """
    pairs = [(value, i) for i, values_held in enumerate(values) for value in sorted(values_held)]
    rows, _ = pd.factorize(np.array([value for value, _ in pairs], dtype=object))
    coordinates = (rows, [i for _, i in pairs])
    shape = (int(rows.max(initial=-1)) + 1, len(values))
    return sparse.csr_array((np.ones(len(pairs)), coordinates), shape=shape)


# --- masked language models -----------------------------------------------------------------------
SHARE = 0.15
"""The share of the tokens that the model is asked to predict (BERT, Devlin et al. 2019)."""


def hide_tokens(
    tokens: Tensor,
    lengths: Tensor,
    *,
    mask: int,
    vocab_size: int,
    generator: RandomSource,
    share: float = SHARE,
) -> tuple[Tensor, Tensor]:
    """Inputs and targets (B, L) from ``tokens`` (B, L). Each token except the first and the last is
    to be predicted with probability ``share``; of these 80 % are read as ``mask``, 10 % as a random
    token, 10 % as they are. Elsewhere targets are ``IGNORE_INDEX``.

    The draws depend only on ``generator`` and the lengths. Raises ValueError for a share
    outside (0, 1].
    """
    check_allowed("share", share, 0 < share <= 1, "in (0, 1]")
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    is_inner = (positions > 0) & (positions < send_to_device(lengths, tokens.device)[:, None] - 1)
    is_target = is_inner & (_draw_uniforms(tokens, generator) < share)
    fate = _draw_uniforms(tokens, generator)
    random_tokens = (_draw_uniforms(tokens, generator) * vocab_size).long()
    inputs = tokens.masked_fill(is_target & (fate < 0.8), mask)
    inputs = torch.where(is_target & (fate >= 0.9), random_tokens, inputs)
    return inputs, tokens.masked_fill(~is_target, IGNORE_INDEX)


def _draw_uniforms(tokens: Tensor, generator: RandomSource) -> Tensor:
    # What is hidden protects no secret, so where noise is secure any good generator will do.
    seeded = generator if isinstance(generator, torch.Generator) else None
    return torch.rand(tokens.shape, device=tokens.device, dtype=torch.float64, generator=seeded)


@dataclass(frozen=True)
class MaskedPhase(PrivatePhase):
    """A `PrivatePhase` for masked language models, with fresh masks at every step.

    An example's gradient is clipped whatever was hidden in it, so the guarantee is unchanged.
    """

    mask: int = 2
    vocab_size: int = 512

    draws_numbers: ClassVar[bool] = True

    def examples(self, batch: LogicalBatch, noise: RandomSource) -> Iterator[tuple[Tensor, ...]]:
        """``(inputs, lengths, targets)``: see :func:`hide_tokens`."""
        for tokens, lengths in batch:
            inputs, targets = hide_tokens(
                tokens, lengths, mask=self.mask, vocab_size=self.vocab_size, generator=noise
            )
            yield inputs, lengths, targets


@dataclass(frozen=True)
class InvariantPhase(MaskedPhase):
    """A :class:`MaskedPhase` without noise, on texts that no secret changes: it costs nothing."""

    def event(self) -> None:  # type: ignore[override]
        """None: every point that this phase reads is the same for all adjacent datasets."""
        return None


def make_invariant_phase(phase: MaskedPhase, points: int) -> InvariantPhase:
    """As many steps as ``phase``, with batches of the same size, on the part "public". Each of its
    ``points`` is as likely as the others, because no promise requires less."""
    constants = {f.name: getattr(phase, f.name) for f in fields(phase)}
    share = min(1.0, phase.normaliser / points)
    return InvariantPhase(
        **constants | {"part": "public", "sampling_probability": share, "noise_multiplier": 0.0}
    )


@torch.no_grad()
def measure_loss(
    model: nn.Module, sequences: Sequence[Sequence[int]], *, mask: int, seed: int
) -> float:
    """Mean cross entropy in nats of the hidden tokens, which are the same for the same ``seed``."""
    if interface.is_causal(model):
        raise ValueError("model: must be a masked language model")
    head, training = interface.output_head(model), model.training
    device = head.weight.device
    generator = torch.Generator(device).manual_seed(seed)
    total, count = 0.0, 0
    model.eval()
    for tokens, lengths in collate_micro_batches(sequences, range(len(sequences)), device):
        inputs, targets = hide_tokens(
            tokens, lengths, mask=mask, vocab_size=len(head.weight), generator=generator
        )
        is_target = targets != IGNORE_INDEX
        logits = head.logits(interface.hidden_states(model, inputs, lengths)[is_target])
        total += float(F.cross_entropy(logits.float(), targets[is_target], reduction="sum"))
        count += int(is_target.sum())
    model.train(training)
    return total / max(count, 1)


_END = re.compile(r"(?:(?<=\s[.!?]|\w[!?])|(?<=[a-z]{4}\.))\s+(?![a-z]|[\"'”)]\s*$)|\n")


def cut_sentences(points: Iterable[Point]) -> tuple[Point, ...]:
    """Split each point after its sentences, for paragraphs longer than a model's context.

    Ids get ``/j``. A sentence ends at a mark that stands alone, as in WikiText, or at one that
    closes a word of four letters or more, but never before a lower-case letter or a last quotation
    mark. A missed cut leaves a longer point; a cut too many splits a sentence (CRT, A.6.3). The
    cuts are made as if each labelled secret read ``<MASK>``. So no secret is cut, and a point and
    its neighbour with the secret masked are cut in the same way (A.6.2; neither holds for a secret
    without a label).
    """
    pieces: list[Point] = []
    for p in points:
        masked = p.text
        for s in p.secrets:  # no character of a mask ends a sentence or begins a word
            masked = masked[: s.start] + "<" * (s.end - s.start) + masked[s.end :]
        boundaries = [boundary for end in _END.finditer(masked) for boundary in end.span()]
        spans = zip([0, *boundaries[1::2]], [*boundaries[::2], len(p.text)], strict=True)
        for j, (a, b) in enumerate((a, b) for a, b in spans if a < b):
            piece_secrets = (
                Secret(s.kind, s.start - a, s.end - a) for s in p.secrets if a <= s.start < b
            )
            piece_spans = tuple(
                (max(c, a) - a, min(e, b) - a) for c, e in p.spoken_spans if c < b and a < e
            )
            name, secrets = f"{p.id}/{j}", tuple(piece_secrets)
            pieces.append(Point(name, p.user, p.text[a:b], secrets, piece_spans, p.dialogue_id))
    return tuple(pieces)


# --- verbatim extraction --------------------------------------------------------------------------
AT_ONCE = 512  # prefixes that are continued at a time
KINDS = ("kept", "generalised", "memorised")


def continue_greedily(
    model: nn.Module, prefixes: Sequence[Sequence[int]], *, length: int
) -> np.ndarray:
    """The ``length`` tokens that greedy decoding adds to each prefix, ``(prefixes, length)``.

    All prefixes have the same number of tokens. The model is used as it is, without dropout.
    """
    check_allowed("length", length, length >= 1, "at least 1")
    continuations = np.zeros((len(prefixes), length), dtype=np.int64)
    for first in range(0, len(prefixes), AT_ONCE):
        block = slice(first, first + AT_ONCE)
        state, logprobs = generation.read_prefix(model, torch.as_tensor(prefixes[block]))
        for t in range(length):
            tokens = logprobs.argmax(1)
            continuations[block, t] = tokens.cpu().numpy()
            if t + 1 < length:
                state, logprobs = generation.extend_prefix(model, state, tokens)
    return continuations


def find_extractable(
    model: nn.Module, sequences: Sequence[Sequence[int]], *, prefix: int, suffix: int
) -> np.ndarray:
    """Whether each sequence is extractable, ``(sequences,)`` of bool: its first ``prefix`` tokens,
    continued greedily, give its next ``suffix`` tokens (Hush!, Definition 5.1). So each of these is
    the likeliest token after those before it.

    Raises ValueError for a sequence that is shorter than both together; what comes after them is
    not read.
    """
    check_allowed("prefix", prefix, prefix >= 1, "at least 1")
    check_allowed("suffix", suffix, suffix >= 1, "at least 1")
    shortest = min(map(len, sequences), default=prefix + suffix)
    if shortest < prefix + suffix:
        raise ValueError(
            f"sequences: one has {shortest} tokens: must be at least {prefix}+{suffix}"
        )
    shortened = [s[: prefix + suffix] for s in sequences]
    ranks = scoring.token_scores(model, shortened)[1]
    return np.array([not row[prefix - 1 :].any() for row in ranks], dtype=bool)


def classify_extractions(
    model: nn.Module,
    without: nn.Module,
    sequences: Sequence[Sequence[int]],
    *,
    prefix: int,
    suffix: int,
) -> np.ndarray:
    """What became of each training sequence of ``model``, ``(sequences,)`` of ``KINDS``.

    "kept": it is not extractable. "generalised": the model ``without``, trained in the same way on
    all but these sequences, produces it too, so it need not have been remembered. "memorised": only
    the model that has read it produces it (counterfactual memorisation, Zhang et al. 2023).
    """
    is_extractable = find_extractable(model, sequences, prefix=prefix, suffix=suffix)
    is_extractable_without = find_extractable(without, sequences, prefix=prefix, suffix=suffix)
    return np.array(KINDS)[np.where(is_extractable, np.where(is_extractable_without, 1, 2), 0)]


# --- text -----------------------------------------------------------------------------------------


def first_available(names: Sequence[str]) -> str:
    """The first of these corpora that is available; CustomerSim, which is simulated, always is."""
    for name in names:
        if corpora.is_corpus_available(name, find_split(name)):
            return name
    raise ValueError(f"corpora={', '.join(names)}: none is available")


def find_split(name: str) -> str:
    """The first available split of a corpus; :func:`load_texts` makes parts of its own."""
    return next(
        (s for s in ("train", "valid", "test") if corpora.is_corpus_available(name, s)), "train"
    )


Texts = namedtuple("Texts", ["public", "train", "valid", "test"])
"""Different texts, each in one part only; the vocabulary is learned from ``public``."""


@functools.lru_cache(maxsize=8)
def load_texts(corpus: str, dialogues: int, seed: int) -> Texts:
    """A corpus' turns (sentences where there are no speakers), without repetitions, shuffled by
    ``seed`` and split 15 : 65 : 10 : 10. A paragraph (WikiText) or an abstract (arXiv) is a
    dialogue."""
    if draw := corpora.find_source(corpus).draw:
        loaded = draw(dialogues, seed, "rich")
    else:
        loaded = corpora.load_corpus(corpus, find_split(corpus), limit=dialogues)
    points = data_points.make_points(loaded, unit="turn")
    if not loaded.dialogues[0].turns[0].speaker:
        points = cut_sentences(points)
    lines = sorted({p.text for p in points if len(p.text) > 15})
    lines = [lines[i] for i in np.random.default_rng(seed).permutation(len(lines))]
    bounds = (np.array([0, 0.15, 0.8, 0.9, 1]) * len(lines)).astype(int)
    return Texts(*(tuple(lines[a:b]) for a, b in itertools.pairwise(bounds)))


def secret_words(
    lines: Sequence[str],
    *,
    first: int,
    count: int,
    prior: float,
    posteriors: tuple[float, float],
    seed: int,
) -> Incidence:
    """Words as secrets, as in Section 5.1: of the words sorted by how many texts hold them, the
    ``count`` from rank ``first`` on. Each is promised a posterior drawn uniformly between the two
    ``posteriors``. ``examples`` are the numbers of the lines that hold a secret, as strings."""
    words_by_line = [set(re.findall(r"[a-z]+", line.lower())) for line in lines]
    line_counts = Counter(word for words in words_by_line for word in words)
    ranked = sorted(line_counts, key=lambda word: (-line_counts[word], word))[first : first + count]
    if len(ranked) < count:
        raise ValueError(f"first={first}, count={count}: the text has {len(line_counts)} words")
    limits = np.random.default_rng([seed, 3]).uniform(*posteriors, size=count)
    promise = dict(zip(ranked, limits.tolist(), strict=True))
    pairs = [(str(i), w, promise[w]) for i, words in enumerate(words_by_line) for w in sorted(words)
             if w in promise]  # fmt: skip
    table = DataFrame(pairs, columns=["example", "secret", "r"])
    return incidence_of_pairs(table, prior=prior)


def mask_words(line: str, words: Collection[str]) -> str:
    """A line with ``<MASK>`` for each of these words: the part that stays the same, whatever they
    are.

    It is a *view* for the narrower predicate (Hush!, Section 3), by which two examples are the same
    except for a secret word. What is computed only from views is equal for adjacent datasets, so it
    costs nothing of any promise.

    >>> mask_words("The cat, the CAT!", {"cat"})
    'The <MASK>, the <MASK>!'
    """
    return re.sub("[A-Za-z]+", lambda m: MASK if m[0].lower() in words else m[0], line)


@checked_dataclass
class TextStudy(Study):
    """A run on the :func:`load_texts` of a corpus."""

    corpus: NonEmptyStr = crt_study.DEFAULT_CORPUS

    def reads(self) -> Iterable[str]:
        """The fingerprint of its corpus."""
        yield corpora.corpus_fingerprint(self.corpus, find_split(self.corpus))

    def lacks(self) -> str | None:
        """The corpus, where it is missing."""
        available = corpora.is_corpus_available(self.corpus, find_split(self.corpus))
        return None if available else runs.describe_missing_data(self.corpus)


# --- Section 5.1: a masked language model on text with word-secrets -------------------------------


@checked_dataclass
class MaskedStudy(TextStudy):
    """One plan and one model. ``scale=None`` means no preprocessing: every example weighs the same.
    ``noisy=False`` trains on the same samples without noise (and promises nothing). ``simulated``
    is how many times larger the batch and the data are pretended to be: the noise is divided by
    it, and ``worst`` shows what that breaks. With ``predicate`` "word" a text stays the same except
    for its secret words. What is left when these are masked is then the same for all adjacent
    datasets, and is read first, without noise."""

    LATER = frozenset({"simulated", "predicate"})

    targets: Literal["linear", "sqrt"]
    scale: PositiveFloat | None
    noisy: bool
    dialogues: PositiveInt = 300
    first: NonNegativeInt = 200
    secrets: PositiveInt = 150
    prior: OpenProbability = 0.01
    posterior_low: OpenProbability = 0.1
    posterior_high: OpenProbability = 0.9
    vocab_size: PositiveInt = 400
    hidden: PositiveInt = 32
    layers: PositiveInt = 2
    heads: PositiveInt = 2
    context: PositiveInt = 64
    steps: PositiveInt = 30
    batch_size: PositiveInt = 64
    clip_norm: PositiveFloat = 0.1
    learning_rate: PositiveFloat = 1e-3
    simulated: PositiveInt = 1
    predicate: Literal["anything", "word"] = "anything"

    def cost(self) -> float:
        """CPU seconds."""
        width = self.layers * self.hidden / 32 + self.vocab_size / 400
        phases = 1 + (self.predicate == "word")
        return 1 + 1e-4 * phases * self.steps * self.batch_size * self.context / 32 * width

    def phase(self, plan: secrets.Plan, bpe: BpeTokenizer) -> MaskedPhase:
        """All steps of a plan, on text with this vocabulary."""
        return MaskedPhase(
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
        shared = {"simulated": 1, "predicate": "anything", "learning_rate": 1e-3, "noisy": True}
        plan, holders = plan_masked_study(replace(self, **shared))  # once for all
        text = load_texts(self.corpus, self.dialogues, self.seed)
        bpe = _train_vocabulary(text.public, self.vocab_size)
        shape = {n: getattr(self, n) for n in ("hidden", "layers", "heads", "context")}
        model = build_model(ModelSpec("bert", bpe.vocab_size, **shape), self.seed)

        def cut(lines: Iterable[str]) -> list[list[int]]:
            return [ids[: self.context] for ids in bpe.encode(lines)]

        lines = [text.train[int(i)] for i in holders.examples]
        phases: list[Phase] = [self.phase(plan, bpe)]
        parts = {"private": cut(lines)}
        if self.predicate == "word":
            parts["public"] = cut(mask_words(line, holders.secrets.tolist()) for line in lines)
            phases.insert(0, make_invariant_phase(phases[0], len(lines)))
        model.to(desk.device)
        run = train_model(model, phases, parts, seed=self.seed, checkpoint=desk.checkpoint)
        accounted = secret_protection.secret_guess_bounds(
            run.events, holders.matrix, prior=holders.prior, neighbouring_relation="reference"
        )[0]
        metrics = {
            "kept": plan.kept_share,
            "kept_examples": float((plan.weights > 0.5).mean()),
            "noise_multiplier": phases[-1].noise_multiplier,
            "needed": plan.noise_multiplier,
            "worst": float((accounted / holders.posterior).max()),
            "examples": len(lines),
        }
        for part in ("valid", "test"):
            metrics[part] = measure_loss(run.model, cut(getattr(text, part)), mask=bpe.mask, seed=0)
        return make_rows(metrics)


@checked_dataclass
class UnigramStudy(TextStudy):
    """How often each token occurs in the training texts of :class:`MaskedStudy`, regardless of its
    place. A model whose loss is not below this one's has learned nothing that is compared."""

    dialogues: PositiveInt = 300
    vocab_size: PositiveInt = 400

    def run(self, desk: Desk) -> list[Row]:
        """The loss on the test texts, in nats per token, with one added to every count."""
        text = load_texts(self.corpus, self.dialogues, self.seed)
        bpe = _train_vocabulary(text.public, self.vocab_size)
        train, test = (
            [i for ids in bpe.encode(part) for i in ids[1:-1]] for part in (text.train, text.test)
        )
        counts = np.bincount(train, minlength=bpe.vocab_size) + 1
        return make_rows({"test": -np.log(counts / counts.sum())[test].mean()})


@functools.lru_cache(maxsize=64)
def plan_masked_study(study: MaskedStudy) -> tuple[secret_protection.ProtectionPlan, Incidence]:
    """How to train, and which example holds which secret."""
    holders = secret_words(
        load_texts(study.corpus, study.dialogues, study.seed).train,
        first=study.first,
        count=study.secrets,
        prior=study.prior,
        posteriors=(study.posterior_low, study.posterior_high),
        seed=study.seed,
    )
    plan = secret_protection.plan_protection(
        holders.matrix,
        holders.prior,
        holders.posterior,
        steps=study.steps,
        batch_size=study.batch_size,
        scale=math.inf if study.scale is None else study.scale,
        budget_growth=study.targets,
        neighbouring_relation="reference",
    )
    return plan, holders


RULES = {"linear": ("linear", "auto"), "greedy": ("linear", "greedy"), "sqrt": ("sqrt", "auto")}
"""Which examples to keep: by the program, with both rules of the budget, or by contribution
bounding."""


def tabulate_plans(base: MaskedStudy, *, scales: Sequence[float], seeds: int) -> DataFrame:
    """What each of ``RULES`` keeps at each C of ``scales``, and the noise ``needed``, without any
    training. One row for each rule (``targets``), ``scale`` and ``seed``."""
    rows = []
    for seed, (rule, options) in itertools.product(range(seeds), RULES.items()):
        holders = plan_masked_study(replace(base, seed=seed))[1]
        plans = secret_protection.sweep_scales(
            holders.matrix, holders.prior, holders.posterior, scales=scales, steps=base.steps,
            batch_size=base.batch_size, budget_growth=options[0], solver=options[1],
            neighbouring_relation="reference",
        )  # fmt: skip
        plans = plans[["scale", "kept"]].assign(needed=plans.noise_multiplier)
        rows.append(plans.assign(targets=rule, seed=seed, noisy=True))
    return pd.concat(rows, ignore_index=True)


@functools.lru_cache(maxsize=8)
def _train_vocabulary(public: tuple[str, ...], size: int) -> BpeTokenizer:
    return train_bpe(public, vocab_size=size)


def _fill_later_columns(table: DataFrame) -> DataFrame:
    """The table with an infinite C for no preprocessing, and the defaults of later columns."""
    filled = table.assign(scale=table.scale.astype(float).fillna(math.inf))
    for name, usual in (("simulated", 1), ("predicate", "anything")):
        filled[name] = filled[name].fillna(usual) if name in filled else usual
    return filled


def select_as_promised(table: DataFrame) -> DataFrame:
    """The rows of Figure 1: with the noise of the promise, and the predicate that is always 1."""
    filled = _fill_later_columns(table)
    return table[(filled.simulated == 1) & (filled.predicate == "anything")]


def choose_learning_rates(table: DataFrame) -> DataFrame:
    """One row for each cell of Figure 1 and seed, at the learning rate with the least mean
    validation loss over the seeds. Every cell has had the same rates to choose from."""
    cell = ["targets", "scale", "noisy", "simulated", "predicate"]
    names = ["run", *cell, "learning_rate", "seed"]
    wide = (
        _fill_later_columns(table)
        .pivot_table(index=names, columns="metric", values="value")
        .reset_index()
    )
    mean = wide.groupby([*cell, "learning_rate"]).valid.mean().reset_index()
    chosen = mean.loc[mean.groupby(cell).valid.idxmin(), [*cell, "learning_rate"]]
    return wide.merge(chosen)


# --- Section 5.2: what can be extracted -----------------------------------------------------------


@checked_dataclass
class ExtractionStudy(TextStudy):
    """DP-SGD on a causal model, twice: on all texts, and on all but the ``probes``. ``prefix`` and
    ``suffix`` are in tokens."""

    noise_multiplier: NonNegativeFloat
    dialogues: PositiveInt = 40
    probes: PositiveInt = 40
    others: PositiveInt = 80
    prefix: PositiveInt = 12
    suffix: PositiveInt = 4
    model: Literal["lstm", "gru", "gpt2", "gemma2"] = "gemma2"
    vocab_size: PositiveInt = 320
    hidden: PositiveInt = 32
    layers: PositiveInt = 2
    heads: PositiveInt = 4
    epochs: PositiveInt = 30
    sampling_probability: Probability = 0.2
    clip_norm: PositiveFloat = 1.0
    learning_rate: PositiveFloat = 1e-2

    def cost(self) -> float:
        """CPU seconds of both trainings."""
        width = self.layers * math.pow(self.hidden / 32, 1.5) + self.vocab_size / 300
        return 1 + 4e-4 * (self.probes + self.others) * self.epochs * width

    def phases(self) -> list[Phase]:
        """The same schedule for both models; sums are divided by the expected batch of all."""
        size = self.sampling_probability * (self.probes + self.others)
        names = ("sampling_probability", "noise_multiplier", "clip_norm", "learning_rate")
        constants = {name: getattr(self, name) for name in names}
        return dpsgd_phases(
            epochs=self.epochs, private=DpSgdConstants(normaliser=size, **constants)
        )

    def posterior(self, prior: float) -> float:
        """The best success probability at guessing one example that ``prior`` guesses without the
        model: the upper end of the tight bound, for the steps of ``phases``."""
        if self.noise_multiplier == 0:
            return 1.0
        steps = sum(event.steps for event in (p.event() for p in self.phases()) if event)
        law = group_mixtures.poisson_binomial([self.sampling_probability])
        return float(
            tight_posterior(
                law, self.noise_multiplier, steps, prior, neighbouring_relation="reference"
            )[1]
        )

    def run(self, desk: Desk) -> list[Row]:
        """Validation loss of the model of all texts, and the number of probes of each kind."""
        text = load_texts(self.corpus, self.dialogues, self.seed)
        bpe, length = _train_vocabulary(text.public, self.vocab_size), self.prefix + self.suffix
        lines, valid = (
            list(dict.fromkeys(tuple(i[:length]) for i in bpe.encode(part) if len(i) >= length))
            for part in (text.train, text.valid)
        )
        check_allowed(
            "others", self.others, self.probes + self.others <= len(lines), f"less: {len(lines)}"
        )
        probes, other_texts = lines[: self.probes], lines[self.probes : self.probes + self.others]
        shape = {n: getattr(self, n) for n in ("hidden", "layers", "heads")}
        spec = ModelSpec(self.model, bpe.vocab_size, context=length, **shape)
        trainings = [
            train_model(
                build_model(spec, self.seed).to(desk.device), self.phases(), {"private": part},
                seed=self.seed, checkpoint=desk.part(name),
            )
            for name, part in (("all", [*probes, *other_texts]), ("rest", other_texts))
        ]  # fmt: skip
        trained, trained_without = (run.model.eval() for run in trainings)
        outcomes = classify_extractions(
            trained, trained_without, probes, prefix=self.prefix, suffix=self.suffix
        )
        counts = {kind: float((outcomes == kind).sum()) for kind in KINDS}
        scores = np.concatenate(token_logprobs(trained, valid))
        size = sum(p.numel() for p in trained.parameters())
        metrics = counts | {"loss": -scores.mean(), "parameters": size}
        metrics |= {"steps": sum(event.steps for event in trainings[0].events)}
        return make_rows(metrics)
